/*
 * Working in a context (state/contexts.h). The first call that works in a context whose creation was not seen adopts
 * it: it is charged as if it had just been created. NVIDIA's runtime library gets primary contexts so, from a private
 * table of the driver (cuGetExportTable). If the cost does not fit into the limit, calls that take memory in the
 * context are refused, and the next one tries again.
 *
 * The driver reports whether a device's primary context is active, not which handle it has. So the first context that
 * is adopted on a device whose active primary context is unknown is assumed to be that one, until the driver returns
 * the handle.
 */
#ifndef TRANCHE_WORK_H
#define TRANCHE_WORK_H

#include "state/contexts.h"

/* Each enters the gate of the current context, or of a stream's; NULL if there is none. */
struct gate *work_enter(CUcontext *current);
struct gate *work_enter_for(CUstream stream);

/* Also removes contexts that have ended unseen, if a call has failed for want of its context. */
void work_leave(struct gate **gate);

/* Works in a context until the end of the block. */
#define WORK(how) __attribute__((cleanup(work_leave), unused)) struct gate *gate_of_work = how
#define WORK_IN_CONTEXT                                                                                                \
    CUcontext current_at_work = NULL;                                                                                  \
    WORK(work_enter(&current_at_work))
#define WORK_IN_STREAM(stream) WORK(work_enter_for(stream))

/* For a call that may take memory in the current context, which may be NULL: CUDA_ERROR_OUT_OF_MEMORY if the cost of the
 * context does not fit. */
CUresult work_allowed(CUcontext current);

/* The current context's GPU, also if the cost of the context does not fit. */
CUresult work_current_gpu(struct process **process, int *gpu);

#endif
