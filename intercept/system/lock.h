/*
 * A mutual exclusion for the threads of one process: the C library's. All zero is free, so it may lie in memory that the kernel
 * wipes on fork, and a child finds it free whatever the threads of its parent were about.
 *
 * pthread_mutex_lock and pthread_mutex_unlock have had one symbol version since the first glibc of an architecture, and libc.so.6
 * itself has always had them: before 2.34 it hands them on to libpthread.so.0 where that is loaded, as the driver's library needs
 * it, and there is nobody to exclude where it is not.
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
