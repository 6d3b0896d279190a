/* nvidia-smi mig: lists of profiles, places and instances, and their making and destroying. */
#include <stdlib.h>
#include <string.h>

#include "smi.h"
#include "smi_nvml.h"

#define MAX_INSTANCES 7

struct request {
    struct nvml nvml;
    FILE *out;
    const char *gpu;            /* -i, or NULL: all in MIG mode */
    const char *action, *value; /* "-cgi" and its argument */
    const char *gi;             /* -gi, or NULL: all */
    int with_compute;           /* -C */
};

struct profile {
    nvmlGpuInstanceProfileInfo_v2_t info;
    nvmlGpuInstancePlacement_t places[8];
    unsigned int places_count;
};

static int complain(const struct request *r, unsigned int gpu, const char *what, nvmlReturn_t ret) {
    fprintf(r->out, "Unable to %s on GPU %2u: %s\n", what, gpu, r->nvml.nvmlErrorString(ret));
    return ret;
}

/* Profile number `number` of the GPU, as NVML counts them; 0 if there is none. */
static int read_profile(const struct request *r, nvmlDevice_t device, unsigned int number, struct profile *p) {
    *p = (struct profile){.info.version = nvmlGpuInstanceProfileInfo_v2};
    if (r->nvml.nvmlDeviceGetGpuInstanceProfileInfoV(device, number, &p->info) != NVML_SUCCESS)
        return 0;
    r->nvml.nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, p->info.id, p->places, &p->places_count);
    return 1;
}

/* By its ID or its name. */
static int find_profile(const struct request *r, nvmlDevice_t device, const char *text, struct profile *p) {
    char *end;
    unsigned long id = strtoul(text, &end, 10);
    int is_id = *text != '\0' && *end == '\0';

    for (unsigned int number = 0; number < NVML_GPU_INSTANCE_PROFILE_COUNT; number++) {
        if (read_profile(r, device, number, p) && (is_id ? p->info.id == id : strcmp(p->info.name, text) == 0))
            return 1;
    }
    return 0;
}

static int find_profile_by_id(const struct request *r, nvmlDevice_t device, unsigned int id, struct profile *p) {
    char text[16];

    snprintf(text, sizeof(text), "%u", id);
    return find_profile(r, device, text, p);
}

/* ---- Lists ---- */

static int list_profiles(const struct request *r, unsigned int gpu, nvmlDevice_t device) {
    struct profile p;

    for (unsigned int number = 0; number < NVML_GPU_INSTANCE_PROFILE_COUNT; number++) {
        unsigned int remaining = 0;

        if (!read_profile(r, device, number, &p))
            continue;
        r->nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, p.info.id, &remaining);
        fprintf(r->out, "| %3u  MIG %-14s %4u     %u/%u %12.2f %8s %8u %5u %5u |\n", gpu, p.info.name, p.info.id,
                remaining, p.info.instanceCount, (double)p.info.memorySizeMB / 1024, "No", p.info.multiprocessorCount,
                p.info.decoderCount, p.info.encoderCount);
    }
    return 0;
}

static int list_places(const struct request *r, unsigned int gpu, nvmlDevice_t device) {
    struct profile p;

    for (unsigned int number = 0; number < NVML_GPU_INSTANCE_PROFILE_COUNT; number++) {
        if (!read_profile(r, device, number, &p))
            continue;
        fprintf(r->out, "GPU %2u Profile ID %2u Placement%s: {", gpu, p.info.id, p.places_count == 1 ? " " : "s");
        for (unsigned int i = 0; i < p.places_count; i++)
            fprintf(r->out, "%s%u", i == 0 ? "" : ",", p.places[i].start);
        fprintf(r->out, "}:%u\n", p.places[0].size);
    }
    return 0;
}

/* Calls fn for the GPU instances that are meant; stops at the first that does not return 0. */
typedef int instance_fn(const struct request *r, unsigned int gpu, nvmlDevice_t device, nvmlGpuInstance_t gi,
                        const nvmlGpuInstanceInfo_t *info);
static int each_instance(const struct request *r, unsigned int gpu, nvmlDevice_t device, instance_fn *fn) {
    int ret = 0;

    for (unsigned int id = 0; ret == 0 && id < 15; id++) {
        nvmlGpuInstance_t gi;
        nvmlGpuInstanceInfo_t info;

        if ((r->gi != NULL && strtoul(r->gi, NULL, 10) != id) ||
            r->nvml.nvmlDeviceGetGpuInstanceById(device, id, &gi) != NVML_SUCCESS ||
            r->nvml.nvmlGpuInstanceGetInfo(gi, &info) != NVML_SUCCESS)
            continue;
        ret = fn(r, gpu, device, gi, &info);
    }
    return ret;
}

static int list_instance(const struct request *r, unsigned int gpu, nvmlDevice_t device, nvmlGpuInstance_t gi,
                         const nvmlGpuInstanceInfo_t *info) {
    struct profile p;

    (void)gi;
    if (find_profile_by_id(r, device, info->profileId, &p))
        fprintf(r->out, "| %3u  MIG %-14s %4u %8u %10u:%u |\n", gpu, p.info.name, p.info.id, info->id,
                info->placement.start, info->placement.size);
    return 0;
}

/* Calls fn for each compute instance of a GPU instance. */
typedef int compute_fn(const struct request *r, unsigned int gpu, nvmlComputeInstance_t ci,
                       const nvmlComputeInstanceInfo_t *info, unsigned int gi);
static int each_compute(const struct request *r, unsigned int gpu, nvmlGpuInstance_t gi, unsigned int gi_id,
                        compute_fn *fn) {
    int ret = 0;

    for (unsigned int profile = 0; profile < NVML_COMPUTE_INSTANCE_PROFILE_COUNT; profile++) {
        nvmlComputeInstance_t instances[MAX_INSTANCES];
        unsigned int count = 0;

        if (r->nvml.nvmlGpuInstanceGetComputeInstances(gi, profile, instances, &count) != NVML_SUCCESS)
            continue;
        for (unsigned int i = 0; ret == 0 && i < count; i++) {
            nvmlComputeInstanceInfo_t info;

            if (r->nvml.nvmlComputeInstanceGetInfo_v2(instances[i], &info) == NVML_SUCCESS)
                ret = fn(r, gpu, instances[i], &info, gi_id);
        }
    }
    return ret;
}

static int list_compute(const struct request *r, unsigned int gpu, nvmlComputeInstance_t ci,
                        const nvmlComputeInstanceInfo_t *info, unsigned int gi) {
    char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE] = "";
    const char *profile;

    (void)ci;
    r->nvml.nvmlDeviceGetName(info->device, name, sizeof(name));
    profile = strstr(name, "MIG ");
    fprintf(r->out, "| %3u %6u  %-18s %4u %8u %10u:%u |\n", gpu, gi, profile != NULL ? profile : name, info->profileId,
            info->id, info->placement.start, info->placement.size);
    return 0;
}

static int list_computes(const struct request *r, unsigned int gpu, nvmlDevice_t device, nvmlGpuInstance_t gi,
                         const nvmlGpuInstanceInfo_t *info) {
    (void)device;
    return each_compute(r, gpu, gi, info->id, list_compute);
}

/* ---- Making ---- */

/* One compute instance that is all of the GPU instance. */
static int make_compute(const struct request *r, unsigned int gpu, nvmlDevice_t device, nvmlGpuInstance_t gi,
                        const nvmlGpuInstanceInfo_t *info) {
    nvmlComputeInstanceProfileInfo_t compute;
    nvmlComputeInstance_t ci;
    struct profile p;
    nvmlReturn_t ret = NVML_ERROR_NOT_FOUND;

    if (!find_profile_by_id(r, device, info->profileId, &p))
        return complain(r, gpu, "create a compute instance", ret);
    for (unsigned int number = 0; number < NVML_COMPUTE_INSTANCE_PROFILE_COUNT; number++) {
        if (r->nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, number, 0, &compute) == NVML_SUCCESS &&
            compute.sliceCount == p.info.sliceCount) {
            ret = r->nvml.nvmlGpuInstanceCreateComputeInstance(gi, compute.id, &ci);
            break;
        }
    }
    if (ret != NVML_SUCCESS)
        return complain(r, gpu, "create a compute instance", ret);
    fprintf(r->out, "Successfully created compute instance on GPU %2u GPU instance ID %2u using profile MIG %s\n", gpu,
            info->id, p.info.name);
    return 0;
}

/* "19", "1g.5gb", and either with ":4" for its place. */
static int make_one(const struct request *r, unsigned int gpu, nvmlDevice_t device, char *wanted) {
    char *start = strchr(wanted, ':');
    nvmlGpuInstance_t gi;
    nvmlGpuInstanceInfo_t info;
    struct profile p;
    nvmlReturn_t ret;

    if (start != NULL)
        *start++ = '\0';
    if (!find_profile(r, device, wanted, &p))
        return complain(r, gpu, "find the profile", NVML_ERROR_NOT_FOUND);
    if (start != NULL) {
        nvmlGpuInstancePlacement_t place = {(unsigned int)strtoul(start, NULL, 10), p.places[0].size};
        ret = r->nvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, p.info.id, &place, &gi);
    } else {
        ret = r->nvml.nvmlDeviceCreateGpuInstance(device, p.info.id, &gi);
    }
    if (ret == NVML_SUCCESS)
        ret = r->nvml.nvmlGpuInstanceGetInfo(gi, &info);
    if (ret != NVML_SUCCESS)
        return complain(r, gpu, "create a GPU instance", ret);
    fprintf(r->out, "Successfully created GPU instance ID %2u on GPU %2u using profile MIG %s (ID %2u)\n", info.id, gpu,
            p.info.name, p.info.id);
    return r->with_compute ? make_compute(r, gpu, device, gi, &info) : 0;
}

static int make_instances(const struct request *r, unsigned int gpu, nvmlDevice_t device) {
    char list[256], *rest = list, *wanted;
    int ret = 0;

    snprintf(list, sizeof(list), "%s", r->value);
    while (ret == 0 && (wanted = strsep(&rest, ",")) != NULL)
        ret = make_one(r, gpu, device, wanted);
    return ret;
}

/* ---- Destroying ---- */

static int destroy_compute(const struct request *r, unsigned int gpu, nvmlComputeInstance_t ci,
                           const nvmlComputeInstanceInfo_t *info, unsigned int gi) {
    nvmlReturn_t ret = r->nvml.nvmlComputeInstanceDestroy(ci);

    if (ret != NVML_SUCCESS)
        return complain(r, gpu, "destroy a compute instance", ret);
    fprintf(r->out, "Successfully destroyed compute instance ID %2u from GPU %2u GPU instance ID %2u\n", info->id, gpu,
            gi);
    return 0;
}

static int destroy_computes(const struct request *r, unsigned int gpu, nvmlDevice_t device, nvmlGpuInstance_t gi,
                            const nvmlGpuInstanceInfo_t *info) {
    (void)device;
    return each_compute(r, gpu, gi, info->id, destroy_compute);
}

static int destroy_instance(const struct request *r, unsigned int gpu, nvmlDevice_t device, nvmlGpuInstance_t gi,
                            const nvmlGpuInstanceInfo_t *info) {
    nvmlReturn_t ret = r->nvml.nvmlGpuInstanceDestroy(gi);

    (void)device;
    if (ret != NVML_SUCCESS)
        return complain(r, gpu, "destroy a GPU instance", ret);
    fprintf(r->out, "Successfully destroyed GPU instance ID %2u from GPU %2u\n", info->id, gpu);
    return 0;
}

/* ---- The command ---- */

static int act(const struct request *r, unsigned int gpu, nvmlDevice_t device) {
    if (strcmp(r->action, "-lgip") == 0)
        return list_profiles(r, gpu, device);
    if (strcmp(r->action, "-lgipp") == 0)
        return list_places(r, gpu, device);
    if (strcmp(r->action, "-lgi") == 0)
        return each_instance(r, gpu, device, list_instance);
    if (strcmp(r->action, "-lci") == 0)
        return each_instance(r, gpu, device, list_computes);
    if (strcmp(r->action, "-cgi") == 0)
        return make_instances(r, gpu, device);
    if (strcmp(r->action, "-cci") == 0)
        return each_instance(r, gpu, device, make_compute);
    if (strcmp(r->action, "-dci") == 0)
        return each_instance(r, gpu, device, destroy_computes);
    return each_instance(r, gpu, device, destroy_instance);
}

static int parse(struct request *r, int argc, char **argv) {
    static const char *const actions[] = {"-lgip", "-lgipp", "-lgi", "-lci", "-cgi", "-cci", "-dci", "-dgi"};

    for (int i = 0; i < argc; i++) {
        int known = 0;

        for (size_t a = 0; a < sizeof(actions) / sizeof(actions[0]); a++)
            known |= strcmp(argv[i], actions[a]) == 0;
        if (known)
            r->action = argv[i];
        if (known && strcmp(argv[i], "-cgi") == 0 && i + 1 < argc)
            r->value = argv[++i];
        else if (strcmp(argv[i], "-C") == 0)
            r->with_compute = 1;
        else if (strcmp(argv[i], "-i") == 0 && i + 1 < argc)
            r->gpu = argv[++i];
        else if (strcmp(argv[i], "-gi") == 0 && i + 1 < argc)
            r->gi = argv[++i];
        else if (!known)
            return -1;
    }
    return r->action == NULL || (strcmp(r->action, "-cgi") == 0 && r->value == NULL) ? -1 : 0;
}

int simgpu_smi_mig(FILE *out, int argc, char **argv) {
    struct request r = {.out = out};
    unsigned int gpus = 0, found = 0;
    int ret;

    if (parse(&r, argc, argv) != 0) {
        fprintf(stderr, "nvidia-smi mig: -lgip, -lgipp, -lgi, -lci, -cgi, -cci, -dci or -dgi must be asked for\n");
        return 2;
    }
    ret = nvml_open(&r.nvml, out);
    if (ret != 0)
        return ret;
    r.nvml.nvmlDeviceGetCount_v2(&gpus);
    for (unsigned int gpu = 0; ret == 0 && gpu < gpus; gpu++) {
        nvmlDevice_t device;
        unsigned int mode = NVML_DEVICE_MIG_DISABLE, pending;

        if ((r.gpu != NULL && strtoul(r.gpu, NULL, 10) != gpu) ||
            r.nvml.nvmlDeviceGetHandleByIndex_v2(gpu, &device) != NVML_SUCCESS ||
            r.nvml.nvmlDeviceGetMigMode(device, &mode, &pending) != NVML_SUCCESS || mode != NVML_DEVICE_MIG_ENABLE)
            continue;
        found++;
        ret = act(&r, gpu, device);
    }
    if (found == 0) {
        fprintf(out, "No MIG-enabled devices found.\n");
        ret = NVML_ERROR_NOT_FOUND;
    }
    nvml_close(&r.nvml);
    return ret;
}

static int set_mode(const struct nvml *nvml, FILE *out, unsigned int gpu, unsigned int mode) {
    const char *word = mode == NVML_DEVICE_MIG_ENABLE ? "Enabled" : "Disabled";
    nvmlReturn_t activation = NVML_SUCCESS, ret;
    nvmlDevice_t device;

    ret = nvml->nvmlDeviceGetHandleByIndex_v2(gpu, &device);
    if (ret == NVML_SUCCESS)
        ret = nvml->nvmlDeviceSetMigMode(device, mode, &activation);
    if (ret != NVML_SUCCESS) {
        fprintf(out, "Unable to set MIG Mode for GPU %u: %s\n", gpu, nvml->nvmlErrorString(ret));
        return ret;
    }
    if (activation != NVML_SUCCESS)
        fprintf(out, "Warning: MIG mode is in pending state for GPU %u: %s\n", gpu, nvml->nvmlErrorString(activation));
    else
        fprintf(out, "%s MIG Mode for GPU %u\n", word, gpu);
    return 0;
}

int simgpu_smi_mig_mode(FILE *out, const char *gpu, const char *mode) {
    struct nvml nvml;
    unsigned int gpus = 0;
    int ret = nvml_open(&nvml, out);

    if (ret != 0)
        return ret;
    nvml.nvmlDeviceGetCount_v2(&gpus);
    for (unsigned int i = 0; i < gpus && ret == 0; i++) {
        if (gpu == NULL || strtoul(gpu, NULL, 10) == i)
            ret = set_mode(&nvml, out, i, strcmp(mode, "1") == 0 ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE);
    }
    nvml_close(&nvml);
    return ret;
}
