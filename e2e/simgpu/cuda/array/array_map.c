/*
 * Arrays that come without memory: sparse ones, of which a program maps tile after tile, and those whose mapping is
 * deferred, which it maps whole. The memory is a handle's (cuMemCreate), and stays while it is mapped.
 */
#include <stdlib.h>

#include "array.h"
#include "cuda/memory/heap.h"
#include "cuda/vmm/vmm.h"
#include "cuda/work/stream.h"

#define TILE ((uint64_t)64 << 10)

/* What is behind each tile, NULL: nothing. Of an array whose mapping is deferred, all of it is one tile. */
struct array_mapping {
    uint64_t count;
    struct vmm_memory *tiles[];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* around all mappings */

void array_unmap_all(struct array_mapping **mapping) {
    pthread_mutex_lock(&mutex);
    for (uint64_t i = 0; *mapping != NULL && i < (*mapping)->count; i++) {
        if ((*mapping)->tiles[i] != NULL)
            vmm_drop((*mapping)->tiles[i]);
    }
    free(*mapping);
    *mapping = NULL;
    pthread_mutex_unlock(&mutex);
}

/* ---- Tiles ---- */

struct extent3 {
    uint64_t width, height, depth;
};

/* The texels of a tile: as near to a square, or a cube, as can be. */
static struct extent3 tile_of(const CUDA_ARRAY3D_DESCRIPTOR *d) {
    const struct array_format *format = array_format(d->Format);
    bool deep = d->Depth != 0 && (d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) == 0;
    struct extent3 tile = {1, 1, 1};
    unsigned turn = 0;

    for (uint64_t bytes = array_format_bytes(format, d->NumChannels); bytes < TILE; bytes *= 2, turn++) {
        if (turn % (deep ? 3 : 2) == 0)
            tile.width *= 2;
        else if (turn % (deep ? 3 : 2) == 1)
            tile.height *= 2;
        else
            tile.depth *= 2;
    }
    tile.width *= format->block_width;
    tile.height *= format->block_height;
    return tile;
}

static bool below_tile(const CUDA_ARRAY3D_DESCRIPTOR *d, struct extent3 tile) {
    return d->Width < tile.width || d->Height < tile.height || (tile.depth > 1 && d->Depth < tile.depth);
}

static CUDA_ARRAY_SPARSE_PROPERTIES properties_of(struct extent3 tile) {
    return (CUDA_ARRAY_SPARSE_PROPERTIES){
        .tileExtent = {(unsigned)tile.width, (unsigned)tile.height, (unsigned)tile.depth}};
}

/* An array that is smaller than a tile is all tail. */
CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *sparseProperties, CUarray array) {
    struct extent3 tile;

    REQUIRE_INITIALISED();
    REQUIRE(array_valid(array), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(sparseProperties != NULL && (array->descriptor.Flags & CUDA_ARRAY3D_SPARSE) != 0 && array->of == NULL,
            CUDA_ERROR_INVALID_VALUE);
    tile = tile_of(&array->descriptor);
    *sparseProperties = properties_of(tile);
    if (below_tile(&array->descriptor, tile)) {
        sparseProperties->flags = CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL;
        sparseProperties->miptailSize = round_up(array->size, TILE);
    }
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *sparseProperties, CUmipmappedArray mipmap) {
    uint64_t tail = 0, layers = 1;
    struct extent3 tile;
    unsigned first;

    REQUIRE_INITIALISED();
    REQUIRE(mipmap_valid(mipmap), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(sparseProperties != NULL && (mipmap->levels[0]->descriptor.Flags & CUDA_ARRAY3D_SPARSE) != 0,
            CUDA_ERROR_INVALID_VALUE);
    tile = tile_of(&mipmap->levels[0]->descriptor);
    *sparseProperties = properties_of(tile);
    for (first = 0; first < mipmap->level_count; first++) {
        if (below_tile(&mipmap->levels[first]->descriptor, tile))
            break;
    }
    if (mipmap->levels[0]->descriptor.Flags & CUDA_ARRAY3D_LAYERED)
        layers = mipmap->levels[0]->layers;
    for (unsigned i = first; i < mipmap->level_count; i++)
        tail += mipmap->levels[i]->size / layers;
    sparseProperties->miptailFirstLevel = first;
    sparseProperties->miptailSize = round_up(tail, TILE);
    return CUDA_SUCCESS;
}

/* ---- Mapping ---- */

/* An array or a mipmapped array; an array is like one with a single level. */
struct resource {
    CUarray array;
    CUmipmappedArray mipmap;
    const CUDA_ARRAY3D_DESCRIPTOR *descriptor;
    struct array_mapping **mapping;
    struct extent3 tile;
    uint64_t size, layers, tail_tiles, first_tail_level;
    unsigned level_count;
};

static CUresult find_resource(const CUarrayMapInfo *info, struct resource *r) {
    CUDA_ARRAY_SPARSE_PROPERTIES properties = {0};

    *r = (struct resource){.level_count = 1, .layers = 1};
    if (info->resourceType == CU_RESOURCE_TYPE_ARRAY) {
        r->array = info->resource.array;
        REQUIRE(array_valid(r->array), CUDA_ERROR_INVALID_HANDLE);
        REQUIRE(r->array->of == NULL && r->array->plane_of == NULL, CUDA_ERROR_INVALID_VALUE);
        r->mapping = &r->array->mappings;
        r->size = r->array->size;
    } else {
        REQUIRE(info->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY, CUDA_ERROR_INVALID_VALUE);
        r->mipmap = info->resource.mipmap;
        REQUIRE(mipmap_valid(r->mipmap), CUDA_ERROR_INVALID_HANDLE);
        r->array = r->mipmap->levels[0];
        r->mapping = &r->mipmap->mappings;
        r->size = r->mipmap->size;
        r->level_count = r->mipmap->level_count;
    }
    r->descriptor = &r->array->descriptor;
    REQUIRE((r->descriptor->Flags & ARRAY_UNBACKED) != 0, CUDA_ERROR_INVALID_VALUE);
    if ((r->descriptor->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) != 0)
        return CUDA_SUCCESS;
    TRY(r->mipmap != NULL ? cuMipmappedArrayGetSparseProperties(&properties, r->mipmap)
                          : cuArrayGetSparseProperties(&properties, r->array));
    r->tile = tile_of(r->descriptor);
    if ((r->descriptor->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0)
        r->layers = r->array->layers;
    r->tail_tiles = properties.miptailSize / TILE;
    r->first_tail_level = properties.miptailSize != 0 ? properties.miptailFirstLevel : r->level_count;
    return CUDA_SUCCESS;
}

static bool deferred(const struct resource *r) {
    return (r->descriptor->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) != 0;
}

static const CUDA_ARRAY3D_DESCRIPTOR *level_of(const struct resource *r, unsigned level) {
    return r->mipmap != NULL ? &r->mipmap->levels[level]->descriptor : r->descriptor;
}

/* The tiles of one layer of a level, along each side. */
static struct extent3 tiles_of(const struct resource *r, unsigned level) {
    const CUDA_ARRAY3D_DESCRIPTOR *d = level_of(r, level);
    uint64_t depth = r->tile.depth > 1 && d->Depth != 0 ? d->Depth : 1;

    return (struct extent3){(d->Width + r->tile.width - 1) / r->tile.width,
                            (d->Height + r->tile.height - 1) / r->tile.height,
                            (depth + r->tile.depth - 1) / r->tile.depth};
}

/* The number of the first tile of a level's layer; of the level after the last, that of the first tile of the tail. */
static uint64_t first_tile(const struct resource *r, unsigned level, uint64_t layer) {
    uint64_t first = 0;

    for (unsigned i = 0; i < level && i < r->first_tail_level; i++) {
        struct extent3 tiles = tiles_of(r, i);

        first += tiles.width * tiles.height * tiles.depth * r->layers;
    }
    if (level < r->first_tail_level) {
        struct extent3 tiles = tiles_of(r, level);

        first += layer * tiles.width * tiles.height * tiles.depth;
    }
    return first;
}

/* Which tiles an entry of the list is about: a box of them, in numbers. */
struct box {
    uint64_t first, row, slice; /* its first tile, and how far rows and slices lie apart */
    struct extent3 tiles;
};

static bool aligned_span(uint64_t offset, uint64_t extent, uint64_t tile, uint64_t whole) {
    return offset % tile == 0 && extent != 0 && offset < whole && extent <= whole - offset &&
           (extent % tile == 0 || offset + extent == whole);
}

static CUresult level_box(const struct resource *r, const CUarrayMapInfo *info, struct box *box) {
    unsigned level = info->subresource.sparseLevel.level, layer = info->subresource.sparseLevel.layer;
    uint64_t x = info->subresource.sparseLevel.offsetX, width = info->subresource.sparseLevel.extentWidth;
    uint64_t y = info->subresource.sparseLevel.offsetY, height = info->subresource.sparseLevel.extentHeight;
    uint64_t z = info->subresource.sparseLevel.offsetZ, depth = info->subresource.sparseLevel.extentDepth;
    const CUDA_ARRAY3D_DESCRIPTOR *d;
    struct extent3 tiles;

    REQUIRE(level < r->first_tail_level && layer < r->layers, CUDA_ERROR_INVALID_VALUE);
    d = level_of(r, level);
    REQUIRE(aligned_span(x, width, r->tile.width, d->Width) && aligned_span(y, height, r->tile.height, d->Height) &&
                aligned_span(z, depth, r->tile.depth, r->tile.depth > 1 ? d->Depth : 1),
            CUDA_ERROR_INVALID_VALUE);
    tiles = tiles_of(r, level);
    box->row = tiles.width;
    box->slice = tiles.width * tiles.height;
    box->first = first_tile(r, level, layer) + z / r->tile.depth * box->slice + y / r->tile.height * box->row +
                 x / r->tile.width;
    box->tiles =
        (struct extent3){(width + r->tile.width - 1) / r->tile.width, (height + r->tile.height - 1) / r->tile.height,
                         (depth + r->tile.depth - 1) / r->tile.depth};
    return CUDA_SUCCESS;
}

static CUresult tail_box(const struct resource *r, const CUarrayMapInfo *info, struct box *box) {
    uint64_t offset = info->subresource.miptail.offset, size = info->subresource.miptail.size;

    REQUIRE(info->subresource.miptail.layer < r->layers && offset % TILE == 0 && size % TILE == 0 && size != 0 &&
                offset / TILE + size / TILE <= r->tail_tiles,
            CUDA_ERROR_INVALID_VALUE);
    *box = (struct box){.first = first_tile(r, r->level_count, 0) + info->subresource.miptail.layer * r->tail_tiles +
                                 offset / TILE,
                        .tiles = {size / TILE, 1, 1}};
    return CUDA_SUCCESS;
}

static CUresult find_box(const struct resource *r, const CUarrayMapInfo *info, struct box *box) {
    *box = (struct box){.tiles = {1, 1, 1}};
    if (deferred(r))
        return CUDA_SUCCESS;
    if (info->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL)
        return level_box(r, info, box);
    REQUIRE(info->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL, CUDA_ERROR_INVALID_VALUE);
    return tail_box(r, info, box);
}

/* The memory of a handle, with a reference, if the entry may map it. */
static CUresult find_memory(const struct resource *r, const CUarrayMapInfo *info, const struct box *box,
                            struct vmm_memory **memory) {
    uint64_t needed = deferred(r) ? r->size : box->tiles.width * box->tiles.height * box->tiles.depth * TILE;
    uint64_t alignment = deferred(r) ? SIM_GRANULARITY : TILE;
    struct vmm_memory *held;

    TRY(vmm_hold(info->memHandle.memHandle, &held));
    if (held->multicast || held->device != r->array->context->device || info->offset % alignment != 0 ||
        info->offset > held->size || needed > held->size - info->offset ||
        (!deferred(r) && (held->prop.allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL) == 0)) {
        vmm_drop(held);
        return CUDA_ERROR_INVALID_VALUE;
    }
    *memory = held;
    return CUDA_SUCCESS;
}

static void place(const struct resource *r, CUdeviceptr address) {
    if (r->mipmap != NULL)
        mipmap_place(r->mipmap, address);
    else
        array_place(r->array, address);
}

/* Under the mutex. The table of tiles, and somewhere to keep the contents. */
static CUresult make_mapping(const struct resource *r) {
    uint64_t count = deferred(r) ? 1 : first_tile(r, r->level_count, 0) + r->tail_tiles * r->layers;
    struct array_mapping *mapping = *r->mapping;
    CUdeviceptr address;

    if (mapping == NULL) {
        mapping = calloc(1, sizeof(*mapping) + count * sizeof(mapping->tiles[0]));
        REQUIRE(mapping != NULL, CUDA_ERROR_OUT_OF_MEMORY);
        mapping->count = count;
        *r->mapping = mapping;
    }
    if (r->array->address == 0) {
        TRY(heap_alloc_unbacked(r->array->context, r->size, &address));
        place(r, address);
    }
    return CUDA_SUCCESS;
}

/* Under the mutex. NULL unmaps. */
static void set_tiles(struct array_mapping *mapping, const struct box *box, struct vmm_memory *memory) {
    uint64_t z, y, x;

    pthread_mutex_lock(&vmm_mutex);
    for (z = 0; z < box->tiles.depth; z++) {
        for (y = 0; y < box->tiles.height; y++) {
            for (x = 0; x < box->tiles.width; x++) {
                struct vmm_memory **tile = &mapping->tiles[box->first + z * box->slice + y * box->row + x];

                if (memory != NULL)
                    memory->references++;
                if (*tile != NULL)
                    vmm_drop_locked(*tile);
                *tile = memory;
            }
        }
    }
    pthread_mutex_unlock(&vmm_mutex);
}

static CUresult map_tiles(const struct resource *r, const CUarrayMapInfo *info, const struct box *box) {
    struct vmm_memory *memory;
    CUresult ret;

    TRY(find_memory(r, info, box, &memory));
    pthread_mutex_lock(&mutex);
    ret = make_mapping(r);
    if (ret == CUDA_SUCCESS)
        set_tiles(*r->mapping, box, memory);
    pthread_mutex_unlock(&mutex);
    vmm_drop(memory);
    return ret;
}

static CUresult unmap_tiles(const struct resource *r, const CUarrayMapInfo *info, const struct box *box) {
    REQUIRE(info->memHandle.memHandle == 0, CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&mutex);
    if (*r->mapping != NULL)
        set_tiles(*r->mapping, box, NULL);
    if (deferred(r) && r->array->address != 0) {
        heap_free(r->array->address);
        place(r, 0);
    }
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

static CUresult map_one(const CUarrayMapInfo *info, struct CUctx_st *context) {
    struct resource resource;
    struct box box;

    REQUIRE(info->flags == 0 && info->reserved[0] == 0 && info->reserved[1] == 0 &&
                info->deviceBitMask == 1u << context->device,
            CUDA_ERROR_INVALID_VALUE);
    TRY(find_resource(info, &resource));
    REQUIRE(resource.array->context == context, CUDA_ERROR_INVALID_CONTEXT);
    TRY(find_box(&resource, info, &box));
    if (info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP)
        return unmap_tiles(&resource, info, &box);
    REQUIRE(info->memOperationType == CU_MEM_OPERATION_TYPE_MAP && info->memHandleType == CU_MEM_HANDLE_TYPE_GENERIC,
            CUDA_ERROR_INVALID_VALUE);
    return map_tiles(&resource, info, &box);
}

/* Waits for what the stream does already: it may use what is unmapped. */
static CUresult map_list(const CUarrayMapInfo *list, unsigned count, CUstream handle, bool per_thread) {
    struct CUstream_st *stream;

    REQUIRE_CONTEXT(context);
    REQUIRE(list != NULL && count != 0, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_find(context, handle, per_thread, &stream));
    stream_wait(stream);
    for (unsigned i = 0; i < count; i++)
        TRY(map_one(&list[i], context));
    return CUDA_SUCCESS;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream) {
    return map_list(mapInfoList, count, hStream, false);
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *mapInfoList, unsigned int count, CUstream hStream) {
    return map_list(mapInfoList, count, hStream, true);
}
