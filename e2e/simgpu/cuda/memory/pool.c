#include "pool.h"

#include "cuda/work/capture.h"

#include <string.h>

static struct handle_table handles = HANDLE_TABLE(5, 1 << 18);
_Static_assert(sizeof(struct CUmemPoolHandle_st) <= 1 << 5, "a pool's handle must fit into its element");

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* around the two below */
static CUmemoryPool defaults[SIM_MAX_GPUS], current[SIM_MAX_GPUS];

#define HANDLE_TYPES ((unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)

struct pool *pool_of(CUmemoryPool handle) {
    return handle_valid(&handles, handle) ? handle->pool : NULL;
}

CUresult pool_handle_new(const CUmemPoolProps *props, uint64_t object, bool imported, CUmemoryPool *handle) {
    CUmemoryPool fresh = handle_new(&handles);

    REQUIRE(fresh != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    fresh->pool = pool_new(props->location.id, props, object, imported, fresh);
    if (fresh->pool == NULL) {
        handle_delete(&handles, fresh);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = fresh;
    return CUDA_SUCCESS;
}

/* ---- A device's pools ---- */

static CUresult default_locked(CUdevice device, CUmemoryPool *pool) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};

    if (defaults[device] == NULL)
        TRY(pool_handle_new(&props, 0, false, &defaults[device]));
    *pool = defaults[device];
    return CUDA_SUCCESS;
}

static CUresult current_locked(CUdevice device, CUmemoryPool *pool) {
    if (current[device] == NULL)
        return default_locked(device, pool);
    *pool = current[device];
    return CUDA_SUCCESS;
}

static CUresult current_pool(CUdevice device, CUmemoryPool *pool) {
    CUresult ret;

    pthread_mutex_lock(&mutex);
    ret = current_locked(device, pool);
    pthread_mutex_unlock(&mutex);
    return ret;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev) {
    CUresult ret;

    REQUIRE_INITIALISED();
    REQUIRE(pool_out != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_valid(dev), CUDA_ERROR_INVALID_DEVICE);
    pthread_mutex_lock(&mutex);
    ret = default_locked(dev, pool_out);
    pthread_mutex_unlock(&mutex);
    return ret;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev) {
    REQUIRE_INITIALISED();
    REQUIRE(pool != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_valid(dev), CUDA_ERROR_INVALID_DEVICE);
    return current_pool(dev, pool);
}

/* The pool must be one that lies on the device and was made in this process. */
CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
    REQUIRE_INITIALISED();
    REQUIRE(device_valid(dev), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(pool_of(pool) != NULL && pool->pool->device == dev && !pool->pool->imported, CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&mutex);
    current[dev] = pool;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

void pools_device_reset(CUdevice device) {
    pthread_mutex_lock(&mutex);
    if (defaults[device] != NULL)
        pool_clear(defaults[device]->pool);
    pthread_mutex_unlock(&mutex);
}

/* ---- Making and unmaking ---- */

static CUresult check_props(const CUmemPoolProps *props) {
    static const unsigned char zeros[sizeof(props->reserved)];

    REQUIRE(props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(props->location.type == CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_valid(props->location.id), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(memcmp(props->reserved, zeros, sizeof(zeros)) == 0 && props->win32SecurityAttributes == NULL,
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(((unsigned)props->handleTypes & ~HANDLE_TYPES) == 0, CUDA_ERROR_NOT_SUPPORTED);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps) {
    REQUIRE_INITIALISED();
    REQUIRE(pool != NULL && poolProps != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(check_props(poolProps));
    return poolProps->handleTypes != CU_MEM_HANDLE_TYPE_NONE ? pool_new_shared(poolProps, pool)
                                                             : pool_handle_new(poolProps, 0, false, pool);
}

/* The default pool stays; where the pool was a device's current one, the default is that again. */
CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    struct pool *retired;

    REQUIRE_INITIALISED();
    pthread_mutex_lock(&mutex);
    retired = pool_of(pool);
    for (int i = 0; retired != NULL && i < driver->device_count; i++) {
        if (defaults[i] == pool)
            retired = NULL;
        else if (current[i] == pool)
            current[i] = NULL;
    }
    if (retired != NULL)
        handle_delete(&handles, pool);
    pthread_mutex_unlock(&mutex);
    REQUIRE(retired != NULL, CUDA_ERROR_INVALID_VALUE);
    pool_retire(retired);
    return CUDA_SUCCESS;
}

/* ---- What a pool can be asked and told ---- */

#define REQUIRE_POOL(handle)                                                                                           \
    struct pool *pool;                                                                                                 \
    REQUIRE_INITIALISED();                                                                                             \
    pool = pool_of(handle);                                                                                            \
    REQUIRE(pool != NULL, CUDA_ERROR_INVALID_VALUE)

CUresult cuMemPoolTrimTo(CUmemoryPool hPool, size_t minBytesToKeep) {
    REQUIRE_POOL(hPool);
    pool_trim(pool, minBytesToKeep);
    return CUDA_SUCCESS;
}

static bool *flag_of(struct pool *pool, CUmemPool_attribute attribute) {
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        return &pool->follow_events;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        return &pool->opportunistic;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        return &pool->internal_dependencies;
    default:
        return NULL;
    }
}

static uint64_t *number_of(struct pool *pool, CUmemPool_attribute attribute) {
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        return &pool->threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        return &pool->reserved;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        return &pool->reserved_high;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        return &pool->used;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        return &pool->used_high;
    default:
        return NULL;
    }
}

/* The high marks can be set to 0 only, which is to say, to what is now. */
static CUresult set_number(struct pool *pool, CUmemPool_attribute attribute, uint64_t value) {
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->threshold = value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        REQUIRE(value == 0, CUDA_ERROR_INVALID_VALUE);
        pool->reserved_high = pool->reserved;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        REQUIRE(value == 0, CUDA_ERROR_INVALID_VALUE);
        pool->used_high = pool->used;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemPoolSetAttribute(CUmemoryPool hPool, CUmemPool_attribute attr, void *value) {
    CUresult ret = CUDA_SUCCESS;
    bool *flag;

    REQUIRE_POOL(hPool);
    REQUIRE(value != NULL, CUDA_ERROR_INVALID_VALUE);
    flag = flag_of(pool, attr);
    pool_lock();
    if (flag != NULL)
        *flag = *(int *)value != 0;
    else
        ret = set_number(pool, attr, *(cuuint64_t *)value);
    pool_unlock();
    return ret;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool hPool, CUmemPool_attribute attr, void *value) {
    uint64_t *number;
    bool *flag;

    REQUIRE_POOL(hPool);
    flag = flag_of(pool, attr);
    number = number_of(pool, attr);
    REQUIRE(value != NULL && (flag != NULL || number != NULL), CUDA_ERROR_INVALID_VALUE);
    pool_lock();
    if (flag != NULL)
        *(int *)value = *flag;
    else
        *(cuuint64_t *)value = *number;
    pool_unlock();
    return CUDA_SUCCESS;
}

static bool location_valid(const CUmemLocation *location) {
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE && device_valid(location->id);
}

/* A pool's own device keeps its access. */
static CUresult check_access(const struct pool *pool, const CUmemAccessDesc *desc) {
    REQUIRE(location_valid(&desc->location), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(desc->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(desc->location.id != pool->device || desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAccess(CUmemoryPool hPool, const CUmemAccessDesc *map, size_t count) {
    REQUIRE_POOL(hPool);
    REQUIRE(map != NULL || count == 0, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++)
        TRY(check_access(pool, &map[i]));
    pool_lock();
    for (size_t i = 0; i < count; i++)
        pool->access[map[i].location.id] = (uint8_t)map[i].flags;
    pool_unlock();
    return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool, CUmemLocation *location) {
    REQUIRE_POOL(memPool);
    REQUIRE(flags != NULL && location != NULL && location_valid(location), CUDA_ERROR_INVALID_VALUE);
    *flags = (CUmemAccess_flags)pool->access[location->id];
    return CUDA_SUCCESS;
}

/* ---- Allocating and freeing ---- */

/* From the pool, or from the current one of the stream's device. */
static CUresult allocate(CUdeviceptr *address, size_t size, CUmemoryPool hPool, bool named, CUstream hStream,
                         bool per_thread) {
    struct CUstream_st *stream;
    struct pool *pool;
    bool captured;

    REQUIRE_CONTEXT(context);
    REQUIRE(address != NULL && size != 0, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_find(context, hStream, per_thread, &stream));
    if (!named)
        TRY(current_pool(context->device, &hPool));
    pool = pool_of(hPool);
    REQUIRE(pool != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(capture_enter(stream, &captured));
    if (captured)
        return capture_alloc(stream, pool->device, size, address);
    return pool_alloc(pool, stream, size, address);
}

/* Memory that is no pool's goes when the stream has got there, which this call waits for: the record stays exact. */
static CUresult release(CUdeviceptr address, CUstream hStream, bool per_thread) {
    struct CUstream_st *stream;
    bool captured;

    REQUIRE_CONTEXT(context);
    TRY(stream_find(context, hStream, per_thread, &stream));
    REQUIRE(address != 0, CUDA_ERROR_INVALID_VALUE);
    TRY(capture_enter(stream, &captured));
    if (captured)
        return capture_free(stream, address);
    if (heap_range_owner(address, EXTENT_POOL) != NULL)
        return pool_free(address, stream);
    if (heap_range_owner(address, EXTENT_GRAPH) != NULL)
        return graph_memory_free(address);
    stream_wait(stream);
    return heap_free(address);
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {
    return allocate(dptr, bytesize, NULL, false, hStream, false);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream) {
    return allocate(dptr, bytesize, NULL, false, hStream, true);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream) {
    return allocate(dptr, bytesize, pool, true, hStream, false);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream) {
    return allocate(dptr, bytesize, pool, true, hStream, true);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
    return release(dptr, hStream, false);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream) {
    return release(dptr, hStream, true);
}
