/*
 * The processes that use a device: the living ones of its claims, with the bytes that each holds in the regions.
 *
 * A region has a process's ID in its own PID namespace, which is the container's. It does not record which of the
 * driver's lists a process is on, so all are on the compute list. The lists of graphics and of MPS are the driver's,
 * without processes that are not of the claims.
 */
#include "nvml/claim.h"

#include <string.h>

/* Whether the driver's answer to a query for its list permits an answer. The driver decides whether the library is
 * initialised, the device exists and the caller may see it. A list that does not fit, or a driver without this version
 * of the function, is no error here. */
static bool answerable(nvmlReturn_t driver_result) {
    return driver_result == NVML_SUCCESS || driver_result == NVML_ERROR_INSUFFICIENT_SIZE ||
           driver_result == NVML_ERROR_FUNCTION_NOT_FOUND;
}

/* The IDs of the MIG instance that a handle is for; 0xFFFFFFFF for other devices. */
static nvmlProcessInfo_t instances_of(nvmlDevice_t device) {
    nvmlProcessInfo_t none = {.gpuInstanceId = 0xFFFFFFFF, .computeInstanceId = 0xFFFFFFFF}, mig = none;
    if (REAL(nvmlDeviceGetGpuInstanceId)(device, &mig.gpuInstanceId) != NVML_SUCCESS ||
        REAL(nvmlDeviceGetComputeInstanceId)(device, &mig.computeInstanceId) != NVML_SUCCESS)
        return none;
    return mig;
}

/* Every version of an entry begins as the previous one does; `entry` is the size of the requested version. */
static void put(void *infos, unsigned int i, size_t entry, nvmlProcessInfo_t info, const struct member *member) {
    info.pid = member->pid;
    info.usedGpuMemory = member->bytes;
    memcpy((char *)infos + i * entry, &info, entry);
}

static nvmlReturn_t compute_list(nvmlDevice_t device, nvmlReturn_t driver_result, size_t entry, unsigned int *count,
                                 void *infos) {
    struct members members;
    if (!answerable(driver_result))
        return driver_result;
    if (count == NULL || (*count > 0 && infos == NULL))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = nvml_read_members(device, &members);
    if (result == NVML_SUCCESS)
        result = nvml_check_room(count, infos, members.count);
    if (result == NVML_SUCCESS && members.count > 0) {
        nvmlProcessInfo_t instances = instances_of(device);
        for (unsigned int i = 0; i < members.count; i++)
            put(infos, i, entry, instances, &members.list[i]);
    }
    nvml_free_members(&members);
    return result;
}

#define COMPUTE_LIST(symbol, type)                                                                                     \
    nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *count, type *infos) {                                       \
        unsigned int theirs = 0;                                                                                       \
        return compute_list(device, REAL(symbol)(device, &theirs, NULL), sizeof *infos, count, infos);                 \
    }
COMPUTE_LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
COMPUTE_LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
COMPUTE_LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)

/* The driver's list without processes that are no members, with the bytes of the regions. */
static nvmlReturn_t other_list(nvmlDevice_t device, nvmlReturn_t driver_result, struct answer *answer,
                               unsigned int *count, void *infos) {
    struct members members = {0};
    nvmlReturn_t result = driver_result;
    if (result == NVML_SUCCESS && (count == NULL || (*count > 0 && infos == NULL)))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        result = nvml_read_members(device, &members);
    if (result == NVML_SUCCESS) {
        nvml_keep_members(answer, &members, true);
        result = nvml_check_room(count, infos, answer->count);
    }
    for (unsigned int i = 0; result == NVML_SUCCESS && i < answer->count; i++) {
        nvmlProcessInfo_t info = {0};
        memcpy(&info, answer->list + i * answer->entry, answer->entry);
        put(infos, i, answer->entry, info, nvml_find_member(&members, info.pid));
    }
    nvml_free_members(&members);
    nvml_free_answer(answer);
    return result;
}

#define OTHER_LIST(symbol, type)                                                                                       \
    nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *count, type *infos) {                                       \
        struct answer answer = {.entry = sizeof *infos};                                                               \
        nvmlReturn_t driver_result =                                                                                   \
            NVML_QUERY(answer, REAL(symbol)(device, &answer.count, (type *)(void *)answer.list));                      \
        return other_list(device, driver_result, &answer, count, infos);                                               \
    }
OTHER_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
OTHER_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
OTHER_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
OTHER_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
OTHER_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
OTHER_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

/* --- the one list of all modes --- */

/* The driver's list for a mode. The driver checks version and mode. */
static nvmlReturn_t query_details(nvmlDevice_t device, nvmlProcessDetailList_t query, struct answer *answer) {
    query.numProcArrayEntries = answer->count;
    query.procArray = (nvmlProcessDetail_v1_t *)(void *)answer->list;
    nvmlReturn_t result = REAL(nvmlDeviceGetRunningProcessDetailList)(device, &query);
    answer->count = query.numProcArrayEntries;
    return result;
}

/* All members are on the compute list and on that of all modes, whatever the driver lists. */
static nvmlReturn_t put_details(nvmlDevice_t device, struct answer *answer, const struct members *members,
                                nvmlProcessDetailList_t *list) {
    bool all = list->mode == NVML_PROCESS_MODE_COMPUTE || list->mode == NVML_PROCESS_MODE_ALL;
    nvml_keep_members(answer, members, true);
    unsigned int found = all ? members->count : answer->count;
    nvmlReturn_t result = nvml_check_room(&list->numProcArrayEntries, list->procArray, found);
    nvmlProcessInfo_t instances = instances_of(device);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < found; i++) {
        const struct member *member = &members->list[i];
        if (!all)
            member = nvml_find_member(members, ((nvmlProcessDetail_v1_t *)(void *)answer->list)[i].pid);
        list->procArray[i] = (nvmlProcessDetail_v1_t){
            .pid = member->pid,
            .usedGpuMemory = member->bytes,
            .gpuInstanceId = instances.gpuInstanceId,
            .computeInstanceId = instances.computeInstanceId,
        };
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list) {
    struct answer answer = {.entry = sizeof *list->procArray};
    struct members members = {0};
    if (list == NULL)
        return REAL(nvmlDeviceGetRunningProcessDetailList)(device, list);
    nvmlReturn_t result = NVML_QUERY(answer, query_details(device, *list, &answer));
    if (result == NVML_SUCCESS)
        result = nvml_read_members(device, &members);
    if (result == NVML_SUCCESS)
        result = put_details(device, &answer, &members, list);
    nvml_free_members(&members);
    nvml_free_answer(&answer);
    return result;
}
