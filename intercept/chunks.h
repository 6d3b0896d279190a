/*
 * Where the memory of a pool lies: the pieces by which it grew. The driver does not tell whether an allocation will find a place
 * in a pool or make it grow; when it must not grow, this tells.
 */
#ifndef TRANCHE_CHUNKS_H
#define TRANCHE_CHUNKS_H

#include "process.h"

struct chunk {
    CUdeviceptr start;
    uint64_t bytes;
};

/* All zero is none. */
struct chunks {
    struct chunk *each;
    size_t count, room;
};

/* The size of an allocation as it is written down: in units of 512 bytes, as the driver aligns. */
#define CHUNKS_UNIT_SHIFT 9
uint32_t chunks_units(uint64_t bytes);

/* A pool grew by so much when this address was allocated. */
void chunks_add(struct chunks *chunks, CUdeviceptr address, uint64_t bytes);

/* Whether a place for `bytes` is free between the pool's living allocations. What is wholly free has been given back, and the
 * rest is `reserved`; if the two do not agree, nothing is known. */
bool chunks_have_room(struct chunks *chunks, struct process *process, const struct pool *pool, uint64_t reserved,
                      uint64_t bytes);

#endif
