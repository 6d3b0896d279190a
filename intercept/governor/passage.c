#include "governor/passage.h"

#include "governor/clock.h"
#include "governor/connection.h"
#include "governor/queues.h"

#define WAIT_NS (50 * NS_PER_MS)
#define STUCK_NS (2 * NS_PER_SECOND)
#define PASSES 8
#define PASSES_PART 20
#define PAUSE_LEAST_NS (20 * NS_PER_US)
#define PAUSE_MOST_NS (500 * NS_PER_US)

struct passages passages[GOVERNOR_GPUS_MAX];

static const uint64_t one = (UINT64_C(1) << PASSAGES_BEGUN_SHIFT) + 1;

/* A mark is due. Waits until the outstanding work is less than the meter allows, or until the state changes. Work that
 * does not end may be waiting for this launch, so the wait has an end. */
static void wait_for_work(int gpu, struct queue *queue, CUstream stream) {
    struct governor_gpu *page = &governor_page.page.gpus[gpu];
    uint64_t begin = clock_now(), outstanding, meter;
    if (queues_is_capturing(stream))
        return;
    queues_mark(queue, stream);
    while ((outstanding = queues_settle(gpu)) >=
               (meter = atomic_load_explicit(&page->meter_ns, memory_order_relaxed)) &&
           outstanding > 0 && passages_state(gpu) == GATE_METERED) {
        uint64_t waited = clock_now() - begin;
        if (waited > WAIT_NS && waited > queues_patience(gpu))
            return;
        uint64_t excess = outstanding - meter / 4 * 3;
        governor_page_wait(&page->state, GATE_METERED, clamp_ns(excess, PAUSE_LEAST_NS, PAUSE_MOST_NS));
    }
}

/* The state is read again after the launch was counted: if it still was METERED, the agent will see the launch when it
 * drains. */
static bool pass_metered(struct passage *passage, int gpu, struct queue *queue, CUstream stream) {
    struct passages *of = &passages[gpu];
    uint32_t launches = 0;
    if (queue != NULL) {
        launches = atomic_load_explicit(&queue->launches, memory_order_relaxed);
        if (launches >= atomic_load_explicit(&queue->every, memory_order_relaxed)) {
            wait_for_work(gpu, queue, stream);
            launches = atomic_load_explicit(&queue->launches, memory_order_relaxed);
        }
    }
    atomic_fetch_add(&of->count, one);
    if (passages_state(gpu) != GATE_METERED) {
        atomic_fetch_sub(&of->count, one);
        return false;
    }
    passage->gpu = gpu;
    if (queue != NULL) {
        atomic_store_explicit(&queue->launches, launches + 1, memory_order_relaxed);
        atomic_store_explicit(&queue->used, true, memory_order_relaxed);
    }
    return true;
}

/* A thread that waited goes on, if the gate is no longer closed. */
static void note_woken(int gpu) {
    uint64_t turn = atomic_load(&governor_page.page.gpus[gpu].turn);
    if (passages_state(gpu) != GATE_METERED || atomic_load(&passages[gpu].woken) == turn)
        return;
    atomic_store(&passages[gpu].woken_ns, clock_now());
    atomic_store(&passages[gpu].woken, turn);
}

/*
 * The next turn does not begin before what is outstanding of the last has ended. If that only waits for memory, it may wait for
 * a launch. So PASSES launches pass within WAIT_NS, and again STUCK_NS and PASSES_PART times as long as those took after they
 * have ended. Returns how long it is at least until then, in ns; 0: now.
 */
static uint64_t passes_in(int gpu) {
    struct passages *of = &passages[gpu];
    uint64_t since = atomic_load(&of->drains_ns), now = clock_now(), passing = atomic_load(&of->passing_ns);
    if (since == 0 || now - since < STUCK_NS)
        return since == 0 ? WAIT_NS : STUCK_NS - (now - since);
    if (passing != 0 && now - passing < WAIT_NS)
        return atomic_fetch_add(&of->passed, 1) < PASSES ? 0 : WAIT_NS;
    if (!queues_only_wait(gpu))
        return WAIT_NS;
    if (passing != 0) {
        atomic_store(&of->passes_ns, now + STUCK_NS + PASSES_PART * (now - passing));
        atomic_compare_exchange_strong(&of->passing_ns, &passing, 0);
    }
    uint64_t next = atomic_load(&of->passes_ns), none = 0;
    if (now < next)
        return next - now;
    atomic_store(&of->passed, 1);
    return atomic_compare_exchange_strong(&of->passing_ns, &none, now) ? 0 : WAIT_NS;
}

static bool pass_closed(struct passage *passage, int gpu, struct queue *queue, CUstream stream) {
    struct governor_gpu *page = &governor_page.page.gpus[gpu];
    uint64_t turn = atomic_load(&page->turn), passes = passes_in(gpu);
    if (queues_is_capturing(stream) || !governor_page_is_alive())
        return true;
    if (passes == 0) {
        atomic_fetch_add(&passages[gpu].count, one);
        atomic_store(&passages[gpu].unseen, true);
        if (queue != NULL)
            atomic_store_explicit(&queue->used, true, memory_order_relaxed);
        passage->gpu = gpu;
        return true;
    }
    if (atomic_exchange(&passages[gpu].wanted, turn + 1) != turn + 1 &&
        !connection_send((struct governor_message){.kind = GOVERNOR_WANT, .gpu = (uint32_t)gpu, .turn = turn}))
        atomic_store(&passages[gpu].wanted, 0);
    governor_page_wait(&page->state, GATE_CLOSED, passes < WAIT_NS ? passes : WAIT_NS);
    note_woken(gpu);
    return false;
}

static bool try_pass(struct passage *passage, int gpu, struct queue *queue, CUstream stream) {
    switch (passages_state(gpu)) {
    case GATE_METERED:
        return pass_metered(passage, gpu, queue, stream);
    case GATE_CLOSED:
        return pass_closed(passage, gpu, queue, stream);
    default:
        return true;
    }
}

void passage_wait(struct passage *passage, CUstream stream) {
    struct queue *queue = queues_find(stream);
    int gpu = queue != NULL ? queue->gpu : queues_current_gpu();
    if (gpu == NO_GPU)
        return;
    while (!try_pass(passage, gpu, queue, stream)) {
    }
}

void passage_end(struct passage *passage) {
    if (passage->gpu != NO_GPU)
        atomic_fetch_sub(&passages[passage->gpu].count, 1);
}
