/* Virtual memory management and multicast objects; see memory/physical.h. */
#include "driver/cuda_real.h"
#include "memory/exports.h"
#include "memory/physical.h"
#include "memory/pools.h"
#include "state/contexts.h"
#include "state/gpus.h"
#include "system/calls.h"

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                     unsigned long long flags) {
    struct process *process;
    struct charge charge;
    int gpu;
    if (handle == NULL || properties == NULL || size == 0 || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return REAL(cuMemCreate)(handle, size, properties, flags);
    CUresult result = gpus_open(&process, properties->location.id, &gpu);
    if (result != CUDA_SUCCESS)
        return result;
    result = pools_take(process, gpu, pages_of(size), &charge);
    if (result != CUDA_SUCCESS)
        return result;
    gate_enter(&process->unmapping);
    result = REAL(cuMemCreate)(handle, size, properties, flags);
    if (result != CUDA_SUCCESS) {
        charge_give(process, &charge);
    } else if (!physical_made(process, false, *handle, charge)) {
        UNDO(REAL(cuMemRelease)(*handle));
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    gate_leave(&process->unmapping);
    return result;
}

/* Makes a driver's call that removes the references which `release` collects. While another call uses a handle or an
 * address, from before the memory is looked up until it is recorded, that must name the same memory, which is recorded:
 * so that call closes the gate, and those that make, unmap and release memory are in it. */
#define RELEASE(release, call)                                                                                         \
    do {                                                                                                               \
        struct process *process = process_if_open();                                                                   \
        struct releases releases = {0};                                                                                \
        if (process == NULL)                                                                                           \
            return call;                                                                                               \
        gate_enter(&process->unmapping);                                                                               \
        if (process_has(process, KIND_PHYSICAL_MEMORY))                                                                \
            release;                                                                                                   \
        CUresult result = call;                                                                                        \
        physical_released(process, &releases, result);                                                                 \
        gate_leave(&process->unmapping);                                                                               \
        return result;                                                                                                 \
    } while (0)

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    RELEASE(physical_release(process, handle, &releases), REAL(cuMemRelease)(handle));
}

/* The device that memory is on; CU_DEVICE_CPU if it is on none. False if the driver does not report it, as for a multicast
 * object. */
static bool find_device(CUmemGenericAllocationHandle handle, CUdevice *device) {
    CUmemAllocationProp properties;
    if (REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, handle) != CUDA_SUCCESS)
        return false;
    *device = properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? properties.location.id : CU_DEVICE_CPU;
    return true;
}

/* Records memory that is not of this claim, to be charged when it is mapped. Memory of the host, and of a GPU without a
 * claim, is not recorded. False if there is no memory for the record. */
static bool record_unpaid(struct process *process, CUmemGenericAllocationHandle handle, CUdevice device) {
    int gpu;
    if (device == CU_DEVICE_CPU || gpus_find(process, device, &gpu) != CUDA_SUCCESS || gpu == NO_CLAIM)
        return true;
    struct charge charge = {.region = (uint8_t)(gpu & 0x7f), .gpu = (uint8_t)(gpu & 0x7f), .unpaid = true};
    return physical_imported(process, false, handle, charge);
}

/* Memory without a record was created by a call that is not shadowed. */
static CUresult retain(struct process *process, CUmemGenericAllocationHandle *handle, void *address) {
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result != CUDA_SUCCESS || physical_retained(process, *handle))
        return result;
    CUdevice device;
    if (!find_device(*handle, &device) || record_unpaid(process, *handle, device))
        return CUDA_SUCCESS;
    UNDO(REAL(cuMemRelease)(*handle));
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* No thread unmaps or releases anything between the driver's answer and the reference here, so that the memory's record does not
 * end while this handle is its last reference. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    struct process *process = process_if_open();
    if (process == NULL)
        return REAL(cuMemRetainAllocationHandle)(handle, address);
    gate_close(&process->unmapping);
    CUresult result = retain(process, handle, address);
    gate_open(&process->unmapping);
    return result;
}

static CUresult map(struct process *process, CUdeviceptr address, size_t size, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags) {
    uint64_t number;
    CUresult result = physical_hold_to_use(process, handle, offset + size, &number);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemMap)(address, size, offset, handle, flags);
    if (result == CUDA_SUCCESS)
        physical_mapped(process, address, size, number);
    else
        physical_drop(process, number);
    return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    struct process *process = process_if_open();
    if (process == NULL)
        return REAL(cuMemMap)(address, size, offset, handle, flags);
    gate_close(&process->unmapping);
    CUresult result = map(process, address, size, offset, handle, flags);
    gate_open(&process->unmapping);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
    RELEASE(physical_unmap(process, address, size, &releases), REAL(cuMemUnmap)(address, size));
}

/* --- between processes -------------------------------------------------------------------------------------------- */

static CUresult export_descriptor(struct process *process, uint64_t number, void *exported,
                                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
    CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    struct charge held;
    bool counted = physical_exporting(process, number, &held);
    CUresult result = REAL(cuMemExportToShareableHandle)(exported, handle, type, flags);
    if (result == CUDA_SUCCESS && counted)
        return exports_done(process, &held, true, *(int *)exported);
    if (result == CUDA_SUCCESS)
        call_close(*(int *)exported);
    if (held.share != 0)
        charge_end(process, &held);
    return result == CUDA_SUCCESS ? exports_refused() : result;
}

/* Memory without a record is the host's. If not, another thread creates it at this moment. */
static CUresult export_unknown(void *exported, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                               unsigned long long flags) {
    CUdevice device = CU_DEVICE_CPU;
    CUresult result = REAL(cuMemExportToShareableHandle)(exported, handle, type, flags);
    if (result != CUDA_SUCCESS || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        (find_device(handle, &device) && device == CU_DEVICE_CPU))
        return result;
    call_close(*(int *)exported);
    return CUDA_ERROR_INVALID_VALUE;
}

/* Of handles of other kinds than descriptors it cannot be seen when they end, so their memory stays charged until this
 * process does. */
static CUresult export_other(struct process *process, uint64_t number, void *exported,
                             CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                             unsigned long long flags) {
    CUresult result = REAL(cuMemExportToShareableHandle)(exported, handle, type, flags);
    if (result == CUDA_SUCCESS)
        physical_hold(process, number);
    return result;
}

static CUresult export_handle(struct process *process, void *exported, CUmemGenericAllocationHandle handle,
                              CUmemAllocationHandleType type, unsigned long long flags) {
    uint64_t number = physical_number(process, handle);
    if (!physical_has_handle(process, handle, number) || !physical_hold(process, number))
        return export_unknown(exported, handle, type, flags);
    CUresult result = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                          ? export_descriptor(process, number, exported, handle, flags)
                          : export_other(process, number, exported, handle, type, flags);
    physical_drop(process, number);
    return result;
}

/* No thread releases a handle meanwhile, so that this one is not another memory's when the driver sees it. */
CUresult cuMemExportToShareableHandle(void *exported, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
    struct process *process = process_if_open();
    if (process == NULL)
        return REAL(cuMemExportToShareableHandle)(exported, handle, type, flags);
    gate_close(&process->unmapping);
    CUresult result = export_handle(process, exported, handle, type, flags);
    gate_open(&process->unmapping);
    return result;
}

/* Memory whose owner is of this claim has a share. A share of 0 pages, or no device, is that of a multicast object. */
static bool imported(struct process *process, CUmemGenericAllocationHandle handle, struct charge charge) {
    CUdevice device;
    if (charge.share != 0)
        return physical_imported(process, charge_is_empty(process, &charge), handle, charge);
    if (!find_device(handle, &device))
        return physical_imported(process, true, handle, charge);
    return record_unpaid(process, handle, device);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *exported,
                                        CUmemAllocationHandleType type) {
    struct process *process;
    struct charge charge = {0};
    CUresult result = process_open(&process);
    if (result != CUDA_SUCCESS)
        return REAL(cuMemImportFromShareableHandle)(handle, exported, type);
    if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        result = charge_find_exported(process, (int)(uintptr_t)exported, &charge);
    if (result != CUDA_SUCCESS)
        return result;
    gate_enter(&process->unmapping);
    result = REAL(cuMemImportFromShareableHandle)(handle, exported, type);
    if (result == CUDA_SUCCESS && !imported(process, *handle, charge)) {
        UNDO(REAL(cuMemRelease)(*handle));
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (result != CUDA_SUCCESS && charge.share != 0) {
        charge_end(process, &charge);
    }
    gate_leave(&process->unmapping);
    return result;
}

/* --- multicast: an object takes no memory itself, but keeps the memory that is bound to it ------------------------ */

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties) {
    struct process *process;
    if (process_open(&process) != CUDA_SUCCESS)
        return REAL(cuMulticastCreate)(handle, properties);
    gate_enter(&process->unmapping);
    CUresult result = REAL(cuMulticastCreate)(handle, properties);
    if (result == CUDA_SUCCESS)
        physical_made(process, true, *handle, (struct charge){0});
    gate_leave(&process->unmapping);
    return result;
}

/* Bindings of several devices may begin at the same offset. */
static uint64_t part_of(CUdevice device, size_t offset) {
    return (uint64_t)offset << 8 | (uint8_t)device;
}

static void bound(struct process *process, CUmemGenericAllocationHandle object, uint64_t part, uint64_t number) {
    if (number != 0)
        physical_bound(process, KIND_BINDING, physical_number(process, object), part, number);
}

/* Binds memory by `call`, to the part of the object for the device. */
#define BIND(object, device, offset, memory, end, call)                                                                \
    do {                                                                                                               \
        struct process *process = process_if_open();                                                                   \
        uint64_t number;                                                                                               \
        if (process == NULL)                                                                                           \
            return call;                                                                                               \
        gate_close(&process->unmapping);                                                                               \
        CUresult result = physical_hold_to_use(process, memory, end, &number), held = result;                          \
        if (held == CUDA_SUCCESS)                                                                                      \
            result = call;                                                                                             \
        if (held == CUDA_SUCCESS && result == CUDA_SUCCESS)                                                            \
            bound(process, object, part_of(device, offset), number);                                                   \
        else if (held == CUDA_SUCCESS)                                                                                 \
            physical_drop(process, number);                                                                            \
        gate_open(&process->unmapping);                                                                                \
        return result;                                                                                                 \
    } while (0)

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t offset, CUmemGenericAllocationHandle memory,
                            size_t memory_offset, size_t size, unsigned long long flags) {
    CUdevice device = CU_DEVICE_CPU;
    find_device(memory, &device);
    BIND(object, device, offset, memory, memory_offset + size,
         REAL(cuMulticastBindMem)(object, offset, memory, memory_offset, size, flags));
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                               CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                               unsigned long long flags) {
    BIND(object, device, offset, memory, memory_offset + size,
         REAL(cuMulticastBindMem_v2)(object, device, offset, memory, memory_offset, size, flags));
}

/* Binds mapped memory by a handle that is retained for it: `by_handle`, in which `memory` is the handle and `begin` the
 * address of the mapping. By its address, another thread could map other memory there before the driver looks. Memory
 * without a record here is the driver's affair: `by_address`. */
#define BIND_MAPPED(address, by_handle, by_address)                                                                    \
    do {                                                                                                               \
        struct process *process = process_if_open();                                                                   \
        CUmemGenericAllocationHandle memory;                                                                           \
        CUdeviceptr begin;                                                                                             \
        if (process == NULL)                                                                                           \
            return by_address;                                                                                         \
        /* NOLINTNEXTLINE(performance-no-int-to-ptr) */                                                                \
        CUresult result = cuMemRetainAllocationHandle(&memory, (void *)(uintptr_t)(address));                          \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        uint64_t number = physical_number(process, memory);                                                            \
        if (number == 0)                                                                                               \
            result = by_address;                                                                                       \
        else if (physical_find_mapping(process, number, address, &begin))                                              \
            result = by_handle;                                                                                        \
        else                                                                                                           \
            result = CUDA_ERROR_INVALID_VALUE; /* another thread maps or unmaps it at this moment */                   \
        cuMemRelease(memory);                                                                                          \
        return result;                                                                                                 \
    } while (0)

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr address, size_t size,
                             unsigned long long flags) {
    BIND_MAPPED(address, cuMulticastBindMem(object, offset, memory, address - begin, size, flags),
                REAL(cuMulticastBindAddr)(object, offset, address, size, flags));
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                                CUdeviceptr address, size_t size, unsigned long long flags) {
    BIND_MAPPED(address, cuMulticastBindMem_v2(object, device, offset, memory, address - begin, size, flags),
                REAL(cuMulticastBindAddr_v2)(object, device, offset, address, size, flags));
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle object, CUdevice device, size_t offset, size_t size) {
    RELEASE(
        physical_unbind(process, KIND_BINDING, physical_number(process, object), part_of(device, offset), &releases),
        REAL(cuMulticastUnbind)(object, device, offset, size));
}
