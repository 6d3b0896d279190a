/*
 * The functions that only the governed libcuda.so.1 defines, which is built with TRANCHE_GOVERNED: rows as those of
 * driver/shadowed.h.
 *
 * CUDA_LAUNCHES has what gives the GPU work, with two more columns: the arguments, and the stream that the work goes to.
 * governor/launches.c makes the functions from the rows. cuGraphLaunch is in driver/shadowed.h.
 */
#ifndef TRANCHE_GOVERNED_H
#define TRANCHE_GOVERNED_H

/* clang-format off */
#define CUDA_LAUNCHES(X)                                                                                               \
    /* kernels */                                                                                                      \
    X(cuLaunchKernel, "cuLaunchKernel", 4000, LEGACY,                                                                  \
      (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,       \
       unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream, void **parameters,            \
       void **extra),                                                                                                  \
      (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, extra), IN_LEGACY(stream))\
    X(cuLaunchKernel_ptsz, "cuLaunchKernel", 7000, PER_THREAD,                                                         \
      (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,       \
       unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream, void **parameters,            \
       void **extra),                                                                                                  \
      (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, extra), IN_PER_THREAD(stream))\
    X(cuLaunchKernelEx, "cuLaunchKernelEx", 11060, LEGACY,                                                             \
      (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),                            \
      (config, function, parameters, extra), IN_LEGACY(config->hStream))                                               \
    X(cuLaunchKernelEx_ptsz, "cuLaunchKernelEx", 11060, PER_THREAD,                                                    \
      (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),                            \
      (config, function, parameters, extra), IN_PER_THREAD(config->hStream))                                           \
    X(cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel", 9000, LEGACY,                                            \
      (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,       \
       unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream, void **parameters),           \
      (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters), IN_LEGACY(stream))    \
    X(cuLaunchCooperativeKernel_ptsz, "cuLaunchCooperativeKernel", 9000, PER_THREAD,                                   \
      (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,       \
       unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream, void **parameters),           \
      (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters), IN_PER_THREAD(stream))\
    X(cuLaunch, "cuLaunch", 2000, ANY,                                                                                 \
      (CUfunction function),                                                                                           \
      (function), IN_LEGACY(NULL))                                                                                     \
    X(cuLaunchGrid, "cuLaunchGrid", 2000, ANY,                                                                         \
      (CUfunction function, int width, int height),                                                                    \
      (function, width, height), IN_LEGACY(NULL))                                                                      \
    X(cuLaunchGridAsync, "cuLaunchGridAsync", 2000, ANY,                                                               \
      (CUfunction function, int width, int height, CUstream stream),                                                   \
      (function, width, height, stream), IN_LEGACY(stream))                                                            \
    /* memory is set */                                                                                                \
    X(cuMemsetD8, "cuMemsetD8", 2000, LEGACY,                                                                          \
      (CUdeviceptr_v1 address, unsigned char value, unsigned int count),                                               \
      (address, value, count), IN_LEGACY(NULL))                                                                        \
    X(cuMemsetD8_v2, "cuMemsetD8", 3020, LEGACY,                                                                       \
      (CUdeviceptr address, unsigned char value, size_t count),                                                        \
      (address, value, count), IN_LEGACY(NULL))                                                                        \
    X(cuMemsetD8_v2_ptds, "cuMemsetD8", 7000, PER_THREAD,                                                              \
      (CUdeviceptr address, unsigned char value, size_t count),                                                        \
      (address, value, count), IN_PER_THREAD(NULL))                                                                    \
    X(cuMemsetD8Async, "cuMemsetD8Async", 3020, LEGACY,                                                                \
      (CUdeviceptr address, unsigned char value, size_t count, CUstream stream),                                       \
      (address, value, count, stream), IN_LEGACY(stream))                                                              \
    X(cuMemsetD8Async_ptsz, "cuMemsetD8Async", 7000, PER_THREAD,                                                       \
      (CUdeviceptr address, unsigned char value, size_t count, CUstream stream),                                       \
      (address, value, count, stream), IN_PER_THREAD(stream))                                                          \
    X(cuMemsetD2D8, "cuMemsetD2D8", 2000, LEGACY,                                                                      \
      (CUdeviceptr_v1 address, unsigned int pitch, unsigned char value, unsigned int width, unsigned int height),      \
      (address, pitch, value, width, height), IN_LEGACY(NULL))                                                         \
    X(cuMemsetD2D8_v2, "cuMemsetD2D8", 3020, LEGACY,                                                                   \
      (CUdeviceptr address, size_t pitch, unsigned char value, size_t width, size_t height),                           \
      (address, pitch, value, width, height), IN_LEGACY(NULL))                                                         \
    X(cuMemsetD2D8_v2_ptds, "cuMemsetD2D8", 7000, PER_THREAD,                                                          \
      (CUdeviceptr address, size_t pitch, unsigned char value, size_t width, size_t height),                           \
      (address, pitch, value, width, height), IN_PER_THREAD(NULL))                                                     \
    X(cuMemsetD2D8Async, "cuMemsetD2D8Async", 3020, LEGACY,                                                            \
      (CUdeviceptr address, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream),          \
      (address, pitch, value, width, height, stream), IN_LEGACY(stream))                                               \
    X(cuMemsetD2D8Async_ptsz, "cuMemsetD2D8Async", 7000, PER_THREAD,                                                   \
      (CUdeviceptr address, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream),          \
      (address, pitch, value, width, height, stream), IN_PER_THREAD(stream))                                           \
    X(cuMemsetD16, "cuMemsetD16", 2000, LEGACY,                                                                        \
      (CUdeviceptr_v1 address, unsigned short value, unsigned int count),                                              \
      (address, value, count), IN_LEGACY(NULL))                                                                        \
    X(cuMemsetD16_v2, "cuMemsetD16", 3020, LEGACY,                                                                     \
      (CUdeviceptr address, unsigned short value, size_t count),                                                       \
      (address, value, count), IN_LEGACY(NULL))                                                                        \
    X(cuMemsetD16_v2_ptds, "cuMemsetD16", 7000, PER_THREAD,                                                            \
      (CUdeviceptr address, unsigned short value, size_t count),                                                       \
      (address, value, count), IN_PER_THREAD(NULL))                                                                    \
    X(cuMemsetD16Async, "cuMemsetD16Async", 3020, LEGACY,                                                              \
      (CUdeviceptr address, unsigned short value, size_t count, CUstream stream),                                      \
      (address, value, count, stream), IN_LEGACY(stream))                                                              \
    X(cuMemsetD16Async_ptsz, "cuMemsetD16Async", 7000, PER_THREAD,                                                     \
      (CUdeviceptr address, unsigned short value, size_t count, CUstream stream),                                      \
      (address, value, count, stream), IN_PER_THREAD(stream))                                                          \
    X(cuMemsetD2D16, "cuMemsetD2D16", 2000, LEGACY,                                                                    \
      (CUdeviceptr_v1 address, unsigned int pitch, unsigned short value, unsigned int width, unsigned int height),     \
      (address, pitch, value, width, height), IN_LEGACY(NULL))                                                         \
    X(cuMemsetD2D16_v2, "cuMemsetD2D16", 3020, LEGACY,                                                                 \
      (CUdeviceptr address, size_t pitch, unsigned short value, size_t width, size_t height),                          \
      (address, pitch, value, width, height), IN_LEGACY(NULL))                                                         \
    X(cuMemsetD2D16_v2_ptds, "cuMemsetD2D16", 7000, PER_THREAD,                                                        \
      (CUdeviceptr address, size_t pitch, unsigned short value, size_t width, size_t height),                          \
      (address, pitch, value, width, height), IN_PER_THREAD(NULL))                                                     \
    X(cuMemsetD2D16Async, "cuMemsetD2D16Async", 3020, LEGACY,                                                          \
      (CUdeviceptr address, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream),         \
      (address, pitch, value, width, height, stream), IN_LEGACY(stream))                                               \
    X(cuMemsetD2D16Async_ptsz, "cuMemsetD2D16Async", 7000, PER_THREAD,                                                 \
      (CUdeviceptr address, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream),         \
      (address, pitch, value, width, height, stream), IN_PER_THREAD(stream))                                           \
    X(cuMemsetD32, "cuMemsetD32", 2000, LEGACY,                                                                        \
      (CUdeviceptr_v1 address, unsigned int value, unsigned int count),                                                \
      (address, value, count), IN_LEGACY(NULL))                                                                        \
    X(cuMemsetD32_v2, "cuMemsetD32", 3020, LEGACY,                                                                     \
      (CUdeviceptr address, unsigned int value, size_t count),                                                         \
      (address, value, count), IN_LEGACY(NULL))                                                                        \
    X(cuMemsetD32_v2_ptds, "cuMemsetD32", 7000, PER_THREAD,                                                            \
      (CUdeviceptr address, unsigned int value, size_t count),                                                         \
      (address, value, count), IN_PER_THREAD(NULL))                                                                    \
    X(cuMemsetD32Async, "cuMemsetD32Async", 3020, LEGACY,                                                              \
      (CUdeviceptr address, unsigned int value, size_t count, CUstream stream),                                        \
      (address, value, count, stream), IN_LEGACY(stream))                                                              \
    X(cuMemsetD32Async_ptsz, "cuMemsetD32Async", 7000, PER_THREAD,                                                     \
      (CUdeviceptr address, unsigned int value, size_t count, CUstream stream),                                        \
      (address, value, count, stream), IN_PER_THREAD(stream))                                                          \
    X(cuMemsetD2D32, "cuMemsetD2D32", 2000, LEGACY,                                                                    \
      (CUdeviceptr_v1 address, unsigned int pitch, unsigned int value, unsigned int width, unsigned int height),       \
      (address, pitch, value, width, height), IN_LEGACY(NULL))                                                         \
    X(cuMemsetD2D32_v2, "cuMemsetD2D32", 3020, LEGACY,                                                                 \
      (CUdeviceptr address, size_t pitch, unsigned int value, size_t width, size_t height),                            \
      (address, pitch, value, width, height), IN_LEGACY(NULL))                                                         \
    X(cuMemsetD2D32_v2_ptds, "cuMemsetD2D32", 7000, PER_THREAD,                                                        \
      (CUdeviceptr address, size_t pitch, unsigned int value, size_t width, size_t height),                            \
      (address, pitch, value, width, height), IN_PER_THREAD(NULL))                                                     \
    X(cuMemsetD2D32Async, "cuMemsetD2D32Async", 3020, LEGACY,                                                          \
      (CUdeviceptr address, size_t pitch, unsigned int value, size_t width, size_t height, CUstream stream),           \
      (address, pitch, value, width, height, stream), IN_LEGACY(stream))                                               \
    X(cuMemsetD2D32Async_ptsz, "cuMemsetD2D32Async", 7000, PER_THREAD,                                                 \
      (CUdeviceptr address, size_t pitch, unsigned int value, size_t width, size_t height, CUstream stream),           \
      (address, pitch, value, width, height, stream), IN_PER_THREAD(stream))                                           \
    /* copies in device memory */                                                                                      \
    X(cuMemcpyDtoD, "cuMemcpyDtoD", 2000, LEGACY,                                                                      \
      (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes),                                                    \
      (to, from, bytes), IN_LEGACY(NULL))                                                                              \
    X(cuMemcpyDtoD_v2, "cuMemcpyDtoD", 3020, LEGACY,                                                                   \
      (CUdeviceptr to, CUdeviceptr from, size_t bytes),                                                                \
      (to, from, bytes), IN_LEGACY(NULL))                                                                              \
    X(cuMemcpyDtoD_v2_ptds, "cuMemcpyDtoD", 7000, PER_THREAD,                                                          \
      (CUdeviceptr to, CUdeviceptr from, size_t bytes),                                                                \
      (to, from, bytes), IN_PER_THREAD(NULL))                                                                          \
    X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync", 3000, LEGACY,                                                            \
      (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream),                                   \
      (to, from, bytes, stream), IN_LEGACY(stream))                                                                    \
    X(cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync", 3020, LEGACY,                                                         \
      (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),                                               \
      (to, from, bytes, stream), IN_LEGACY(stream))                                                                    \
    X(cuMemcpyDtoDAsync_v2_ptsz, "cuMemcpyDtoDAsync", 7000, PER_THREAD,                                                \
      (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),                                               \
      (to, from, bytes, stream), IN_PER_THREAD(stream))                                                                \
    X(cuMemcpyPeer, "cuMemcpyPeer", 4000, LEGACY,                                                                      \
      (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes),                  \
      (to, to_context, from, from_context, bytes), IN_LEGACY(NULL))                                                    \
    X(cuMemcpyPeer_ptds, "cuMemcpyPeer", 7000, PER_THREAD,                                                             \
      (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes),                  \
      (to, to_context, from, from_context, bytes), IN_PER_THREAD(NULL))                                                \
    X(cuMemcpyPeerAsync, "cuMemcpyPeerAsync", 4000, LEGACY,                                                            \
      (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,                   \
       CUstream stream),                                                                                               \
      (to, to_context, from, from_context, bytes, stream), IN_LEGACY(stream))                                          \
    X(cuMemcpyPeerAsync_ptsz, "cuMemcpyPeerAsync", 7000, PER_THREAD,                                                   \
      (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,                   \
       CUstream stream),                                                                                               \
      (to, to_context, from, from_context, bytes, stream), IN_PER_THREAD(stream))                                      \
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
    X(cuStreamBeginCapture, "cuStreamBeginCapture", 10000, LEGACY, (CUstream stream))                                  \
    X(cuStreamBeginCapture_ptsz, "cuStreamBeginCapture", 10000, PER_THREAD, (CUstream stream))                         \
    X(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010, LEGACY, (CUstream stream, CUstreamCaptureMode mode))     \
    X(cuStreamBeginCapture_v2_ptsz, "cuStreamBeginCapture", 10010, PER_THREAD,                                         \
      (CUstream stream, CUstreamCaptureMode mode))                                                                     \
    X(cuStreamBeginCaptureToGraph, "cuStreamBeginCaptureToGraph", 12030, LEGACY,                                       \
      (CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges, size_t count,    \
       CUstreamCaptureMode mode))                                                                                      \
    X(cuStreamBeginCaptureToGraph_ptsz, "cuStreamBeginCaptureToGraph", 12030, PER_THREAD,                              \
      (CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges, size_t count,    \
       CUstreamCaptureMode mode))
/* clang-format on */

#define CUDA_GOVERNED(X) CUDA_LAUNCHES(X) CUDA_GOVERNED_BY_HAND(X)

#endif
