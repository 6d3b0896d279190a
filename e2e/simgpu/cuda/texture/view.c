#include "view.h"

#include "cuda/array/array.h"
#include "resource.h"

/* A compressed block takes one texel of the array, of two or four words, and is four by four texels of the view. */
#define BLOCK_SIDE 4

static bool is_compressed(CUresourceViewFormat format) {
    return format >= CU_RES_VIEW_FORMAT_UNSIGNED_BC1;
}

static CUresult check_compressed(const CUDA_ARRAY3D_DESCRIPTOR *array, CUresourceViewFormat format) {
    bool small = format == CU_RES_VIEW_FORMAT_UNSIGNED_BC1 || format == CU_RES_VIEW_FORMAT_UNSIGNED_BC4 ||
                 format == CU_RES_VIEW_FORMAT_SIGNED_BC4;

    REQUIRE(array->Format == CU_AD_FORMAT_UNSIGNED_INT32 && array->NumChannels == (small ? 2 : 4),
            CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

/* Other formats come in threes: with one, two and four channels. Texels keep their size. */
static CUresult check_plain(const CUDA_ARRAY3D_DESCRIPTOR *array, CUresourceViewFormat format) {
    static const CUarray_format formats[] = {
        CU_AD_FORMAT_UNSIGNED_INT8,  CU_AD_FORMAT_SIGNED_INT8,  CU_AD_FORMAT_UNSIGNED_INT16, CU_AD_FORMAT_SIGNED_INT16,
        CU_AD_FORMAT_UNSIGNED_INT32, CU_AD_FORMAT_SIGNED_INT32, CU_AD_FORMAT_HALF,           CU_AD_FORMAT_FLOAT};
    unsigned number = (unsigned)format - CU_RES_VIEW_FORMAT_UINT_1X8;
    const struct array_format *own = array_format(array->Format);

    REQUIRE(own->block_width == 1 && own->plane_count == 0 &&
                array_format_bytes(own, array->NumChannels) ==
                    resource_element_bytes(formats[number / 3], 1u << number % 3),
            CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

static CUresult check_format(const CUDA_ARRAY3D_DESCRIPTOR *array, CUresourceViewFormat format) {
    REQUIRE((int)format >= CU_RES_VIEW_FORMAT_NONE && format <= CU_RES_VIEW_FORMAT_UNSIGNED_BC7,
            CUDA_ERROR_INVALID_VALUE);
    if (format == CU_RES_VIEW_FORMAT_NONE)
        return CUDA_SUCCESS;
    return is_compressed(format) ? check_compressed(array, format) : check_plain(array, format);
}

CUresult view_check(const CUDA_RESOURCE_DESC *resource, const CUDA_RESOURCE_VIEW_DESC *view) {
    const CUDA_ARRAY3D_DESCRIPTOR *array;
    unsigned levels = 1, layers = 1, side;

    if (resource->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
        array = &resource->res.mipmap.hMipmappedArray->levels[0]->descriptor;
        levels = resource->res.mipmap.hMipmappedArray->level_count;
    } else {
        REQUIRE(resource->resType == CU_RESOURCE_TYPE_ARRAY, CUDA_ERROR_INVALID_VALUE);
        array = &resource->res.array.hArray->descriptor;
    }
    if ((array->Flags & CUDA_ARRAY3D_LAYERED) != 0)
        layers = (unsigned)array->Depth;
    TRY(check_format(array, view->format));
    side = is_compressed(view->format) ? BLOCK_SIDE : 1;
    REQUIRE(view->width == array->Width * side && view->height == array->Height * side && view->depth == array->Depth,
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(view->firstMipmapLevel <= view->lastMipmapLevel && view->lastMipmapLevel < levels &&
                view->firstLayer <= view->lastLayer && view->lastLayer < layers,
            CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}
