/*
 * Threads that hesitate: in a crowd, some of the time, a worker's thread sleeps for a moment before it takes a mutex or after it
 * has given one. These are the mutexes of the driver and of what stands in front of it, which find our functions by the names of
 * the C library's. So what happens between two calls of the driver is as likely to be met by other threads as what takes long.
 */
#include "hesitate.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "random.h"

static __thread uint64_t state;
static __thread const _Atomic uint32_t *one_in;
static int (*real_lock)(pthread_mutex_t *);
static int (*real_unlock)(pthread_mutex_t *);

void hesitate(uint64_t seed, const _Atomic uint32_t *once_in) {
    state = seed;
    one_in = once_in;
}

static void maybe_sleep(void) {
    uint32_t once_in = one_in != NULL ? atomic_load_explicit(one_in, memory_order_relaxed) : 0;
    if (once_in == 0 || !random_once_in(&state, once_in))
        return;
    int error = errno;
    nanosleep(&(struct timespec){.tv_nsec = 1000 + (long)random_below(&state, 200000)}, NULL);
    errno = error;
}

__attribute__((constructor)) static void find_real(void) {
    *(void **)&real_lock = dlsym(RTLD_NEXT, "pthread_mutex_lock");
    *(void **)&real_unlock = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
}

int pthread_mutex_lock(pthread_mutex_t *mutex) {
    if (real_lock == NULL)
        find_real();
    maybe_sleep();
    return real_lock(mutex);
}

int pthread_mutex_unlock(pthread_mutex_t *mutex) {
    if (real_unlock == NULL)
        find_real();
    int result = real_unlock(mutex);
    maybe_sleep();
    return result;
}
