/* What a texture reference reads, and how: set by the program before a launch, and given back as it was set. */
#include <string.h>

#include "cuda/array/array.h"
#include "reference.h"
#include "resource.h"
#include "texture.h"

/* Begins a function on a texture reference: declares `context`. */
#define REQUIRE_REFERENCE(reference)                                                                                   \
    REQUIRE_CONTEXT(context);                                                                                          \
    (void)context;                                                                                                     \
    REQUIRE(texture_reference_valid(reference), CUDA_ERROR_INVALID_VALUE)

/* ---- What it reads ---- */

static CUresult set_resource(struct CUctx_st *context, CUtexref reference, const CUDA_RESOURCE_DESC *resource) {
    TRY(resource_check(context, resource));
    reference->resource = *resource;
    reference->bound = true;
    return CUDA_SUCCESS;
}

static bool bound_to(CUtexref reference, CUresourcetype type) {
    return reference->bound && reference->resource.resType == type;
}

/* The array's format becomes the reference's. */
static void take_format(CUtexref reference, CUarray array) {
    reference->format = array->descriptor.Format;
    reference->channels = (int)array->descriptor.NumChannels;
}

CUresult cuTexRefSetArray(CUtexref hTexRef, CUarray hArray, unsigned int Flags) {
    CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_ARRAY, .res.array = {hArray}};

    REQUIRE_REFERENCE(hTexRef);
    REQUIRE(Flags == CU_TRSA_OVERRIDE_FORMAT, CUDA_ERROR_INVALID_VALUE);
    TRY(set_resource(context, hTexRef, &resource));
    take_format(hTexRef, hArray);
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetMipmappedArray(CUtexref hTexRef, CUmipmappedArray hMipmappedArray, unsigned int Flags) {
    CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY, .res.mipmap = {hMipmappedArray}};

    REQUIRE_REFERENCE(hTexRef);
    REQUIRE(Flags == CU_TRSA_OVERRIDE_FORMAT, CUDA_ERROR_INVALID_VALUE);
    TRY(set_resource(context, hTexRef, &resource));
    take_format(hTexRef, hMipmappedArray->levels[0]);
    return CUDA_SUCCESS;
}

/*
 * A texture begins at an aligned address: kernels add the offset of the one that was asked for. Before the format is
 * set, elements are taken for the largest.
 */
CUresult cuTexRefSetAddress_v2(size_t *ByteOffset, CUtexref hTexRef, CUdeviceptr dptr, size_t bytes) {
    CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_LINEAR};
    uint64_t offset;

    REQUIRE_REFERENCE(hTexRef);
    offset = dptr % resource_attribute(context, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
    REQUIRE(ByteOffset != NULL || offset == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(bytes <= SIZE_MAX - offset, CUDA_ERROR_INVALID_VALUE);
    resource.res.linear.devPtr = dptr - offset;
    resource.res.linear.format = hTexRef->channels != 0 ? hTexRef->format : CU_AD_FORMAT_FLOAT;
    resource.res.linear.numChannels = hTexRef->channels != 0 ? (unsigned)hTexRef->channels : 4;
    resource.res.linear.sizeInBytes = bytes + offset;
    TRY(set_resource(context, hTexRef, &resource));
    if (ByteOffset != NULL)
        *ByteOffset = offset;
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetAddress(unsigned int *ByteOffset, CUtexref hTexRef, CUdeviceptr_v1 dptr, unsigned int bytes) {
    size_t offset;

    TRY(cuTexRefSetAddress_v2(ByteOffset != NULL ? &offset : NULL, hTexRef, dptr, bytes));
    if (ByteOffset != NULL)
        *ByteOffset = (unsigned)offset;
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetAddress2D_v3(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR *desc, CUdeviceptr dptr, size_t Pitch) {
    CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_PITCH2D};

    REQUIRE_REFERENCE(hTexRef);
    REQUIRE(desc != NULL, CUDA_ERROR_INVALID_VALUE);
    resource.res.pitch2D.devPtr = dptr;
    resource.res.pitch2D.format = desc->Format;
    resource.res.pitch2D.numChannels = desc->NumChannels;
    resource.res.pitch2D.width = desc->Width;
    resource.res.pitch2D.height = desc->Height;
    resource.res.pitch2D.pitchInBytes = Pitch;
    TRY(set_resource(context, hTexRef, &resource));
    hTexRef->format = desc->Format;
    hTexRef->channels = (int)desc->NumChannels;
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetAddress2D_v2(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR *desc, CUdeviceptr dptr, size_t Pitch) {
    return cuTexRefSetAddress2D_v3(hTexRef, desc, dptr, Pitch);
}

CUresult cuTexRefSetAddress2D(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR_v1 *desc, CUdeviceptr_v1 dptr,
                              unsigned int Pitch) {
    CUDA_ARRAY_DESCRIPTOR descriptor;

    REQUIRE_REFERENCE(hTexRef);
    REQUIRE(desc != NULL, CUDA_ERROR_INVALID_VALUE);
    descriptor = (CUDA_ARRAY_DESCRIPTOR){desc->Width, desc->Height, desc->Format, desc->NumChannels};
    return cuTexRefSetAddress2D_v3(hTexRef, &descriptor, dptr, Pitch);
}

CUresult cuTexRefGetArray(CUarray *phArray, CUtexref hTexRef) {
    REQUIRE_REFERENCE(hTexRef);
    REQUIRE(phArray != NULL && bound_to(hTexRef, CU_RESOURCE_TYPE_ARRAY), CUDA_ERROR_INVALID_VALUE);
    *phArray = hTexRef->resource.res.array.hArray;
    return CUDA_SUCCESS;
}

CUresult cuTexRefGetMipmappedArray(CUmipmappedArray *phMipmappedArray, CUtexref hTexRef) {
    REQUIRE_REFERENCE(hTexRef);
    REQUIRE(phMipmappedArray != NULL && bound_to(hTexRef, CU_RESOURCE_TYPE_MIPMAPPED_ARRAY), CUDA_ERROR_INVALID_VALUE);
    *phMipmappedArray = hTexRef->resource.res.mipmap.hMipmappedArray;
    return CUDA_SUCCESS;
}

/* The address from which the texture is read: the aligned one. */
CUresult cuTexRefGetAddress_v2(CUdeviceptr *pdptr, CUtexref hTexRef) {
    REQUIRE_REFERENCE(hTexRef);
    REQUIRE(pdptr != NULL, CUDA_ERROR_INVALID_VALUE);
    if (bound_to(hTexRef, CU_RESOURCE_TYPE_PITCH2D)) {
        *pdptr = hTexRef->resource.res.pitch2D.devPtr;
        return CUDA_SUCCESS;
    }
    REQUIRE(bound_to(hTexRef, CU_RESOURCE_TYPE_LINEAR), CUDA_ERROR_INVALID_VALUE);
    *pdptr = hTexRef->resource.res.linear.devPtr;
    return CUDA_SUCCESS;
}

/* An address that has no 32 bits is an error. */
CUresult cuTexRefGetAddress(CUdeviceptr_v1 *pdptr, CUtexref hTexRef) {
    CUdeviceptr address;

    TRY(cuTexRefGetAddress_v2(&address, hTexRef));
    REQUIRE(pdptr != NULL && address <= UINT32_MAX, CUDA_ERROR_INVALID_VALUE);
    *pdptr = (CUdeviceptr_v1)address;
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetFormat(CUtexref hTexRef, CUarray_format fmt, int NumPackedComponents) {
    REQUIRE_REFERENCE(hTexRef);
    REQUIRE(NumPackedComponents > 0 && resource_element_bytes(fmt, (unsigned)NumPackedComponents) != 0,
            CUDA_ERROR_INVALID_VALUE);
    hTexRef->format = fmt;
    hTexRef->channels = NumPackedComponents;
    return CUDA_SUCCESS;
}

CUresult cuTexRefGetFormat(CUarray_format *pFormat, int *pNumChannels, CUtexref hTexRef) {
    REQUIRE_REFERENCE(hTexRef);
    REQUIRE(pFormat != NULL && pNumChannels != NULL && hTexRef->channels != 0, CUDA_ERROR_INVALID_VALUE);
    *pFormat = hTexRef->format;
    *pNumChannels = hTexRef->channels;
    return CUDA_SUCCESS;
}

/* ---- How it reads ---- */

CUresult cuTexRefSetAddressMode(CUtexref hTexRef, int dim, CUaddress_mode am) {
    REQUIRE_REFERENCE(hTexRef);
    REQUIRE(dim >= 0 && dim < 3 && texture_address_mode_valid(am), CUDA_ERROR_INVALID_VALUE);
    hTexRef->sampling.addressMode[dim] = am;
    return CUDA_SUCCESS;
}

CUresult cuTexRefGetAddressMode(CUaddress_mode *pam, CUtexref hTexRef, int dim) {
    REQUIRE_REFERENCE(hTexRef);
    REQUIRE(pam != NULL && dim >= 0 && dim < 3, CUDA_ERROR_INVALID_VALUE);
    *pam = hTexRef->sampling.addressMode[dim];
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetFilterMode(CUtexref hTexRef, CUfilter_mode fm) {
    REQUIRE_REFERENCE(hTexRef);
    REQUIRE(texture_filter_mode_valid(fm), CUDA_ERROR_INVALID_VALUE);
    hTexRef->sampling.filterMode = fm;
    return CUDA_SUCCESS;
}

CUresult cuTexRefGetFilterMode(CUfilter_mode *pfm, CUtexref hTexRef) {
    REQUIRE_REFERENCE(hTexRef);
    REQUIRE(pfm != NULL, CUDA_ERROR_INVALID_VALUE);
    *pfm = hTexRef->sampling.filterMode;
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetMipmapFilterMode(CUtexref hTexRef, CUfilter_mode fm) {
    REQUIRE_REFERENCE(hTexRef);
    REQUIRE(texture_filter_mode_valid(fm), CUDA_ERROR_INVALID_VALUE);
    hTexRef->sampling.mipmapFilterMode = fm;
    return CUDA_SUCCESS;
}

CUresult cuTexRefGetMipmapFilterMode(CUfilter_mode *pfm, CUtexref hTexRef) {
    REQUIRE_REFERENCE(hTexRef);
    REQUIRE(pfm != NULL, CUDA_ERROR_INVALID_VALUE);
    *pfm = hTexRef->sampling.mipmapFilterMode;
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetMipmapLevelBias(CUtexref hTexRef, float bias) {
    REQUIRE_REFERENCE(hTexRef);
    hTexRef->sampling.mipmapLevelBias = bias;
    return CUDA_SUCCESS;
}

CUresult cuTexRefGetMipmapLevelBias(float *pbias, CUtexref hTexRef) {
    REQUIRE_REFERENCE(hTexRef);
    REQUIRE(pbias != NULL, CUDA_ERROR_INVALID_VALUE);
    *pbias = hTexRef->sampling.mipmapLevelBias;
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetMipmapLevelClamp(CUtexref hTexRef, float minMipmapLevelClamp, float maxMipmapLevelClamp) {
    REQUIRE_REFERENCE(hTexRef);
    hTexRef->sampling.minMipmapLevelClamp = minMipmapLevelClamp;
    hTexRef->sampling.maxMipmapLevelClamp = maxMipmapLevelClamp;
    return CUDA_SUCCESS;
}

CUresult cuTexRefGetMipmapLevelClamp(float *pminMipmapLevelClamp, float *pmaxMipmapLevelClamp, CUtexref hTexRef) {
    REQUIRE_REFERENCE(hTexRef);
    REQUIRE(pminMipmapLevelClamp != NULL && pmaxMipmapLevelClamp != NULL, CUDA_ERROR_INVALID_VALUE);
    *pminMipmapLevelClamp = hTexRef->sampling.minMipmapLevelClamp;
    *pmaxMipmapLevelClamp = hTexRef->sampling.maxMipmapLevelClamp;
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetMaxAnisotropy(CUtexref hTexRef, unsigned int maxAniso) {
    REQUIRE_REFERENCE(hTexRef);
    hTexRef->sampling.maxAnisotropy = maxAniso;
    return CUDA_SUCCESS;
}

CUresult cuTexRefGetMaxAnisotropy(int *pmaxAniso, CUtexref hTexRef) {
    REQUIRE_REFERENCE(hTexRef);
    REQUIRE(pmaxAniso != NULL, CUDA_ERROR_INVALID_VALUE);
    *pmaxAniso = (int)hTexRef->sampling.maxAnisotropy;
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetBorderColor(CUtexref hTexRef, float *pBorderColor) {
    REQUIRE_REFERENCE(hTexRef);
    REQUIRE(pBorderColor != NULL, CUDA_ERROR_INVALID_VALUE);
    memcpy(hTexRef->sampling.borderColor, pBorderColor, sizeof(hTexRef->sampling.borderColor));
    return CUDA_SUCCESS;
}

CUresult cuTexRefGetBorderColor(float *pBorderColor, CUtexref hTexRef) {
    REQUIRE_REFERENCE(hTexRef);
    REQUIRE(pBorderColor != NULL, CUDA_ERROR_INVALID_VALUE);
    memcpy(pBorderColor, hTexRef->sampling.borderColor, sizeof(hTexRef->sampling.borderColor));
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetFlags(CUtexref hTexRef, unsigned int Flags) {
    REQUIRE_REFERENCE(hTexRef);
    REQUIRE((Flags & ~(unsigned)TEXTURE_FLAGS) == 0, CUDA_ERROR_INVALID_VALUE);
    hTexRef->sampling.flags = Flags;
    return CUDA_SUCCESS;
}

CUresult cuTexRefGetFlags(unsigned int *pFlags, CUtexref hTexRef) {
    REQUIRE_REFERENCE(hTexRef);
    REQUIRE(pFlags != NULL, CUDA_ERROR_INVALID_VALUE);
    *pFlags = hTexRef->sampling.flags;
    return CUDA_SUCCESS;
}
