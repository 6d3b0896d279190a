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
    void *
        anchor; /* a page of the second one, which keeps it, as the state keeps the first, where a program closes all */
    bool joined;
    unsigned slot, group;
    bool all;          /* GPUs are visible without their nodes, too */
    char dev[1024];    /* where nodes are */
    int visible_count; /* of whole GPUs */
    int visible[SIM_MAX_GPUS];
    struct sim_topology topology;
    pthread_mutex_t op_mutex[SIM_MAX_INDICES]; /* [entry] */
    pthread_mutex_t mig_mutex;                 /* around the state's lock of instances */
    word usable[SIM_MAX_GPUS][SIM_MIG_SEATS];  /* generation of the compute instance whose nodes were opened */
    /* The MIG device that this process is bound to: 1 + its index, 0: none. */
    _Atomic int bound;
    int bound_entry;
    uint64_t bound_generation;
    const struct sim_gpu *bound_gpu;
    pthread_mutex_t shared_mutex;              /* around holds */
    _Atomic uint32_t holds[SIM_MAX_PROCESSES]; /* [slot] of an object: how often this process holds it */
    unsigned uses[SIM_MAX_GPUS];               /* [gpu] contexts that stand for this process's lock; under `mutex` */
    word limits[SIM_MAX_INDICES];              /* [entry] bytes, 0: none */
    word charged[SIM_MAX_INDICES];             /* [entry] units that count towards the limit */
    _Atomic int64_t shared_units[SIM_MAX_PROCESSES]; /* [slot] of them, those of objects that this process made */
    pthread_mutex_t limits_mutex;                    /* around the state's lock of limits */
    pthread_mutex_t owners_mutex;                    /* around the following */
    struct owners *owners;                           /* of memory that is charged to a cgroup, NULL: there is none */
    _Atomic unsigned last_limit[SIM_MAX_GPUS];       /* [section] what the last look found */
    char error[512];
};

extern struct sim_local *sim_local;

/* Entries of the state that are in use: those of whole GPUs and of all their seats. */
static inline int entry_count(void) {
    return sim_local->topology.gpu_count * ENTRIES;
}

static inline bool in_range(int gpu) {
    return sim_local != NULL && sim_local->state != NULL && gpu >= 0 && gpu < sim_local->visible_count * ENTRIES;
}

/* For an index in range: the section of its whole GPU, and its seat. */
static inline int section_of(int gpu) {
    int n = sim_local->visible_count;

    return sim_local->visible[gpu < n ? gpu : (gpu - n) / SIM_MIG_SEATS];
}

static inline unsigned seat_of(int gpu) {
    return (unsigned)(gpu - sim_local->visible_count) % SIM_MIG_SEATS;
}

static inline struct state_ci *ci_state(int gpu) {
    return &sim_local->state->mig[section_of(gpu)].ci[seat_of(gpu)];
}

/* The entry of an index, -1 for an empty seat and outside the range. */
static inline int entry_of(int gpu) {
    unsigned gi;

    if (!in_range(gpu))
        return -1;
    if (gpu < sim_local->visible_count)
        return WHOLE_ENTRY(sim_local->visible[gpu]);
    if (atomic_load_explicit(&sim_local->bound, memory_order_acquire) == gpu + 1)
        return sim_local->bound_entry;
    if (atomic_load(&ci_state(gpu)->live) == 0)
        return -1;
    gi = (unsigned)atomic_load(&ci_state(gpu)->gi);
    return INSTANCE_ENTRY(section_of(gpu), gi);
}

/* What an entry has for all. */
static inline uint64_t entry_bytes(int entry) {
    if (entry % ENTRIES == 0)
        return sim_local->topology.gpus[entry / ENTRIES].memory_bytes;
    return atomic_load(&sim_local->state->mig[entry / ENTRIES].gi[entry % ENTRIES - 1].memory_bytes);
}

static inline uint64_t entry_used(int entry) {
    return SUM_UNITS(atomic_load(&sim_local->state->gpus[entry].total)) << UNIT_SHIFT;
}

/* Completes the change that word w of a GPU's total names, if it still is the GPU's total and incomplete. */
void sums_help(int index, uint64_t w);

/* Gives back what a slot holds of the GPU. `mine`: the caller holds the slot's locks. Returns false if it is alive. */
bool sums_empty_slot(unsigned slot, int index, bool mine);

/* Makes an emptied slot nobody's; what it leaves behind in the statistics goes to its group. */
void sums_retire_slot(unsigned slot, uint64_t owner);

bool slot_alive(unsigned slot);

/*
 * One change of a slot's sums: of the process's own or of an object that it made. `limit`: 0, or the limit that the memory
 * is charged to. -ENOMEM if the GPU is full or the limit reached.
 */
int sums_change(unsigned slot, int index, int64_t units, unsigned limit);

/* Moves units from this process's slot to an object's, with the charge. -EINVAL if it has not got as many. */
int sums_move(unsigned slot, int index, int64_t units, unsigned limit);

/* Which part of the slot is charged to the limit, or else (`make`) could be; -1 if none. */
int sums_part(unsigned slot, int index, unsigned limit, bool make);

/* How much of the slot's memory, up to so much, is charged to one limit; if none is that is all, and the limit 0. */
int64_t sums_charged(unsigned slot, int index, int64_t most, unsigned *limit);

/* ---- Limits of cgroups: 1 + a place in `limits`, 0 for none ---- */

static inline bool limits_active(void) {
    return atomic_load_explicit(&sim_local->state->limits_active, memory_order_relaxed) != 0;
}

/* What memory that this process takes now is to be charged to. */
unsigned limits_find(int index);

/* Whether the limit would be exceeded. */
bool limits_exceeded(unsigned limit, int index, int64_t units);

/* The GPU is reset, or its driver loaded anew: it has no limits any more. */
void limits_drop(int section);

/* Notes what an owner has that is charged, and takes up to so much of it away again, of one limit. If nothing of it is
 * charged that is all, and the limit 0. */
bool owners_add(const void *owner, int index, unsigned limit, int64_t units);
int64_t owners_take(const void *owner, int index, int64_t most, unsigned *limit);
void owners_close(void);

/* Gives back what a dead slot holds. */
void sums_reap_slot(unsigned slot);

static inline int64_t to_units(uint64_t bytes) {
    return (int64_t)((bytes + (1u << UNIT_SHIFT) - 1) >> UNIT_SHIFT);
}

/* Counts units towards this process's limit, or less of them; false, and nothing, if that would be too much. */
bool limit_charge(int index, int64_t units);

/* Takes a free slot and leaves it locked for writing. Its number, or -errno. */
int slot_find(void);

/* Counts GPU time that the process in this slot had, for itself and for its group. */
void busy_count(unsigned slot, int index, uint64_t ns);

/* F_RDLCK, F_WRLCK or F_UNLCK on a byte of the state file. */
bool slot_lock(int fd, off_t byte, int type);

/* ---- MIG ---- */

const struct sim_mig_profile *mig_profile_by_id(const struct sim_mig_model *model, unsigned id);
uint64_t mig_memory_of(const struct sim_gpu *whole, const struct sim_mig_profile *profile);

/* Makes the instances that the topology says are there at the start, in a state that nobody else has yet. */
void mig_seed(struct state *st, const struct sim_topology *topology);

/* The MIG device in a seat, as long as the process lives; NULL if it is empty. */
const struct sim_gpu *mig_gpu(int section, unsigned seat);

/* Whether there is nothing to take memory of: without waiting for whoever is about to change that. */
bool mig_entry_gone(int entry);

/* Whether this process may take memory of the entry, as it has just done. */
bool mig_may_take(int entry);

/* Whether this process is bound to a MIG device that is no more. */
bool mig_bound_gone(int gpu);

/* Nodes of capabilities, and the list of them, as the instances are now. Under the lock of instances. */
void mig_nodes(void);
unsigned mig_gi_cap(int section, unsigned seat);
unsigned mig_ci_cap(int section, unsigned seat);

/* A device node of the simulated GPUs at path; where nodes cannot be made, an ordinary file. 0 or -errno. */
int sim_node_make(const char *path, const struct sim_topology *topology, bool *file);

/* Whether the nodes can be opened. */
bool can_use(const struct sim_gpu *gpu);

/* Gives up what this process holds of objects. */
void shared_close(void);

/* Calls off what was ordered of health, and of calls of NVML. */
void health_clear(void);
void orders_clear(void);

#endif
