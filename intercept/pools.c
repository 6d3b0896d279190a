#include "pools.h"

#include "chunks.h"
#include "cuda_real.h"
#include "exports.h"
#include "mapped.h"
#include "objects.h"
#include "streams.h"
#include "tags.h"

/* Pools grow by pieces of this size, or what is asked for if that is more. Were it more on some driver, settling sees it. */
#define GROWTH_BYTES (UINT64_C(32) << 20)

struct pool {
    struct pool *next;
    struct lock lock;    /* held while the driver is called */
    CUmemoryPool handle; /* NULL: the memory of graphs; or the pool was destroyed */
    CUdevice device;
    int gpu;
    bool graphs;
    _Atomic bool destroyed;
    _Atomic bool going;           /* the driver is asked to destroy it, and may give its handle out again */
    bool placed;                  /* its memory lies in the region of its charge */
    _Atomic uint32_t allocations; /* live ones */
    uint32_t export;              /* the number that exported descriptors carry */
    struct chunks chunks;
    struct charge charge;
};

static struct pool *new_pool(struct process *process) {
    struct pool *pool = mapped_new(sizeof *pool);
    if (pool == NULL)
        return NULL;
    pool->next = atomic_load(&process->pools.first);
    atomic_store(&process->pools.first, pool);
    return pool;
}

/* Under the pools' lock. One that was destroyed and is empty is used again. */
static struct pool *find(struct process *process, CUmemoryPool handle, CUdevice device, bool graphs) {
    struct pool *idle = NULL;
    for (struct pool *pool = atomic_load(&process->pools.first); pool != NULL; pool = pool->next) {
        if (pool->destroyed && pool->allocations == 0 && pool->charge.pages == 0 && pool->charge.share == 0)
            idle = pool;
        else if (!pool->destroyed && !pool->going && pool->graphs == graphs &&
                 (graphs ? pool->device == device : pool->handle == handle))
            return pool;
    }
    if (idle != NULL) {
        idle->destroyed = idle->placed = false;
        idle->export = 0;
        idle->chunks.count = 0;
    } else {
        idle = new_pool(process);
    }
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
    while (pool != NULL && (pool->destroyed || pool->going || pool->graphs || pool->handle != handle))
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
    if (pool->destroyed || pool->going || !reserved_pages(pool, &reserved))
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

/* A pool that was destroyed cannot be asked: it is gone when its last memory was freed and the streams have come to that. */
static bool is_going(const struct pool *pool) {
    return pool->destroyed && pool->allocations == 0 && (pool->charge.pages != 0 || pool->charge.share != 0);
}

static void end_if_gone(struct process *process, struct pool *pool) {
    struct entry rest = {0};
    lock_take(&pool->lock);
    if (is_going(pool) && streams_are_idle(process))
        rest = take_rest(pool);
    lock_give(&pool->lock);
    end_rest(process, &rest);
}

/* Asking the streams may make pools smaller, so that comes first. */
void pools_settle(struct process *process) {
    struct pool *first = process == NULL ? NULL : atomic_load(&process->pools.first);
    for (struct pool *pool = first; pool != NULL; pool = pool->next)
        end_if_gone(process, pool);
    for (struct pool *pool = first; pool != NULL; pool = pool->next) {
        lock_take(&pool->lock);
        settle(process, pool, NULL);
        lock_give(&pool->lock);
    }
}

static void trim(struct pool *pool) {
    lock_take(&pool->lock);
    if (pool->graphs)
        REAL(cuDeviceGraphMemTrim)(pool->device);
    else if (!pool->destroyed && !pool->going)
        REAL(cuMemPoolTrimTo)(pool->handle, 0);
    lock_give(&pool->lock);
}

static bool may_shrink(struct pool *pool, int gpu) {
    lock_take(&pool->lock);
    bool may = pool->gpu == gpu && (!pool->destroyed || is_going(pool));
    lock_give(&pool->lock);
    return may;
}

bool pools_trim(struct process *process, int gpu, enum pools_effort effort) {
    bool any = false, exported = exports_settle(process);
    for (struct pool *pool = atomic_load(&process->pools.first); pool != NULL; pool = pool->next) {
        if (!may_shrink(pool, gpu))
            continue;
        if (effort == POOLS_AFTER_WAITING && !any)
            streams_wait(process);
        any = true;
        trim(pool);
    }
    if (any)
        pools_settle(process);
    return any || exported;
}

/* --- growing ------------------------------------------------------------------------------------------------------- */

static uint64_t pages_to_grow(uint64_t bytes) {
    uint64_t pieces = bytes / GROWTH_BYTES + (bytes % GROWTH_BYTES != 0);
    return (pieces ? pieces : 1) * (GROWTH_BYTES >> REGION_PAGE_SHIFT);
}

/* A pool's memory lies in one region: that where it grew first. Under its lock. */
static bool is_placed(const struct pool *pool) {
    return pool->placed || pool->charge.pages != 0 || pool->charge.share != 0;
}

static void place(struct pool *pool, const struct charge *growth) {
    pool->charge = (struct charge){.region = growth->region, .gpu = growth->gpu};
    pool->placed = true;
}

CUresult pools_try(struct process *process, struct pool *pool, uint64_t bytes, struct charge *growth) {
    uint64_t pages = pages_to_grow(bytes);
    lock_take(&pool->lock);
    bool placed = is_placed(pool);
    CUresult result =
        placed ? charge_try_like(process, &pool->charge, pages, growth) : charge_try(process, pool->gpu, pages, growth);
    if (result == CUDA_SUCCESS && !placed)
        place(pool, growth);
    if (result != CUDA_SUCCESS)
        lock_give(&pool->lock);
    return result;
}

CUresult pools_before(struct process *process, struct pool *pool, uint64_t bytes, struct charge *growth) {
    uint64_t pages = pages_to_grow(bytes);
    lock_take(&pool->lock);
    struct charge like = pool->charge;
    bool placed = is_placed(pool);
    lock_give(&pool->lock);
    /* Not under the lock: this may make this very pool smaller. */
    CUresult result =
        placed ? charge_take_like(process, &like, pages, growth) : charge_take(process, pool->gpu, pages, growth);
    if (result != CUDA_SUCCESS || placed)
        return result;
    lock_take(&pool->lock);
    if (!is_placed(pool))
        place(pool, growth);
    like = pool->charge;
    lock_give(&pool->lock);
    if (like.region == growth->region)
        return CUDA_SUCCESS;
    charge_give(process, growth); /* another thread has placed it elsewhere meanwhile */
    return charge_take_like(process, &like, pages, growth);
}

void pools_enter(struct pool *pool) {
    lock_take(&pool->lock);
}

void pools_leave(struct process *process, struct pool *pool, struct charge *growth, struct allocated allocated) {
    uint32_t before = pool->charge.pages;
    settle(process, pool, growth);
    if (allocated.address != 0 && pool->charge.pages > before)
        chunks_add(&pool->chunks, allocated.address, pages_to_bytes(pool->charge.pages - before));
    if (allocated.address != 0 && !allocated.of_graph) {
        atomic_fetch_add(&pool->allocations, 1);
        objects_put(process, KIND_POOL_MEMORY,
                    (struct entry){.key = allocated.address,
                                   .with = (uintptr_t)pool,
                                   .references = chunks_units(allocated.bytes)});
    }
    lock_give(&pool->lock);
    charge_give(process, growth);
}

bool pools_is_covered(struct pool *pool) {
    uint64_t reserved;
    lock_take(&pool->lock);
    bool covered = !reserved_pages(pool, &reserved) || reserved <= pool->charge.pages;
    lock_give(&pool->lock);
    return covered;
}

/* Memory that was freed in one stream is to be had in all of them only if the pool is left as the driver makes it. */
static bool is_shared_by_streams(const struct pool *pool) {
    int allowed = 0;
    return REAL(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &allowed) ==
               CUDA_SUCCESS &&
           allowed != 0;
}

/* First what is free, then whether the streams have come to that: a free is written down with the streams before it is taken
 * out of what lives. */
static bool has_room(struct process *process, struct pool *pool, uint64_t bytes) {
    return !pool->destroyed && !pool->going && is_shared_by_streams(pool) &&
           chunks_have_room(&pool->chunks, process, pool, pages_to_bytes(pool->charge.pages), bytes) &&
           streams_are_idle(process);
}

bool pools_enter_for_room(struct process *process, struct pool *pool, uint64_t bytes) {
    lock_take(&pool->lock);
    if (has_room(process, pool, bytes))
        return true;
    lock_give(&pool->lock);
    return false;
}

/* --- what is in them ----------------------------------------------------------------------------------------------- */

static struct pool *pool_of(const struct entry *memory) {
    return (struct pool *)(uintptr_t)(memory->with & ~POOLS_FREEING); /* NOLINT(performance-no-int-to-ptr) */
}

/* What is being freed goes with its pool and a number: whoever allocates at the same address meanwhile puts another entry there. */
bool pools_freeing(struct process *process, CUdeviceptr address, struct entry *memory) {
    static _Atomic uint64_t frees;
    if (!objects_any(process, KIND_POOL_MEMORY))
        return false;
    uint64_t number = atomic_fetch_add_explicit(&frees, 1, memory_order_relaxed);
    return objects_flag(process, KIND_POOL_MEMORY, address, POOLS_FREEING, (number * 2 | 1) & POOLS_FREEING, memory);
}

void pools_freed(struct process *process, const struct entry *memory, CUstream stream, CUresult result) {
    struct pool *pool = pool_of(memory);
    if (result != CUDA_SUCCESS) {
        objects_unflag(process, KIND_POOL_MEMORY, memory->key, memory->with, POOLS_FREEING);
        return;
    }
    streams_freed_in(process, stream);
    objects_remove_with(process, KIND_POOL_MEMORY, memory->key, memory->with);
    if (atomic_fetch_sub(&pool->allocations, 1) == 1 && pool->destroyed)
        pools_settle(process);
}

/* Where nothing is in use, whatever is still written down ended in another way than by being freed. */
static void forget_if_cleared(struct process *process, struct pool *pool) {
    cuuint64_t used = 0;
    lock_take(&pool->lock);
    if (!pool->graphs && !pool->destroyed && !pool->going && atomic_load(&pool->allocations) != 0 &&
        REAL(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) == CUDA_SUCCESS && used == 0)
        atomic_fetch_sub(&pool->allocations,
                         (uint32_t)objects_remove_all_with(process, KIND_POOL_MEMORY, (uintptr_t)pool));
    lock_give(&pool->lock);
}

void pools_primary_gone(struct process *process) {
    for (struct pool *pool = atomic_load(&process->pools.first); pool != NULL; pool = pool->next)
        forget_if_cleared(process, pool);
    pools_settle(process);
}

void pools_address_taken(struct process *process, CUdeviceptr address) {
    struct entry memory;
    if (objects_remove(process, KIND_POOL_MEMORY, address, &memory) && (memory.with & POOLS_FREEING) == 0)
        atomic_fetch_sub(&pool_of(&memory)->allocations, 1);
}

bool pools_destroying(struct pool *pool) {
    lock_take(&pool->lock);
    bool first = !atomic_exchange(&pool->going, true);
    lock_give(&pool->lock);
    return first;
}

void pools_destroyed(struct process *process, struct pool *pool, CUresult result) {
    lock_take(&pool->lock);
    if (result == CUDA_SUCCESS) {
        pool->destroyed = true;
        pool->handle = NULL;
    }
    atomic_store(&pool->going, false);
    lock_give(&pool->lock);
    if (result == CUDA_SUCCESS)
        pools_settle(process);
}

uint32_t pools_share(struct process *process, struct pool *pool) {
    lock_take(&pool->lock);
    if (pool->charge.share == 0) {
        pool->charge.gpu = (uint8_t)(pool->gpu & 0x7f);
        if (pool->charge.pages == 0) /* it lies nowhere yet: then where the GPU's first claim is */
            pool->charge.region = (uint8_t)(pool->gpu & 0x7f);
        pool->export = exports_share(process, &pool->charge);
    }
    uint32_t number = pool->export;
    lock_give(&pool->lock);
    return number;
}
