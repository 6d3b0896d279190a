/* What a surface reference writes to: an array that was made for it. */
#include "cuda/array/array.h"
#include "reference.h"
#include "resource.h"

CUresult cuSurfRefSetArray(CUsurfref hSurfRef, CUarray hArray, unsigned int Flags) {
    CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_ARRAY, .res.array = {hArray}};

    REQUIRE_CONTEXT(context);
    REQUIRE(surface_reference_valid(hSurfRef) && Flags == 0, CUDA_ERROR_INVALID_VALUE);
    TRY(resource_check(context, &resource));
    REQUIRE((hArray->descriptor.Flags & CUDA_ARRAY3D_SURFACE_LDST) != 0, CUDA_ERROR_INVALID_VALUE);
    hSurfRef->array = hArray;
    return CUDA_SUCCESS;
}

CUresult cuSurfRefGetArray(CUarray *phArray, CUsurfref hSurfRef) {
    REQUIRE_CONTEXT(context);
    (void)context;
    REQUIRE(phArray != NULL && surface_reference_valid(hSurfRef) && hSurfRef->array != NULL, CUDA_ERROR_INVALID_VALUE);
    *phArray = hSurfRef->array;
    return CUDA_SUCCESS;
}
