/*
 * An NVML with features that the simulated one lacks: one device, which is a MIG device, with processes on its graphics
 * and MPS lists; FAKE_NVML_PIDS has their IDs, such as "12,34". Built as a driver's library, and as a program that
 * queries it through the shadow and prints the results (FAKE_NVML_PROBE).
 */
#include "../driver/nvml_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef FAKE_NVML_PROBE

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t, unsigned int *, nvmlProcessInfo_t *);
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t, unsigned int *, nvmlProcessInfo_v1_t *);
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t, unsigned int *, nvmlProcessInfo_t *);
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t, nvmlProcessDetailList_t *);
nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t, nvmlDeviceAttributes_t *);
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t, nvmlDeviceAttributes_t *);
nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t, nvmlConfComputeMemSizeInfo_t *);
nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t, nvmlMemory_t *);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t, nvmlMemory_t *);

enum { ROOM = 4 };

static void print_details(const char *name, unsigned int mode) {
    nvmlProcessDetail_v1_t details[ROOM] = {{0}};
    nvmlProcessDetailList_t list = {
        .version = (unsigned)sizeof list | 1u << 24, .mode = mode, .numProcArrayEntries = ROOM, .procArray = details};
    printf("\n%s details %d:", name, nvmlDeviceGetRunningProcessDetailList(NULL, &list));
    for (unsigned int i = 0; i < list.numProcArrayEntries; i++)
        printf(" %u=%llu in %u.%u", details[i].pid, details[i].usedGpuMemory >> 20, details[i].gpuInstanceId,
               details[i].computeInstanceId);
}

int main(void) {
    unsigned int count = ROOM;
    nvmlProcessInfo_t infos[ROOM];
    nvmlProcessInfo_v1_t first[ROOM];
    nvmlDeviceAttributes_t has = {0};
    nvmlConfComputeMemSizeInfo_t sizes = {0};
    nvmlMemory_t memory = {0};
    printf("compute %d:", nvmlDeviceGetComputeRunningProcesses_v3(NULL, &count, infos));
    for (unsigned int i = 0; i < count; i++)
        printf(" %u=%llu in %u.%u", infos[i].pid, infos[i].usedGpuMemory >> 20, infos[i].gpuInstanceId,
               infos[i].computeInstanceId);
    count = ROOM;
    printf("\ngraphics %d:", nvmlDeviceGetGraphicsRunningProcesses(NULL, &count, first));
    for (unsigned int i = 0; i < count; i++)
        printf(" %u=%llu", first[i].pid, first[i].usedGpuMemory >> 20);
    count = ROOM;
    printf("\nmps %d:", nvmlDeviceGetMPSComputeRunningProcesses_v3(NULL, &count, infos));
    for (unsigned int i = 0; i < count; i++)
        printf(" %u=%llu in %u.%u", infos[i].pid, infos[i].usedGpuMemory >> 20, infos[i].gpuInstanceId,
               infos[i].computeInstanceId);
    print_details("compute", NVML_PROCESS_MODE_COMPUTE);
    print_details("mps", NVML_PROCESS_MODE_MPS);
    printf("\nattributes %d", nvmlDeviceGetAttributes_v2(NULL, &has));
    printf(": %llu", has.memorySizeMB);
    has = (nvmlDeviceAttributes_t){0};
    printf("\nfirst attributes %d", nvmlDeviceGetAttributes(NULL, &has));
    printf(": %llu", has.memorySizeMB);
    printf("\nprotected %d", nvmlDeviceGetConfComputeMemSizeInfo(NULL, &sizes));
    printf(": %llu %llu", sizes.protectedMemSizeKib >> 10, sizes.unprotectedMemSizeKib >> 10);
    printf("\nmostly protected %d", nvmlDeviceGetConfComputeMemSizeInfo((nvmlDevice_t)&sizes, &sizes));
    printf(": %llu %llu", sizes.protectedMemSizeKib >> 10, sizes.unprotectedMemSizeKib >> 10);
    printf("\nprotected in use %d", nvmlDeviceGetConfComputeProtectedMemoryUsage(NULL, &memory));
    printf(": %llu of %llu", memory.used >> 20, memory.total >> 20);
    printf("\nmemory %d\n", nvmlDeviceGetMemoryInfo(NULL, &memory)); /* which this driver does not have */
    return 0;
}

#else

#define EXPORT __attribute__((visibility("default")))
#define GIB (1ull << 30)

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    (void)device;
    snprintf(uuid, length, "MIG-7e570000-0000-4000-8000-000000000000");
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    snprintf(version, length, "570.124.06");
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) {
    (void)device;
    *id = 3;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id) {
    (void)device;
    *id = 1;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                               nvmlProcessInfo_t *infos) {
    const char *pids = getenv("FAKE_NVML_PIDS");
    unsigned int found = 0, room = *count;
    (void)device;
    for (char *end; pids != NULL && *pids != '\0'; pids = *end == ',' ? end + 1 : end) {
        nvmlProcessInfo_t info = {(unsigned int)strtoul(pids, &end, 10), 7 * GIB, 3, 1};
        if (found < room)
            infos[found] = info;
        found++;
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                          nvmlProcessInfo_v1_t *infos) {
    nvmlProcessInfo_t all[256];
    unsigned int room = *count, found = 256;
    nvmlDeviceGetMPSComputeRunningProcesses_v3(device, &found, all);
    for (unsigned int i = 0; i < found && i < room; i++)
        infos[i] = (nvmlProcessInfo_v1_t){all[i].pid, all[i].usedGpuMemory};
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* Its processes are on the lists of all modes, and in no instance: which they are in, the shadow is to say. */
EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list) {
    nvmlProcessInfo_t all[256];
    unsigned int room = list->numProcArrayEntries, found = 256;
    nvmlDeviceGetMPSComputeRunningProcesses_v3(device, &found, all);
    for (unsigned int i = 0; i < found && i < room; i++)
        list->procArray[i] = (nvmlProcessDetail_v1_t){.pid = all[i].pid, .usedGpuMemory = all[i].usedGpuMemory};
    list->numProcArrayEntries = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    (void)device;
    *attributes = (nvmlDeviceAttributes_t){.memorySizeMB = 20 << 10};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    return nvmlDeviceGetAttributes_v2(device, attributes);
}

/* Of the device that a handle other than NULL stands for, more is protected than a claim on it allows. */
EXPORT nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device, nvmlConfComputeMemSizeInfo_t *sizes) {
    unsigned long long protected = device == NULL ? 400 : 600;
    *sizes = (nvmlConfComputeMemSizeInfo_t){.protectedMemSizeKib = protected << 10, .unprotectedMemSizeKib = 20 << 20};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory) {
    (void)device;
    *memory = (nvmlMemory_t){.total = 20 * GIB, .free = 13 * GIB, .used = 7 * GIB};
    return NVML_SUCCESS;
}

#endif
