#include "resource.h"

#include "cuda/array/array.h"
#include "cuda/memory/heap.h"
#include "cuda/memory/host_memory.h"

unsigned resource_element_bytes(CUarray_format format, unsigned channels) {
    const struct array_format *found = array_format(format);

    if (found == NULL || found->channels != 0 || (channels != 1 && channels != 2 && channels != 4))
        return 0;
    return array_format_bytes(found, channels);
}

uint64_t resource_attribute(const struct CUctx_st *context, CUdevice_attribute attribute) {
    int value = 0;

    cuDeviceGetAttribute(&value, attribute, context->device);
    return (uint64_t)value;
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *maxWidthInElements, CUarray_format format, unsigned numChannels,
                                            CUdevice dev) {
    int width;

    REQUIRE_INITIALISED();
    REQUIRE(device_valid(dev), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(maxWidthInElements != NULL && resource_element_bytes(format, numChannels) != 0, CUDA_ERROR_INVALID_VALUE);
    TRY(cuDeviceGetAttribute(&width, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH, dev));
    *maxWidthInElements = (size_t)width;
    return CUDA_SUCCESS;
}

/* ---- What a context reaches ---- */

static bool reaches_gpu(const struct CUctx_st *context, CUdevice device) {
    return device == context->device || (context->peers & 1u << device) != 0;
}

static bool reaches_array(const struct CUctx_st *context, const struct CUctx_st *owner) {
    return owner == context || (owner->device != context->device && reaches_gpu(context, owner->device));
}

/* Managed memory stays where it is: nobody has touched it yet. */
static bool reaches_memory(const struct CUctx_st *context, CUdeviceptr address, uint64_t size) {
    struct allocation allocation;
    struct host_range range;
    bool own;

    if (!heap_find(address, &allocation))
        return host_range_find((uintptr_t)address, &range) && size <= range.size - ((uintptr_t)address - range.base);
    own = allocation.extent->kind == EXTENT_LINEAR || allocation.extent->kind == EXTENT_PACKED;
    if (own && allocation.extent->pack_kind == PACK_MANAGED)
        return size <= allocation.size - (address - allocation.base);
    return (!own || reaches_gpu(context, allocation.extent->device)) && heap_touch(address, size);
}

/* ---- Resources ---- */

static CUresult check_linear(const struct CUctx_st *context, const CUDA_RESOURCE_DESC *resource) {
    uint64_t bytes = resource->res.linear.sizeInBytes;
    unsigned element = resource_element_bytes(resource->res.linear.format, resource->res.linear.numChannels);

    REQUIRE(element != 0 && bytes != 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(bytes / element <= resource_attribute(context, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH),
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(resource->res.linear.devPtr % resource_attribute(context, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT) == 0,
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(reaches_memory(context, resource->res.linear.devPtr, bytes), CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

/* Of the last row, what lies behind its last element need not be allocated. */
static CUresult check_pitch(const struct CUctx_st *context, const CUDA_RESOURCE_DESC *resource) {
    uint64_t width = resource->res.pitch2D.width, height = resource->res.pitch2D.height;
    uint64_t pitch = resource->res.pitch2D.pitchInBytes;
    unsigned element = resource_element_bytes(resource->res.pitch2D.format, resource->res.pitch2D.numChannels);

    REQUIRE(element != 0 && width != 0 && height != 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(width <= resource_attribute(context, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH) &&
                height <= resource_attribute(context, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT) &&
                pitch <= resource_attribute(context, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH),
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(pitch >= width * element &&
                pitch % resource_attribute(context, CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT) == 0 &&
                resource->res.pitch2D.devPtr % resource_attribute(context, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT) == 0,
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(reaches_memory(context, resource->res.pitch2D.devPtr, pitch * (height - 1) + width * element),
            CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

CUresult resource_check(struct CUctx_st *context, const CUDA_RESOURCE_DESC *resource) {
    REQUIRE(resource->flags == 0, CUDA_ERROR_INVALID_VALUE);
    switch (resource->resType) {
    case CU_RESOURCE_TYPE_ARRAY:
        REQUIRE(array_valid(resource->res.array.hArray), CUDA_ERROR_INVALID_VALUE);
        return reaches_array(context, resource->res.array.hArray->context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        REQUIRE(mipmap_valid(resource->res.mipmap.hMipmappedArray), CUDA_ERROR_INVALID_VALUE);
        return reaches_array(context, resource->res.mipmap.hMipmappedArray->context) ? CUDA_SUCCESS
                                                                                     : CUDA_ERROR_INVALID_VALUE;
    case CU_RESOURCE_TYPE_LINEAR:
        return check_linear(context, resource);
    case CU_RESOURCE_TYPE_PITCH2D:
        return check_pitch(context, resource);
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}
