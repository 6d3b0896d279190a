#include "context/work.h"

#include "context/lifecycle.h"
#include "driver/cuda_real.h"

/* Under the lock of the device's lifecycle, and while no explicit context is created: one that is created has a record
 * then, and another thread does not adopt it. */
static void adopt_on(struct process *process, CUdevice device, CUcontext context) {
    struct context_grant grant;
    struct place place;
    size_t free, total;
    gate_close(&process->contexts.creating);
    if (!contexts_find(process, context, &place) && REAL(cuMemGetInfo_v2)(&free, &total) == CUDA_SUCCESS &&
        context_grant(&grant, device) == CUDA_SUCCESS) {
        context_created(&grant, CUDA_SUCCESS, context);
        context_primary_assume(process, device, context);
    }
    gate_open(&process->contexts.creating);
}

/* The context is made current even if its handle is: this thread may have that of a former context. */
static void adopt(struct process *process, CUcontext context) {
    CUcontext pushed;
    CUdevice device;
    if (REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return;
    if (REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS && context_primary_enter(process, device) == CUDA_SUCCESS) {
        adopt_on(process, device, context);
        context_primary_leave(process, device);
    }
    REAL(cuCtxPopCurrent_v2)(&pushed);
}

/* A thread that adopts closes other gates, so it must not be in one. */
static void enter(struct work *work, CUcontext context) {
    *work = (struct work){.process = process_if_open(), .context = context};
    if (context == NULL || (work->process == NULL && process_open(&work->process) != CUDA_SUCCESS) ||
        contexts_enter(work))
        return;
    contexts_leave(&work->gate);
    adopt(work->process, context);
    contexts_enter(work);
}

void work_enter(struct work *work) {
    CUcontext current = NULL;
    enter(work, REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS ? current : NULL);
}

void work_enter_for(struct work *work, CUstream stream) {
    CUcontext context = NULL;
    if (contexts_is_default_stream(stream) || REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS)
        work_enter(work);
    else
        enter(work, context);
}

void work_leave(struct work *work) {
    contexts_leave(&work->gate);
    if (work->process != NULL && atomic_load_explicit(&work->process->contexts.lost, memory_order_relaxed) &&
        atomic_exchange(&work->process->contexts.lost, false))
        context_remove_ended(work->process);
}

CUresult work_allowed(struct work *work) {
    return work->context != NULL ? contexts_place(work) : CUDA_SUCCESS;
}

CUresult work_current_gpu(struct process **process, int *gpu) {
    CUcontext context = NULL;
    struct place place = {0};
    CUresult result = contexts_current_if_known(process, &place);
    if (result == CUDA_SUCCESS && place.context == 0 && REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS)
        adopt(*process, context);
    *gpu = place.gpu;
    return result;
}
