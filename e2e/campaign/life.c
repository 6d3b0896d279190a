/* What processes and threads do with themselves: threads, fork, vfork, exec. */
#include <errno.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "random.h"
#include "worker.h"

void life_thread(unsigned desk) {
    uint32_t free = 0;
    pthread_t thread;
    pthread_attr_t attributes;
    if (desk >= DESKS || !atomic_compare_exchange_strong(&my_seat->desks[desk].taken, &free, 1))
        return;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &attributes, worker_thread, (void *)(uintptr_t)desk) != 0)
        atomic_store(&my_seat->desks[desk].taken, 0);
    pthread_attr_destroy(&attributes);
}

static unsigned find_seat(uint32_t ticket) {
    for (unsigned i = 0; i < SEATS; i++) {
        uint32_t free = SEAT_FREE;
        if (atomic_compare_exchange_strong(&board->seats[i].state, &free, ticket))
            return i;
    }
    return SEATS;
}

/* Until a child has ended and let go of everything; that nobody waits for children makes no difference, see wait(2). */
static void see_end_of(pid_t pid) {
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

/* A few children that only come and go: some by vfork. */
static void short_lives(uint64_t random) {
    extern char **environ;
    static char program[] = "/bin/true", name[] = "true";
    char *const arguments[] = {name, NULL};
    pid_t pids[4] = {0};
    if (random % 3 == 0) {
        posix_spawn(&pids[0], program, NULL, NULL, arguments, environ);
    } else if (random % 3 == 1) {
        for (unsigned i = 0; i < 4; i++)
            if ((pids[i] = fork()) == 0)
                _exit(0);
    } else {
        pid_t pid = vfork();
        if (pid == 0)
            _exit(0);
        pids[0] = pid;
    }
    for (unsigned i = 0; i < 4; i++)
        see_end_of(pids[i]);
}

/* See family_take. */
static void short_lives_if_nobody_dies(uint64_t random) {
    unsigned seat = (unsigned)(my_seat - board->seats);
    if (!family_take(board, seat))
        return;
    pthread_rwlock_wrlock(&copies_lock);
    short_lives(random);
    pthread_rwlock_unlock(&copies_lock);
    family_give(board, seat);
}

static void prepare(struct seat *place, uint32_t family, uint32_t cut_off, uint64_t seed) {
    atomic_store(&place->cut_off, cut_off);
    atomic_store(&place->initialised, 0);
    atomic_store(&place->ending, 0);
    seat_lives(place, family);
    atomic_store(&place->stops, 0);
    place->seed = seed;
}

void life_fork(struct desk *desk, unsigned seat) {
    uint32_t ticket = seat != SEATS ? atomic_load(&board->seats[seat].state) : 0;
    uint64_t seed = desk->seed;
    if (seat == SEATS) {
        if (seed % 3 == 0) {
            short_lives_if_nobody_dies(seed / 3);
            return;
        }
        ticket = seat_ticket(board, (unsigned)(my_seat - board->seats));
        if ((seat = find_seat(ticket)) == SEATS)
            return;
    }
    struct seat *place = &board->seats[seat];
    uint32_t cut_off = atomic_load(&my_seat->cut_off), initialised = atomic_load(&my_seat->initialised);
    cut_off = cut_off > initialised ? cut_off : initialised;
    atomic_store(&place->pid, 0);
    uint32_t variant = my_seat->devices_variant, family = atomic_load(&my_seat->family);
    pthread_rwlock_wrlock(&copies_lock);
    pid_t pid = fork();
    if (pid != 0)
        pthread_rwlock_unlock(&copies_lock);
    if (pid == 0) {
        worker_forked(seat, ticket);
        prepare(place, family, cut_off, seed);
        place->devices_variant = variant;
        worker_seated();
        worker_serve(0);
    }
    if (pid < 0)
        atomic_compare_exchange_strong(&place->state, &ticket, SEAT_FREE);
}

void life_exec(void) {
    char seat[16];
    snprintf(seat, sizeof seat, "%u", (unsigned)(my_seat - board->seats));
    execl("/proc/self/exe", "campaign", "worker", seat, (char *)NULL);
    _exit(127);
}
