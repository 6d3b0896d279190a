#include "ways.h"

static CUresult take_linear(uint64_t bytes, struct piece *piece) {
    return cuda.cuMemAlloc_v2(&piece->address, bytes);
}

static CUresult give_linear(struct piece *piece) {
    return cuda.cuMemFree_v2(piece->address);
}

/* Rows that are a multiple of every pitch alignment, so that the pitch adds nothing. */
static CUresult take_pitch(uint64_t bytes, struct piece *piece) {
    enum { ROW = 64 << 10 };
    size_t pitch;
    return cuda.cuMemAllocPitch_v2(&piece->address, &pitch, ROW, bytes / ROW, 4);
}

static const char *need_managed(void) {
    return attribute(device, ATTRIBUTE_MANAGED_MEMORY) ? NULL : "this GPU has no managed memory";
}

/* Touched from the GPU, or it would lie nowhere yet. */
static CUresult take_managed(uint64_t bytes, struct piece *piece) {
    enum { ATTACH_GLOBAL = 1 };
    CUresult result = cuda.cuMemAllocManaged(&piece->address, bytes, ATTACH_GLOBAL);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMemsetD8_v2(piece->address, 1, bytes);
    if (result == CUDA_SUCCESS)
        result = cuda.cuCtxSynchronize();
    if (result != CUDA_SUCCESS)
        cuda.cuMemFree_v2(piece->address);
    return result;
}

const struct way linear_ways[] = {
    {"linear", "cuMemAlloc", 2 * MIB, FUNCTIONS("cuMemAlloc_v2", "cuMemFree_v2"), NULL, take_linear, give_linear, NULL},
    {"linear-small", "cuMemAlloc of 4 KiB and more", 4096, FUNCTIONS("cuMemAlloc_v2", "cuMemFree_v2"), NULL,
     take_linear, give_linear, NULL},
    {"linear-odd", "cuMemAlloc of 1 MiB + 1 byte", MIB + 1, FUNCTIONS("cuMemAlloc_v2", "cuMemFree_v2"), NULL,
     take_linear, give_linear, NULL},
    {"pitch", "cuMemAllocPitch", 2 * MIB, FUNCTIONS("cuMemAllocPitch_v2", "cuMemFree_v2"), NULL, take_pitch,
     give_linear, NULL},
    {"managed", "cuMemAllocManaged, touched by the GPU", 2 * MIB,
     FUNCTIONS("cuMemAllocManaged", "cuMemFree_v2", "cuMemsetD8_v2", "cuCtxSynchronize"), need_managed, take_managed,
     give_linear, NULL},
    {0},
};
