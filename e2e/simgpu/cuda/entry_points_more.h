/* The rows of cuda_sim_more.h; see entry_points.h. */
#ifndef SIMGPU_ENTRY_POINTS_MORE_H
#define SIMGPU_ENTRY_POINTS_MORE_H

/* clang-format off */
#define ENTRY_POINTS_MORE(ENTRY, STREAM)                                                                               \
    ENTRY(cuArrayCreate, 2000, cuArrayCreate)                                                                          \
    ENTRY(cuArrayGetDescriptor, 2000, cuArrayGetDescriptor)                                                            \
    ENTRY(cuArray3DCreate, 2000, cuArray3DCreate)                                                                      \
    ENTRY(cuArray3DGetDescriptor, 2000, cuArray3DGetDescriptor)                                                        \
    ENTRY(cuArrayGetPlane, 11020, cuArrayGetPlane)                                                                     \
    ENTRY(cuArrayGetSparseProperties, 11010, cuArrayGetSparseProperties)                                               \
    ENTRY(cuMipmappedArrayGetSparseProperties, 11010, cuMipmappedArrayGetSparseProperties)                             \
    ENTRY(cuMipmappedArrayGetMemoryRequirements, 11060, cuMipmappedArrayGetMemoryRequirements)                         \
    ASYNC_ROW(STREAM, cuMemMapArrayAsync, 11010, cuMemMapArrayAsync)                                                   \
    ENTRY(cuModuleEnumerateFunctions, 12040, cuModuleEnumerateFunctions)                                               \
    ENTRY(cuLibraryGetKernelCount, 12040, cuLibraryGetKernelCount)                                                     \
    ENTRY(cuLibraryEnumerateKernels, 12040, cuLibraryEnumerateKernels)                                                 \
    ENTRY(cuLibraryGetManaged, 12000, cuLibraryGetManaged)                                                             \
    ENTRY(cuLibraryGetUnifiedFunction, 12000, cuLibraryGetUnifiedFunction)                                             \
    ENTRY(cuKernelGetLibrary, 12050, cuKernelGetLibrary)                                                               \
    ENTRY(cuKernelGetAttribute, 12000, cuKernelGetAttribute)                                                           \
    ENTRY(cuKernelSetAttribute, 12000, cuKernelSetAttribute)                                                           \
    ENTRY(cuKernelSetCacheConfig, 12000, cuKernelSetCacheConfig)                                                       \
    ENTRY(cuFuncIsLoaded, 12040, cuFuncIsLoaded)                                                                       \
    ENTRY(cuFuncLoad, 12040, cuFuncLoad)                                                                               \
    ENTRY(cuLinkCreate, 5050, cuLinkCreate)                                                                            \
    ENTRY(cuLinkCreate, 6050, cuLinkCreate_v2)                                                                         \
    ENTRY(cuLinkAddData, 5050, cuLinkAddData)                                                                          \
    ENTRY(cuLinkAddData, 6050, cuLinkAddData_v2)                                                                       \
    ENTRY(cuLinkAddFile, 5050, cuLinkAddFile)                                                                          \
    ENTRY(cuLinkAddFile, 6050, cuLinkAddFile_v2)                                                                       \
    ENTRY(cuLinkComplete, 5050, cuLinkComplete)                                                                        \
    ENTRY(cuLinkDestroy, 5050, cuLinkDestroy)                                                                          \
    ENTRY(cuMemAdvise, 8000, cuMemAdvise)                                                                              \
    ENTRY(cuMemAdvise, 12020, cuMemAdvise_v2)                                                                          \
    ASYNC_ROW(STREAM, cuMemPrefetchAsync, 8000, cuMemPrefetchAsync)                                                    \
    ASYNC_ROW(STREAM, cuMemPrefetchAsync, 12020, cuMemPrefetchAsync_v2)                                                \
    ASYNC_ROW(STREAM, cuStreamAttachMemAsync, 6000, cuStreamAttachMemAsync)                                            \
    ENTRY(cuMemRangeGetAttribute, 8000, cuMemRangeGetAttribute)                                                        \
    ENTRY(cuMemRangeGetAttributes, 8000, cuMemRangeGetAttributes)                                                      \
    ENTRY(cuDeviceGetDevResource, 12040, cuDeviceGetDevResource)                                                       \
    ENTRY(cuCtxGetDevResource, 12040, cuCtxGetDevResource)                                                             \
    ENTRY(cuGreenCtxGetDevResource, 12040, cuGreenCtxGetDevResource)                                                   \
    ENTRY(cuDevSmResourceSplitByCount, 12040, cuDevSmResourceSplitByCount)                                             \
    ENTRY(cuDevResourceGenerateDesc, 12040, cuDevResourceGenerateDesc)                                                 \
    ENTRY(cuGreenCtxCreate, 12040, cuGreenCtxCreate)                                                                   \
    ENTRY(cuGreenCtxDestroy, 12040, cuGreenCtxDestroy)                                                                 \
    ENTRY(cuCtxFromGreenCtx, 12040, cuCtxFromGreenCtx)                                                                 \
    ENTRY(cuGreenCtxRecordEvent, 12040, cuGreenCtxRecordEvent)                                                         \
    ENTRY(cuGreenCtxWaitEvent, 12040, cuGreenCtxWaitEvent)                                                             \
    ENTRY(cuStreamGetGreenCtx, 12040, cuStreamGetGreenCtx)                                                             \
    ENTRY(cuGreenCtxStreamCreate, 12050, cuGreenCtxStreamCreate)
/* clang-format on */

#endif
