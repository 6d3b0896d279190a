/*
 * What the shadow libraries define, one row per function, and nothing else is exported. From a row come the function's
 * declaration and its export, the pointer to the driver's own function, and its place in what cuGetProcAddress answers.
 * Adding a function means a row here and its body in cuda_*.c or nvml.c.
 *
 * A row of CUDA_SHADOWED:
 *
 *   symbol   as exported
 *   name     as asked of cuGetProcAddress, which knows no suffixes
 *   since    the CUDA version from which cuGetProcAddress answers the name with this symbol (12000 is 12.0)
 *   stream   ANY, or which default stream the symbol means: LEGACY, PER_THREAD
 *   parameters
 */
#ifndef TRANCHE_SHADOWED_H
#define TRANCHE_SHADOWED_H

/* clang-format off */
#define CUDA_SHADOWED(X)                                                                                               \
    X(cuInit, "cuInit", 2000, ANY, (unsigned int flags))                                                               \
    X(cuGetProcAddress, "cuGetProcAddress", 11030, ANY,                                                                \
      (const char *symbol, void **function, int version, cuuint64_t flags))                                            \
    X(cuGetProcAddress_v2, "cuGetProcAddress", 12000, ANY,                                                             \
      (const char *symbol, void **function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status))    \
    /* contexts */                                                                                                     \
    X(cuCtxCreate, "cuCtxCreate", 2000, ANY, (CUcontext *context, unsigned int flags, CUdevice device))                \
    X(cuCtxCreate_v2, "cuCtxCreate", 3020, ANY, (CUcontext *context, unsigned int flags, CUdevice device))             \
    X(cuCtxCreate_v3, "cuCtxCreate", 11040, ANY,                                                                       \
      (CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned int flags, CUdevice device))             \
    X(cuCtxCreate_v4, "cuCtxCreate", 12050, ANY,                                                                       \
      (CUcontext *context, CUctxCreateParams *create, unsigned int flags, CUdevice device))                            \
    X(cuCtxDestroy, "cuCtxDestroy", 2000, ANY, (CUcontext context))                                                    \
    X(cuCtxDestroy_v2, "cuCtxDestroy", 4000, ANY, (CUcontext context))                                                 \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, ANY, (CUcontext *context, CUdevice device))          \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 7000, ANY, (CUdevice device))                            \
    X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, ANY, (CUdevice device))                        \
    X(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, ANY, (CUdevice device))                                \
    X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, ANY, (CUdevice device))                            \
    /* linear memory */                                                                                                \
    X(cuMemAlloc, "cuMemAlloc", 2000, ANY, (CUdeviceptr_v1 *address, unsigned int size))                               \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020, ANY, (CUdeviceptr *address, size_t size))                                     \
    X(cuMemAllocPitch, "cuMemAllocPitch", 2000, ANY,                                                                   \
      (CUdeviceptr_v1 *address, unsigned int *pitch, unsigned int width, unsigned int height, unsigned int element))   \
    X(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, ANY,                                                                \
      (CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element))                        \
    X(cuMemAllocManaged, "cuMemAllocManaged", 6000, ANY, (CUdeviceptr *address, size_t size, unsigned int flags))      \
    X(cuMemFree, "cuMemFree", 2000, ANY, (CUdeviceptr_v1 address))                                                     \
    X(cuMemFree_v2, "cuMemFree", 3020, ANY, (CUdeviceptr address))                                                     \
    /* what reports memory */                                                                                          \
    X(cuMemGetInfo, "cuMemGetInfo", 2000, ANY, (unsigned int *free, unsigned int *total))                              \
    X(cuMemGetInfo_v2, "cuMemGetInfo", 3020, ANY, (size_t *free, size_t *total))                                       \
    X(cuDeviceTotalMem, "cuDeviceTotalMem", 2000, ANY, (unsigned int *bytes, CUdevice device))                         \
    X(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020, ANY, (size_t *bytes, CUdevice device))

/* What we call and do not shadow. */
#define CUDA_CALLED(X)                                                                                                 \
    X(cuDriverGetVersion, (int *version))                                                                              \
    X(cuDeviceGetUuid, (CUuuid *uuid, CUdevice device))                                                                \
    X(cuDeviceGetUuid_v2, (CUuuid *uuid, CUdevice device))                                                             \
    X(cuCtxGetCurrent, (CUcontext *context))                                                                           \
    X(cuCtxGetDevice, (CUdevice *device))                                                                              \
    X(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int *flags, int *active))

/* A row of NVML_SHADOWED: symbol, parameters. NVML has no second way to look functions up. */
#define NVML_SHADOWED(X)                                                                                               \
    X(nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t *memory))                                            \
    X(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t device, nvmlMemory_v2_t *memory))

#define NVML_CALLED(X)                                                                                                 \
    X(nvmlDeviceGetUUID, (nvmlDevice_t device, char *uuid, unsigned int length))
/* clang-format on */

#endif
