/* The GPU time of MPS clients: side by side within the server's own turns. */
#include <stdlib.h>

#include "server.h"

#define MOST_MULTIPROCESSORS 1024

static struct {
    struct sim_turn turn;                      /* the server's newest */
    uint64_t busy_until[MOST_MULTIPROCESSORS]; /* in no order: whose multiprocessor is which does not matter */
} gpus[SIM_MAX_GPUS];

static int by_time(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return (left > right) - (left < right);
}

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* A turn of the server's that has room behind `from`, which lies after all that was booked so far if it is not in one. */
static void have_turn(uint32_t device, uint64_t from, uint64_t want_ns) {
    struct sim_turn *turn = &gpus[device].turn;

    if (from >= turn->end_ns)
        *turn = sim_turn_book(devices[device].gpu, want_ns, from);
    else if (from + want_ns > turn->end_ns)
        sim_turn_extend(devices[device].gpu, turn, from + want_ns - turn->end_ns);
}

struct sim_turn turn_book(uint32_t device, uint32_t multiprocessors, uint64_t want_ns, uint64_t not_before_ns) {
    uint64_t now = sim_now_ns(), from = not_before_ns != 0 && not_before_ns < now ? not_before_ns : now;
    uint64_t *busy = gpus[device].busy_until, quantum = (uint64_t)sim_topology()->quantum_us * 1000, most;
    struct sim_turn turn;

    if (multiprocessors > devices[device].multiprocessors)
        multiprocessors = devices[device].multiprocessors;
    qsort(busy, devices[device].multiprocessors, sizeof(*busy), by_time);
    from = later(later(from, busy[multiprocessors - 1]), gpus[device].turn.start_ns);
    have_turn(device, from, want_ns);
    turn.start_ns = later(from, gpus[device].turn.start_ns);
    most = quantum + (turn.start_ns < now ? now - turn.start_ns : 0);
    turn.end_ns = turn.start_ns + (want_ns < most ? want_ns : most);
    if (turn.end_ns > gpus[device].turn.end_ns)
        turn.end_ns = gpus[device].turn.end_ns;
    for (uint32_t i = 0; i < multiprocessors; i++)
        busy[i] = turn.end_ns;
    return turn;
}
