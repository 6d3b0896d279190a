#include "physical.h"

#include "exports.h"
#include "objects.h"
#include "tags.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* Sizes of mappings are multiples of this. */
#define MAPPING_SHIFT 12

bool physical_made(struct process *process, enum kind kind, CUmemGenericAllocationHandle handle, struct charge charge) {
    if (objects_put(process, kind, (struct entry){.key = handle, .references = 1, .charge = charge}))
        return true;
    charge_end(process, &charge);
    return false;
}

bool physical_imported(struct process *process, enum kind kind, CUmemGenericAllocationHandle handle,
                       struct charge charge, uint64_t mark) {
    struct entry known;
    bool is_known = objects_refer(process, kind, handle, 1, &known);
    if (!is_known &&
        objects_put(process, kind, (struct entry){.key = handle, .references = 1, .charge = charge, .with = mark}))
        return true;
    charge_end(process, &charge);
    return is_known;
}

bool physical_hold(struct process *process, CUmemGenericAllocationHandle handle) {
    struct entry entry;
    return objects_refer(process, KIND_PHYSICAL, handle, 1, &entry) ||
           objects_refer(process, KIND_MULTICAST, handle, 1, &entry);
}

/* Of what we exported, copies may be on their way. */
static void end(struct process *process, const struct entry *gone) {
    exports_end(process, &gone->charge, TAG_NUMBER(gone->with));
}

static bool refer_less(struct process *process, CUmemGenericAllocationHandle handle, struct release *release) {
    release->kind = KIND_PHYSICAL;
    if (objects_refer(process, KIND_PHYSICAL, handle, -1, &release->gone))
        return true;
    release->kind = KIND_MULTICAST;
    return objects_refer(process, KIND_MULTICAST, handle, -1, &release->gone);
}

void physical_let_go(struct process *process, CUmemGenericAllocationHandle handle) {
    struct release release;
    if (!refer_less(process, handle, &release) || release.gone.references != 0)
        return;
    if (release.kind == KIND_MULTICAST)
        physical_whole_gone(process, KIND_BINDING, handle);
    end(process, &release.gone);
}

/* Room for one release more; NULL when there is no memory for it. */
static struct release *next_release(struct releases *releases) {
    if (releases->count < RELEASES_FEW)
        return &releases->few[releases->count];
    size_t more = releases->count - RELEASES_FEW;
    if (more == releases->room) {
        size_t room = releases->room ? 2 * releases->room : 64;
        int error = errno;
        struct release *larger =
            mmap(NULL, room * sizeof *larger, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        errno = error;
        if (larger == MAP_FAILED)
            return NULL;
        if (releases->room != 0) {
            memcpy(larger, releases->many, more * sizeof *larger);
            munmap(releases->many, releases->room * sizeof *larger);
        }
        releases->many = larger;
        releases->room = room;
    }
    return &releases->many[more];
}

static const struct release *release_at(const struct releases *releases, size_t index) {
    return index < RELEASES_FEW ? &releases->few[index] : &releases->many[index - RELEASES_FEW];
}

void physical_release(struct process *process, CUmemGenericAllocationHandle handle, struct releases *releases) {
    struct release *release = next_release(releases);
    release->holder = KINDS;
    if (refer_less(process, handle, release))
        releases->count++;
}

/* Takes out a mapping or binding, and the reference that it is. Its size, in the units of mappings; 0 if there is none. */
static uint64_t release_held(struct process *process, enum kind holder, uint64_t key, struct releases *releases) {
    struct release *release = next_release(releases);
    if (release == NULL || !objects_remove(process, holder, key, &release->holding))
        return 0;
    uint64_t size = release->holding.references;
    release->holder = holder;
    if (refer_less(process, release->holding.with, release))
        releases->count++;
    return size;
}

void physical_unmap(struct process *process, CUdeviceptr address, uint64_t size, struct releases *releases) {
    for (uint64_t at = 0, step = 1; at < size && step != 0; at += step)
        step = release_held(process, KIND_MAPPING, address + at, releases) << MAPPING_SHIFT;
}

void physical_unbind(struct process *process, enum kind kind, uint64_t whole, uint64_t part,
                     struct releases *releases) {
    release_held(process, kind, objects_key(whole, part), releases);
}

static void put_back(struct process *process, const struct release *release) {
    if (release->gone.references != 0) {
        physical_hold(process, release->gone.key);
    } else {
        struct entry again = release->gone;
        again.references = 1;
        objects_put(process, release->kind, again);
    }
    if (release->holder != KINDS)
        objects_put(process, release->holder, release->holding);
}

void physical_released(struct process *process, struct releases *releases, CUresult result) {
    for (size_t i = 0; i < releases->count; i++) {
        const struct release *release = release_at(releases, i);
        if (result != CUDA_SUCCESS) {
            put_back(process, release);
        } else if (release->gone.references == 0) {
            if (release->kind == KIND_MULTICAST)
                physical_whole_gone(process, KIND_BINDING, release->gone.key);
            end(process, &release->gone);
        }
    }
    if (releases->room != 0)
        munmap(releases->many, releases->room * sizeof *releases->many);
}

CUresult physical_pay(struct process *process, CUmemGenericAllocationHandle handle, uint64_t bytes) {
    struct entry entry;
    struct charge more;
    while (objects_find(process, KIND_PHYSICAL, handle, &entry) && entry.charge.unpaid &&
           pages_of(bytes) > entry.charge.pages) {
        uint64_t pages = pages_of(bytes) - entry.charge.pages;
        CUresult result = entry.charge.pages != 0 ? charge_take_like(process, &entry.charge, pages, &more)
                                                  : charge_take(process, entry.charge.gpu, pages, &more);
        if (result != CUDA_SUCCESS)
            return result;
        struct charge sum = more;
        sum.pages += entry.charge.pages;
        sum.unpaid = true;
        if (objects_recharge(process, KIND_PHYSICAL, handle, &entry.charge, sum))
            break;
        charge_give(process, &more); /* another thread has paid meanwhile */
    }
    return CUDA_SUCCESS;
}

/* What this process has not shared itself goes on with the tag that it came with. */
static uint64_t mark_of(struct process *process, struct entry *entry) {
    if (entry->charge.share == 0)
        return exports_share(process, &entry->charge);
    if (TAG_NUMBER(entry->with) != 0 || entry->with == 0)
        return entry->with;
    uint32_t number = exports_pass_on(process);
    return number != 0 ? entry->with | number : 0;
}

/* Of several threads that export one thing, the first shares it. */
uint64_t physical_share(struct process *process, CUmemGenericAllocationHandle handle) {
    enum kind kind = KIND_PHYSICAL;
    struct entry entry;
    uint64_t mark = 0;
    lock_take(&process->exported.sharing);
    if ((objects_find(process, kind, handle, &entry) || objects_find(process, kind = KIND_MULTICAST, handle, &entry)) &&
        !entry.charge.unpaid)
        mark = mark_of(process, &entry);
    if (mark != 0)
        objects_update(process, kind, handle, entry.charge, mark);
    lock_give(&process->exported.sharing);
    return mark;
}

void physical_mapped(struct process *process, CUdeviceptr address, uint64_t size, CUmemGenericAllocationHandle handle) {
    objects_put(process, KIND_MAPPING,
                (struct entry){.key = address, .with = handle, .references = (uint32_t)(size >> MAPPING_SHIFT)});
}

void physical_bound(struct process *process, enum kind kind, uint64_t whole, uint64_t part,
                    CUmemGenericAllocationHandle handle) {
    struct entry before;
    if (objects_remove(process, kind, objects_key(whole, part), &before))
        physical_let_go(process, before.with);
    objects_put(process, kind,
                (struct entry){.key = objects_key(whole, part), .with = handle, .references = objects_mark(whole)});
}

void physical_whole_gone(struct process *process, enum kind kind, uint64_t whole) {
    struct entry binding;
    while (objects_remove_one_of(process, kind, objects_mark(whole), &binding))
        physical_let_go(process, binding.with);
}
