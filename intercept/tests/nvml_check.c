/*
 * Queries a GPU's processes by every function of NVML, and checks that all results agree and follow NVML's protocol for
 * lists.
 *
 * INDEX is a GPU's, or a GPU's and that of a MIG device of it: 0.1.
 *
 *   nvml_check INDEX processes [PID=MIB ...]    exactly these, in any order; PID+MIB has a kernel loaded besides, which may
 *                                               take 2 MiB
 *   nvml_check INDEX busy [PID ...]             the samples are of exactly these
 *   nvml_check INDEX accounts [PID=MIB ...] [-PID ...]
 *                                               accounts may be seen of exactly these, whose peaks are so much, and not
 *                                               of the others
 *   nvml_check INDEX accounting                 turns accounting on
 *   nvml_check INDEX unclaimed                  no claim is on it: it has no processes, and its memory is not to be seen
 *   nvml_check INDEX visible UUID BUS [OTHER ...]
 *                                               the only GPU there is, at index 0, has this UUID and bus ID; those with other
 *                                               UUIDs or bus IDs are not found
 *   nvml_check INDEX error CODE                 every query returns this error
 *
 * Prints each difference; exits with 0 if there is none.
 */
#include "../driver/nvml_api.h"
#include "../driver/shadowed.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define X(symbol, parameters) nvmlReturn_t symbol parameters;
NVML_SHADOWED(X)
#undef X
nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t, char *, unsigned int);
nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t, unsigned int *);
nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t, unsigned int *);
nvmlReturn_t nvmlDeviceSetAccountingMode(nvmlDevice_t, int);

enum { MOST = 64, NOT_SUPPORTED = 3, NO_PERMISSION = 4, VERSION_MISMATCH = 25 };

static struct expected {
    unsigned int pid;
    unsigned long long mib;
    bool kernel; /* and what its kernel takes */
} expected[MOST];
static unsigned int expectations, stranger[MOST], strangers;
static int failures;

static void check(bool holds, const char *what, long long got, long long want) {
    if (holds)
        return;
    failures++;
    printf("%s: got %lld, want %lld\n", what, got, want);
}

static void same(const char *what, long long got, long long want) {
    check(got == want, what, got, want);
}

static const struct expected *find(unsigned int pid) {
    for (unsigned int i = 0; i < expectations; i++)
        if (expected[i].pid == pid)
            return &expected[i];
    return NULL;
}

static void same_process(const char *what, unsigned int pid, unsigned long long bytes) {
    const struct expected *process = find(pid);
    check(process != NULL, what, pid, 0);
    if (process != NULL)
        check(bytes >> 20 == process->mib || (process->kernel && bytes >> 20 == process->mib + 2), what,
              (long long)(bytes >> 20), (long long)process->mib);
}

/* --- lists --- */

/* The instances of a MIG device. */
static unsigned int gpu_instance = 0xFFFFFFFF, compute_instance = 0xFFFFFFFF;

/* One list function, its entries and their bytes; `instances` is checked of those versions that have it. */
#define CHECK_LIST(symbol, type, found, instances)                                                                     \
    do {                                                                                                               \
        type infos[MOST];                                                                                              \
        unsigned int count = 0, want = (found);                                                                        \
        same(#symbol " asked for the length", symbol(device, &count, NULL),                                            \
             want > 0 ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS);                                                  \
        same(#symbol ": length", count, want);                                                                         \
        memset(infos, 0x5a, sizeof infos);                                                                             \
        if (want > 1) {                                                                                                \
            count = want - 1;                                                                                          \
            same(#symbol " with too little room", symbol(device, &count, infos), NVML_ERROR_INSUFFICIENT_SIZE);        \
            same(#symbol " with too little room: length", count, want);                                                \
            same(#symbol " with too little room: entries", infos[0].pid, 0x5a5a5a5a);                                  \
        }                                                                                                              \
        count = want;                                                                                                  \
        same(#symbol " with room to the last entry", symbol(device, &count, infos), NVML_SUCCESS);                     \
        count = MOST;                                                                                                  \
        same(#symbol, symbol(device, &count, infos), NVML_SUCCESS);                                                    \
        same(#symbol ": entries", count, want);                                                                        \
        for (unsigned int i = 0; i < count && i < MOST; i++) {                                                         \
            same_process(#symbol, infos[i].pid, infos[i].usedGpuMemory);                                               \
            for (unsigned int j = 0; j < i; j++)                                                                       \
                check(infos[i].pid != infos[j].pid, #symbol ": twice", infos[i].pid, 0);                               \
            instances;                                                                                                 \
        }                                                                                                              \
        same(#symbol ": beyond its entries", infos[want].pid, 0x5a5a5a5a);                                             \
        count = 3;                                                                                                     \
        same(#symbol " without an array", symbol(device, &count, NULL), NVML_ERROR_INVALID_ARGUMENT);                  \
        same(#symbol " without a count", symbol(device, NULL, infos), NVML_ERROR_INVALID_ARGUMENT);                    \
    } while (0)

#define INSTANCES                                                                                                      \
    same("instances", infos[i].gpuInstanceId == gpu_instance && infos[i].computeInstanceId == compute_instance, 1)

static void check_details(nvmlDevice_t device, unsigned int mode, unsigned int want) {
    nvmlProcessDetail_v1_t details[MOST];
    nvmlProcessDetailList_t list = {.version = (unsigned)sizeof list | 1u << 24, .mode = mode};
    same("details asked for their number", nvmlDeviceGetRunningProcessDetailList(device, &list),
         want > 0 ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS);
    same("details: number", list.numProcArrayEntries, want);
    list.numProcArrayEntries = MOST;
    list.procArray = details;
    same("details", nvmlDeviceGetRunningProcessDetailList(device, &list), NVML_SUCCESS);
    same("details: entries", list.numProcArrayEntries, want);
    check(list.procArray == details, "details: array", 0, 1);
    for (unsigned int i = 0; i < want && i < list.numProcArrayEntries; i++) {
        same_process("details", details[i].pid, details[i].usedGpuMemory);
        same("details: instance", details[i].gpuInstanceId, gpu_instance);
        same("details: protected", (long long)details[i].usedGpuCcProtectedMemory, 0);
    }
    list.version = 77;
    same("details of a version that there is not", nvmlDeviceGetRunningProcessDetailList(device, &list),
         VERSION_MISMATCH);
}

static void check_processes(nvmlDevice_t device) {
    CHECK_LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, expectations, (void)0);
    CHECK_LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, expectations, INSTANCES);
    CHECK_LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, expectations, INSTANCES);
    CHECK_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, 0u, (void)0);
    CHECK_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, 0u, (void)0);
    CHECK_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, 0u, (void)0);
    CHECK_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, 0u, (void)0);
    CHECK_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, 0u, (void)0);
    CHECK_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, 0u, (void)0);
    check_details(device, NVML_PROCESS_MODE_COMPUTE, expectations);
    check_details(device, NVML_PROCESS_MODE_GRAPHICS, 0);
    check_details(device, NVML_PROCESS_MODE_MPS, 0);
    check_details(device, NVML_PROCESS_MODE_ALL, expectations);
    nvmlMemory_t first;
    nvmlMemory_v2_t second = {.version = (unsigned)sizeof second | 2u << 24};
    nvmlProcessInfo_t infos[MOST];
    unsigned int count = MOST;
    unsigned long long sum = 0;
    same("processes", nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos), NVML_SUCCESS);
    for (unsigned int i = 0; i < count && i < MOST; i++)
        sum += infos[i].usedGpuMemory;
    same("memory", nvmlDeviceGetMemoryInfo(device, &first), NVML_SUCCESS);
    same("memory, second version", nvmlDeviceGetMemoryInfo_v2(device, &second), NVML_SUCCESS);
    same("memory: what the processes hold", (long long)(first.used >> 20), (long long)(sum >> 20));
    same("memory: used", (long long)second.used, (long long)first.used);
    same("memory: reserved", (long long)second.reserved, 0);
    same("memory: total", (long long)(second.used + second.free), (long long)second.total);
}

/* --- GPU time --- */

static void check_pid(const char *what, unsigned int pid, unsigned int share, unsigned int *seen) {
    check(find(pid) != NULL, what, pid, 0);
    check(share > 0 && share <= 100, "share", share, 100);
    *seen += find(pid) != NULL;
}

/* The driver's samples are of what happened since the last question, so there must have been something. */
static void check_busy(nvmlDevice_t device) {
    nvmlProcessUtilizationSample_t samples[MOST];
    nvmlProcessUtilizationInfo_v1_t infos[MOST];
    nvmlProcessesUtilizationInfo_t info = {.version = (unsigned)sizeof info | 1u << 24, .procUtilArray = infos};
    unsigned int count = 0, seen = 0;
    nvmlReturn_t want = expectations > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
    if (expectations > 0) {
        same("samples asked for their number", nvmlDeviceGetProcessUtilization(device, NULL, &count, 0),
             NVML_ERROR_INSUFFICIENT_SIZE);
        check(count >= expectations, "samples: number", count, expectations);
        same("infos asked for their number", nvmlDeviceGetProcessesUtilizationInfo(device, &info),
             NVML_ERROR_INSUFFICIENT_SIZE);
    }
    count = MOST;
    same("samples", nvmlDeviceGetProcessUtilization(device, samples, &count, 0), want);
    same("samples: entries", count, expectations);
    for (unsigned int i = 0; i < count && i < MOST; i++)
        check_pid("samples", samples[i].pid, samples[i].smUtil, &seen);
    same("samples: processes", seen, expectations);
    usleep(300000);
    seen = 0;
    info.processSamplesCount = MOST;
    same("infos", nvmlDeviceGetProcessesUtilizationInfo(device, &info), want);
    same("infos: entries", info.processSamplesCount, expectations);
    for (unsigned int i = 0; i < info.processSamplesCount && i < MOST; i++)
        check_pid("infos", infos[i].pid, infos[i].smUtil, &seen);
    same("infos: processes", seen, expectations);
    info.version = 77;
    same("infos of a version that there is not", nvmlDeviceGetProcessesUtilizationInfo(device, &info),
         VERSION_MISMATCH);
}

static void check_accounts(nvmlDevice_t device) {
    unsigned int count = 0, pids[MOST];
    nvmlAccountingStats_t first;
    nvmlAccountingStats_v2_t second;
    same("accounts asked for their number", nvmlDeviceGetAccountingPids(device, &count, NULL),
         expectations > 0 ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS);
    same("accounts: number", count, expectations);
    count = MOST;
    same("accounts", nvmlDeviceGetAccountingPids(device, &count, pids), NVML_SUCCESS);
    same("accounts: entries", count, expectations);
    for (unsigned int i = 0; i < count && i < MOST; i++) {
        memset(&second, 0, sizeof second);
        second.pid = pids[i];
        same("account", nvmlDeviceGetAccountingStats(device, pids[i], &first), NVML_SUCCESS);
        same("account, second version", nvmlDeviceGetAccountingStats_v2(device, &second), NVML_SUCCESS);
        same_process("account", pids[i], first.maxMemoryUsage);
        same_process("account, second version", second.pid, second.maxMemoryUsage);
    }
    for (unsigned int i = 0; i < strangers; i++) {
        memset(&first, 0x5a, sizeof first);
        memset(&second, 0x5a, sizeof second);
        second.pid = stranger[i];
        same("account of another", nvmlDeviceGetAccountingStats(device, stranger[i], &first), NVML_ERROR_NOT_FOUND);
        same("account of another, second version", nvmlDeviceGetAccountingStats_v2(device, &second),
             NVML_ERROR_NOT_FOUND);
        check(first.isRunning == 0x5a5a5a5a && second.isRunning == 0x5a5a5a5a, "account of another: told", 1, 0);
    }
}

/* --- GPUs without a claim --- */

/* An error, and nothing in the caller's struct. */
#define CHECK_HIDDEN(symbol, type)                                                                                     \
    do {                                                                                                               \
        type hidden, before;                                                                                           \
        memset(&hidden, 0, sizeof hidden);                                                                             \
        *(unsigned int *)(void *)&hidden = (unsigned)sizeof hidden | 2u << 24; /* its version, if it has one */        \
        before = hidden;                                                                                               \
        int result = (int)symbol(device, &hidden);                                                                     \
        check(result == NO_PERMISSION || result == NOT_SUPPORTED, #symbol, result, NO_PERMISSION);                     \
        same(#symbol ": told", memcmp(&hidden, &before, sizeof hidden), 0);                                            \
    } while (0)

static void check_unclaimed(nvmlDevice_t device) {
    CHECK_LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, 0u, INSTANCES);
    CHECK_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, 0u, INSTANCES);
    CHECK_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, 0u, INSTANCES);
    check_details(device, NVML_PROCESS_MODE_ALL, 0);
    CHECK_HIDDEN(nvmlDeviceGetMemoryInfo, nvmlMemory_t);
    CHECK_HIDDEN(nvmlDeviceGetMemoryInfo_v2, nvmlMemory_v2_t);
    CHECK_HIDDEN(nvmlDeviceGetAttributes_v2, nvmlDeviceAttributes_t);
    CHECK_HIDDEN(nvmlDeviceGetConfComputeMemSizeInfo, nvmlConfComputeMemSizeInfo_t);
    CHECK_HIDDEN(nvmlDeviceGetConfComputeProtectedMemoryUsage, nvmlMemory_t);
    nvmlMemory_t memory;
    nvmlMemory_v2_t second = {.version = (unsigned)sizeof second | 2u << 24};
    same("memory", nvmlDeviceGetMemoryInfo(device, &memory), NO_PERMISSION);
    same("memory, second version", nvmlDeviceGetMemoryInfo_v2(device, &second), NO_PERMISSION);
}

/* --- which GPUs there are --- */

static void check_visible(char **names) {
    unsigned int count = 0, index = 7;
    nvmlDevice_t device = NULL, found = NULL;
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    same("count", nvmlDeviceGetCount_v2(&count), NVML_SUCCESS);
    same("count", count, 1);
    same("first count", nvmlDeviceGetCount(&count), NVML_SUCCESS);
    same("first count", count, 1);
    same("index 0", nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    same("first index 0", nvmlDeviceGetHandleByIndex(0, &found), NVML_SUCCESS);
    check(found == device, "first index 0: device", 0, 1);
    same("index 1", nvmlDeviceGetHandleByIndex_v2(1, &found), NVML_ERROR_INVALID_ARGUMENT);
    same("index 0 without room", nvmlDeviceGetHandleByIndex_v2(0, NULL), NVML_ERROR_INVALID_ARGUMENT);
    same("its index", nvmlDeviceGetIndex(device, &index), NVML_SUCCESS);
    same("its index", index, 0);
    same("its UUID", nvmlDeviceGetUUID(device, uuid, sizeof uuid), NVML_SUCCESS);
    check(strcmp(uuid, names[0]) == 0, "its UUID", 0, 1);
    found = NULL;
    same("by UUID", nvmlDeviceGetHandleByUUID(names[0], &found), NVML_SUCCESS);
    check(found == device, "by UUID: device", 0, 1);
    nvmlUUID_t versioned = {.version = (unsigned)sizeof versioned | 1u << 24, .type = 1};
    snprintf(versioned.value.str, sizeof versioned.value.str, "%s", names[0]);
    same("by versioned UUID", nvmlDeviceGetHandleByUUIDV(&versioned, &found), NVML_SUCCESS);
    same("by bus ID", nvmlDeviceGetHandleByPciBusId_v2(names[1], &found), NVML_SUCCESS);
    check(found == device, "by bus ID: device", 0, 1);
    same("by bus ID without room", nvmlDeviceGetHandleByPciBusId_v2(names[1], NULL), NVML_ERROR_INVALID_ARGUMENT);
    for (char **other = names + 2; *other != NULL; other++) {
        found = NULL;
        snprintf(versioned.value.str, sizeof versioned.value.str, "%s", *other);
        same(*other, nvmlDeviceGetHandleByUUID(*other, &found), NVML_ERROR_NOT_FOUND);
        check(nvmlDeviceGetHandleByUUIDV(&versioned, &found) != NVML_SUCCESS, *other, 0, NVML_ERROR_NOT_FOUND);
        check(nvmlDeviceGetHandleByPciBusId_v2(*other, &found) != NVML_SUCCESS, *other, 0, NVML_ERROR_NOT_FOUND);
        check(nvmlDeviceGetHandleByPciBusId(*other, &found) != NVML_SUCCESS, *other, 0, NVML_ERROR_NOT_FOUND);
        check(found == NULL, *other, 1, 0);
    }
}

/* Of MIG devices, the visible one. */
static void check_visible_mig(nvmlDevice_t gpu, const char *want) {
    nvmlDevice_t device = NULL, found = NULL;
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    same("MIG device", nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0, &device), NVML_SUCCESS);
    same("MIG device: UUID", nvmlDeviceGetUUID(device, uuid, sizeof uuid), NVML_SUCCESS);
    check(strcmp(uuid, want) == 0, "MIG device: UUID", 0, 1);
    same("MIG device by UUID", nvmlDeviceGetHandleByUUID(want, &found), NVML_SUCCESS);
    check(found == device, "MIG device by UUID: device", 0, 1);
    for (unsigned int i = 1; i < 7; i++)
        same("another MIG device", nvmlDeviceGetMigDeviceHandleByIndex(gpu, i, &found), NVML_ERROR_NOT_FOUND);
}

static void check_error(nvmlDevice_t device, nvmlReturn_t error) {
    unsigned int count = MOST, pids[MOST];
    nvmlProcessInfo_t infos[MOST];
    nvmlProcessUtilizationSample_t samples[MOST];
    nvmlProcessDetailList_t list = {.version = (unsigned)sizeof list | 1u << 24};
    nvmlMemory_t memory;
    same("memory", nvmlDeviceGetMemoryInfo(device, &memory), error);
    same("compute", nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos), error);
    same("graphics", nvmlDeviceGetGraphicsRunningProcesses_v3(device, &count, infos), error);
    same("details", nvmlDeviceGetRunningProcessDetailList(device, &list), error);
    same("samples", nvmlDeviceGetProcessUtilization(device, samples, &count, 0), error);
    same("accounts", nvmlDeviceGetAccountingPids(device, &count, pids), error);
    if (error == 1) {
        same("count", nvmlDeviceGetCount_v2(&count), error);
        same("handle", nvmlDeviceGetHandleByIndex_v2(0, &device), error);
    }
}

int main(int argc, char **argv) {
    nvmlDevice_t device = NULL;
    const char *mode = argc > 2 ? argv[2] : "";
    if (strcmp(mode, "error") == 0 && atoi(argv[3]) == 1) { /* "uninitialised" */
        check_error(device, 1);
        return failures != 0;
    }
    same("nvmlInit", nvmlInit_v2(), NVML_SUCCESS);
    const char *dot = argc > 1 ? strchr(argv[1], '.') : NULL;
    same("handle", nvmlDeviceGetHandleByIndex_v2(argc > 1 ? (unsigned)atoi(argv[1]) : 0, &device), NVML_SUCCESS);
    if (dot != NULL) {
        same("MIG handle", nvmlDeviceGetMigDeviceHandleByIndex(device, (unsigned)atoi(dot + 1), &device), NVML_SUCCESS);
        same("GPU instance", nvmlDeviceGetGpuInstanceId(device, &gpu_instance), NVML_SUCCESS);
        same("compute instance", nvmlDeviceGetComputeInstanceId(device, &compute_instance), NVML_SUCCESS);
    }
    if (strcmp(mode, "visible") == 0 && argc > 4) {
        check_visible(argv + 3);
        return failures != 0;
    }
    if (strcmp(mode, "visible-mig") == 0 && argc > 3) {
        check_visible_mig(device, argv[3]);
        return failures != 0;
    }
    for (int i = 3; i < argc && i < MOST; i++) {
        char *rest;
        if (argv[i][0] == '-') {
            stranger[strangers++] = (unsigned int)strtoul(argv[i] + 1, NULL, 10);
            continue;
        }
        expected[expectations].pid = (unsigned int)strtoul(argv[i], &rest, 10);
        expected[expectations].kernel = *rest == '+';
        expected[expectations++].mib = *rest != '\0' ? strtoull(rest + 1, NULL, 10) : 0;
    }
    if (strcmp(mode, "processes") == 0)
        check_processes(device);
    else if (strcmp(mode, "unclaimed") == 0)
        check_unclaimed(device);
    else if (strcmp(mode, "busy") == 0)
        check_busy(device);
    else if (strcmp(mode, "accounts") == 0)
        check_accounts(device);
    else if (strcmp(mode, "accounting") == 0)
        same("accounting", nvmlDeviceSetAccountingMode(device, 1), NVML_SUCCESS);
    else if (strcmp(mode, "error") == 0)
        check_error(device, (nvmlReturn_t)atoi(argv[3]));
    else
        return 2;
    return failures != 0;
}
