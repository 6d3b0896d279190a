/* Compute instances: profiles, places, making and destroying. */
#include <stdio.h>
#include <string.h>

#include "nvml_sim.h"

struct nvmlComputeInstance_st {
    char nothing;
};

static struct nvmlComputeInstance_st handles[SIM_MAX_GPUS][SIM_MIG_SEATS];

/* Profiles have their number as the driver's ID. */
static const unsigned int slices_of[] = {
    [NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE] = 1, [NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE] = 2,
    [NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE] = 3, [NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE] = 4,
    [NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE] = 7,
};
#define PROFILES (sizeof(slices_of) / sizeof(slices_of[0]))

static unsigned int profile_of(unsigned int slices) {
    unsigned int profile = 0;

    while (profile < PROFILES - 1 && slices_of[profile] != slices)
        profile++;
    return profile;
}

static nvmlComputeInstance_t handle_of(int gpu, unsigned int seat) {
    return (nvmlComputeInstance_t){.handle = &handles[gpu][seat]};
}

static nvmlReturn_t resolve(nvmlComputeInstance_t handle, struct instance_seat *at, struct sim_ci *ci) {
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
    return sim_ci_get(at->gpu, at->seat, ci) == 0 ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* ---- Profiles ---- */

static nvmlReturn_t resolve_profile(nvmlGpuInstance_t instance, unsigned int profile, const void *result,
                                    struct instance_seat *at, struct sim_gi *gi) {
    nvmlReturn_t ret = resolve_gpu_instance(instance, at, gi);

    if (ret != NVML_SUCCESS)
        return ret;
    if (result == NULL || profile >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (profile >= PROFILES || sim_ci_starts(slices_of[profile], gi->profile->slices) == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

static unsigned int multiprocessors(int gpu, const struct sim_gi *gi, unsigned int slices) {
    return slices == gi->profile->slices ? gi->profile->sms : slices * sim_mig_model(gpu)->slice_sms;
}

static void fill_profile(int gpu, const struct sim_gi *gi, unsigned int profile,
                         nvmlComputeInstanceProfileInfo_t *info) {
    unsigned int slices = slices_of[profile];

    *info = (nvmlComputeInstanceProfileInfo_t){
        .id = profile,
        .sliceCount = slices,
        .instanceCount = count_bits(sim_ci_starts(slices, gi->profile->slices)),
        .multiprocessorCount = multiprocessors(gpu, gi, slices),
        .sharedCopyEngineCount = gi->profile->copy_engines,
        .sharedDecoderCount = gi->profile->decoders,
        .sharedEncoderCount = gi->profile->encoders,
        .sharedJpegCount = gi->profile->jpegs,
        .sharedOfaCount = gi->profile->ofas,
    };
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned int profile,
                                                          unsigned int engines,
                                                          nvmlComputeInstanceProfileInfo_t *info) {
    struct instance_seat at;
    struct sim_gi gi;
    nvmlReturn_t ret = resolve_profile(instance, profile, info, &at, &gi);

    if (ret != NVML_SUCCESS)
        return ret;
    if (engines >= NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    fill_profile(at.gpu, &gi, profile, info);
    return NVML_SUCCESS;
}

/* The third version has one field more than the second, at the end. */
nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned int profile,
                                                           unsigned int engines,
                                                           nvmlComputeInstanceProfileInfo_v2_t *info) {
    nvmlComputeInstanceProfileInfo_t p;
    struct instance_seat at;
    struct sim_gi gi;
    unsigned int version = info != NULL ? info->version : 0;
    nvmlReturn_t ret = resolve_profile(instance, profile, info, &at, &gi);

    if (ret != NVML_SUCCESS)
        return ret;
    if (engines >= NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (version != nvmlComputeInstanceProfileInfo_v2 && version != nvmlComputeInstanceProfileInfo_v3)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    fill_profile(at.gpu, &gi, profile, &p);
    *info = (nvmlComputeInstanceProfileInfo_v2_t){version,
                                                  p.id,
                                                  p.sliceCount,
                                                  p.instanceCount,
                                                  p.multiprocessorCount,
                                                  p.sharedCopyEngineCount,
                                                  p.sharedDecoderCount,
                                                  p.sharedEncoderCount,
                                                  p.sharedJpegCount,
                                                  p.sharedOfaCount,
                                                  {0}};
    if (slices_of[profile] == gi.profile->slices)
        snprintf(info->name, sizeof(info->name), "%s", gi.profile->name);
    else
        snprintf(info->name, sizeof(info->name), "%uc.%s", slices_of[profile], gi.profile->name);
    if (version == nvmlComputeInstanceProfileInfo_v3)
        ((nvmlComputeInstanceProfileInfo_v3_t *)(void *)info)->capabilities = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, unsigned int profile,
                                                                 nvmlComputeInstancePlacement_t *placements,
                                                                 unsigned int *count) {
    struct instance_seat at;
    struct sim_gi gi;
    unsigned int starts, found = 0;
    nvmlReturn_t ret = resolve_profile(instance, profile, count, &at, &gi);

    if (ret != NVML_SUCCESS)
        return ret;
    starts = sim_ci_starts(slices_of[profile], gi.profile->slices);
    for (unsigned int start = 0; start < 8; start++) {
        if ((starts >> start & 1) == 0)
            continue;
        if (placements != NULL)
            placements[found] = (nvmlComputeInstancePlacement_t){.start = start, .size = slices_of[profile]};
        found++;
    }
    *count = found;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned int profile,
                                                                unsigned int *count) {
    struct instance_seat at;
    struct sim_gi gi;
    nvmlReturn_t ret = resolve_profile(instance, profile, count, &at, &gi);

    if (ret == NVML_SUCCESS)
        *count = sim_ci_capacity(at.gpu, at.seat, slices_of[profile]);
    return ret;
}

/* ---- Instances ---- */

static nvmlReturn_t create(nvmlGpuInstance_t instance, unsigned int profile, int start,
                           nvmlComputeInstance_t *compute) {
    struct instance_seat at;
    struct sim_gi gi;
    struct sim_ci ci;
    nvmlReturn_t ret = resolve_profile(instance, profile, compute, &at, &gi);

    if (ret == NVML_SUCCESS)
        ret = may_manage();
    if (ret == NVML_SUCCESS)
        ret = fault_of(MIG_ACT_CI_CREATE);
    if (ret == NVML_SUCCESS)
        ret = instance_error(sim_ci_create(at.gpu, at.seat, slices_of[profile], start, &ci));
    if (ret == NVML_SUCCESS)
        *compute = handle_of(at.gpu, ci.seat);
    return ret;
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned int profile,
                                                  nvmlComputeInstance_t *compute) {
    return create(instance, profile, -1, compute);
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance, unsigned int profile,
                                                               const nvmlComputeInstancePlacement_t *placement,
                                                               nvmlComputeInstance_t *compute) {
    struct instance_seat at;
    struct sim_gi gi;
    nvmlReturn_t ret = resolve_profile(instance, profile, placement, &at, &gi);

    if (ret != NVML_SUCCESS)
        return ret;
    if (placement->size != slices_of[profile] || placement->start > 7)
        return NVML_ERROR_INVALID_ARGUMENT;
    return create(instance, profile, (int)placement->start, compute);
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute) {
    struct instance_seat at;
    struct sim_ci ci;
    nvmlReturn_t ret = resolve(compute, &at, &ci);

    if (ret == NVML_SUCCESS)
        ret = may_manage();
    if (ret == NVML_SUCCESS)
        ret = fault_of(MIG_ACT_CI_DESTROY);
    return ret != NVML_SUCCESS ? ret : instance_error(sim_ci_destroy(at.gpu, at.seat));
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned int profile,
                                                nvmlComputeInstance_t *instances, unsigned int *count) {
    struct instance_seat at;
    struct sim_gi gi;
    struct sim_ci ci;
    unsigned int found = 0;
    nvmlReturn_t ret = resolve_profile(instance, profile, count, &at, &gi);

    if (ret == NVML_SUCCESS)
        ret = may_manage();
    if (ret != NVML_SUCCESS)
        return ret;
    if (instances == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int seat = 0; seat < SIM_MIG_SEATS; seat++) {
        if (sim_ci_get(at.gpu, seat, &ci) == 0 && ci.gi_seat == at.seat && ci.size == slices_of[profile])
            instances[found++] = handle_of(at.gpu, seat);
    }
    *count = found;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int id,
                                                   nvmlComputeInstance_t *compute) {
    struct instance_seat at;
    struct sim_gi gi;
    struct sim_ci ci;
    nvmlReturn_t ret = resolve_gpu_instance(instance, &at, &gi);

    if (ret != NVML_SUCCESS)
        return ret;
    if (compute == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int seat = 0; seat < SIM_MIG_SEATS; seat++) {
        if (sim_ci_get(at.gpu, seat, &ci) == 0 && ci.gi_seat == at.seat && ci.id == id) {
            *compute = handle_of(at.gpu, seat);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

/* Since the second version the device is the MIG device. */
nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info) {
    struct instance_seat at;
    struct sim_ci ci;
    nvmlReturn_t ret = resolve(compute, &at, &ci);

    if (ret != NVML_SUCCESS)
        return ret;
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *info = (nvmlComputeInstanceInfo_t){
        .device = device_handle(sim_mig_device(at.gpu, ci.seat)),
        .gpuInstance = gpu_instance_handle(at.gpu, ci.gi_seat),
        .id = ci.id,
        .profileId = profile_of(ci.size),
        .placement = {.start = ci.start, .size = ci.size},
    };
    return NVML_SUCCESS;
}

/* The first version ends before the placement, and its device is the GPU. */
nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info) {
    nvmlComputeInstanceInfo_t full;
    struct instance_seat at;
    struct sim_ci ci;
    nvmlReturn_t ret = nvmlComputeInstanceGetInfo_v2(compute, info == NULL ? NULL : &full);

    if (ret == NVML_SUCCESS)
        ret = resolve(compute, &at, &ci);
    if (ret != NVML_SUCCESS)
        return ret;
    full.device = device_handle(at.gpu);
    memcpy(info, &full, offsetof(nvmlComputeInstanceInfo_t, placement));
    return NVML_SUCCESS;
}
