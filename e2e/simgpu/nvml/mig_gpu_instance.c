/* GPU instances: profiles, places, making and destroying. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "nvml_sim.h"

/* A handle is the address of an entry of a table: its place in it is the GPU's index and the instance's seat. */
struct nvmlGpuInstance_st {
    char nothing;
};

static struct nvmlGpuInstance_st handles[SIM_MAX_GPUS][SIM_MIG_SEATS];

nvmlGpuInstance_t gpu_instance_handle(int gpu, unsigned int seat) {
    return (nvmlGpuInstance_t){.handle = &handles[gpu][seat]};
}

nvmlReturn_t resolve_gpu_instance(nvmlGpuInstance_t handle, struct instance_seat *at, struct sim_gi *gi) {
    uintptr_t offset = (uintptr_t)handle.handle - (uintptr_t)handles;
    nvmlReturn_t ret = library_ready();

    if (ret != NVML_SUCCESS)
        return ret;
    if (offset >= sizeof(handles))
        return NVML_ERROR_INVALID_ARGUMENT;
    *at = (struct instance_seat){.gpu = (int)(offset / sizeof(handles[0])),
                                 .seat = (unsigned int)(offset % sizeof(handles[0]) / sizeof(handles[0][0]))};
    if (sim_gpu_lost(at->gpu))
        return NVML_ERROR_GPU_IS_LOST;
    return sim_gi_get(at->gpu, at->seat, gi) == 0 ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* ---- Profiles ---- */

/* Without MIG mode the profiles of Ampere cannot be asked for; later ones can. */
static nvmlReturn_t resolve_profiles(nvmlDevice_t device, int *gpu) {
    nvmlReturn_t ret = device_resolve(device, gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (*gpu >= sim_gpu_count() || sim_mig_model(*gpu) == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    return sim_mig_on(*gpu) || !sim_mig_needs_reset(*gpu) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static const struct sim_mig_profile *profile_numbered(int gpu, unsigned int number) {
    const struct sim_mig_model *model = sim_mig_model(gpu);

    for (unsigned int i = 0; i < model->count; i++) {
        if (model->profiles[i].profile == number)
            return &model->profiles[i];
    }
    return NULL;
}

static void fill_profile(int gpu, const struct sim_mig_profile *profile, nvmlGpuInstanceProfileInfo_t *info) {
    *info = (nvmlGpuInstanceProfileInfo_t){
        .id = profile->id,
        .sliceCount = profile->slices,
        .instanceCount = profile->max,
        .multiprocessorCount = profile->profile_sms,
        .copyEngineCount = profile->copy_engines,
        .decoderCount = profile->decoders,
        .encoderCount = profile->encoders,
        .jpegCount = profile->jpegs,
        .ofaCount = profile->ofas,
        .memorySizeMB = sim_mig_memory(gpu, profile) >> 20,
    };
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int number,
                                                 nvmlGpuInstanceProfileInfo_t *info) {
    int gpu;
    const struct sim_mig_profile *profile;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (info == NULL || number >= NVML_GPU_INSTANCE_PROFILE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    ret = resolve_profiles(device, &gpu);
    if (ret != NVML_SUCCESS)
        return ret;
    profile = profile_numbered(gpu, number);
    if (profile == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    fill_profile(gpu, profile, info);
    return NVML_SUCCESS;
}

/* The later versions have the fields in between in common, and the name behind them. */
static nvmlReturn_t versioned(int gpu, const struct sim_mig_profile *profile, nvmlGpuInstanceProfileInfo_v2_t *info) {
    nvmlGpuInstanceProfileInfo_t plain;

    if (profile == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    fill_profile(gpu, profile, &plain);
    if (info->version == nvmlGpuInstanceProfileInfo_v3) {
        nvmlGpuInstanceProfileInfo_v3_t *v3 = (void *)info;
        *v3 = (nvmlGpuInstanceProfileInfo_v3_t){nvmlGpuInstanceProfileInfo_v3,
                                                plain.id,
                                                plain.sliceCount,
                                                plain.instanceCount,
                                                plain.multiprocessorCount,
                                                plain.copyEngineCount,
                                                plain.decoderCount,
                                                plain.encoderCount,
                                                plain.jpegCount,
                                                plain.ofaCount,
                                                plain.memorySizeMB,
                                                {0},
                                                0};
        snprintf(v3->name, sizeof(v3->name), "%s", profile->name);
        return NVML_SUCCESS;
    }
    *info = (nvmlGpuInstanceProfileInfo_v2_t){nvmlGpuInstanceProfileInfo_v2,
                                              plain.id,
                                              plain.isP2pSupported,
                                              plain.sliceCount,
                                              plain.instanceCount,
                                              plain.multiprocessorCount,
                                              plain.copyEngineCount,
                                              plain.decoderCount,
                                              plain.encoderCount,
                                              plain.jpegCount,
                                              plain.ofaCount,
                                              plain.memorySizeMB,
                                              {0}};
    snprintf(info->name, sizeof(info->name), "%s", profile->name);
    return NVML_SUCCESS;
}

static nvmlReturn_t resolve_versioned(nvmlDevice_t device, const nvmlGpuInstanceProfileInfo_v2_t *info, int *gpu) {
    nvmlReturn_t ret = device_resolve(device, gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != nvmlGpuInstanceProfileInfo_v2 && info->version != nvmlGpuInstanceProfileInfo_v3)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return resolve_profiles(device, gpu);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int number,
                                                  nvmlGpuInstanceProfileInfo_v2_t *info) {
    int gpu;
    nvmlReturn_t ret =
        number >= NVML_GPU_INSTANCE_PROFILE_COUNT ? NVML_ERROR_INVALID_ARGUMENT : resolve_versioned(device, info, &gpu);

    return ret != NVML_SUCCESS ? ret : versioned(gpu, profile_numbered(gpu, number), info);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id,
                                                      nvmlGpuInstanceProfileInfo_v2_t *info) {
    int gpu;
    nvmlReturn_t ret = resolve_versioned(device, info, &gpu);

    return ret != NVML_SUCCESS ? ret : versioned(gpu, sim_mig_profile(gpu, id), info);
}

/* All that the profile may have on an empty GPU, whatever is free now. */
nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
                                                           nvmlGpuInstancePlacement_t *placements,
                                                           unsigned int *count) {
    int gpu;
    const struct sim_mig_profile *profile;
    unsigned int found = 0;
    nvmlReturn_t ret = resolve_profiles(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    profile = sim_mig_profile(gpu, id);
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (profile == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    for (unsigned int start = 0; start < 8; start++) {
        if ((profile->starts >> start & 1) == 0)
            continue;
        if (placements != NULL)
            placements[found] = (nvmlGpuInstancePlacement_t){.start = start, .size = profile->size};
        found++;
    }
    *count = found;
    return NVML_SUCCESS;
}

/* The first version looks at the room that the caller has. */
nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int id,
                                                        nvmlGpuInstancePlacement_t *placements, unsigned int *count) {
    unsigned int needed;
    nvmlReturn_t ret = nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, NULL, &needed);

    if (ret != NVML_SUCCESS || count == NULL)
        return ret != NVML_SUCCESS ? ret : NVML_ERROR_INVALID_ARGUMENT;
    if (placements != NULL && *count < needed) {
        *count = needed;
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, placements, count);
}

/* A profile of a GPU in MIG mode, for somebody with privilege. */
static nvmlReturn_t resolve_profile(nvmlDevice_t device, unsigned int id, const void *result, int *gpu,
                                    const struct sim_mig_profile **profile) {
    nvmlReturn_t ret = device_resolve(device, gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (result == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    ret = resolve_partitioned(device, gpu);
    if (ret == NVML_SUCCESS)
        ret = may_manage();
    if (ret != NVML_SUCCESS)
        return ret;
    *profile = sim_mig_profile(*gpu, id);
    return *profile != NULL ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id, unsigned int *count) {
    int gpu;
    const struct sim_mig_profile *profile;
    nvmlReturn_t ret = resolve_profile(device, id, count, &gpu, &profile);

    if (ret == NVML_SUCCESS)
        *count = sim_gi_capacity(gpu, profile);
    return ret;
}

/* ---- Instances ---- */

static nvmlReturn_t create(nvmlDevice_t device, unsigned int id, int start, nvmlGpuInstance_t *instance) {
    int gpu;
    const struct sim_mig_profile *profile;
    struct sim_gi gi;
    nvmlReturn_t ret = resolve_profile(device, id, instance, &gpu, &profile);

    if (ret == NVML_SUCCESS)
        ret = fault_of(MIG_ACT_GI_CREATE);
    if (ret == NVML_SUCCESS)
        ret = instance_error(sim_gi_create(gpu, profile, start, &gi));
    if (ret == NVML_SUCCESS)
        *instance = gpu_instance_handle(gpu, gi.seat);
    return ret;
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance) {
    return create(device, id, -1, instance);
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int id,
                                                      const nvmlGpuInstancePlacement_t *placement,
                                                      nvmlGpuInstance_t *instance) {
    int gpu;
    const struct sim_mig_profile *profile;
    nvmlReturn_t ret = resolve_profile(device, id, instance, &gpu, &profile);

    if (ret != NVML_SUCCESS)
        return ret;
    if (placement == NULL || placement->size != profile->size || placement->start > 7)
        return NVML_ERROR_INVALID_ARGUMENT;
    return create(device, id, (int)placement->start, instance);
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance) {
    struct instance_seat at;
    struct sim_gi gi;
    nvmlReturn_t ret = resolve_gpu_instance(instance, &at, &gi);

    if (ret == NVML_SUCCESS)
        ret = may_manage();
    if (ret == NVML_SUCCESS)
        ret = fault_of(MIG_ACT_GI_DESTROY);
    return ret != NVML_SUCCESS ? ret : instance_error(sim_gi_destroy(at.gpu, at.seat));
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instances,
                                       unsigned int *count) {
    int gpu;
    const struct sim_mig_profile *profile;
    struct sim_gi gi;
    unsigned int found = 0;
    nvmlReturn_t ret = resolve_profile(device, id, count, &gpu, &profile);

    if (ret != NVML_SUCCESS)
        return ret;
    if (instances == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int seat = 0; seat < SIM_MIG_SEATS; seat++) {
        if (sim_gi_get(gpu, seat, &gi) == 0 && gi.profile == profile)
            instances[found++] = gpu_instance_handle(gpu, seat);
    }
    *count = found;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance) {
    int gpu;
    struct sim_gi gi;
    nvmlReturn_t ret = device_resolve(device, &gpu);

    if (ret != NVML_SUCCESS)
        return ret;
    if (instance == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    ret = resolve_partitioned(device, &gpu);
    if (ret != NVML_SUCCESS)
        return ret;
    if (sim_gi_by_id(gpu, id, &gi) != 0)
        return NVML_ERROR_NOT_FOUND;
    *instance = gpu_instance_handle(gpu, gi.seat);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info) {
    struct instance_seat at;
    struct sim_gi gi;
    nvmlReturn_t ret = resolve_gpu_instance(instance, &at, &gi);

    if (ret != NVML_SUCCESS)
        return ret;
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *info = (nvmlGpuInstanceInfo_t){
        .device = device_handle(at.gpu),
        .id = gi.id,
        .profileId = gi.profile->id,
        .placement = {.start = gi.start, .size = gi.size},
    };
    return NVML_SUCCESS;
}
