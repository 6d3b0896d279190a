/*
 * A driver for tests of compute shares: streams whose work takes time, and no memory. Safe for threads. Linked with the
 * governed library's objects, in place of driver/real.c.
 */
#ifndef TRANCHE_TESTS_GOVERNOR_DRIVER_H
#define TRANCHE_TESTS_GOVERNOR_DRIVER_H

#include "../driver/cuda_api.h"

#include <stdbool.h>

#define DRIVER_DEVICES 2
extern const char *const driver_uuids[DRIVER_DEVICES];

/* A kernel that takes so many ns. */
#define KERNEL(ns) ((CUfunction)(uintptr_t)(ns))

/* A kernel that runs until driver_release. */
#define ENDLESS KERNEL(UINT64_C(1) << 62)
void driver_release(void);

/* Launches wait in the driver until this is false. */
extern _Atomic bool driver_holds;

/* A query of an event returns only when its work is done until this is false. */
extern _Atomic bool driver_dawdles;

/* What the library has done; `ended_events` counts uses of events whose context has ended, `most_ns` is the most work that a stream has had after a launch. */
extern struct driver_counts {
    _Atomic unsigned launches, held, captured, broken_captures, events, ended_events;
    _Atomic uint64_t most_ns;
} driver_counts;

/* When the work of all streams that there is now will be done. */
uint64_t driver_end(void);

#endif
