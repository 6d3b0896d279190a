#include "state/contexts.h"

#include "context/libraries.h"
#include "driver/cuda_real.h"
#include "memory/allocations.h"
#include "memory/objects.h"
#include "memory/streams.h"
#include "state/gpus.h"
#include "system/explain.h"

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
    return contexts_place(NULL, process, place);
}

CUresult contexts_place(CUcontext context, struct process **process, struct place *place) {
    CUresult result = context == NULL ? REAL(cuCtxGetCurrent)(&context) : CUDA_SUCCESS;
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

/* Gives back what lived in a context. Under the libraries' lock. */
static void drop_memory(struct process *process, uint32_t serial) {
    allocations_context_gone(process, serial);
    objects_context_gone(process, serial);
}

/* Takes a context and its other views out of the table, and gives back what itself took. Under the libraries' lock. */
static void drop_context(struct process *process, uint32_t serial) {
    struct contexts *contexts = &process->contexts;
    struct charge charge = {0};
    bool counted = false;
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
    if (counted) {
        charge_give(process, &charge);
        count_contexts(process, &charge, -1);
    }
}

/* The context first: what is found to have ended with it is not written down again. */
static void drop(struct process *process, uint32_t serial) {
    lock_take(&process->libraries);
    drop_context(process, serial);
    drop_memory(process, serial);
    lock_give(&process->libraries);
}

/* The serial number of a context; 0 if unknown. */
static uint32_t serial_of(struct process *process, CUcontext context) {
    struct place place = {0};
    return find(&process->contexts, context, &place) ? place.context : 0;
}

CUresult contexts_created(const struct context_grant *grant, CUresult result, CUcontext context) {
    struct process *process = grant->process;
    if (result != CUDA_SUCCESS || context == NULL) {
        withdraw(grant);
        return result;
    }
    uint32_t former = serial_of(process, context);
    if (former != 0) /* destroyed in a way that we did not see */
        drop(process, former);
    /* Without memory to write it down it stays charged until this process ends. */
    if (put_context(&process->contexts, grant, (uintptr_t)context))
        count_contexts(process, &grant->charge, 1);
    libraries_entered(process, &grant->place);
    return result;
}

CUcontext contexts_handle(struct process *process, uint32_t serial) {
    struct contexts *contexts = &process->contexts;
    uint64_t handle = 0;
    lock_take(&contexts->lock);
    for (size_t i = 0; i < contexts->table.capacity && handle == 0; i++) {
        const struct entry *entry = &contexts->table.entries[i];
        if (entry->charge.pages != 0 && (serial == 0 || entry->context == serial) &&
            entry->key != key_without_handle(entry->context))
            handle = entry->key;
    }
    lock_give(&contexts->lock);
    return (CUcontext)(uintptr_t)handle; /* NOLINT(performance-no-int-to-ptr) */
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
                                                   .context = place.context,
                                                   .with = (uintptr_t)of});
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

bool contexts_lives(struct process *process, uint32_t serial) {
    struct contexts *contexts = &process->contexts;
    bool lives = serial == 0;
    lock_take(&contexts->lock);
    for (size_t i = 0; i < contexts->table.capacity && !lives; i++)
        lives = contexts->table.entries[i].key != 0 && contexts->table.entries[i].context == serial;
    lock_give(&contexts->lock);
    return lives;
}

/* --- working in them, and ending them --------------------------------------------------------------------------------- */

/* Of another view, the context that it is a view of. */
static CUcontext whole(struct process *process, CUcontext context) {
    struct contexts *contexts = &process->contexts;
    if (!objects_any(process, KIND_GREEN_CONTEXT))
        return context;
    lock_take(&contexts->lock);
    const struct entry *known = table_find(&contexts->table, (uintptr_t)context);
    if (known != NULL && known->with != 0)
        context = (CUcontext)(uintptr_t)known->with; /* NOLINT(performance-no-int-to-ptr) */
    lock_give(&contexts->lock);
    return context;
}

/* Two contexts may have the same one, and wait for each other without need. */
static struct gate *gate_of(struct process *process, CUcontext context) {
    uint64_t mixed = (uintptr_t)whole(process, context) * UINT64_C(0x9e3779b97f4a7c15);
    return &process->contexts.gates[mixed >> 58];
}

_Static_assert(GATES == 64, "the highest six bits name a gate");

static struct gate *enter(CUcontext context) {
    struct process *process = process_if_open();
    if (process == NULL || context == NULL)
        return NULL;
    struct gate *gate = gate_of(process, context);
    gate_enter(gate);
    return gate;
}

struct gate *contexts_work(CUcontext *current) {
    return REAL(cuCtxGetCurrent)(current) == CUDA_SUCCESS ? enter(*current) : NULL;
}

struct gate *contexts_work_for(CUstream stream) {
    CUcontext context = NULL;
    if (streams_is_default(stream) || REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS)
        return contexts_work(&context);
    return enter(context);
}

struct gate *contexts_try_to_work(struct process *process, CUcontext context) {
    struct gate *gate = gate_of(process, context);
    return gate_try(gate) ? gate : NULL;
}

void contexts_rest(struct gate **gate) {
    if (*gate != NULL)
        gate_leave(*gate);
}

void contexts_await_end(CUcontext context) {
    struct gate *gate = enter(context);
    contexts_rest(&gate);
}

void contexts_ending(struct process *process, CUcontext context, struct context_end *end) {
    *end = (struct context_end){.process = context != NULL ? process : NULL, .context = context};
    if (end->process == NULL)
        return;
    end->gate = gate_of(process, context);
    gate_close(end->gate);
    end->serial = serial_of(process, context);
}

/* The driver may have given the handle to another context meanwhile. */
void contexts_ended(const struct context_end *end, enum ended ended) {
    struct process *process = end->process;
    if (process == NULL)
        return;
    if (end->serial != 0 && ended == ENDED_CONTEXT) {
        drop(process, end->serial);
    } else if (end->serial != 0 && ended == ENDED_MEMORY) {
        lock_take(&process->libraries);
        drop_memory(process, end->serial);
        lock_give(&process->libraries);
    }
    if (ended == ENDED_CONTEXT)
        streams_context_gone(process, end->context);
    gate_open(end->gate);
}

/* --- all of them ------------------------------------------------------------------------------------------------------ */

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

void contexts_primary_ending(struct process *process, CUdevice device, struct context_end *end) {
    contexts_ending(process, contexts_primary(process, device), end);
}

void contexts_primary_ended(CUdevice device, const struct context_end *end, CUresult result, bool resets) {
    enum ended ended = ENDED_NOTHING;
    if (end->process != NULL && result == CUDA_SUCCESS && !is_active(device)) {
        end->process->contexts.former_primaries[device] = end->context;
        end->process->contexts.primaries[device] = NULL;
        ended = ENDED_CONTEXT;
    } else if (result == CUDA_SUCCESS && resets) {
        ended = ENDED_MEMORY;
    }
    contexts_ended(end, ended);
}

/* Somebody may have the handle of a former one current: he does not work in the new one before that is written down. */
static CUresult make_primary(struct process *process, CUdevice device, CUcontext *context) {
    struct contexts *contexts = &process->contexts;
    struct context_grant grant;
    struct context_end former;
    contexts_ending(process, contexts->former_primaries[device], &former);
    CUresult result = contexts_grant(&grant, device);
    if (result == CUDA_SUCCESS) {
        result = REAL(cuDevicePrimaryCtxRetain)(context, device);
        contexts_created(&grant, result, result == CUDA_SUCCESS ? *context : NULL);
    }
    if (result == CUDA_SUCCESS)
        contexts->primaries[device] = *context;
    contexts_ended(&former, ENDED_NOTHING);
    return result;
}

CUresult contexts_primary_retain(struct process *process, CUdevice device, CUcontext *context) {
    struct context_end end;
    if (contexts_primary(process, device) == NULL)
        return make_primary(process, device, context);
    if (is_active(device))
        return REAL(cuDevicePrimaryCtxRetain)(context, device);
    contexts_primary_ending(process, device, &end); /* it ended in a way that we did not see, and its memory with it */
    contexts_primary_ended(device, &end, CUDA_SUCCESS, false);
    return make_primary(process, device, context);
}
