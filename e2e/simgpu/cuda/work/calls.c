#include "calls.h"

#include "stream.h"

#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_AGAIN_NS 200000

/*
 * What comes after the calls that were queued in a stream when it was made, and after no others: calls of different
 * streams are made in any order, and what is queued in a stream later says nothing of what came before.
 */
struct calls_point {
    struct CUstream_st *stream; /* there as long as calls of it are ahead */
    struct CUctx_st *context;
    uint64_t number;          /* greater than those of the calls that it comes after */
    struct calls_point *next; /* of those that are not reached */
    _Atomic uint32_t references;
    _Atomic uint32_t ahead; /* calls that it waits for; a futex */
};

_Atomic uint32_t calls_waiting;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  /* around what follows, and the counts of calls */
static struct calls_point *points, **points_end = &points; /* in their order, in which they are reached as well */
static struct stream_call *held, **held_end = &held;       /* that were reached and wait, or come behind such */
static pthread_cond_t look_again;
static bool thread_runs, look_needed;
static uint64_t last_number;

static void futex_wait_zero(_Atomic uint32_t *word) {
    uint32_t value;

    while ((value = atomic_load(word)) != 0)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_decrement(_Atomic uint32_t *word) {
    if (atomic_fetch_sub(word, 1) == 1)
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static bool is_blocking(const struct CUstream_st *stream) {
    return (stream->flags & CU_STREAM_NON_BLOCKING) == 0;
}

static _Atomic uint32_t *calls_of(struct CUstream_st *stream) {
    return stream == stream->context->legacy ? &stream->context->blocking_calls : &stream->calls;
}

void stream_wait_calls(struct CUstream_st *stream) {
    futex_wait_zero(calls_of(stream));
}

void context_wait_calls(struct CUctx_st *context) {
    futex_wait_zero(&context->calls);
}

bool stream_calls_done(struct CUstream_st *stream) {
    return atomic_load(calls_of(stream)) == 0;
}

/* The legacy default stream comes after all streams of its context that block. */
bool stream_waits(struct CUstream_st *stream) {
    return atomic_load(&stream->waits) != 0 ||
           (stream == stream->context->legacy && atomic_load(&stream->context->blocking_waits) != 0);
}

/* ---- Under the mutex: counts and points ---- */

static void count_in_locked(struct stream_call *call) {
    struct CUstream_st *stream = call->stream;
    uint32_t waits = call->ready != NULL;

    call->number = ++last_number;
    atomic_fetch_add(&stream->calls, 1);
    atomic_fetch_add(&stream->waits, waits);
    atomic_fetch_add(&calls_waiting, waits);
    atomic_fetch_add(&stream->context->calls, 1);
    if (is_blocking(stream)) {
        atomic_fetch_add(&stream->context->blocking_calls, 1);
        atomic_fetch_add(&stream->context->blocking_waits, waits);
    }
}

static bool is_ahead(const struct calls_point *point, const struct stream_call *call) {
    bool covered = point->stream == point->context->legacy
                       ? call->stream->context == point->context && is_blocking(call->stream)
                       : call->stream == point->stream;

    return covered && call->number < point->number;
}

static void reach_points_locked(const struct stream_call *call) {
    for (struct calls_point **link = &points, *point; (point = *link) != NULL;) {
        bool ahead = is_ahead(point, call);

        if (!ahead || atomic_load(&point->ahead) > 1) {
            atomic_fetch_sub(&point->ahead, ahead);
            link = &point->next;
            continue;
        }
        *link = point->next;
        if (point->next == NULL)
            points_end = link;
        futex_decrement(&point->ahead);
        calls_point_drop(point);
    }
}

/* Of streams first, so that who waits for an event or for the context finds them done; of the context last, which may be
 * gone after that. */
static void count_out_locked(const struct stream_call *call) {
    struct CUstream_st *stream = call->stream;
    struct CUctx_st *context = stream->context;
    bool blocking = is_blocking(stream);
    uint32_t waits = call->ready != NULL;

    atomic_fetch_sub(&calls_waiting, waits);
    atomic_fetch_sub(&stream->waits, waits);
    futex_decrement(&stream->calls);
    if (blocking) {
        atomic_fetch_sub(&context->blocking_waits, waits);
        futex_decrement(&context->blocking_calls);
    }
    reach_points_locked(call);
    if (stream->destroyed && atomic_load(&stream->calls) == 0)
        stream_delete(stream);
    futex_decrement(&context->calls);
}

/* ---- Under the mutex: calls that are held up ---- */

static bool is_behind(const struct stream_call *call, const struct stream_call *other) {
    const struct CUctx_st *context = call->stream->context;
    bool legacy = call->stream == context->legacy || other->stream == context->legacy;

    return call->stream == other->stream ||
           (legacy && other->stream->context == context && is_blocking(call->stream) && is_blocking(other->stream));
}

/* Whether those that are held up before `end` hold it up. */
static bool is_held_up_locked(const struct stream_call *call, const struct stream_call *end) {
    for (const struct stream_call *other = held; other != end; other = other->next) {
        if (is_behind(call, other))
            return true;
    }
    return false;
}

/* The first from here on that no other one holds up. */
static struct stream_call *first_in_its_stream_locked(struct stream_call *call) {
    while (call != NULL && is_held_up_locked(call, call))
        call = call->next;
    return call;
}

static void remove_locked(struct stream_call *call) {
    struct stream_call **link = &held;

    while (*link != call)
        link = &(*link)->next;
    *link = call->next;
    if (call->next == NULL)
        held_end = link;
}

void calls_look(void) {
    if (atomic_load(&calls_waiting) == 0)
        return;
    pthread_mutex_lock(&mutex);
    look_needed = true;
    if (thread_runs)
        pthread_cond_signal(&look_again);
    pthread_mutex_unlock(&mutex);
}

/* ---- Making them. Not under the mutex, since they take others. ---- */

static bool is_ready(const struct stream_call *call) {
    return call->ready == NULL || call->stream->context->ending || call->ready(call);
}

static void run(struct stream_call *call) {
    if (call->run != NULL)
        call->run(call);
}

static void end_locked(struct stream_call *call) {
    count_out_locked(call);
    if (call->discard != NULL)
        call->discard(call);
    free(call);
}

static void pause_locked(void) {
    struct timespec until;

    if (held == NULL) {
        pthread_cond_wait(&look_again, &mutex);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LOOK_AGAIN_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_cond_timedwait(&look_again, &mutex, &until);
}

/* Makes one that is ready, and says whether there was one. It holds up what is behind it as long as it runs: only this
 * thread takes calls out of the list. */
static bool run_one_locked(void) {
    struct stream_call *call = first_in_its_stream_locked(held);
    bool ready = false;

    while (call != NULL && !ready) {
        pthread_mutex_unlock(&mutex);
        ready = is_ready(call);
        if (ready)
            run(call);
        pthread_mutex_lock(&mutex);
        if (!ready)
            call = first_in_its_stream_locked(call->next);
    }
    if (!ready)
        return false;
    remove_locked(call);
    end_locked(call);
    return true;
}

static void *look_at_held(void *unused) {
    (void)unused;
    pthread_mutex_lock(&mutex);
    for (;;) {
        look_needed = false;
        while (run_one_locked()) {
        }
        if (!look_needed)
            pause_locked();
    }
    return NULL;
}

/* The program's signals are none of the thread's business. */
static bool start_thread_locked(void) {
    pthread_condattr_t clock;
    pthread_t thread;
    sigset_t all, before;

    if (thread_runs)
        return true;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&look_again, &clock);
    pthread_condattr_destroy(&clock);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_runs = pthread_create(&thread, NULL, look_at_held, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (thread_runs)
        pthread_detach(thread);
    return thread_runs;
}

/* On the engine's thread, when the stream's work before the call is done. */
static void reach(void *arg) {
    struct stream_call *call = arg;
    bool ready = is_ready(call), now;

    pthread_mutex_lock(&mutex);
    now = ready && !is_held_up_locked(call, NULL);
    if (!now) {
        *held_end = call;
        held_end = &call->next;
        look_needed = true;
        pthread_cond_signal(&look_again);
    }
    pthread_mutex_unlock(&mutex);
    if (!now)
        return;
    run(call);
    pthread_mutex_lock(&mutex);
    end_locked(call);
    pthread_mutex_unlock(&mutex);
}

CUresult call_queue(struct stream_call *call) {
    bool queued;

    pthread_mutex_lock(&mutex);
    count_in_locked(call);
    queued = call->ready == NULL || start_thread_locked();
    pthread_mutex_unlock(&mutex);
    queued = queued && engine_call(call->stream->context->device, stream_mark(call->stream), reach, call);
    if (queued)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    end_locked(call);
    pthread_mutex_unlock(&mutex);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void context_abandon_waits(struct CUctx_st *context) {
    context->ending = true;
    calls_look();
}

void stream_delete_after_calls(struct CUstream_st *stream) {
    pthread_mutex_lock(&mutex);
    if (atomic_load(&stream->calls) == 0)
        stream_delete(stream);
    else
        stream->destroyed = true;
    pthread_mutex_unlock(&mutex);
}

/* ---- Points ---- */

CUresult calls_point_new(struct CUstream_st *stream, struct calls_point **point) {
    struct calls_point *fresh;
    uint32_t ahead;

    *point = NULL;
    if (atomic_load(calls_of(stream)) == 0)
        return CUDA_SUCCESS;
    fresh = malloc(sizeof(*fresh));
    REQUIRE(fresh != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    pthread_mutex_lock(&mutex);
    ahead = atomic_load(calls_of(stream));
    *fresh = (struct calls_point){
        .stream = stream, .context = stream->context, .number = ++last_number, .references = 2, .ahead = ahead};
    if (ahead != 0) {
        *points_end = *point = fresh;
        points_end = &fresh->next;
    } else {
        free(fresh);
    }
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

/* Under the mutex if need be: a call is counted out of its stream, whom a thread may have waited for, before its points. */
bool calls_point_reached(struct calls_point *point) {
    bool reached = point == NULL || atomic_load(&point->ahead) == 0;

    if (reached)
        return true;
    pthread_mutex_lock(&mutex);
    reached = atomic_load(&point->ahead) == 0;
    pthread_mutex_unlock(&mutex);
    return reached;
}

void calls_point_wait(struct calls_point *point) {
    if (point != NULL)
        futex_wait_zero(&point->ahead);
}

void calls_point_drop(struct calls_point *point) {
    if (point != NULL && atomic_fetch_sub(&point->references, 1) == 1)
        free(point);
}

struct wait_for_point {
    struct stream_call call;
    struct calls_point *point;
};

static bool point_is_reached(const struct stream_call *call) {
    return calls_point_reached(((const struct wait_for_point *)call)->point);
}

static void drop_point(const struct stream_call *call) {
    calls_point_drop(((const struct wait_for_point *)call)->point);
}

CUresult stream_wait_point(struct CUstream_st *stream, struct calls_point *point) {
    struct wait_for_point *wait;

    if (calls_point_reached(point))
        return CUDA_SUCCESS;
    wait = malloc(sizeof(*wait));
    REQUIRE(wait != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    atomic_fetch_add(&point->references, 1);
    *wait = (struct wait_for_point){.call = {.stream = stream, .ready = point_is_reached, .discard = drop_point},
                                    .point = point};
    return call_queue(&wait->call);
}
