/* An nvidia-smi for the simulated GPU: the same questions to NVML, the same table, and SIMULATED in its header. */
#include "smi.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "smi_nvml.h"

static const char *const rule =
    "+-----------------------------------------+------------------------+----------------------+";
static const char *const wide =
    "+-----------------------------------------------------------------------------------------+";

static const char *const equals = "====================================================================";

static void print_head(const struct nvml *nvml, FILE *out) {
    char driver[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE] = "N/A";
    int cuda = 0;
    char cuda_version[16];

    nvml->nvmlSystemGetDriverVersion(driver, sizeof(driver));
    nvml->nvmlSystemGetCudaDriverVersion_v2(&cuda);
    snprintf(cuda_version, sizeof(cuda_version), "%d.%d", cuda / 1000, cuda % 1000 / 10);
    fprintf(out, "%s\n", wide);
    fprintf(out, "| %-87s |\n", "SIMULATED GPUs: no hardware is behind this table");
    fprintf(out, "| SIMULATED-SMI %-20s Driver Version: %-14s CUDA Version: %-7s |\n", driver, driver, cuda_version);
    fprintf(out, "|-%s\n", rule + 2);
    fprintf(out, "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n");
    fprintf(out, "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n");
    fprintf(out, "|                                         |                        |               MIG M. |\n");
    fprintf(out, "|=========================================+========================+======================|\n");
}

static const char *compute_mode(const struct nvml *nvml, nvmlDevice_t device) {
    nvmlComputeMode_t mode = NVML_COMPUTEMODE_DEFAULT;

    nvml->nvmlDeviceGetComputeMode(device, &mode);
    return mode == NVML_COMPUTEMODE_EXCLUSIVE_PROCESS ? "E. Process"
           : mode == NVML_COMPUTEMODE_PROHIBITED      ? "Prohibited"
                                                      : "Default";
}

static void print_usage(char *text, size_t size, nvmlReturn_t ret, unsigned long long used, unsigned long long total) {
    if (ret == NVML_SUCCESS)
        snprintf(text, size, "%lluMiB / %lluMiB", used / MIB, total / MIB);
    else
        snprintf(text, size, "N/A / N/A");
}

/* A GPU that is lost has a line of its own, as nvidia-smi shows "ERR!". */
static void print_gpu(const struct nvml *nvml, FILE *out, unsigned int index) {
    nvmlDevice_t device;
    char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE] = "N/A";
    nvmlPciInfo_t pci = {.busId = "N/A"};
    nvmlEnableState_t persistence = NVML_FEATURE_DISABLED, display = NVML_FEATURE_DISABLED;
    unsigned long long ecc = 0;
    unsigned int celsius = 0, power = 0, cap = 0, mig = NVML_DEVICE_MIG_DISABLE, pending;
    nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
    nvmlUtilization_t utilisation = {0};
    char usage[40];
    nvmlReturn_t ret = nvml->nvmlDeviceGetHandleByIndex_v2(index, &device);

    if (ret != NVML_SUCCESS) {
        fprintf(out, "| %3u  ERR! %-30s |                        |                      |\n%s\n", index,
                nvml->nvmlErrorString(ret), rule);
        return;
    }
    nvml->nvmlDeviceGetName(device, name, sizeof(name));
    nvml->nvmlDeviceGetPciInfo_v3(device, &pci);
    nvml->nvmlDeviceGetPersistenceMode(device, &persistence);
    nvml->nvmlDeviceGetDisplayActive(device, &display);
    nvml->nvmlDeviceGetTotalEccErrors(device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, &ecc);
    nvml->nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &celsius);
    nvml->nvmlDeviceGetPowerUsage(device, &power);
    nvml->nvmlDeviceGetPowerManagementLimit(device, &cap);
    nvmlReturn_t memory_ret = nvml->nvmlDeviceGetMemoryInfo_v2(device, &memory);
    nvml->nvmlDeviceGetUtilizationRates(device, &utilisation);
    nvmlReturn_t mig_ret = nvml->nvmlDeviceGetMigMode(device, &mig, &pending);

    print_usage(usage, sizeof(usage), memory_ret, memory.used, memory.total);
    fprintf(out, "| %3u  %-28.28s %5s | %-16s %5s | %20llu |\n", index, name,
            persistence == NVML_FEATURE_ENABLED ? "On" : "Off", pci.busId,
            display == NVML_FEATURE_ENABLED ? "On" : "Off", ecc);
    fprintf(out, "| N/A  %3uC    P0          %5uW / %4uW | %22s | %6u%% %12s |\n", celsius, power / 1000, cap / 1000,
            usage, utilisation.gpu, compute_mode(nvml, device));
    fprintf(out, "| %39s | %22s | %20s |\n%s\n", "", "",
            mig_ret != NVML_SUCCESS ? "N/A" : (mig == NVML_DEVICE_MIG_ENABLE ? "Enabled" : "Disabled"), rule);
}

static void print_mig_device(const struct nvml *nvml, FILE *out, unsigned int gpu, unsigned int number,
                             nvmlDevice_t device) {
    unsigned int gi = 0, ci = 0;
    nvmlMemory_t memory = {0};
    char usage[40];

    nvml->nvmlDeviceGetGpuInstanceId(device, &gi);
    nvml->nvmlDeviceGetComputeInstanceId(device, &ci);
    nvmlReturn_t ret = nvml->nvmlDeviceGetMemoryInfo(device, &memory);
    print_usage(usage, sizeof(usage), ret, memory.used, memory.total);
    fprintf(out, "| %3u  %3u  %3u  %3u | %66s |\n", gpu, gi, ci, number, usage);
}

static void print_mig_devices(const struct nvml *nvml, FILE *out, unsigned int gpus) {
    unsigned int count = 0;

    for (unsigned int index = 0; index < gpus; index++) {
        nvmlDevice_t gpu, device;
        unsigned int max = 0;
        if (nvml->nvmlDeviceGetHandleByIndex_v2(index, &gpu) == NVML_SUCCESS)
            nvml->nvmlDeviceGetMaxMigDeviceCount(gpu, &max);
        for (unsigned int i = 0; i < max; i++) {
            if (nvml->nvmlDeviceGetMigDeviceHandleByIndex(gpu, i, &device) != NVML_SUCCESS)
                continue;
            if (count++ == 0)
                fprintf(out, "\n%s\n| %-87s |\n| GPU   GI   CI  MIG | %66s |\n|%.20s+%.68s|\n", wide,
                        "MIG devices:", "Memory-Usage", equals, equals);
            print_mig_device(nvml, out, index, i, device);
        }
    }
    if (count > 0)
        fprintf(out, "%s\n", wide);
}

/* The list may grow between the question for its length and the list itself: ask again until it fits. */
typedef nvmlReturn_t list_running(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos);

static nvmlProcessInfo_t *running(list_running *list, nvmlDevice_t device, unsigned int *count) {
    nvmlProcessInfo_t *infos = NULL;

    for (*count = 0;;) {
        nvmlReturn_t ret = list(device, count, infos);
        if (ret == NVML_SUCCESS)
            return infos;
        free(infos);
        infos = NULL;
        if (ret == NVML_ERROR_INSUFFICIENT_SIZE) {
            *count += 8;
            infos = calloc(*count, sizeof(*infos));
        }
        if (infos == NULL) {
            *count = 0;
            return NULL;
        }
    }
}

static void put_instance(char *text, size_t size, unsigned int id) {
    if (id == NVML_GPU_INSTANCE_ID_ANY)
        snprintf(text, size, "N/A");
    else
        snprintf(text, size, "%u", id);
}

/* Clients of MPS are compute processes in both lists. */
static const char *type_of(unsigned int pid, const nvmlProcessInfo_t *clients, unsigned int count) {
    for (unsigned int i = 0; i < count; i++) {
        if (clients[i].pid == pid)
            return "M+C";
    }
    return "C";
}

static unsigned int print_processes_of(const struct nvml *nvml, FILE *out, unsigned int index) {
    nvmlDevice_t device;
    unsigned int count = 0, client_count = 0;

    if (nvml->nvmlDeviceGetHandleByIndex_v2(index, &device) != NVML_SUCCESS)
        return 0;
    nvmlProcessInfo_t *clients = running(nvml->nvmlDeviceGetMPSComputeRunningProcesses_v3, device, &client_count);
    nvmlProcessInfo_t *infos = running(nvml->nvmlDeviceGetComputeRunningProcesses_v3, device, &count);
    for (unsigned int i = 0; i < count; i++) {
        char name[256] = "[Not Found]";
        nvml->nvmlSystemGetProcessName(infos[i].pid, name, sizeof(name));
        char gi[16], ci[16];
        put_instance(gi, sizeof(gi), infos[i].gpuInstanceId);
        put_instance(ci, sizeof(ci), infos[i].computeInstanceId);
        fprintf(out, "| %4u  %4s %4s %15u %6s   %-34.34s %8lluMiB |\n", index, gi, ci, infos[i].pid,
                type_of(infos[i].pid, clients, client_count), name, infos[i].usedGpuMemory / MIB);
    }
    free(clients);
    free(infos);
    return count;
}

static void print_processes(const struct nvml *nvml, FILE *out, unsigned int gpus) {
    unsigned int count = 0;

    fprintf(out, "\n%s\n", wide);
    fprintf(out, "| %-87s |\n", "Processes:");
    fprintf(out, "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n");
    fprintf(out, "|        ID   ID                                                               Usage      |\n");
    fprintf(out, "|=========================================================================================|\n");
    for (unsigned int i = 0; i < gpus; i++)
        count += print_processes_of(nvml, out, i);
    if (count == 0)
        fprintf(out, "| %-87s |\n", " No running processes found");
    fprintf(out, "%s\n", wide);
}

int simgpu_smi(FILE *out) {
    struct nvml nvml;
    unsigned int gpus = 0;
    int ret = nvml_open(&nvml, out);

    if (ret != NVML_SUCCESS)
        return ret;
    nvml.nvmlDeviceGetCount_v2(&gpus);
    if (gpus == 0) {
        fprintf(out, "SIMULATED: No devices were found\n");
    } else {
        print_head(&nvml, out);
        for (unsigned int i = 0; i < gpus; i++)
            print_gpu(&nvml, out, i);
        print_mig_devices(&nvml, out, gpus);
        print_processes(&nvml, out, gpus);
    }
    nvml_close(&nvml);
    return 0;
}

/* The name of a MIG device is its GPU's and the profile's: "  MIG 1g.5gb      Device  0: (UUID: MIG-…)". */
static void list_mig_devices(const struct nvml *nvml, FILE *out, nvmlDevice_t gpu) {
    unsigned int max = 0;

    nvml->nvmlDeviceGetMaxMigDeviceCount(gpu, &max);
    for (unsigned int i = 0; i < max; i++) {
        nvmlDevice_t device;
        char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE] = "N/A", uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "N/A";
        const char *profile;

        if (nvml->nvmlDeviceGetMigDeviceHandleByIndex(gpu, i, &device) != NVML_SUCCESS)
            continue;
        nvml->nvmlDeviceGetName(device, name, sizeof(name));
        nvml->nvmlDeviceGetUUID(device, uuid, sizeof(uuid));
        profile = strstr(name, "MIG ");
        fprintf(out, "  MIG %-11s Device %2u: (UUID: %s)\n", profile != NULL ? profile + 4 : name, i, uuid);
    }
}

int simgpu_smi_list(FILE *out) {
    struct nvml nvml;
    unsigned int gpus = 0;
    int ret = nvml_open(&nvml, out);

    if (ret != NVML_SUCCESS)
        return ret;
    nvml.nvmlDeviceGetCount_v2(&gpus);
    for (unsigned int i = 0; i < gpus; i++) {
        nvmlDevice_t device;
        char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE] = "N/A", uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "N/A";
        nvmlReturn_t found = nvml.nvmlDeviceGetHandleByIndex_v2(i, &device);
        if (found != NVML_SUCCESS) {
            fprintf(out, "GPU %u: %s\n", i, nvml.nvmlErrorString(found));
            continue;
        }
        nvml.nvmlDeviceGetName(device, name, sizeof(name));
        nvml.nvmlDeviceGetUUID(device, uuid, sizeof(uuid));
        fprintf(out, "GPU %u: %s (UUID: %s)\n", i, name, uuid);
        list_mig_devices(&nvml, out, device);
    }
    nvml_close(&nvml);
    return 0;
}

struct query {
    const struct nvml *nvml;
    FILE *out;
    unsigned int index;
    nvmlDevice_t device;
    int units;
};

static int put_number(const struct query *q, nvmlReturn_t ret, unsigned long long value, const char *unit) {
    if (ret != NVML_SUCCESS)
        fprintf(q->out, "[%s]", q->nvml->nvmlErrorString(ret));
    else
        fprintf(q->out, "%llu%s", value, q->units ? unit : "");
    return 0;
}

static int put_string(const struct query *q, nvmlReturn_t ret, const char *value) {
    fprintf(q->out, "%s", ret == NVML_SUCCESS ? value : q->nvml->nvmlErrorString(ret));
    return 0;
}

/* Prints one field of one GPU; -1 for a field that is not known. */
static int put_field(const struct query *q, const char *field) {
    char string[128];
    nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
    nvmlUtilization_t utilisation = {0};
    nvmlPciInfo_t pci;

    if (strcmp(field, "index") == 0)
        return put_number(q, NVML_SUCCESS, q->index, "");
    if (strcmp(field, "name") == 0)
        return put_string(q, q->nvml->nvmlDeviceGetName(q->device, string, sizeof(string)), string);
    if (strcmp(field, "uuid") == 0)
        return put_string(q, q->nvml->nvmlDeviceGetUUID(q->device, string, sizeof(string)), string);
    if (strcmp(field, "driver_version") == 0)
        return put_string(q, q->nvml->nvmlSystemGetDriverVersion(string, sizeof(string)), string);
    if (strcmp(field, "pci.bus_id") == 0)
        return put_string(q, q->nvml->nvmlDeviceGetPciInfo_v3(q->device, &pci), pci.busId);
    if (strcmp(field, "utilization.gpu") == 0)
        return put_number(q, q->nvml->nvmlDeviceGetUtilizationRates(q->device, &utilisation), utilisation.gpu, " %");
    if (strncmp(field, "memory.", 7) != 0)
        return -1;

    nvmlReturn_t ret = q->nvml->nvmlDeviceGetMemoryInfo_v2(q->device, &memory);
    const char *what = field + 7;
    if (strcmp(what, "total") == 0)
        return put_number(q, ret, memory.total / MIB, " MiB");
    if (strcmp(what, "reserved") == 0)
        return put_number(q, ret, memory.reserved / MIB, " MiB");
    if (strcmp(what, "used") == 0)
        return put_number(q, ret, memory.used / MIB, " MiB");
    if (strcmp(what, "free") == 0)
        return put_number(q, ret, memory.free / MIB, " MiB");
    return -1;
}

static int put_line(const struct query *q, const char *fields) {
    char list[512];
    char *rest = list, *field;
    const char *separator = "";

    if (snprintf(list, sizeof(list), "%s", fields) >= (int)sizeof(list))
        return -1;
    while ((field = strsep(&rest, ",")) != NULL) {
        field += strspn(field, " ");
        fputs(separator, q->out);
        if (put_field(q, field) != 0) {
            fprintf(q->out, "Field \"%s\" is not a valid field to query.\n", field);
            return -1;
        }
        separator = ", ";
    }
    fputc('\n', q->out);
    return 0;
}

int simgpu_smi_query(FILE *out, const char *fields, int header, int units) {
    struct nvml nvml;
    unsigned int gpus = 0;
    int ret = nvml_open(&nvml, out);

    if (ret != NVML_SUCCESS)
        return ret;
    if (header)
        fprintf(out, "%s\n", fields);
    nvml.nvmlDeviceGetCount_v2(&gpus);
    for (unsigned int i = 0; i < gpus && ret == 0; i++) {
        struct query q = {.nvml = &nvml, .out = out, .index = i, .units = units};
        nvmlReturn_t found = nvml.nvmlDeviceGetHandleByIndex_v2(i, &q.device);
        if (found != NVML_SUCCESS)
            fprintf(out, "%u: %s\n", i, nvml.nvmlErrorString(found));
        else if (put_line(&q, fields) != 0)
            ret = NVML_ERROR_INVALID_ARGUMENT;
    }
    nvml_close(&nvml);
    return ret;
}
