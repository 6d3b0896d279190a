/* Arrays: memory in rows, whose layout is the driver's own matter. */
#ifndef SIMGPU_ARRAY_H
#define SIMGPU_ARRAY_H

#include "driver.h"

struct CUarray_st {
    struct handle handle;
    struct CUctx_st *context;
    CUmipmappedArray of; /* the mipmapped array that this is a level of */
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    CUdeviceptr address; /* 0: nothing behind it yet (sparse, deferred mapping) */
    uint64_t row_bytes, rows, layers;
};

bool array_valid(CUarray array);

#endif
