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

#include "charge.h"

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

/*
 * A call that may make a pool grow: pools_before takes what the pool may grow by when `bytes` are allocated from it; with
 * `patience`, after pools were made smaller if need be. pools_enter and pools_leave bracket the driver's call; after it what
 * was taken goes into the pool or back. `fresh` is the address that was allocated, 0 if none was or it is not known.
 */
CUresult pools_before(struct process *process, struct pool *pool, uint64_t bytes, bool patience, struct charge *growth);
void pools_enter(struct pool *pool);
void pools_leave(struct process *process, struct pool *pool, struct charge *growth, CUdeviceptr fresh);

/* The same bracket for a pool that may not grow: false if it has no place for `bytes` among what was freed in it, as far as has
 * been waited for; then it was not entered. Frees of other threads only make more room. */
bool pools_enter_for_room(struct process *process, struct pool *pool, uint64_t bytes);

/* Waits for what was freed, half a second at most: a stream may be waiting for the caller, or be recorded at this moment. */
void pools_wait(struct process *process);

/* Whether a pool holds no more than is charged for it. */
bool pools_is_covered(struct process *process, struct pool *pool);

/* What was allocated from a pool, and freed. */
void pools_allocated(struct process *process, struct pool *pool, CUdeviceptr address, uint64_t bytes);
void pools_freed(struct process *process, CUdeviceptr address, CUstream stream);

/* Streams in which something was freed, for whoever has to wait for that; one that is destroyed; and a context with all of its. */
void pools_freed_in(struct process *process, CUstream stream);
void pools_stream_gone(struct process *process, CUstream stream);
void pools_context_gone(struct process *process, CUcontext context);

/* A pool's end: before the driver is asked, and after. What was allocated from it lives on. */
struct pool *pools_find(struct process *process, CUmemoryPool handle);
bool pools_destroying(struct pool *pool); /* false if another thread is about that */
void pools_destroyed(struct process *process, struct pool *pool, CUresult result);

/* Makes a pool's memory outlive this process; the number that exported descriptors are to carry, or 0. */
uint32_t pools_share(struct process *process, struct pool *pool);

#endif
