/* Stream-ordered allocation and memory pools, and the synchronisations at which pools shrink; see memory/pools.h. */
#include "context/work.h"
#include "driver/cuda_real.h"
#include "governor/governor.h"
#include "memory/allocations.h"
#include "memory/borrowed.h"
#include "memory/exports.h"
#include "memory/objects.h"
#include "memory/pools.h"
#include "memory/streams.h"
#include "state/gpus.h"
#include "system/calls.h"
#include "system/explain.h"

/* contexts_place for a stream, which may be of another context than the current one. */
static CUresult place_of(struct work *work, CUstream stream) {
    CUcontext pushed;
    if (work->place.context != 0)
        return CUDA_SUCCESS;
    bool other = !contexts_is_default_stream(stream) && work->context != NULL &&
                 REAL(cuCtxPushCurrent_v2)(work->context) == CUDA_SUCCESS;
    CUresult result = contexts_place(work);
    if (other)
        REAL(cuCtxPopCurrent_v2)(&pushed);
    return result;
}

/* The legacy default stream cannot be captured. */
static bool is_capturing(CUstream stream) {
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    if (stream != NULL && stream != CU_STREAM_LEGACY)
        REAL(cuStreamIsCapturing)(stream, &capturing);
    return capturing != CU_STREAM_CAPTURE_STATUS_NONE;
}

struct allocating {
    struct process *process;
    struct pool_request request;
    struct pool *pool; /* NULL: not charged here */
    int gpu;
    bool captured; /* the captures' lock is held: the call becomes a node of a graph */
};

/* The device whose default pool a handle is, if it was not created by a shadowed call: it may differ from the stream's. */
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

/* The pool `handle`; if that is NULL, the current pool of the stream's device. */
static CUresult find_pool(struct allocating *allocating, struct work *work, CUmemoryPool handle) {
    struct entry not_ours;
    CUresult result = place_of(work, allocating->request.stream);
    allocating->process = work->process;
    allocating->gpu = work->place.gpu;
    if (result != CUDA_SUCCESS || objects_find(allocating->process, KIND_POOL, (uintptr_t)handle, &not_ours))
        return result;
    CUdevice device = gpus_device(allocating->process, allocating->gpu);
    bool named = handle != NULL;
    if (!named && (result = REAL(cuDeviceGetMemPool)(&handle, device)) != CUDA_SUCCESS)
        return result;
    allocating->request.pool = handle;
    allocating->pool = pools_find(allocating->process, handle);
    if (allocating->pool != NULL)
        return CUDA_SUCCESS;
    if (named)
        result = find_owner(allocating->process, handle, &device, &allocating->gpu);
    if (result == CUDA_SUCCESS)
        allocating->pool = pools_memory(allocating->process, handle, device, allocating->gpu);
    return result != CUDA_SUCCESS || allocating->pool != NULL ? result : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Makes sure that the pool has a place or room, and holds it until `after`. */
static CUresult before(struct allocating *allocating, enum pools_effort effort) {
    struct process *process = allocating->process;
    CUresult result =
        allocating->pool == NULL ? CUDA_SUCCESS : pools_enter(process, allocating->pool, &allocating->request, effort);
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !is_capturing(allocating->request.stream))
        return result;
    /* A node of a graph takes memory when the graph is launched. The capture does not end before the call is done. */
    lock_take(&process->captures);
    allocating->captured = is_capturing(allocating->request.stream);
    if (!allocating->captured)
        lock_give(&process->captures);
    return allocating->captured ? CUDA_SUCCESS : result;
}

static CUresult after(struct allocating *allocating, const struct work *work, CUresult result, CUdeviceptr *address) {
    struct process *process = allocating->process;
    CUstream stream = allocating->request.stream;
    struct entry memory;
    if (allocating->captured)
        lock_give(&process->captures);
    if (allocating->captured || allocating->pool == NULL)
        return result;
    bool counted = pools_leave(process, allocating->pool, &allocating->request, result == CUDA_SUCCESS ? *address : 0);
    if (counted || result != CUDA_SUCCESS || !pools_freeing_in_stream(process, *address, &memory))
        return result;
    pools_freed_in_stream(process, &memory, work->context, stream, REAL(cuMemFreeAsync)(*address, stream));
    *address = 0;
    /* The free comes after the stream's work: until then the pool cannot give back what it grew by. */
    pools_trim(process, pools_gpu(allocating->pool), UINT64_MAX, POOLS_AFTER_WAITING);
    return charge_refused(process, (unsigned)allocating->gpu, CUDA_ERROR_OUT_OF_MEMORY);
}

#define ALLOCATE(address, bytes, pool, stream, call)                                                                   \
    do {                                                                                                               \
        struct allocating allocating = {.request = {NULL, bytes, NULL, stream}};                                       \
        if ((address) == NULL || (bytes) == 0)                                                                         \
            return call;                                                                                               \
        WORK_IN_STREAM(stream);                                                                                        \
        allocating.request.context = work.context;                                                                     \
        CUresult result = find_pool(&allocating, &work, pool);                                                         \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        result = CUDA_ERROR_OUT_OF_MEMORY;                                                                             \
        for (enum pools_effort effort = POOLS_AT_ONCE; result == CUDA_ERROR_OUT_OF_MEMORY && effort < POOLS_EFFORTS;   \
             effort++) {                                                                                               \
            result = before(&allocating, effort);                                                                      \
            if (result == CUDA_SUCCESS)                                                                                \
                return after(&allocating, &work, call, address);                                                       \
        }                                                                                                              \
        return charge_refused(allocating.process, (unsigned)allocating.gpu, result);                                   \
    } while (0)

/* Allocates from the pool that was charged: another thread may change the device's current pool meanwhile. */
#define FROM_CURRENT(address, bytes, stream, real, real_from)                                                          \
    (allocating.pool != NULL ? real_from(address, bytes, allocating.request.pool, stream)                              \
                             : real(address, bytes, stream))

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream) {
    ALLOCATE(address, bytes, NULL, stream,
             FROM_CURRENT(address, bytes, stream, REAL(cuMemAllocAsync), REAL(cuMemAllocFromPoolAsync)));
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream) {
    CUstream named = stream != NULL ? stream : CU_STREAM_PER_THREAD;
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

/* Memory that was not allocated in stream order can be freed so too, and is freed when the stream reaches the call. */
struct freeing {
    struct process *process;
    streams_freed *freed; /* NULL: a pool's memory, if `known` */
    bool known;
    bool waits; /* imports wait for it */
    struct entry memory;
};

static void linear_freed(struct process *process, const struct entry *memory, CUresult result) {
    (void)process;
    allocations_freed(memory, result);
}

static struct freeing free_begins(CUdeviceptr address) {
    struct freeing freeing = {.process = process_if_open()};
    freeing.known = pools_freeing_in_stream(freeing.process, address, &freeing.memory);
    if (freeing.known)
        return freeing;
    if (allocations_freeing(address, &freeing.memory))
        freeing.freed = linear_freed;
    else if (borrowed_freeing(freeing.process, address, &freeing.memory) ||
             ((freeing.waits = borrowed_await_imports(freeing.process)) &&
              borrowed_freeing(freeing.process, address, &freeing.memory)))
        freeing.freed = borrowed_freed;
    freeing.known = freeing.freed != NULL;
    return freeing;
}

static CUresult free_ends(struct freeing *freeing, const struct work *work, CUstream stream, CUresult result) {
    if (freeing->waits)
        reentrant_give(&freeing->process->borrowing);
    if (!freeing->known)
        return result;
    if (freeing->freed == NULL) {
        pools_freed_in_stream(freeing->process, &freeing->memory, work->context, stream, result);
        return result;
    }
    if (result == CUDA_SUCCESS &&
        streams_free_later(freeing->process, work->context, stream, &freeing->memory, freeing->freed))
        return result;
    if (result == CUDA_SUCCESS)
        REAL(cuStreamSynchronize)(stream);
    freeing->freed(freeing->process, &freeing->memory, result);
    return result;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    WORK_IN_STREAM(stream);
    struct freeing freeing = free_begins(address);
    return free_ends(&freeing, &work, stream, REAL(cuMemFreeAsync)(address, stream));
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
    CUstream named = stream != NULL ? stream : CU_STREAM_PER_THREAD;
    WORK_IN_STREAM(named);
    struct freeing freeing = free_begins(address);
    return free_ends(&freeing, &work, named, REAL(cuMemFreeAsync_ptsz)(address, stream));
}

/* --- pools themselves --------------------------------------------------------------------------------------------- */

static CUresult record_created(struct process *process, CUmemoryPool pool, const CUmemPoolProps *properties) {
    int gpu;
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        objects_put(process, KIND_POOL, (struct entry){.key = (uintptr_t)pool}); /* a pool of host memory */
        return CUDA_SUCCESS;
    }
    CUresult result = gpus_find_claimed(process, properties->location.id, &gpu);
    if (result == CUDA_SUCCESS && pools_memory(process, pool, properties->location.id, gpu) == NULL)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    return result;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    struct process *opened = process_if_open(), *process;
    if (opened != NULL)
        reentrant_take(&opened->borrowing);
    CUresult result = REAL(cuMemPoolCreate)(pool, properties), recorded = result;
    if (result == CUDA_SUCCESS && (recorded = process_open(&process)) == CUDA_SUCCESS)
        recorded = record_created(process, *pool, properties);
    if (opened != NULL)
        reentrant_give(&opened->borrowing);
    if (recorded != result)
        UNDO(REAL(cuMemPoolDestroy)(*pool));
    return recorded;
}

static CUresult destroy_ours(struct process *process, struct pool *pool, CUmemoryPool handle) {
    streams_wait(process); /* after this its size cannot be queried */
    REAL(cuMemPoolTrimTo)(handle, 0);
    pools_settle(process);
    if (!pools_destroying(pool))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = REAL(cuMemPoolDestroy)(handle);
    pools_destroyed(process, pool, result);
    return result;
}

/* A pool that is imported or of host memory. Its record is removed after the driver's call: pointers may be imported from
 * it until then. */
static CUresult destroy_foreign(struct process *process, CUmemoryPool handle) {
    struct entry foreign;
    reentrant_take(&process->borrowing);
    CUresult result = REAL(cuMemPoolDestroy)(handle);
    bool removed = result == CUDA_SUCCESS && objects_remove(process, KIND_POOL, (uintptr_t)handle, &foreign);
    reentrant_give(&process->borrowing);
    if (removed && foreign.charge.share != 0)
        charge_end(process, &foreign.charge);
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    struct process *process = process_if_open();
    struct pool *pool = pools_find(process, handle);
    if (process == NULL)
        return REAL(cuMemPoolDestroy)(handle);
    return pool != NULL ? destroy_ours(process, pool, handle) : destroy_foreign(process, handle);
}

/* After a driver's call at which pools may shrink. */
static CUresult settled(CUresult result) {
    pools_settle(process_if_open());
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    return settled(REAL(cuMemPoolTrimTo)(pool, keep));
}

CUresult cuMemPoolExportToShareableHandle(void *handle, CUmemoryPool memory, CUmemAllocationHandleType type,
                                          unsigned long long flags) {
    struct process *process = process_if_open();
    struct pool *pool = pools_find(process, memory);
    struct charge held;
    if (pool == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return REAL(cuMemPoolExportToShareableHandle)(handle, memory, type, flags);
    bool counted = pools_exporting(process, pool, &held);
    CUresult result = REAL(cuMemPoolExportToShareableHandle)(handle, memory, type, flags);
    if (result == CUDA_SUCCESS && counted)
        return exports_done(process, &held, pools_find(process, memory) == pool, *(int *)handle);
    if (result == CUDA_SUCCESS)
        call_close(*(int *)handle);
    if (counted)
        charge_end(process, &held);
    return result == CUDA_SUCCESS ? exports_refused() : result;
}

/* An imported pool cannot be allocated from. If its owner is of this claim, it is charged already. If not, this process
 * is charged for the pointers that it imports. */
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type,
                                            unsigned long long flags) {
    struct process *process;
    struct charge charge = {0};
    CUresult result = process_open(&process);
    if (result == CUDA_SUCCESS && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        result = charge_find_exported(process, (int)(uintptr_t)handle, &charge);
    if (result != CUDA_SUCCESS)
        return result;
    bool joined = charge.share != 0;
    charge.unpaid = !joined;
    reentrant_take(&process->borrowing);
    result = REAL(cuMemPoolImportFromShareableHandle)(pool, handle, type, flags);
    if (result == CUDA_SUCCESS)
        objects_put(process, KIND_POOL, (struct entry){.key = (uintptr_t)*pool, .charge = charge});
    reentrant_give(&process->borrowing);
    if (result != CUDA_SUCCESS && joined)
        charge_end(process, &charge);
    return result;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool, CUmemPoolPtrExportData *data) {
    struct process *process = process_if_open();
    if (process == NULL)
        return REAL(cuMemPoolImportPointer)(address, pool, data);
    reentrant_take(&process->borrowing);
    CUresult imported = REAL(cuMemPoolImportPointer)(address, pool, data);
    CUresult result = imported == CUDA_SUCCESS ? borrowed_from_pool(process, pool, *address) : imported;
    reentrant_give(&process->borrowing);
    if (result != imported)
        UNDO(REAL(cuMemFree_v2)(*address));
    return result;
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

static CUresult destroy_stream(cuStreamDestroy_v2_function real, CUstream stream) {
    struct process *process = process_if_open();
    if (process != NULL)
        streams_ending(process, stream);
    governor_stream_ending(stream);
    return real(stream);
}

CUresult cuStreamDestroy(CUstream stream) {
    return destroy_stream(REAL(cuStreamDestroy), stream);
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    return destroy_stream(REAL(cuStreamDestroy_v2), stream);
}

/* See `before`. */
static CUresult end_capture(cuStreamEndCapture_function real, CUstream stream, CUgraph *graph) {
    struct process *process = process_if_open();
    if (process == NULL)
        return real(stream, graph);
    lock_take(&process->captures);
    CUresult result = real(stream, graph);
    lock_give(&process->captures);
    return result;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    return end_capture(REAL(cuStreamEndCapture), stream, graph);
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    return end_capture(REAL(cuStreamEndCapture_ptsz), stream, graph);
}

/* --- synchronisations --------------------------------------------------------------------------------------------- */

CUresult cuCtxSynchronize(void) {
    return settled(REAL(cuCtxSynchronize)());
}

CUresult cuStreamSynchronize(CUstream stream) {
    return settled(REAL(cuStreamSynchronize)(stream));
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    return settled(REAL(cuStreamSynchronize_ptsz)(stream));
}

CUresult cuEventSynchronize(CUevent event) {
    return settled(REAL(cuEventSynchronize)(event));
}
