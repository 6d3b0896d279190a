/*
 * Loads program images of every kind on the simulated GPU under a limit, most of them damaged at random, uses what was
 * loaded, and unloads it. After each step the GPU memory in use by the driver must not exceed what is charged. No other
 * process uses the GPU.
 *
 *   image_worker DRIVER SEED STEPS    DRIVER is the library behind the shadow
 */
#include "../../e2e/campaign/families/images.h"
#include "../../e2e/campaign/random.h"
#include "../driver/cuda_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

CUresult cuInit(unsigned int);
CUresult cuCtxCreate_v2(CUcontext *, unsigned int, CUdevice);
CUresult cuCtxDestroy_v2(CUcontext);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuModuleLoad(CUmodule *, const char *);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleUnload(CUmodule);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuModuleGetGlobal_v2(CUdeviceptr *, size_t *, CUmodule, const char *);
CUresult cuModuleEnumerateFunctions(CUfunction *, unsigned int, CUmodule);
CUresult cuLibraryLoadData(CUlibrary *, const void *, int *, void **, unsigned int, int *, void **, unsigned int);
CUresult cuLibraryLoadFromFile(CUlibrary *, const char *, int *, void **, unsigned int, int *, void **, unsigned int);
CUresult cuLibraryUnload(CUlibrary);
CUresult cuLibraryGetKernel(CUkernel *, CUlibrary, const char *);
CUresult cuLibraryGetModule(CUmodule *, CUlibrary);
CUresult cuLibraryGetGlobal(CUdeviceptr *, size_t *, CUlibrary, const char *);
CUresult cuLaunchKernel(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                        unsigned int, CUstream, void **, void **);

#define MIB ((uint64_t)1 << 20)
#define SLOTS 6

typedef CUresult get_info_function(size_t *free, size_t *total);

static get_info_function *driver_info;
static uint64_t loaded, refused;

static struct slot {
    CUmodule module;
    CUlibrary library;
} slots[SLOTS];

/* --- images ------------------------------------------------------------------------------------------------------- */

static bool make_one(uint64_t *random, struct program *program) {
    struct program first, second;
    const struct program_wish wish = {.data_most = random_once_in(random, 3) ? 300 * MIB : 8 * MIB,
                                      .managed = random_once_in(random, 3),
                                      .prefix = ""};
    switch (random_below(random, 5)) {
    case 0:
    case 1:
        return program_ptx(random, &wish, program);
    case 2:
        return program_cubin(random, &wish, program);
    case 3:
        return program_compressed(1 + random_below(random, 200 * MIB), program);
    default:
        return program_ptx(random, &wish, &first) && program_cubin(random, &wish, &second) &&
               program_fatbin(&first, &second, program);
    }
}

/* Bits and numbers; PTX keeps the zero at its end. */
static void damage(uint64_t *random, struct program *program) {
    static const uint64_t numbers[] = {0, 1, 0xff, 0xffff, UINT32_MAX, INT64_MAX, UINT64_MAX, 1 << 20, 1 << 30};
    for (uint64_t times = random_below(random, 4); times > 0; times--) {
        size_t at = random_below(random, program->size - 1), bytes = (size_t)1 << random_below(random, 4);
        if (random_once_in(random, 2) && program->size - 1 - at >= bytes && program->bytes[0] != '.')
            memcpy(program->bytes + at, &numbers[random_below(random, sizeof numbers / sizeof numbers[0])], bytes);
        else
            program->bytes[at] ^= (char)(1 << random_below(random, 8));
    }
}

/* In memory that ends where the image does. */
static void *place(const struct program *program, size_t *room) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), behind = (size_t)1 << 40;
    *room = (program->size + page - 1) / page * page;
    char *memory = mmap(NULL, *room + behind, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, *room, PROT_READ | PROT_WRITE) != 0)
        abort();
    memcpy(memory + *room - program->size, program->bytes, program->size);
    *room += behind;
    return memory;
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

static int judge(const char *step) {
    size_t free = 0, total = 0, left = 0, limit = 0;
    if (driver_info(&free, &total) != CUDA_SUCCESS || cuMemGetInfo_v2(&left, &limit) != CUDA_SUCCESS)
        return 1;
    if (total - free <= limit - left)
        return 0;
    fprintf(stderr, "image_worker: %s: %zu MiB are held, %zu counted\n", step, (total - free) >> 20,
            (limit - left) >> 20);
    return 1;
}

static CUresult load_file(struct slot *slot, const struct program *program, bool library) {
    char path[64];
    int file = memfd_create("image", MFD_CLOEXEC);
    if (file < 0 || write(file, program->bytes, program->size) != (ssize_t)program->size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    CUresult result = library ? cuLibraryLoadFromFile(&slot->library, path, NULL, NULL, 0, NULL, NULL, 0)
                              : cuModuleLoad(&slot->module, path);
    close(file);
    return result;
}

static int load(uint64_t *random, struct slot *slot) {
    struct program program;
    size_t room;
    bool library = random_once_in(random, 3);
    *slot = (struct slot){NULL, NULL};
    if (!make_one(random, &program))
        abort();
    damage(random, &program);
    CUresult result;
    if (random_once_in(random, 4)) {
        result = load_file(slot, &program, library);
    } else {
        char *memory = place(&program, &room);
        const char *image = memory + (room - ((size_t)1 << 40)) - program.size;
        result = library ? cuLibraryLoadData(&slot->library, image, NULL, NULL, 0, NULL, NULL, 0)
                         : cuModuleLoadData(&slot->module, image);
        munmap(memory, room);
    }
    program_free(&program);
    loaded += result == CUDA_SUCCESS;
    refused += result != CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        *slot = (struct slot){NULL, NULL};
    return judge(library ? "loading a library" : "loading a module");
}

static int use_library(uint64_t *random, CUlibrary library) {
    CUdeviceptr address;
    CUkernel kernel;
    CUmodule module;
    size_t size;
    if (random_once_in(random, 3))
        cuLibraryGetGlobal(&address, &size, library, "v0");
    if (random_once_in(random, 3) && cuLibraryGetModule(&module, library) == CUDA_SUCCESS)
        cuModuleGetGlobal_v2(&address, &size, module, "v1");
    if (cuLibraryGetKernel(&kernel, library, "k0") == CUDA_SUCCESS)
        cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    return judge("using a library");
}

static int use_module(uint64_t *random, CUmodule module) {
    CUdeviceptr address;
    CUfunction function = NULL;
    size_t size;
    if (random_once_in(random, 2))
        cuModuleGetGlobal_v2(&address, &size, module, "v0");
    else if (random_once_in(random, 2))
        cuModuleEnumerateFunctions(&function, 1, module);
    else
        cuModuleGetFunction(&function, module, "k0");
    if (function != NULL)
        cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    return judge("using a module");
}

static int unload(struct slot *slot) {
    if (slot->library != NULL)
        cuLibraryUnload(slot->library);
    if (slot->module != NULL)
        cuModuleUnload(slot->module);
    *slot = (struct slot){NULL, NULL};
    return judge("unloading");
}

static int step(uint64_t *random) {
    struct slot *slot = &slots[random_below(random, SLOTS)];
    if (slot->library == NULL && slot->module == NULL)
        return load(random, slot);
    if (random_once_in(random, 3))
        return unload(slot);
    return slot->library != NULL ? use_library(random, slot->library) : use_module(random, slot->module);
}

int main(int argc, char **argv) {
    CUcontext context;
    uint64_t random = argc == 4 ? strtoull(argv[2], NULL, 10) : 0;
    void *driver = argc == 4 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    driver_info = driver != NULL ? (get_info_function *)dlsym(driver, "cuMemGetInfo_v2") : NULL;
    if (driver_info == NULL || cuInit(0) != CUDA_SUCCESS || cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS) {
        fprintf(stderr, "usage: image_worker DRIVER SEED STEPS\n");
        return 2;
    }
    for (int i = 0; i < atoi(argv[3]); i++)
        if (step(&random) != 0) {
            fprintf(stderr, "image_worker: at step %d of seed %s\n", i, argv[2]);
            return 1;
        }
    for (int i = 0; i < SLOTS; i++)
        if (unload(&slots[i]) != 0)
            return 1;
    size_t free = 0, total = 0;
    cuMemGetInfo_v2(&free, &total);
    printf("loaded %llu, refused %llu, %zu MiB counted at the end\n", (unsigned long long)loaded,
           (unsigned long long)refused, (total - free) >> 20);
    return 0;
}
