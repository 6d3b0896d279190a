/* Legacy IPC: memory of cuMemAlloc in other processes. */
#include <string.h>
#include <unistd.h>

#include "cuda/vmm/vmm.h"
#include "ipc.h"
#include "processes.h"
#include "shared_objects.h"

_Static_assert(sizeof(struct ipc_handle) <= CU_IPC_HANDLE_SIZE, "what a handle says must fit into it");

void ipc_handle_make(struct ipc_handle *handle, enum sim_shared_kind kind, uint64_t object) {
    memset(handle, 0, sizeof(*handle));
    memcpy(handle->magic, IPC_MAGIC, sizeof(handle->magic));
    handle->kind = (uint32_t)kind;
    handle->pid = (uint32_t)getpid();
    handle->pid_namespace = processes_namespace();
    handle->object = object;
}

bool ipc_handle_read(struct ipc_handle *handle, const void *bytes, enum sim_shared_kind kind) {
    memcpy(handle, bytes, sizeof(*handle));
    return memcmp(handle->magic, IPC_MAGIC, sizeof(handle->magic)) == 0 && handle->kind == (uint32_t)kind;
}

bool ipc_handle_own(const struct ipc_handle *handle) {
    return handle->pid == (uint32_t)getpid() && handle->pid_namespace == processes_namespace();
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr) {
    struct heap_shared shared;
    struct ipc_handle handle;

    REQUIRE(pHandle != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_CONTEXT(context);
    (void)context;
    TRY(heap_share(dptr, &shared));
    ipc_handle_make(&handle, SIM_SHARED_IPC, shared.object);
    handle.offset = shared.offset;
    handle.size = shared.size;
    memset(pHandle, 0, sizeof(*pHandle));
    memcpy(pHandle, &handle, sizeof(handle));
    return CUDA_SUCCESS;
}

/* ---- Opening ---- */

struct search {
    struct CUctx_st *context;
    uint64_t object;
    struct range *found;
};

static void look_at(struct range *range, void *arg) {
    struct search *search = arg;

    if (range->kind == RANGE_IPC && range->extent.context == search->context && range->memory->object == search->object)
        search->found = range;
}

/* Opened once more in the same context, memory is where it was. */
static CUresult open_locked(struct CUctx_st *context, const struct ipc_handle *handle, CUdeviceptr *address) {
    struct search search = {.context = context, .object = handle->object};
    struct vmm_memory *memory;

    ranges_each_locked(look_at, &search);
    if (search.found == NULL) {
        REQUIRE(sim_shared_open(handle->object, SIM_SHARED_IPC) == 0, CUDA_ERROR_INVALID_HANDLE);
        TRY(vmm_adopt_locked(handle->object, &memory));
        TRY(range_new_locked(RANGE_IPC, context, memory, 0, memory->size, &search.found));
    }
    search.found->opens++;
    *address = search.found->base + handle->offset;
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags) {
    struct ipc_handle read;
    CUresult ret;

    REQUIRE(pdptr != NULL && Flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_CONTEXT(context);
    REQUIRE(ipc_handle_read(&read, &handle, SIM_SHARED_IPC), CUDA_ERROR_INVALID_HANDLE);
    /* Not in the process that it is of. */
    REQUIRE(!ipc_handle_own(&read), CUDA_ERROR_INVALID_CONTEXT);
    pthread_mutex_lock(&vmm_mutex);
    ret = open_locked(context, &read, pdptr);
    pthread_mutex_unlock(&vmm_mutex);
    return ret;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags) {
    return cuIpcOpenMemHandle_v2(pdptr, handle, Flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
    struct range *range;
    CUresult ret = CUDA_ERROR_INVALID_VALUE;

    REQUIRE_CONTEXT(context);
    (void)context;
    pthread_mutex_lock(&vmm_mutex);
    range = range_find_locked(dptr);
    if (range != NULL && range->kind == RANGE_IPC) {
        if (--range->opens == 0)
            range_delete_locked(range);
        ret = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&vmm_mutex);
    return ret;
}
