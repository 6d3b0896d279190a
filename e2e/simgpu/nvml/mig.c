/*
 * MIG. Where a topology has MIG instances, their GPU is in MIG mode, and each is a device of its own: with a memory, with
 * processes, and with a handle, which is that of its entry among the visible GPUs. A GPU instance holds one compute
 * instance here, so the handle of either is the device's, too.
 */
#include <string.h>

#include "nvml_sim.h"

#define MIG_CAPABLE_SINCE_MAJOR 8
#define MAX_MIG_DEVICES 7

/* Of compute capability 8 only the first has MIG; 9.0 and 10.0 have it, 12.x partly: left out. */
static bool mig_capable(int gpu) {
    const struct sim_gpu *g = sim_gpu(gpu);

    return (g->cc_major >= MIG_CAPABLE_SINCE_MAJOR && g->cc_major <= 10) && g->cc_minor == 0;
}

static bool part_of(int mig, int gpu) {
    return sim_gpu(mig)->is_mig && sim_gpu(mig)->mig_of == sim_gpu(gpu)->index;
}

/* The visible GPU that a MIG instance is a part of: who can open the nodes of the instance can open its GPU's. */
static int parent_of(int mig) {
    int gpu = 0;

    while (!part_of(mig, gpu))
        gpu++;
    return gpu;
}

/* Resolves the handle of a MIG instance; others get `otherwise`. */
static nvmlReturn_t resolve_mig(nvmlDevice_t device, int *mig, nvmlReturn_t otherwise) {
    nvmlReturn_t ret = device_resolve(device, mig);

    if (ret != NVML_SUCCESS)
        return ret;
    return sim_gpu(*mig)->is_mig ? NVML_SUCCESS : otherwise;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (current == NULL || pending == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (sim_gpu(gpu)->is_mig || !mig_capable(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    *current = sim_gpu(gpu)->mig_mode ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
    *pending = *current;
    return NVML_SUCCESS;
}

/* Zero where MIG is disabled, as the driver answers. */
DEVICE_QUERY(nvmlDeviceGetMaxMigDeviceCount, unsigned int, sim_gpu(gpu)->mig_mode ? MAX_MIG_DEVICES : 0)
DEVICE_QUERY(nvmlDeviceIsMigDeviceHandle, unsigned int, sim_gpu(gpu)->is_mig)

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (mig == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (sim_gpu(gpu)->is_mig || !mig_capable(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    for (int i = 0; i < sim_gpu_count(); i++) {
        if (part_of(i, gpu) && index-- == 0) {
            *mig = device_handle(i);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device) {
    int instance;
    nvmlReturn_t ret = resolve_mig(mig, &instance, NVML_ERROR_INVALID_ARGUMENT);

    if (ret != NVML_SUCCESS)
        return ret;
    if (device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = device_handle(parent_of(instance));
    return NVML_SUCCESS;
}

/* What is asked of MIG devices only: a whole GPU does not support it. */
#define MIG_QUERY(function, type, expression)                                                                          \
    nvmlReturn_t function(nvmlDevice_t device, type *value) {                                                          \
        int mig;                                                                                                       \
        nvmlReturn_t ret = resolve_mig(device, &mig, NVML_ERROR_NOT_SUPPORTED);                                        \
        if (ret != NVML_SUCCESS)                                                                                       \
            return ret;                                                                                                \
        if (value == NULL)                                                                                             \
            return NVML_ERROR_INVALID_ARGUMENT;                                                                        \
        *value = (expression);                                                                                         \
        return NVML_SUCCESS;                                                                                           \
    }

static nvmlDeviceAttributes_t attributes_of(int mig) {
    return (nvmlDeviceAttributes_t){
        .multiprocessorCount = (unsigned int)sim_gpu(mig)->sm_count,
        .sharedCopyEngineCount = 1,
        .gpuInstanceSliceCount = sim_gpu(mig)->mig_slices,
        .computeInstanceSliceCount = sim_gpu(mig)->mig_slices,
        .memorySizeMB = sim_gpu(mig)->memory_bytes >> 20,
    };
}

MIG_QUERY(nvmlDeviceGetGpuInstanceId, unsigned int, sim_gpu(mig)->gi)
MIG_QUERY(nvmlDeviceGetComputeInstanceId, unsigned int, sim_gpu(mig)->ci)
MIG_QUERY(nvmlDeviceGetAttributes_v2, nvmlDeviceAttributes_t, attributes_of(mig))

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    return nvmlDeviceGetAttributes_v2(device, attributes);
}

/* ---- Instances and their profiles ---- */

/* One profile for each number of slices, the same for GPU and compute instances. */
static const struct {
    unsigned int slices, id;
} profiles[] = {
    [NVML_GPU_INSTANCE_PROFILE_1_SLICE] = {1, 19}, [NVML_GPU_INSTANCE_PROFILE_2_SLICE] = {2, 14},
    [NVML_GPU_INSTANCE_PROFILE_3_SLICE] = {3, 9},  [NVML_GPU_INSTANCE_PROFILE_4_SLICE] = {4, 5},
    [NVML_GPU_INSTANCE_PROFILE_7_SLICE] = {7, 0},
};
#define PROFILES (sizeof(profiles) / sizeof(profiles[0]))

static unsigned int profile_of(int mig) {
    for (size_t i = 0; i < PROFILES; i++) {
        if (profiles[i].slices == sim_gpu(mig)->mig_slices)
            return profiles[i].id;
    }
    return profiles[0].id;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (instance == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < sim_gpu_count(); i++) {
        if (part_of(i, gpu) && sim_gpu(i)->gi == id) {
            instance->handle = (struct nvmlGpuInstance_st *)(void *)device_handle(i).handle;
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t resolve_instance(void *handle, int *mig) {
    return resolve_mig((nvmlDevice_t){.handle = handle}, mig, NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info) {
    int mig;
    nvmlReturn_t ret = resolve_instance(instance.handle, &mig);

    if (ret != NVML_SUCCESS)
        return ret;
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *info = (nvmlGpuInstanceInfo_t){
        .device = device_handle(parent_of(mig)),
        .id = sim_gpu(mig)->gi,
        .profileId = profile_of(mig),
        .placement = {.size = sim_gpu(mig)->mig_slices},
    };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int id,
                                                   nvmlComputeInstance_t *compute) {
    int mig;
    nvmlReturn_t ret = resolve_instance(instance.handle, &mig);

    if (ret != NVML_SUCCESS)
        return ret;
    if (compute == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (sim_gpu(mig)->ci != id)
        return NVML_ERROR_NOT_FOUND;
    compute->handle = (struct nvmlComputeInstance_st *)(void *)instance.handle;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info) {
    int mig;
    nvmlReturn_t ret = resolve_instance(compute.handle, &mig);

    if (ret != NVML_SUCCESS)
        return ret;
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *info = (nvmlComputeInstanceInfo_t){
        .device = device_handle(parent_of(mig)),
        .gpuInstance = {.handle = (struct nvmlGpuInstance_st *)(void *)compute.handle},
        .id = sim_gpu(mig)->ci,
        .profileId = profile_of(mig),
        .placement = {.size = sim_gpu(mig)->mig_slices},
    };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                 nvmlGpuInstanceProfileInfo_t *info) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (info == NULL || profile >= NVML_GPU_INSTANCE_PROFILE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!sim_gpu(gpu)->mig_mode || profile >= PROFILES)
        return NVML_ERROR_NOT_SUPPORTED;
    *info = (nvmlGpuInstanceProfileInfo_t){
        .id = profiles[profile].id,
        .sliceCount = profiles[profile].slices,
        .instanceCount = MAX_MIG_DEVICES / profiles[profile].slices,
    };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned int profile,
                                                          unsigned int engines,
                                                          nvmlComputeInstanceProfileInfo_t *info) {
    int mig;
    nvmlReturn_t ret = resolve_instance(instance.handle, &mig);

    if (ret != NVML_SUCCESS)
        return ret;
    if (info == NULL || engines != NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (profile >= PROFILES || profiles[profile].slices > sim_gpu(mig)->mig_slices)
        return NVML_ERROR_NOT_SUPPORTED;
    *info = (nvmlComputeInstanceProfileInfo_t){
        .id = profiles[profile].id,
        .sliceCount = profiles[profile].slices,
        .instanceCount = sim_gpu(mig)->mig_slices / profiles[profile].slices,
    };
    return NVML_SUCCESS;
}
