/* Operations on memory as nodes of graphs. Whoever takes over the work of a node has the batch's reference. */
#include "graph_params.h"

CUresult batch_params_take(const CUDA_BATCH_MEM_OP_NODE_PARAMS *params, union node_work *work) {
    REQUIRE(params != NULL && (params->ctx == NULL || handle_valid(&contexts, params->ctx)), CUDA_ERROR_INVALID_VALUE);
    TRY(batch_new(params->count, params->paramArray, params->flags, &work->batch));
    work->batch->context = params->ctx;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddBatchMemOpNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                  size_t numDependencies, const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams) {
    union node_work work = {0};
    CUresult ret = CUDA_ERROR_INVALID_VALUE;

    TRY(batch_params_take(nodeParams, &work));
    graph_lock();
    if (phGraphNode != NULL && graph_valid(hGraph))
        ret =
            node_add_locked(hGraph, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, &work, dependencies, numDependencies, phGraphNode);
    graph_unlock();
    if (ret != CUDA_SUCCESS)
        batch_drop(work.batch);
    return ret;
}

static bool is_batch(CUgraphNode node) {
    return node_valid(node) && node->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
}

/* The operations stay the node's. */
CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode hNode, CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams_out) {
    CHECK_AND_ENTER(nodeParams_out != NULL && is_batch(hNode));
    *nodeParams_out = (CUDA_BATCH_MEM_OP_NODE_PARAMS){.ctx = hNode->work.batch->context,
                                                      .count = hNode->work.batch->count,
                                                      .paramArray = hNode->work.batch->ops,
                                                      .flags = hNode->work.batch->flags};
    LEAVE(CUDA_SUCCESS);
}

CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode hNode, const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams) {
    union node_work work = {0};
    bool valid;

    TRY(batch_params_take(nodeParams, &work));
    graph_lock();
    valid = is_batch(hNode);
    if (valid)
        node_set_work_locked(hNode, &work);
    graph_unlock();
    if (!valid)
        batch_drop(work.batch);
    return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
