/*
 * A gate: many may be in it at a time, or one who has closed it. Whoever closes it waits for those who are in it, and nobody enters
 * meanwhile. All zero is open, as in lock.h. Nobody enters a gate who is in it.
 *
 * To enter and leave takes one atomic operation each where nobody closes it. The C library's own lock of this kind has another
 * symbol version since glibc 2.34, and the shadow library runs with older ones. tests/gate_test.c goes through every order of its
 * steps.
 */
#ifndef TRANCHE_GATE_H
#define TRANCHE_GATE_H

#include "system/lock.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define GATE_SHUT (UINT32_C(1) << 31)

struct gate {
    _Atomic uint32_t state; /* how many are in it, or about to see that they may not; GATE_SHUT */
    struct lock turn;       /* of those who close it */
    struct lock lock;       /* of those who wait for another state */
    pthread_cond_t changed;
};

/* A test puts others in the place of these. */
#ifndef GATE_TAKE
#define GATE_TAKE(lock) lock_take(lock)
#define GATE_GIVE(lock) lock_give(lock)
#define GATE_WAIT(gate) pthread_cond_wait(&(gate)->changed, &(gate)->lock.mutex)
#define GATE_WAKE(gate) pthread_cond_broadcast(&(gate)->changed)
#define GATE_STEP() ((void)0)
#endif

/* Waits until none of these bits is set. */
static inline void gate_wait_for(struct gate *gate, uint32_t bits) {
    GATE_TAKE(&gate->lock);
    while ((GATE_STEP(), atomic_load(&gate->state) & bits) != 0)
        GATE_WAIT(gate);
    GATE_GIVE(&gate->lock);
}

/* Whoever has seen the former state has the lock until he waits. */
static inline void gate_changed(struct gate *gate) {
    GATE_TAKE(&gate->lock);
    GATE_WAKE(gate);
    GATE_GIVE(&gate->lock);
}

static inline void gate_leave(struct gate *gate) {
    if ((GATE_STEP(), atomic_fetch_sub(&gate->state, 1)) == (GATE_SHUT | 1))
        gate_changed(gate);
}

/* Without waiting. Whoever is in it already may do this. */
static inline bool gate_try(struct gate *gate) {
    if (((GATE_STEP(), atomic_fetch_add(&gate->state, 1)) & GATE_SHUT) == 0)
        return true;
    gate_leave(gate);
    return false;
}

static inline void gate_enter(struct gate *gate) {
    while (!gate_try(gate))
        gate_wait_for(gate, GATE_SHUT);
}

static inline void gate_close(struct gate *gate) {
    GATE_TAKE(&gate->turn);
    GATE_STEP();
    atomic_fetch_or(&gate->state, GATE_SHUT);
    gate_wait_for(gate, ~GATE_SHUT);
}

static inline void gate_open(struct gate *gate) {
    GATE_STEP();
    atomic_fetch_and(&gate->state, ~GATE_SHUT);
    gate_changed(gate);
    GATE_GIVE(&gate->turn);
}

#endif
