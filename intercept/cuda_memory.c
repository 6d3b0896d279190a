/* Allocating and freeing, and what reports memory. */
#include "allocations.h"
#include "cuda_real.h"
#include "exports.h"
#include "gpus.h"
#include "objects.h"
#include "pools.h"

#include <stdint.h>

/* No driver pads the rows of a pitched allocation to more; were it so, allocations_resize sees it. */
#define PITCH_ALIGNMENT_MAX 512u

/* Allocates `size` bytes by `call`, which stores the address in `address`; `free` undoes what cannot be written down. A call
 * that allocates nothing is the driver's to refuse. */
#define ALLOCATE(address, size, call, free)                                                                            \
    do {                                                                                                               \
        struct grant grant;                                                                                            \
        if ((address) == NULL || (size) == 0)                                                                          \
            return call;                                                                                               \
        CUresult result = allocations_grant(&grant, size);                                                             \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        CUresult answer = call;                                                                                        \
        result = allocations_allocated(&grant, answer, answer == CUDA_SUCCESS ? *(address) : 0, size);                 \
        if (result != answer)                                                                                          \
            free;                                                                                                      \
        return result;                                                                                                 \
    } while (0)

CUresult cuMemAlloc(CUdeviceptr_v1 *address, unsigned int size) {
    ALLOCATE(address, size, REAL(cuMemAlloc)(address, size), REAL(cuMemFree)(*address));
}

static CUresult allocate(CUdeviceptr *address, size_t size) {
    ALLOCATE(address, size, REAL(cuMemAlloc_v2)(address, size), REAL(cuMemFree_v2)(*address));
}

/* Counted in full from the start: the GPU may come to hold all of it at any time. */
CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned int flags) {
    ALLOCATE(address, size, REAL(cuMemAllocManaged)(address, size, flags), REAL(cuMemFree_v2)(*address));
}

/* --- beyond the limit, for jobs that asked for that ------------------------------------------------------------------ */

/* Managed memory that stays on the host: the GPU reads and writes it there, and takes none of its own for it. */
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
        REAL(cuMemFree_v2)(*address);
    return result;
}

static CUresult spill(CUdeviceptr *address, size_t size) {
    struct grant grant;
    CUresult result = allocations_grant_spilled(&grant, size);
    if (result != CUDA_SUCCESS)
        return result;
    CUresult answer = allocate_on_host(address, size);
    result = allocations_allocated(&grant, answer, answer == CUDA_SUCCESS ? *address : 0, size);
    if (result != answer)
        REAL(cuMemFree_v2)(*address);
    return result;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size) {
    CUresult result = allocate(address, size);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? spill(address, size) : result;
}

/* --- rows ------------------------------------------------------------------------------------------------------------ */

static uint64_t padded(uint64_t width) {
    return width > UINT64_MAX - PITCH_ALIGNMENT_MAX
               ? width
               : (width + PITCH_ALIGNMENT_MAX - 1) & ~(uint64_t)(PITCH_ALIGNMENT_MAX - 1);
}

/* A pitched allocation has the driver's pitch, known only afterwards. `free` undoes one that does not fit after all. */
#define ALLOCATE_PITCH(address, pitch, width, height, call, free)                                                      \
    do {                                                                                                               \
        struct grant grant;                                                                                            \
        if ((address) == NULL || (pitch) == NULL || (width) == 0 || (height) == 0)                                     \
            return call;                                                                                               \
        CUresult result = allocations_grant(&grant, product(padded(width), height));                                   \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        CUresult answer = call;                                                                                        \
        uint64_t bytes = answer == CUDA_SUCCESS ? product(*(pitch), height) : 0;                                       \
        result = answer == CUDA_SUCCESS ? allocations_resize(&grant, bytes) : answer;                                  \
        result = allocations_allocated(&grant, result, result == CUDA_SUCCESS ? *(address) : 0, bytes);                \
        if (result != answer)                                                                                          \
            free;                                                                                                      \
        return result;                                                                                                 \
    } while (0)

CUresult cuMemAllocPitch(CUdeviceptr_v1 *address, unsigned int *pitch, unsigned int width, unsigned int height,
                         unsigned int element) {
    ALLOCATE_PITCH(address, pitch, width, height, REAL(cuMemAllocPitch)(address, pitch, width, height, element),
                   REAL(cuMemFree)(*address));
}

static CUresult allocate_pitch(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element) {
    ALLOCATE_PITCH(address, pitch, width, height, REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element),
                   REAL(cuMemFree_v2)(*address));
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

/* --- freeing --------------------------------------------------------------------------------------------------------- */

/* What we do not know (NULL, a foreign or already freed address) is the driver's to judge. */
#define FREE(address, call)                                                                                            \
    do {                                                                                                               \
        struct entry allocation;                                                                                       \
        bool linear = allocations_freeing(address, &allocation);                                                       \
        CUresult result = call;                                                                                        \
        if (linear)                                                                                                    \
            allocations_freed(&allocation, result);                                                                    \
        else if (result == CUDA_SUCCESS && objects_any(process_if_open(), KIND_POOL_MEMORY))                           \
            pools_freed(process_if_open(), address, NULL);                                                             \
        return result;                                                                                                 \
    } while (0)

CUresult cuMemFree(CUdeviceptr_v1 address) {
    FREE(address, REAL(cuMemFree)(address));
}

CUresult cuMemFree_v2(CUdeviceptr address) {
    FREE(address, REAL(cuMemFree_v2)(address));
}

/* --- what reports memory --------------------------------------------------------------------------------------------- */

/* What a device's claim allows; nothing of a device without a claim. */
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

/* The same for the current context's device, and what is left of it. */
static CUresult current_limit(uint64_t *limit, uint64_t *left) {
    struct process *process;
    int gpu;
    CUresult result = contexts_current_gpu(&process, &gpu);
    if (result != CUDA_SUCCESS)
        return result;
    pools_settle(process);
    exports_settle(process);
    *limit = claims_limit_bytes(&process->claims, gpu);
    uint64_t used = claims_used_bytes(&process->claims, gpu);
    *left = used < *limit ? *limit - used : 0;
    return result;
}

/* The smaller of what the driver says and what the claim says: others may have taken of the physical memory. */
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
