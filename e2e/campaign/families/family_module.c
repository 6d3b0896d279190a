/* Modules and libraries, of images of every kind, loaded lazily and eagerly; their variables and their kernels. */
#include "extras.h"
#include "family_pool.h"
#include "images.h"
#include "worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FUNCTIONS(X)                                                                                                   \
    X(cuModuleLoad, "cuModuleLoad", 2000)                                                                              \
    X(cuModuleLoadData, "cuModuleLoadData", 2000)                                                                      \
    X(cuModuleLoadDataEx, "cuModuleLoadDataEx", 2010)                                                                  \
    X(cuModuleLoadFatBinary, "cuModuleLoadFatBinary", 2000)                                                            \
    X(cuModuleUnload, "cuModuleUnload", 2000)                                                                          \
    X(cuModuleGetLoadingMode, "cuModuleGetLoadingMode", 11070)                                                         \
    X(cuModuleGetFunction, "cuModuleGetFunction", 2000)                                                                \
    X(cuModuleGetGlobal_v2, "cuModuleGetGlobal", 3020)                                                                 \
    X(cuLaunchKernel, "cuLaunchKernel", 4000)                                                                          \
    X(cuCtxSynchronize, "cuCtxSynchronize", 2000)                                                                      \
    X(cuLinkCreate_v2, "cuLinkCreate", 6050)                                                                           \
    X(cuLinkAddData_v2, "cuLinkAddData", 6050)                                                                         \
    X(cuLinkComplete, "cuLinkComplete", 5050)                                                                          \
    X(cuLinkDestroy, "cuLinkDestroy", 5050)                                                                            \
    X(cuLibraryLoadData, "cuLibraryLoadData", 12000)                                                                   \
    X(cuLibraryLoadFromFile, "cuLibraryLoadFromFile", 12000)                                                           \
    X(cuLibraryUnload, "cuLibraryUnload", 12000)                                                                       \
    X(cuLibraryGetKernel, "cuLibraryGetKernel", 12000)                                                                 \
    X(cuLibraryGetModule, "cuLibraryGetModule", 12000)                                                                 \
    X(cuLibraryGetGlobal, "cuLibraryGetGlobal", 12000)                                                                 \
    X(cuKernelGetFunction, "cuKernelGetFunction", 12000)                                                               \
    X(cuCtxCreate_v2, "cuCtxCreate", 3020)                                                                             \
    X(cuCtxDestroy_v2, "cuCtxDestroy", 4000)
FAMILY_FUNCTIONS(FUNCTIONS)

enum { MODULES_MAX = 60, LINKED = 1, HAS_VARIABLE = 2, HAS_KERNELS = 4, LOADED = 8 };

/* In `other` of a module's object: its code, and the local memory of its kernel k1. */
#define LOCAL_BITS 24
static uint64_t code_of(const struct object *module) {
    return module->other >> LOCAL_BITS;
}

static uint64_t local_of(const struct object *module) {
    return module->other & (((uint64_t)1 << LOCAL_BITS) - 1);
}

/* Loading is lazy or not for the whole life of a process; which, is to be known before the driver is. */
__attribute__((constructor)) static void choose_loading(int argc, char **argv) {
    static const char *const modes[] = {NULL, "EAGER", "LAZY", "EAGER"};
    unsigned mode = argc == 3 && strcmp(argv[1], "worker") == 0 ? (unsigned)atoi(argv[2]) % 4 : 0;
    if (modes[mode] != NULL)
        setenv("CUDA_MODULE_LOADING", modes[mode], 1);
}

static bool eager(void) {
    CUmoduleLoadingMode mode = CU_MODULE_LAZY_LOADING;
    return cu.cuModuleGetLoadingMode(&mode) == CUDA_SUCCESS && mode == CU_MODULE_EAGER_LOADING;
}

/* The least that variables take once they are there: small ones share blocks with others. */
static uint64_t least_of(uint64_t data) {
    return data < MIB ? 0 : rounded(data, BLOCK);
}

/* The most that a module adds to what is taken or counted. */
static uint64_t most_of(const struct program *program) {
    return program->counted + rounded(program->code, BLOCK) + BLOCK;
}

/* ---- Images ---- */

static uint64_t data_wish(struct call *call) {
    uint64_t size = random_size(call);
    if (random_once_in(&call->random, 4))
        return 0;
    return size > (uint64_t)1 << 38 ? (uint64_t)1 << 38 : size > 2 * BLOCK ? size - BLOCK : size;
}

/* What a linker makes of two; its cubin tells of no variable that is managed. */
static bool link_two(struct call *call, struct program *program) {
    const struct program_wish first_wish = {.data_most = data_wish(call) / 2, .prefix = "a"};
    const struct program_wish second_wish = {.data_most = data_wish(call) / 2, .prefix = "b"};
    struct program first = {0}, second = {0};
    CUlinkState state = NULL;
    void *cubin = NULL;
    size_t size = 0;
    bool made = program_ptx(&call->random, &first_wish, &first) && program_ptx(&call->random, &second_wish, &second);
    if (made && expect(call, CALL(cu.cuLinkCreate_v2(0, NULL, NULL, &state)), CUDA_SUCCESS, "cuLinkCreate")) {
        CUjitInputType type = CU_JIT_INPUT_PTX;
        expect(call, CALL(cu.cuLinkAddData_v2(state, type, first.bytes, first.size, "a", 0, NULL, NULL)), CUDA_SUCCESS,
               "cuLinkAddData");
        expect(call, CALL(cu.cuLinkAddData_v2(state, type, second.bytes, second.size, "b", 0, NULL, NULL)),
               CUDA_SUCCESS, "cuLinkAddData");
        made = expect(call, CALL(cu.cuLinkComplete(state, &cubin, &size)), CUDA_SUCCESS, "cuLinkComplete");
        char *copy = made ? malloc(size + 64) : NULL;
        made = copy != NULL;
        if (made) {
            memcpy(copy, cubin, size);
            *program = first;
            program->bytes = copy;
            program->size = size;
            program->code = first.code + second.code;
            program->data = first.data + second.data;
            program->counted = rounded(program->data + 64 * KIB, BLOCK);
        }
        expect(call, CALL(cu.cuLinkDestroy(state)), CUDA_SUCCESS, "cuLinkDestroy");
    }
    program_free(&first);
    program_free(&second);
    return made;
}

enum image_kind { IMAGE_PTX, IMAGE_CUBIN, IMAGE_FATBIN, IMAGE_LINKED };

static bool make_image(struct call *call, struct program *program, enum image_kind *kind) {
    static const enum image_kind kinds[] = {IMAGE_PTX, IMAGE_PTX, IMAGE_CUBIN, IMAGE_FATBIN, IMAGE_LINKED};
    struct program_wish wish = {.data_most = data_wish(call), .managed = true, .prefix = ""};
    struct program first, second;
    *kind = kinds[random_below(&call->random, 5)];
    switch (*kind) {
    case IMAGE_PTX:
        return program_ptx(&call->random, &wish, program);
    case IMAGE_CUBIN:
        return program_cubin(&call->random, &wish, program);
    case IMAGE_LINKED:
        return link_two(call, program);
    default:
        if (!program_ptx(&call->random, &wish, &first))
            return false;
        bool made = random_once_in(&call->random, 2) ? program_ptx(&call->random, &wish, &second)
                                                     : program_cubin(&call->random, &wish, &second);
        return made && program_fatbin(&first, &second, program);
    }
}

/* A file without a name of its own. */
static int make_file(const struct program *program, char path[64]) {
    int file = memfd_create("image", MFD_CLOEXEC);
    if (file >= 0 && write(file, program->bytes, program->size) == (ssize_t)program->size) {
        snprintf(path, 64, "/proc/self/fd/%d", file);
        return file;
    }
    if (file >= 0)
        close(file);
    return -1;
}

static CUresult load_by(struct call *call, const struct program *program, CUmodule *module) {
    struct {
        uint32_t magic, version;
        const void *data;
        void *unused;
    } wrapper = {0x466243b1u, 1, program->bytes, NULL};
    uint32_t magic;
    char path[64];
    unsigned way = (unsigned)random_below(&call->random, 4);
    int file = way == 0 ? make_file(program, path) : -1;
    memcpy(&magic, program->bytes, sizeof magic);
    say(call, "way %u", way);
    if (file >= 0) {
        CUresult result = CALL(cu.cuModuleLoad(module, path));
        close(file);
        return result;
    }
    if (way == 1)
        return CALL(cu.cuModuleLoadDataEx(module, program->bytes, 0, NULL, NULL));
    if (way == 2 && magic == 0xba55ed50u)
        return CALL(cu.cuModuleLoadFatBinary(module, &wrapper));
    return CALL(cu.cuModuleLoadData(module, program->bytes));
}

/* ---- Modules ---- */

static void unload(struct call *call, const struct object *module, struct object *code) {
    uint64_t most = least_of(module->size) + rounded(code_of(module), BLOCK) + 2 * BLOCK + module->slack;
    say(call, "cuModuleUnload");
    if (!expect(call, CALL(cu.cuModuleUnload((CUmodule)(uintptr_t)module->handle)), CUDA_SUCCESS, "cuModuleUnload"))
        return;
    grows(call, -(int64_t)most, (module->way & LOADED) != 0 ? -(int64_t)least_of(module->size) : 0);
    code->size -= code_of(module);
}

/* With the context's code taken out: how much it rounds to is the sum's. */
static void load_image(struct call *call, const struct program *program, enum image_kind kind, struct object *code) {
    CUmodule module = NULL;
    uint64_t code_now = rounded(code->size, BLOCK), code_then = rounded(code->size + program->code, BLOCK);
    uint64_t least = eager() ? least_of(program->data) : 0, most = program->counted + code_then - code_now;
    needs(call, most);
    say(call, "loading %s of %llu + %llu bytes on %d, ", kind == IMAGE_LINKED ? "linked" : "image",
        (unsigned long long)program->data, (unsigned long long)program->code, call->device);
    if (!judged(call, load_by(call, program, &module)))
        return;
    struct object object = {.handle = (uintptr_t)module,
                            .other = program->code << LOCAL_BITS | program->local,
                            .size = program->data,
                            .slack = program->counted - least,
                            .context = call->context->serial,
                            .device = (int16_t)call->device,
                            .gpu = (int16_t)call->gpu,
                            .kind = KIND_MODULE,
                            .way = (uint8_t)((kind == IMAGE_LINKED ? LINKED : 0) | (eager() ? LOADED : 0) |
                                             (program->has_variable ? HAS_VARIABLE : 0) | HAS_KERNELS)};
    code->size += program->code;
    grows(call, (int64_t)least, (int64_t)most);
    if (objects_count(KIND_MODULE) >= MODULES_MAX || !object_put(&object)) {
        unload(call, &object, code);
        grows(call, -(int64_t)BLOCK, (int64_t)BLOCK);
    }
}

static void load(struct call *call) {
    struct program program = {0};
    enum image_kind kind;
    if (!need_context(call))
        return;
    if (make_image(call, &program, &kind)) {
        struct object code = extra_take(call, EXTRA_CODE);
        load_image(call, &program, kind, &code);
        extra_put(call, &code);
    }
    program_free(&program);
}

static CUresult release_module(const struct object *object) {
    return cu.cuModuleUnload((CUmodule)(uintptr_t)object->handle);
}

static void unload_one(struct call *call) {
    struct object module;
    if (!need_context(call) || !object_take_in(&call->random, KIND_MODULE, call->context->serial, &module))
        return;
    struct object code = extra_take(call, EXTRA_CODE);
    unload(call, &module, &code);
    extra_put(call, &code);
}

/* A module that something is asked of has its memory from then on. What that is was counted when it was loaded. */
static void touch(struct call *call, struct object *module) {
    char name[8];
    CUfunction function = NULL;
    CUdeviceptr address = 0;
    size_t size = 0;
    const char *prefix = (module->way & LINKED) != 0 ? "a" : "";
    CUmodule handle = (CUmodule)(uintptr_t)module->handle;
    if ((module->way & HAS_VARIABLE) != 0 && random_once_in(&call->random, 2)) {
        snprintf(name, sizeof name, "%sv0", prefix);
        say(call, "cuModuleGetGlobal(%s)", name);
        expect(call, CALL(cu.cuModuleGetGlobal_v2(&address, &size, handle, name)), CUDA_SUCCESS, "cuModuleGetGlobal");
        if (address == 0 || size == 0)
            wrong(call, "%zu bytes at %#llx", size, (unsigned long long)address);
    } else {
        snprintf(name, sizeof name, "%sk0", prefix);
        say(call, "cuModuleGetFunction(%s)", name);
        expect(call, CALL(cu.cuModuleGetFunction(&function, handle, name)), CUDA_SUCCESS, "cuModuleGetFunction");
    }
    if ((module->way & LOADED) == 0)
        module->slack -= least_of(module->size);
    module->way |= LOADED;
}

static void use(struct call *call) {
    struct object module;
    if (!need_context(call) || !object_take_in(&call->random, KIND_MODULE, call->context->serial, &module))
        return;
    uint64_t least = (module.way & LOADED) != 0 ? 0 : least_of(module.size);
    grows(call, (int64_t)least,
          (module.way & LOADED) != 0 ? 0 : (int64_t)(least + BLOCK + rounded(code_of(&module), BLOCK) + BLOCK));
    touch(call, &module);
    object_put(&module);
}

static bool launch(struct call *call, CUfunction function) {
    return expect(call, CALL(cu.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL)), CUDA_SUCCESS,
                  "cuLaunchKernel");
}

/* A kernel's local memory counts when its handle is there, and is taken when it is launched. */
static void kernel_of(struct call *call, const struct object *module, struct object *local) {
    char name[8];
    CUfunction function = NULL;
    uint64_t bytes = local_of(module);
    uint64_t then = extra_local_bytes(call, larger_of(bytes, larger_of(local->handle, local->other)));
    uint64_t counted = extra_local_bytes(call, larger_of(local->handle, local->other));
    uint64_t taken = extra_local_bytes(call, larger_of(local->handle, local->size));
    snprintf(name, sizeof name, "%sk1", (module->way & LINKED) != 0 ? "a" : "");
    needs(call, then - counted);
    say(call, ", cuModuleGetFunction(%s) with %llu", name, (unsigned long long)bytes);
    if (!judged(call, CALL(cu.cuModuleGetFunction(&function, (CUmodule)(uintptr_t)module->handle, name))))
        return;
    local->other = larger_of(local->other, bytes);
    if (random_once_in(&call->random, 2)) {
        say(call, ", cuLaunchKernel");
        launch(call, function);
        local->size = larger_of(local->size, bytes);
        taken = extra_local_bytes(call, larger_of(local->handle, local->size)) - taken;
        /* Managed memory comes to the GPU besides. */
        grows(call, (int64_t)taken, (int64_t)1 << 50);
    } else {
        grows(call, 0, 0);
    }
}

static void kernel(struct call *call) {
    struct object module;
    if (!need_context(call) || !object_take_in(&call->random, KIND_MODULE, call->context->serial, &module))
        return;
    if ((module.way & LOADED) == 0) {
        touch(call, &module);
    } else {
        struct object local = extra_take(call, EXTRA_LOCAL);
        kernel_of(call, &module, &local);
        extra_put(call, &local);
    }
    object_put(&module);
}

static void use_compressed(struct call *call, CUmodule module) {
    CUfunction function = NULL;
    CUresult result = CALL(cu.cuModuleGetFunction(&function, module, "anything"));
    if (expect(call, result, CUDA_SUCCESS, "cuModuleGetFunction"))
        launch(call, function);
    expect(call, CALL(cu.cuModuleUnload(module)), CUDA_SUCCESS, "cuModuleUnload");
}

/* Of what is compressed only the code's size can be seen. */
static void compressed(struct call *call) {
    struct program program = {0};
    CUmodule module = NULL;
    if (!need_context(call))
        return;
    uint64_t size = 1 + random_below(&call->random, random_once_in(&call->random, 2) ? 48 * MIB : MIB);
    if (!program_compressed(size, &program))
        return;
    needs(call, UINT64_MAX / 4);
    say(call, "a compressed image of %llu, ", (unsigned long long)size);
    if (judged(call, load_by(call, &program, &module))) {
        use_compressed(call, module);
        grows(call, -(int64_t)BLOCK, (int64_t)1 << 50); /* managed memory */
    }
    program_free(&program);
}

/* ---- Libraries. Each context that there is or comes to be counts one, so they live within one operation. ---- */

static CUresult load_library(struct call *call, const struct program *program, CUlibrary *library) {
    char path[64];
    int file = random_once_in(&call->random, 3) ? make_file(program, path) : -1;
    if (file < 0)
        return CALL(cu.cuLibraryLoadData(library, program->bytes, NULL, NULL, 0, NULL, NULL, 0));
    say(call, "from a file ");
    CUresult result = CALL(cu.cuLibraryLoadFromFile(library, path, NULL, NULL, 0, NULL, NULL, 0));
    close(file);
    return result;
}

/* Its code and variables are taken by every context that uses it. */
static void use_library(struct call *call, CUlibrary library, const struct program *program, const char *prefix) {
    char name[8];
    CUkernel kernel = NULL;
    CUfunction function = NULL;
    CUdeviceptr address = 0;
    CUmodule module = NULL;
    size_t size = 0;
    snprintf(name, sizeof name, "%sk0", prefix);
    expect(call, CALL(cu.cuLibraryGetModule(&module, library)), CUDA_SUCCESS, "cuLibraryGetModule");
    if (expect(call, CALL(cu.cuLibraryGetKernel(&kernel, library, name)), CUDA_SUCCESS, "cuLibraryGetKernel") &&
        expect(call, CALL(cu.cuKernelGetFunction(&function, kernel)), CUDA_SUCCESS, "cuKernelGetFunction"))
        launch(call, function);
    snprintf(name, sizeof name, "%sv0", prefix);
    if (program->has_variable)
        expect(call, CALL(cu.cuLibraryGetGlobal(&address, &size, library, name)), CUDA_SUCCESS, "cuLibraryGetGlobal");
}

static bool several_gpus(int keeper) {
    int first = keeper;
    for (unsigned i = 0; i < CONTEXTS; i++) {
        const struct context *context = context_at(i);
        if (context->handle != NULL && first >= 0 && context->gpu != first)
            return true;
        if (context->handle != NULL)
            first = context->gpu;
    }
    return false;
}

/* A context that comes later has the library, too. */
static void later_context(struct call *call, CUlibrary library, const struct program *program, const char *prefix) {
    CUcontext context = NULL;
    CUresult result = CALL(cu.cuCtxCreate_v2(&context, 0, call->device));
    say(call, ", another context = %d", result);
    if (result == CUDA_SUCCESS) {
        use_library(call, library, program, prefix);
        expect(call, CALL(cu.cuCtxDestroy_v2(context)), CUDA_SUCCESS, "cuCtxDestroy_v2");
    } else if (result != CUDA_ERROR_OUT_OF_MEMORY) {
        wrong(call, "neither done nor out of memory");
    }
    current_changed();
}

static void with_library(struct call *call, const struct program *program, enum image_kind kind) {
    CUlibrary library = NULL;
    const char *prefix = kind == IMAGE_LINKED ? "a" : "";
    int keeper = keeper_on();
    unsigned contexts = contexts_count() + (keeper >= 0);
    uint64_t most = contexts * most_of(program);
    needs(call, several_gpus(keeper) ? UINT64_MAX / 4 : most); /* refused by which of them? */
    say(call, "a library of %llu + %llu bytes in %u contexts, ", (unsigned long long)program->data,
        (unsigned long long)program->code, contexts);
    if (!judged(call, load_library(call, program, &library)))
        return;
    use_library(call, library, program, prefix);
    if (random_once_in(&call->random, 3))
        later_context(call, library, program, prefix);
    else if (random_once_in(&call->random, 3))
        fill_claim(call);
    expect(call, CALL(cu.cuLibraryUnload(library)), CUDA_SUCCESS, "cuLibraryUnload");
    grows(call, -(int64_t)BLOCK, (int64_t)1 << 50); /* managed memory */
}

static void library(struct call *call) {
    struct program program = {0};
    enum image_kind kind;
    if (need_context(call) && make_image(call, &program, &kind))
        with_library(call, &program, kind);
    program_free(&program);
}

__attribute__((constructor)) static void release_functions(void) {
    releases[KIND_MODULE] = release_module;
}

static const struct operation operations[] = {
    {"module.load", 24, load,
     "cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuModuleLoadFatBinary cuModuleUnload cuModuleGetLoadingMode "
     "cuLinkCreate_v2 cuLinkAddData_v2 cuLinkComplete cuLinkDestroy",
     false, false},
    {"module.unload", 24, unload_one, "cuModuleUnload", false, false},
    {"module.use", 14, use, "cuModuleGetFunction cuModuleGetGlobal_v2", false, false},
    {"module.kernel", 8, kernel, "cuModuleGetFunction cuLaunchKernel", false, false},
    {"module.compressed", 3, compressed, "cuModuleLoadData cuModuleGetFunction cuModuleUnload cuLaunchKernel", false,
     false},
    {"module.library", 6, library,
     "cuLibraryLoadData cuLibraryLoadFromFile cuLibraryUnload cuLibraryGetKernel cuLibraryGetModule cuLibraryGetGlobal "
     "cuKernelGetFunction cuCtxCreate_v2 cuCtxDestroy_v2",
     true, false},
    {0},
};

const struct family family_module = {"module", functions, operations};
