#include "memory_limits.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "cgroup.h"
#include "state_local.h"

/* ---- Finding ---- */

static unsigned find_id(uint64_t id) {
    struct state *st = sim_local->state;
    unsigned used = (unsigned)atomic_load(&st->limits_used);

    for (unsigned i = 0; i < used; i++) {
        if (atomic_load_explicit(&st->limit_ids[i], memory_order_relaxed) == id)
            return i + 1;
    }
    return 0;
}

static bool has(unsigned limit, int section) {
    return limit != 0 && atomic_load(&sim_local->state->limits[limit - 1].gpus[section].present) != 0;
}

/* The first of the cgroups that has a limit of the GPU. */
static unsigned first_of(const uint64_t *ids, uint64_t count, int section) {
    for (uint64_t i = 0; i < count; i++) {
        unsigned limit = find_id(ids[i]);

        if (has(limit, section))
            return limit;
    }
    return 0;
}

/* Memory of MIG instances is not charged. Who has no descriptor left is where it was. */
unsigned limits_find(int index) {
    int section = index / ENTRIES;
    struct cgroup_marks marks;

    if (!limits_active() || index % ENTRIES != 0)
        return 0;
    if (cgroup_marked(&marks) == 0)
        atomic_store(&sim_local->last_limit[section], first_of(marks.ids, marks.count, section));
    return atomic_load(&sim_local->last_limit[section]);
}

bool limits_exceeded(unsigned limit, int index, int64_t units) {
    struct state_limit *l;
    int section = index / ENTRIES;

    if (!has(limit, section))
        return false;
    l = &sim_local->state->limits[limit - 1];
    return (SUM_UNITS(atomic_load(&l->gpus[section].used)) + (uint64_t)units) << UNIT_SHIFT >
           atomic_load(&l->gpus[section].hard);
}

static struct sim_memory_limit read_limit(unsigned limit, int section) {
    struct state_limit *l = &sim_local->state->limits[limit - 1];

    sums_help(WHOLE_ENTRY(section), atomic_load(&sim_local->state->gpus[WHOLE_ENTRY(section)].total));
    return (struct sim_memory_limit){.soft = atomic_load(&l->gpus[section].soft),
                                     .hard = atomic_load(&l->gpus[section].hard),
                                     .used = SUM_UNITS(atomic_load(&l->gpus[section].used)) << UNIT_SHIFT};
}

bool sim_memory_limits(void) {
    return sim_topology() != NULL && sim_topology()->memory_limits;
}

static bool is_whole(int gpu) {
    return in_range(gpu) && gpu < sim_local->visible_count;
}

bool sim_memory_limit_shown(int gpu, struct sim_memory_limit *limit) {
    struct cgroup_marks marks;
    unsigned found;

    if (!is_whole(gpu) || !limits_active() || cgroup_marked(&marks) != 0 || marks.count == 0 ||
        marks.ids[0] != marks.own)
        return false;
    found = first_of(marks.ids, 1, section_of(gpu));
    if (found == 0)
        return false;
    *limit = read_limit(found, section_of(gpu));
    return limit->hard < sim_gpu(gpu)->memory_bytes;
}

int sim_memory_limit_get(int gpu, int fd, struct sim_memory_limit *limit) {
    uint64_t ids[CGROUP_DEPTH], id;
    unsigned found;
    int ret, count;

    if (!is_whole(gpu) || !sim_memory_limits())
        return -EOPNOTSUPP;
    ret = cgroup_id(fd, &id);
    if (ret != 0)
        return ret;
    sim_reap();
    count = cgroup_path_ids(fd, ids);
    found = first_of(ids, (uint64_t)count, section_of(gpu));
    if (found != 0) {
        *limit = read_limit(found, section_of(gpu));
        return 0;
    }
    for (int section = 0; section < sim_local->topology.gpu_count; section++) {
        if (first_of(ids, (uint64_t)count, section) != 0)
            return -ENOENT;
    }
    return -EOPNOTSUPP;
}

/* ---- Setting. Under the state's lock of limits. ---- */

static void limits_lock(void) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LIMITS_LOCK_BYTE, .l_len = 1};

    pthread_mutex_lock(&sim_local->limits_mutex);
    while (fcntl(sim_local->low, F_OFD_SETLKW, &lock) != 0 && errno == EINTR) {
    }
}

static void limits_unlock(void) {
    slot_lock(sim_local->low, LIMITS_LOCK_BYTE, F_UNLCK);
    pthread_mutex_unlock(&sim_local->limits_mutex);
}

/* Whether nothing of the cgroup is left: it is gone, and so is what was charged to it. */
static bool is_free(unsigned limit, int fd) {
    struct state *st = sim_local->state;
    uint64_t id = atomic_load(&st->limit_ids[limit - 1]);

    for (int section = 0; section < sim_local->topology.gpu_count; section++) {
        sums_help(WHOLE_ENTRY(section), atomic_load(&st->gpus[WHOLE_ENTRY(section)].total));
        if (SUM_UNITS(atomic_load(&st->limits[limit - 1].gpus[section].used)) != 0)
            return false;
    }
    return !cgroup_exists(fd, id);
}

static unsigned free_place(int fd) {
    struct state *st = sim_local->state;
    unsigned used = (unsigned)atomic_load(&st->limits_used);

    if (used < LIMITS)
        return used + 1;
    for (unsigned limit = 1; limit <= LIMITS; limit++) {
        if (is_free(limit, fd))
            return limit;
    }
    return 0;
}

/* A place for the cgroup, without limits yet. */
static int new_place(int fd, uint64_t id, const char *path, unsigned *limit) {
    struct state *st = sim_local->state;
    struct state_limit *l;
    int ret;

    *limit = free_place(fd);
    if (*limit == 0)
        return -ENOSPC;
    /* Without the controller the limit stands, is shown, and never holds. */
    ret = cgroup_found(fd) ? cgroup_mark(fd, id) : 0;
    if (ret != 0)
        return ret;
    l = &st->limits[*limit - 1];
    for (int section = 0; section < SIM_MAX_GPUS; section++) {
        atomic_store(&l->gpus[section].present, 0);
        atomic_store(&l->gpus[section].peak, 0);
    }
    strncpy(l->path, path, sizeof(l->path) - 1);
    atomic_store(&st->limit_ids[*limit - 1], id);
    if (*limit > atomic_load(&st->limits_used))
        atomic_store(&st->limits_used, *limit);
    return 0;
}

/* A word for `total` that says no more than `w` and is another one. */
static uint64_t bumped(uint64_t w) {
    return SUM(atomic_fetch_add(&sim_local->state->limits_bumps, 1) & 0xfff, 0, SUM_UNITS(w));
}

/* No check against the old limit is good any more when this returns 0. */
static int set_hard(unsigned limit, int section, uint64_t hard) {
    struct state_limit *l = &sim_local->state->limits[limit - 1];
    word *total = &sim_local->state->gpus[WHOLE_ENTRY(section)].total;
    uint64_t old = atomic_load(&l->gpus[section].hard);

    for (;;) {
        uint64_t w = atomic_load(total);

        sums_help(WHOLE_ENTRY(section), w);
        if (has(limit, section) && SUM_UNITS(atomic_load(&l->gpus[section].used)) << UNIT_SHIFT > hard) {
            atomic_store(&l->gpus[section].hard, old);
            return -EBUSY;
        }
        atomic_store(&l->gpus[section].hard, hard);
        if (atomic_compare_exchange_strong(total, &w, bumped(w)))
            return 0;
    }
}

static int set_locked(int section, int fd, const char *path, uint64_t soft, uint64_t hard) {
    struct state *st = sim_local->state;
    unsigned limit;
    uint64_t id;
    int ret = cgroup_id(fd, &id);

    if (ret != 0)
        return ret;
    limit = find_id(id);
    if (limit == 0)
        ret = new_place(fd, id, path, &limit);
    if (ret == 0)
        ret = set_hard(limit, section, hard);
    if (ret != 0)
        return ret;
    atomic_store(&st->limits[limit - 1].gpus[section].soft, soft);
    atomic_store(&st->limits[limit - 1].gpus[section].present, 1);
    atomic_store(&st->limits_active, 1);
    return 0;
}

int sim_memory_limit_set(int gpu, int fd, const char *path, uint64_t soft, uint64_t hard) {
    int ret;

    if (!is_whole(gpu) || !sim_memory_limits())
        return -EOPNOTSUPP;
    sim_reap();
    limits_lock();
    ret = set_locked(section_of(gpu), fd, path, soft, hard);
    limits_unlock();
    return ret;
}

void limits_drop(int section) {
    struct state *st = sim_local->state;

    limits_lock();
    for (unsigned i = 0; i < atomic_load(&st->limits_used); i++)
        atomic_store(&st->limits[i].gpus[section].present, 0);
    limits_unlock();
}

/* ---- In the record ---- */

/* By its name, which is the same cgroup as long as the ID is. */
static bool is_removed(unsigned limit) {
    struct stat info;

    return stat(sim_local->state->limits[limit - 1].path, &info) != 0 ||
           info.st_ino != atomic_load(&sim_local->state->limit_ids[limit - 1]);
}

static int each_gpu(unsigned limit, int (*fn)(const struct sim_memory_limit_info *, void *), void *arg) {
    struct state_limit *l = &sim_local->state->limits[limit - 1];
    bool removed = is_removed(limit);
    int ret = 0;

    for (int gpu = 0; ret == 0 && gpu < sim_local->visible_count; gpu++) {
        int section = section_of(gpu);
        struct sim_memory_limit now = read_limit(limit, section);
        struct sim_memory_limit_info info = {.cgroup = atomic_load(&sim_local->state->limit_ids[limit - 1]),
                                             .gpu = gpu,
                                             .removed = removed,
                                             .soft = now.soft,
                                             .hard = now.hard,
                                             .used = now.used,
                                             .peak = atomic_load(&l->gpus[section].peak) << UNIT_SHIFT};

        if (now.used == 0 && (removed || !has(limit, section)))
            continue;
        memcpy(info.path, l->path, sizeof(info.path));
        ret = fn(&info, arg);
    }
    return ret;
}

int sim_each_memory_limit(int (*fn)(const struct sim_memory_limit_info *, void *), void *arg) {
    int ret = 0;

    if (sim_local == NULL || sim_local->state == NULL)
        return 0;
    sim_reap();
    for (unsigned limit = 1; ret == 0 && limit <= atomic_load(&sim_local->state->limits_used); limit++)
        ret = each_gpu(limit, fn, arg);
    return ret;
}
