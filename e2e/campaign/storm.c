/*
 * Storm: many processes and threads at once, each doing what it likes, while the conductor kills, stops and starts some
 * and watches the record. Now and then it calls for quiet, and sees that what is left is what should be.
 */
#include <signal.h>
#include <stdio.h>
#include <time.h>

#include "conductor.h"
#include "families/family.h"

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void nap(uint64_t nanoseconds) {
    nanosleep(&(struct timespec){.tv_nsec = (long)nanoseconds}, NULL);
}

/* Takes note of processes that others have forked. */
static void look_for_children(void) {
    for (unsigned i = 0; i < SEATS; i++)
        if (!actors[i].alive && atomic_load(&node_board->seats[i].state) == SEAT_ALIVE)
            actor_adopt(i);
}

static bool disturb(uint64_t *random, unsigned processes) {
    unsigned seat;
    switch (random_below(random, 10)) {
    case 0:
    case 1:
        if (node_board->no_death)
            return true;
        if ((seat = actor_random(random, random_once_in(random, 4))) == SEATS)
            return true;
        if (!seat_may_die(node_board, seat))
            return true;
        trace("process %u: killed", seat);
        heirlooms_take(seat, *random);
        actor_signal(seat, SIGKILL);
        return actor_bury(seat);
    case 2:
        heirlooms_drop_one(random);
        if ((seat = actor_random(random, false)) != SEATS) {
            trace("process %u: stopped", seat);
            actor_signal(seat, SIGSTOP);
        }
        return true;
    case 3:
    case 4:
    case 5:
        if ((seat = actor_random(random, true)) != SEATS) {
            trace("process %u: continued", seat);
            actor_signal(seat, SIGCONT);
        }
        return true;
    default:
        seat = seat_free();
        if (seat == SEATS || actors_count() >= processes)
            return true;
        trace("process %u: started", seat);
        return actor_start(seat, random);
    }
}

static bool watch(void) {
    struct reading reading;
    look_for_children();
    node_read(&reading);
    if (!check_limit(&reading) || !actors_look() || (node_board->crowd && !crowd_check_limits(false)))
        return false;
    if (atomic_load(&node_board->wrong) == 1)
        return found("%s", node_board->wrong_text);
    step_number++;
    return true;
}

static bool is_idle(unsigned seat) {
    for (unsigned i = 0; i < DESKS; i++) {
        struct desk *desk = &node_board->seats[seat].desks[i];
        if (atomic_load(&desk->taken) && !atomic_load(&desk->waiting))
            return false;
    }
    return true;
}

/* The first seat whose process is still busy or not there yet, or SEATS. */
static unsigned find_busy(void) {
    for (unsigned i = 0; i < SEATS; i++) {
        if (atomic_load(&node_board->seats[i].state) > SEAT_ALIVE || (actors[i].alive && !is_idle(i)))
            return i;
    }
    return SEATS;
}

static const char *what_is_done(unsigned seat) {
    for (unsigned i = 0; i < DESKS; i++) {
        const struct desk *desk = &node_board->seats[seat].desks[i];
        if (atomic_load(&desk->taken) && !atomic_load(&desk->waiting) && desk->operation < OPERATIONS_MAX)
            return operation_at(desk->operation)->name;
    }
    return "what is no operation";
}

/* Until all threads of all processes are at their desks. Nobody hesitates any more: an operation of thousands of calls would
 * take a minute on a busy machine. */
static bool calm_down(void) {
    atomic_store(&node_board->mode, MODE_LOCKSTEP);
    atomic_store(&node_board->dials.hesitate, 0);
    for (unsigned i = 0; i < SEATS; i++)
        if (actors[i].alive && actors[i].stopped)
            actor_signal(i, SIGCONT);
    double end = seconds() + ANSWER_SECONDS;
    for (bool calm = false; !calm; nap(1000000)) {
        if (!watch())
            return false;
        unsigned busy = find_busy();
        calm = busy == SEATS;
        if (calm || seconds() <= end)
            continue;
        actors_tell_operations();
        actor_print_stacks(busy);
        return found("process %u (%d) is still busy long after it was called for quiet, with %s", busy,
                     actors[busy].alive ? actors[busy].pid : 0, what_is_done(busy));
    }
    return watch();
}

bool rage(uint64_t *random, unsigned processes, double duration) {
    atomic_store(&node_board->mode, MODE_STORM);
    for (double end = seconds() + duration; seconds() < end; nap(500000 + random_below(random, 4000000)))
        if (!watch() || !disturb(random, processes))
            return false;
    return calm_down();
}

bool storm(const struct plan *plan) {
    uint64_t random = plan->seed ^ UINT64_C(0x5354524d);
    atomic_store(&node_board->wrong, 0);
    for (double end = seconds() + plan->seconds; seconds() < end;) {
        static const uint32_t hesitations[] = {0, 0, 10, 100};
        node_board->dials.hesitate = hesitations[random_below(&random, sizeof hesitations / sizeof hesitations[0])];
        for (unsigned i = actors_count(); i < plan->processes; i++)
            if (seat_free() != SEATS && !actor_start(seat_free(), &random))
                return false;
        if (!rage(&random, plan->processes, 0.5 + (double)random_below(&random, 20) / 10) ||
            !check_quiet(&random, true))
            return false;
        if (random_once_in(&random, 3) && !check_dead(&random))
            return false;
    }
    return check_dead(&random);
}
