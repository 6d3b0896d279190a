/*
 * What cuGetProcAddress answers: ENTRY(name, CUDA version since, symbol) where the default stream plays no part;
 * STREAM(name, since, symbol, since with the per-thread default stream, symbol with it) where it does. Of the rows of
 * a name, the newest that is no newer than what the caller asks for is meant. Names carry no suffix.
 */
#ifndef SIMGPU_ENTRY_POINTS_H
#define SIMGPU_ENTRY_POINTS_H

/* clang-format off */
#define SYNC_ROW(STREAM, name, since, symbol) STREAM(name, since, symbol, 7000, symbol##_ptds)
#define ASYNC_ROW(STREAM, name, since, symbol) STREAM(name, since, symbol, (since) > 7000 ? (since) : 7000, symbol##_ptsz)

#define ENTRY_POINTS(ENTRY, STREAM)                                                                                    \
    ENTRY(cuGetErrorString, 6000, cuGetErrorString)                                                                    \
    ENTRY(cuGetErrorName, 6000, cuGetErrorName)                                                                        \
    ENTRY(cuInit, 2000, cuInit)                                                                                        \
    ENTRY(cuDriverGetVersion, 2020, cuDriverGetVersion)                                                                \
    ENTRY(cuGetProcAddress, 11030, cuGetProcAddress)                                                                   \
    ENTRY(cuGetExportTable, 3000, cuGetExportTable)                                                                    \
    ENTRY(cuGetProcAddress, 12000, cuGetProcAddress_v2)                                                                \
    ENTRY(cuDeviceGet, 2000, cuDeviceGet)                                                                              \
    ENTRY(cuDeviceGetCount, 2000, cuDeviceGetCount)                                                                    \
    ENTRY(cuDeviceGetName, 2000, cuDeviceGetName)                                                                      \
    ENTRY(cuDeviceGetUuid, 9020, cuDeviceGetUuid)                                                                      \
    ENTRY(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2)                                                                  \
    ENTRY(cuDeviceTotalMem, 2000, cuDeviceTotalMem)                                                                    \
    ENTRY(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2)                                                                 \
    ENTRY(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute)                                                            \
    ENTRY(cuDeviceGetProperties, 2000, cuDeviceGetProperties)                                                          \
    ENTRY(cuDeviceComputeCapability, 2000, cuDeviceComputeCapability)                                                  \
    ENTRY(cuDeviceGetByPCIBusId, 4010, cuDeviceGetByPCIBusId)                                                          \
    ENTRY(cuDeviceGetPCIBusId, 4010, cuDeviceGetPCIBusId)                                                              \
    ENTRY(cuDeviceCanAccessPeer, 4000, cuDeviceCanAccessPeer)                                                          \
    ENTRY(cuDeviceGetP2PAttribute, 8000, cuDeviceGetP2PAttribute)                                                      \
    ENTRY(cuDeviceGetExecAffinitySupport, 11040, cuDeviceGetExecAffinitySupport)                                       \
    ENTRY(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain)                                                    \
    ENTRY(cuDevicePrimaryCtxRelease, 7000, cuDevicePrimaryCtxRelease)                                                  \
    ENTRY(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2)                                              \
    ENTRY(cuDevicePrimaryCtxSetFlags, 7000, cuDevicePrimaryCtxSetFlags)                                                \
    ENTRY(cuDevicePrimaryCtxSetFlags, 11000, cuDevicePrimaryCtxSetFlags_v2)                                            \
    ENTRY(cuDevicePrimaryCtxGetState, 7000, cuDevicePrimaryCtxGetState)                                                \
    ENTRY(cuDevicePrimaryCtxReset, 7000, cuDevicePrimaryCtxReset)                                                      \
    ENTRY(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2)                                                  \
    ENTRY(cuCtxCreate, 2000, cuCtxCreate)                                                                              \
    ENTRY(cuCtxCreate, 3020, cuCtxCreate_v2)                                                                           \
    ENTRY(cuCtxCreate, 11040, cuCtxCreate_v3)                                                                          \
    ENTRY(cuCtxCreate, 12050, cuCtxCreate_v4)                                                                          \
    ENTRY(cuCtxDestroy, 2000, cuCtxDestroy)                                                                            \
    ENTRY(cuCtxDestroy, 4000, cuCtxDestroy_v2)                                                                         \
    ENTRY(cuCtxAttach, 2000, cuCtxAttach)                                                                              \
    ENTRY(cuCtxDetach, 2000, cuCtxDetach)                                                                              \
    ENTRY(cuCtxPushCurrent, 2000, cuCtxPushCurrent)                                                                    \
    ENTRY(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2)                                                                 \
    ENTRY(cuCtxPopCurrent, 2000, cuCtxPopCurrent)                                                                      \
    ENTRY(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2)                                                                   \
    ENTRY(cuCtxSetCurrent, 4000, cuCtxSetCurrent)                                                                      \
    ENTRY(cuCtxGetCurrent, 4000, cuCtxGetCurrent)                                                                      \
    ENTRY(cuCtxGetDevice, 2000, cuCtxGetDevice)                                                                        \
    ENTRY(cuCtxGetFlags, 7000, cuCtxGetFlags)                                                                          \
    ENTRY(cuCtxSetFlags, 12010, cuCtxSetFlags)                                                                         \
    ENTRY(cuCtxGetId, 12000, cuCtxGetId)                                                                               \
    ENTRY(cuCtxSynchronize, 2000, cuCtxSynchronize)                                                                    \
    ENTRY(cuCtxSetLimit, 3010, cuCtxSetLimit)                                                                          \
    ENTRY(cuCtxGetLimit, 3010, cuCtxGetLimit)                                                                          \
    ENTRY(cuCtxGetCacheConfig, 3020, cuCtxGetCacheConfig)                                                              \
    ENTRY(cuCtxSetCacheConfig, 3020, cuCtxSetCacheConfig)                                                              \
    ENTRY(cuCtxGetSharedMemConfig, 4020, cuCtxGetSharedMemConfig)                                                      \
    ENTRY(cuCtxSetSharedMemConfig, 4020, cuCtxSetSharedMemConfig)                                                      \
    ENTRY(cuCtxGetApiVersion, 3020, cuCtxGetApiVersion)                                                                \
    ENTRY(cuCtxGetStreamPriorityRange, 5050, cuCtxGetStreamPriorityRange)                                              \
    ENTRY(cuCtxResetPersistingL2Cache, 11000, cuCtxResetPersistingL2Cache)                                             \
    ENTRY(cuCtxGetExecAffinity, 11040, cuCtxGetExecAffinity)                                                           \
    ENTRY(cuCtxEnablePeerAccess, 4000, cuCtxEnablePeerAccess)                                                          \
    ENTRY(cuCtxDisablePeerAccess, 4000, cuCtxDisablePeerAccess)                                                        \
    ENTRY(cuMemGetInfo, 2000, cuMemGetInfo)                                                                            \
    ENTRY(cuMemGetInfo, 3020, cuMemGetInfo_v2)                                                                         \
    ENTRY(cuMemAlloc, 2000, cuMemAlloc)                                                                                \
    ENTRY(cuMemAlloc, 3020, cuMemAlloc_v2)                                                                             \
    ENTRY(cuMemAllocPitch, 2000, cuMemAllocPitch)                                                                      \
    ENTRY(cuMemAllocPitch, 3020, cuMemAllocPitch_v2)                                                                   \
    ENTRY(cuMemAllocManaged, 6000, cuMemAllocManaged)                                                                  \
    ENTRY(cuMemFree, 2000, cuMemFree)                                                                                  \
    ENTRY(cuMemFree, 3020, cuMemFree_v2)                                                                               \
    ENTRY(cuMemGetAddressRange, 2000, cuMemGetAddressRange)                                                            \
    ENTRY(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2)                                                         \
    ENTRY(cuMemAllocHost, 2000, cuMemAllocHost)                                                                        \
    ENTRY(cuMemAllocHost, 3020, cuMemAllocHost_v2)                                                                     \
    ENTRY(cuMemHostAlloc, 2020, cuMemHostAlloc)                                                                        \
    ENTRY(cuMemFreeHost, 2000, cuMemFreeHost)                                                                          \
    ENTRY(cuMemHostGetDevicePointer, 2020, cuMemHostGetDevicePointer)                                                  \
    ENTRY(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2)                                               \
    ENTRY(cuMemHostGetFlags, 2030, cuMemHostGetFlags)                                                                  \
    ENTRY(cuMemHostRegister, 4000, cuMemHostRegister)                                                                  \
    ENTRY(cuMemHostRegister, 6050, cuMemHostRegister_v2)                                                               \
    ENTRY(cuMemHostUnregister, 4000, cuMemHostUnregister)                                                              \
    ENTRY(cuPointerGetAttribute, 4000, cuPointerGetAttribute)                                                          \
    ENTRY(cuPointerGetAttributes, 7000, cuPointerGetAttributes)                                                        \
    ENTRY(cuPointerSetAttribute, 6000, cuPointerSetAttribute)                                                          \
    SYNC_ROW(STREAM, cuMemcpy, 4000, cuMemcpy)                                                                         \
    SYNC_ROW(STREAM, cuMemcpyPeer, 4000, cuMemcpyPeer)                                                                 \
    SYNC_ROW(STREAM, cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2)                                                              \
    SYNC_ROW(STREAM, cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2)                                                              \
    SYNC_ROW(STREAM, cuMemcpyDtoD, 3020, cuMemcpyDtoD_v2)                                                              \
    SYNC_ROW(STREAM, cuMemcpyDtoA, 3020, cuMemcpyDtoA_v2)                                                              \
    SYNC_ROW(STREAM, cuMemcpyAtoD, 3020, cuMemcpyAtoD_v2)                                                              \
    SYNC_ROW(STREAM, cuMemcpyHtoA, 3020, cuMemcpyHtoA_v2)                                                              \
    SYNC_ROW(STREAM, cuMemcpyAtoH, 3020, cuMemcpyAtoH_v2)                                                              \
    SYNC_ROW(STREAM, cuMemcpyAtoA, 3020, cuMemcpyAtoA_v2)                                                              \
    SYNC_ROW(STREAM, cuMemcpy2D, 3020, cuMemcpy2D_v2)                                                                  \
    SYNC_ROW(STREAM, cuMemcpy2DUnaligned, 3020, cuMemcpy2DUnaligned_v2)                                                \
    SYNC_ROW(STREAM, cuMemcpy3D, 3020, cuMemcpy3D_v2)                                                                  \
    ASYNC_ROW(STREAM, cuMemcpyAsync, 4000, cuMemcpyAsync)                                                              \
    ASYNC_ROW(STREAM, cuMemcpyPeerAsync, 4000, cuMemcpyPeerAsync)                                                      \
    ASYNC_ROW(STREAM, cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2)                                                   \
    ASYNC_ROW(STREAM, cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2)                                                   \
    ASYNC_ROW(STREAM, cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2)                                                   \
    ASYNC_ROW(STREAM, cuMemcpyHtoAAsync, 3020, cuMemcpyHtoAAsync_v2)                                                   \
    ASYNC_ROW(STREAM, cuMemcpyAtoHAsync, 3020, cuMemcpyAtoHAsync_v2)                                                   \
    ASYNC_ROW(STREAM, cuMemcpy2DAsync, 3020, cuMemcpy2DAsync_v2)                                                       \
    ASYNC_ROW(STREAM, cuMemcpy3DAsync, 3020, cuMemcpy3DAsync_v2)                                                       \
    SYNC_ROW(STREAM, cuMemsetD8, 3020, cuMemsetD8_v2)                                                                  \
    SYNC_ROW(STREAM, cuMemsetD16, 3020, cuMemsetD16_v2)                                                                \
    SYNC_ROW(STREAM, cuMemsetD32, 3020, cuMemsetD32_v2)                                                                \
    SYNC_ROW(STREAM, cuMemsetD2D8, 3020, cuMemsetD2D8_v2)                                                              \
    SYNC_ROW(STREAM, cuMemsetD2D16, 3020, cuMemsetD2D16_v2)                                                            \
    SYNC_ROW(STREAM, cuMemsetD2D32, 3020, cuMemsetD2D32_v2)                                                            \
    ASYNC_ROW(STREAM, cuMemsetD8Async, 3020, cuMemsetD8Async)                                                          \
    ASYNC_ROW(STREAM, cuMemsetD16Async, 3020, cuMemsetD16Async)                                                        \
    ASYNC_ROW(STREAM, cuMemsetD32Async, 3020, cuMemsetD32Async)                                                        \
    ASYNC_ROW(STREAM, cuMemsetD2D8Async, 3020, cuMemsetD2D8Async)                                                      \
    ASYNC_ROW(STREAM, cuMemsetD2D16Async, 3020, cuMemsetD2D16Async)                                                    \
    ASYNC_ROW(STREAM, cuMemsetD2D32Async, 3020, cuMemsetD2D32Async)                                                    \
    ENTRY(cuModuleLoad, 2000, cuModuleLoad)                                                                            \
    ENTRY(cuModuleLoadData, 2000, cuModuleLoadData)                                                                    \
    ENTRY(cuModuleLoadDataEx, 2010, cuModuleLoadDataEx)                                                                \
    ENTRY(cuModuleLoadFatBinary, 2000, cuModuleLoadFatBinary)                                                          \
    ENTRY(cuModuleUnload, 2000, cuModuleUnload)                                                                        \
    ENTRY(cuModuleGetLoadingMode, 11070, cuModuleGetLoadingMode)                                                       \
    ENTRY(cuModuleGetFunction, 2000, cuModuleGetFunction)                                                              \
    ENTRY(cuModuleGetFunctionCount, 12040, cuModuleGetFunctionCount)                                                   \
    ENTRY(cuModuleGetGlobal, 2000, cuModuleGetGlobal)                                                                  \
    ENTRY(cuModuleGetGlobal, 3020, cuModuleGetGlobal_v2)                                                               \
    ENTRY(cuLibraryLoadData, 12000, cuLibraryLoadData)                                                                 \
    ENTRY(cuLibraryLoadFromFile, 12000, cuLibraryLoadFromFile)                                                         \
    ENTRY(cuLibraryUnload, 12000, cuLibraryUnload)                                                                     \
    ENTRY(cuLibraryGetKernel, 12000, cuLibraryGetKernel)                                                               \
    ENTRY(cuLibraryGetModule, 12000, cuLibraryGetModule)                                                               \
    ENTRY(cuKernelGetFunction, 12000, cuKernelGetFunction)                                                             \
    ENTRY(cuLibraryGetGlobal, 12000, cuLibraryGetGlobal)                                                               \
    ENTRY(cuFuncGetAttribute, 2020, cuFuncGetAttribute)                                                                \
    ENTRY(cuFuncSetAttribute, 9000, cuFuncSetAttribute)                                                                \
    ENTRY(cuFuncSetCacheConfig, 3000, cuFuncSetCacheConfig)                                                            \
    ENTRY(cuFuncGetModule, 11000, cuFuncGetModule)                                                                     \
    ENTRY(cuFuncGetParamInfo, 12040, cuFuncGetParamInfo)                                                               \
    ENTRY(cuKernelGetParamInfo, 12040, cuKernelGetParamInfo)                                                           \
    ENTRY(cuFuncGetName, 12030, cuFuncGetName)                                                                         \
    ENTRY(cuKernelGetName, 12030, cuKernelGetName)                                                                     \
    ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, cuOccupancyMaxActiveBlocksPerMultiprocessor)              \
    ASYNC_ROW(STREAM, cuLaunchKernel, 4000, cuLaunchKernel)                                                            \
    ASYNC_ROW(STREAM, cuLaunchKernelEx, 11060, cuLaunchKernelEx)                                                       \
    ASYNC_ROW(STREAM, cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel)                                      \
    ASYNC_ROW(STREAM, cuLaunchHostFunc, 10000, cuLaunchHostFunc)                                                       \
    ENTRY(cuStreamCreate, 2000, cuStreamCreate)                                                                        \
    ENTRY(cuStreamCreateWithPriority, 5050, cuStreamCreateWithPriority)                                                \
    ENTRY(cuStreamDestroy, 2000, cuStreamDestroy)                                                                      \
    ENTRY(cuStreamDestroy, 4000, cuStreamDestroy_v2)                                                                   \
    ASYNC_ROW(STREAM, cuStreamGetPriority, 5050, cuStreamGetPriority)                                                  \
    ASYNC_ROW(STREAM, cuStreamGetFlags, 5050, cuStreamGetFlags)                                                        \
    ASYNC_ROW(STREAM, cuStreamGetId, 12000, cuStreamGetId)                                                             \
    ASYNC_ROW(STREAM, cuStreamGetCtx, 9020, cuStreamGetCtx)                                                            \
    ASYNC_ROW(STREAM, cuStreamWaitEvent, 3020, cuStreamWaitEvent)                                                      \
    ASYNC_ROW(STREAM, cuStreamAddCallback, 5000, cuStreamAddCallback)                                                  \
    ASYNC_ROW(STREAM, cuStreamQuery, 2000, cuStreamQuery)                                                              \
    ASYNC_ROW(STREAM, cuStreamSynchronize, 2000, cuStreamSynchronize)                                                  \
    ENTRY(cuEventCreate, 2000, cuEventCreate)                                                                          \
    ASYNC_ROW(STREAM, cuEventRecord, 2000, cuEventRecord)                                                              \
    ASYNC_ROW(STREAM, cuEventRecordWithFlags, 11010, cuEventRecordWithFlags)                                           \
    ENTRY(cuEventQuery, 2000, cuEventQuery)                                                                            \
    ENTRY(cuEventSynchronize, 2000, cuEventSynchronize)                                                                \
    ENTRY(cuEventDestroy, 2000, cuEventDestroy)                                                                        \
    ENTRY(cuEventDestroy, 4000, cuEventDestroy_v2)                                                                     \
    ENTRY(cuEventElapsedTime, 2000, cuEventElapsedTime)                                                                \
    ENTRY(cuEventElapsedTime, 12080, cuEventElapsedTime_v2)                                                            \
    ENTRY(cuArrayCreate, 3020, cuArrayCreate_v2)                                                                       \
    ENTRY(cuArrayGetDescriptor, 3020, cuArrayGetDescriptor_v2)                                                         \
    ENTRY(cuArray3DCreate, 3020, cuArray3DCreate_v2)                                                                   \
    ENTRY(cuArray3DGetDescriptor, 3020, cuArray3DGetDescriptor_v2)                                                     \
    ENTRY(cuArrayDestroy, 2000, cuArrayDestroy)                                                                        \
    ENTRY(cuArrayGetMemoryRequirements, 11060, cuArrayGetMemoryRequirements)                                           \
    ENTRY(cuMipmappedArrayCreate, 5000, cuMipmappedArrayCreate)                                                        \
    ENTRY(cuMipmappedArrayGetLevel, 5000, cuMipmappedArrayGetLevel)                                                    \
    ENTRY(cuMipmappedArrayDestroy, 5000, cuMipmappedArrayDestroy)
/* clang-format on */

#endif
