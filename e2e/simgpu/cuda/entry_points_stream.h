/* The rows of cuda_sim_stream.h; see entry_points.h. */
#ifndef SIMGPU_ENTRY_POINTS_STREAM_H
#define SIMGPU_ENTRY_POINTS_STREAM_H

/* clang-format off */
#define ENTRY_POINTS_STREAM(ENTRY, STREAM)                                                                             \
    ASYNC_ROW(STREAM, cuStreamGetAttribute, 11000, cuStreamGetAttribute)                                               \
    ASYNC_ROW(STREAM, cuStreamSetAttribute, 11000, cuStreamSetAttribute)                                               \
    ASYNC_ROW(STREAM, cuStreamCopyAttributes, 11000, cuStreamCopyAttributes)                                           \
    SYNC_ROW(STREAM, cuMemcpy3DPeer, 4000, cuMemcpy3DPeer)                                                             \
    ASYNC_ROW(STREAM, cuMemcpy3DPeerAsync, 4000, cuMemcpy3DPeerAsync)                                                  \
    ENTRY(cuLaunchCooperativeKernelMultiDevice, 9000, cuLaunchCooperativeKernelMultiDevice)                            \
    ENTRY(cuFuncSetSharedMemConfig, 4020, cuFuncSetSharedMemConfig)                                                    \
    ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000, cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)\
    ENTRY(cuOccupancyAvailableDynamicSMemPerBlock, 10020, cuOccupancyAvailableDynamicSMemPerBlock)                     \
    ENTRY(cuOccupancyMaxPotentialBlockSize, 6050, cuOccupancyMaxPotentialBlockSize)                                    \
    ENTRY(cuOccupancyMaxPotentialBlockSizeWithFlags, 7000, cuOccupancyMaxPotentialBlockSizeWithFlags)                  \
    ENTRY(cuOccupancyMaxPotentialClusterSize, 11070, cuOccupancyMaxPotentialClusterSize)                               \
    ENTRY(cuOccupancyMaxActiveClusters, 11070, cuOccupancyMaxActiveClusters)                                           \
    ENTRY(cuProfilerInitialize, 4000, cuProfilerInitialize)                                                            \
    ENTRY(cuProfilerStart, 4000, cuProfilerStart)                                                                      \
    ENTRY(cuProfilerStop, 4000, cuProfilerStop)                                                                        \
    ENTRY(cuFlushGPUDirectRDMAWrites, 11030, cuFlushGPUDirectRDMAWrites)                                               \
    ENTRY(cuDeviceGetNvSciSyncAttributes, 10020, cuDeviceGetNvSciSyncAttributes)                                       \
    ENTRY(cuDeviceRegisterAsyncNotification, 12040, cuDeviceRegisterAsyncNotification)                                 \
    ENTRY(cuDeviceUnregisterAsyncNotification, 12040, cuDeviceUnregisterAsyncNotification)
/* clang-format on */

#endif
