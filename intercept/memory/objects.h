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

/* Records an object again that the driver refused to end. If its context ended or its key is in use again, it has ended. */
void objects_put_back(struct process *process, enum kind kind, struct entry entry);

/* Copies an object, or removes it. False if there is none. */
bool objects_find(struct process *process, enum kind kind, uint64_t key, struct entry *copy);
bool objects_remove(struct process *process, enum kind kind, uint64_t key, struct entry *copy);

/* Copies an object that matches, whatever its key. False if there is none. */
typedef bool objects_match(const struct entry *entry, uint64_t value);
bool objects_search(struct process *process, enum kind kind, objects_match *matches, uint64_t value,
                    struct entry *copy);

/* Removes one of the parts of a whole. False if there is none left. Its charge is not ended. A part has the key of its
 * whole as `with`, and these `references`. */
#define OBJECTS_PART 1
bool objects_remove_part(struct process *process, enum kind kind, uint64_t whole, struct entry *copy);

/* Removes an object if its `with` is this; `copy` may be NULL. False if there is none. Its charge is not ended. */
bool objects_remove_with(struct process *process, enum kind kind, uint64_t key, uint64_t with, struct entry *copy);

/* Adds to an object's `references`, and removes the object when they reach 0. False if there is none. */
bool objects_refer(struct process *process, enum kind kind, uint64_t key, int change, struct entry *copy);

/* Copies the next object of a kind. `at` is 0 at first. False if there are no more. One that is put or removed meanwhile
 * may make the others appear twice or not at all. */
bool objects_next(struct process *process, enum kind kind, size_t *at, struct entry *copy);

/* Replaces an object's charge and `with`, if they are still as they were `before`. False if not. */
bool objects_replace(struct process *process, enum kind kind, const struct entry *before, struct charge charge,
                     uint64_t with);

/* Ends every object of a context that ended. */
void objects_context_ended(struct process *process, uint32_t context);

/* A key for an object without a handle, from two numbers; never 0. It is a hash: of a million objects of one kind, two
 * have the same key with a probability of 2^-25. What has a handle, or is a whole of parts, is never known by a hash. */
static inline uint64_t objects_key(uint64_t a, uint64_t b) {
    uint64_t key = (a ^ (b * UINT64_C(0x9e3779b97f4a7c15))) * UINT64_C(0xff51afd7ed558ccd);
    key ^= key >> 32;
    return key != 0 ? key : 1;
}

#endif
