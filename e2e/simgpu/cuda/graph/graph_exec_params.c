/* Changing single nodes of an executable graph. The program names them by those of the graph that it was made of. */
#include "cuda/image/module.h"
#include "graph_params.h"

/* The executable graph's node, or NULL. */
static struct CUgraphNode_st *find_locked(CUgraphExec exec, CUgraphNode node, CUgraphNodeType type) {
    struct CUgraph_st *graph = exec_graph_locked(exec);

    return graph != NULL && node_valid(node) && node->type == type ? node_find_copy_locked(graph, node) : NULL;
}

/* ---- Where operands are, which must not change ---- */

struct place {
    CUmemorytype type; /* CU_MEMORYTYPE_UNIFIED: not known */
    int device;
    const struct CUctx_st *context;
};

static struct place place_of(CUmemorytype type, CUdeviceptr address) {
    struct allocation allocation;

    if (type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_ARRAY)
        return (struct place){.type = type};
    if (!heap_find(address, &allocation))
        return (struct place){.type = CU_MEMORYTYPE_UNIFIED};
    return (struct place){.type = CU_MEMORYTYPE_DEVICE,
                          .device = allocation.extent != NULL ? allocation.extent->device : -1,
                          .context = allocation.extent != NULL ? allocation.extent->context : NULL};
}

/* What is freed meanwhile has no place any more, and may have been anywhere. */
static bool same_place(struct place a, struct place b) {
    if (a.type == CU_MEMORYTYPE_UNIFIED || b.type == CU_MEMORYTYPE_UNIFIED)
        return true;
    return a.type == b.type && a.device == b.device && a.context == b.context;
}

static CUresult check_copy(const CUDA_MEMCPY3D *before, const CUDA_MEMCPY3D *after) {
    REQUIRE(before->Height <= 1 && before->Depth <= 1, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(after->WidthInBytes != 0 && after->Height == 1 && after->Depth == 1, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(same_place(place_of(before->srcMemoryType, before->srcDevice),
                       place_of(after->srcMemoryType, after->srcDevice)) &&
                same_place(place_of(before->dstMemoryType, before->dstDevice),
                           place_of(after->dstMemoryType, after->dstDevice)),
            CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

static CUresult check_fill(const CUDA_MEMSET_NODE_PARAMS *before, const CUDA_MEMSET_NODE_PARAMS *after) {
    REQUIRE(before->height <= 1, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(after->width != 0 && after->height == 1, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(same_place(place_of(CU_MEMORYTYPE_DEVICE, before->dst), place_of(CU_MEMORYTYPE_DEVICE, after->dst)),
            CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

/* A function cannot be changed to one of another device. */
static CUresult check_kernel(const CUDA_KERNEL_NODE_PARAMS *before, const CUDA_KERNEL_NODE_PARAMS *after) {
    const struct CUctx_st *from = function_context(kernel_function(before));
    const struct CUctx_st *to = function_context(kernel_function(after));

    REQUIRE(from == NULL || to == NULL || from->device == to->device, CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

/* ---- Setting ---- */

static CUresult set_child_locked(struct CUgraphNode_st *node, CUgraph child) {
    REQUIRE(graph_valid(child), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(graph_compare_locked(node->work.child, child) == CU_GRAPH_EXEC_UPDATE_SUCCESS, CUDA_ERROR_INVALID_VALUE);
    return graph_take_over_locked(node->work.child, child);
}

static CUresult set_locked(struct CUgraphNode_st *node, const union node_work *work) {
    REQUIRE(node != NULL, CUDA_ERROR_INVALID_VALUE);
    if (node->type == CU_GRAPH_NODE_TYPE_GRAPH)
        return set_child_locked(node, work->child);
    if (node->type == CU_GRAPH_NODE_TYPE_KERNEL)
        TRY(check_kernel(&node->work.kernel, &work->kernel));
    if (node->type == CU_GRAPH_NODE_TYPE_MEMCPY)
        TRY(check_copy(&node->work.copy, &work->copy));
    if (node->type == CU_GRAPH_NODE_TYPE_MEMSET)
        TRY(check_fill(&node->work.fill, &work->fill));
    node_set_work_locked(node, work);
    return CUDA_SUCCESS;
}

static CUresult set(CUgraphExec exec, CUgraphNode node, CUgraphNodeType type, const union node_work *work) {
    ENTER(true);
    LEAVE(set_locked(find_locked(exec, node, type), work));
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                           const CUDA_KERNEL_NODE_PARAMS *nodeParams) {
    union node_work work = {0};

    TRY(kernel_params_take(nodeParams, &work));
    return set(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_KERNEL, &work);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
    CUDA_KERNEL_NODE_PARAMS params;

    TRY(kernel_params_widen(nodeParams, &params));
    return cuGraphExecKernelNodeSetParams_v2(hGraphExec, hNode, &params);
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_MEMCPY3D *copyParams,
                                        CUcontext ctx) {
    union node_work work = {0};

    TRY(copy_params_take(copyParams, ctx, &work));
    return set(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_MEMCPY, &work);
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx) {
    union node_work work = {0};

    TRY(fill_params_take(memsetParams, ctx, &work));
    return set(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_MEMSET, &work);
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                      const CUDA_HOST_NODE_PARAMS *nodeParams) {
    union node_work work = {0};

    TRY(host_params_take(nodeParams, &work));
    return set(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_HOST, &work);
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraph childGraph) {
    union node_work work = {.child = childGraph};

    return set(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_GRAPH, &work);
}

static CUresult set_event(CUgraphExec exec, CUgraphNode node, CUgraphNodeType type, CUevent event) {
    union node_work work = {0};

    TRY(event_take(event, &work));
    return set(exec, node, type, &work);
}

CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event) {
    return set_event(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}

CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event) {
    return set_event(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams) {
    union node_work work = {0};
    CUresult ret;

    TRY(batch_params_take(nodeParams, &work));
    ret = set(hGraphExec, hNode, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, &work);
    if (ret != CUDA_SUCCESS)
        batch_drop(work.batch);
    return ret;
}

CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraphNodeParams *nodeParams) {
    union node_work work = {0};

    REQUIRE(nodeParams != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(node_params_take(nodeParams, &work));
    return set(hGraphExec, hNode, nodeParams->type, &work);
}

/* ---- Disabling ---- */

/* Only these can be disabled. */
static struct CUgraphNode_st *find_switch_locked(CUgraphExec exec, CUgraphNode node) {
    if (!node_valid(node) || (node->type != CU_GRAPH_NODE_TYPE_KERNEL && node->type != CU_GRAPH_NODE_TYPE_MEMSET &&
                              node->type != CU_GRAPH_NODE_TYPE_MEMCPY))
        return NULL;
    return find_locked(exec, node, node->type);
}

CUresult cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int isEnabled) {
    struct CUgraphNode_st *node = NULL;

    CHECK_AND_ENTER((node = find_switch_locked(hGraphExec, hNode)) != NULL);
    node->disabled = isEnabled == 0;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuGraphNodeGetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned int *isEnabled) {
    struct CUgraphNode_st *node = NULL;

    CHECK_AND_ENTER(isEnabled != NULL && (node = find_switch_locked(hGraphExec, hNode)) != NULL);
    *isEnabled = !node->disabled;
    LEAVE(CUDA_SUCCESS);
}
