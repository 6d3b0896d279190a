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
 * A call that may make a pool grow: pools_try takes what the pool may grow by when `bytes` are allocated from it, if there is room
 * for that; then the pool was entered, too. pools_before takes the same, after pools were made smaller if need be, and pools_enter
 * and pools_leave bracket the driver's call; after it what was taken goes into the pool or back, and what was allocated is
 * written down.
 */
CUresult pools_try(struct process *process, struct pool *pool, uint64_t bytes, struct charge *growth);
CUresult pools_before(struct process *process, struct pool *pool, uint64_t bytes, struct charge *growth);
void pools_enter(struct pool *pool);

/* What the driver allocated: all zero is nothing, or it is not known. */
struct allocated {
    CUdeviceptr address;
    uint64_t bytes;
    bool of_graph; /* that is being recorded */
};
void pools_leave(struct process *process, struct pool *pool, struct charge *growth, struct allocated allocated);

/* The same bracket for a pool that may not grow: false if it has no place for `bytes` among what was freed in it and the streams
 * have come to; then it was not entered. Frees of other threads only make more room. */
bool pools_enter_for_room(struct process *process, struct pool *pool, uint64_t bytes);

/* Whether a pool holds no more than is charged for it. */
bool pools_is_covered(struct pool *pool);

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
bool pools_destroying(struct pool *pool); /* false if another thread is about that */
void pools_destroyed(struct process *process, struct pool *pool, CUresult result);

/* Makes a pool's memory outlive this process; the number that exported descriptors are to carry, or 0. */
uint32_t pools_share(struct process *process, struct pool *pool);

#endif
