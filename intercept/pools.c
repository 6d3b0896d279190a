#include "pools.h"

#include "chunks.h"
#include "cuda_real.h"
#include "exports.h"
#include "objects.h"
#include "tags.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Pools grow by pieces of this size, or what is asked for if that is more. Were it more on some driver, settling sees it. */
#define GROWTH_BYTES (UINT64_C(32) << 20)

struct pool {
    struct pool *next;
    struct lock lock;    /* held while the driver is called */
    CUmemoryPool handle; /* NULL: the memory of graphs; or the pool was destroyed */
    CUdevice device;
    int gpu;
    bool graphs, destroyed;
    _Atomic bool going;   /* the driver is asked to destroy it, and may give its handle out again */
    bool placed;          /* its memory lies in the region of its charge */
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

/* --- streams in which something was freed -------------------------------------------------------------------------- */

#define WAIT_NS UINT64_C(500000000)
#define POLL_NS 20000

/* Default streams have no handle of their own: they are the current context's. */
#define FIRST_STREAM_HANDLE 3

void pools_freed_in(struct process *process, CUstream stream) {
    struct pools *pools = &process->pools;
    struct freed_in freed = {.stream = stream};
    if ((uintptr_t)stream < FIRST_STREAM_HANDLE)
        REAL(cuCtxGetCurrent)(&freed.context);
    else
        REAL(cuStreamGetCtx)(stream, &freed.context);
    lock_take(&pools->lock);
    unsigned i = 0;
    while (i < pools->freed_count && (pools->freed_in[i].stream != stream || pools->freed_in[i].event != NULL ||
                                      pools->freed_in[i].context != freed.context))
        i++;
    if (i == pools->freed_count && i < STREAMS_MAX)
        pools->freed_in[pools->freed_count++] = freed;
    else if (i == pools->freed_count)
        pools->freed_in[pools->replaced++ % STREAMS_MAX] = freed;
    lock_give(&pools->lock);
}

static bool is_recorded(CUstream stream) {
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    return REAL(cuStreamIsCapturing)(stream, &capturing) != CUDA_SUCCESS || capturing != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* A stream that is destroyed goes on until it has done what it has to do, but cannot be asked any more. */
void pools_stream_gone(struct process *process, CUstream stream) {
    struct pools *pools = &process->pools;
    CUevent event = NULL;
    bool known = false;
    lock_take(&pools->lock);
    for (unsigned i = 0; i < pools->freed_count; i++)
        known = known || (pools->freed_in[i].stream == stream && pools->freed_in[i].event == NULL);
    lock_give(&pools->lock);
    if (!known || (uintptr_t)stream < FIRST_STREAM_HANDLE)
        return;
    if (is_recorded(stream) || REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS ||
        REAL(cuEventRecord)(event, stream) != CUDA_SUCCESS)
        event = NULL;
    lock_take(&pools->lock);
    for (unsigned i = 0; i < pools->freed_count; i++)
        if (pools->freed_in[i].stream == stream && pools->freed_in[i].event == NULL) {
            if (event != NULL)
                pools->freed_in[i].event = event;
            else
                pools->freed_in[i] = pools->freed_in[--pools->freed_count];
            break;
        }
    lock_give(&pools->lock);
}

/* What a destroyed context had to do, it has done. */
void pools_context_gone(struct process *process, CUcontext context) {
    struct pools *pools = &process->pools;
    lock_take(&pools->lock);
    for (unsigned i = 0; i < pools->freed_count;) {
        if (pools->freed_in[i].context == context)
            pools->freed_in[i] = pools->freed_in[--pools->freed_count];
        else
            i++;
    }
    lock_give(&pools->lock);
}

/* An event has told what it was for; whoever takes it out ends it. */
static void event_is_done(struct process *process, CUevent event) {
    struct pools *pools = &process->pools;
    bool ours = false;
    lock_take(&pools->lock);
    for (unsigned i = 0; i < pools->freed_count && !ours; i++) {
        ours = pools->freed_in[i].event == event;
        if (ours)
            pools->freed_in[i] = pools->freed_in[--pools->freed_count];
    }
    lock_give(&pools->lock);
    if (ours)
        REAL(cuEventDestroy_v2)(event);
}

/* Whether a stream has done what it had to do. One that is being recorded must not be asked. What was freed in it is the pools'
 * again once it was synchronised, which takes no time then. */
static bool is_done(const struct freed_in *freed) {
    if (freed->event != NULL)
        return REAL(cuEventQuery)(freed->event) == CUDA_SUCCESS &&
               REAL(cuEventSynchronize)(freed->event) == CUDA_SUCCESS;
    return !is_recorded(freed->stream) && REAL(cuStreamQuery)(freed->stream) == CUDA_SUCCESS &&
           REAL(cuStreamSynchronize)(freed->stream) == CUDA_SUCCESS;
}

static bool is_idle(struct process *process, const struct freed_in *freed) {
    CUcontext current = NULL;
    bool other = REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current != freed->context;
    if (other && REAL(cuCtxPushCurrent_v2)(freed->context) != CUDA_SUCCESS)
        return true; /* the context is gone, and its work with it */
    bool idle = is_done(freed);
    if (idle && freed->event != NULL)
        event_is_done(process, freed->event);
    if (other)
        REAL(cuCtxPopCurrent_v2)(&current);
    return idle;
}

static bool streams_are_idle(struct process *process) {
    struct pools *pools = &process->pools;
    struct freed_in freed[STREAMS_MAX];
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    lock_take(&pools->lock);
    unsigned count = pools->freed_count;
    for (unsigned i = 0; i < count; i++)
        freed[i] = pools->freed_in[i];
    lock_give(&pools->lock);
    if (count == 0)
        return true;
    if (REAL(cuThreadExchangeStreamCaptureMode)(&mode) != CUDA_SUCCESS)
        return false;
    bool idle = true;
    for (unsigned i = 0; i < count && idle; i++)
        idle = is_idle(process, &freed[i]);
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return idle;
}

static uint64_t now_ns(void) {
    struct timespec time = {0};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

/* Polls, since the driver knows no wait with an end, and the stream may itself be waiting for the calling thread. */
void pools_wait(struct process *process) {
    const struct timespec pause = {.tv_nsec = POLL_NS};
    int error = errno;
    for (uint64_t end = now_ns() + WAIT_NS; !streams_are_idle(process) && now_ns() < end;)
        syscall(SYS_nanosleep, &pause, NULL);
    errno = error;
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
            pools_wait(process);
        any = true;
        trim(pool);
    }
    if (any)
        pools_settle(process);
    return any || exported;
}

/* --- growing ------------------------------------------------------------------------------------------------------- */

/* A pool's memory lies in one region: that where it grew first. */
static CUresult place(struct process *process, struct pool *pool, struct charge *growth) {
    lock_take(&pool->lock);
    if (!pool->placed && pool->charge.pages == 0 && pool->charge.share == 0) {
        pool->charge = (struct charge){.region = growth->region, .gpu = growth->gpu};
        pool->placed = true;
    }
    struct charge like = pool->charge;
    lock_give(&pool->lock);
    if (like.region == growth->region)
        return CUDA_SUCCESS;
    uint64_t pages = growth->pages;
    charge_give(process, growth);
    return charge_take_like(process, &like, pages, growth);
}

CUresult pools_before(struct process *process, struct pool *pool, uint64_t bytes, bool patience,
                      struct charge *growth) {
    uint64_t pieces = bytes / GROWTH_BYTES + (bytes % GROWTH_BYTES != 0);
    uint64_t pages = (pieces ? pieces : 1) * (GROWTH_BYTES >> REGION_PAGE_SHIFT);
    lock_take(&pool->lock);
    struct charge like = pool->charge;
    bool placed = pool->placed || like.pages != 0 || like.share != 0;
    lock_give(&pool->lock);
    CUresult result;
    if (placed)
        result =
            patience ? charge_take_like(process, &like, pages, growth) : charge_try_like(process, &like, pages, growth);
    else
        result =
            patience ? charge_take(process, pool->gpu, pages, growth) : charge_try(process, pool->gpu, pages, growth);
    return result == CUDA_SUCCESS ? place(process, pool, growth) : result;
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
    pools_freed_in(process, stream);
    lock_take(&pool->lock);
    bool last = --pool->allocations == 0 && pool->destroyed;
    lock_give(&pool->lock);
    if (last)
        pools_settle(process);
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
