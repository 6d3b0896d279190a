/*
 * The few declarations of the CUDA driver API and of NVML that the programs here need (cuda.h, nvml.h), and how they
 * find the functions: at run time, so that a program also starts where there is no driver.
 */
#ifndef GPU_PROBE_DRIVER_H
#define GPU_PROBE_DRIVER_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

#define DRIVER_FUNCTIONS(F)                                                                                            \
    F(CUresult, cuInit, (unsigned))                                                                                    \
    F(CUresult, cuDeviceGetCount, (int *))                                                                             \
    F(CUresult, cuDeviceGet, (CUdevice *, int))                                                                        \
    F(CUresult, cuDeviceGetName, (char *, int, CUdevice))                                                              \
    F(CUresult, cuDeviceTotalMem_v2, (size_t *, CUdevice))                                                             \
    F(CUresult, cuDeviceGetAttribute, (int *, int, CUdevice))                                                          \
    F(CUresult, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                     \
    F(CUresult, cuCtxSetCurrent, (CUcontext))                                                                          \
    F(CUresult, cuCtxSynchronize, (void))                                                                              \
    F(CUresult, cuMemGetInfo_v2, (size_t *, size_t *))                                                                 \
    F(CUresult, cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                \
    F(CUresult, cuMemFree_v2, (CUdeviceptr))                                                                           \
    F(CUresult, cuModuleLoadData, (CUmodule *, const void *))                                                          \
    F(CUresult, cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                                           \
    F(CUresult, cuLaunchKernel,                                                                                        \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))  \
    F(CUresult, cuGetErrorName, (CUresult, const char **))

#define NVML_FUNCTIONS(F)                                                                                              \
    F(int, nvmlInit_v2, (void))                                                                                        \
    F(int, nvmlDeviceGetHandleByIndex_v2, (unsigned, nvmlDevice_t *))                                                  \
    F(int, nvmlDeviceGetMemoryInfo, (nvmlDevice_t, nvmlMemory_t *))

#define DECLARE(result, name, args) static result(*name) args;
DRIVER_FUNCTIONS(DECLARE)
NVML_FUNCTIONS(DECLARE)

/* False where there is no CUDA driver. */
static inline bool load_driver(void) {
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (lib == NULL) {
        return false;
    }
#define LOAD(result, name, args)                                                                                       \
    if ((*(void **)&(name) = dlsym(lib, #name)) == NULL) {                                                             \
        return false;                                                                                                  \
    }
    DRIVER_FUNCTIONS(LOAD)
    return true;
}

/* False where NVML is missing or does not start. */
static inline bool load_nvml(void) {
    void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (lib == NULL) {
        return false;
    }
    NVML_FUNCTIONS(LOAD)
    return nvmlInit_v2() == 0;
}

static inline const char *error_name(CUresult result) {
    const char *name = NULL;
    if (cuGetErrorName == NULL || cuGetErrorName(result, &name) != 0 || name == NULL) {
        return "?";
    }
    return name;
}

#endif
