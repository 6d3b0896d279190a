/*
 * The functions that only the builds of libcuda.so.1 with turns define (TRANCHE_GOVERNED): rows as those of
 * driver/shadowed.h.
 *
 * CUDA_LAUNCHES has what gives the GPU work, with two more columns: the arguments, and the stream that the work goes to.
 * governor/launches.c makes the functions from the rows.
 */
#ifndef TRANCHE_GOVERNED_H
#define TRANCHE_GOVERNED_H

/* clang-format off */

/* The two forms of a launch: in the legacy default stream, and in the calling thread's, whose symbol has a suffix. */
#define CUDA_LAUNCH_FORMS(X, symbol, name, since, thread_since, suffix, parameters, arguments, stream)                 \
    X(symbol, name, since, LEGACY, parameters, arguments, IN_LEGACY(stream))                                           \
    X(symbol##suffix, name, thread_since, PER_THREAD, parameters, arguments, IN_PER_THREAD(stream))

/* What sets memory to values of so many bits. */
#define CUDA_SETS(X, bits, type)                                                                                       \
    X(cuMemsetD##bits, "cuMemsetD" #bits, 2000, LEGACY, (CUdeviceptr_v1 address, type value, unsigned int count),      \
      (address, value, count), IN_LEGACY(NULL))                                                                        \
    CUDA_LAUNCH_FORMS(X, cuMemsetD##bits##_v2, "cuMemsetD" #bits, 3020, 7000, _ptds,                                   \
      (CUdeviceptr address, type value, size_t count), (address, value, count), NULL)                                  \
    CUDA_LAUNCH_FORMS(X, cuMemsetD##bits##Async, "cuMemsetD" #bits "Async", 3020, 7000, _ptsz,                         \
      (CUdeviceptr address, type value, size_t count, CUstream stream), (address, value, count, stream), stream)       \
    X(cuMemsetD2D##bits, "cuMemsetD2D" #bits, 2000, LEGACY,                                                            \
      (CUdeviceptr_v1 address, unsigned int pitch, type value, unsigned int width, unsigned int height),               \
      (address, pitch, value, width, height), IN_LEGACY(NULL))                                                         \
    CUDA_LAUNCH_FORMS(X, cuMemsetD2D##bits##_v2, "cuMemsetD2D" #bits, 3020, 7000, _ptds,                               \
      (CUdeviceptr address, size_t pitch, type value, size_t width, size_t height),                                    \
      (address, pitch, value, width, height), NULL)                                                                    \
    CUDA_LAUNCH_FORMS(X, cuMemsetD2D##bits##Async, "cuMemsetD2D" #bits "Async", 3020, 7000, _ptsz,                     \
      (CUdeviceptr address, size_t pitch, type value, size_t width, size_t height, CUstream stream),                   \
      (address, pitch, value, width, height, stream), stream)

/* Graphs, where their memory is not limited. Where it is, cuda/graph.c launches them. */
#ifdef TRANCHE_COMPUTE_ONLY
#define CUDA_GRAPH_LAUNCHES(X)                                                                                         \
    CUDA_LAUNCH_FORMS(X, cuGraphLaunch, "cuGraphLaunch", 10000, 10000, _ptsz, (CUgraphExec exec, CUstream stream),     \
      (exec, stream), stream)
#else
#define CUDA_GRAPH_LAUNCHES(X)
#endif

#define CUDA_LAUNCHES(X)                                                                                               \
    /* kernels */                                                                                                      \
    CUDA_LAUNCH_FORMS(X, cuLaunchKernel, "cuLaunchKernel", 4000, 7000, _ptsz,                                          \
      (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,       \
       unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream, void **parameters,            \
       void **extra),                                                                                                  \
      (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, extra), stream)        \
    CUDA_LAUNCH_FORMS(X, cuLaunchKernelEx, "cuLaunchKernelEx", 11060, 11060, _ptsz,                                    \
      (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),                            \
      (config, function, parameters, extra), config->hStream)                                                          \
    CUDA_LAUNCH_FORMS(X, cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel", 9000, 9000, _ptsz,                    \
      (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,       \
       unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream, void **parameters),           \
      (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters), stream)               \
    X(cuLaunch, "cuLaunch", 2000, ANY, (CUfunction function), (function), IN_LEGACY(NULL))                             \
    X(cuLaunchGrid, "cuLaunchGrid", 2000, ANY, (CUfunction function, int width, int height),                           \
      (function, width, height), IN_LEGACY(NULL))                                                                      \
    X(cuLaunchGridAsync, "cuLaunchGridAsync", 2000, ANY,                                                               \
      (CUfunction function, int width, int height, CUstream stream),                                                   \
      (function, width, height, stream), IN_LEGACY(stream))                                                            \
    CUDA_GRAPH_LAUNCHES(X)                                                                                             \
    /* memory is set */                                                                                                \
    CUDA_SETS(X, 8, unsigned char)                                                                                     \
    CUDA_SETS(X, 16, unsigned short)                                                                                   \
    CUDA_SETS(X, 32, unsigned int)                                                                                     \
    /* copies in device memory */                                                                                      \
    X(cuMemcpyDtoD, "cuMemcpyDtoD", 2000, LEGACY, (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes),        \
      (to, from, bytes), IN_LEGACY(NULL))                                                                              \
    CUDA_LAUNCH_FORMS(X, cuMemcpyDtoD_v2, "cuMemcpyDtoD", 3020, 7000, _ptds,                                           \
      (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes), NULL)                                       \
    X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync", 3000, LEGACY,                                                            \
      (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream),                                   \
      (to, from, bytes, stream), IN_LEGACY(stream))                                                                    \
    CUDA_LAUNCH_FORMS(X, cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync", 3020, 7000, _ptsz,                                 \
      (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream), stream)            \
    CUDA_LAUNCH_FORMS(X, cuMemcpyPeer, "cuMemcpyPeer", 4000, 7000, _ptds,                                              \
      (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes),                  \
      (to, to_context, from, from_context, bytes), NULL)                                                               \
    CUDA_LAUNCH_FORMS(X, cuMemcpyPeerAsync, "cuMemcpyPeerAsync", 4000, 7000, _ptsz,                                    \
      (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,                   \
       CUstream stream),                                                                                               \
      (to, to_context, from, from_context, bytes, stream), stream)                                                     \
    X(cuMemcpy, "cuMemcpy", 4000, LEGACY,                                                                              \
      (CUdeviceptr to, CUdeviceptr from, size_t bytes),                                                                \
      (to, from, bytes), COPY_IN(to, from, IN_LEGACY(NULL)))                                                           \
    X(cuMemcpy_ptds, "cuMemcpy", 7000, PER_THREAD,                                                                     \
      (CUdeviceptr to, CUdeviceptr from, size_t bytes),                                                                \
      (to, from, bytes), COPY_IN(to, from, IN_PER_THREAD(NULL)))                                                       \
    X(cuMemcpyAsync, "cuMemcpyAsync", 4000, LEGACY,                                                                    \
      (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),                                               \
      (to, from, bytes, stream), COPY_IN(to, from, IN_LEGACY(stream)))                                                 \
    X(cuMemcpyAsync_ptsz, "cuMemcpyAsync", 7000, PER_THREAD,                                                           \
      (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),                                               \
      (to, from, bytes, stream), COPY_IN(to, from, IN_PER_THREAD(stream)))

/* Written by hand: a launch on several GPUs, and what the governor has to know of streams. */
#define CUDA_GOVERNED_BY_HAND(X)                                                                                       \
    X(cuLaunchCooperativeKernelMultiDevice, "cuLaunchCooperativeKernelMultiDevice", 9000, ANY,                         \
      (CUDA_LAUNCH_PARAMS *launches, unsigned int count, unsigned int flags))                                          \
    X(cuStreamCreate, "cuStreamCreate", 2000, ANY, (CUstream *stream, unsigned int flags))                             \
    X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", 5050, ANY,                                             \
      (CUstream *stream, unsigned int flags, int priority))                                                            \
    X(cuGreenCtxStreamCreate, "cuGreenCtxStreamCreate", 12050, ANY,                                                    \
      (CUstream *stream, CUgreenCtx green, unsigned int flags, int priority))                                          \
    CUDA_STREAM_FORMS(X, cuStreamWaitValue32, "cuStreamWaitValue32", 8000,                                             \
      (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags))                                    \
    CUDA_STREAM_FORMS(X, cuStreamWaitValue32_v2, "cuStreamWaitValue32", 11070,                                         \
      (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags))                                    \
    CUDA_STREAM_FORMS(X, cuStreamWaitValue64, "cuStreamWaitValue64", 9000,                                             \
      (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags))                                    \
    CUDA_STREAM_FORMS(X, cuStreamWaitValue64_v2, "cuStreamWaitValue64", 11070,                                         \
      (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags))                                    \
    CUDA_STREAM_FORMS(X, cuStreamBatchMemOp, "cuStreamBatchMemOp", 8000,                                               \
      (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *operations, unsigned int flags))                 \
    CUDA_STREAM_FORMS(X, cuStreamBatchMemOp_v2, "cuStreamBatchMemOp", 11070,                                           \
      (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *operations, unsigned int flags))                 \
    CUDA_STREAM_FORMS(X, cuWaitExternalSemaphoresAsync, "cuWaitExternalSemaphoresAsync", 10000,                        \
      (const CUexternalSemaphore *semaphores, const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *parameters,                   \
       unsigned int count, CUstream stream))                                                                           \
    CUDA_STREAM_FORMS(X, cuStreamBeginCapture, "cuStreamBeginCapture", 10000, (CUstream stream))                       \
    CUDA_STREAM_FORMS(X, cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010,                                       \
      (CUstream stream, CUstreamCaptureMode mode))                                                                     \
    CUDA_STREAM_FORMS(X, cuStreamBeginCaptureToGraph, "cuStreamBeginCaptureToGraph", 12030,                            \
      (CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges, size_t count,    \
       CUstreamCaptureMode mode))
/* clang-format on */

#define CUDA_GOVERNED(X) CUDA_LAUNCHES(X) CUDA_GOVERNED_BY_HAND(X)

#endif
