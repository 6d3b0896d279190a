/* Handles that go from process to process as file descriptors. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "shared_objects.h"
#include "vmm.h"

static CUresult export_locked(struct vmm_memory *memory, int *fd) {
    if (memory->multicast)
        return multicast_export_locked(memory, fd);
    REQUIRE((memory->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0,
            CUDA_ERROR_INVALID_VALUE);
    TRY(vmm_share_locked(memory));
    *fd = sim_shared_export(memory->object);
    return *fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handleType, unsigned long long flags) {
    struct vmm_memory *memory;
    CUresult ret = CUDA_ERROR_INVALID_VALUE;

    REQUIRE_INITIALISED();
    REQUIRE(shareableHandle != NULL && flags == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(handleType != CU_MEM_HANDLE_TYPE_FABRIC, CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(handleType == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&vmm_mutex);
    memory = vmm_find_locked(handle);
    if (memory != NULL)
        ret = export_locked(memory, shareableHandle);
    pthread_mutex_unlock(&vmm_mutex);
    return ret;
}

static CUresult import_locked(uint64_t object, struct vmm_memory **memory) {
    switch (sim_shared_about(object).kind) {
    case SIM_SHARED_MEMORY:
        return vmm_adopt_locked(object, memory);
    case SIM_SHARED_MULTICAST:
        return multicast_adopt_locked(object, memory);
    default:
        sim_shared_drop(object);
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* The descriptor is the value itself, not what it points to; it remains the caller's. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                        CUmemAllocationHandleType shHandleType) {
    struct vmm_memory *memory;
    uint64_t object;
    CUresult ret;

    REQUIRE_INITIALISED();
    REQUIRE(handle != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(shHandleType != CU_MEM_HANDLE_TYPE_FABRIC, CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(shHandleType == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(sim_shared_import((int)(intptr_t)osHandle, SIM_SHARED_ANY, &object) == 0, CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&vmm_mutex);
    ret = import_locked(object, &memory);
    if (ret == CUDA_SUCCESS) {
        memory->handles = 1;
        *handle = (CUmemGenericAllocationHandle)(uintptr_t)memory;
    }
    pthread_mutex_unlock(&vmm_mutex);
    return ret;
}

/* The object of the memory at an address, and how far it goes on from there. */
static CUresult share_at(CUdeviceptr address, uint64_t *object, uint64_t *left) {
    struct heap_shared shared;
    struct allocation allocation;
    struct range *range;
    CUresult ret = CUDA_ERROR_INVALID_VALUE;

    if (heap_find(address, &allocation) && heap_share(address, &shared) == CUDA_SUCCESS) {
        *object = shared.object;
        *left = allocation.base + allocation.size - address;
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&vmm_mutex);
    range = range_find_locked(address);
    if (range != NULL && range->kind == RANGE_MAPPED && !range->memory->multicast)
        ret = vmm_share_locked(range->memory);
    if (ret == CUDA_SUCCESS) {
        *object = range->memory->object;
        *left = range->base + range->size - address;
    }
    pthread_mutex_unlock(&vmm_mutex);
    return ret;
}

/* A descriptor that keeps the memory, as NVIDIA's open kernel module has it: what is freed meanwhile, stays taken until
 * the last copy is closed. It is no real dma-buf: no other device can attach to it. */
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t size, CUmemRangeHandleType handleType,
                                       unsigned long long flags) {
    uint64_t object, left;
    int fd = -1;

    REQUIRE_INITIALISED();
    REQUIRE(handle != NULL && handleType == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD && flags <= 1 && size != 0 &&
                dptr % 4096 == 0 && size % 4096 == 0,
            CUDA_ERROR_INVALID_VALUE);
    for (uint64_t done = 0; done < size; done += left) {
        CUresult ret = share_at(dptr + done, &object, &left);

        if (ret == CUDA_SUCCESS && fd < 0)
            fd = sim_shared_export(object);
        else if (ret == CUDA_SUCCESS && sim_shared_export_also(fd, object) != 0)
            ret = CUDA_ERROR_OPERATING_SYSTEM;
        if (ret != CUDA_SUCCESS || fd < 0) {
            if (fd >= 0)
                close(fd);
            return ret != CUDA_SUCCESS ? ret : CUDA_ERROR_OPERATING_SYSTEM;
        }
    }
    memcpy(handle, &fd, sizeof(fd));
    return CUDA_SUCCESS;
}
