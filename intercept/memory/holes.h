/*
 * What is free within the memory that the driver keeps for a pool, as far as this process knows for certain: the places of
 * allocations that it has freed, and the rest of what the pool grew by for an allocation. An allocation that fits into such a
 * hole does not make the pool grow.
 *
 * Until a stream has executed a free, the hole belongs to that stream: the driver gives it to no other, and does not join it
 * with its neighbours. Nothing is known of memory that was allocated or released in a way that was not seen, so the holes are
 * forgotten whenever the driver does what they do not explain.
 *
 * The caller holds the pool's lock.
 *
 * Source: "Stream Ordered Memory Allocator" in the CUDA programming guide, of the reuse within a stream. That the driver looks
 * for a place before it grows a pool, and that what it grows by begins with the allocation, is assumed: it is noticed if not.
 */
#ifndef TRANCHE_HOLES_H
#define TRANCHE_HOLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The driver allocates in units of this size. */
#define HOLES_UNIT UINT64_C(512)

/* Whose a hole is; else a stream, or the context of a default stream. */
#define HOLES_ANYONES UINT64_C(0)
#define HOLES_NOBODYS UINT64_C(1)

struct hole {
    uint64_t start, end;
    uint64_t owner;
    bool apart; /* what comes before it may be of another piece of memory */
};

/* All zero: nothing is known. Sorted by address. */
struct holes {
    struct hole *each;
    size_t count, room;
    size_t last; /* the one that was last added or taken from */
    bool owned;  /* some may not be anyone's */
};

/* Whether one of the holes nearest to the last one certainly holds so many bytes for an owner. `tries` bounds the search. */
bool holes_fit(const struct holes *holes, uint64_t bytes, uint64_t owner, size_t tries);

/* What became free. It is not known if there is no room for the record. */
void holes_add(struct holes *holes, struct hole hole);

/* What was allocated. False if not all of it was known to be free; else `apart` is set. */
bool holes_take(struct holes *holes, uint64_t start, uint64_t end, bool *apart);

/* All frees were executed: the holes are anyone's. */
void holes_executed(struct holes *holes);

/* An owner, or any (HOLES_ANYONES), has ended, and another may get its handle. */
void holes_owner_ended(struct holes *holes, uint64_t owner);

static inline void holes_forget(struct holes *holes) {
    holes->count = holes->last = 0;
    holes->owned = false;
}

#endif
