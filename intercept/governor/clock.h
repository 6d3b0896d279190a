/* The monotonic clock, and sleeping, without a cancellation point. */
#ifndef TRANCHE_GOVERNOR_CLOCK_H
#define TRANCHE_GOVERNOR_CLOCK_H

#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_SECOND UINT64_C(1000000000)
#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_US UINT64_C(1000)

static inline uint64_t clock_now(void) {
    struct timespec time = {0};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * NS_PER_SECOND + (uint64_t)time.tv_nsec;
}

static inline struct timespec clock_span(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / NS_PER_SECOND), .tv_nsec = (long)(ns % NS_PER_SECOND)};
}

static inline void clock_sleep(uint64_t ns) {
    struct timespec span = clock_span(ns);
    syscall(SYS_nanosleep, &span, NULL);
}

static inline uint64_t clamp_ns(uint64_t ns, uint64_t least, uint64_t most) {
    return ns < least ? least : ns > most ? most : ns;
}

#endif
