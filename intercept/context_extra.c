#include "context_extra.h"

#include "cuda_real.h"
#include "objects.h"

static uint64_t key_of(uint32_t context, enum extra extra) {
    return (uint64_t)context << 8 | (unsigned)extra | 0x80;
}

/* Every context has room for some code: its cost was measured with a module in it. */
#define INCLUDED_CODE_BYTES (UINT64_C(1) << 20)

static uint64_t pages_for(enum extra extra, uint64_t bytes) {
    uint64_t included = extra == EXTRA_CODE ? INCLUDED_CODE_BYTES : 0;
    return bytes > included ? pages_of(bytes - included) : 0;
}

/* Changes of one process come one after the other: they are rare. */
static CUresult change(struct process *process, const struct place *place, enum extra extra, uint64_t bytes, bool add,
                       bool raise) {
    uint64_t key = key_of(place->context, extra);
    CUresult result = CUDA_SUCCESS;
    lock_take(&process->extras);
    struct entry now = {.key = key, .context = place->context, .charge = {.gpu = (uint8_t)(place->gpu & 0x7f)}};
    bool known = objects_find(process, KIND_CONTEXT_LIMIT, key, &now);
    uint64_t wanted = add ? now.with + bytes : raise && now.with > bytes ? now.with : bytes;
    uint64_t pages = pages_for(extra, wanted);
    if (pages > now.charge.pages)
        result = now.charge.pages != 0 ? charge_grow(process, &now.charge, pages - now.charge.pages)
                                       : charge_take(process, place->gpu, pages, &now.charge);
    else
        charge_give_part(process, &now.charge, now.charge.pages - pages);
    now.with = wanted;
    if (result == CUDA_SUCCESS && known)
        objects_update(process, KIND_CONTEXT_LIMIT, key, now.charge, now.with);
    else if (result == CUDA_SUCCESS && wanted != 0)
        objects_put(process, KIND_CONTEXT_LIMIT, now);
    lock_give(&process->extras);
    return result;
}

CUresult context_extra_add(struct process *process, const struct place *place, enum extra extra, uint64_t bytes) {
    return bytes == 0 ? CUDA_SUCCESS : change(process, place, extra, bytes, true, false);
}

void context_extra_subtract(struct process *process, uint32_t context, enum extra extra, uint64_t bytes) {
    struct place place = {.context = context};
    struct entry now;
    if (bytes != 0 && objects_find(process, KIND_CONTEXT_LIMIT, key_of(context, extra), &now)) {
        place.gpu = now.charge.gpu;
        change(process, &place, extra, (uint64_t)0 - bytes, true, false); /* wraps to less */
    }
}

CUresult context_extra_set(struct process *process, const struct place *place, enum extra extra, uint64_t bytes) {
    return change(process, place, extra, bytes, false, false);
}

CUresult context_extra_raise(struct process *process, const struct place *place, enum extra extra, uint64_t bytes) {
    return change(process, place, extra, bytes, false, true);
}

uint64_t context_extra_base(struct process *process, const struct place *place, enum extra extra, uint64_t now) {
    uint64_t key = key_of(place->context, extra);
    struct entry entry;
    lock_take(&process->extras);
    if (!objects_find(process, KIND_CONTEXT_LIMIT, key, &entry)) {
        /* What a context has at first is a few MiB at most. */
        entry = (struct entry){.key = key,
                               .context = place->context,
                               .references = now < UINT32_MAX ? (uint32_t)now + 1 : UINT32_MAX,
                               .charge = {.gpu = (uint8_t)(place->gpu & 0x7f)}};
        objects_put(process, KIND_CONTEXT_LIMIT, entry);
    }
    lock_give(&process->extras);
    return entry.references - 1;
}

/* Writes a number down that is charged for elsewhere. */
static uint64_t note(struct process *process, const struct place *place, enum extra extra, uint64_t value, bool raise) {
    uint64_t key = key_of(place->context, extra);
    struct entry entry = {.key = key, .context = place->context, .with = value};
    lock_take(&process->extras);
    if (!objects_find(process, KIND_CONTEXT_LIMIT, key, &entry))
        objects_put(process, KIND_CONTEXT_LIMIT, entry);
    else if (!raise || value > entry.with)
        objects_update(process, KIND_CONTEXT_LIMIT, key, entry.charge, entry.with = value);
    lock_give(&process->extras);
    return entry.with;
}

CUresult context_extra_local(struct process *process, const struct place *place, uint64_t threads, uint64_t stack,
                             uint64_t kernel) {
    size_t now = 0;
    REAL(cuCtxGetLimit)(&now, CU_LIMIT_STACK_SIZE);
    uint64_t base = context_extra_base(process, place, EXTRA_LOCAL, now);
    uint64_t old_stack = note(process, place, EXTRA_STACK, 0, true),
             old_kernel = note(process, place, EXTRA_KERNEL, 0, true);
    uint64_t new_stack = stack != UINT64_MAX ? stack : old_stack,
             new_kernel = kernel > old_kernel ? kernel : old_kernel;
    uint64_t most = new_stack > new_kernel ? new_stack : new_kernel;
    CUresult result = context_extra_set(process, place, EXTRA_LOCAL, most > base ? product(most - base, threads) : 0);
    if (result == CUDA_SUCCESS) {
        note(process, place, EXTRA_STACK, new_stack, false);
        note(process, place, EXTRA_KERNEL, new_kernel, true);
    }
    return result;
}
