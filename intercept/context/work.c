#include "context/work.h"

#include "context/lifecycle.h"
#include "driver/cuda_real.h"

static void adopt_unknown(struct process *process, CUdevice device, CUcontext context) {
    struct context_grant grant;
    size_t free, total;
    if (contexts_known(process, context) || REAL(cuMemGetInfo_v2)(&free, &total) != CUDA_SUCCESS ||
        context_grant(&grant, device) != CUDA_SUCCESS)
        return;
    context_created(&grant, CUDA_SUCCESS, context);
    context_primary_assume(process, device, context);
}

/* Under the lock of the device's lifecycle, and while no explicit context is created: one that is created has a record
 * then, and another thread does not adopt it. */
static void adopt_on(struct process *process, CUdevice device, CUcontext context) {
    gate_close(&process->contexts.creating);
    adopt_unknown(process, device, context);
    gate_open(&process->contexts.creating);
}

static void adopt(struct process *process, CUcontext context) {
    CUcontext current = NULL;
    CUdevice device;
    bool other = REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current != context;
    if (other && REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return;
    if (REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS && context_primary_enter(process, device) == CUDA_SUCCESS) {
        adopt_on(process, device, context);
        context_primary_leave(process, device);
    }
    if (other)
        REAL(cuCtxPopCurrent_v2)(&current);
}

static struct gate *enter(CUcontext context) {
    struct process *process;
    if (context == NULL || process_open(&process) != CUDA_SUCCESS)
        return NULL;
    if (!contexts_known(process, context))
        adopt(process, context);
    return contexts_enter(process, context);
}

struct gate *work_enter(CUcontext *current) {
    return REAL(cuCtxGetCurrent)(current) == CUDA_SUCCESS ? enter(*current) : NULL;
}

struct gate *work_enter_for(CUstream stream) {
    CUcontext context = NULL;
    if (contexts_is_default_stream(stream) || REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS)
        return work_enter(&context);
    return enter(context);
}

void work_leave(struct gate **gate) {
    struct process *process = process_if_open();
    contexts_leave(gate);
    if (process != NULL && atomic_load_explicit(&process->contexts.lost, memory_order_relaxed) &&
        atomic_exchange(&process->contexts.lost, false))
        context_remove_ended(process);
}

CUresult work_allowed(CUcontext current) {
    struct process *process;
    struct place place;
    return current != NULL ? contexts_place(current, &process, &place) : CUDA_SUCCESS;
}

CUresult work_current_gpu(struct process **process, int *gpu) {
    CUcontext context = NULL;
    struct place place = {0};
    CUresult result = contexts_place_if_known(NULL, process, &place);
    if (result == CUDA_SUCCESS && place.context == 0 && REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS)
        adopt(*process, context);
    *gpu = place.gpu;
    return result;
}
