/* Stream-ordered allocation: what a pool has reserved counts, see pools.h. And the synchronisations at which pools shrink. */
#include "allocations.h"
#include "borrowed.h"
#include "cuda_real.h"
#include "exports.h"
#include "gpus.h"
#include "objects.h"
#include "pools.h"
#include "streams.h"
#include "tags.h"

/* The device that a stream works on, and its GPU. */
static CUresult find_device(struct process **process, CUstream stream, CUdevice *device, int *gpu) {
    CUcontext context = NULL;
    CUresult result = contexts_current_gpu(process, gpu);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuCtxGetDevice)(device);
    if (result != CUDA_SUCCESS || streams_is_default(stream) || REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS)
        return result;
    /* A stream of another context, perhaps of another device. */
    CUcontext current = NULL;
    if (REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || current == context ||
        REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return result;
    result = REAL(cuCtxGetDevice)(device);
    REAL(cuCtxPopCurrent_v2)(&current);
    return result == CUDA_SUCCESS ? gpus_find_claimed(*process, *device, gpu) : result;
}

static bool is_capturing(CUstream stream) {
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    REAL(cuStreamIsCapturing)(stream, &capturing);
    return capturing != CU_STREAM_CAPTURE_STATUS_NONE;
}

struct allocating {
    struct process *process;
    CUmemoryPool handle;
    struct pool *pool; /* NULL: it is not ours to count */
    struct charge growth;
    int gpu;
    bool may_not_grow;
};

/* Whose default pool a handle is that we have not seen being made: it may be another device's than the stream's. */
static CUresult find_owner(struct process *process, CUmemoryPool handle, CUdevice *device, int *gpu) {
    int count = 0;
    REAL(cuDeviceGetCount)(&count);
    for (CUdevice other = 0; other < count; other++) {
        CUmemoryPool pool = NULL;
        if (other == *device || REAL(cuDeviceGetDefaultMemPool)(&pool, other) != CUDA_SUCCESS || pool != handle)
            continue;
        *device = other;
        return gpus_find_claimed(process, other, gpu);
    }
    return CUDA_SUCCESS;
}

/* The pool `handle`, or the current one of the stream's device. */
static CUresult find_pool(struct allocating *allocating, CUmemoryPool handle, CUstream stream) {
    CUdevice device;
    struct entry not_ours;
    CUresult result = find_device(&allocating->process, stream, &device, &allocating->gpu);
    if (result != CUDA_SUCCESS || objects_find(allocating->process, KIND_POOL, (uintptr_t)handle, &not_ours))
        return result;
    bool named = handle != NULL;
    if (!named && (result = REAL(cuDeviceGetMemPool)(&handle, device)) != CUDA_SUCCESS)
        return result;
    allocating->handle = handle;
    allocating->pool = pools_find(allocating->process, handle);
    if (allocating->pool != NULL)
        return CUDA_SUCCESS;
    if (named)
        result = find_owner(allocating->process, handle, &device, &allocating->gpu);
    if (result == CUDA_SUCCESS)
        allocating->pool = pools_memory(allocating->process, handle, device, allocating->gpu);
    return result != CUDA_SUCCESS || allocating->pool != NULL ? result : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Makes room for `bytes`. Near the limit there may be none for the pool to grow, but a place among what was freed in it. */
static CUresult before(struct allocating *allocating, CUmemoryPool handle, CUstream stream, size_t bytes) {
    CUresult result = find_pool(allocating, handle, stream);
    struct pool *pool = allocating->pool;
    if (result != CUDA_SUCCESS || pool == NULL)
        return result;
    result = pools_try(allocating->process, pool, bytes, &allocating->growth);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && is_capturing(stream)) {
        /* Becomes a node of a graph, which takes memory when it is launched. */
        allocating->pool = NULL;
        return CUDA_SUCCESS;
    }
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return result;
    result = pools_before(allocating->process, pool, bytes, &allocating->growth);
    if (result == CUDA_SUCCESS)
        pools_enter(pool);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && pools_enter_for_room(allocating->process, pool, bytes)) {
        allocating->growth = (struct charge){0};
        allocating->may_not_grow = true;
        return CUDA_SUCCESS;
    }
    return result;
}

static CUresult after(struct allocating *allocating, CUresult result, CUdeviceptr *address, size_t bytes,
                      CUstream stream) {
    struct pool *pool = allocating->pool;
    struct allocated allocated = {0};
    struct entry memory = {0};
    if (pool == NULL)
        return result;
    if (result == CUDA_SUCCESS)
        allocated = (struct allocated){*address, bytes, is_capturing(stream)};
    pools_leave(allocating->process, pool, &allocating->growth, allocated);
    if (allocating->may_not_grow)
        pools_settle(allocating->process); /* asking the streams may have made others smaller */
    if (result != CUDA_SUCCESS || !allocating->may_not_grow || pools_is_covered(pool))
        return result;
    /* It grew all the same. */
    bool ours = pools_freeing(allocating->process, *address, &memory);
    result = REAL(cuMemFreeAsync)(*address, stream);
    if (ours)
        pools_freed(allocating->process, &memory, stream, result);
    pools_trim(allocating->process, allocating->gpu, POOLS_AFTER_WAITING);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

#define ALLOCATE(address, bytes, pool, stream, call)                                                                   \
    do {                                                                                                               \
        struct allocating allocating = {0};                                                                            \
        if ((address) == NULL || (bytes) == 0)                                                                         \
            return call;                                                                                               \
        CUresult result = before(&allocating, pool, stream, bytes);                                                    \
        return result == CUDA_SUCCESS ? after(&allocating, call, address, bytes, stream) : result;                     \
    } while (0)

/* From the very pool that was charged: another thread may make another the device's current one meanwhile. */
#define FROM_CURRENT(address, bytes, stream, real, real_from)                                                          \
    (allocating.pool != NULL ? real_from(address, bytes, allocating.handle, stream) : real(address, bytes, stream))

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream) {
    if (address == NULL || bytes == 0)
        return REAL(cuMemAllocAsync)(address, bytes, stream);
    ALLOCATE(address, bytes, NULL, stream,
             FROM_CURRENT(address, bytes, stream, REAL(cuMemAllocAsync), REAL(cuMemAllocFromPoolAsync)));
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream) {
    CUstream named = stream != NULL ? stream : CU_STREAM_PER_THREAD;
    if (address == NULL || bytes == 0)
        return REAL(cuMemAllocAsync_ptsz)(address, bytes, stream);
    ALLOCATE(address, bytes, NULL, named,
             FROM_CURRENT(address, bytes, stream, REAL(cuMemAllocAsync_ptsz), REAL(cuMemAllocFromPoolAsync_ptsz)));
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream) {
    if (pool == NULL)
        return REAL(cuMemAllocFromPoolAsync)(address, bytes, pool, stream);
    ALLOCATE(address, bytes, pool, stream, REAL(cuMemAllocFromPoolAsync)(address, bytes, pool, stream));
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream) {
    if (pool == NULL)
        return REAL(cuMemAllocFromPoolAsync_ptsz)(address, bytes, pool, stream);
    CUstream named = stream != NULL ? stream : CU_STREAM_PER_THREAD;
    ALLOCATE(address, bytes, pool, named, REAL(cuMemAllocFromPoolAsync_ptsz)(address, bytes, pool, stream));
}

/* Memory that was not allocated in stream order can be freed so too, and goes when the stream comes to it. */
#define FREE(address, stream, call, synchronize)                                                                       \
    do {                                                                                                               \
        struct process *process = process_if_open();                                                                   \
        struct entry allocation;                                                                                       \
        bool of_pool = pools_freeing(process, address, &allocation);                                                   \
        bool linear = !of_pool && allocations_freeing(address, &allocation);                                           \
        bool borrowed = !of_pool && !linear && borrowed_freeing(process, address, &allocation);                        \
        CUresult result = call;                                                                                        \
        if ((linear || borrowed) && result == CUDA_SUCCESS)                                                            \
            synchronize(stream);                                                                                       \
        if (of_pool) {                                                                                                 \
            pools_freed(process, &allocation, stream, result);                                                         \
        } else if (linear) {                                                                                           \
            allocations_freed(&allocation, result);                                                                    \
            pools_settle(process);                                                                                     \
        } else if (borrowed) {                                                                                         \
            borrowed_freed(process, &allocation, result);                                                              \
            pools_settle(process);                                                                                     \
        }                                                                                                              \
        return result;                                                                                                 \
    } while (0)

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    FREE(address, stream, REAL(cuMemFreeAsync)(address, stream), REAL(cuStreamSynchronize));
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
    CUstream named = stream != NULL ? stream : CU_STREAM_PER_THREAD;
    FREE(address, named, REAL(cuMemFreeAsync_ptsz)(address, stream), REAL(cuStreamSynchronize));
}

/* --- pools themselves ------------------------------------------------------------------------------------------------ */

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    struct process *process;
    int gpu;
    CUresult result = REAL(cuMemPoolCreate)(pool, properties);
    if (result != CUDA_SUCCESS)
        return result;
    result = process_open(&process);
    if (result == CUDA_SUCCESS && properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        objects_put(process, KIND_POOL, (struct entry){.key = (uintptr_t)*pool}); /* of the host's memory */
        return result;
    }
    if (result == CUDA_SUCCESS)
        result = gpus_find_claimed(process, properties->location.id, &gpu);
    if (result == CUDA_SUCCESS && pools_memory(process, *pool, properties->location.id, gpu) == NULL)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS)
        REAL(cuMemPoolDestroy)(*pool);
    return result;
}

static CUresult destroy_ours(struct process *process, struct pool *pool, CUmemoryPool handle) {
    streams_wait(process); /* soon it cannot be asked any more what it holds */
    REAL(cuMemPoolTrimTo)(handle, 0);
    pools_settle(process);
    if (!pools_destroying(pool))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = REAL(cuMemPoolDestroy)(handle);
    pools_destroyed(process, pool, result);
    return result;
}

/* Taken out before the driver is asked: it may use the handle again at once. */
CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    struct process *process = process_if_open();
    struct pool *pool = pools_find(process, handle);
    struct entry foreign;
    if (pool != NULL)
        return destroy_ours(process, pool, handle);
    bool ours = process != NULL && objects_remove(process, KIND_POOL, (uintptr_t)handle, &foreign);
    CUresult result = REAL(cuMemPoolDestroy)(handle);
    if (ours && result != CUDA_SUCCESS)
        objects_put(process, KIND_POOL, foreign);
    else if (ours && foreign.charge.share != 0)
        charge_end(process, &foreign.charge);
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    CUresult result = REAL(cuMemPoolTrimTo)(pool, keep);
    pools_settle(process_if_open());
    return result;
}

CUresult cuMemPoolExportToShareableHandle(void *handle, CUmemoryPool memory, CUmemAllocationHandleType type,
                                          unsigned long long flags) {
    struct process *process = process_if_open();
    struct pool *pool = pools_find(process, memory);
    CUresult result = REAL(cuMemPoolExportToShareableHandle)(handle, memory, type, flags);
    if (result == CUDA_SUCCESS && pool != NULL && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        exports_see(process, *(int *)handle);
        uint32_t number = pools_share(process, pool);
        if (number != 0)
            tag_write(*(int *)handle, number);
    }
    return result;
}

/* Its owner pays for it, and we for nothing: an imported pool cannot be allocated from. */
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type,
                                            unsigned long long flags) {
    struct process *process;
    struct charge charge = {0};
    uint8_t tag[TAG_SIZE];
    CUresult result = process_open(&process);
    if (result != CUDA_SUCCESS)
        return result;
    bool joined = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && tag_read((int)(uintptr_t)handle, tag) &&
                  charge_join(process, tag, &charge);
    result = REAL(cuMemPoolImportFromShareableHandle)(pool, handle, type, flags);
    if (result == CUDA_SUCCESS)
        objects_put(process, KIND_POOL, (struct entry){.key = (uintptr_t)*pool, .charge = charge});
    else if (joined)
        charge_end(process, &charge);
    return result;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool, CUmemPoolPtrExportData *data) {
    CUresult result = REAL(cuMemPoolImportPointer)(address, pool, data);
    if (result == CUDA_SUCCESS)
        borrowed_from_pool(process_if_open(), pool, *address);
    return result;
}

/* --- streams ---------------------------------------------------------------------------------------------------------- */

CUresult cuStreamDestroy(CUstream stream) {
    struct process *process = process_if_open();
    if (process != NULL)
        streams_gone(process, stream);
    return REAL(cuStreamDestroy)(stream);
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    struct process *process = process_if_open();
    if (process != NULL)
        streams_gone(process, stream);
    return REAL(cuStreamDestroy_v2)(stream);
}

/* --- synchronisations ------------------------------------------------------------------------------------------------ */

#define SYNCHRONIZE(call)                                                                                              \
    do {                                                                                                               \
        CUresult result = call;                                                                                        \
        pools_settle(process_if_open());                                                                               \
        return result;                                                                                                 \
    } while (0)

CUresult cuCtxSynchronize(void) {
    SYNCHRONIZE(REAL(cuCtxSynchronize)());
}

CUresult cuStreamSynchronize(CUstream stream) {
    SYNCHRONIZE(REAL(cuStreamSynchronize)(stream));
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    SYNCHRONIZE(REAL(cuStreamSynchronize_ptsz)(stream));
}

CUresult cuEventSynchronize(CUevent event) {
    SYNCHRONIZE(REAL(cuEventSynchronize)(event));
}
