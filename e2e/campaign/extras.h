/* What a context takes beyond what every context takes: code of modules, local memory of kernels, heaps. */
#ifndef CAMPAIGN_EXTRAS_H
#define CAMPAIGN_EXTRAS_H

#include "families/family.h"

enum extra_way {
    EXTRA_CODE,  /* size: bytes of the modules that are loaded */
    EXTRA_LOCAL, /* handle: the stack's limit; other: the most that a kernel needs whose handle was asked for; size: the
                     same of those that were launched */
    EXTRA_HEAP,  /* size: the limit's value */
    EXTRA_PRINTF, /* likewise */
};

#define DEFAULT_STACK KIB
#define DEFAULT_HEAP (8 * MIB)
#define DEFAULT_PRINTF MIB

/* The current context's, for its owner alone until it is put back. */
struct object extra_take(struct call *call, enum extra_way way);
void extra_put(struct call *call, struct object *extra);

/* What so many bytes for each thread take beyond the first KiB. */
uint64_t extra_local_bytes(const struct call *call, uint64_t bytes);
uint64_t extra_heap_bytes(const struct object *extra, uint64_t value);

static inline uint64_t larger_of(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* Takes all that the claim has left, and gives it back: whatever is not counted is now beyond the limit. */
void fill_claim(struct call *call);

#endif
