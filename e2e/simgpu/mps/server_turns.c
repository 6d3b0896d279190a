/* The GPU time of MPS clients: side by side within the server's own turns. */
#include <string.h>

#include "server.h"

#define MOST_SHARES 256

/* Who has so much of the GPU (of MPS_WHOLE) has it until then. */
struct share {
    uint64_t until_ns;
    uint32_t size;
};

static struct {
    struct sim_turn turn; /* the server's newest */
    /* Whose share is which does not matter: these are all of the GPU, by time. */
    struct share shares[MOST_SHARES];
    unsigned count;
} gpus[SIM_MAX_GPUS];

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

/* When so much of the GPU is there. */
static uint64_t free_at(uint32_t device, uint32_t size) {
    const struct share *share = gpus[device].shares;
    uint32_t sum = share->size;

    while (sum < size)
        sum += (++share)->size;
    return share->until_ns;
}

static void insert(uint32_t device, struct share fresh) {
    struct share *shares = gpus[device].shares;
    unsigned i = gpus[device].count;

    for (; i > 0 && shares[i - 1].until_ns > fresh.until_ns; i--) {
    }
    if (i > 0 && shares[i - 1].until_ns == fresh.until_ns) {
        shares[i - 1].size += fresh.size;
        return;
    }
    memmove(&shares[i + 1], &shares[i], (gpus[device].count - i) * sizeof(*shares));
    shares[i] = fresh;
    gpus[device].count++;
}

/* Takes as much of the GPU from what is there the earliest, until then. */
static void take(uint32_t device, uint32_t size, uint64_t until_ns) {
    struct share *shares = gpus[device].shares;
    uint32_t left = size;
    unsigned gone = 0;

    while (left > 0 && shares[gone].size <= left)
        left -= shares[gone++].size;
    if (left > 0)
        shares[gone].size -= left;
    gpus[device].count -= gone;
    memmove(shares, shares + gone, gpus[device].count * sizeof(*shares));
    insert(device, (struct share){until_ns, size});
    /* Never more than there are clients, but for small rests: two of them become one that is there later. */
    if (gpus[device].count == MOST_SHARES) {
        shares[1].size += shares[0].size;
        memmove(shares, shares + 1, --gpus[device].count * sizeof(*shares));
    }
}

struct sim_turn turn_book(uint32_t device, uint32_t percentage, uint64_t want_ns, uint64_t not_before_ns) {
    uint64_t now = sim_now_ns(), from = not_before_ns != 0 && not_before_ns < now ? not_before_ns : now;
    struct sim_turn turn;

    if (gpus[device].count == 0)
        insert(device, (struct share){0, MPS_WHOLE});
    from = later(later(from, free_at(device, percentage)), gpus[device].turn.start_ns);
    have_turn(device, from, want_ns);
    turn.start_ns = later(from, gpus[device].turn.start_ns);
    turn.end_ns = turn.start_ns + want_ns;
    if (turn.end_ns > gpus[device].turn.end_ns)
        turn.end_ns = gpus[device].turn.end_ns;
    take(device, percentage, turn.end_ns);
    return turn;
}
