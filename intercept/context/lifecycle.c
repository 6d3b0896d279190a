#include "context/lifecycle.h"

#include "context/libraries.h"
#include "driver/cuda_real.h"
#include "governor/governor.h"
#include "memory/allocations.h"
#include "memory/objects.h"
#include "memory/pools.h"
#include "memory/streams.h"
#include "state/gpus.h"
#include "system/explain.h"

CUresult context_take_cost(struct process **process, CUdevice device, struct charge *charge) {
    int gpu;
    CUresult result = gpus_open(process, device, &gpu);
    if (result != CUDA_SUCCESS)
        return result;

    uint64_t bytes = (*process)->claims.regions[gpu].context_bytes;
    uint64_t limit = claims_limit_bytes(&(*process)->claims, gpu);
    if (bytes > limit) {
        explain(
            CAUSE_CONTEXT_SIZE,
            "cannot create a CUDA context: it takes %llu MiB of GPU memory, but the limit is %llu MiB; request more",
            (unsigned long long)(bytes >> 20), (unsigned long long)(limit >> 20));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return pools_take(*process, gpu, region_pages(bytes), charge);
}

static void count_contexts(struct process *process, const struct charge *charge, int change) {
    region_count_contexts(&process->claims.regions[charge->region], change);
}

/* The driver did not create the context: gives back all that was taken for it. */
static void withdraw(const struct context_grant *grant) {
    struct process *process = grant->process;
    reentrant_take(&process->libraries);
    contexts_remove_pending(process, grant->place.context);
    objects_context_ended(process, grant->place.context);
    reentrant_give(&process->libraries);
    charge_give(process, &grant->charge);
}

CUresult context_grant(struct context_grant *grant, CUdevice device) {
    CUresult result = context_take_cost(&grant->process, device, &grant->charge);
    if (result != CUDA_SUCCESS)
        return result;
    struct process *process = grant->process;
    grant->place = (struct place){grant->charge.gpu, contexts_new_serial(process)};
    reentrant_take(&process->libraries);
    bool put = contexts_put(process, NULL, grant->place.context, &grant->charge);
    result = put ? libraries_enter(process, &grant->place) : CUDA_ERROR_OUT_OF_MEMORY;
    reentrant_give(&process->libraries);
    if (result != CUDA_SUCCESS)
        withdraw(grant);
    return result;
}

/* Gives back what lived in a context. Under the libraries' lock. */
static void drop_memory(struct process *process, uint32_t serial) {
    allocations_context_ended(process, serial);
    objects_context_ended(process, serial);
}

/* Removes the context first, so that objects_put_back does not record anything in it again. */
static bool drop(struct process *process, uint32_t serial) {
    struct charge charge;
    reentrant_take(&process->libraries);
    bool removed = contexts_remove(process, serial, &charge);
    if (removed) {
        charge_give(process, &charge);
        count_contexts(process, &charge, -1);
    }
    drop_memory(process, serial);
    reentrant_give(&process->libraries);
    return removed;
}

CUresult context_created(const struct context_grant *grant, CUresult result, CUcontext context) {
    struct process *process = grant->process;
    if (result != CUDA_SUCCESS || context == NULL) {
        withdraw(grant);
        return result;
    }
    uint32_t former = contexts_serial(process, context);
    if (former != 0) /* destroyed by a call that is not shadowed */
        drop(process, former);
    /* Without memory for the record, it stays charged until this process ends. */
    if (contexts_put(process, context, grant->place.context, &grant->charge))
        count_contexts(process, &grant->charge, 1);
    return result;
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

void context_ending(struct process *process, CUcontext context, struct context_end *end) {
    *end = (struct context_end){.process = context != NULL ? process : NULL, .context = context};
    if (end->process == NULL)
        return;
    end->gate = contexts_gate(process, context);
    gate_close(end->gate);
    end->serial = contexts_serial(process, context);
}

/* The context is removed by its serial number: the driver may have reused the handle meanwhile. */
void context_ended(const struct context_end *end, enum ended ended) {
    struct process *process = end->process;
    if (process == NULL)
        return;
    if (end->serial != 0 && ended == ENDED_CONTEXT) {
        drop(process, end->serial);
    } else if (end->serial != 0 && ended == ENDED_MEMORY) {
        reentrant_take(&process->libraries);
        drop_memory(process, end->serial);
        reentrant_give(&process->libraries);
    }
    if (ended == ENDED_CONTEXT)
        streams_context_ended(process, end->context);
    if (ended != ENDED_NOTHING)
        governor_context_ended(end->context);
    gate_open(end->gate);
}

static void remove_if_ended(uint32_t serial, int gpu, void *argument) {
    struct process *process = argument;
    CUcontext context = contexts_handle(process, serial);
    (void)gpu;
    if (context != NULL && cuda_context_is_gone(context) && drop(process, serial)) {
        streams_context_ended(process, context);
        governor_context_ended(context);
    }
}

void context_remove_ended(struct process *process) {
    contexts_each(process, remove_if_ended, process);
}

/* --- primary contexts --------------------------------------------------------------------------------------------- */

CUresult context_primary_enter(struct process *process, CUdevice device) {
    if (device < 0 || device >= DEVICES_MAX)
        return CUDA_ERROR_INVALID_DEVICE;
    reentrant_take(&process->contexts.lifecycles[device]);
    return CUDA_SUCCESS;
}

void context_primary_leave(struct process *process, CUdevice device) {
    reentrant_give(&process->contexts.lifecycles[device]);
}

static bool is_active(CUdevice device) {
    unsigned int flags;
    int active = 0;
    return REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS || active;
}

static void set_primary(struct process *process, CUdevice device, CUcontext primary, bool assumed) {
    process->contexts.primaries[device] = primary;
    process->contexts.assumed[device] = assumed;
}

/* Green contexts outlive their primary context: after a reset they are aliases of the next one. */
static void alias_green(struct process *process, CUdevice device, CUcontext primary) {
    struct entry known;
    CUcontext view;
    for (size_t at = 0; objects_next(process, KIND_GREEN_CONTEXT, &at, &known);) {
        CUgreenCtx green = (CUgreenCtx)(uintptr_t)known.key; /* NOLINT(performance-no-int-to-ptr) */
        if ((CUdevice)known.with == device && REAL(cuCtxFromGreenCtx)(&view, green) == CUDA_SUCCESS)
            contexts_alias(process, view, primary);
    }
}

void context_primary_assume(struct process *process, CUdevice device, CUcontext context) {
    if (process->contexts.primaries[device] != NULL || !is_active(device))
        return;
    set_primary(process, device, context, true);
    alias_green(process, device, context);
}

/* Before a reset, after which it does not matter that nobody else may have retained the primary context. */
void context_primary_identify(struct process *process, CUdevice device) {
    CUcontext primary;
    if (!process->contexts.assumed[device] || !is_active(device) ||
        REAL(cuDevicePrimaryCtxRetain)(&primary, device) != CUDA_SUCCESS)
        return;
    REAL(cuDevicePrimaryCtxRelease_v2)(device);
    set_primary(process, device, primary, false);
}

void context_primary_ending(struct process *process, CUdevice device, struct context_end *end) {
    context_ending(process, process->contexts.primaries[device], end);
}

void context_primary_ended(CUdevice device, const struct context_end *end, CUresult result, bool resets) {
    enum ended ended = ENDED_NOTHING;
    if (end->process != NULL && result == CUDA_SUCCESS && !is_active(device)) {
        bool other = end->process->contexts.assumed[device] && !cuda_context_is_gone(end->context);
        end->process->contexts.former_primaries[device] = end->context;
        set_primary(end->process, device, NULL, false);
        ended = other ? ENDED_NOTHING : ENDED_CONTEXT;
    } else if (result == CUDA_SUCCESS && resets) {
        ended = ENDED_MEMORY;
    }
    context_ended(end, ended);
}

/* A thread may have the former primary context's handle current, which the new one may get. So that handle's gate is
 * closed: no call works in the new context before it is recorded. */
static CUresult make_primary(struct process *process, CUdevice device, CUcontext *context) {
    struct contexts *contexts = &process->contexts;
    struct context_grant grant;
    struct context_end former;
    context_ending(process, contexts->former_primaries[device], &former);
    CUresult result = context_grant(&grant, device);
    if (result == CUDA_SUCCESS) {
        result = REAL(cuDevicePrimaryCtxRetain)(context, device);
        context_created(&grant, result, result == CUDA_SUCCESS ? *context : NULL);
    }
    if (result == CUDA_SUCCESS)
        set_primary(process, device, *context, false);
    context_ended(&former, ENDED_NOTHING);
    return result;
}

/* The creation of an active primary context may not have been seen. */
static CUresult retain_active(struct process *process, CUdevice device, CUcontext *context) {
    struct context_grant grant;
    struct place place;
    CUresult result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    if (result != CUDA_SUCCESS)
        return result;
    if (!contexts_find(process, *context, &place)) {
        result = context_grant(&grant, device);
        if (result != CUDA_SUCCESS) {
            REAL(cuDevicePrimaryCtxRelease_v2)(device);
            return result;
        }
        context_created(&grant, CUDA_SUCCESS, *context);
    }
    set_primary(process, device, *context, false);
    return result;
}

CUresult context_primary_retain(struct process *process, CUdevice device, CUcontext *context) {
    struct context_end end;
    CUresult result;
    if (is_active(device)) {
        result = retain_active(process, device, context);
    } else {
        context_primary_ending(process, device, &end); /* if there was one, it ended by a call that is not shadowed */
        context_primary_ended(device, &end, CUDA_SUCCESS, false);
        result = make_primary(process, device, context);
    }
    if (result == CUDA_SUCCESS)
        alias_green(process, device, *context);
    return result;
}
