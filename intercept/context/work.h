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

/* Each begins to work in the current context, or in a stream's: enters its gate, if there is one. */
void work_enter(struct work *work);
void work_enter_for(struct work *work, CUstream stream);

/* Also removes contexts that have ended unseen, if a call has failed for want of its context. */
void work_leave(struct work *work);

/* Works in a context until the end of the block: declares `work`. */
#define WORK_IN_CONTEXT                                                                                                \
    __attribute__((cleanup(work_leave))) struct work work;                                                             \
    work_enter(&work)
#define WORK_IN_STREAM(stream)                                                                                         \
    __attribute__((cleanup(work_leave))) struct work work;                                                             \
    work_enter_for(&work, stream)

/* For a call that may take memory in the current context, and that needs none: CUDA_ERROR_OUT_OF_MEMORY if the cost of
 * the context does not fit. */
CUresult work_allowed(struct work *work);

/* The current context's GPU, also if the cost of the context does not fit. */
CUresult work_current_gpu(struct process **process, int *gpu);

#endif
