/* MIG devices as GPUs: what they look like, and a process that is bound to one. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mig_local.h"
#include "uuid5.h"

/* Capabilities of a GPU: one of each possible GPU instance, followed by those of its compute instances. */
enum { FIRST_CAP = 3, GIS_PER_GPU = 15, CAPS_PER_GI = 9, CAPS_PER_GPU = GIS_PER_GPU * CAPS_PER_GI };

/*
 * A description never changes and is never freed, since its readers have no lock; a seat's are in a list. It is in
 * memory that a forked child has, too.
 */
struct description {
    struct description *older;
    uint64_t generation;
    struct sim_gpu gpu;
};
static struct description *_Atomic descriptions[SIM_MAX_GPUS][SIM_MIG_SEATS];

unsigned mig_gi_cap(int section, unsigned seat) {
    struct state_gi *g = &mig_state(section)->gi[seat];
    uint64_t described = atomic_load(&g->section);

    if (described != 0)
        return sim_local->topology.gpus[described - 1].gi_cap;
    return FIRST_CAP + (unsigned)sim_local->topology.gpus[section].minor * CAPS_PER_GPU +
           (unsigned)atomic_load(&g->id) * CAPS_PER_GI;
}

unsigned mig_ci_cap(int section, unsigned seat) {
    struct state_ci *c = &mig_state(section)->ci[seat];
    uint64_t described = atomic_load(&c->section);

    if (described != 0)
        return sim_local->topology.gpus[described - 1].ci_cap;
    return mig_gi_cap(section, (unsigned)atomic_load(&c->gi)) + 1 + (unsigned)atomic_load(&c->id);
}

static void write_uuid(struct sim_gpu *gpu, const struct sim_gpu *whole) {
    uint8_t *u = gpu->uuid_bytes;
    char name[32];

    snprintf(name, sizeof(name), "%u/%u", gpu->gi, gpu->ci);
    uuid5(whole->uuid_bytes, name, u);
    snprintf(gpu->uuid, sizeof(gpu->uuid), "MIG-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

/* Part of what a context costs is for each multiprocessor. In whole pieces of the driver's. */
static uint64_t context_bytes(const struct sim_gpu *whole, int sm_count) {
    uint64_t bytes = whole->context_bytes / 4;

    bytes += (whole->context_bytes - bytes) * (uint64_t)sm_count / (uint64_t)whole->sm_count;
    return bytes / SIM_GRANULARITY * SIM_GRANULARITY;
}

/* One that was made after the driver was loaded. */
static void describe(int section, const struct state_ci *c, struct sim_gpu *gpu) {
    const struct sim_gpu *whole = &sim_local->topology.gpus[section];
    unsigned gi_seat = (unsigned)atomic_load(&c->gi);
    struct state_gi *g = &mig_state(section)->gi[gi_seat];
    const struct sim_mig_profile *profile = mig_gi_profile(section, gi_seat);
    unsigned slices = (unsigned)atomic_load(&c->size);
    char part[8] = "";

    *gpu = *whole;
    gpu->mig_at_start = false;
    gpu->is_mig = true;
    gpu->mig_of = section;
    gpu->gi = (unsigned)atomic_load(&g->id);
    gpu->ci = (unsigned)atomic_load(&c->id);
    gpu->mig_slices = profile->slices;
    gpu->ci_slices = slices;
    gpu->memory_bytes = atomic_load(&g->memory_bytes);
    gpu->reserved_bytes = mig_reserved(section, profile);
    gpu->sm_count = (int)(slices == profile->slices ? profile->sms : slices * mig_model_of(whole)->slice_sms);
    gpu->context_bytes = context_bytes(whole, gpu->sm_count);
    if (slices != profile->slices)
        snprintf(part, sizeof(part), "%uc.", slices);
    snprintf(gpu->name, sizeof(gpu->name), "%.60s MIG %s%s", whole->name, part, profile->name);
    write_uuid(gpu, whole);
}

/* NULL if the instance went away meanwhile. */
static struct description *new_description(int section, unsigned seat, uint64_t generation) {
    const struct state_ci *c = &mig_state(section)->ci[seat];
    uint64_t described = atomic_load(&c->section);
    struct description *d = calloc(1, sizeof(*d));

    if (d == NULL)
        return NULL;
    d->generation = generation;
    if (described != 0)
        d->gpu = sim_local->topology.gpus[described - 1];
    else
        describe(section, c, &d->gpu);
    d->gpu.gi_cap = mig_gi_cap(section, (unsigned)atomic_load(&c->gi));
    d->gpu.ci_cap = mig_ci_cap(section, seat);
    if (LIVE_GENERATION(atomic_load(&c->live)) == generation)
        return d;
    free(d);
    return NULL;
}

static const struct description *description_of(int section, unsigned seat, uint64_t generation) {
    struct description *d = atomic_load(&descriptions[section][seat]), *made;

    for (struct description *old = d; old != NULL; old = old->older) {
        if (old->generation == generation)
            return old;
    }
    made = new_description(section, seat, generation);
    if (made == NULL)
        return NULL;
    made->older = d;
    /* Another thread may have made the same one: two are as good as one. */
    while (!atomic_compare_exchange_weak(&descriptions[section][seat], &made->older, made)) {
    }
    return made;
}

const struct sim_gpu *mig_gpu(int section, unsigned seat) {
    uint64_t live = atomic_load(&mig_state(section)->ci[seat].live);
    const struct description *d = live == 0 ? NULL : description_of(section, seat, LIVE_GENERATION(live));

    if (d == NULL)
        return NULL;
    if (sim_local->all || atomic_load(&sim_local->usable[section][seat]) == d->generation)
        return &d->gpu;
    if (!can_use(&d->gpu))
        return NULL;
    atomic_store(&sim_local->usable[section][seat], d->generation);
    return &d->gpu;
}

const struct sim_gpu *sim_gpu_or_last(int gpu) {
    const struct sim_gpu *found = sim_gpu(gpu);

    return found != NULL || !in_range(gpu) ? found : &atomic_load(&descriptions[section_of(gpu)][seat_of(gpu)])->gpu;
}

/* ---- A process and its GPUs ---- */

void sim_opens(const int *gpus, int count) {
    uint64_t sections = 0;

    if (sim_local == NULL || sim_local->state == NULL || !sim_local->joined)
        return;
    for (int i = 0; i < count; i++) {
        if (in_range(gpus[i]))
            sections |= (uint64_t)1 << section_of(gpus[i]);
    }
    atomic_fetch_or(&sim_local->state->slots[sim_local->slot].opened, sections);
}

int sim_bind(int gpu) {
    const struct sim_gpu *found = sim_gpu(gpu);
    int entry = entry_of(gpu);
    uint64_t live;

    if (found == NULL || !found->is_mig || entry < 0 || !sim_local->joined)
        return -ENODEV;
    live = atomic_load(&ci_state(gpu)->live);
    if (live == 0 || found != sim_gpu(gpu))
        return -ENODEV;
    sim_local->bound_entry = entry;
    sim_local->bound_gpu = found;
    sim_local->bound_generation = LIVE_GENERATION(live);
    atomic_store(&sim_local->state->slots[sim_local->slot].instance, LIVE_GENERATION(live));
    atomic_store_explicit(&sim_local->bound, gpu + 1, memory_order_release);
    return 0;
}

static bool bound_gone(void) {
    const struct state_ci *c = ci_state(sim_local->bound - 1);

    return LIVE_GENERATION(atomic_load_explicit(&c->live, memory_order_acquire)) != sim_local->bound_generation;
}

bool mig_bound_gone(int gpu) {
    return atomic_load_explicit(&sim_local->bound, memory_order_relaxed) == gpu + 1 && bound_gone();
}

/* Whether it is undecided if somebody else's change of instances or modes happens. */
static bool undecided(int entry) {
    if (entry % ENTRIES == 0)
        return atomic_load(&mig_state(entry / ENTRIES)->mode) != 0;
    return (atomic_load(&ci_state(sim_local->bound - 1)->live) & LIVE_CLOSING) != 0;
}

bool mig_entry_gone(int entry) {
    if (entry % ENTRIES == 0)
        return false;
    return sim_local->bound == 0 || entry != sim_local->bound_entry || bound_gone();
}

bool mig_may_take(int entry) {
    if (mig_entry_gone(entry))
        return false;
    if (undecided(entry)) {
        mig_lock();
        mig_unlock();
    }
    return entry % ENTRIES == 0 ? atomic_load(&mig_state(entry / ENTRIES)->mode) == 0 : !bound_gone();
}

void sim_manages(void) {
    if (sim_local != NULL && sim_local->state != NULL)
        slot_lock(sim_local->low, MANAGER_LOCK_BYTE, F_RDLCK);
}
