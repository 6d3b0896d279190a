/*
 * The memory of pools: chunks that were taken from a GPU, cut into blocks. A block that was freed in a stream can be
 * had in that stream at once, elsewhere when the GPU has got to the free; it stays the pool's until a synchronisation
 * finds the pool above its release threshold, or until somebody trims it.
 *
 * A pool is a device's, whatever becomes of contexts. All of it is under one mutex, which these functions take.
 */
#ifndef SIMGPU_POOL_BLOCKS_H
#define SIMGPU_POOL_BLOCKS_H

#include "cuda/work/stream.h"
#include "heap.h"

enum { POOL_BINS = 36 };

struct block;
struct chunk;

struct pool {
    CUmemoryPool handle; /* NULL once it was destroyed: it lives on until its last allocation is freed */
    CUdevice device;
    uint64_t object;      /* of shared_objects.h, that holds the memory of a pool for other processes too; or 0 */
    uint64_t next_offset; /* in the object's contents: that of the next chunk */
    bool imported;        /* from another process, whose the memory is: nothing is allocated from it here */
    CUmemPoolProps props;
    bool follow_events, opportunistic, internal_dependencies; /* which memory freed in other streams is used again */
    uint64_t threshold;
    uint64_t reserved, reserved_high, used, used_high; /* bytes */
    uint64_t blocks_in_use;
    uint8_t access[SIM_MAX_GPUS]; /* CUmemAccess_flags */
    struct chunk *chunks;
    struct block *bins[POOL_BINS];              /* free blocks, by size */
    struct block *pending_first, *pending_last; /* freed in a stream that has not got there yet, oldest first */
    struct pool *next;                          /* of all pools */
};

/* Takes over the caller's hold on the object, if there is one. */
struct pool *pool_new(CUdevice device, const CUmemPoolProps *props, uint64_t object, bool imported,
                      CUmemoryPool handle);

/* No more allocations; memory goes when the last one is freed. */
void pool_retire(struct pool *pool);

CUresult pool_alloc(struct pool *pool, struct CUstream_st *stream, uint64_t size, CUdeviceptr *address);

/* Frees in stream order, or, without a stream, at once. CUDA_ERROR_INVALID_VALUE if no allocation begins there. */
CUresult pool_free(CUdeviceptr address, struct CUstream_st *stream);

/* Where in the contents of which object an allocation lies. CUDA_ERROR_INVALID_VALUE if in none. */
CUresult pool_locate(CUdeviceptr address, uint64_t *object, uint64_t *offset, uint64_t *size);

/* Makes an allocation of another process accessible, through a pool that was imported. */
CUresult pool_import(struct pool *pool, uint64_t offset, uint64_t size, CUdeviceptr *address);

/* The allocation in which an address lies; for heap.c. */
bool pool_find(CUdeviceptr address, struct allocation *allocation);

/* Gives wholly unused chunks back as long as `keep` bytes remain. */
void pool_trim(struct pool *pool, uint64_t keep);

/* Frees all that was allocated from it, whoever still thinks to have it. */
void pool_clear(struct pool *pool);

/* Somebody waited for work of the device: pools above their threshold give back. */
void pools_synchronised(CUdevice device);

/* What changes or reads more than one word of a pool. */
void pool_lock(void);
void pool_unlock(void);

#endif
