/* Contexts, and what is charged for them. What lives in a context ends with it, and is known by the context's serial number,
 * which is never used again. */
#ifndef TRANCHE_CONTEXTS_H
#define TRANCHE_CONTEXTS_H

#include "charge.h"

/* Where a thread's calls work: in its current context, on the GPU of that. A context that we have not seen being made has the
 * serial number 0. */
struct place {
    int gpu;
    uint32_t context;
};

/* The calling thread's place. Asks the driver first, so that what is wrong without us is said as without us. */
CUresult contexts_current(struct process **process, struct place *place);

/* The GPU alone; a device without a claim is an error here too. */
CUresult contexts_current_gpu(struct process **process, int *gpu);

/* A new context: granted on a device, with what the driver loads into every context, then created or not. */
struct context_grant {
    struct process *process;
    struct charge charge;
    struct place place; /* where it will be */
};

CUresult contexts_grant(struct context_grant *grant, CUdevice device);
CUresult contexts_created(const struct context_grant *grant, CUresult result, CUcontext context);

/* What one context costs on a device, for what is like one. */
CUresult contexts_take_cost(struct process **process, CUdevice device, struct charge *charge);

/* A context that is another view of one that is charged already: what is made in it lives in that. */
void contexts_alias(struct process *process, CUcontext context, CUcontext of);
void contexts_unalias(struct process *process, CUcontext context);

/* Its destruction: the serial number (0 if unknown) before the driver is asked, since it may hand the handle out again. */
uint32_t contexts_serial(struct process *process, CUcontext context);
void contexts_destroyed(struct process *process, CUcontext context, uint32_t serial);

/* A device's primary context. Between enter and leave, which bracket the driver's calls that create and destroy it, the
 * state that the driver reports for it does not change under us. */
CUresult contexts_primary_enter(struct process *process, CUdevice device);
void contexts_primary_leave(struct process *process, CUdevice device);
CUresult contexts_primary_retain(struct process *process, CUdevice device, CUcontext *context);
void contexts_primary_released(struct process *process, CUdevice device);
void contexts_primary_reset(struct process *process, CUdevice device);
CUcontext contexts_primary(struct process *process, CUdevice device);

/* Calls `visit` for every context that is charged, also for those that the driver is about to make. For as long as the caller
 * holds the lock of the libraries, none of them goes, and none comes that libraries_enter was not called for. */
void contexts_each(struct process *process, void (*visit)(uint32_t context, int gpu, void *argument), void *argument);

#endif
