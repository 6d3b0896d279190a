#include "sharing.h"

#include <errno.h>
#include <fcntl.h>

#include "shared_local.h"

/* ---- Compute modes ---- */

uint64_t sim_compute_mode(int gpu) {
    uint64_t mode;

    if (!in_range(gpu) || gpu >= sim_local->visible_count)
        return SIM_COMPUTE_DEFAULT;
    return sim_setting(gpu, SIM_COMPUTE_MODE, SIM_COMPUTE_DEFAULT, &mode) ? mode : SIM_COMPUTE_DEFAULT;
}

/*
 * Everybody who has a context on a GPU holds a read lock on its byte. Who wants to be the only one takes a write lock first,
 * which nobody gets beside another, and turns it into a read lock.
 */
static bool lock_user(int section, bool alone) {
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = USER_LOCK_BYTE(section), .l_len = 1};

    if (alone && !slot_lock(sim_local->low, USER_LOCK_BYTE(section), F_WRLCK))
        return false;
    return fcntl(sim_local->low, F_OFD_SETLKW, &lock) == 0;
}

int sim_use(int gpu) {
    uint64_t mode = sim_compute_mode(gpu);
    int ret = 0;

    if (!in_range(gpu))
        return -EINVAL;
    if (mode == SIM_COMPUTE_PROHIBITED)
        return -EPERM;
    if (gpu >= sim_local->visible_count)
        return 0;
    pthread_mutex_lock(&sim_local->mutex);
    if (sim_local->uses[gpu] == 0 && !lock_user(section_of(gpu), mode == SIM_COMPUTE_EXCLUSIVE_PROCESS))
        ret = -EBUSY;
    else
        sim_local->uses[gpu]++;
    pthread_mutex_unlock(&sim_local->mutex);
    return ret;
}

void sim_unuse(int gpu) {
    if (!in_range(gpu) || gpu >= sim_local->visible_count)
        return;
    pthread_mutex_lock(&sim_local->mutex);
    if (sim_local->uses[gpu] > 0 && --sim_local->uses[gpu] == 0)
        slot_lock(sim_local->low, USER_LOCK_BYTE(section_of(gpu)), F_UNLCK);
    pthread_mutex_unlock(&sim_local->mutex);
}

/* ---- MPS ---- */

static bool joined(void) {
    return sim_local != NULL && sim_local->state != NULL && sim_local->joined;
}

uint64_t sim_mps_serve(void) {
    if (!joined())
        return 0;
    atomic_store(&sim_local->state->slots[sim_local->slot].mps, MPS_ROLE_SERVER);
    return sim_shared_process();
}

void sim_mps_join(uint64_t server) {
    if (joined())
        atomic_store(&sim_local->state->slots[sim_local->slot].mps, server);
}

/* ---- The limit of a process ---- */

void sim_limit(int gpu, uint64_t bytes) {
    int index = entry_of(gpu);

    if (index >= 0)
        atomic_store(&sim_local->limits[index], bytes);
}

uint64_t sim_limit_of(int gpu) {
    int index = entry_of(gpu);

    return index >= 0 ? atomic_load(&sim_local->limits[index]) : 0;
}

uint64_t sim_charged(int gpu) {
    int index = entry_of(gpu);

    return index >= 0 ? atomic_load(&sim_local->charged[index]) << UNIT_SHIFT : 0;
}

bool limit_charge(int index, int64_t units) {
    uint64_t limit = atomic_load(&sim_local->limits[index]), old = atomic_load(&sim_local->charged[index]);

    do {
        if (limit != 0 && units > 0 && old + (uint64_t)units > limit >> UNIT_SHIFT)
            return false;
    } while (!atomic_compare_exchange_weak(&sim_local->charged[index], &old, old + (uint64_t)units));
    return true;
}

void sim_count_busy(uint64_t process, int gpu, uint64_t ns) {
    int index = entry_of(gpu);

    if (index >= 0 && sim_shared_process_alive(process))
        busy_count(shared_slot(process), index, ns);
}
