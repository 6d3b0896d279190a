/* nvidia-smi memory-limits: as NVIDIA's "MPS v3 Memory Partitioning" shows it. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "smi.h"
#include "smi_nvml.h"

struct request {
    bool set, get;
    const char *path, *soft, *hard;
    const char *gpu; /* NULL: all */
};

static int usage(FILE *out) {
    fputs("usage: nvidia-smi memory-limits --set|--get -n CGROUP [--soft-limit MIB --hard-limit MIB] [-i GPU]\n", out);
    return 2;
}

static bool parse(struct request *r, int argc, char **argv) {
    for (int i = 0; i < argc; i++) {
        const char *option = argv[i];

        if (strcmp(option, "--set") == 0 || strcmp(option, "--get") == 0) {
            *(option[2] == 's' ? &r->set : &r->get) = true;
            continue;
        }
        if (++i == argc)
            return false;
        if (strcmp(option, "-n") == 0 || strcmp(option, "--namespace") == 0)
            r->path = argv[i];
        else if (strcmp(option, "--soft-limit") == 0)
            r->soft = argv[i];
        else if (strcmp(option, "--hard-limit") == 0)
            r->hard = argv[i];
        else if (strcmp(option, "-i") == 0 && argv[i][strspn(argv[i], "0123456789")] == '\0')
            r->gpu = argv[i]; /* the real one takes UUIDs, too */
        else
            return false;
    }
    return r->path != NULL && r->set != r->get && (!r->set || (r->soft != NULL && r->hard != NULL));
}

/* MiB, or "max". */
static bool parse_limit(const char *text, unsigned long long *bytes) {
    char *end;

    *bytes = NVML_DEVICE_MEMORY_LIMIT_MAX;
    if (strcmp(text, "max") == 0)
        return true;
    *bytes = strtoull(text, &end, 10) * MIB;
    return *text != '\0' && *end == '\0';
}

/* Only this command needs the two functions: other ones go on where a library has not got them. */
static void *look_up(const struct nvml *nvml, const char *name) {
    return dlsym(nvml->library, name);
}

static nvmlReturn_t set(const struct nvml *nvml, nvmlDevice_t device, const struct request *r) {
    __typeof__(&nvmlDeviceSetMemoryLimits_v1) function;
    void *symbol = look_up(nvml, "nvmlDeviceSetMemoryLimits_v1");
    nvmlSetMemoryLimits_v1_t limits = {.nameSpace = r->path};

    memcpy(&function, &symbol, sizeof(symbol));
    if (symbol == NULL)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (!parse_limit(r->soft, &limits.softLimit) || !parse_limit(r->hard, &limits.hardLimit))
        return NVML_ERROR_INVALID_ARGUMENT;
    return function(device, &limits);
}

static void put(FILE *out, const char *name, unsigned long long bytes) {
    if (bytes == NVML_DEVICE_MEMORY_LIMIT_MAX)
        fprintf(out, "%s: max\n", name);
    else
        fprintf(out, "%s: %llu MiB\n", name, bytes / MIB);
}

static nvmlReturn_t get(const struct nvml *nvml, nvmlDevice_t device, const struct request *r, FILE *out) {
    __typeof__(&nvmlDeviceGetMemoryLimits_v1) function;
    void *symbol = look_up(nvml, "nvmlDeviceGetMemoryLimits_v1");
    nvmlGetMemoryLimits_v1_t limits = {.nameSpace = r->path};
    nvmlReturn_t ret;

    memcpy(&function, &symbol, sizeof(symbol));
    if (symbol == NULL)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    ret = function(device, &limits);
    if (ret != NVML_SUCCESS)
        return ret;
    fprintf(out, "namespace: %s\n", r->path);
    put(out, "soft limit", limits.softLimit);
    put(out, "hard limit", limits.hardLimit);
    put(out, "current used", limits.currentUsed);
    return NVML_SUCCESS;
}

static int on_gpu(const struct nvml *nvml, unsigned int gpu, const struct request *r, FILE *out) {
    nvmlDevice_t device;
    nvmlReturn_t ret = nvml->nvmlDeviceGetHandleByIndex_v2(gpu, &device);

    if (ret == NVML_SUCCESS)
        ret = r->set ? set(nvml, device, r) : get(nvml, device, r, out);
    if (ret != NVML_SUCCESS)
        fprintf(out, "Unable to %s memory limits on GPU %2u: %s\n", r->set ? "set" : "get", gpu,
                nvml->nvmlErrorString(ret));
    return (int)ret;
}

int simgpu_smi_memory_limits(FILE *out, int argc, char **argv) {
    struct request r = {0};
    struct nvml nvml;
    unsigned int gpus = 0;
    int ret;

    if (!parse(&r, argc, argv))
        return usage(out);
    ret = nvml_open(&nvml, out);
    if (ret != NVML_SUCCESS)
        return ret;
    nvml.nvmlDeviceGetCount_v2(&gpus);
    if (r.gpu != NULL)
        ret = on_gpu(&nvml, (unsigned int)atoi(r.gpu), &r, out);
    for (unsigned int i = 0; r.gpu == NULL && i < gpus && ret == NVML_SUCCESS; i++)
        ret = on_gpu(&nvml, i, &r, out);
    nvml_close(&nvml);
    return ret;
}
