/* Contexts cost memory before the first allocation, and each can be told to keep more for its kernels. */
#include "ways.h"

static CUresult take_context(uint64_t bytes, struct piece *piece) {
    CUcontext made;
    (void)bytes;
    CUresult result = cuda.cuCtxCreate_v2(&made, 0, device);
    piece->handle = made;
    cuda.cuCtxSetCurrent(context);
    return result;
}

static CUresult give_context(struct piece *piece) {
    CUresult result = cuda.cuCtxDestroy_v2(piece->handle);
    cuda.cuCtxSetCurrent(context);
    return result;
}

/* --- green contexts --- */

static CUdevResourceDesc all_multiprocessors;

static const char *need_green(void) {
    enum { MULTIPROCESSORS = 1 };
    static CUdevResource resource;
    CUresult result = cuda.cuDeviceGetDevResource(device, &resource, MULTIPROCESSORS);
    if (result == CUDA_SUCCESS)
        result = cuda.cuDevResourceGenerateDesc(&all_multiprocessors, &resource, 1);
    return result == CUDA_SUCCESS ? NULL : because("the resources of a green context: %s", error_name(result));
}

static CUresult take_green(uint64_t bytes, struct piece *piece) {
    enum { DEFAULT_STREAM = 1 };
    (void)bytes;
    return cuda.cuGreenCtxCreate((CUgreenCtx *)&piece->handle, all_multiprocessors, device, DEFAULT_STREAM);
}

static CUresult give_green(struct piece *piece) {
    return cuda.cuGreenCtxDestroy(piece->handle);
}

const struct way context_ways[] = {
    {"context", "cuCtxCreate", 0, FUNCTIONS("cuCtxCreate_v2", "cuCtxDestroy_v2", "cuCtxSetCurrent"), NULL, take_context,
     give_context, NULL},
    {"green-context", "cuGreenCtxCreate", 0,
     FUNCTIONS("cuDeviceGetDevResource", "cuDevResourceGenerateDesc", "cuGreenCtxCreate", "cuGreenCtxDestroy"),
     need_green, take_green, give_green, NULL},
    {0},
};
