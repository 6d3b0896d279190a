/*
 * A gate is a readers-writer lock: any number of threads may be in it, or one thread has closed it. gate_close waits
 * for the threads that are in it and keeps others out. All zero is open, as in lock.h. It is not recursive: a thread
 * that is in a gate must not enter it again.
 *
 * Entering and leaving take one atomic operation each while no thread closes the gate. pthread_rwlock_t is not used,
 * since its functions have another symbol version since glibc 2.34. tests/gate_test.c runs every order of the steps.
 */
#ifndef TRANCHE_GATE_H
#define TRANCHE_GATE_H

#include "system/lock.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define GATE_SHUT (UINT32_C(1) << 31)

struct gate {
    _Atomic uint32_t state; /* threads in it, or about to see that it is closed; GATE_SHUT */
    struct lock turn;       /* one thread closes at a time */
    struct lock lock;       /* guards `changed` */
    pthread_cond_t changed;
};

/* Replaced by tests/gate_test.c. */
#ifndef GATE_TAKE
#define GATE_TAKE(lock) lock_take(lock)
#define GATE_GIVE(lock) lock_give(lock)
#define GATE_WAIT(gate) pthread_cond_wait(&(gate)->changed, &(gate)->lock.mutex)
#define GATE_WAKE(gate) pthread_cond_broadcast(&(gate)->changed)
#define GATE_STEP() ((void)0)
#endif

/* Waits until none of these bits of the state is set. */
static inline void gate_wait_for(struct gate *gate, uint32_t bits) {
    GATE_TAKE(&gate->lock);
    while ((GATE_STEP(), atomic_load(&gate->state) & bits) != 0)
        GATE_WAIT(gate);
    GATE_GIVE(&gate->lock);
}

/* Wakes the threads that wait. A thread that has seen the former state holds the lock until it waits, so none is
 * missed. */
static inline void gate_changed(struct gate *gate) {
    GATE_TAKE(&gate->lock);
    GATE_WAKE(gate);
    GATE_GIVE(&gate->lock);
}

static inline void gate_leave(struct gate *gate) {
    if ((GATE_STEP(), atomic_fetch_sub(&gate->state, 1)) == (GATE_SHUT | 1))
        gate_changed(gate);
}

/* Enters without waiting; false if the gate is closed. A thread that is in it already may call this. */
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
