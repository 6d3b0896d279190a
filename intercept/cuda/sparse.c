/* cuMemMapArrayAsync: memory that is mapped into sparse arrays, and into arrays with deferred mapping; see
 * memory/physical.h. */
#include "driver/cuda_real.h"
#include "memory/objects.h"
#include "memory/physical.h"
#include "memory/pools.h"

#define MIPTAIL 1
#define TEXEL_BYTES_MAX 16u

static bool is_mapping(const CUarrayMapInfo *map) {
    return map->memOperationType == CU_MEM_OPERATION_TYPE_MAP;
}

static uint64_t key_of(const uint64_t *numbers, size_t count) {
    uint64_t key = 0;
    for (size_t i = 0; i < count; i++)
        key = objects_key(key, numbers[i]);
    return key;
}

/*
 * A key of the part of an array that a mapping names: a box of a level and layer, or a piece of a layer's miptail. What
 * is mapped there is recorded by it, until the same part is mapped again or unmapped. If a call names another part that
 * overlaps it, this record stays until the array is destroyed, although some or all of it shows other memory by then.
 */
static uint64_t part_of(const CUarrayMapInfo *map) {
    if (map->subresourceType == MIPTAIL) {
        const uint64_t piece[] = {MIPTAIL, map->subresource.miptail.layer, map->subresource.miptail.offset,
                                  map->subresource.miptail.size};
        return key_of(piece, sizeof piece / sizeof piece[0]);
    }
    const uint64_t box[] = {map->subresource.sparseLevel.level,        map->subresource.sparseLevel.layer,
                            map->subresource.sparseLevel.offsetX,      map->subresource.sparseLevel.offsetY,
                            map->subresource.sparseLevel.offsetZ,      map->subresource.sparseLevel.extentWidth,
                            map->subresource.sparseLevel.extentHeight, map->subresource.sparseLevel.extentDepth};
    return key_of(box, sizeof box / sizeof box[0]);
}

/* The most bytes that a mapping takes, for any format of array. */
static uint64_t bytes_up_to(const CUarrayMapInfo *map) {
    if (map->subresourceType == MIPTAIL)
        return map->subresource.miptail.size;
    uint64_t area = product(map->subresource.sparseLevel.extentWidth, map->subresource.sparseLevel.extentHeight);
    return product(product(area, map->subresource.sparseLevel.extentDepth), TEXEL_BYTES_MAX);
}

static CUresult hold_all(struct process *process, const CUarrayMapInfo *list, unsigned int *count) {
    uint64_t number;
    CUresult result = CUDA_SUCCESS;
    unsigned int all = *count;
    for (*count = 0; *count < all && result == CUDA_SUCCESS; *count += result == CUDA_SUCCESS)
        if (is_mapping(&list[*count]))
            result = physical_hold_to_use(process, list[*count].memHandle.memHandle,
                                          list[*count].offset + bytes_up_to(&list[*count]), &number);
    return result;
}

/* The memory is held, so its handle still has the same number. */
static void let_go_of_all(struct process *process, const CUarrayMapInfo *list, unsigned int count) {
    for (unsigned i = 0; i < count; i++)
        if (is_mapping(&list[i]))
            physical_drop(process, physical_number(process, list[i].memHandle.memHandle));
}

static void unbind(struct process *process, const CUarrayMapInfo *map, struct releases *releases) {
    physical_unbind(process, KIND_ARRAY_MAPPING, (uintptr_t)map->resource.array, part_of(map), releases);
}

/* In order, since one list may map a part and unmap it again. */
static void bound_to_arrays(struct process *process, const CUarrayMapInfo *list, unsigned int count,
                            struct releases *releases) {
    for (unsigned i = 0; i < count; i++) {
        unbind(process, &list[i], releases);
        uint64_t number = is_mapping(&list[i]) ? physical_number(process, list[i].memHandle.memHandle) : 0;
        if (physical_hold(process, number))
            physical_bound(process, KIND_ARRAY_MAPPING, (uintptr_t)list[i].resource.array, part_of(&list[i]), number);
    }
}

/* The driver looks at the stream before it reads the list, which a program whose stream is bad need not have filled in.
 *
 * The driver releases what a part was mapped to before when the stream reaches the call. So this waits for the stream
 * before the references are removed. */
static CUresult map_arrays(cuMemMapArrayAsync_function real, cuStreamSynchronize_function synchronize,
                           CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    struct process *process = process_if_open();
    struct releases releases = {0};
    unsigned int held = count;
    CUcontext context;
    if (process == NULL || list == NULL)
        return real(list, count, stream);
    CUresult result = REAL(cuStreamGetCtx)(stream, &context);
    if (result != CUDA_SUCCESS)
        return result;
    gate_close(&process->unmapping); /* see cuda/vmm.c */
    result = hold_all(process, list, &held);
    for (unsigned i = 0; result == CUDA_SUCCESS && i < count; i++)
        unbind(process, &list[i], &releases);
    if (result == CUDA_SUCCESS)
        result = real(list, count, stream);
    if (result == CUDA_SUCCESS)
        bound_to_arrays(process, list, count, &releases);
    let_go_of_all(process, list, held);
    gate_open(&process->unmapping);
    bool waits = result == CUDA_SUCCESS && releases.count != 0;
    if (waits)
        synchronize(stream);
    physical_released(process, &releases, result);
    if (waits)
        pools_settle(process);
    return result;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    return map_arrays(REAL(cuMemMapArrayAsync), REAL(cuStreamSynchronize), list, count, stream);
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    return map_arrays(REAL(cuMemMapArrayAsync_ptsz), REAL(cuStreamSynchronize_ptsz), list, count, stream);
}
