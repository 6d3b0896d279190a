/* External memory: what came as a file descriptor, mapped without a handle of virtual memory management. */
#include <unistd.h>

#include "cuda/array/array.h"
#include "shared_objects.h"
#include "vmm.h"

struct CUextMemory_st {
    struct handle handle;
    struct CUctx_st *context;
    struct vmm_memory *memory;
    uint64_t size;
};

static struct handle_table externals = HANDLE_TABLE(6, 1 << 16);
_Static_assert(sizeof(struct CUextMemory_st) <= 1 << 6, "external memory must fit into its element");

static CUresult import_locked(int fd, uint64_t size, struct vmm_memory **memory) {
    uint64_t object;

    REQUIRE(sim_shared_import(fd, SIM_SHARED_MEMORY, &object) == 0, CUDA_ERROR_INVALID_HANDLE);
    TRY(vmm_adopt_locked(object, memory));
    if (size <= (*memory)->size)
        return CUDA_SUCCESS;
    vmm_drop_locked(*memory);
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult import(int fd, uint64_t size, struct vmm_memory **memory) {
    CUresult ret;

    pthread_mutex_lock(&vmm_mutex);
    ret = import_locked(fd, size, memory);
    pthread_mutex_unlock(&vmm_mutex);
    return ret;
}

/* A descriptor that was imported is the driver's from then on. */
CUresult cuImportExternalMemory(CUexternalMemory *extMem_out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *memHandleDesc) {
    struct CUextMemory_st *external;
    struct vmm_memory *memory;

    REQUIRE_CONTEXT(context);
    REQUIRE(extMem_out != NULL && memHandleDesc != NULL && memHandleDesc->size != 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE((memHandleDesc->flags & ~(unsigned)CUDA_EXTERNAL_MEMORY_DEDICATED) == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(memHandleDesc->type >= CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD &&
                memHandleDesc->type <= CU_EXTERNAL_MEMORY_HANDLE_TYPE_NVSCIBUF,
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(memHandleDesc->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, CUDA_ERROR_NOT_SUPPORTED);
    TRY(import(memHandleDesc->handle.fd, memHandleDesc->size, &memory));
    external = handle_new(&externals);
    if (external == NULL) {
        vmm_drop(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    external->context = context;
    external->memory = memory;
    external->size = memHandleDesc->size;
    close(memHandleDesc->handle.fd);
    *extMem_out = external;
    return CUDA_SUCCESS;
}

#define REQUIRE_EXTERNAL(external)                                                                                     \
    REQUIRE_INITIALISED();                                                                                             \
    REQUIRE(handle_valid(&externals, external), CUDA_ERROR_INVALID_HANDLE)

/* Addresses of [offset, offset + size) of the memory. */
static CUresult map(CUexternalMemory external, struct CUctx_st *context, enum range_kind kind, uint64_t offset,
                    uint64_t size, struct range **range) {
    uint64_t start = offset / SIM_GRANULARITY * SIM_GRANULARITY;
    CUresult ret;

    pthread_mutex_lock(&vmm_mutex);
    external->memory->references++;
    ret = range_new_locked(kind, context, external->memory, start, round_up(offset + size, SIM_GRANULARITY) - start,
                           range);
    if (ret == CUDA_SUCCESS) {
        (*range)->within = offset - start;
        (*range)->owner = external;
    }
    pthread_mutex_unlock(&vmm_mutex);
    return ret;
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *devPtr, CUexternalMemory extMem,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *bufferDesc) {
    struct range *range;

    REQUIRE_CONTEXT(context);
    REQUIRE_EXTERNAL(extMem);
    REQUIRE(devPtr != NULL && bufferDesc != NULL && bufferDesc->flags == 0 && bufferDesc->size != 0,
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(bufferDesc->offset <= extMem->size && bufferDesc->size <= extMem->size - bufferDesc->offset,
            CUDA_ERROR_INVALID_VALUE);
    TRY(map(extMem, context, RANGE_EXTERNAL, bufferDesc->offset, bufferDesc->size, &range));
    *devPtr = range->base + range->within;
    return CUDA_SUCCESS;
}

/* The array's addresses stay until the external memory is destroyed: it does not own them. */
CUresult cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *mipmap, CUexternalMemory extMem,
                                                 const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *mipmapDesc) {
    struct range *range;
    CUresult ret;

    REQUIRE_CONTEXT(context);
    REQUIRE_EXTERNAL(extMem);
    REQUIRE(mipmap != NULL && mipmapDesc != NULL && mipmapDesc->numLevels != 0 && mipmapDesc->offset < extMem->size,
            CUDA_ERROR_INVALID_VALUE);
    TRY(map(extMem, context, RANGE_EXTERNAL_ARRAY, mipmapDesc->offset, extMem->size - mipmapDesc->offset, &range));
    ret = mipmap_over(context, &mipmapDesc->arrayDesc, mipmapDesc->numLevels, range->base + range->within, mipmap);
    if (ret == CUDA_SUCCESS && (*mipmap)->size > extMem->size - mipmapDesc->offset) {
        cuMipmappedArrayDestroy(*mipmap);
        ret = CUDA_ERROR_INVALID_VALUE;
    }
    if (ret != CUDA_SUCCESS) {
        pthread_mutex_lock(&vmm_mutex);
        range_delete_locked(range);
        pthread_mutex_unlock(&vmm_mutex);
    }
    return ret;
}

static void delete_arrays(struct range *range, void *external) {
    if (range->kind == RANGE_EXTERNAL_ARRAY && range->owner == external)
        range_delete_locked(range);
}

CUresult cuDestroyExternalMemory(CUexternalMemory extMem) {
    REQUIRE_EXTERNAL(extMem);
    pthread_mutex_lock(&vmm_mutex);
    ranges_each_locked(delete_arrays, extMem);
    vmm_drop_locked(extMem->memory);
    pthread_mutex_unlock(&vmm_mutex);
    handle_delete(&externals, extMem);
    return CUDA_SUCCESS;
}

static void destroy_if_of(void *element, void *context) {
    if (((CUexternalMemory)element)->context == context)
        cuDestroyExternalMemory(element);
}

void external_context_gone(struct CUctx_st *context) {
    handle_each(&externals, destroy_if_of, context);
}
