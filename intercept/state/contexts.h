/*
 * The CUDA contexts of this process: which exist, on which GPU each is, and which calls are working in them.
 *
 * A context has a serial number, which is never used again, unlike its handle. Whatever lives in a context is recorded
 * with the serial number and ends with the context. context/lifecycle.h creates and ends contexts.
 */
#ifndef TRANCHE_CONTEXTS_H
#define TRANCHE_CONTEXTS_H

#include "state/charge.h"

/* Where a call works: in a context, on that context's GPU. A context that is not recorded has the serial number 0. */
struct place {
    int gpu;
    uint32_t context; /* serial number */
};

/* The calling thread's place. Queries the driver first, so that the program gets the driver's own error where there is
 * one. A device without a claim is CUDA_ERROR_NOT_PERMITTED. A context that is not recorded is
 * CUDA_ERROR_OUT_OF_MEMORY: context/work.h would have recorded it if its cost fitted into the limit. */
CUresult contexts_current(struct process **process, struct place *place);

/* The same; a context that is not recorded is no error. */
CUresult contexts_current_if_known(struct process **process, struct place *place);

/* A recorded context's place. False if it is not recorded. */
bool contexts_find(struct process *process, CUcontext context, struct place *place);

/* A call that works in a context: see context/work.h. */
struct work {
    struct process *process; /* NULL: not open */
    CUcontext context;       /* NULL: none */
    struct place place;      /* looked up in the gate; all zero if the context is not recorded */
    struct gate *gate;       /* NULL: none was entered */
};

/* contexts_current for a call that works in the current context: queries the driver only if that is not recorded. */
static inline CUresult contexts_place(struct work *work) {
    return work->place.context != 0 ? CUDA_SUCCESS : contexts_current(&work->process, &work->place);
}

/* To be called with the driver's result: notes that the call failed since its context has ended. */
static inline void contexts_failed(struct process *process, CUresult result) {
    if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED)
        atomic_store(&process->contexts.lost, true);
}

/* Whether a stream handle names a default stream. Default streams have no handle of their own: NULL and
 * CU_STREAM_LEGACY are the current context's, CU_STREAM_PER_THREAD is the calling thread's. */
static inline bool contexts_is_default_stream(CUstream stream) {
    return (uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD;
}

/* Whether a context has not ended yet. Serial number 0 never ends. */
bool contexts_lives(struct process *process, uint32_t serial);

/* The handle of the context with this serial number. NULL if there is none, or if the driver has not created it yet. */
CUcontext contexts_handle(struct process *process, uint32_t serial);

/* Calls `visit` for every charged context, including those that the driver is about to create. While the caller holds
 * the libraries' lock, no context is removed, and none is added without a call of libraries_enter. */
void contexts_each(struct process *process, void (*visit)(uint32_t context, int gpu, void *argument), void *argument);

/* An alias is another handle for a context that is charged already (a green context's): what is made by it lives in
 * that one. */
void contexts_alias(struct process *process, CUcontext context, CUcontext of);
void contexts_unalias(struct process *process, CUcontext context);

/*
 * A call that takes memory in a context is "working" in it from before the memory is charged until all of it is
 * recorded. Ending the context, or creating a primary one, waits for those calls and keeps new ones out. So the records
 * of a context are complete when it ends, and nothing of the next context is recorded under the former.
 *
 * contexts_enter enters the gate of a call's context, and looks the context up there; false if it is not recorded.
 * contexts_try_enter does not wait. context/work.h has what most calls use.
 */
bool contexts_enter(struct work *work);
struct gate *contexts_try_enter(struct process *process, CUcontext context); /* NULL: it is being ended */
static inline void contexts_leave(struct gate **gate) {
    if (*gate != NULL)
        gate_leave(*gate);
}

/* Waits until the former context with this handle has been removed, if another thread is ending it. */
void contexts_await_end(struct process *process, CUcontext context);

/* --- for context/lifecycle.c -------------------------------------------------------------------------------------- */

/* The gate of a context's calls. Several contexts may share one. */
struct gate *contexts_gate(struct process *process, CUcontext context);

uint32_t contexts_new_serial(struct process *process);

/* The serial number of a context; 0 if it is unknown. That of an alias is 0 too: whatever ends under this handle, it is
 * not the context that the alias stands for. */
uint32_t contexts_serial(struct process *process, CUcontext context);

/* Records a context with its charge: first without a handle (NULL), while the driver is about to create it, then with
 * its handle, which replaces the former record, and an alias of the same handle. False if there is no memory for the record. */
bool contexts_put(struct process *process, CUcontext context, uint32_t serial, const struct charge *charge);

/* Removes a context that was recorded without a handle. */
void contexts_remove_pending(struct process *process, uint32_t serial);

/* Removes a context and its aliases. True if it was charged: then `charge` is to be given back. */
bool contexts_remove(struct process *process, uint32_t serial, struct charge *charge);

#endif
