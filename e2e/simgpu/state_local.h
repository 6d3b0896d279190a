/* What the files of the state share: this process's view of it, and the steps of the sums. */
#ifndef SIMGPU_STATE_LOCAL_H
#define SIMGPU_STATE_LOCAL_H

#include <pthread.h>

#include "state_layout.h"

/*
 * What this process knows for itself. It lies in pages that the kernel wipes in a forked child: the child shares its
 * parent's file descriptions, and with them the locks, so it must not take the parent's slot for its own.
 */
struct sim_local {
    pthread_mutex_t mutex; /* around opening, closing and joining */
    int opens;
    struct state *state;
    int low, high; /* descriptors of the two descriptions */
    bool joined;
    unsigned slot, group;
    int visible_count;
    int visible[SIM_MAX_GPUS];
    struct sim_topology topology;
    pthread_mutex_t op_mutex[SIM_MAX_GPUS];
    char error[512];
};

extern struct sim_local *sim_local;

/* Whether the state is open and gpu is a visible GPU. */
static inline bool known(int gpu) {
    return sim_local != NULL && sim_local->state != NULL && gpu >= 0 && gpu < sim_local->visible_count;
}

static inline struct state_gpu *gpu_state(int gpu) {
    return &sim_local->state->gpus[sim_local->visible[gpu]];
}

/* Completes the change that word w of a GPU's total names, if it still is the GPU's total and incomplete. */
void sums_help(int index, uint64_t w);

/* Gives back what a slot holds of the GPU. `mine`: the caller holds the slot's locks. Returns false if it is alive. */
bool sums_empty_slot(unsigned slot, int index, bool mine);

/* Makes an emptied slot nobody's; what it leaves behind in the statistics goes to its group. */
void sums_retire_slot(unsigned slot, uint64_t owner);

bool slot_alive(unsigned slot);

#endif
