#include "state/contexts.h"

#include "driver/cuda_real.h"
#include "state/gpus.h"

/* --- the current context ------------------------------------------------------------------------------------------ */

static struct hint *hint_of(struct contexts *contexts, CUcontext context) {
    return &contexts->hints[table_hash((uintptr_t)context, HINT_BITS)];
}

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

bool contexts_find(struct process *process, CUcontext context, struct place *place) {
    return read_hint(&process->contexts, context, place) || find(&process->contexts, context, place);
}

CUresult contexts_current(struct process **process, struct place *place) {
    size_t free, total;
    CUresult result = contexts_current_if_known(process, place);
    if (result != CUDA_SUCCESS || place->context != 0)
        return result;
    result = REAL(cuMemGetInfo_v2)(&free, &total); /* fails in a context that has ended, or is not active yet */
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult contexts_current_if_known(struct process **process, struct place *place) {
    CUcontext context = NULL;
    CUresult result = REAL(cuCtxGetCurrent)(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (context == NULL) {
        if ((*process = process_if_open()) != NULL)
            contexts_failed(*process, CUDA_ERROR_INVALID_CONTEXT);
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    result = process_open(process);
    if (result != CUDA_SUCCESS || contexts_find(*process, context, place))
        return result;
    CUdevice device;
    *place = (struct place){0};
    result = REAL(cuCtxGetDevice)(&device);
    return result != CUDA_SUCCESS ? result : gpus_find_claimed(*process, device, &place->gpu);
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

uint32_t contexts_new_serial(struct process *process) {
    struct contexts *contexts = &process->contexts;
    lock_take(&contexts->lock);
    if (++contexts->last_serial == 0)
        contexts->last_serial = 1;
    uint32_t serial = contexts->last_serial;
    lock_give(&contexts->lock);
    return serial;
}

/* The key of a context that has no handle yet: its serial number, and a bit that no address has alone. */
static uint64_t pending_key(uint32_t serial) {
    return UINT64_C(1) << 63 | serial;
}

/* Under the contexts' lock. */
static void remove_pending(struct contexts *contexts, uint32_t serial) {
    struct entry *pending = table_find(&contexts->table, pending_key(serial));
    if (pending != NULL)
        table_remove(&contexts->table, pending);
}

bool contexts_put(struct process *process, CUcontext context, uint32_t serial, const struct charge *charge) {
    struct contexts *contexts = &process->contexts;
    uint64_t key = context != NULL ? (uintptr_t)context : pending_key(serial);
    lock_take(&contexts->lock);
    remove_pending(contexts, serial);
    struct entry *former = table_find(&contexts->table, key);
    if (former != NULL) { /* an alias that ended */
        set_hint(contexts, context, NULL);
        table_remove(&contexts->table, former);
    }
    bool put = table_put(&contexts->table, (struct entry){.key = key, .charge = *charge, .context = serial}) != NULL;
    lock_give(&contexts->lock);
    return put;
}

void contexts_remove_pending(struct process *process, uint32_t serial) {
    struct contexts *contexts = &process->contexts;
    lock_take(&contexts->lock);
    remove_pending(contexts, serial);
    lock_give(&contexts->lock);
}

bool contexts_remove(struct process *process, uint32_t serial, struct charge *charge) {
    struct contexts *contexts = &process->contexts;
    bool charged = false;
    lock_take(&contexts->lock);
    for (size_t i = 0; i < contexts->table.capacity;) {
        struct entry *entry = &contexts->table.entries[i];
        if (entry->key == 0 || entry->context != serial) {
            i++;
            continue;
        }
        set_hint(contexts, (CUcontext)(uintptr_t)entry->key, NULL); /* NOLINT(performance-no-int-to-ptr) */
        if (entry->charge.pages != 0) {
            *charge = entry->charge;
            charged = true;
        }
        table_remove(&contexts->table, entry); /* may move another entry to this index: look at it again */
    }
    lock_give(&contexts->lock);
    return charged;
}

uint32_t contexts_serial(struct process *process, CUcontext context) {
    struct contexts *contexts = &process->contexts;
    lock_take(&contexts->lock);
    const struct entry *known = table_find(&contexts->table, (uintptr_t)context);
    uint32_t serial = known != NULL && known->with == 0 ? known->context : 0;
    lock_give(&contexts->lock);
    return serial;
}

CUcontext contexts_handle(struct process *process, uint32_t serial) {
    struct contexts *contexts = &process->contexts;
    uint64_t handle = 0;
    lock_take(&contexts->lock);
    for (size_t i = 0; i < contexts->table.capacity && handle == 0; i++) {
        const struct entry *entry = &contexts->table.entries[i];
        if (entry->charge.pages != 0 && entry->context == serial && entry->key != pending_key(entry->context))
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
    if (known != NULL && known->with != 0) {
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

/* --- calls that work in a context --------------------------------------------------------------------------------- */

/* The context that an alias stands for. */
static CUcontext whole(struct process *process, CUcontext context) {
    struct contexts *contexts = &process->contexts;
    if (!process_has(process, KIND_GREEN_CONTEXT))
        return context;
    lock_take(&contexts->lock);
    const struct entry *known = table_find(&contexts->table, (uintptr_t)context);
    if (known != NULL && known->with != 0)
        context = (CUcontext)(uintptr_t)known->with; /* NOLINT(performance-no-int-to-ptr) */
    lock_give(&contexts->lock);
    return context;
}

struct gate *contexts_gate(struct process *process, CUcontext context) {
    return &process->contexts.gates[table_hash((uintptr_t)whole(process, context), GATE_BITS)];
}

bool contexts_enter(struct work *work) {
    work->gate = contexts_gate(work->process, work->context);
    gate_enter(work->gate);
    bool known = contexts_find(work->process, work->context, &work->place);
    if (!known)
        work->place = (struct place){0};
    return known;
}

struct gate *contexts_try_enter(struct process *process, CUcontext context) {
    struct gate *gate = contexts_gate(process, context);
    return gate_try(gate) ? gate : NULL;
}

void contexts_await_end(struct process *process, CUcontext context) {
    struct gate *gate = contexts_gate(process, context);
    gate_enter(gate);
    gate_leave(gate);
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

/* The context with the next higher serial number. */
static bool next_context(struct contexts *contexts, struct place *place) {
    uint32_t last = place->context;
    bool found = false;
    lock_take(&contexts->lock);
    for (size_t i = 0; i < contexts->table.capacity; i++) {
        const struct entry *entry = &contexts->table.entries[i];
        if (entry->key == 0 || entry->with != 0 || entry->context <= last || (found && entry->context > place->context))
            continue;
        *place = (struct place){entry->charge.gpu, entry->context};
        found = true;
    }
    lock_give(&contexts->lock);
    return found;
}

/* `visit` may take from the claim, so it is not called under the lock. */
void contexts_each(struct process *process, void (*visit)(uint32_t, int, void *), void *argument) {
    struct place place = {0};
    while (next_context(&process->contexts, &place))
        visit(place.context, place.gpu, argument);
}
