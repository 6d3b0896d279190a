#include "offers.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "worker.h"

void offer_withdraw(unsigned slot) {
    struct offer *offer = &my_seat->offers[slot];
    if (atomic_load(&offer->sequence) % 2 != 0)
        atomic_fetch_add(&offer->sequence, 1);
    atomic_store(&offer->busy, 0);
}

unsigned offer_slot(uint64_t *random) {
    unsigned start = (unsigned)random_below(random, OFFERS);
    for (unsigned n = 0; n < OFFERS; n++) {
        struct offer *offer = &my_seat->offers[(start + n) % OFFERS];
        uint32_t idle = 0;
        if (atomic_compare_exchange_strong(&offer->busy, &idle, 1))
            return (start + n) % OFFERS;
    }
    return OFFERS;
}

void offer_publish(unsigned slot, struct offered what) {
    struct offer *offer = &my_seat->offers[slot];
    what.pid = getpid();
    what.claim = atomic_load(&my_seat->claim);
    offer->what = what;
    atomic_fetch_add(&offer->sequence, 1);
}

bool offer_unchanged(const struct taken *taken) {
    return atomic_load(&taken->offer->sequence) == taken->sequence;
}

static bool take_descriptor(struct taken *taken) {
    taken->process = (int)syscall(SYS_pidfd_open, taken->what.pid, 0);
    if (taken->process < 0)
        return false;
    if (taken->what.descriptor >= 0)
        taken->descriptor = (int)syscall(SYS_pidfd_getfd, taken->process, taken->what.descriptor, 0);
    /* Only what still is offered is what was offered. */
    return (taken->what.descriptor < 0 || taken->descriptor >= 0) && offer_unchanged(taken);
}

void offer_done(struct taken *taken) {
    if (taken->descriptor >= 0)
        close(taken->descriptor);
    if (taken->process >= 0)
        close(taken->process);
    atomic_store(&taken->desk->copy_of, 0);
    pthread_rwlock_unlock(&copies_lock);
}

/* See seat_may_die, and copies_lock. No seat: the conductor's, which does not die. */
static bool may_copy(const struct taken *taken, const struct seat *seat) {
    pthread_rwlock_rdlock(&copies_lock);
    if (seat == NULL)
        return true;
    atomic_store(&taken->desk->copy_of, (uint32_t)(seat - board->seats) + 1);
    return !atomic_load(&seat->dying);
}

static bool look_at(struct call *call, const struct seat *seat, const struct offer *offer, unsigned kinds,
                    struct taken *taken) {
    *taken = (struct taken){
        .desk = call->desk, .offer = offer, .sequence = atomic_load(&offer->sequence), .process = -1, .descriptor = -1};
    if (taken->sequence % 2 == 0)
        return false;
    taken->what = offer->what;
    if (!offer_unchanged(taken) || (kinds >> taken->what.kind & 1) == 0)
        return false;
    /* Not every process sees every GPU. */
    bool seen = false;
    for (int device = 0; device < device_count(); device++)
        seen = seen || gpu_of_device(device) == taken->what.gpu;
    if (!seen)
        return false;
    if (may_copy(taken, seat) && take_descriptor(taken)) {
        call->gpu = taken->what.gpu;
        return true;
    }
    offer_done(taken);
    return false;
}

bool offer_take(struct call *call, unsigned kinds, struct taken *taken) {
    unsigned start = (unsigned)random_below(&call->random, SEATS * OFFERS);
    if (random_once_in(&call->random, 4) && look_at(call, NULL, &board->heirlooms[start % HEIRLOOMS], kinds, taken))
        return true;
    for (unsigned n = 0; n < SEATS * OFFERS; n++) {
        unsigned i = (start + n) % (SEATS * OFFERS);
        const struct seat *seat = &board->seats[i / OFFERS];
        if (atomic_load(&seat->state) == SEAT_ALIVE && look_at(call, seat, &seat->offers[i % OFFERS], kinds, taken))
            return true;
    }
    return false;
}

bool offer_orphaned(const struct taken *taken) {
    struct pollfd poller = {.fd = taken->process, .events = POLLIN};
    return poll(&poller, 1, 0) != 0;
}
