/* GPU memory: how much there is, how much is taken, and its errors (of which the simulated kind has none). */
#include <string.h>

#include "nvml_sim.h"

#define MIB ((uint64_t)1 << 20)

struct memory {
    uint64_t total, reserved, used, free;
};

/* In MIG mode a GPU's own is all that its instances have. */
static uint64_t used_of(int gpu) {
    uint64_t used = sim_gpu_used(gpu);
    struct sim_gi gi;

    if (gpu >= sim_gpu_count())
        return used;
    for (unsigned int seat = 0; seat < SIM_MIG_SEATS; seat++) {
        if (sim_gi_get(gpu, seat, &gi) == 0)
            used += gi.used_bytes;
    }
    return used;
}

/* total = reserved + used + free, always: what the driver set aside for itself is beside what can be allocated. `result`
 * is where the caller wants it. */
static nvmlReturn_t memory_of(nvmlDevice_t device, const void *result, struct memory *m) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (result == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    /* A process that was seen to die holds nothing any more: look, however lately somebody looked. */
    sim_reap();
    /* Once: another instance may come to sit there meanwhile. */
    const struct sim_gpu *g = sim_gpu_or_last(gpu);
    m->reserved = g->reserved_bytes;
    m->total = g->memory_bytes + m->reserved;
    m->used = used_of(gpu);
    m->free = m->used < g->memory_bytes ? g->memory_bytes - m->used : 0;
    return NVML_SUCCESS;
}

/* Version 1 has no field for the reserve and counts it as used. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    struct memory m;
    nvmlReturn_t ret = memory_of(device, memory, &m);

    if (ret == NVML_SUCCESS)
        *memory = (nvmlMemory_t){.total = m.total, .free = m.free, .used = m.used + m.reserved};
    return ret;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    struct memory m;
    nvmlReturn_t ret = memory_of(device, memory, &m);

    if (ret != NVML_SUCCESS)
        return ret;
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->total = m.total;
    memory->reserved = m.reserved;
    memory->free = m.free;
    memory->used = m.used;
    return NVML_SUCCESS;
}

/* BAR1 maps the whole memory on GPUs of data centres: the next power of two. */
static uint64_t bar1_bytes(int gpu) {
    uint64_t size = 256 * MIB;

    while (size < sim_gpu_or_last(gpu)->memory_bytes)
        size <<= 1;
    return size;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (memory == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    memory->bar1Total = bar1_bytes(gpu);
    memory->bar1Used = 2 * MIB;
    memory->bar1Free = memory->bar1Total - memory->bar1Used;
    return NVML_SUCCESS;
}

/* Large memory is HBM, on a wide bus; small memory is GDDR. */
DEVICE_QUERY(nvmlDeviceGetMemoryBusWidth, unsigned int,
             sim_gpu_or_last(gpu)->memory_bytes > 48 * 1024 * MIB ? 6144 : 384)

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (current == NULL || pending == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *current = NVML_FEATURE_ENABLED;
    *pending = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

DEVICE_QUERY(nvmlDeviceGetDefaultEccMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t error, nvmlEccCounterType_t counter,
                                         unsigned long long *count) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (count == NULL || error >= NVML_MEMORY_ERROR_TYPE_COUNT || counter >= NVML_ECC_COUNTER_TYPE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

/* Memory, caches and registers have counters; texture units of this generation have none. */
nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t error,
                                             nvmlEccCounterType_t counter, nvmlMemoryLocation_t location,
                                             unsigned long long *count) {
    nvmlReturn_t ret = nvmlDeviceGetTotalEccErrors(device, error, counter, count);

    if (ret != NVML_SUCCESS)
        return ret;
    switch (location) {
    case NVML_MEMORY_LOCATION_L1_CACHE:
    case NVML_MEMORY_LOCATION_L2_CACHE:
    case NVML_MEMORY_LOCATION_DRAM:
    case NVML_MEMORY_LOCATION_REGISTER_FILE:
    case NVML_MEMORY_LOCATION_SRAM:
        return NVML_SUCCESS;
    case NVML_MEMORY_LOCATION_TEXTURE_MEMORY:
    case NVML_MEMORY_LOCATION_TEXTURE_SHM:
    case NVML_MEMORY_LOCATION_CBU:
        return NVML_ERROR_NOT_SUPPORTED;
    default:
        return NVML_ERROR_INVALID_ARGUMENT;
    }
}

nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t error,
                                            nvmlEccCounterType_t counter, nvmlEccErrorCounts_t *counts) {
    unsigned long long total;
    nvmlReturn_t ret = nvmlDeviceGetTotalEccErrors(device, error, counter, &total);

    if (ret != NVML_SUCCESS)
        return ret;
    if (counts == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    memset(counts, 0, sizeof(*counts));
    return NVML_SUCCESS;
}

/* Rows are remapped on this generation; pages were retired on the ones before it. In MIG mode they are not told. */
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable,
                                       unsigned int *pending, unsigned int *failure) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (correctable == NULL || uncorrectable == NULL || pending == NULL || failure == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (sim_mig_on(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    *correctable = *uncorrectable = *pending = *failure = 0;
    return NVML_SUCCESS;
}
