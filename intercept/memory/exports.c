#include "memory/exports.h"

#include "driver/cuda_real.h"
#include "memory/allocations.h"
#include "memory/borrowed.h"
#include "memory/objects.h"
#include "memory/physical.h"
#include "memory/pools.h"
#include "system/calls.h"
#include "system/explain.h"
#include "system/mapped.h"

CUresult exports_refused(void) {
    explain(
        CAUSE_EXPORTS,
        "memory cannot be exported: its claim has no room for another piece of shared memory; export fewer, or close "
        "descriptors that were sent");
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult exports_done(struct process *process, const struct charge *held, bool same, int descriptor) {
    bool counted = held->share == 0 || charge_export(process, held, descriptor);
    if (!same || !counted)
        call_close(descriptor);
    if (held->share != 0)
        charge_end(process, held);
    if (!same)
        return CUDA_ERROR_INVALID_VALUE;
    return counted ? CUDA_SUCCESS : exports_refused();
}

/* --- ranges of addresses ------------------------------------------------------------------------------------------ */

/* What begins at an address. No share is held for memory of another claim. */
static bool hold_at(struct process *process, CUdeviceptr base, struct charge *held, bool *found) {
    struct entry memory;
    bool done = allocations_exporting(process, base, held, found);
    if (*found)
        return done;
    *found = true;
    *held = (struct charge){0};
    if (objects_find(process, KIND_MAPPING, base, &memory))
        return physical_exporting(process, memory.holds, held);
    if (objects_find(process, KIND_POOL_MEMORY, base, &memory))
        return pools_exporting(process, pools_of(&memory), held);
    *found = borrowed_find(process, base, &memory);
    return !*found || memory.charge.share == 0 || charge_exporting(process, &memory.charge, held);
}

static bool append(struct exports *exports, struct charge held) {
    if (exports->count == exports->room) {
        struct charge *larger = mapped_grow(exports->each, &exports->room, sizeof *larger);
        if (larger == NULL)
            return false;
        exports->each = larger;
    }
    exports->each[exports->count++] = held;
    return true;
}

bool exports_hold(struct process *process, CUdeviceptr address, size_t size, struct exports *exports) {
    CUdeviceptr base;
    size_t length;
    *exports = (struct exports){.known = true};
    for (size_t done = 0; done < size; done += length - (address + done - base)) {
        struct charge held;
        bool found = REAL(cuMemGetAddressRange_v2)(&base, &length, address + done) == CUDA_SUCCESS;
        if (found && !hold_at(process, base, &held, &found))
            return false;
        if (!found) {
            exports->known = false;
            return true;
        }
        if (held.share != 0 && !append(exports, held)) {
            charge_end(process, &held);
            return false;
        }
    }
    return true;
}

void exports_let_go(struct process *process, struct exports *exports) {
    for (size_t i = 0; i < exports->count; i++)
        charge_end(process, &exports->each[i]);
    mapped_free(exports->each, exports->room * sizeof *exports->each);
}

/* Shares that are held keep their numbers. */
static bool are_same(const struct exports *a, const struct exports *b) {
    bool same = a->known && b->known && a->count == b->count;
    for (size_t i = 0; i < a->count && same; i++)
        same = a->each[i].region == b->each[i].region && a->each[i].share == b->each[i].share;
    return same;
}

bool exports_mark(struct process *process, CUdeviceptr address, size_t size, const struct exports *exports,
                  int descriptor) {
    struct exports now;
    bool marked = true;
    for (size_t i = 0; i < exports->count && marked; i++)
        marked = charge_export(process, &exports->each[i], descriptor);
    bool same = exports_hold(process, address, size, &now) && are_same(exports, &now);
    exports_let_go(process, &now);
    return marked && same;
}
