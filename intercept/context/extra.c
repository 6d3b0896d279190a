#include "context/extra.h"

#include "driver/cuda_real.h"
#include "memory/objects.h"
#include "memory/pools.h"
#include "state/gpus.h"

static uint64_t key_of(uint32_t context, enum extra extra) {
    return (uint64_t)context << 8 | (unsigned)extra | 0x80;
}

/* The first cost of a context includes some code: it was measured with a module loaded. */
#define INCLUDED_CODE_BYTES (UINT64_C(1) << 20)

static uint64_t pages_for(enum extra extra, uint64_t bytes) {
    uint64_t included = extra == EXTRA_CODE ? INCLUDED_CODE_BYTES : 0;
    return bytes > included ? pages_of(bytes - included) : 0;
}

/* The value that is recorded: what is charged, or what the charge of EXTRA_LOCAL depends on. */
static uint64_t noted(struct process *process, const struct place *place, enum extra extra) {
    struct entry entry;
    return objects_find(process, KIND_CONTEXT_EXTRA, key_of(place->context, extra), &entry) ? entry.with : 0;
}

CUresult context_extra_set(struct process *process, const struct place *place, enum extra extra, uint64_t bytes) {
    uint64_t key = key_of(place->context, extra), pages = pages_for(extra, bytes);
    CUresult result = CUDA_SUCCESS;
    struct entry now = {.key = key, .context = place->context, .charge = {.gpu = (uint8_t)(place->gpu & 0x7f)}};
    bool known = objects_find(process, KIND_CONTEXT_EXTRA, key, &now);
    struct entry before = now;
    if (pages > now.charge.pages)
        result = pools_extend(process, &now.charge, place->gpu, pages - now.charge.pages);
    else
        charge_give_part(process, &now.charge, now.charge.pages - pages);
    now.with = bytes;
    if (result == CUDA_SUCCESS && known)
        objects_replace(process, KIND_CONTEXT_EXTRA, &before, now.charge, now.with);
    else if (result == CUDA_SUCCESS && bytes != 0)
        objects_put(process, KIND_CONTEXT_EXTRA, now);
    return result;
}

CUresult context_extra_add(struct process *process, const struct place *place, enum extra extra, uint64_t bytes) {
    if (bytes == 0)
        return CUDA_SUCCESS;
    lock_take(&process->extras);
    CUresult result = context_extra_set(process, place, extra, noted(process, place, extra) + bytes);
    lock_give(&process->extras);
    return result;
}

void context_extra_subtract(struct process *process, uint32_t context, enum extra extra, uint64_t bytes) {
    struct entry now;
    lock_take(&process->extras);
    if (objects_find(process, KIND_CONTEXT_EXTRA, key_of(context, extra), &now))
        context_extra_set(process, &(struct place){now.charge.gpu, context}, extra, now.with - bytes);
    lock_give(&process->extras);
}

uint64_t context_extra_base(struct process *process, const struct place *place, enum extra extra, uint64_t now) {
    uint64_t key = key_of(place->context, extra);
    struct entry entry;
    if (!objects_find(process, KIND_CONTEXT_EXTRA, key, &entry)) {
        /* The first value is a few MiB at most. */
        entry = (struct entry){.key = key,
                               .context = place->context,
                               .references = now < UINT32_MAX ? (uint32_t)now + 1 : UINT32_MAX,
                               .charge = {.gpu = (uint8_t)(place->gpu & 0x7f)}};
        objects_put(process, KIND_CONTEXT_EXTRA, entry);
    }
    return entry.references - 1;
}

static void note(struct process *process, const struct place *place, enum extra extra, uint64_t value) {
    objects_put(process, KIND_CONTEXT_EXTRA,
                (struct entry){.key = key_of(place->context, extra), .context = place->context, .with = value});
}

/* The default of CU_LIMIT_STACK_SIZE. */
#define FIRST_STACK_BYTES 1024

/* The stack size that a context has at first. The driver reports it for the current context only. */
static uint64_t first_stack(const struct place *place) {
    struct process *process;
    struct place current;
    size_t now = FIRST_STACK_BYTES;
    if (contexts_current(&process, &current) == CUDA_SUCCESS && current.context == place->context)
        REAL(cuCtxGetLimit)(&now, CU_LIMIT_STACK_SIZE);
    return now;
}

/* Local memory is sized by the larger of the stack limit and the kernels' needs. */
static CUresult set_local(struct process *process, const struct place *place, uint64_t stack, uint64_t kernel) {
    uint64_t base = context_extra_base(process, place, EXTRA_LOCAL, first_stack(place));
    uint64_t most = stack > kernel ? stack : kernel;
    uint64_t bytes = most > base ? product(most - base, gpus_threads(process, place->gpu)) : 0;
    CUresult result = context_extra_set(process, place, EXTRA_LOCAL, bytes);
    if (result == CUDA_SUCCESS) {
        note(process, place, EXTRA_STACK, stack);
        note(process, place, EXTRA_KERNEL, kernel);
    }
    return result;
}

CUresult context_extra_stack(struct process *process, const struct place *place, uint64_t stack) {
    return set_local(process, place, stack, noted(process, place, EXTRA_KERNEL));
}

/* Sets what kernels need, to more or to less. */
static CUresult set_kernel(struct process *process, const struct place *place, uint64_t kernel) {
    return set_local(process, place, noted(process, place, EXTRA_STACK), kernel);
}

CUresult context_extra_local(struct process *process, const struct place *place, uint64_t kernel) {
    lock_take(&process->extras);
    CUresult result = kernel > noted(process, place, EXTRA_KERNEL) ? set_kernel(process, place, kernel) : CUDA_SUCCESS;
    lock_give(&process->extras);
    return result;
}

#define RAISED_MAX 64 /* with more contexts, a refusal leaves the rest charged */

struct everywhere {
    struct process *process;
    uint64_t kernel;
    unsigned count;
    struct {
        struct place place;
        uint64_t had;
    } raised[RAISED_MAX];
    CUresult result;
};

static void raise_kernel(uint32_t context, int gpu, void *argument) {
    struct everywhere *all = argument;
    struct place place = {gpu, context};
    uint64_t had = noted(all->process, &place, EXTRA_KERNEL);
    if (all->result != CUDA_SUCCESS || all->kernel <= had)
        return;
    all->result = set_kernel(all->process, &place, all->kernel);
    if (all->result != CUDA_SUCCESS || all->count == RAISED_MAX)
        return;
    all->raised[all->count].place = place;
    all->raised[all->count++].had = had;
}

CUresult context_extra_local_everywhere(struct process *process, uint64_t kernel) {
    struct everywhere all = {.process = process, .kernel = kernel};
    lock_take(&process->extras);
    contexts_each(process, raise_kernel, &all);
    for (unsigned i = 0; all.result != CUDA_SUCCESS && i < all.count; i++)
        set_kernel(process, &all.raised[i].place, all.raised[i].had);
    lock_give(&process->extras);
    return all.result;
}
