/*
 * Limits of device memory by cgroup, as NVIDIA's driver 615 has them in its mode "misc"
 * (src/nvidia/src/kernel/mem_mgr/memacct.c of the open kernel modules, 615; nvml.h of CUDA 13.4).
 *
 * Memory is charged to the nearest ancestor of the allocating process's cgroup that has a limit of the GPU, which may be
 * that cgroup itself, and to no other: limits do not nest. What a process took before is not counted. A charge stays with
 * its cgroup until the memory is released, wherever the process goes.
 */
#ifndef SIMGPU_MEMORY_LIMITS_H
#define SIMGPU_MEMORY_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "state.h"

/* NVML_DEVICE_MEMORY_LIMIT_MAX. */
#define SIM_MEMORY_LIMIT_MAX UINT64_MAX

struct sim_memory_limit {
    uint64_t soft, hard; /* bytes; the soft limit is kept and has no effect */
    uint64_t used;
};

/* Whether the driver has such limits. */
bool sim_memory_limits(void);

/*
 * Sets the limits of a whole GPU for the cgroup whose directory was opened; path is what people know it by. To clear
 * them is to set them to 0 and SIM_MEMORY_LIMIT_MAX: the driver goes on counting then, and so does this. 0, -EINVAL for
 * what is no directory of cgroup v2, -EOPNOTSUPP for the root or without such limits, -EBUSY where more is used than the
 * hard limit, -EPERM, or -ENOSPC.
 */
int sim_memory_limit_set(int gpu, int fd, const char *path, uint64_t soft, uint64_t hard);

/* The limits that count for a cgroup, its own or an ancestor's. 0, -EINVAL as above, -EOPNOTSUPP where it has none of
 * any GPU, -ENOENT where it has some, but none of this one. */
int sim_memory_limit_get(int gpu, int fd, struct sim_memory_limit *limit);

/* What this process sees of a limit in the place of the GPU's memory: that of its own cgroup. False: the GPU's. */
bool sim_memory_limit_shown(int gpu, struct sim_memory_limit *limit);

/* ---- In the record ---- */

struct sim_memory_limit_info {
    char path[SIM_CGROUP_PATH_SIZE];
    uint64_t cgroup; /* ID */
    int gpu;
    bool removed; /* the cgroup is gone, and memory charged to it is still held */
    uint64_t soft, hard, used, peak;
};

/* Calls fn for the limits of every cgroup that is there or has memory; stops when fn returns non-zero and returns that. */
int sim_each_memory_limit(int (*fn)(const struct sim_memory_limit_info *, void *), void *arg);

#endif
