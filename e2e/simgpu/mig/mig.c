/* MIG: which instances there are. How they are told of without a lock: state_layout.h. */
#include "mig.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "mig_local.h"
#include "processes.h"

/* A GPU of compute capability 8 is reset to change its mode. */
#define RESET_UP_TO_MAJOR 8

/* ---- The lock of instances ---- */

static void file_lock(short type) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = MIG_LOCK_BYTE, .l_len = 1};

    while (fcntl(sim_local->low, F_OFD_SETLKW, &lock) != 0 && errno == EINTR) {
    }
}

/* Whoever marked an instance as closing and died over it has not destroyed it. */
static void settle(void) {
    for (int section = 0; section < sim_local->topology.gpu_count; section++) {
        for (unsigned seat = 0; seat < SIM_MIG_SEATS; seat++)
            atomic_fetch_and(&sim_local->state->mig[section].ci[seat].live, ~LIVE_CLOSING);
    }
}

void mig_lock(void) {
    pthread_mutex_lock(&sim_local->mig_mutex);
    file_lock(F_WRLCK);
    settle();
}

void mig_unlock(void) {
    file_lock(F_UNLCK);
    pthread_mutex_unlock(&sim_local->mig_mutex);
}

/* ---- Reading ---- */

struct state_mig *mig_state(int section) {
    return &sim_local->state->mig[section];
}

static const struct sim_gpu *whole(int section) {
    return &sim_local->topology.gpus[section];
}

const struct sim_mig_model *sim_mig_model(int gpu) {
    return in_range(gpu) ? mig_model_of(whole(section_of(gpu))) : NULL;
}

const struct sim_mig_profile *sim_mig_profile(int gpu, unsigned id) {
    return mig_profile_by_id(sim_mig_model(gpu), id);
}

uint64_t sim_mig_memory(int gpu, const struct sim_mig_profile *profile) {
    return mig_memory_of(whole(section_of(gpu)), profile);
}

bool sim_mig_needs_reset(int gpu) {
    return in_range(gpu) && whole(section_of(gpu))->cc_major <= RESET_UP_TO_MAJOR;
}

void sim_mig_mode(int gpu, bool *current, bool *pending) {
    *current = in_range(gpu) && atomic_load(&mig_state(section_of(gpu))->mode) != 0;
    *pending = in_range(gpu) && atomic_load(&mig_state(section_of(gpu))->pending) != 0;
}

uint64_t sim_mig_binding(int gpu) {
    return in_range(gpu) ? atomic_load(&mig_state(section_of(gpu))->binding) : 0;
}

const struct sim_mig_profile *mig_gi_profile(int section, unsigned seat) {
    const struct sim_mig_model *model = mig_model_of(whole(section));
    uint64_t profile = atomic_load(&mig_state(section)->gi[seat].profile);

    return model != NULL && profile < model->count ? &model->profiles[profile] : NULL;
}

static void fill_gi(int section, unsigned seat, struct sim_gi *gi) {
    struct state_gi *g = &mig_state(section)->gi[seat];

    *gi = (struct sim_gi){
        .seat = seat,
        .id = (unsigned)atomic_load(&g->id),
        .start = (unsigned)atomic_load(&g->start),
        .size = (unsigned)atomic_load(&g->size),
        .profile = mig_gi_profile(section, seat),
        .memory_bytes = atomic_load(&g->memory_bytes),
        .used_bytes = entry_used(INSTANCE_ENTRY(section, seat)),
        .created_ns = atomic_load(&g->created_ns),
    };
}

int sim_gi_get(int gpu, unsigned seat, struct sim_gi *gi) {
    if (!in_range(gpu) || seat >= SIM_MIG_SEATS || atomic_load(&mig_state(section_of(gpu))->gi[seat].live) == 0)
        return -ENOENT;
    fill_gi(section_of(gpu), seat, gi);
    return 0;
}

int sim_gi_by_id(int gpu, unsigned id, struct sim_gi *gi) {
    for (unsigned seat = 0; seat < SIM_MIG_SEATS; seat++) {
        if (sim_gi_get(gpu, seat, gi) == 0 && gi->id == id)
            return 0;
    }
    return -ENOENT;
}

int sim_ci_get(int gpu, unsigned seat, struct sim_ci *ci) {
    struct state_ci *c;

    if (!in_range(gpu) || seat >= SIM_MIG_SEATS)
        return -ENOENT;
    c = &mig_state(section_of(gpu))->ci[seat];
    if (atomic_load(&c->live) == 0)
        return -ENOENT;
    *ci = (struct sim_ci){
        .seat = seat,
        .id = (unsigned)atomic_load(&c->id),
        .gi_seat = (unsigned)atomic_load(&c->gi),
        .start = (unsigned)atomic_load(&c->start),
        .size = (unsigned)atomic_load(&c->size),
        .created_ns = atomic_load(&c->created_ns),
    };
    return 0;
}

int sim_mig_parent(int gpu) {
    int n = sim_local->visible_count;

    return gpu < n ? gpu : (gpu - n) / SIM_MIG_SEATS;
}

unsigned sim_mig_seat(int gpu) {
    return seat_of(gpu);
}

int sim_mig_device(int gpu, unsigned ci_seat) {
    return sim_local->visible_count + sim_mig_parent(gpu) * SIM_MIG_SEATS + (int)ci_seat;
}

/* By the IDs of their GPU instances, and then their own. */
static bool stands_before(int a, int b) {
    const struct sim_gpu *left = sim_gpu(a), *right = sim_gpu(b);

    if (left == NULL || right == NULL)
        return false;
    return left->gi != right->gi ? left->gi < right->gi : left->ci < right->ci;
}

int sim_mig_devices(int gpu, int devices[SIM_MIG_SEATS]) {
    int count = 0;

    for (unsigned seat = 0; seat < SIM_MIG_SEATS; seat++) {
        int device = sim_mig_device(gpu, seat), place = count;

        if (sim_gpu(device) == NULL)
            continue;
        for (; place > 0 && stands_before(device, devices[place - 1]); place--)
            devices[place] = devices[place - 1];
        devices[place] = device;
        count++;
    }
    return count;
}

const struct sim_mig_profile *sim_mig_device_profile(int device) {
    return mig_gi_profile(section_of(device), (unsigned)atomic_load(&ci_state(device)->gi));
}

/* ---- Making ---- */

uint64_t mig_generation(struct state *st) {
    uint64_t now = sim_now_ns(), last = atomic_load(&st->generation);

    if (now <= last)
        now = last + 1;
    atomic_store(&st->generation, now);
    return now;
}

static unsigned slots_of(const struct state_gi *g) {
    return ((1u << atomic_load(&g->size)) - 1) << atomic_load(&g->start);
}

static unsigned occupied_slots(const struct state_mig *mig) {
    unsigned slots = 0;

    for (unsigned seat = 0; seat < SIM_MIG_SEATS; seat++) {
        if (atomic_load(&mig->gi[seat].live) != 0)
            slots |= slots_of(&mig->gi[seat]);
    }
    return slots;
}

static unsigned count_of(int section, const struct sim_mig_profile *profile) {
    unsigned count = 0;

    for (unsigned seat = 0; seat < SIM_MIG_SEATS; seat++)
        count += atomic_load(&mig_state(section)->gi[seat].live) != 0 && mig_gi_profile(section, seat) == profile;
    return count;
}

static bool starts_at(const struct sim_mig_profile *profile, unsigned start, unsigned taken) {
    return (profile->starts >> start & 1) != 0 && (((1u << profile->size) - 1) << start & taken) == 0;
}

/* The driver fills a GPU from the end. */
static int choose_start(const struct sim_mig_profile *profile, unsigned taken) {
    for (int start = 7; start >= 0; start--) {
        if (starts_at(profile, (unsigned)start, taken))
            return start;
    }
    return -ENOSPC;
}

static bool has_id(const struct state_mig *mig, unsigned id) {
    for (unsigned seat = 0; seat < SIM_MIG_SEATS; seat++) {
        if (atomic_load(&mig->gi[seat].live) != 0 && atomic_load(&mig->gi[seat].id) == id)
            return true;
    }
    return false;
}

/* IDs number the parts of the GPU: the whole, its halves, their halves. The topology may have given one away. */
static unsigned gi_id(const struct state_mig *mig, unsigned slots, unsigned start, unsigned size) {
    unsigned id = slots / size - 1 + start / size;

    for (unsigned other = 0; has_id(mig, id); other++)
        id = other;
    return id;
}

/* A seat whose last instance has left nothing behind. */
static int free_gi_seat(int section) {
    sim_reap();
    for (unsigned seat = 0; seat < SIM_MIG_SEATS; seat++) {
        if (atomic_load(&mig_state(section)->gi[seat].live) == 0 && entry_used(INSTANCE_ENTRY(section, seat)) == 0)
            return (int)seat;
    }
    return -ENOSPC;
}

/* What is told of an instance must not be that of an earlier one. */
static void forget_statistics(int entry) {
    struct state *st = sim_local->state;
    struct state_gpu *gpu = &st->gpus[entry];

    atomic_store(&gpu->booked, 0);
    atomic_store(&gpu->busy_ns, 0);
    atomic_store(&gpu->switches, 0);
    atomic_store(&gpu->accounting, 0);
    atomic_store(&gpu->failing_allocs, 0);
    for (int i = 0; i < BUCKETS; i++)
        atomic_store(&gpu->buckets[i], 0);
    for (unsigned group = 0; group < atomic_load(&st->groups_used); group++) {
        atomic_store(&st->groups[group].gpus[entry].peak, 0);
        atomic_store(&st->groups[group].gpus[entry].launches_of_dead, 0);
        atomic_store(&st->groups[group].gpus[entry].busy_ns, 0);
        atomic_store(&st->groups[group].gpus[entry].overlap_ns, 0);
    }
    for (unsigned slot = 0; slot < atomic_load(&st->slots_used); slot++) {
        atomic_store(&st->slots[slot].gpus[entry].launches, 0);
        atomic_store(&st->slots[slot].gpus[entry].busy_ns, 0);
        atomic_store(&st->slots[slot].gpus[entry].peak, 0);
    }
}

/* An instance has its share of what the driver keeps of the GPU for itself. */
uint64_t mig_reserved(int section, const struct sim_mig_profile *profile) {
    const struct sim_mig_model *model = mig_model_of(whole(section));

    return (whole(section)->reserved_bytes * profile->size / model->slots) & ~(uint64_t)0xffff;
}

/* How long it takes on hardware, if a test says so. */
static void take_time(void) {
    uint64_t ms = atomic_load(&sim_local->state->mig_delay_ms);
    struct timespec time = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};

    nanosleep(&time, NULL);
}

static void write_gi(int section, unsigned seat, const struct sim_mig_profile *profile, unsigned start) {
    const struct sim_mig_model *model = mig_model_of(whole(section));
    struct state_mig *mig = mig_state(section);
    struct state_gi *g = &mig->gi[seat];

    atomic_store(&g->id, gi_id(mig, model->slots, start, profile->size));
    atomic_store(&g->profile, (uint64_t)(profile - model->profiles));
    atomic_store(&g->start, start);
    atomic_store(&g->size, profile->size);
    atomic_store(&g->memory_bytes, mig_memory_of(whole(section), profile) - mig_reserved(section, profile));
    atomic_store(&g->section, 0);
    atomic_store(&g->created_ns, sim_now_ns());
    atomic_store(&g->live, LIVE(mig_generation(sim_local->state)));
}

static int create_gi(int section, const struct sim_mig_profile *profile, int start) {
    unsigned taken = occupied_slots(mig_state(section));
    int seat;

    if (atomic_load(&mig_state(section)->mode) == 0)
        return -ENOTSUP;
    if (start >= 0 && (start > 7 || (profile->starts >> start & 1) == 0))
        return -EINVAL;
    if (count_of(section, profile) >= profile->max || (start >= 0 && !starts_at(profile, (unsigned)start, taken)))
        return -ENOSPC;
    if (start < 0)
        start = choose_start(profile, taken);
    seat = start < 0 ? start : free_gi_seat(section);
    if (seat < 0)
        return seat;
    take_time();
    forget_statistics(INSTANCE_ENTRY(section, seat));
    write_gi(section, (unsigned)seat, profile, (unsigned)start);
    mig_nodes();
    mig_event_gi(MIG_GI_CREATED, section, (unsigned)seat, 0);
    return seat;
}

int sim_gi_create(int gpu, const struct sim_mig_profile *profile, int start, struct sim_gi *gi) {
    int seat;

    if (!in_range(gpu))
        return -EINVAL;
    mig_lock();
    seat = create_gi(section_of(gpu), profile, start);
    if (seat >= 0)
        fill_gi(section_of(gpu), (unsigned)seat, gi);
    mig_unlock();
    return seat < 0 ? seat : 0;
}

unsigned sim_gi_capacity(int gpu, const struct sim_mig_profile *profile) {
    unsigned taken, room, count = 0;

    if (!in_range(gpu))
        return 0;
    taken = occupied_slots(mig_state(section_of(gpu)));
    room = profile->max - count_of(section_of(gpu), profile);
    /* Places of one profile share no slot. */
    for (unsigned start = 0; start < 8 && count < room; start++)
        count += starts_at(profile, start, taken);
    return count;
}

static unsigned occupied_slices(const struct state_mig *mig, unsigned gi_seat) {
    unsigned slices = 0;

    for (unsigned seat = 0; seat < SIM_MIG_SEATS; seat++) {
        const struct state_ci *c = &mig->ci[seat];

        if (atomic_load(&c->live) != 0 && atomic_load(&c->gi) == gi_seat)
            slices |= ((1u << atomic_load(&c->size)) - 1) << atomic_load(&c->start);
    }
    return slices;
}

static unsigned free_ci_id(const struct state_mig *mig, unsigned gi_seat) {
    unsigned taken = 0, id = 0;

    for (unsigned seat = 0; seat < SIM_MIG_SEATS; seat++) {
        if (atomic_load(&mig->ci[seat].live) != 0 && atomic_load(&mig->ci[seat].gi) == gi_seat)
            taken |= 1u << atomic_load(&mig->ci[seat].id);
    }
    while ((taken >> id & 1) != 0)
        id++;
    return id;
}

static int free_ci_seat(const struct state_mig *mig) {
    for (unsigned seat = 0; seat < SIM_MIG_SEATS; seat++) {
        if (atomic_load(&mig->ci[seat].live) == 0)
            return (int)seat;
    }
    return -ENOSPC;
}

/* -1 for any start. Returns one that is free, or -errno. */
static int choose_slice(const struct state_mig *mig, unsigned gi_seat, unsigned slices, unsigned starts, int start) {
    unsigned taken = occupied_slices(mig, gi_seat), wanted = (1u << slices) - 1;

    if (start >= 0 && (start > 7 || (starts >> start & 1) == 0))
        return -EINVAL;
    for (int at = start < 0 ? 0 : start; at < (start < 0 ? 8 : start + 1); at++) {
        if ((starts >> at & 1) != 0 && (wanted << at & taken) == 0)
            return at;
    }
    return -ENOSPC;
}

static int create_ci(int section, unsigned gi_seat, unsigned slices, int start) {
    struct state_mig *mig = mig_state(section);
    unsigned starts;
    struct state_ci *c;
    int seat;

    if (atomic_load(&mig->gi[gi_seat].live) == 0)
        return -ENOENT;
    starts = sim_ci_starts(slices, mig_gi_profile(section, gi_seat)->slices);
    if (starts == 0)
        return -ENOTSUP;
    start = choose_slice(mig, gi_seat, slices, starts, start);
    seat = start < 0 ? start : free_ci_seat(mig);
    if (seat < 0)
        return seat;
    take_time();
    c = &mig->ci[seat];
    atomic_store(&c->id, free_ci_id(mig, gi_seat));
    atomic_store(&c->gi, gi_seat);
    atomic_store(&c->gi_generation, LIVE_GENERATION(atomic_load(&mig->gi[gi_seat].live)));
    atomic_store(&c->start, (uint64_t)start);
    atomic_store(&c->size, slices);
    atomic_store(&c->section, 0);
    atomic_store(&c->created_ns, sim_now_ns());
    atomic_store(&c->live, LIVE(mig_generation(sim_local->state)));
    mig_nodes();
    mig_event_ci(MIG_CI_CREATED, section, (unsigned)seat);
    return seat;
}

int sim_ci_create(int gpu, unsigned gi_seat, unsigned slices, int start, struct sim_ci *ci) {
    int seat;

    if (!in_range(gpu) || gi_seat >= SIM_MIG_SEATS)
        return -EINVAL;
    mig_lock();
    seat = create_ci(section_of(gpu), gi_seat, slices, start);
    if (seat >= 0)
        sim_ci_get(gpu, (unsigned)seat, ci);
    mig_unlock();
    return seat < 0 ? seat : 0;
}

unsigned sim_ci_capacity(int gpu, unsigned gi_seat, unsigned slices) {
    struct sim_gi gi;
    unsigned taken, starts, count = 0;

    if (sim_gi_get(gpu, gi_seat, &gi) != 0)
        return 0;
    taken = occupied_slices(mig_state(section_of(gpu)), gi_seat);
    starts = sim_ci_starts(slices, gi.profile->slices);
    for (unsigned start = 0; start < 8; start++)
        count += (starts >> start & 1) != 0 && (((1u << slices) - 1) << start & taken) == 0;
    return count;
}

/* ---- Destroying ---- */

/* Whether a process that is bound to the compute instance, or an object of one, holds memory. Under the lock. */
static bool ci_in_use(int section, const struct state_ci *c) {
    struct state *st = sim_local->state;
    int entry = INSTANCE_ENTRY(section, atomic_load(&c->gi));

    sim_reap();
    sums_help(entry, atomic_load(&st->gpus[entry].total));
    for (unsigned slot = 0; slot < atomic_load(&st->slots_used); slot++) {
        const struct state_slot *s = &st->slots[slot];

        if ((uint32_t)atomic_load(&s->owner) != 0 &&
            atomic_load(&s->instance) == LIVE_GENERATION(atomic_load(&c->live)) &&
            COMMITTED_UNITS(atomic_load(&s->gpus[entry].committed)) != 0)
            return true;
    }
    return false;
}

static int destroy_ci(int section, unsigned seat) {
    struct state_ci *c = &mig_state(section)->ci[seat];
    uint64_t live = atomic_load(&c->live);

    if (live == 0)
        return -ENOENT;
    atomic_store(&c->live, live | LIVE_CLOSING);
    if (ci_in_use(section, c)) {
        atomic_store(&c->live, live);
        return -EBUSY;
    }
    mig_event_ci(MIG_CI_DESTROYED, section, seat);
    atomic_store(&c->live, 0);
    mig_nodes();
    return 0;
}

int sim_ci_destroy(int gpu, unsigned seat) {
    int ret;

    if (!in_range(gpu) || seat >= SIM_MIG_SEATS)
        return -EINVAL;
    mig_lock();
    take_time();
    ret = destroy_ci(section_of(gpu), seat);
    mig_unlock();
    return ret;
}

static uint64_t peak_of(int entry) {
    struct state *st = sim_local->state;
    uint64_t most = 0;

    for (unsigned group = 0; group < atomic_load(&st->groups_used); group++) {
        uint64_t peak = atomic_load(&st->groups[group].gpus[entry].peak);

        most = peak > most ? peak : most;
    }
    return most << UNIT_SHIFT;
}

static void remove_gi(int section, unsigned seat) {
    mig_event_gi(MIG_GI_DESTROYED, section, seat, peak_of(INSTANCE_ENTRY(section, seat)));
    atomic_store(&mig_state(section)->gi[seat].live, 0);
}

static int destroy_gi(int section, unsigned seat) {
    struct state_mig *mig = mig_state(section);

    if (atomic_load(&mig->gi[seat].live) == 0)
        return -ENOENT;
    sim_reap();
    if (occupied_slices(mig, seat) != 0 || entry_used(INSTANCE_ENTRY(section, seat)) != 0)
        return -EBUSY;
    remove_gi(section, seat);
    mig_nodes();
    return 0;
}

int sim_gi_destroy(int gpu, unsigned seat) {
    int ret;

    if (!in_range(gpu) || seat >= SIM_MIG_SEATS)
        return -EINVAL;
    mig_lock();
    take_time();
    ret = destroy_gi(section_of(gpu), seat);
    mig_unlock();
    return ret;
}

/* Without asking whether anybody uses them. */
static void remove_instances(int section) {
    struct state_mig *mig = mig_state(section);

    for (unsigned seat = 0; seat < SIM_MIG_SEATS; seat++) {
        if (atomic_load(&mig->ci[seat].live) != 0) {
            mig_event_ci(MIG_CI_DESTROYED, section, seat);
            atomic_store(&mig->ci[seat].live, 0);
        }
    }
    for (unsigned seat = 0; seat < SIM_MIG_SEATS; seat++) {
        if (atomic_load(&mig->gi[seat].live) != 0)
            remove_gi(section, seat);
    }
}

/* ---- Modes ---- */

/* Whether others than this process manage GPUs. */
static bool others_manage(void) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = MANAGER_LOCK_BYTE, .l_len = 1};

    return fcntl(sim_local->low, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static bool opened_by_others(int section) {
    struct state *st = sim_local->state;

    for (unsigned slot = 0; slot < atomic_load(&st->slots_used); slot++) {
        const struct state_slot *s = &st->slots[slot];

        if ((uint32_t)atomic_load(&s->owner) != 0 && !(sim_local->joined && slot == sim_local->slot) &&
            (atomic_load(&s->opened) >> section & 1) != 0)
            return true;
    }
    return false;
}

static bool memory_in_use(int section) {
    for (int entry = WHOLE_ENTRY(section); entry < WHOLE_ENTRY(section) + ENTRIES; entry++) {
        if (entry_used(entry) != 0)
            return true;
    }
    return false;
}

/* Whether the GPU is idle enough to be bound anew. Looks for the dead first. */
static bool can_reset(int section) {
    sim_reap();
    return !others_manage() && !opened_by_others(section) && !memory_in_use(section);
}

static void bind_anew(int section) {
    atomic_fetch_add(&mig_state(section)->binding, 1);
}

static int set_mode(int section, bool on, bool needs_reset) {
    struct state_mig *mig = mig_state(section);
    bool idle = on || occupied_slots(mig) == 0;

    if ((atomic_load(&mig->mode) != 0) == on) {
        atomic_store(&mig->pending, on);
        return 0;
    }
    if (idle && needs_reset) {
        idle = can_reset(section);
    } else if (idle) {
        /* Who takes memory of the whole GPU meanwhile finds it in MIG mode, and waits to see whether it stays so. */
        atomic_store(&mig->mode, 1);
        sim_reap();
        idle = !memory_in_use(section);
        atomic_store(&mig->mode, !on);
    }
    if (!idle) {
        if (needs_reset)
            atomic_store(&mig->pending, on);
        return -EBUSY;
    }
    atomic_store(&mig->mode, on);
    atomic_store(&mig->pending, on);
    if (needs_reset)
        bind_anew(section);
    mig_event_mode(MIG_MODE, section, on);
    return 0;
}

int sim_mig_set_mode(int gpu, bool on) {
    int ret;

    if (!in_range(gpu))
        return -EINVAL;
    mig_lock();
    take_time();
    ret = set_mode(section_of(gpu), on, sim_mig_needs_reset(gpu));
    mig_unlock();
    return ret;
}

/* What a GPU forgets when it is reset or its driver is loaded anew. */
static void start_afresh(int section, bool mode) {
    struct state_mig *mig = mig_state(section);

    remove_instances(section);
    if ((atomic_load(&mig->mode) != 0) != mode)
        mig_event_mode(MIG_MODE, section, mode);
    atomic_store(&mig->mode, mode);
    atomic_store(&mig->pending, mode);
    bind_anew(section);
    limits_drop(section);
}

int sim_mig_reset(int gpu) {
    int section, ret = -EBUSY;

    if (!in_range(gpu))
        return -EINVAL;
    section = section_of(gpu);
    mig_lock();
    if (can_reset(section)) {
        start_afresh(section, atomic_load(&mig_state(section)->pending) != 0);
        mig_nodes();
        ret = 0;
    }
    mig_unlock();
    return ret;
}

static bool any_memory_in_use(void) {
    sim_reap();
    for (int section = 0; section < sim_local->topology.gpu_count; section++) {
        if (memory_in_use(section))
            return true;
    }
    return false;
}

int sim_mig_reload(bool force) {
    int ret = -EBUSY;

    mig_lock();
    if (force || !any_memory_in_use()) {
        for (int section = 0; section < sim_local->topology.gpu_count; section++) {
            bool keeps = whole(section)->cc_major <= RESET_UP_TO_MAJOR;

            start_afresh(section, keeps && atomic_load(&mig_state(section)->pending) != 0);
        }
        mig_event_mode(MIG_RELOADED, 0, false);
        mig_nodes();
        ret = 0;
    }
    mig_unlock();
    return ret;
}

/* ---- What is there at the start ---- */

static const struct sim_mig_profile *plain_profile(const struct sim_mig_model *model, unsigned slices) {
    for (unsigned i = 0; i < model->count; i++) {
        if (model->profiles[i].slices == slices)
            return &model->profiles[i];
    }
    return &model->profiles[0];
}

/* Where the ID says, if it can be there. */
static unsigned seed_start(const struct state_mig *mig, const struct sim_mig_model *model,
                           const struct sim_mig_profile *profile, unsigned id) {
    unsigned first = model->slots / profile->size - 1, taken = occupied_slots(mig);
    unsigned start = id >= first ? (id - first) * profile->size : 8;
    int any;

    if (start < 8 && starts_at(profile, start, taken))
        return start;
    any = choose_start(profile, taken);
    return any < 0 ? 0 : (unsigned)any;
}

static void seed(struct state *st, const struct sim_topology *t, int section, unsigned seat) {
    const struct sim_gpu *gpu = &t->gpus[section];
    const struct sim_mig_model *model = mig_model_of(&t->gpus[gpu->mig_of]);
    const struct sim_mig_profile *profile = plain_profile(model, gpu->mig_slices);
    struct state_mig *mig = &st->mig[gpu->mig_of];

    atomic_store(&mig->gi[seat].start, seed_start(mig, model, profile, gpu->gi));
    atomic_store(&mig->gi[seat].size, profile->size);
    atomic_store(&mig->gi[seat].id, gpu->gi);
    atomic_store(&mig->gi[seat].profile, (uint64_t)(profile - model->profiles));
    atomic_store(&mig->gi[seat].memory_bytes, gpu->memory_bytes);
    atomic_store(&mig->gi[seat].section, (uint64_t)section + 1);
    atomic_store(&mig->gi[seat].created_ns, sim_now_ns());
    atomic_store(&mig->gi[seat].live, LIVE(mig_generation(st)));
    atomic_store(&mig->ci[seat].id, gpu->ci);
    atomic_store(&mig->ci[seat].gi, seat);
    atomic_store(&mig->ci[seat].gi_generation, LIVE_GENERATION(atomic_load(&mig->gi[seat].live)));
    atomic_store(&mig->ci[seat].start, 0);
    atomic_store(&mig->ci[seat].size, profile->slices);
    atomic_store(&mig->ci[seat].section, (uint64_t)section + 1);
    atomic_store(&mig->ci[seat].created_ns, sim_now_ns());
    atomic_store(&mig->ci[seat].live, LIVE(mig_generation(st)));
}

void mig_seed(struct state *st, const struct sim_topology *t) {
    unsigned seats[SIM_MAX_GPUS] = {0};

    for (int section = 0; section < t->gpu_count; section++) {
        atomic_store(&st->mig[section].mode, t->gpus[section].mig_at_start);
        atomic_store(&st->mig[section].pending, t->gpus[section].mig_at_start);
    }
    for (int section = t->gpu_count; section < t->section_count; section++) {
        int of = t->gpus[section].mig_of;

        if (seats[of] < SIM_MIG_SEATS)
            seed(st, t, section, seats[of]++);
    }
}
