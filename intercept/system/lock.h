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

struct lock {
    pthread_mutex_t mutex;
};

static inline void lock_take(struct lock *lock) {
    pthread_mutex_lock(&lock->mutex);
}

static inline void lock_give(struct lock *lock) {
    pthread_mutex_unlock(&lock->mutex);
}

#endif
