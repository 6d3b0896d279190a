/* Virtual memory management: physical memory is charged when it is made and until nothing holds it any more, see physical.h. */
#include "contexts.h"
#include "cuda_real.h"
#include "exports.h"
#include "gpus.h"
#include "objects.h"
#include "physical.h"
#include "tags.h"

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                     unsigned long long flags) {
    struct process *process;
    struct charge charge;
    int gpu;
    if (handle == NULL || properties == NULL || size == 0 || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return REAL(cuMemCreate)(handle, size, properties, flags);
    CUresult result = gpus_check(properties->location.id);
    if (result == CUDA_SUCCESS)
        result = process_open(&process);
    if (result == CUDA_SUCCESS)
        result = gpus_find_claimed(process, properties->location.id, &gpu);
    if (result == CUDA_SUCCESS)
        result = charge_take(process, gpu, pages_of(size), &charge);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemCreate)(handle, size, properties, flags);
    if (result != CUDA_SUCCESS) {
        charge_give(process, &charge);
    } else if (!physical_made(process, KIND_PHYSICAL, *handle, charge)) {
        REAL(cuMemRelease)(*handle);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

/* Lets go by `call` of what `release` says. */
#define RELEASE(release, call)                                                                                         \
    do {                                                                                                               \
        struct process *process = process_if_open();                                                                   \
        struct releases releases = {0};                                                                                \
        if (objects_any(process, KIND_PHYSICAL) || objects_any(process, KIND_MULTICAST))                               \
            release;                                                                                                   \
        CUresult result = call;                                                                                        \
        physical_released(process, &releases, result);                                                                 \
        return result;                                                                                                 \
    } while (0)

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    RELEASE(physical_release(process, handle, &releases), REAL(cuMemRelease)(handle));
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    struct process *process = process_if_open();
    if (result == CUDA_SUCCESS && process != NULL)
        physical_hold(process, *handle);
    return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    struct process *process = process_if_open();
    struct entry entry;
    CUresult result = CUDA_SUCCESS;
    if (process != NULL && objects_find(process, KIND_PHYSICAL, handle, &entry) && entry.charge.unpaid)
        result = physical_pay(process, handle, entry.charge.gpu, offset + size);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemMap)(address, size, offset, handle, flags);
    if (result == CUDA_SUCCESS && process != NULL)
        physical_mapped(process, address, size, handle);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
    RELEASE(physical_unmap(process, address, size, &releases), REAL(cuMemUnmap)(address, size));
}

/* --- between processes ----------------------------------------------------------------------------------------------- */

CUresult cuMemExportToShareableHandle(void *exported, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
    struct process *process = process_if_open();
    CUresult result = REAL(cuMemExportToShareableHandle)(exported, handle, type, flags);
    if (result == CUDA_SUCCESS && process != NULL && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        uint32_t number = physical_share(process, handle);
        if (number != 0)
            exports_made(process, *(int *)exported, number);
    }
    return result;
}

/* The GPU that imported memory is on; if the driver does not say, that of the current context. */
static int find_gpu(struct process *process, CUmemGenericAllocationHandle handle) {
    CUmemAllocationProp properties;
    int gpu = NO_CLAIM;
    if (REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, handle) != CUDA_SUCCESS ||
        properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        gpus_find(process, properties.location.id, &gpu) != CUDA_SUCCESS || gpu == NO_CLAIM)
        return NO_CLAIM;
    return gpu;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *exported,
                                        CUmemAllocationHandleType type) {
    struct process *process;
    struct charge charge = {0};
    uint8_t tag[TAG_SIZE];
    CUresult result = process_open(&process);
    if (result != CUDA_SUCCESS)
        return REAL(cuMemImportFromShareableHandle)(handle, exported, type);
    bool joined = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && tag_read((int)(uintptr_t)exported, tag) &&
                  charge_join(process, tag, &charge);
    result = REAL(cuMemImportFromShareableHandle)(handle, exported, type);
    if (result != CUDA_SUCCESS) {
        if (joined)
            charge_end(process, &charge);
        return result;
    }
    int gpu = joined ? charge.gpu : find_gpu(process, *handle);
    if (gpu == NO_CLAIM) /* the host's memory, or a multicast object of somebody else */
        return result;
    charge.gpu = (uint8_t)(gpu & 0x7f);
    charge.unpaid = !joined;
    physical_imported(process, *handle, charge);
    return result;
}

/* --- multicast: an object takes nothing, but what is bound to it lives as long as the binding ------------------------- */

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties) {
    CUresult result = REAL(cuMulticastCreate)(handle, properties);
    struct process *process;
    if (result == CUDA_SUCCESS && process_open(&process) == CUDA_SUCCESS)
        physical_made(process, KIND_MULTICAST, *handle, (struct charge){0});
    return result;
}

/* Bindings of different devices may begin at the same place. */
static uint64_t part_of(CUdevice device, size_t offset) {
    return (uint64_t)offset << 8 | (uint8_t)device;
}

static CUdevice device_of(CUmemGenericAllocationHandle handle) {
    CUmemAllocationProp properties;
    return REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, handle) == CUDA_SUCCESS ? properties.location.id
                                                                                             : -1;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t offset, CUmemGenericAllocationHandle memory,
                            size_t memory_offset, size_t size, unsigned long long flags) {
    struct process *process = process_if_open();
    CUresult result = REAL(cuMulticastBindMem)(object, offset, memory, memory_offset, size, flags);
    if (result == CUDA_SUCCESS && process != NULL)
        physical_bound(process, KIND_BINDING, object, part_of(device_of(memory), offset), memory);
    return result;
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr address, size_t size,
                             unsigned long long flags) {
    struct process *process = process_if_open();
    CUmemGenericAllocationHandle memory;
    CUresult result = REAL(cuMulticastBindAddr)(object, offset, address, size, flags);
    void *pointer = (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
    if (result == CUDA_SUCCESS && process != NULL &&
        REAL(cuMemRetainAllocationHandle)(&memory, pointer) == CUDA_SUCCESS) {
        physical_bound(process, KIND_BINDING, object, part_of(device_of(memory), offset), memory);
        REAL(cuMemRelease)(memory);
    }
    return result;
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle object, CUdevice device, size_t offset, size_t size) {
    RELEASE(physical_unbind(process, KIND_BINDING, object, part_of(device, offset), &releases),
            REAL(cuMulticastUnbind)(object, device, offset, size));
}

/* --- sparse arrays --------------------------------------------------------------------------------------------------- */

#define MIPTAIL 1

/*
 * Which part a mapping is of: exactly this box. One that overlaps it is another, and holds by itself what it maps; so memory is
 * let go of only when the very box is mapped anew or unmapped, or the array destroyed, and never too early.
 */
static uint64_t subresource(const CUarrayMapInfo *map) {
    if (map->subresourceType == MIPTAIL)
        return objects_key(objects_key(map->subresource.miptail.layer, map->subresource.miptail.offset),
                           map->subresource.miptail.size) ^
               MIPTAIL;
    uint64_t where = objects_key(map->subresource.sparseLevel.level, map->subresource.sparseLevel.layer);
    where = objects_key(where, map->subresource.sparseLevel.offsetX);
    where = objects_key(where, map->subresource.sparseLevel.offsetY);
    where = objects_key(where, map->subresource.sparseLevel.offsetZ);
    where = objects_key(where, map->subresource.sparseLevel.extentWidth);
    where = objects_key(where, map->subresource.sparseLevel.extentHeight);
    return objects_key(where, map->subresource.sparseLevel.extentDepth);
}

/* An unmapping happens when the stream comes to it, so we wait for that before we count it. */
static CUresult mapped(CUresult result, const CUarrayMapInfo *list, unsigned int count, CUstream stream,
                       cuStreamSynchronize_function synchronize) {
    struct process *process = process_if_open();
    bool waited = false;
    for (unsigned i = 0; result == CUDA_SUCCESS && process != NULL && i < count; i++) {
        uint64_t array = (uintptr_t)list[i].resource.array;
        if (list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP) {
            physical_bound(process, KIND_ARRAY_MAPPING, array, subresource(&list[i]), list[i].memHandle.memHandle);
            continue;
        }
        struct releases releases = {0};
        if (!waited)
            synchronize(stream);
        waited = true;
        physical_unbind(process, KIND_ARRAY_MAPPING, array, subresource(&list[i]), &releases);
        physical_released(process, &releases, CUDA_SUCCESS);
    }
    return result;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    return mapped(REAL(cuMemMapArrayAsync)(list, count, stream), list, count, stream, REAL(cuStreamSynchronize));
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    return mapped(REAL(cuMemMapArrayAsync_ptsz)(list, count, stream), list, count, stream,
                  REAL(cuStreamSynchronize_ptsz));
}
