/*
 * A crowd: several processes of several claims, all at their limits, doing what is public but need not be sensible. What a call
 * answers is not judged. No claim may ever hold more than its limit, by the record; no call may fault, or fail to return; what
 * is held is counted when all are at rest; and of the dead nothing is left.
 *
 * Each bout of a crowd draws anew what it is like: how many claims, processes and threads, which operations and how often, how
 * large, whether processes are killed. A round draws once what changes what can be promised: whether claims share memory, and
 * whether images have damage.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "conductor.h"
#include "families/family.h"

#define BOUT_SECONDS 1.2

static bool images; /* of this round: with damage */
static bool alone;  /* of this bout: one thread of one process, who is not killed */

/* ---- What a bout is like ---- */

static bool is_on(const char *family, uint64_t on) {
    static const char *const names[] = {"crowd",       "crowd_pool",  "crowd_context", "crowd_graph",
                                        "crowd_share", "crowd_image", "crowd_vmm",     "crowd_race"};
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(family, names[i]) == 0)
            return (on >> i & 1) != 0;
    return false;
}

static char bout_text[256];

/* Not all of everything at once: what happens often hides what needs repetition. Returns false where nothing is left to do. */
static bool draw_weights(uint64_t *random, const uint32_t wanted[OPERATIONS_MAX]) {
    uint64_t on = random_next(random) | (random_once_in(random, 2) ? UINT64_MAX : 0), sum = 0;
    on = images ? on | 1 << 5 : on & ~(uint64_t)(1 << 5);
    for (unsigned i = 0; i < operations_count(); i++) {
        static const uint32_t factors[] = {0, 1, 1, 1, 1, 1, 4, 16};
        uint32_t factor = factors[random_below(random, sizeof factors / sizeof factors[0])];
        node_board->weights[i] = is_on(family_of(i)->name, on) ? wanted[i] * factor : 0;
        sum += node_board->weights[i];
    }
    return sum > 0;
}

static unsigned draw_bout(uint64_t *random, const struct plan *plan) {
    static const uint32_t sizes_kib[] = {256, 1 << 10, 2 << 10, 12 << 10, 64 << 10, 64 << 10, 400 << 10};
    static const uint32_t hesitations[] = {0, 10, 100, 1000}, few[] = {1, 1, 3, UINT32_MAX};
    struct crowd_dials *dials = &node_board->dials;
    for (unsigned tries = 0; !draw_weights(random, plan->crowd_weights); tries++)
        if (tries == 1000)
            return 0;
    dials->claims = dials->mixed ? CROWD_CLAIMS : 1 + (uint32_t)random_below(random, CROWD_CLAIMS);
    dials->most_kib = sizes_kib[random_below(random, sizeof sizes_kib / sizeof sizes_kib[0])];
    /* What is freed twice may be an imported pointer by then, and a pool of another claim that has none left counts nowhere. */
    dials->misuse = !random_once_in(random, 3) && !dials->mixed;
    dials->few = few[random_below(random, sizeof few / sizeof few[0])];
    dials->rest = !random_once_in(random, 3);
    dials->hesitate = hesitations[random_below(random, sizeof hesitations / sizeof hesitations[0])];
    node_board->threads_max = plan->threads != 0 ? plan->threads : 1 + (uint32_t)random_below(random, DESKS);
    node_board->no_death = random_once_in(random, 3);
    unsigned processes = plan->processes != 0 ? plan->processes : 1 + (unsigned)random_below(random, 8);
    alone = images && random_once_in(random, 2);
    if (alone) {
        processes = node_board->threads_max = dials->claims = 1;
        node_board->no_death = true;
    }
    snprintf(
        bout_text, sizeof bout_text,
        "a bout of %u processes of %u claims, up to %u threads each, allocations of up to %llu KiB, hesitating once "
        "in %u%s%s%s%s%s%s",
        processes, dials->claims, node_board->threads_max, (unsigned long long)dials->most_kib, dials->hesitate,
        dials->few != UINT32_MAX ? ", few objects" : "", dials->rest ? ", sizes about what is left" : "",
        dials->misuse ? ", misuse" : "", dials->mixed ? ", claims share memory" : "",
        images ? ", images with damage" : "", node_board->no_death ? "" : ", some are killed");
    trace("%s", bout_text);
    return processes;
}

/* ---- The judge ---- */

static bool over(const char *what, uint64_t bytes, uint64_t limit) {
    actors_tell_limit();
    trace("%s", bout_text);
    return found("%s: %llu bytes were physically taken, over the limit of %llu", what, (unsigned long long)bytes,
                 (unsigned long long)limit);
}

/* What one claim made and another one has imported is the former's in the record, and the latter's to pay after the maker's
 * death. So of claims that share memory only the sum is judged, and only at rest: whoever opens memory of another claim learns
 * its size by that, and until then holds what its maker may free (docs/counting.md). */
static bool check_sum(void) {
    uint64_t bytes = node_used_crowd(), limit = 0;
    for (unsigned claim = 0; claim < CROWD_CLAIMS; claim++)
        limit += node_board->crowd_limit_bytes[claim];
    return bytes <= limit || over("all claims together", bytes, limit);
}

bool crowd_check_limits(bool at_rest) {
    if (node_board->bare)
        return true;
    if (node_board->dials.mixed)
        return !at_rest || check_sum();
    for (unsigned claim = 0; claim < CROWD_CLAIMS; claim++) {
        struct reading reading;
        char name[32];
        node_read_crowd(claim, &reading);
        /* While an image is loaded whose size cannot be told, it is held uncounted; and what others free meanwhile hides what it
         * takes. */
        uint64_t bytes = !images ? reading.peak[0] : at_rest && alone ? reading.bytes[0] : 0;
        snprintf(name, sizeof name, "claim crowd%u", claim + 1);
        if (bytes > node_board->crowd_limit_bytes[claim])
            return over(name, bytes, node_board->crowd_limit_bytes[claim]);
    }
    return true;
}

/* Nobody does anything, so what a claim's processes hold is counted by it, whoever made it, and is within its limit. */
static bool check_held(void) {
    uint64_t held[CROWD_CLAIMS];
    node_held_crowd(held);
    for (unsigned claim = 0; claim < CROWD_CLAIMS && !images; claim++) {
        char name[48];
        uint64_t counted = node_board->bare ? held[claim] : node_counted_alive_crowd(claim);
        snprintf(name, sizeof name, "what claim crowd%u holds at rest", claim + 1);
        if (!node_board->bare && held[claim] > node_board->crowd_limit_bytes[claim])
            return over(name, held[claim], node_board->crowd_limit_bytes[claim]);
        if (counted >= held[claim])
            continue;
        node_look();
        node_tell(trace);
        return found("claim crowd%u: %llu bytes are physically held, but the region says %llu", claim + 1,
                     (unsigned long long)held[claim], (unsigned long long)counted);
    }
    return true;
}

static bool check_nothing_left(void) {
    for (unsigned claim = 0; claim < CROWD_CLAIMS; claim++) {
        struct reading reading = {0};
        for (unsigned tries = 0; tries < 200; tries++) {
            node_read_crowd(claim, &reading);
            if (reading.bytes[0] == 0)
                break;
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        }
        uint64_t counted = node_counted_alive_crowd(claim);
        if (reading.bytes[0] != 0 || counted != 0)
            return found("claim crowd%u: all are dead, but %llu bytes are physically taken, and the region says %llu",
                         claim + 1, (unsigned long long)reading.bytes[0], (unsigned long long)counted);
    }
    trace("all dead: nothing is left");
    return true;
}

/* ---- A bout ---- */

static bool bout(uint64_t *random, unsigned processes) {
    atomic_store(&node_board->wrong, 0);
    for (unsigned i = 0; i < processes; i++)
        if (seat_free() != SEATS && !actor_start(seat_free(), random))
            return false;
    return rage(random, processes, BOUT_SECONDS) && crowd_check_limits(true) && check_held() && actors_end(random) &&
           check_nothing_left();
}

static void draw_round(uint64_t *random) {
    uint64_t kind = random_below(random, 5);
    node_board->dials = (struct crowd_dials){.mixed = kind == 0};
    images = kind == 1 && !node_board->bare;
}

bool crowd(const struct plan *plan) {
    uint64_t random = plan->seed ^ UINT64_C(0x43524f5744);
    bool no_fork = node_board->no_fork, no_death = node_board->no_death, fine = true;
    draw_round(&random);
    node_board->crowd = node_board->no_fork = true;
    for (unsigned i = 0; i < plan->bouts && fine; i++) {
        unsigned processes = draw_bout(&random, plan);
        node_board->no_death |= no_death;
        fine = processes == 0 || bout(&random, processes);
    }
    node_board->crowd = false;
    node_board->no_fork = no_fork;
    node_board->no_death = no_death;
    return fine;
}
