/*
 * Memory pools, and the memory of graphs, which is a pool of each device. A pool is charged with what the driver has
 * reserved for it, not with what is allocated from it.
 *
 * The driver reports the reserved size only afterwards. So before a call that may make a pool grow, the most that it
 * can grow by is taken from the claim. After the call the pool is settled: what the driver did not reserve is given
 * back. An allocation for which the pool certainly has a place (memory/holes.h) needs nothing. A pool that has shrunk
 * (mostly at a synchronisation) is settled at the next synchronisation, query of the free memory, or refused allocation.
 *
 * Each pool has a lock, which is held while the driver is called, except to launch graphs; the list of pools has another.
 *
 * Source: "Stream Ordered Memory Allocator", CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT and
 * CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT in the CUDA driver API's documentation.
 */
#ifndef TRANCHE_POOLS_H
#define TRANCHE_POOLS_H

#include "state/charge.h"

/* A pool grows by pieces of this size (observed, not documented), or by the size of the allocation. If a driver took
 * more, settling would charge it. */
#define POOLS_GROWTH_BYTES (UINT64_C(32) << 20)

enum pools_effort {
    POOLS_AT_ONCE,
    POOLS_WHAT_IS_FREE,  /* releases what pools hold unused */
    POOLS_AFTER_WAITING, /* first waits for pending frees */
    POOLS_EFFORTS
};

/* Has this process's pools on a GPU give back so many pages, and not many more. False if there was nothing to trim. */
bool pools_trim(struct process *process, int gpu, uint64_t pages, enum pools_effort effort);

/* Settles all pools. Costs one load if there are none. */
void pools_settle(struct process *process);

/* The record of the pool with this handle, or of a device's memory of graphs; made if need be. NULL if there is no
 * memory for it. */
struct pool *pools_memory(struct process *process, CUmemoryPool handle, CUdevice device, int gpu);
struct pool *pools_graphs(struct process *process, CUdevice device, int gpu);

/* The GPU whose memory a pool holds. */
int pools_gpu(const struct pool *pool);

/* Takes pages as charge_try and charge_try_like do. If the limit refuses, has this process's pools give back what they
 * do not use, and tries again. */
CUresult pools_take(struct process *process, int gpu, uint64_t pages, struct charge *charge);
CUresult pools_take_like(struct process *process, const struct charge *other, uint64_t pages, struct charge *charge);

/* Takes more pages into a charge, likewise: in the region where it lies, or anywhere on the GPU if it is empty. */
CUresult pools_extend(struct process *process, struct charge *charge, int gpu, uint64_t pages);

/* What is allocated, and where. */
struct pool_request {
    CUmemoryPool pool;
    uint64_t bytes;
    CUcontext context; /* the stream's */
    CUstream stream;
};

/*
 * Around a driver's call that allocates from a pool. pools_enter makes sure that there is a place in the pool or room for
 * it to grow, and on CUDA_SUCCESS holds the pool's lock until pools_leave. A pool that ends meanwhile is an invalid value. pools_leave settles the pool and records the
 * allocation (0: there is none). If it returns false, the pool grew beyond its room: the caller frees the allocation and
 * returns CUDA_ERROR_OUT_OF_MEMORY.
 */
CUresult pools_enter(struct process *process, struct pool *pool, const struct pool_request *request,
                     enum pools_effort effort);
bool pools_leave(struct process *process, struct pool *pool, const struct pool_request *request, CUdeviceptr address);

/* What a graph needs on one device, in pages. */
struct graph_need {
    uint64_t most; /* at once, in the course of a launch */
    uint64_t left; /* allocated when it has ended */
    bool counted;  /* a launch was recorded as having left that; under the lock of the device's memory of graphs */
};

/* The same for the memory of graphs, without the pool's lock: a launch may wait for work that calls back into the
 * program. pools_graphs_before takes what the driver may have to reserve beyond what it has; `runs`: it is launched, not
 * only uploaded. pools_graphs_after, with whether it was, settles the pool. */
CUresult pools_graphs_before(struct process *process, struct pool *pool, const struct graph_need *need, bool runs);
void pools_graphs_after(struct process *process, struct pool *pool, struct graph_need *need, bool launched);

/* Freeing memory of a pool: the first before the driver is called, the second with its result. False if the address is not
 * known to be a pool's. In stream order the pool's lock is held between them. Else it is not, since the driver's call may
 * wait for work that depends on other threads; `changes` is how often something was allocated from the pool, or that has
 * shrunk. */
bool pools_freeing_in_stream(struct process *process, CUdeviceptr address, struct entry *memory);
void pools_freed_in_stream(struct process *process, const struct entry *memory, CUcontext context, CUstream stream,
                           CUresult result);
bool pools_freeing(struct process *process, CUdeviceptr address, struct entry *memory, uint32_t *changes);
void pools_freed(struct process *process, const struct entry *memory, uint32_t changes, CUresult result);

/* A stream (NULL: any) has ended or is about to. */
void pools_stream_ended(struct process *process, CUstream stream);

/* A primary context ended, and with it the allocations from its device's default pool. */
void pools_primary_ended(struct process *process);

/* The driver returned an address for memory that is no pool's: a pool's memory that is recorded there no longer exists.
 * Costs one load if there is none. */
void pools_address_taken(struct process *process, CUdeviceptr address);

/* Destroying a pool: pools_destroying before the driver is called, pools_destroyed with its result. Its allocations
 * live on. */
struct pool *pools_find(struct process *process, CUmemoryPool handle);
bool pools_destroying(struct pool *pool); /* false if another thread does so already */
void pools_destroyed(struct process *process, struct pool *pool, CUresult result);

/* A pool is about to be exported: see charge_exporting. */
struct pool *pools_of(const struct entry *memory); /* by an allocation's record */
bool pools_exporting(struct process *process, struct pool *pool, struct charge *held);

#endif
