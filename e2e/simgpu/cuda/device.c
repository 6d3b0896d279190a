/* What a GPU is. */
#include <stdio.h>
#include <string.h>

#include "../sharing.h"
#include "driver.h"
#include "memory/pageable.h"
#include "mps_client.h"

#define REQUIRE_DEVICE(device)                                                                                         \
    REQUIRE_INITIALISED();                                                                                             \
    REQUIRE(device_valid(device), CUDA_ERROR_INVALID_DEVICE)

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    REQUIRE_INITIALISED();
    REQUIRE(device != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_valid(ordinal), CUDA_ERROR_INVALID_DEVICE);
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
    REQUIRE_INITIALISED();
    REQUIRE(count != NULL, CUDA_ERROR_INVALID_VALUE);
    *count = driver->device_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev) {
    REQUIRE_DEVICE(dev);
    REQUIRE(name != NULL && len > 0, CUDA_ERROR_INVALID_VALUE);
    snprintf(name, (size_t)len, "%s", device_gpu(dev)->name);
    return CUDA_SUCCESS;
}

/* The first version is from before MIG: of an instance it tells the GPU's. */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev) {
    const struct sim_gpu *gpu;

    REQUIRE_DEVICE(dev);
    REQUIRE(uuid != NULL, CUDA_ERROR_INVALID_VALUE);
    gpu = device_gpu(dev);
    if (gpu->is_mig)
        gpu = sim_gpu(gpu->mig_of);
    memcpy(uuid->bytes, gpu->uuid_bytes, sizeof(uuid->bytes));
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev) {
    REQUIRE_DEVICE(dev);
    REQUIRE(uuid != NULL, CUDA_ERROR_INVALID_VALUE);
    memcpy(uuid->bytes, device_gpu(dev)->uuid_bytes, sizeof(uuid->bytes));
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
    REQUIRE_DEVICE(dev);
    REQUIRE(bytes != NULL, CUDA_ERROR_INVALID_VALUE);
    *bytes = device_gpu(dev)->memory_bytes;
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev) {
    REQUIRE_DEVICE(dev);
    REQUIRE(bytes != NULL, CUDA_ERROR_INVALID_VALUE);
    *bytes = device_gpu(dev)->memory_bytes > UINT32_MAX ? UINT32_MAX : (unsigned)device_gpu(dev)->memory_bytes;
    return CUDA_SUCCESS;
}

/* What does not depend on the topology, as an H200 answers. */
static const int fixed_attributes[CU_DEVICE_ATTRIBUTE_MAX] = {
    [CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y] = 1024,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z] = 64,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X] = 2147483647,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y] = 65535,
    [CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z] = 65535,
    [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK] = 49152,
    [CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY] = 65536,
    [CU_DEVICE_ATTRIBUTE_WARP_SIZE] = 32,
    [CU_DEVICE_ATTRIBUTE_MAX_PITCH] = 2147483647,
    [CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK] = 65536,
    [CU_DEVICE_ATTRIBUTE_CLOCK_RATE] = 1980000,
    [CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT] = 512,
    [CU_DEVICE_ATTRIBUTE_GPU_OVERLAP] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY] = 1,
    [CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT] = 512,
    [CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS] = 1,
    [CU_DEVICE_ATTRIBUTE_ECC_ENABLED] = 1,
    [CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE] = 3201000,
    [CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH] = 6144,
    [CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE] = 62914560,
    [CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR] = 2048,
    [CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT] = 3,
    [CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING] = 1,
    [CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT] = 32,
    [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH] = 1 << 28,
    [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH] = 131072,
    [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT] = 65000,
    [CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH] = 2097120,
    [CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR] = 233472,
    [CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR] = 65536,
    [CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] = 1,
    [CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO] = 2,
    [CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS] = 1,
    [CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM] = 1,
    [CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH] = 1,
    [CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN] = 232448,
    [CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS] = 1,
    [CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR] = 1,
    [CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR] = 32,
    [CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE] = 41943040,
    [CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE] = 134217728,
    [CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK] = 1024,
    [CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES] = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    [CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH] = 1,
    [CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED] = 1,
    [CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS] = 1,
};

CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev) {
    const struct sim_gpu *gpu;

    REQUIRE(pi != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_DEVICE(dev);
    REQUIRE((int)attrib > 0 && attrib < CU_DEVICE_ATTRIBUTE_MAX, CUDA_ERROR_INVALID_VALUE);
    gpu = device_gpu(dev);
    switch (attrib) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *pi = mps_client_multiprocessors(dev);
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
        *pi = (int)sim_compute_mode(driver->gpus[dev]);
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *pi = gpu->cc_major;
        break;
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
        *pi = gpu->cc_major >= 9;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *pi = gpu->cc_minor;
        break;
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
        *pi = pageable_access(dev);
        break;
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES:
        *pi = gpu->addressing == SIM_ADDRESSING_ATS;
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        *pi = (int)gpu->pci_bus;
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
        *pi = (int)gpu->pci_device;
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
        *pi = (int)gpu->pci_domain;
        break;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
        *pi = gpu->cc_major >= 9;
        break;
    case CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID:
        *pi = dev;
        break;
    default:
        *pi = fixed_attributes[attrib];
    }
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice dev) {
    REQUIRE_DEVICE(dev);
    REQUIRE(prop != NULL, CUDA_ERROR_INVALID_VALUE);
    *prop = (CUdevprop){
        .maxThreadsPerBlock = fixed_attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK],
        .maxThreadsDim = {1024, 1024, 64},
        .maxGridSize = {2147483647, 65535, 65535},
        .sharedMemPerBlock = fixed_attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK],
        .totalConstantMemory = fixed_attributes[CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY],
        .SIMDWidth = fixed_attributes[CU_DEVICE_ATTRIBUTE_WARP_SIZE],
        .memPitch = fixed_attributes[CU_DEVICE_ATTRIBUTE_MAX_PITCH],
        .regsPerBlock = fixed_attributes[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK],
        .clockRate = fixed_attributes[CU_DEVICE_ATTRIBUTE_CLOCK_RATE],
        .textureAlign = fixed_attributes[CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT],
    };
    return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev) {
    REQUIRE_DEVICE(dev);
    REQUIRE(major != NULL && minor != NULL, CUDA_ERROR_INVALID_VALUE);
    *major = device_gpu(dev)->cc_major;
    *minor = device_gpu(dev)->cc_minor;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev) {
    REQUIRE_DEVICE(dev);
    REQUIRE(pciBusId != NULL && len > 0, CUDA_ERROR_INVALID_VALUE);
    snprintf(pciBusId, (size_t)len, "%s", device_gpu(dev)->pci_bus_id);
    return CUDA_SUCCESS;
}

/* [domain:]bus:device[.function], hexadecimal. */
CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId) {
    unsigned domain = 0, bus = 0, device = 0;

    REQUIRE_INITIALISED();
    REQUIRE(dev != NULL && pciBusId != NULL, CUDA_ERROR_INVALID_VALUE);
    if (sscanf(pciBusId, "%x:%x:%x", &domain, &bus, &device) != 3) {
        domain = 0;
        REQUIRE(sscanf(pciBusId, "%x:%x", &bus, &device) == 2, CUDA_ERROR_INVALID_VALUE);
    }
    for (int i = 0; i < driver->device_count; i++) {
        const struct sim_gpu *gpu = device_gpu(i);

        if (gpu->pci_domain == domain && gpu->pci_bus == bus && gpu->pci_device == device) {
            *dev = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev) {
    REQUIRE_DEVICE(dev);
    REQUIRE(device_valid(peerDev), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(canAccessPeer != NULL, CUDA_ERROR_INVALID_VALUE);
    *canAccessPeer = dev != peerDev;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice, CUdevice dstDevice) {
    REQUIRE_DEVICE(srcDevice);
    REQUIRE(device_valid(dstDevice) && srcDevice != dstDevice, CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(value != NULL && attrib >= CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK &&
                attrib <= CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED,
            CUDA_ERROR_INVALID_VALUE);
    *value = attrib != CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK;
    return CUDA_SUCCESS;
}

/* Affinity to a share of the multiprocessors is for MPS clients; the simulated MPS knows percentages only. */
CUresult cuDeviceGetExecAffinitySupport(int *pi, CUexecAffinityType type, CUdevice dev) {
    REQUIRE_DEVICE(dev);
    REQUIRE(pi != NULL && type == CU_EXEC_AFFINITY_TYPE_SM_COUNT, CUDA_ERROR_INVALID_VALUE);
    *pi = 0;
    return CUDA_SUCCESS;
}
