/* Arrays: what every format takes, planes, mipmap levels, and arrays that are mapped by hand. */
#include <string.h>

#include "harness.h"

static uint64_t taken(void) {
    return look("test").used[0] - GPU0_CONTEXT;
}

/* What the driver says that an array takes. */
static uint64_t required(CUDA_ARRAY3D_DESCRIPTOR descriptor) {
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements = {0};
    CUarray array;

    descriptor.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    OK(cuArray3DCreate_v2(&array, &descriptor));
    OK(cuArrayGetMemoryRequirements(&requirements, array, 0));
    CHECK_INT(requirements.alignment, 2 * MIB);
    OK(cuArrayDestroy(array));
    return requirements.size;
}

static void every_format_takes_what_it_must(void) {
    static const struct {
        CUarray_format format;
        unsigned channels, bits; /* of a texel */
    } formats[] = {
        {CU_AD_FORMAT_UNSIGNED_INT8, 1, 8},  {CU_AD_FORMAT_SIGNED_INT8, 2, 16},    {CU_AD_FORMAT_UNSIGNED_INT16, 1, 16},
        {CU_AD_FORMAT_SIGNED_INT16, 4, 64},  {CU_AD_FORMAT_UNSIGNED_INT32, 1, 32}, {CU_AD_FORMAT_SIGNED_INT32, 2, 64},
        {CU_AD_FORMAT_HALF, 4, 64},          {CU_AD_FORMAT_FLOAT, 4, 128},         {CU_AD_FORMAT_NV12, 3, 12},
        {CU_AD_FORMAT_P010, 3, 24},          {CU_AD_FORMAT_P016, 3, 24},           {CU_AD_FORMAT_NV16, 3, 16},
        {CU_AD_FORMAT_P210, 3, 32},          {CU_AD_FORMAT_P216, 3, 32},           {CU_AD_FORMAT_YUY2, 2, 16},
        {CU_AD_FORMAT_Y210, 2, 32},          {CU_AD_FORMAT_Y216, 2, 32},           {CU_AD_FORMAT_AYUV, 4, 32},
        {CU_AD_FORMAT_Y410, 4, 32},          {CU_AD_FORMAT_Y416, 4, 64},           {CU_AD_FORMAT_Y444_PLANAR8, 3, 24},
        {CU_AD_FORMAT_Y444_PLANAR10, 3, 48}, {CU_AD_FORMAT_UNORM_INT8X1, 1, 8},    {CU_AD_FORMAT_UNORM_INT8X2, 2, 16},
        {CU_AD_FORMAT_UNORM_INT8X4, 4, 32},  {CU_AD_FORMAT_UNORM_INT16X1, 1, 16},  {CU_AD_FORMAT_UNORM_INT16X2, 2, 32},
        {CU_AD_FORMAT_UNORM_INT16X4, 4, 64}, {CU_AD_FORMAT_SNORM_INT8X1, 1, 8},    {CU_AD_FORMAT_SNORM_INT8X2, 2, 16},
        {CU_AD_FORMAT_SNORM_INT8X4, 4, 32},  {CU_AD_FORMAT_SNORM_INT16X1, 1, 16},  {CU_AD_FORMAT_SNORM_INT16X2, 2, 32},
        {CU_AD_FORMAT_SNORM_INT16X4, 4, 64}, {CU_AD_FORMAT_BC1_UNORM, 4, 4},       {CU_AD_FORMAT_BC1_UNORM_SRGB, 4, 4},
        {CU_AD_FORMAT_BC2_UNORM, 4, 8},      {CU_AD_FORMAT_BC2_UNORM_SRGB, 4, 8},  {CU_AD_FORMAT_BC3_UNORM, 4, 8},
        {CU_AD_FORMAT_BC3_UNORM_SRGB, 4, 8}, {CU_AD_FORMAT_BC4_UNORM, 1, 4},       {CU_AD_FORMAT_BC4_SNORM, 1, 4},
        {CU_AD_FORMAT_BC5_UNORM, 2, 8},      {CU_AD_FORMAT_BC5_SNORM, 2, 8},       {CU_AD_FORMAT_BC6H_UF16, 3, 8},
        {CU_AD_FORMAT_BC6H_SF16, 3, 8},      {CU_AD_FORMAT_BC7_UNORM, 4, 8},       {CU_AD_FORMAT_BC7_UNORM_SRGB, 4, 8},
    };

    context_on(0);
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        CUDA_ARRAY3D_DESCRIPTOR d = {4096, 2048, 0, formats[i].format, formats[i].channels, 0};
        uint64_t bytes = (uint64_t)4096 * 2048 * formats[i].bits / 8;
        CUarray array;

        bytes = (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
        CHECK_INT(required(d), bytes);
        CHECK_INT(taken(), 0);
        OK(cuArray3DCreate_v2(&array, &d));
        CHECK_INT(taken(), bytes);
        OK(cuArrayDestroy(array));
        CHECK_INT(taken(), 0);
        d.NumChannels = i < 8 && formats[i].channels == 1 ? 3 : 5;
        CHECK_INT(cuArray3DCreate_v2(&array, &d), CUDA_ERROR_INVALID_VALUE);
    }
}

static void rows_are_kept_in_tiles(void) {
    CUDA_ARRAY3D_DESCRIPTOR line = {1 << 20, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
    CUDA_ARRAY3D_DESCRIPTOR narrow = {1, 1 << 17, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
    CUDA_ARRAY3D_DESCRIPTOR flat = {4, 1, 1 << 14, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_LAYERED};
    CUarray array;

    context_on(0);
    OK(cuArray3DCreate_v2(&array, &line));
    CHECK_INT(taken(), 2 * MIB);
    OK(cuArrayDestroy(array));
    OK(cuArray3DCreate_v2(&array, &narrow)); /* a byte in each row, of 64 */
    CHECK_INT(taken(), 8 * MIB);
    CHECK_INT(required(narrow), 8 * MIB);
    OK(cuArrayDestroy(array));
    OK(cuArray3DCreate_v2(&array, &flat)); /* 512 bytes for each layer */
    CHECK_INT(taken(), 8 * MIB);
    OK(cuArrayDestroy(array));
}

static void requirements_are_for_deferred_arrays(void) {
    CUDA_ARRAY3D_DESCRIPTOR d = {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 4, 0};
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements;
    CUmipmappedArray mipmap;
    CUarray array;

    context_on(0);
    OK(cuArray3DCreate_v2(&array, &d));
    CHECK_INT(cuArrayGetMemoryRequirements(&requirements, array, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuArrayDestroy(array));
    CHECK_INT(cuArrayGetMemoryRequirements(&requirements, array, 0), CUDA_ERROR_INVALID_HANDLE);
    d.Flags = CUDA_ARRAY3D_SPARSE;
    OK(cuArray3DCreate_v2(&array, &d));
    CHECK_INT(cuArrayGetMemoryRequirements(&requirements, array, 0), CUDA_ERROR_INVALID_VALUE);
    d.Flags = CUDA_ARRAY3D_DEFERRED_MAPPING;
    OK(cuMipmappedArrayCreate(&mipmap, &d, 100));
    OK(cuMipmappedArrayGetMemoryRequirements(&requirements, mipmap, 0));
    CHECK_INT(requirements.size, 22 * MIB);
    CHECK_INT(cuMipmappedArrayGetMemoryRequirements(&requirements, mipmap, 9), CUDA_ERROR_INVALID_DEVICE);
    OK(cuMipmappedArrayGetLevel(&array, mipmap, 10));
    CHECK_INT(cuMipmappedArrayGetLevel(&array, mipmap, 11), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(taken(), 0);
}

static void planes(void) {
    CUDA_ARRAY3D_DESCRIPTOR nv12 = {64, 32, 0, CU_AD_FORMAT_NV12, 3, 0}, plane;
    CUarray array, luma, chroma, again;
    unsigned char in[4] = {1, 2, 3, 4}, out[4] = {0};

    context_on(0);
    OK(cuArray3DCreate_v2(&array, &nv12));
    OK(cuArrayGetPlane(&luma, array, 0));
    OK(cuArrayGetPlane(&chroma, array, 1));
    OK(cuArrayGetPlane(&again, array, 1));
    CHECK(chroma == again);
    CHECK_INT(cuArrayGetPlane(&again, array, 2), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuArrayGetPlane(&again, luma, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuArray3DGetDescriptor_v2(&plane, chroma));
    CHECK_INT(plane.Width, 32);
    CHECK_INT(plane.Height, 16);
    CHECK_INT(plane.NumChannels, 2);
    CHECK_INT(plane.Format, CU_AD_FORMAT_UNSIGNED_INT8);
    OK(cuMemcpyHtoA_v2(chroma, 0, in, 4));
    OK(cuMemcpyAtoH_v2(out, array, 64 * 32, 4));
    CHECK(memcmp(in, out, 4) == 0);
    CHECK_INT(cuArrayDestroy(chroma), CUDA_ERROR_INVALID_HANDLE);
    OK(cuArrayDestroy(array));
    CHECK_INT(cuArray3DGetDescriptor_v2(&plane, luma), CUDA_ERROR_INVALID_HANDLE);
    nv12.Width = 63;
    CHECK_INT(cuArray3DCreate_v2(&array, &nv12), CUDA_ERROR_INVALID_VALUE);
    nv12.Width = 64;
    nv12.Height = 0;
    CHECK_INT(cuArray3DCreate_v2(&array, &nv12), CUDA_ERROR_INVALID_VALUE);
}

static void the_oldest_entry_points(void) {
    CUDA_ARRAY_DESCRIPTOR_v1 flat = {1024, 1024, CU_AD_FORMAT_FLOAT, 4}, flat_back;
    CUDA_ARRAY3D_DESCRIPTOR_v1 deep = {64, 64, 64, CU_AD_FORMAT_FLOAT, 4, 0}, deep_back;
    CUarray array;

    context_on(0);
    OK(cuArrayCreate(&array, &flat));
    CHECK_INT(taken(), 16 * MIB);
    OK(cuArrayGetDescriptor(&flat_back, array));
    CHECK_INT(memcmp(&flat, &flat_back, sizeof(flat)), 0);
    OK(cuArrayDestroy(array));
    OK(cuArray3DCreate(&array, &deep));
    CHECK_INT(taken(), 4 * MIB);
    OK(cuArray3DGetDescriptor(&deep_back, array));
    CHECK_INT(memcmp(&deep, &deep_back, sizeof(deep)), 0);
    OK(cuArrayDestroy(array));
}

static CUmemGenericAllocationHandle memory_of(size_t size, unsigned short usage) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                .allocFlags = {.usage = usage}};
    CUmemGenericAllocationHandle handle = 0;

    OK(cuMemCreate(&handle, size, &prop, 0));
    return handle;
}

static void deferred_arrays_hold_what_is_mapped(void) {
    CUDA_ARRAY3D_DESCRIPTOR d = {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_DEFERRED_MAPPING};
    CUarrayMapInfo info = {
        .resourceType = CU_RESOURCE_TYPE_ARRAY, .memOperationType = CU_MEM_OPERATION_TYPE_MAP, .deviceBitMask = 1};
    char byte = 5;

    context_on(0);
    OK(cuArray3DCreate_v2(&info.resource.array, &d));
    CHECK_INT(cuMemcpyHtoA_v2(info.resource.array, 0, &byte, 1), CUDA_ERROR_INVALID_VALUE);
    info.memHandle.memHandle = memory_of(14 * MIB, 0);
    CHECK_INT(cuMemMapArrayAsync(&info, 1, NULL), CUDA_ERROR_INVALID_VALUE); /* too small */
    OK(cuMemRelease(info.memHandle.memHandle));
    info.memHandle.memHandle = memory_of(16 * MIB, 0);
    CHECK_INT(taken(), 16 * MIB);
    OK(cuMemMapArrayAsync(&info, 1, NULL));
    OK(cuMemRelease(info.memHandle.memHandle));
    CHECK_INT(taken(), 16 * MIB);
    OK(cuMemcpyHtoA_v2(info.resource.array, 0, &byte, 1));
    info.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
    CHECK_INT(cuMemMapArrayAsync(&info, 1, NULL), CUDA_ERROR_INVALID_VALUE); /* with a handle */
    info.memHandle.memHandle = 0;
    info.deviceBitMask = 2;
    CHECK_INT(cuMemMapArrayAsync(&info, 1, NULL), CUDA_ERROR_INVALID_VALUE);
    info.deviceBitMask = 1;
    OK(cuMemMapArrayAsync_ptsz(&info, 1, NULL));
    CHECK_INT(taken(), 0);
    CHECK_INT(cuMemcpyHtoA_v2(info.resource.array, 0, &byte, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuArrayDestroy(info.resource.array));
    CHECK_INT(taken(), 0);
}

static void sparse_arrays_tell_their_tiles(void) {
    CUDA_ARRAY3D_DESCRIPTOR d = {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE};
    CUDA_ARRAY_SPARSE_PROPERTIES p;
    CUmipmappedArray mipmap;
    CUarray array;

    context_on(0);
    OK(cuArray3DCreate_v2(&array, &d));
    OK(cuArrayGetSparseProperties(&p, array));
    CHECK_INT(p.tileExtent.width, 128);
    CHECK_INT(p.tileExtent.height, 128);
    CHECK_INT(p.tileExtent.depth, 1);
    CHECK_INT(p.miptailSize, 0);
    OK(cuArrayDestroy(array));
    d.Width = 64;
    OK(cuArray3DCreate_v2(&array, &d));
    OK(cuArrayGetSparseProperties(&p, array));
    CHECK_INT(p.flags, CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL);
    CHECK_INT(p.miptailSize, 256 << 10);
    OK(cuArrayDestroy(array));
    d.Width = 1024;
    OK(cuMipmappedArrayCreate(&mipmap, &d, 11));
    OK(cuMipmappedArrayGetSparseProperties(&p, mipmap));
    CHECK_INT(p.miptailFirstLevel, 4); /* 64 by 64 */
    CHECK_INT(p.miptailSize, 64 << 10);
    OK(cuMipmappedArrayGetLevel(&array, mipmap, 0));
    CHECK_INT(cuArrayGetSparseProperties(&p, array), CUDA_ERROR_INVALID_VALUE);
    OK(cuMipmappedArrayDestroy(mipmap));
    d = (CUDA_ARRAY3D_DESCRIPTOR){256, 256, 256, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_SPARSE};
    OK(cuArray3DCreate_v2(&array, &d));
    OK(cuArrayGetSparseProperties(&p, array));
    CHECK_INT(p.tileExtent.width, 64);
    CHECK_INT(p.tileExtent.depth, 32);
    d.Flags = 0;
    OK(cuArray3DCreate_v2(&array, &d));
    CHECK_INT(cuArrayGetSparseProperties(&p, array), CUDA_ERROR_INVALID_VALUE);
    d.Flags = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
    CHECK_INT(cuArray3DCreate_v2(&array, &d), CUDA_ERROR_INVALID_VALUE);
}

static void sparse_arrays_hold_the_memory_of_their_tiles(void) {
    CUDA_ARRAY3D_DESCRIPTOR d = {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE};
    CUarrayMapInfo info = {.resourceType = CU_RESOURCE_TYPE_ARRAY,
                           .subresource.sparseLevel = {.extentWidth = 256, .extentHeight = 128, .extentDepth = 1},
                           .memOperationType = CU_MEM_OPERATION_TYPE_MAP,
                           .deviceBitMask = 1};
    CUmemGenericAllocationHandle first, second;

    context_on(0);
    OK(cuArray3DCreate_v2(&info.resource.array, &d));
    first = memory_of(2 * MIB, CU_MEM_CREATE_USAGE_TILE_POOL);
    second = memory_of(2 * MIB, CU_MEM_CREATE_USAGE_TILE_POOL);
    info.memHandle.memHandle = memory_of(2 * MIB, 0);
    CHECK_INT(cuMemMapArrayAsync(&info, 1, NULL), CUDA_ERROR_INVALID_VALUE); /* not for tiles */
    OK(cuMemRelease(info.memHandle.memHandle));
    info.memHandle.memHandle = first;
    info.offset = 2 * MIB - (64 << 10);
    CHECK_INT(cuMemMapArrayAsync(&info, 1, NULL), CUDA_ERROR_INVALID_VALUE); /* room for one tile */
    info.offset = 2 * MIB - (128 << 10);
    OK(cuMemMapArrayAsync(&info, 1, NULL));
    OK(cuMemRelease(first));
    CHECK_INT(taken(), 4 * MIB);
    info.offset = 0;
    info.memHandle.memHandle = second;
    info.subresource.sparseLevel.offsetX = 64;
    CHECK_INT(cuMemMapArrayAsync(&info, 1, NULL), CUDA_ERROR_INVALID_VALUE);
    info.subresource.sparseLevel.offsetX = 0;
    info.subresource.sparseLevel.extentWidth = 128;
    OK(cuMemMapArrayAsync(&info, 1, NULL)); /* the other tile is the first memory's still */
    CHECK_INT(taken(), 4 * MIB);
    info.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
    info.memHandle.memHandle = 0;
    info.subresource.sparseLevel.offsetX = 128;
    OK(cuMemMapArrayAsync(&info, 1, NULL));
    CHECK_INT(taken(), 2 * MIB);
    OK(cuMemRelease(second));
    CHECK_INT(taken(), 2 * MIB);
    OK(cuArrayDestroy(info.resource.array));
    CHECK_INT(taken(), 0);
}

static void mapped_memory_goes_with_the_context(void) {
    CUDA_ARRAY3D_DESCRIPTOR d = {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_DEFERRED_MAPPING};
    CUarrayMapInfo info = {.resourceType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY,
                           .memOperationType = CU_MEM_OPERATION_TYPE_MAP,
                           .deviceBitMask = 1};
    CUcontext context = context_on(0);

    OK(cuMipmappedArrayCreate(&info.resource.mipmap, &d, 11));
    info.memHandle.memHandle = memory_of(22 * MIB, 0);
    OK(cuMemMapArrayAsync(&info, 1, NULL));
    OK(cuMemRelease(info.memHandle.memHandle));
    CHECK_INT(taken(), 22 * MIB);
    OK(cuCtxDestroy_v2(context));
    CHECK_INT(look("test").used[0], 0);
}

const struct test array_tests[] = {
    {"every format takes what it must", every_format_takes_what_it_must},
    {"rows are kept in tiles", rows_are_kept_in_tiles},
    {"requirements are for deferred arrays", requirements_are_for_deferred_arrays},
    {"planes", planes},
    {"the oldest entry points", the_oldest_entry_points},
    {"deferred arrays hold what is mapped", deferred_arrays_hold_what_is_mapped},
    {"sparse arrays tell their tiles", sparse_arrays_tell_their_tiles},
    {"sparse arrays hold the memory of their tiles", sparse_arrays_hold_the_memory_of_their_tiles},
    {"mapped memory goes with the context", mapped_memory_goes_with_the_context},
    {0},
};
