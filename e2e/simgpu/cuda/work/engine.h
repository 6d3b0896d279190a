/*
 * The work of this process on its GPUs, and when it is done.
 *
 * A GPU does a process's kernels one after another, in the order in which they were launched, whichever their stream;
 * so all that was submitted to a GPU is one line of nanoseconds of work, and a place on it, a mark, stands for
 * everything before. The GPU works for the process during its turns (sim_turn_book), which turn marks into times.
 * A launch lengthens the current turn if it can; where there is more work than one turn may hold, a thread books turn
 * after turn until all is done. Nothing here polls: who waits sleeps until the time that a mark has, or until it gets
 * one.
 */
#ifndef SIMGPU_ENGINE_H
#define SIMGPU_ENGINE_H

#include "cuda/driver.h"

/* Adds work; returns the mark at its end. Waits where as many kernels are under way as the driver's queue holds. */
uint64_t engine_submit(CUdevice device, uint64_t ns);

/* The mark at the end of all work so far. */
uint64_t engine_mark(CUdevice device);

bool engine_done(CUdevice device, uint64_t mark);
void engine_wait(CUdevice device, uint64_t mark);

/* Something that wants to know when a mark was reached. */
struct stamp {
    uint64_t mark;
    _Atomic uint64_t time_ns; /* CLOCK_MONOTONIC, may lie ahead; 0 while it is not known yet */
    struct stamp *next;
};

void engine_stamp(CUdevice device, struct stamp *stamp, uint64_t mark);
void engine_unstamp(CUdevice device, struct stamp *stamp);

/* Calls fn(arg) on the engine's thread once the mark is reached. False if there is no memory or thread for it. */
bool engine_call(CUdevice device, uint64_t mark, void (*fn)(void *arg), void *arg);

#endif
