/* The record of instances: what was made and destroyed, when and by whom. */
#include <string.h>
#include <unistd.h>

#include "mig_local.h"
#include "processes.h"

static void post(struct sim_mig_event event, int section, uint64_t profile) {
    struct state *st = sim_local->state;
    uint64_t serial = atomic_load(&st->mig_serial) + 1;
    struct state_mig_event *e = &st->mig_events[serial % MIG_EVENTS];

    atomic_store(&e->serial, 0);
    atomic_store(&e->what, event.what);
    atomic_store(&e->section, (uint64_t)section);
    atomic_store(&e->gi, event.gi);
    atomic_store(&e->ci, event.ci);
    atomic_store(&e->profile, profile);
    atomic_store(&e->start, event.start);
    atomic_store(&e->size, event.size);
    atomic_store(&e->time_ns, sim_now_ns());
    atomic_store(&e->pid, (uint64_t)getpid());
    atomic_store(&e->pid_namespace, processes_namespace());
    atomic_store(&e->peak_bytes, event.peak_bytes);
    atomic_store(&e->serial, serial);
    atomic_store(&st->mig_serial, serial);
}

void mig_event_gi(enum sim_mig_what what, int section, unsigned seat, uint64_t peak_bytes) {
    struct state_gi *g = &mig_state(section)->gi[seat];

    post((struct sim_mig_event){.what = what,
                                .gi = (unsigned)atomic_load(&g->id),
                                .start = (unsigned)atomic_load(&g->start),
                                .size = (unsigned)atomic_load(&g->size),
                                .peak_bytes = peak_bytes},
         section, atomic_load(&g->profile));
}

void mig_event_ci(enum sim_mig_what what, int section, unsigned seat) {
    struct state_ci *c = &mig_state(section)->ci[seat];
    struct state_gi *g = &mig_state(section)->gi[atomic_load(&c->gi)];

    post((struct sim_mig_event){.what = what,
                                .gi = (unsigned)atomic_load(&g->id),
                                .ci = (unsigned)atomic_load(&c->id),
                                .start = (unsigned)atomic_load(&c->start),
                                .size = (unsigned)atomic_load(&c->size)},
         section, atomic_load(&g->profile));
}

/* The mode stands where the size of an instance would. */
void mig_event_mode(enum sim_mig_what what, int section, bool on) {
    post((struct sim_mig_event){.what = what, .size = on}, section, UINT64_MAX);
}

static int visible_index(uint64_t section) {
    for (int gpu = 0; gpu < sim_local->visible_count; gpu++) {
        if (sim_local->visible[gpu] == (int)section)
            return gpu;
    }
    return -1;
}

static void fill(const struct state_mig_event *e, struct process_map *map, struct sim_mig_event *event) {
    uint64_t section = atomic_load(&e->section), profile = atomic_load(&e->profile);
    const struct sim_mig_model *model = mig_model_of(&sim_local->topology.gpus[section]);

    *event = (struct sim_mig_event){
        .serial = atomic_load(&e->serial),
        .what = (enum sim_mig_what)atomic_load(&e->what),
        .gpu = visible_index(section),
        .gi = (unsigned)atomic_load(&e->gi),
        .ci = (unsigned)atomic_load(&e->ci),
        .start = (unsigned)atomic_load(&e->start),
        .size = (unsigned)atomic_load(&e->size),
        .profile = model != NULL && profile < model->count ? &model->profiles[profile] : NULL,
        .time_ns = atomic_load(&e->time_ns),
        .pid = processes_find(map, atomic_load(&e->pid_namespace), (int)atomic_load(&e->pid)),
        .peak_bytes = atomic_load(&e->peak_bytes),
    };
}

int sim_each_mig_event(int (*fn)(const struct sim_mig_event *, void *), void *arg) {
    struct process_map map = {0};
    uint64_t last, serial;
    int ret = 0;

    if (sim_local == NULL || sim_local->state == NULL)
        return 0;
    last = atomic_load(&sim_local->state->mig_serial);
    serial = last < MIG_EVENTS ? 1 : last - MIG_EVENTS + 1;
    for (; ret == 0 && serial <= last; serial++) {
        struct sim_mig_event event;

        fill(&sim_local->state->mig_events[serial % MIG_EVENTS], &map, &event);
        if (event.serial == serial)
            ret = fn(&event, arg);
    }
    processes_free(&map);
    return ret;
}
