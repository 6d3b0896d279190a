/* GPU memory: how much there is, how much is taken, and limits of it by cgroup. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "../memory_limits.h"
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

/* A process in a cgroup with a limit sees this in the place of the GPU ("How Limits Are Reported" in NVIDIA's "MPS v3 Memory
 * Partitioning"; nvml.h at nvmlSetMemoryLimits_v1_t). */
static void apply_limit(int gpu, struct memory *m) {
    struct sim_memory_limit limit;
    uint64_t left;

    if (!sim_memory_limit_shown(gpu, &limit))
        return;
    left = limit.hard - limit.used;
    *m = (struct memory){.total = limit.hard, .used = limit.used, .free = m->free < left ? m->free : left};
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
    apply_limit(gpu, m);
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

/* ---- Limits by cgroup ---- */

/* What the two calls have in common; the cgroup's directory, or an NVML error below 0. */
static nvmlReturn_t open_cgroup(nvmlDevice_t device, const char *path, int *gpu, int *fd) {
    nvmlReturn_t ret = device_resolve(device, gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (path == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    /* Not for MIG handles, says nvml.h of both. */
    if (!sim_memory_limits() || *gpu >= whole_gpu_count())
        return NVML_ERROR_NOT_SUPPORTED;
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    return *fd >= 0 ? NVML_SUCCESS : NVML_ERROR_OPERATING_SYSTEM;
}

/*
 * What the kernel module answers, by its own names: NV_ERR_INVALID_ARGUMENT for a descriptor of no cgroup v2,
 * NV_ERR_NOT_SUPPORTED for the root and without limits, NV_ERR_INVALID_LIMIT for less than is used, NV_ERR_NO_MEMORY
 * (memacct.c; cliresCtrlCmdOsUnixMemacctSetLimits_IMPL in os.c). How NVML names the third is not documented.
 */
static nvmlReturn_t limit_error(int error) {
    switch (error) {
    case 0:
        return NVML_SUCCESS;
    case -EINVAL:
    case -EBUSY:
        return NVML_ERROR_INVALID_ARGUMENT;
    case -EOPNOTSUPP:
        return NVML_ERROR_NOT_SUPPORTED;
    case -ENOENT:
        return NVML_ERROR_NOT_FOUND;
    case -EPERM:
        return NVML_ERROR_NO_PERMISSION;
    case -ENOSPC:
        return NVML_ERROR_MEMORY;
    default:
        return NVML_ERROR_UNKNOWN;
    }
}

static bool is_limit(int gpu, unsigned long long bytes) {
    const struct sim_gpu *g = sim_gpu_or_last(gpu);

    return bytes <= g->memory_bytes + g->reserved_bytes || bytes == NVML_DEVICE_MEMORY_LIMIT_MAX;
}

/* The control call behind it is for administrators (RMCTRL_FLAGS_PRIVILEGED in g_client_resource_nvoc.c). */
nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits) {
    int gpu, fd = -1;
    nvmlReturn_t ret = open_cgroup(device, limits != NULL ? limits->nameSpace : NULL, &gpu, &fd);

    if (ret == NVML_SUCCESS)
        ret = may_manage();
    if (ret == NVML_SUCCESS && (limits->softLimit > limits->hardLimit || !is_limit(gpu, limits->softLimit) ||
                                !is_limit(gpu, limits->hardLimit)))
        ret = NVML_ERROR_INVALID_ARGUMENT;
    if (ret == NVML_SUCCESS)
        ret = limit_error(sim_memory_limit_set(gpu, fd, limits->nameSpace, limits->softLimit, limits->hardLimit));
    if (fd >= 0)
        close(fd);
    return ret;
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits) {
    struct sim_memory_limit limit;
    int gpu, fd = -1;
    nvmlReturn_t ret = open_cgroup(device, limits != NULL ? limits->nameSpace : NULL, &gpu, &fd);

    if (ret == NVML_SUCCESS)
        ret = limit_error(sim_memory_limit_get(gpu, fd, &limit));
    if (ret == NVML_SUCCESS) {
        limits->softLimit = limit.soft;
        limits->hardLimit = limit.hard;
        limits->currentUsed = limit.used;
    }
    if (fd >= 0)
        close(fd);
    return ret;
}
