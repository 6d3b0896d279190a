#include "heap.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda/vmm/vmm.h"
#include "cuda/work/capture.h"
#include "managed.h"
#include "pack.h"
#include "pool_blocks.h"
#include "shared_objects.h"

#define BLOCK SIM_GRANULARITY
#define HIGH_BLOCKS (1u << 21) /* 4 TiB */
#define LOW_START 0x10000000u
#define LOW_BLOCKS 704u /* to 0x68000000, clear of what sanitizers need */
#define BLOCKS (HIGH_BLOCKS + LOW_BLOCKS)
#define SMALL MIB
#define BINS 22
#define BIN_TRIES 16

struct arena {
    uint32_t first, end; /* its blocks' indices */
    uint32_t top;        /* blocks from here on were never used, or are free again */
    uint32_t bins[BINS]; /* free extents with 2^n to 2^(n+1) - 1 blocks */
    char *base;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct arena high = {.first = 0, .end = HIGH_BLOCKS};
static struct arena low = {.first = HIGH_BLOCKS, .end = BLOCKS, .top = HIGH_BLOCKS};
static struct extent *extents; /* [index of an extent's first block] */
static uint32_t *first_of;     /* [block] → 1 + index of its extent's first block; free extents: at both ends only */
static uint64_t next_buffer_id = 1;

bool heap_init(void) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *space = mmap(NULL, (HIGH_BLOCKS + 1) * BLOCK, PROT_NONE, flags, -1, 0);

    if (space == MAP_FAILED)
        return false;
    high.base = (char *)round_up((uintptr_t)space, BLOCK);
    extents = mmap(NULL, BLOCKS * sizeof(*extents), PROT_READ | PROT_WRITE, flags, -1, 0);
    first_of = mmap(NULL, BLOCKS * sizeof(*first_of), PROT_READ | PROT_WRITE, flags, -1, 0);
    return extents != MAP_FAILED && first_of != MAP_FAILED;
}

/* ---- Extents ---- */

static struct arena *arena_of(uint32_t index) {
    return index < HIGH_BLOCKS ? &high : &low;
}

static CUdeviceptr address_of(uint32_t index) {
    struct arena *arena = arena_of(index);

    return (CUdeviceptr)(uintptr_t)arena->base + (index - arena->first) * BLOCK;
}

static uint32_t index_of(const struct extent *extent) {
    return (uint32_t)(extent - extents);
}

CUdeviceptr heap_extent_address(const struct extent *extent) {
    return address_of(index_of(extent));
}

/* The block in which an address lies, or BLOCKS. */
static uint32_t block_at(CUdeviceptr address) {
    if (high.base != NULL && address - (uintptr_t)high.base < HIGH_BLOCKS * BLOCK)
        return (uint32_t)((address - (uintptr_t)high.base) / BLOCK);
    if (low.base != NULL && address - (uintptr_t)low.base < LOW_BLOCKS * BLOCK)
        return HIGH_BLOCKS + (uint32_t)((address - (uintptr_t)low.base) / BLOCK);
    return BLOCKS;
}

/* The extent that a block is part of; NULL if it is in none that is in use. */
static struct extent *extent_at(uint32_t block) {
    uint32_t first = block < BLOCKS ? first_of[block] : 0;
    struct extent *extent;

    if (first == 0)
        return NULL;
    extent = &extents[first - 1];
    return extent->kind > EXTENT_FREE && block - (first - 1) < extent->blocks ? extent : NULL;
}

static unsigned bin_of(uint32_t count) {
    return 31 - (unsigned)__builtin_clz(count);
}

static void bin_insert(uint32_t *head, struct extent *extent) {
    uint32_t self = index_of(extent) + 1;

    extent->bin_previous = 0;
    extent->bin_next = *head;
    if (*head != 0)
        extents[*head - 1].bin_previous = self;
    *head = self;
}

static void bin_remove(uint32_t *head, struct extent *extent) {
    if (extent->bin_previous != 0)
        extents[extent->bin_previous - 1].bin_next = extent->bin_next;
    else
        *head = extent->bin_next;
    if (extent->bin_next != 0)
        extents[extent->bin_next - 1].bin_previous = extent->bin_previous;
}

/* Marks blocks as one free extent, or as never used if nothing above them is used. */
static void add_free(struct arena *arena, uint32_t first, uint32_t blocks) {
    struct extent *extent = &extents[first];

    if (first + blocks == arena->top) {
        extent->kind = EXTENT_NONE;
        arena->top = first;
        return;
    }
    *extent = (struct extent){.blocks = blocks, .kind = EXTENT_FREE};
    first_of[first] = first_of[first + blocks - 1] = first + 1;
    bin_insert(&arena->bins[bin_of(blocks)], extent);
}

static void take_free(struct arena *arena, struct extent *extent) {
    bin_remove(&arena->bins[bin_of(extent->blocks)], extent);
    extent->kind = EXTENT_NONE;
}

static struct extent *find_free(struct arena *arena, uint32_t blocks) {
    for (unsigned bin = bin_of(blocks); bin < BINS; bin++) {
        uint32_t candidate = arena->bins[bin];

        for (int tries = 0; candidate != 0 && tries < BIN_TRIES; tries++) {
            if (extents[candidate - 1].blocks >= blocks)
                return &extents[candidate - 1];
            candidate = extents[candidate - 1].bin_next;
        }
    }
    return NULL;
}

static struct extent *extent_new(struct arena *arena, enum extent_kind kind, uint32_t blocks) {
    struct extent *extent = find_free(arena, blocks);
    uint32_t first;

    if (extent != NULL) {
        uint32_t rest = extent->blocks - blocks;

        first = index_of(extent);
        take_free(arena, extent);
        if (rest > 0)
            add_free(arena, first + blocks, rest);
    } else {
        if (arena->end - arena->top < blocks)
            return NULL;
        first = arena->top;
        arena->top += blocks;
    }
    for (uint32_t i = 0; i < blocks; i++)
        first_of[first + i] = first + 1;
    extents[first] = (struct extent){.blocks = blocks, .kind = (uint8_t)kind, .buffer_id = next_buffer_id++};
    return &extents[first];
}

static void extent_delete(struct extent *extent) {
    uint32_t first = index_of(extent), blocks = extent->blocks;
    struct arena *arena = arena_of(first);
    uint32_t before;

    if (extent->pack_kind == PACK_MANAGED)
        managed_forget(first, blocks);

    /* Fresh pages in the place of the old: the contents are gone and no address of them works any more. */
    if (extent->touched)
        mmap((void *)(uintptr_t)address_of(first), blocks * BLOCK, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    extent->kind = EXTENT_NONE;
    if (first + blocks < arena->top && extents[first + blocks].kind == EXTENT_FREE) {
        struct extent *after = &extents[first + blocks];

        blocks += after->blocks;
        take_free(arena, after);
    }
    before = first > arena->first ? first_of[first - 1] : 0;
    if (before != 0 && extents[before - 1].kind == EXTENT_FREE && before - 1 + extents[before - 1].blocks == first) {
        blocks += extents[before - 1].blocks;
        first = before - 1;
        take_free(arena, &extents[first]);
    }
    add_free(arena, first, blocks);
}

/* ---- A context's extents ---- */

static void list_insert(struct CUctx_st *context, struct extent *extent) {
    extent->context = context;
    extent->device = (int8_t)context->device;
    extent->list_previous = 0;
    extent->list_next = context->allocations;
    if (context->allocations != 0)
        extents[context->allocations - 1].list_previous = index_of(extent) + 1;
    context->allocations = index_of(extent) + 1;
}

static void list_remove(struct extent *extent) {
    if (extent->list_previous != 0)
        extents[extent->list_previous - 1].list_next = extent->list_next;
    else
        extent->context->allocations = extent->list_next;
    if (extent->list_next != 0)
        extents[extent->list_next - 1].list_previous = extent->list_previous;
}

/* ---- Ranges that are no context's ---- */

struct extent *heap_range_new(CUdevice device, enum extent_kind kind, uint64_t bytes, void *owner) {
    struct extent *extent = NULL;

    pthread_mutex_lock(&mutex);
    if (bytes <= HIGH_BLOCKS * BLOCK)
        extent = extent_new(&high, kind, (uint32_t)(round_up(bytes, BLOCK) / BLOCK));
    if (extent != NULL) {
        extent->device = (int8_t)device;
        extent->size = bytes;
        extent->owner = owner;
    }
    pthread_mutex_unlock(&mutex);
    return extent;
}

void heap_range_delete(struct extent *extent) {
    pthread_mutex_lock(&mutex);
    extent_delete(extent);
    pthread_mutex_unlock(&mutex);
}

void *heap_range_owner(CUdeviceptr address, enum extent_kind kind) {
    struct extent *extent;
    void *owner;

    pthread_mutex_lock(&mutex);
    extent = extent_at(block_at(address));
    owner = extent != NULL && extent->kind == kind ? extent->owner : NULL;
    pthread_mutex_unlock(&mutex);
    return owner;
}

CUresult heap_reserve_physical(int gpu, uint64_t bytes, const void *owner) {
    int fault = sim_fault_alloc_take(gpu), ret;

    if (fault != 0)
        return (CUresult)fault;
    ret = sim_reserve(gpu, bytes, owner);
    /* Its MIG instance was destroyed, or the GPU is in MIG mode now. */
    if (ret == -ENODEV)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    return ret != 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* ---- Packed blocks. Each hangs in its context's bin for the longest run that it may have free. ---- */

static void pack_file(struct extent *extent) {
    unsigned longest = pack_longest(extent->pack);

    if (longest > 0)
        bin_insert(&extent->context->packs[extent->pack_kind][bin_of(longest)], extent);
}

static void pack_unfile(struct extent *extent) {
    unsigned longest = pack_longest(extent->pack);

    if (longest > 0)
        bin_remove(&extent->context->packs[extent->pack_kind][bin_of(longest)], extent);
}

/* Tries to place an allocation in one of the context's packed blocks, of each bin so many. 0 if none has room. */
static CUdeviceptr pack_place_in(struct CUctx_st *context, enum pack_kind kind, uint64_t size, int most) {
    unsigned units = (unsigned)(round_up(size, PACK_UNIT) / PACK_UNIT);

    for (unsigned bin = bin_of(units); bin < PACK_BINS; bin++) {
        uint32_t candidate = context->packs[kind][bin], next;

        for (int tries = 0; candidate != 0 && tries < most; tries++, candidate = next) {
            struct extent *extent = &extents[candidate - 1];
            int unit;

            next = extent->bin_next;
            pack_unfile(extent);
            unit = pack_alloc(extent->pack, size);
            pack_file(extent);
            if (unit >= 0)
                return heap_extent_address(extent) + (unsigned)unit * PACK_UNIT;
        }
    }
    return 0;
}

/* In a few blocks, and in all before there is need of another. */
static CUdeviceptr pack_place(struct CUctx_st *context, enum pack_kind kind, uint64_t size) {
    CUdeviceptr address = pack_place_in(context, kind, size, 64);

    return address != 0 ? address : pack_place_in(context, kind, size, INT_MAX);
}

static bool low_arena_ready(void) {
    void *space;

    if (low.base != NULL)
        return true;
    space = mmap((void *)(uintptr_t)LOW_START, LOW_BLOCKS * BLOCK, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (space == MAP_FAILED)
        return false;
    if (space != (void *)(uintptr_t)LOW_START) {
        munmap(space, LOW_BLOCKS * BLOCK);
        return false;
    }
    low.base = space;
    return true;
}

/* An extent of the context's with `physical` bytes that were reserved already. */
static struct extent *context_extent(struct CUctx_st *context, enum extent_kind kind, enum pack_kind pack_kind,
                                     uint64_t size, uint64_t physical) {
    struct extent *extent;

    if (pack_kind == PACK_LOW && !low_arena_ready())
        return NULL;
    extent = extent_new(pack_kind == PACK_LOW ? &low : &high, kind, (uint32_t)(round_up(size, BLOCK) / BLOCK));
    if (extent == NULL)
        return NULL;
    extent->pack_kind = (uint8_t)pack_kind;
    extent->size = size;
    extent->physical = physical;
    if (kind == EXTENT_PACKED && (extent->pack = pack_new()) == NULL) {
        extent_delete(extent);
        return NULL;
    }
    /* Managed memory is the host's as much as the GPU's. */
    if (pack_kind == PACK_MANAGED) {
        extent->touched = 1;
        mprotect((void *)(uintptr_t)heap_extent_address(extent), extent->blocks * BLOCK, PROT_READ | PROT_WRITE);
        context_launches_anew(context);
    }
    list_insert(context, extent);
    return extent;
}

static CUresult alloc_packed(struct CUctx_st *context, uint64_t size, enum pack_kind kind, CUdeviceptr *address) {
    uint64_t physical = kind == PACK_MANAGED ? 0 : BLOCK;
    struct extent *extent = NULL;
    int fault = sim_fault_alloc_take(context_gpu(context));

    if (fault != 0)
        return (CUresult)fault;
    pthread_mutex_lock(&mutex);
    *address = pack_place(context, kind, size);
    pthread_mutex_unlock(&mutex);
    if (*address != 0)
        return CUDA_SUCCESS;
    if (sim_reserve(context_gpu(context), physical, address) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&mutex);
    /* Another thread may have made a block meanwhile; an empty one is not kept. */
    *address = pack_place(context, kind, size);
    if (*address == 0 && (extent = context_extent(context, EXTENT_PACKED, kind, BLOCK, physical)) != NULL) {
        sim_pass(address, extent);
        pack_file(extent);
        *address = pack_place(context, kind, size);
    }
    pthread_mutex_unlock(&mutex);
    if (extent == NULL)
        sim_release(context_gpu(context), physical, address);
    return *address != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Under no lock. `physical` was reserved already, by the owner `address`, and is given back on failure. */
static CUresult alloc_extent(struct CUctx_st *context, uint64_t size, uint64_t physical, enum pack_kind kind,
                             CUdeviceptr *address) {
    struct extent *extent = NULL;

    if (size <= HIGH_BLOCKS * BLOCK) {
        pthread_mutex_lock(&mutex);
        extent = context_extent(context, EXTENT_LINEAR, kind, size, physical);
        if (extent != NULL)
            sim_pass(address, extent);
        pthread_mutex_unlock(&mutex);
    }
    if (extent == NULL) {
        sim_release(context_gpu(context), physical, address);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = heap_extent_address(extent);
    return CUDA_SUCCESS;
}

/* Managed memory comes to the GPU when the GPU first touches it. */
static CUresult alloc_big(struct CUctx_st *context, uint64_t size, enum pack_kind kind, CUdeviceptr *address) {
    uint64_t physical = kind == PACK_MANAGED ? 0 : round_up(size, BLOCK);
    int fault = sim_fault_alloc_take(context_gpu(context));

    if (size > HIGH_BLOCKS * BLOCK)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (fault != 0)
        return (CUresult)fault;
    if (sim_reserve(context_gpu(context), physical, address) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return alloc_extent(context, size, physical, kind, address);
}

CUresult heap_alloc(struct CUctx_st *context, uint64_t size, enum pack_kind kind, CUdeviceptr *address) {
    CUresult ret;

    TRY(capture_unsafe());
    ret = size < SMALL ? alloc_packed(context, size, kind, address) : alloc_big(context, size, kind, address);

    if (ret == CUDA_SUCCESS)
        sim_count_allocation(context_gpu(context), 1);
    return ret;
}

CUresult heap_alloc_unbacked(struct CUctx_st *context, uint64_t size, CUdeviceptr *address) {
    CUresult ret = alloc_extent(context, size, 0, PACK_DEVICE, address);

    if (ret == CUDA_SUCCESS)
        sim_count_allocation(context_gpu(context), 1);
    return ret;
}

/* What is to be given back to the GPU. What was shared is not ours to give back. */
static uint64_t let_go_of_physical(struct extent *extent) {
    if (extent->object == 0)
        return extent->physical;
    sim_shared_drop(extent->object);
    extent->object = 0;
    return 0;
}

/* Under the mutex. How many bytes of which GPU and owner are free by it is for the caller to give back. */
static CUresult free_locked(CUdeviceptr address, int *gpu, uint64_t *physical, const void **owner) {
    struct extent *extent = extent_at(block_at(address));
    CUdeviceptr base;

    *owner = extent;
    if (extent == NULL || (extent->kind != EXTENT_LINEAR && extent->kind != EXTENT_PACKED))
        return CUDA_ERROR_INVALID_VALUE;
    base = heap_extent_address(extent);
    *gpu = driver->gpus[extent->device];
    *physical = 0;
    if (extent->kind == EXTENT_PACKED) {
        unsigned unit = (unsigned)((address - base) / PACK_UNIT);
        struct pack *pack = extent->pack;

        if ((address - base) % PACK_UNIT != 0 || pack_length(pack, unit) == 0)
            return CUDA_ERROR_INVALID_VALUE;
        pack_unfile(extent);
        pack_free(pack, unit);
        if (!pack_empty(pack)) {
            pack_file(extent);
            return CUDA_SUCCESS;
        }
        pack_delete(pack);
    } else if (address != base) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *physical = let_go_of_physical(extent);
    list_remove(extent);
    extent_delete(extent);
    return CUDA_SUCCESS;
}

CUresult heap_free(CUdeviceptr address) {
    const void *owner;
    uint64_t physical;
    CUresult ret;
    int gpu;

    if (heap_range_owner(address, EXTENT_POOL) != NULL)
        return pool_free(address, NULL);
    if (heap_range_owner(address, EXTENT_GRAPH) != NULL)
        return graph_memory_free(address);
    if (block_at(address) == BLOCKS)
        return range_free(address);

    pthread_mutex_lock(&mutex);
    ret = free_locked(address, &gpu, &physical, &owner);
    if (ret == CUDA_SUCCESS) {
        sim_release(gpu, physical, owner); /* before the address can be given out again */
        sim_count_allocation(gpu, -1);
    }
    pthread_mutex_unlock(&mutex);
    return ret;
}

static bool find_locked(CUdeviceptr address, struct allocation *allocation) {
    struct extent *extent = extent_at(block_at(address));
    CUdeviceptr base;
    unsigned start;

    if (extent == NULL)
        return false;
    base = heap_extent_address(extent);
    if (extent->kind == EXTENT_PACKED) {
        if (!pack_find(extent->pack, (unsigned)((address - base) / PACK_UNIT), &start))
            return false;
        *allocation = (struct allocation){
            .base = base + start * PACK_UNIT, .size = pack_size(extent->pack, start), .extent = extent};
    } else {
        *allocation = (struct allocation){.base = base, .size = extent->size, .extent = extent};
    }
    return address - allocation->base < allocation->size;
}

bool heap_find(CUdeviceptr address, struct allocation *allocation) {
    bool found;

    pthread_mutex_lock(&mutex);
    found = find_locked(address, allocation);
    pthread_mutex_unlock(&mutex);
    if (found && allocation->extent->kind == EXTENT_POOL)
        found = pool_find(address, allocation);
    return found || range_find(address, allocation);
}

bool heap_address(CUdeviceptr address) {
    return block_at(address) < BLOCKS || range_address(address);
}

/* Whether a range lies in one allocation. */
static bool range_locked(CUdeviceptr address, uint64_t size, struct allocation *allocation) {
    return find_locked(address, allocation) && size <= allocation->size - (address - allocation->base);
}

static uint32_t blocks_of(CUdeviceptr address, uint64_t size) {
    return block_at(address + (size > 0 ? size - 1 : 0)) - block_at(address) + 1;
}

bool heap_touch(CUdeviceptr address, uint64_t size) {
    struct allocation allocation;
    bool found, pooled;

    if (block_at(address) == BLOCKS)
        return range_touch(address, size);
    pthread_mutex_lock(&mutex);
    found = range_locked(address, size, &allocation);
    if (found && !allocation.extent->touched) {
        found = mprotect((void *)(uintptr_t)heap_extent_address(allocation.extent), allocation.extent->blocks * BLOCK,
                         PROT_READ | PROT_WRITE) == 0;
        allocation.extent->touched = found;
    }
    if (found && allocation.extent->pack_kind == PACK_MANAGED)
        managed_touch(block_at(address), blocks_of(address, size), allocation.extent->device);
    pooled = found && allocation.extent->kind == EXTENT_POOL;
    pthread_mutex_unlock(&mutex);
    if (pooled)
        found = pool_find(address, &allocation) && size <= allocation.size - (address - allocation.base);
    return found;
}

bool heap_managed_blocks(CUdeviceptr address, uint64_t size, heap_blocks_fn *fn, void *arg) {
    struct allocation allocation;
    bool found;

    pthread_mutex_lock(&mutex);
    found = range_locked(address, size, &allocation) && allocation.extent->pack_kind == PACK_MANAGED;
    if (found)
        fn(block_at(address), blocks_of(address, size), arg);
    pthread_mutex_unlock(&mutex);
    return found;
}

void heap_each_managed(struct CUctx_st *context, heap_blocks_fn *fn, void *arg) {
    pthread_mutex_lock(&mutex);
    for (uint32_t next = context->allocations; next != 0; next = extents[next - 1].list_next) {
        if (extents[next - 1].pack_kind == PACK_MANAGED)
            fn(next - 1, extents[next - 1].blocks, arg);
    }
    pthread_mutex_unlock(&mutex);
}

uint32_t heap_block_limit(void) {
    return BLOCKS;
}

/* ---- Sharing ---- */

/* From now on the object has the contents. Who writes to the memory while it is being exported may find that lost. */
static bool share_contents(struct extent *extent, uint64_t object) {
    void *address = (void *)(uintptr_t)heap_extent_address(extent);

    if (extent->touched && sim_shared_write(object, 0, address, extent->blocks * BLOCK) != 0)
        return false;
    extent->touched = 1;
    return sim_shared_map(object, 0, address, extent->blocks * BLOCK) == 0;
}

static CUresult share_locked(struct extent *extent) {
    uint64_t object;

    if (extent->object != 0)
        return CUDA_SUCCESS;
    REQUIRE(sim_shared_new(SIM_SHARED_IPC, driver->gpus[extent->device], extent->blocks * BLOCK, &object) == 0,
            CUDA_ERROR_OUT_OF_MEMORY);
    if (sim_shared_adopt(object, extent->physical, extent) != 0) {
        sim_shared_drop(object);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    extent->object = object;
    return share_contents(extent, object) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult heap_share(CUdeviceptr address, struct heap_shared *shared) {
    struct allocation allocation;
    CUresult ret = CUDA_ERROR_INVALID_VALUE;

    pthread_mutex_lock(&mutex);
    if (find_locked(address, &allocation) &&
        (allocation.extent->kind == EXTENT_LINEAR || allocation.extent->kind == EXTENT_PACKED) &&
        allocation.extent->pack_kind != PACK_MANAGED && allocation.extent->physical != 0)
        ret = share_locked(allocation.extent);
    if (ret == CUDA_SUCCESS)
        *shared = (struct heap_shared){allocation.extent->object,
                                       allocation.base - heap_extent_address(allocation.extent), allocation.size};
    pthread_mutex_unlock(&mutex);
    return ret;
}

void memory_context_gone(struct CUctx_st *context) {
    uint64_t physical = 0;
    int count = 0;

    external_context_gone(context);
    ranges_context_gone(context);
    pthread_mutex_lock(&mutex);
    while (context->allocations != 0) {
        struct extent *extent = &extents[context->allocations - 1];

        if (sim_has_charges())
            sim_release(context_gpu(context), let_go_of_physical(extent), extent);
        else
            physical += let_go_of_physical(extent);
        if (extent->kind == EXTENT_PACKED) {
            count += pack_count(extent->pack);
            pack_delete(extent->pack);
        } else {
            count++;
        }
        list_remove(extent);
        extent_delete(extent);
    }
    memset(context->packs, 0, sizeof(context->packs));
    sim_release(context_gpu(context), physical, NULL); /* before the addresses can be given out again */
    sim_count_allocation(context_gpu(context), -count);
    pthread_mutex_unlock(&mutex);
}
