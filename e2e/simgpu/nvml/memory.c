/* GPU memory: how much there is, and how much is taken. */
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
    uint64_t total, used;
    if (!sim_setting(gpu, SIM_BAR1_MIB, bar1_bytes(gpu) / MIB, &total))
        return NVML_ERROR_NOT_SUPPORTED;
    sim_setting(gpu, SIM_BAR1_USED_MIB, 2, &used);
    *memory = (nvmlBAR1Memory_t){.bar1Total = total * MIB, .bar1Free = (total - used) * MIB, .bar1Used = used * MIB};
    return NVML_SUCCESS;
}

/* Large memory is HBM, on a wide bus; small memory is GDDR. */
DEVICE_QUERY(nvmlDeviceGetMemoryBusWidth, unsigned int,
             sim_gpu_or_last(gpu)->memory_bytes > 48 * 1024 * MIB ? 6144 : 384)
