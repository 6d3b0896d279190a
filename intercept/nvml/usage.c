/*
 * GPU time of processes: the driver's utilisation samples and accounting, for processes of the claims only.
 *
 * The values are the driver's, relative to the whole device. Processes are matched by ID, so nothing is reported in a PID
 * namespace other than the host's (see nvml_keep_members). The driver also keeps accounts of dead processes. A region
 * does not, so a claim's dead processes cannot be distinguished from others', and none is reported.
 */
#include "nvml/claim.h"

#include <string.h>

/* The caller needs room for one entry per member. That is checked before the driver's samples are read, since reading
 * them may start the next sampling period. `first` is the driver's answer to a query without room. */
static nvmlReturn_t samples_before(nvmlDevice_t device, nvmlReturn_t first, struct members *members,
                                   unsigned int *count, const void *array) {
    unsigned int room = *count;
    if (first != NVML_SUCCESS && first != NVML_ERROR_INSUFFICIENT_SIZE && first != NVML_ERROR_NOT_FOUND)
        return first;
    nvmlReturn_t result = nvml_read_members(device, members);
    if (result == NVML_SUCCESS)
        result = nvml_check_room(count, array, members->count);
    if (result == NVML_SUCCESS)
        *count = room;
    return result;
}

/* Copies the members' samples; NVML_ERROR_NOT_FOUND if there is none. */
static nvmlReturn_t samples_after(nvmlReturn_t result, struct answer *answer, struct members *members,
                                  unsigned int *count, void *array) {
    if (result == NVML_SUCCESS) {
        nvml_keep_members(answer, members, false);
        result = answer->count != 0 ? nvml_check_room(count, array, answer->count) : NVML_ERROR_NOT_FOUND;
    }
    if (result == NVML_ERROR_NOT_FOUND)
        *count = 0;
    if (result == NVML_SUCCESS)
        memcpy(array, answer->list, answer->count * answer->entry);
    nvml_free_members(members);
    nvml_free_answer(answer);
    return result;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long since) {
    struct answer answer = {.entry = sizeof *samples, .pid_offset = offsetof(nvmlProcessUtilizationSample_t, pid)};
    struct members members = {0};
    unsigned int theirs = 0;
    if (count == NULL)
        return REAL(nvmlDeviceGetProcessUtilization)(device, samples, count, since);
    nvmlReturn_t result = REAL(nvmlDeviceGetProcessUtilization)(device, NULL, &theirs, since);
    result = samples_before(device, result, &members, count, samples);
    if (result == NVML_SUCCESS)
        result = NVML_QUERY(answer,
                            REAL(nvmlDeviceGetProcessUtilization)(device, (void *)answer.list, &answer.count, since));
    return samples_after(result, &answer, &members, count, samples);
}

/* Queries the driver with a copy of the caller's struct. */
static nvmlReturn_t query_info(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t info, struct answer *answer) {
    info.processSamplesCount = answer->count;
    info.procUtilArray = (nvmlProcessUtilizationInfo_v1_t *)(void *)answer->list;
    nvmlReturn_t result = REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, &info);
    answer->count = info.processSamplesCount;
    return result;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info) {
    struct answer none = {0};
    struct answer answer = {.entry = sizeof *info->procUtilArray,
                            .pid_offset = offsetof(nvmlProcessUtilizationInfo_v1_t, pid)};
    struct members members = {0};
    if (info == NULL)
        return REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, info);
    nvmlReturn_t result = query_info(device, *info, &none);
    result = samples_before(device, result, &members, &info->processSamplesCount, info->procUtilArray);
    if (result == NVML_SUCCESS)
        result = NVML_QUERY(answer, query_info(device, *info, &answer));
    return samples_after(result, &answer, &members, &info->processSamplesCount, info->procUtilArray);
}

/* --- accounting --- */

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids) {
    struct answer answer = {.entry = sizeof *pids};
    struct members members = {0};
    if (count == NULL || (*count > 0 && pids == NULL))
        return REAL(nvmlDeviceGetAccountingPids)(device, NULL, NULL);
    nvmlReturn_t result =
        NVML_QUERY(answer, REAL(nvmlDeviceGetAccountingPids)(device, &answer.count, (void *)answer.list));
    if (result == NVML_SUCCESS)
        result = nvml_read_members(device, &members);
    if (result == NVML_SUCCESS) {
        nvml_keep_members(&answer, &members, false);
        result = nvml_check_room(count, pids, answer.count);
    }
    if (result == NVML_SUCCESS && answer.count > 0)
        memcpy(pids, answer.list, answer.count * sizeof *pids);
    nvml_free_members(&members);
    nvml_free_answer(&answer);
    return result;
}

/* Whether a process's account may be seen; NVML_ERROR_NOT_FOUND if not. Corrects its peak use, `bytes`: not above the
 * limit, and not below what the process holds now. */
static nvmlReturn_t account_of(nvmlDevice_t device, unsigned int pid, unsigned long long *bytes) {
    struct answer answer = {.entry = sizeof pid, .count = 1, .list = (char *)&pid};
    struct members members;
    nvmlReturn_t result = nvml_read_members(device, &members);
    if (result == NVML_SUCCESS) {
        nvml_keep_members(&answer, &members, false);
        if (answer.count == 0)
            result = NVML_ERROR_NOT_FOUND;
        else
            *bytes = maximum(minimum(*bytes, members.limit), nvml_find_member(&members, pid)->bytes);
    }
    nvml_free_members(&members);
    return result;
}

/* The driver fills a copy, so that the caller's struct never has values of other processes. */
nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats) {
    nvmlAccountingStats_t stats_copy;
    nvmlReturn_t result = REAL(nvmlDeviceGetAccountingStats)(device, pid, stats == NULL ? NULL : &stats_copy);
    if (result == NVML_SUCCESS)
        result = account_of(device, pid, &stats_copy.maxMemoryUsage);
    if (result == NVML_SUCCESS)
        *stats = stats_copy;
    return result;
}

nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *stats) {
    if (stats == NULL)
        return REAL(nvmlDeviceGetAccountingStats_v2)(device, stats);
    nvmlAccountingStats_v2_t stats_copy = *stats;
    nvmlReturn_t result = REAL(nvmlDeviceGetAccountingStats_v2)(device, &stats_copy);
    if (result == NVML_SUCCESS)
        result = account_of(device, stats_copy.pid, &stats_copy.maxMemoryUsage);
    if (result == NVML_SUCCESS)
        *stats = stats_copy;
    return result;
}
