#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct driver cuda;

static void *library;
static char library_file[4096];

typedef CUresult (*get_proc_address)(const char *, void **, int, unsigned long long);
typedef CUresult (*get_proc_address_v2)(const char *, void **, int, unsigned long long, int *);

void *driver_address(const char *name, int version, unsigned long long flags, bool second) {
    void *function = NULL;
    int status = 0;
    void *ask = dlsym(library, second ? "cuGetProcAddress_v2" : "cuGetProcAddress");
    if (ask == NULL)
        return NULL;
    CUresult result = second ? ((get_proc_address_v2)ask)(name, &function, version, flags, &status)
                             : ((get_proc_address)ask)(name, &function, version, flags);
    return result == CUDA_SUCCESS ? function : NULL;
}

static void *look_up(enum lookup lookup, const char *symbol, const char *name, int since) {
    switch (lookup) {
    case LOOKUP_ADDRESS:
        return driver_address(name, since, 0, false);
    case LOOKUP_ADDRESS_V2:
        return driver_address(name, since, 0, true);
    case LOOKUP_PER_THREAD:
        /* Per-thread streams came with CUDA 7.0; what is older keeps its version, which the _v2 of a name needs. */
        return driver_address(name, since < 7000 ? 7000 : since, 2, true);
    default:
        return dlsym(library, symbol);
    }
}

/* Through this call glibc tells where it has found a library; some function of the driver's own, since the first in the
 * order of search may be a library that stands in front of it. */
static void remember_file(void) {
    static const char *const functions[] = {"cuCtxGetDevice", "cuInit", "nvmlInit_v2"};
    Dl_info info;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *function = dlsym(library, functions[i]);
        if (function != NULL && dladdr(function, &info) != 0 && info.dli_fname != NULL) {
            snprintf(library_file, sizeof library_file, "%s", info.dli_fname);
            return;
        }
    }
}

void driver_load(enum lookup lookup) {
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    remember_file();
    /* Without these, which no version changes, nothing can be said at all. */
#define LOAD(symbol, name, since, parameters)                                                                          \
    *(void **)&cuda.symbol = look_up(lookup, #symbol, name, since);                                                    \
    if (cuda.symbol == NULL && lookup == LOOKUP_PER_THREAD)                                                            \
        *(void **)&cuda.symbol = look_up(LOOKUP_ADDRESS_V2, #symbol, name, since);
    DRIVER_FUNCTIONS(LOAD)
#undef LOAD
    if (cuda.cuInit == NULL || cuda.cuDeviceGet == NULL || cuda.cuMemAlloc_v2 == NULL) {
        fprintf(stderr, "%s does not give cuInit, cuDeviceGet and cuMemAlloc_v2\n", library_file);
        exit(1);
    }
}

void *driver_library(void) {
    return library;
}

const char *driver_file(void) {
    return library_file;
}

static bool has(const char *symbol) {
#define COMPARE(name, ...)                                                                                             \
    if (strcmp(symbol, #name) == 0)                                                                                    \
        return cuda.name != NULL;
    DRIVER_FUNCTIONS(COMPARE)
#undef COMPARE
    return false;
}

bool driver_has(const char *const *symbols, const char **missing) {
    for (; *symbols != NULL; symbols++) {
        if (!has(*symbols)) {
            *missing = *symbols;
            return false;
        }
    }
    return true;
}

const char *error_name(CUresult result) {
    const char *name = NULL;
    if (result == NO_SUCH_FUNCTION)
        return "the driver has no such function";
    if (cuda.cuGetErrorName == NULL || cuda.cuGetErrorName(result, &name) != CUDA_SUCCESS || name == NULL)
        return "?";
    return name;
}

int attribute(CUdevice device, int what) {
    int value = 0;
    return CALL(cuDeviceGetAttribute, &value, what, device) == CUDA_SUCCESS ? value : 0;
}
