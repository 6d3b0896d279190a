/* Contexts, and what is charged for them. What lives in a context ends with it, and is known by the context's serial number,
 * which is never used again. */
#ifndef TRANCHE_CONTEXTS_H
#define TRANCHE_CONTEXTS_H

#include "state/charge.h"

/* Where a thread's calls work: in its current context, on the GPU of that. A context that we have not seen being made has the
 * serial number 0. */
struct place {
    int gpu;
    uint32_t context;
};

/* The calling thread's place. Asks the driver first, so that what is wrong without us is said as without us. */
CUresult contexts_current(struct process **process, struct place *place);

/* The same for whoever knows which context is current; NULL if not. */
CUresult contexts_place(CUcontext current, struct process **process, struct place *place);

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

/* Whether a context has not ended yet. One that we have not seen being made never does. */
bool contexts_lives(struct process *process, uint32_t serial);

/*
 * A call that takes memory for what lives in a context works in that from before it takes it until all is written down. Whoever ends
 * a context, or makes the primary one, waits for those, and lets nobody work in it meanwhile: so what ends with a context is what
 * is written down for it, and nothing that is made in the next one is.
 */
struct gate *contexts_work(CUcontext *current);                                /* in the current one */
struct gate *contexts_work_for(CUstream stream);                               /* in the stream's context */
struct gate *contexts_try_to_work(struct process *process, CUcontext context); /* NULL: it is being ended */
void contexts_rest(struct gate **gate);

/* Until the end of the block. */
#define WORK(how) __attribute__((cleanup(contexts_rest), unused)) struct gate *gate_of_work = how
#define WORK_IN_CONTEXT                                                                                                \
    CUcontext current_at_work = NULL;                                                                                  \
    WORK(contexts_work(&current_at_work))
#define WORK_IN_STREAM(stream) WORK(contexts_work_for(stream))

/* Waits for whoever is ending the one that had a new one's handle before. */
void contexts_await_end(CUcontext context);

/* Ending one: nobody works in it between ending and ended. `ended` is whether it is gone, or has lost its memory at least. */
struct context_end {
    struct process *process; /* NULL: nothing is known of it */
    CUcontext context;
    uint32_t serial; /* 0: unknown */
    struct gate *gate;
};
enum ended { ENDED_NOTHING, ENDED_MEMORY, ENDED_CONTEXT };
void contexts_ending(struct process *process, CUcontext context, struct context_end *end);
void contexts_ended(const struct context_end *end, enum ended ended);

/* A device's primary context. Between enter and leave, which bracket the driver's calls that create and destroy it, the
 * state that the driver reports for it does not change under us. */
CUresult contexts_primary_enter(struct process *process, CUdevice device);
void contexts_primary_leave(struct process *process, CUdevice device);
CUresult contexts_primary_retain(struct process *process, CUdevice device, CUcontext *context);
CUcontext contexts_primary(struct process *process, CUdevice device);

/* What may end it, or end what is in it at least, which `resets` says, goes between these. */
void contexts_primary_ending(struct process *process, CUdevice device, struct context_end *end);
void contexts_primary_ended(CUdevice device, const struct context_end *end, CUresult result, bool resets);

/* The handle of a context by its serial number, or of any if that is 0. NULL if there is none, or it is only about to be made. */
CUcontext contexts_handle(struct process *process, uint32_t serial);

/* Calls `visit` for every context that is charged, also for those that the driver is about to make. For as long as the caller
 * holds the lock of the libraries, none of them is forgotten, and none comes that libraries_enter was not called for. */
void contexts_each(struct process *process, void (*visit)(uint32_t context, int gpu, void *argument), void *argument);

#endif
