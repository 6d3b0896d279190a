#include "memory/physical.h"

#include "memory/objects.h"
#include "memory/pools.h"
#include "system/mapped.h"

/* Sizes of mappings are multiples of 4 KiB. */
#define MAPPING_SHIFT 12

/*
 * KIND_PHYSICAL maps a handle to a number, until the memory ends. KIND_PHYSICAL_MEMORY has, by that number, the charge, the handle, and a
 * reference for each handle, mapping and binding. Memory is identified by its number, since the driver may reuse a handle before all references to the former memory
 * are removed. The lowest bit of a number is set for multicast objects.
 */
#define STEP 2

/* The `references` of a KIND_PHYSICAL are those handles of the memory that no thread is releasing, beyond this number. */
#define NAMED (UINT32_C(1) << 20)

/* In the place of a binding: none, and a number that no other has. */
#define NOWHERE (UINT64_C(1) << 63)

static bool is_multicast(uint64_t number) {
    return number % STEP != 0;
}

uint64_t physical_number(struct process *process, CUmemGenericAllocationHandle handle) {
    struct entry name;
    return process != NULL && objects_find(process, KIND_PHYSICAL, handle, &name) ? name.with : 0;
}

static void end(struct process *process, const struct entry *memory) {
    objects_remove_with(process, KIND_PHYSICAL, memory->with, memory->key, NULL);
    if (is_multicast(memory->key))
        physical_whole_ended(process, KIND_BINDING, memory->key);
    charge_end(process, &memory->charge);
}

/* Memory that had the handle before keeps its number, by which its references are still to be removed. */
static bool record(struct process *process, bool multicast, CUmemGenericAllocationHandle handle, struct charge charge) {
    uint64_t number = STEP * (1 + atomic_fetch_add(&process->physicals, 1)) + multicast;
    struct entry memory = {.key = number, .references = 1, .charge = charge, .with = handle}, gone;
    if (!objects_put(process, KIND_PHYSICAL_MEMORY, memory))
        return false;
    if (objects_put(process, KIND_PHYSICAL, (struct entry){.key = handle, .with = number, .references = NAMED + 1}))
        return true;
    objects_remove(process, KIND_PHYSICAL_MEMORY, number, &gone);
    return false;
}

bool physical_made(struct process *process, bool multicast, CUmemGenericAllocationHandle handle, struct charge charge) {
    if (record(process, multicast, handle, charge))
        return true;
    charge_end(process, &charge);
    return false;
}

void physical_drop(struct process *process, uint64_t number) {
    struct entry memory;
    if (objects_refer(process, KIND_PHYSICAL_MEMORY, number, -1, &memory) && memory.references == 0)
        end(process, &memory);
}

bool physical_imported(struct process *process, bool multicast, CUmemGenericAllocationHandle handle,
                       struct charge charge) {
    /* Another thread that imports the same memory now gets the same handle, and must not record it a second time. */
    lock_take(&process->importing);
    uint64_t number = physical_number(process, handle);
    struct entry memory, name;
    bool is_known = number != 0 && objects_refer(process, KIND_PHYSICAL_MEMORY, number, 1, &memory);
    if (is_known && (memory.charge.share != charge.share || memory.charge.region != charge.region ||
                     memory.charge.unpaid != charge.unpaid || is_multicast(number) != multicast)) {
        physical_drop(process, number); /* other memory, which had this handle before */
        is_known = false;
    }
    if (is_known)
        objects_refer(process, KIND_PHYSICAL, handle, 1, &name);
    bool is_new = !is_known && record(process, multicast, handle, charge);
    lock_give(&process->importing);
    if (!is_new)
        charge_end(process, &charge);
    return is_known || is_new;
}

bool physical_hold(struct process *process, uint64_t number) {
    struct entry memory;
    return number != 0 && objects_refer(process, KIND_PHYSICAL_MEMORY, number, 1, &memory);
}

/* A new entry of `releases`; NULL if there is no memory for it. */
static struct release *next_release(struct releases *releases) {
    if (releases->count < RELEASES_FEW)
        return &releases->few[releases->count];
    size_t more = releases->count - RELEASES_FEW;
    if (more == releases->room) {
        struct release *larger = mapped_grow(releases->many, &releases->room, sizeof *larger);
        if (larger == NULL)
            return NULL;
        releases->many = larger;
    }
    return &releases->many[more];
}

static const struct release *release_at(const struct releases *releases, size_t index) {
    return index < RELEASES_FEW ? &releases->few[index] : &releases->many[index - RELEASES_FEW];
}

void physical_release(struct process *process, CUmemGenericAllocationHandle handle, struct releases *releases) {
    struct release *release = next_release(releases);
    struct entry *name = &release->holding;
    *release = (struct release){.holder = KINDS};
    if (objects_refer(process, KIND_PHYSICAL, handle, -1, name))
        release->number = name->with;
    releases->count++;
}

bool physical_has_handle(struct process *process, CUmemGenericAllocationHandle handle, uint64_t number) {
    struct entry name;
    return objects_find(process, KIND_PHYSICAL, handle, &name) && name.with == number && name.references > NAMED;
}

bool physical_retained(struct process *process, CUmemGenericAllocationHandle handle) {
    struct entry name;
    if (!physical_hold(process, physical_number(process, handle)))
        return false;
    objects_refer(process, KIND_PHYSICAL, handle, 1, &name);
    return true;
}

/* Removes a mapping or binding. Returns a mapping's size >> MAPPING_SHIFT; 0 if there is none. */
static uint64_t release_held(struct process *process, enum kind holder, uint64_t key, struct releases *releases) {
    struct release *release = next_release(releases);
    if (release == NULL || !objects_remove(process, holder, key, &release->holding))
        return 0;
    release->holder = holder;
    release->number = release->holding.holds;
    releases->count++;
    return release->holding.references;
}

void physical_unmap(struct process *process, CUdeviceptr address, uint64_t size, struct releases *releases) {
    for (uint64_t at = 0, step = 1; at < size && step != 0; at += step)
        step = release_held(process, KIND_MAPPING, address + at, releases) << MAPPING_SHIFT;
}

void physical_unbind(struct process *process, enum kind kind, uint64_t whole, uint64_t part,
                     struct releases *releases) {
    release_held(process, kind, objects_key(whole, part), releases);
}

void physical_released(struct process *process, struct releases *releases, CUresult result) {
    struct entry name;
    for (size_t i = 0; i < releases->count; i++) {
        const struct release *release = release_at(releases, i);
        if (result == CUDA_SUCCESS)
            physical_drop(process, release->number);
        else if (release->holder != KINDS)
            objects_put(process, release->holder, release->holding);
        else if (release->number != 0)
            objects_refer(process, KIND_PHYSICAL, release->holding.key, 1, &name);
    }
    mapped_free(releases->many, releases->room * sizeof *releases->many);
}

/* Imported memory whose owner is not of this claim is charged here, as far as it is used. */
static CUresult pay(struct process *process, uint64_t number, uint64_t bytes) {
    struct entry memory;
    while (objects_find(process, KIND_PHYSICAL_MEMORY, number, &memory) && memory.charge.unpaid &&
           pages_of(bytes) > memory.charge.pages) {
        uint64_t pages = pages_of(bytes) - memory.charge.pages;
        struct charge sum = memory.charge;
        CUresult result = pools_extend(process, &sum, memory.charge.gpu, pages);
        if (result != CUDA_SUCCESS)
            return result;
        sum.unpaid = true;
        if (objects_replace(process, KIND_PHYSICAL_MEMORY, &memory, sum, memory.with))
            break;
        charge_give_part(process, &sum, pages); /* another thread has charged it meanwhile */
    }
    return CUDA_SUCCESS;
}

CUresult physical_hold_to_use(struct process *process, CUmemGenericAllocationHandle handle, uint64_t bytes,
                              uint64_t *number) {
    *number = physical_number(process, handle);
    if (!physical_hold(process, *number))
        *number = 0;
    CUresult result = *number != 0 ? pay(process, *number, bytes) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        physical_drop(process, *number);
    return result;
}

/* Memory that is charged as it is mapped cannot be a share: its size is not final. `exporting`: of several threads that
 * export the same memory, one makes the share. */
bool physical_exporting(struct process *process, uint64_t number, struct charge *held) {
    struct entry memory;
    *held = (struct charge){0};
    lock_take(&process->exporting);
    bool found = objects_find(process, KIND_PHYSICAL_MEMORY, number, &memory), done = found;
    if (found && !memory.charge.unpaid) {
        struct charge share = memory.charge;
        done = charge_exporting(process, &share, held);
        objects_replace(process, KIND_PHYSICAL_MEMORY, &memory, share, memory.with);
    }
    lock_give(&process->exporting);
    return done;
}

void physical_mapped(struct process *process, CUdeviceptr address, uint64_t size, uint64_t number) {
    objects_put(process, KIND_MAPPING,
                (struct entry){.key = address, .holds = number, .references = (uint32_t)(size >> MAPPING_SHIFT)});
}

static bool is_at(const struct entry *mapping, uint64_t wanted) {
    const struct entry *place = (const struct entry *)(uintptr_t)wanted; /* NOLINT(performance-no-int-to-ptr) */
    return mapping->holds == place->holds && place->key - mapping->key < (uint64_t)mapping->references << MAPPING_SHIFT;
}

bool physical_find_mapping(struct process *process, uint64_t number, CUdeviceptr address, CUdeviceptr *begin) {
    struct entry place = {.key = address, .holds = number}, mapping;
    bool found = objects_search(process, KIND_MAPPING, is_at, (uintptr_t)&place, &mapping);
    *begin = found ? mapping.key : 0;
    return found;
}

static void put_bound(struct process *process, enum kind kind, uint64_t whole, uint64_t part, uint64_t number) {
    objects_put(
        process, kind,
        (struct entry){.key = objects_key(whole, part), .holds = number, .with = whole, .references = OBJECTS_PART});
}

/* A binding that is recorded there already is another thread's, of before or after this one: which, only the driver
 * knows. So both stay, the earlier record at no place, until the object ends. */
void physical_bound(struct process *process, enum kind kind, uint64_t whole, uint64_t part, uint64_t number) {
    struct entry before;
    if (objects_remove(process, kind, objects_key(whole, part), &before))
        put_bound(process, kind, whole, NOWHERE | atomic_fetch_add(&process->physicals, 1), before.holds);
    put_bound(process, kind, whole, part, number);
}

void physical_unbind_all(struct process *process, enum kind kind, uint64_t whole, struct releases *releases) {
    struct release *release;
    while ((release = next_release(releases)) != NULL && objects_remove_part(process, kind, whole, &release->holding)) {
        release->holder = kind;
        release->number = release->holding.holds;
        releases->count++;
    }
}

void physical_whole_ended(struct process *process, enum kind kind, uint64_t whole) {
    struct entry binding;
    while (objects_remove_part(process, kind, whole, &binding))
        physical_drop(process, binding.holds);
}
