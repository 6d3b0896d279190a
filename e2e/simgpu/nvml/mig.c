/*
 * MIG: the mode of GPUs, and MIG devices. Each compute instance is a device of its own: with a memory, with processes,
 * and with a handle, which is that of its seat among the visible GPUs.
 */
#include <errno.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "nvml_sim.h"

/* Resolves the handle of a MIG instance; others get `otherwise`. */
static nvmlReturn_t resolve_mig(nvmlDevice_t device, int *mig, nvmlReturn_t otherwise) {
    nvmlReturn_t ret = device_resolve(device, mig);

    if (ret != NVML_SUCCESS)
        return ret;
    return *mig >= sim_gpu_count() ? NVML_SUCCESS : otherwise;
}

/* A whole GPU that has MIG. */
static nvmlReturn_t resolve_capable(nvmlDevice_t device, int *gpu) {
    nvmlReturn_t ret = device_resolve(device, gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    return *gpu < sim_gpu_count() && sim_mig_model(*gpu) != NULL ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t resolve_partitioned(nvmlDevice_t device, int *gpu) {
    nvmlReturn_t ret = resolve_capable(device, gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    return sim_mig_on(*gpu) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* The driver asks for CAP_SYS_ADMIN, which root in a container does not have. */
nvmlReturn_t may_manage(void) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};

    if (syscall(SYS_capget, &header, data) != 0 || (data[0].effective >> CAP_SYS_ADMIN & 1) == 0)
        return NVML_ERROR_NO_PERMISSION;
    return NVML_SUCCESS;
}

nvmlReturn_t fault_of(enum sim_mig_act act) {
    return (nvmlReturn_t)sim_fault_mig_take(act);
}

nvmlReturn_t instance_error(int error) {
    switch (-error) {
    case 0:
        return NVML_SUCCESS;
    case EBUSY:
        return NVML_ERROR_IN_USE;
    case ENOSPC:
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    case ENOTSUP:
        return NVML_ERROR_NOT_SUPPORTED;
    default:
        return NVML_ERROR_INVALID_ARGUMENT;
    }
}

unsigned int count_bits(unsigned int mask) {
    return (unsigned int)__builtin_popcount(mask);
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    int gpu;
    bool now, then;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (current == NULL || pending == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    ret = resolve_capable(device, &gpu);
    if (ret != NVML_SUCCESS)
        return ret;
    sim_mig_mode(gpu, &now, &then);
    *current = now ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
    *pending = then ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (activation == NULL || (mode != NVML_DEVICE_MIG_DISABLE && mode != NVML_DEVICE_MIG_ENABLE))
        return NVML_ERROR_INVALID_ARGUMENT;
    ret = resolve_capable(device, &gpu);
    if (ret == NVML_SUCCESS)
        ret = may_manage();
    if (ret == NVML_SUCCESS)
        ret = fault_of(MIG_ACT_MODE);
    if (ret != NVML_SUCCESS)
        return ret;
    *activation = instance_error(sim_mig_set_mode(gpu, mode == NVML_DEVICE_MIG_ENABLE));
    return NVML_SUCCESS;
}

/* The driver of a machine's own GPUs: a guest with a virtual GPU could make no instances. */
DEVICE_QUERY(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, NVML_GPU_VIRTUALIZATION_MODE_NONE)

/* Zero where MIG is disabled, as the driver answers. */
static unsigned int max_devices(int gpu) {
    const struct sim_mig_model *model = sim_mig_model(gpu);

    if (gpu >= sim_gpu_count() || !sim_mig_on(gpu))
        return 0;
    return model->slots < SIM_MIG_SEATS ? model->slots : SIM_MIG_SEATS;
}

DEVICE_QUERY(nvmlDeviceGetMaxMigDeviceCount, unsigned int, max_devices(gpu))
DEVICE_QUERY(nvmlDeviceIsMigDeviceHandle, unsigned int, gpu >= sim_gpu_count())

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig) {
    int gpu, devices[SIM_MIG_SEATS];
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (mig == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    ret = resolve_capable(device, &gpu);
    if (ret != NVML_SUCCESS)
        return ret;
    if (sim_mig_on(gpu) && index >= max_devices(gpu))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (index >= (unsigned int)sim_mig_devices(gpu, devices))
        return NVML_ERROR_NOT_FOUND;
    *mig = device_handle(devices[index]);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device) {
    int instance;
    nvmlReturn_t ret = resolve_mig(mig, &instance, NVML_ERROR_INVALID_ARGUMENT);

    if (ret != NVML_SUCCESS)
        return ret;
    if (device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = device_handle(sim_mig_parent(instance));
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
    const struct sim_gpu *gpu = sim_gpu_or_last(mig);
    const struct sim_mig_profile *profile = sim_mig_device_profile(mig);

    return (nvmlDeviceAttributes_t){
        .multiprocessorCount = (unsigned int)gpu->sm_count,
        .sharedCopyEngineCount = profile->copy_engines,
        .sharedDecoderCount = profile->decoders,
        .sharedEncoderCount = profile->encoders,
        .sharedJpegCount = profile->jpegs,
        .sharedOfaCount = profile->ofas,
        .gpuInstanceSliceCount = gpu->mig_slices,
        .computeInstanceSliceCount = gpu->ci_slices,
        .memorySizeMB = (gpu->memory_bytes + gpu->reserved_bytes) >> 20,
    };
}

MIG_QUERY(nvmlDeviceGetGpuInstanceId, unsigned int, sim_gpu_or_last(mig)->gi)
MIG_QUERY(nvmlDeviceGetComputeInstanceId, unsigned int, sim_gpu_or_last(mig)->ci)
MIG_QUERY(nvmlDeviceGetAttributes_v2, nvmlDeviceAttributes_t, attributes_of(mig))

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    return nvmlDeviceGetAttributes_v2(device, attributes);
}
