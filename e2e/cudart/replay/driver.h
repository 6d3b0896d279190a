/* The driver as the runtime knows it once it has asked for all functions and private tables. */
#ifndef REPLAY_DRIVER_H
#define REPLAY_DRIVER_H

#include "runtime.h"

/*
 * The functions that are called here: F(name, symbol, version), asked for by name and version, or by symbol where the
 * runtime is older than cuGetProcAddress. asked.txt has all that are asked for.
 */
#define REPLAY_FUNCTIONS(F)                                                                                            \
    F(cuInit, cuInit, 2000)                                                                                            \
    F(cuDriverGetVersion, cuDriverGetVersion, 2020)                                                                    \
    F(cuGetExportTable, cuGetExportTable, 3000)                                                                        \
    F(cuDeviceGetCount, cuDeviceGetCount, 2000)                                                                        \
    F(cuDeviceGet, cuDeviceGet, 2000)                                                                                  \
    F(cuDeviceGetName, cuDeviceGetName, 2000)                                                                          \
    F(cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020)                                                                     \
    F(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000)                                                                \
    F(cuDeviceGetUuid, cuDeviceGetUuid, 9020)                                                                          \
    F(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000)                                                    \
    F(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000)                                                        \
    F(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 7000)                                                      \
    F(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000)                                                          \
    F(cuCtxGetCurrent, cuCtxGetCurrent, 4000)                                                                          \
    F(cuCtxSetCurrent, cuCtxSetCurrent, 4000)                                                                          \
    F(cuCtxSynchronize, cuCtxSynchronize, 2000)                                                                        \
    F(cuMemAlloc, cuMemAlloc_v2, 3020)                                                                                 \
    F(cuMemFree, cuMemFree_v2, 3020)                                                                                   \
    F(cuMemGetInfo, cuMemGetInfo_v2, 3020)                                                                             \
    F(cuMemcpyHtoD, cuMemcpyHtoD_v2, 3020)                                                                             \
    F(cuMemcpyDtoH, cuMemcpyDtoH_v2, 3020)                                                                             \
    F(cuMemAllocAsync, cuMemAllocAsync, 11020)                                                                         \
    F(cuMemFreeAsync, cuMemFreeAsync, 11020)                                                                           \
    F(cuStreamCreate, cuStreamCreate, 2000)                                                                            \
    F(cuStreamSynchronize, cuStreamSynchronize, 2000)                                                                  \
    F(cuStreamDestroy, cuStreamDestroy_v2, 4000)                                                                       \
    F(cuModuleLoadFatBinary, cuModuleLoadFatBinary, 2000)                                                              \
    F(cuModuleUnload, cuModuleUnload, 2000)                                                                            \
    F(cuModuleGetFunction, cuModuleGetFunction, 2000)                                                                  \
    F(cuModuleGetGlobal, cuModuleGetGlobal_v2, 3020)                                                                   \
    F(cuLaunchKernel, cuLaunchKernel, 4000)                                                                            \
    F(cuGraphCreate, cuGraphCreate, 10000)                                                                             \
    F(cuGraphAddKernelNode, cuGraphAddKernelNode, 10000)                                                               \
    F(cuGraphInstantiate, cuGraphInstantiate_v2, 11000)                                                                \
    F(cuGraphLaunch, cuGraphLaunch, 10000)                                                                             \
    F(cuGraphDestroy, cuGraphDestroy, 10000)                                                                           \
    F(cuGraphExecDestroy, cuGraphExecDestroy, 10000)
/* Since 11.7 and since 12.0. */
#define REPLAY_FUNCTIONS_11_7(F) F(cuModuleGetLoadingMode, cuModuleGetLoadingMode, 11070)
#define REPLAY_FUNCTIONS_12_0(F)                                                                                       \
    F(cuLibraryLoadData, cuLibraryLoadData, 12000)                                                                     \
    F(cuLibraryGetModule, cuLibraryGetModule, 12000)                                                                   \
    F(cuLibraryUnload, cuLibraryUnload, 12000)

/* Private functions: of the first table, and of the storage that goes with a context. */
typedef CUresult load_function(CUmodule *module, const void *wrapper);
typedef CUresult load_with_options_function(CUmodule *module, const void *wrapper, void *, void *, unsigned number);
typedef CUresult load_header_function(const void *header, CUmodule *module, void *, void *, unsigned number);
typedef CUresult primary_function(CUcontext *context, CUdevice device);
typedef void destructor(CUcontext context, void *key, void *value);
typedef CUresult put_function(CUcontext context, void *key, void *value, destructor *gone);
typedef CUresult get_function(void **value, CUcontext context, void *key);

#define REPLAY_FIELD(name, symbol, version) __typeof__(symbol) *name;
struct replay_driver {
    REPLAY_FUNCTIONS(REPLAY_FIELD)
    REPLAY_FUNCTIONS_11_7(REPLAY_FIELD)
    REPLAY_FUNCTIONS_12_0(REPLAY_FIELD)
    load_function *load;
    load_with_options_function *load_with_options;
    load_header_function *load_header;
    primary_function *primary;
    put_function *put;
    get_function *get;
};

extern struct replay_driver driver;

enum { MAX_DEVICES = 16 };
struct replay_device {
    CUdevice device;
    CUcontext primary; /* from the private function, before anything is on the GPU */
};
extern struct replay_device devices[MAX_DEVICES];
extern int device_count;

/* Writes what a call of the driver returned, and returns it. */
CUresult told(const char *call, CUresult result);
#define TELL(function, ...) told(#function, driver.function(__VA_ARGS__))

/* Returns from the calling function with the result of `call` unless it succeeds. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        CUresult try_result = (call);                                                                                  \
        if (try_result != CUDA_SUCCESS)                                                                                \
            return try_result;                                                                                         \
    } while (0)

#endif
