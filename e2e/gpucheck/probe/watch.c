/*
 * What NVML says of a GPU, whenever it is asked by a line on stdin. Run bare it is the truth that the checks compare with;
 * run behind a shadow library it shows what monitoring tools see.
 *
 *   watch UUID    32 hex digits
 */
#include "talk.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

typedef struct nvmlDevice_st *nvmlDevice_t;

struct memory_v1 {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct process_v1 {
    unsigned pid;
    unsigned long long bytes;
};

/* Of versions 2 and 3 of the list. */
struct process {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

enum { MEMORY_V2 = sizeof(struct memory_v2) | 2 << 24, NO_INSTANCE = -1 };

#define FUNCTIONS(F)                                                                                                   \
    F(nvmlInit_v2, (void))                                                                                             \
    F(nvmlSystemGetDriverVersion, (char *, unsigned))                                                                  \
    F(nvmlDeviceGetHandleByUUID, (const char *, nvmlDevice_t *))                                                       \
    F(nvmlDeviceGetMemoryInfo, (nvmlDevice_t, struct memory_v1 *))                                                     \
    F(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t, struct memory_v2 *))                                                  \
    F(nvmlDeviceGetComputeRunningProcesses, (nvmlDevice_t, unsigned *, struct process_v1 *))                           \
    F(nvmlDeviceGetComputeRunningProcesses_v2, (nvmlDevice_t, unsigned *, struct process *))                           \
    F(nvmlDeviceGetComputeRunningProcesses_v3, (nvmlDevice_t, unsigned *, struct process *))

#define DECLARE(name, parameters) static int(*name) parameters;
FUNCTIONS(DECLARE)

static char library_file[4096];

static void fail(const char *what, int result) {
    fprintf(stderr, "watch: %s: %d\n", what, result);
    exit(1);
}

static void load(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    Dl_info info;
    if (library == NULL) {
        fprintf(stderr, "watch: %s\n", dlerror());
        exit(1);
    }
#define LOAD(name, parameters) *(void **)&name = dlsym(library, #name);
    FUNCTIONS(LOAD)
    if (nvmlInit_v2 == NULL || nvmlDeviceGetHandleByUUID == NULL || nvmlDeviceGetMemoryInfo == NULL)
        fail("libnvidia-ml.so.1 lacks functions", 0);
    if (dladdr((void *)nvmlInit_v2, &info) != 0 && info.dli_fname != NULL)
        snprintf(library_file, sizeof library_file, "%s", info.dli_fname);
}

static int find(const char *digits, const char *prefix, nvmlDevice_t *device) {
    char uuid[64];
    snprintf(uuid, sizeof uuid, "%s-%.8s-%.4s-%.4s-%.4s-%.12s", prefix, digits, digits + 8, digits + 12, digits + 16,
             digits + 20);
    int result = nvmlDeviceGetHandleByUUID(uuid, device);
    if (result == 0) {
        char version[96] = "";
        if (nvmlSystemGetDriverVersion != NULL)
            nvmlSystemGetDriverVersion(version, sizeof version);
        say("gpu", "\"uuid\":\"%s\",\"driver\":\"%s\",\"file\":\"%s\"", uuid, version, library_file);
    }
    return result;
}

enum { MOST = 1024 };

static void put_processes(const char *version, int result, const struct process *processes, unsigned count) {
    printf(",\"%s\":{\"result\":%d,\"list\":[", version, result);
    for (unsigned i = 0; result == 0 && i < count; i++)
        printf("%s{\"pid\":%u,\"bytes\":%llu}", i > 0 ? "," : "", processes[i].pid,
               processes[i].bytes == UINT64_MAX ? 0 : processes[i].bytes);
    printf("]}");
}

static void list_processes(nvmlDevice_t device) {
    static struct process processes[MOST];
    static struct process_v1 old[MOST];
    unsigned count = MOST;
    int result = -1;
    if (nvmlDeviceGetComputeRunningProcesses_v3 != NULL)
        result = nvmlDeviceGetComputeRunningProcesses_v3(device, &count, processes);
    put_processes("v3", result, processes, count);
    count = MOST, result = -1;
    if (nvmlDeviceGetComputeRunningProcesses_v2 != NULL)
        result = nvmlDeviceGetComputeRunningProcesses_v2(device, &count, processes);
    put_processes("v2", result, processes, count);
    count = MOST, result = -1;
    if (nvmlDeviceGetComputeRunningProcesses != NULL)
        result = nvmlDeviceGetComputeRunningProcesses(device, &count, old);
    for (unsigned i = 0; result == 0 && i < count; i++)
        processes[i] = (struct process){.pid = old[i].pid, .bytes = old[i].bytes};
    put_processes("v1", result, processes, count);
}

static void sample(nvmlDevice_t device) {
    struct memory_v1 memory = {0};
    struct memory_v2 second = {.version = MEMORY_V2};
    int result = nvmlDeviceGetMemoryInfo(device, &memory), also = -1;
    if (nvmlDeviceGetMemoryInfo_v2 != NULL)
        also = nvmlDeviceGetMemoryInfo_v2(device, &second);
    printf("{\"step\":\"sample\",\"result\":%d,\"total\":%llu,\"free\":%llu,\"used\":%llu,\"result_v2\":%d,"
           "\"total_v2\":%llu,\"free_v2\":%llu,\"used_v2\":%llu,\"reserved\":%llu",
           result, memory.total, memory.free, memory.used, also, second.total, second.free, second.used,
           second.reserved);
    list_processes(device);
    puts("}");
    fflush(stdout);
}

int main(int argc, char **argv) {
    char line[64];
    nvmlDevice_t device;
    if (argc != 2 || strlen(argv[1]) != 32)
        return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    load();
    int result = nvmlInit_v2();
    if (result != 0)
        fail("nvmlInit", result);
    if ((result = find(argv[1], "GPU", &device)) != 0 && (result = find(argv[1], "MIG", &device)) != 0)
        fail("NVML does not know the GPU", result);
    while (read_line(line, sizeof line))
        sample(device);
    return 0;
}
