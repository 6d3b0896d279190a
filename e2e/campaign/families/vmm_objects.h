/*
 * Physical memory of the virtual memory management, as this process knows it: what refers to it, and so what becomes of it
 * when one of these goes. Objects of the kinds KIND_HANDLE and KIND_OFFER name one by its number in `other`; so do the
 * mappings in a reservation, the bindings of a multicast object and the tiles of a sparse array.
 */
#ifndef CAMPAIGN_VMM_OBJECTS_H
#define CAMPAIGN_VMM_OBJECTS_H

#include "family.h"

enum { BINDINGS = 6, RESERVED_BLOCKS = 40, SPARSE_SIDE = 4, SPARSE_TILES = SPARSE_SIDE * SPARSE_SIDE };

struct binding {
    uint32_t memory; /* 0: none */
    int device;
    uint64_t offset, size;
};

struct memory {
    bool used;
    bool shared;    /* other processes may hold it too */
    bool multicast; /* takes nothing itself */
    bool host, tile_pool, exportable;
    int device, gpu;
    uint64_t size;
    uint32_t references; /* handles, mappings, bindings */
    struct binding bindings[BINDINGS];
};

/* By how much the claim's physical bytes have changed, at least and at most. */
struct change {
    int64_t least, most;
};

/* With one reference. 0: there are too many. */
uint32_t memory_new(struct memory memory);
struct memory *memory_at(uint32_t number);
void memory_hold(uint32_t number);
void memory_drop(uint32_t number, struct change *change);

/* Addresses set aside, and what is mapped there. Whoever has taken out the object may change it. */
struct reservation {
    bool used;
    uint64_t address;
    unsigned blocks;
    uint32_t memory[RESERVED_BLOCKS]; /* that is mapped from this block on; 0: none begins here */
    uint16_t length[RESERVED_BLOCKS]; /* in blocks */
};

uint32_t reservation_new(uint64_t address, unsigned blocks);
struct reservation *reservation_at(uint32_t number);

/* Arrays without memory of their own. They go with their context. */
struct sparse {
    bool used, deferred; /* of a deferred array, the first tile is all of it */
    uint32_t context;
    uint32_t memory[SPARSE_TILES];
};

uint32_t sparse_new(uint32_t context, bool deferred);
struct sparse *sparse_at(uint32_t number);
/* A tile shows other memory from now on, or none. */
void sparse_set(uint32_t number, unsigned tile, uint32_t memory, struct change *change);
void sparse_gone(uint32_t number, struct change *change);

#endif
