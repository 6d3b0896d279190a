/*
 * A gate is a readers-writer lock: any number of threads may be in it, or one thread has closed it. gate_close waits
 * for the threads that are in it and keeps others out. All zero is open, as in lock.h. The driver may call
 * back into the program while a thread has closed a gate: that thread may enter the gate, and close it again. A thread
 * that is in a gate must neither enter nor close it.
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
    _Atomic uintptr_t closer; /* the thread that has closed it; 0: none */
    unsigned nested;          /* times that it closed it again */
};

/* Replaced by tests/gate_test.c. */
#ifndef GATE_TAKE
#define GATE_TAKE(lock) lock_take(lock)
#define GATE_GIVE(lock) lock_give(lock)
#define GATE_WAIT(gate) pthread_cond_wait(&(gate)->changed, &(gate)->lock.mutex)
#define GATE_WAKE(gate) pthread_cond_broadcast(&(gate)->changed)
#define GATE_STEP() ((void)0)
#define GATE_SELF() lock_self()
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

static inline bool gate_is_ours(struct gate *gate) {
    return atomic_load_explicit(&gate->closer, memory_order_relaxed) == GATE_SELF();
}

static inline void gate_enter(struct gate *gate) {
    while (!gate_try(gate)) {
        if (gate_is_ours(gate)) {
            atomic_fetch_add(&gate->state, 1);
            return;
        }
        gate_wait_for(gate, GATE_SHUT);
    }
}

static inline void gate_close(struct gate *gate) {
    if (gate_is_ours(gate)) {
        gate->nested++;
        return;
    }
    GATE_TAKE(&gate->turn);
    GATE_STEP();
    atomic_fetch_or(&gate->state, GATE_SHUT);
    gate_wait_for(gate, ~GATE_SHUT);
    atomic_store_explicit(&gate->closer, GATE_SELF(), memory_order_relaxed);
}

static inline void gate_open(struct gate *gate) {
    if (gate->nested != 0) {
        gate->nested--;
        return;
    }
    atomic_store_explicit(&gate->closer, 0, memory_order_relaxed);
    GATE_STEP();
    atomic_fetch_and(&gate->state, ~GATE_SHUT);
    gate_changed(gate);
    GATE_GIVE(&gate->turn);
}

#endif
