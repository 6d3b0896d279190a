/*
 * A mutual exclusion for the threads of one process. All zero is free, so it may lie in memory that the kernel wipes on fork;
 * and it needs nothing from the C library whose symbol versions moved.
 *
 * What it guards takes tens of nanoseconds, so two things matter where many threads meet. A thread that comes by may take
 * the lock before one that has slept for it, rather than wait until that one is on a processor again. And while one sleeper
 * has been woken and has not come to a result yet, nobody wakes another: else every lock_give would call the kernel.
 */
#ifndef TRANCHE_LOCK_H
#define TRANCHE_LOCK_H

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

struct lock {
    _Atomic uint32_t state; /* LOCK_HELD, LOCK_WAKING, and LOCK_SLEEPER for each thread that sleeps or is about to */
    _Atomic uint32_t wakes; /* counts wakes; what sleepers sleep on */
};

#define LOCK_HELD 1u
#define LOCK_WAKING 2u
#define LOCK_SLEEPER 4u
#define LOCK_SPINS 64

static inline void lock_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Takes the lock if it is free, at the same time changing the state by `change`. */
static inline bool lock_try(struct lock *lock, uint32_t clear, uint32_t subtract) {
    uint32_t state = atomic_load_explicit(&lock->state, memory_order_relaxed);
    return !(state & LOCK_HELD) &&
           atomic_compare_exchange_strong(&lock->state, &state, ((state | LOCK_HELD) & ~clear) - subtract);
}

static inline bool lock_spin(struct lock *lock, uint32_t clear, uint32_t subtract) {
    for (int i = 0; i < LOCK_SPINS; i++) {
        if (lock_try(lock, clear, subtract))
            return true;
        lock_pause();
    }
    return false;
}

static inline void lock_sleep(struct lock *lock) {
    int error = errno;
    uint32_t clear = 0;
    atomic_fetch_add(&lock->state, LOCK_SLEEPER);
    for (;;) {
        uint32_t wakes = atomic_load(&lock->wakes);
        /* If we were woken and failed, the next lock_give must wake somebody again. Whoever holds the lock when we look now
         * gives it after we are counted as a sleeper and LOCK_WAKING is gone, hence adds to `wakes` after we have read it. */
        if (clear)
            atomic_fetch_and(&lock->state, ~clear);
        if (atomic_load(&lock->state) & LOCK_HELD)
            syscall(SYS_futex, &lock->wakes, FUTEX_WAIT_PRIVATE, wakes, NULL, NULL, 0);
        clear = LOCK_WAKING;
        if (lock_spin(lock, clear, LOCK_SLEEPER))
            break;
    }
    errno = error;
}

static inline void lock_take(struct lock *lock) {
    if (!lock_try(lock, 0, 0) && !lock_spin(lock, 0, 0))
        lock_sleep(lock);
}

static inline void lock_wake(struct lock *lock, uint32_t state) {
    while (state >= LOCK_SLEEPER && !(state & (LOCK_HELD | LOCK_WAKING))) {
        if (!atomic_compare_exchange_weak(&lock->state, &state, state | LOCK_WAKING))
            continue;
        int error = errno;
        atomic_fetch_add(&lock->wakes, 1);
        syscall(SYS_futex, &lock->wakes, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        errno = error;
        return;
    }
}

static inline void lock_give(struct lock *lock) {
    uint32_t state = atomic_fetch_sub(&lock->state, LOCK_HELD) - LOCK_HELD;
    if (state >= LOCK_SLEEPER)
        lock_wake(lock, state);
}

#endif
