/* Everything but linear memory that is charged: known by a kind and a handle. Each function takes the lock by itself. */
#ifndef TRANCHE_OBJECTS_H
#define TRANCHE_OBJECTS_H

#include "state/charge.h"

/* Writes one down. One of the same kind and handle went away without our seeing it: it is ended. False when there is no memory
 * for it: the caller ends its charge. */
bool objects_put(struct process *process, enum kind kind, struct entry entry);

/* Writes one down again that the driver did not end after all; if its context ended meanwhile, it did. */
void objects_put_back(struct process *process, enum kind kind, struct entry entry);

bool objects_find(struct process *process, enum kind kind, uint64_t key, struct entry *copy);
bool objects_remove(struct process *process, enum kind kind, uint64_t key, struct entry *copy);

/* Removes one with these `references`, whatever its handle. */
bool objects_remove_one_of(struct process *process, enum kind kind, uint32_t references, struct entry *copy);

/* Removes one only if it still goes with this, and without ending it. */
bool objects_remove_with(struct process *process, enum kind kind, uint64_t key, uint64_t with);

/* Removes all that go with this, without ending them; how many there were. */
size_t objects_remove_all_with(struct process *process, enum kind kind, uint64_t with);

/* Adds bits to what one goes with, if none of `mask` is set there; and takes those of `mask` out again, if it still goes with
 * this. False if there is none such. */
bool objects_flag(struct process *process, enum kind kind, uint64_t key, uint64_t mask, uint64_t bits,
                  struct entry *copy);
bool objects_unflag(struct process *process, enum kind kind, uint64_t key, uint64_t with, uint64_t mask);

/* Counts references up or down; at none it is removed. False if there is none such. */
bool objects_refer(struct process *process, enum kind kind, uint64_t key, int change, struct entry *copy);

/* Copies of those after the first `at`, as many as there are or room is. */
size_t objects_copy(struct process *process, enum kind kind, size_t at, struct entry *entries, size_t room);

/* Changes what one is charged with and goes with. False if there is none such any more. */
bool objects_update(struct process *process, enum kind kind, uint64_t key, struct charge charge, uint64_t with);

/* Changes what one is charged with, if that is still `before`. False if not. */
bool objects_recharge(struct process *process, enum kind kind, uint64_t key, const struct charge *before,
                      struct charge charge);

/* Gives back whatever lived in a context. */
void objects_context_gone(struct process *process, uint32_t context);

/* A key for what has no handle of its own: mixes two numbers; never 0. */
static inline uint64_t objects_key(uint64_t a, uint64_t b) {
    uint64_t key = (a ^ (b * UINT64_C(0x9e3779b97f4a7c15))) * UINT64_C(0xff51afd7ed558ccd);
    key ^= key >> 32;
    return key != 0 ? key : 1;
}

/* What one that is a part of something else remembers of that in its `references`; never 0. */
static inline uint32_t objects_mark(uint64_t whole) {
    return (uint32_t)(objects_key(whole, 1) >> 32) | 1;
}

#endif
