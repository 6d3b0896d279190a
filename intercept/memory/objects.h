/*
 * Objects: everything that is charged, except linear memory. An object is identified by its kind and a key, mostly a
 * handle. Each function takes the objects' lock.
 */
#ifndef TRANCHE_OBJECTS_H
#define TRANCHE_OBJECTS_H

#include "state/charge.h"

/* Records an object. If there is one of the same kind and key, it ended unseen, and its charge is ended. False if there
 * is no memory for the record: then the caller ends the charge. */
bool objects_put(struct process *process, enum kind kind, struct entry entry);

/* Records an object again that the driver refused to end. If its context ended meanwhile, so did the object. */
void objects_put_back(struct process *process, enum kind kind, struct entry entry);

/* Copies an object, or removes it. False if there is none. */
bool objects_find(struct process *process, enum kind kind, uint64_t key, struct entry *copy);
bool objects_remove(struct process *process, enum kind kind, uint64_t key, struct entry *copy);

/* Removes an object with these `references`, or this `with`, whatever its key. False if there is none. The charge is not
 * ended. */
bool objects_remove_one_of(struct process *process, enum kind kind, uint32_t references, struct entry *copy);
bool objects_remove_one_with(struct process *process, enum kind kind, uint64_t with, struct entry *copy);

/* Removes an object if its `with` is this. Its charge is not ended. */
bool objects_remove_with(struct process *process, enum kind kind, uint64_t key, uint64_t with);

/* Adds to an object's `references`, and removes the object when they reach 0. False if there is none. */
bool objects_refer(struct process *process, enum kind kind, uint64_t key, int change, struct entry *copy);

/* Copies the object of a kind with the number `at`, counted from 0. False if there are not so many. */
bool objects_at(struct process *process, enum kind kind, size_t at, struct entry *copy);

/* Replaces an object's charge and `with`, if they are still as they were `before`. False if not. */
bool objects_replace(struct process *process, enum kind kind, const struct entry *before, struct charge charge,
                     uint64_t with);

/* Ends every object of a context that ended. */
void objects_context_ended(struct process *process, uint32_t context);

/* A key for an object without a handle, from two numbers; never 0. */
static inline uint64_t objects_key(uint64_t a, uint64_t b) {
    uint64_t key = (a ^ (b * UINT64_C(0x9e3779b97f4a7c15))) * UINT64_C(0xff51afd7ed558ccd);
    key ^= key >> 32;
    return key != 0 ? key : 1;
}

/* The `references` of an object that is a part of another one: a hash of that one's key; never 0. */
static inline uint32_t objects_mark(uint64_t whole) {
    return (uint32_t)(objects_key(whole, 1) >> 32) | 1;
}

#endif
