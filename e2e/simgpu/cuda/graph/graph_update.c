/* Updating: a graph of the same nodes and edges gives its work to another. */
#include "graph.h"

static CUgraphExecUpdateResult compare_nodes(struct CUgraphNode_st *a, struct CUgraphNode_st *b) {
    if (a->type != b->type)
        return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    if (a->dependency_count != b->dependency_count)
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    if (a->type == CU_GRAPH_NODE_TYPE_GRAPH)
        return graph_compare_locked(a->work.child, b->work.child);
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

/* Nodes correspond to one another by the order in which they were added. */
CUgraphExecUpdateResult graph_compare_locked(struct CUgraph_st *a, struct CUgraph_st *b) {
    struct CUgraphNode_st *m = a->first, *n = b->first;

    if (a->memory_nodes != 0 || b->memory_nodes != 0)
        return CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
    for (; m != NULL && n != NULL; m = m->next, n = n->next) {
        CUgraphExecUpdateResult result = compare_nodes(m, n);

        if (result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
            return result;
        m->copy = n;
    }
    if (m != n)
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (m = a->first; m != NULL; m = m->next) {
        for (uint32_t i = 0; i < m->dependency_count; i++) {
            if (!node_depends(m->copy, m->dependencies[i]->copy))
                return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        }
    }
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

CUresult graph_take_over_locked(struct CUgraph_st *graph, const struct CUgraph_st *from) {
    struct object_references *objects;
    const struct CUgraphNode_st *source = from->first;

    if (!object_references_copy_locked(from->objects, &objects)) {
        object_references_drop_locked(objects);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    object_references_drop_locked(graph->objects);
    graph->objects = objects;
    for (struct CUgraphNode_st *node = graph->first; node != NULL; node = node->next, source = source->next) {
        if (node->type == CU_GRAPH_NODE_TYPE_GRAPH) {
            TRY(graph_take_over_locked(node->work.child, source->work.child));
            continue;
        }
        if (node->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)
            batch_hold(source->work.batch);
        node_set_work_locked(node, &source->work);
        node->attributes = source->attributes;
    }
    return CUDA_SUCCESS;
}
