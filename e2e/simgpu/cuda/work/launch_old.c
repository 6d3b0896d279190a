/* Launches as they were before CUDA 4.0: the function keeps its block's shape and its parameters, which here nobody reads. */
#include "cuda/image/module.h"
#include "stream.h"

#define MAX_PARAMETER_BYTES 4096

static CUresult find(CUfunction f, struct function **function) {
    REQUIRE_CONTEXT(context);
    REQUIRE(f != NULL, CUDA_ERROR_INVALID_HANDLE);
    return function_find(context, f, function);
}

CUresult cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z) {
    struct function *function;

    TRY(find(hfunc, &function));
    REQUIRE(x > 0 && y > 0 && z > 0, CUDA_ERROR_INVALID_VALUE);
    function->old_block[0] = (unsigned)x;
    function->old_block[1] = (unsigned)y;
    function->old_block[2] = (unsigned)z;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetSharedSize(CUfunction hfunc, unsigned int bytes) {
    struct function *function;

    TRY(find(hfunc, &function));
    function->old_shared_bytes = bytes;
    return CUDA_SUCCESS;
}

static CUresult set_parameter(CUfunction hfunc, int offset, uint64_t bytes) {
    struct function *function;

    TRY(find(hfunc, &function));
    REQUIRE(offset >= 0 && (uint64_t)offset + bytes <= MAX_PARAMETER_BYTES, CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

CUresult cuParamSetSize(CUfunction hfunc, unsigned int numbytes) {
    return set_parameter(hfunc, 0, numbytes);
}

CUresult cuParamSeti(CUfunction hfunc, int offset, unsigned int value) {
    return set_parameter(hfunc, offset, sizeof(value));
}

CUresult cuParamSetf(CUfunction hfunc, int offset, float value) {
    return set_parameter(hfunc, offset, sizeof(value));
}

CUresult cuParamSetv(CUfunction hfunc, int offset, void *ptr, unsigned int numbytes) {
    REQUIRE_INITIALISED();
    REQUIRE(ptr != NULL, CUDA_ERROR_INVALID_VALUE);
    return set_parameter(hfunc, offset, numbytes);
}

CUresult cuParamSetTexRef(CUfunction hfunc, int texunit, CUtexref hTexRef) {
    REQUIRE_INITIALISED();
    REQUIRE(texunit == CU_PARAM_TR_DEFAULT && hTexRef != NULL, CUDA_ERROR_INVALID_VALUE);
    return set_parameter(hfunc, 0, 0);
}

CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream) {
    struct function *function;

    TRY(find(f, &function));
    REQUIRE(grid_width > 0 && grid_height > 0 && function->old_block[0] > 0, CUDA_ERROR_INVALID_VALUE);
    return cuLaunchKernel(f, (unsigned)grid_width, (unsigned)grid_height, 1, function->old_block[0],
                          function->old_block[1], function->old_block[2], function->old_shared_bytes, hStream, NULL,
                          NULL);
}

CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height) {
    return cuLaunchGridAsync(f, grid_width, grid_height, NULL);
}

CUresult cuLaunch(CUfunction f) {
    return cuLaunchGrid(f, 1, 1);
}
