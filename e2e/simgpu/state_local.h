/* What the files of the state share: this process's view of it, and the steps of the sums. */
#ifndef SIMGPU_STATE_LOCAL_H
#define SIMGPU_STATE_LOCAL_H

#include <pthread.h>
#include <sys/types.h>

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
    pthread_mutex_t shared_mutex;              /* around holds */
    _Atomic uint32_t holds[SIM_MAX_PROCESSES]; /* [slot] of an object: how often this process holds it */
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

/* One change of a slot's sums: of the process's own or of an object that it made. -ENOMEM if the GPU is full. */
int sums_change(unsigned slot, int index, int64_t units);

/* Moves units from this process's slot to an object's. -EINVAL if it has not got as many. */
int sums_move(unsigned slot, int index, int64_t units);

/* Gives back what a dead slot holds. */
void sums_reap_slot(unsigned slot);

static inline int64_t to_units(uint64_t bytes) {
    return (int64_t)((bytes + (1u << UNIT_SHIFT) - 1) >> UNIT_SHIFT);
}

/* Takes a free slot and leaves it locked for writing. Its number, or -errno. */
int slot_find(void);

/* F_RDLCK, F_WRLCK or F_UNLCK on a byte of the state file. */
bool slot_lock(int fd, off_t byte, int type);

/* Gives up what this process holds of objects. */
void shared_close(void);

/* Calls off what was ordered of health, and of calls of NVML. */
void health_clear(void);
void orders_clear(void);

#endif
