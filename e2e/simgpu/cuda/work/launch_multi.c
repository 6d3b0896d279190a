/* One cooperative kernel on several GPUs: a launch on each of them. */
#include "stream.h"

#define FLAGS                                                                                                          \
    (CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC | CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC)

static bool same_shape(const CUDA_LAUNCH_PARAMS *a, const CUDA_LAUNCH_PARAMS *b) {
    return a->gridDimX == b->gridDimX && a->gridDimY == b->gridDimY && a->gridDimZ == b->gridDimZ &&
           a->blockDimX == b->blockDimX && a->blockDimY == b->blockDimY && a->blockDimZ == b->blockDimZ &&
           a->sharedMemBytes == b->sharedMemBytes;
}

/* Each launch has a GPU of its own, and a stream that the program made. */
static CUresult check(const CUDA_LAUNCH_PARAMS *list, unsigned count) {
    uint64_t devices = 0;

    for (unsigned i = 0; i < count; i++) {
        CUcontext context;
        uint64_t bit;

        REQUIRE(list[i].hStream > CU_STREAM_PER_THREAD, CUDA_ERROR_INVALID_HANDLE);
        TRY(cuStreamGetCtx(list[i].hStream, &context));
        bit = (uint64_t)1 << context->device;
        REQUIRE((devices & bit) == 0, CUDA_ERROR_INVALID_DEVICE);
        devices |= bit;
        REQUIRE(same_shape(&list[i], &list[0]), CUDA_ERROR_INVALID_VALUE);
    }
    return CUDA_SUCCESS;
}

static CUresult launch_one(const CUDA_LAUNCH_PARAMS *p) {
    CUcontext context, popped;
    CUresult ret;

    TRY(cuStreamGetCtx(p->hStream, &context));
    TRY(cuCtxPushCurrent_v2(context));
    ret = cuLaunchCooperativeKernel(p->function, p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY,
                                    p->blockDimZ, p->sharedMemBytes, p->hStream, p->kernelParams);
    cuCtxPopCurrent_v2(&popped);
    return ret;
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList, unsigned int numDevices,
                                              unsigned int flags) {
    REQUIRE_INITIALISED();
    REQUIRE(launchParamsList != NULL && numDevices > 0 && numDevices <= (unsigned)driver->device_count &&
                (flags & ~(unsigned)FLAGS) == 0,
            CUDA_ERROR_INVALID_VALUE);
    TRY(check(launchParamsList, numDevices));
    for (unsigned i = 0; i < numDevices; i++)
        TRY(launch_one(&launchParamsList[i]));
    return CUDA_SUCCESS;
}
