/* Executable graphs: a copy of a graph, in the order in which its nodes run. */
#include "cuda/work/capture.h"
#include "graph.h"

#include <stdlib.h>

#define FLAGS                                                                                                          \
    (CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |                            \
     CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)

/* Memory that the driver has taken on its own in a context, and in which life of that. */
struct own {
    struct CUctx_st *context; /* or NULL */
    uint64_t life;
};

struct CUgraphExec_st {
    struct handle handle;
    uint64_t flags;
    struct CUgraph_st *graph; /* its own copy */
    struct CUgraph_st *made_of;
    uint64_t made_of_id;
    struct CUgraphNode_st **nodes;
    size_t count;
    CUdevice device; /* where it last ran, if it did */
    uint64_t mark;   /* the end of that */
    bool ran;
    struct own own;
};

static struct handle_table execs = HANDLE_TABLE(7, 1 << 18);
_Static_assert(sizeof(struct CUgraphExec_st) <= 1 << 7, "an executable graph must fit into its element");

static unsigned with_memory; /* of those that live */

struct CUgraph_st *exec_graph_locked(CUgraphExec exec) {
    return handle_valid(&execs, exec) ? exec->graph : NULL;
}

/* ---- Making. Under the mutex. ---- */

static CUresult check_for_device(const struct CUgraphExec_st *exec) {
    REQUIRE((exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) == 0 && exec->count > 0,
            CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < exec->count; i++) {
        REQUIRE(exec->nodes[i]->type == CU_GRAPH_NODE_TYPE_KERNEL ||
                    exec->nodes[i]->type == CU_GRAPH_NODE_TYPE_MEMCPY ||
                    exec->nodes[i]->type == CU_GRAPH_NODE_TYPE_MEMSET,
                CUDA_ERROR_NOT_SUPPORTED);
    }
    return CUDA_SUCCESS;
}

static CUresult fill_in(struct CUgraphExec_st *exec, struct CUgraph_st *graph) {
    exec->graph = graph_copy_locked(graph);
    REQUIRE(exec->graph != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    exec->graph->owned = true;
    exec->nodes = graph_sort_locked(exec->graph, &exec->count);
    REQUIRE(exec->nodes != NULL, CUDA_ERROR_INVALID_VALUE); /* goes in a circle */
    if ((exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0)
        TRY(check_for_device(exec));
    return CUDA_SUCCESS;
}

static void delete_parts(struct CUgraphExec_st *exec) {
    free(exec->nodes);
    if (exec->graph != NULL)
        graph_delete_locked(exec->graph);
}

static CUresult instantiate_locked(CUgraphExec *out, struct CUgraph_st *graph, uint64_t flags) {
    struct CUgraphExec_st *exec;
    CUresult ret;

    REQUIRE((flags & ~(uint64_t)FLAGS) == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(graph->memory_nodes == 0 || graph->instances == 0, CUDA_ERROR_NOT_SUPPORTED);
    exec = handle_new(&execs);
    REQUIRE(exec != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    exec->flags = flags;
    ret = fill_in(exec, graph);
    if (ret != CUDA_SUCCESS) {
        delete_parts(exec);
        handle_delete(&execs, exec);
        return ret;
    }
    exec->made_of = graph;
    exec->made_of_id = graph->id;
    graph->instances++;
    with_memory += exec->graph->memory_nodes != 0;
    *out = exec;
    return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph, uint64_t flags) {
    CUresult ret = CUDA_ERROR_INVALID_VALUE;

    REQUIRE_INITIALISED();
    REQUIRE(exec != NULL, CUDA_ERROR_INVALID_VALUE);
    graph_lock();
    if (graph_valid(graph))
        ret = instantiate_locked(exec, graph, flags);
    graph_unlock();
    return ret;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags) {
    REQUIRE((flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) == 0, CUDA_ERROR_INVALID_VALUE);
    return instantiate(phGraphExec, hGraph, flags);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
                               size_t bufferSize) {
    if (phErrorNode != NULL)
        *phErrorNode = NULL;
    if (logBuffer != NULL && bufferSize > 0)
        *logBuffer = '\0';
    return instantiate(phGraphExec, hGraph, 0);
}

CUresult cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph, CUgraphNode *phErrorNode, char *logBuffer,
                            size_t bufferSize) {
    return cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t *flags) {
    REQUIRE_INITIALISED();
    REQUIRE(handle_valid(&execs, hGraphExec) && flags != NULL, CUDA_ERROR_INVALID_VALUE);
    *flags = hGraphExec->flags;
    return CUDA_SUCCESS;
}

/* ---- Updating ---- */

static CUgraphExecUpdateResult update_locked(struct CUgraphExec_st *exec, struct CUgraph_st *graph) {
    CUgraphExecUpdateResult result = graph_compare_locked(exec->graph, graph);

    if (result == CU_GRAPH_EXEC_UPDATE_SUCCESS && graph_take_over_locked(exec->graph, graph) != CUDA_SUCCESS)
        return CU_GRAPH_EXEC_UPDATE_ERROR;
    return result;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphExecUpdateResultInfo *resultInfo) {
    CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_ERROR;
    bool valid;

    REQUIRE_INITIALISED();
    graph_lock();
    valid = handle_valid(&execs, hGraphExec) && graph_valid(hGraph) && resultInfo != NULL;
    if (valid)
        result = update_locked(hGraphExec, hGraph);
    graph_unlock();
    REQUIRE(valid, CUDA_ERROR_INVALID_VALUE);
    *resultInfo = (CUgraphExecUpdateResultInfo){.result = result};
    return result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode *hErrorNode_out,
                           CUgraphExecUpdateResult *updateResult_out) {
    CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    CUresult ret = cuGraphExecUpdate_v2(hGraphExec, hGraph, &info);

    if (hErrorNode_out != NULL)
        *hErrorNode_out = info.errorNode;
    if (updateResult_out != NULL)
        *updateResult_out = info.result;
    return ret;
}

/* ---- What the driver takes on its own. Not under the mutex, which comes after that of contexts. ---- */

static void give_own(struct own own) {
    if (own.context != NULL)
        context_give_own(own.context, own.life, sim_topology()->own_graph_bytes);
}

/* Under the mutex. */
static bool has_own(CUgraphExec exec, const struct CUctx_st *context) {
    return handle_valid(&execs, exec) && exec->own.context == context && exec->own.life == context->life;
}

static CUresult take_own(CUgraphExec exec, struct CUctx_st *context) {
    uint64_t bytes = sim_topology()->own_graph_bytes;
    struct own own = {context, 0}, before;
    bool had;

    graph_lock();
    had = has_own(exec, context);
    graph_unlock();
    if (bytes == 0 || had)
        return CUDA_SUCCESS;
    TRY(context_take_own(context, bytes, &own.life));
    graph_lock();
    before = own;
    if (handle_valid(&execs, exec)) {
        before = exec->own;
        exec->own = own;
    }
    graph_unlock();
    give_own(before);
    return CUDA_SUCCESS;
}

/* ---- Destroying ---- */

/* What it left allocated stays allocated; whether it still runs does not matter, since its nodes are in the streams. */
static void destroy_locked(struct CUgraphExec_st *exec) {
    if (graph_valid(exec->made_of) && exec->made_of->id == exec->made_of_id)
        exec->made_of->instances--;
    if (exec->graph->memory_nodes != 0 && --with_memory == 0)
        graph_memory_unused();
    delete_parts(exec);
    handle_delete(&execs, exec);
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec) {
    struct own own = {0};
    bool valid;

    REQUIRE_INITIALISED();
    graph_lock();
    valid = handle_valid(&execs, hGraphExec);
    if (valid) {
        own = hGraphExec->own;
        destroy_locked(hGraphExec);
    }
    graph_unlock();
    give_own(own);
    return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- Running ---- */

static CUresult run_fill(const CUDA_MEMSET_NODE_PARAMS *f, CUstream stream) {
    size_t pitch = f->height > 1 ? f->pitch : f->width * f->elementSize;

    switch (f->elementSize) {
    case 1:
        return cuMemsetD2D8Async(f->dst, pitch, (unsigned char)f->value, f->width, f->height, stream);
    case 2:
        return cuMemsetD2D16Async(f->dst, pitch, (unsigned short)f->value, f->width, f->height, stream);
    default:
        return cuMemsetD2D32Async(f->dst, pitch, f->value, f->width, f->height, stream);
    }
}

static CUresult run_kernel(const struct CUgraphNode_st *node, CUstream stream) {
    const CUDA_KERNEL_NODE_PARAMS *k = &node->work.kernel;
    CUfunction f = kernel_function(k);

    if (node->attributes.cooperative != 0)
        return cuLaunchCooperativeKernel(f, k->gridDimX, k->gridDimY, k->gridDimZ, k->blockDimX, k->blockDimY,
                                         k->blockDimZ, k->sharedMemBytes, stream, NULL);
    return cuLaunchKernel(f, k->gridDimX, k->gridDimY, k->gridDimZ, k->blockDimX, k->blockDimY, k->blockDimZ,
                          k->sharedMemBytes, stream, NULL, NULL);
}

static CUresult run_node(const struct CUgraphNode_st *node, CUstream stream) {
    if (node->disabled)
        return CUDA_SUCCESS;
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return run_kernel(node, stream);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return cuMemcpy3DAsync_v2(&node->work.copy, stream);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return run_fill(&node->work.fill, stream);
    case CU_GRAPH_NODE_TYPE_HOST:
        return cuLaunchHostFunc(stream, node->work.host.fn, node->work.host.userData);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return cuStreamWaitEvent(stream, node->work.event, 0);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return cuEventRecord(node->work.event, stream);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        return batch_queue(stream, node->work.batch);
    default:
        return CUDA_SUCCESS;
    }
}

/* A graph that was launched keeps its user objects until that has ended, whatever becomes of the executable graph. */
static void objects_hold_locked(struct CUgraph_st *graph, struct CUstream_st *stream) {
    for (struct CUgraphNode_st *node = graph->first; node != NULL; node = node->next) {
        if (node->type == CU_GRAPH_NODE_TYPE_GRAPH)
            objects_hold_locked(node->work.child, stream);
    }
    object_references_hold_locked(graph->objects, stream->context->device, stream_mark(stream));
    graph->objects = NULL;
}

/*
 * The nodes are run without the mutex, since what a node does calls the driver, from a copy, since the executable graph
 * may be updated or destroyed meanwhile.
 */
static CUresult begin_locked(CUgraphExec exec, struct CUstream_st *stream, struct CUgraphExec_st *run) {
    REQUIRE(handle_valid(&execs, exec), CUDA_ERROR_INVALID_VALUE);
    run->graph = graph_copy_locked(exec->graph);
    REQUIRE(run->graph != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    run->nodes = graph_sort_locked(run->graph, &run->count);
    REQUIRE(run->nodes != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    /* A launch comes after the last one of the same executable graph, whichever stream that was in. */
    if (exec->ran && exec->device == stream->context->device)
        stream_follow(stream, exec->mark);
    TRY(graph_memory_run(run->nodes, run->count, (exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0));
    run->ran = true;
    return CUDA_SUCCESS;
}

static void end_locked(CUgraphExec exec, struct CUstream_st *stream, struct CUgraphExec_st *run) {
    if (run->ran)
        graph_memory_launched(run->nodes, run->count, stream->context->device, stream_mark(stream));
    if (run->ran && handle_valid(&execs, exec)) {
        exec->ran = true;
        exec->device = stream->context->device;
        exec->mark = stream_mark(stream);
    }
    if (run->ran)
        objects_hold_locked(run->graph, stream);
    delete_parts(run);
}

static CUresult launch(CUgraphExec exec, CUstream hStream, bool per_thread) {
    struct CUgraphExec_st run = {0};
    struct CUstream_st *stream;
    bool captured;
    CUresult ret;

    REQUIRE_CONTEXT(context);
    TRY(stream_find(context, hStream, per_thread, &stream));
    TRY(capture_enter(stream, &captured));
    if (captured)
        return capture_graph(stream, exec);
    TRY(take_own(exec, context));
    graph_lock();
    ret = begin_locked(exec, stream, &run);
    graph_unlock();
    for (size_t i = 0; ret == CUDA_SUCCESS && i < run.count; i++)
        ret = run_node(run.nodes[i], stream);
    graph_lock();
    end_locked(exec, stream, &run);
    graph_unlock();
    return ret;
}

CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) {
    return launch(hGraphExec, hStream, false);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream) {
    return launch(hGraphExec, hStream, true);
}

static CUresult upload(CUgraphExec exec, CUstream hStream, bool per_thread) {
    CUresult ret = CUDA_ERROR_INVALID_VALUE;
    struct CUstream_st *stream;

    REQUIRE_CONTEXT(context);
    TRY(stream_find(context, hStream, per_thread, &stream));
    TRY(capture_forbid(stream));
    TRY(take_own(exec, context));
    graph_lock();
    if (handle_valid(&execs, exec))
        ret = graph_memory_upload(exec->nodes, exec->count);
    graph_unlock();
    return ret;
}

CUresult cuGraphUpload(CUgraphExec hGraphExec, CUstream hStream) {
    return upload(hGraphExec, hStream, false);
}

CUresult cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream) {
    return upload(hGraphExec, hStream, true);
}

static CUresult instantiate_with(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params,
                                 bool per_thread) {
    CUresult ret;

    REQUIRE(params != NULL, CUDA_ERROR_INVALID_VALUE);
    ret = instantiate(exec, graph, params->flags);
    if (ret == CUDA_SUCCESS && (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) {
        ret = upload(*exec, params->hUploadStream, per_thread);
        if (ret != CUDA_SUCCESS)
            cuGraphExecDestroy(*exec);
    }
    params->hErrNode_out = NULL;
    params->result_out = ret == CUDA_SUCCESS               ? CUDA_GRAPH_INSTANTIATE_SUCCESS
                         : ret == CUDA_ERROR_NOT_SUPPORTED ? CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED
                                                           : CUDA_GRAPH_INSTANTIATE_ERROR;
    return ret;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams) {
    return instantiate_with(phGraphExec, hGraph, instantiateParams, false);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *phGraphExec, CUgraph hGraph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams) {
    return instantiate_with(phGraphExec, hGraph, instantiateParams, true);
}
