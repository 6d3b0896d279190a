/*
 * Creating and ending CUDA contexts. A context is charged with what one costs before its first allocation, and with
 * what the driver loads into every context.
 *
 * Sources: "Context Management", "Primary Context Management" and "Green Contexts" in the CUDA driver API's
 * documentation.
 */
#ifndef TRANCHE_LIFECYCLE_H
#define TRANCHE_LIFECYCLE_H

#include "state/contexts.h"

/* A context that is about to be created and is charged already. */
struct context_grant {
    struct process *process;
    struct charge charge;
    struct place place; /* where it will be */
};

/* Before the driver creates a context on a device: takes what it will cost. CUDA_ERROR_OUT_OF_MEMORY if the claim has
 * no room. */
CUresult context_grant(struct context_grant *grant, CUdevice device);

/* After the driver answered with `result`: records the context, or gives back what was taken. Returns `result`. */
CUresult context_created(const struct context_grant *grant, CUresult result, CUcontext context);

/* Takes what one context costs on a device, without recording a context. */
CUresult context_take_cost(struct process **process, CUdevice device, struct charge *charge);

/* The end of a context: no call works in it between context_ending, before the driver is called, and context_ended,
 * after. */
struct context_end {
    struct process *process; /* NULL: the context is not known */
    CUcontext context;
    uint32_t serial; /* 0: unknown */
    struct gate *gate;
};
enum ended {
    ENDED_NOTHING, /* the context lives on */
    ENDED_MEMORY,  /* its memory was freed */
    ENDED_CONTEXT, /* it is gone */
};
void context_ending(struct process *process, CUcontext context, struct context_end *end);
void context_ended(const struct context_end *end, enum ended ended);

/* Removes the contexts that ended by calls that are not shadowed. */
void context_remove_ended(struct process *process);

/* A device's primary context. context_primary_enter takes the lock of the device's lifecycle, under which the driver is
 * called to create or end the primary context; so the state that the driver reports for it does not change meanwhile. */
CUresult context_primary_enter(struct process *process, CUdevice device);
void context_primary_leave(struct process *process, CUdevice device);

/* The following are called between enter and leave. */
CUresult context_primary_retain(struct process *process, CUdevice device, CUcontext *context);

/* A context of the device was adopted: see context/work.h. */
void context_primary_assume(struct process *process, CUdevice device, CUcontext context);

/* Finds the handle of an assumed one, before a reset. */
void context_primary_identify(struct process *process, CUdevice device);

/* Around a driver's call that may end the primary context; `resets`: that frees its memory in any case. */
void context_primary_ending(struct process *process, CUdevice device, struct context_end *end);
void context_primary_ended(CUdevice device, const struct context_end *end, CUresult result, bool resets);

#endif
