/* Rows of entry_points.h: pools, graphs, stream capture. */
#ifndef SIMGPU_ENTRY_POINTS_POOL_H
#define SIMGPU_ENTRY_POINTS_POOL_H

/* clang-format off */
#define ENTRY_POINTS_POOL(ENTRY, STREAM)                                                                               \
    ENTRY(cuDeviceGetDefaultMemPool, 11020, cuDeviceGetDefaultMemPool)                                                 \
    ENTRY(cuDeviceGetMemPool, 11020, cuDeviceGetMemPool)                                                               \
    ENTRY(cuDeviceSetMemPool, 11020, cuDeviceSetMemPool)                                                               \
    ENTRY(cuMemPoolCreate, 11020, cuMemPoolCreate)                                                                     \
    ENTRY(cuMemPoolDestroy, 11020, cuMemPoolDestroy)                                                                   \
    ENTRY(cuMemPoolTrimTo, 11020, cuMemPoolTrimTo)                                                                     \
    ENTRY(cuMemPoolSetAttribute, 11020, cuMemPoolSetAttribute)                                                         \
    ENTRY(cuMemPoolGetAttribute, 11020, cuMemPoolGetAttribute)                                                         \
    ENTRY(cuMemPoolExportToShareableHandle, 11020, cuMemPoolExportToShareableHandle)                                   \
    ENTRY(cuMemPoolImportFromShareableHandle, 11020, cuMemPoolImportFromShareableHandle)                               \
    ENTRY(cuMemPoolExportPointer, 11020, cuMemPoolExportPointer)                                                       \
    ENTRY(cuMemPoolImportPointer, 11020, cuMemPoolImportPointer)                                                       \
    ENTRY(cuMemPoolSetAccess, 11020, cuMemPoolSetAccess)                                                               \
    ENTRY(cuMemPoolGetAccess, 11020, cuMemPoolGetAccess)                                                               \
    ASYNC_ROW(STREAM, cuMemAllocAsync, 11020, cuMemAllocAsync)                                                         \
    ASYNC_ROW(STREAM, cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync)                                         \
    ASYNC_ROW(STREAM, cuMemFreeAsync, 11020, cuMemFreeAsync)                                                           \
    ENTRY(cuGraphCreate, 10000, cuGraphCreate)                                                                         \
    ENTRY(cuGraphDestroy, 10000, cuGraphDestroy)                                                                       \
    ENTRY(cuGraphClone, 10000, cuGraphClone)                                                                           \
    ENTRY(cuGraphAddEmptyNode, 10000, cuGraphAddEmptyNode)                                                             \
    ENTRY(cuGraphAddMemcpyNode, 10000, cuGraphAddMemcpyNode)                                                           \
    ENTRY(cuGraphAddMemsetNode, 10000, cuGraphAddMemsetNode)                                                           \
    ENTRY(cuGraphAddHostNode, 10000, cuGraphAddHostNode)                                                               \
    ENTRY(cuGraphAddChildGraphNode, 10000, cuGraphAddChildGraphNode)                                                   \
    ENTRY(cuGraphChildGraphNodeGetGraph, 10000, cuGraphChildGraphNodeGetGraph)                                         \
    ENTRY(cuGraphNodeFindInClone, 10000, cuGraphNodeFindInClone)                                                       \
    ENTRY(cuGraphNodeGetType, 10000, cuGraphNodeGetType)                                                               \
    ENTRY(cuGraphGetNodes, 10000, cuGraphGetNodes)                                                                     \
    ENTRY(cuGraphGetRootNodes, 10000, cuGraphGetRootNodes)                                                             \
    ENTRY(cuGraphGetEdges, 10000, cuGraphGetEdges)                                                                     \
    ENTRY(cuGraphNodeGetDependencies, 10000, cuGraphNodeGetDependencies)                                               \
    ENTRY(cuGraphNodeGetDependentNodes, 10000, cuGraphNodeGetDependentNodes)                                           \
    ENTRY(cuGraphAddDependencies, 10000, cuGraphAddDependencies)                                                       \
    ENTRY(cuGraphRemoveDependencies, 10000, cuGraphRemoveDependencies)                                                 \
    ENTRY(cuGraphDestroyNode, 10000, cuGraphDestroyNode)                                                               \
    ENTRY(cuGraphExecDestroy, 10000, cuGraphExecDestroy)                                                               \
    ENTRY(cuGraphAddKernelNode, 10000, cuGraphAddKernelNode)                                                           \
    ENTRY(cuGraphAddKernelNode, 12000, cuGraphAddKernelNode_v2)                                                        \
    ENTRY(cuGraphAddEventRecordNode, 11010, cuGraphAddEventRecordNode)                                                 \
    ENTRY(cuGraphAddEventWaitNode, 11010, cuGraphAddEventWaitNode)                                                     \
    ENTRY(cuGraphAddMemAllocNode, 11040, cuGraphAddMemAllocNode)                                                       \
    ENTRY(cuGraphAddMemFreeNode, 11040, cuGraphAddMemFreeNode)                                                         \
    ENTRY(cuGraphMemAllocNodeGetParams, 11040, cuGraphMemAllocNodeGetParams)                                           \
    ENTRY(cuGraphMemFreeNodeGetParams, 11040, cuGraphMemFreeNodeGetParams)                                             \
    ENTRY(cuDeviceGraphMemTrim, 11040, cuDeviceGraphMemTrim)                                                           \
    ENTRY(cuDeviceGetGraphMemAttribute, 11040, cuDeviceGetGraphMemAttribute)                                           \
    ENTRY(cuDeviceSetGraphMemAttribute, 11040, cuDeviceSetGraphMemAttribute)                                           \
    ENTRY(cuGraphAddNode, 12020, cuGraphAddNode)                                                                       \
    ENTRY(cuGraphAddNode, 12030, cuGraphAddNode_v2)                                                                    \
    ENTRY(cuGraphAddDependencies, 12030, cuGraphAddDependencies_v2)                                                    \
    ENTRY(cuGraphInstantiate, 10000, cuGraphInstantiate)                                                               \
    ENTRY(cuGraphInstantiate, 11000, cuGraphInstantiate_v2)                                                            \
    ENTRY(cuGraphInstantiateWithFlags, 11040, cuGraphInstantiateWithFlags)                                             \
    ASYNC_ROW(STREAM, cuGraphInstantiateWithParams, 12000, cuGraphInstantiateWithParams)                               \
    ASYNC_ROW(STREAM, cuGraphUpload, 11010, cuGraphUpload)                                                             \
    ASYNC_ROW(STREAM, cuGraphLaunch, 10000, cuGraphLaunch)                                                             \
    ENTRY(cuGraphExecGetFlags, 12000, cuGraphExecGetFlags)                                                             \
    ENTRY(cuGraphExecUpdate, 10020, cuGraphExecUpdate)                                                                 \
    ENTRY(cuGraphExecUpdate, 12000, cuGraphExecUpdate_v2)                                                              \
    ASYNC_ROW(STREAM, cuStreamBeginCapture, 10000, cuStreamBeginCapture)                                               \
    ASYNC_ROW(STREAM, cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2)                                            \
    ASYNC_ROW(STREAM, cuStreamBeginCaptureToGraph, 12030, cuStreamBeginCaptureToGraph)                                 \
    ASYNC_ROW(STREAM, cuStreamEndCapture, 10000, cuStreamEndCapture)                                                   \
    ASYNC_ROW(STREAM, cuStreamIsCapturing, 10000, cuStreamIsCapturing)                                                 \
    ASYNC_ROW(STREAM, cuStreamGetCaptureInfo, 10010, cuStreamGetCaptureInfo)                                           \
    ASYNC_ROW(STREAM, cuStreamGetCaptureInfo, 11030, cuStreamGetCaptureInfo_v2)                                        \
    ASYNC_ROW(STREAM, cuStreamGetCaptureInfo, 12030, cuStreamGetCaptureInfo_v3)                                        \
    ASYNC_ROW(STREAM, cuStreamUpdateCaptureDependencies, 11030, cuStreamUpdateCaptureDependencies)                     \
    ASYNC_ROW(STREAM, cuStreamUpdateCaptureDependencies, 12030, cuStreamUpdateCaptureDependencies_v2)                  \
    ENTRY(cuThreadExchangeStreamCaptureMode, 10010, cuThreadExchangeStreamCaptureMode)
/* clang-format on */

#endif
