/* How much GPU time each process had: process utilisation over the time since it was last asked for, and accounting
 * over a process's life. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nvml_sim.h"

/* The driver keeps this many processes' statistics. */
#define ACCOUNTING_BUFFER_SIZE 4000u

/* A window shorter than this is not closed: queries in a row see the same window grow. */
#define MIN_WINDOW_NS 100000000ull

/* GPU time of the processes of one GPU when the current window was opened. */
static struct {
    uint64_t at_ns;
    struct gpu_process *processes;
    unsigned int count;
} windows[SIM_MAX_INDICES];
static pthread_mutex_t windows_mutex = PTHREAD_MUTEX_INITIALIZER;

/* A process that came after the window was opened has a window of its own, from its start. */
static unsigned int percent_in_window(int gpu, const struct gpu_process *process, uint64_t now_ns) {
    uint64_t since_ns = process->start_ns, busy_ns = process->busy_ns;

    for (unsigned int i = 0; i < windows[gpu].count; i++) {
        const struct gpu_process *before = &windows[gpu].processes[i];
        if (before->pid == process->pid && before->start_ns == process->start_ns) {
            since_ns = windows[gpu].at_ns;
            busy_ns -= before->busy_ns;
        }
    }
    if (now_ns <= since_ns)
        return 0;
    /* Turns are booked ahead, so a process may have more time than has passed. */
    uint64_t percent = busy_ns * 100 / (now_ns - since_ns);
    return percent > 100 ? 100 : (unsigned int)percent;
}

struct usage {
    unsigned int pid, percent;
};

/* The processes that used the GPU since the window was opened. On success `*usages` is to be freed. */
static nvmlReturn_t recent_usage(int gpu, struct usage **usages, unsigned int *count) {
    struct gpu_process *processes;
    unsigned int found;
    uint64_t now_ns = sim_now_ns();
    nvmlReturn_t ret = processes_of_gpu(gpu, &processes, &found);

    if (ret != NVML_SUCCESS)
        return ret;
    *count = 0;
    *usages = calloc(found + 1, sizeof(**usages));
    if (*usages == NULL) {
        free(processes);
        return NVML_ERROR_MEMORY;
    }
    pthread_mutex_lock(&windows_mutex);
    for (unsigned int i = 0; i < found; i++) {
        unsigned int percent = percent_in_window(gpu, &processes[i], now_ns);
        if (percent > 0)
            (*usages)[(*count)++] = (struct usage){processes[i].pid, percent};
    }
    if (now_ns - windows[gpu].at_ns >= MIN_WINDOW_NS) {
        free(windows[gpu].processes);
        windows[gpu].at_ns = now_ns;
        windows[gpu].processes = processes;
        windows[gpu].count = found;
        processes = NULL;
    }
    pthread_mutex_unlock(&windows_mutex);
    free(processes);
    return NVML_SUCCESS;
}

/* How many entries a caller should have room for, without closing the window that its next call will read. */
static nvmlReturn_t count_processes(int gpu, unsigned int *count) {
    struct gpu_process *processes;
    nvmlReturn_t ret = processes_of_gpu(gpu, &processes, count);

    if (ret == NVML_SUCCESS)
        free(processes);
    return ret;
}

/* Rooms too small are refused before the window is read. */
static nvmlReturn_t check_room(int gpu, const void *room, unsigned int *count) {
    unsigned int needed;
    nvmlReturn_t ret = count_processes(gpu, &needed);

    if (ret == NVML_SUCCESS && needed > 0 && (room == NULL || *count < needed)) {
        *count = needed;
        ret = NVML_ERROR_INSUFFICIENT_SIZE;
    }
    return ret;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long last_seen_us) {
    int gpu;
    struct usage *usages;
    unsigned int found;
    uint64_t now_us = wall_clock_us();
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (sim_mig_on(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    ret = check_room(gpu, samples, count);
    if (ret == NVML_SUCCESS)
        ret = recent_usage(gpu, &usages, &found);
    if (ret != NVML_SUCCESS)
        return ret;
    if (found > *count)
        found = *count;
    if (found == 0 || last_seen_us >= now_us)
        ret = NVML_ERROR_NOT_FOUND;
    for (unsigned int i = 0; i < found && ret == NVML_SUCCESS; i++) {
        samples[i] = (nvmlProcessUtilizationSample_t){
            .pid = usages[i].pid,
            .timeStamp = now_us,
            .smUtil = usages[i].percent,
            .memUtil = usages[i].percent / 2,
        };
    }
    *count = ret == NVML_SUCCESS ? found : 0;
    free(usages);
    return ret;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info) {
    int gpu;
    struct usage *usages;
    unsigned int found;
    uint64_t now_us = wall_clock_us();
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != nvmlProcessesUtilizationInfo_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (sim_mig_on(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    ret = check_room(gpu, info->procUtilArray, &info->processSamplesCount);
    if (ret == NVML_SUCCESS)
        ret = recent_usage(gpu, &usages, &found);
    if (ret != NVML_SUCCESS)
        return ret;
    if (found > info->processSamplesCount)
        found = info->processSamplesCount;
    if (found == 0 || info->lastSeenTimeStamp >= now_us)
        ret = NVML_ERROR_NOT_FOUND;
    for (unsigned int i = 0; i < found && ret == NVML_SUCCESS; i++) {
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
            .timeStamp = now_us,
            .pid = usages[i].pid,
            .smUtil = usages[i].percent,
            .memUtil = usages[i].percent / 2,
        };
    }
    info->processSamplesCount = ret == NVML_SUCCESS ? found : 0;
    free(usages);
    return ret;
}

/* Accounting mode is the driver's, off until somebody with privilege turns it on. */
DEVICE_QUERY(nvmlDeviceGetAccountingMode, nvmlEnableState_t,
             sim_accounting(gpu) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED)
DEVICE_QUERY(nvmlDeviceGetAccountingBufferSize, unsigned int, ACCOUNTING_BUFFER_SIZE)

nvmlReturn_t nvmlDeviceSetAccountingMode(nvmlDevice_t device, nvmlEnableState_t mode) {
    int gpu;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (mode != NVML_FEATURE_ENABLED && mode != NVML_FEATURE_DISABLED)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    sim_set_accounting(gpu, mode == NVML_FEATURE_ENABLED);
    return NVML_SUCCESS;
}

static nvmlReturn_t resolve_accounted(nvmlDevice_t device, int *gpu) {
    nvmlReturn_t ret = device_resolve(device, gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    return sim_accounting(*gpu) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static void put_pid(void *pids, unsigned int i, const struct gpu_process *process) {
    ((unsigned int *)pids)[i] = process->pid;
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids) {
    int gpu;
    nvmlReturn_t ret = resolve_accounted(device, &gpu);

    return ret != NVML_SUCCESS ? ret : list_processes(gpu, count, pids, put_pid);
}

/* Statistics of a living process; those of the dead are not kept. */
static nvmlReturn_t accounted_process(nvmlDevice_t device, unsigned int pid, const void *result,
                                      nvmlAccountingStats_v2_t *stats) {
    int gpu;
    struct gpu_process *processes;
    unsigned int found;
    uint64_t now_ns = sim_now_ns();
    nvmlReturn_t ret = resolve_accounted(device, &gpu);

    if (ret == NVML_SUCCESS && result == NULL)
        ret = NVML_ERROR_INVALID_ARGUMENT;
    if (ret == NVML_SUCCESS)
        ret = processes_of_gpu(gpu, &processes, &found);
    if (ret != NVML_SUCCESS)
        return ret;
    ret = NVML_ERROR_NOT_FOUND;
    for (unsigned int i = 0; i < found; i++) {
        if (processes[i].pid != pid)
            continue;
        uint64_t life_ns = now_ns > processes[i].start_ns ? now_ns - processes[i].start_ns : 1;
        uint64_t percent = processes[i].busy_ns * 100 / life_ns;
        *stats = (nvmlAccountingStats_v2_t){
            .pid = pid,
            .isRunning = 1,
            .gpuUtilization = percent > 100 ? 100 : (unsigned int)percent,
            .maxMemoryUsage = processes[i].peak_bytes,
            .startTime = wall_clock_us() - life_ns / 1000,
            .sampleCount = 1,
        };
        stats->memoryUtilization = stats->gpuUtilization / 2;
        stats->sumGpuUtil = 100ull * stats->gpuUtilization;
        stats->sumFbUtil = 100ull * stats->memoryUtilization;
        ret = NVML_SUCCESS;
    }
    free(processes);
    return ret;
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats) {
    nvmlAccountingStats_v2_t found;
    nvmlReturn_t ret = accounted_process(device, pid, stats, &found);

    if (ret == NVML_SUCCESS)
        *stats = (nvmlAccountingStats_t){
            .gpuUtilization = found.gpuUtilization,
            .memoryUtilization = found.memoryUtilization,
            .maxMemoryUsage = found.maxMemoryUsage,
            .startTime = found.startTime,
            .isRunning = found.isRunning,
        };
    return ret;
}

/* The caller writes the process ID into the structure. */
nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *stats) {
    return accounted_process(device, stats == NULL ? 0 : stats->pid, stats, stats);
}

/* Nothing is kept of dead processes, so there is nothing to clear. */
nvmlReturn_t nvmlDeviceClearAccountingPids(nvmlDevice_t device) {
    int gpu;
    nvmlReturn_t ret = resolve_accounted(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    return geteuid() == 0 ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}
