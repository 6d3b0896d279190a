#include "graph.h"
#include "graph_params.h"

#include <stdlib.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct handle_table graphs = HANDLE_TABLE(7, 1 << 18);
static struct handle_table nodes = HANDLE_TABLE(9, 1 << 20);
_Static_assert(sizeof(struct CUgraph_st) <= 1 << 7, "a graph must fit into its element");
_Static_assert(sizeof(struct CUgraphNode_st) <= 1 << 9, "a node must fit into its element");

static uint64_t next_id = 1; /* of graphs and nodes */
static unsigned visits;      /* of sorting; each has two of its own */

void graph_lock(void) {
    pthread_mutex_lock(&mutex);
}

void graph_unlock(void) {
    pthread_mutex_unlock(&mutex);
}

bool graph_valid(CUgraph graph) {
    return handle_valid(&graphs, graph);
}

bool node_valid(CUgraphNode node) {
    return handle_valid(&nodes, node);
}

/* ---- Under the mutex ---- */

struct CUgraph_st *graph_new_locked(void) {
    struct CUgraph_st *graph = handle_new(&graphs);

    if (graph != NULL)
        graph->id = next_id++;
    return graph;
}

static bool is_memory(CUgraphNodeType type) {
    return type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE;
}

static void node_delete(struct CUgraphNode_st *node) {
    struct CUgraph_st *graph = node->graph;

    if (node->type == CU_GRAPH_NODE_TYPE_GRAPH)
        graph_delete_locked(node->work.child);
    if (is_memory(node->type)) {
        graph->memory_nodes--;
        graph_alloc_unref(node->work.memory);
    }
    if (node->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)
        batch_drop(node->work.batch);
    if (node->previous != NULL)
        node->previous->next = node->next;
    else
        graph->first = node->next;
    if (node->next != NULL)
        node->next->previous = node->previous;
    else
        graph->last = node->previous;
    graph->node_count--;
    free(node->dependencies);
    handle_delete(&nodes, node);
}

void graph_delete_locked(struct CUgraph_st *graph) {
    while (graph->first != NULL)
        node_delete(graph->first);
    object_references_drop_locked(graph->objects);
    handle_delete(&graphs, graph);
}

static bool add_dependency(struct CUgraphNode_st *node, struct CUgraphNode_st *on) {
    if (node->dependency_count == node->dependency_room) {
        uint32_t room = node->dependency_room != 0 ? 2 * node->dependency_room : 4;
        void *grown = realloc(node->dependencies, room * sizeof(*node->dependencies));

        if (grown == NULL)
            return false;
        node->dependencies = grown;
        node->dependency_room = room;
    }
    node->dependencies[node->dependency_count++] = on;
    return true;
}

static CUresult check_dependencies(const struct CUgraph_st *graph, const CUgraphNode *dependencies, size_t count) {
    REQUIRE(count == 0 || dependencies != NULL, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++) {
        REQUIRE(node_valid(dependencies[i]) && dependencies[i]->graph == graph, CUDA_ERROR_INVALID_VALUE);
        for (size_t j = 0; j < i; j++)
            REQUIRE(dependencies[i] != dependencies[j], CUDA_ERROR_INVALID_VALUE);
    }
    return CUDA_SUCCESS;
}

CUresult node_add_locked(struct CUgraph_st *graph, CUgraphNodeType type, const union node_work *work,
                         const CUgraphNode *dependencies, size_t count, CUgraphNode *out) {
    struct CUgraphNode_st *node;

    TRY(check_dependencies(graph, dependencies, count));
    node = handle_new(&nodes);
    REQUIRE(node != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    node->id = next_id++;
    node->graph = graph;
    node->type = type;
    for (size_t i = 0; i < count; i++) {
        if (!add_dependency(node, dependencies[i])) {
            free(node->dependencies);
            handle_delete(&nodes, node);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (work != NULL)
        node->work = *work;
    node->previous = graph->last;
    if (graph->last != NULL)
        graph->last->next = node;
    else
        graph->first = node;
    graph->last = node;
    graph->node_count++;
    graph->memory_nodes += is_memory(type);
    *out = node;
    return CUDA_SUCCESS;
}

void node_set_work_locked(struct CUgraphNode_st *node, const union node_work *work) {
    if (node->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)
        batch_drop(node->work.batch);
    node->work = *work;
}

CUresult node_add_alloc_locked(struct CUgraph_st *graph, const CUmemPoolProps *props, uint64_t size,
                               const CUgraphNode *dependencies, size_t count, CUgraphNode *node, CUdeviceptr *address) {
    union node_work work;
    CUresult ret;

    REQUIRE(size != 0 && props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
                props->handleTypes == CU_MEM_HANDLE_TYPE_NONE && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE,
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_valid(props->location.id), CUDA_ERROR_INVALID_DEVICE);
    TRY(graph_alloc_new(props, size, graph->id, &work.memory));
    ret = node_add_locked(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &work, dependencies, count, node);
    if (ret != CUDA_SUCCESS)
        graph_alloc_unref(work.memory);
    else
        *address = work.memory->address;
    return ret;
}

/* What the graph with the allocating node frees cannot be freed anywhere else, nor the other way round. */
CUresult node_add_free_locked(struct CUgraph_st *graph, CUdeviceptr address, const CUgraphNode *dependencies,
                              size_t count, CUgraphNode *node) {
    union node_work work = {.memory = graph_alloc_at(address)};

    REQUIRE(work.memory != NULL && !work.memory->freed_at_home, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(work.memory->graph != graph->id || !work.memory->freed_abroad, CUDA_ERROR_INVALID_VALUE);
    for (const struct CUgraphNode_st *n = graph->first; n != NULL; n = n->next)
        REQUIRE(n->type != CU_GRAPH_NODE_TYPE_MEM_FREE || n->work.memory != work.memory, CUDA_ERROR_INVALID_VALUE);
    TRY(node_add_locked(graph, CU_GRAPH_NODE_TYPE_MEM_FREE, &work, dependencies, count, node));
    work.memory->references++;
    if (work.memory->graph == graph->id)
        work.memory->freed_at_home = true;
    else
        work.memory->freed_abroad = true;
    return CUDA_SUCCESS;
}

static bool copy_node(struct CUgraph_st *copy, struct CUgraphNode_st *node) {
    union node_work work = node->work;

    if (node->type == CU_GRAPH_NODE_TYPE_GRAPH) {
        work.child = graph_copy_locked(node->work.child);
        if (work.child == NULL)
            return false;
        work.child->owned = true;
    }
    if (node_add_locked(copy, node->type, &work, NULL, 0, &node->copy) != CUDA_SUCCESS) {
        if (node->type == CU_GRAPH_NODE_TYPE_GRAPH)
            graph_delete_locked(work.child);
        return false;
    }
    if (is_memory(node->type))
        work.memory->references++;
    if (node->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)
        batch_hold(work.batch);
    node->copy->original = node;
    node->copy->original_id = node->id;
    node->copy->disabled = node->disabled;
    node->copy->attributes = node->attributes;
    return true;
}

struct CUgraph_st *graph_copy_locked(const struct CUgraph_st *graph) {
    struct CUgraph_st *copy = graph_new_locked();
    bool good = copy != NULL && object_references_copy_locked(graph->objects, &copy->objects);

    for (struct CUgraphNode_st *node = graph->first; good && node != NULL; node = node->next)
        good = copy_node(copy, node);
    for (struct CUgraphNode_st *node = graph->first; good && node != NULL; node = node->next) {
        for (uint32_t i = 0; good && i < node->dependency_count; i++)
            good = add_dependency(node->copy, node->dependencies[i]->copy);
    }
    if (!good && copy != NULL)
        graph_delete_locked(copy);
    return good ? copy : NULL;
}

/* ---- Sorting ---- */

struct sorted {
    struct CUgraphNode_st **nodes;
    size_t count, room;
};

static bool sort_graph(struct CUgraph_st *graph, struct sorted *sorted);

static bool put(struct sorted *sorted, struct CUgraphNode_st *node) {
    if (sorted->count == sorted->room) {
        size_t room = 2 * sorted->room + 16;
        void *grown = realloc(sorted->nodes, room * sizeof(*sorted->nodes));

        if (grown == NULL)
            return false;
        sorted->nodes = grown;
        sorted->room = room;
    }
    sorted->nodes[sorted->count++] = node;
    return true;
}

/*
 * Puts the node after all that it depends on, which are put first; no recursion, since chains may be long. On the way
 * down a node is marked `open`; who comes upon an open one again has gone in a circle.
 */
static bool sort_from(struct CUgraphNode_st *start, unsigned open, struct sorted *sorted) {
    struct sorted path = {0};
    bool good = put(&path, start);

    while (good && path.count > 0) {
        struct CUgraphNode_st *node = path.nodes[path.count - 1];
        struct CUgraphNode_st *before = NULL;

        node->visit = open;
        for (uint32_t i = 0; i < node->dependency_count && before == NULL; i++) {
            if (node->dependencies[i]->visit != open + 1)
                before = node->dependencies[i];
        }
        if (before != NULL) {
            good = before->visit != open && put(&path, before);
            continue;
        }
        path.count--;
        node->visit = open + 1;
        good = node->type == CU_GRAPH_NODE_TYPE_GRAPH ? sort_graph(node->work.child, sorted) : put(sorted, node);
    }
    free(path.nodes);
    return good;
}

static bool sort_graph(struct CUgraph_st *graph, struct sorted *sorted) {
    unsigned open = visits += 2;

    for (struct CUgraphNode_st *node = graph->first; node != NULL; node = node->next) {
        if (node->visit != open + 1 && !sort_from(node, open, sorted))
            return false;
    }
    return true;
}

struct CUgraphNode_st **graph_sort_locked(struct CUgraph_st *graph, size_t *count) {
    struct sorted sorted = {0};

    /* An empty graph has an order too. */
    sorted.nodes = malloc(16 * sizeof(*sorted.nodes));
    sorted.room = 16;
    if (sorted.nodes == NULL || !sort_graph(graph, &sorted)) {
        free(sorted.nodes);
        return NULL;
    }
    *count = sorted.count;
    return sorted.nodes;
}

/* ---- The API. Graphs ---- */

CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags) {
    struct CUgraph_st *graph;

    REQUIRE_INITIALISED();
    REQUIRE(phGraph != NULL && flags == 0, CUDA_ERROR_INVALID_VALUE);
    graph_lock();
    graph = graph_new_locked();
    graph_unlock();
    REQUIRE(graph != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    *phGraph = graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph hGraph) {
    ENTER(graph_valid(hGraph) && !hGraph->owned);
    graph_delete_locked(hGraph);
    LEAVE(CUDA_SUCCESS);
}

static CUresult clone_locked(CUgraph *clone, CUgraph graph) {
    REQUIRE(graph->memory_nodes == 0, CUDA_ERROR_NOT_SUPPORTED);
    *clone = graph_copy_locked(graph);
    return *clone != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphClone(CUgraph *phGraphClone, CUgraph originalGraph) {
    ENTER(phGraphClone != NULL && graph_valid(originalGraph));
    LEAVE(clone_locked(phGraphClone, originalGraph));
}

struct CUgraphNode_st *node_find_copy_locked(struct CUgraph_st *copy, const struct CUgraphNode_st *original) {
    for (struct CUgraphNode_st *node = copy->first; node != NULL; node = node->next) {
        if (node->original == original && node->original_id == original->id)
            return node;
        if (node->type == CU_GRAPH_NODE_TYPE_GRAPH) {
            struct CUgraphNode_st *found = node_find_copy_locked(node->work.child, original);

            if (found != NULL)
                return found;
        }
    }
    return NULL;
}

CUresult cuGraphNodeFindInClone(CUgraphNode *phNode, CUgraphNode hOriginalNode, CUgraph hClonedGraph) {
    ENTER(phNode != NULL && node_valid(hOriginalNode) && graph_valid(hClonedGraph));
    *phNode = node_find_copy_locked(hClonedGraph, hOriginalNode);
    LEAVE(*phNode != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* ---- Adding nodes ---- */

static CUresult add(CUgraphNode *node, CUgraph graph, CUgraphNodeType type, const union node_work *work,
                    const CUgraphNode *dependencies, size_t count) {
    ENTER(node != NULL && graph_valid(graph));
    LEAVE(node_add_locked(graph, type, work, dependencies, count, node));
}

CUresult cuGraphAddEmptyNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                             size_t numDependencies) {
    return add(phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_EMPTY, NULL, dependencies, numDependencies);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                 size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS *nodeParams) {
    union node_work work = {0};

    REQUIRE_INITIALISED();
    TRY(kernel_params_take(nodeParams, &work));
    return add(phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_KERNEL, &work, dependencies, numDependencies);
}

CUresult cuGraphAddKernelNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                              size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
    CUDA_KERNEL_NODE_PARAMS params;

    REQUIRE_INITIALISED();
    TRY(kernel_params_widen(nodeParams, &params));
    return cuGraphAddKernelNode_v2(phGraphNode, hGraph, dependencies, numDependencies, &params);
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                              size_t numDependencies, const CUDA_MEMCPY3D *copyParams, CUcontext ctx) {
    union node_work work = {0};

    REQUIRE_INITIALISED();
    TRY(copy_params_take(copyParams, ctx, &work));
    return add(phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_MEMCPY, &work, dependencies, numDependencies);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                              size_t numDependencies, const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx) {
    union node_work work = {0};

    REQUIRE_INITIALISED();
    TRY(fill_params_take(memsetParams, ctx, &work));
    return add(phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_MEMSET, &work, dependencies, numDependencies);
}

CUresult cuGraphAddHostNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                            size_t numDependencies, const CUDA_HOST_NODE_PARAMS *nodeParams) {
    union node_work work = {0};

    REQUIRE_INITIALISED();
    TRY(host_params_take(nodeParams, &work));
    return add(phGraphNode, hGraph, CU_GRAPH_NODE_TYPE_HOST, &work, dependencies, numDependencies);
}

static CUresult add_child_locked(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                 CUgraph child) {
    union node_work work = {0};
    CUresult ret;

    REQUIRE(child->memory_nodes == 0, CUDA_ERROR_NOT_SUPPORTED);
    work.child = graph_copy_locked(child);
    REQUIRE(work.child != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    work.child->owned = true;
    ret = node_add_locked(graph, CU_GRAPH_NODE_TYPE_GRAPH, &work, dependencies, count, node);
    if (ret != CUDA_SUCCESS)
        graph_delete_locked(work.child);
    return ret;
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                  size_t numDependencies, CUgraph childGraph) {
    ENTER(phGraphNode != NULL && graph_valid(hGraph) && graph_valid(childGraph) && hGraph != childGraph);
    LEAVE(add_child_locked(phGraphNode, hGraph, dependencies, numDependencies, childGraph));
}

static CUresult add_event(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                          CUevent event, CUgraphNodeType type) {
    union node_work work = {0};

    REQUIRE_INITIALISED();
    REQUIRE(event != NULL, CUDA_ERROR_INVALID_VALUE);
    work.event = event;
    return add(node, graph, type, &work, dependencies, count);
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                   size_t numDependencies, CUevent event) {
    return add_event(phGraphNode, hGraph, dependencies, numDependencies, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                 size_t numDependencies, CUevent event) {
    return add_event(phGraphNode, hGraph, dependencies, numDependencies, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                                size_t numDependencies, CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams) {
    ENTER(phGraphNode != NULL && graph_valid(hGraph) && nodeParams != NULL);
    LEAVE(node_add_alloc_locked(hGraph, &nodeParams->poolProps, nodeParams->bytesize, dependencies, numDependencies,
                                phGraphNode, &nodeParams->dptr));
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                               size_t numDependencies, CUdeviceptr dptr) {
    ENTER(phGraphNode != NULL && graph_valid(hGraph));
    LEAVE(node_add_free_locked(hGraph, dptr, dependencies, numDependencies, phGraphNode));
}

CUresult cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                        size_t numDependencies, CUgraphNodeParams *nodeParams) {
    CUDA_MEMSET_NODE_PARAMS fill;
    CUresult ret;

    REQUIRE(nodeParams != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_INITIALISED();
    switch (nodeParams->type) {
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return cuGraphAddEmptyNode(phGraphNode, hGraph, dependencies, numDependencies);
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return cuGraphAddKernelNode_v2(phGraphNode, hGraph, dependencies, numDependencies, &nodeParams->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return cuGraphAddMemcpyNode(phGraphNode, hGraph, dependencies, numDependencies, &nodeParams->memcpy.copyParams,
                                    nodeParams->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        memcpy(&fill, &nodeParams->memset, sizeof(fill));
        return cuGraphAddMemsetNode(phGraphNode, hGraph, dependencies, numDependencies, &fill, nodeParams->memset.ctx);
    case CU_GRAPH_NODE_TYPE_HOST:
        return cuGraphAddHostNode(phGraphNode, hGraph, dependencies, numDependencies, &nodeParams->host);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        ret = cuGraphAddChildGraphNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams->graph.graph);
        if (ret == CUDA_SUCCESS)
            nodeParams->graph.graph = (*phGraphNode)->work.child;
        return ret;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return cuGraphAddEventWaitNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return cuGraphAddEventRecordNode(phGraphNode, hGraph, dependencies, numDependencies,
                                         nodeParams->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return cuGraphAddMemAllocNode(phGraphNode, hGraph, dependencies, numDependencies, &nodeParams->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return cuGraphAddMemFreeNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams->free.dptr);
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* Programmatic edges start a kernel before the one it depends on has ended; here they do not. */
CUresult cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies,
                           const CUgraphEdgeData *dependencyData, size_t numDependencies,
                           CUgraphNodeParams *nodeParams) {
    (void)dependencyData;
    return cuGraphAddNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
}

/* ---- Asking about nodes ---- */

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS *params_out) {
    CHECK_AND_ENTER(params_out != NULL && node_valid(hNode) && hNode->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    *params_out = (CUDA_MEM_ALLOC_NODE_PARAMS){.poolProps = hNode->work.memory->props,
                                               .bytesize = hNode->work.memory->size,
                                               .dptr = hNode->work.memory->address};
    LEAVE(CUDA_SUCCESS);
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr *dptr_out) {
    CHECK_AND_ENTER(dptr_out != NULL && node_valid(hNode) && hNode->type == CU_GRAPH_NODE_TYPE_MEM_FREE);
    *dptr_out = hNode->work.memory->address;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph *phGraph) {
    ENTER(phGraph != NULL && node_valid(hNode) && hNode->type == CU_GRAPH_NODE_TYPE_GRAPH);
    *phGraph = hNode->work.child;
    LEAVE(CUDA_SUCCESS);
}

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type) {
    ENTER(type != NULL && node_valid(hNode));
    *type = hNode->type;
    LEAVE(CUDA_SUCCESS);
}

/* A list as these calls give it: how many there are, or as many as there is room for, and NULL in the room left. */
struct list {
    CUgraphNode *nodes;
    size_t room, count;
};

static void list_put(struct list *list, CUgraphNode node) {
    if (list->nodes != NULL && list->count < list->room)
        list->nodes[list->count] = node;
    list->count++;
}

static CUresult list_end(const struct list *list, size_t *count) {
    for (size_t i = list->count; list->nodes != NULL && i < list->room; i++)
        list->nodes[i] = NULL;
    *count = list->nodes != NULL && list->count > list->room ? list->room : list->count;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes_out, size_t *numNodes) {
    struct list list;

    ENTER(numNodes != NULL && graph_valid(hGraph));
    list = (struct list){nodes_out, *numNodes, 0};
    for (struct CUgraphNode_st *node = hGraph->first; node != NULL; node = node->next)
        list_put(&list, node);
    LEAVE(list_end(&list, numNodes));
}

CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes) {
    struct list list;

    ENTER(numRootNodes != NULL && graph_valid(hGraph));
    list = (struct list){rootNodes, *numRootNodes, 0};
    for (struct CUgraphNode_st *node = hGraph->first; node != NULL; node = node->next) {
        if (node->dependency_count == 0)
            list_put(&list, node);
    }
    LEAVE(list_end(&list, numRootNodes));
}

CUresult cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges) {
    struct list froms, tos;

    ENTER(numEdges != NULL && graph_valid(hGraph) && (from == NULL) == (to == NULL));
    froms = (struct list){from, *numEdges, 0};
    tos = (struct list){to, *numEdges, 0};
    for (struct CUgraphNode_st *node = hGraph->first; node != NULL; node = node->next) {
        for (uint32_t i = 0; i < node->dependency_count; i++) {
            list_put(&froms, node->dependencies[i]);
            list_put(&tos, node);
        }
    }
    list_end(&froms, numEdges);
    LEAVE(list_end(&tos, numEdges));
}

CUresult cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode *dependencies, size_t *numDependencies) {
    struct list list;

    ENTER(numDependencies != NULL && node_valid(hNode));
    list = (struct list){dependencies, *numDependencies, 0};
    for (uint32_t i = 0; i < hNode->dependency_count; i++)
        list_put(&list, hNode->dependencies[i]);
    LEAVE(list_end(&list, numDependencies));
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode hNode, CUgraphNode *dependentNodes, size_t *numDependentNodes) {
    struct list list;

    ENTER(numDependentNodes != NULL && node_valid(hNode));
    list = (struct list){dependentNodes, *numDependentNodes, 0};
    for (struct CUgraphNode_st *node = hNode->graph->first; node != NULL; node = node->next) {
        if (node_depends(node, hNode))
            list_put(&list, node);
    }
    LEAVE(list_end(&list, numDependentNodes));
}

/* No edge has data: those that were given with some are like all others here. */
static void no_edge_data(CUgraphEdgeData *data, size_t count) {
    for (size_t i = 0; data != NULL && i < count; i++)
        data[i] = (CUgraphEdgeData){0};
}

CUresult cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edgeData,
                            size_t *numEdges) {
    TRY(cuGraphGetEdges(hGraph, from, to, numEdges));
    if (from != NULL)
        no_edge_data(edgeData, *numEdges);
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode *dependencies, CUgraphEdgeData *edgeData,
                                       size_t *numDependencies) {
    TRY(cuGraphNodeGetDependencies(hNode, dependencies, numDependencies));
    if (dependencies != NULL)
        no_edge_data(edgeData, *numDependencies);
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode hNode, CUgraphNode *dependentNodes, CUgraphEdgeData *edgeData,
                                         size_t *numDependentNodes) {
    TRY(cuGraphNodeGetDependentNodes(hNode, dependentNodes, numDependentNodes));
    if (dependentNodes != NULL)
        no_edge_data(edgeData, *numDependentNodes);
    return CUDA_SUCCESS;
}

/* ---- Changing edges ---- */

static CUresult add_edges_locked(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    for (size_t i = 0; i < count; i++) {
        REQUIRE(node_valid(from[i]) && node_valid(to[i]) && from[i]->graph == graph && to[i]->graph == graph &&
                    from[i] != to[i] && !node_depends(to[i], from[i]),
                CUDA_ERROR_INVALID_VALUE);
        REQUIRE(add_dependency(to[i], from[i]), CUDA_ERROR_OUT_OF_MEMORY);
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphAddDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                size_t numDependencies) {
    CHECK_AND_ENTER(graph_valid(hGraph) && (numDependencies == 0 || (from != NULL && to != NULL)));
    LEAVE(add_edges_locked(hGraph, from, to, numDependencies));
}

CUresult cuGraphAddDependencies_v2(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *edgeData, size_t numDependencies) {
    (void)edgeData;
    return cuGraphAddDependencies(hGraph, from, to, numDependencies);
}

static bool remove_dependency(struct CUgraphNode_st *node, const struct CUgraphNode_st *on) {
    for (uint32_t i = 0; i < node->dependency_count; i++) {
        if (node->dependencies[i] == on) {
            node->dependencies[i] = node->dependencies[--node->dependency_count];
            return true;
        }
    }
    return false;
}

static CUresult remove_edges_locked(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
    REQUIRE(graph->memory_nodes == 0, CUDA_ERROR_NOT_SUPPORTED);
    for (size_t i = 0; i < count; i++) {
        REQUIRE(node_valid(to[i]) && to[i]->graph == graph && remove_dependency(to[i], from[i]),
                CUDA_ERROR_INVALID_VALUE);
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphRemoveDependencies(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                   size_t numDependencies) {
    CHECK_AND_ENTER(graph_valid(hGraph) && (numDependencies == 0 || (from != NULL && to != NULL)));
    LEAVE(remove_edges_locked(hGraph, from, to, numDependencies));
}

CUresult cuGraphRemoveDependencies_v2(CUgraph hGraph, const CUgraphNode *from, const CUgraphNode *to,
                                      const CUgraphEdgeData *edgeData, size_t numDependencies) {
    (void)edgeData;
    return cuGraphRemoveDependencies(hGraph, from, to, numDependencies);
}

/* Nodes of a graph that has memory nodes cannot be taken away. */
static CUresult destroy_node_locked(struct CUgraphNode_st *node) {
    REQUIRE(node->graph->memory_nodes == 0, CUDA_ERROR_NOT_SUPPORTED);
    for (struct CUgraphNode_st *other = node->graph->first; other != NULL; other = other->next)
        remove_dependency(other, node);
    node_delete(node);
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroyNode(CUgraphNode hNode) {
    ENTER(node_valid(hNode));
    LEAVE(destroy_node_locked(hNode));
}
