/*
 * Memory of other processes (legacy IPC), dma-bufs, and external memory of other APIs. Its owner is charged for it, by a
 * share that outlives the owner as long as another process has it open, or a descriptor; see region/tags.h. If the owner
 * is not of this claim, the process that opens the memory is charged.
 *
 * Source: cuIpcOpenMemHandle and cuImportExternalMemory in the CUDA driver API's documentation.
 */
#include "context/work.h"
#include "driver/cuda_real.h"
#include "memory/allocations.h"
#include "memory/borrowed.h"
#include "memory/exports.h"
#include "memory/objects.h"
#include "memory/pools.h"
#include "region/tags.h"
#include "state/gpus.h"
#include "system/calls.h"

#include <string.h>

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
    CUresult result = REAL(cuIpcGetMemHandle)(handle, address);
    CUdeviceptr base = address;
    size_t size;
    if (result == CUDA_SUCCESS && REAL(cuMemGetAddressRange_v2)(&base, &size, address) == CUDA_SUCCESS)
        allocations_share(base, tag_of_handle(handle, sizeof *handle));
    return result;
}

/*
 * KIND_IPC_MEMORY has, by a key, the charge, the address as `with`, and a reference for each opening of one handle in one
 * context (borrowed.h). The key is made of the handle and the context, since the driver may reuse the address before all records of
 * what was there are removed. `opened` (process.h) protects the openings.
 *
 * One address may have several keys: memory that its owner has freed is still open here when the owner has allocated
 * other memory in the same block and passed on its handle. Which of them a close of the address removes makes no
 * difference, as long as each is closed as often as it was opened.
 */

struct opening {
    struct process *process;
    struct place place;
    uint64_t key;
    struct charge charge;
    bool known; /* it was open already: a reference holds it; if not, `charge` is its own */
};

static bool count_in(struct opening *opening) {
    struct entry memory;
    return objects_refer(opening->process, KIND_IPC_MEMORY, opening->key, ONE_OPEN, &memory);
}

/* Of memory whose share is not found, the size and the GPU are known only when it is open. */
static CUresult before(struct opening *opening, struct work *work, const CUipcMemHandle *handle) {
    uint64_t tag = tag_of_handle(handle, sizeof *handle);
    CUresult result = contexts_place(work);
    if (result != CUDA_SUCCESS)
        return result;
    opening->process = work->process;
    opening->place = work->place;
    opening->key = objects_key(tag, opening->place.context);
    opening->known = count_in(opening);
    if (!opening->known)
        charge_find(opening->process, tag, &opening->charge);
    return CUDA_SUCCESS;
}

/* The key of memory that is about to be closed. False if none is open at the address. */
static bool closing(struct process *process, uint64_t address, uint64_t *key) {
    struct entry memory;
    if (!process_has(process, KIND_IPC_MEMORY))
        return false;
    lock_take(&process->opened);
    bool found = objects_search(process, KIND_IPC_MEMORY, borrowed_is_open_at, address, &memory);
    if (found)
        objects_refer(process, KIND_IPC_MEMORY, *key = memory.key, ONE_CLOSING - ONE_OPEN, &memory);
    lock_give(&process->opened);
    return found;
}

/* Removes ONE_OPEN or ONE_CLOSING from a memory's references, and ends it with the last. */
static void drop_reference(struct process *process, uint64_t key, int change) {
    struct entry memory;
    if (objects_refer(process, KIND_IPC_MEMORY, key, -change, &memory) && memory.references == 0)
        charge_end(process, &memory.charge);
}

/* Charges memory whose share was not found, on its own GPU, which may be another one than the context's. */
static CUresult pay(struct opening *opening, CUdeviceptr address) {
    struct process *process = opening->process;
    int device = -1, gpu;
    size_t size = 0;
    if (opening->known || opening->charge.share != 0)
        return CUDA_SUCCESS;
    CUresult result = REAL(cuPointerGetAttribute)(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemGetAddressRange_v2)(NULL, &size, address);
    if (result == CUDA_SUCCESS)
        result = gpus_find_claimed(process, device, &gpu);
    return result == CUDA_SUCCESS ? pools_take(process, gpu, pages_of(size), &opening->charge) : result;
}

/* Another thread may have opened the same memory meanwhile: then its record gets one more reference. It gets this address
 * even if it is open: then what was at another one is being closed. False if there is no memory for a record. Under
 * `opened`. */
static bool record(struct opening *opening, CUdeviceptr address) {
    struct process *process = opening->process;
    struct entry known, memory = {.key = opening->key,
                                  .charge = opening->charge,
                                  .with = address,
                                  .context = opening->place.context,
                                  .references = ONE_OPEN};
    bool counted = opening->known || count_in(opening);
    if (counted && !opening->known)
        charge_end(process, &opening->charge);
    if (counted && objects_find(process, KIND_IPC_MEMORY, opening->key, &known))
        objects_replace(process, KIND_IPC_MEMORY, &known, known.charge, address);
    opening->known = counted || objects_put(process, KIND_IPC_MEMORY, memory);
    return opening->known;
}

static CUresult after(struct opening *opening, CUresult result, CUdeviceptr address) {
    bool opened = result == CUDA_SUCCESS;
    if (opened)
        result = pay(opening, address);
    if (result == CUDA_SUCCESS) {
        lock_take(&opening->process->opened);
        result = record(opening, address) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        lock_give(&opening->process->opened);
    }
    if (result == CUDA_SUCCESS)
        return result;
    if (opened)
        UNDO(REAL(cuIpcCloseMemHandle)(address));
    if (opening->known)
        drop_reference(opening->process, opening->key, ONE_OPEN);
    else
        charge_end(opening->process, &opening->charge);
    return result;
}

static CUresult open_handle(cuIpcOpenMemHandle_function real, CUdeviceptr *address, CUipcMemHandle handle,
                            unsigned int flags) {
    struct opening opening = {0};
    if (address == NULL)
        return real(address, handle, flags);
    WORK_IN_CONTEXT;
    CUresult result = before(&opening, &work, &handle);
    if (result != CUDA_SUCCESS)
        return result;
    result = real(address, handle, flags);
    return after(&opening, result, result == CUDA_SUCCESS ? *address : 0);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags) {
    return open_handle(REAL(cuIpcOpenMemHandle), address, handle, flags);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags) {
    return open_handle(REAL(cuIpcOpenMemHandle_v2), address, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    struct process *process = process_if_open();
    struct entry memory;
    uint64_t key = 0;
    bool ours = closing(process, address, &key);
    CUresult result = REAL(cuIpcCloseMemHandle)(address);
    if (ours && result == CUDA_SUCCESS)
        drop_reference(process, key, ONE_CLOSING);
    else if (ours)
        objects_refer(process, KIND_IPC_MEMORY, key, ONE_OPEN - ONE_CLOSING, &memory);
    return result;
}

/* --- dma-bufs ----------------------------------------------------------------------------------------------------- */

/* The driver keeps the memory until the descriptor is closed, even if the program frees it. */
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t size, CUmemRangeHandleType type,
                                       unsigned long long flags) {
    struct process *process = process_if_open();
    struct exports exports;
    if (process == NULL || handle == NULL || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD)
        return REAL(cuMemGetHandleForAddressRange)(handle, address, size, type, flags);
    bool counted = exports_hold(process, address, size, &exports);
    CUresult result = REAL(cuMemGetHandleForAddressRange)(handle, address, size, type, flags);
    bool made = result == CUDA_SUCCESS;
    if (made && !counted)
        result = exports_refused();
    else if (made && !exports_mark(process, address, size, &exports, *(int *)handle))
        result = CUDA_ERROR_INVALID_VALUE;
    if (made && result != CUDA_SUCCESS)
        call_close(*(int *)handle);
    exports_let_go(process, &exports);
    return result;
}

/* --- memory of other APIs ----------------------------------------------------------------------------------------- */

CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *from) {
    struct charge charge = {0};
    WORK_IN_CONTEXT;
    CUresult result = contexts_place(&work);
    if (result != CUDA_SUCCESS)
        return result;
    if (memory == NULL || from == NULL)
        return REAL(cuImportExternalMemory)(memory, from);
    /* The driver takes ownership of the descriptor, so the tag is read before. */
    if (from->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD)
        result = charge_find_exported(work.process, from->handle.fd, &charge);
    if (result == CUDA_SUCCESS && charge.share == 0)
        result = pools_take(work.process, work.place.gpu, pages_of(from->size), &charge);
    if (result != CUDA_SUCCESS)
        return result;
    reentrant_take(&work.process->borrowing);
    result = REAL(cuImportExternalMemory)(memory, from);
    if (result == CUDA_SUCCESS)
        borrowed_imported(work.process, *memory, charge, work.place.context);
    reentrant_give(&work.process->borrowing);
    if (result != CUDA_SUCCESS)
        charge_end(work.process, &charge);
    return result;
}

/* A buffer or array on external memory, made by `call`, which stores it in `made`. */
#define MAP(memory, made, call)                                                                                        \
    do {                                                                                                               \
        struct process *process = process_if_open();                                                                   \
        struct entry mapped;                                                                                           \
        if (process == NULL || (made) == NULL)                                                                         \
            return call;                                                                                               \
        WORK_IN_CONTEXT;                                                                                               \
        reentrant_take(&process->borrowing);                                                                           \
        bool ours = borrowed_mapping(process, memory, work.place.context, &mapped);                                    \
        CUresult result = call;                                                                                        \
        if (ours)                                                                                                      \
            borrowed_mapped(process, &mapped, result, result == CUDA_SUCCESS ? (uintptr_t) * (made) : 0);              \
        reentrant_give(&process->borrowing);                                                                           \
        return result;                                                                                                 \
    } while (0)

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *address, CUexternalMemory memory,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *wanted) {
    MAP(memory, address, REAL(cuExternalMemoryGetMappedBuffer)(address, memory, wanted));
}

CUresult cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *array, CUexternalMemory memory,
                                                 const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *wanted) {
    MAP(memory, array, REAL(cuExternalMemoryGetMappedMipmappedArray)(array, memory, wanted));
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
    struct process *process = process_if_open();
    if (process == NULL)
        return REAL(cuDestroyExternalMemory)(memory);
    reentrant_take(&process->borrowing);
    CUresult result = REAL(cuDestroyExternalMemory)(memory);
    if (result == CUDA_SUCCESS)
        borrowed_destroyed(process, memory);
    reentrant_give(&process->borrowing);
    return result;
}
