#include "pool_blocks.h"

#include "shared_objects.h"

#include <stdlib.h>

#define UNIT ((uint64_t)512)
#define CHUNK (32 * MIB)
#define TRIES                                                                                                          \
    64 /* blocks of the own size class that are looked at before larger ones, and then all before the pool grows */
#define BUCKETS (1u << 16)

enum block_state { BLOCK_FREE, BLOCK_PENDING, BLOCK_USED };

struct block {
    struct chunk *chunk;
    CUdeviceptr address;
    uint64_t size;  /* in whole units */
    uint64_t asked; /* as the program knows it */
    uint64_t id;
    enum block_state state;
    struct block *before, *after;  /* in the chunk */
    struct block *previous, *next; /* of the same bin, or of what is pending */
    struct block *next_in_bucket;  /* of those in use */
    struct CUstream_st *stream;    /* in which it was freed */
    uint64_t stream_id, mark;
    struct calls_point *calls; /* host functions that the free comes after, or NULL */
    CUdevice freed_on;         /* the stream's device */
};

struct chunk {
    struct pool *pool;
    struct extent *extent;
    uint64_t bytes;  /* 0: another process's */
    uint64_t offset; /* in the contents of the pool's object */
    struct block *first;
    struct chunk *previous, *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pools;
static struct block *buckets[BUCKETS]; /* blocks in use, by address */
static uint64_t next_id = 1;
static _Atomic unsigned retired;                   /* destroyed pools that still have memory */
static _Atomic uint64_t reserved_on[SIM_MAX_GPUS]; /* so that a synchronisation without pools costs nothing */

void pool_lock(void) {
    pthread_mutex_lock(&mutex);
}

void pool_unlock(void) {
    pthread_mutex_unlock(&mutex);
}

/* ---- Lists. All below is under the mutex. ---- */

static struct block **bucket_of(CUdeviceptr address) {
    return &buckets[(address / UNIT * 0x9e3779b97f4a7c15u) >> 48];
}

static struct block *in_use(CUdeviceptr address) {
    struct block *block = *bucket_of(address);

    while (block != NULL && block->address != address)
        block = block->next_in_bucket;
    return block;
}

static void bucket_insert(struct block *block) {
    struct block **bucket = bucket_of(block->address);

    block->next_in_bucket = *bucket;
    *bucket = block;
}

static void bucket_remove(struct block *block) {
    struct block **link = bucket_of(block->address);

    while (*link != block)
        link = &(*link)->next_in_bucket;
    *link = block->next_in_bucket;
}

static unsigned bin_of(uint64_t size) {
    unsigned bin = 63 - (unsigned)__builtin_clzll(size / UNIT);

    return bin < POOL_BINS ? bin : POOL_BINS - 1;
}

static void bin_insert(struct pool *pool, struct block *block) {
    struct block **head = &pool->bins[bin_of(block->size)];

    block->state = BLOCK_FREE;
    block->previous = NULL;
    block->next = *head;
    if (*head != NULL)
        (*head)->previous = block;
    *head = block;
}

static void bin_remove(struct pool *pool, struct block *block) {
    if (block->previous != NULL)
        block->previous->next = block->next;
    else
        pool->bins[bin_of(block->size)] = block->next;
    if (block->next != NULL)
        block->next->previous = block->previous;
}

static void pending_insert(struct pool *pool, struct block *block) {
    block->state = BLOCK_PENDING;
    block->previous = pool->pending_last;
    block->next = NULL;
    if (pool->pending_last != NULL)
        pool->pending_last->next = block;
    else
        pool->pending_first = block;
    pool->pending_last = block;
}

static void pending_remove(struct pool *pool, struct block *block) {
    if (block->previous != NULL)
        block->previous->next = block->next;
    else
        pool->pending_first = block->next;
    if (block->next != NULL)
        block->next->previous = block->previous;
    else
        pool->pending_last = block->previous;
}

/* ---- Blocks ---- */

/* Takes the block after this one into it. */
static void swallow(struct block *block) {
    struct block *after = block->after;

    block->size += after->size;
    block->after = after->after;
    if (block->after != NULL)
        block->after->before = block;
    free(after);
}

static void drop_calls(struct block *block) {
    calls_point_drop(block->calls);
    block->calls = NULL;
}

static void make_free(struct pool *pool, struct block *block) {
    drop_calls(block);
    if (block->after != NULL && block->after->state == BLOCK_FREE) {
        bin_remove(pool, block->after);
        swallow(block);
    }
    if (block->before != NULL && block->before->state == BLOCK_FREE) {
        block = block->before;
        bin_remove(pool, block);
        swallow(block);
    }
    bin_insert(pool, block);
}

/* Cuts what lies beyond `size` off a block that is in no list. False if there is no memory for it. */
static bool cut(struct pool *pool, struct block *block, uint64_t size, bool pending) {
    struct block *rest;

    if (block->size == size)
        return true;
    rest = malloc(sizeof(*rest));
    if (rest == NULL)
        return false;
    *rest = *block;
    rest->address += size;
    rest->size -= size;
    rest->before = block;
    if (rest->after != NULL)
        rest->after->before = rest;
    block->after = rest;
    block->size = size;
    block->calls = NULL; /* the rest's, if it is pending */
    if (pending)
        pending_insert(pool, rest);
    else
        bin_insert(pool, rest);
    return true;
}

/* Host functions that were queued before the free come before it too; those that were queued after it do not. */
static bool free_done(const struct block *block) {
    return engine_done(block->freed_on, block->mark) && calls_point_reached(block->calls);
}

/* Whatever the GPU has got to is free for everybody. Frees are mostly done in order: `all` looks beyond the first. */
static void settle(struct pool *pool, bool all) {
    for (struct block *block = pool->pending_first, *next; block != NULL; block = next) {
        next = block->next;
        if (free_done(block)) {
            pending_remove(pool, block);
            make_free(pool, block);
        } else if (!all) {
            return;
        }
    }
}

/* Whether what comes next in the stream comes after the block's free anyway. */
static bool follows(const struct pool *pool, struct CUstream_st *stream, const struct block *block) {
    if (block->stream == stream && block->stream_id == stream->id)
        return true;
    /* Marks say nothing of host functions: what was freed behind one is nobody else's until it is over. */
    return pool->follow_events && block->freed_on == stream->context->device &&
           block->mark <= atomic_load(&stream->waited_mark) && calls_point_reached(block->calls);
}

static struct block *take_pending(struct pool *pool, struct CUstream_st *stream, uint64_t size) {
    for (struct block *block = pool->pending_last; block != NULL; block = block->previous) {
        if (block->size >= size && follows(pool, stream, block)) {
            pending_remove(pool, block);
            if (cut(pool, block, size, true))
                return block;
            pending_insert(pool, block);
            return NULL;
        }
    }
    return NULL;
}

static struct block *take_free(struct pool *pool, uint64_t size, bool thorough) {
    for (unsigned bin = bin_of(size); bin < POOL_BINS; bin++) {
        struct block *block = pool->bins[bin];

        for (int tries = 0; block != NULL && block->size < size; block = block->next) {
            if (!thorough && ++tries == TRIES) {
                block = NULL;
                break;
            }
        }
        if (block == NULL)
            continue;
        bin_remove(pool, block);
        if (cut(pool, block, size, false))
            return block;
        bin_insert(pool, block);
        return NULL;
    }
    return NULL;
}

/* ---- Chunks ---- */

static void count_reserved(struct pool *pool, int64_t bytes) {
    pool->reserved += (uint64_t)bytes;
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
    atomic_fetch_add(&reserved_on[pool->device], (uint64_t)bytes);
}

static bool reserve(const struct pool *pool, uint64_t bytes) {
    uint64_t most = pool->props.maxSize != 0 ? round_up(pool->props.maxSize, SIM_GRANULARITY) : UINT64_MAX;

    if (bytes > most || pool->reserved > most - bytes)
        return false;
    return pool->object != 0 ? sim_shared_reserve(pool->object, bytes) == 0
                             : sim_reserve(driver->gpus[pool->device], bytes, pool) == 0;
}

static void give_back(const struct pool *pool, uint64_t bytes) {
    if (bytes == 0)
        return;
    if (pool->object != 0)
        sim_shared_release(pool->object, bytes);
    else
        sim_release(driver->gpus[pool->device], bytes, pool);
}

static bool map_contents(const struct pool *pool, struct extent *extent, uint64_t offset, uint64_t bytes) {
    if (pool->object == 0)
        return true;
    extent->touched = 1;
    return sim_shared_map(pool->object, offset, (void *)(uintptr_t)heap_extent_address(extent), bytes) == 0;
}

/* A chunk and its one block, in no list, on fresh address space. */
static struct block *chunk_new(struct pool *pool, uint64_t offset, uint64_t bytes) {
    struct chunk *chunk = calloc(1, sizeof(*chunk));
    struct block *block = calloc(1, sizeof(*block));
    struct extent *extent = chunk != NULL ? heap_range_new(pool->device, EXTENT_POOL, bytes, chunk) : NULL;

    if (block == NULL || extent == NULL || !map_contents(pool, extent, offset, bytes)) {
        if (extent != NULL)
            heap_range_delete(extent);
        free(chunk);
        free(block);
        return NULL;
    }
    chunk->pool = pool;
    chunk->extent = extent;
    chunk->offset = offset;
    chunk->first = block;
    chunk->next = pool->chunks;
    if (pool->chunks != NULL)
        pool->chunks->previous = chunk;
    pool->chunks = chunk;
    block->chunk = chunk;
    block->address = heap_extent_address(extent);
    block->size = bytes;
    return block;
}

/* Gives back a chunk without blocks in use. */
static void chunk_delete(struct chunk *chunk) {
    struct pool *pool = chunk->pool;

    if (chunk->previous != NULL)
        chunk->previous->next = chunk->next;
    else
        pool->chunks = chunk->next;
    if (chunk->next != NULL)
        chunk->next->previous = chunk->previous;
    heap_range_delete(chunk->extent);
    give_back(pool, chunk->bytes);
    count_reserved(pool, -(int64_t)chunk->bytes);
    free(chunk);
}

static bool grow(struct pool *pool, uint64_t size) {
    uint64_t bytes = round_up(size, CHUNK);
    struct block *block;

    if (!reserve(pool, bytes)) {
        bytes = round_up(size, SIM_GRANULARITY);
        if (bytes == round_up(size, CHUNK) || !reserve(pool, bytes))
            return false;
    }
    block = chunk_new(pool, pool->next_offset, bytes);
    if (block == NULL) {
        give_back(pool, bytes);
        return false;
    }
    pool->next_offset += bytes;
    block->chunk->bytes = block->chunk->extent->physical = bytes;
    bin_insert(pool, block);
    count_reserved(pool, (int64_t)bytes);
    return true;
}

static void trim(struct pool *pool, uint64_t keep) {
    for (struct chunk *chunk = pool->chunks, *next; chunk != NULL; chunk = next) {
        struct block *block = chunk->first;

        next = chunk->next;
        if (block->state != BLOCK_FREE || block->after != NULL || pool->reserved - chunk->bytes < keep)
            continue;
        bin_remove(pool, block);
        free(block);
        chunk_delete(chunk);
    }
}

/* ---- Pools ---- */

struct pool *pool_new(CUdevice device, const CUmemPoolProps *props, uint64_t object, bool imported,
                      CUmemoryPool handle) {
    struct pool *pool = calloc(1, sizeof(*pool));

    if (pool == NULL)
        return NULL;
    pool->device = device;
    pool->object = object;
    pool->imported = imported;
    pool->props = *props;
    pool->handle = handle;
    pool->follow_events = pool->opportunistic = pool->internal_dependencies = true;
    pool->access[device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    pthread_mutex_lock(&mutex);
    pool->next = pools;
    pools = pool;
    pthread_mutex_unlock(&mutex);
    return pool;
}

/* Ends a pool that was destroyed, once the GPU is done with all of it. */
static void end_if_over(struct pool *pool, bool *left) {
    struct pool **link = &pools;

    if (pool->handle != NULL || pool->blocks_in_use != 0)
        return;
    settle(pool, true);
    trim(pool, 0);
    if (pool->chunks != NULL) {
        *left = true;
        return;
    }
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    atomic_fetch_sub(&retired, 1);
    if (pool->object != 0)
        sim_shared_drop(pool->object);
    free(pool);
}

/* Whether any is left that waits for the GPU alone. */
static bool end_those_over(void) {
    bool left = false;

    pthread_mutex_lock(&mutex);
    for (struct pool *pool = pools, *next; pool != NULL; pool = next) {
        next = pool->next;
        end_if_over(pool, &left);
    }
    pthread_mutex_unlock(&mutex);
    return left;
}

static void end_later(void *unused) {
    (void)unused;
    end_those_over();
}

/* Nobody may ever ask for a destroyed pool again, so the GPU's progress itself must end it. */
static void end_when_done(CUdevice device) {
    if (end_those_over())
        engine_call(device, engine_mark(device), end_later, NULL);
}

void pool_retire(struct pool *pool) {
    CUdevice device = pool->device;

    pthread_mutex_lock(&mutex);
    pool->handle = NULL;
    atomic_fetch_add(&retired, 1);
    pthread_mutex_unlock(&mutex);
    end_when_done(device);
}

/* Everything that was freed, whichever stream in: this one waits for it. */
static void take_over_pending(struct pool *pool, struct CUstream_st *stream) {
    while (pool->pending_first != NULL) {
        struct block *block = pool->pending_first;

        if (block->freed_on != stream->context->device || !calls_point_reached(block->calls))
            return;
        stream_follow(stream, block->mark);
        pending_remove(pool, block);
        make_free(pool, block);
    }
}

static struct block *take(struct pool *pool, struct CUstream_st *stream, uint64_t size) {
    struct block *block;

    if (pool->opportunistic)
        settle(pool, false);
    block = take_pending(pool, stream, size);
    if (block == NULL)
        block = take_free(pool, size, false);
    if (block == NULL)
        block = take_free(pool, size, true);
    if (block == NULL && grow(pool, size))
        block = take_free(pool, size, true);
    if (block != NULL)
        return block;
    /* The GPU is full, or the pool as large as it may be: look harder at what the pool has. */
    if (pool->opportunistic)
        settle(pool, true);
    if (pool->internal_dependencies)
        take_over_pending(pool, stream);
    block = take_free(pool, size, true);
    if (block == NULL) {
        trim(pool, 0);
        block = grow(pool, size) ? take_free(pool, size, true) : NULL;
    }
    return block;
}

static void put_in_use(struct pool *pool, struct block *block, uint64_t size) {
    drop_calls(block);
    block->state = BLOCK_USED;
    block->asked = size;
    block->id = next_id++;
    bucket_insert(block);
    pool->blocks_in_use++;
    pool->used += block->size;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
}

CUresult pool_alloc(struct pool *pool, struct CUstream_st *stream, uint64_t size, CUdeviceptr *address) {
    int gpu = driver->gpus[pool->device];
    int fault = sim_fault_alloc_take(gpu);
    struct block *block;

    REQUIRE(!pool->imported, CUDA_ERROR_INVALID_VALUE);
    if (fault != 0)
        return (CUresult)fault;
    REQUIRE(size <= device_gpu(pool->device)->memory_bytes, CUDA_ERROR_OUT_OF_MEMORY);
    pthread_mutex_lock(&mutex);
    block = take(pool, stream, round_up(size, UNIT));
    if (block != NULL) {
        put_in_use(pool, block, size);
        *address = block->address;
    }
    pthread_mutex_unlock(&mutex);
    REQUIRE(block != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    sim_count_allocation(gpu, 1);
    return CUDA_SUCCESS;
}

/* Takes over the caller's hold on the point. */
static void take_back(struct pool *pool, struct block *block, struct CUstream_st *stream, struct calls_point *calls) {
    bucket_remove(block);
    pool->blocks_in_use--;
    pool->used -= block->size;
    block->calls = calls;
    if (pool->imported) {
        drop_calls(block);
        chunk_delete(block->chunk);
        free(block);
        return;
    }
    if (stream == NULL) {
        make_free(pool, block);
        return;
    }
    block->stream = stream;
    block->stream_id = stream->id;
    block->freed_on = stream->context->device;
    block->mark = stream_mark(stream);
    if (pool->opportunistic && free_done(block))
        make_free(pool, block);
    else
        pending_insert(pool, block);
}

CUresult pool_free(CUdeviceptr address, struct CUstream_st *stream) {
    struct calls_point *calls = NULL;
    struct block *block;
    struct pool *pool;
    CUdevice device;
    bool last;

    if (stream != NULL)
        TRY(calls_point_new(stream, &calls));
    pthread_mutex_lock(&mutex);
    block = in_use(address);
    if (block == NULL) {
        pthread_mutex_unlock(&mutex);
        calls_point_drop(calls);
        return CUDA_ERROR_INVALID_VALUE;
    }
    pool = block->chunk->pool;
    device = pool->device;
    take_back(pool, block, stream, calls);
    last = pool->handle == NULL && pool->blocks_in_use == 0;
    pthread_mutex_unlock(&mutex);
    sim_count_allocation(driver->gpus[device], -1);
    if (last)
        end_when_done(stream != NULL ? stream->context->device : device);
    return CUDA_SUCCESS;
}

/* ---- Between processes ---- */

CUresult pool_locate(CUdeviceptr address, uint64_t *object, uint64_t *offset, uint64_t *size) {
    const struct block *block;

    pthread_mutex_lock(&mutex);
    block = in_use(address);
    if (block != NULL) {
        *object = block->chunk->pool->imported ? 0 : block->chunk->pool->object;
        *offset = block->chunk->offset + (address - heap_extent_address(block->chunk->extent));
        *size = block->asked;
    }
    pthread_mutex_unlock(&mutex);
    return block != NULL && *object != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult pool_import(struct pool *pool, uint64_t offset, uint64_t size, CUdeviceptr *address) {
    uint64_t begin = offset / SIM_GRANULARITY * SIM_GRANULARITY;
    struct block *block;

    pthread_mutex_lock(&mutex);
    block = chunk_new(pool, begin, round_up(offset + size - begin, SIM_GRANULARITY));
    if (block != NULL) {
        block->address += offset - begin;
        block->size = round_up(size, UNIT);
        put_in_use(pool, block, size);
        *address = block->address;
    }
    pthread_mutex_unlock(&mutex);
    REQUIRE(block != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    sim_count_allocation(driver->gpus[pool->device], 1);
    return CUDA_SUCCESS;
}

/* ---- Looking ---- */

static struct block *around(CUdeviceptr address) {
    struct block *block = in_use(address);
    struct chunk *chunk;

    if (block != NULL)
        return block;
    chunk = heap_range_owner(address, EXTENT_POOL);
    if (chunk == NULL)
        return NULL;
    for (block = chunk->first; block != NULL && address - block->address >= block->size;)
        block = block->after;
    return block != NULL && block->state == BLOCK_USED && address - block->address < block->asked ? block : NULL;
}

bool pool_find(CUdeviceptr address, struct allocation *allocation) {
    struct block *block;

    pthread_mutex_lock(&mutex);
    block = around(address);
    if (block != NULL)
        *allocation = (struct allocation){.base = block->address,
                                          .size = block->asked,
                                          .extent = block->chunk->extent,
                                          .pool = block->chunk->pool->handle,
                                          .id = 1ull << 62 | block->id << 1};
    pthread_mutex_unlock(&mutex);
    return block != NULL;
}

void pool_trim(struct pool *pool, uint64_t keep) {
    pthread_mutex_lock(&mutex);
    settle(pool, true);
    trim(pool, keep);
    pthread_mutex_unlock(&mutex);
}

void pool_clear(struct pool *pool) {
    int count = 0;

    pthread_mutex_lock(&mutex);
    for (struct chunk *chunk = pool->chunks; chunk != NULL; chunk = chunk->next) {
        for (struct block *block = chunk->first, *after; block != NULL; block = after) {
            after = block->after;
            if (block->state == BLOCK_USED) {
                bucket_remove(block);
                count++;
            }
            drop_calls(block);
            free(block);
        }
    }
    while (pool->chunks != NULL)
        chunk_delete(pool->chunks);
    for (unsigned bin = 0; bin < POOL_BINS; bin++)
        pool->bins[bin] = NULL;
    pool->pending_first = pool->pending_last = NULL;
    pool->used = pool->blocks_in_use = 0;
    pthread_mutex_unlock(&mutex);
    sim_count_allocation(driver->gpus[pool->device], -count);
}

void pools_synchronised(CUdevice device) {
    bool left = false;

    if (atomic_load_explicit(&reserved_on[device], memory_order_relaxed) == 0 && atomic_load(&retired) == 0)
        return;
    pthread_mutex_lock(&mutex);
    for (struct pool *pool = pools, *next; pool != NULL; pool = next) {
        next = pool->next;
        if (pool->device == device) {
            settle(pool, true);
            if (pool->reserved > pool->threshold)
                trim(pool, pool->threshold);
        }
        end_if_over(pool, &left);
    }
    pthread_mutex_unlock(&mutex);
}
