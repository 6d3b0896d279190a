/*
 * Memory that goes from process to process: handles and pools by file descriptor, legacy IPC, external memory.
 */
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "family_pool.h"
#include "offers.h"
#include "vmm_objects.h"
#include "worker.h"

#define FUNCTIONS(X)                                                                                                   \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020)                                                                               \
    X(cuMemFree_v2, "cuMemFree", 3020)                                                                                 \
    X(cuMemsetD8_v2, "cuMemsetD8", 3020)                                                                               \
    X(cuMemCreate, "cuMemCreate", 10020)                                                                               \
    X(cuMemRelease, "cuMemRelease", 10020)                                                                             \
    X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020)                                             \
    X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020)                                         \
    X(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010)                                                                    \
    X(cuIpcOpenMemHandle, "cuIpcOpenMemHandle", 4010)                                                                  \
    X(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000)                                                              \
    X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010)                                                                \
    X(cuImportExternalMemory, "cuImportExternalMemory", 10000)                                                         \
    X(cuExternalMemoryGetMappedBuffer, "cuExternalMemoryGetMappedBuffer", 10000)                                       \
    X(cuDestroyExternalMemory, "cuDestroyExternalMemory", 10000)                                                       \
    X(cuMemPoolCreate, "cuMemPoolCreate", 11020)                                                                       \
    X(cuMemPoolDestroy, "cuMemPoolDestroy", 11020)                                                                     \
    X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020)                                                       \
    X(cuMemFreeAsync, "cuMemFreeAsync", 11020)                                                                         \
    X(cuStreamSynchronize, "cuStreamSynchronize", 2000)                                                                \
    X(cuMemPoolExportToShareableHandle, "cuMemPoolExportToShareableHandle", 11020)                                     \
    X(cuMemPoolImportFromShareableHandle, "cuMemPoolImportFromShareableHandle", 11020)                                 \
    X(cuMemPoolExportPointer, "cuMemPoolExportPointer", 11020)                                                         \
    X(cuMemPoolImportPointer, "cuMemPoolImportPointer", 11020)
FAMILY_FUNCTIONS(FUNCTIONS)

#define GROWTH (32 * MIB) /* of pools */
#define BY_DESCRIPTOR CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

enum { WAY_WHOLE, WAY_BUFFER_ONLY }; /* of external memory: the object is destroyed, its buffer not yet */

/* ---- Offers. An object that is offered remembers where, and its descriptor. ---- */

static uint64_t packed_place(unsigned slot, int descriptor, uint32_t memory) {
    return (uint64_t)(uint32_t)descriptor << 32 | slot << 16 | memory;
}

static unsigned slot_of(const struct object *object) {
    return object->other >> 16 & 0xff;
}

static int descriptor_of(const struct object *object) {
    return (int)(object->other >> 32);
}

static uint32_t memory_of(const struct object *object) {
    return object->other & 0xffff;
}

static void shrinks(struct call *call, uint64_t size) {
    grows(call, -(int64_t)size, 0);
}

/* ---- Handles ---- */

/*
 * What was released while a copy of its descriptor was open somewhere stays counted until its maker looks again, which it
 * does when it is refused something.
 */
static CUresult settle(const struct object *object) {
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = object->device}};
    CUresult result = cu.cuMemCreate(&handle, (size_t)1 << 50, &properties, 0);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

static void may_wait(const struct object *ended) {
    struct object object = *ended;
    object.kind = KIND_WAITING;
    object.slack = object.size;
    object_put(&object);
}

static CUresult release_offered(const struct object *object) {
    struct change change = {0};
    offer_withdraw(slot_of(object));
    if (object->way == 0)
        close(descriptor_of(object));
    CUresult result = cu.cuMemRelease(object->handle);
    memory_drop(memory_of(object), &change);
    if (object->way != 0)
        close(descriptor_of(object)); /* it keeps the memory alive by itself */
    may_wait(object);
    return result;
}

static void export_handle(struct call *call, struct object *handle, unsigned slot) {
    struct memory *memory = memory_at((uint32_t)handle->other);
    int descriptor = -1;
    call->gpu = handle->gpu;
    memory->shared = true;
    say(call, "cuMemExportToShareableHandle(%#llx)", (unsigned long long)handle->handle);
    grows(call, 0, 0);
    CUresult result = CALL(cu.cuMemExportToShareableHandle(&descriptor, handle->handle, BY_DESCRIPTOR, 0));
    if (!expect(call, result, CUDA_SUCCESS, "cuMemExportToShareableHandle"))
        return;
    offer_publish(slot, (struct offered){.kind = OFFER_HANDLE,
                                         .descriptor = descriptor,
                                         .gpu = handle->gpu,
                                         .size = memory->size,
                                         .tile_pool = memory->tile_pool});
    handle->kind = KIND_OFFER;
    handle->other = packed_place(slot, descriptor, (uint32_t)handle->other);
    handle->way = (uint8_t)random_below(&call->random, 2);
}

static void offer_handle(struct call *call) {
    struct object handle;
    unsigned slot = offer_slot(&call->random);
    if (slot == OFFERS)
        return;
    if (object_take(&call->random, KIND_HANDLE, -1, &handle)) {
        struct memory *memory = memory_at((uint32_t)handle.other);
        if (memory->exportable && !memory->multicast && !memory->host)
            export_handle(call, &handle, slot);
        object_put(&handle);
        if (handle.kind == KIND_OFFER)
            return;
    }
    offer_withdraw(slot);
}

static void end_offer(struct call *call) {
    struct object object;
    if (!object_take(&call->random, KIND_OFFER, -1, &object))
        return;
    call->gpu = object.gpu;
    say(call, "releasing the offered %#llx of %llu", (unsigned long long)object.handle,
        (unsigned long long)object.size);
    expect(call, CALL(release_offered(&object)), CUDA_SUCCESS, "cuMemRelease");
    shrinks(call, object.size);
}

static int device_of(int gpu) {
    for (int device = 0; device < device_count(); device++)
        if (gpu_of_device(device) == gpu)
            return device;
    return -1;
}

static void import_handle(struct call *call) {
    struct taken taken;
    CUmemGenericAllocationHandle handle = 0;
    if (!offer_take(call, 1 << OFFER_HANDLE, &taken))
        return;
    say(call, "cuMemImportFromShareableHandle from %d, of %llu", taken.what.pid, (unsigned long long)taken.what.size);
    grows(call, 0, 0);
    void *descriptor = (void *)(intptr_t)taken.descriptor;
    CUresult result = CALL(cu.cuMemImportFromShareableHandle(&handle, descriptor, BY_DESCRIPTOR));
    struct memory memory = {.device = device_of(taken.what.gpu),
                            .gpu = taken.what.gpu,
                            .size = taken.what.size,
                            .tile_pool = taken.what.tile_pool,
                            .exportable = random_once_in(&call->random, 2),
                            .shared = true};
    offer_done(&taken);
    if (!expect(call, result, CUDA_SUCCESS, "cuMemImportFromShareableHandle"))
        return;
    uint32_t number = memory_new(memory);
    struct object object = {.handle = handle,
                            .other = number,
                            .size = memory.size,
                            .device = (int16_t)memory.device,
                            .gpu = (int16_t)memory.gpu,
                            .kind = KIND_HANDLE};
    if (number == 0 || !object_put(&object))
        expect(call, CALL(cu.cuMemRelease(handle)), CUDA_SUCCESS, "cuMemRelease");
}

/* ---- External memory ---- */

static CUresult release_external(const struct object *object) {
    CUresult result = object->other != 0 ? cu.cuMemFree_v2(object->other) : CUDA_SUCCESS;
    CUresult destroyed = object->way == WAY_WHOLE
                             ? cu.cuDestroyExternalMemory((CUexternalMemory)(uintptr_t)object->handle)
                             : CUDA_SUCCESS;
    return result != CUDA_SUCCESS ? result : destroyed;
}

static void map_buffer(struct call *call, struct object *object) {
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer = {.size = object->size};
    CUdeviceptr address = 0;
    CUresult result =
        CALL(cu.cuExternalMemoryGetMappedBuffer(&address, (CUexternalMemory)(uintptr_t)object->handle, &buffer));
    if (expect(call, result, CUDA_SUCCESS, "cuExternalMemoryGetMappedBuffer"))
        object->other = address;
    if (object->other != 0)
        expect(call, CALL(cu.cuMemsetD8_v2(object->other, 1, 4096)), CUDA_SUCCESS, "cuMemsetD8");
}

static void import_external(struct call *call) {
    struct taken taken;
    CUexternalMemory external = NULL;
    if (!need_context(call))
        return;
    int device = call->device, gpu = call->gpu;
    if (!offer_take(call, 1 << OFFER_HANDLE, &taken))
        return;
    /* On another GPU than that of the current context it could only fail. */
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {
        .type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .handle = {.fd = taken.descriptor}, .size = taken.what.size};
    if (taken.what.gpu != gpu) {
        offer_done(&taken);
        return;
    }
    needs(call, 0);
    grows(call, 0, 0);
    say(call, "cuImportExternalMemory from %d, of %llu", taken.what.pid, (unsigned long long)taken.what.size);
    CUresult result = CALL(cu.cuImportExternalMemory(&external, &from));
    if (result == CUDA_SUCCESS)
        taken.descriptor = -1; /* it is the driver's now */
    offer_done(&taken);
    if (!judged(call, result))
        return;
    struct object object = {.handle = (uintptr_t)external,
                            .size = taken.what.size,
                            .context = call->context->serial,
                            .device = (int16_t)device,
                            .gpu = (int16_t)gpu,
                            .kind = KIND_EXTERNAL};
    if (random_once_in(&call->random, 2))
        map_buffer(call, &object);
    if (!object_put(&object))
        expect(call, CALL(release_external(&object)), CUDA_SUCCESS, "cuDestroyExternalMemory");
}

/* Buffers may be freed after the external memory that they are of was destroyed, or before. */
static void end_external(struct call *call) {
    struct object object;
    if (!need_context(call) || !object_take_in(&call->random, KIND_EXTERNAL, call->context->serial, &object))
        return;
    say(call, "ending external memory of %llu", (unsigned long long)object.size);
    shrinks(call, object.size);
    if (object.way == WAY_WHOLE && object.other != 0 && random_once_in(&call->random, 2)) {
        CUresult result = CALL(cu.cuDestroyExternalMemory((CUexternalMemory)(uintptr_t)object.handle));
        say(call, " but its buffer");
        expect(call, result, CUDA_SUCCESS, "cuDestroyExternalMemory");
        object.way = WAY_BUFFER_ONLY;
        grows(call, 0, 0);
        object_put(&object);
        return;
    }
    expect(call, CALL(release_external(&object)), CUDA_SUCCESS, "cuDestroyExternalMemory");
}

/* ---- Legacy IPC ---- */

static CUresult free_legacy(const struct object *object) {
    offer_withdraw(slot_of(object));
    return cu.cuMemFree_v2(object->handle);
}

static bool context_lives(uint32_t serial) {
    for (unsigned i = 0; i < CONTEXTS; i++)
        if (context_at(i)->handle != NULL && context_at(i)->serial == serial)
            return true;
    return false;
}

/* What was offered of a context that is no more. */
static void withdraw_stale(void) {
    for (unsigned slot = 0; slot < OFFERS; slot++) {
        struct offer *offer = &my_seat->offers[slot];
        if (atomic_load(&offer->sequence) % 2 != 0 && offer->what.context != 0 && !context_lives(offer->what.context))
            offer_withdraw(slot);
    }
}

static void offer_legacy(struct call *call) {
    CUdeviceptr address = 0;
    struct offered what = {.kind = OFFER_LEGACY, .descriptor = -1};
    if (!need_context(call))
        return;
    withdraw_stale();
    unsigned slot = offer_slot(&call->random);
    if (slot == OFFERS)
        return;
    what.size = random_size(call);
    what.gpu = call->gpu;
    what.context = call->context->serial;
    needs(call, rounded(what.size, BLOCK));
    say(call, "cuMemAlloc_v2(%llu) on %d, and cuIpcGetMemHandle", (unsigned long long)what.size, call->device);
    if (!judged(call, CALL(cu.cuMemAlloc_v2(&address, what.size)))) {
        offer_withdraw(slot);
        return;
    }
    grows(call, what.size < MIB ? 0 : (int64_t)rounded(what.size, BLOCK), (int64_t)rounded(what.size, BLOCK));
    CUipcMemHandle handle = {0};
    if (expect(call, CALL(cu.cuIpcGetMemHandle(&handle, address)), CUDA_SUCCESS, "cuIpcGetMemHandle")) {
        memcpy(what.bytes, &handle, sizeof handle);
        offer_publish(slot, what);
    }
    struct object object = {.handle = address,
                            .other = packed_place(slot, -1, 0),
                            .size = what.size,
                            .context = what.context,
                            .device = (int16_t)call->device,
                            .gpu = (int16_t)call->gpu,
                            .kind = KIND_LEGACY};
    if (!object_put(&object))
        expect(call, CALL(free_legacy(&object)), CUDA_SUCCESS, "cuMemFree_v2");
}

static void end_legacy(struct call *call) {
    struct object object;
    if (!need_context(call) || !object_take(&call->random, KIND_LEGACY, -1, &object))
        return;
    call->gpu = object.gpu;
    say(call, "freeing %#llx of %llu, which others may have opened", (unsigned long long)object.handle,
        (unsigned long long)object.size);
    expect(call, CALL(free_legacy(&object)), CUDA_SUCCESS, "cuMemFree_v2");
    shrinks(call, rounded(object.size, BLOCK));
}

static CUresult close_legacy(const struct object *object) {
    return cu.cuIpcCloseMemHandle(object->handle);
}

/* Its owner may free it, or die, at any moment. */
static void open_legacy(struct call *call) {
    struct taken taken;
    CUdeviceptr address = 0;
    CUipcMemHandle handle;
    if (!need_context(call))
        return;
    int device = call->device, gpu = call->gpu;
    if (!offer_take(call, 1 << OFFER_LEGACY, &taken))
        return;
    if (taken.what.gpu != gpu || taken.what.pid == getpid()) {
        offer_done(&taken);
        return;
    }
    memcpy(&handle, taken.what.bytes, sizeof handle);
    needs(call, rounded(taken.what.size, BLOCK));
    grows(call, 0, 0);
    say(call, "cuIpcOpenMemHandle from %d, of %llu", taken.what.pid, (unsigned long long)taken.what.size);
    unsigned flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
    CUresult result = random_once_in(&call->random, 2) ? CALL(cu.cuIpcOpenMemHandle(&address, handle, flags))
                                                       : CALL(cu.cuIpcOpenMemHandle_v2(&address, handle, flags));
    bool orphan = offer_orphaned(&taken);
    if (!orphan)
        needs(call, 0);
    offer_done(&taken);
    if (result == CUDA_ERROR_INVALID_HANDLE) {
        say(call, ": it is gone");
        return;
    }
    if (!judged(call, result))
        return;
    expect(call, CALL(cu.cuMemsetD8_v2(address, 1, taken.what.size < 4096 ? taken.what.size : 4096)), CUDA_SUCCESS,
           "cuMemsetD8");
    struct object object = {.handle = address,
                            .size = rounded(taken.what.size, BLOCK),
                            .slack = orphan ? rounded(taken.what.size, BLOCK) : 0,
                            .context = call->context->serial,
                            .device = (int16_t)device,
                            .gpu = (int16_t)gpu,
                            .kind = KIND_IPC};
    if (!object_put(&object))
        expect(call, CALL(close_legacy(&object)), CUDA_SUCCESS, "cuIpcCloseMemHandle");
}

static void close_one(struct call *call) {
    struct object object;
    if (!need_context(call) || !object_take_in(&call->random, KIND_IPC, call->context->serial, &object))
        return;
    say(call, "cuIpcCloseMemHandle(%#llx)", (unsigned long long)object.handle);
    expect(call, CALL(close_legacy(&object)), CUDA_SUCCESS, "cuIpcCloseMemHandle");
    shrinks(call, object.size);
}

/* ---- Pools ---- */

static CUresult end_offered_pool(const struct object *object) {
    offer_withdraw(slot_of(object));
    close(descriptor_of(object));
    CUresult result = free_in_keeper(object->size);
    CUresult destroyed = cu.cuMemPoolDestroy((CUmemoryPool)(uintptr_t)object->handle);
    return result != CUDA_SUCCESS ? result : destroyed;
}

static bool export_pool(struct call *call, CUmemoryPool pool, CUdeviceptr address, unsigned slot,
                        struct offered *what) {
    CUmemPoolPtrExportData data = {0};
    CUresult result = CALL(cu.cuMemPoolExportToShareableHandle(&what->descriptor, pool, BY_DESCRIPTOR, 0));
    if (!expect(call, result, CUDA_SUCCESS, "cuMemPoolExportToShareableHandle") ||
        !expect(call, CALL(cu.cuMemPoolExportPointer(&data, address)), CUDA_SUCCESS, "cuMemPoolExportPointer"))
        return false;
    memcpy(what->bytes, &data, sizeof data);
    offer_publish(slot, *what);
    return true;
}

static void offer_pool(struct call *call) {
    CUmemoryPool pool = NULL;
    CUdeviceptr address = 0;
    if (!need_context(call) || !need_keeper(call) || objects_count(KIND_OFFERED_POOL) >= 4)
        return;
    unsigned slot = offer_slot(&call->random);
    if (slot == OFFERS)
        return;
    struct offered what = {.kind = OFFER_POOL, .gpu = call->gpu, .size = 1 + random_below(&call->random, 48 * MIB)};
    CUmemPoolProps wanted = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .handleTypes = BY_DESCRIPTOR,
                             .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = call->device}};
    uint64_t most = rounded(what.size, GROWTH);
    say(call, "a pool on %d, and %llu from it", call->device, (unsigned long long)what.size);
    if (!expect(call, CALL(cu.cuMemPoolCreate(&pool, &wanted)), CUDA_SUCCESS, "cuMemPoolCreate")) {
        offer_withdraw(slot);
        return;
    }
    needs(call, most + GROWTH); /* a pool does not grow by the last piece */
    grows(call, (int64_t)rounded(what.size, BLOCK), (int64_t)most);
    if (!judged(call, CALL(cu.cuMemAllocFromPoolAsync(&address, what.size, pool, NULL))) ||
        !export_pool(call, pool, address, slot, &what)) {
        offer_withdraw(slot);
        CUresult destroyed = CALL(cu.cuMemPoolDestroy(pool));
        if (destroyed != CUDA_SUCCESS)
            wrong(call, "cuMemPoolDestroy gave %d", destroyed);
        return;
    }
    /* Pools are the device's, but what is allocated from them is freed in a context's stream. */
    struct object object = {.handle = (uintptr_t)pool,
                            .other = packed_place(slot, what.descriptor, 0),
                            .size = address,
                            .slack = GROWTH, /* near the limit, a pool keeps room for one piece */
                            .device = (int16_t)call->device,
                            .gpu = (int16_t)call->gpu,
                            .kind = KIND_OFFERED_POOL};
    if (!object_put(&object))
        expect(call, CALL(end_offered_pool(&object)), CUDA_SUCCESS, "cuMemPoolDestroy");
}

static void end_pool(struct call *call) {
    struct object object;
    if (!need_context(call) || !object_take(&call->random, KIND_OFFERED_POOL, call->device, &object))
        return;
    say(call, "destroying an offered pool");
    expect(call, CALL(end_offered_pool(&object)), CUDA_SUCCESS, "cuMemPoolDestroy");
    grows(call, -((int64_t)1 << 50), 0);
}

static CUresult end_imported_pool(const struct object *object) {
    CUresult result = object->other != 0 ? free_in_keeper(object->other) : CUDA_SUCCESS;
    CUresult destroyed = cu.cuMemPoolDestroy((CUmemoryPool)(uintptr_t)object->handle);
    return result != CUDA_SUCCESS ? result : destroyed;
}

static void import_pool(struct call *call) {
    struct taken taken;
    CUmemoryPool pool = NULL;
    if (!need_context(call) || !need_keeper(call) || objects_count(KIND_IMPORTED_POOL) >= 8)
        return;
    int device = call->device, gpu = call->gpu;
    if (!offer_take(call, 1 << OFFER_POOL, &taken))
        return;
    if (taken.what.gpu != gpu || taken.what.pid == getpid()) {
        offer_done(&taken);
        return;
    }
    say(call, "cuMemPoolImportFromShareableHandle from %d", taken.what.pid);
    grows(call, 0, 0);
    CUresult result =
        CALL(cu.cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)taken.descriptor, BY_DESCRIPTOR, 0));
    bool orphan = offer_orphaned(&taken);
    bool offered = offer_unchanged(&taken);
    offer_done(&taken);
    if (!expect(call, result, CUDA_SUCCESS, "cuMemPoolImportFromShareableHandle"))
        return;
    struct object object = {.handle = (uintptr_t)pool,
                            .context = 0,
                            .device = (int16_t)device,
                            .gpu = (int16_t)gpu,
                            .kind = KIND_IMPORTED_POOL};
    /* The allocation may be freed before the pool goes. */
    CUmemPoolPtrExportData data;
    CUdeviceptr address = 0;
    memcpy(&data, taken.what.bytes, sizeof data);
    /* Whoever cannot see that the claim pays for the pool already pays for what lies there. */
    uint64_t most = rounded(taken.what.size, BLOCK);
    if (offered && !orphan && random_once_in(&call->random, 2)) {
        needs(call, most);
        if (judged(call, CALL(cu.cuMemPoolImportPointer(&address, pool, &data)))) {
            object.other = address;
            object.slack = most;
        }
    }
    if (!object_put(&object))
        expect(call, CALL(end_imported_pool(&object)), CUDA_SUCCESS, "cuMemPoolDestroy");
}

static void end_import(struct call *call) {
    struct object object;
    if (!need_context(call) || !object_take(&call->random, KIND_IMPORTED_POOL, call->device, &object))
        return;
    say(call, "destroying an imported pool");
    expect(call, CALL(end_imported_pool(&object)), CUDA_SUCCESS, "cuMemPoolDestroy");
    grows(call, -((int64_t)1 << 50), 0);
}

__attribute__((constructor)) static void release_functions(void) {
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* others may take descriptors out of this process */
    releases[KIND_OFFER] = release_offered;
    releases[KIND_WAITING] = settle;
    releases[KIND_EXTERNAL] = release_external;
    releases[KIND_LEGACY] = free_legacy;
    releases[KIND_IPC] = close_legacy;
    releases[KIND_OFFERED_POOL] = end_offered_pool;
    releases[KIND_IMPORTED_POOL] = end_imported_pool;
}

static const struct operation operations[] = {
    {"ipc.offer", 14, offer_handle, "cuMemExportToShareableHandle cuMemRelease", false, false},
    {"ipc.end_offer", 8, end_offer, "cuMemRelease", false, false},
    {"ipc.import", 20, import_handle, "cuMemImportFromShareableHandle cuMemRelease", false, false},
    {"ipc.external", 12, import_external,
     "cuImportExternalMemory cuExternalMemoryGetMappedBuffer cuDestroyExternalMemory cuMemFree_v2", false, false},
    {"ipc.end_external", 8, end_external, "cuDestroyExternalMemory cuMemFree_v2", false, false},
    {"ipc.legacy", 14, offer_legacy, "cuMemAlloc_v2 cuIpcGetMemHandle cuMemFree_v2", false, false},
    {"ipc.end_legacy", 8, end_legacy, "cuMemFree_v2", false, false},
    {"ipc.open", 20, open_legacy, "cuIpcOpenMemHandle cuIpcOpenMemHandle_v2 cuIpcCloseMemHandle cuMemsetD8_v2", false,
     false},
    {"ipc.close", 12, close_one, "cuIpcCloseMemHandle", false, false},
    {"ipc.pool", 8, offer_pool,
     "cuMemPoolCreate cuMemPoolDestroy cuMemAllocFromPoolAsync cuMemFreeAsync cuStreamSynchronize "
     "cuMemPoolExportToShareableHandle cuMemPoolExportPointer",
     false, false},
    {"ipc.end_pool", 4, end_pool, "cuMemPoolDestroy cuMemFreeAsync cuStreamSynchronize", false, false},
    {"ipc.import_pool", 12, import_pool, "cuMemPoolImportFromShareableHandle cuMemPoolImportPointer cuMemFree_v2",
     false, false},
    {"ipc.end_import", 6, end_import, "cuMemPoolDestroy cuMemFree_v2", false, true},
    {0},
};

const struct family family_ipc = {"ipc", functions, operations};
