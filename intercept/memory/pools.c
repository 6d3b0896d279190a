#include "memory/pools.h"

#include "driver/cuda_real.h"
#include "memory/holes.h"
#include "memory/objects.h"
#include "memory/streams.h"
#include "state/contexts.h"
#include "system/mapped.h"

#define GROWTH_PAGES (POOLS_GROWTH_BYTES >> REGION_PAGE_SHIFT)

/* Holes that are looked at before pages are taken. */
#define FEW_HOLES 16

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
    /* Taken for the driver's call in progress, or for launches of graphs that are being made; never a share, even if the
     * pool is one. */
    struct charge growth;
    uint64_t reserved;        /* what the driver last reported, in pages */
    _Atomic uint32_t changes; /* how often something was allocated, or the pool has shrunk */
    struct holes holes;
    /* Of the memory of graphs: */
    uint64_t launching; /* pages that the launches that are being made need at most */
    uint64_t left;      /* pages that earlier launches may have left allocated */
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
        idle->reserved = 0;
        holes_forget(&idle->holes);
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

/* The pages of a GPU that are missing for so many to be granted; all, if not too few are left. */
static uint64_t missing_of(struct process *process, int gpu, uint64_t pages) {
    uint64_t most = 0;
    for (unsigned i = (unsigned)gpu; i < process->claims.count; i++) {
        struct charge there = {.region = (uint8_t)(i & 0x7f)};
        uint64_t left = process->claims.gpu[i] == gpu ? charge_left(process, &there) : 0;
        most = left > most ? left : most;
    }
    return most < pages ? pages - most : pages;
}

/* Repeats an attempt that was refused for want of memory, after this process's pools gave back what is missing. */
#define TRIMMING(process, gpu, pages, result, attempt)                                                                 \
    for (enum pools_effort effort = POOLS_WHAT_IS_FREE;                                                                \
         (result) == CUDA_ERROR_OUT_OF_MEMORY && effort < POOLS_EFFORTS; effort++)                                     \
        if (pools_trim(process, gpu, missing_of(process, gpu, pages), effort))                                         \
    (result) = (attempt)

CUresult pools_take(struct process *process, int gpu, uint64_t pages, struct charge *charge) {
    CUresult result = charge_try(process, gpu, pages, charge);
    TRIMMING(process, gpu, pages, result, charge_try(process, gpu, pages, charge));
    return charge_refused(process, charge->region, result);
}

CUresult pools_take_like(struct process *process, const struct charge *other, uint64_t pages, struct charge *charge) {
    CUresult result = charge_try_like(process, other, pages, charge);
    TRIMMING(process, other->gpu, pages, result, charge_try_like(process, other, pages, charge));
    return charge_refused(process, other->region, result);
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
 * being launched rely on stays charged, even if it was trimmed meanwhile. False if there is no room for all of it. */
static bool settle(struct process *process, struct pool *pool) {
    struct charge late;
    uint64_t reserved = pool->charge.pages, needed = pool->launching != 0 ? pool->launching + pool->left : 0;
    if (!pool->destroyed && !pool->destroying &&
        !reserved_pages(pool, &reserved)) /* unknown: assume all that was taken */
        reserved = pool->charge.pages + pool->growth.pages;
    move_grown(process, pool, &pool->growth, reserved);
    /* More than was taken: the limit may be exceeded, and nothing is granted until it no longer is. */
    if (reserved > pool->charge.pages && (pool->charge.pages != 0 || pool->charge.share != 0))
        charge_grow(process, &pool->charge, reserved - pool->charge.pages);
    else if (reserved > pool->charge.pages && charge_try(process, pool->gpu, reserved, &late) == CUDA_SUCCESS)
        pool->charge = late;
    reserved = reserved > needed ? reserved : needed;
    if (reserved < pool->charge.pages)
        charge_give_part(process, &pool->charge, pool->charge.pages - reserved);
    if (reserved < pool->reserved) {
        holes_forget(&pool->holes); /* some of them are gone */
        atomic_fetch_add(&pool->changes, 1);
    }
    pool->reserved = reserved;
    return reserved == pool->charge.pages;
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
        lock_give(&pool->lock);
    }
}

/* Under the pool's lock: has the driver release so many pages, if it can, and not many more. It releases whole pieces of a
 * pool, whose sizes are not known. */
static void release(struct pool *pool, uint64_t pages) {
    uint64_t before = 0, keep = 1;
    bool known = reserved_pages(pool, &before);
    uint64_t now = before;
    for (uint64_t give = pages; keep != 0 && before - now < pages; give *= 2) {
        keep = known && give < before ? before - give : 0;
        REAL(cuMemPoolTrimTo)(pool->handle, keep << REGION_PAGE_SHIFT);
        known = known && reserved_pages(pool, &now);
    }
}

/* The pages that were given back. */
static uint64_t trim(struct process *process, struct pool *pool, uint64_t pages) {
    lock_take(&pool->lock);
    uint64_t before = pool->charge.pages;
    if (pool->graphs)
        REAL(cuDeviceGraphMemTrim)(pool->device);
    else if (!pool->destroyed && !pool->destroying)
        release(pool, pages);
    settle(process, pool);
    uint64_t now = pool->charge.pages;
    lock_give(&pool->lock);
    return now < before ? before - now : 0;
}

static bool may_shrink(struct pool *pool, int gpu) {
    lock_take(&pool->lock);
    bool may = pool->gpu == gpu && (!pool->destroyed || is_ending(pool));
    lock_give(&pool->lock);
    return may;
}

bool pools_trim(struct process *process, int gpu, uint64_t pages, enum pools_effort effort) {
    bool any = atomic_load(&process->streams.waiting) != 0;
    struct pool *first = atomic_load(&process->pools.first);
    for (struct pool *pool = first; pool != NULL && !any; pool = pool->next)
        any = may_shrink(pool, gpu);
    if (!any)
        return false;
    if (effort == POOLS_AFTER_WAITING)
        streams_wait(process);
    for (struct pool *pool = first; pool != NULL && pages != 0; pool = pool->next) {
        uint64_t given = may_shrink(pool, gpu) ? trim(process, pool, pages) : 0;
        pages -= given < pages ? given : pages;
    }
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

/* Under the pool's lock. */
static CUresult take_growth(struct process *process, struct pool *pool, uint64_t bytes) {
    bool placed = is_placed(pool);
    CUresult result = placed ? charge_try_like(process, &pool->charge, pages_to_grow(bytes), &pool->growth)
                             : charge_try(process, pool->gpu, pages_to_grow(bytes), &pool->growth);
    if (result == CUDA_SUCCESS && !placed)
        place(pool, &pool->growth);
    return result;
}

/* Whose frees are executed before what is put into this stream. */
static uint64_t owner_of(CUcontext context, CUstream stream) {
    if (stream == CU_STREAM_PER_THREAD)
        return HOLES_NOBODYS;
    return contexts_is_default_stream(stream) ? (uintptr_t)context : (uintptr_t)stream;
}

/* Under the pool's lock: once the streams have executed their frees, every hole can be used. That they have is found out by
 * synchronising, at which the pool may shrink. */
static bool fits_if_executed(struct process *process, struct pool *pool, const struct pool_request *request) {
    if (!pool->holes.owned || !streams_are_idle(process))
        return false;
    settle(process, pool);
    holes_executed(&pool->holes);
    return holes_fit(&pool->holes, request->bytes, HOLES_NOBODYS, SIZE_MAX);
}

/* The pool's lock is kept if there is a place, or room to grow. */
static CUresult enter(struct process *process, struct pool *pool, const struct pool_request *request, bool thoroughly) {
    uint64_t owner = owner_of(request->context, request->stream);
    CUresult result = CUDA_SUCCESS;
    lock_take(&pool->lock);
    if (pool->handle != request->pool || pool->destroyed || pool->destroying) {
        lock_give(&pool->lock); /* another thread has destroyed it */
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (holes_fit(&pool->holes, request->bytes, owner, FEW_HOLES))
        return result;
    result = take_growth(process, pool, request->bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && (holes_fit(&pool->holes, request->bytes, owner, SIZE_MAX) ||
                                               (thoroughly && fits_if_executed(process, pool, request))))
        result = CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        lock_give(&pool->lock);
    return result;
}

CUresult pools_enter(struct process *process, struct pool *pool, const struct pool_request *request,
                     enum pools_effort effort) {
    if (effort == POOLS_AFTER_WAITING)
        streams_wait(process);
    CUresult result = enter(process, pool, request, effort != POOLS_AT_ONCE);
    if (result != CUDA_ERROR_OUT_OF_MEMORY || effort == POOLS_AT_ONCE)
        return result;
    pools_trim(process, pool->gpu, missing_of(process, pool->gpu, pages_to_grow(request->bytes)), POOLS_WHAT_IS_FREE);
    return enter(process, pool, request, true);
}

/* Whether an address is of an allocation from the pool. A node of a graph that is being captured has one, too. */
static bool is_of(const struct pool *pool, CUdeviceptr address) {
    CUmemoryPool from = NULL;
    return REAL(cuPointerGetAttribute)(&from, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) == CUDA_SUCCESS &&
           from == pool->handle;
}

static bool can_be_captured(CUstream stream) {
    return stream != NULL && stream != CU_STREAM_LEGACY;
}

/* Under the pool's lock, with which alone it is changed. */
static void count_allocation(struct pool *pool, int change) {
    uint32_t count = atomic_load_explicit(&pool->allocations, memory_order_relaxed) + (uint32_t)change;
    atomic_store_explicit(&pool->allocations, count, memory_order_relaxed);
}

/* Under the pool's lock: what an allocation shows that was in no hole. What the pool grew by begins with it. */
static void learn(struct pool *pool, CUdeviceptr address, uint64_t bytes, uint64_t grown) {
    if (grown == 0 || grown != pages_to_grow(bytes))
        holes_forget(&pool->holes); /* the driver did something else than was thought */
    else if ((grown << REGION_PAGE_SHIFT) != bytes)
        holes_add(&pool->holes, (struct hole){.start = address + bytes, .end = address + (grown << REGION_PAGE_SHIFT)});
}

/* In a hole, the pool did not grow. Else the driver is asked. */
bool pools_leave(struct process *process, struct pool *pool, const struct pool_request *request, CUdeviceptr address) {
    uint64_t bytes = (request->bytes + HOLES_UNIT - 1) & ~(HOLES_UNIT - 1), before = pool->reserved;
    bool counted = true, apart = address % BLOCK_BYTES == 0;
    bool known = address != 0 && holes_take(&pool->holes, address, address + bytes, &apart);
    if (!known)
        counted = settle(process, pool);
    uint64_t grown = pool->reserved > before ? pool->reserved - before : 0;
    charge_give(process, &pool->growth);
    pool->growth = (struct charge){0};
    if (known || (address != 0 && (grown != 0 || !can_be_captured(request->stream) || is_of(pool, address)))) {
        if (!known)
            learn(pool, address, bytes, grown);
        count_allocation(pool, 1);
        objects_put(process, KIND_POOL_MEMORY,
                    (struct entry){
                        .key = address, .with = (uintptr_t)pool, .references = OBJECTS_PART, .holds = bytes | apart});
    }
    atomic_fetch_add(&pool->changes, address != 0); /* after it was recorded: see pools_freeing */
    lock_give(&pool->lock);
    return counted;
}

void pools_stream_ended(struct process *process, CUstream stream) {
    for (struct pool *pool = atomic_load(&process->pools.first); pool != NULL; pool = pool->next) {
        lock_take(&pool->lock);
        holes_owner_ended(&pool->holes, (uintptr_t)stream);
        lock_give(&pool->lock);
    }
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
    TRIMMING(process, pool->gpu, need->most, result, try_launch(process, pool, need, runs));
    return charge_refused(process, (unsigned)pool->gpu, result);
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

/* Under the pool's lock, which it gives. Memory that the driver did not free exists, unless another thread has freed it, too. */
static void freed(struct process *process, const struct entry *memory, CUresult result) {
    struct pool *pool = pools_of(memory);
    if (result != CUDA_SUCCESS && (pool->destroyed || pool->destroying || is_of(pool, memory->key)))
        objects_put_back(process, KIND_POOL_MEMORY, *memory);
    else
        count_allocation(pool, -1);
    bool over = pool->destroyed && pool->allocations == 0;
    lock_give(&pool->lock);
    if (over)
        pools_settle(process);
}

/* The record is removed first, since the driver may return the address for another allocation at once; and under the pool's
 * lock, so that it is that of the allocation which the driver frees, though another thread frees this address, too. Most
 * memory is of the first pool. */
bool pools_freeing_in_stream(struct process *process, CUdeviceptr address, struct entry *memory) {
    struct entry known;
    bool any = process != NULL && process_has(process, KIND_POOL_MEMORY);
    for (struct pool *pool = any ? atomic_load(&process->pools.first) : NULL; pool != NULL;) {
        lock_take(&pool->lock);
        if (objects_remove_with(process, KIND_POOL_MEMORY, address, (uintptr_t)pool, memory))
            return true;
        lock_give(&pool->lock);
        pool = objects_find(process, KIND_POOL_MEMORY, address, &known) ? pools_of(&known) : NULL;
    }
    return false;
}

/* Under the pool's lock: what was freed is a place for what comes after its owner's work. */
static void add_hole(const struct entry *memory, uint64_t owner) {
    bool apart = memory->holds % HOLES_UNIT != 0;
    struct hole hole = {memory->key, memory->key + memory->holds - apart, owner, apart};
    holes_add(&pools_of(memory)->holes, hole);
}

void pools_freed_in_stream(struct process *process, const struct entry *memory, CUcontext context, CUstream stream,
                           CUresult result) {
    if (result == CUDA_SUCCESS) {
        streams_freed_in(process, context, stream);
        add_hole(memory, owner_of(context, stream));
    }
    freed(process, memory, result);
}

bool pools_freeing(struct process *process, CUdeviceptr address, struct entry *memory, uint32_t *changes) {
    struct entry known;
    while (process != NULL && objects_find(process, KIND_POOL_MEMORY, address, &known)) {
        *changes = atomic_load(&pools_of(&known)->changes);
        if (objects_remove_with(process, KIND_POOL_MEMORY, address, known.with, memory))
            return true;
    }
    return false;
}

/* The place can be used at once, unless the pool may have given it back or to another allocation. */
void pools_freed(struct process *process, const struct entry *memory, uint32_t changes, CUresult result) {
    struct pool *pool = pools_of(memory);
    if (result == CUDA_SUCCESS)
        streams_freed_in(process, streams_context(NULL), NULL);
    lock_take(&pool->lock);
    if (result == CUDA_SUCCESS)
        settle(process, pool);
    if (result == CUDA_SUCCESS && atomic_load(&pool->changes) == changes)
        add_hole(memory, HOLES_ANYONES);
    freed(process, memory, result);
}

/* If the driver reports nothing in use, the allocations that are still recorded ended without being freed. */
static void remove_if_cleared(struct process *process, struct pool *pool) {
    cuuint64_t used = 0;
    struct entry memory;
    lock_take(&pool->lock);
    if (!pool->graphs && !pool->destroyed && !pool->destroying && atomic_load(&pool->allocations) != 0 &&
        REAL(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) == CUDA_SUCCESS && used == 0)
        while (objects_remove_part(process, KIND_POOL_MEMORY, (uintptr_t)pool, &memory))
            count_allocation(pool, -1);
    lock_give(&pool->lock);
}

void pools_primary_ended(struct process *process) {
    for (struct pool *pool = atomic_load(&process->pools.first); pool != NULL; pool = pool->next)
        remove_if_cleared(process, pool);
    pools_settle(process);
}

void pools_address_taken(struct process *process, CUdeviceptr address) {
    struct entry memory;
    if (!objects_remove(process, KIND_POOL_MEMORY, address, &memory))
        return;
    lock_take(&pools_of(&memory)->lock);
    count_allocation(pools_of(&memory), -1);
    lock_give(&pools_of(&memory)->lock);
}

bool pools_destroying(struct pool *pool) {
    lock_take(&pool->lock);
    bool first = !atomic_exchange(&pool->destroying, true);
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
