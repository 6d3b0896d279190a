/*
 * The functions that the shadow libraries define: one row per function. Nothing else is exported. A row generates the
 * function's declaration and export, the pointer to the driver's function, and the answer of cuGetProcAddress.
 *
 * To add a function: add a row here, and its body in cuda/ or nvml/; in compute/ too if all builds have it.
 *
 * libcuda.so.1 has three builds: one limits memory; with TRANCHE_GOVERNED, its launches wait for turns; with
 * TRANCHE_COMPUTE_ONLY too, it limits no memory.
 *
 * A row of CUDA_SHADOWED:
 *
 *   symbol   as exported
 *   name     the name that programs pass to cuGetProcAddress, which has no suffixes
 *   since    the CUDA version from which cuGetProcAddress returns this symbol for the name (12000 is 12.0)
 *   stream   the default stream that the symbol uses: LEGACY, PER_THREAD, or ANY if it uses none
 *   parameters
 *
 * A function with a form for each of the two default streams is one row of CUDA_STREAM_FORMS.
 * Rows of launches (driver/governed.h) have more columns.
 */
#ifndef TRANCHE_SHADOWED_H
#define TRANCHE_SHADOWED_H

/* The newest CUDA version of which CUDA_SHADOWED has all forms of its functions. A test compares the two with what
 * NVIDIA's library answers, in tests/headers/testdata/functions.txt. */
#define CUDA_SHADOWED_UNTIL 13020

#ifdef TRANCHE_GOVERNED
#include "driver/governed.h"
#else
#define CUDA_GOVERNED(X)
#endif

/* clang-format off */

/* The two forms of a function that works in a stream: for the legacy default stream, and for the calling thread's. */
#define CUDA_STREAM_FORMS(X, symbol, name, since, parameters)                                                          \
    X(symbol, name, since, LEGACY, parameters)                                                                         \
    X(symbol##_ptsz, name, since, PER_THREAD, parameters)

/* What all three builds of libcuda.so.1 define. */
#define CUDA_SHADOWED_BY_ALL(X)                                                                                        \
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
    X(cuCtxDetach, "cuCtxDetach", 2000, ANY, (CUcontext context))                                                      \
    X(cuGreenCtxDestroy, "cuGreenCtxDestroy", 12040, ANY, (CUgreenCtx green))                                          \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, ANY, (CUcontext *context, CUdevice device))          \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 7000, ANY, (CUdevice device))                            \
    X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, ANY, (CUdevice device))                        \
    X(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, ANY, (CUdevice device))                                \
    X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, ANY, (CUdevice device))                            \
    /* streams */                                                                                                      \
    X(cuStreamDestroy, "cuStreamDestroy", 2000, ANY, (CUstream stream))                                                \
    X(cuStreamDestroy_v2, "cuStreamDestroy", 4000, ANY, (CUstream stream))

/* What limits memory. */
#define CUDA_MEMORY(X)                                                                                                 \
    /* limits of contexts, and green contexts */                                                                       \
    X(cuCtxSetLimit, "cuCtxSetLimit", 3010, ANY, (CUlimit limit, size_t value))                                        \
    X(cuGreenCtxCreate, "cuGreenCtxCreate", 12040, ANY,                                                                \
      (CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device, unsigned int flags))                           \
    X(cuCtxFromGreenCtx, "cuCtxFromGreenCtx", 12040, ANY, (CUcontext *context, CUgreenCtx green))                      \
    /* linear memory */                                                                                                \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020, ANY, (CUdeviceptr *address, size_t size))                                     \
    X(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, ANY,                                                                \
      (CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element))                        \
    X(cuMemAllocManaged, "cuMemAllocManaged", 6000, ANY, (CUdeviceptr *address, size_t size, unsigned int flags))      \
    X(cuMemAdvise, "cuMemAdvise", 8000, ANY,                                                                           \
      (CUdeviceptr address, size_t size, CUmem_advise advice, CUdevice device))                                        \
    X(cuMemAdvise_v2, "cuMemAdvise", 12020, ANY,                                                                       \
      (CUdeviceptr address, size_t size, CUmem_advise advice, CUmemLocation location))                                 \
    CUDA_STREAM_FORMS(X, cuMemPrefetchAsync, "cuMemPrefetchAsync", 8000,                                               \
      (CUdeviceptr address, size_t size, CUdevice device, CUstream stream))                                            \
    CUDA_STREAM_FORMS(X, cuMemPrefetchAsync_v2, "cuMemPrefetchAsync", 12020,                                           \
      (CUdeviceptr address, size_t size, CUmemLocation location, unsigned int flags, CUstream stream))                 \
    CUDA_STREAM_FORMS(X, cuMemPrefetchBatchAsync, "cuMemPrefetchBatchAsync", 13000,                                    \
      (CUdeviceptr *addresses, size_t *sizes, size_t count, CUmemLocation *locations, size_t *firsts,                  \
       size_t locations_count, unsigned long long flags, CUstream stream))                                             \
    CUDA_STREAM_FORMS(X, cuMemDiscardAndPrefetchBatchAsync, "cuMemDiscardAndPrefetchBatchAsync", 13000,                \
      (CUdeviceptr *addresses, size_t *sizes, size_t count, CUmemLocation *locations, size_t *firsts,                  \
       size_t locations_count, unsigned long long flags, CUstream stream))                                             \
    X(cuMemFree_v2, "cuMemFree", 3020, ANY, (CUdeviceptr address))                                                     \
    CUDA_STREAM_FORMS(X, cuMemFreeAsync, "cuMemFreeAsync", 11020, (CUdeviceptr address, CUstream stream))              \
    /* stream-ordered allocation, and the synchronisations at which pools shrink */                                    \
    CUDA_STREAM_FORMS(X, cuMemAllocAsync, "cuMemAllocAsync", 11020,                                                    \
      (CUdeviceptr *address, size_t bytes, CUstream stream))                                                           \
    CUDA_STREAM_FORMS(X, cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020,                                    \
      (CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream))                                        \
    X(cuMemPoolCreate, "cuMemPoolCreate", 11020, ANY, (CUmemoryPool *pool, const CUmemPoolProps *properties))          \
    X(cuMemPoolDestroy, "cuMemPoolDestroy", 11020, ANY, (CUmemoryPool pool))                                           \
    X(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, ANY, (CUmemoryPool pool, size_t keep))                                \
    X(cuMemPoolExportToShareableHandle, "cuMemPoolExportToShareableHandle", 11020, ANY,                                \
      (void *handle, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags))                     \
    X(cuMemPoolImportFromShareableHandle, "cuMemPoolImportFromShareableHandle", 11020, ANY,                            \
      (CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type, unsigned long long flags))                    \
    X(cuMemPoolImportPointer, "cuMemPoolImportPointer", 11020, ANY,                                                    \
      (CUdeviceptr *address, CUmemoryPool pool, CUmemPoolPtrExportData *data))                                         \
    CUDA_STREAM_FORMS(X, cuStreamEndCapture, "cuStreamEndCapture", 10000, (CUstream stream, CUgraph *graph))           \
    X(cuCtxSynchronize, "cuCtxSynchronize", 2000, ANY, (void))                                                         \
    X(cuStreamSynchronize, "cuStreamSynchronize", 2000, LEGACY, (CUstream stream))                                     \
    X(cuStreamSynchronize_ptsz, "cuStreamSynchronize", 7000, PER_THREAD, (CUstream stream))                            \
    X(cuEventSynchronize, "cuEventSynchronize", 2000, ANY, (CUevent event))                                            \
    /* graphs that allocate */                                                                                         \
    X(cuGraphInstantiate, "cuGraphInstantiate", 10000, ANY,                                                            \
      (CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size))                                  \
    X(cuGraphInstantiate_v2, "cuGraphInstantiate", 11000, ANY,                                                         \
      (CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size))                                  \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040, ANY,                                          \
      (CUgraphExec *exec, CUgraph graph, unsigned long long flags))                                                    \
    CUDA_STREAM_FORMS(X, cuGraphInstantiateWithParams, "cuGraphInstantiateWithParams", 12000,                          \
      (CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters))                                   \
    X(cuGraphDestroy, "cuGraphDestroy", 10000, ANY, (CUgraph graph))                                                   \
    X(cuGraphAddDependencies, "cuGraphAddDependencies", 10000, ANY,                                                    \
      (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count))                                   \
    X(cuGraphAddDependencies_v2, "cuGraphAddDependencies", 12030, ANY,                                                 \
      (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *edges, size_t count))     \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, ANY, (CUgraphExec exec))                                        \
    CUDA_STREAM_FORMS(X, cuGraphLaunch, "cuGraphLaunch", 10000, (CUgraphExec exec, CUstream stream))                   \
    CUDA_STREAM_FORMS(X, cuGraphUpload, "cuGraphUpload", 11010, (CUgraphExec exec, CUstream stream))                   \
    X(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", 11040, ANY, (CUdevice device))                                     \
    /* virtual memory management, multicast, sparse arrays */                                                          \
    X(cuMemCreate, "cuMemCreate", 10020, ANY,                                                                          \
      (CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,                       \
       unsigned long long flags))                                                                                      \
    X(cuMemRelease, "cuMemRelease", 10020, ANY, (CUmemGenericAllocationHandle handle))                                 \
    X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000, ANY,                                          \
      (CUmemGenericAllocationHandle *handle, void *address))                                                           \
    X(cuMemMap, "cuMemMap", 10020, ANY,                                                                                \
      (CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags))\
    X(cuMemUnmap, "cuMemUnmap", 10020, ANY, (CUdeviceptr address, size_t size))                                        \
    X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020, ANY,                                        \
      (void *exported, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags)) \
    X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020, ANY,                                    \
      (CUmemGenericAllocationHandle *handle, void *exported, CUmemAllocationHandleType type))                          \
    X(cuMemGetHandleForAddressRange, "cuMemGetHandleForAddressRange", 11070, ANY,                                      \
      (void *handle, CUdeviceptr address, size_t size, CUmemRangeHandleType type, unsigned long long flags))           \
    X(cuMulticastCreate, "cuMulticastCreate", 12010, ANY,                                                              \
      (CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties))                                 \
    X(cuMulticastBindMem, "cuMulticastBindMem", 12010, ANY,                                                            \
      (CUmemGenericAllocationHandle object, size_t offset, CUmemGenericAllocationHandle memory, size_t memory_offset,  \
       size_t size, unsigned long long flags))                                                                         \
    X(cuMulticastBindMem_v2, "cuMulticastBindMem", 13010, ANY,                                                         \
      (CUmemGenericAllocationHandle object, CUdevice device, size_t offset, CUmemGenericAllocationHandle memory,       \
       size_t memory_offset, size_t size, unsigned long long flags))                                                   \
    X(cuMulticastBindAddr, "cuMulticastBindAddr", 12010, ANY,                                                          \
      (CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr address, size_t size, unsigned long long flags))\
    X(cuMulticastBindAddr_v2, "cuMulticastBindAddr", 13010, ANY,                                                       \
      (CUmemGenericAllocationHandle object, CUdevice device, size_t offset, CUdeviceptr address, size_t size,          \
       unsigned long long flags))                                                                                      \
    X(cuMulticastUnbind, "cuMulticastUnbind", 12010, ANY,                                                              \
      (CUmemGenericAllocationHandle object, CUdevice device, size_t offset, size_t size))                              \
    CUDA_STREAM_FORMS(X, cuMemMapArrayAsync, "cuMemMapArrayAsync", 11010,                                              \
      (CUarrayMapInfo *list, unsigned int count, CUstream stream))                                                     \
    /* arrays */                                                                                                       \
    X(cuArrayCreate_v2, "cuArrayCreate", 3020, ANY, (CUarray *array, const CUDA_ARRAY_DESCRIPTOR *wanted))             \
    X(cuArray3DCreate_v2, "cuArray3DCreate", 3020, ANY, (CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted))       \
    X(cuArrayDestroy, "cuArrayDestroy", 2000, ANY, (CUarray array))                                                    \
    X(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 5000, ANY,                                                     \
      (CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned int levels))                           \
    X(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 5000, ANY, (CUmipmappedArray array))                         \
    /* modules and libraries */                                                                                        \
    X(cuModuleLoad, "cuModuleLoad", 2000, ANY, (CUmodule *module, const char *path))                                   \
    X(cuModuleLoadData, "cuModuleLoadData", 2000, ANY, (CUmodule *module, const void *image))                          \
    X(cuModuleLoadDataEx, "cuModuleLoadDataEx", 2010, ANY,                                                             \
      (CUmodule *module, const void *image, unsigned int count, CUjit_option *options, void **values))                 \
    X(cuModuleLoadFatBinary, "cuModuleLoadFatBinary", 2000, ANY, (CUmodule *module, const void *image))                \
    X(cuModuleUnload, "cuModuleUnload", 2000, ANY, (CUmodule module))                                                  \
    X(cuModuleGetFunction, "cuModuleGetFunction", 2000, ANY, (CUfunction *function, CUmodule module, const char *name))\
    X(cuModuleGetGlobal_v2, "cuModuleGetGlobal", 3020, ANY,                                                            \
      (CUdeviceptr *address, size_t *size, CUmodule module, const char *name))                                         \
    X(cuLibraryGetGlobal, "cuLibraryGetGlobal", 12000, ANY,                                                            \
      (CUdeviceptr *address, size_t *size, CUlibrary library, const char *name))                                       \
    X(cuLibraryGetManaged, "cuLibraryGetManaged", 12000, ANY,                                                          \
      (CUdeviceptr *address, size_t *size, CUlibrary library, const char *name))                                       \
    X(cuModuleEnumerateFunctions, "cuModuleEnumerateFunctions", 12040, ANY,                                            \
      (CUfunction *functions, unsigned int count, CUmodule module))                                                    \
    X(cuLibraryLoadData, "cuLibraryLoadData", 12000, ANY,                                                              \
      (CUlibrary *library, const void *code, CUjit_option *jit, void **jit_values, unsigned int jit_count,             \
       CUlibraryOption *options, void **values, unsigned int count))                                                   \
    X(cuLibraryLoadFromFile, "cuLibraryLoadFromFile", 12000, ANY,                                                      \
      (CUlibrary *library, const char *path, CUjit_option *jit, void **jit_values, unsigned int jit_count,             \
       CUlibraryOption *options, void **values, unsigned int count))                                                   \
    X(cuLibraryUnload, "cuLibraryUnload", 12000, ANY, (CUlibrary library))                                             \
    X(cuLibraryGetKernel, "cuLibraryGetKernel", 12000, ANY, (CUkernel *kernel, CUlibrary library, const char *name))   \
    X(cuLibraryEnumerateKernels, "cuLibraryEnumerateKernels", 12040, ANY,                                              \
      (CUkernel *kernels, unsigned int count, CUlibrary library))                                                      \
    X(cuLibraryGetModule, "cuLibraryGetModule", 12000, ANY, (CUmodule *module, CUlibrary library))                     \
    X(cuKernelGetFunction, "cuKernelGetFunction", 12000, ANY, (CUfunction *function, CUkernel kernel))                 \
    /* between processes and APIs */                                                                                   \
    X(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010, ANY, (CUipcMemHandle *handle, CUdeviceptr address))                \
    X(cuIpcOpenMemHandle, "cuIpcOpenMemHandle", 4010, ANY,                                                             \
      (CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags))                                               \
    X(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000, ANY,                                                         \
      (CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags))                                               \
    X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010, ANY, (CUdeviceptr address))                                    \
    X(cuImportExternalMemory, "cuImportExternalMemory", 10000, ANY,                                                    \
      (CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *from))                                        \
    X(cuExternalMemoryGetMappedBuffer, "cuExternalMemoryGetMappedBuffer", 10000, ANY,                                  \
      (CUdeviceptr *address, CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *wanted))                 \
    X(cuExternalMemoryGetMappedMipmappedArray, "cuExternalMemoryGetMappedMipmappedArray", 10000, ANY,                  \
      (CUmipmappedArray *array, CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *wanted))     \
    X(cuDestroyExternalMemory, "cuDestroyExternalMemory", 10000, ANY, (CUexternalMemory memory))                       \
    /* checkpoints of processes */                                                                                     \
    X(cuCheckpointProcessCheckpoint, "cuCheckpointProcessCheckpoint", 12080, ANY,                                      \
      (int process, CUcheckpointCheckpointArgs *wanted))                                                               \
    X(cuCheckpointProcessRestore, "cuCheckpointProcessRestore", 12080, ANY,                                            \
      (int process, CUcheckpointRestoreArgs *wanted))                                                                  \
    /* what reports memory */                                                                                          \
    X(cuMemGetInfo, "cuMemGetInfo", 2000, ANY, (unsigned int *free, unsigned int *total))                              \
    X(cuMemGetInfo_v2, "cuMemGetInfo", 3020, ANY, (size_t *free, size_t *total))                                       \
    X(cuDeviceTotalMem, "cuDeviceTotalMem", 2000, ANY, (unsigned int *bytes, CUdevice device))                         \
    X(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020, ANY, (size_t *bytes, CUdevice device))                            \
    CUDA_REFUSED(X)

/* Functions of before CUDA 3.2 that take memory or return addresses, of 32 bits each: refused, see cuda/refused.c. */
#define CUDA_REFUSED(X)                                                                                                \
    X(cuMemAlloc, "cuMemAlloc", 2000, ANY, (CUdeviceptr_v1 *address, unsigned int size))                               \
    X(cuMemAllocPitch, "cuMemAllocPitch", 2000, ANY,                                                                   \
      (CUdeviceptr_v1 *address, unsigned int *pitch, unsigned int width, unsigned int height, unsigned int element))   \
    X(cuMemFree, "cuMemFree", 2000, ANY, (CUdeviceptr_v1 address))                                                     \
    X(cuArrayCreate, "cuArrayCreate", 2000, ANY, (CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *wanted))             \
    X(cuArray3DCreate, "cuArray3DCreate", 2000, ANY, (CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *wanted))       \
    X(cuModuleGetGlobal, "cuModuleGetGlobal", 2000, ANY,                                                               \
      (CUdeviceptr_v1 *address, unsigned int *size, CUmodule module, const char *name))

/* Functions that a library calls and does not define: all three, and those that limit memory. */
#define CUDA_CALLED_BY_ALL(X)                                                                                          \
    X(cuDriverGetVersion, (int *version))                                                                              \
    X(cuDeviceGetUuid, (CUuuid *uuid, CUdevice device))                                                                \
    X(cuDeviceGetUuid_v2, (CUuuid *uuid, CUdevice device))                                                             \
    X(cuCtxGetApiVersion, (CUcontext context, unsigned int *version))                                                  \
    X(cuCtxPushCurrent_v2, (CUcontext context))                                                                        \
    X(cuCtxPopCurrent_v2, (CUcontext *context))                                                                        \
    X(cuDeviceGetAttribute, (int *value, CUdevice_attribute attribute, CUdevice device))                               \
    X(cuPointerGetAttribute, (void *value, CUpointer_attribute attribute, CUdeviceptr address))                        \
    X(cuDeviceGetCount, (int *count))                                                                                  \
    X(cuEventCreate, (CUevent *event, unsigned int flags))                                                             \
    X(cuEventRecord, (CUevent event, CUstream stream))                                                                 \
    X(cuEventQuery, (CUevent event))                                                                                   \
    X(cuEventDestroy_v2, (CUevent event))                                                                              \
    X(cuStreamQuery, (CUstream stream))                                                                                \
    X(cuStreamGetCtx, (CUstream stream, CUcontext *context))                                                           \
    X(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status))                                           \
    X(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *mode))                                                  \
    X(cuCtxGetCurrent, (CUcontext *context))                                                                           \
    X(cuCtxGetDevice, (CUdevice *device))                                                                              \
    X(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int *flags, int *active))

#define CUDA_CALLED_FOR_MEMORY(X)                                                                                      \
    X(cuCtxGetLimit, (size_t *value, CUlimit limit))                                                                   \
    X(cuDeviceGetMemPool, (CUmemoryPool *pool, CUdevice device))                                                       \
    X(cuDeviceGetGraphMemAttribute, (CUdevice device, CUgraphMem_attribute attribute, void *value))                    \
    X(cuMemPoolGetAttribute, (CUmemoryPool pool, CUmemPool_attribute attribute, void *value))                          \
    X(cuMemGetAddressRange_v2, (CUdeviceptr *base, size_t *size, CUdeviceptr address))                                 \
    X(cuMemGetAllocationPropertiesFromHandle, (CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle))  \
    X(cuDeviceGetDefaultMemPool, (CUmemoryPool *pool, CUdevice device))                                                \
    X(cuArrayGetMemoryRequirements, (CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, CUarray array, CUdevice device))           \
    X(cuMipmappedArrayGetMemoryRequirements,                                                                           \
      (CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, CUmipmappedArray array, CUdevice device))                                \
    X(cuFuncLoad, (CUfunction function))                                                                               \
    X(cuModuleGetFunctionCount, (unsigned int *count, CUmodule module))                                                \
    X(cuLibraryGetKernelCount, (unsigned int *count, CUlibrary library))                                               \
    X(cuFuncGetAttribute, (int *value, CUfunction_attribute attribute, CUfunction function))                           \
    X(cuKernelGetAttribute, (int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device))            \
    X(cuGraphGetNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count))                                             \
    X(cuGraphGetEdges, (CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count))                             \
    X(cuGraphNodeGetType, (CUgraphNode node, CUgraphNodeType *type))                                                   \
    X(cuGraphMemAllocNodeGetParams, (CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *parameters))                        \
    X(cuGraphMemFreeNodeGetParams, (CUgraphNode node, CUdeviceptr *address))                                           \
    X(cuGraphChildGraphNodeGetGraph, (CUgraphNode node, CUgraph *graph))

#ifdef TRANCHE_COMPUTE_ONLY
#define CUDA_SHADOWED(X) CUDA_SHADOWED_BY_ALL(X) CUDA_GOVERNED(X)
#define CUDA_CALLED(X)                                                                                                 \
    CUDA_CALLED_BY_ALL(X)                                                                                              \
    X(cuCtxFromGreenCtx, (CUcontext *context, CUgreenCtx green))                                                       \
    X(cuMemGetInfo_v2, (size_t *free, size_t *total))
#else
#define CUDA_SHADOWED(X) CUDA_SHADOWED_BY_ALL(X) CUDA_MEMORY(X) CUDA_GOVERNED(X)
#define CUDA_CALLED(X) CUDA_CALLED_BY_ALL(X) CUDA_CALLED_FOR_MEMORY(X)
#endif

/* The three forms of a list of processes. */
#define NVML_LISTS(X, symbol)                                                                                          \
    X(symbol, (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos))                                 \
    X(symbol##_v2, (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos))                            \
    X(symbol##_v3, (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos))

/* A row of NVML_SHADOWED: symbol, parameters. NVML has no second way to look functions up. */
#define NVML_SHADOWED(X)                                                                                               \
    /* which GPUs there are */                                                                                         \
    X(nvmlDeviceGetCount, (unsigned int *count))                                                                       \
    X(nvmlDeviceGetCount_v2, (unsigned int *count))                                                                    \
    X(nvmlDeviceGetHandleByIndex, (unsigned int index, nvmlDevice_t *device))                                          \
    X(nvmlDeviceGetHandleByIndex_v2, (unsigned int index, nvmlDevice_t *device))                                       \
    X(nvmlDeviceGetHandleBySerial, (const char *serial, nvmlDevice_t *device))                                         \
    X(nvmlDeviceGetHandleByUUID, (const char *uuid, nvmlDevice_t *device))                                             \
    X(nvmlDeviceGetHandleByUUIDV, (const nvmlUUID_t *uuid, nvmlDevice_t *device))                                      \
    X(nvmlDeviceGetHandleByPciBusId, (const char *bus, nvmlDevice_t *device))                                          \
    X(nvmlDeviceGetHandleByPciBusId_v2, (const char *bus, nvmlDevice_t *device))                                       \
    X(nvmlDeviceGetIndex, (nvmlDevice_t device, unsigned int *index))                                                  \
    X(nvmlDeviceGetMigDeviceHandleByIndex, (nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig))               \
    /* memory */                                                                                                       \
    X(nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t *memory))                                            \
    X(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t device, nvmlMemory_v2_t *memory))                                      \
    X(nvmlDeviceGetConfComputeMemSizeInfo, (nvmlDevice_t device, nvmlConfComputeMemSizeInfo_t *sizes))                 \
    X(nvmlDeviceGetConfComputeProtectedMemoryUsage, (nvmlDevice_t device, nvmlMemory_t *memory))                       \
    X(nvmlDeviceGetAttributes, (nvmlDevice_t device, nvmlDeviceAttributes_t *what))                                    \
    X(nvmlDeviceGetAttributes_v2, (nvmlDevice_t device, nvmlDeviceAttributes_t *what))                                 \
    /* running processes */                                                                                            \
    NVML_LISTS(X, nvmlDeviceGetComputeRunningProcesses)                                                                \
    NVML_LISTS(X, nvmlDeviceGetGraphicsRunningProcesses)                                                               \
    NVML_LISTS(X, nvmlDeviceGetMPSComputeRunningProcesses)                                                             \
    X(nvmlDeviceGetRunningProcessDetailList, (nvmlDevice_t device, nvmlProcessDetailList_t *list))                     \
    /* GPU time */                                                                                                     \
    X(nvmlDeviceGetProcessUtilization,                                                                                 \
      (nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned int *count, unsigned long long since))   \
    X(nvmlDeviceGetProcessesUtilizationInfo, (nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info))              \
    X(nvmlDeviceGetAccountingPids, (nvmlDevice_t device, unsigned int *count, unsigned int *pids))                     \
    X(nvmlDeviceGetAccountingStats, (nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats))             \
    X(nvmlDeviceGetAccountingStats_v2, (nvmlDevice_t device, nvmlAccountingStats_v2_t *stats))

#define NVML_CALLED(X)                                                                                                 \
    X(nvmlDeviceGetUUID, (nvmlDevice_t device, char *uuid, unsigned int length))                                       \
    X(nvmlDeviceGetGpuInstanceId, (nvmlDevice_t device, unsigned int *id))                                             \
    X(nvmlDeviceGetComputeInstanceId, (nvmlDevice_t device, unsigned int *id))                                         \
    X(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, (nvmlDevice_t mig, nvmlDevice_t *device))                          \
    X(nvmlSystemGetDriverVersion, (char *version, unsigned int length))
/* clang-format on */

#endif
