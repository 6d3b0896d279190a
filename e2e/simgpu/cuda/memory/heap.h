/*
 * Device memory as a process sees it: addresses, and the physical memory behind them.
 *
 * Addresses come from an arena of address space that is reserved once, cut into blocks of 2 MiB. An extent is a run of
 * blocks: an allocation of its own if it has 1 MiB or more, else a block into which small allocations are packed, 512
 * bytes aligned, as the driver does; it goes back when its last allocation does. Contents exist from the first copy or
 * fill on; nothing else makes them resident on the host, so a GPU's 141 GiB cost the test machine nothing.
 *
 * A second, small arena lies below 4 GiB, for the entry points whose device pointers have 32 bits.
 */
#ifndef SIMGPU_HEAP_H
#define SIMGPU_HEAP_H

#include "cuda/driver.h"

struct pack;

enum extent_kind {
    EXTENT_NONE,
    EXTENT_FREE,
    EXTENT_LINEAR,
    EXTENT_PACKED,
    EXTENT_POOL,   /* a chunk of a memory pool, see pool_blocks.h */
    EXTENT_GRAPH,  /* what a graph allocates, see graph_memory.h */
    EXTENT_MAPPED, /* no blocks of ours: memory of vmm.h */
};

struct extent {
    uint32_t blocks;
    uint8_t kind;
    uint8_t pack_kind;
    uint8_t touched; /* has contents on the host */
    int8_t device;
    uint32_t list_previous, list_next; /* of the context's extents; 1 + index, 0 is none */
    uint32_t bin_previous, bin_next;   /* of the free extents, or packed blocks, of a size */
    struct CUctx_st *context;
    struct pack *pack; /* of a packed extent */
    void *owner;       /* of an extent that is no context's */
    uint64_t size;     /* as asked for */
    uint64_t physical; /* bytes of the GPU's memory behind it */
    uint64_t object;   /* of shared_objects.h that they have become, or 0 */
    uint64_t buffer_id;
};

struct allocation {
    CUdeviceptr base;
    uint64_t size;
    struct extent *extent;
    CUmemoryPool pool; /* NULL where it is none's */
    uint64_t id;       /* 0: see memory.c */
};

bool heap_init(void);

/* Device memory for a context: linear, managed, or with an address of 32 bits. */
CUresult heap_alloc(struct CUctx_st *context, uint64_t size, enum pack_kind kind, CUdeviceptr *address);
CUresult heap_free(CUdeviceptr address);

/*
 * Address space on blocks of its own for memory that is no context's: pools, graphs. What of it is allocated, and the
 * physical memory behind it, are the business of whoever has it made.
 */
struct extent *heap_range_new(CUdevice device, enum extent_kind kind, uint64_t bytes, void *owner);
void heap_range_delete(struct extent *extent);

/* The owner of the range of this kind in which an address lies, or NULL. */
void *heap_range_owner(CUdeviceptr address, enum extent_kind kind);

/* Makes the whole of what is behind an allocation of cuMemAlloc an object that other processes can hold. */
struct heap_shared {
    uint64_t object, offset, size; /* the allocation's place in it */
};
CUresult heap_share(CUdeviceptr address, struct heap_shared *shared);

/* The allocation in which an address lies. */
bool heap_find(CUdeviceptr address, struct allocation *allocation);

/* Whether [address, address + size) lies in one allocation; makes its contents accessible. */
bool heap_touch(CUdeviceptr address, uint64_t size);

/* The bytes at a device address; host memory that the driver knows will do as well. In copy.c. */
CUresult device_bytes(CUdeviceptr address, uint64_t size, char **bytes);

/* Whether an address lies where device addresses do, allocated or not. */
bool heap_address(CUdeviceptr address);

/* Physical memory of a GPU, with the faults that were ordered: CUDA_SUCCESS, or why not. */
CUresult heap_reserve_physical(int gpu, uint64_t bytes, const void *owner);

/* Address space without physical memory of its own, for what is mapped by hand. heap_free gives it back. */
CUresult heap_alloc_unbacked(struct CUctx_st *context, uint64_t size, CUdeviceptr *address);

/*
 * Calls fn, under the heap's lock, with the blocks in which the range of one managed allocation lies. False where the
 * range is not in one.
 */
typedef void heap_blocks_fn(uint32_t first, uint32_t count, void *arg);
bool heap_managed_blocks(CUdeviceptr address, uint64_t size, heap_blocks_fn *fn, void *arg);

/* The same for every managed extent of a context. */
void heap_each_managed(struct CUctx_st *context, heap_blocks_fn *fn, void *arg);

/* More than the index of any block. */
uint32_t heap_block_limit(void);

/* Where an extent begins. */
CUdeviceptr heap_extent_address(const struct extent *extent);

static inline uint64_t round_up(uint64_t value, uint64_t to) {
    return (value + to - 1) / to * to;
}

#endif
