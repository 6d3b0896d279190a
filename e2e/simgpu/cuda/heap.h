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

#include "driver.h"

struct pack;

enum extent_kind {
    EXTENT_NONE,
    EXTENT_FREE,
    EXTENT_LINEAR,
    EXTENT_PACKED,
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
    uint64_t size;     /* as asked for */
    uint64_t physical; /* bytes of the GPU's memory behind it */
    uint64_t buffer_id;
};

struct allocation {
    CUdeviceptr base;
    uint64_t size;
    struct extent *extent;
};

bool heap_init(void);

/* Device memory for a context: linear, managed, or with an address of 32 bits. */
CUresult heap_alloc(struct CUctx_st *context, uint64_t size, enum pack_kind kind, CUdeviceptr *address);
CUresult heap_free(CUdeviceptr address);

/* The allocation in which an address lies. */
bool heap_find(CUdeviceptr address, struct allocation *allocation);

/* Whether [address, address + size) lies in one allocation; makes its contents accessible. */
bool heap_touch(CUdeviceptr address, uint64_t size);

/* Whether an address lies where device addresses do, allocated or not. */
bool heap_address(CUdeviceptr address);

/* Physical memory of a GPU, with the faults that were ordered: CUDA_SUCCESS, or why not. */
CUresult heap_reserve_physical(int gpu, uint64_t bytes);

/* Where an extent begins. */
CUdeviceptr heap_extent_address(const struct extent *extent);

static inline uint64_t round_up(uint64_t value, uint64_t to) {
    return (value + to - 1) / to * to;
}

#endif
