/* What a crowd shares: tables of exported memory filled to their ends, handles without descriptors and the reverse, imports. */
#include "crowd.h"
#include "families/family_pool.h"
#include "families/offers.h"
#include "worker.h"

#include <string.h>
#include <unistd.h>

#define FUNCTIONS(X)                                                                                                   \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020)                                                                               \
    X(cuMemFree_v2, "cuMemFree", 3020)                                                                                 \
    X(cuMemCreate, "cuMemCreate", 10020)                                                                               \
    X(cuMemRelease, "cuMemRelease", 10020)                                                                             \
    X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020)                                             \
    X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020)                                         \
    X(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010)                                                                    \
    X(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000)                                                              \
    X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010)                                                                \
    X(cuMemPoolCreate, "cuMemPoolCreate", 11020)                                                                       \
    X(cuMemPoolDestroy, "cuMemPoolDestroy", 11020)                                                                     \
    X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020)                                                       \
    X(cuMemFreeAsync, "cuMemFreeAsync", 11020)                                                                         \
    X(cuMemPoolExportPointer, "cuMemPoolExportPointer", 11020)                                                         \
    X(cuMemPoolImportPointer, "cuMemPoolImportPointer", 11020)                                                         \
    X(cuMemPoolExportToShareableHandle, "cuMemPoolExportToShareableHandle", 11020)                                     \
    X(cuMemPoolImportFromShareableHandle, "cuMemPoolImportFromShareableHandle", 11020)
FAMILY_FUNCTIONS(FUNCTIONS)

#define BY_DESCRIPTOR CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

/* In `other` of what has a descriptor: 1 + it, and in `way` 1 + the place where it is offered. */
static int descriptor_of(const struct object *object) {
    return (int)object->other - 1;
}

static void forget_descriptor(const struct object *object) {
    if (object->way != 0)
        offer_withdraw(object->way - 1u);
    if (object->other != 0)
        close(descriptor_of(object));
}

static bool too_many_descriptors(void) {
    return objects_count(KIND_CROWD_SHARED) + objects_count(KIND_CROWD_POOL) >= CROWD_DESCRIPTORS;
}

/* ---- Handles ---- */

static void end_shared(const struct object *object) {
    forget_descriptor(object);
    if (object->handle != 0)
        cu.cuMemRelease(object->handle);
}

/* What is left of it: handle and descriptor, one of the two, or a handle that was imported from the descriptor. */
static void keep_part(struct call *call, CUmemGenericAllocationHandle handle, int descriptor, uint64_t size) {
    CUmemGenericAllocationHandle imported = 0;
    unsigned part = (unsigned)random_below(&call->random, 4);
    void *from = (void *)(intptr_t)descriptor;
    if (part == 3 && cu.cuMemImportFromShareableHandle(&imported, from, BY_DESCRIPTOR) == CUDA_SUCCESS) {
        cu.cuMemRelease(handle);
        handle = imported;
    }
    if (part == 1) {
        cu.cuMemRelease(handle);
        handle = 0;
    } else if (part >= 2) {
        close(descriptor);
        descriptor = -1;
    }
    struct object object = {
        .handle = handle, .other = (uint64_t)(descriptor + 1), .size = size, .kind = KIND_CROWD_SHARED};
    if (!object_put(&object))
        end_shared(&object);
}

static bool export_one(struct call *call, uint64_t size) {
    CUmemGenericAllocationHandle handle;
    int descriptor = -1;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = BY_DESCRIPTOR,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    if (too_many_descriptors() || !crowd_did(call, cu.cuMemCreate(&handle, size, &properties, 0)))
        return false;
    if (crowd_did(call, cu.cuMemExportToShareableHandle(&descriptor, handle, BY_DESCRIPTOR, 0))) {
        keep_part(call, handle, descriptor, size);
        return true;
    }
    cu.cuMemRelease(handle);
    return false;
}

static void export(struct call *call) {
    uint64_t size = rounded(crowd_size(call), BLOCK);
    if (!crowd_enter(call))
        return;
    say(call, "%llu exported", (unsigned long long)size);
    export_one(call, size);
}

/* As many as any table has places. */
static void fill_table(struct call *call) {
    unsigned count = 1 + (unsigned)random_below(&call->random, 160), done = 0;
    if (!crowd_enter(call))
        return;
    while (done < count && crowd_goes_on() && export_one(call, (1 + random_below(&call->random, 2)) * BLOCK))
        done++;
    say(call, "%u exported at once", done);
}

static void end_export(struct call *call) {
    struct object object;
    if (!crowd_enter(call) || !object_take(&call->random, KIND_CROWD_SHARED, -1, &object))
        return;
    say(call, "ending an export of %llu", (unsigned long long)object.size);
    end_shared(&object);
    crowd_did(call, CUDA_SUCCESS);
}

/* ---- Pools ---- */

static void end_offered(const struct object *object) {
    forget_descriptor(object);
    cu.cuMemFreeAsync(object->size, NULL);
    cu.cuMemPoolDestroy((CUmemoryPool)(uintptr_t)object->handle);
}

static void export_pool_now(struct call *call) {
    CUmemPoolProps wanted = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .handleTypes = BY_DESCRIPTOR,
                             .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemoryPool pool = NULL;
    CUdeviceptr address = 0;
    CUmemPoolPtrExportData data = {0};
    int descriptor = -1;
    /* What lies beside the pointers that another claim imports is counted nowhere when its owner is dead. */
    uint64_t size = board->dials.mixed ? crowd_burst(call) * PIECE : crowd_size(call);
    if (!crowd_enter(call) || too_many_descriptors())
        return;
    say(call, "a pool exported");
    if (!crowd_did(call, cu.cuMemPoolCreate(&pool, &wanted)))
        return;
    if (!crowd_did(call, cu.cuMemPoolExportToShareableHandle(&descriptor, pool, BY_DESCRIPTOR, 0)) ||
        !crowd_did(call, cu.cuMemAllocFromPoolAsync(&address, size, pool, NULL)) ||
        !crowd_did(call, cu.cuMemPoolExportPointer(&data, address))) {
        if (descriptor >= 0)
            close(descriptor);
        cu.cuMemPoolDestroy(pool);
        return;
    }
    struct object object = {
        .handle = (uintptr_t)pool, .other = (uint64_t)(descriptor + 1), .size = address, .kind = KIND_CROWD_POOL};
    unsigned slot = offer_slot(&call->random);
    if (slot != OFFERS) {
        object.way = (uint8_t)(slot + 1);
        struct offered what = {.kind = OFFER_POOL, .descriptor = descriptor, .gpu = call->gpu};
        memcpy(what.bytes, &data, sizeof data);
        offer_publish(slot, what);
    }
    if (!object_put(&object))
        end_offered(&object);
}

static void export_pool(struct call *call) {
    crowd_work_begin();
    export_pool_now(call);
    crowd_work_end();
}

static void end_pool_now(struct call *call) {
    struct object object;
    if (!crowd_enter(call) || !object_take(&call->random, KIND_CROWD_POOL, -1, &object))
        return;
    if (object.other == 0) {
        object_put(&object);
        return;
    }
    say(call, "an exported pool ends");
    end_offered(&object);
    crowd_did(call, CUDA_SUCCESS);
}

static void end_pool(struct call *call) {
    crowd_end_begin();
    end_pool_now(call);
    crowd_work_end();
}

/* ---- Legacy IPC ---- */

static void end_legacy_of(const struct object *object) {
    forget_descriptor(object);
    cu.cuMemFree_v2(object->handle);
}

static void offer_legacy(struct call *call) {
    CUdeviceptr address = 0;
    CUipcMemHandle handle;
    struct offered what = {.kind = OFFER_LEGACY, .descriptor = -1, .size = rounded(crowd_size(call), BLOCK)};
    if (!crowd_enter(call))
        return;
    unsigned slot = offer_slot(&call->random);
    if (slot == OFFERS)
        return;
    what.gpu = call->gpu;
    say(call, "cuIpcGetMemHandle of %llu", (unsigned long long)what.size);
    if (!crowd_did(call, cu.cuMemAlloc_v2(&address, what.size))) {
        offer_withdraw(slot);
        return;
    }
    struct object object = {.handle = address, .kind = KIND_CROWD_LEGACY, .way = (uint8_t)(slot + 1)};
    if (crowd_did(call, cu.cuIpcGetMemHandle(&handle, address))) {
        memcpy(what.bytes, &handle, sizeof handle);
        offer_publish(slot, what);
    }
    if (!object_put(&object))
        end_legacy_of(&object);
}

static void end_legacy(struct call *call) {
    struct object object;
    if (!crowd_enter(call) || !object_take(&call->random, KIND_CROWD_LEGACY, -1, &object))
        return;
    say(call, "freeing what others may have opened");
    end_legacy_of(&object);
    crowd_did(call, CUDA_SUCCESS);
}

/* ---- Importing ---- */

/* Of an offer of another claim only what counts in full when it is imported: see docs/counting.md. */
static bool may_import(const struct taken *taken) {
    bool same = taken->what.claim == atomic_load(&my_seat->claim);
    return taken->what.pid != getpid() && (same || board->dials.mixed);
}

static void import_pool(struct call *call, const struct taken *taken) {
    CUmemoryPool pool = NULL;
    void *from = (void *)(intptr_t)taken->descriptor;
    CUmemPoolPtrExportData data;
    CUdeviceptr address = 0;
    memcpy(&data, taken->what.bytes, sizeof data);
    say(call, "cuMemPoolImportFromShareableHandle from %d", taken->what.pid);
    if (objects_count(KIND_CROWD_IMPORTED_POOL) >= 16 ||
        !crowd_did(call, cu.cuMemPoolImportFromShareableHandle(&pool, from, BY_DESCRIPTOR, 0)))
        return;
    /* By no pointer only what the claim is sure to count: see export_pool_now. */
    bool same = taken->what.claim == atomic_load(&my_seat->claim);
    bool whole =
        (same && random_once_in(&call->random, 2)) || crowd_did(call, cu.cuMemPoolImportPointer(&address, pool, &data));
    if (call->desk->result != CUDA_SUCCESS)
        address = 0; /* which by now another thread's import may have */
    if (whole && crowd_keep(call, KIND_CROWD_IMPORTED_POOL, (uintptr_t)pool, address, 0))
        return;
    if (address != 0)
        cu.cuMemFree_v2(address);
    cu.cuMemPoolDestroy(pool);
}

static void open_legacy(struct call *call, const struct taken *taken) {
    CUdeviceptr address = 0;
    CUipcMemHandle handle;
    memcpy(&handle, taken->what.bytes, sizeof handle);
    say(call, "cuIpcOpenMemHandle from %d", taken->what.pid);
    if (crowd_did(call, cu.cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)) &&
        !crowd_keep(call, KIND_CROWD_OPENED, address, 0, 0))
        cu.cuIpcCloseMemHandle(address);
}

static void import(struct call *call) {
    struct taken taken;
    if (!crowd_enter(call) || !offer_take(call, 1 << OFFER_LEGACY | 1 << OFFER_POOL, &taken))
        return;
    if (may_import(&taken) && taken.what.kind == OFFER_POOL)
        import_pool(call, &taken);
    else if (may_import(&taken))
        open_legacy(call, &taken);
    offer_done(&taken);
}

static void end_import(struct call *call) {
    struct object object;
    if (!crowd_enter(call))
        return;
    say(call, "an import ends");
    if (object_take(&call->random, KIND_CROWD_IMPORTED_POOL, -1, &object)) {
        if (object.other != 0)
            cu.cuMemFree_v2(object.other);
        crowd_did(call, cu.cuMemPoolDestroy((CUmemoryPool)(uintptr_t)object.handle));
    } else if (object_take(&call->random, KIND_CROWD_OPENED, -1, &object))
        crowd_did(call, cu.cuIpcCloseMemHandle(object.handle));
}

static const struct operation operations[] = {
    {"crowd_share.export", 6, export, "cuMemExportToShareableHandle cuMemImportFromShareableHandle", false, false},
    {"crowd_share.table", 2, fill_table, "cuMemExportToShareableHandle cuMemImportFromShareableHandle", false, false},
    {"crowd_share.end_export", 12, end_export, "cuMemRelease", false, false},
    {"crowd_share.pool", 8, export_pool, "cuMemPoolExportToShareableHandle cuMemAllocFromPoolAsync", false, false},
    {"crowd_share.end_pool", 5, end_pool, "cuMemPoolDestroy cuMemFreeAsync", false, false},
    {"crowd_share.legacy", 6, offer_legacy, "cuIpcGetMemHandle", false, false},
    {"crowd_share.end_legacy", 4, end_legacy, "cuMemFree_v2", false, false},
    {"crowd_share.import", 20, import, "cuIpcOpenMemHandle_v2 cuMemPoolImportFromShareableHandle", false, false},
    {"crowd_share.end_import", 6, end_import, "cuIpcCloseMemHandle cuMemPoolDestroy", false, false},
    {0},
};

const struct family family_crowd_share = {"crowd_share", functions, operations};
