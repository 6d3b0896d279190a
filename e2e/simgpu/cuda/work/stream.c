#include "stream.h"

#include "capture.h"
#include "cuda/memory/pool_blocks.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LEAST_PRIORITY 0
#define GREATEST_PRIORITY (-5)

static struct handle_table streams = HANDLE_TABLE(7, 1 << 20);
_Static_assert(sizeof(struct CUstream_st) <= 1 << 7, "a stream must fit into its element");

static _Atomic uint64_t next_id = 1;

/* A thread's own default streams, one for each context it used them in; given back when the thread ends. */
struct own_stream {
    uint64_t id; /* the stream's; tells whether the handle still is this stream */
    struct CUstream_st *stream;
    struct own_stream *next;
};
static pthread_key_t own_streams;
static pthread_once_t own_streams_once = PTHREAD_ONCE_INIT;

static struct CUstream_st *stream_new(struct CUctx_st *context, unsigned flags, int priority) {
    struct CUstream_st *stream = handle_new(&streams);

    if (stream == NULL)
        return NULL;
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = next_id++;
    stream->attributes.sync_policy = CU_SYNC_POLICY_AUTO;
    stream->attributes.domain_map.remote = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
    return stream;
}

static void futex_wait_zero(_Atomic uint32_t *word) {
    uint32_t value;

    while ((value = atomic_load(word)) != 0)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_decrement(_Atomic uint32_t *word) {
    if (atomic_fetch_sub(word, 1) == 1)
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void delete_own_streams(void *first) {
    for (struct own_stream *own = first, *next; own != NULL; own = next) {
        next = own->next;
        if (handle_valid(&streams, own->stream) && own->stream->id == own->id) {
            futex_wait_zero(&own->stream->calls);
            capture_stream_gone(own->stream);
            handle_delete(&streams, own->stream);
        }
        free(own);
    }
}

static void make_own_streams(void) {
    pthread_key_create(&own_streams, delete_own_streams);
}

static struct CUstream_st *own_stream(struct CUctx_st *context) {
    struct own_stream *first, *own;

    pthread_once(&own_streams_once, make_own_streams);
    first = pthread_getspecific(own_streams);
    for (own = first; own != NULL; own = own->next) {
        if (handle_valid(&streams, own->stream) && own->stream->id == own->id && own->stream->context == context)
            return own->stream;
    }
    own = malloc(sizeof(*own));
    if (own == NULL)
        return NULL;
    *own = (struct own_stream){.stream = stream_new(context, 0, 0), .next = first};
    if (own->stream == NULL) {
        free(own);
        return NULL;
    }
    own->id = own->stream->id;
    pthread_setspecific(own_streams, own);
    return own->stream;
}

CUresult stream_find(struct CUctx_st *context, CUstream handle, bool per_thread, struct CUstream_st **stream) {
    if (handle == CU_STREAM_PER_THREAD || (handle == NULL && per_thread)) {
        *stream = own_stream(context);
        return *stream != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (handle == CU_STREAM_LEGACY || handle == NULL) {
        *stream = context->legacy;
        return CUDA_SUCCESS;
    }
    if (!handle_valid(&streams, handle))
        return CUDA_ERROR_INVALID_HANDLE;
    if (handle->context != context)
        return CUDA_ERROR_INVALID_CONTEXT;
    *stream = handle;
    return CUDA_SUCCESS;
}

bool streams_context_new(struct CUctx_st *context) {
    context->legacy = stream_new(context, 0, 0);
    return context->legacy != NULL;
}

static void delete_if_of(void *element, void *context) {
    struct CUstream_st *stream = element;

    if (stream->context != context)
        return;
    capture_stream_gone(stream);
    handle_delete(&streams, stream);
}

void streams_context_gone(struct CUctx_st *context) {
    handle_each(&streams, delete_if_of, context);
    context->legacy = NULL;
}

/* ---- Work ---- */

static void raise_mark(_Atomic uint64_t *mark, uint64_t to) {
    uint64_t old = atomic_load_explicit(mark, memory_order_relaxed);

    while (old < to && !atomic_compare_exchange_weak(mark, &old, to)) {
    }
}

void stream_submit(struct CUstream_st *stream, uint64_t ns) {
    stream_follow(stream, engine_submit(stream->context->device, ns));
}

void stream_follow(struct CUstream_st *stream, uint64_t mark) {
    raise_mark(&stream->mark, mark);
    raise_mark(&stream->context->mark, mark);
    if ((stream->flags & CU_STREAM_NON_BLOCKING) == 0)
        raise_mark(&stream->context->blocking_mark, mark);
}

uint64_t stream_mark(struct CUstream_st *stream) {
    return atomic_load(stream == stream->context->legacy ? &stream->context->blocking_mark : &stream->mark);
}

static _Atomic uint32_t *calls_of(struct CUstream_st *stream) {
    return stream == stream->context->legacy ? &stream->context->blocking_calls : &stream->calls;
}

void stream_wait_calls(struct CUstream_st *stream) {
    futex_wait_zero(calls_of(stream));
}

void stream_wait(struct CUstream_st *stream) {
    engine_wait(stream->context->device, stream_mark(stream));
    stream_wait_calls(stream);
}

bool stream_done(struct CUstream_st *stream) {
    return engine_done(stream->context->device, stream_mark(stream)) && atomic_load(calls_of(stream)) == 0;
}

void stream_wait_mark(struct CUstream_st *stream, uint64_t mark) {
    raise_mark(&stream->waited_mark, mark);
    stream_follow(stream, mark);
}

void context_wait(struct CUctx_st *context) {
    engine_wait(context->device, atomic_load(&context->mark));
    futex_wait_zero(&context->calls);
}

/* ---- Host functions ---- */

struct host_call {
    struct CUstream_st *stream;
    CUstream handle; /* as the program knows it */
    CUhostFn fn;
    CUstreamCallback callback;
    void *data;
    uint64_t number; /* grows with each call, and each point between them */
};

/*
 * What comes after the calls that were queued in a stream when it was made, and after no others: calls of different
 * streams are made one at a time as well, and what is queued in a stream later says nothing of what came before.
 */
struct calls_point {
    struct CUstream_st *stream; /* there as long as calls of it are ahead */
    struct CUctx_st *context;
    uint64_t number;          /* greater than those of the calls that it comes after */
    struct calls_point *next; /* of those that are not reached */
    _Atomic uint32_t references;
    _Atomic uint32_t ahead; /* calls that it waits for; a futex */
};

static pthread_mutex_t calls_mutex = PTHREAD_MUTEX_INITIALIZER; /* around what follows, and the counts of calls */
static struct calls_point *points, **points_end = &points;      /* in their order, in which they are reached as well */
static uint64_t last_number;

static void count_in(struct host_call *call) {
    struct CUstream_st *stream = call->stream;

    pthread_mutex_lock(&calls_mutex);
    call->number = ++last_number;
    atomic_fetch_add(&stream->calls, 1);
    atomic_fetch_add(&stream->context->calls, 1);
    if ((stream->flags & CU_STREAM_NON_BLOCKING) == 0)
        atomic_fetch_add(&stream->context->blocking_calls, 1);
    pthread_mutex_unlock(&calls_mutex);
}

static bool is_ahead(const struct calls_point *point, const struct host_call *call) {
    bool covered = point->stream == point->context->legacy
                       ? call->stream->context == point->context && (call->stream->flags & CU_STREAM_NON_BLOCKING) == 0
                       : call->stream == point->stream;

    return covered && call->number < point->number;
}

/* Under the mutex. */
static void reach_points(const struct host_call *call) {
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

/* Of the stream first, so that what waits for the context finds its streams done; after that the stream may be gone. */
static void count_out(const struct host_call *call) {
    struct CUctx_st *context = call->stream->context;
    bool blocking = (call->stream->flags & CU_STREAM_NON_BLOCKING) == 0;

    pthread_mutex_lock(&calls_mutex);
    reach_points(call);
    futex_decrement(&call->stream->calls);
    if (blocking)
        futex_decrement(&context->blocking_calls);
    futex_decrement(&context->calls);
    pthread_mutex_unlock(&calls_mutex);
}

static void run_host_call(void *arg) {
    struct host_call call = *(struct host_call *)arg;

    free(arg);
    if (call.fn != NULL)
        call.fn(call.data);
    else
        call.callback(call.handle, CUDA_SUCCESS, call.data);
    count_out(&call);
}

CUresult calls_point_new(struct CUstream_st *stream, struct calls_point **point) {
    struct calls_point *fresh;
    uint32_t ahead;

    *point = NULL;
    if (atomic_load(calls_of(stream)) == 0)
        return CUDA_SUCCESS;
    fresh = malloc(sizeof(*fresh));
    REQUIRE(fresh != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    pthread_mutex_lock(&calls_mutex);
    ahead = atomic_load(calls_of(stream));
    *fresh = (struct calls_point){
        .stream = stream, .context = stream->context, .number = ++last_number, .references = 2, .ahead = ahead};
    if (ahead != 0) {
        *points_end = *point = fresh;
        points_end = &fresh->next;
    } else {
        free(fresh);
    }
    pthread_mutex_unlock(&calls_mutex);
    return CUDA_SUCCESS;
}

bool calls_point_reached(struct calls_point *point) {
    return point == NULL || atomic_load(&point->ahead) == 0;
}

void calls_point_wait(struct calls_point *point) {
    if (point != NULL)
        futex_wait_zero(&point->ahead);
}

void calls_point_drop(struct calls_point *point) {
    if (point != NULL && atomic_fetch_sub(&point->references, 1) == 1)
        free(point);
}

static CUresult queue_host_call(CUstream hStream, bool per_thread, struct host_call call) {
    struct host_call *copy;
    bool captured;

    REQUIRE_CONTEXT(context);
    TRY(stream_find(context, hStream, per_thread, &call.stream));
    TRY(capture_enter(call.stream, &captured));
    if (captured) {
        union node_work work = {.host = {call.fn, call.data}};

        return call.fn != NULL ? capture_node(call.stream, CU_GRAPH_NODE_TYPE_HOST, &work)
                               : capture_forbid(call.stream);
    }
    call.handle = hStream;
    copy = malloc(sizeof(*copy));
    REQUIRE(copy != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    count_in(&call);
    *copy = call;
    if (engine_call(context->device, stream_mark(call.stream), run_host_call, copy))
        return CUDA_SUCCESS;
    count_out(&call);
    free(copy);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData) {
    REQUIRE_INITIALISED();
    REQUIRE(fn != NULL, CUDA_ERROR_INVALID_VALUE);
    return queue_host_call(hStream, false, (struct host_call){.fn = fn, .data = userData});
}

CUresult cuLaunchHostFunc_ptsz(CUstream hStream, CUhostFn fn, void *userData) {
    REQUIRE_INITIALISED();
    REQUIRE(fn != NULL, CUDA_ERROR_INVALID_VALUE);
    return queue_host_call(hStream, true, (struct host_call){.fn = fn, .data = userData});
}

CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void *userData, unsigned int flags) {
    REQUIRE_INITIALISED();
    REQUIRE(callback != NULL && flags == 0, CUDA_ERROR_INVALID_VALUE);
    return queue_host_call(hStream, false, (struct host_call){.callback = callback, .data = userData});
}

CUresult cuStreamAddCallback_ptsz(CUstream hStream, CUstreamCallback callback, void *userData, unsigned int flags) {
    REQUIRE_INITIALISED();
    REQUIRE(callback != NULL && flags == 0, CUDA_ERROR_INVALID_VALUE);
    return queue_host_call(hStream, true, (struct host_call){.callback = callback, .data = userData});
}

/* ---- The API ---- */

CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority) {
    struct CUstream_st *stream;

    REQUIRE(phStream != NULL && (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_CONTEXT(context);
    if (priority > LEAST_PRIORITY)
        priority = LEAST_PRIORITY;
    if (priority < GREATEST_PRIORITY)
        priority = GREATEST_PRIORITY;
    stream = stream_new(context, flags, priority);
    REQUIRE(stream != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    stream->green = context_green();
    *phStream = stream;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags) {
    return cuStreamCreateWithPriority(phStream, Flags, LEAST_PRIORITY);
}

/* One that another thread is making at this moment has no context yet. */
static bool is_destroyable(CUstream stream) {
    const struct CUctx_st *context =
        stream > CU_STREAM_PER_THREAD && handle_valid(&streams, stream) ? stream->context : NULL;

    return context != NULL && stream != context->legacy;
}

/* Work that is still in it goes on, and is waited for with its context's. */
CUresult cuStreamDestroy_v2(CUstream hStream) {
    REQUIRE_INITIALISED();
    REQUIRE(is_destroyable(hStream), CUDA_ERROR_INVALID_HANDLE);
    stream_wait_calls(hStream);
    capture_stream_gone(hStream);
    handle_delete(&streams, hStream);
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream hStream) {
    return cuStreamDestroy_v2(hStream);
}

/* Begins a function on a stream: declares `context` and `stream`. */
#define REQUIRE_STREAM(hStream, per_thread)                                                                            \
    struct CUstream_st *stream;                                                                                        \
    REQUIRE_CONTEXT(context);                                                                                          \
    TRY(stream_find(context, hStream, per_thread, &stream))

static CUresult synchronize(CUstream hStream, bool per_thread) {
    REQUIRE_STREAM(hStream, per_thread);
    TRY(capture_forbid(stream));
    stream_wait(stream);
    pools_synchronised(context->device);
    return gpu_error(context_gpu(context));
}

static CUresult query(CUstream hStream, bool per_thread) {
    REQUIRE_STREAM(hStream, per_thread);
    TRY(capture_forbid(stream));
    return stream_done(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult get_priority(CUstream hStream, bool per_thread, int *priority) {
    REQUIRE(priority != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_STREAM(hStream, per_thread);
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

static CUresult get_flags(CUstream hStream, bool per_thread, unsigned *flags) {
    REQUIRE(flags != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_STREAM(hStream, per_thread);
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

static CUresult get_id(CUstream hStream, bool per_thread, unsigned long long *id) {
    REQUIRE(id != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_STREAM(hStream, per_thread);
    *id = stream->id;
    return CUDA_SUCCESS;
}

/* A stream of another context is answered too: this is how a program finds out. */
static CUresult get_context(CUstream hStream, bool per_thread, CUcontext *pctx) {
    struct CUstream_st *stream;
    CUresult ret;

    REQUIRE(pctx != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_CONTEXT(context);
    ret = stream_find(context, hStream, per_thread, &stream);
    if (ret == CUDA_ERROR_INVALID_CONTEXT)
        stream = hStream;
    else if (ret != CUDA_SUCCESS)
        return ret;
    *pctx = stream->context;
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream hStream) {
    return synchronize(hStream, false);
}

CUresult cuStreamSynchronize_ptsz(CUstream hStream) {
    return synchronize(hStream, true);
}

CUresult cuStreamQuery(CUstream hStream) {
    return query(hStream, false);
}

CUresult cuStreamQuery_ptsz(CUstream hStream) {
    return query(hStream, true);
}

CUresult cuStreamGetPriority(CUstream hStream, int *priority) {
    return get_priority(hStream, false, priority);
}

CUresult cuStreamGetPriority_ptsz(CUstream hStream, int *priority) {
    return get_priority(hStream, true, priority);
}

CUresult cuStreamGetFlags(CUstream hStream, unsigned int *flags) {
    return get_flags(hStream, false, flags);
}

CUresult cuStreamGetFlags_ptsz(CUstream hStream, unsigned int *flags) {
    return get_flags(hStream, true, flags);
}

CUresult cuStreamGetId(CUstream hStream, unsigned long long *streamId) {
    return get_id(hStream, false, streamId);
}

CUresult cuStreamGetId_ptsz(CUstream hStream, unsigned long long *streamId) {
    return get_id(hStream, true, streamId);
}

CUresult cuStreamGetCtx(CUstream hStream, CUcontext *pctx) {
    return get_context(hStream, false, pctx);
}

CUresult cuStreamGetCtx_ptsz(CUstream hStream, CUcontext *pctx) {
    return get_context(hStream, true, pctx);
}
