/* Arrays: memory in rows, whose layout is the driver's own matter. */
#ifndef SIMGPU_ARRAY_H
#define SIMGPU_ARRAY_H

#include "array_format.h"
#include "cuda/driver.h"

#define ARRAY_LEVELS 18 /* of an array whose longest side is as long as may be */

/* What an array without memory of its own was given (cuMemMapArrayAsync). */
struct array_mapping;

struct CUarray_st {
    struct handle handle;
    struct CUctx_st *context;
    CUmipmappedArray of; /* the mipmapped array that this is a level of */
    CUarray plane_of;    /* the array that this is a plane of */
    CUarray planes[3];   /* those that were asked for */
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    CUdeviceptr address; /* 0: nothing behind it yet */
    uint64_t row_bytes, rows, layers;
    uint64_t size; /* bytes that it takes */
    bool borrowed; /* its memory is not its own to give back */
    struct array_mapping *mappings;
};

struct CUmipmappedArray_st {
    struct handle handle;
    struct CUctx_st *context;
    unsigned level_count;
    CUdeviceptr address;
    uint64_t size;
    bool borrowed;
    struct array_mapping *mappings;
    CUarray levels[ARRAY_LEVELS];
};

/* Without memory of their own: it is mapped to them. */
#define ARRAY_UNBACKED (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)

bool array_valid(CUarray array);
bool mipmap_valid(CUmipmappedArray mipmap);

/* An array whose memory comes from elsewhere (another array's plane, external memory): address 0 is good, too. */
CUresult array_over(struct CUctx_st *context, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUdeviceptr address,
                    CUarray *array);

/* The same for a mipmapped array. Levels lie one after another, as in one that the driver made. */
CUresult mipmap_over(struct CUctx_st *context, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels,
                     CUdeviceptr address, CUmipmappedArray *mipmap);

/* Where the contents of an array or mipmapped array (0: nowhere), its levels and planes are. */
void array_place(CUarray array, CUdeviceptr address);
void mipmap_place(CUmipmappedArray mipmap, CUdeviceptr address);

/* Gives back what was mapped. */
void array_unmap_all(struct array_mapping **mappings);

#endif
