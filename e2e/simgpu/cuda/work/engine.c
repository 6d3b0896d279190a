#include "engine.h"

#include "cuda/mps_client.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define QUEUE_DEPTH 1024

struct call {
    uint64_t mark;
    void (*fn)(void *);
    void *arg;
    struct call *next;
};

static struct engine {
    pthread_mutex_t mutex;
    pthread_cond_t covered_more; /* a turn was booked: more marks have times */
    bool ready;
    _Atomic uint64_t submitted; /* the mark at the end of all work */
    _Atomic uint64_t done;      /* a mark that is known to be reached */
    uint64_t base;              /* the mark at the beginning of the current turn */
    struct sim_turn turn;
    struct stamp *stamps;
    struct call *calls;          /* by mark */
    uint64_t queue[QUEUE_DEPTH]; /* marks of the last launches */
    uint64_t launches;
} engines[SIM_MAX_GPUS];

static pthread_mutex_t thread_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t thread_wakes;
static bool thread_runs, thread_needed;

/* ---- Marks and times. Under the engine's mutex. ---- */

/* Marks up to here have times. */
static uint64_t covered(const struct engine *e) {
    return e->base + (e->turn.end_ns - e->turn.start_ns);
}

static uint64_t reached(const struct engine *e, uint64_t now) {
    if (now >= e->turn.end_ns)
        return covered(e);
    return now <= e->turn.start_ns ? e->base : e->base + (now - e->turn.start_ns);
}

/* When a covered mark is reached; for what was reached before the current turn, its beginning. */
static uint64_t time_of(const struct engine *e, uint64_t mark) {
    return mark <= e->base ? e->turn.start_ns : e->turn.start_ns + (mark - e->base);
}

static void note_done(struct engine *e, uint64_t mark) {
    uint64_t done = atomic_load(&e->done);

    while (done < mark && !atomic_compare_exchange_weak(&e->done, &done, mark)) {
    }
}

static void write_stamps(struct engine *e) {
    for (struct stamp **link = &e->stamps; *link != NULL;) {
        struct stamp *stamp = *link;

        if (stamp->mark > covered(e)) {
            link = &stamp->next;
            continue;
        }
        atomic_store(&stamp->time_ns, time_of(e, stamp->mark));
        *link = stamp->next;
    }
}

/* The next turn for so much work. Where there are none any more, all of it has ended now. */
static struct sim_turn book(CUdevice device, uint64_t want_ns, uint64_t not_before) {
    struct sim_turn turn;
    uint64_t now;

    if (driver_error() == CUDA_SUCCESS) {
        if (!mps_client())
            return sim_turn_book(driver->gpus[device], want_ns, not_before);
        if (mps_client_turn(device, want_ns, not_before, &turn))
            return turn;
    }
    now = sim_now_ns();
    return (struct sim_turn){now > want_ns ? now - want_ns : 0, now};
}

static void next_turn(struct engine *e, CUdevice device, uint64_t not_before) {
    e->base = covered(e);
    e->turn = book(device, atomic_load(&e->submitted) - e->base, not_before);
    write_stamps(e);
    pthread_cond_broadcast(&e->covered_more);
}

static struct engine *lock_engine(CUdevice device) {
    struct engine *e = &engines[device];

    pthread_mutex_lock(&e->mutex);
    if (!e->ready) {
        pthread_cond_init(&e->covered_more, NULL);
        e->ready = true;
    }
    return e;
}

/* ---- The thread that books turns while there is more work than fits into one, and calls host functions ---- */

/* Runs what is due. Returns when to look again: UINT64_MAX if there is nothing to wait for. */
static uint64_t attend(CUdevice device) {
    struct engine *e = lock_engine(device);
    uint64_t next = UINT64_MAX;

    for (;;) {
        uint64_t now = sim_now_ns();
        struct call *call = e->calls;

        if (covered(e) < atomic_load(&e->submitted)) {
            if (now >= e->turn.end_ns) {
                next_turn(e, device, e->turn.end_ns);
                continue;
            }
            next = e->turn.end_ns;
        }
        if (call == NULL || call->mark > covered(e))
            break;
        if (call->mark > reached(e, now)) {
            uint64_t due = time_of(e, call->mark);

            next = due < next ? due : next;
            break;
        }
        e->calls = call->next;
        pthread_mutex_unlock(&e->mutex);
        call->fn(call->arg);
        free(call);
        lock_engine(device);
        next = UINT64_MAX;
    }
    pthread_mutex_unlock(&e->mutex);
    return next;
}

static struct timespec to_timespec(uint64_t ns) {
    return (struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
}

static void *engine_thread(void *unused) {
    (void)unused;
    for (;;) {
        uint64_t next = UINT64_MAX;

        for (int device = 0; device < driver->device_count; device++) {
            uint64_t due = attend(device);

            next = due < next ? due : next;
        }
        pthread_mutex_lock(&thread_mutex);
        if (!thread_needed) {
            struct timespec until = to_timespec(next);

            if (next == UINT64_MAX)
                pthread_cond_wait(&thread_wakes, &thread_mutex);
            else
                pthread_cond_timedwait(&thread_wakes, &thread_mutex, &until);
        }
        thread_needed = false;
        pthread_mutex_unlock(&thread_mutex);
    }
    return NULL;
}

/* The program's signals are none of the thread's business. */
static bool start_thread(void) {
    pthread_condattr_t clock;
    pthread_attr_t detached;
    pthread_t thread;
    sigset_t all, before;
    bool started;

    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&thread_wakes, &clock);
    pthread_condattr_destroy(&clock);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    started = pthread_create(&thread, &detached, engine_thread, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    return started;
}

static bool wake_thread(void) {
    bool runs;

    pthread_mutex_lock(&thread_mutex);
    if (!thread_runs)
        thread_runs = start_thread();
    runs = thread_runs;
    thread_needed = true;
    pthread_cond_signal(&thread_wakes);
    pthread_mutex_unlock(&thread_mutex);
    return runs;
}

/* ---- Submitting and waiting ---- */

static void sleep_until(uint64_t ns) {
    struct timespec until = to_timespec(ns);

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0) {
    }
}

uint64_t engine_mark(CUdevice device) {
    return atomic_load_explicit(&engines[device].submitted, memory_order_acquire);
}

uint64_t engine_submit(CUdevice device, uint64_t ns) {
    struct engine *e = &engines[device];
    uint64_t now, mark, oldest;
    bool backlog;

    if (ns == 0)
        return engine_mark(device);
    lock_engine(device);
    now = sim_now_ns();
    while ((oldest = e->queue[e->launches % QUEUE_DEPTH]) > reached(e, now)) {
        pthread_mutex_unlock(&e->mutex);
        engine_wait(device, oldest);
        lock_engine(device);
        now = sim_now_ns();
    }
    backlog = covered(e) < atomic_load(&e->submitted);
    mark = atomic_load(&e->submitted) + ns;
    atomic_store_explicit(&e->submitted, mark, memory_order_release);
    e->queue[e->launches++ % QUEUE_DEPTH] = mark;
    if (!backlog) {
        if (now >= e->turn.end_ns)
            next_turn(e, device, 0);
        else if (!mps_client())
            sim_turn_extend(driver->gpus[device], &e->turn, ns);
        /* Whatever did not fit is the thread's, which must be told only at the beginning of such work. */
        if (covered(e) < mark)
            wake_thread();
    }
    pthread_mutex_unlock(&e->mutex);
    return mark;
}

bool engine_done(CUdevice device, uint64_t mark) {
    struct engine *e = &engines[device];
    bool done;

    if (mark <= atomic_load_explicit(&e->done, memory_order_acquire))
        return true;
    lock_engine(device);
    note_done(e, reached(e, sim_now_ns()));
    done = mark <= atomic_load(&e->done);
    pthread_mutex_unlock(&e->mutex);
    return done;
}

void engine_wait(CUdevice device, uint64_t mark) {
    struct engine *e;
    uint64_t time;

    if (engine_done(device, mark))
        return;
    e = lock_engine(device);
    while (covered(e) < mark)
        pthread_cond_wait(&e->covered_more, &e->mutex);
    time = time_of(e, mark);
    pthread_mutex_unlock(&e->mutex);
    sleep_until(time + driver->wake_ns);
    note_done(e, mark);
}

void engine_stamp(CUdevice device, struct stamp *stamp, uint64_t mark) {
    struct engine *e = lock_engine(device);
    uint64_t now = sim_now_ns();

    stamp->mark = mark;
    if (mark <= reached(e, now)) {
        atomic_store(&stamp->time_ns, now);
    } else if (mark <= covered(e)) {
        atomic_store(&stamp->time_ns, time_of(e, mark));
    } else {
        atomic_store(&stamp->time_ns, 0);
        stamp->next = e->stamps;
        e->stamps = stamp;
    }
    pthread_mutex_unlock(&e->mutex);
}

void engine_unstamp(CUdevice device, struct stamp *stamp) {
    struct engine *e = lock_engine(device);

    for (struct stamp **link = &e->stamps; *link != NULL; link = &(*link)->next) {
        if (*link == stamp) {
            *link = stamp->next;
            break;
        }
    }
    pthread_mutex_unlock(&e->mutex);
}

bool engine_call(CUdevice device, uint64_t mark, void (*fn)(void *arg), void *arg) {
    struct call *call = malloc(sizeof(*call));
    struct engine *e;
    struct call **link;

    if (call == NULL)
        return false;
    *call = (struct call){.mark = mark, .fn = fn, .arg = arg};
    e = lock_engine(device);
    link = &e->calls;
    while (*link != NULL && (*link)->mark <= mark)
        link = &(*link)->next;
    call->next = *link;
    *link = call;
    pthread_mutex_unlock(&e->mutex);
    return wake_thread();
}
