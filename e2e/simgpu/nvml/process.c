/* Which processes use a GPU: the running-process lists in their three versions, and the list with details.
 *
 * Process IDs are those of the caller's pid namespace, as drivers since 530 report them; a process that has no name
 * there is left out. */
#include <stdlib.h>

#include "nvml_sim.h"

struct collection {
    int gpu;
    unsigned int gi, ci;
    bool failed;
    unsigned int count, capacity;
    struct gpu_process *processes;
};

/* One process may hold several slots of the state (a library loaded twice): they are one process to NVML. */
static int collect(const struct sim_process_info *info, void *arg) {
    struct collection *c = arg;
    struct gpu_process seen = {
        .pid = (unsigned int)info->pid,
        .bytes = info->gpus[c->gpu].bytes,
        .peak_bytes = info->gpus[c->gpu].peak_bytes,
        .busy_ns = info->gpus[c->gpu].busy_ns,
        .start_ns = info->start_ns,
        .gi = c->gi,
        .ci = c->ci,
        .mps_client = info->mps_client,
        .graphics = info->graphics,
    };

    if (info->pid <= 0 || !info->alive || seen.bytes == 0)
        return 0;
    for (unsigned int i = 0; i < c->count; i++) {
        if (c->processes[i].pid == seen.pid && c->processes[i].gi == seen.gi) {
            c->processes[i].bytes += seen.bytes;
            c->processes[i].peak_bytes += seen.peak_bytes;
            c->processes[i].busy_ns += seen.busy_ns;
            if (seen.start_ns < c->processes[i].start_ns)
                c->processes[i].start_ns = seen.start_ns;
            return 0;
        }
    }
    if (c->count == c->capacity) {
        unsigned int capacity = c->capacity ? c->capacity * 2 : 16;
        struct gpu_process *grown = realloc(c->processes, capacity * sizeof(*grown));
        if (grown == NULL) {
            c->failed = true;
            return -1;
        }
        c->processes = grown;
        c->capacity = capacity;
    }
    c->processes[c->count++] = seen;
    return 0;
}

static int by_pid(const void *a, const void *b) {
    unsigned int left = ((const struct gpu_process *)a)->pid, right = ((const struct gpu_process *)b)->pid;

    return (left > right) - (left < right);
}

static void collect_of(struct collection *c, int gpu) {
    const struct sim_gpu *g = sim_gpu(gpu);

    if (g == NULL)
        return;
    c->gpu = gpu;
    c->gi = g->is_mig ? g->gi : NO_INSTANCE;
    c->ci = g->is_mig ? g->ci : NO_INSTANCE;
    sim_each_process(collect, c);
}

/* Those of a GPU in MIG mode are those of its instances. */
nvmlReturn_t processes_of_gpu(int gpu, struct gpu_process **processes, unsigned int *count) {
    struct collection c = {0};
    int devices[SIM_MIG_SEATS], instances = gpu < sim_gpu_count() ? sim_mig_devices(gpu, devices) : 0;

    collect_of(&c, gpu);
    for (int i = 0; i < instances; i++)
        collect_of(&c, devices[i]);
    if (c.failed) {
        free(c.processes);
        return NVML_ERROR_MEMORY;
    }
    if (c.count > 0)
        qsort(c.processes, c.count, sizeof(*c.processes), by_pid);
    *processes = c.processes;
    *count = c.count;
    return NVML_SUCCESS;
}

/* NVML's lists. A process may be on several: clients of MPS are among the compute processes, too. */
enum processes { COMPUTE, GRAPHICS, MPS, ALL };

static bool is_on(enum processes which, const struct gpu_process *process) {
    switch (which) {
    case COMPUTE:
        return process->graphics != SIM_GRAPHICS_ONLY;
    case GRAPHICS:
        return process->graphics != SIM_GRAPHICS_NONE;
    case MPS:
        return process->mps_client;
    default:
        return true;
    }
}

static unsigned int keep(enum processes which, struct gpu_process *processes, unsigned int count) {
    unsigned int left = 0;

    for (unsigned int i = 0; i < count; i++) {
        if (is_on(which, &processes[i]))
            processes[left++] = processes[i];
    }
    return left;
}

static nvmlReturn_t list(int gpu, enum processes which, unsigned int *count, void *array, put_process *put) {
    struct gpu_process *processes;
    unsigned int found;
    nvmlReturn_t ret;

    if (count == NULL || (*count > 0 && array == NULL))
        return NVML_ERROR_INVALID_ARGUMENT;
    ret = processes_of_gpu(gpu, &processes, &found);
    if (ret != NVML_SUCCESS)
        return ret;
    found = keep(which, processes, found);
    if (*count < found)
        ret = NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < found && ret == NVML_SUCCESS; i++)
        put(array, i, &processes[i]);
    *count = found;
    free(processes);
    return ret;
}

nvmlReturn_t list_processes(int gpu, unsigned int *count, void *array, put_process *put) {
    return list(gpu, ALL, count, array, put);
}

/* The three versions of the list differ in the entry only. */
static nvmlReturn_t running_processes(nvmlDevice_t device, enum processes which, unsigned int *count, void *infos,
                                      put_process *put) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    return ret != NVML_SUCCESS ? ret : list(gpu, which, count, infos, put);
}

static void put_v1(void *infos, unsigned int i, const struct gpu_process *process) {
    ((nvmlProcessInfo_v1_t *)infos)[i] = (nvmlProcessInfo_v1_t){.pid = process->pid, .usedGpuMemory = process->bytes};
}

static void put_v2(void *infos, unsigned int i, const struct gpu_process *process) {
    ((nvmlProcessInfo_v2_t *)infos)[i] = (nvmlProcessInfo_v2_t){
        .pid = process->pid,
        .usedGpuMemory = process->bytes,
        .gpuInstanceId = process->gi,
        .computeInstanceId = process->ci,
    };
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                  nvmlProcessInfo_v1_t *infos) {
    return running_processes(device, COMPUTE, count, infos, put_v1);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_v2_t *infos) {
    return running_processes(device, COMPUTE, count, infos, put_v2);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_t *infos) {
    return running_processes(device, COMPUTE, count, infos, put_v2);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                   nvmlProcessInfo_v1_t *infos) {
    return running_processes(device, GRAPHICS, count, infos, put_v1);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                      nvmlProcessInfo_v2_t *infos) {
    return running_processes(device, GRAPHICS, count, infos, put_v2);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                      nvmlProcessInfo_t *infos) {
    return running_processes(device, GRAPHICS, count, infos, put_v2);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                     nvmlProcessInfo_v1_t *infos) {
    return running_processes(device, MPS, count, infos, put_v1);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                        nvmlProcessInfo_v2_t *infos) {
    return running_processes(device, MPS, count, infos, put_v2);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                        nvmlProcessInfo_t *infos) {
    return running_processes(device, MPS, count, infos, put_v2);
}

static void put_detail(void *infos, unsigned int i, const struct gpu_process *process) {
    ((nvmlProcessDetail_v1_t *)infos)[i] = (nvmlProcessDetail_v1_t){
        .pid = process->pid,
        .usedGpuMemory = process->bytes,
        .gpuInstanceId = process->gi,
        .computeInstanceId = process->ci,
    };
}

/* The one list of all modes. */
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *wanted) {
    static const enum processes modes[NVML_PROCESS_MODE_MAX] = {
        [NVML_PROCESS_MODE_COMPUTE] = COMPUTE,
        [NVML_PROCESS_MODE_GRAPHICS] = GRAPHICS,
        [NVML_PROCESS_MODE_MPS] = MPS,
        [NVML_PROCESS_MODE_ALL] = ALL,
    };
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (wanted == NULL || wanted->mode >= NVML_PROCESS_MODE_MAX)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (wanted->version != nvmlProcessDetailList_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return list(gpu, modes[wanted->mode], &wanted->numProcArrayEntries, wanted->procArray, put_detail);
}
