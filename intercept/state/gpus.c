#include "state/gpus.h"

#include "driver/cuda_real.h"
#include "system/explain.h"

#include <stdio.h>

static CUresult read_uuid(CUdevice device, CUuuid *uuid) {
    /* The second version distinguishes MIG instances. */
    CUresult result = REAL(cuDeviceGetUuid_v2)(uuid, device);
    return result == CUDA_ERROR_NOT_SUPPORTED ? REAL(cuDeviceGetUuid)(uuid, device) : result;
}

/* 0: unknown. */
static int remembered(struct process *process, CUdevice device) {
    return device >= 0 && device < DEVICES_MAX ? atomic_load_explicit(&process->gpus[device], memory_order_relaxed) : 0;
}

CUresult gpus_check(CUdevice device) {
    struct process *process = process_if_open();
    CUuuid uuid;
    return process != NULL && remembered(process, device) != 0 ? CUDA_SUCCESS : read_uuid(device, &uuid);
}

CUresult gpus_find(struct process *process, CUdevice device, int *gpu) {
    int known = remembered(process, device);
    if (known == 0) {
        CUuuid raw;
        char uuid[41];
        CUresult result = read_uuid(device, &raw);
        if (result != CUDA_SUCCESS)
            return result;
        char *at = uuid + snprintf(uuid, sizeof uuid, "GPU-");
        for (int i = 0; i < 16; i++)
            at +=
                snprintf(at, 4, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", (unsigned char)raw.bytes[i]);
        int found = claims_find_gpu(&process->claims, uuid);
        known = found >= 0 ? found + 1 : NO_CLAIM;
        if (device >= 0 && device < DEVICES_MAX)
            atomic_store_explicit(&process->gpus[device], known, memory_order_relaxed);
    }
    *gpu = known == NO_CLAIM ? NO_CLAIM : known - 1;
    return CUDA_SUCCESS;
}

CUresult gpus_find_claimed(struct process *process, CUdevice device, int *gpu) {
    CUresult result = gpus_find(process, device, gpu);
    if (result != CUDA_SUCCESS || *gpu != NO_CLAIM)
        return result;
    explain(CAUSE_NO_CLAIM,
            "cannot use CUDA device %d: this process has no claim on it; request slices of it, or hide it with "
            "CUDA_VISIBLE_DEVICES",
            device);
    return CUDA_ERROR_NOT_PERMITTED;
}

CUresult gpus_open(struct process **process, CUdevice device, int *gpu) {
    CUresult result = gpus_check(device);
    if (result == CUDA_SUCCESS)
        result = process_open(process);
    return result == CUDA_SUCCESS ? gpus_find_claimed(*process, device, gpu) : result;
}

uint64_t gpus_visible(struct process *process) {
    uint64_t bits = 0;
    int count = 0, gpu;
    REAL(cuDeviceGetCount)(&count);
    for (CUdevice device = 0; device < count; device++)
        if (gpus_find(process, device, &gpu) == CUDA_SUCCESS && gpu != NO_CLAIM)
            bits |= UINT64_C(1) << gpu;
    return bits;
}

CUdevice gpus_device(struct process *process, int gpu) {
    for (CUdevice device = 0; device < DEVICES_MAX; device++)
        if (remembered(process, device) == gpu + 1)
            return device;
    return -1;
}

uint64_t gpus_threads(struct process *process, int gpu) {
    CUdevice device = gpus_device(process, gpu);
    int processors = 0, threads = 0;
    if (device < 0 && REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
        return 0;
    REAL(cuDeviceGetAttribute)(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    REAL(cuDeviceGetAttribute)(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device);
    return (uint64_t)processors * (uint64_t)threads;
}
