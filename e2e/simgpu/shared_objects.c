/* Objects that processes share: their slots, and who holds them. Why it works: state_layout.h. */
#include "shared_objects.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "processes.h"
#include "shared_local.h"

/* ---- Holding. Under shared_mutex. ---- */

static bool lock_slot(unsigned slot, int type) {
    if (!slot_lock(sim_local->low, LOCK_BYTE(slot, 0), type))
        return false;
    if (slot_lock(sim_local->high, LOCK_BYTE(slot, 1), type))
        return true;
    if (type == F_RDLCK)
        slot_lock(sim_local->low, LOCK_BYTE(slot, 0), F_UNLCK);
    return false;
}

static void unlock_slot(unsigned slot) {
    slot_lock(sim_local->low, LOCK_BYTE(slot, 0), F_UNLCK);
    slot_lock(sim_local->high, LOCK_BYTE(slot, 1), F_UNLCK);
}

static bool is_object(unsigned slot, uint64_t object, enum sim_shared_kind kind) {
    struct state_slot *s = &sim_local->state->slots[slot];
    uint64_t owner = atomic_load(&s->owner), actual = atomic_load(&s->kind);

    return (uint32_t)owner != 0 && owner >> 32 == NAME_GENERATION(object) && actual != 0 &&
           (kind == SIM_SHARED_ANY || actual == kind);
}

/* Counts this process in, unless the object is dying. */
static bool attach(unsigned slot, uint64_t object) {
    word *attached = &sim_local->state->slots[slot].attach;
    uint64_t before = atomic_load(attached);

    do {
        if (ATTACH_GENERATION(before) != NAME_GENERATION(object) || (before & ATTACH_DYING) != 0)
            return false;
    } while (!atomic_compare_exchange_weak(attached, &before,
                                           (before & ~(ATTACH_DYING - 1)) | ((before + 1) & (ATTACH_DYING - 1))));
    return true;
}

static int open_locked(uint64_t object, enum sim_shared_kind kind) {
    unsigned slot = shared_slot(object);

    if (atomic_load(&sim_local->holds[slot]) != 0) {
        if (!is_object(slot, object, kind))
            return -ENOENT;
        atomic_fetch_add(&sim_local->holds[slot], 1);
        return 0;
    }
    if (!is_object(slot, object, kind))
        return -ENOENT;
    /* What nobody holds any more is gone, whether or not somebody has noticed. */
    if (!slot_alive(slot) || !lock_slot(slot, F_RDLCK)) {
        sums_reap_slot(slot);
        return -ENOENT;
    }
    atomic_store(&sim_local->holds[slot], 1);
    if (attach(slot, object) && is_object(slot, object, kind))
        return 0;
    atomic_store(&sim_local->holds[slot], 0);
    unlock_slot(slot);
    return -ENOENT;
}

static void empty(unsigned slot) {
    struct state_slot *s = &sim_local->state->slots[slot];

    for (int i = 0; i < entry_count(); i++)
        sums_empty_slot(slot, i, true);
    sums_retire_slot(slot, atomic_load(&s->owner));
}

/* Counts units of an object towards the limit of this process, which made it. */
static bool charge(unsigned slot, int index, int64_t units) {
    if (!limit_charge(index, units))
        return false;
    atomic_fetch_add(&sim_local->shared_units[slot], units);
    return true;
}

/* Ends this process's hold. If nobody else has one, nobody can get one any more either while it is locked for writing. */
static void let_go(unsigned slot) {
    charge(slot, (int)atomic_load(&sim_local->state->slots[slot].gpu), -atomic_load(&sim_local->shared_units[slot]));
    if (lock_slot(slot, F_WRLCK)) {
        shared_content_clear(slot);
        empty(slot);
    }
    atomic_store(&sim_local->holds[slot], 0);
    unlock_slot(slot);
    sums_reap_slot(slot);
}

void shared_close(void) {
    pthread_mutex_lock(&sim_local->shared_mutex);
    for (unsigned slot = 0; slot < SIM_MAX_PROCESSES; slot++) {
        if (atomic_load(&sim_local->holds[slot]) != 0)
            let_go(slot);
    }
    pthread_mutex_unlock(&sim_local->shared_mutex);
}

/* ---- For the driver ---- */

static bool ready(void) {
    return sim_local != NULL && sim_local->state != NULL && sim_local->joined;
}

static bool held(uint64_t object) {
    return ready() && object != 0 && atomic_load(&sim_local->holds[shared_slot(object)]) != 0;
}

/* Under shared_mutex, and with the slot locked for writing. */
static uint64_t make(unsigned slot, enum sim_shared_kind kind, int index, uint64_t size) {
    struct state_slot *s = &sim_local->state->slots[slot];
    uint64_t generation;

    atomic_store(&sim_local->holds[slot], 1);
    empty(slot);
    shared_content_clear(slot);
    generation = (atomic_load(&s->owner) >> 32) + 1;
    atomic_store(&s->kind, kind);
    atomic_store(&s->group, sim_local->group);
    atomic_store(&s->pid_namespace, processes_namespace());
    atomic_store(&s->start_ns, sim_now_ns());
    atomic_store(&s->gpu, (uint64_t)index);
    atomic_store(&s->opened, 0);
    atomic_store(&s->instance, sim_local->bound_generation);
    atomic_store(&s->size, size);
    for (int i = 0; i < SIM_SHARED_WORDS; i++)
        atomic_store(&s->words[i], 0);
    atomic_store(&s->attach, ATTACH(generation));
    atomic_store(&s->owner, generation << 32 | (uint32_t)getpid());
    lock_slot(slot, F_RDLCK);
    return NAME(generation, slot);
}

int sim_shared_new(enum sim_shared_kind kind, int gpu, uint64_t size, uint64_t *object) {
    int slot, index = entry_of(gpu);

    if (!ready() || index < 0)
        return -EINVAL;
    pthread_mutex_lock(&sim_local->shared_mutex);
    slot = slot_find();
    if (slot >= 0)
        *object = make((unsigned)slot, kind, index, size);
    pthread_mutex_unlock(&sim_local->shared_mutex);
    return slot < 0 ? slot : 0;
}

int sim_shared_reserve(uint64_t object, uint64_t bytes) {
    unsigned slot = shared_slot(object);
    int index, ret;

    if (!held(object))
        return -EINVAL;
    index = (int)atomic_load(&sim_local->state->slots[slot].gpu);
    if (bytes > entry_bytes(index))
        return -ENOMEM;
    if (bytes == 0)
        return 0;
    if (!charge(slot, index, to_units(bytes)))
        return -ENOMEM;
    ret = sums_change(slot, index, to_units(bytes), limits_find(index));
    if (ret != 0)
        charge(slot, index, -to_units(bytes));
    return ret;
}

void sim_shared_release(uint64_t object, uint64_t bytes) {
    unsigned slot = shared_slot(object);
    int index;

    if (!held(object) || bytes == 0)
        return;
    index = (int)atomic_load(&sim_local->state->slots[slot].gpu);
    for (int64_t left = to_units(bytes), units; left > 0; left -= units) {
        unsigned limit;

        units = sums_charged(slot, index, left, &limit);
        sums_change(slot, index, -units, limit);
    }
    charge(slot, index, -to_units(bytes));
}

int sim_shared_adopt(uint64_t object, uint64_t bytes, const void *owner) {
    unsigned slot = shared_slot(object);
    int index, ret = 0;

    if (!held(object))
        return -EINVAL;
    index = (int)atomic_load(&sim_local->state->slots[slot].gpu);
    for (int64_t left = to_units(bytes), units; ret == 0 && left > 0; left -= units) {
        unsigned limit;

        units = owners_take(owner, index, left, &limit);
        ret = sums_move(slot, index, units, limit);
    }
    /* It has been counted already. */
    if (ret == 0)
        atomic_fetch_add(&sim_local->shared_units[slot], to_units(bytes));
    return ret;
}

int sim_shared_open(uint64_t object, enum sim_shared_kind kind) {
    int ret;

    if (!ready() || object == 0)
        return -ENOENT;
    pthread_mutex_lock(&sim_local->shared_mutex);
    ret = open_locked(object, kind);
    pthread_mutex_unlock(&sim_local->shared_mutex);
    return ret;
}

int sim_shared_export_also(int fd, uint64_t object) {
    unsigned slot = shared_slot(object);

    if (!held(object))
        return -EINVAL;
    return slot_lock(fd, LOCK_BYTE(slot, 0), F_RDLCK) && slot_lock(fd, LOCK_BYTE(slot, 1), F_RDLCK) ? 0 : -errno;
}

/* The description's own position tells which object it stands for. */
int sim_shared_export(uint64_t object) {
    char path[64];
    int fd;

    if (!held(object))
        return -EINVAL;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", sim_local->low);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (lseek(fd, (off_t)object, SEEK_SET) < 0 || sim_shared_export_also(fd, object) != 0) {
        int error = errno;

        close(fd);
        return -error;
    }
    return fd;
}

int sim_shared_import(int fd, enum sim_shared_kind kind, uint64_t *object) {
    struct stat ours, theirs;
    off_t position;

    if (!ready() || fstat(fd, &theirs) != 0 || fstat(sim_local->low, &ours) != 0 || ours.st_dev != theirs.st_dev ||
        ours.st_ino != theirs.st_ino)
        return -EBADF;
    position = lseek(fd, 0, SEEK_CUR);
    if (position <= 0)
        return -EBADF;
    *object = (uint64_t)position;
    return sim_shared_open(*object, kind);
}

void sim_shared_drop(uint64_t object) {
    unsigned slot = shared_slot(object);

    if (!held(object))
        return;
    pthread_mutex_lock(&sim_local->shared_mutex);
    if (atomic_load(&sim_local->holds[slot]) == 1)
        let_go(slot);
    else
        atomic_fetch_sub(&sim_local->holds[slot], 1);
    pthread_mutex_unlock(&sim_local->shared_mutex);
}

struct sim_shared_about sim_shared_about(uint64_t object) {
    struct sim_shared_about about = {.gpu = -1};
    struct state_slot *s;

    if (!held(object))
        return about;
    s = &sim_local->state->slots[shared_slot(object)];
    about.kind = (enum sim_shared_kind)atomic_load(&s->kind);
    about.size = atomic_load(&s->size);
    about.words = s->words;
    for (int gpu = 0; about.gpu < 0 && gpu < sim_index_count(); gpu++) {
        /* A process that is bound to a MIG device knows no other one of the same GPU instance. */
        if (entry_of(gpu) == (int)atomic_load(&s->gpu) && (sim_local->bound == 0 || sim_local->bound == gpu + 1))
            about.gpu = gpu;
    }
    return about;
}

uint64_t sim_shared_process(void) {
    return ready() ? NAME(atomic_load(&sim_local->state->slots[sim_local->slot].owner) >> 32, sim_local->slot) : 0;
}

bool sim_shared_process_alive(uint64_t process) {
    uint64_t owner;

    if (!ready() || process == 0)
        return false;
    owner = atomic_load(&sim_local->state->slots[shared_slot(process)].owner);
    return (uint32_t)owner != 0 && owner >> 32 == NAME_GENERATION(process) && slot_alive(shared_slot(process));
}
