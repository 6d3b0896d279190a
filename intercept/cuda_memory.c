/* Allocating and freeing, and what reports memory. */
#include "account.h"
#include "cuda_real.h"

#include <stdint.h>

/* No driver pads the rows of a pitched allocation to more; were it so, account_resize sees it. */
#define PITCH_ALIGNMENT_MAX 512u

/* Allocates `size` bytes by `call`, which stores the address in `address`. A call that allocates nothing is the driver's
 * to refuse. */
#define ALLOCATE(address, size, call)                                                                                  \
    do {                                                                                                               \
        struct grant grant;                                                                                            \
        if ((address) == NULL || (size) == 0)                                                                          \
            return call;                                                                                               \
        CUresult result = account_grant(&grant, size);                                                                 \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        result = call;                                                                                                 \
        return account_allocated(&grant, result, result == CUDA_SUCCESS ? *(address) : 0, size);                       \
    } while (0)

CUresult cuMemAlloc(CUdeviceptr_v1 *address, unsigned int size) {
    ALLOCATE(address, size, REAL(cuMemAlloc)(address, size));
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size) {
    ALLOCATE(address, size, REAL(cuMemAlloc_v2)(address, size));
}

/* Counted in full from the start: the GPU may come to hold all of it at any time. */
CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned int flags) {
    ALLOCATE(address, size, REAL(cuMemAllocManaged)(address, size, flags));
}

/* a * b, or as much as there is. */
static uint64_t product(uint64_t a, uint64_t b) {
    uint64_t result;
    return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

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
        CUresult result = account_grant(&grant, product(padded(width), height));                                       \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        result = call;                                                                                                 \
        if (result != CUDA_SUCCESS)                                                                                    \
            return account_allocated(&grant, result, 0, 0);                                                            \
        uint64_t bytes = product(*(pitch), height);                                                                    \
        result = account_resize(&grant, bytes);                                                                        \
        if (result != CUDA_SUCCESS)                                                                                    \
            free;                                                                                                      \
        return account_allocated(&grant, result, *(address), bytes);                                                   \
    } while (0)

CUresult cuMemAllocPitch(CUdeviceptr_v1 *address, unsigned int *pitch, unsigned int width, unsigned int height,
                         unsigned int element) {
    ALLOCATE_PITCH(address, pitch, width, height, REAL(cuMemAllocPitch)(address, pitch, width, height, element),
                   REAL(cuMemFree)(*address));
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element) {
    ALLOCATE_PITCH(address, pitch, width, height, REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element),
                   REAL(cuMemFree_v2)(*address));
}

/* What we do not know (NULL, a foreign or already freed address) is the driver's to judge. */
#define FREE(address, call)                                                                                            \
    do {                                                                                                               \
        struct entry allocation;                                                                                       \
        bool ours = account_freeing(address, &allocation);                                                             \
        CUresult result = call;                                                                                        \
        if (ours)                                                                                                      \
            account_freed(allocation, result);                                                                         \
        return result;                                                                                                 \
    } while (0)

CUresult cuMemFree(CUdeviceptr_v1 address) {
    FREE(address, REAL(cuMemFree)(address));
}

CUresult cuMemFree_v2(CUdeviceptr address) {
    FREE(address, REAL(cuMemFree_v2)(address));
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
            result = account_current_limit(&limit, &left);                                                             \
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
            result = account_device_limit(device, &limit);                                                             \
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
