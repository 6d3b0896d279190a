/*
 * Lockstep: one operation at a time, by one thread of one process, and the judge looks after each. Sometimes a few at
 * once, and sometimes a process is killed or stopped in the midst of one.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "conductor.h"
#include "families/family.h"

static const char *const outcomes[] = {"", "done", "refused", "WRONG"};

/* A limit is met to the granularity of what asked. */
static bool would_fit(int gpu, uint64_t taken, uint64_t need) {
    uint64_t limit = node_board->limit_bytes[gpu];
    return need <= limit && taken <= limit - need;
}

static unsigned choose_operation(uint64_t *random) {
    uint64_t sum = 0;
    unsigned i = 0;
    for (; i < OPERATIONS_MAX; i++)
        sum += node_board->weights[i];
    uint64_t at = random_below(random, sum);
    for (i = 0; at >= node_board->weights[i]; i++)
        at -= node_board->weights[i];
    return i;
}

static unsigned choose_desk(uint64_t *random, unsigned seat) {
    struct desk *desks = node_board->seats[seat].desks;
    unsigned start = (unsigned)random_below(random, DESKS);
    for (unsigned n = 0; n < DESKS; n++) {
        unsigned desk = (start + n) % DESKS;
        if (atomic_load(&desks[desk].taken) && !order_pending(seat, desk))
            return desk;
    }
    return DESKS;
}

/* An order under way, and what the judge knew before. */
struct order {
    unsigned seat, desk;
    uint64_t others[GPUS]; /* what may be taken at the same time by others */
    int64_t slack[GPUS];   /* as it was before */
};

static struct desk *desk_of(const struct order *order) {
    return &node_board->seats[order->seat].desks[order->desk];
}

static void tell(const struct order *order, const struct reading *after) {
    const struct desk *desk = desk_of(order);
    const char *name = desk->operation < OPERATIONS_MAX ? operation_at(desk->operation)->name : "order";
    trace("process %u thread %u: %s: %s %s  [%llu %llu of counted %llu %llu MiB]", order->seat, order->desk, name,
          desk->text, outcomes[desk->outcome], (unsigned long long)after->bytes[0] >> 20,
          (unsigned long long)after->bytes[1] >> 20, (unsigned long long)after->counted[0] >> 20,
          (unsigned long long)after->counted[1] >> 20);
}

/* At most so much of a GPU was taken when an order was given, or is now. A process with small allocations has a block in
 * reserve. */
static uint64_t most_taken(const struct order *order, int gpu, const struct reading *before,
                           const struct reading *after) {
    uint64_t taken = before->bytes[gpu] > after->bytes[gpu] ? before->bytes[gpu] : after->bytes[gpu];
    int64_t slack = slack_of(gpu) > order->slack[gpu] ? slack_of(gpu) : order->slack[gpu];
    return taken + order->others[gpu] + under_way(gpu) + (uint64_t)(slack > 0 ? slack : 0) + actors_count() * BLOCK;
}

static bool check_refusal(const struct order *order, const struct reading *before, const struct reading *after) {
    const struct desk *desk = desk_of(order);
    int gpu = atomic_load(&desk->gpu);
    uint64_t need = atomic_load(&desk->need), taken = most_taken(order, gpu, before, after);
    bool fits = would_fit(gpu, taken, need);
    for (int other = 0; other < GPUS && fits; other++)
        fits = need_of(desk, other) == 0 || would_fit(other, most_taken(order, other, before, after), need);
    if (node_board->bare || !fits)
        return true;
    return found("GPU %d: %s was refused, though at most %llu bytes were taken (%llu physically), it needs %llu at "
                 "most, and the limit is %llu",
                 gpu, desk->text, (unsigned long long)taken, (unsigned long long)after->bytes[gpu],
                 (unsigned long long)need, (unsigned long long)node_board->limit_bytes[gpu]);
}

static bool check_growth(const struct desk *desk, const struct reading *before, const struct reading *after) {
    int gpu = atomic_load(&desk->gpu);
    int64_t change = (int64_t)(after->bytes[gpu] - before->bytes[gpu]);
    if (desk->outcome == OUTCOME_REFUSED && change > 0)
        return found("GPU %d: %s was refused, and yet %lld bytes more are taken", gpu, desk->text, (long long)change);
    if (!desk->grows || desk->outcome != OUTCOME_DONE || (change >= desk->least && change <= desk->most))
        return true;
    return found("GPU %d: %s changed what is physically taken by %lld bytes, not by %lld to %lld", gpu, desk->text,
                 (long long)change, (long long)desk->least, (long long)desk->most);
}

/* What is physically taken is counted, at every moment. */
static bool check_counted(const struct reading *reading) {
    for (int gpu = 0; gpu < GPUS; gpu++)
        if (!node_board->bare && reading->counted[gpu] < reading->bytes[gpu])
            return found("GPU %d: %llu bytes are physically taken, but the region says %llu", gpu,
                         (unsigned long long)reading->bytes[gpu], (unsigned long long)reading->counted[gpu]);
    return true;
}

static bool check_order(const struct order *order, bool alone, const struct reading *before,
                        const struct reading *after) {
    const struct desk *desk = desk_of(order);
    int gpu = atomic_load(&desk->gpu);
    if (desk->outcome == OUTCOME_WRONG)
        return found("process %u thread %u: %s", order->seat, order->desk, desk->text);
    if (desk->outcome == OUTCOME_REFUSED && !check_refusal(order, before, after))
        return false;
    if (alone && !check_growth(desk, before, after))
        return false;
    /* The dead are still in it for a moment, so it may be too much; too little it must not be. */
    if (alone && desk->reported_used != UINT64_MAX && !node_board->bare && desk->reported_used < after->bytes[gpu])
        return found("GPU %d: %s, but %llu bytes are physically taken", gpu, desk->text,
                     (unsigned long long)after->bytes[gpu]);
    return true;
}

static bool look(struct reading *reading) {
    node_read(reading);
    return check_limit(reading) && check_counted(reading) && actors_look();
}

/* ---- Steps ---- */

/* Gives orders[given] to a thread that has none of the others, which may be done already. */
static bool give(struct order *orders, unsigned given, uint64_t *random, const struct reading *reading) {
    uint64_t room[GPUS];
    struct order *order = &orders[given];
    order->seat = actor_random(random, false);
    if (order->seat == SEATS)
        return false;
    order->desk = (unsigned)random_below(random, DESKS);
    while (!atomic_load(&node_board->seats[order->seat].desks[order->desk].taken))
        order->desk = (order->desk + 1) % DESKS;
    for (unsigned i = 0; i < given; i++)
        if (orders[i].seat == order->seat && orders[i].desk == order->desk)
            return false;
    rooms(reading, room);
    memset(order->others, 0, sizeof order->others);
    for (int gpu = 0; gpu < GPUS; gpu++)
        order->slack[gpu] = slack_of(gpu);
    order_give(order->seat, order->desk, choose_operation(random), random_next(random), 0, room);
    return true;
}

static bool step_together(uint64_t *random, unsigned count) {
    struct order orders[4];
    struct reading before, after;
    unsigned given = 0;
    node_read(&before);
    while (given < count && give(orders, given, random, &before))
        given++;
    for (unsigned i = 0; i < given; i++)
        if (!order_await(orders[i].seat, orders[i].desk))
            return any_finding() ? false : found("process %u died by itself", orders[i].seat);
    node_read(&after);
    for (unsigned i = 0; i < given; i++)
        tell(&orders[i], &after);
    if (!look(&after))
        return false;
    for (unsigned i = 0; i < given; i++)
        for (unsigned j = 0; j < given; j++)
            for (int gpu = 0; j != i && gpu < GPUS; gpu++)
                orders[i].others[gpu] += need_of(desk_of(&orders[j]), gpu);
    for (unsigned i = 0; i < given; i++)
        if (!check_order(&orders[i], given == 1, &before, &after))
            return false;
    return true;
}

static void nap(uint64_t nanoseconds) {
    nanosleep(&(struct timespec){.tv_nsec = (long)nanoseconds}, NULL);
}

/* Signals a process, as often as not in the midst of a call. */
static bool step_signal(uint64_t *random, int signal_number) {
    struct order order = {.seat = actor_random(random, false)};
    struct reading before, after;
    if (order.seat == SEATS)
        return true;
    const char *operation = "nothing";
    bool midst = random_once_in(random, 2);
    uint64_t pause_ns = random_below(random, 60000), chosen = random_next(random);
    node_read(&before);
    if (midst) {
        uint64_t room[GPUS];
        order.desk = choose_desk(&chosen, order.seat);
        rooms(&before, room);
        if (order.desk < DESKS) {
            order_give(order.seat, order.desk, choose_operation(&chosen), random_next(&chosen), 0, room);
            operation = operation_at(desk_of(&order)->operation)->name;
            nap(pause_ns);
        }
    }
    trace("process %u: signal %d, in the midst of %s", order.seat, signal_number, operation);
    if (signal_number == SIGKILL)
        heirlooms_take(order.seat, chosen);
    actor_signal(order.seat, signal_number);
    if (signal_number == SIGKILL) {
        if (!actor_bury(order.seat))
            return false;
        node_read(&after);
        if (midst)
            freed_by_dead(order.seat, &before, &after);
    }
    return look(&after);
}

static bool step_continue(uint64_t *random) {
    struct reading reading;
    unsigned seat = actor_random(random, true);
    if (seat == SEATS)
        return true;
    trace("process %u: continued", seat);
    actor_signal(seat, SIGCONT);
    for (unsigned desk = 0; desk < DESKS; desk++)
        if (order_pending(seat, desk) && !order_await(seat, desk))
            return any_finding() ? false : found("process %u died by itself", seat);
    return look(&reading);
}

static bool step_start(uint64_t *random, unsigned processes) {
    unsigned seat = seat_free();
    if (seat == SEATS || actors_count() >= processes)
        return true;
    if (!actor_start(seat, random))
        return false;
    trace("process %u: started as %d, choice %u of devices", seat, actors[seat].pid,
          node_board->seats[seat].devices_variant);
    return true;
}

static bool step_fork(uint64_t *random, unsigned processes) {
    unsigned parent = actor_random(random, false), child = seat_free();
    if (parent == SEATS || child == SEATS || actors_count() >= processes)
        return true;
    unsigned desk = choose_desk(random, parent);
    atomic_store(&node_board->seats[child].state, seat_ticket(node_board, parent));
    if (!order(parent, desk, ORDER_FORK, random_next(random), child))
        return any_finding() ? false : found("process %u died by forking", parent);
    for (int i = 0; i < 20000 && atomic_load(&node_board->seats[child].state) != SEAT_ALIVE; i++)
        nap(500000);
    if (atomic_load(&node_board->seats[child].state) != SEAT_ALIVE || !actor_adopt(child))
        return found("a child of process %u does not start", parent);
    trace("process %u thread %u: forked process %u (%d)%s", parent, desk, child, actors[child].pid,
          atomic_load(&node_board->seats[child].cut_off) ? ", cut off from the driver" : "");
    return true;
}

static bool step_exec(uint64_t *random) {
    struct reading reading;
    unsigned seat = actor_random(random, false);
    if (seat == SEATS)
        return true;
    unsigned desk = choose_desk(random, seat);
    trace("process %u thread %u: exec", seat, desk);
    heirlooms_take(seat, *random);
    slack_stays(seat);
    if (!order(seat, desk, ORDER_EXEC, random_next(random), 0))
        return any_finding() ? false : found("process %u died by exec", seat);
    return look(&reading);
}

static bool step_exit(uint64_t *random) {
    struct reading reading;
    uint64_t room[GPUS] = {0};
    unsigned seat = actor_random(random, false);
    if (seat == SEATS)
        return true;
    unsigned desk = choose_desk(random, seat);
    bool at_once = random_once_in(random, 2);
    trace("process %u thread %u: %s", seat, desk, at_once ? "_exit" : "exit");
    heirlooms_take(seat, *random);
    actors[seat].expected = true;
    order_give(seat, desk, at_once ? ORDER_EXIT_AT_ONCE : ORDER_EXIT, 0, 0, room);
    return actor_bury(seat) && look(&reading);
}

static bool step_thread(uint64_t *random, unsigned threads) {
    unsigned seat = actor_random(random, false);
    if (seat == SEATS || threads < 2)
        return true;
    unsigned desk = 1 + (unsigned)random_below(random, threads - 1);
    bool there = atomic_load(&node_board->seats[seat].desks[desk].taken);
    trace("process %u: thread %u %s", seat, desk, there ? "ends" : "starts");
    /* A thread ends itself; the first one starts others. */
    if (!order(seat, there ? desk : 0, there ? ORDER_THREAD_END : ORDER_THREAD, 0, desk))
        return any_finding() ? false : found("process %u died by a thread's %s", seat, there ? "end" : "start");
    return true;
}

static unsigned stopped_count(void) {
    unsigned count = 0;
    for (unsigned i = 0; i < SEATS; i++)
        count += actors[i].alive && actors[i].stopped;
    return count;
}

static bool step_quiet(uint64_t *random, bool end) {
    while (stopped_count() > 0)
        if (!step_continue(random))
            return false;
    return check_quiet(random, false) && (!end || check_dead(random));
}

static bool step(uint64_t *random, const struct plan *plan) {
    uint64_t choice = random_below(random, 1000);
    if (choice % 50 == 0)
        heirlooms_drop_one(random);
    if (actors_count() == 0 || choice < 12)
        return step_start(random, plan->processes);
    if (choice < 20)
        return step_fork(random, plan->processes);
    if (choice < 23)
        return step_exec(random);
    if (choice < 26)
        return step_exit(random);
    if (choice < 33)
        return step_signal(random, SIGKILL);
    if (choice < 37)
        return stopped_count() >= 2 ? true : step_signal(random, SIGSTOP);
    if (choice < 45)
        return step_continue(random);
    if (choice < 60)
        return step_thread(random, plan->threads);
    if (choice < 62)
        return step_quiet(random, random_once_in(random, 4));
    if (choice < 120)
        return step_together(random, 2 + (unsigned)random_below(random, 3));
    return step_together(random, 1);
}

bool lockstep(const struct plan *plan) {
    uint64_t random = plan->seed;
    atomic_store(&node_board->mode, MODE_LOCKSTEP);
    for (step_number = 1; step_number <= plan->steps; step_number++)
        if (!step(&random, plan))
            return false;
    return step_quiet(&random, true);
}
