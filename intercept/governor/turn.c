#include "governor/turn.h"

#include "governor/clock.h"
#include "governor/connection.h"
#include "governor/passage.h"
#include "governor/queues.h"

#include <string.h>

#define NEVER UINT64_MAX
/* Launches that saw an open gate are not counted: so long they have to reach the driver. */
#define MOMENT_NS (200 * NS_PER_US)
#define PAUSE_LEAST_NS (20 * NS_PER_US)
#define PAUSE_MOST_NS NS_PER_MS
#define SWITCH_NS (60 * NS_PER_US) /* until the governor has measured it */
#define BUSY_MOST_NS (250 * NS_PER_US)
#define QUIET_MOST_NS (20 * NS_PER_MS)
#define UNSEEN_NS (5 * NS_PER_MS) /* who looks later than that was stopped, or had no processor */

static struct turn {
    enum { AWAY, IN_TURN, STRAGGLERS, DRAINING } phase;
    bool was_open;     /* launches were not seen since the last drain */
    uint64_t number;   /* of the turn that is running, ends, or has ended; 0: of none */
    uint64_t asked;    /* the turn of which the governor waits for an answer; 0: none */
    uint64_t since_ns; /* when the phase began */
    uint64_t begun;    /* launches that had begun at the last look */
    struct {
        uint64_t at_ns; /* 0: nobody has looked */
        bool empty;     /* whether the GPU had no work then */
        uint64_t ns;    /* for how long of the turn it had none */
    } seen;
    uint64_t idle_ns; /* since when nothing is outstanding; 0: something is */
    bool idle_sent;
    bool waits; /* what is outstanding only waits for memory, as the governor was told */
    uint64_t pause_ns;
    uint64_t ending_ns; /* when what is outstanding will have ended, as the governor was told; 0: it was not */
} turns[GOVERNOR_GPUS_MAX];

static void enter(struct turn *turn, int gpu, int phase, uint64_t number) {
    *turn = (struct turn){.phase = phase,
                          .number = number,
                          .was_open = turn->was_open,
                          .asked = turn->asked,
                          .since_ns = clock_now(),
                          .pause_ns = PAUSE_LEAST_NS};
    atomic_store(&passages[gpu].drains_ns, phase == STRAGGLERS ? turn->since_ns : 0);
    atomic_store(&passages[gpu].passing_ns, 0);
    atomic_store(&passages[gpu].passes_ns, 0);
}

/* Looks whether the GPU has work. What is seen counts for half of the time since the last look, and of that until the next.
 * Looks come at random moments, so a program that waits for each of its kernels is seen between two of them as often as it
 * is there. What was launched while the gate was open is not known, nor what was while this process was stopped. */
static void see(struct turn *turn, int gpu, uint64_t now) {
    bool empty = !turn->was_open && queues_empty(gpu);
    if (turn->seen.at_ns != 0 && now - turn->seen.at_ns < UNSEEN_NS + (turn->idle_sent ? 2 * QUIET_MOST_NS : 0))
        turn->seen.ns += (now - turn->seen.at_ns) * (turn->seen.empty + empty) / 2;
    turn->seen.at_ns = now;
    turn->seen.empty = empty;
}

/* From half of a time to one and a half times that. */
static uint64_t about(uint64_t ns) {
    static uint32_t random = 1;
    random = random * UINT32_C(1664525) + UINT32_C(1013904223);
    return ns / 2 + (ns * (random >> 16) >> 16);
}

/* What has changed is in the page. */
void turn_received(const struct governor_message *message) {
    if (message->kind == GOVERNOR_REVOKE && message->flags & GOVERNOR_ASKS)
        turns[message->gpu].asked = message->turn;
}

static void end_turn(struct turn *turn, int gpu, uint64_t number) {
    struct turn ended = *turn;
    enter(turn, gpu, STRAGGLERS, number);
    if (ended.phase == IN_TURN && ended.number == number)
        turn->seen = ended.seen;
}

/* The longer it has taken, the less it matters to see the end at once. `left_ns` is an estimate; 0: there is none. */
static uint64_t wait_on(const struct turn *turn, uint64_t now, uint64_t left_ns) {
    uint64_t ns = (now - turn->since_ns) / 16;
    return clamp_ns(left_ns > 0 && left_ns / 2 < ns ? left_ns / 2 : ns, PAUSE_LEAST_NS, PAUSE_MOST_NS);
}

static bool send(enum governor_kind kind, int gpu, uint64_t turn, uint64_t value) {
    return connection_send(
        (struct governor_message){.kind = (uint16_t)kind, .gpu = (uint32_t)gpu, .turn = turn, .value = {value}});
}

static bool send_drained(const struct turn *turn, int gpu) {
    bool woken = atomic_load(&passages[gpu].woken) == turn->number;
    return connection_send((struct governor_message){
        .kind = GOVERNOR_DRAINED,
        .gpu = (uint32_t)gpu,
        .turn = turn->number,
        .value = {clock_now(), turn->seen.ns, woken ? atomic_load(&passages[gpu].woken_ns) : 0},
    });
}

static uint64_t in_progress(int gpu) {
    return atomic_load(&passages[gpu].count) & ((UINT64_C(1) << PASSAGES_BEGUN_SHIFT) - 1);
}

static bool send_ending(const struct turn *turn, int gpu, uint64_t left_ns) {
    return connection_send((struct governor_message){
        .kind = GOVERNOR_ENDING, .gpu = (uint32_t)gpu, .turn = turn->number, .value = {left_ns, turn->waits}});
}

/* Says when the work will have ended, and again if that is sooner than it seemed: a mark was found done. */
static void foretell(struct turn *turn, int gpu, uint64_t left_ns) {
    uint64_t ending = clock_now() + left_ns;
    if (left_ns == 0 || (turn->ending_ns != 0 && ending + PAUSE_LEAST_NS > turn->ending_ns))
        return;
    turn->ending_ns = ending;
    send_ending(turn, gpu, left_ns);
}

/* Says when the work begins or ceases to only wait for memory. */
static void tell_waits(struct turn *turn, int gpu) {
    bool told = turn->waits;
    turn->waits = queues_only_wait(gpu);
    if (turn->waits != told && !send_ending(turn, gpu, 0))
        turn->waits = told;
}

static uint64_t look_draining(struct turn *turn, int gpu, uint64_t now) {
    uint64_t left;
    if (!queues_drained(gpu, &left)) {
        tell_waits(turn, gpu);
        foretell(turn, gpu, left);
        return wait_on(turn, now, left);
    }
    if (in_progress(gpu) != 0 || atomic_exchange(&passages[gpu].unseen, false)) {
        turn->phase = STRAGGLERS; /* with what has passed since */
        turn->was_open = true;
        return PAUSE_LEAST_NS;
    }
    if (!send_drained(turn, gpu)) /* the governor reads nothing at present, or the connection has ended */
        return PAUSE_MOST_NS;
    enter(turn, gpu, AWAY, turn->number);
    return NEVER;
}

static uint64_t look_stragglers(struct turn *turn, int gpu, uint64_t now) {
    if (turn->seen.at_ns != 0)
        see(turn, gpu, turn->since_ns);
    turn->seen.at_ns = 0;
    if (in_progress(gpu) != 0 || (turn->was_open && now - turn->since_ns < MOMENT_NS))
        return wait_on(turn, now, 0);
    queues_drain(gpu, turn->was_open);
    turn->was_open = false;
    turn->phase = DRAINING;
    return look_draining(turn, gpu, now);
}

static uint64_t look_busy(struct turn *turn, int gpu) {
    turn->idle_ns = 0;
    turn->pause_ns = clamp_ns(turn->pause_ns * 2, PAUSE_LEAST_NS, BUSY_MOST_NS);
    uint64_t outstanding = queues_settle(gpu);
    return about(clamp_ns(outstanding / 2, turn->pause_ns, PAUSE_MOST_NS));
}

/* Idle is who has had nothing outstanding and submitted nothing for as long as a switch takes. */
static uint64_t look_in_turn(struct turn *turn, int gpu, uint64_t now) {
    see(turn, gpu, now);
    uint64_t count = atomic_load(&passages[gpu].count), begun = count >> PASSAGES_BEGUN_SHIFT;
    uint64_t switch_ns = atomic_load_explicit(&governor_page.page.gpus[gpu].switch_ns, memory_order_relaxed);
    if (begun != turn->begun || in_progress(gpu) != 0) {
        turn->begun = begun;
        turn->idle_sent = false;
        return look_busy(turn, gpu);
    }
    if (turn->idle_sent) {
        turn->pause_ns = clamp_ns(turn->pause_ns * 2, PAUSE_LEAST_NS, QUIET_MOST_NS);
        return turn->pause_ns;
    }
    if (!queues_idle(gpu))
        return look_busy(turn, gpu);
    if (turn->idle_ns == 0)
        turn->idle_ns = now;
    if (switch_ns == 0)
        switch_ns = SWITCH_NS;
    if (now - turn->idle_ns < switch_ns)
        return switch_ns - (now - turn->idle_ns);
    turn->idle_sent = send(GOVERNOR_IDLE, gpu, turn->number, now - turn->idle_ns);
    turn->pause_ns = switch_ns;
    return switch_ns;
}

static uint64_t look_ended(struct turn *turn, int gpu, uint64_t now) {
    uint64_t next = NEVER;
    if (turn->phase == STRAGGLERS)
        next = look_stragglers(turn, gpu, now);
    else if (turn->phase == DRAINING)
        next = look_draining(turn, gpu, now);
    if (turn->asked == 0 || turn->asked != turn->number)
        return next;
    if (!(turn->phase == AWAY ? send_drained(turn, gpu) : send_ending(turn, gpu, 0)))
        return PAUSE_MOST_NS;
    turn->asked = 0;
    return next;
}

uint64_t turn_look(int gpu, uint64_t now) {
    struct turn *turn = &turns[gpu];
    uint64_t number = atomic_load(&governor_page.page.gpus[gpu].turn);
    enum gate_state state = passages_state(gpu);
    if (state == GATE_OPEN) { /* or there is no governor: the next one counts anew */
        *turn = (struct turn){.was_open = true};
        atomic_store(&passages[gpu].drains_ns, 0);
        return NEVER;
    }
    if (state == GATE_METERED && (turn->phase != IN_TURN || turn->number != number))
        enter(turn, gpu, IN_TURN, number);
    /* The number is read first. If it is of a turn that is just beginning, the governor ignores that it is drained. */
    if (state == GATE_CLOSED && (turn->phase == IN_TURN || turn->number != number))
        end_turn(turn, gpu, number);
    return turn->phase == IN_TURN ? look_in_turn(turn, gpu, now) : look_ended(turn, gpu, now);
}

void turns_forked(void) {
    memset(turns, 0, sizeof turns);
    for (int gpu = 0; gpu < GOVERNOR_GPUS_MAX; gpu++)
        atomic_store(&passages[gpu].drains_ns, 0);
}
