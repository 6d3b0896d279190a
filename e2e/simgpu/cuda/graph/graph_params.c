#include "graph_params.h"

#include <string.h>

/* ---- Taking ---- */

CUresult kernel_params_widen(const CUDA_KERNEL_NODE_PARAMS_v1 *params, CUDA_KERNEL_NODE_PARAMS *wide) {
    REQUIRE(params != NULL, CUDA_ERROR_INVALID_VALUE);
    *wide = (CUDA_KERNEL_NODE_PARAMS){0};
    memcpy(wide, params, sizeof(*params));
    return CUDA_SUCCESS;
}

CUresult kernel_params_take(const CUDA_KERNEL_NODE_PARAMS *params, union node_work *work) {
    REQUIRE(params != NULL && (params->func != NULL || params->kern != NULL), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(params->kernelParams == NULL || params->extra == NULL, CUDA_ERROR_INVALID_VALUE);
    work->kernel = *params;
    work->kernel.kernelParams = work->kernel.extra = NULL;
    return CUDA_SUCCESS;
}

static bool context_known(CUcontext context) {
    return context == NULL || handle_valid(&contexts, context);
}

CUresult copy_params_take(const CUDA_MEMCPY3D *params, CUcontext context, union node_work *work) {
    REQUIRE(params != NULL && context_known(context), CUDA_ERROR_INVALID_VALUE);
    work->copy = *params;
    return CUDA_SUCCESS;
}

CUresult fill_params_take(const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context, union node_work *work) {
    REQUIRE(params != NULL && context_known(context), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(params->elementSize == 1 || params->elementSize == 2 || params->elementSize == 4, CUDA_ERROR_INVALID_VALUE);
    work->fill = *params;
    return CUDA_SUCCESS;
}

CUresult host_params_take(const CUDA_HOST_NODE_PARAMS *params, union node_work *work) {
    REQUIRE(params != NULL && params->fn != NULL, CUDA_ERROR_INVALID_VALUE);
    work->host = *params;
    return CUDA_SUCCESS;
}

CUresult event_take(CUevent event, union node_work *work) {
    REQUIRE(event != NULL, CUDA_ERROR_INVALID_VALUE);
    work->event = event;
    return CUDA_SUCCESS;
}

CUresult node_params_take(const CUgraphNodeParams *params, union node_work *work) {
    CUDA_MEMSET_NODE_PARAMS fill;

    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return kernel_params_take(&params->kernel, work);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return copy_params_take(&params->memcpy.copyParams, params->memcpy.copyCtx, work);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        memcpy(&fill, &params->memset, sizeof(fill));
        return fill_params_take(&fill, params->memset.ctx, work);
    case CU_GRAPH_NODE_TYPE_HOST:
        return host_params_take(&params->host, work);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        work->child = params->graph.graph;
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return event_take(params->eventWait.event, work);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return event_take(params->eventRecord.event, work);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- Asking ---- */

static bool is(CUgraphNode node, CUgraphNodeType type) {
    return node_valid(node) && node->type == type;
}

/* The arguments are the kernel's own business, which here has none. */
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS *nodeParams) {
    CHECK_AND_ENTER(nodeParams != NULL && is(hNode, CU_GRAPH_NODE_TYPE_KERNEL));
    *nodeParams = hNode->work.kernel;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
    CUDA_KERNEL_NODE_PARAMS params;

    REQUIRE(nodeParams != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(cuGraphKernelNodeGetParams_v2(hNode, &params));
    params.func = kernel_function(&params);
    memcpy(nodeParams, &params, sizeof(*nodeParams));
    return CUDA_SUCCESS;
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D *nodeParams) {
    ENTER(nodeParams != NULL && is(hNode, CU_GRAPH_NODE_TYPE_MEMCPY));
    *nodeParams = hNode->work.copy;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS *nodeParams) {
    ENTER(nodeParams != NULL && is(hNode, CU_GRAPH_NODE_TYPE_MEMSET));
    *nodeParams = hNode->work.fill;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS *nodeParams) {
    CHECK_AND_ENTER(nodeParams != NULL && is(hNode, CU_GRAPH_NODE_TYPE_HOST));
    *nodeParams = hNode->work.host;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, CUevent *event_out) {
    CHECK_AND_ENTER(event_out != NULL && is(hNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD));
    *event_out = hNode->work.event;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, CUevent *event_out) {
    CHECK_AND_ENTER(event_out != NULL && is(hNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT));
    *event_out = hNode->work.event;
    LEAVE(CUDA_SUCCESS);
}

/* ---- Changing. What was instantiated before stays as it is. ---- */

static CUresult set(CUgraphNode node, CUgraphNodeType type, const union node_work *work) {
    ENTER(is(node, type));
    node->work = *work;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS *nodeParams) {
    union node_work work = {0};

    TRY(kernel_params_take(nodeParams, &work));
    return set(hNode, CU_GRAPH_NODE_TYPE_KERNEL, &work);
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
    CUDA_KERNEL_NODE_PARAMS params;

    TRY(kernel_params_widen(nodeParams, &params));
    return cuGraphKernelNodeSetParams_v2(hNode, &params);
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D *nodeParams) {
    union node_work work = {0};

    TRY(copy_params_take(nodeParams, NULL, &work));
    return set(hNode, CU_GRAPH_NODE_TYPE_MEMCPY, &work);
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS *nodeParams) {
    union node_work work = {0};

    TRY(fill_params_take(nodeParams, NULL, &work));
    return set(hNode, CU_GRAPH_NODE_TYPE_MEMSET, &work);
}

CUresult cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS *nodeParams) {
    union node_work work = {0};

    TRY(host_params_take(nodeParams, &work));
    return set(hNode, CU_GRAPH_NODE_TYPE_HOST, &work);
}

static CUresult set_event(CUgraphNode node, CUgraphNodeType type, CUevent event) {
    union node_work work = {0};

    TRY(event_take(event, &work));
    return set(node, type, &work);
}

CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode hNode, CUevent event) {
    return set_event(hNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}

CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode hNode, CUevent event) {
    return set_event(hNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

/* The child graph becomes a copy of this one. */
static CUresult set_child_locked(CUgraphNode node, CUgraph child) {
    struct CUgraph_st *copy;

    REQUIRE(graph_valid(child) && child != node->graph, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(child->memory_nodes == 0, CUDA_ERROR_NOT_SUPPORTED);
    copy = graph_copy_locked(child);
    REQUIRE(copy != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    copy->owned = true;
    graph_delete_locked(node->work.child);
    node->work.child = copy;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams *nodeParams) {
    union node_work work = {0};

    REQUIRE(nodeParams != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(node_params_take(nodeParams, &work));
    if (nodeParams->type != CU_GRAPH_NODE_TYPE_GRAPH)
        return set(hNode, nodeParams->type, &work);
    CHECK_AND_ENTER(is(hNode, CU_GRAPH_NODE_TYPE_GRAPH));
    LEAVE(set_child_locked(hNode, work.child));
}
