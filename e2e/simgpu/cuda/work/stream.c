#include "stream.h"

#include "capture.h"
#include "cuda/memory/pool_blocks.h"

#include <stdlib.h>

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

void stream_delete(struct CUstream_st *stream) {
    handle_delete(&streams, stream);
}

static void delete_own_streams(void *first) {
    for (struct own_stream *own = first, *next; own != NULL; own = next) {
        next = own->next;
        if (handle_valid(&streams, own->stream) && own->stream->id == own->id) {
            capture_stream_gone(own->stream);
            stream_delete_after_calls(own->stream);
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
    if (!handle_valid(&streams, handle) || handle->destroyed)
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
    stream_delete(stream);
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

void stream_wait(struct CUstream_st *stream) {
    engine_wait(stream->context->device, stream_mark(stream));
    stream_wait_calls(stream);
}

bool stream_done(struct CUstream_st *stream) {
    return engine_done(stream->context->device, stream_mark(stream)) && stream_calls_done(stream);
}

void stream_wait_mark(struct CUstream_st *stream, uint64_t mark) {
    raise_mark(&stream->waited_mark, mark);
    stream_follow(stream, mark);
}

void context_wait(struct CUctx_st *context) {
    engine_wait(context->device, atomic_load(&context->mark));
    context_wait_calls(context);
}

/* ---- Host functions ---- */

struct host_call {
    struct stream_call call;
    CUstream handle; /* as the program knows it */
    CUhostFn fn;
    CUstreamCallback callback;
    void *data;
};

static void run_host_call(struct stream_call *call) {
    const struct host_call *host = (const struct host_call *)call;

    if (host->fn != NULL)
        host->fn(host->data);
    else
        host->callback(host->handle, CUDA_SUCCESS, host->data);
}

static CUresult queue_host_call(CUstream hStream, bool per_thread, struct host_call host) {
    struct host_call *copy;
    bool captured;

    REQUIRE_CONTEXT(context);
    TRY(stream_find(context, hStream, per_thread, &host.call.stream));
    TRY(capture_enter(host.call.stream, &captured));
    if (captured) {
        union node_work work = {.host = {host.fn, host.data}};

        return host.fn != NULL ? capture_node(host.call.stream, CU_GRAPH_NODE_TYPE_HOST, &work)
                               : capture_forbid(host.call.stream);
    }
    host.call.run = run_host_call;
    host.handle = hStream;
    copy = malloc(sizeof(*copy));
    REQUIRE(copy != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    *copy = host;
    return call_queue(&copy->call);
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

    return context != NULL && stream != context->legacy && !stream->destroyed;
}

/* Work that is still in it goes on, and is waited for with its context's. */
CUresult cuStreamDestroy_v2(CUstream hStream) {
    REQUIRE_INITIALISED();
    REQUIRE(is_destroyable(hStream), CUDA_ERROR_INVALID_HANDLE);
    capture_stream_gone(hStream);
    stream_delete_after_calls(hStream);
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
