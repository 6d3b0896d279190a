/*
 * The contexts in which there may be outstanding work. The library that limits memory has recorded them (state/contexts.h);
 * the one that does not asks the driver (compute/contexts.c).
 */
#ifndef TRANCHE_GOVERNOR_CONTEXTS_H
#define TRANCHE_GOVERNOR_CONTEXTS_H

#include "state/contexts.h"

/* Keeps a context from ending until contexts_leave. Does not wait: NULL if it is being ended. `gpu` is an index in the page,
 * or NO_GPU. */
struct gate *contexts_hold(struct process *process, CUcontext context, int gpu);

/* Calls `visit` for every context of a GPU that has no queue yet for its legacy default stream. */
void contexts_on(struct process *process, int gpu, void (*visit)(CUcontext context, int gpu));

#endif
