/* One block of 2 MiB into which small allocations are packed: which of its units are taken, and by what. */
#ifndef SIMGPU_PACK_H
#define SIMGPU_PACK_H

#include <stdbool.h>
#include <stdint.h>

#define PACK_UNIT 512u
#define PACK_UNITS 4096u

struct pack;

/* One of them is kept for reuse: the caller of these two holds a lock. */
struct pack *pack_new(void);
void pack_delete(struct pack *pack);

/* First unit of a new allocation of 1 to 1 MiB bytes, or -1. */
int pack_alloc(struct pack *pack, uint64_t size);
void pack_free(struct pack *pack, unsigned unit);

/* Units of the allocation that begins at the unit; 0 if none begins there. */
unsigned pack_length(const struct pack *pack, unsigned unit);
/* Its bytes, as asked for. */
uint64_t pack_size(const struct pack *pack, unsigned unit);

/* The allocation that a unit is part of. */
bool pack_find(const struct pack *pack, unsigned unit, unsigned *start);

/* No run of free units is longer than this. */
unsigned pack_longest(const struct pack *pack);
bool pack_empty(const struct pack *pack);
int pack_count(const struct pack *pack);

#endif
