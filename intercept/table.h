/*
 * A hash table from addresses and handles to what they are charged with. Open addressing with linear probing; looking up,
 * inserting and removing cost the same with one entry as with a hundred thousand. The caller holds a lock.
 *
 * Room is promised before the driver is called, so that whatever it returns can be written down.
 */
#ifndef TRANCHE_TABLE_H
#define TRANCHE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct entry {
    uint64_t key;        /* 0 is none */
    uint32_t pages;      /* charged with this entry itself */
    uint32_t context;    /* serial number of the context that it lives in, or is */
    uint32_t references; /* of a block: allocations in it */
    uint16_t region;     /* index of the region that is charged */
    uint16_t gpu;
};

/* All zero is an empty table. */
struct table {
    struct entry *entries;
    size_t capacity; /* a power of two, or 0 */
    size_t count;
    size_t promised;
};

/* Makes sure that one more entry can be put without fail. False when there is no memory for it. */
bool table_promise(struct table *table);

/* Gives a promise back that is not needed. */
void table_unpromise(struct table *table);

/* The entry with this key, or NULL. Valid until the next put or remove. */
struct entry *table_find(struct table *table, uint64_t key);

/* Puts an entry whose key is not in the table, against a promise. */
struct entry *table_put(struct table *table, struct entry entry);

/* Removes an entry that table_find returned. Afterwards another may be in its place. */
void table_remove(struct table *table, struct entry *entry);

#endif
