#include "memory/streams.h"

#include "driver/cuda_real.h"
#include "memory/pools.h"
#include "state/contexts.h"
#include "system/mapped.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WAIT_NS UINT64_C(500000000)
#define POLL_NS 20000

/* Entries that are queried for each new one: more than one, so that finished ones do not accumulate. */
#define SWEEP 4

/* An entry: a stream in which memory was freed. All zero is a free entry. */
struct freed_in {
    CUcontext context;
    CUstream stream;
    CUevent event;        /* recorded in the stream after the frees, and queried in its place; NULL: not yet */
    long thread;          /* for a thread's default stream: the thread; else 0 */
    uint64_t number;      /* of the last free in it, which changes with each free; 0: the entry is free */
    streams_freed *freed; /* called with `memory` when it is done; NULL for a pool's memory */
    struct entry memory;
};

/* Not in a thread-local variable: musl's loader takes no library with one that is loaded later. */
static long this_thread(void) {
    return syscall(SYS_gettid);
}

/* Whether an entry is for all frees of pools' memory in its stream. Each event, and other memory, has its own. */
static bool is_shared(const struct freed_in *freed) {
    return freed->event == NULL && freed->freed == NULL;
}

/* Under the lock: the entry of the same stream, or a free one. NULL if there is no memory. */
static struct freed_in *place_for(struct streams *streams, const struct freed_in *freed) {
    size_t unused = streams->count;
    for (size_t i = 0; i < streams->count; i++) {
        const struct freed_in *known = &streams->each[i];
        if (known->number == 0)
            unused = i < unused ? i : unused;
        else if (is_shared(freed) && is_shared(known) && known->stream == freed->stream &&
                 known->context == freed->context && known->thread == freed->thread)
            return &streams->each[i];
    }
    if (unused == streams->room) {
        struct freed_in *larger = mapped_grow(streams->each, &streams->room, sizeof *larger);
        if (larger == NULL)
            return NULL;
        streams->each = larger;
    }
    streams->count += unused == streams->count;
    return &streams->each[unused];
}

/* Puts an entry with the next number, and returns its index; -1 if there is no memory. */
static inline ssize_t put(struct streams *streams, struct freed_in *freed) {
    lock_take(&streams->lock);
    struct freed_in *place = place_for(streams, freed);
    freed->number = ++streams->frees;
    if (place != NULL)
        *place = *freed;
    ssize_t index = place != NULL ? place - streams->each : -1;
    lock_give(&streams->lock);
    return index;
}

CUcontext streams_context(CUstream stream) {
    CUcontext context = NULL;
    if (contexts_is_default_stream(stream))
        REAL(cuCtxGetCurrent)(&context);
    else
        REAL(cuStreamGetCtx)(stream, &context);
    return context;
}

void streams_freed_in(struct process *process, CUcontext context, CUstream stream) {
    struct streams *streams = &process->streams;
    struct freed_in freed = {.stream = stream, .context = context};
    if (stream == CU_STREAM_PER_THREAD)
        freed.thread = this_thread();
    if (put(streams, &freed) < 0)
        atomic_store(&streams->incomplete, true);
}

static bool at(struct streams *streams, size_t index, struct freed_in *freed) {
    lock_take(&streams->lock);
    bool any = index < streams->count;
    if (any)
        *freed = streams->each[index];
    lock_give(&streams->lock);
    return any;
}

/* Replaces an entry. False if something was freed in its stream since it was read. */
static bool replace(struct streams *streams, size_t index, const struct freed_in *freed, struct freed_in other) {
    lock_take(&streams->lock);
    bool same = index < streams->count && streams->each[index].number == freed->number;
    if (same)
        streams->each[index] = other;
    while (streams->count > 0 && streams->each[streams->count - 1].number == 0)
        streams->count--;
    lock_give(&streams->lock);
    return same;
}

/* Removes an entry whose frees are done. */
static void take_out(struct process *process, size_t index, const struct freed_in *freed) {
    struct streams *streams = &process->streams;
    if (!replace(streams, index, freed, (struct freed_in){0}))
        return;
    if (freed->event != NULL)
        REAL(cuEventDestroy_v2)(freed->event);
    if (freed->freed == NULL)
        return;
    atomic_fetch_sub(&streams->waiting, 1);
    freed->freed(process, &freed->memory, CUDA_SUCCESS);
}

static bool is_recorded(CUstream stream) {
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    return REAL(cuStreamIsCapturing)(stream, &capturing) != CUDA_SUCCESS || capturing != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* --- events in place of streams ----------------------------------------------------------------------------------- */

/* Not if another thread destroyed the stream, and perhaps created a new one with its handle, while memory was freed in it. */
static bool exists(const struct freed_in *freed) {
    CUcontext context = NULL;
    return contexts_is_default_stream(freed->stream) ||
           (REAL(cuStreamGetCtx)(freed->stream, &context) == CUDA_SUCCESS && context == freed->context);
}

/* The legacy default stream waits for those that cannot be named: another thread's default stream and a destroyed one. */
static CUstream stream_to_query(const struct freed_in *freed) {
    bool named = freed->thread == 0 || freed->thread == this_thread();
    return named && exists(freed) ? freed->stream : CU_STREAM_LEGACY;
}

/* An event that is recorded in the stream; NULL if there is none. Not where another thread has begun a capture meanwhile: to
 * query an event of a capture makes that invalid. */
static CUevent record_event(CUstream stream) {
    CUevent event = NULL;
    if (is_recorded(stream) || REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return NULL;
    if (REAL(cuEventRecord)(event, stream) == CUDA_SUCCESS && !is_recorded(stream))
        return event;
    REAL(cuEventDestroy_v2)(event);
    return NULL;
}

/* Records an event in an entry's stream, in `freed` too. False if that failed or if something was freed in the stream
 * meanwhile. The stream's context is current. */
static bool record(struct streams *streams, size_t index, struct freed_in *freed) {
    struct freed_in recorded = *freed;
    recorded.event = record_event(stream_to_query(freed));
    if (recorded.event != NULL && replace(streams, index, freed, recorded)) {
        *freed = recorded;
        return true;
    }
    if (recorded.event != NULL)
        REAL(cuEventDestroy_v2)(recorded.event);
    return false;
}

/* The event was recorded in a capture that has ended since: another is recorded when the entry is queried again. */
static void forget_event(struct streams *streams, size_t index, const struct freed_in *freed) {
    struct freed_in without = *freed;
    without.event = NULL;
    if (replace(streams, index, freed, without))
        REAL(cuEventDestroy_v2)(freed->event);
}

/* --- querying ----------------------------------------------------------------------------------------------------- */

/* Queries an event rather than the stream, which may never be idle. The driver returns freed memory to its pool at a
 * synchronisation, which takes no time once the event is done. Under `querying`, as are the functions below. */
static bool is_done(struct process *process, size_t index, struct freed_in *freed, bool synchronize) {
    struct streams *streams = &process->streams;
    if (freed->event == NULL && !record(streams, index, freed))
        return false;
    CUresult result = REAL(cuEventQuery)(freed->event);
    if (result == CUDA_ERROR_CAPTURED_EVENT)
        forget_event(streams, index, freed);
    if (result != CUDA_SUCCESS)
        return false;
    if (synchronize && REAL(cuEventSynchronize)(freed->event) != CUDA_SUCCESS)
        return false;
    streams->unsynchronized = streams->unsynchronized || !synchronize;
    take_out(process, index, freed);
    return true;
}

/* A stream whose context is being ended counts as not done, and is not queried. */
static bool is_done_in_context(struct process *process, size_t index, struct freed_in *freed, bool synchronize) {
    CUcontext current = NULL;
    __attribute__((cleanup(contexts_leave))) struct gate *gate = contexts_try_enter(process, freed->context);
    if (gate == NULL)
        return false;
    if (REAL(cuCtxPushCurrent_v2)(freed->context) != CUDA_SUCCESS) {
        freed->event = NULL; /* the context has ended, with its work and events */
        take_out(process, index, freed);
        return true;
    }
    bool done = is_done(process, index, freed, synchronize);
    REAL(cuCtxPopCurrent_v2)(&current);
    return done;
}

/* Makes this thread's calls harmless to a capture in progress (cuThreadExchangeStreamCaptureMode). */
static bool relax(CUstreamCaptureMode *mode) {
    *mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return REAL(cuThreadExchangeStreamCaptureMode)(mode) == CUDA_SUCCESS;
}

/* Queries the entry at `index` and the next SWEEP entries in turn, and removes those that are done. */
static void sweep(struct process *process, size_t index) {
    struct streams *streams = &process->streams;
    CUstreamCaptureMode mode;
    struct freed_in freed;
    if (!relax(&mode))
        return;
    if (at(streams, index, &freed) && freed.number != 0)
        is_done_in_context(process, index, &freed, false);
    for (int i = 0; i < SWEEP; i++) {
        streams->swept = at(streams, streams->swept, &freed) ? streams->swept + 1 : 0;
        if (streams->swept != 0 && freed.event != NULL)
            is_done_in_context(process, streams->swept - 1, &freed, false);
    }
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

/* --- ends --------------------------------------------------------------------------------------------------------- */

static bool names(const struct freed_in *freed, CUstream stream) {
    return freed->number != 0 && freed->event == NULL && freed->stream == stream;
}

/* The index of an entry of a stream, without an event. False if there is none. */
static bool find(struct streams *streams, CUstream stream, size_t *index) {
    lock_take(&streams->lock);
    size_t i = 0;
    while (i < streams->count && !names(&streams->each[i], stream))
        i++;
    bool found = i < streams->count;
    lock_give(&streams->lock);
    *index = i;
    return found;
}

/* If its frees are not done, an event takes the stream's place. */
void streams_ending(struct process *process, CUstream stream) {
    struct streams *streams = &process->streams;
    struct freed_in freed;
    size_t index;
    pools_stream_ended(process, stream);
    if (contexts_is_default_stream(stream) || !find(streams, stream, &index))
        return;
    lock_take(&streams->querying);
    while (find(streams, stream, &index)) {
        sweep(process, index);
        if (at(streams, index, &freed) && names(&freed, stream))
            take_out(process, index, &freed); /* no event could be recorded */
    }
    lock_give(&streams->querying);
}

/* The context's events ended with it. */
void streams_context_ended(struct process *process, CUcontext context) {
    struct streams *streams = &process->streams;
    struct freed_in freed;
    pools_stream_ended(process, NULL);
    lock_take(&streams->querying);
    for (size_t i = 0; at(streams, i, &freed); i++) {
        if (freed.number == 0 || freed.context != context)
            continue;
        freed.event = NULL;
        take_out(process, i, &freed);
    }
    lock_give(&streams->querying);
}

/* --- memory that is no pool's ------------------------------------------------------------------------------------- */

/* Without an event, one is recorded when the entry is queried. */
static bool record_free(struct process *process, CUstream stream, struct freed_in *freed) {
    freed->event = record_event(stream);
    atomic_fetch_add(&process->streams.waiting, 1);
    ssize_t index = put(&process->streams, freed);
    if (index < 0) {
        atomic_fetch_sub(&process->streams.waiting, 1);
        if (freed->event != NULL)
            REAL(cuEventDestroy_v2)(freed->event);
        return false;
    }
    lock_take(&process->streams.querying);
    sweep(process, (size_t)index);
    lock_give(&process->streams.querying);
    return true;
}

bool streams_free_later(struct process *process, CUcontext context, CUstream stream, const struct entry *memory,
                        streams_freed *done) {
    struct freed_in freed = {.context = context, .stream = stream, .memory = *memory, .freed = done};
    CUcontext pushed;
    if (stream == CU_STREAM_PER_THREAD)
        freed.thread = this_thread();
    if (context == NULL || REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return false;
    bool recorded = record_free(process, stream, &freed);
    REAL(cuCtxPopCurrent_v2)(&pushed);
    return recorded;
}

void streams_settle(struct process *process) {
    struct streams *streams = &process->streams;
    CUstreamCaptureMode mode;
    struct freed_in freed;
    if (atomic_load_explicit(&streams->waiting, memory_order_relaxed) == 0 || !relax(&mode))
        return;
    lock_take(&streams->querying);
    for (size_t i = 0; at(streams, i, &freed); i++)
        if (freed.number != 0 && freed.freed != NULL)
            is_done_in_context(process, i, &freed, false);
    lock_give(&streams->querying);
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

/* --- all streams -------------------------------------------------------------------------------------------------- */

/* Synchronises for the frees that were found done by a query alone. An event that was never recorded does not wait. */
static void synchronize(struct streams *streams) {
    CUevent event = NULL;
    if (!streams->unsynchronized || REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return;
    streams->unsynchronized = REAL(cuEventSynchronize)(event) != CUDA_SUCCESS;
    REAL(cuEventDestroy_v2)(event);
}

/* Whether all frees up to this number are done. */
static bool are_done(struct process *process, uint64_t last) {
    struct streams *streams = &process->streams;
    CUstreamCaptureMode mode;
    struct freed_in freed;
    bool done = true, relaxed = false;
    lock_take(&streams->querying);
    for (size_t i = 0; done && at(streams, i, &freed); i++) {
        if (freed.number == 0 || freed.number > last)
            continue;
        relaxed = relaxed || relax(&mode);
        done = relaxed && is_done_in_context(process, i, &freed, true);
    }
    if (streams->unsynchronized && (relaxed || (relaxed = relax(&mode))))
        synchronize(streams);
    if (relaxed)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    done = done && !streams->incomplete;
    lock_give(&streams->querying);
    return done;
}

bool streams_are_idle(struct process *process) {
    return are_done(process, UINT64_MAX);
}

static uint64_t now_ns(void) {
    struct timespec time = {0};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

/* Polls, since the driver has no wait with a timeout. */
void streams_wait(struct process *process) {
    const struct timespec pause = {.tv_nsec = POLL_NS};
    struct streams *streams = &process->streams;
    int error = errno;
    lock_take(&streams->lock);
    uint64_t last = streams->frees;
    lock_give(&streams->lock);
    for (uint64_t end = now_ns() + WAIT_NS; !are_done(process, last) && now_ns() < end;)
        syscall(SYS_nanosleep, &pause, NULL);
    errno = error;
}
