/*
 * Units of memory. Regions account in pages of 64 KiB. The GPU maps memory in blocks of 2 MiB (the granularity that
 * cuMemGetAllocationGranularity reports), so what is charged is a whole number of blocks.
 */
#ifndef TRANCHE_PAGES_H
#define TRANCHE_PAGES_H

#include "region/region.h"

#define BLOCK_SHIFT 21
#define BLOCK_BYTES (UINT64_C(1) << BLOCK_SHIFT)
#define BLOCK_PAGES (BLOCK_BYTES >> REGION_PAGE_SHIFT)

/* The pages of the blocks that hold so many bytes; at least one block's. A result too large for its type cannot occur
 * within any limit. */
static inline uint64_t pages_of(uint64_t bytes) {
    uint64_t blocks = (bytes >> BLOCK_SHIFT) + ((bytes & (BLOCK_BYTES - 1)) != 0);
    return (blocks ? blocks : 1) * BLOCK_PAGES;
}

/* a * b; UINT64_MAX if that overflows. */
static inline uint64_t product(uint64_t a, uint64_t b) {
    uint64_t result;
    return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

/* Adds to a sum, which becomes UINT64_MAX if it overflows. */
static inline void add_to(uint64_t *sum, uint64_t more) {
    if (__builtin_add_overflow(*sum, more, sum))
        *sum = UINT64_MAX;
}

#endif
