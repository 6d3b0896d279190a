/* cuMemMapArrayAsync: memory that is mapped into sparse arrays, and into arrays with deferred mapping; see
 * memory/physical.h. */
#include "driver/cuda_real.h"
#include "memory/objects.h"
#include "memory/physical.h"
#include "memory/pools.h"

#define MIPTAIL 1
#define TEXEL_BYTES_MAX 16u

/* Bytes of a tile, and of a part of a miptail. Source: CUarrayMapInfo in the CUDA driver API's documentation. */
#define TILE_BYTES (UINT64_C(64) << 10)

/* More parts than any array has. A description of more is invalid, and the driver refuses it. */
#define PARTS_MAX (UINT64_C(1) << 20)

/* The parts of an array that a mapping covers: tiles of a level and layer, by x, y and z, or parts of a layer's
 * miptail, by x. Each part is recorded by itself, since a later call may map or unmap another box of them. */
struct parts {
    uint64_t layer; /* key of the level and layer, or of the layer's miptail */
    struct {
        uint64_t from, to;
    } x, y, z;
};

static bool is_mapping(const CUarrayMapInfo *map) {
    return map->memOperationType == CU_MEM_OPERATION_TYPE_MAP;
}

static struct parts miptail_of(const CUarrayMapInfo *map) {
    uint64_t offset = map->subresource.miptail.offset, size = map->subresource.miptail.size;
    struct parts parts = {.layer = objects_key(map->subresource.miptail.layer, 0) ^ MIPTAIL, .y.to = 1, .z.to = 1};
    parts.x.from = offset / TILE_BYTES;
    parts.x.to = parts.x.from + (size + TILE_BYTES - 1) / TILE_BYTES;
    return parts;
}

/* From 0 to 1 for an array without tiles, which is mapped as a whole. */
static uint64_t tile_of(uint64_t texels, unsigned int tile) {
    return tile != 0 ? texels / tile : 0;
}

static uint64_t tiles_end(uint64_t from, uint64_t offset, uint64_t extent, unsigned int tile) {
    uint64_t end = tile != 0 ? (offset + extent + tile - 1) / tile : 0;
    return end > from ? end : from + 1;
}

static struct parts tiles_of(const CUarrayMapInfo *map) {
    CUDA_ARRAY_SPARSE_PROPERTIES sparse = {0};
    CUresult result = map->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
                          ? REAL(cuMipmappedArrayGetSparseProperties)(&sparse, map->resource.mipmap)
                          : REAL(cuArrayGetSparseProperties)(&sparse, map->resource.array);
    if (result != CUDA_SUCCESS)
        sparse = (CUDA_ARRAY_SPARSE_PROPERTIES){0};
    uint64_t x = map->subresource.sparseLevel.offsetX, y = map->subresource.sparseLevel.offsetY;
    uint64_t z = map->subresource.sparseLevel.offsetZ;
    struct parts parts = {
        .layer = objects_key(map->subresource.sparseLevel.level, map->subresource.sparseLevel.layer),
        .x.from = tile_of(x, sparse.tileExtent.width),
        .y.from = tile_of(y, sparse.tileExtent.height),
        .z.from = tile_of(z, sparse.tileExtent.depth),
    };
    parts.x.to = tiles_end(parts.x.from, x, map->subresource.sparseLevel.extentWidth, sparse.tileExtent.width);
    parts.y.to = tiles_end(parts.y.from, y, map->subresource.sparseLevel.extentHeight, sparse.tileExtent.height);
    parts.z.to = tiles_end(parts.z.from, z, map->subresource.sparseLevel.extentDepth, sparse.tileExtent.depth);
    return parts;
}

static struct parts parts_of(const CUarrayMapInfo *map) {
    struct parts parts = map->subresourceType == MIPTAIL ? miptail_of(map) : tiles_of(map);
    uint64_t area = product(parts.x.to - parts.x.from, parts.y.to - parts.y.from);
    if (product(area, parts.z.to - parts.z.from) > PARTS_MAX)
        parts.z.to = parts.z.from;
    return parts;
}

#define EACH_PART(parts, key)                                                                                          \
    for (uint64_t z = (parts).z.from, key; z < (parts).z.to; z++)                                                      \
        for (uint64_t y = (parts).y.from; y < (parts).y.to; y++)                                                       \
            for (uint64_t x = (parts).x.from; x < (parts).x.to && (key = part_key(&(parts), x, y, z)) != 0; x++)

static uint64_t part_key(const struct parts *parts, uint64_t x, uint64_t y, uint64_t z) {
    return objects_key(objects_key(objects_key(parts->layer, x), y), z);
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

static void unbind(struct process *process, const CUarrayMapInfo *map, const struct parts *parts,
                   struct releases *releases) {
    EACH_PART(*parts, key)
    physical_unbind(process, KIND_ARRAY_MAPPING, (uintptr_t)map->resource.array, key, releases);
}

static void unbind_all(struct process *process, const CUarrayMapInfo *list, unsigned int count,
                       struct releases *releases) {
    for (unsigned i = 0; i < count; i++) {
        struct parts parts = parts_of(&list[i]);
        unbind(process, &list[i], &parts, releases);
    }
}

static void bind(struct process *process, const CUarrayMapInfo *map, const struct parts *parts) {
    uint64_t number = physical_number(process, map->memHandle.memHandle);
    EACH_PART(*parts, key)
    if (physical_hold(process, number))
        physical_bound(process, KIND_ARRAY_MAPPING, (uintptr_t)map->resource.array, key, number);
}

/* In order, since one list may map a part and unmap it again. */
static void bound_to_arrays(struct process *process, const CUarrayMapInfo *list, unsigned int count,
                            struct releases *releases) {
    for (unsigned i = 0; i < count; i++) {
        struct parts parts = parts_of(&list[i]);
        unbind(process, &list[i], &parts, releases);
        if (is_mapping(&list[i]))
            bind(process, &list[i], &parts);
    }
}

/* The driver looks at the stream before it reads the list, which a program whose stream is bad need not have filled in.
 *
 * The driver releases what a part was mapped to before when the stream reaches the call. So this waits for the stream
 * before the references are removed. */
#define MAP_ARRAYS(list, count, stream, call, synchronize)                                                             \
    do {                                                                                                               \
        struct process *process = process_if_open();                                                                   \
        struct releases releases = {0};                                                                                \
        unsigned int holds = count;                                                                                    \
        CUcontext context;                                                                                             \
        if (process == NULL || (list) == NULL)                                                                         \
            return call;                                                                                               \
        CUresult result = REAL(cuStreamGetCtx)(stream, &context);                                                      \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        result = hold_all(process, list, &holds);                                                                      \
        if (result == CUDA_SUCCESS)                                                                                    \
            unbind_all(process, list, count, &releases);                                                               \
        if (result == CUDA_SUCCESS)                                                                                    \
            result = call;                                                                                             \
        if (result == CUDA_SUCCESS)                                                                                    \
            bound_to_arrays(process, list, count, &releases);                                                          \
        let_go_of_all(process, list, holds);                                                                           \
        bool waited = result == CUDA_SUCCESS && releases.count != 0;                                                   \
        if (waited)                                                                                                    \
            synchronize(stream);                                                                                       \
        physical_released(process, &releases, result);                                                                 \
        if (waited)                                                                                                    \
            pools_settle(process);                                                                                     \
        return result;                                                                                                 \
    } while (0)

CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    MAP_ARRAYS(list, count, stream, REAL(cuMemMapArrayAsync)(list, count, stream), REAL(cuStreamSynchronize));
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    MAP_ARRAYS(list, count, stream, REAL(cuMemMapArrayAsync_ptsz)(list, count, stream), REAL(cuStreamSynchronize_ptsz));
}
