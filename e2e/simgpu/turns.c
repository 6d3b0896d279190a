/* GPU time: booked in turns, and how much of it was used. */
#include "state_local.h"

static void add_busy(int index, uint64_t start, uint64_t end) {
    struct state_gpu *gpu = &sim_local->state->gpus[index];

    atomic_fetch_add_explicit(&gpu->busy_ns, end - start, memory_order_relaxed);
    /* An MPS server's turns are its clients', who count for themselves what they have of them. */
    if (sim_local->joined && atomic_load(&sim_local->state->slots[sim_local->slot].mps) != MPS_ROLE_SERVER)
        atomic_fetch_add_explicit(&sim_local->state->slots[sim_local->slot].gpus[index].busy_ns, end - start,
                                  memory_order_relaxed);
    if (end - start > BUCKETS * BUCKET_NS)
        start = end - BUCKETS * BUCKET_NS;
    while (start < end) {
        uint64_t number = start / BUCKET_NS, next = (number + 1) * BUCKET_NS;
        uint64_t part = (end < next ? end : next) - start;
        word *bucket = &gpu->buckets[number % BUCKETS];
        uint64_t old = atomic_load(bucket), fresh;

        do {
            fresh = old >> 32 == (number & UINT32_MAX) ? old + part : number << 32 | part;
        } while (!atomic_compare_exchange_weak(bucket, &old, fresh));
        start += part;
    }
}

struct sim_turn sim_turn_book(int gpu, uint64_t want_ns, uint64_t not_before_ns) {
    struct sim_turn turn = {0, 0};
    uint64_t now = sim_now_ns(), quantum, until;
    word *booked;
    int index;

    index = entry_of(gpu);
    if (index < 0)
        return turn;
    booked = &sim_local->state->gpus[index].until_ns;
    quantum = (uint64_t)sim_local->topology.quantum_us * 1000;
    until = atomic_load(booked);
    do {
        /* Nobody books far ahead: such a time is from before the machine was last booted. */
        uint64_t taken = until > now + 3600000000000u ? 0 : until;
        uint64_t most;

        turn.start_ns = not_before_ns != 0 && not_before_ns < now ? not_before_ns : now;
        if (turn.start_ns < taken)
            turn.start_ns = taken;
        /* What lies in the past was nobody else's, so all of it may be had at once. */
        most = quantum + (turn.start_ns < now ? now - turn.start_ns : 0);
        turn.end_ns = turn.start_ns + (want_ns < most ? want_ns : most);
    } while (!atomic_compare_exchange_weak(booked, &until, turn.end_ns));
    add_busy(index, turn.start_ns, turn.end_ns);
    return turn;
}

uint64_t sim_turn_extend(int gpu, struct sim_turn *turn, uint64_t want_ns) {
    uint64_t until = turn->end_ns, most;
    int index;

    index = entry_of(gpu);
    if (index < 0)
        return 0;
    most = turn->start_ns + (uint64_t)sim_local->topology.quantum_us * 1000;
    if (until >= most)
        return 0;
    if (want_ns > most - until)
        want_ns = most - until;
    if (!atomic_compare_exchange_strong(&sim_local->state->gpus[index].until_ns, &until, until + want_ns))
        return 0;
    add_busy(index, until, until + want_ns);
    turn->end_ns += want_ns;
    return want_ns;
}

unsigned sim_gpu_utilisation(int gpu) {
    uint64_t now = sim_now_ns() / BUCKET_NS, busy = 0;
    int index = entry_of(gpu);

    if (index < 0)
        return 0;
    for (uint64_t number = now < 8 ? 0 : now - 8; number < now; number++) {
        uint64_t bucket = atomic_load(&sim_local->state->gpus[index].buckets[number % BUCKETS]);

        if (bucket >> 32 == (number & UINT32_MAX))
            busy += bucket & UINT32_MAX;
    }
    busy = (busy + 5000000) / 10000000;
    return busy > 100 ? 100 : (unsigned)busy;
}

uint64_t sim_gpu_busy_ns(int gpu) {
    uint64_t until, busy, now;
    int index = entry_of(gpu);

    if (index < 0)
        return 0;
    busy = atomic_load(&sim_local->state->gpus[index].busy_ns);
    until = atomic_load(&sim_local->state->gpus[index].until_ns);
    now = sim_now_ns();
    /* Whatever is booked from now on, without a gap, has not happened yet. */
    return until > now ? busy - (until - now) : busy;
}
