/*
 * Memory of other processes (legacy IPC), and external memory of other APIs. Its owner is charged for it, by a share
 * that outlives the owner as long as another process has it open; see memory/tags.h. If the owner is not of this claim,
 * the process that opens the memory is charged.
 *
 * Source: cuIpcOpenMemHandle and cuImportExternalMemory in the CUDA driver API's documentation.
 */
#include "context/work.h"
#include "driver/cuda_real.h"
#include "memory/allocations.h"
#include "memory/borrowed.h"
#include "memory/objects.h"
#include "memory/pools.h"
#include "memory/tags.h"

#include <string.h>

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
    CUresult result = REAL(cuIpcGetMemHandle)(handle, address);
    CUdeviceptr base = address;
    uint8_t tag[TAG_SIZE];
    size_t size;
    if (result == CUDA_SUCCESS && REAL(cuMemGetAddressRange_v2)(&base, &size, address) == CUDA_SUCCESS) {
        tag_of_handle(handle, tag);
        allocations_share(base, tag);
    }
    return result;
}

/*
 * KIND_IPC_MEMORY has, by a key, the charge, the address as `with`, and a reference for each opening of one handle in one
 * context. The key is made of the handle and the context, since the driver may reuse the address before all records of
 * what was there are removed. `opened` (process.h) protects the openings.
 *
 * One address may have several keys: memory that its owner has freed is still open here when the owner has allocated
 * other memory in the same block and passed on its handle. Which of them a close of the address removes makes no
 * difference, as long as each is closed as often as it was opened.
 */
#define ONE_OPEN 1
#define ONE_CLOSING (1 << 22) /* above that in `references` */

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

/* The size of memory whose share is not found is known only when it is open; it is at least one block. */
static CUresult before(struct opening *opening, struct work *work, const CUipcMemHandle *handle) {
    uint64_t halves[2];
    uint8_t tag[TAG_SIZE];
    CUresult result = contexts_place(work);
    if (result != CUDA_SUCCESS)
        return result;
    opening->process = work->process;
    opening->place = work->place;
    tag_of_handle(handle, tag);
    memcpy(halves, tag, TAG_SIZE);
    opening->key = objects_key(objects_key(halves[0], halves[1]), opening->place.context);
    opening->known = count_in(opening);
    if (opening->known || charge_join(opening->process, tag, &opening->charge))
        return CUDA_SUCCESS;
    return pools_take(opening->process, opening->place.gpu, BLOCK_PAGES, &opening->charge);
}

static bool is_open_at(const struct entry *memory, uint64_t address) {
    return memory->with == address && memory->references % ONE_CLOSING != 0;
}

/* The key of memory that is about to be closed. False if none is open at the address. */
static bool closing(struct process *process, uint64_t address, uint64_t *key) {
    struct entry memory;
    if (!process_has(process, KIND_IPC_MEMORY))
        return false;
    lock_take(&process->opened);
    bool found = objects_search(process, KIND_IPC_MEMORY, is_open_at, address, &memory);
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

/* The size is known now: takes what is missing. */
static CUresult pay(struct opening *opening, CUdeviceptr address) {
    struct process *process = opening->process;
    struct charge more;
    size_t size = 0;
    if (opening->known || opening->charge.share != 0)
        return CUDA_SUCCESS;
    REAL(cuMemGetAddressRange_v2)(NULL, &size, address);
    uint64_t pages = pages_of(size);
    if (pages == opening->charge.pages)
        return CUDA_SUCCESS;
    if (pools_extend(process, &opening->charge, opening->place.gpu, pages - opening->charge.pages) == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    CUresult result =
        pools_take(process, opening->place.gpu, pages, &more); /* the first region is full: perhaps in another one */
    if (result == CUDA_SUCCESS) {
        charge_give(process, &opening->charge);
        opening->charge = more;
    }
    return result;
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
        REAL(cuIpcCloseMemHandle)(address);
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

/* --- memory of other APIs ----------------------------------------------------------------------------------------- */

CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *from) {
    struct charge charge = {0};
    uint8_t tag[TAG_SIZE];
    WORK_IN_CONTEXT;
    CUresult result = contexts_place(&work);
    if (result != CUDA_SUCCESS)
        return result;
    if (memory == NULL || from == NULL)
        return REAL(cuImportExternalMemory)(memory, from);
    /* The driver takes ownership of the descriptor, so the tag is read before. */
    if (from->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD && tag_read(from->handle.fd, tag))
        charge_join(work.process, tag, &charge);
    if (charge.share == 0) {
        result = pools_take(work.process, work.place.gpu, pages_of(from->size), &charge);
        if (result != CUDA_SUCCESS)
            return result;
    }
    gate_close(&work.process->borrowing);
    result = REAL(cuImportExternalMemory)(memory, from);
    if (result == CUDA_SUCCESS)
        borrowed_imported(work.process, *memory, charge, work.place.context);
    gate_open(&work.process->borrowing);
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
        gate_enter(&process->borrowing);                                                                               \
        bool ours = borrowed_mapping(process, memory, &mapped);                                                        \
        CUresult result = call;                                                                                        \
        if (ours)                                                                                                      \
            borrowed_mapped(process, &mapped, result, result == CUDA_SUCCESS ? (uintptr_t) * (made) : 0);              \
        gate_leave(&process->borrowing);                                                                               \
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
    gate_close(&process->borrowing);
    CUresult result = REAL(cuDestroyExternalMemory)(memory);
    if (result == CUDA_SUCCESS)
        borrowed_destroyed(process, memory);
    gate_open(&process->borrowing);
    return result;
}
