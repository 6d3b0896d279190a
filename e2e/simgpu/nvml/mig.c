/* MIG. The simulated GPUs that could be partitioned are not: MIG mode is disabled on them, and so there are neither GPU
 * instances nor handles of MIG devices. Whoever adds them resolves their handles in device.c and answers here. */
#include "nvml_sim.h"

#define MIG_CAPABLE_SINCE_MAJOR 8

/* Of compute capability 8 only the first has MIG; 9.0 and 10.0 have it, 12.x partly: left out. */
static bool mig_capable(int gpu) {
    const struct sim_gpu *g = sim_gpu(gpu);

    return (g->cc_major >= MIG_CAPABLE_SINCE_MAJOR && g->cc_major <= 10) && g->cc_minor == 0;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (current == NULL || pending == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!mig_capable(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    *current = NVML_DEVICE_MIG_DISABLE;
    *pending = NVML_DEVICE_MIG_DISABLE;
    return NVML_SUCCESS;
}

/* Zero, as the driver answers where MIG is disabled. */
DEVICE_QUERY(nvmlDeviceGetMaxMigDeviceCount, unsigned int, 0)
DEVICE_QUERY(nvmlDeviceIsMigDeviceHandle, unsigned int, 0)

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    (void)index;
    if (ret != NVML_SUCCESS)
        return ret;
    if (mig == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    return mig_capable(gpu) ? NVML_ERROR_NOT_FOUND : NVML_ERROR_NOT_SUPPORTED;
}

/* The argument must be the handle of a MIG device, and none is. */
nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device) {
    int gpu;
    nvmlReturn_t ret = device_resolve(mig, &gpu);

    (void)device;
    return ret != NVML_SUCCESS ? ret : NVML_ERROR_INVALID_ARGUMENT;
}

/* What is asked of MIG devices only: a whole GPU does not support it. */
static nvmlReturn_t only_mig(nvmlDevice_t device, const void *result) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    return result == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) {
    return only_mig(device, id);
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id) {
    return only_mig(device, id);
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    return only_mig(device, attributes);
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    return only_mig(device, attributes);
}
