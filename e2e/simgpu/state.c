/* Opening the shared state, and joining it as a process that takes memory. */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "processes.h"
#include "state_local.h"
#include "topology.h"

/* One description's descriptor lies above where programs have theirs; why, says state_layout.h. The kernel's table of
 * descriptors grows with the highest, hence the bound. */
#define HIGHEST_DESCRIPTOR 4096

struct sim_local *sim_local;
static pthread_once_t local_once = PTHREAD_ONCE_INIT;

static void make_local(void) {
    void *p = mmap(NULL, sizeof(*sim_local), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return;
    if (madvise(p, sizeof(*sim_local), MADV_WIPEONFORK) != 0) {
        munmap(p, sizeof(*sim_local));
        return;
    }
    sim_local = p;
}

static const char *setting(const char *name, const char *fallback) {
    const char *value = getenv(name);

    return value != NULL && *value != '\0' ? value : fallback;
}

uint64_t sim_now_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

__attribute__((format(printf, 2, 3))) static int failed(int error, const char *format, ...) {
    va_list args;

    va_start(args, format);
    vsnprintf(sim_local->error, sizeof(sim_local->error), format, args);
    va_end(args);
    return -error;
}

/* Writes a new state file beside path and gives it the name; with `replace`, also where there is one already. */
static int create_state(const char *path, bool replace) {
    struct state *st;
    char temporary[4096];
    int fd, ret = 0;

    snprintf(temporary, sizeof(temporary), "%s.%d.%llu", path, getpid(), (unsigned long long)sim_now_ns());
    fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return failed(errno, "create the state %s: %s", temporary, strerror(errno));
    /* Containers use it under any user ID, whatever the umask of who made it. */
    if (fchmod(fd, 0666) != 0 || ftruncate(fd, sizeof(*st)) != 0) {
        ret = failed(errno, "create the state %s: %s", temporary, strerror(errno));
        goto out;
    }
    st = mmap(NULL, sizeof(*st), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (st == MAP_FAILED) {
        ret = failed(errno, "map the state %s: %s", temporary, strerror(errno));
        goto out;
    }
    memcpy(st->magic, STATE_MAGIC, sizeof(STATE_MAGIC));
    st->version = STATE_VERSION;
    st->size = sizeof(*st);
    st->gpu_count = (uint32_t)sim_local->topology.section_count;
    for (int i = 0; i < sim_local->topology.section_count; i++)
        memcpy(st->uuid[i], sim_local->topology.gpus[i].uuid, sizeof(st->uuid[i]));
    mig_seed(st, &sim_local->topology);
    munmap(st, sizeof(*st));
    if (replace ? rename(temporary, path) != 0 : link(temporary, path) != 0 && errno != EEXIST)
        ret = failed(errno, "create the state %s: %s", path, strerror(errno));
out:
    unlink(temporary);
    close(fd);
    return ret;
}

static int check_state(const char *path, const struct state *st) {
    const struct sim_topology *t = &sim_local->topology;

    if (memcmp(st->magic, STATE_MAGIC, sizeof(STATE_MAGIC)) != 0 || st->version != STATE_VERSION ||
        st->size != sizeof(*st))
        return failed(EPROTO, "%s is no state of this simulator's version: make a new one with `simgpu init`", path);
    for (int i = 0; i < SIM_MAX_GPUS; i++) {
        if (strcmp(st->uuid[i], i < t->section_count ? t->gpus[i].uuid : "") != 0)
            return failed(ESTALE,
                          "%s is the state of other GPUs than the topology's: make a new one with `simgpu init`", path);
    }
    return 0;
}

/* Moves a descriptor as high as can be. */
static int move_high(int fd) {
    struct rlimit limit;
    int high = -1;

    if (fd >= 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        int end = limit.rlim_cur < HIGHEST_DESCRIPTOR ? (int)limit.rlim_cur : HIGHEST_DESCRIPTOR;

        for (int lowest = end - 1; high < 0 && lowest > fd; lowest -= 16)
            high = fcntl(fd, F_DUPFD_CLOEXEC, lowest);
    }
    if (high < 0)
        return fd;
    close(fd);
    return high;
}

/* Keeps the second description until the process's end. A child that closes its descriptors lets go of both. */
static bool anchor(void) {
    sim_local->anchor = mmap(NULL, 1, PROT_NONE, MAP_SHARED, sim_local->high, 0);
    return sim_local->anchor != MAP_FAILED && madvise(sim_local->anchor, 1, MADV_DONTFORK) == 0;
}

static int map_state(const char *path) {
    struct stat info;
    int ret = 0;

    sim_local->low = open(path, O_RDWR | O_CLOEXEC);
    if (sim_local->low < 0 && errno == ENOENT) {
        ret = create_state(path, false);
        if (ret != 0)
            return ret;
        sim_local->low = open(path, O_RDWR | O_CLOEXEC);
    }
    if (sim_local->low < 0)
        return failed(errno, "open the state %s: %s", path, strerror(errno));
    sim_local->high = move_high(open(path, O_RDWR | O_CLOEXEC));
    if (sim_local->high < 0 || fstat(sim_local->low, &info) != 0)
        ret = failed(errno, "open the state %s: %s", path, strerror(errno));
    else if ((uint64_t)info.st_size < sizeof(struct state))
        ret = failed(EPROTO, "%s is no state of this simulator's version: make a new one with `simgpu init`", path);
    if (ret == 0) {
        sim_local->state = mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, sim_local->low, 0);
        if (sim_local->state == MAP_FAILED || !anchor())
            ret = failed(errno, "map the state %s: %s", path, strerror(errno));
        else
            ret = check_state(path, sim_local->state);
        if (ret != 0 && sim_local->state != MAP_FAILED)
            munmap(sim_local->state, sizeof(struct state));
    }
    if (ret != 0) {
        sim_local->state = NULL;
        close(sim_local->low);
        if (sim_local->high >= 0)
            close(sim_local->high);
    }
    return ret;
}

static bool can_open(const char *directory, const char *name) {
    char path[4096];
    int fd;

    snprintf(path, sizeof(path), "%s/%s", directory, name);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

bool can_use(const struct sim_gpu *gpu) {
    const char *directory = sim_local->dev;
    char node[32], gi[64], ci[64];

    snprintf(node, sizeof(node), "nvidia%d", gpu->minor);
    snprintf(gi, sizeof(gi), "nvidia-caps/nvidia-cap%u", gpu->gi_cap);
    snprintf(ci, sizeof(ci), "nvidia-caps/nvidia-cap%u", gpu->ci_cap);
    return can_open(directory, node) && (!gpu->is_mig || (can_open(directory, gi) && can_open(directory, ci)));
}

static int find_visible(bool all) {
    snprintf(sim_local->dev, sizeof(sim_local->dev), "%s", setting("SIMGPU_DEV", "/dev"));
    sim_local->all = all;
    sim_local->visible_count = 0;
    memset((void *)sim_local->usable, 0, sizeof(sim_local->usable));
    atomic_store(&sim_local->bound, 0);
    if (!all && !can_open(sim_local->dev, "nvidiactl"))
        return failed(ENODEV, "%s/nvidiactl cannot be opened: no driver here", sim_local->dev);
    for (int i = 0; i < sim_local->topology.gpu_count; i++) {
        if (all || can_use(&sim_local->topology.gpus[i]))
            sim_local->visible[sim_local->visible_count++] = i;
    }
    return 0;
}

/* Who begins now does not find the GPUs that are not on the bus. */
static void drop_removed(void) {
    int left = 0;

    for (int i = 0; i < sim_local->visible_count; i++) {
        int index = sim_local->visible[i];

        if (atomic_load(&sim_local->state->gpu_health[index].removed) == 0)
            sim_local->visible[left++] = index;
    }
    sim_local->visible_count = left;
}

static int open_local(bool all) {
    int ret = 0;

    pthread_once(&local_once, make_local);
    if (sim_local == NULL)
        return -ENOMEM;
    pthread_mutex_lock(&sim_local->mutex);
    if (sim_local->opens == 0) {
        sim_local->error[0] = '\0';
        ret = topology_read(setting("SIMGPU_TOPOLOGY", "/run/simgpu/topology"), &sim_local->topology, sim_local->error,
                            sizeof(sim_local->error));
        if (ret == 0)
            ret = find_visible(all);
        if (ret == 0)
            ret = map_state(setting("SIMGPU_STATE", "/run/simgpu/state"));
        if (ret == 0 && !all)
            drop_removed();
    }
    if (ret == 0)
        sim_local->opens++;
    pthread_mutex_unlock(&sim_local->mutex);
    return ret;
}

int sim_open(void) {
    return open_local(false);
}

int sim_open_all(void) {
    return open_local(true);
}

void sim_close(void) {
    if (sim_local == NULL)
        return;
    pthread_mutex_lock(&sim_local->mutex);
    if (sim_local->opens > 0 && --sim_local->opens == 0) {
        if (sim_local->joined) {
            shared_close();
            for (int i = 0; i < entry_count(); i++)
                sums_empty_slot(sim_local->slot, i, true);
            sums_retire_slot(sim_local->slot, atomic_load(&sim_local->state->slots[sim_local->slot].owner));
            sim_local->joined = false;
        }
        memset(sim_local->uses, 0, sizeof(sim_local->uses));
        memset((void *)sim_local->limits, 0, sizeof(sim_local->limits));
        memset((void *)sim_local->charged, 0, sizeof(sim_local->charged));
        memset((void *)sim_local->last_limit, 0, sizeof(sim_local->last_limit));
        owners_close();
        munmap(sim_local->state, sizeof(*sim_local->state));
        munmap(sim_local->anchor, 1);
        sim_local->state = NULL;
        close(sim_local->low);
        close(sim_local->high);
    }
    pthread_mutex_unlock(&sim_local->mutex);
}

int sim_state_create(void) {
    int ret;

    pthread_once(&local_once, make_local);
    if (sim_local == NULL)
        return -ENOMEM;
    pthread_mutex_lock(&sim_local->mutex);
    ret = topology_read(setting("SIMGPU_TOPOLOGY", "/run/simgpu/topology"), &sim_local->topology, sim_local->error,
                        sizeof(sim_local->error));
    if (ret == 0)
        ret = create_state(setting("SIMGPU_STATE", "/run/simgpu/state"), true);
    pthread_mutex_unlock(&sim_local->mutex);
    return ret;
}

const char *sim_error(void) {
    return sim_local != NULL ? sim_local->error : "out of memory";
}

int sim_gpu_count(void) {
    return sim_local != NULL && sim_local->state != NULL ? sim_local->visible_count : 0;
}

int sim_index_count(void) {
    return sim_gpu_count() * ENTRIES;
}

const struct sim_gpu *sim_gpu(int gpu) {
    if (!in_range(gpu))
        return NULL;
    if (gpu < sim_local->visible_count)
        return &sim_local->topology.gpus[sim_local->visible[gpu]];
    if (atomic_load_explicit(&sim_local->bound, memory_order_acquire) == gpu + 1)
        return sim_local->bound_gpu;
    return mig_gpu(section_of(gpu), seat_of(gpu));
}

const struct sim_topology *sim_topology(void) {
    return sim_local != NULL && sim_local->state != NULL ? &sim_local->topology : NULL;
}

/* ---- Joining ---- */

bool slot_lock(int fd, off_t byte, int type) {
    struct flock lock = {.l_type = (short)type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};

    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

static bool take_slot(unsigned slot) {
    if ((uint32_t)atomic_load(&sim_local->state->slots[slot].owner) != 0)
        return false;
    if (!slot_lock(sim_local->low, LOCK_BYTE(slot, 0), F_WRLCK))
        return false;
    if (slot_lock(sim_local->high, LOCK_BYTE(slot, 1), F_WRLCK)) {
        if ((uint32_t)atomic_load(&sim_local->state->slots[slot].owner) == 0)
            return true;
        slot_lock(sim_local->high, LOCK_BYTE(slot, 1), F_UNLCK);
    }
    slot_lock(sim_local->low, LOCK_BYTE(slot, 0), F_UNLCK);
    return false;
}

int slot_find(void) {
    struct state *st = sim_local->state;

    for (int attempt = 0; attempt < 2; attempt++) {
        for (unsigned slot = 0; slot < SIM_MAX_PROCESSES; slot++) {
            if (take_slot(slot)) {
                uint64_t used = atomic_load(&st->slots_used);

                while (used < slot + 1 && !atomic_compare_exchange_weak(&st->slots_used, &used, slot + 1)) {
                }
                return (int)slot;
            }
        }
        sim_reap();
    }
    return failed(ENOSPC, "%d processes and shared objects use the simulated GPUs already", SIM_MAX_PROCESSES), -ENOSPC;
}

static int find_group(void) {
    struct state *st = sim_local->state;
    const char *label = getenv("SIMGPU_LABEL");
    char key[SIM_GROUP_KEY_SIZE] = "";
    uint64_t hash = 0xcbf29ce484222325u;

    if (label != NULL && *label != '\0')
        snprintf(key, sizeof(key), "%s", label);
    else
        snprintf(key, sizeof(key), "pidns:%llu:%llu", (unsigned long long)processes_namespace(),
                 (unsigned long long)processes_namespace_start());
    for (const char *c = key; *c != '\0'; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    hash |= 1;
    for (unsigned i = 0; i < SIM_MAX_GROUPS; i++) {
        uint64_t found = 0;

        if (atomic_compare_exchange_strong(&st->groups[i].hash, &found, hash) || found == hash) {
            uint64_t used = atomic_load(&st->groups_used);

            /* Everybody with this hash writes the same text, so it does not matter who is first or dies over it. */
            memcpy(st->groups[i].key, key, sizeof(key));
            while (used < i + 1 && !atomic_compare_exchange_weak(&st->groups_used, &used, i + 1)) {
            }
            return (int)i;
        }
    }
    return failed(ENOSPC, "there are %d groups already: make a new state with `simgpu init`", SIM_MAX_GROUPS), -ENOSPC;
}

static enum sim_graphics graphics(void) {
    const char *text = getenv("SIMGPU_GRAPHICS");

    if (text == NULL || *text == '\0')
        return SIM_GRAPHICS_NONE;
    return strcmp(text, "only") == 0 ? SIM_GRAPHICS_ONLY : SIM_GRAPHICS_TOO;
}

static int join_locked(void) {
    struct state *st = sim_local->state;
    int group = find_group();
    int slot = group < 0 ? group : slot_find();
    uint64_t generation;

    if (slot < 0)
        return slot;
    for (int i = 0; i < entry_count(); i++)
        sums_empty_slot((unsigned)slot, i, true);
    sums_retire_slot((unsigned)slot, atomic_load(&st->slots[slot].owner));
    generation = (atomic_load(&st->slots[slot].owner) >> 32) + 1;
    atomic_store(&st->slots[slot].kind, 0);
    atomic_store(&st->slots[slot].opened, 0);
    atomic_store(&st->slots[slot].instance, 0);
    atomic_store(&st->slots[slot].mps, 0);
    atomic_store(&st->slots[slot].graphics, graphics());
    atomic_store(&st->slots[slot].group, (uint64_t)group);
    atomic_store(&st->slots[slot].pid_namespace, processes_namespace());
    atomic_store(&st->slots[slot].start_ns, sim_now_ns());
    atomic_store(&st->slots[slot].owner, generation << 32 | (uint32_t)getpid());
    sim_local->slot = (unsigned)slot;
    sim_local->group = (unsigned)group;
    sim_local->joined = true;
    return 0;
}

int sim_join(void) {
    int ret = 0;

    if (sim_local == NULL || sim_local->state == NULL)
        return -EINVAL;
    pthread_mutex_lock(&sim_local->mutex);
    if (!sim_local->joined)
        ret = join_locked();
    pthread_mutex_unlock(&sim_local->mutex);
    return ret;
}
