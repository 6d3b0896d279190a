/*
 * Runs every interleaving of a few threads at one gate. Each thread is a coroutine that yields before every atomic
 * operation, lock and wait; a depth-first search tries every next thread from every state that is new. In no state is a
 * thread in a gate that another has closed, and no thread waits for ever.
 */
#include "../system/lock.h"

struct gate;
static void take(struct lock *lock);
static void give(struct lock *lock);
static void wait_at(struct gate *gate);
static void wake(struct gate *gate);
static void step(void);
static unsigned self(void);

#define GATE_TAKE(lock) take(lock)
#define GATE_GIVE(lock) give(lock)
#define GATE_WAIT(gate) wait_at(gate)
#define GATE_WAKE(gate) wake(gate)
#define GATE_STEP() step()
#define GATE_SELF() self()

#include "../system/gate.h"
#include "check.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define THREADS_MAX 4
#define STACK_BYTES (16 << 10)
#define CHOICES_MAX 4096
#define SEEN_MAX (1 << 20) /* a power of two */

static struct gate gate;
static int inside, closed; /* who is in it, and who has it closed */

/* --- threads, one of which goes on at a time ---------------------------------------------------------------------- */

static struct thread {
    ucontext_t context;
    char stack[STACK_BYTES];
    void (*body)(void);
    const struct lock *wants; /* it cannot go on while somebody else has this */
    bool waits, done;         /* for gate.changed */
    void **frame;             /* of the function that handed over: that of its caller, and where in that it goes on */
    bool twice;               /* the only variable that it keeps from one step to the next */
} threads[THREADS_MAX];
static int threads_count, running;
static ucontext_t scheduler;
static const struct lock *held[8]; /* by anybody */

static __attribute__((noinline)) void step(void) {
    threads[running].frame = __builtin_frame_address(0);
    swapcontext(&threads[running].context, &scheduler);
}

static unsigned self(void) {
    return (unsigned)running + 1;
}

static int place_of(const struct lock *lock) {
    int free_place = -1;
    for (int i = 0; i < 8; i++) {
        if (held[i] == lock)
            return i;
        if (held[i] == NULL)
            free_place = i;
    }
    return lock == NULL ? free_place : -1;
}

static void take(struct lock *lock) {
    threads[running].wants = lock;
    step();
    threads[running].wants = NULL;
    held[place_of(NULL)] = lock;
}

static void give(struct lock *lock) {
    held[place_of(lock)] = NULL;
}

static void wait_at(struct gate *at) {
    threads[running].waits = true;
    give(&at->lock);
    take(&at->lock);
}

static void wake(struct gate *at) {
    (void)at;
    for (int i = 0; i < threads_count; i++)
        threads[i].waits = false;
}

static bool can_go_on(const struct thread *thread) {
    return !thread->done && !thread->waits && (thread->wants == NULL || place_of(thread->wants) < 0);
}

static void run_thread(void) {
    threads[running].body();
    threads[running].done = true;
    swapcontext(&threads[running].context, &scheduler);
}

static void start(void (*const bodies[])(void), int count) {
    memset(&gate, 0, sizeof gate);
    memset(held, 0, sizeof held);
    inside = closed = 0;
    threads_count = count;
    for (int i = 0; i < count; i++) {
        struct thread *thread = &threads[i];
        getcontext(&thread->context);
        thread->context.uc_stack.ss_sp = thread->stack;
        thread->context.uc_stack.ss_size = STACK_BYTES;
        thread->body = bodies[i];
        thread->wants = NULL;
        thread->waits = thread->done = false;
        thread->frame = NULL;
        thread->twice = false;
        makecontext(&thread->context, run_thread, 0);
    }
}

/* --- every order -------------------------------------------------------------------------------------------------- */

static struct {
    int taken[CHOICES_MAX], of[CHOICES_MAX]; /* at each step: which of how many that could go on */
    int count;
} order;

static int nth_that_can(int n) {
    for (int i = 0; i < threads_count; i++)
        if (can_go_on(&threads[i]) && n-- == 0)
            return i;
    return -1;
}

static int count_that_can(void) {
    int count = 0;
    for (int i = 0; i < threads_count; i++)
        count += can_go_on(&threads[i]);
    return count;
}

static uint64_t mix(uint64_t hash, const void *bytes, size_t size) {
    for (const unsigned char *byte = bytes; size-- > 0; byte++)
        hash = (hash ^ *byte) * UINT64_C(0x100000001b3);
    return hash;
}

static bool is_in_stack(const struct thread *thread, void **frame) {
    const char *address = (const char *)frame;
    return thread->stack <= address && address < thread->stack + STACK_BYTES - sizeof frame[0] - sizeof frame[1];
}

/* Of everything that what comes next depends on: of a thread, where in which functions it is. */
static uint64_t state_now(void) {
    uint32_t now = atomic_load(&gate.state);
    uint64_t hash = mix(UINT64_C(0xcbf29ce484222325), &now, sizeof now);
    hash = mix(hash, (int[]){inside, closed, (int)atomic_load(&gate.closer), (int)gate.nested}, 4 * sizeof(int));
    for (int i = 0; i < threads_count; i++) {
        const struct thread *thread = &threads[i];
        bool flags[] = {thread->waits, thread->done, thread->twice, place_of(&gate.lock) >= 0,
                        place_of(&gate.turn) >= 0};
        hash = mix(hash, flags, sizeof flags);
        hash = mix(hash, &thread->wants, sizeof thread->wants);
        if (thread->done)
            continue;
        for (void **frame = thread->frame; is_in_stack(thread, frame); frame = frame[0])
            hash = mix(hash, &frame[1], sizeof frame[1]);
    }
    return hash | 1;
}

static uint64_t seen[SEEN_MAX];
static size_t seen_count;

static bool is_new(uint64_t state) {
    size_t i = state & (SEEN_MAX - 1);
    while (seen[i] != 0 && seen[i] != state)
        i = (i + 1) & (SEEN_MAX - 1);
    if (seen[i] == state)
        return false;
    if (++seen_count == SEEN_MAX / 2)
        abort();
    seen[i] = state;
    return true;
}

/* Follows the choices taken so far, then takes the first each time, until a state comes that was seen before. False if
 * somebody waits for ever. */
static bool run_in_order(void) {
    int at = 0, followed = order.count;
    for (int can; (can = count_that_can()) != 0; at++) {
        if (at == CHOICES_MAX)
            abort();
        if (at >= followed) {
            if (!is_new(state_now()))
                break;
            order.taken[at] = 0;
        }
        order.of[at] = can;
        running = nth_that_can(order.taken[at]);
        swapcontext(&scheduler, &threads[running].context);
    }
    order.count = at;
    if (count_that_can() != 0)
        return true;
    for (int i = 0; i < threads_count; i++)
        if (!threads[i].done)
            return false;
    return true;
}

/* The next order: the last choice that has another. False after the last order. */
static bool next_order(void) {
    while (order.count > 0 && order.taken[order.count - 1] + 1 == order.of[order.count - 1])
        order.count--;
    if (order.count == 0)
        return false;
    order.taken[order.count - 1]++;
    return true;
}

static bool shared_while_closed;

static void try_every_order(void (*const bodies[])(void), int count) {
    long orders = 0;
    bool all_end = true;
    order.count = 0;
    shared_while_closed = false;
    do {
        start(bodies, count);
        all_end = run_in_order();
        orders++;
    } while (all_end && !shared_while_closed && next_order());
    printf("%ld orders of %d threads, %zu states\n", orders, count, seen_count);
    CHECK(all_end, "in order %ld somebody waits for ever", orders);
    CHECK(!shared_while_closed, "in order %ld somebody is in a closed gate", orders);
}

/* --- what the threads do ------------------------------------------------------------------------------------------ */

static void look(void) {
    shared_while_closed = shared_while_closed || closed > 1 || (closed == 1 && inside != 0);
}

static void enters(void) {
    gate_enter(&gate);
    inside++;
    look();
    step();
    inside--;
    gate_leave(&gate);
}

static void enters_twice(void) {
    gate_enter(&gate);
    threads[running].twice = gate_try(&gate);
    inside++;
    look();
    if (threads[running].twice)
        gate_leave(&gate);
    step();
    inside--;
    gate_leave(&gate);
}

static void closes(void) {
    gate_close(&gate);
    closed++;
    look();
    step();
    closed--;
    gate_open(&gate);
}

static void closes_twice(void) {
    closes();
    closes();
}

/* As when the driver calls back. */
static void closes_and_enters(void) {
    gate_close(&gate);
    closed++;
    look();
    gate_close(&gate);
    gate_enter(&gate);
    step();
    gate_leave(&gate);
    gate_open(&gate);
    look();
    step();
    closed--;
    gate_open(&gate);
}

static void test_one_enters(void) {
    try_every_order((void (*const[])(void)){enters, closes_twice}, 2);
}

static void test_two_close(void) {
    try_every_order((void (*const[])(void)){enters, closes, closes}, 3);
}

static void test_one_enters_twice(void) {
    try_every_order((void (*const[])(void)){enters_twice, closes, closes}, 3);
}

static void test_two_enter(void) {
    try_every_order((void (*const[])(void)){enters, enters, closes}, 3);
}

static void test_closer_enters(void) {
    try_every_order((void (*const[])(void)){enters, closes_and_enters, closes_and_enters}, 3);
}

int main(void) {
    checks_start();
    checks_run("test_one_enters", test_one_enters);
    checks_run("test_two_close", test_two_close);
    checks_run("test_one_enters_twice", test_one_enters_twice);
    checks_run("test_two_enter", test_two_enter);
    checks_run("test_closer_enters", test_closer_enters);
    return checks_report();
}
