/*
 * A mutex for the threads of one process. All zero is unlocked, so a lock may lie in memory that the kernel wipes on
 * fork: a child finds it unlocked, whatever the threads of its parent were doing.
 *
 * It is the C library's mutex: pthread_mutex_lock and pthread_mutex_unlock have a single symbol version, and libc.so.6
 * has always defined them. Before glibc 2.34 it forwards them to libpthread.so.0 if that is loaded, as the driver's
 * library requires; if it is not, the process has one thread.
 */
#ifndef TRANCHE_LOCK_H
#define TRANCHE_LOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

struct lock {
    pthread_mutex_t mutex;
};

static inline void lock_take(struct lock *lock) {
    pthread_mutex_lock(&lock->mutex);
}

static inline void lock_give(struct lock *lock) {
    pthread_mutex_unlock(&lock->mutex);
}

/*
 * The same for a lock that is held while the driver may call back into the program: the thread that holds it may take
 * it again.
 */
struct reentrant_lock {
    struct lock lock;
    _Atomic uintptr_t holder; /* 0: none */
    unsigned depth;           /* times that the holder took it again */
};

static inline uintptr_t lock_self(void) {
    return (uintptr_t)pthread_self();
}

static inline void reentrant_take(struct reentrant_lock *lock) {
    if (atomic_load_explicit(&lock->holder, memory_order_relaxed) == lock_self()) {
        lock->depth++;
        return;
    }
    lock_take(&lock->lock);
    atomic_store_explicit(&lock->holder, lock_self(), memory_order_relaxed);
}

static inline void reentrant_give(struct reentrant_lock *lock) {
    if (lock->depth != 0) {
        lock->depth--;
        return;
    }
    atomic_store_explicit(&lock->holder, 0, memory_order_relaxed);
    lock_give(&lock->lock);
}

#endif
