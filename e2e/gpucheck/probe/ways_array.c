/* Arrays. Their sizes in memory are the driver's affair: a piece of so many bytes is one whose elements have them. */
#include "ways.h"

/* Rows of 64 KiB: 4096 elements of four floats. */
enum { WIDTH = 4096, ROW = WIDTH * 16 };

static CUarray3DDescriptor plane(uint64_t bytes, unsigned flags) {
    return (CUarray3DDescriptor){
        .width = WIDTH, .height = bytes / ROW, .format = FORMAT_FLOAT, .channels = 4, .flags = flags};
}

static CUresult take_array(uint64_t bytes, struct piece *piece) {
    CUarrayDescriptor wanted = {.width = WIDTH, .height = bytes / ROW, .format = FORMAT_FLOAT, .channels = 4};
    return cuda.cuArrayCreate_v2((CUarray *)&piece->handle, &wanted);
}

static CUresult take_small_array(uint64_t bytes, struct piece *piece) {
    CUarrayDescriptor wanted = {.width = bytes / 64, .height = 64, .format = FORMAT_UINT8, .channels = 1};
    return cuda.cuArrayCreate_v2((CUarray *)&piece->handle, &wanted);
}

/* Layers of 1 MiB. */
static CUresult take_layers(uint64_t bytes, struct piece *piece) {
    CUarray3DDescriptor wanted = {.width = 512,
                                  .height = 512,
                                  .depth = bytes / MIB,
                                  .format = FORMAT_UINT8,
                                  .channels = 4,
                                  .flags = ARRAY_LAYERED};
    return cuda.cuArray3DCreate_v2((CUarray *)&piece->handle, &wanted);
}

/* A cube of floats, as near as its side comes. */
static CUresult take_cube(uint64_t bytes, struct piece *piece) {
    CUarray3DDescriptor wanted = {
        .width = 256, .height = 256, .depth = bytes / (256 * 256 * 4), .format = FORMAT_FLOAT, .channels = 1};
    return cuda.cuArray3DCreate_v2((CUarray *)&piece->handle, &wanted);
}

/* Block compression: a byte per element. */
static CUresult take_compressed(uint64_t bytes, struct piece *piece) {
    CUarray3DDescriptor wanted = {
        .width = 16384, .height = bytes / 16384, .format = FORMAT_BC7, .channels = 4, .flags = 0};
    return cuda.cuArray3DCreate_v2((CUarray *)&piece->handle, &wanted);
}

static CUresult give_array(struct piece *piece) {
    return cuda.cuArrayDestroy(piece->handle);
}

/* All levels together have 4/3 of the first. */
static CUresult take_mipmap(uint64_t bytes, struct piece *piece) {
    enum { LEVELS = 13 };
    CUarray3DDescriptor wanted = plane(bytes / 4 * 3, 0);
    return cuda.cuMipmappedArrayCreate((CUmipmappedArray *)&piece->handle, &wanted, LEVELS);
}

static CUresult give_mipmap(struct piece *piece) {
    return cuda.cuMipmappedArrayDestroy(piece->handle);
}

/* --- arrays that get their memory later --- */

static const char *need_deferred(void) {
    return attribute(device, ATTRIBUTE_DEFERRED_ARRAYS) ? NULL : "this GPU has no arrays with deferred mapping";
}

static const char *need_sparse(void) {
    return attribute(device, ATTRIBUTE_SPARSE_ARRAYS) ? NULL : "this GPU has no sparse arrays";
}

static CUresult map_array(CUarray array, uint64_t bytes, bool sparse, struct piece *piece) {
    enum { TILE_POOL = 1 };
    CUmemAllocationProp properties = device_memory(false);
    CUarrayMapInfo map = {.resource = array, .operation = 1, .device_mask = 1u << device};
    properties.flags.usage = TILE_POOL;
    if (sparse) {
        map.subresource.level.width = WIDTH;
        map.subresource.level.height = (unsigned)(bytes / ROW);
        map.subresource.level.depth = 1;
    }
    CUresult result = cuda.cuMemCreate(&piece->memory, bytes, &properties, 0);
    if (result != CUDA_SUCCESS)
        return result;
    map.handle = piece->memory;
    result = cuda.cuMemMapArrayAsync(&map, 1, NULL);
    if (result == CUDA_SUCCESS)
        result = cuda.cuCtxSynchronize();
    if (result != CUDA_SUCCESS)
        cuda.cuMemRelease(piece->memory);
    return result;
}

static CUresult take_later(uint64_t bytes, unsigned flag, struct piece *piece) {
    CUarray3DDescriptor wanted = plane(bytes, flag);
    CUarrayRequirements needs = {.size = bytes};
    CUresult result = cuda.cuArray3DCreate_v2((CUarray *)&piece->handle, &wanted);
    if (result == CUDA_SUCCESS && flag == ARRAY_DEFERRED)
        result = cuda.cuArrayGetMemoryRequirements(&needs, piece->handle, device);
    if (result == CUDA_SUCCESS)
        result = map_array(piece->handle, round_up(needs.size, 2 * MIB), flag == ARRAY_SPARSE, piece);
    if (result != CUDA_SUCCESS && piece->handle != NULL)
        cuda.cuArrayDestroy(piece->handle);
    return result;
}

static CUresult take_deferred(uint64_t bytes, struct piece *piece) {
    return take_later(bytes, ARRAY_DEFERRED, piece);
}

static CUresult take_sparse(uint64_t bytes, struct piece *piece) {
    return take_later(bytes, ARRAY_SPARSE, piece);
}

static CUresult give_later(struct piece *piece) {
    CUresult result = cuda.cuArrayDestroy(piece->handle);
    CUresult also = cuda.cuMemRelease(piece->memory);
    return result != CUDA_SUCCESS ? result : also;
}

#define LATER                                                                                                          \
    FUNCTIONS("cuArray3DCreate_v2", "cuArrayDestroy", "cuArrayGetMemoryRequirements", "cuMemCreate", "cuMemRelease",   \
              "cuMemMapArrayAsync", "cuCtxSynchronize")

const struct way array_ways[] = {
    {"array", "cuArrayCreate, two dimensions", 2 * MIB, FUNCTIONS("cuArrayCreate_v2", "cuArrayDestroy"), NULL,
     take_array, give_array, NULL},
    {"array-small", "cuArrayCreate of 64 KiB and more", 64 << 10, FUNCTIONS("cuArrayCreate_v2", "cuArrayDestroy"), NULL,
     take_small_array, give_array, NULL},
    {"array-layered", "cuArray3DCreate, layered", 2 * MIB, FUNCTIONS("cuArray3DCreate_v2", "cuArrayDestroy"), NULL,
     take_layers, give_array, NULL},
    {"array-3d", "cuArray3DCreate, three dimensions", 2 * MIB, FUNCTIONS("cuArray3DCreate_v2", "cuArrayDestroy"), NULL,
     take_cube, give_array, NULL},
    {"array-bc7", "cuArray3DCreate, block-compressed (BC7)", 2 * MIB, FUNCTIONS("cuArray3DCreate_v2", "cuArrayDestroy"),
     NULL, take_compressed, give_array, NULL},
    {"mipmap", "cuMipmappedArrayCreate", 8 * MIB, FUNCTIONS("cuMipmappedArrayCreate", "cuMipmappedArrayDestroy"), NULL,
     take_mipmap, give_mipmap, NULL},
    {"array-deferred", "an array with deferred mapping, backed by cuMemCreate", 2 * MIB, LATER, need_deferred,
     take_deferred, give_later, NULL},
    {"array-sparse", "a sparse array, backed by cuMemCreate", 8 * MIB, LATER, need_sparse, take_sparse, give_later,
     NULL},
    {0},
};
