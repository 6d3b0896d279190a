/* Pools between processes. What was exported keeps the pool's memory alive, and who imported it; see shared_objects.h. */
#include <string.h>
#include <unistd.h>

#include "pool.h"
#include "shared_objects.h"

#define MAGIC 0x6c6f6f706d6973u

/* What CUmemPoolPtrExportData holds. */
struct exported {
    uint64_t magic, object, offset, size;
};
_Static_assert(sizeof(struct exported) <= sizeof(CUmemPoolPtrExportData), "what is exported must fit");

static CUresult wrap(const CUmemPoolProps *props, uint64_t object, bool imported, CUmemoryPool *pool) {
    CUresult ret = pool_handle_new(props, object, imported, pool);

    if (ret != CUDA_SUCCESS)
        sim_shared_drop(object);
    return ret;
}

CUresult pool_new_shared(const CUmemPoolProps *props, CUmemoryPool *handle) {
    uint64_t object;

    REQUIRE(sim_shared_new(SIM_SHARED_POOL, driver->gpus[props->location.id], 0, &object) == 0,
            CUDA_ERROR_OUT_OF_MEMORY);
    return wrap(props, object, false, handle);
}

CUresult cuMemPoolExportToShareableHandle(void *handle_out, CUmemoryPool hPool, CUmemAllocationHandleType handleType,
                                          unsigned long long flags) {
    struct pool *pool;
    int fd;

    REQUIRE_INITIALISED();
    pool = pool_of(hPool);
    REQUIRE(handle_out != NULL && pool != NULL && !pool->imported && flags == 0 &&
                handleType == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && pool->object != 0,
            CUDA_ERROR_INVALID_VALUE);
    fd = sim_shared_export(pool->object);
    REQUIRE(fd >= 0, CUDA_ERROR_OPERATING_SYSTEM);
    memcpy(handle_out, &fd, sizeof(fd));
    return CUDA_SUCCESS;
}

static CUdevice device_of(int gpu) {
    for (int i = 0; i < driver->device_count; i++) {
        if (driver->gpus[i] == gpu)
            return i;
    }
    return CU_DEVICE_INVALID;
}

/* The descriptor is in the place of the pointer, and stays the caller's. */
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle, CUmemAllocationHandleType handleType,
                                            unsigned long long flags) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    uint64_t object;

    REQUIRE_INITIALISED();
    REQUIRE(pool_out != NULL && flags == 0 && handleType == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(sim_shared_import((int)(intptr_t)handle, SIM_SHARED_POOL, &object) == 0, CUDA_ERROR_INVALID_VALUE);
    props.location.id = device_of(sim_shared_about(object).gpu);
    if (!device_valid(props.location.id)) {
        sim_shared_drop(object);
        return CUDA_ERROR_INVALID_DEVICE;
    }
    return wrap(&props, object, true, pool_out);
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *shareData_out, CUdeviceptr ptr) {
    struct exported exported = {.magic = MAGIC};

    REQUIRE_INITIALISED();
    REQUIRE(shareData_out != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(pool_locate(ptr, &exported.object, &exported.offset, &exported.size));
    memset(shareData_out, 0, sizeof(*shareData_out));
    memcpy(shareData_out, &exported, sizeof(exported));
    return CUDA_SUCCESS;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *ptr_out, CUmemoryPool hPool, CUmemPoolPtrExportData *shareData) {
    struct exported exported;
    struct pool *pool;

    REQUIRE_INITIALISED();
    pool = pool_of(hPool);
    REQUIRE(ptr_out != NULL && shareData != NULL && pool != NULL && pool->imported, CUDA_ERROR_INVALID_VALUE);
    memcpy(&exported, shareData, sizeof(exported));
    REQUIRE(exported.magic == MAGIC && exported.object == pool->object && exported.size != 0 &&
                exported.size <= device_gpu(pool->device)->memory_bytes,
            CUDA_ERROR_INVALID_VALUE);
    return pool_import(pool, exported.offset, exported.size, ptr_out);
}
