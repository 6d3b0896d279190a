/*
 * A program that loads the driver in one way, and prints "held" if the limit holds, "free" if not, "none" if it found
 * no driver. The expected limit is below PROBE_TOO_MUCH_MIB (default 2000) on device 0.
 *
 *   probe WAY [LIBRARY]
 *
 * With PROBE_LINKED it is linked directly; with PROBE_STATIC there is no dlmopen.
 */
#include "../driver/cuda_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct driver {
    CUresult (*init)(unsigned int);
    CUresult (*create)(CUcontext *, unsigned int, CUdevice);
    CUresult (*alloc)(CUdeviceptr *, size_t);
    CUresult (*free)(CUdeviceptr);
    CUresult (*total)(size_t *, CUdevice);
    CUresult (*info)(size_t *, size_t *);
};

static int finish(const char *word, int code) {
    puts(word);
    return code;
}

static int try(struct driver driver) {
    const char *variable = getenv("PROBE_TOO_MUCH_MIB");
    size_t too_much = (size_t)(variable != NULL ? strtoul(variable, NULL, 10) : 2000) << 20;
    CUcontext context;
    CUdeviceptr address = 0;
    size_t total = 0, free = 0, also_total = 0;
    CUresult result = driver.init(0);
    if (result == CUDA_SUCCESS)
        result = driver.create(&context, 0, 0);
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "probe: no context: %d\n", result);
        return finish("error", 1);
    }
    if (driver.alloc(&address, too_much) == CUDA_SUCCESS)
        return finish("free", 1);
    if (driver.alloc(&address, 10 << 20) != CUDA_SUCCESS || driver.info(&free, &also_total) != CUDA_SUCCESS ||
        driver.free(address) != CUDA_SUCCESS || driver.total(&total, 0) != CUDA_SUCCESS)
        return finish("error", 1);
    return finish(total < too_much && also_total == total && free < total ? "held" : "free", 0);
}

#ifdef PROBE_LINKED

CUresult cuInit(unsigned int);
CUresult cuCtxCreate_v2(CUcontext *, unsigned int, CUdevice);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuDeviceTotalMem_v2(size_t *, CUdevice);
CUresult cuMemGetInfo_v2(size_t *, size_t *);

int main(void) {
    return try(
        (struct driver){cuInit, cuCtxCreate_v2, cuMemAlloc_v2, cuMemFree_v2, cuDeviceTotalMem_v2, cuMemGetInfo_v2});
}

#else

typedef CUresult (*get_proc_address)(const char *, void **, int, cuuint64_t);
typedef CUresult (*get_proc_address_v2)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static void *by_symbol(void *library, const char *name, const char *symbol) {
    (void)name;
    return dlsym(library, symbol);
}

static void *by_address(void *library, const char *name, const char *symbol) {
    void *function = NULL;
    get_proc_address ask = (get_proc_address)dlsym(library, "cuGetProcAddress");
    (void)symbol;
    if (ask != NULL)
        ask(name, &function, 11030, CU_GET_PROC_ADDRESS_DEFAULT);
    return function;
}

/* As the CUDA runtime does it: cuGetProcAddress finds itself first. */
static void *by_address_v2(void *library, const char *name, const char *symbol) {
    void *found = NULL, *function = NULL;
    CUdriverProcAddressQueryResult status;
    get_proc_address_v2 ask = (get_proc_address_v2)dlsym(library, "cuGetProcAddress_v2");
    (void)symbol;
    if (ask == NULL || ask("cuGetProcAddress", &found, 12000, 0, &status) != CUDA_SUCCESS)
        return NULL;
    ((get_proc_address_v2)found)(name, &function, strcmp(name, "cuCtxCreate") == 0 ? 11030 : 12000,
                                 CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status);
    return function;
}

#ifndef PROBE_STATIC
/* What is not shadowed must have the address that it has without us. */
static int reaches_the_driver(void *library) {
    Dl_info info;
    void *function = dlsym(library, "cuCtxGetDevice");
    return function != NULL && dladdr(function, &info) != 0 && strstr(info.dli_fname, "/.tranche/") != NULL;
}
#endif

static int try_library(void *library, void *(*look_up)(void *, const char *, const char *)) {
    struct driver driver = {
        (CUresult(*)(unsigned int))look_up(library, "cuInit", "cuInit"),
        (CUresult(*)(CUcontext *, unsigned int, CUdevice))look_up(library, "cuCtxCreate", "cuCtxCreate_v2"),
        (CUresult(*)(CUdeviceptr *, size_t))look_up(library, "cuMemAlloc", "cuMemAlloc_v2"),
        (CUresult(*)(CUdeviceptr))look_up(library, "cuMemFree", "cuMemFree_v2"),
        (CUresult(*)(size_t *, CUdevice))look_up(library, "cuDeviceTotalMem", "cuDeviceTotalMem_v2"),
        (CUresult(*)(size_t *, size_t *))look_up(library, "cuMemGetInfo", "cuMemGetInfo_v2"),
    };
    if (driver.init == NULL || driver.create == NULL || driver.alloc == NULL)
        return finish("none", 1);
#ifndef PROBE_STATIC
    if (getenv("PROBE_PRELOADED") == NULL && !reaches_the_driver(library))
        return finish("displaced", 1);
#endif
    return try(driver);
}

int main(int argc, char **argv) {
    const char *way = argc > 1 ? argv[1] : "", *name = argc > 2 ? argv[2] : "libcuda.so.1";
    void *(*look_up)(void *, const char *, const char *) = by_symbol;
    void *library = NULL;
    if (strcmp(way, "deepbind") == 0) {
        library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    } else if (strcmp(way, "global") == 0) {
        library = dlopen(name, RTLD_LAZY | RTLD_GLOBAL);
#ifndef PROBE_STATIC
    } else if (strcmp(way, "dlmopen") == 0) {
        library = dlmopen(LM_ID_NEWLM, name, RTLD_NOW);
#endif
    } else if (strcmp(way, "again") == 0) {
        for (int i = 0; i < 100; i++)
            dlclose(dlopen(name, RTLD_NOW));
        library = dlopen(name, RTLD_NOW);
    } else if (strcmp(way, "descriptors") == 0) {
        /* A daemon that closes whatever it did not open. */
        library = dlopen(name, RTLD_NOW);
        ((CUresult(*)(unsigned int))dlsym(library, "cuInit"))(0);
        if (getenv("PROBE_CLOSES_ALL") != NULL)
            for (int fd = 3; fd < 256; fd++)
                close(fd);
    } else {
        library = dlopen(name, RTLD_NOW);
    }
    if (strcmp(way, "procaddress") == 0)
        look_up = by_address;
    if (strcmp(way, "procaddress_v2") == 0)
        look_up = by_address_v2;
    if (library == NULL) {
        fprintf(stderr, "probe: %s\n", dlerror());
        return finish("none", 1);
    }
    return try_library(library, look_up);
}

#endif
