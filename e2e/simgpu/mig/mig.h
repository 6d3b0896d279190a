/*
 * MIG: the modes of GPUs, their profiles, and the instances that there are, for all processes on the state.
 *
 * A GPU instance and a compute instance are named by their seats at their GPU (0..SIM_MIG_SEATS-1), as their handles are
 * in NVML: a seat is used again. A compute instance is a MIG device, whose index among the GPUs sim_mig_device tells.
 * Errors: -ENOENT for an empty seat, -EBUSY, -ENOSPC where there is no room, -EINVAL for a placement that the profile
 * does not have, -ENOTSUP outside MIG mode.
 */
#ifndef SIMGPU_MIG_H
#define SIMGPU_MIG_H

#include "state.h"

/* A profile of GPU instances. Numbers of profiles are NVML's NVML_GPU_INSTANCE_PROFILE_*. */
struct sim_mig_profile {
    unsigned profile;          /* NVML's number */
    unsigned id;               /* the driver's */
    const char *name;          /* "1g.5gb" */
    unsigned slices;           /* of computing */
    unsigned size;             /* slots of memory */
    unsigned starts;           /* bit for each slot at which it can begin */
    unsigned max;              /* instances at a time */
    unsigned memory_mib;       /* on hardware; a GPU that the topology made smaller has less, in proportion */
    unsigned profile_sms, sms; /* as the profile says, and as the MIG device has them */
    unsigned copy_engines, decoders, encoders, jpegs, ofas;
};

struct sim_mig_model {
    const char *part, *and_part; /* of the GPU's name; the second may be NULL */
    unsigned slots;              /* of memory */
    unsigned slice_sms;
    const struct sim_mig_profile *profiles;
    unsigned count;
};

/* The GPU's tables, NULL for one without MIG. Of any index: a MIG device has its GPU's. */
const struct sim_mig_model *sim_mig_model(int gpu);
const struct sim_mig_model *mig_model_of(const struct sim_gpu *whole);

/* The profile with the driver's ID, NULL if the GPU has none. */
const struct sim_mig_profile *sim_mig_profile(int gpu, unsigned id);

/* Memory of an instance of the profile. */
uint64_t sim_mig_memory(int gpu, const struct sim_mig_profile *profile);

/* Whether the GPU is reset to change its mode (before Hopper), and then keeps it. */
bool sim_mig_needs_reset(int gpu);

void sim_mig_mode(int gpu, bool *current, bool *pending);
static inline bool sim_mig_on(int gpu) {
    bool current = false, pending;

    sim_mig_mode(gpu, &current, &pending);
    return current;
}

/* -EBUSY: the GPU is in use, and where it needs a reset, the mode is pending. */
int sim_mig_set_mode(int gpu, bool on);

/* Resets a GPU that nobody uses: its pending mode becomes the current one, its instances are gone. 0 or -EBUSY. */
int sim_mig_reset(int gpu);

/*
 * What loading the driver anew does to all GPUs: instances are gone, the mode too where a GPU does not keep it. 0, or
 * -EBUSY if a process holds memory, unless forced: such a process has lost its GPU.
 */
int sim_mig_reload(bool force);

/* Changes when handles of the GPU become void. */
uint64_t sim_mig_binding(int gpu);

struct sim_gi {
    unsigned seat, id, start, size;
    const struct sim_mig_profile *profile;
    uint64_t memory_bytes, used_bytes, created_ns;
};

struct sim_ci {
    unsigned seat, id, gi_seat, start, size;
    uint64_t created_ns;
};

int sim_gi_get(int gpu, unsigned seat, struct sim_gi *gi);
int sim_gi_by_id(int gpu, unsigned id, struct sim_gi *gi);
int sim_ci_get(int gpu, unsigned seat, struct sim_ci *ci);

/* Makes an instance at `start`, or where the driver chooses for -1. */
int sim_gi_create(int gpu, const struct sim_mig_profile *profile, int start, struct sim_gi *gi);
int sim_ci_create(int gpu, unsigned gi_seat, unsigned slices, int start, struct sim_ci *ci);
int sim_gi_destroy(int gpu, unsigned seat);
int sim_ci_destroy(int gpu, unsigned seat);

/* How many instances more there is room for. */
unsigned sim_gi_capacity(int gpu, const struct sim_mig_profile *profile);
unsigned sim_ci_capacity(int gpu, unsigned gi_seat, unsigned slices);

/* Bit for each slice of a GPU instance of `of` slices at which a compute instance of `slices` can begin; 0: none. */
unsigned sim_ci_starts(unsigned slices, unsigned of);

/* The index of a compute instance among the GPUs, visible or not. */
int sim_mig_device(int gpu, unsigned ci_seat);
/* The whole GPU that an index belongs to, and its seat. */
int sim_mig_parent(int gpu);
unsigned sim_mig_seat(int gpu);

/* The MIG devices of a GPU that are visible, in the order of their IDs. Returns how many. */
int sim_mig_devices(int gpu, int devices[SIM_MIG_SEATS]);

/* As sim_gpu, and where the seat is empty meanwhile, what last sat there: for who has found it taken. */
const struct sim_gpu *sim_gpu_or_last(int gpu);

/* What a MIG device has of its GPU instance. */
const struct sim_mig_profile *sim_mig_device_profile(int device);

/* Makes the nodes of all instances in SIMGPU_DEV, and their list beside it: for a driver root. */
void sim_mig_nodes(void);

/* ---- The record ---- */

enum sim_mig_what { MIG_GI_CREATED = 1, MIG_GI_DESTROYED, MIG_CI_CREATED, MIG_CI_DESTROYED, MIG_MODE, MIG_RELOADED };

struct sim_mig_event {
    uint64_t serial;
    enum sim_mig_what what;
    int gpu; /* -1: not visible */
    unsigned gi, ci, start, size;
    const struct sim_mig_profile *profile; /* NULL where it has none */
    uint64_t time_ns;
    int pid;             /* who did it, as the caller's pid namespace knows it, 0 where that cannot be told */
    uint64_t peak_bytes; /* of an instance that was destroyed: the most that one group ever held */
};

/* Calls fn for the events that are kept, the oldest first. */
int sim_each_mig_event(int (*fn)(const struct sim_mig_event *, void *), void *arg);

/* ---- Faults ---- */

enum sim_mig_act {
    MIG_ACT_MODE,
    MIG_ACT_GI_CREATE,
    MIG_ACT_GI_DESTROY,
    MIG_ACT_CI_CREATE,
    MIG_ACT_CI_DESTROY,
    MIG_ACTS
};

/* The next `count` such calls of NVML fail with the result; 0 calls it off. */
void sim_fault_mig(enum sim_mig_act act, uint32_t count, int nvml_result);
/* To be asked before each: 0, or the result that it fails with. */
int sim_fault_mig_take(enum sim_mig_act act);
/* Making and destroying instances take so long. */
void sim_fault_mig_delay(uint32_t ms);

#endif
