#include "memory/pools.h"

#include "driver/cuda_real.h"
#include "memory/objects.h"
#include "memory/streams.h"
#include "system/mapped.h"

#define GROWTH_PAGES (POOLS_GROWTH_BYTES >> REGION_PAGE_SHIFT)

struct pool {
    struct pool *next;
    struct lock lock;    /* held while the driver is called */
    CUmemoryPool handle; /* NULL: the memory of graphs, or a destroyed pool */
    CUdevice device;
    int gpu;
    bool graphs;
    _Atomic bool destroyed;
    _Atomic bool destroying;      /* the driver is destroying it, and may reuse its handle */
    bool placed;                  /* the region of its charge is final */
    _Atomic uint32_t allocations; /* that exist */
    struct charge charge;         /* what the driver has reserved */
    struct charge headroom;       /* taken for growth; in this process's own slot, even if the pool is a share */
    /* Of the memory of graphs: */
    struct charge growth; /* taken for launches that are being made */
    uint64_t launching;   /* pages that these need at most */
    uint64_t left;        /* pages that earlier launches may have left allocated */
};

/* Under the pools' lock. A destroyed and empty record is used again. */
static struct pool *find(struct process *process, CUmemoryPool handle, CUdevice device, bool graphs) {
    struct pool *idle = NULL;
    for (struct pool *pool = atomic_load(&process->pools.first); pool != NULL; pool = pool->next) {
        if (pool->destroyed && pool->allocations == 0 && pool->charge.pages == 0 && pool->charge.share == 0)
            idle = pool;
        else if (!pool->destroyed && !pool->destroying && pool->graphs == graphs &&
                 (graphs ? pool->device == device : pool->handle == handle))
            return pool;
    }
    if (idle != NULL) {
        idle->destroyed = idle->placed = false;
    } else if ((idle = mapped_new(sizeof *idle)) != NULL) {
        idle->next = atomic_load(&process->pools.first);
        atomic_store(&process->pools.first, idle);
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

int pools_gpu(const struct pool *pool) {
    return pool->gpu;
}

struct pool *pools_find(struct process *process, CUmemoryPool handle) {
    struct pool *pool = process == NULL ? NULL : atomic_load(&process->pools.first);
    while (pool != NULL && (pool->destroyed || pool->destroying || pool->graphs || pool->handle != handle))
        pool = pool->next;
    return pool;
}

/* --- taking ------------------------------------------------------------------------------------------------------- */

/* Repeats an attempt that was refused for want of memory, after this process's pools gave back what they do not use. */
#define TRIMMING(process, gpu, result, attempt)                                                                        \
    for (enum pools_effort effort = POOLS_WHAT_IS_FREE;                                                                \
         (result) == CUDA_ERROR_OUT_OF_MEMORY && effort < POOLS_EFFORTS; effort++)                                     \
        if (pools_trim(process, gpu, effort))                                                                          \
    (result) = (attempt)

CUresult pools_take(struct process *process, int gpu, uint64_t pages, struct charge *charge) {
    CUresult result = charge_try(process, gpu, pages, charge);
    TRIMMING(process, gpu, result, charge_try(process, gpu, pages, charge));
    return result;
}

CUresult pools_take_like(struct process *process, const struct charge *other, uint64_t pages, struct charge *charge) {
    CUresult result = charge_try_like(process, other, pages, charge);
    TRIMMING(process, other->gpu, result, charge_try_like(process, other, pages, charge));
    return result;
}

CUresult pools_extend(struct process *process, struct charge *charge, int gpu, uint64_t pages) {
    struct charge more;
    CUresult result =
        charge->pages != 0 ? pools_take_like(process, charge, pages, &more) : pools_take(process, gpu, pages, &more);
    if (result == CUDA_SUCCESS)
        charge_move(process, &more, charge, pages);
    return result;
}

/* --- settling ----------------------------------------------------------------------------------------------------- */

static bool reserved_pages(const struct pool *pool, uint64_t *pages) {
    cuuint64_t bytes = 0;
    CUresult result =
        pool->graphs ? REAL(cuDeviceGetGraphMemAttribute)(pool->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes)
                     : REAL(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
    *pages = region_pages(bytes);
    return result == CUDA_SUCCESS;
}

/* Under the pool's lock. */
static void move_grown(struct process *process, struct pool *pool, struct charge *from, uint64_t reserved) {
    uint64_t grown = reserved > pool->charge.pages ? reserved - pool->charge.pages : 0;
    if (grown != 0 && from->pages != 0)
        charge_move(process, from, &pool->charge, grown < from->pages ? grown : from->pages);
}

/* Under the pool's lock: charges what the driver has reserved, first from what was taken for growth. What graphs that are
 * being launched rely on stays charged, even if it was trimmed meanwhile. */
static void settle(struct process *process, struct pool *pool) {
    struct charge late;
    uint64_t reserved = pool->charge.pages, needed = pool->launching != 0 ? pool->launching + pool->left : 0;
    if (!pool->destroyed && !pool->destroying &&
        !reserved_pages(pool, &reserved)) /* unknown: assume all that was taken */
        reserved = pool->charge.pages + pool->headroom.pages + pool->growth.pages;
    move_grown(process, pool, &pool->headroom, reserved);
    move_grown(process, pool, &pool->growth, reserved);
    /* More than was taken: the limit may be exceeded, and nothing is granted until it no longer is. */
    if (reserved > pool->charge.pages && (pool->charge.pages != 0 || pool->charge.share != 0))
        charge_grow(process, &pool->charge, reserved - pool->charge.pages);
    else if (reserved > pool->charge.pages && charge_try(process, pool->gpu, reserved, &late) == CUDA_SUCCESS)
        pool->charge = late;
    reserved = reserved > needed ? reserved : needed;
    if (reserved < pool->charge.pages)
        charge_give_part(process, &pool->charge, pool->charge.pages - reserved);
}

/* --- headroom ----------------------------------------------------------------------------------------------------- */

/*
 * The driver does not report whether an allocation will fit into a pool or make it grow. So a pool is used only while
 * the most that it may grow by, its headroom, is taken. A pool that holds memory keeps one piece of headroom between
 * calls, until it is settled; so most calls take nothing. If the claim is nearly full, it keeps the piece then, too, and
 * may not grow by it: otherwise memory that is freed in a full pool could not be allocated again.
 */

/* Under the pool's lock. */
static void give_headroom(struct process *process, struct pool *pool, uint64_t keep) {
    if (pool->headroom.pages > keep)
        charge_give_part(process, &pool->headroom, pool->headroom.pages - keep);
}

/* Under the pool's lock, after a call. */
static void keep_headroom(struct process *process, struct pool *pool) {
    bool keeps = pool->charge.pages != 0 && !pool->destroyed && !pool->destroying;
    give_headroom(process, pool, keeps ? GROWTH_PAGES : 0);
}

/* Under the pool's lock. */
static void settle_headroom(struct process *process, struct pool *pool) {
    if (pool->headroom.pages == 0)
        return;
    keep_headroom(process, pool);
    if (charge_left(process, &pool->headroom) + pool->headroom.pages >= 2 * GROWTH_PAGES)
        give_headroom(process, pool, 0);
}

/* The driver does not report a destroyed pool's size: it is gone when its last allocation was freed and the streams
 * have executed that. */
static bool is_ending(const struct pool *pool) {
    return pool->destroyed && pool->allocations == 0 && (pool->charge.pages != 0 || pool->charge.share != 0);
}

static void end_if_released(struct process *process, struct pool *pool) {
    struct charge rest = {0};
    if (!atomic_load(&pool->destroyed))
        return;
    lock_take(&pool->lock);
    if (is_ending(pool) && streams_are_idle(process)) {
        rest = pool->charge;
        pool->charge = (struct charge){0};
    }
    lock_give(&pool->lock);
    if (rest.pages != 0 || rest.share != 0)
        charge_end(process, &rest);
}

/* Querying the streams may shrink pools, so it comes first. */
void pools_settle(struct process *process) {
    if (process == NULL)
        return;
    streams_settle(process);
    struct pool *first = atomic_load(&process->pools.first);
    for (struct pool *pool = first; pool != NULL; pool = pool->next)
        end_if_released(process, pool);
    for (struct pool *pool = first; pool != NULL; pool = pool->next) {
        lock_take(&pool->lock);
        settle(process, pool);
        settle_headroom(process, pool);
        lock_give(&pool->lock);
    }
}

static void trim(struct process *process, struct pool *pool) {
    lock_take(&pool->lock);
    give_headroom(process, pool, 0);
    if (pool->graphs)
        REAL(cuDeviceGraphMemTrim)(pool->device);
    else if (!pool->destroyed && !pool->destroying)
        REAL(cuMemPoolTrimTo)(pool->handle, 0);
    lock_give(&pool->lock);
}

static bool may_shrink(struct pool *pool, int gpu) {
    lock_take(&pool->lock);
    bool may = pool->gpu == gpu && (!pool->destroyed || is_ending(pool));
    lock_give(&pool->lock);
    return may;
}

bool pools_trim(struct process *process, int gpu, enum pools_effort effort) {
    bool any = atomic_load(&process->streams.waiting) != 0;
    struct pool *first = atomic_load(&process->pools.first);
    for (struct pool *pool = first; pool != NULL && !any; pool = pool->next)
        any = may_shrink(pool, gpu);
    if (!any)
        return false;
    if (effort == POOLS_AFTER_WAITING)
        streams_wait(process);
    for (struct pool *pool = first; pool != NULL; pool = pool->next)
        if (may_shrink(pool, gpu))
            trim(process, pool);
    pools_settle(process);
    return true;
}

/* --- growing ------------------------------------------------------------------------------------------------------ */

static uint64_t pages_to_grow(uint64_t bytes) {
    uint64_t pieces = bytes / POOLS_GROWTH_BYTES + (bytes % POOLS_GROWTH_BYTES != 0);
    return (pieces ? pieces : 1) * GROWTH_PAGES;
}

/* A pool is charged in one region, where it grew first. Under its lock. */
static bool is_placed(const struct pool *pool) {
    return pool->placed || pool->charge.pages != 0 || pool->charge.share != 0;
}

static void place(struct pool *pool, const struct charge *growth) {
    pool->charge = (struct charge){.region = growth->region, .gpu = growth->gpu};
    pool->placed = true;
}

/* Under the pool's lock: takes what is missing of this headroom. */
static CUresult widen(struct process *process, struct pool *pool, uint64_t pages) {
    struct charge more;
    uint64_t missing = pages > pool->headroom.pages ? pages - pool->headroom.pages : 0;
    if (missing == 0)
        return CUDA_SUCCESS;
    bool placed = is_placed(pool);
    CUresult result = placed ? charge_try_like(process, &pool->charge, missing, &more)
                             : charge_try(process, pool->gpu, missing, &more);
    if (result != CUDA_SUCCESS)
        return result;
    if (!placed)
        place(pool, &more);
    more.pages += pool->headroom.pages;
    pool->headroom = more;
    return CUDA_SUCCESS;
}

static CUresult enter(struct process *process, struct pool *pool, uint64_t pages) {
    lock_take(&pool->lock);
    CUresult result = widen(process, pool, pages);
    if (result != CUDA_SUCCESS)
        lock_give(&pool->lock);
    return result;
}

CUresult pools_try(struct process *process, struct pool *pool, uint64_t bytes) {
    return enter(process, pool, pages_to_grow(bytes));
}

CUresult pools_enter(struct process *process, struct pool *pool, uint64_t bytes) {
    CUresult result = pools_try(process, pool, bytes);
    TRIMMING(process, pool->gpu, result, pools_try(process, pool, bytes));
    return result;
}

/* After a pool grew: whether it has, or gets, the headroom to reuse what is freed in it. */
static bool has_headroom(struct process *process, struct pool *pool) {
    CUresult result = enter(process, pool, GROWTH_PAGES);
    TRIMMING(process, pool->gpu, result, enter(process, pool, GROWTH_PAGES));
    if (result != CUDA_SUCCESS)
        return false;
    keep_headroom(process, pool);
    lock_give(&pool->lock);
    return true;
}

bool pools_leave(struct process *process, struct pool *pool, struct allocated allocated) {
    uint32_t before = pool->charge.pages;
    settle(process, pool);
    bool grew = pool->charge.pages > before;
    if (allocated.address != 0 && !allocated.of_graph) {
        atomic_fetch_add(&pool->allocations, 1);
        objects_put(process, KIND_POOL_MEMORY,
                    (struct entry){.key = allocated.address, .with = (uintptr_t)pool, .references = OBJECTS_PART});
    }
    if (!grew)
        keep_headroom(process, pool);
    lock_give(&pool->lock);
    return !grew || has_headroom(process, pool);
}

/* --- graphs ------------------------------------------------------------------------------------------------------- */

/*
 * The driver reserves memory for all graphs of a device together. The work of one launch comes after that of another, so
 * a launch takes what is missing of its most and of what earlier launches have left allocated; several that are made at
 * once, in an order that is not known, what is missing of the sum.
 */

/* Under the pool's lock: what other graphs may have left allocated; the driver knows at most how much that is. */
static uint64_t left_by_others(const struct pool *pool, uint64_t own) {
    uint64_t left = pool->left - own;
    cuuint64_t used = 0;
    if (left == 0 ||
        REAL(cuDeviceGetGraphMemAttribute)(pool->device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used) != CUDA_SUCCESS)
        return left;
    return region_pages(used) < left ? region_pages(used) : left;
}

/* Under the pool's lock: takes pages for growth, in whole pieces, by which a driver may reserve, if there is room. */
static CUresult grow(struct process *process, struct pool *pool, uint64_t missing) {
    struct charge more = {0};
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    bool placed = is_placed(pool);
    for (uint64_t pages = pages_to_grow(missing << REGION_PAGE_SHIFT);; pages = missing) {
        result = placed ? charge_try_like(process, &pool->charge, pages, &more)
                        : charge_try(process, pool->gpu, pages, &more);
        if (result != CUDA_ERROR_OUT_OF_MEMORY || pages == missing)
            break;
    }
    if (result != CUDA_SUCCESS)
        return result;
    if (!placed)
        place(pool, &more);
    more.pages += pool->growth.pages;
    pool->growth = more;
    return CUDA_SUCCESS;
}

/* Takes what is missing for a launch and for those that are being made, and adds it to these. */
static CUresult try_launch(struct process *process, struct pool *pool, const struct graph_need *need, bool runs) {
    CUresult result = CUDA_SUCCESS;
    lock_take(&pool->lock);
    /* What a graph has left is freed before it is launched again. */
    uint64_t own = runs && need->counted ? need->left : 0;
    uint64_t have = pool->charge.pages + pool->growth.pages, needed = pool->launching + need->most;
    if (needed + pool->left > have)
        needed += left_by_others(pool, own);
    if (needed > have)
        result = grow(process, pool, needed - have);
    if (result == CUDA_SUCCESS)
        pool->launching += need->most;
    lock_give(&pool->lock);
    return result;
}

CUresult pools_graphs_before(struct process *process, struct pool *pool, const struct graph_need *need, bool runs) {
    CUresult result = try_launch(process, pool, need, runs);
    TRIMMING(process, pool->gpu, result, try_launch(process, pool, need, runs));
    return result;
}

void pools_graphs_after(struct process *process, struct pool *pool, struct graph_need *need, bool launched) {
    lock_take(&pool->lock);
    pool->launching -= need->most;
    if (launched && !need->counted) {
        need->counted = true;
        pool->left += need->left;
    }
    settle(process, pool);
    uint64_t needed = pool->launching != 0 ? pool->launching + pool->left : 0;
    uint64_t keep = needed > pool->charge.pages ? needed - pool->charge.pages : 0;
    if (pool->growth.pages > keep)
        charge_give_part(process, &pool->growth, pool->growth.pages - keep);
    lock_give(&pool->lock);
}

/* --- allocations in pools ----------------------------------------------------------------------------------------- */

struct pool *pools_of(const struct entry *memory) {
    return (struct pool *)(uintptr_t)memory->with; /* NOLINT(performance-no-int-to-ptr) */
}

/* Removed first, since the driver may return the address for another allocation at once. */
bool pools_freeing(struct process *process, CUdeviceptr address, struct entry *memory) {
    return process != NULL && objects_remove(process, KIND_POOL_MEMORY, address, memory);
}

void pools_freed(struct process *process, const struct entry *memory, CUcontext context, CUstream stream,
                 CUresult result) {
    struct pool *pool = pools_of(memory);
    if (result != CUDA_SUCCESS) {
        objects_put(process, KIND_POOL_MEMORY, *memory);
        return;
    }
    streams_freed_in(process, context, stream);
    if (atomic_fetch_sub(&pool->allocations, 1) == 1 && pool->destroyed)
        pools_settle(process);
}

/* If the driver reports nothing in use, the allocations that are still recorded ended without being freed. */
static void remove_if_cleared(struct process *process, struct pool *pool) {
    cuuint64_t used = 0;
    struct entry memory;
    lock_take(&pool->lock);
    if (!pool->graphs && !pool->destroyed && !pool->destroying && atomic_load(&pool->allocations) != 0 &&
        REAL(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) == CUDA_SUCCESS && used == 0)
        while (objects_remove_part(process, KIND_POOL_MEMORY, (uintptr_t)pool, &memory))
            atomic_fetch_sub(&pool->allocations, 1);
    lock_give(&pool->lock);
}

void pools_primary_ended(struct process *process) {
    for (struct pool *pool = atomic_load(&process->pools.first); pool != NULL; pool = pool->next)
        remove_if_cleared(process, pool);
    pools_settle(process);
}

void pools_address_taken(struct process *process, CUdeviceptr address) {
    struct entry memory;
    if (objects_remove(process, KIND_POOL_MEMORY, address, &memory))
        atomic_fetch_sub(&pools_of(&memory)->allocations, 1);
}

bool pools_destroying(struct process *process, struct pool *pool) {
    lock_take(&pool->lock);
    bool first = !atomic_exchange(&pool->destroying, true);
    give_headroom(process, pool, 0);
    lock_give(&pool->lock);
    return first;
}

void pools_destroyed(struct process *process, struct pool *pool, CUresult result) {
    lock_take(&pool->lock);
    if (result == CUDA_SUCCESS) {
        pool->destroyed = true;
        pool->handle = NULL;
    }
    atomic_store(&pool->destroying, false);
    lock_give(&pool->lock);
    if (result == CUDA_SUCCESS)
        pools_settle(process);
}

bool pools_exporting(struct process *process, struct pool *pool, struct charge *held) {
    lock_take(&pool->lock);
    if (!is_placed(pool)) /* in the region of the GPU's first claim */
        pool->charge = (struct charge){.region = (uint8_t)(pool->gpu & 0x7f), .gpu = (uint8_t)(pool->gpu & 0x7f)};
    bool done = charge_exporting(process, &pool->charge, held);
    lock_give(&pool->lock);
    return done;
}
