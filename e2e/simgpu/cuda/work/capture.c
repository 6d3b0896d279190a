#include "capture.h"

#include <stdlib.h>
#include <string.h>

_Atomic uint32_t captures_alive;

/* The last nodes of something: what comes next comes after them. */
struct ends {
    CUgraphNode *nodes;
    size_t count;
};

struct capture {
    uint64_t id;
    struct CUgraph_st *graph;
    bool graph_is_programs; /* it was given, not made */
    struct CUstream_st *origin;
    struct CUctx_st *context;
    CUstreamCaptureMode mode;
    pthread_t thread;
    bool invalidated;
    bool blocking; /* one of its streams is one that the legacy default stream waits for */
    struct stream_capture *streams;
    struct capture *next;
};

/* A stream's part in a capture. */
struct stream_capture {
    struct capture *capture;
    struct CUstream_st *stream;
    struct ends ends;
    struct stream_capture *next; /* of the capture */
};

struct captured_event {
    uint64_t capture; /* id */
    struct ends ends;
};

static struct capture *captures;
static uint64_t next_id = 1;
static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* ---- Under the mutex ---- */

static bool set_ends(struct ends *ends, const CUgraphNode *nodes, size_t count) {
    CUgraphNode *copy = malloc((count + 1) * sizeof(*copy));

    if (copy == NULL)
        return false;
    if (count > 0)
        memcpy(copy, nodes, count * sizeof(*copy));
    free(ends->nodes);
    ends->nodes = copy;
    ends->count = count;
    return true;
}

static bool add_ends(struct ends *ends, const CUgraphNode *nodes, size_t count) {
    CUgraphNode *all = realloc(ends->nodes, (ends->count + count + 1) * sizeof(*all));

    if (all == NULL)
        return false;
    ends->nodes = all;
    for (size_t i = 0; i < count; i++) {
        bool known = false;

        for (size_t j = 0; j < ends->count; j++)
            known = known || all[j] == nodes[i];
        if (!known)
            all[ends->count++] = nodes[i];
    }
    return true;
}

static struct capture *capture_by_id(uint64_t id) {
    struct capture *capture = captures;

    while (capture != NULL && capture->id != id)
        capture = capture->next;
    return capture;
}

static struct stream_capture *join(struct capture *capture, struct CUstream_st *stream, const CUgraphNode *nodes,
                                   size_t count) {
    struct stream_capture *part = calloc(1, sizeof(*part));

    if (part == NULL || !set_ends(&part->ends, nodes, count)) {
        free(part);
        return NULL;
    }
    part->capture = capture;
    part->stream = stream;
    part->next = capture->streams;
    capture->streams = part;
    capture->blocking = capture->blocking || (stream->flags & CU_STREAM_NON_BLOCKING) == 0;
    stream->capture = part;
    return part;
}

static void part_delete(struct stream_capture *part) {
    struct stream_capture **link = &part->capture->streams;

    while (*link != part)
        link = &(*link)->next;
    *link = part->next;
    part->stream->capture = NULL;
    free(part->ends.nodes);
    free(part);
}

/* Ends a capture. Its graph is the caller's. */
static void capture_delete(struct capture *capture) {
    struct capture **link = &captures;

    while (capture->streams != NULL)
        part_delete(capture->streams);
    while (*link != capture)
        link = &(*link)->next;
    *link = capture->next;
    free(capture);
    atomic_fetch_sub(&captures_alive, 1);
}

/* The legacy default stream waits for what is captured, which it cannot. */
static CUresult check_legacy(const struct CUstream_st *stream) {
    CUresult ret = CUDA_SUCCESS;

    if (stream != stream->context->legacy)
        return CUDA_SUCCESS;
    for (struct capture *c = captures; c != NULL; c = c->next) {
        if (c->context == stream->context && c->blocking) {
            c->invalidated = true;
            ret = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    }
    return ret;
}

static CUresult enter_locked(const struct CUstream_st *stream, bool *captured) {
    if (stream->capture == NULL)
        return check_legacy(stream);
    REQUIRE(!stream->capture->capture->invalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    *captured = true;
    return CUDA_SUCCESS;
}

static CUresult forbid_locked(const struct CUstream_st *stream) {
    if (stream->capture == NULL)
        return check_legacy(stream);
    REQUIRE(!stream->capture->capture->invalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    stream->capture->capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* Whether a capture keeps this thread from what is potentially unsafe. */
static bool prohibits(const struct capture *capture) {
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    if (pthread_equal(capture->thread, pthread_self()))
        return capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

/* ---- What other files ask ---- */

CUresult capture_enter_slowly(struct CUstream_st *stream, bool *captured) {
    CUresult ret;

    graph_lock();
    ret = enter_locked(stream, captured);
    graph_unlock();
    return ret;
}

CUresult capture_forbid_slowly(struct CUstream_st *stream) {
    CUresult ret;

    graph_lock();
    ret = forbid_locked(stream);
    graph_unlock();
    return ret;
}

CUresult capture_forbid_context_slowly(const struct CUctx_st *context) {
    CUresult ret = CUDA_SUCCESS;

    graph_lock();
    for (struct capture *c = captures; c != NULL; c = c->next) {
        if (c->context == context) {
            c->invalidated = true;
            ret = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    graph_unlock();
    return ret;
}

CUresult capture_unsafe_slowly(void) {
    CUresult ret = CUDA_SUCCESS;

    graph_lock();
    for (struct capture *c = captures; c != NULL; c = c->next) {
        if (prohibits(c)) {
            c->invalidated = true;
            ret = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    graph_unlock();
    return ret;
}

/* ---- Nodes. Each begins with BEGIN and ends with END. ---- */

#define BEGIN(stream)                                                                                                  \
    struct stream_capture *part;                                                                                       \
    CUresult ret = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;                                                              \
    CUgraphNode node = NULL;                                                                                           \
    graph_lock();                                                                                                      \
    part = (stream)->capture;                                                                                          \
    if (part == NULL || part->capture->invalidated)                                                                    \
    goto end
#define END()                                                                                                          \
    if (ret == CUDA_SUCCESS && !set_ends(&part->ends, &node, 1))                                                       \
        ret = CUDA_ERROR_OUT_OF_MEMORY;                                                                                \
    end:                                                                                                               \
    graph_unlock();                                                                                                    \
    return ret

CUresult capture_node(struct CUstream_st *stream, CUgraphNodeType type, const union node_work *work) {
    BEGIN(stream);
    ret = node_add_locked(part->capture->graph, type, work, part->ends.nodes, part->ends.count, &node);
    END();
}

CUresult capture_kernel(struct CUstream_st *stream, const CUDA_KERNEL_NODE_PARAMS *params,
                        const struct kernel_attributes *attributes) {
    const union node_work work = {.kernel = *params};

    BEGIN(stream);
    ret = node_add_locked(part->capture->graph, CU_GRAPH_NODE_TYPE_KERNEL, &work, part->ends.nodes, part->ends.count,
                          &node);
    if (ret == CUDA_SUCCESS && attributes != NULL)
        node->attributes = *attributes;
    END();
}

CUresult capture_alloc(struct CUstream_st *stream, CUdevice device, uint64_t size, CUdeviceptr *address) {
    const CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};

    BEGIN(stream);
    ret = node_add_alloc_locked(part->capture->graph, &props, size, part->ends.nodes, part->ends.count, &node, address);
    END();
}

CUresult capture_free(struct CUstream_st *stream, CUdeviceptr address) {
    BEGIN(stream);
    ret = node_add_free_locked(part->capture->graph, address, part->ends.nodes, part->ends.count, &node);
    END();
}

/* An executable graph becomes a child graph, which cannot have memory nodes. */
static CUresult add_graph_locked(struct stream_capture *part, CUgraphExec exec, CUgraphNode *node) {
    struct CUgraph_st *graph = exec_graph_locked(exec);
    union node_work work = {0};
    CUresult ret;

    REQUIRE(graph != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(graph->memory_nodes == 0, CUDA_ERROR_NOT_SUPPORTED);
    work.child = graph_copy_locked(graph);
    REQUIRE(work.child != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    work.child->owned = true;
    ret = node_add_locked(part->capture->graph, CU_GRAPH_NODE_TYPE_GRAPH, &work, part->ends.nodes, part->ends.count,
                          node);
    if (ret != CUDA_SUCCESS)
        graph_delete_locked(work.child);
    return ret;
}

CUresult capture_graph(struct CUstream_st *stream, CUgraphExec exec) {
    BEGIN(stream);
    ret = add_graph_locked(part, exec, &node);
    END();
}

/* ---- Events ---- */

void captured_event_delete(struct captured_event *captured) {
    if (captured != NULL)
        free(captured->ends.nodes);
    free(captured);
}

CUresult capture_record(struct CUstream_st *stream, struct captured_event **captured) {
    struct captured_event *fresh = calloc(1, sizeof(*fresh));
    CUresult ret = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;

    REQUIRE(fresh != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    graph_lock();
    if (stream->capture != NULL && !stream->capture->capture->invalidated) {
        fresh->capture = stream->capture->capture->id;
        ret = set_ends(&fresh->ends, stream->capture->ends.nodes, stream->capture->ends.count)
                  ? CUDA_SUCCESS
                  : CUDA_ERROR_OUT_OF_MEMORY;
    }
    graph_unlock();
    if (ret != CUDA_SUCCESS) {
        captured_event_delete(fresh);
        return ret;
    }
    captured_event_delete(*captured);
    *captured = fresh;
    return CUDA_SUCCESS;
}

static CUresult wait_locked(struct CUstream_st *stream, const struct captured_event *captured) {
    struct capture *capture = captured != NULL ? capture_by_id(captured->capture) : NULL;
    struct stream_capture *part = stream->capture;

    REQUIRE(part == NULL || !part->capture->invalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    if (capture == NULL) {
        /* What is no longer captured will never be; what never was is outside of the graph. */
        REQUIRE(captured == NULL, CUDA_ERROR_CAPTURED_EVENT);
        TRY(check_legacy(stream));
        if (part == NULL)
            return CUDA_SUCCESS;
        part->capture->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    REQUIRE(!capture->invalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    if (part != NULL && part->capture != capture) {
        part->capture->invalidated = capture->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (stream == stream->context->legacy) {
        capture->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (part == NULL)
        return join(capture, stream, captured->ends.nodes, captured->ends.count) != NULL ? CUDA_SUCCESS
                                                                                         : CUDA_ERROR_OUT_OF_MEMORY;
    return add_ends(&part->ends, captured->ends.nodes, captured->ends.count) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult capture_wait(struct CUstream_st *stream, const struct captured_event *captured) {
    CUresult ret;

    graph_lock();
    ret = wait_locked(stream, captured);
    graph_unlock();
    return ret;
}

void capture_stream_gone(struct CUstream_st *stream) {
    struct capture *capture;

    if (!capture_possible())
        return;
    graph_lock();
    if (stream->capture != NULL) {
        capture = stream->capture->capture;
        capture->invalidated = true;
        if (capture->origin != stream) {
            part_delete(stream->capture);
        } else {
            if (!capture->graph_is_programs)
                graph_delete_locked(capture->graph);
            capture_delete(capture);
        }
    }
    graph_unlock();
}

/* ---- Beginning and ending ---- */

static CUresult begin_locked(struct CUctx_st *context, struct CUstream_st *stream, CUgraph graph,
                             const CUgraphNode *nodes, size_t count, CUstreamCaptureMode mode) {
    struct capture *capture;

    REQUIRE(stream != context->legacy, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    REQUIRE(stream->capture == NULL, CUDA_ERROR_ILLEGAL_STATE);
    capture = calloc(1, sizeof(*capture));
    REQUIRE(capture != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    capture->graph_is_programs = graph != NULL;
    capture->graph = graph != NULL ? graph : graph_new_locked();
    if (capture->graph == NULL || join(capture, stream, nodes, count) == NULL) {
        if (graph == NULL && capture->graph != NULL)
            graph_delete_locked(capture->graph);
        free(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture->graph->owned = true;
    capture->id = next_id++;
    capture->origin = stream;
    capture->context = context;
    capture->mode = mode;
    capture->thread = pthread_self();
    capture->next = captures;
    captures = capture;
    atomic_fetch_add(&captures_alive, 1);
    return CUDA_SUCCESS;
}

static CUresult begin(CUstream hStream, bool per_thread, CUstreamCaptureMode mode) {
    struct CUstream_st *stream;
    CUresult ret;

    REQUIRE_CONTEXT(context);
    REQUIRE(mode == CU_STREAM_CAPTURE_MODE_GLOBAL || mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ||
                mode == CU_STREAM_CAPTURE_MODE_RELAXED,
            CUDA_ERROR_INVALID_VALUE);
    TRY(stream_find(context, hStream, per_thread, &stream));
    graph_lock();
    ret = begin_locked(context, stream, NULL, NULL, 0, mode);
    graph_unlock();
    return ret;
}

static CUresult begin_to_graph(CUstream hStream, bool per_thread, CUgraph graph, const CUgraphNode *nodes, size_t count,
                               CUstreamCaptureMode mode) {
    CUresult ret = CUDA_ERROR_INVALID_VALUE;
    struct CUstream_st *stream;
    bool good;

    REQUIRE_CONTEXT(context);
    TRY(stream_find(context, hStream, per_thread, &stream));
    graph_lock();
    good = graph_valid(graph) && !graph->owned && (count == 0 || nodes != NULL);
    for (size_t i = 0; good && i < count; i++)
        good = node_valid(nodes[i]) && nodes[i]->graph == graph;
    if (good)
        ret = begin_locked(context, stream, graph, nodes, count, mode);
    graph_unlock();
    return ret;
}

/* Marks all that the nodes come after. */
static bool reach(const struct ends *ends, CUgraphNode **seen, size_t *count) {
    size_t room = 64;

    *count = 0;
    *seen = malloc(room * sizeof(**seen));
    for (size_t next = 0, from = 0; *seen != NULL; next++) {
        const CUgraphNode *nodes = next == 0 ? ends->nodes : (*seen)[from]->dependencies;
        size_t more = next == 0 ? ends->count : (*seen)[from]->dependency_count;

        from += next != 0;
        for (size_t i = 0; i < more; i++) {
            bool known = false;

            for (size_t j = 0; j < *count && !known; j++)
                known = (*seen)[j] == nodes[i];
            if (known)
                continue;
            if (*count == room) {
                CUgraphNode *grown = realloc(*seen, 2 * room * sizeof(**seen));

                if (grown == NULL)
                    return false;
                *seen = grown;
                room *= 2;
            }
            (*seen)[(*count)++] = nodes[i];
        }
        if (from == *count)
            return true;
    }
    return false;
}

/* Whether the stream in which the capture began comes after all that the others did. */
static bool joined(const struct capture *capture) {
    CUgraphNode *seen;
    size_t count;
    bool good;

    if (capture->streams->next == NULL)
        return true;
    good = reach(&capture->origin->capture->ends, &seen, &count);
    for (const struct stream_capture *part = capture->streams; good && part != NULL; part = part->next) {
        for (size_t i = 0; good && part->stream != capture->origin && i < part->ends.count; i++) {
            bool known = false;

            for (size_t j = 0; j < count && !known; j++)
                known = seen[j] == part->ends.nodes[i];
            good = known;
        }
    }
    free(seen);
    return good;
}

static CUresult end_locked(struct CUstream_st *stream, CUgraph *graph) {
    CUresult ret = CUDA_SUCCESS;
    struct capture *capture;

    REQUIRE(stream->capture != NULL, CUDA_ERROR_ILLEGAL_STATE);
    capture = stream->capture->capture;
    REQUIRE(capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED || pthread_equal(capture->thread, pthread_self()),
            CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    if (capture->origin != stream) {
        capture->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->invalidated)
        ret = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!joined(capture))
        ret = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    *graph = capture->graph;
    (*graph)->owned = false;
    if (ret != CUDA_SUCCESS) {
        if (!capture->graph_is_programs)
            graph_delete_locked(*graph);
        *graph = NULL;
    }
    capture_delete(capture);
    return ret;
}

static CUresult end(CUstream hStream, bool per_thread, CUgraph *graph) {
    struct CUstream_st *stream;
    CUresult ret;

    REQUIRE_CONTEXT(context);
    REQUIRE(graph != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_find(context, hStream, per_thread, &stream));
    graph_lock();
    *graph = NULL;
    ret = end_locked(stream, graph);
    graph_unlock();
    return ret;
}

/* ---- Asking ---- */

struct info {
    CUstreamCaptureStatus status;
    cuuint64_t id;
    CUgraph graph;
    struct ends ends;
};

static CUresult info_of(CUstream hStream, bool per_thread, struct info *info) {
    struct CUstream_st *stream;
    CUresult ret = CUDA_SUCCESS;

    REQUIRE_CONTEXT(context);
    TRY(stream_find(context, hStream, per_thread, &stream));
    *info = (struct info){.status = CU_STREAM_CAPTURE_STATUS_NONE};
    graph_lock();
    if (stream->capture == NULL) {
        for (struct capture *c = captures; stream == context->legacy && c != NULL; c = c->next) {
            if (c->context == context && c->blocking)
                ret = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    } else {
        const struct capture *capture = stream->capture->capture;

        *info = (struct info){.status = capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                                             : CU_STREAM_CAPTURE_STATUS_ACTIVE,
                              .id = capture->id,
                              .graph = capture->graph,
                              .ends = stream->capture->ends};
    }
    graph_unlock();
    return ret;
}

static CUresult is_capturing(CUstream hStream, bool per_thread, CUstreamCaptureStatus *status) {
    struct info info;

    REQUIRE(status != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(info_of(hStream, per_thread, &info));
    *status = info.status;
    return CUDA_SUCCESS;
}

static CUresult get_info(CUstream hStream, bool per_thread, CUstreamCaptureStatus *status, cuuint64_t *id,
                         CUgraph *graph, const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count) {
    struct info info;

    REQUIRE(status != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(info_of(hStream, per_thread, &info));
    *status = info.status;
    if (info.status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    if (id != NULL)
        *id = info.id;
    if (graph != NULL)
        *graph = info.graph;
    if (nodes != NULL)
        *nodes = info.ends.nodes;
    if (edges != NULL)
        *edges = NULL; /* no edge has anything to tell */
    if (count != NULL)
        *count = info.ends.count;
    return CUDA_SUCCESS;
}

static CUresult update_locked(struct CUstream_st *stream, CUgraphNode *nodes, size_t count, unsigned flags) {
    struct stream_capture *part = stream->capture;
    bool good;

    REQUIRE(part != NULL && !part->capture->invalidated, CUDA_ERROR_ILLEGAL_STATE);
    for (size_t i = 0; i < count; i++)
        REQUIRE(node_valid(nodes[i]) && nodes[i]->graph == part->capture->graph, CUDA_ERROR_INVALID_VALUE);
    good = flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES ? set_ends(&part->ends, nodes, count)
                                                       : add_ends(&part->ends, nodes, count);
    return good ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult update(CUstream hStream, bool per_thread, CUgraphNode *nodes, size_t count, unsigned flags) {
    struct CUstream_st *stream;
    CUresult ret;

    REQUIRE_CONTEXT(context);
    REQUIRE((count == 0 || nodes != NULL) && flags <= CU_STREAM_SET_CAPTURE_DEPENDENCIES, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_find(context, hStream, per_thread, &stream));
    graph_lock();
    ret = update_locked(stream, nodes, count, flags);
    graph_unlock();
    return ret;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    CUstreamCaptureMode before = thread_mode;

    REQUIRE_INITIALISED();
    REQUIRE(mode != NULL && (unsigned)*mode <= CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_INVALID_VALUE);
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* ---- The API, each call for both default streams ---- */

#define BOTH(name, parameters, call)                                                                                   \
    CUresult name parameters {                                                                                         \
        const bool per_thread = false;                                                                                 \
        return call;                                                                                                   \
    }                                                                                                                  \
    CUresult name##_ptsz parameters {                                                                                  \
        const bool per_thread = true;                                                                                  \
        return call;                                                                                                   \
    }

BOTH(cuStreamBeginCapture, (CUstream hStream), begin(hStream, per_thread, CU_STREAM_CAPTURE_MODE_GLOBAL))
BOTH(cuStreamBeginCapture_v2, (CUstream hStream, CUstreamCaptureMode mode), begin(hStream, per_thread, mode))
BOTH(cuStreamBeginCaptureToGraph,
     (CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
      size_t numDependencies, CUstreamCaptureMode mode),
     ((void)dependencyData, begin_to_graph(hStream, per_thread, hGraph, dependencies, numDependencies, mode)))
BOTH(cuStreamEndCapture, (CUstream hStream, CUgraph *phGraph), end(hStream, per_thread, phGraph))
BOTH(cuStreamIsCapturing, (CUstream hStream, CUstreamCaptureStatus *captureStatus),
     is_capturing(hStream, per_thread, captureStatus))
BOTH(cuStreamGetCaptureInfo, (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out),
     get_info(hStream, per_thread, captureStatus_out, id_out, NULL, NULL, NULL, NULL))
BOTH(cuStreamGetCaptureInfo_v2,
     (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out, CUgraph *graph_out,
      const CUgraphNode **dependencies_out, size_t *numDependencies_out),
     get_info(hStream, per_thread, captureStatus_out, id_out, graph_out, dependencies_out, NULL, numDependencies_out))
BOTH(cuStreamGetCaptureInfo_v3,
     (CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out, CUgraph *graph_out,
      const CUgraphNode **dependencies_out, const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out),
     get_info(hStream, per_thread, captureStatus_out, id_out, graph_out, dependencies_out, edgeData_out,
              numDependencies_out))
BOTH(cuStreamUpdateCaptureDependencies,
     (CUstream hStream, CUgraphNode *dependencies, size_t numDependencies, unsigned int flags),
     update(hStream, per_thread, dependencies, numDependencies, flags))
BOTH(cuStreamUpdateCaptureDependencies_v2,
     (CUstream hStream, CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData, size_t numDependencies,
      unsigned int flags),
     ((void)dependencyData, update(hStream, per_thread, dependencies, numDependencies, flags)))
