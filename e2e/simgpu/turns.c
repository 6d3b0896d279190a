/* GPU time: booked in turns, and how much of it was used. */
#include "state_local.h"

void busy_count(unsigned slot, int index, uint64_t ns) {
    struct state *st = sim_local->state;
    uint64_t group = atomic_load_explicit(&st->slots[slot].group, memory_order_relaxed);

    atomic_fetch_add_explicit(&st->slots[slot].gpus[index].busy_ns, ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&st->groups[group].gpus[index].busy_ns, ns, memory_order_relaxed);
}

static void add_busy(int index, uint64_t start, uint64_t end) {
    struct state_gpu *gpu = &sim_local->state->gpus[index];

    atomic_fetch_add_explicit(&gpu->busy_ns, end - start, memory_order_relaxed);
    /* An MPS server's turns are its clients', who count for themselves what they have of them. */
    if (sim_local->joined && atomic_load(&sim_local->state->slots[sim_local->slot].mps) != MPS_ROLE_SERVER)
        busy_count(sim_local->slot, index, end - start);
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

/* Another process than the last has its turn. `waited_ns`: how long the GPU was the last one's while this one wanted it. */
static void count_switch(int index, unsigned last, uint64_t waited_ns) {
    struct state *st = sim_local->state;

    atomic_fetch_add_explicit(&st->gpus[index].switches, 1, memory_order_relaxed);
    if (sim_local->joined && atomic_load(&st->slots[last].group) != sim_local->group)
        atomic_fetch_add_explicit(&st->groups[sim_local->group].gpus[index].overlap_ns, waited_ns,
                                  memory_order_relaxed);
}

struct sim_turn sim_turn_book(int gpu, uint64_t want_ns, uint64_t not_before_ns) {
    struct sim_turn turn = {0, 0};
    uint64_t now = sim_now_ns(), quantum, switch_ns, asked, before, waited;
    word *booked;
    bool switches;
    int index;

    index = entry_of(gpu);
    if (index < 0)
        return turn;
    booked = &sim_local->state->gpus[index].booked;
    quantum = (uint64_t)sim_local->topology.quantum_us * 1000;
    switch_ns = (uint64_t)sim_local->topology.switch_us * 1000;
    asked = not_before_ns == 0 ? now + (uint64_t)sim_local->topology.launch_us * 1000 : not_before_ns;
    if (not_before_ns > now)
        asked = now;
    before = atomic_load(booked);
    do {
        /* Nobody books far ahead: such a time is from before the machine was last booted. */
        uint64_t taken = BOOKED_END_NS(before) > now + 3600000000000u ? 0 : BOOKED_END_NS(before);
        uint64_t most;

        switches = taken != 0 && BOOKED_SLOT(before) != sim_local->slot;
        turn.start_ns = asked < taken ? taken : asked;
        waited = turn.start_ns - asked;
        turn.start_ns += switches ? switch_ns : 0;
        /* What lies in the past was nobody else's, so all of it may be had at once. */
        most = quantum + (turn.start_ns < now ? now - turn.start_ns : 0);
        turn.end_ns = turn.start_ns + (want_ns < most ? want_ns : most);
    } while (!atomic_compare_exchange_weak(booked, &before, BOOKED(turn.end_ns, sim_local->slot)));
    if (switches)
        count_switch(index, BOOKED_SLOT(before), waited);
    add_busy(index, turn.start_ns, turn.end_ns);
    return turn;
}

uint64_t sim_turn_extend(int gpu, struct sim_turn *turn, uint64_t want_ns) {
    uint64_t end = turn->end_ns, most, booked;
    int index;

    index = entry_of(gpu);
    if (index < 0)
        return 0;
    most = turn->start_ns + (uint64_t)sim_local->topology.quantum_us * 1000;
    if (end >= most)
        return 0;
    if (want_ns > most - end)
        want_ns = most - end;
    booked = BOOKED(end, sim_local->slot);
    if (!atomic_compare_exchange_strong(&sim_local->state->gpus[index].booked, &booked,
                                        BOOKED(end + want_ns, sim_local->slot)))
        return 0;
    add_busy(index, end, end + want_ns);
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
    uint64_t until, busy, now, ahead;
    int index = entry_of(gpu);

    if (index < 0)
        return 0;
    busy = atomic_load(&sim_local->state->gpus[index].busy_ns);
    until = BOOKED_END_NS(atomic_load(&sim_local->state->gpus[index].booked));
    now = sim_now_ns();
    /* Whatever is booked from now on, without a gap, has not happened yet. */
    ahead = until > now ? until - now : 0;
    return busy > ahead ? busy - ahead : 0;
}

uint64_t sim_gpu_switches(int gpu) {
    int index = entry_of(gpu);

    return index < 0 ? 0 : atomic_load(&sim_local->state->gpus[index].switches);
}
