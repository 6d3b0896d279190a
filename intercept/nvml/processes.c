/*
 * Which processes use a device: the living ones of its claims, with the bytes that the regions say each holds.
 *
 * A region knows a process as it knows itself, which is how the container sees it. It does not know which of the driver's
 * lists a process is on, so all are on the compute list; the lists of graphics and of MPS are the driver's own, less
 * everybody who is not of the claims.
 */
#include "nvml/claim.h"

#include <string.h>

/* The driver was asked for a list: whether the library is initialised, the device exists, and the caller may see it, is
 * for the driver to say. That its list did not fit, or that it is older than this version of the list, is no obstacle. */
static bool answerable(nvmlReturn_t asked) {
    return asked == NVML_SUCCESS || asked == NVML_ERROR_INSUFFICIENT_SIZE || asked == NVML_ERROR_FUNCTION_NOT_FOUND;
}

static nvmlReturn_t read_members_of(nvmlDevice_t device, struct members *members) {
    struct fraction fraction;
    nvmlReturn_t result = nvml_read_fraction(device, &fraction);
    *members = (struct members){0};
    return result == NVML_SUCCESS ? nvml_read_members(&fraction, members) : result;
}

/* The MIG instances that a handle stands for; of others there are none. */
static nvmlProcessInfo_t instances_of(nvmlDevice_t device) {
    nvmlProcessInfo_t none = {.gpuInstanceId = 0xFFFFFFFF, .computeInstanceId = 0xFFFFFFFF}, mig = none;
    if (REAL(nvmlDeviceGetGpuInstanceId)(device, &mig.gpuInstanceId) != NVML_SUCCESS ||
        REAL(nvmlDeviceGetComputeInstanceId)(device, &mig.computeInstanceId) != NVML_SUCCESS)
        return none;
    return mig;
}

/* Every version of an entry begins like the one before; `entry` is the size of the one wanted. */
static void put(void *infos, unsigned int i, size_t entry, nvmlProcessInfo_t info, const struct member *member) {
    info.pid = member->pid;
    info.usedGpuMemory = member->bytes;
    memcpy((char *)infos + i * entry, &info, entry);
}

static nvmlReturn_t compute_list(nvmlDevice_t device, nvmlReturn_t asked, size_t entry, unsigned int *count,
                                 void *infos) {
    struct members members;
    if (!answerable(asked))
        return asked;
    if (count == NULL || (*count > 0 && infos == NULL))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = read_members_of(device, &members);
    if (result == NVML_SUCCESS)
        result = nvml_check_room(count, infos, members.count);
    if (result == NVML_SUCCESS && members.count > 0) {
        nvmlProcessInfo_t instances = instances_of(device);
        for (unsigned int i = 0; i < members.count; i++)
            put(infos, i, entry, instances, &members.list[i]);
    }
    nvml_drop_members(&members);
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

/* What the driver listed, less the others, with the regions' bytes. */
static nvmlReturn_t other_list(nvmlDevice_t device, nvmlReturn_t asked, struct answer *answer, unsigned int *count,
                               void *infos) {
    struct members members = {0};
    nvmlReturn_t result = asked;
    if (result == NVML_SUCCESS && (count == NULL || (*count > 0 && infos == NULL)))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        result = read_members_of(device, &members);
    if (result == NVML_SUCCESS) {
        nvml_keep_members(answer, &members);
        result = nvml_check_room(count, infos, answer->count);
    }
    for (unsigned int i = 0; result == NVML_SUCCESS && i < answer->count; i++) {
        nvmlProcessInfo_t info = {0};
        memcpy(&info, answer->list + i * answer->entry, answer->entry);
        put(infos, i, answer->entry, info, nvml_find_member(&members, info.pid));
    }
    nvml_drop_members(&members);
    nvml_drop_answer(answer);
    return result;
}

#define OTHER_LIST(symbol, type)                                                                                       \
    nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *count, type *infos) {                                       \
        struct answer answer = {.entry = sizeof *infos};                                                               \
        nvmlReturn_t asked = NVML_ASK(answer, REAL(symbol)(device, &answer.count, (type *)(void *)answer.list));       \
        return other_list(device, asked, &answer, count, infos);                                                       \
    }
OTHER_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
OTHER_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
OTHER_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
OTHER_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
OTHER_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
OTHER_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

/* --- the one list of all modes --- */

/* The driver's list of the mode; version and mode are for the driver to judge. */
static nvmlReturn_t ask_details_once(nvmlDevice_t device, nvmlProcessDetailList_t asked, struct answer *answer) {
    asked.numProcArrayEntries = answer->count;
    asked.procArray = (nvmlProcessDetail_v1_t *)(void *)answer->list;
    nvmlReturn_t said = REAL(nvmlDeviceGetRunningProcessDetailList)(device, &asked);
    answer->count = asked.numProcArrayEntries;
    return said;
}

static nvmlReturn_t ask_details(nvmlDevice_t device, nvmlProcessDetailList_t asked, struct answer *answer) {
    return NVML_ASK(*answer, ask_details_once(device, asked, answer));
}

/* On the compute list and on that of all modes is everybody; what the driver says of them is not needed. */
static nvmlReturn_t put_details(nvmlDevice_t device, struct answer *answer, const struct members *members,
                                nvmlProcessDetailList_t *list) {
    bool all = list->mode == NVML_PROCESS_MODE_COMPUTE || list->mode == NVML_PROCESS_MODE_ALL;
    nvml_keep_members(answer, members);
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
    nvmlReturn_t result = ask_details(device, *list, &answer);
    if (result == NVML_SUCCESS)
        result = read_members_of(device, &members);
    if (result == NVML_SUCCESS)
        result = put_details(device, &answer, &members, list);
    nvml_drop_members(&members);
    nvml_drop_answer(&answer);
    return result;
}
