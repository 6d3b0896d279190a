/* Linear memory: allocating and freeing it, moving managed memory, and the functions that report memory. See
 * memory/allocations.h. */
#include "context/work.h"
#include "driver/cuda_real.h"
#include "memory/allocations.h"
#include "memory/borrowed.h"
#include "memory/pools.h"
#include "memory/streams.h"
#include "state/gpus.h"
#include "system/explain.h"

#include <stdint.h>

/* An upper bound of the padding of a pitched allocation's rows. If a driver used more, allocations_resize would charge
 * it. */
#define PITCH_ALIGNMENT_MAX 512u

/* Allocates `size` bytes by `call`, which stores the address in `address`, after `granting`. The driver answers to a call
 * that allocates nothing. */
#define ALLOCATE(granting, address, size, call)                                                                        \
    do {                                                                                                               \
        struct grant grant;                                                                                            \
        if ((address) == NULL || (size) == 0)                                                                          \
            return call;                                                                                               \
        WORK_IN_CONTEXT;                                                                                               \
        CUresult result = granting;                                                                                    \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        result = call;                                                                                                 \
        return allocations_allocated(&grant, result, result == CUDA_SUCCESS ? *(address) : 0, size);                   \
    } while (0)

static CUresult allocate(CUdeviceptr *address, size_t size) {
    ALLOCATE(allocations_grant(&grant, &work, size), address, size, REAL(cuMemAlloc_v2)(address, size));
}

/* Charged in full on every GPU of the process, since all of it may move to any of them at any time. */
CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned int flags) {
    struct further_charges further;
    ALLOCATE(allocations_grant_everywhere(&grant, &work, &further, size), address, size,
             REAL(cuMemAllocManaged)(address, size, flags));
}

/* --- host memory, for what exceeds the limit of a job that requests this ------------------------------------------ */

/* Managed memory that stays on the host: the GPU accesses it there and needs none of its own memory. */
static CUresult allocate_on_host(CUdeviceptr *address, size_t size) {
    CUdevice device;
    CUresult result = REAL(cuCtxGetDevice)(&device);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemAllocManaged)(address, size, CU_MEM_ATTACH_GLOBAL);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemAdvise)(*address, size, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemAdvise)(*address, size, CU_MEM_ADVISE_SET_ACCESSED_BY, device);
    if (result != CUDA_SUCCESS)
        UNDO(REAL(cuMemFree_v2)(*address));
    return result;
}

static CUresult spill(CUdeviceptr *address, size_t size) {
    ALLOCATE(allocations_grant_spilled(&grant, &work, size), address, size, allocate_on_host(address, size));
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size) {
    CUresult result = allocate(address, size);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? spill(address, size) : result;
}

/* --- moving managed memory ---------------------------------------------------------------------------------------- */

/* Whether all of a range is managed memory. */
static bool is_managed(CUdeviceptr address, size_t size) {
    CUdeviceptr end = address + size, start = 0;
    size_t length = 0;
    for (; address < end; address = start + length) {
        unsigned managed = 0;
        if (REAL(cuPointerGetAttribute)(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) != CUDA_SUCCESS ||
            managed == 0 ||
            REAL(cuPointerGetAttribute)(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address) != CUDA_SUCCESS ||
            REAL(cuPointerGetAttribute)(&length, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address) != CUDA_SUCCESS ||
            start + length <= address)
            return false;
    }
    return true;
}

static bool accesses_pageable_memory(CUdevice device) {
    int pageable = 0;
    return REAL(cuDeviceGetAttribute)(&pageable, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, device) == CUDA_SUCCESS &&
           pageable != 0;
}

/*
 * Whether a range may be moved to a location or advised for it. Not allowed are:
 *
 *   - memory on the host beyond the limit. The program got it from cuMemAlloc, and so the driver would answer the same.
 *   - managed memory on a GPU without a claim, where it needs no context.
 *   - on a GPU, memory of malloc, which is not charged. Only with HMM or ATS can the GPU use it; else the driver refuses.
 */
static CUresult movable(CUdeviceptr address, size_t size, CUmemLocation location) {
    struct process *process = process_if_open();
    int gpu;
    if (allocations_on_host(process, address, size))
        return CUDA_ERROR_INVALID_VALUE;
    if (process == NULL || location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_SUCCESS;
    CUresult result = gpus_find_claimed(process, location.id, &gpu);
    if (result != CUDA_SUCCESS || !accesses_pageable_memory(location.id) || is_managed(address, size))
        return result;
    explain(CAUSE_PAGEABLE, "memory that is not CUDA's cannot be prefetched to a GPU or advised for one: it would not "
                            "count toward the limit; use cudaMallocManaged");
    return CUDA_ERROR_NOT_PERMITTED;
}

static CUmemLocation location_of(CUdevice device) {
    return device == CU_DEVICE_CPU ? (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0}
                                   : (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device};
}

#define MOVE(address, size, location, call)                                                                            \
    do {                                                                                                               \
        CUresult result = movable(address, size, location);                                                            \
        return result == CUDA_SUCCESS ? call : result;                                                                 \
    } while (0)

CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t size, CUdevice device, CUstream stream) {
    MOVE(address, size, location_of(device), REAL(cuMemPrefetchAsync)(address, size, device, stream));
}

CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr address, size_t size, CUdevice device, CUstream stream) {
    MOVE(address, size, location_of(device), REAL(cuMemPrefetchAsync_ptsz)(address, size, device, stream));
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t size, CUmemLocation location, unsigned int flags,
                               CUstream stream) {
    MOVE(address, size, location, REAL(cuMemPrefetchAsync_v2)(address, size, location, flags, stream));
}

CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr address, size_t size, CUmemLocation location, unsigned int flags,
                                    CUstream stream) {
    MOVE(address, size, location, REAL(cuMemPrefetchAsync_v2_ptsz)(address, size, location, flags, stream));
}

/* The location of advice that moves memory there or maps it there. Other advice does neither. */
static CUmemLocation advised_place(CUmem_advise advice, CUmemLocation location) {
    bool looks = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || advice == CU_MEM_ADVISE_SET_ACCESSED_BY;
    return looks ? location : (CUmemLocation){CU_MEM_LOCATION_TYPE_INVALID, 0};
}

CUresult cuMemAdvise(CUdeviceptr address, size_t size, CUmem_advise advice, CUdevice device) {
    MOVE(address, size, advised_place(advice, location_of(device)), REAL(cuMemAdvise)(address, size, advice, device));
}

CUresult cuMemAdvise_v2(CUdeviceptr address, size_t size, CUmem_advise advice, CUmemLocation location) {
    MOVE(address, size, advised_place(advice, location), REAL(cuMemAdvise_v2)(address, size, advice, location));
}

/* Each location is that of the ranges from its first one to that of the next location. The first refusal decides. The
 * driver answers to missing arrays. */
static CUresult batch_movable(const CUdeviceptr *addresses, const size_t *sizes, size_t count,
                              const CUmemLocation *locations, const size_t *firsts, size_t locations_count) {
    CUresult result = CUDA_SUCCESS;
    if (addresses == NULL || sizes == NULL || locations == NULL || firsts == NULL)
        return CUDA_SUCCESS;
    for (size_t l = 0; l < locations_count; l++) {
        size_t end = l + 1 < locations_count && firsts[l + 1] < count ? firsts[l + 1] : count;
        for (size_t i = firsts[l]; i < end && result == CUDA_SUCCESS; i++)
            result = movable(addresses[i], sizes[i], locations[l]);
    }
    return result;
}

#define BATCH(function)                                                                                                \
    CUresult function(CUdeviceptr *addresses, size_t *sizes, size_t count, CUmemLocation *locations, size_t *firsts,   \
                      size_t locations_count, unsigned long long flags, CUstream stream) {                             \
        CUresult result = batch_movable(addresses, sizes, count, locations, firsts, locations_count);                  \
        return result != CUDA_SUCCESS                                                                                  \
                   ? result                                                                                            \
                   : REAL(function)(addresses, sizes, count, locations, firsts, locations_count, flags, stream);       \
    }

BATCH(cuMemPrefetchBatchAsync)
BATCH(cuMemPrefetchBatchAsync_ptsz)
BATCH(cuMemDiscardAndPrefetchBatchAsync)
BATCH(cuMemDiscardAndPrefetchBatchAsync_ptsz)

/* --- rows --------------------------------------------------------------------------------------------------------- */

static uint64_t padded(uint64_t width) {
    return width > UINT64_MAX - PITCH_ALIGNMENT_MAX
               ? width
               : (width + PITCH_ALIGNMENT_MAX - 1) & ~(uint64_t)(PITCH_ALIGNMENT_MAX - 1);
}

/* Its size depends on the driver's pitch, which is known only afterwards. */
static CUresult allocate_pitch(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element) {
    struct grant grant;
    if (address == NULL || pitch == NULL || width == 0 || height == 0)
        return REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element);
    WORK_IN_CONTEXT;
    CUresult result = allocations_grant(&grant, &work, product(padded(width), height));
    if (result != CUDA_SUCCESS)
        return result;
    CUresult answer = REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element);
    uint64_t bytes = answer == CUDA_SUCCESS ? product(*pitch, height) : 0;
    result = answer == CUDA_SUCCESS ? allocations_resize(&grant, bytes) : answer;
    return allocations_allocated(&grant, result, answer == CUDA_SUCCESS ? *address : 0, bytes);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element) {
    CUresult result = allocate_pitch(address, pitch, width, height, element);
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return result;
    result = spill(address, product(padded(width), height));
    if (result == CUDA_SUCCESS)
        *pitch = padded(width);
    return result;
}

/* --- freeing ------------------------------------------------------------------------------------------------------ */

/* An address that is not recorded (NULL, a foreign or freed one) is passed to the driver, which answers. */
CUresult cuMemFree_v2(CUdeviceptr address) {
    struct process *process = process_if_open();
    struct entry allocation;
    bool linear = allocations_freeing(address, &allocation);
    bool borrowed = !linear && borrowed_freeing(process, address, &allocation);
    uint32_t changes = 0;
    bool of_pool = !linear && !borrowed && pools_freeing(process, address, &allocation, &changes);
    bool waits = !linear && !borrowed && !of_pool && borrowed_await_imports(process);
    borrowed = borrowed || (waits && borrowed_freeing(process, address, &allocation));
    CUresult result = REAL(cuMemFree_v2)(address);
    if (waits)
        reentrant_give(&process->borrowing);
    if (linear)
        allocations_freed(&allocation, result);
    else if (borrowed)
        borrowed_freed(process, &allocation, result);
    else if (of_pool)
        pools_freed(process, &allocation, changes, result);
    return result;
}

/* --- reporting memory --------------------------------------------------------------------------------------------- */

/* The limit of a device; 0 without a claim. */
static CUresult device_limit(CUdevice device, uint64_t *limit) {
    struct process *process;
    int gpu;
    CUresult result = process_open(&process);
    if (result == CUDA_SUCCESS)
        result = gpus_find(process, device, &gpu);
    if (result == CUDA_SUCCESS)
        *limit = gpu == NO_CLAIM ? 0 : claims_limit_bytes(&process->claims, gpu);
    return result;
}

/* The limit of the current context's device, and what is left of it. */
static CUresult current_limit(uint64_t *limit, uint64_t *left) {
    struct process *process;
    int gpu;
    CUresult result = work_current_gpu(&process, &gpu);
    if (result != CUDA_SUCCESS)
        return result;
    pools_settle(process);
    *limit = *left = 0;
    for (unsigned i = (unsigned)gpu; i < process->claims.count; i++) {
        struct region *region = &process->claims.regions[i];
        if (process->claims.gpu[i] != gpu)
            continue;
        uint64_t bytes = region_limit_bytes(region, REGION_GPU), used = region_used_bytes(region, REGION_GPU);
        *limit += bytes;
        /* A claim whose limit was lowered below its use has nothing left; that does not reduce what others have. */
        *left += used < bytes ? bytes - used : 0;
    }
    return result;
}

/* The smaller of the driver's value and the claim's: other users may have taken physical memory. */
#define LOWER(number, bound)                                                                                           \
    do {                                                                                                               \
        if ((number) != NULL && *(number) > (bound))                                                                   \
            *(number) = (bound);                                                                                       \
    } while (0)

#define GET_INFO(free, total, call)                                                                                    \
    do {                                                                                                               \
        uint64_t limit, left;                                                                                          \
        CUresult result = call;                                                                                        \
        if (result == CUDA_SUCCESS)                                                                                    \
            result = current_limit(&limit, &left);                                                                     \
        if (result == CUDA_SUCCESS) {                                                                                  \
            LOWER(free, left);                                                                                         \
            LOWER(total, limit);                                                                                       \
        }                                                                                                              \
        return result;                                                                                                 \
    } while (0)

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total) {
    GET_INFO(free, total, REAL(cuMemGetInfo)(free, total));
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    GET_INFO(free, total, REAL(cuMemGetInfo_v2)(free, total));
}

#define TOTAL_MEMORY(bytes, device, call)                                                                              \
    do {                                                                                                               \
        uint64_t limit;                                                                                                \
        CUresult result = call;                                                                                        \
        if (result == CUDA_SUCCESS)                                                                                    \
            result = device_limit(device, &limit);                                                                     \
        if (result == CUDA_SUCCESS)                                                                                    \
            LOWER(bytes, limit);                                                                                       \
        return result;                                                                                                 \
    } while (0)

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device) {
    TOTAL_MEMORY(bytes, device, REAL(cuDeviceTotalMem)(bytes, device));
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    TOTAL_MEMORY(bytes, device, REAL(cuDeviceTotalMem_v2)(bytes, device));
}
