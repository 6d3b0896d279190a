/* Memory of other processes: whoever made it pays for it, and whoever holds it after that one's death; see tags.h. Memory whose
 * maker is not of this claim is paid by whoever opens it. */
#include "allocations.h"
#include "borrowed.h"
#include "cuda_real.h"
#include "objects.h"
#include "tags.h"

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

struct opening {
    struct process *process;
    struct place place;
    struct charge charge;
    bool joined;
};

static CUresult before(struct opening *opening, const CUipcMemHandle *handle) {
    uint8_t tag[TAG_SIZE];
    CUresult result = contexts_current(&opening->process, &opening->place);
    if (result != CUDA_SUCCESS)
        return result;
    tag_of_handle(handle, tag);
    opening->joined = charge_join(opening->process, tag, &opening->charge);
    return result;
}

/* Written down with a count, since a handle that is opened again leads to the same address. */
static CUresult after(struct opening *opening, CUresult result, CUdeviceptr address) {
    CUdeviceptr base;
    size_t size = 0;
    struct entry known;
    if (result == CUDA_SUCCESS && objects_refer(opening->process, KIND_IPC, address, 1, &known)) {
        if (opening->joined)
            charge_end(opening->process, &opening->charge);
        return result;
    }
    if (result == CUDA_SUCCESS && !opening->joined) {
        REAL(cuMemGetAddressRange_v2)(&base, &size, address);
        result = charge_take(opening->process, opening->place.gpu, pages_of(size), &opening->charge);
        if (result != CUDA_SUCCESS)
            REAL(cuIpcCloseMemHandle)(address);
    } else if (result != CUDA_SUCCESS && opening->joined) {
        charge_end(opening->process, &opening->charge);
    }
    if (result == CUDA_SUCCESS)
        objects_put(opening->process, KIND_IPC,
                    (struct entry){
                        .key = address, .charge = opening->charge, .references = 1, .context = opening->place.context});
    return result;
}

#define OPEN(address, handle, call)                                                                                    \
    do {                                                                                                               \
        struct opening opening = {0};                                                                                  \
        CUresult result = before(&opening, &(handle));                                                                 \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        result = call;                                                                                                 \
        return after(&opening, result, result == CUDA_SUCCESS ? *(address) : 0);                                       \
    } while (0)

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags) {
    OPEN(address, handle, REAL(cuIpcOpenMemHandle)(address, handle, flags));
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags) {
    OPEN(address, handle, REAL(cuIpcOpenMemHandle_v2)(address, handle, flags));
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    struct process *process = process_if_open();
    struct entry opened;
    bool ours = process != NULL && objects_refer(process, KIND_IPC, address, -1, &opened);
    CUresult result = REAL(cuIpcCloseMemHandle)(address);
    if (!ours)
        return result;
    if (result == CUDA_SUCCESS && opened.references == 0) {
        charge_end(process, &opened.charge);
    } else if (result != CUDA_SUCCESS && opened.references == 0) {
        opened.references = 1;
        objects_put(process, KIND_IPC, opened);
    } else if (result != CUDA_SUCCESS) {
        objects_refer(process, KIND_IPC, address, 1, &opened);
    }
    return result;
}

/* --- memory of other APIs -------------------------------------------------------------------------------------------- */

CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *from) {
    struct process *process;
    struct place place;
    struct charge charge = {0};
    uint8_t tag[TAG_SIZE];
    CUresult result = contexts_current(&process, &place);
    if (result != CUDA_SUCCESS)
        return result;
    if (memory == NULL || from == NULL)
        return REAL(cuImportExternalMemory)(memory, from);
    /* The driver takes the descriptor over, so it is looked at before. */
    if (from->type == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD && tag_read(from->handle.fd, tag))
        charge_join(process, tag, &charge);
    if (charge.share == 0) {
        result = charge_take(process, place.gpu, pages_of(from->size), &charge);
        if (result != CUDA_SUCCESS)
            return result;
    }
    result = REAL(cuImportExternalMemory)(memory, from);
    if (result == CUDA_SUCCESS)
        borrowed_imported(process, *memory, charge, place.context);
    else
        charge_end(process, &charge);
    return result;
}

/* A buffer or array made by `call` on external memory, which stores it in `made`. */
#define MAP(memory, made, call)                                                                                        \
    do {                                                                                                               \
        struct process *process = process_if_open();                                                                   \
        struct entry mapped;                                                                                           \
        bool ours = (made) != NULL && borrowed_mapping(process, memory, &mapped);                                      \
        CUresult result = call;                                                                                        \
        if (ours)                                                                                                      \
            borrowed_mapped(process, &mapped, result, result == CUDA_SUCCESS ? (uintptr_t) * (made) : 0);              \
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
    struct entry handle;
    bool ours = borrowed_destroying(process, memory, &handle);
    CUresult result = REAL(cuDestroyExternalMemory)(memory);
    if (ours)
        borrowed_destroyed(process, &handle, result);
    return result;
}
