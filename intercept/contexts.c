#include "contexts.h"

#include "allocations.h"
#include "cuda_real.h"
#include "explain.h"
#include "gpus.h"
#include "libraries.h"
#include "objects.h"

/* --- the current one ----------------------------------------------------------------------------------------------- */

static struct hint *hint_of(struct contexts *contexts, CUcontext context) {
    return &contexts->hints[((uintptr_t)context * UINT64_C(0x9e3779b97f4a7c15)) >> 61];
}

_Static_assert(HINTS == 8, "the highest three bits name a hint");

static void set_hint(struct contexts *contexts, CUcontext context, const struct place *place) {
    struct hint *hint = hint_of(contexts, context);
    uint32_t version = atomic_load_explicit(&hint->version, memory_order_relaxed);
    atomic_store(&hint->version, version + 1);
    atomic_store(&hint->context, (uintptr_t)(place != NULL ? context : NULL));
    atomic_store(&hint->gpu, place != NULL ? place->gpu : NO_CLAIM);
    atomic_store(&hint->serial, place != NULL ? place->context : 0);
    atomic_store(&hint->version, version + 2);
}

static bool read_hint(struct contexts *contexts, CUcontext context, struct place *place) {
    struct hint *hint = hint_of(contexts, context);
    uint32_t version = atomic_load(&hint->version);
    bool found = version % 2 == 0 && atomic_load(&hint->context) == (uintptr_t)context;
    *place = (struct place){atomic_load(&hint->gpu), atomic_load(&hint->serial)};
    return found && atomic_load(&hint->version) == version;
}

static bool find(struct contexts *contexts, CUcontext context, struct place *place) {
    lock_take(&contexts->lock);
    const struct entry *known = table_find(&contexts->table, (uintptr_t)context);
    if (known != NULL) {
        *place = (struct place){known->charge.gpu, known->context};
        set_hint(contexts, context, place);
    }
    lock_give(&contexts->lock);
    return known != NULL;
}

CUresult contexts_current(struct process **process, struct place *place) {
    CUcontext context = NULL;
    CUresult result = REAL(cuCtxGetCurrent)(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    result = process_open(process);
    if (result != CUDA_SUCCESS || read_hint(&(*process)->contexts, context, place) ||
        find(&(*process)->contexts, context, place))
        return result;
    CUdevice device;
    *place = (struct place){0};
    result = REAL(cuCtxGetDevice)(&device);
    return result != CUDA_SUCCESS ? result : gpus_find_claimed(*process, device, &place->gpu);
}

CUresult contexts_current_gpu(struct process **process, int *gpu) {
    struct place place;
    CUresult result = contexts_current(process, &place);
    *gpu = place.gpu;
    return result;
}

/* --- their life ----------------------------------------------------------------------------------------------------- */

CUresult contexts_take_cost(struct process **process, CUdevice device, struct charge *charge) {
    int gpu;
    CUresult result = gpus_check(device); /* the driver's word first: not initialised, no such device */
    if (result == CUDA_SUCCESS)
        result = process_open(process);
    if (result == CUDA_SUCCESS)
        result = gpus_find_claimed(*process, device, &gpu);
    if (result != CUDA_SUCCESS)
        return result;

    uint64_t bytes = claims_context_bytes(&(*process)->claims, gpu);
    uint64_t limit = claims_limit_bytes(&(*process)->claims, gpu);
    if (bytes > limit) {
        explain(CAUSE_CONTEXT_SIZE,
                "a CUDA context takes %llu MiB of GPU memory, but the limit is %llu MiB; ask for more",
                (unsigned long long)(bytes >> 20), (unsigned long long)(limit >> 20));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uint64_t page = UINT64_C(1) << REGION_PAGE_SHIFT;
    return charge_take(*process, gpu, (bytes + page - 1) >> REGION_PAGE_SHIFT, charge);
}

static void count_contexts(struct process *process, const struct charge *charge, int change) {
    struct region *region = &process->claims.regions[charge->region];
    region_count_contexts(region, change);
}

static uint32_t next_serial(struct contexts *contexts) {
    lock_take(&contexts->lock);
    if (++contexts->last_serial == 0)
        contexts->last_serial = 1;
    uint32_t serial = contexts->last_serial;
    lock_give(&contexts->lock);
    return serial;
}

/* A context that has no handle yet, by its serial number: no address begins with that bit alone. */
static uint64_t key_without_handle(uint32_t serial) {
    return UINT64_C(1) << 63 | serial;
}

/* Puts a context into the table, in place of itself without a handle. */
static bool put_context(struct contexts *contexts, const struct context_grant *grant, uint64_t key) {
    lock_take(&contexts->lock);
    struct entry *without = table_find(&contexts->table, key_without_handle(grant->place.context));
    if (without != NULL)
        table_remove(&contexts->table, without);
    bool put = key != 0 &&
               table_put(&contexts->table,
                         (struct entry){.key = key, .charge = grant->charge, .context = grant->place.context}) != NULL;
    lock_give(&contexts->lock);
    return put;
}

/* Of one that was not made: nothing is left. */
static void withdraw(const struct context_grant *grant) {
    struct process *process = grant->process;
    lock_take(&process->libraries);
    put_context(&process->contexts, grant, 0);
    objects_context_gone(process, grant->place.context);
    lock_give(&process->libraries);
    charge_give(process, &grant->charge);
}

CUresult contexts_grant(struct context_grant *grant, CUdevice device) {
    CUresult result = contexts_take_cost(&grant->process, device, &grant->charge);
    if (result != CUDA_SUCCESS)
        return result;
    struct process *process = grant->process;
    grant->place = (struct place){grant->charge.gpu, next_serial(&process->contexts)};
    lock_take(&process->libraries);
    bool put = put_context(&process->contexts, grant, key_without_handle(grant->place.context));
    result = put ? libraries_enter(process, &grant->place) : CUDA_ERROR_OUT_OF_MEMORY;
    lock_give(&process->libraries);
    if (result != CUDA_SUCCESS)
        withdraw(grant);
    return result;
}

/* Takes a context and its other views out of the table, and gives back what lived in it and then itself. */
static void drop(struct process *process, uint32_t serial) {
    struct contexts *contexts = &process->contexts;
    struct charge charge = {0};
    bool counted = false;
    lock_take(&process->libraries);
    lock_take(&contexts->lock);
    for (size_t i = 0; i < contexts->table.capacity;) {
        struct entry *entry = &contexts->table.entries[i];
        if (entry->key == 0 || entry->context != serial) {
            i++;
            continue;
        }
        set_hint(contexts, (CUcontext)(uintptr_t)entry->key, NULL); /* NOLINT(performance-no-int-to-ptr) */
        if (entry->charge.pages != 0) {
            charge = entry->charge;
            counted = true;
        }
        table_remove(&contexts->table, entry); /* another may move here, so look at this place again */
    }
    lock_give(&contexts->lock);
    allocations_context_gone(process, serial);
    objects_context_gone(process, serial);
    lock_give(&process->libraries);
    if (counted) {
        charge_give(process, &charge);
        count_contexts(process, &charge, -1);
    }
}

CUresult contexts_created(const struct context_grant *grant, CUresult result, CUcontext context) {
    struct process *process = grant->process;
    if (result != CUDA_SUCCESS || context == NULL) {
        withdraw(grant);
        return result;
    }
    uint32_t former = contexts_serial(process, context);
    if (former != 0) /* destroyed in a way that we did not see */
        drop(process, former);
    /* Without memory to write it down it stays charged until this process ends. */
    if (put_context(&process->contexts, grant, (uintptr_t)context))
        count_contexts(process, &grant->charge, 1);
    return result;
}

void contexts_alias(struct process *process, CUcontext context, CUcontext of) {
    struct contexts *contexts = &process->contexts;
    struct place place;
    if (!find(contexts, of, &place))
        return;
    lock_take(&contexts->lock);
    if (table_find(&contexts->table, (uintptr_t)context) == NULL)
        table_put(&contexts->table, (struct entry){.key = (uintptr_t)context,
                                                   .charge = {.gpu = (uint8_t)(place.gpu & 0x7f)},
                                                   .context = place.context});
    lock_give(&contexts->lock);
}

void contexts_unalias(struct process *process, CUcontext context) {
    struct contexts *contexts = &process->contexts;
    lock_take(&contexts->lock);
    struct entry *known = table_find(&contexts->table, (uintptr_t)context);
    if (known != NULL && known->charge.pages == 0) {
        set_hint(contexts, context, NULL);
        table_remove(&contexts->table, known);
    }
    lock_give(&contexts->lock);
}

uint32_t contexts_serial(struct process *process, CUcontext context) {
    struct place place = {0};
    return process != NULL && find(&process->contexts, context, &place) ? place.context : 0;
}

void contexts_destroyed(struct process *process, CUcontext context, uint32_t serial) {
    if (serial != 0 && contexts_serial(process, context) == serial)
        drop(process, serial);
}

/* The one with the next higher serial number. */
static bool next_context(struct contexts *contexts, struct place *place) {
    uint32_t last = place->context;
    bool found = false;
    lock_take(&contexts->lock);
    for (size_t i = 0; i < contexts->table.capacity; i++) {
        const struct entry *entry = &contexts->table.entries[i];
        if (entry->key == 0 || entry->charge.pages == 0 || entry->context <= last ||
            (found && entry->context > place->context))
            continue;
        *place = (struct place){entry->charge.gpu, entry->context};
        found = true;
    }
    lock_give(&contexts->lock);
    return found;
}

/* The visitor may take from the claim, and so is not called under the lock. */
void contexts_each(struct process *process, void (*visit)(uint32_t, int, void *), void *argument) {
    struct place place = {0};
    while (next_context(&process->contexts, &place))
        visit(place.context, place.gpu, argument);
}

/* --- primary contexts ---------------------------------------------------------------------------------------------- */

CUresult contexts_primary_enter(struct process *process, CUdevice device) {
    if (device < 0 || device >= DEVICES_MAX)
        return CUDA_ERROR_INVALID_DEVICE;
    lock_take(&process->contexts.lifecycles[device]);
    return CUDA_SUCCESS;
}

void contexts_primary_leave(struct process *process, CUdevice device) {
    lock_give(&process->contexts.lifecycles[device]);
}

CUcontext contexts_primary(struct process *process, CUdevice device) {
    return device >= 0 && device < DEVICES_MAX ? process->contexts.primaries[device] : NULL;
}

static bool is_active(CUdevice device) {
    unsigned int flags;
    int active = 0;
    return REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS || active;
}

CUresult contexts_primary_retain(struct process *process, CUdevice device, CUcontext *context) {
    struct context_grant grant;
    /* If it is charged for, but ended in a way that we did not see, its memory ended with it. */
    if (process->contexts.primaries[device] != NULL && !is_active(device))
        contexts_primary_reset(process, device);
    if (process->contexts.primaries[device] != NULL)
        return REAL(cuDevicePrimaryCtxRetain)(context, device);
    CUresult result = contexts_grant(&grant, device);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    contexts_created(&grant, result, result == CUDA_SUCCESS ? *context : NULL);
    if (result == CUDA_SUCCESS)
        process->contexts.primaries[device] = *context;
    return result;
}

void contexts_primary_released(struct process *process, CUdevice device) {
    CUcontext primary = process->contexts.primaries[device];
    if (primary == NULL || is_active(device))
        return;
    contexts_destroyed(process, primary, contexts_serial(process, primary));
    process->contexts.primaries[device] = NULL;
}

void contexts_primary_reset(struct process *process, CUdevice device) {
    CUcontext primary = process->contexts.primaries[device];
    if (primary == NULL)
        return;
    /* Whether or not the context itself goes on, what was made in it is gone. */
    uint32_t serial = contexts_serial(process, primary);
    lock_take(&process->libraries);
    allocations_context_gone(process, serial);
    objects_context_gone(process, serial);
    lock_give(&process->libraries);
    contexts_primary_released(process, device);
}
