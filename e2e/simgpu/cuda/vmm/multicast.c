/*
 * Multicast objects: addresses behind which lies memory of several GPUs. The object itself takes no memory; what is bound
 * to it stays alive, for as long as this process has the object.
 */
#include <stdlib.h>
#include <time.h>

#include "shared_objects.h"
#include "vmm.h"

#define GRANULARITY SIM_GRANULARITY
#define EXPORTABLE ((unsigned long long)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)

struct vmm_binding {
    struct vmm_memory *memory; /* a reference of its own */
    uint64_t offset, size;     /* in the multicast object */
    struct vmm_binding *next;
};

/* The object's words that other processes need. */
enum { WORD_DEVICES, WORD_COUNT, WORD_HANDLE_TYPES };

static CUresult check_properties(const CUmulticastObjectProp *prop) {
    REQUIRE(prop != NULL && prop->size != 0 && prop->flags == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(prop->numDevices != 0 && prop->numDevices <= (unsigned)sim_gpu_count(), CUDA_ERROR_INVALID_VALUE);
    REQUIRE((prop->handleTypes & ~0xfull) == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE((prop->handleTypes & ~EXPORTABLE) == 0, CUDA_ERROR_NOT_SUPPORTED);
    return CUDA_SUCCESS;
}

CUresult cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *prop,
                                   CUmulticastGranularity_flags option) {
    REQUIRE_INITIALISED();
    REQUIRE(granularity != NULL &&
                (option == CU_MULTICAST_GRANULARITY_MINIMUM || option == CU_MULTICAST_GRANULARITY_RECOMMENDED),
            CUDA_ERROR_INVALID_VALUE);
    TRY(check_properties(prop));
    *granularity = GRANULARITY;
    return CUDA_SUCCESS;
}

/* ---- Making, sharing ---- */

static CUresult create_locked(const CUmulticastObjectProp *prop, struct vmm_memory **out) {
    struct vmm_memory *memory = vmm_new_locked();

    REQUIRE(memory != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    memory->multicast = true;
    memory->handles = 1;
    memory->size = prop->size;
    memory->multicast_prop = *prop;
    memory->devices = &memory->own_devices;
    if (prop->handleTypes != 0) {
        struct sim_shared_about about;

        if (sim_shared_new(SIM_SHARED_MULTICAST, driver->gpus[0], prop->size, &memory->object) != 0) {
            vmm_drop_locked(memory);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        about = sim_shared_about(memory->object);
        atomic_store(&about.words[WORD_COUNT], prop->numDevices);
        atomic_store(&about.words[WORD_HANDLE_TYPES], prop->handleTypes);
        memory->devices = &about.words[WORD_DEVICES];
    }
    *out = memory;
    return CUDA_SUCCESS;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *mcHandle, const CUmulticastObjectProp *prop) {
    struct vmm_memory *memory;
    CUresult ret;

    REQUIRE_INITIALISED();
    REQUIRE(mcHandle != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(check_properties(prop));
    REQUIRE(prop->size % GRANULARITY == 0, CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&vmm_mutex);
    ret = create_locked(prop, &memory);
    pthread_mutex_unlock(&vmm_mutex);
    if (ret == CUDA_SUCCESS)
        *mcHandle = (CUmemGenericAllocationHandle)(uintptr_t)memory;
    return ret;
}

CUresult multicast_export_locked(struct vmm_memory *memory, int *fd) {
    REQUIRE(memory->object != 0, CUDA_ERROR_INVALID_VALUE);
    *fd = sim_shared_export(memory->object);
    return *fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult multicast_adopt_locked(uint64_t object, struct vmm_memory **out) {
    struct sim_shared_about about = sim_shared_about(object);
    struct vmm_memory *memory = vmm_new_locked();

    if (memory == NULL) {
        sim_shared_drop(object);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->multicast = true;
    memory->imported = true;
    memory->object = object;
    memory->size = about.size;
    memory->multicast_prop = (CUmulticastObjectProp){.numDevices = (unsigned)atomic_load(&about.words[WORD_COUNT]),
                                                     .size = about.size,
                                                     .handleTypes = atomic_load(&about.words[WORD_HANDLE_TYPES])};
    memory->devices = &about.words[WORD_DEVICES];
    *out = memory;
    return CUDA_SUCCESS;
}

static void delete_binding(struct vmm_binding *binding) {
    vmm_drop_locked(binding->memory);
    free(binding);
}

void multicast_gone_locked(struct vmm_memory *memory) {
    while (memory->bindings != NULL) {
        struct vmm_binding *next = memory->bindings->next;

        delete_binding(memory->bindings);
        memory->bindings = next;
    }
}

/* ---- The team ---- */

static uint64_t bit_of(CUdevice device) {
    return (uint64_t)1 << device_gpu(device)->index;
}

bool multicast_complete(const struct vmm_memory *memory) {
    return (unsigned)__builtin_popcountll(atomic_load(memory->devices)) >= memory->multicast_prop.numDevices;
}

/* A reference to a handle's multicast object. */
static CUresult hold_multicast(CUmemGenericAllocationHandle handle, struct vmm_memory **memory) {
    TRY(vmm_hold(handle, memory));
    if ((*memory)->multicast)
        return CUDA_SUCCESS;
    vmm_drop(*memory);
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult add_device(struct vmm_memory *memory, uint64_t bit) {
    uint64_t before = atomic_load(memory->devices);

    do {
        if ((before & bit) != 0 || (unsigned)__builtin_popcountll(before) >= memory->multicast_prop.numDevices)
            return CUDA_ERROR_INVALID_VALUE;
    } while (!atomic_compare_exchange_weak(memory->devices, &before, before | bit));
    return CUDA_SUCCESS;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle mcHandle, CUdevice dev) {
    struct vmm_memory *memory;
    CUresult ret;

    REQUIRE_INITIALISED();
    REQUIRE(device_valid(dev), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(device_gpu(dev)->cc_major >= 9, CUDA_ERROR_NOT_SUPPORTED);
    TRY(hold_multicast(mcHandle, &memory));
    ret = add_device(memory, bit_of(dev));
    vmm_drop(memory);
    return ret;
}

/* ---- Binding ---- */

static bool bound_locked(const struct vmm_memory *multicast, CUdevice device, uint64_t offset, uint64_t size) {
    for (const struct vmm_binding *b = multicast->bindings; b != NULL; b = b->next) {
        if (b->memory->device == device && offset < b->offset + b->size && b->offset < offset + size)
            return true;
    }
    return false;
}

static CUresult bind_locked(struct vmm_memory *multicast, uint64_t offset, struct vmm_memory *memory,
                            uint64_t memory_offset, uint64_t size) {
    struct vmm_binding *binding;

    REQUIRE(memory != NULL && !memory->multicast, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(memory_offset <= memory->size && size <= memory->size - memory_offset, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(offset <= multicast->size && size <= multicast->size - offset, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(memory->device >= 0 && (atomic_load(multicast->devices) & bit_of(memory->device)) != 0,
            CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(multicast->object == 0 || memory->prop.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE,
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(!bound_locked(multicast, memory->device, offset, size), CUDA_ERROR_INVALID_VALUE);
    binding = malloc(sizeof(*binding));
    REQUIRE(binding != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    memory->references++;
    *binding = (struct vmm_binding){memory, offset, size, multicast->bindings};
    multicast->bindings = binding;
    return CUDA_SUCCESS;
}

/* The driver waits here until the team is complete. */
static void await_team(const struct vmm_memory *multicast) {
    const struct timespec pause = {0, 1000000};

    while (!multicast_complete(multicast))
        nanosleep(&pause, NULL);
}

static bool aligned(uint64_t a, uint64_t b, uint64_t c) {
    return (a | b | c) % GRANULARITY == 0;
}

/* The device is the memory's own, or that which the program names. Memory of another device than that is refused. */
#define OWN_DEVICE (-1)

static CUresult bind_handle(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                            CUmemGenericAllocationHandle handle, size_t memory_offset, size_t size,
                            unsigned long long flags) {
    struct vmm_memory *multicast, *memory;
    CUresult ret;

    REQUIRE_INITIALISED();
    REQUIRE(flags == 0 && size != 0 && aligned(offset, memory_offset, size), CUDA_ERROR_INVALID_VALUE);
    TRY(hold_multicast(object, &multicast));
    await_team(multicast);
    pthread_mutex_lock(&vmm_mutex);
    memory = vmm_find_locked(handle);
    ret = device != OWN_DEVICE && memory != NULL && memory->device != device
              ? CUDA_ERROR_INVALID_DEVICE
              : bind_locked(multicast, offset, memory, memory_offset, size);
    vmm_drop_locked(multicast);
    pthread_mutex_unlock(&vmm_mutex);
    return ret;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                            CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                            unsigned long long flags) {
    return bind_handle(mcHandle, OWN_DEVICE, mcOffset, memHandle, memOffset, size, flags);
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                               CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                               unsigned long long flags) {
    REQUIRE_INITIALISED();
    REQUIRE(device_valid(dev), CUDA_ERROR_INVALID_DEVICE);
    return bind_handle(mcHandle, dev, mcOffset, memHandle, memOffset, size, flags);
}

static CUresult bind_address_locked(struct vmm_memory *multicast, CUdevice device, uint64_t offset, CUdeviceptr address,
                                    uint64_t size) {
    const struct range *range = range_find_locked(address);

    REQUIRE(range != NULL && range->kind == RANGE_MAPPED && size <= range->size - (address - range->base),
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device == OWN_DEVICE || range->memory->device == device, CUDA_ERROR_INVALID_DEVICE);
    return bind_locked(multicast, offset, range->memory, range->offset + (address - range->base), size);
}

static CUresult bind_address(CUmemGenericAllocationHandle object, CUdevice device, size_t offset, CUdeviceptr address,
                             size_t size, unsigned long long flags) {
    struct vmm_memory *multicast;
    CUresult ret;

    REQUIRE_INITIALISED();
    REQUIRE(flags == 0 && size != 0 && aligned(offset, address, size), CUDA_ERROR_INVALID_VALUE);
    TRY(hold_multicast(object, &multicast));
    await_team(multicast);
    pthread_mutex_lock(&vmm_mutex);
    ret = bind_address_locked(multicast, device, offset, address, size);
    vmm_drop_locked(multicast);
    pthread_mutex_unlock(&vmm_mutex);
    return ret;
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle mcHandle, size_t mcOffset, CUdeviceptr memptr, size_t size,
                             unsigned long long flags) {
    return bind_address(mcHandle, OWN_DEVICE, mcOffset, memptr, size, flags);
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                                CUdeviceptr memptr, size_t size, unsigned long long flags) {
    REQUIRE_INITIALISED();
    REQUIRE(device_valid(dev), CUDA_ERROR_INVALID_DEVICE);
    return bind_address(mcHandle, dev, mcOffset, memptr, size, flags);
}

static CUresult unbind_locked(struct vmm_memory *multicast, CUdevice device, uint64_t offset, uint64_t size) {
    struct vmm_binding **link = &multicast->bindings;
    CUresult ret = CUDA_ERROR_INVALID_VALUE;

    while (*link != NULL) {
        struct vmm_binding *b = *link;

        if (b->memory->device == device && b->offset >= offset && b->offset + b->size <= offset + size) {
            *link = b->next;
            delete_binding(b);
            ret = CUDA_SUCCESS;
        } else {
            link = &b->next;
        }
    }
    return ret;
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset, size_t size) {
    struct vmm_memory *multicast;
    CUresult ret;

    REQUIRE_INITIALISED();
    REQUIRE(device_valid(dev), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(size != 0 && aligned(mcOffset, 0, size), CUDA_ERROR_INVALID_VALUE);
    TRY(hold_multicast(mcHandle, &multicast));
    pthread_mutex_lock(&vmm_mutex);
    ret = unbind_locked(multicast, dev, mcOffset, size);
    vmm_drop_locked(multicast);
    pthread_mutex_unlock(&vmm_mutex);
    return ret;
}
