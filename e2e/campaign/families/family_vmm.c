/* Virtual memory management: physical memory by handles, addresses, multicast objects, arrays without memory of their own. */
#include "vmm_objects.h"
#include "worker.h"

#define FUNCTIONS(X)                                                                                                   \
    X(cuMemCreate, "cuMemCreate", 10020)                                                                               \
    X(cuMemRelease, "cuMemRelease", 10020)                                                                             \
    X(cuMemAddressReserve, "cuMemAddressReserve", 10020)                                                               \
    X(cuMemAddressFree, "cuMemAddressFree", 10020)                                                                     \
    X(cuMemMap, "cuMemMap", 10020)                                                                                     \
    X(cuMemUnmap, "cuMemUnmap", 10020)                                                                                 \
    X(cuMemSetAccess, "cuMemSetAccess", 10020)                                                                         \
    X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000)                                               \
    X(cuMemsetD8_v2, "cuMemsetD8", 3020)                                                                               \
    X(cuMulticastCreate, "cuMulticastCreate", 12010)                                                                   \
    X(cuMulticastAddDevice, "cuMulticastAddDevice", 12010)                                                             \
    X(cuMulticastBindMem, "cuMulticastBindMem", 12010)                                                                 \
    X(cuMulticastBindAddr, "cuMulticastBindAddr", 12010)                                                               \
    X(cuMulticastBindMem_v2, "cuMulticastBindMem", 0)                                                                  \
    X(cuMulticastBindAddr_v2, "cuMulticastBindAddr", 0)                                                                \
    X(cuMulticastUnbind, "cuMulticastUnbind", 12010)                                                                   \
    X(cuArray3DCreate_v2, "cuArray3DCreate", 3020)                                                                     \
    X(cuArrayDestroy, "cuArrayDestroy", 2000)                                                                          \
    X(cuMemMapArrayAsync, "cuMemMapArrayAsync", 11010)                                                                 \
    X(cuMemMapArrayAsync_ptsz, "cuMemMapArrayAsync", 11010)
FAMILY_FUNCTIONS(FUNCTIONS)

#define TILE (64 * KIB)
#define TILE_SIDE 128u /* of texels of 4 bytes, in a tile */

static void shrinks(struct call *call, const struct change *change) {
    grows(call, change->least, change->most);
}

/* ---- Handles ---- */

static CUresult release_handle(const struct object *object) {
    struct change change = {0};
    CUresult result = cu.cuMemRelease(object->handle);
    memory_drop((uint32_t)object->other, &change);
    return result;
}

static void keep_handle(struct call *call, enum kind kind, uint64_t handle, uint32_t memory) {
    const struct memory *about = memory_at(memory);
    struct object object = {.handle = handle,
                            .other = memory,
                            .size = about->size,
                            .device = (int16_t)about->device,
                            .gpu = (int16_t)about->gpu,
                            .kind = (uint8_t)kind};
    say(call, " -> %#llx", (unsigned long long)handle);
    if (object_put(&object))
        return;
    grows(call, -((int64_t)1 << 50), (int64_t)1 << 50);
    expect(call, CALL(release_handle(&object)), CUDA_SUCCESS, "cuMemRelease");
}

/* Notes a new handle, or gives it back where there is no room for the note. */
static void keep_new(struct call *call, enum kind kind, uint64_t handle, struct memory memory) {
    uint32_t number = memory_new(memory);
    if (number != 0) {
        keep_handle(call, kind, handle, number);
        return;
    }
    grows(call, 0, 0);
    expect(call, CALL(cu.cuMemRelease(handle)), CUDA_SUCCESS, "cuMemRelease");
}

/* A device that this process sees, as often as not that of the current context. */
static void choose_device(struct call *call) {
    if (random_once_in(&call->random, 2) && need_context(call))
        return;
    if (call->desk->outcome == OUTCOME_WRONG)
        return;
    call->desk->text[0] = '\0';
    call->device = (int)random_below(&call->random, (uint64_t)device_count());
    call->gpu = gpu_of_device(call->device);
}

static void create(struct call *call) {
    CUmemGenericAllocationHandle handle = 0;
    choose_device(call);
    struct memory memory = {.device = call->device,
                            .gpu = call->gpu,
                            .size = rounded(random_size(call), BLOCK),
                            .exportable = random_once_in(&call->random, 2),
                            .tile_pool = random_once_in(&call->random, 2)};
    CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = memory.exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = call->device},
        .allocFlags = {.usage = memory.tile_pool ? CU_MEM_CREATE_USAGE_TILE_POOL : 0}};
    needs(call, memory.size);
    say(call, "cuMemCreate(%llu) on %d%s%s", (unsigned long long)memory.size, call->device,
        memory.exportable ? ", exportable" : "", memory.tile_pool ? ", for tiles" : "");
    CUresult result = CALL(cu.cuMemCreate(&handle, memory.size, &properties, 0));
    if (!gpu_claimed(call->gpu)) {
        grows(call, 0, 0);
        expect(call, result, CUDA_ERROR_NOT_PERMITTED, "memory of a GPU without a claim");
        return;
    }
    if (!judged(call, result))
        return;
    grows(call, (int64_t)memory.size, (int64_t)memory.size);
    keep_new(call, KIND_HANDLE, handle, memory);
}

/* The host's memory takes nothing of the GPU's. */
static void create_on_host(struct call *call) {
    CUmemGenericAllocationHandle handle = 0;
    struct memory memory = {
        .device = -1, .gpu = call->gpu, .size = (1 + random_below(&call->random, 64)) * BLOCK, .host = true};
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = random_once_in(&call->random, 2)
                                                               ? CU_MEM_LOCATION_TYPE_HOST
                                                               : CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT}};
    say(call, "cuMemCreate(%llu) on the host", (unsigned long long)memory.size);
    grows(call, 0, 0);
    if (expect(call, CALL(cu.cuMemCreate(&handle, memory.size, &properties, 0)), CUDA_SUCCESS, "cuMemCreate"))
        keep_new(call, KIND_HANDLE, handle, memory);
}

static void release_one(struct call *call, enum kind kind) {
    struct object object;
    struct change change = {0};
    if (!object_take(&call->random, kind, -1, &object))
        return;
    call->gpu = object.gpu;
    say(call, "cuMemRelease(%#llx) of %llu", (unsigned long long)object.handle, (unsigned long long)object.size);
    if (!expect(call, CALL(cu.cuMemRelease(object.handle)), CUDA_SUCCESS, "cuMemRelease"))
        return;
    memory_drop((uint32_t)object.other, &change);
    shrinks(call, &change);
}

static void release(struct call *call) {
    release_one(call, KIND_HANDLE);
}

/* ---- Addresses ---- */

static CUresult free_reservation(const struct object *object) {
    struct reservation *reservation = reservation_at((uint32_t)object->other);
    struct change change = {0};
    CUresult result = CUDA_SUCCESS;
    for (unsigned block = 0; block < reservation->blocks && result == CUDA_SUCCESS; block++) {
        if (reservation->memory[block] == 0)
            continue;
        result = cu.cuMemUnmap(reservation->address + block * BLOCK, reservation->length[block] * BLOCK);
        memory_drop(reservation->memory[block], &change);
    }
    if (result == CUDA_SUCCESS)
        result = cu.cuMemAddressFree(reservation->address, reservation->blocks * BLOCK);
    reservation->used = false;
    return result;
}

static void reserve(struct call *call) {
    CUdeviceptr address = 0;
    unsigned blocks = 1 + (unsigned)random_below(&call->random, RESERVED_BLOCKS);
    say(call, "cuMemAddressReserve(%u blocks)", blocks);
    grows(call, 0, 0);
    if (!expect(call, CALL(cu.cuMemAddressReserve(&address, blocks * BLOCK, 0, 0, 0)), CUDA_SUCCESS,
                "cuMemAddressReserve"))
        return;
    uint32_t number = reservation_new(address, blocks);
    struct object object = {.handle = address, .other = number, .device = -1, .kind = KIND_RESERVATION};
    if (number == 0 || !object_put(&object)) {
        reservation_at(number)->used = false;
        expect(call, CALL(cu.cuMemAddressFree(address, blocks * BLOCK)), CUDA_SUCCESS, "cuMemAddressFree");
    }
}

/* The first free block, and how many are free from there on. */
static unsigned find_gap(const struct reservation *reservation, unsigned *block) {
    unsigned length = 0;
    for (*block = 0; *block < reservation->blocks && reservation->memory[*block] != 0;)
        *block += reservation->length[*block];
    while (*block + length < reservation->blocks && reservation->memory[*block + length] == 0)
        length++;
    return length;
}

static CUresult map_at(struct reservation *reservation, unsigned block, unsigned length, const struct object *handle) {
    CUdeviceptr address = reservation->address + block * BLOCK;
    CUresult result = CALL(cu.cuMemMap(address, length * BLOCK, 0, handle->handle, 0));
    if (result != CUDA_SUCCESS)
        return result;
    reservation->memory[block] = (uint32_t)handle->other;
    reservation->length[block] = (uint16_t)length;
    memory_hold((uint32_t)handle->other);
    return result;
}

static void make_accessible(struct call *call, struct reservation *reservation, unsigned block,
                            const struct memory *memory) {
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = memory->host ? 0 : memory->device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr address = reservation->address + block * BLOCK;
    uint64_t size = reservation->length[block] * BLOCK;
    expect(call, CALL(cu.cuMemSetAccess(address, size, &access, 1)), CUDA_SUCCESS, "cuMemSetAccess");
}

static unsigned choose_length(uint64_t *random, unsigned times, uint64_t most) {
    if (times > 1) /* many small ones */
        return 1 + (unsigned)random_below(random, most < 3 ? most : 3);
    return random_once_in(random, 2) ? (unsigned)most : 1 + (unsigned)random_below(random, most);
}

/* Of memory, always from its beginning on; as often as not several times. */
static void map_into(struct call *call, struct reservation *reservation, const struct object *handle) {
    const struct memory *memory = memory_at((uint32_t)handle->other);
    unsigned times = random_once_in(&call->random, 2) ? 1 : 1 + (unsigned)random_below(&call->random, RESERVED_BLOCKS);
    call->gpu = memory->gpu;
    needs(call, 0);
    grows(call, 0, 0);
    say(call, "cuMemMap of %#llx (%llu), times:", (unsigned long long)handle->handle, (unsigned long long)handle->size);
    for (unsigned n = 0; n < times; n++) {
        unsigned block, gap = find_gap(reservation, &block);
        uint64_t most = memory->size / BLOCK < gap ? memory->size / BLOCK : gap;
        if (most == 0)
            break;
        unsigned length = choose_length(&call->random, times, most);
        if (!judged(call, map_at(reservation, block, length, handle)))
            return;
        if (!random_once_in(&call->random, 3))
            make_accessible(call, reservation, block, memory);
    }
}

static void map(struct call *call) {
    struct object reservation, handle;
    if (!object_take(&call->random, KIND_RESERVATION, -1, &reservation))
        return;
    if (object_take(&call->random, KIND_HANDLE, -1, &handle)) {
        map_into(call, reservation_at((uint32_t)reservation.other), &handle);
        object_put(&handle);
    }
    object_put(&reservation);
}

/* A mapping begins where its memory is noted; what lies behind is inside of it. */
static unsigned mapped_after(const struct reservation *reservation, unsigned block) {
    while (block < reservation->blocks && reservation->memory[block] == 0)
        block++;
    return block;
}

/* One mapping, or all those side by side, at once. */
static void unmap_from(struct call *call, struct reservation *reservation) {
    unsigned first = mapped_after(reservation, (unsigned)random_below(&call->random, reservation->blocks)), end = first;
    bool many = random_once_in(&call->random, 2);
    struct change change = {0}, elsewhere = {0};
    if (first >= reservation->blocks)
        return;
    do
        end += reservation->length[end];
    while (many && end < reservation->blocks && reservation->memory[end] != 0);
    call->gpu = memory_at(reservation->memory[first])->gpu;
    say(call, "cuMemUnmap(%#llx, %u blocks)", (unsigned long long)(reservation->address + first * BLOCK), end - first);
    CUresult result = CALL(cu.cuMemUnmap(reservation->address + first * BLOCK, (end - first) * BLOCK));
    if (!expect(call, result, CUDA_SUCCESS, "cuMemUnmap"))
        return;
    for (unsigned block = first; block < end; block += reservation->length[block]) {
        bool here = memory_at(reservation->memory[block])->gpu == call->gpu;
        memory_drop(reservation->memory[block], here ? &change : &elsewhere);
        reservation->memory[block] = 0;
    }
    shrinks(call, &change);
}

static void unmap(struct call *call) {
    struct object object;
    if (!object_take(&call->random, KIND_RESERVATION, -1, &object))
        return;
    unmap_from(call, reservation_at((uint32_t)object.other));
    object_put(&object);
}

/* Parts of mappings cannot be unmapped, and addresses in use not be given back. */
static void unmap_wrongly(struct call *call) {
    struct object object;
    if (!object_take(&call->random, KIND_RESERVATION, -1, &object))
        return;
    struct reservation *reservation = reservation_at((uint32_t)object.other);
    unsigned block = mapped_after(reservation, 0);
    if (block < reservation->blocks) {
        CUdeviceptr address = reservation->address + block * BLOCK;
        call->gpu = memory_at(reservation->memory[block])->gpu;
        say(call, "unmapping wrongly at %#llx", (unsigned long long)address);
        grows(call, 0, 0);
        expect(call, CALL(cu.cuMemAddressFree(reservation->address, reservation->blocks * BLOCK)),
               CUDA_ERROR_INVALID_VALUE, "cuMemAddressFree");
        if (reservation->length[block] > 1)
            expect(call, CALL(cu.cuMemUnmap(address, BLOCK)), CUDA_ERROR_INVALID_VALUE, "cuMemUnmap of a part");
    }
    object_put(&object);
}

static void retain(struct call *call) {
    struct object object;
    CUmemGenericAllocationHandle handle = 0;
    if (!object_take(&call->random, KIND_RESERVATION, -1, &object))
        return;
    struct reservation *reservation = reservation_at((uint32_t)object.other);
    unsigned block = mapped_after(reservation, (unsigned)random_below(&call->random, reservation->blocks));
    if (block < reservation->blocks) {
        const struct memory *memory = memory_at(reservation->memory[block]);
        void *address = (void *)(uintptr_t)(reservation->address + block * BLOCK);
        call->gpu = memory->gpu;
        say(call, "cuMemRetainAllocationHandle(%p)", address);
        grows(call, 0, 0);
        if (expect(call, CALL(cu.cuMemRetainAllocationHandle(&handle, address)), CUDA_SUCCESS,
                   "cuMemRetainAllocationHandle")) {
            memory_hold(reservation->memory[block]);
            keep_handle(call, memory->multicast ? KIND_MULTICAST : KIND_HANDLE, handle, reservation->memory[block]);
        }
    }
    object_put(&object);
}

static void free_addresses(struct call *call) {
    struct object object;
    if (!object_take(&call->random, KIND_RESERVATION, -1, &object))
        return;
    say(call, "cuMemAddressFree(%#llx), with all mappings", (unsigned long long)object.handle);
    expect(call, CALL(free_reservation(&object)), CUDA_SUCCESS, "cuMemAddressFree");
}

/* What is mapped is there. */
static void use(struct call *call) {
    struct object object;
    if (!need_context(call) || !object_take(&call->random, KIND_RESERVATION, -1, &object))
        return;
    struct reservation *reservation = reservation_at((uint32_t)object.other);
    unsigned block = mapped_after(reservation, (unsigned)random_below(&call->random, reservation->blocks));
    if (block < reservation->blocks && !memory_at(reservation->memory[block])->multicast &&
        memory_at(reservation->memory[block])->device == call->device) {
        say(call, "cuMemsetD8 of what is mapped");
        grows(call, 0, 0);
        make_accessible(call, reservation, block, memory_at(reservation->memory[block]));
        expect(call, CALL(cu.cuMemsetD8_v2(reservation->address + block * BLOCK, 1, 4096)), CUDA_SUCCESS, "cuMemsetD8");
    }
    object_put(&object);
}

/* ---- Multicast objects ---- */

static void multicast(struct call *call) {
    CUmemGenericAllocationHandle handle = 0;
    struct memory memory = {.size = (1 + random_below(&call->random, 16)) * BLOCK, .multicast = true};
    CUmulticastObjectProp properties = {.numDevices = 1, .size = memory.size};
    choose_device(call);
    memory.device = call->device;
    memory.gpu = call->gpu;
    memory.exportable = random_once_in(&call->random, 4);
    if (memory.exportable)
        properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    say(call, "cuMulticastCreate(%llu) on %d", (unsigned long long)memory.size, call->device);
    grows(call, 0, 0);
    if (!expect(call, CALL(cu.cuMulticastCreate(&handle, &properties)), CUDA_SUCCESS, "cuMulticastCreate"))
        return;
    CUresult result = CALL(cu.cuMulticastAddDevice(handle, call->device));
    if (result == CUDA_SUCCESS) {
        keep_new(call, KIND_MULTICAST, handle, memory);
        return;
    }
    /* Older GPUs cannot. */
    expect(call, result, CUDA_ERROR_NOT_SUPPORTED, "cuMulticastAddDevice");
    expect(call, CALL(cu.cuMemRelease(handle)), CUDA_SUCCESS, "cuMemRelease");
}

static bool overlaps(const struct memory *object, int device, uint64_t offset, uint64_t size) {
    for (unsigned i = 0; i < BINDINGS; i++) {
        const struct binding *b = &object->bindings[i];
        if (b->memory != 0 && b->device == device && offset < b->offset + b->size && b->offset < offset + size)
            return true;
    }
    return false;
}

static struct binding *unused_binding(struct memory *object) {
    for (unsigned i = 0; i < BINDINGS; i++)
        if (object->bindings[i].memory == 0)
            return &object->bindings[i];
    return NULL;
}

static bool choose_binding(struct call *call, const struct memory *object, const struct memory *memory, uint64_t size,
                           struct binding *binding) {
    uint64_t blocks = 1 + random_below(&call->random, (size < object->size ? size : object->size) / BLOCK);
    *binding = (struct binding){.device = memory->device, .size = blocks * BLOCK};
    binding->offset = random_below(&call->random, object->size / BLOCK - blocks + 1) * BLOCK;
    return !memory->multicast && memory->device == object->device && (!object->exportable || memory->exportable) &&
           !overlaps(object, memory->device, binding->offset, binding->size);
}

static void bound(struct binding *place, struct binding binding, uint32_t memory) {
    binding.memory = memory;
    memory_hold(memory);
    *place = binding;
}

/* By a handle, at an offset in its memory. */
static void bind_handle(struct call *call, const struct object *object, struct binding *place) {
    struct object handle;
    struct binding binding;
    if (!object_take(&call->random, KIND_HANDLE, object->device, &handle))
        return;
    const struct memory *memory = memory_at((uint32_t)handle.other);
    if (choose_binding(call, memory_at((uint32_t)object->other), memory, memory->size, &binding)) {
        uint64_t offset = random_below(&call->random, (memory->size - binding.size) / BLOCK + 1) * BLOCK;
        needs(call, 0);
        say(call, "cuMulticastBindMem(%#llx + %llu, %llu)", (unsigned long long)handle.handle,
            (unsigned long long)offset, (unsigned long long)binding.size);
        grows(call, 0, 0);
        CUresult result =
            random_once_in(&call->random, 2)
                ? CALL(cu.cuMulticastBindMem(object->handle, binding.offset, handle.handle, offset, binding.size, 0))
                : CALL(cu.cuMulticastBindMem_v2(object->handle, memory->device, binding.offset, handle.handle, offset,
                                                binding.size, 0));
        if (judged(call, result))
            bound(place, binding, (uint32_t)handle.other);
    }
    object_put(&handle);
}

/* By an address where it is mapped. */
static void bind_address(struct call *call, const struct object *object, struct binding *place) {
    struct object addresses;
    struct binding binding;
    if (!object_take(&call->random, KIND_RESERVATION, -1, &addresses))
        return;
    const struct reservation *reservation = reservation_at((uint32_t)addresses.other);
    unsigned block = mapped_after(reservation, (unsigned)random_below(&call->random, reservation->blocks));
    if (block < reservation->blocks &&
        choose_binding(call, memory_at((uint32_t)object->other), memory_at(reservation->memory[block]),
                       reservation->length[block] * BLOCK, &binding)) {
        CUdeviceptr address = reservation->address + block * BLOCK;
        say(call, "cuMulticastBindAddr(%#llx, %llu)", (unsigned long long)address, (unsigned long long)binding.size);
        grows(call, 0, 0);
        CUdevice device = memory_at(reservation->memory[block])->device;
        CUresult result =
            random_once_in(&call->random, 2)
                ? CALL(cu.cuMulticastBindAddr(object->handle, binding.offset, address, binding.size, 0))
                : CALL(cu.cuMulticastBindAddr_v2(object->handle, device, binding.offset, address, binding.size, 0));
        if (expect(call, result, CUDA_SUCCESS, "cuMulticastBindAddr"))
            bound(place, binding, reservation->memory[block]);
    }
    object_put(&addresses);
}

/* Exclusive: the same multicast object may be another thread's by another handle. */
static void bind(struct call *call) {
    struct object object;
    if (!object_take(&call->random, KIND_MULTICAST, -1, &object))
        return;
    struct binding *place = unused_binding(memory_at((uint32_t)object.other));
    call->gpu = object.gpu;
    if (place != NULL && random_once_in(&call->random, 3))
        bind_address(call, &object, place);
    else if (place != NULL)
        bind_handle(call, &object, place);
    object_put(&object);
}

static void unbind(struct call *call) {
    struct object object;
    struct change change = {0};
    if (!object_take(&call->random, KIND_MULTICAST, -1, &object))
        return;
    struct memory *about = memory_at((uint32_t)object.other);
    struct binding *binding = &about->bindings[random_below(&call->random, BINDINGS)];
    call->gpu = object.gpu;
    if (binding->memory != 0) {
        say(call, "cuMulticastUnbind(%llu, %llu)", (unsigned long long)binding->offset,
            (unsigned long long)binding->size);
        if (expect(call, CALL(cu.cuMulticastUnbind(object.handle, binding->device, binding->offset, binding->size)),
                   CUDA_SUCCESS, "cuMulticastUnbind")) {
            memory_drop(binding->memory, &change);
            binding->memory = 0;
            shrinks(call, &change);
        }
    }
    object_put(&object);
}

static void release_multicast(struct call *call) {
    release_one(call, KIND_MULTICAST);
}

static void map_multicast(struct call *call) {
    struct object reservation, handle;
    if (!object_take(&call->random, KIND_RESERVATION, -1, &reservation))
        return;
    if (object_take(&call->random, KIND_MULTICAST, -1, &handle)) {
        struct reservation *addresses = reservation_at((uint32_t)reservation.other);
        unsigned block, gap = find_gap(addresses, &block);
        uint64_t blocks = handle.size / BLOCK;
        call->gpu = handle.gpu;
        if (gap != 0) {
            say(call, "cuMemMap of a multicast object");
            grows(call, 0, 0);
            CUresult result = map_at(addresses, block, (unsigned)(blocks < gap ? blocks : gap), &handle);
            expect(call, result, CUDA_SUCCESS, "cuMemMap");
        }
        object_put(&handle);
    }
    object_put(&reservation);
}

/* ---- Arrays ---- */

static CUresult destroy_array(const struct object *object) {
    struct change change = {0};
    CUresult result = cu.cuArrayDestroy((CUarray)(uintptr_t)object->handle);
    sparse_gone((uint32_t)object->other, &change);
    return result;
}

static void make_array(struct call *call) {
    CUarray array = NULL;
    bool deferred = random_once_in(&call->random, 3);
    CUDA_ARRAY3D_DESCRIPTOR wanted = {.Width = (size_t)SPARSE_SIDE * TILE_SIDE,
                                      .Height = (size_t)SPARSE_SIDE * TILE_SIDE,
                                      .Format = CU_AD_FORMAT_FLOAT,
                                      .NumChannels = 1,
                                      .Flags = deferred ? CUDA_ARRAY3D_DEFERRED_MAPPING : CUDA_ARRAY3D_SPARSE};
    if (!need_context(call))
        return;
    say(call, "cuArray3DCreate, %s", deferred ? "deferred" : "sparse");
    grows(call, 0, 0);
    if (!expect(call, CALL(cu.cuArray3DCreate_v2(&array, &wanted)), CUDA_SUCCESS, "cuArray3DCreate"))
        return;
    struct object object = {.handle = (uintptr_t)array,
                            .other = sparse_new(call->context->serial, deferred),
                            .context = call->context->serial,
                            .device = (int16_t)call->device,
                            .gpu = (int16_t)call->gpu,
                            .kind = KIND_SPARSE};
    if (object.other == 0 || !object_put(&object))
        expect(call, CALL(destroy_array(&object)), CUDA_SUCCESS, "cuArrayDestroy");
}

/* A box of tiles; all of an array whose mapping is deferred. */
struct box {
    unsigned x, y, width, height;
};

static CUarrayMapInfo describe(const struct object *array, bool deferred, const struct box *box) {
    CUarrayMapInfo info = {.resourceType = CU_RESOURCE_TYPE_ARRAY,
                           .subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL,
                           .memOperationType = CU_MEM_OPERATION_TYPE_UNMAP,
                           .memHandleType = CU_MEM_HANDLE_TYPE_GENERIC,
                           .deviceBitMask = 1u << array->device};
    info.resource.array = (CUarray)(uintptr_t)array->handle;
    if (deferred)
        return info;
    info.subresource.sparseLevel.offsetX = box->x * TILE_SIDE;
    info.subresource.sparseLevel.offsetY = box->y * TILE_SIDE;
    info.subresource.sparseLevel.extentWidth = box->width * TILE_SIDE;
    info.subresource.sparseLevel.extentHeight = box->height * TILE_SIDE;
    info.subresource.sparseLevel.extentDepth = 1;
    return info;
}

static struct box choose_box(uint64_t *random, bool deferred) {
    struct box box = {.width = 1, .height = 1};
    if (deferred)
        return box;
    box.x = (unsigned)random_below(random, SPARSE_SIDE);
    box.y = (unsigned)random_below(random, SPARSE_SIDE);
    if (random_once_in(random, 3)) {
        box.width = 1 + (unsigned)random_below(random, SPARSE_SIDE - box.x);
        box.height = 1 + (unsigned)random_below(random, SPARSE_SIDE - box.y);
    }
    return box;
}

static void set_box(uint32_t array, const struct box *box, uint32_t memory, struct change *change) {
    for (unsigned y = box->y; y < box->y + box->height; y++)
        for (unsigned x = box->x; x < box->x + box->width; x++)
            sparse_set(array, y * SPARSE_SIDE + x, memory, change);
}

static CUresult map_array(struct call *call, CUarrayMapInfo *info) {
    return random_once_in(&call->random, 2) ? CALL(cu.cuMemMapArrayAsync(info, 1, NULL))
                                            : CALL(cu.cuMemMapArrayAsync_ptsz(info, 1, NULL));
}

/* What was mapped may be counted until the array is destroyed, since another box may be unmapped or mapped over it. */
static void map_box(struct call *call, struct object *array, const struct object *handle) {
    const struct sparse *sparse = sparse_at((uint32_t)array->other);
    struct box box = choose_box(&call->random, sparse->deferred);
    CUarrayMapInfo info = describe(array, sparse->deferred, &box);
    struct change change = {0};
    info.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
    info.memHandle.memHandle = handle->handle;
    if (!sparse->deferred)
        info.offset = random_below(&call->random, BLOCK / TILE - SPARSE_TILES + 1) * TILE;
    needs(call, 0);
    say(call, "cuMemMapArrayAsync of %#llx, %u x %u tiles at %u, %u", (unsigned long long)handle->handle, box.width,
        box.height, box.x, box.y);
    if (judged(call, map_array(call, &info))) {
        set_box((uint32_t)array->other, &box, (uint32_t)handle->other, &change);
        array->slack += handle->size;
        shrinks(call, &change);
    }
}

static void map_tiles(struct call *call) {
    struct object array, handle;
    if (!need_context(call) || !object_take_in(&call->random, KIND_SPARSE, call->context->serial, &array))
        return;
    if (object_take(&call->random, KIND_HANDLE, call->device, &handle)) {
        if (memory_at((uint32_t)handle.other)->tile_pool || sparse_at((uint32_t)array.other)->deferred)
            map_box(call, &array, &handle);
        object_put(&handle);
    }
    object_put(&array);
}

static void unmap_tiles(struct call *call) {
    struct object array;
    struct change change = {0};
    if (!need_context(call) || !object_take_in(&call->random, KIND_SPARSE, call->context->serial, &array))
        return;
    const struct sparse *sparse = sparse_at((uint32_t)array.other);
    struct box box = choose_box(&call->random, sparse->deferred);
    CUarrayMapInfo info = describe(&array, sparse->deferred, &box);
    say(call, "cuMemMapArrayAsync, unmapping %u x %u tiles at %u, %u", box.width, box.height, box.x, box.y);
    if (expect(call, map_array(call, &info), CUDA_SUCCESS, "cuMemMapArrayAsync")) {
        set_box((uint32_t)array.other, &box, 0, &change);
        shrinks(call, &change);
    }
    object_put(&array);
}

static void end_array(struct call *call) {
    struct object array;
    struct change change = {0};
    if (!need_context(call) || !object_take_in(&call->random, KIND_SPARSE, call->context->serial, &array))
        return;
    say(call, "cuArrayDestroy of one with tiles");
    if (expect(call, CALL(cu.cuArrayDestroy((CUarray)(uintptr_t)array.handle)), CUDA_SUCCESS, "cuArrayDestroy")) {
        sparse_gone((uint32_t)array.other, &change);
        shrinks(call, &change);
    }
}

__attribute__((constructor)) static void release_functions(void) {
    releases[KIND_HANDLE] = releases[KIND_MULTICAST] = release_handle;
    releases[KIND_RESERVATION] = free_reservation;
    releases[KIND_SPARSE] = destroy_array;
}

static const struct operation operations[] = {
    {"vmm.create", 30, create, "cuMemCreate cuMemRelease", false, false},
    {"vmm.host", 4, create_on_host, "cuMemCreate cuMemRelease", false, false},
    {"vmm.release", 36, release, "cuMemRelease", false, false},
    {"vmm.reserve", 12, reserve, "cuMemAddressReserve cuMemAddressFree cuMemUnmap", false, false},
    {"vmm.map", 40, map, "cuMemMap cuMemSetAccess", false, false},
    {"vmm.unmap", 30, unmap, "cuMemUnmap", false, false},
    {"vmm.unmap_wrongly", 3, unmap_wrongly, "cuMemUnmap cuMemAddressFree", false, false},
    {"vmm.retain", 10, retain, "cuMemRetainAllocationHandle", false, false},
    {"vmm.free", 6, free_addresses, "cuMemAddressFree cuMemUnmap", false, false},
    {"vmm.use", 6, use, "cuMemsetD8_v2 cuMemSetAccess", false, false},
    {"vmm.multicast", 8, multicast, "cuMulticastCreate cuMulticastAddDevice", false, false},
    {"vmm.bind", 24, bind, "cuMulticastBindMem cuMulticastBindAddr", true, true},
    {"vmm.unbind", 8, unbind, "cuMulticastUnbind", true, true},
    {"vmm.map_multicast", 4, map_multicast, "cuMemMap", false, true},
    {"vmm.release_multicast", 5, release_multicast, "cuMemRelease", false, true},
    {"vmm.array", 10, make_array, "cuArray3DCreate_v2 cuArrayDestroy", false, false},
    {"vmm.tiles", 30, map_tiles, "cuMemMapArrayAsync cuMemMapArrayAsync_ptsz", false, true},
    {"vmm.unmap_tiles", 12, unmap_tiles, "cuMemMapArrayAsync cuMemMapArrayAsync_ptsz", false, true},
    {"vmm.end_array", 3, end_array, "cuArrayDestroy", false, true},
    {0},
};

const struct family family_vmm = {"vmm", functions, operations};
