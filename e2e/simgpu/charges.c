/*
 * Taking and giving back memory by its owners, and which memory of this process is charged to which limit.
 *
 * Nothing of this is needed when the process dies: the parts of its slot say what goes back to which cgroup.
 */
#include <errno.h>
#include <sys/mman.h>

#include "state_local.h"

/* Most processes have one cgroup, and an owner one entry. */
#define OWNER_BUCKETS 65536u
#define OWNER_ENTRIES (1u << 21)

struct owner {
    const void *name;
    uint32_t next; /* of the bucket, or of those that are free; 1 + place, 0: none */
    uint32_t units;
    uint16_t index, limit;
};

struct owners {
    uint32_t buckets[OWNER_BUCKETS];
    uint32_t unused, fresh; /* the first that was used before, and how many ever were */
    struct owner list[OWNER_ENTRIES];
};

static uint32_t *bucket_of(const void *name) {
    return &sim_local->owners->buckets[((uintptr_t)name * 0x9e3779b97f4a7c15u) >> 48 & (OWNER_BUCKETS - 1)];
}

/* The place of an owner's newest entry for the GPU in its bucket's list, or that list's end. */
static uint32_t *find(const void *name, int index) {
    struct owner *list = sim_local->owners->list;
    uint32_t *at = bucket_of(name);

    while (*at != 0 && (list[*at - 1].name != name || list[*at - 1].index != index))
        at = &list[*at - 1].next;
    return at;
}

static bool have_owners(void) {
    void *p;

    if (sim_local->owners != NULL)
        return true;
    p = mmap(NULL, sizeof(struct owners), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p != MAP_FAILED)
        sim_local->owners = p;
    return p != MAP_FAILED;
}

static struct owner *add_entry(const void *name) {
    struct owners *o = sim_local->owners;
    uint32_t *bucket = bucket_of(name), entry = o->unused;

    if (entry != 0)
        o->unused = o->list[entry - 1].next;
    else if (o->fresh < OWNER_ENTRIES)
        entry = ++o->fresh;
    else
        return NULL;
    o->list[entry - 1] = (struct owner){.name = name, .next = *bucket};
    *bucket = entry;
    return &o->list[entry - 1];
}

static void remove_entry(uint32_t *at) {
    struct owners *o = sim_local->owners;
    uint32_t entry = *at;

    *at = o->list[entry - 1].next;
    o->list[entry - 1].next = o->unused;
    o->unused = entry;
}

bool owners_add(const void *name, int index, unsigned limit, int64_t units) {
    struct owner *owner = NULL;

    pthread_mutex_lock(&sim_local->owners_mutex);
    if (have_owners()) {
        uint32_t newest = *find(name, index);

        if (newest != 0 && sim_local->owners->list[newest - 1].limit == limit)
            owner = &sim_local->owners->list[newest - 1];
        else
            owner = add_entry(name);
    }
    if (owner != NULL) {
        owner->index = (uint16_t)index;
        owner->limit = (uint16_t)limit;
        owner->units += (uint32_t)units;
    }
    pthread_mutex_unlock(&sim_local->owners_mutex);
    return owner != NULL;
}

int64_t owners_take(const void *name, int index, int64_t most, unsigned *limit) {
    int64_t taken = most;

    *limit = 0;
    if (name == NULL || sim_local->owners == NULL)
        return most;
    pthread_mutex_lock(&sim_local->owners_mutex);
    uint32_t *at = find(name, index);

    if (*at != 0) {
        struct owner *owner = &sim_local->owners->list[*at - 1];

        *limit = owner->limit;
        taken = owner->units < most ? owner->units : most;
        owner->units -= (uint32_t)taken;
        if (owner->units == 0)
            remove_entry(at);
    }
    pthread_mutex_unlock(&sim_local->owners_mutex);
    return taken;
}

void owners_close(void) {
    if (sim_local->owners != NULL)
        munmap(sim_local->owners, sizeof(*sim_local->owners));
    sim_local->owners = NULL;
}

bool sim_has_charges(void) {
    return sim_local != NULL && sim_local->owners != NULL;
}

void sim_pass(const void *name, const void *to) {
    if (!sim_has_charges())
        return;
    for (int index = 0; index < entry_count(); index += ENTRIES) {
        unsigned limit = 0;

        for (int64_t units = owners_take(name, index, INT32_MAX, &limit); limit != 0;
             units = owners_take(name, index, INT32_MAX, &limit))
            owners_add(to, index, limit, units);
    }
}

/* ---- Taking and giving back ---- */

static int reserve(int index, int64_t units, const void *owner) {
    unsigned limit = owner != NULL && limits_active() ? limits_find(index) : 0;
    int ret = sums_change(sim_local->slot, index, units, limit);

    if (ret == 0 && limit != 0 && !owners_add(owner, index, limit, units)) {
        sums_change(sim_local->slot, index, -units, limit);
        ret = -ENOMEM;
    }
    return ret;
}

int sim_reserve(int gpu, uint64_t bytes, const void *owner) {
    int index = entry_of(gpu), ret;

    if (index < 0 || !sim_local->joined)
        return -EINVAL;
    if (bytes > entry_bytes(index))
        return -ENOMEM;
    if (bytes == 0)
        return 0;
    if (!limit_charge(index, to_units(bytes)))
        return -ENOMEM;
    ret = reserve(index, to_units(bytes), owner);
    if (ret != 0)
        limit_charge(index, -to_units(bytes));
    return ret;
}

void sim_release(int gpu, uint64_t bytes, const void *owner) {
    int index = entry_of(gpu);

    if (index < 0 || !sim_local->joined || bytes == 0)
        return;
    for (int64_t left = to_units(bytes), units; left > 0; left -= units) {
        unsigned limit;

        units = owners_take(owner, index, left, &limit);
        sums_change(sim_local->slot, index, -units, limit);
    }
    limit_charge(index, -to_units(bytes));
}
