/* Textures and surfaces: what they can be made of, and what they say of it. */
#include <string.h>

#include "harness.h"

static uint64_t taken(void) {
    return look("test").used[0] - GPU0_CONTEXT;
}

static CUarray array_of(size_t width, size_t height, size_t depth, unsigned flags) {
    CUDA_ARRAY3D_DESCRIPTOR d = {width, height, depth, CU_AD_FORMAT_FLOAT, 4, flags};
    CUarray array = NULL;

    OK(cuArray3DCreate_v2(&array, &d));
    return array;
}

static CUDA_RESOURCE_DESC array_resource(CUarray array) {
    return (CUDA_RESOURCE_DESC){.resType = CU_RESOURCE_TYPE_ARRAY, .res.array = {array}};
}

static CUDA_RESOURCE_DESC linear_resource(CUdeviceptr address, size_t bytes) {
    return (CUDA_RESOURCE_DESC){.resType = CU_RESOURCE_TYPE_LINEAR,
                                .res.linear = {address, CU_AD_FORMAT_FLOAT, 1, bytes}};
}

static CUDA_RESOURCE_DESC pitch_resource(CUdeviceptr address, size_t width, size_t height, size_t pitch) {
    return (CUDA_RESOURCE_DESC){.resType = CU_RESOURCE_TYPE_PITCH2D,
                                .res.pitch2D = {address, CU_AD_FORMAT_FLOAT, 1, width, height, pitch}};
}

static CUDA_TEXTURE_DESC plain_sampling(void) {
    return (CUDA_TEXTURE_DESC){.addressMode = {CU_TR_ADDRESS_MODE_CLAMP, CU_TR_ADDRESS_MODE_BORDER},
                               .filterMode = CU_TR_FILTER_MODE_LINEAR,
                               .flags = CU_TRSF_NORMALIZED_COORDINATES,
                               .maxAnisotropy = 3,
                               .mipmapLevelBias = 0.5f,
                               .borderColor = {1, 2, 3, 4}};
}

/* What becomes of a texture of the resource. */
static CUresult make(CUDA_RESOURCE_DESC resource) {
    CUDA_TEXTURE_DESC sampling = plain_sampling();
    CUtexObject texture;
    CUresult ret = cuTexObjectCreate(&texture, &resource, &sampling, NULL);

    if (ret == CUDA_SUCCESS)
        OK(cuTexObjectDestroy(texture));
    return ret;
}

static void textures_give_back_what_they_were_made_of(void) {
    CUDA_RESOURCE_DESC resource, resource_back;
    CUDA_TEXTURE_DESC sampling = plain_sampling(), sampling_back;
    CUDA_RESOURCE_VIEW_DESC view;
    CUtexObject first, second;
    uint64_t before;

    context_on(0);
    resource = array_resource(array_of(256, 256, 0, 0));
    before = taken();
    OK(cuTexObjectCreate(&first, &resource, &sampling, NULL));
    OK(cuTexObjectCreate(&second, &resource, &sampling, NULL));
    CHECK(first != 0 && first != second);
    CHECK_INT(taken(), before);
    OK(cuTexObjectGetResourceDesc(&resource_back, first));
    CHECK(memcmp(&resource, &resource_back, sizeof(resource)) == 0);
    OK(cuTexObjectGetTextureDesc(&sampling_back, first));
    CHECK(memcmp(&sampling, &sampling_back, sizeof(sampling)) == 0);
    CHECK_INT(cuTexObjectGetResourceViewDesc(&view, first), CUDA_ERROR_INVALID_VALUE); /* it has none */
    CHECK_INT(cuTexObjectGetResourceDesc(NULL, first), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuTexObjectGetTextureDesc(NULL, first), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuSurfObjectDestroy(first), CUDA_ERROR_INVALID_VALUE);
    OK(cuTexObjectDestroy(first));
    CHECK_INT(cuTexObjectDestroy(first), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuTexObjectGetTextureDesc(&sampling_back, first), CUDA_ERROR_INVALID_VALUE);
    OK(cuTexObjectGetTextureDesc(&sampling_back, second));
    CHECK_INT(cuTexObjectDestroy(0), CUDA_ERROR_INVALID_VALUE);
}

static void textures_are_of_one_context(void) {
    CUDA_TEXTURE_DESC sampling = plain_sampling();
    CUDA_RESOURCE_DESC resource;
    CUcontext first, second;
    CUtexObject texture;

    OK(cuInit(0));
    CHECK_INT(cuTexObjectCreate(&texture, &resource, &sampling, NULL), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuCtxCreate_v2(&first, 0, 0));
    resource = array_resource(array_of(16, 16, 0, 0));
    OK(cuTexObjectCreate(&texture, &resource, &sampling, NULL));
    OK(cuCtxCreate_v2(&second, 0, 0));
    CHECK_INT(cuTexObjectGetTextureDesc(&sampling, texture), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(make(resource), CUDA_ERROR_INVALID_VALUE); /* nor is the array */
    OK(cuCtxDestroy_v2(first));
    OK(cuCtxCreate_v2(&first, 0, 0));
    CHECK_INT(cuTexObjectDestroy(texture), CUDA_ERROR_INVALID_VALUE);
}

static void descriptions_must_be_good(void) {
    CUDA_TEXTURE_DESC good = plain_sampling(), bad;
    CUDA_RESOURCE_DESC resource;
    CUtexObject texture;

    context_on(0);
    resource = array_resource(array_of(16, 16, 0, 0));
    CHECK_INT(cuTexObjectCreate(NULL, &resource, &good, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuTexObjectCreate(&texture, NULL, &good, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuTexObjectCreate(&texture, &resource, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    bad = good;
    bad.addressMode[2] = CU_TR_ADDRESS_MODE_BORDER + 1;
    CHECK_INT(cuTexObjectCreate(&texture, &resource, &bad, NULL), CUDA_ERROR_INVALID_VALUE);
    bad = good;
    bad.filterMode = CU_TR_FILTER_MODE_LINEAR + 1;
    CHECK_INT(cuTexObjectCreate(&texture, &resource, &bad, NULL), CUDA_ERROR_INVALID_VALUE);
    bad = good;
    bad.mipmapFilterMode = CU_TR_FILTER_MODE_LINEAR + 1;
    CHECK_INT(cuTexObjectCreate(&texture, &resource, &bad, NULL), CUDA_ERROR_INVALID_VALUE);
    bad = good;
    bad.flags = 0x80;
    CHECK_INT(cuTexObjectCreate(&texture, &resource, &bad, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(make(resource));
    resource.flags = 1;
    CHECK_INT(make(resource), CUDA_ERROR_INVALID_VALUE);
    resource.flags = 0;
    resource.resType = CU_RESOURCE_TYPE_PITCH2D + 1;
    CHECK_INT(make(resource), CUDA_ERROR_INVALID_VALUE);
}

static void arrays_must_be_there(void) {
    CUDA_ARRAY3D_DESCRIPTOR d = {64, 64, 0, CU_AD_FORMAT_FLOAT, 4, 0};
    CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY};
    CUmipmappedArray mipmap;
    CUarray array;

    context_on(0);
    array = array_of(16, 16, 0, 0);
    OK(make(array_resource(array)));
    OK(cuArrayDestroy(array));
    CHECK_INT(make(array_resource(array)), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(make(array_resource(NULL)), CUDA_ERROR_INVALID_VALUE);
    OK(cuMipmappedArrayCreate(&mipmap, &d, 3));
    resource.res.mipmap.hMipmappedArray = mipmap;
    OK(make(resource));
    OK(cuMipmappedArrayGetLevel(&array, mipmap, 1));
    OK(make(array_resource(array)));
    OK(cuMipmappedArrayDestroy(mipmap));
    CHECK_INT(make(resource), CUDA_ERROR_INVALID_VALUE);
}

static void linear_memory_must_be_there(void) {
    CUDA_RESOURCE_DESC resource;
    CUdeviceptr memory;
    void *pinned;

    context_on(0);
    OK(cuMemAlloc_v2(&memory, MIB));
    OK(make(linear_resource(memory, MIB)));
    OK(make(linear_resource(memory + 512, MIB - 512)));
    CHECK_INT(make(linear_resource(memory + 256, 512)), CUDA_ERROR_INVALID_VALUE); /* not aligned */
    CHECK_INT(make(linear_resource(memory + 512, MIB)), CUDA_ERROR_INVALID_VALUE); /* beyond the end */
    CHECK_INT(make(linear_resource(memory, 0)), CUDA_ERROR_INVALID_VALUE);
    resource = linear_resource(memory, MIB);
    resource.res.linear.numChannels = 3;
    CHECK_INT(make(resource), CUDA_ERROR_INVALID_VALUE);
    resource.res.linear.numChannels = 3;
    resource.res.linear.format = CU_AD_FORMAT_NV12;
    CHECK_INT(make(resource), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(memory));
    CHECK_INT(make(linear_resource(memory, MIB)), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAllocManaged(&memory, MIB, CU_MEM_ATTACH_GLOBAL));
    OK(make(linear_resource(memory, MIB)));
    CHECK_INT(make(linear_resource(memory, MIB + 1)), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAllocHost_v2(&pinned, 4096));
    OK(make(linear_resource((uintptr_t)pinned, 4096)));
    CHECK_INT(make(linear_resource((uintptr_t)pinned, 4097)), CUDA_ERROR_INVALID_VALUE);
}

static void linear_memory_is_so_wide_at_most(void) {
    CUDA_RESOURCE_DESC resource;
    CUdeviceptr memory;
    size_t width = 0;

    context_on(0);
    OK(cuDeviceGetTexture1DLinearMaxWidth(&width, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0));
    CHECK_INT(width, 1 << 28);
    CHECK_INT(cuDeviceGetTexture1DLinearMaxWidth(&width, CU_AD_FORMAT_UNSIGNED_INT8, 3, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuDeviceGetTexture1DLinearMaxWidth(&width, CU_AD_FORMAT_NV12, 3, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuDeviceGetTexture1DLinearMaxWidth(NULL, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuDeviceGetTexture1DLinearMaxWidth(&width, CU_AD_FORMAT_UNSIGNED_INT8, 1, 9), CUDA_ERROR_INVALID_DEVICE);
    OK(cuMemAlloc_v2(&memory, width + 512));
    resource = linear_resource(memory, width);
    resource.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT8;
    OK(make(resource));
    resource.res.linear.sizeInBytes++;
    CHECK_INT(make(resource), CUDA_ERROR_INVALID_VALUE);
    resource.res.linear.format = CU_AD_FORMAT_HALF;
    OK(make(resource));
}

static void rows_of_memory_must_be_there(void) {
    CUdeviceptr memory;

    context_on(0);
    OK(cuMemAlloc_v2(&memory, 64 * 1024));
    OK(make(pitch_resource(memory, 256, 64, 1024)));
    OK(make(pitch_resource(memory, 250, 64, 1024)));
    CHECK_INT(make(pitch_resource(memory, 256, 65, 1024)), CUDA_ERROR_INVALID_VALUE);    /* a row too many */
    CHECK_INT(make(pitch_resource(memory, 257, 32, 1024)), CUDA_ERROR_INVALID_VALUE);    /* wider than the pitch */
    CHECK_INT(make(pitch_resource(memory, 32, 32, 144)), CUDA_ERROR_INVALID_VALUE);      /* an unaligned pitch */
    CHECK_INT(make(pitch_resource(memory + 32, 32, 32, 128)), CUDA_ERROR_INVALID_VALUE); /* an unaligned address */
    CHECK_INT(make(pitch_resource(memory, 32, 0, 128)), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(make(pitch_resource(memory, 0, 32, 128)), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(memory));
    CHECK_INT(make(pitch_resource(memory, 256, 64, 1024)), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAlloc_v2(&memory, 65001 * 32));
    OK(make(pitch_resource(memory, 8, 65000, 32)));
    CHECK_INT(make(pitch_resource(memory, 8, 65001, 32)), CUDA_ERROR_INVALID_VALUE);
    OK(make(pitch_resource(memory, 8, 1, 2097120)));
    CHECK_INT(make(pitch_resource(memory, 8, 1, 2097152)), CUDA_ERROR_INVALID_VALUE);
}

static void another_gpu_must_be_enabled(void) {
    CUDA_ARRAY3D_DESCRIPTOR d = {16, 16, 0, CU_AD_FORMAT_FLOAT, 4, 0};
    CUcontext first = context_on(0), second;
    CUdeviceptr memory;
    CUarray array;

    OK(cuCtxCreate_v2(&second, 0, 1));
    OK(cuMemAlloc_v2(&memory, MIB));
    OK(cuArray3DCreate_v2(&array, &d));
    OK(cuCtxSetCurrent(first));
    CHECK_INT(make(linear_resource(memory, MIB)), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(make(array_resource(array)), CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxEnablePeerAccess(second, 0));
    OK(make(linear_resource(memory, MIB)));
    OK(make(array_resource(array)));
}

/* ---- Views ---- */

static CUresult make_view(CUDA_RESOURCE_DESC resource, CUDA_RESOURCE_VIEW_DESC view) {
    CUDA_TEXTURE_DESC sampling = plain_sampling();
    CUDA_RESOURCE_VIEW_DESC back;
    CUtexObject texture;
    CUresult ret = cuTexObjectCreate(&texture, &resource, &sampling, &view);

    if (ret != CUDA_SUCCESS)
        return ret;
    OK(cuTexObjectGetResourceViewDesc(&back, texture));
    CHECK(memcmp(&view, &back, sizeof(view)) == 0);
    return cuTexObjectDestroy(texture);
}

static void views_are_of_their_array(void) {
    CUDA_RESOURCE_VIEW_DESC view = {CU_RES_VIEW_FORMAT_UINT_4X32, .width = 64, .height = 32, .depth = 6};
    CUDA_RESOURCE_DESC resource;
    CUdeviceptr memory;

    context_on(0);
    resource = array_resource(array_of(64, 32, 6, CUDA_ARRAY3D_LAYERED));
    view.lastLayer = 5;
    OK(make_view(resource, view));
    view.lastLayer = 6;
    CHECK_INT(make_view(resource, view), CUDA_ERROR_INVALID_VALUE);
    view.firstLayer = 3, view.lastLayer = 2;
    CHECK_INT(make_view(resource, view), CUDA_ERROR_INVALID_VALUE);
    view.lastLayer = 3;
    OK(make_view(resource, view));
    view.lastMipmapLevel = 1;
    CHECK_INT(make_view(resource, view), CUDA_ERROR_INVALID_VALUE);
    view.lastMipmapLevel = 0;
    view.format = CU_RES_VIEW_FORMAT_NONE;
    OK(make_view(resource, view));
    view.format = CU_RES_VIEW_FORMAT_FLOAT_2X32; /* half as large */
    CHECK_INT(make_view(resource, view), CUDA_ERROR_INVALID_VALUE);
    view.format = CU_RES_VIEW_FORMAT_UNSIGNED_BC7 + 1;
    CHECK_INT(make_view(resource, view), CUDA_ERROR_INVALID_VALUE);
    view.format = CU_RES_VIEW_FORMAT_NONE;
    view.width = 63;
    CHECK_INT(make_view(resource, view), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAlloc_v2(&memory, MIB));
    view = (CUDA_RESOURCE_VIEW_DESC){.width = MIB / 4};
    CHECK_INT(make_view(linear_resource(memory, MIB), view), CUDA_ERROR_INVALID_VALUE);
}

static void views_see_compressed_blocks(void) {
    CUDA_ARRAY3D_DESCRIPTOR d = {16, 8, 0, CU_AD_FORMAT_UNSIGNED_INT32, 2, 0};
    CUDA_RESOURCE_VIEW_DESC view = {CU_RES_VIEW_FORMAT_UNSIGNED_BC1, .width = 64, .height = 32};
    CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY};

    context_on(0);
    OK(cuMipmappedArrayCreate(&resource.res.mipmap.hMipmappedArray, &d, 3));
    view.lastMipmapLevel = 2;
    OK(make_view(resource, view));
    view.lastMipmapLevel = 3;
    CHECK_INT(make_view(resource, view), CUDA_ERROR_INVALID_VALUE);
    view.lastMipmapLevel = 0;
    view.format = CU_RES_VIEW_FORMAT_UNSIGNED_BC7; /* takes four words */
    CHECK_INT(make_view(resource, view), CUDA_ERROR_INVALID_VALUE);
    d.NumChannels = 4;
    OK(cuMipmappedArrayCreate(&resource.res.mipmap.hMipmappedArray, &d, 3));
    OK(make_view(resource, view));
    view.width = 16;
    CHECK_INT(make_view(resource, view), CUDA_ERROR_INVALID_VALUE);
}

/* ---- Surfaces ---- */

static void surfaces_need_an_array_for_it(void) {
    CUDA_RESOURCE_DESC resource, back;
    CUdeviceptr memory;
    CUsurfObject surface;
    CUarray array;

    context_on(0);
    resource = array_resource(array_of(64, 64, 0, 0));
    CHECK_INT(cuSurfObjectCreate(&surface, &resource), CUDA_ERROR_INVALID_VALUE);
    array = array_of(64, 64, 0, CUDA_ARRAY3D_SURFACE_LDST);
    resource = array_resource(array);
    CHECK_INT(cuSurfObjectCreate(NULL, &resource), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuSurfObjectCreate(&surface, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuSurfObjectCreate(&surface, &resource));
    OK(cuSurfObjectGetResourceDesc(&back, surface));
    CHECK(memcmp(&resource, &back, sizeof(resource)) == 0);
    CHECK_INT(cuSurfObjectGetResourceDesc(NULL, surface), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuTexObjectDestroy(surface), CUDA_ERROR_INVALID_VALUE);
    OK(cuSurfObjectDestroy(surface));
    CHECK_INT(cuSurfObjectDestroy(surface), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuSurfObjectGetResourceDesc(&back, surface), CUDA_ERROR_INVALID_VALUE);
    OK(cuArrayDestroy(array));
    CHECK_INT(cuSurfObjectCreate(&surface, &resource), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAlloc_v2(&memory, MIB));
    resource = linear_resource(memory, MIB);
    CHECK_INT(cuSurfObjectCreate(&surface, &resource), CUDA_ERROR_INVALID_VALUE);
}

static void surfaces_go_with_their_context(void) {
    CUDA_RESOURCE_DESC resource;
    CUsurfObject surface;
    CUcontext context = context_on(0);

    resource = array_resource(array_of(64, 64, 0, CUDA_ARRAY3D_SURFACE_LDST));
    OK(cuSurfObjectCreate(&surface, &resource));
    OK(cuCtxDestroy_v2(context));
    OK(cuCtxCreate_v2(&context, 0, 0));
    CHECK_INT(cuSurfObjectDestroy(surface), CUDA_ERROR_INVALID_VALUE);
}

/* ---- References ---- */

static void references_read_one_thing_at_a_time(void) {
    CUDA_ARRAY3D_DESCRIPTOR d = {64, 64, 0, CU_AD_FORMAT_HALF, 2, 0};
    CUmipmappedArray mipmap, mipmap_back;
    CUarray array, array_back;
    CUdeviceptr memory, address;
    CUarray_format format;
    CUtexref texture;
    int channels;

    context_on(0);
    array = array_of(64, 64, 0, 0);
    OK(cuMipmappedArrayCreate(&mipmap, &d, 2));
    OK(cuMemAlloc_v2(&memory, MIB));
    CHECK_INT(cuTexRefCreate(NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuTexRefCreate(&texture));
    CHECK_INT(cuTexRefGetArray(&array_back, texture), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuTexRefGetMipmappedArray(&mipmap_back, texture), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuTexRefGetAddress_v2(&address, texture), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuTexRefSetArray(texture, array, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuTexRefSetArray(texture, NULL, CU_TRSA_OVERRIDE_FORMAT), CUDA_ERROR_INVALID_VALUE);
    OK(cuTexRefSetArray(texture, array, CU_TRSA_OVERRIDE_FORMAT));
    OK(cuTexRefGetArray(&array_back, texture));
    CHECK(array_back == array);
    OK(cuTexRefGetFormat(&format, &channels, texture));
    CHECK_INT(format, CU_AD_FORMAT_FLOAT);
    CHECK_INT(channels, 4);
    CHECK_INT(cuTexRefSetMipmappedArray(texture, mipmap, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuTexRefSetMipmappedArray(texture, mipmap, CU_TRSA_OVERRIDE_FORMAT));
    CHECK_INT(cuTexRefGetArray(&array_back, texture), CUDA_ERROR_INVALID_VALUE);
    OK(cuTexRefGetMipmappedArray(&mipmap_back, texture));
    CHECK(mipmap_back == mipmap);
    OK(cuTexRefGetFormat(&format, &channels, texture));
    CHECK_INT(format, CU_AD_FORMAT_HALF);
    CHECK_INT(channels, 2);
    OK(cuTexRefSetAddress_v2(NULL, texture, memory, MIB));
    CHECK_INT(cuTexRefGetMipmappedArray(&mipmap_back, texture), CUDA_ERROR_INVALID_VALUE);
    OK(cuTexRefGetAddress_v2(&address, texture));
    CHECK_INT(address, memory);
    OK(cuTexRefDestroy(texture));
    CHECK_INT(cuTexRefDestroy(texture), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuTexRefSetArray(texture, array, CU_TRSA_OVERRIDE_FORMAT), CUDA_ERROR_INVALID_VALUE);
}

static void references_begin_at_aligned_addresses(void) {
    CUDA_ARRAY_DESCRIPTOR rows = {256, 64, CU_AD_FORMAT_FLOAT, 1};
    CUdeviceptr memory, address;
    CUarray_format format;
    CUtexref texture;
    size_t offset = 1;
    int channels;

    context_on(0);
    OK(cuTexRefCreate(&texture));
    OK(cuMemAlloc_v2(&memory, 64 * 1024));
    CHECK_INT(cuTexRefGetFormat(&format, &channels, texture), CUDA_ERROR_INVALID_VALUE); /* not set yet */
    OK(cuTexRefSetAddress_v2(&offset, texture, memory, 4));
    CHECK_INT(offset, 0);
    OK(cuTexRefSetAddress_v2(&offset, texture, memory + 700, 100));
    CHECK_INT(offset, 188);
    OK(cuTexRefGetAddress_v2(&address, texture));
    CHECK_INT(address, memory + 512);
    CHECK_INT(cuTexRefSetAddress_v2(NULL, texture, memory + 700, 100), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuTexRefSetAddress_v2(&offset, texture, memory + 700, 64 * 1024), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuTexRefSetAddress_v2(&offset, texture, memory, SIZE_MAX), CUDA_ERROR_INVALID_VALUE);
    OK(cuTexRefSetAddress2D_v3(texture, &rows, memory, 1024));
    OK(cuTexRefGetAddress_v2(&address, texture));
    CHECK_INT(address, memory);
    OK(cuTexRefGetFormat(&format, &channels, texture));
    CHECK_INT(format, CU_AD_FORMAT_FLOAT);
    CHECK_INT(channels, 1);
    OK(cuTexRefSetAddress2D_v2(texture, &rows, memory, 1024));
    CHECK_INT(cuTexRefSetAddress2D_v3(texture, &rows, memory, 1008), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuTexRefSetAddress2D_v3(texture, &rows, memory + 32, 1024), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuTexRefSetAddress2D_v3(texture, NULL, memory, 1024), CUDA_ERROR_INVALID_VALUE);
    rows.Height = 65;
    CHECK_INT(cuTexRefSetAddress2D_v3(texture, &rows, memory, 1024), CUDA_ERROR_INVALID_VALUE);
}

static void the_oldest_entry_points(void) {
    CUDA_ARRAY_DESCRIPTOR_v1 rows = {32, 32, CU_AD_FORMAT_UNSIGNED_INT8, 4};
    CUdeviceptr_v1 memory, address;
    CUtexref texture;
    unsigned offset = 1;

    context_on(0);
    OK(cuTexRefCreate(&texture));
    OK(cuMemAlloc(&memory, 4096));
    OK(cuTexRefSetAddress(&offset, texture, memory + 16, 4000));
    CHECK_INT(offset, 16);
    OK(cuTexRefGetAddress(&address, texture));
    CHECK_INT(address, memory);
    OK(cuTexRefSetAddress(NULL, texture, memory, 4096));
    OK(cuTexRefSetAddress2D(texture, &rows, memory, 128));
    CHECK_INT(cuTexRefSetAddress2D(texture, &rows, memory, 100), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuTexRefSetAddress2D(texture, NULL, memory, 128), CUDA_ERROR_INVALID_VALUE);
}

static void references_remember_modes(void) {
    CUaddress_mode address_mode;
    CUfilter_mode filter;
    CUarray_format format;
    CUtexref texture;
    unsigned flags;
    int number;

    context_on(0);
    OK(cuTexRefCreate(&texture));
    OK(cuTexRefSetAddressMode(texture, 2, CU_TR_ADDRESS_MODE_MIRROR));
    CHECK_INT(cuTexRefSetAddressMode(texture, 3, CU_TR_ADDRESS_MODE_MIRROR), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuTexRefSetAddressMode(texture, -1, CU_TR_ADDRESS_MODE_MIRROR), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuTexRefSetAddressMode(texture, 2, CU_TR_ADDRESS_MODE_BORDER + 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuTexRefGetAddressMode(&address_mode, texture, 2));
    CHECK_INT(address_mode, CU_TR_ADDRESS_MODE_MIRROR);
    CHECK_INT(cuTexRefGetAddressMode(&address_mode, texture, 3), CUDA_ERROR_INVALID_VALUE);
    OK(cuTexRefSetFilterMode(texture, CU_TR_FILTER_MODE_LINEAR));
    CHECK_INT(cuTexRefSetFilterMode(texture, CU_TR_FILTER_MODE_LINEAR + 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuTexRefGetMipmapFilterMode(&filter, texture));
    CHECK_INT(filter, CU_TR_FILTER_MODE_POINT);
    OK(cuTexRefGetFilterMode(&filter, texture));
    CHECK_INT(filter, CU_TR_FILTER_MODE_LINEAR);
    OK(cuTexRefSetMipmapFilterMode(texture, CU_TR_FILTER_MODE_LINEAR));
    CHECK_INT(cuTexRefSetMipmapFilterMode(texture, CU_TR_FILTER_MODE_LINEAR + 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuTexRefGetMipmapFilterMode(&filter, texture));
    CHECK_INT(filter, CU_TR_FILTER_MODE_LINEAR);
    OK(cuTexRefSetFlags(texture, CU_TRSF_READ_AS_INTEGER | CU_TRSF_SRGB));
    CHECK_INT(cuTexRefSetFlags(texture, 0x80), CUDA_ERROR_INVALID_VALUE);
    OK(cuTexRefGetFlags(&flags, texture));
    CHECK_INT(flags, CU_TRSF_READ_AS_INTEGER | CU_TRSF_SRGB);
    OK(cuTexRefSetMaxAnisotropy(texture, 7));
    OK(cuTexRefGetMaxAnisotropy(&number, texture));
    CHECK_INT(number, 7);
    OK(cuTexRefSetFormat(texture, CU_AD_FORMAT_SIGNED_INT16, 2));
    CHECK_INT(cuTexRefSetFormat(texture, CU_AD_FORMAT_SIGNED_INT16, 3), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuTexRefSetFormat(texture, CU_AD_FORMAT_NV12, 3), CUDA_ERROR_INVALID_VALUE);
    OK(cuTexRefGetFormat(&format, &number, texture));
    CHECK_INT(format, CU_AD_FORMAT_SIGNED_INT16);
    CHECK_INT(number, 2);
}

static void references_remember_numbers(void) {
    float color[4] = {1, 2, 3, 4}, color_back[4] = {0}, low = 0, high = 0;
    CUtexref texture;

    context_on(0);
    OK(cuTexRefCreate(&texture));
    OK(cuTexRefSetMipmapLevelBias(texture, 1.5f));
    OK(cuTexRefGetMipmapLevelBias(&low, texture));
    CHECK(low == 1.5f);
    OK(cuTexRefSetMipmapLevelClamp(texture, 2.5f, 3.5f));
    OK(cuTexRefGetMipmapLevelClamp(&low, &high, texture));
    CHECK(low == 2.5f && high == 3.5f);
    OK(cuTexRefSetBorderColor(texture, color));
    OK(cuTexRefGetBorderColor(color_back, texture));
    CHECK(memcmp(color, color_back, sizeof(color)) == 0);
    CHECK_INT(cuTexRefSetBorderColor(texture, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuTexRefGetBorderColor(NULL, texture), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuTexRefGetMipmapLevelClamp(&low, NULL, texture), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuTexRefGetMipmapLevelBias(&low, NULL), CUDA_ERROR_INVALID_VALUE);
}

static const char ptx[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
                          ".visible .global .texref image;\n.global .surfref canvas;\n.global .samplerref sampler;\n"
                          ".extern .global .texref elsewhere;\n"
                          ".visible .global .align 4 .u32 number;\n.visible .entry kernel()\n{\n ret;\n}\n";

static void modules_declare_references(void) {
    CUcontext context = context_on(0);
    CUtexref texture, again;
    CUdeviceptr address;
    CUsurfref surface;
    CUmodule module;
    size_t bytes;

    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetTexRef(&texture, module, "image"));
    OK(cuModuleGetTexRef(&again, module, "image"));
    CHECK(texture == again);
    OK(cuModuleGetSurfRef(&surface, module, "canvas"));
    CHECK_INT(cuModuleGetTexRef(&again, module, "canvas"), CUDA_ERROR_NOT_FOUND);
    CHECK_INT(cuModuleGetTexRef(&again, module, "number"), CUDA_ERROR_NOT_FOUND);
    CHECK_INT(cuModuleGetTexRef(&again, module, "sampler"), CUDA_ERROR_NOT_FOUND);
    CHECK_INT(cuModuleGetTexRef(&again, module, "elsewhere"), CUDA_ERROR_NOT_FOUND);
    CHECK_INT(cuModuleGetSurfRef(&surface, module, "image"), CUDA_ERROR_NOT_FOUND);
    CHECK_INT(cuModuleGetGlobal_v2(&address, &bytes, module, "image"), CUDA_ERROR_NOT_FOUND);
    OK(cuModuleGetGlobal_v2(&address, &bytes, module, "number"));
    CHECK_INT(bytes, 4);
    CHECK_INT(cuModuleGetTexRef(NULL, module, "image"), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuModuleGetTexRef(&again, module, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuModuleGetTexRef(&again, NULL, "image"), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(cuTexRefDestroy(texture), CUDA_ERROR_INVALID_VALUE); /* the module's own */
    OK(cuTexRefSetFlags(texture, 0));
    OK(cuModuleUnload(module));
    CHECK_INT(cuTexRefSetFlags(texture, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuTexRefCreate(&texture));
    OK(cuCtxDestroy_v2(context));
    context_on(0);
    CHECK_INT(cuTexRefSetFlags(texture, 0), CUDA_ERROR_INVALID_VALUE);
}

static void the_linker_keeps_references(void) {
    CUlinkState state;
    CUtexref texture;
    CUsurfref surface;
    CUmodule module;
    void *cubin;
    size_t size;

    context_on(0);
    OK(cuLinkCreate_v2(0, NULL, NULL, &state));
    OK(cuLinkAddData_v2(state, CU_JIT_INPUT_PTX, (void *)(uintptr_t)ptx, sizeof(ptx), "ptx", 0, NULL, NULL));
    OK(cuLinkComplete(state, &cubin, &size));
    OK(cuModuleLoadData(&module, cubin));
    OK(cuModuleGetTexRef(&texture, module, "image"));
    OK(cuModuleGetSurfRef(&surface, module, "canvas"));
    CHECK_INT(cuModuleGetTexRef(&texture, module, "canvas"), CUDA_ERROR_NOT_FOUND);
    OK(cuLinkDestroy(state));
}

static void surface_references_need_an_array_for_it(void) {
    CUarray array, back;
    CUsurfref surface;
    CUmodule module;

    context_on(0);
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetSurfRef(&surface, module, "canvas"));
    CHECK_INT(cuSurfRefGetArray(&back, surface), CUDA_ERROR_INVALID_VALUE); /* none yet */
    array = array_of(64, 64, 0, 0);
    CHECK_INT(cuSurfRefSetArray(surface, array, 0), CUDA_ERROR_INVALID_VALUE);
    array = array_of(64, 64, 0, CUDA_ARRAY3D_SURFACE_LDST);
    CHECK_INT(cuSurfRefSetArray(surface, array, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuSurfRefSetArray(NULL, array, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuSurfRefSetArray(surface, NULL, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuSurfRefSetArray(surface, array, 0));
    OK(cuSurfRefGetArray(&back, surface));
    CHECK(back == array);
    CHECK_INT(cuSurfRefGetArray(NULL, surface), CUDA_ERROR_INVALID_VALUE);
}

static void names_lead_to_the_version_asked_for(void) {
    void *symbol;

    OK(cuGetProcAddress("cuTexRefSetAddress2D", &symbol, 2020, 0));
    CHECK(symbol == (void *)(uintptr_t)cuTexRefSetAddress2D);
    OK(cuGetProcAddress("cuTexRefSetAddress2D", &symbol, 4000, 0));
    CHECK(symbol == (void *)(uintptr_t)cuTexRefSetAddress2D_v2);
    OK(cuGetProcAddress("cuTexRefSetAddress2D", &symbol, 4010, 0));
    CHECK(symbol == (void *)(uintptr_t)cuTexRefSetAddress2D_v3);
    OK(cuGetProcAddress("cuTexRefGetAddress", &symbol, 3020, 0));
    CHECK(symbol == (void *)(uintptr_t)cuTexRefGetAddress_v2);
    OK(cuGetProcAddress("cuTexObjectCreate", &symbol, 5000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM));
    CHECK(symbol == (void *)(uintptr_t)cuTexObjectCreate);
    CHECK_INT(cuGetProcAddress("cuTexObjectCreate", &symbol, 4020, 0), CUDA_ERROR_NOT_FOUND);
}

const struct test texture_tests[] = {
    {"textures give back what they were made of", textures_give_back_what_they_were_made_of},
    {"textures are of one context", textures_are_of_one_context},
    {"descriptions must be good", descriptions_must_be_good},
    {"arrays must be there", arrays_must_be_there},
    {"linear memory must be there", linear_memory_must_be_there},
    {"linear memory is so wide at most", linear_memory_is_so_wide_at_most},
    {"rows of memory must be there", rows_of_memory_must_be_there},
    {"another gpu must be enabled", another_gpu_must_be_enabled},
    {"views are of their array", views_are_of_their_array},
    {"views see compressed blocks", views_see_compressed_blocks},
    {"surfaces need an array for it", surfaces_need_an_array_for_it},
    {"surfaces go with their context", surfaces_go_with_their_context},
    {"references read one thing at a time", references_read_one_thing_at_a_time},
    {"references begin at aligned addresses", references_begin_at_aligned_addresses},
    {"the oldest entry points", the_oldest_entry_points},
    {"references remember modes", references_remember_modes},
    {"references remember numbers", references_remember_numbers},
    {"modules declare references", modules_declare_references},
    {"the linker keeps references", the_linker_keeps_references},
    {"surface references need an array for it", surface_references_need_an_array_for_it},
    {"names lead to the version asked for", names_lead_to_the_version_asked_for},
    {0},
};
