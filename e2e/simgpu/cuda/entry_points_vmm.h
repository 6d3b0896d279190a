/* The rows of cuda_sim_vmm.h; see entry_points.h. */
#ifndef SIMGPU_ENTRY_POINTS_VMM_H
#define SIMGPU_ENTRY_POINTS_VMM_H

/* clang-format off */
#define ENTRY_POINTS_VMM(ENTRY, STREAM)                                                                                \
    ENTRY(cuMemAddressReserve, 10020, cuMemAddressReserve)                                                             \
    ENTRY(cuMemAddressFree, 10020, cuMemAddressFree)                                                                   \
    ENTRY(cuMemCreate, 10020, cuMemCreate)                                                                             \
    ENTRY(cuMemRelease, 10020, cuMemRelease)                                                                           \
    ENTRY(cuMemMap, 10020, cuMemMap)                                                                                   \
    ENTRY(cuMemUnmap, 10020, cuMemUnmap)                                                                               \
    ENTRY(cuMemSetAccess, 10020, cuMemSetAccess)                                                                       \
    ENTRY(cuMemGetAccess, 10020, cuMemGetAccess)                                                                       \
    ENTRY(cuMemExportToShareableHandle, 10020, cuMemExportToShareableHandle)                                           \
    ENTRY(cuMemImportFromShareableHandle, 10020, cuMemImportFromShareableHandle)                                       \
    ENTRY(cuMemGetAllocationGranularity, 10020, cuMemGetAllocationGranularity)                                         \
    ENTRY(cuMemGetAllocationPropertiesFromHandle, 10020, cuMemGetAllocationPropertiesFromHandle)                       \
    ENTRY(cuMemRetainAllocationHandle, 11000, cuMemRetainAllocationHandle)                                             \
    ENTRY(cuMemGetHandleForAddressRange, 11070, cuMemGetHandleForAddressRange)                                         \
    ENTRY(cuMulticastCreate, 12010, cuMulticastCreate)                                                                 \
    ENTRY(cuMulticastAddDevice, 12010, cuMulticastAddDevice)                                                           \
    ENTRY(cuMulticastBindMem, 12010, cuMulticastBindMem)                                                               \
    ENTRY(cuMulticastBindMem, 13010, cuMulticastBindMem_v2)                                                            \
    ENTRY(cuMulticastBindAddr, 12010, cuMulticastBindAddr)                                                             \
    ENTRY(cuMulticastBindAddr, 13010, cuMulticastBindAddr_v2)                                                          \
    ENTRY(cuMulticastUnbind, 12010, cuMulticastUnbind)                                                                 \
    ENTRY(cuMulticastGetGranularity, 12010, cuMulticastGetGranularity)                                                 \
    ENTRY(cuIpcGetMemHandle, 4010, cuIpcGetMemHandle)                                                                  \
    ENTRY(cuIpcOpenMemHandle, 4010, cuIpcOpenMemHandle)                                                                \
    ENTRY(cuIpcOpenMemHandle, 11000, cuIpcOpenMemHandle_v2)                                                            \
    ENTRY(cuIpcCloseMemHandle, 4010, cuIpcCloseMemHandle)                                                              \
    ENTRY(cuIpcGetEventHandle, 4010, cuIpcGetEventHandle)                                                              \
    ENTRY(cuIpcOpenEventHandle, 4010, cuIpcOpenEventHandle)                                                            \
    ENTRY(cuImportExternalMemory, 10000, cuImportExternalMemory)                                                       \
    ENTRY(cuExternalMemoryGetMappedBuffer, 10000, cuExternalMemoryGetMappedBuffer)                                     \
    ENTRY(cuExternalMemoryGetMappedMipmappedArray, 10000, cuExternalMemoryGetMappedMipmappedArray)                     \
    ENTRY(cuDestroyExternalMemory, 10000, cuDestroyExternalMemory)
/* clang-format on */

#endif
