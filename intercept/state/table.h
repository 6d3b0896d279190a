/*
 * A hash table from addresses and handles to their charges: open addressing with linear probing. Lookup, insertion and
 * removal take constant time. The caller holds a lock.
 */
#ifndef TRANCHE_TABLE_H
#define TRANCHE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Pages that are taken from a region's ledger, in this process's own slot or in a share. */
struct charge {
    uint32_t pages;
    uint16_t share; /* 1 + index of the share; 0: this process's own slot */
    uint8_t region : 7, spilled : 1;
    uint8_t gpu : 7, unpaid : 1; /* `unpaid`: imported memory whose owner is not of this claim */
};

struct entry {
    uint64_t key; /* 0: the entry is free */
    union {
        struct charge charge;
        uint64_t
            holds; /* in its place: the number of the physical memory (memory/physical.c), or a pool allocation's size */
    };
    uint32_t context;    /* serial number of the context that it lives in, or is; 0: none */
    uint32_t references; /* a count, or what the kind defines */
    uint64_t with;       /* a number, a handle or a size, as the kind defines */
};

/* The highest `bits` bits of a key's hash. Addresses and handles differ mostly in their middle bits; multiplying by
 * 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming, volume 3, section 6.4) carries these into
 * the highest. */
static inline uint64_t table_hash(uint64_t key, unsigned bits) {
    return key * UINT64_C(0x9e3779b97f4a7c15) >> (64 - bits);
}

/* All zero is an empty table. */
struct table {
    struct entry *entries;
    size_t capacity; /* a power of two, or 0 */
    size_t count;
};

/* The entry with this key, or NULL. Valid until the next put or remove. */
struct entry *table_find(struct table *table, uint64_t key);

/* Puts an entry whose key is not in the table. NULL when there is no memory for it. */
struct entry *table_put(struct table *table, struct entry entry);

/* Removes an entry that table_find returned. Afterwards another may be in its place. */
void table_remove(struct table *table, struct entry *entry);

#endif
