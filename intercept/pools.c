#include "pools.h"

#include "chunks.h"
#include "cuda_real.h"
#include "exports.h"
#include "objects.h"
#include "tags.h"

#include <errno.h>
#include <sys/mman.h>

/* Pools grow by pieces of this size, or what is asked for if that is more. Were it more on some driver, settling sees it. */
#define GROWTH_BYTES (UINT64_C(32) << 20)

struct pool {
    struct pool *next;
    struct lock lock;    /* held while the driver is called */
    CUmemoryPool handle; /* NULL: the memory of graphs; or the pool was destroyed */
    CUdevice device;
    int gpu;
    bool graphs, destroyed;
    uint32_t allocations; /* live ones */
    uint32_t export;      /* the number that exported descriptors carry */
    struct chunks chunks;
    struct charge charge;
};

static struct pool *new_pool(struct process *process) {
    int error = errno;
    struct pool *pool = mmap(NULL, sizeof *pool, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = error;
    if (pool == MAP_FAILED)
        return NULL;
    pool->next = atomic_load(&process->pools.first);
    atomic_store(&process->pools.first, pool);
    return pool;
}

/* Under the pools' lock. One that was destroyed and is empty is used again. */
static struct pool *find(struct process *process, CUmemoryPool handle, CUdevice device, bool graphs) {
    struct pool *idle = NULL;
    for (struct pool *pool = atomic_load(&process->pools.first); pool != NULL; pool = pool->next) {
        if (pool->destroyed && pool->allocations == 0)
            idle = pool;
        else if (!pool->destroyed && pool->graphs == graphs &&
                 (graphs ? pool->device == device : pool->handle == handle))
            return pool;
    }
    if (idle != NULL)
        idle->destroyed = false;
    else
        idle = new_pool(process);
    return idle;
}

static struct pool *get(struct process *process, CUmemoryPool handle, CUdevice device, int gpu, bool graphs) {
    lock_take(&process->pools.lock);
    struct pool *pool = find(process, handle, device, graphs);
    if (pool != NULL) {
        pool->handle = handle;
        pool->device = device;
        pool->gpu = gpu;
        pool->graphs = graphs;
    }
    lock_give(&process->pools.lock);
    return pool;
}

struct pool *pools_memory(struct process *process, CUmemoryPool handle, CUdevice device, int gpu) {
    return get(process, handle, device, gpu, false);
}

struct pool *pools_graphs(struct process *process, CUdevice device, int gpu) {
    return get(process, NULL, device, gpu, true);
}

struct pool *pools_find(struct process *process, CUmemoryPool handle) {
    struct pool *pool = process == NULL ? NULL : atomic_load(&process->pools.first);
    while (pool != NULL && (pool->destroyed || pool->graphs || pool->handle != handle))
        pool = pool->next;
    return pool;
}

/* --- settling ------------------------------------------------------------------------------------------------------ */

/* What a pool was that is empty and destroyed. Under its lock; what it returns is to be ended after it. */
static struct entry take_rest(struct pool *pool) {
    struct entry rest = {.charge = pool->charge, .references = pool->export};
    pool->charge = (struct charge){0};
    pool->export = 0;
    pool->chunks.count = 0;
    return rest;
}

static void end_rest(struct process *process, const struct entry *rest) {
    if (rest->charge.pages != 0 || rest->charge.share != 0)
        exports_end(process, &rest->charge, rest->references);
}

static bool reserved_pages(const struct pool *pool, uint64_t *pages) {
    cuuint64_t bytes = 0;
    CUresult result =
        pool->graphs ? REAL(cuDeviceGetGraphMemAttribute)(pool->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes)
                     : REAL(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
    *pages = region_pages(bytes);
    return result == CUDA_SUCCESS;
}

/* Under the pool's lock. */
static void settle(struct process *process, struct pool *pool, struct charge *growth) {
    struct charge late;
    uint64_t reserved;
    if (pool->destroyed || !reserved_pages(pool, &reserved))
        reserved = pool->charge.pages;
    if (reserved > pool->charge.pages && growth != NULL) {
        uint64_t grown = reserved - pool->charge.pages;
        charge_move(process, growth, &pool->charge, grown < growth->pages ? grown : growth->pages);
    }
    /* More than was foreseen: the limit may be exceeded now, and nothing more is granted until that is over. */
    if (reserved > pool->charge.pages && (pool->charge.pages != 0 || pool->charge.share != 0))
        charge_grow(process, &pool->charge, reserved - pool->charge.pages);
    else if (reserved > pool->charge.pages && charge_try(process, pool->gpu, reserved, &late) == CUDA_SUCCESS)
        pool->charge = late;
    if (reserved < pool->charge.pages)
        charge_give_part(process, &pool->charge, pool->charge.pages - reserved);
}

void pools_settle(struct process *process) {
    for (struct pool *pool = process == NULL ? NULL : atomic_load(&process->pools.first); pool != NULL;
         pool = pool->next) {
        lock_take(&pool->lock);
        settle(process, pool, NULL);
        lock_give(&pool->lock);
    }
}

/* --- waiting ------------------------------------------------------------------------------------------------------- */

void pools_freed_in(struct process *process, CUstream stream) {
    struct pools *pools = &process->pools;
    lock_take(&pools->lock);
    unsigned known = pools->freed_count < STREAMS_MAX ? pools->freed_count : STREAMS_MAX, i = 0;
    while (i < known && pools->freed_in[i] != stream)
        i++;
    if (i == known)
        pools->freed_in[pools->freed_count++ % STREAMS_MAX] = stream;
    lock_give(&pools->lock);
}

void pools_stream_gone(struct process *process, CUstream stream) {
    struct pools *pools = &process->pools;
    if (atomic_load(&pools->first) == NULL)
        return;
    lock_take(&pools->lock);
    unsigned known = pools->freed_count < STREAMS_MAX ? pools->freed_count : STREAMS_MAX;
    for (unsigned i = 0; i < known; i++)
        if (pools->freed_in[i] == stream)
            pools->freed_in[i] = NULL; /* the default stream, which is always there */
    lock_give(&pools->lock);
}

void pools_wait(struct process *process) {
    struct pools *pools = &process->pools;
    CUstream streams[STREAMS_MAX];
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    lock_take(&pools->lock);
    unsigned known = pools->freed_count < STREAMS_MAX ? pools->freed_count : STREAMS_MAX;
    for (unsigned i = 0; i < known; i++)
        streams[i] = pools->freed_in[i];
    lock_give(&pools->lock);
    if (known == 0 || REAL(cuThreadExchangeStreamCaptureMode)(&mode) != CUDA_SUCCESS)
        return;
    for (unsigned i = 0; i < known; i++) {
        CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
        if (REAL(cuStreamIsCapturing)(streams[i], &capturing) == CUDA_SUCCESS &&
            capturing == CU_STREAM_CAPTURE_STATUS_NONE)
            REAL(cuStreamSynchronize)(streams[i]);
    }
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    pools_settle(process);
}

bool pools_trim(struct process *process, int gpu, enum pools_effort effort) {
    bool any = exports_settle(process), waited = false;
    for (struct pool *pool = atomic_load(&process->pools.first); pool != NULL; pool = pool->next) {
        if (pool->gpu != gpu || pool->destroyed)
            continue;
        if (effort == POOLS_AFTER_WAITING && !waited)
            pools_wait(process);
        any = waited = true;
        lock_take(&pool->lock);
        if (pool->graphs)
            REAL(cuDeviceGraphMemTrim)(pool->device);
        else if (!pool->destroyed)
            REAL(cuMemPoolTrimTo)(pool->handle, 0);
        settle(process, pool, NULL);
        lock_give(&pool->lock);
    }
    return any;
}

/* --- growing ------------------------------------------------------------------------------------------------------- */

CUresult pools_before(struct process *process, struct pool *pool, uint64_t bytes, bool patience,
                      struct charge *growth) {
    uint64_t pieces = bytes / GROWTH_BYTES + (bytes % GROWTH_BYTES != 0);
    uint64_t pages = (pieces ? pieces : 1) * (GROWTH_BYTES >> REGION_PAGE_SHIFT);
    lock_take(&pool->lock);
    struct charge like = pool->charge;
    lock_give(&pool->lock);
    bool placed = like.pages != 0 || like.share != 0;
    if (!patience)
        return placed ? charge_try_like(process, &like, pages, growth) : charge_try(process, pool->gpu, pages, growth);
    return placed ? charge_take_like(process, &like, pages, growth) : charge_take(process, pool->gpu, pages, growth);
}

void pools_enter(struct pool *pool) {
    lock_take(&pool->lock);
}

void pools_leave(struct process *process, struct pool *pool, struct charge *growth, CUdeviceptr fresh) {
    uint32_t before = pool->charge.pages;
    settle(process, pool, growth);
    if (fresh != 0 && pool->charge.pages > before)
        chunks_add(&pool->chunks, fresh, pages_to_bytes(pool->charge.pages - before));
    lock_give(&pool->lock);
    charge_give(process, growth);
}

bool pools_is_covered(struct process *process, struct pool *pool) {
    uint64_t reserved;
    (void)process;
    lock_take(&pool->lock);
    bool covered = !reserved_pages(pool, &reserved) || reserved <= pool->charge.pages;
    lock_give(&pool->lock);
    return covered;
}

bool pools_enter_for_room(struct process *process, struct pool *pool, uint64_t bytes) {
    lock_take(&pool->lock);
    if (chunks_have_room(&pool->chunks, process, pool, pages_to_bytes(pool->charge.pages), bytes))
        return true;
    lock_give(&pool->lock);
    return false;
}

/* --- what is in them ----------------------------------------------------------------------------------------------- */

void pools_allocated(struct process *process, struct pool *pool, CUdeviceptr address, uint64_t bytes) {
    lock_take(&pool->lock);
    pool->allocations++;
    lock_give(&pool->lock);
    objects_put(process, KIND_POOL_MEMORY,
                (struct entry){.key = address, .with = (uintptr_t)pool, .references = chunks_units(bytes)});
}

void pools_freed(struct process *process, CUdeviceptr address, CUstream stream) {
    struct entry memory;
    if (!objects_remove(process, KIND_POOL_MEMORY, address, &memory))
        return;
    struct pool *pool = (struct pool *)(uintptr_t)memory.with; /* NOLINT(performance-no-int-to-ptr) */
    struct entry rest = {0};
    pools_freed_in(process, stream);
    if (pool->destroyed && pool->allocations == 1)
        pools_wait(process); /* its memory goes when the streams have come to the frees */
    lock_take(&pool->lock);
    if (--pool->allocations == 0 && pool->destroyed)
        rest = take_rest(pool);
    lock_give(&pool->lock);
    end_rest(process, &rest);
}

void pools_destroyed(struct process *process, struct pool *pool) {
    struct entry rest = {0};
    lock_take(&pool->lock);
    pool->destroyed = true;
    pool->handle = NULL;
    if (pool->allocations == 0) {
        rest = take_rest(pool);
    }
    lock_give(&pool->lock);
    end_rest(process, &rest);
}

uint32_t pools_share(struct process *process, struct pool *pool) {
    uint8_t tag[TAG_SIZE];
    uint32_t number;
    lock_take(&pool->lock);
    if (pool->charge.share == 0) {
        pool->charge.gpu = (uint8_t)(pool->gpu & 0x7f);
        if (pool->charge.pages == 0) /* it lies nowhere yet: then where the GPU's first claim is */
            pool->charge.region = (uint8_t)(pool->gpu & 0x7f);
        tag_new(process, tag, &number);
        pool->export = charge_share(process, &pool->charge, tag) ? number : 0;
    }
    number = pool->export;
    lock_give(&pool->lock);
    return number;
}
