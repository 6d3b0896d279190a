/* Kernel launches. A kernel does nothing but take time. */
#include "capture.h"
#include "cuda/image/module.h"
#include "cuda/mps_client.h"
#include "stream.h"

#define MAX_BLOCK_THREADS 1024

struct shape {
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    const struct kernel_attributes *attributes; /* matter only where the launch is captured; NULL: none */
};

static bool shape_valid(const struct shape *s) {
    return s->grid[0] != 0 && s->grid[1] != 0 && s->grid[2] != 0 && s->grid[0] <= INT32_MAX && s->grid[1] <= 65535 &&
           s->grid[2] <= 65535 && s->block[0] != 0 && s->block[1] != 0 && s->block[2] != 0 &&
           s->block[0] <= MAX_BLOCK_THREADS && s->block[1] <= MAX_BLOCK_THREADS && s->block[2] <= 64 &&
           (uint64_t)s->block[0] * s->block[1] * s->block[2] <= MAX_BLOCK_THREADS;
}

static CUresult capture_launch(struct CUstream_st *stream, CUfunction f, const struct shape *s) {
    CUDA_KERNEL_NODE_PARAMS params = {.func = f,
                                      .gridDimX = s->grid[0],
                                      .gridDimY = s->grid[1],
                                      .gridDimZ = s->grid[2],
                                      .blockDimX = s->block[0],
                                      .blockDimY = s->block[1],
                                      .blockDimZ = s->block[2],
                                      .sharedMemBytes = s->shared_bytes};

    return capture_kernel(stream, &params, s->attributes);
}

static CUresult launch(CUfunction f, struct shape shape, CUstream hStream, void **params, void **extra,
                       bool per_thread) {
    struct CUstream_st *stream;
    struct function *function;
    bool captured;

    REQUIRE_CONTEXT(context);
    REQUIRE(f != NULL, CUDA_ERROR_INVALID_HANDLE);
    TRY(function_find(context, f, &function));
    REQUIRE(shape_valid(&shape) && (params == NULL || extra == NULL), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(shape.shared_bytes <= (unsigned)function->dynamic_shared_bytes, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_find(context, hStream, per_thread, &stream));
    TRY(function_make_ready(context, function));
    TRY(capture_enter(stream, &captured));
    if (captured)
        return capture_launch(stream, f, &shape);
    stream_submit(stream, function->duration_ns);
    kernel_launched(context->device);
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                        unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                        unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra) {
    struct shape shape = {{gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes, NULL};

    return launch(f, shape, hStream, kernelParams, extra, false);
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                             unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                             unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra) {
    struct shape shape = {{gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes, NULL};

    return launch(f, shape, hStream, kernelParams, extra, true);
}

/* Attributes say how a kernel runs, which here is always the same. */
static CUresult launch_ex(const CUlaunchConfig *config, CUfunction f, void **params, void **extra, bool per_thread) {
    struct kernel_attributes attributes = {0};
    struct shape shape;

    REQUIRE(config != NULL && (config->numAttrs == 0 || config->attrs != NULL), CUDA_ERROR_INVALID_VALUE);
    REQUIRE_INITIALISED();
    shape = (struct shape){{config->gridDimX, config->gridDimY, config->gridDimZ},
                           {config->blockDimX, config->blockDimY, config->blockDimZ},
                           config->sharedMemBytes,
                           &attributes};
    kernel_attributes_of_launch(config->attrs, config->numAttrs, &attributes);
    return launch(f, shape, config->hStream, params, extra, per_thread);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra) {
    return launch_ex(config, f, kernelParams, extra, false);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra) {
    return launch_ex(config, f, kernelParams, extra, true);
}

static CUresult launch_cooperative(CUfunction f, struct shape shape, CUstream hStream, void **params, bool per_thread) {
    uint64_t blocks = (uint64_t)shape.grid[0] * shape.grid[1] * shape.grid[2];
    int per_multiprocessor;

    REQUIRE_CONTEXT(context);
    REQUIRE(shape_valid(&shape), CUDA_ERROR_INVALID_VALUE);
    TRY(cuOccupancyMaxActiveBlocksPerMultiprocessor(
        &per_multiprocessor, f, (int)(shape.block[0] * shape.block[1] * shape.block[2]), shape.shared_bytes));
    REQUIRE(blocks <= (uint64_t)per_multiprocessor * (uint64_t)mps_client_multiprocessors(context->device),
            CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    shape.attributes = &(struct kernel_attributes){.cooperative = 1};
    return launch(f, shape, hStream, params, NULL, per_thread);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                                   unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                                   unsigned int sharedMemBytes, CUstream hStream, void **kernelParams) {
    struct shape shape = {{gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes, NULL};

    return launch_cooperative(f, shape, hStream, kernelParams, false);
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                        unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                        unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                        void **kernelParams) {
    struct shape shape = {{gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes, NULL};

    return launch_cooperative(f, shape, hStream, kernelParams, true);
}
