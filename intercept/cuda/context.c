/* cuInit, and the creation, end and limits of contexts; see context/lifecycle.h and context/extra.h. */
#include "context/extra.h"
#include "context/lifecycle.h"
#include "context/work.h"
#include "driver/cuda_real.h"
#include "governor/governor.h"
#include "memory/objects.h"
#include "memory/pools.h"
#include "state/gpus.h"
#include "state/visible.h"

CUresult cuInit(unsigned int flags) {
    struct process *process;
    /* Opens the regions before the driver maps anything: see region_map_low in region/file.c. */
    CUresult result = process_open(&process);
    if (result == CUDA_SUCCESS)
        result = visible_init(process, flags);
    if (result == CUDA_SUCCESS)
        governor_start(process);
    return result;
}

/* Creates an explicit context by `call`, which stores it in `context`. */
#define CREATE(context, device, call)                                                                                  \
    do {                                                                                                               \
        struct context_grant grant;                                                                                    \
        CUresult result = context_grant(&grant, device);                                                               \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        gate_enter(&grant.process->contexts.creating);                                                                 \
        result = call;                                                                                                 \
        result = context_created(&grant, result, result == CUDA_SUCCESS ? *(context) : NULL);                          \
        gate_leave(&grant.process->contexts.creating);                                                                 \
        if (result == CUDA_SUCCESS)                                                                                    \
            contexts_await_end(grant.process, *(context));                                                             \
        return result;                                                                                                 \
    } while (0)

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) {
    CREATE(context, device, REAL(cuCtxCreate)(context, flags, device));
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    CREATE(context, device, REAL(cuCtxCreate_v2)(context, flags, device));
}

CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned int flags,
                        CUdevice device) {
    CREATE(context, device, REAL(cuCtxCreate_v3)(context, affinity, count, flags, device));
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *create, unsigned int flags, CUdevice device) {
    CREATE(context, device, REAL(cuCtxCreate_v4)(context, create, flags, device));
}

/* Destroys a context by `real`; one that was detached from is gone if the driver no longer knows its handle. Pools outlive
 * contexts, but frees may have been pending in the context's streams. */
static CUresult destroy(cuCtxDestroy_v2_function real, bool detaches, CUcontext context) {
    struct process *process = process_if_open();
    struct context_end end;
    unsigned int version;
    context_ending(process, context, &end);
    CUresult result = real(context);
    bool gone = result == CUDA_SUCCESS && !(detaches && REAL(cuCtxGetApiVersion)(context, &version) == CUDA_SUCCESS);
    context_ended(&end, gone ? ENDED_CONTEXT : ENDED_NOTHING);
    if (gone)
        pools_settle(process);
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

/* --- primary contexts --------------------------------------------------------------------------------------------- */

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    struct process *process;
    CUresult result = gpus_check(device);
    if (result == CUDA_SUCCESS)
        result = process_open(&process);
    if (result == CUDA_SUCCESS)
        result = context_primary_enter(process, device);
    if (result != CUDA_SUCCESS)
        return result;
    result = context_primary_retain(process, device, context);
    context_primary_leave(process, device);
    return result;
}

/* Releases or resets a primary context by `real`. */
static CUresult end_held(struct process *process, cuDevicePrimaryCtxRelease_function real, bool resets,
                         CUdevice device) {
    struct context_end end;
    if (resets)
        context_primary_identify(process, device);
    context_primary_ending(process, device, &end);
    CUresult result = real(device);
    context_primary_ended(device, &end, result, resets);
    return result;
}

static CUresult end_primary(cuDevicePrimaryCtxRelease_function real, bool resets, CUdevice device) {
    struct process *process = process_if_open();
    if (process == NULL || context_primary_enter(process, device) != CUDA_SUCCESS)
        return real(device);
    CUresult result = end_held(process, real, resets, device);
    context_primary_leave(process, device);
    if (result == CUDA_SUCCESS)
        pools_primary_ended(process);
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

/* --- green contexts: some of a GPU's processors; they share the primary context's memory -------------------------- */

/* Retains the primary context meanwhile, since the driver retains it too, and would create it if there is none. */
static CUresult create_green(struct process *process, CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device,
                             unsigned int flags, struct charge charge) {
    CUcontext primary;
    CUresult result = context_primary_enter(process, device);
    if (result != CUDA_SUCCESS)
        return result;
    result = context_primary_retain(process, device, &primary);
    if (result == CUDA_SUCCESS) {
        result = REAL(cuGreenCtxCreate)(green, resources, device, flags);
        end_held(process, REAL(cuDevicePrimaryCtxRelease_v2), false, device);
    }
    if (result == CUDA_SUCCESS)
        objects_put(process, KIND_GREEN_CONTEXT,
                    (struct entry){.key = (uintptr_t)*green, .charge = charge, .with = (uint64_t)device});
    context_primary_leave(process, device);
    if (result != CUDA_SUCCESS)
        pools_primary_ended(process);
    return result;
}

/* The driver does not report what a green context takes itself; the cost of a whole context is an upper bound. */
CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device, unsigned int flags) {
    struct process *process;
    struct charge charge;
    CUresult result = context_take_cost(&process, device, &charge);
    if (result != CUDA_SUCCESS)
        return result;
    result = create_green(process, green, resources, device, flags, charge);
    if (result != CUDA_SUCCESS)
        charge_give(process, &charge);
    return result;
}

/* Takes the lock of a green context's device, under which it does not end meanwhile. False if it is not known. */
static bool enter_green(struct process *process, CUgreenCtx green, CUdevice *device) {
    struct entry before, now;
    if (process == NULL || !objects_find(process, KIND_GREEN_CONTEXT, (uintptr_t)green, &before))
        return false;
    *device = (CUdevice)before.with;
    context_primary_enter(process, *device);
    bool same = objects_find(process, KIND_GREEN_CONTEXT, (uintptr_t)green, &now) && now.with == before.with;
    if (!same)
        context_primary_leave(process, *device);
    return same;
}

/* It may be the last that retains the primary context. Its view, and the record, are removed first, since the driver may
 * reuse the handles at once. */
static CUresult destroy_green(struct process *process, CUgreenCtx green, CUdevice device) {
    struct entry entry = {0};
    struct context_end end;
    CUcontext view = NULL;
    REAL(cuCtxFromGreenCtx)(&view, green);
    context_primary_ending(process, device, &end);
    contexts_unalias(process, view);
    objects_remove(process, KIND_GREEN_CONTEXT, (uintptr_t)green, &entry);
    CUresult result = REAL(cuGreenCtxDestroy)(green);
    context_primary_ended(device, &end, result, false);
    if (result == CUDA_SUCCESS) {
        charge_end(process, &entry.charge);
    } else {
        contexts_alias(process, view, process->contexts.primaries[device]);
        objects_put(process, KIND_GREEN_CONTEXT, entry);
    }
    return result;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green) {
    struct process *process = process_if_open();
    CUdevice device;
    if (!enter_green(process, green, &device))
        return REAL(cuGreenCtxDestroy)(green);
    CUresult result = destroy_green(process, green, device);
    context_primary_leave(process, device);
    if (result == CUDA_SUCCESS)
        pools_primary_ended(process);
    return result;
}

CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green) {
    struct process *process = process_if_open();
    CUdevice device;
    if (!enter_green(process, green, &device))
        return REAL(cuCtxFromGreenCtx)(context, green);
    CUresult result = REAL(cuCtxFromGreenCtx)(context, green);
    if (result == CUDA_SUCCESS)
        contexts_alias(process, *context, process->contexts.primaries[device]);
    context_primary_leave(process, device);
    return result;
}

/* --- limits that take memory -------------------------------------------------------------------------------------- */

/* Charges what a limit of so many bytes takes beyond the first cost of the context, which includes its first limits;
 * `first` is the limit now, when this is first called. */
static CUresult charge_limit(struct process *process, const struct place *place, CUlimit limit, size_t first,
                             size_t bytes) {
    if (limit == CU_LIMIT_STACK_SIZE)
        return context_extra_stack(process, place, bytes);
    enum extra extra = limit == CU_LIMIT_PRINTF_FIFO_SIZE ? EXTRA_PRINTF : EXTRA_HEAP;
    uint64_t base = context_extra_base(process, place, extra, first);
    return context_extra_set(process, place, extra, bytes > base ? bytes - base : 0);
}

/* More is taken before the limit is raised, less after it was lowered. Its value may differ from the requested one. */
static CUresult set_limit(struct process *process, const struct place *place, CUlimit limit, size_t value) {
    size_t before = 0;
    CUresult result = REAL(cuCtxGetLimit)(&before, limit);
    size_t now = value > before ? value : before;
    if (result == CUDA_SUCCESS)
        result = charge_limit(process, place, limit, before, now);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuCtxSetLimit)(limit, value);
    REAL(cuCtxGetLimit)(&now, limit);
    charge_limit(process, place, limit, before, now);
    return result;
}

/* Two threads may set one limit at once, so the lock is held over the driver's calls. */
CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    if ((unsigned)limit > CU_LIMIT_MALLOC_HEAP_SIZE)
        return REAL(cuCtxSetLimit)(limit, value);
    WORK_IN_CONTEXT;
    CUresult result = contexts_place(&work);
    if (result != CUDA_SUCCESS)
        return result;
    lock_take(&work.process->extras);
    result = set_limit(work.process, &work.place, limit, value);
    lock_give(&work.process->extras);
    return result;
}
