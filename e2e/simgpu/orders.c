/* Calls of NVML that a test has hang or fail. */
#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "health.h"
#include "state_local.h"

enum { HANG = 1, FAIL = 2 };

#define WHAT(kind, gpu, result) ((uint64_t)(kind) << 56 | (uint64_t)((gpu) + 1) << 32 | (uint32_t)(result))
#define WHAT_KIND(what) ((what) >> 56)
#define WHAT_GPU(what) ((int)((what) >> 32 & 0xffff) - 1)
#define WHAT_RESULT(what) ((int)(uint32_t)(what))

static uint64_t hash(const char *function) {
    uint64_t hash = 0xcbf29ce484222325u;

    for (const char *c = function; *c != '\0'; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    return hash;
}

static bool is_open(void) {
    return sim_local != NULL && sim_local->state != NULL;
}

/* Tells everybody that is held up to look again. */
static void announce(void) {
    struct state_health *health = &sim_local->state->health;

    atomic_fetch_add(&health->order_futex, 1);
    syscall(SYS_futex, &health->order_futex, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* Calls off what was ordered of this kind for the function and the GPU. */
static void call_off(int kind, int gpu, uint64_t function) {
    struct state_health *health = &sim_local->state->health;

    for (int i = 0; i < SIM_ORDERS; i++) {
        uint64_t what = atomic_load(&health->orders[i].what);

        if (what == 0 || WHAT_KIND(what) != (uint64_t)kind || WHAT_GPU(what) != gpu ||
            atomic_load(&health->orders[i].function) != function)
            continue;
        if (atomic_compare_exchange_strong(&health->orders[i].what, &what, 0))
            atomic_fetch_sub(&health->order_count, 1);
    }
    announce();
}

/* Only the tool orders, one at a time: a free place need not be fought for. */
static int order(uint64_t what, uint64_t function) {
    struct state_health *health = &sim_local->state->health;

    for (int i = 0; i < SIM_ORDERS; i++) {
        if (atomic_load(&health->orders[i].what) != 0)
            continue;
        atomic_store(&health->orders[i].function, function);
        atomic_store(&health->orders[i].what, what);
        atomic_fetch_add(&health->order_count, 1);
        return 0;
    }
    return -ENOSPC;
}

int sim_order_hang(const char *function, bool on) {
    if (!is_open())
        return -EINVAL;
    call_off(HANG, -1, hash(function));
    return on ? order(WHAT(HANG, -1, 0), hash(function)) : 0;
}

int sim_order_error(int gpu, const char *function, int result) {
    if (!is_open() || (gpu != -1 && !in_range(gpu)))
        return -EINVAL;
    if (gpu != -1)
        gpu = section_of(gpu);
    call_off(FAIL, gpu, hash(function));
    return result != 0 ? order(WHAT(FAIL, gpu, result), hash(function)) : 0;
}

bool sim_orders(void) {
    return is_open() && atomic_load_explicit(&sim_local->state->health.order_count, memory_order_relaxed) != 0;
}

/* The order of this kind for the function, 0 if there is none. */
static uint64_t find(int kind, int gpu, const char *function) {
    struct state_health *health = &sim_local->state->health;
    uint64_t wanted = hash(function), all = hash("all");

    for (int i = 0; i < SIM_ORDERS; i++) {
        uint64_t what = atomic_load(&health->orders[i].what), of = atomic_load(&health->orders[i].function);

        if (what != 0 && WHAT_KIND(what) == (uint64_t)kind && (WHAT_GPU(what) == -1 || WHAT_GPU(what) == gpu) &&
            (of == wanted || of == all))
            return what;
    }
    return 0;
}

void sim_order_obey_hang(const char *function) {
    struct state_health *health;

    if (!is_open())
        return;
    health = &sim_local->state->health;
    for (;;) {
        uint32_t seen = atomic_load(&health->order_futex);

        if (find(HANG, -1, function) == 0)
            return;
        syscall(SYS_futex, &health->order_futex, FUTEX_WAIT, seen, NULL, NULL, 0);
    }
}

int sim_order_error_of(int gpu, const char *function) {
    if (!sim_orders())
        return 0;
    return WHAT_RESULT(find(FAIL, in_range(gpu) ? section_of(gpu) : -1, function));
}

void orders_clear(void) {
    struct state_health *health = &sim_local->state->health;

    for (int i = 0; i < SIM_ORDERS; i++) {
        if (atomic_exchange(&health->orders[i].what, 0) != 0)
            atomic_fetch_sub(&health->order_count, 1);
    }
    announce();
}
