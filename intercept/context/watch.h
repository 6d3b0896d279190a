/* What the driver takes of a GPU during calls of which nobody can tell beforehand what they take. */
#ifndef TRANCHE_WATCH_H
#define TRANCHE_WATCH_H

#include "state/contexts.h"

struct watch {
    struct process *process;
    struct place place; /* the context in which it is taken */
    uint64_t used;      /* bytes of the claim, when it began */
    size_t free;        /* bytes of the GPU */
    bool known;         /* the driver could tell */
    bool pushed;        /* the context is current only meanwhile */
};

/*
 * Begins to watch a context's GPU, and makes the context current until the end. `context` 0 is the current one, or, if the thread
 * has none, any. False if there is none such. One thread of the process watches at a time: the caller holds the libraries' lock.
 */
bool watch_begin(struct watch *watch, struct process *process, uint32_t context);

/*
 * Bytes by which less of the GPU is free than at the beginning, and by which the claim gave back meanwhile: not less than was
 * taken, unless others outside of the claim freed memory at that moment. What others took counts as taken. More than any limit
 * if the driver cannot tell.
 */
uint64_t watch_taken(struct watch *watch);

/* Ends it. The context is then the one that was current before. */
void watch_end(struct watch *watch);

#endif
