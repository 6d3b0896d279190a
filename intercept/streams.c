#include "streams.h"

#include "cuda_real.h"
#include "mapped.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WAIT_NS UINT64_C(500000000)
#define POLL_NS 20000

/* A stream, or once somebody has asked for it, an event that was recorded in it after the frees. All zero is a place that is free. */
struct freed_in {
    CUcontext context;
    CUstream stream;
    CUevent event;
    long thread;     /* whose default stream it is; 0: not a thread's */
    uint64_t number; /* of the last free in it: one that has not changed was not used again; 0: the place is free */
};

static long this_thread(void) {
    return syscall(SYS_gettid);
}

/* Under the lock. */
static bool grow(struct streams *streams) {
    struct freed_in *larger = mapped_grow(streams->each, &streams->room, sizeof *larger);
    if (larger != NULL)
        streams->each = larger;
    return larger != NULL;
}

/* Under the lock: the place of what is the same, or a free one. */
static struct freed_in *place_for(struct streams *streams, const struct freed_in *freed) {
    size_t unused = streams->count;
    for (size_t i = 0; i < streams->count; i++) {
        const struct freed_in *known = &streams->each[i];
        if (known->number == 0)
            unused = i < unused ? i : unused;
        else if (known->event == NULL && known->stream == freed->stream && known->context == freed->context &&
                 known->thread == freed->thread)
            return &streams->each[i];
    }
    if (unused == streams->room && !grow(streams))
        return NULL;
    streams->count += unused == streams->count;
    return &streams->each[unused];
}

void streams_freed_in(struct process *process, CUstream stream) {
    struct streams *streams = &process->streams;
    struct freed_in freed = {.stream = stream};
    if (streams_is_default(stream))
        REAL(cuCtxGetCurrent)(&freed.context);
    else
        REAL(cuStreamGetCtx)(stream, &freed.context);
    if (stream == CU_STREAM_PER_THREAD)
        freed.thread = this_thread();
    lock_take(&streams->lock);
    struct freed_in *place = place_for(streams, &freed);
    freed.number = ++streams->frees;
    if (place != NULL)
        *place = freed;
    else
        streams->incomplete = true;
    lock_give(&streams->lock);
}

static bool at(struct streams *streams, size_t index, struct freed_in *freed) {
    lock_take(&streams->lock);
    bool any = index < streams->count;
    if (any)
        *freed = streams->each[index];
    lock_give(&streams->lock);
    return any;
}

/* Puts another in a place. False if something was freed in it since. */
static bool replace(struct streams *streams, size_t index, const struct freed_in *freed, struct freed_in other) {
    lock_take(&streams->lock);
    bool same = streams->each[index].number == freed->number;
    if (same)
        streams->each[index] = other;
    lock_give(&streams->lock);
    return same;
}

static void take_out(struct streams *streams, size_t index, const struct freed_in *freed) {
    if (replace(streams, index, freed, (struct freed_in){0}) && freed->event != NULL)
        REAL(cuEventDestroy_v2)(freed->event);
}

static bool is_recorded(CUstream stream) {
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    return REAL(cuStreamIsCapturing)(stream, &capturing) != CUDA_SUCCESS || capturing != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* --- events instead of streams ------------------------------------------------------------------------------------- */

/* Another thread's default stream can only be asked by way of the one that waits for it. */
static CUstream stream_to_ask(const struct freed_in *freed) {
    return freed->thread == 0 || freed->thread == this_thread() ? freed->stream : CU_STREAM_LEGACY;
}

/* In the stream's context; `freed` is the event then. Where something was freed meanwhile, the stream stays. */
static bool record(struct streams *streams, size_t index, struct freed_in *freed) {
    struct freed_in recorded = {.context = freed->context, .number = freed->number};
    CUstream stream = stream_to_ask(freed);
    if (is_recorded(stream) || REAL(cuEventCreate)(&recorded.event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return false;
    if (REAL(cuEventRecord)(recorded.event, stream) == CUDA_SUCCESS && replace(streams, index, freed, recorded)) {
        *freed = recorded;
        return true;
    }
    REAL(cuEventDestroy_v2)(recorded.event);
    return false;
}

void streams_gone(struct process *process, CUstream stream) {
    struct streams *streams = &process->streams;
    struct freed_in freed;
    if (streams_is_default(stream))
        return;
    lock_take(&streams->asking);
    for (size_t i = 0; at(streams, i, &freed); i++)
        if (freed.number != 0 && freed.stream == stream && !record(streams, i, &freed))
            take_out(streams, i, &freed);
    lock_give(&streams->asking);
}

/* Its events are gone with it. */
void streams_context_gone(struct process *process, CUcontext context) {
    struct streams *streams = &process->streams;
    lock_take(&streams->lock);
    for (size_t i = 0; i < streams->count; i++)
        if (streams->each[i].context == context)
            streams->each[i] = (struct freed_in){0};
    lock_give(&streams->lock);
}

/* --- asking -------------------------------------------------------------------------------------------------------- */

/* By an event in it, since a stream may never be idle, or be busy again by the time that it is synchronised. What was freed is the
 * pools' again once something was synchronised, which takes no time when it is done. */
static bool is_done(struct streams *streams, size_t index, struct freed_in *freed) {
    if (freed->event == NULL && !record(streams, index, freed))
        return false;
    if (REAL(cuEventQuery)(freed->event) != CUDA_SUCCESS || REAL(cuEventSynchronize)(freed->event) != CUDA_SUCCESS)
        return false;
    take_out(streams, index, freed);
    return true;
}

static bool is_done_in_context(struct streams *streams, size_t index, struct freed_in *freed) {
    CUcontext current = NULL;
    bool other = REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current != freed->context;
    if (other && REAL(cuCtxPushCurrent_v2)(freed->context) != CUDA_SUCCESS) {
        replace(streams, index, freed, (struct freed_in){0}); /* the context is gone, and its work with it */
        return true;
    }
    bool done = is_done(streams, index, freed);
    if (other)
        REAL(cuCtxPopCurrent_v2)(&current);
    return done;
}

/* Whether all frees up to this number are done. */
static bool are_done(struct streams *streams, uint64_t last) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    struct freed_in freed;
    bool done = true, exchanged = false;
    lock_take(&streams->asking);
    for (size_t i = 0; done && at(streams, i, &freed); i++) {
        if (freed.number == 0 || freed.number > last)
            continue;
        exchanged = exchanged || REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
        done = exchanged && is_done_in_context(streams, i, &freed);
    }
    if (exchanged)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    done = done && !streams->incomplete;
    lock_give(&streams->asking);
    return done;
}

bool streams_are_idle(struct process *process) {
    return are_done(&process->streams, UINT64_MAX);
}

static uint64_t now_ns(void) {
    struct timespec time = {0};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

/* Polls, since the driver knows no wait with an end. */
void streams_wait(struct process *process) {
    const struct timespec pause = {.tv_nsec = POLL_NS};
    struct streams *streams = &process->streams;
    int error = errno;
    lock_take(&streams->lock);
    uint64_t last = streams->frees;
    lock_give(&streams->lock);
    for (uint64_t end = now_ns() + WAIT_NS; !are_done(streams, last) && now_ns() < end;)
        syscall(SYS_nanosleep, &pause, NULL);
    errno = error;
}
