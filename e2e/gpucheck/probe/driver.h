/*
 * What the probes need of the CUDA driver API, as cuda.h has it, and how they find it: at run time, one function at a
 * time, since a driver that is older than a function is no reason not to check the others.
 */
#ifndef GPUCHECK_DRIVER_H
#define GPUCHECK_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MIB (1024ull * 1024)

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUhandle; /* CUmemGenericAllocationHandle */
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    NO_SUCH_FUNCTION = -1, /* ours: the driver has none of this name */
};

enum {
    ATTRIBUTE_MULTIPROCESSORS = 16,
    ATTRIBUTE_THREADS_PER_MULTIPROCESSOR = 39,
    ATTRIBUTE_MAJOR = 75,
    ATTRIBUTE_MINOR = 76,
    ATTRIBUTE_MANAGED_MEMORY = 83,
    ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89,
    ATTRIBUTE_VMM = 102,
    ATTRIBUTE_POSIX_HANDLES = 103,
    ATTRIBUTE_SPARSE_ARRAYS = 112,
    ATTRIBUTE_MEMORY_POOLS = 115,
    ATTRIBUTE_POOL_HANDLE_TYPES = 119,
    ATTRIBUTE_DEFERRED_ARRAYS = 121,
    ATTRIBUTE_MULTICAST = 132,
};

enum { EVENT_DISABLE_TIMING = 2 };
enum { LIMIT_STACK_SIZE = 0, LIMIT_PRINTF_FIFO_SIZE = 1, LIMIT_MALLOC_HEAP_SIZE = 2 };
enum { POOL_RELEASE_THRESHOLD = 4, POOL_RESERVED_CURRENT = 5, POOL_USED_CURRENT = 7 };
enum { GRAPH_RESERVED_CURRENT = 2 };
enum { FORMAT_UINT8 = 0x01, FORMAT_FLOAT = 0x20, FORMAT_BC1 = 0x91, FORMAT_BC7 = 0x9d };
enum { ARRAY_LAYERED = 0x01, ARRAY_SURFACE = 0x02, ARRAY_SPARSE = 0x40, ARRAY_DEFERRED = 0x80 };
enum { LOCATION_DEVICE = 1, ALLOCATION_PINNED = 1, HANDLE_POSIX_FD = 1, ACCESS_READ_WRITE = 3 };

typedef struct {
    char bytes[16];
} CUuuid;

typedef struct {
    size_t width, height;
    int format;
    unsigned channels;
} CUarrayDescriptor;

typedef struct {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
} CUarray3DDescriptor;

typedef struct {
    size_t size, alignment;
    unsigned reserved[4];
} CUarrayRequirements;

typedef struct {
    int type, id;
} CUmemLocation;

typedef struct {
    int type, handle_types;
    CUmemLocation location;
    void *win32;
    struct {
        unsigned char compression, rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
} CUmemAllocationProp;

typedef struct {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;

typedef struct {
    int type, handle_types;
    CUmemLocation location;
    void *win32;
    size_t max_size;
    unsigned short usage;
    unsigned char reserved[54];
} CUmemPoolProps;

typedef struct {
    CUmemPoolProps pool;
    const CUmemAccessDesc *access;
    size_t access_count, size;
    CUdeviceptr address;
} CUgraphAllocParams;

typedef struct {
    unsigned devices;
    size_t size;
    unsigned long long handle_types, flags;
} CUmulticastProp;

typedef struct {
    int resource_type; /* 0: array */
    void *resource;
    int subresource_type; /* 0: sparse level, 1: mip tail */
    union {
        struct {
            unsigned level, layer, x, y, z, width, height, depth;
        } level;
        struct {
            unsigned layer;
            unsigned long long offset, size;
        } tail;
    } subresource;
    int operation; /* 1: map */
    int handle_type;
    CUhandle handle;
    unsigned long long offset;
    unsigned device_mask, flags, reserved[2];
} CUarrayMapInfo;

typedef struct {
    char bytes[64];
} CUipcMemHandle;

typedef struct {
    char bytes[64];
} CUpoolPointer;

typedef struct {
    unsigned tile_width, tile_height, tile_depth, tail_level;
    unsigned long long tail_size;
    unsigned flags, reserved[4];
} CUarraySparseProperties;

typedef struct {
    int type;
    unsigned char padding[92];
    unsigned sm_count;
    unsigned char oversize[256]; /* more than any driver writes */
} CUdevResource;

/*
 * A row: symbol; the name and the CUDA version with which cuGetProcAddress gives that very symbol; the parameters.
 */
/* clang-format off */
#define DRIVER_FUNCTIONS(F)                                                                                            \
    F(cuInit, "cuInit", 2000, (unsigned))                                                                              \
    F(cuDriverGetVersion, "cuDriverGetVersion", 2020, (int *))                                                         \
    F(cuGetErrorName, "cuGetErrorName", 6000, (CUresult, const char **))                                               \
    F(cuDeviceGetCount, "cuDeviceGetCount", 2000, (int *))                                                             \
    F(cuDeviceGet, "cuDeviceGet", 2000, (CUdevice *, int))                                                             \
    F(cuDeviceGetName, "cuDeviceGetName", 2000, (char *, int, CUdevice))                                               \
    F(cuDeviceGetUuid, "cuDeviceGetUuid", 9020, (CUuuid *, CUdevice))                                                  \
    F(cuDeviceGetUuid_v2, "cuDeviceGetUuid", 11040, (CUuuid *, CUdevice))                                              \
    F(cuDeviceGetAttribute, "cuDeviceGetAttribute", 2000, (int *, int, CUdevice))                                      \
    F(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020, (size_t *, CUdevice))                                             \
    F(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, (CUcontext *, CUdevice))                             \
    F(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, (CUdevice))                                    \
    F(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, (CUdevice))                                        \
    F(cuCtxCreate_v2, "cuCtxCreate", 3020, (CUcontext *, unsigned, CUdevice))                                          \
    F(cuCtxDestroy_v2, "cuCtxDestroy", 4000, (CUcontext))                                                              \
    F(cuCtxSetCurrent, "cuCtxSetCurrent", 4000, (CUcontext))                                                           \
    F(cuCtxSynchronize, "cuCtxSynchronize", 2000, (void))                                                              \
    F(cuCtxSetLimit, "cuCtxSetLimit", 3010, (int, size_t))                                                             \
    F(cuMemGetInfo_v2, "cuMemGetInfo", 3020, (size_t *, size_t *))                                                     \
    F(cuMemAlloc_v2, "cuMemAlloc", 3020, (CUdeviceptr *, size_t))                                                      \
    F(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, (CUdeviceptr *, size_t *, size_t, size_t, unsigned))                \
    F(cuMemAllocManaged, "cuMemAllocManaged", 6000, (CUdeviceptr *, size_t, unsigned))                                 \
    F(cuMemFree_v2, "cuMemFree", 3020, (CUdeviceptr))                                                                  \
    F(cuMemHostAlloc, "cuMemHostAlloc", 2020, (void **, size_t, unsigned))                                             \
    F(cuMemFreeHost, "cuMemFreeHost", 2000, (void *))                                                                  \
    F(cuMemsetD8_v2, "cuMemsetD8", 3020, (CUdeviceptr, unsigned char, size_t))                                         \
    F(cuStreamCreate, "cuStreamCreate", 2000, (CUstream *, unsigned))                                                  \
    F(cuStreamSynchronize, "cuStreamSynchronize", 2000, (CUstream))                                                    \
    F(cuEventCreate, "cuEventCreate", 2000, (CUevent *, unsigned))                                                     \
    F(cuEventRecord, "cuEventRecord", 2000, (CUevent, CUstream))                                                       \
    F(cuEventSynchronize, "cuEventSynchronize", 2000, (CUevent))                                                       \
    F(cuArrayCreate_v2, "cuArrayCreate", 3020, (CUarray *, const CUarrayDescriptor *))                                 \
    F(cuArray3DCreate_v2, "cuArray3DCreate", 3020, (CUarray *, const CUarray3DDescriptor *))                           \
    F(cuArrayDestroy, "cuArrayDestroy", 2000, (CUarray))                                                               \
    F(cuArrayGetMemoryRequirements, "cuArrayGetMemoryRequirements", 11060, (CUarrayRequirements *, CUarray, CUdevice)) \
    F(cuArrayGetSparseProperties, "cuArrayGetSparseProperties", 11010, (CUarraySparseProperties *, CUarray))           \
    F(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 5000,                                                          \
      (CUmipmappedArray *, const CUarray3DDescriptor *, unsigned))                                                     \
    F(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 5000, (CUmipmappedArray))                                    \
    F(cuMemAllocAsync, "cuMemAllocAsync", 11020, (CUdeviceptr *, size_t, CUstream))                                    \
    F(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))      \
    F(cuMemFreeAsync, "cuMemFreeAsync", 11020, (CUdeviceptr, CUstream))                                                \
    F(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020, (CUmemoryPool *, CUdevice))                       \
    F(cuMemPoolCreate, "cuMemPoolCreate", 11020, (CUmemoryPool *, const CUmemPoolProps *))                             \
    F(cuMemPoolDestroy, "cuMemPoolDestroy", 11020, (CUmemoryPool))                                                     \
    F(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, (CUmemoryPool, size_t))                                               \
    F(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020, (CUmemoryPool, int, void *))                              \
    F(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", 11020, (CUmemoryPool, int, void *))                              \
    F(cuMemPoolSetAccess, "cuMemPoolSetAccess", 11020, (CUmemoryPool, const CUmemAccessDesc *, size_t))                \
    F(cuMemPoolExportToShareableHandle, "cuMemPoolExportToShareableHandle", 11020,                                     \
      (void *, CUmemoryPool, int, unsigned long long))                                                                 \
    F(cuMemPoolImportFromShareableHandle, "cuMemPoolImportFromShareableHandle", 11020,                                 \
      (CUmemoryPool *, void *, int, unsigned long long))                                                               \
    F(cuMemPoolExportPointer, "cuMemPoolExportPointer", 11020, (CUpoolPointer *, CUdeviceptr))                         \
    F(cuMemPoolImportPointer, "cuMemPoolImportPointer", 11020, (CUdeviceptr *, CUmemoryPool, CUpoolPointer *))         \
    F(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity", 10020,                                           \
      (size_t *, const CUmemAllocationProp *, int))                                                                    \
    F(cuMemAddressReserve, "cuMemAddressReserve", 10020,                                                               \
      (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                                                \
    F(cuMemAddressFree, "cuMemAddressFree", 10020, (CUdeviceptr, size_t))                                              \
    F(cuMemCreate, "cuMemCreate", 10020, (CUhandle *, size_t, const CUmemAllocationProp *, unsigned long long))        \
    F(cuMemRelease, "cuMemRelease", 10020, (CUhandle))                                                                 \
    F(cuMemMap, "cuMemMap", 10020, (CUdeviceptr, size_t, size_t, CUhandle, unsigned long long))                        \
    F(cuMemUnmap, "cuMemUnmap", 10020, (CUdeviceptr, size_t))                                                          \
    F(cuMemSetAccess, "cuMemSetAccess", 10020, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                 \
    F(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020,                                             \
      (void *, CUhandle, int, unsigned long long))                                                                     \
    F(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020, (CUhandle *, void *, int))              \
    F(cuMemMapArrayAsync, "cuMemMapArrayAsync", 11010, (CUarrayMapInfo *, unsigned, CUstream))                         \
    F(cuMulticastGetGranularity, "cuMulticastGetGranularity", 12010, (size_t *, const CUmulticastProp *, int))         \
    F(cuMulticastCreate, "cuMulticastCreate", 12010, (CUhandle *, const CUmulticastProp *))                            \
    F(cuMulticastAddDevice, "cuMulticastAddDevice", 12010, (CUhandle, CUdevice))                                       \
    F(cuMulticastBindMem, "cuMulticastBindMem", 12010,                                                                 \
      (CUhandle, size_t, CUhandle, size_t, size_t, unsigned long long))                                                \
    F(cuMulticastUnbind, "cuMulticastUnbind", 12010, (CUhandle, CUdevice, size_t, size_t))                             \
    F(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010, (CUipcMemHandle *, CUdeviceptr))                                   \
    F(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000, (CUdeviceptr *, CUipcMemHandle, unsigned))                   \
    F(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010, (CUdeviceptr))                                                 \
    F(cuGraphCreate, "cuGraphCreate", 10000, (CUgraph *, unsigned))                                                    \
    F(cuGraphDestroy, "cuGraphDestroy", 10000, (CUgraph))                                                              \
    F(cuGraphAddMemAllocNode, "cuGraphAddMemAllocNode", 11040,                                                         \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraphAllocParams *))                                     \
    F(cuGraphAddMemFreeNode, "cuGraphAddMemFreeNode", 11040,                                                           \
      (CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr))                                              \
    F(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040, (CUgraphExec *, CUgraph, unsigned long long)) \
    F(cuGraphLaunch, "cuGraphLaunch", 10000, (CUgraphExec, CUstream))                                                  \
    F(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, (CUgraphExec))                                                  \
    F(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", 11040, (CUdevice))                                                 \
    F(cuDeviceGetGraphMemAttribute, "cuDeviceGetGraphMemAttribute", 11040, (CUdevice, int, void *))                    \
    F(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010, (CUstream, int))                                         \
    F(cuStreamEndCapture, "cuStreamEndCapture", 10000, (CUstream, CUgraph *))                                          \
    F(cuModuleLoadData, "cuModuleLoadData", 2000, (CUmodule *, const void *))                                          \
    F(cuModuleUnload, "cuModuleUnload", 2000, (CUmodule))                                                              \
    F(cuModuleGetFunction, "cuModuleGetFunction", 2000, (CUfunction *, CUmodule, const char *))                        \
    F(cuModuleGetGlobal_v2, "cuModuleGetGlobal", 3020, (CUdeviceptr *, size_t *, CUmodule, const char *))              \
    F(cuLibraryLoadData, "cuLibraryLoadData", 12000,                                                                   \
      (CUlibrary *, const void *, void *, void **, unsigned, void *, void **, unsigned))                               \
    F(cuLibraryUnload, "cuLibraryUnload", 12000, (CUlibrary))                                                          \
    F(cuLibraryGetGlobal, "cuLibraryGetGlobal", 12000, (CUdeviceptr *, size_t *, CUlibrary, const char *))             \
    F(cuLaunchKernel, "cuLaunchKernel", 4000,                                                                          \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))  \
    F(cuDeviceGetDevResource, "cuDeviceGetDevResource", 12040, (CUdevice, CUdevResource *, int))                       \
    F(cuDevResourceGenerateDesc, "cuDevResourceGenerateDesc", 12040, (CUdevResourceDesc *, CUdevResource *, unsigned)) \
    F(cuGreenCtxCreate, "cuGreenCtxCreate", 12040, (CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned))              \
    F(cuGreenCtxDestroy, "cuGreenCtxDestroy", 12040, (CUgreenCtx))
/* clang-format on */

#define DECLARE(symbol, name, since, parameters) CUresult(*symbol) parameters;
extern struct driver { DRIVER_FUNCTIONS(DECLARE) } cuda;
#undef DECLARE

/* How functions are looked up. */
enum lookup { LOOKUP_SYMBOL, LOOKUP_ADDRESS, LOOKUP_ADDRESS_V2, LOOKUP_PER_THREAD };

/* Opens libcuda.so.1 wherever the loader finds it. Ends the program where there is none. */
void driver_load(enum lookup lookup);

/* The library's handle, and the file that it came from. */
void *driver_library(void);
const char *driver_file(void);

/* Whether the driver has all of these functions (a list that ends with NULL); the first that is missing in `missing`. */
bool driver_has(const char *const *symbols, const char **missing);

/* What cuGetProcAddress answers, by its first version or its second; NULL for nothing. */
void *driver_address(const char *name, int version, unsigned long long flags, bool second);

const char *error_name(CUresult result);

int attribute(CUdevice device, int what);

/* Calls a function that this driver may lack. */
#define CALL(symbol, ...) (cuda.symbol == NULL ? NO_SUCH_FUNCTION : cuda.symbol(__VA_ARGS__))

#endif
