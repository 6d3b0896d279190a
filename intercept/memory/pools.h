/*
 * What the driver takes and gives back by its own lights: memory pools, and the memory of graphs. What such a pool has reserved
 * is what counts, not what was handed out of it.
 *
 * The driver says how much that is only afterwards. So before a call that may make a pool grow, as much is taken as it can grow
 * by; after it, the pool is settled: what it has not reserved is given back. What shrinks a pool (a synchronisation, mostly)
 * is seen when the pool is settled next: at a synchronisation, at a question for the free memory, at a refusal.
 */
#ifndef TRANCHE_POOLS_H
#define TRANCHE_POOLS_H

#include "state/charge.h"

enum pools_effort {
    POOLS_WHAT_IS_FREE,  /* gives back what pools hold unused */
    POOLS_AFTER_WAITING, /* waits for what is being freed at this moment, too */
    POOLS_EFFORTS
};

/* Makes this process's pools on a GPU smaller. Whether there are any. */
bool pools_trim(struct process *process, int gpu, enum pools_effort effort);

/* Settles all of them. Costs a load where there are none. */
void pools_settle(struct process *process);

/* The pool with this handle, and the memory of graphs on a device. NULL when there is no memory for it. */
struct pool *pools_memory(struct process *process, CUmemoryPool handle, CUdevice device, int gpu);
struct pool *pools_graphs(struct process *process, CUdevice device, int gpu);

/* The GPU whose memory a pool holds. */
int pools_gpu(const struct pool *pool);

/* Takes pages as charge_try and charge_try_like do. If the limit refuses, has this process's pools give back what they do not
 * use, and tries again. */
CUresult pools_take(struct process *process, int gpu, uint64_t pages, struct charge *charge);
CUresult pools_take_like(struct process *process, const struct charge *other, uint64_t pages, struct charge *charge);

/* Takes more pages into a charge, likewise: in the region where it lies, or anywhere on the GPU if it is empty. */
CUresult pools_extend(struct process *process, struct charge *charge, int gpu, uint64_t pages);

/*
 * A call that may make a pool grow, when `bytes` are allocated from it. pools_try makes sure that as much is taken as the pool may
 * grow by then, and on CUDA_SUCCESS holds the pool until pools_leave. pools_enter does the same after pools were made smaller if
 * need be. pools_leave counts what the pool grew by, and writes down what was allocated; it returns whether that may stay: if not,
 * the caller frees it and says that there is no memory.
 */
CUresult pools_try(struct process *process, struct pool *pool, uint64_t bytes);
CUresult pools_enter(struct process *process, struct pool *pool, uint64_t bytes);

/* What the driver allocated: all zero is nothing, or it is not known. */
struct allocated {
    CUdeviceptr address;
    bool of_graph; /* that is being recorded */
};
bool pools_leave(struct process *process, struct pool *pool, struct allocated allocated);

/* The same for the memory of graphs. A launch may need that of several devices: all of it is taken before any is entered. */
CUresult pools_graphs_before(struct process *process, struct pool *pool, uint64_t bytes, struct charge *growth);
void pools_graphs_enter(struct pool *pool);
void pools_graphs_leave(struct process *process, struct pool *pool, struct charge *growth);

/* The freeing of memory of a pool, before the driver is asked and after. Meanwhile its place is not known to be free, and another
 * thread may be given the same address. False if it is not a pool's, as far as is known. */
bool pools_freeing(struct process *process, CUdeviceptr address, struct entry *memory);
void pools_freed(struct process *process, const struct entry *memory, CUstream stream, CUresult result);

/* Memory of a pool goes with the address of that, and with these bits while it is being freed. */
#define POOLS_FREEING UINT64_C(0xfff)

/* A primary context ended, and with it what was in use of its device's default pool. */
void pools_primary_gone(struct process *process);

/* The driver gave other memory an address, so that what was there of a pool is no more, however it ended. Costs a load where
 * there is no pool's. */
void pools_address_taken(struct process *process, CUdeviceptr address);

/* A pool's end: before the driver is asked, and after. What was allocated from it lives on. */
struct pool *pools_find(struct process *process, CUmemoryPool handle);
bool pools_destroying(struct process *process, struct pool *pool); /* false if another thread is about that */
void pools_destroyed(struct process *process, struct pool *pool, CUresult result);

/* Makes a pool's memory outlive this process; the number that exported descriptors are to carry, or 0. */
uint32_t pools_share(struct process *process, struct pool *pool);

#endif
