/*
 * cuInit, and contexts as far as the governor needs them, in the library that limits no memory.
 *
 * Contexts are not recorded: a queue has its context, and the driver reports which have ended. A GPU has a gate. It is closed
 * while a call may end a context there, so that no thread uses events that end with it; calls that create contexts are in it,
 * so that no context gets the handle of one whose queues are not forgotten yet.
 */
#include "governor/contexts.h"
#include "driver/cuda_real.h"
#include "governor/governor.h"
#include "governor/queues.h"
#include "state/visible.h"
#include "system/explain.h"

bool process_claims(struct claims *claims) {
    char why[REGION_WHY];
    if (claims_find(claims, region_identify, why))
        return true;
    explain(CAUSE_REGION, "this process does not compute in turns: %s", why);
    return false;
}

/* The driver limits memory, so a program runs without its claims too. */
CUresult cuInit(unsigned int flags) {
    struct process *process;
    bool open = process_open(&process) == CUDA_SUCCESS;
    CUresult result = process != NULL ? visible_init(process, flags) : REAL(cuInit)(flags);
    if (open && result == CUDA_SUCCESS)
        governor_start(process);
    return result;
}

/* --- for the governor --------------------------------------------------------------------------------------------- */

_Static_assert(GOVERNOR_GPUS_MAX - NO_GPU <= 1 << GATE_BITS, "a gate for each GPU, and one for those without a claim");

static struct gate *gate_of(struct process *process, int gpu) {
    return &process->contexts.gates[gpu - NO_GPU];
}

struct gate *contexts_hold(struct process *process, CUcontext context, int gpu) {
    struct gate *gate = gate_of(process, gpu);
    (void)context;
    return gate_try(gate) ? gate : NULL;
}

/* Calls `visit` for a device's primary context, if that is active. */
static void visit_primary(CUdevice device, int gpu, void (*visit)(CUcontext, int)) {
    CUcontext primary;
    unsigned int flags;
    int active = 0;
    if (REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS || !active ||
        REAL(cuDevicePrimaryCtxRetain)(&primary, device) != CUDA_SUCCESS)
        return;
    visit(primary, gpu);
    REAL(cuDevicePrimaryCtxRelease_v2)(device);
}

/* Explicit contexts have a queue from their creation on. Primary ones may come from a private table of the driver. */
void contexts_on(struct process *process, int gpu, void (*visit)(CUcontext, int)) {
    struct gate *gate = contexts_hold(process, NULL, gpu);
    for (CUdevice device = 0; gate != NULL && device < DEVICES_MAX; device++)
        if (queues_device_gpu(device) == gpu)
            visit_primary(device, gpu, visit);
    contexts_leave(&gate);
}

/* --- creation ----------------------------------------------------------------------------------------------------- */

static struct gate *enter_on(CUdevice device) {
    struct process *process = process_if_open();
    struct gate *gate = process != NULL ? gate_of(process, queues_device_gpu(device)) : NULL;
    if (gate != NULL)
        gate_enter(gate);
    return gate;
}

/* The context is current now. One with its handle may have ended by a call that is not shadowed. */
static CUresult created(struct gate *gate, CUresult result, const CUcontext *context) {
    contexts_leave(&gate);
    if (gate != NULL && result == CUDA_SUCCESS) {
        queues_context_ended(*context);
        queues_created(CU_STREAM_LEGACY);
    }
    return result;
}

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) {
    struct gate *gate = enter_on(device);
    return created(gate, REAL(cuCtxCreate)(context, flags, device), context);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    struct gate *gate = enter_on(device);
    return created(gate, REAL(cuCtxCreate_v2)(context, flags, device), context);
}

CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned int flags,
                        CUdevice device) {
    struct gate *gate = enter_on(device);
    return created(gate, REAL(cuCtxCreate_v3)(context, affinity, count, flags, device), context);
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *create, unsigned int flags, CUdevice device) {
    struct gate *gate = enter_on(device);
    return created(gate, REAL(cuCtxCreate_v4)(context, create, flags, device), context);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    struct gate *gate = enter_on(device);
    CUresult result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    contexts_leave(&gate);
    return result;
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

static void forget(CUcontext context, int gpu) {
    (void)gpu;
    queues_context_ended(context);
}

/* A primary context may have ended, and with it those of green contexts. */
static void forget_primary(CUdevice device, int gpu) {
    unsigned int flags;
    int active = 0;
    if (REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS || active)
        return;
    for (CUcontext context = NULL; (context = queues_next_context(gpu, context)) != NULL;)
        if (cuda_context_is_gone(context))
            forget(context, gpu);
}

static CUdevice device_of(CUcontext context) {
    CUdevice device = -1;
    CUcontext popped;
    if (context != NULL && REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS) {
        REAL(cuCtxGetDevice)(&device);
        REAL(cuCtxPopCurrent_v2)(&popped);
    }
    return device;
}

/* Destroys a context by `real`; one that was detached from is gone if the driver no longer knows its handle. */
static CUresult destroy(cuCtxDestroy_v2_function real, bool detaches, CUcontext context) {
    struct process *process = process_if_open();
    unsigned int version;
    if (process == NULL)
        return real(context);
    int gpu = queues_device_gpu(device_of(context));
    gate_close(gate_of(process, gpu));
    CUresult result = real(context);
    if (result == CUDA_SUCCESS && !(detaches && REAL(cuCtxGetApiVersion)(context, &version) == CUDA_SUCCESS))
        forget(context, gpu);
    gate_open(gate_of(process, gpu));
    return result;
}

CUresult cuCtxDestroy(CUcontext context) {
    return destroy(REAL(cuCtxDestroy), false, context);
}

CUresult cuCtxDestroy_v2(CUcontext context) {
    return destroy(REAL(cuCtxDestroy_v2), false, context);
}

CUresult cuCtxDetach(CUcontext context) {
    return destroy(REAL(cuCtxDetach), true, context);
}

/* A reset frees what lives in a primary context, whether or not that stays active. */
static CUresult end_primary(cuDevicePrimaryCtxRelease_function real, bool resets, CUdevice device) {
    struct process *process = process_if_open();
    int gpu = queues_device_gpu(device);
    if (process == NULL)
        return real(device);
    gate_close(gate_of(process, gpu));
    CUresult result = real(device);
    if (result == CUDA_SUCCESS)
        forget_primary(device, gpu);
    if (result == CUDA_SUCCESS && resets)
        visit_primary(device, gpu, forget);
    gate_open(gate_of(process, gpu));
    return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return end_primary(REAL(cuDevicePrimaryCtxRelease), false, device);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return end_primary(REAL(cuDevicePrimaryCtxRelease_v2), false, device);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    return end_primary(REAL(cuDevicePrimaryCtxReset), true, device);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return end_primary(REAL(cuDevicePrimaryCtxReset_v2), true, device);
}

/* It may be the last that retains the primary context. */
CUresult cuGreenCtxDestroy(CUgreenCtx green) {
    struct process *process = process_if_open();
    CUcontext view = NULL;
    if (process == NULL || REAL(cuCtxFromGreenCtx)(&view, green) != CUDA_SUCCESS)
        return REAL(cuGreenCtxDestroy)(green);
    CUdevice device = device_of(view);
    int gpu = queues_device_gpu(device);
    gate_close(gate_of(process, gpu));
    CUresult result = REAL(cuGreenCtxDestroy)(green);
    if (result == CUDA_SUCCESS) {
        forget(view, gpu);
        forget_primary(device, gpu);
    }
    gate_open(gate_of(process, gpu));
    return result;
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

CUresult cuStreamDestroy(CUstream stream) {
    queues_stream_ending(stream);
    return REAL(cuStreamDestroy)(stream);
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    queues_stream_ending(stream);
    return REAL(cuStreamDestroy_v2)(stream);
}
