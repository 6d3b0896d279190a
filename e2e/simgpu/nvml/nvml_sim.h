/*
 * What the files of the simulated NVML share with each other.
 *
 * The library is compiled against the nvml.h that comes with go-nvml, so that every structure and every prototype is
 * the driver's own. The unversioned names are kept (no macro turns nvmlInit into nvmlInit_v2), because the library
 * must export both.
 */
#ifndef SIMGPU_NVML_SIM_H
#define SIMGPU_NVML_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NVML_NO_UNVERSIONED_FUNC_DEFS
/* Everything nvml.h declares is exported; everything else in the library is hidden by -fvisibility=hidden. */
#pragma GCC visibility push(default)
#include <nvml.h>
#pragma GCC visibility pop

#include "../health.h"
#include "../state.h"
#include "mig/mig.h"

/* What a GPU without MIG answers where an instance ID is asked for. */
#define NO_INSTANCE 0xFFFFFFFFu

/* A handle is the address of an entry of one table: the entry's place in it is the GPU's index, its content nothing. The
 * table has several entries for each GPU, of which one is good at a time: when a GPU is bound to the driver anew, the next. */
struct nvmlDevice_st {
    char nothing;
};

/* NVML_SUCCESS between the first nvmlInit and the last nvmlShutdown, else NVML_ERROR_UNINITIALIZED; or what keeps the
 * driver from answering anything. */
nvmlReturn_t library_ready(void);

/* Another number in each session. */
unsigned int session_number(void);

/* NVML_SUCCESS while the driver is the one that the session was begun with. */
nvmlReturn_t driver_answers(void);

/* What a test ordered that this call fails with, about this GPU or (-1) about none. */
nvmlReturn_t ordered_error(int gpu);

/* The handle of GPU `gpu`. */
nvmlDevice_t device_handle(int gpu);

/* Resolves a handle: NVML_ERROR_UNINITIALIZED, NVML_ERROR_INVALID_ARGUMENT for a handle that is none of ours,
 * NVML_ERROR_GPU_IS_LOST for a GPU that fell off the bus. */
nvmlReturn_t device_resolve(nvmlDevice_t device, int *gpu);

/* Resolves a handle of a GPU that may be lost (what the driver knows without asking the GPU). */
nvmlReturn_t device_resolve_lost(nvmlDevice_t device, int *gpu);

/* How many of the visible GPUs are whole ones, which NVML numbers; MIG instances come after them. */
int whole_gpu_count(void);

/* Copies a string into a caller's buffer: NVML_ERROR_INSUFFICIENT_SIZE where it and its NUL do not fit. */
nvmlReturn_t copy_string(char *buffer, unsigned int length, const char *string);

/* Microseconds since 1970: the "CPU timestamp" of NVML. */
uint64_t wall_clock_us(void);

/* One process that uses a GPU, as NVML's lists show it. */
struct gpu_process {
    unsigned int pid; /* in the caller's pid namespace */
    uint64_t bytes, peak_bytes;
    uint64_t busy_ns;    /* GPU time since the process began to use GPUs */
    uint64_t start_ns;   /* CLOCK_MONOTONIC when it began to */
    unsigned int gi, ci; /* NO_INSTANCE outside MIG */
    bool mps_client;
    enum sim_graphics graphics;
};

/* The processes that hold memory of a GPU, ordered by pid, one entry per pid. On success `*processes` is to be freed. */
nvmlReturn_t processes_of_gpu(int gpu, struct gpu_process **processes, unsigned int *count);

/* Answers such a list by NVML's protocol: `*count` is what `array` has room for, then what there is; too little room is
 * NVML_ERROR_INSUFFICIENT_SIZE. `put` writes entry i. */
typedef void put_process(void *array, unsigned int i, const struct gpu_process *process);
nvmlReturn_t list_processes(int gpu, unsigned int *count, void *array, put_process *put);

/* ---- MIG ---- */

/* A whole GPU in MIG mode: NVML_ERROR_NOT_SUPPORTED for others, MIG devices among them. */
nvmlReturn_t resolve_partitioned(nvmlDevice_t device, int *gpu);

/* Whether the caller may manage instances, and no fault is ordered: NVML_SUCCESS. */
nvmlReturn_t may_manage(void);
nvmlReturn_t fault_of(enum sim_mig_act act);

/* Handles of instances are those of their seats. */
struct instance_seat {
    int gpu;
    unsigned int seat;
};
nvmlGpuInstance_t gpu_instance_handle(int gpu, unsigned int seat);
nvmlReturn_t resolve_gpu_instance(nvmlGpuInstance_t handle, struct instance_seat *at, struct sim_gi *gi);

nvmlReturn_t instance_error(int error);

/* Writes the starts of a placement mask; `put` one by one. */
unsigned int count_bits(unsigned int mask);

/* Defines an NVML function that answers one value about a device. `gpu` is in scope in the expression. */
#define DEVICE_QUERY(function, type, expression)                                                                       \
    nvmlReturn_t function(nvmlDevice_t device, type *value) {                                                          \
        int gpu;                                                                                                       \
        nvmlReturn_t ret = device_resolve(device, &gpu);                                                               \
        if (ret != NVML_SUCCESS)                                                                                       \
            return ret;                                                                                                \
        if (value == NULL)                                                                                             \
            return NVML_ERROR_INVALID_ARGUMENT;                                                                        \
        *value = (expression);                                                                                         \
        return NVML_SUCCESS;                                                                                           \
    }

/* The same of a value that a test can set, or have the GPU not support. */
#define DEVICE_SETTING(function, type, setting, fallback)                                                              \
    nvmlReturn_t function(nvmlDevice_t device, type *value) {                                                          \
        int gpu;                                                                                                       \
        uint64_t set;                                                                                                  \
        nvmlReturn_t ret = device_resolve(device, &gpu);                                                               \
        if (ret != NVML_SUCCESS)                                                                                       \
            return ret;                                                                                                \
        if (value == NULL)                                                                                             \
            return NVML_ERROR_INVALID_ARGUMENT;                                                                        \
        if (!sim_setting(gpu, setting, fallback, &set))                                                                \
            return NVML_ERROR_NOT_SUPPORTED;                                                                           \
        *value = (type)set;                                                                                            \
        return NVML_SUCCESS;                                                                                           \
    }

#endif
