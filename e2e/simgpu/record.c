/* The record of who holds what: by process, and by group with its peak. */
#include <string.h>

#include "processes.h"
#include "shared_local.h"

/* Compute instances of one GPU instance share its memory, but each process is bound to one of them. */
static bool slot_uses(struct state_slot *s, int gpu) {
    return gpu < sim_local->visible_count ||
           atomic_load(&s->instance) == LIVE_GENERATION(atomic_load(&ci_state(gpu)->live));
}

/* What a group has of a GPU instance stands at its first compute instance. */
static bool is_first_of_instance(int gpu) {
    int first = gpu - (gpu < sim_local->visible_count ? 0 : (int)seat_of(gpu));

    for (int i = first; i < gpu; i++) {
        if (entry_of(i) == entry_of(gpu))
            return false;
    }
    return true;
}

static void fill_mps(uint64_t role, struct process_map *map, struct sim_process_info *info) {
    struct state_slot *server;
    uint64_t owner;

    info->mps_server = role == MPS_ROLE_SERVER;
    info->mps_client = role > MPS_ROLE_SERVER;
    if (!info->mps_client)
        return;
    server = &sim_local->state->slots[shared_slot(role)];
    owner = atomic_load(&server->owner);
    if ((uint32_t)owner != 0 && owner >> 32 == NAME_GENERATION(role) && slot_alive(shared_slot(role)))
        info->mps_server_pid = processes_find(map, atomic_load(&server->pid_namespace), (int)(uint32_t)owner);
}

static void fill_process(unsigned slot, uint64_t owner, struct process_map *map, struct sim_process_info *info) {
    struct state *st = sim_local->state;
    struct state_slot *s = &st->slots[slot];

    memset(info, 0, sizeof(*info));
    info->alive = true;
    info->nspid = (int)(uint32_t)owner;
    info->pid_namespace = atomic_load(&s->pid_namespace);
    info->start_ns = atomic_load(&s->start_ns);
    info->pid = processes_find(map, info->pid_namespace, info->nspid);
    memcpy(info->group, st->groups[atomic_load(&s->group)].key, sizeof(info->group));
    info->group[sizeof(info->group) - 1] = '\0';
    fill_mps(atomic_load(&s->mps), map, info);
    info->graphics = (enum sim_graphics)atomic_load(&s->graphics);
    for (int gpu = 0; gpu < sim_index_count(); gpu++) {
        int i = entry_of(gpu);

        if (i < 0 || !slot_uses(s, gpu))
            continue;
        sums_help(i, atomic_load(&st->gpus[i].total));
        info->gpus[gpu] = (struct sim_process_gpu){
            .bytes = COMMITTED_UNITS(atomic_load(&s->gpus[i].committed)) << UNIT_SHIFT,
            .peak_bytes = atomic_load(&s->gpus[i].peak) << UNIT_SHIFT,
            .context_bytes = atomic_load(&s->gpus[i].context_bytes),
            .allocations = atomic_load(&s->gpus[i].allocations),
            .launches = atomic_load(&s->gpus[i].launches),
            .busy_ns = atomic_load(&s->gpus[i].busy_ns),
        };
    }
}

int sim_each_process(int (*fn)(const struct sim_process_info *, void *), void *arg) {
    struct process_map map = {0};
    int ret = 0;

    if (sim_local == NULL || sim_local->state == NULL)
        return 0;
    sim_reap();
    for (unsigned slot = 0; ret == 0 && slot < atomic_load(&sim_local->state->slots_used); slot++) {
        uint64_t owner = atomic_load(&sim_local->state->slots[slot].owner);
        struct sim_process_info info;

        if ((uint32_t)owner == 0 || atomic_load(&sim_local->state->slots[slot].kind) != 0 || !slot_alive(slot))
            continue;
        fill_process(slot, owner, &map, &info);
        if (atomic_load(&sim_local->state->slots[slot].owner) == owner)
            ret = fn(&info, arg);
    }
    processes_free(&map);
    return ret;
}

static const char *kind_name(uint64_t kind) {
    static const char *const names[] = {
        [SIM_SHARED_MEMORY] = "memory",       [SIM_SHARED_IPC] = "ipc",     [SIM_SHARED_POOL] = "pool",
        [SIM_SHARED_MULTICAST] = "multicast", [SIM_SHARED_EVENT] = "event",
    };

    return kind < sizeof(names) / sizeof(names[0]) && names[kind] != NULL ? names[kind] : "";
}

static void fill_shared(unsigned slot, uint64_t owner, struct process_map *map, struct sim_shared_info *info) {
    struct sim_process_info process;

    fill_process(slot, owner, map, &process);
    *info = (struct sim_shared_info){.kind = kind_name(atomic_load(&sim_local->state->slots[slot].kind)),
                                     .object = NAME(owner >> 32, slot),
                                     .lock_byte = LOCK_BYTE(slot, 0),
                                     .pid = process.pid,
                                     .nspid = process.nspid,
                                     .start_ns = process.start_ns};
    memcpy(info->group, process.group, sizeof(info->group));
    for (int gpu = 0; gpu < sim_index_count(); gpu++)
        info->bytes[gpu] = process.gpus[gpu].bytes;
}

int sim_each_shared(int (*fn)(const struct sim_shared_info *, void *), void *arg) {
    struct process_map map = {0};
    int ret = 0;

    if (sim_local == NULL || sim_local->state == NULL)
        return 0;
    sim_reap();
    for (unsigned slot = 0; ret == 0 && slot < atomic_load(&sim_local->state->slots_used); slot++) {
        uint64_t owner = atomic_load(&sim_local->state->slots[slot].owner);
        struct sim_shared_info info;

        if ((uint32_t)owner == 0 || atomic_load(&sim_local->state->slots[slot].kind) == 0 || !slot_alive(slot))
            continue;
        fill_shared(slot, owner, &map, &info);
        if (atomic_load(&sim_local->state->slots[slot].owner) == owner)
            ret = fn(&info, arg);
    }
    processes_free(&map);
    return ret;
}

static void fill_group(unsigned group, struct sim_group_info *info) {
    struct state *st = sim_local->state;

    memset(info, 0, sizeof(*info));
    memcpy(info->group, st->groups[group].key, sizeof(info->group));
    info->group[sizeof(info->group) - 1] = '\0';
    for (int gpu = 0; gpu < sim_index_count(); gpu++) {
        int i = entry_of(gpu);

        if (i < 0 || !is_first_of_instance(gpu))
            continue;
        sums_help(i, atomic_load(&st->gpus[i].total));
        info->gpus[gpu].bytes = SUM_UNITS(atomic_load(&st->groups[group].gpus[i].sum)) << UNIT_SHIFT;
        info->gpus[gpu].peak_bytes = atomic_load(&st->groups[group].gpus[i].peak) << UNIT_SHIFT;
        info->gpus[gpu].launches = atomic_load(&st->groups[group].gpus[i].launches_of_dead);
        info->gpus[gpu].busy_ns = atomic_load(&st->groups[group].gpus[i].busy_ns);
        info->gpus[gpu].overlap_ns = atomic_load(&st->groups[group].gpus[i].overlap_ns);
    }
    for (unsigned slot = 0; slot < atomic_load(&st->slots_used); slot++) {
        if ((uint32_t)atomic_load(&st->slots[slot].owner) == 0 || atomic_load(&st->slots[slot].group) != group ||
            atomic_load(&st->slots[slot].kind) != 0)
            continue;
        info->processes++;
        for (int gpu = 0; gpu < sim_index_count(); gpu++) {
            int i = entry_of(gpu);

            if (i >= 0 && is_first_of_instance(gpu))
                info->gpus[gpu].launches += atomic_load(&st->slots[slot].gpus[i].launches);
        }
    }
}

int sim_each_group(int (*fn)(const struct sim_group_info *, void *), void *arg) {
    int ret = 0;

    if (sim_local == NULL || sim_local->state == NULL)
        return 0;
    sim_reap();
    for (unsigned group = 0; ret == 0 && group < atomic_load(&sim_local->state->groups_used); group++) {
        struct sim_group_info info;

        fill_group(group, &info);
        if (info.group[0] != '\0')
            ret = fn(&info, arg);
    }
    return ret;
}

void sim_set_accounting(int gpu, bool on) {
    int index = entry_of(gpu);

    if (index >= 0)
        atomic_store(&sim_local->state->gpus[index].accounting, on);
}

bool sim_accounting(int gpu) {
    int index = entry_of(gpu);

    return index >= 0 && atomic_load(&sim_local->state->gpus[index].accounting) != 0;
}

void sim_reset_peaks(void) {
    struct state *st;

    if (sim_local == NULL || sim_local->state == NULL)
        return;
    st = sim_local->state;
    sim_reap();
    for (unsigned group = 0; group < atomic_load(&st->groups_used); group++) {
        for (int i = 0; i < entry_count(); i++) {
            uint64_t peak = atomic_load(&st->groups[group].gpus[i].peak);

            while (!atomic_compare_exchange_weak(&st->groups[group].gpus[i].peak, &peak,
                                                 SUM_UNITS(atomic_load(&st->groups[group].gpus[i].sum)))) {
            }
        }
    }
}
