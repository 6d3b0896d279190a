/* The GPUs of a server, and its contexts on them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../sharing.h"
#include "../visible.h"
#include "server.h"

struct server_device devices[SIM_MAX_GPUS];
uint32_t device_count;

static uint64_t name;
static char problem[512];

uint64_t server_name(void) {
    return name;
}

/* GPUs of before Volta are left out where there are newer ones; alone, the simulated MPS has nothing for them. */
static int choose(int *gpus) {
    int found[SIM_MAX_INDICES], count = visible_apply(getenv("CUDA_VISIBLE_DEVICES"), found, visible_all(found)),
                                left = 0;

    for (int i = 0; i < count; i++) {
        if (sim_gpu(found[i]) != NULL && sim_gpu(found[i])->cc_major >= 7)
            gpus[left++] = found[i];
    }
    return left;
}

static const char *make_context(int gpu) {
    const struct sim_gpu *about = sim_gpu(gpu);

    if (about == NULL || (about->is_mig && sim_bind(gpu) != 0))
        return "a MIG device is gone";
    switch (sim_use(gpu)) {
    case 0:
        break;
    case -EPERM:
        snprintf(problem, sizeof(problem), "the compute mode of GPU %s prohibits contexts", about->uuid);
        return problem;
    default:
        snprintf(problem, sizeof(problem), "GPU %s is in mode EXCLUSIVE_PROCESS, and another process has it",
                 about->uuid);
        return problem;
    }
    if (sim_reserve(gpu, about->context_bytes, about) != 0) {
        snprintf(problem, sizeof(problem), "GPU %s has no memory left for the server's context", about->uuid);
        return problem;
    }
    sim_count_context(gpu, (int64_t)about->context_bytes);
    return NULL;
}

static uint32_t most_contexts(const struct sim_gpu *gpu) {
    return gpu->cc_major >= 10 && atoi(sim_topology()->driver_version) >= 580 ? MPS_CONTEXTS_PER_DEVICE_NEW
                                                                              : MPS_CONTEXTS_PER_DEVICE;
}

const char *devices_open(void) {
    int gpus[SIM_MAX_INDICES], count;

    if (sim_open() != 0)
        return sim_error();
    count = choose(gpus);
    if (count == 0)
        return "no GPU is visible that MPS can have: Volta or newer, and not in MIG mode as a whole";
    if (sim_join() != 0)
        return "the simulated GPU has no room for another process";
    name = sim_mps_serve();
    for (int i = 0; i < count && i < SIM_MAX_GPUS; i++) {
        const char *wrong = make_context(gpus[i]);

        if (wrong != NULL)
            return wrong;
        devices[device_count++] =
            (struct server_device){.gpu = gpus[i], .most_contexts = most_contexts(sim_gpu(gpus[i]))};
    }
    return NULL;
}
