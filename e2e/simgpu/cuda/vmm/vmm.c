/* Virtual memory management as programs call it. */
#include "vmm.h"

#include <time.h>

#include "vmm_content.h"
#include "vmm_space.h"

#define GRANULARITY SIM_GRANULARITY
#define EXPORTABLE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static bool aligned(uint64_t value) {
    return value % GRANULARITY == 0;
}

static bool host_location(CUmemLocationType type) {
    return type >= CU_MEM_LOCATION_TYPE_HOST && type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

/* ---- Properties ---- */

static CUresult check_properties(const CUmemAllocationProp *prop) {
    REQUIRE(prop != NULL && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE || host_location(prop->location.type),
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || device_valid(prop->location.id),
            CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(((unsigned)prop->requestedHandleTypes & ~0xfu) == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(prop->allocFlags.compressionType <= CU_MEM_ALLOCATION_COMP_GENERIC, CUDA_ERROR_INVALID_VALUE);
    REQUIRE((prop->allocFlags.usage & ~CU_MEM_CREATE_USAGE_TILE_POOL) == 0, CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option) {
    REQUIRE_INITIALISED();
    REQUIRE(granularity != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(check_properties(prop));
    REQUIRE(option == CU_MEM_ALLOC_GRANULARITY_MINIMUM || option == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
            CUDA_ERROR_INVALID_VALUE);
    *granularity = GRANULARITY;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle) {
    struct vmm_memory *memory;

    REQUIRE(prop != NULL || !driver_ready(), CUDA_ERROR_INVALID_VALUE);
    TRY(vmm_hold(handle, &memory));
    if (!memory->multicast)
        *prop = memory->prop;
    vmm_drop(memory);
    return memory->multicast ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* ---- Handles ---- */

static CUresult create_locked(const CUmemAllocationProp *prop, uint64_t size, struct vmm_memory **out) {
    struct vmm_memory *memory = vmm_new_locked();
    CUresult ret;

    REQUIRE(memory != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    memory->handles = 1;
    memory->size = size;
    memory->prop = *prop;
    memory->device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? prop->location.id : CU_DEVICE_CPU;
    ret = content_new(size, &memory->content);
    if (ret != CUDA_SUCCESS) {
        /* It has taken nothing yet. */
        memory->imported = true;
        memory->size = 0;
        vmm_drop_locked(memory);
    }
    *out = memory;
    return ret;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
    struct vmm_memory *memory;
    CUresult ret;
    int gpu = -1;

    REQUIRE_INITIALISED();
    REQUIRE(handle != NULL && size != 0 && aligned(size) && flags == 0, CUDA_ERROR_INVALID_VALUE);
    TRY(check_properties(prop));
    REQUIRE(((unsigned)prop->requestedHandleTypes & ~(unsigned)EXPORTABLE) == 0, CUDA_ERROR_NOT_SUPPORTED);
    if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        gpu = driver->gpus[prop->location.id];
        TRY(gpu_error(gpu));
        TRY(heap_reserve_physical(gpu, size, handle));
    }
    pthread_mutex_lock(&vmm_mutex);
    ret = create_locked(prop, size, &memory);
    if (ret == CUDA_SUCCESS)
        sim_pass(handle, memory);
    pthread_mutex_unlock(&vmm_mutex);
    if (ret != CUDA_SUCCESS) {
        sim_release(gpu, size, handle);
        return ret;
    }
    sim_count_allocation(gpu, 1);
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)memory;
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct vmm_memory *memory;

    REQUIRE_INITIALISED();
    pthread_mutex_lock(&vmm_mutex);
    memory = vmm_find_locked(handle);
    if (memory != NULL) {
        memory->handles--;
        vmm_drop_locked(memory);
    }
    pthread_mutex_unlock(&vmm_mutex);
    return memory != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
    struct range *range;
    CUresult ret = CUDA_ERROR_INVALID_VALUE;

    REQUIRE_INITIALISED();
    REQUIRE(handle != NULL, CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&vmm_mutex);
    range = range_find_locked((uintptr_t)addr);
    if (range != NULL && range->kind == RANGE_MAPPED) {
        range->memory->handles++;
        range->memory->references++;
        *handle = (CUmemGenericAllocationHandle)(uintptr_t)range->memory;
        ret = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&vmm_mutex);
    return ret;
}

/* ---- Address space ---- */

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) {
    CUdeviceptr base;

    REQUIRE_INITIALISED();
    REQUIRE(ptr != NULL && size != 0 && aligned(size) && flags == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE((alignment & (alignment - 1)) == 0 && aligned(addr), CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&vmm_mutex);
    base = space_reserve(size, alignment > GRANULARITY ? alignment : GRANULARITY, addr);
    pthread_mutex_unlock(&vmm_mutex);
    REQUIRE(base != 0, CUDA_ERROR_OUT_OF_MEMORY);
    *ptr = base;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
    CUresult ret = CUDA_ERROR_INVALID_VALUE;

    REQUIRE_INITIALISED();
    pthread_mutex_lock(&vmm_mutex);
    if (space_is(ptr, size) && !range_overlaps_locked(ptr, size)) {
        space_free(ptr, size);
        ret = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&vmm_mutex);
    return ret;
}

/* ---- Mapping ---- */

static CUresult map_locked(CUdeviceptr ptr, size_t size, size_t offset, struct vmm_memory *memory) {
    REQUIRE(memory != NULL && offset <= memory->size && size <= memory->size - offset, CUDA_ERROR_INVALID_VALUE);
    /* Of memory, the beginning has to be mapped, says the documentation. */
    REQUIRE(offset == 0 || memory->multicast, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(space_contains(ptr, size) && !range_overlaps_locked(ptr, size), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(range_insert_locked(RANGE_MAPPED, ptr, size, memory, offset) != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    memory->references++;
    return CUDA_SUCCESS;
}

/* A multicast object can be mapped once all its devices are there; the driver waits for them. */
static void await_devices(struct vmm_memory *memory) {
    const struct timespec pause = {0, 1000000};

    while (memory->multicast && !multicast_complete(memory))
        nanosleep(&pause, NULL);
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    struct vmm_memory *memory;
    CUresult ret;

    REQUIRE_INITIALISED();
    REQUIRE(flags == 0 && size != 0 && aligned(ptr) && aligned(size) && aligned(offset), CUDA_ERROR_INVALID_VALUE);
    TRY(vmm_hold(handle, &memory));
    await_devices(memory);
    pthread_mutex_lock(&vmm_mutex);
    ret = map_locked(ptr, size, offset, memory);
    vmm_drop_locked(memory);
    pthread_mutex_unlock(&vmm_mutex);
    return ret;
}

/* Whether mappings cover exactly these addresses, none of them in part. */
static bool covered(CUdeviceptr ptr, size_t size, bool whole) {
    CUdeviceptr at = ptr;

    while (at < ptr + size) {
        const struct range *range = range_find_locked(at);

        if (range == NULL || range->kind != RANGE_MAPPED || (whole && range->base != at))
            return false;
        at = range->base + range->size;
    }
    return !whole || at == ptr + size;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
    CUresult ret = CUDA_ERROR_INVALID_VALUE;

    REQUIRE_INITIALISED();
    REQUIRE(size != 0 && ptr + size > ptr, CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&vmm_mutex);
    if (covered(ptr, size, true)) {
        for (CUdeviceptr at = ptr; at < ptr + size;) {
            struct range *range = range_find_locked(at);

            at += range->size;
            range_delete_locked(range);
        }
        ret = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&vmm_mutex);
    return ret;
}

/* ---- Access ---- */

static CUresult check_access(const CUmemAccessDesc *desc, size_t count) {
    for (size_t i = 0; i < count; i++) {
        REQUIRE(desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE || host_location(desc[i].location.type),
                CUDA_ERROR_INVALID_VALUE);
        REQUIRE(desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || device_valid(desc[i].location.id),
                CUDA_ERROR_INVALID_DEVICE);
        REQUIRE(desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                    desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                CUDA_ERROR_INVALID_VALUE);
    }
    return CUDA_SUCCESS;
}

/* The host can be let at its own memory, not at a GPU's. */
static CUresult set_access(struct range *range, const CUmemAccessDesc *desc, size_t count) {
    for (size_t i = 0; i < count; i++) {
        REQUIRE(desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE || range->memory->device == CU_DEVICE_CPU,
                CUDA_ERROR_INVALID_VALUE);
        if (desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE)
            range->access[desc[i].location.id] = (uint8_t)desc[i].flags;
        else
            range->host_access = (uint8_t)desc[i].flags;
    }
    return range_show_locked(range) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count) {
    CUresult ret;

    REQUIRE_INITIALISED();
    REQUIRE(desc != NULL && count != 0 && size != 0 && aligned(ptr) && aligned(size) && ptr + size > ptr,
            CUDA_ERROR_INVALID_VALUE);
    TRY(check_access(desc, count));
    pthread_mutex_lock(&vmm_mutex);
    ret = covered(ptr, size, false) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (CUdeviceptr at = ptr; ret == CUDA_SUCCESS && at < ptr + size;) {
        struct range *range = range_find_locked(at);

        ret = set_access(range, desc, count);
        at = range->base + range->size;
    }
    pthread_mutex_unlock(&vmm_mutex);
    return ret;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr) {
    struct range *range;

    REQUIRE_INITIALISED();
    REQUIRE(flags != NULL && location != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(location->type == CU_MEM_LOCATION_TYPE_DEVICE || host_location(location->type), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(location->type != CU_MEM_LOCATION_TYPE_DEVICE || device_valid(location->id), CUDA_ERROR_INVALID_DEVICE);
    pthread_mutex_lock(&vmm_mutex);
    range = range_find_locked(ptr);
    if (range != NULL)
        *flags = location->type == CU_MEM_LOCATION_TYPE_DEVICE ? range->access[location->id] : range->host_access;
    pthread_mutex_unlock(&vmm_mutex);
    return range != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
