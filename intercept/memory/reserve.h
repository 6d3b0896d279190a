/*
 * The charge of one block that a process keeps on a GPU as long as it has blocks of small allocations there. In a full
 * claim it covers the next small allocation, which may have a place in a block or not: only the driver knows that.
 *
 * A place is 1 + the region in which the reserve is taken; 0 is none. The number of blocks and the place are one word, so
 * that the last block and the reserve go together.
 */
#ifndef TRANCHE_RESERVE_H
#define TRANCHE_RESERVE_H

#include <stdatomic.h>

#include "state/process.h"

#define RESERVE_ONE_BLOCK UINT64_C(1)
#define RESERVE_PLACE_SHIFT 32

static inline uint32_t reserve_place(const struct reserve *reserve) {
    return (uint32_t)(atomic_load_explicit(&reserve->state, memory_order_relaxed) >> RESERVE_PLACE_SHIFT);
}

/* Adds blocks, and a place where there is none. Returns whether the place was put. */
static inline bool reserve_add(struct reserve *reserve, uint64_t blocks, uint32_t place) {
    uint64_t old = atomic_load_explicit(&reserve->state, memory_order_relaxed), new;
    bool put;
    do {
        put = place != 0 && old >> RESERVE_PLACE_SHIFT == 0 && (uint32_t)(old + blocks) != 0;
        new = old + blocks + (put ? (uint64_t)place << RESERVE_PLACE_SHIFT : 0);
    } while (new != old && !atomic_compare_exchange_weak(&reserve->state, &old, new));
    return put;
}

/* The block is not there any more. Returns the place of the reserve if that was the last one: it is to be given back. */
static inline uint32_t reserve_block_ended(struct reserve *reserve) {
    uint64_t old = atomic_load_explicit(&reserve->state, memory_order_relaxed), new;
    do
        new = (uint32_t)old == RESERVE_ONE_BLOCK ? 0 : old - RESERVE_ONE_BLOCK;
    while (!atomic_compare_exchange_weak(&reserve->state, &old, new));
    return new == 0 ? (uint32_t)(old >> RESERVE_PLACE_SHIFT) : 0;
}

/* Takes the reserve. One call at a time has it: until reserve_returned, if there was one. */
static inline uint32_t reserve_borrow(struct reserve *reserve) {
    lock_take(&reserve->lock);
    uint32_t place = (uint32_t)(atomic_fetch_and(&reserve->state, UINT32_MAX) >> RESERVE_PLACE_SHIFT);
    if (place == 0)
        lock_give(&reserve->lock);
    return place;
}

/* Puts it back. False if there is another or no block is left: it is to be given back. */
static inline bool reserve_returned(struct reserve *reserve, uint32_t place) {
    bool put = reserve_add(reserve, 0, place);
    lock_give(&reserve->lock);
    return put;
}

#endif
