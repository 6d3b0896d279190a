/*
 * Arrays and mipmapped arrays. Only the driver knows their size. So an array like the wanted one is created without
 * memory (deferred mapping, CUDA 11.6), and the driver is queried for the memory that it needs. For older drivers, the
 * size is estimated from above.
 *
 * Source: cuArrayGetMemoryRequirements and CUDA_ARRAY3D_DEFERRED_MAPPING in the CUDA driver API's documentation.
 */
#include "context/work.h"
#include "driver/cuda_real.h"
#include "memory/borrowed.h"
#include "memory/objects.h"
#include "memory/physical.h"
#include "memory/pools.h"
#include "state/contexts.h"

#define UNBACKED (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)
#define TEXEL_BYTES_MAX 16u
#define ROW_ALIGNMENT 512u

/* An upper bound: each dimension padded, the largest texels; twice that for the smaller levels of a mipmapped array. */
static uint64_t guess(const CUDA_ARRAY3D_DESCRIPTOR *array, bool mipmapped) {
    uint64_t row = product(array->Width, TEXEL_BYTES_MAX) + ROW_ALIGNMENT;
    uint64_t rows = product(array->Height ? array->Height + 16 : 1, array->Depth ? array->Depth : 1);
    return product(product(row, rows), mipmapped ? 2 : 1);
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *wanted, CUdevice device) {
    CUDA_ARRAY3D_DESCRIPTOR like = *wanted;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};
    CUarray array;
    like.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (REAL(cuArray3DCreate_v2)(&array, &like) != CUDA_SUCCESS)
        return guess(wanted, false);
    CUresult result = REAL(cuArrayGetMemoryRequirements)(&needs, array, device);
    UNDO(REAL(cuArrayDestroy)(array));
    return result == CUDA_SUCCESS ? needs.size : guess(wanted, false);
}

static uint64_t mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned int levels, CUdevice device) {
    CUDA_ARRAY3D_DESCRIPTOR like = *wanted;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};
    CUmipmappedArray array;
    like.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (REAL(cuMipmappedArrayCreate)(&array, &like, levels) != CUDA_SUCCESS)
        return guess(wanted, true);
    CUresult result = REAL(cuMipmappedArrayGetMemoryRequirements)(&needs, array, device);
    UNDO(REAL(cuMipmappedArrayDestroy)(array));
    return result == CUDA_SUCCESS ? needs.size : guess(wanted, true);
}

/* Takes an array's size; nothing if it has no memory of its own. */
static CUresult before(struct work *work, struct charge *charge, const CUDA_ARRAY3D_DESCRIPTOR *wanted,
                       unsigned int levels) {
    CUdevice device;
    CUresult result = contexts_place(work);
    if (result != CUDA_SUCCESS || (wanted->Flags & UNBACKED))
        return result;
    result = REAL(cuCtxGetDevice)(&device);
    if (result != CUDA_SUCCESS)
        return result;
    gate_enter(&work->process->making);
    uint64_t bytes = levels != 0 ? mipmap_bytes(wanted, levels, device) : array_bytes(wanted, device);
    gate_leave(&work->process->making);
    return pools_take(work->process, work->place.gpu, pages_of(bytes), charge);
}

static CUresult after(const struct work *work, struct charge charge, enum kind kind, CUresult result, uint64_t handle) {
    /* Without memory for the record, it stays charged until this process ends. */
    if (result == CUDA_SUCCESS)
        objects_put(work->process, kind,
                    (struct entry){.key = handle, .charge = charge, .context = work->place.context});
    else
        charge_give(work->process, &charge);
    return result;
}

/* Creates an array by `call`, which stores it in `array`. */
#define CREATE(kind, array, wanted, levels, call)                                                                      \
    do {                                                                                                               \
        struct charge charge = {0};                                                                                    \
        WORK_IN_CONTEXT;                                                                                               \
        CUresult result = before(&work, &charge, wanted, levels);                                                      \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        gate_enter(&work.process->making);                                                                             \
        result = call;                                                                                                 \
        result = after(&work, charge, kind, result, result == CUDA_SUCCESS ? (uintptr_t) * (array) : 0);               \
        gate_leave(&work.process->making);                                                                             \
        return result;                                                                                                 \
    } while (0)

/* The driver answers to invalid arguments. */
CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *wanted) {
    if (array == NULL || wanted == NULL)
        return REAL(cuArrayCreate_v2)(array, wanted);
    CUDA_ARRAY3D_DESCRIPTOR full = {
        .Width = wanted->Width, .Height = wanted->Height, .Format = wanted->Format, .NumChannels = wanted->NumChannels};
    CREATE(KIND_ARRAY, array, &full, 0, REAL(cuArrayCreate_v2)(array, wanted));
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted) {
    if (array == NULL || wanted == NULL)
        return REAL(cuArray3DCreate_v2)(array, wanted);
    CREATE(KIND_ARRAY, array, wanted, 0, REAL(cuArray3DCreate_v2)(array, wanted));
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned int levels) {
    if (array == NULL || wanted == NULL || levels == 0)
        return REAL(cuMipmappedArrayCreate)(array, wanted, levels);
    CREATE(KIND_MIPMAP, array, wanted, levels, REAL(cuMipmappedArrayCreate)(array, wanted, levels));
}

/* Destroys an array by `call`. No array is made or destroyed meanwhile, which could get the handle or had it. */
#define DESTROY(kind, handle, call)                                                                                    \
    do {                                                                                                               \
        struct process *process = process_if_open();                                                                   \
        struct releases releases = {0};                                                                                \
        struct entry entry;                                                                                            \
        if (process == NULL)                                                                                           \
            return call;                                                                                               \
        gate_close(&process->making);                                                                                  \
        if (process_has(process, KIND_ARRAY_MAPPING))                                                                  \
            physical_unbind_all(process, KIND_ARRAY_MAPPING, handle, &releases);                                       \
        bool ours = objects_remove(process, kind, handle, &entry);                                                     \
        bool borrowed = !ours && borrowed_freeing(process, handle, &entry);                                            \
        CUresult result = call;                                                                                        \
        if (borrowed)                                                                                                  \
            borrowed_freed(process, &entry, result);                                                                   \
        else if (ours && result != CUDA_SUCCESS)                                                                       \
            objects_put_back(process, kind, entry);                                                                    \
        else if (ours)                                                                                                 \
            charge_end(process, &entry.charge);                                                                        \
        physical_released(process, &releases, result);                                                                 \
        gate_open(&process->making);                                                                                   \
        return result;                                                                                                 \
    } while (0)

CUresult cuArrayDestroy(CUarray array) {
    DESTROY(KIND_ARRAY, (uintptr_t)array, REAL(cuArrayDestroy)(array));
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    DESTROY(KIND_MIPMAP, (uintptr_t)array, REAL(cuMipmappedArrayDestroy)(array));
}
