/* Linear device memory: allocating, freeing, asking about it. */
#include "cuda/image/module.h"
#include "cuda/mps_client.h"
#include "cuda/work/capture.h"
#include "cuda/work/engine.h"
#include "heap.h"
#include "host_memory.h"
#include "memory_limits.h"
#include "sharing.h"

#define PITCH_ALIGNMENT 512

static CUresult allocate(size_t size, enum pack_kind kind, CUdeviceptr *address) {
    REQUIRE_CONTEXT(context);
    REQUIRE(address != NULL && size != 0, CUDA_ERROR_INVALID_VALUE);
    return heap_alloc(context, size, kind, address);
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize) {
    return allocate(bytesize, PACK_DEVICE, dptr);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *dptr, unsigned int bytesize) {
    CUdeviceptr address;

    TRY(allocate(bytesize, PACK_LOW, dptr != NULL ? &address : NULL));
    *dptr = (CUdeviceptr_v1)address;
    return CUDA_SUCCESS;
}

static CUresult allocate_pitch(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element,
                               enum pack_kind kind) {
    REQUIRE_CONTEXT(context);
    REQUIRE(address != NULL && pitch != NULL && width != 0 && height != 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(element == 4 || element == 8 || element == 16, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(width <= INT32_MAX && height <= UINT64_MAX / (width + PITCH_ALIGNMENT), CUDA_ERROR_INVALID_VALUE);
    *pitch = round_up(width, PITCH_ALIGNMENT);
    return heap_alloc(context, *pitch * height, kind, address);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes) {
    return allocate_pitch(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes, PACK_DEVICE);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *dptr, unsigned int *pPitch, unsigned int WidthInBytes, unsigned int Height,
                         unsigned int ElementSizeBytes) {
    CUdeviceptr address;
    size_t pitch;

    TRY(allocate_pitch(dptr != NULL ? &address : NULL, pPitch != NULL ? &pitch : NULL, WidthInBytes, Height,
                       ElementSizeBytes, PACK_LOW));
    *dptr = (CUdeviceptr_v1)address;
    *pPitch = (unsigned)pitch;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
    REQUIRE(flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST, CUDA_ERROR_INVALID_VALUE);
    return allocate(bytesize, PACK_MANAGED, dptr);
}

/* Waits, as the driver does, until no kernel of the context can use the memory any more. */
CUresult cuMemFree_v2(CUdeviceptr dptr) {
    REQUIRE_CONTEXT(context);
    if (dptr == 0)
        return CUDA_SUCCESS;
    REQUIRE(!module_holds(dptr), CUDA_ERROR_INVALID_VALUE);
    TRY(capture_unsafe());
    engine_wait(context->device, atomic_load(&context->mark));
    return heap_free(dptr);
}

CUresult cuMemFree(CUdeviceptr_v1 dptr) {
    return cuMemFree_v2(dptr);
}

static void cap(uint64_t limit, uint64_t charged, size_t *free, size_t *total) {
    if (limit >= *total)
        return;
    *total = limit;
    if (charged >= limit)
        *free = 0;
    else if (*free > limit - charged)
        *free = limit - charged;
}

/* Of the process, by MPS, and of its cgroup. That of a namespace of MPS v3 is in what is free, and not in the total (ai-dynamo's guide on limits with MPS). */
static void apply_limits(int gpu, size_t *free, size_t *total) {
    struct sim_memory_limit cgroup;
    size_t whole = *total;

    if (sim_limit_of(gpu) != 0)
        cap(sim_limit_of(gpu), sim_charged(gpu), free, total);
    if (mps_client_namespace())
        *total = whole;
    if (sim_memory_limit_shown(gpu, &cgroup))
        cap(cgroup.hard, cgroup.used, free, total);
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    uint64_t used;

    REQUIRE_CONTEXT(context);
    REQUIRE(free != NULL && total != NULL, CUDA_ERROR_INVALID_VALUE);
    used = sim_gpu_used(context_gpu(context));
    *total = device_gpu(context->device)->memory_bytes;
    *free = used < *total ? *total - used : 0;
    apply_limits(context_gpu(context), free, total);
    return CUDA_SUCCESS;
}

static unsigned clamp(size_t bytes) {
    return bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes;
}

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total) {
    size_t free_bytes, total_bytes;

    REQUIRE(!driver_ready() || (free != NULL && total != NULL), CUDA_ERROR_INVALID_VALUE);
    TRY(cuMemGetInfo_v2(&free_bytes, &total_bytes));
    *free = clamp(free_bytes);
    *total = clamp(total_bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr) {
    struct allocation allocation;

    if (pbase == NULL && psize == NULL)
        return CUDA_SUCCESS;
    REQUIRE_CONTEXT(context);
    (void)context;
    REQUIRE(heap_find(dptr, &allocation), CUDA_ERROR_NOT_FOUND);
    if (pbase != NULL)
        *pbase = allocation.base;
    if (psize != NULL)
        *psize = allocation.size;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr_v1 *pbase, unsigned int *psize, CUdeviceptr_v1 dptr) {
    CUdeviceptr base;
    size_t size;

    if (pbase == NULL && psize == NULL)
        return CUDA_SUCCESS;
    TRY(cuMemGetAddressRange_v2(&base, &size, dptr));
    if (pbase != NULL)
        *pbase = (CUdeviceptr_v1)base;
    if (psize != NULL)
        *psize = clamp(size);
    return CUDA_SUCCESS;
}

/* ---- What a pointer is ---- */

/* What can be said of an address: the device's, the host's, or nothing (`known` false). */
struct pointer {
    bool known, device, managed;
    bool ipc; /* can go to other processes by cuIpcGetMemHandle */
    struct CUctx_st *context;
    CUdevice ordinal;
    uint64_t base, size, id;
    CUmemoryPool pool;
};

static struct pointer look_up(CUdeviceptr address) {
    struct allocation allocation;
    struct host_range range;

    if (heap_find(address, &allocation))
        return (struct pointer){
            .known = true,
            .device = true,
            .managed = allocation.extent->pack_kind == PACK_MANAGED,
            .ipc = allocation.extent->pack_kind != PACK_MANAGED &&
                   (allocation.extent->kind == EXTENT_LINEAR || allocation.extent->kind == EXTENT_PACKED),
            .context = allocation.extent->context,
            .ordinal = allocation.extent->device,
            .base = allocation.base,
            .size = allocation.size,
            .id = allocation.id != 0 ? allocation.id
                                     : allocation.extent->buffer_id << 13 | ((allocation.base >> 9) & 0xfff) << 1,
            .pool = allocation.pool};
    if (host_range_find((uintptr_t)address, &range))
        return (struct pointer){.known = true,
                                .context = range.context,
                                .ordinal = range.device,
                                .base = range.base,
                                .size = range.size,
                                .id = range.id << 1 | 1};
    return (struct pointer){.ordinal = CU_DEVICE_INVALID};
}

static CUresult attribute_of(const struct pointer *p, CUdeviceptr address, CUpointer_attribute attribute, void *data) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = p->context;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = p->device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = address;
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (p->device && !p->managed)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)(uintptr_t)address;
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *(unsigned *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(unsigned long long *)data = p->id;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)data = p->managed;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = p->ordinal;
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)data = p->ipc;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)data = p->base;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)data = p->size;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned *)data = 1;
        break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(int *)data = 3; /* read and write */
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = p->pool;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
    struct pointer p;

    REQUIRE_INITIALISED();
    REQUIRE(data != NULL, CUDA_ERROR_INVALID_VALUE);
    p = look_up(ptr);
    REQUIRE(p.known, CUDA_ERROR_INVALID_VALUE);
    return attribute_of(&p, ptr, attribute, data);
}

/* Unlike the singular, this one says nothing of a pointer that the driver does not know: all answers are zero. */
static void attribute_unknown(CUpointer_attribute attribute, void *data) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(void **)data = NULL;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(uint64_t *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = CU_DEVICE_INVALID;
        break;
    default:
        *(unsigned *)data = 0;
    }
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, void **data,
                                CUdeviceptr ptr) {
    struct pointer p;

    REQUIRE_INITIALISED();
    REQUIRE(numAttributes > 0 && attributes != NULL && data != NULL, CUDA_ERROR_INVALID_VALUE);
    p = look_up(ptr);
    for (unsigned i = 0; i < numAttributes; i++) {
        if (attributes[i] < CU_POINTER_ATTRIBUTE_CONTEXT || attributes[i] > CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID ||
            data[i] == NULL)
            return CUDA_ERROR_INVALID_VALUE;
        if (!p.known || attribute_of(&p, ptr, attributes[i], data[i]) != CUDA_SUCCESS)
            attribute_unknown(attributes[i], data[i]);
    }
    return CUDA_SUCCESS;
}

/* The one attribute that can be set says that copies shall be synchronous, which here they are. */
CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr) {
    REQUIRE_INITIALISED();
    REQUIRE(value != NULL && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && look_up(ptr).device,
            CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}
