/*
 * Graphs: nodes of work and what each of them comes after.
 *
 * One mutex is around all graphs, executable graphs and captures; what ends in _locked, or takes a graph's parts
 * apart, is called under it.
 */
#ifndef SIMGPU_GRAPH_H
#define SIMGPU_GRAPH_H

#include "cuda/memop/memop.h"
#include "cuda/work/stream.h"
#include "graph_attributes.h"
#include "graph_memory.h"
#include "user_object.h"

/* The function that kernel parameters mean. */
static inline CUfunction kernel_function(const CUDA_KERNEL_NODE_PARAMS *params) {
    return params->func != NULL ? params->func : (CUfunction)params->kern;
}

/* What a node does. Kernels here read no arguments, so none are kept. */
union node_work {
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUDA_MEMCPY3D copy;
    CUDA_MEMSET_NODE_PARAMS fill;
    CUDA_HOST_NODE_PARAMS host;
    CUgraph child; /* the node's own */
    CUevent event;
    struct graph_alloc *memory; /* allocated or freed */
    struct batch *batch;        /* operations on memory; the node has a reference */
};

struct CUgraphNode_st {
    struct handle handle;
    struct CUgraph_st *graph;
    struct CUgraphNode_st *previous, *next; /* in the graph, in the order in which they were added */
    uint64_t id;                            /* never used again, as the handle may be */
    struct CUgraphNode_st *original;        /* of which this is a copy; may be no more */
    uint64_t original_id;
    struct CUgraphNode_st *copy; /* while copying or comparing */
    unsigned visit;              /* while sorting */
    bool disabled;               /* of an executable graph: it does nothing */
    CUgraphNodeType type;
    uint32_t dependency_count, dependency_room;
    struct CUgraphNode_st **dependencies;
    union node_work work;
    struct kernel_attributes attributes; /* of a kernel */
};

struct CUgraph_st {
    struct handle handle;
    uint64_t id;
    struct CUgraphNode_st *first, *last;
    size_t node_count, memory_nodes;
    unsigned instances; /* executable graphs made of it that live; counted where there are memory nodes */
    struct object_references *objects; /* user objects that it keeps */
    bool owned;                        /* by a node, an executable graph or a capture: not the program's to destroy */
};

void graph_lock(void);
void graph_unlock(void);

bool graph_valid(CUgraph graph);
bool node_valid(CUgraphNode node);

struct CUgraph_st *graph_new_locked(void);
void graph_delete_locked(struct CUgraph_st *graph);

/* A copy, with copies of the child graphs. Copies of memory nodes mean the same memory. NULL: no memory. */
struct CUgraph_st *graph_copy_locked(const struct CUgraph_st *graph);

static inline bool node_depends(const struct CUgraphNode_st *node, const struct CUgraphNode_st *on) {
    for (uint32_t i = 0; i < node->dependency_count; i++) {
        if (node->dependencies[i] == on)
            return true;
    }
    return false;
}

/* Adds a node that comes after those given. Takes over what `work` refers to, unless it fails. */
CUresult node_add_locked(struct CUgraph_st *graph, CUgraphNodeType type, const union node_work *work,
                         const CUgraphNode *dependencies, size_t count, CUgraphNode *node);

/* Gives a node other work of its kind, and takes over what that refers to. Not for child graphs and memory. */
void node_set_work_locked(struct CUgraphNode_st *node, const union node_work *work);

/* A node that allocates or frees memory of graphs. */
CUresult node_add_alloc_locked(struct CUgraph_st *graph, const CUmemPoolProps *props, uint64_t size,
                               const CUgraphNode *dependencies, size_t count, CUgraphNode *node, CUdeviceptr *address);
CUresult node_add_free_locked(struct CUgraph_st *graph, CUdeviceptr address, const CUgraphNode *dependencies,
                              size_t count, CUgraphNode *node);

/* The graph's nodes and its child graphs' in an order in which they can run. NULL: a circle, or no memory. */
struct CUgraphNode_st **graph_sort_locked(struct CUgraph_st *graph, size_t *count);

/* The copy of a node in a copy of its graph or in a child graph of that. NULL if there is none. */
struct CUgraphNode_st *node_find_copy_locked(struct CUgraph_st *copy, const struct CUgraphNode_st *original);

/* Whether two graphs, child graphs included, have the same nodes and edges. Memory nodes cannot be compared. */
CUgraphExecUpdateResult graph_compare_locked(struct CUgraph_st *a, struct CUgraph_st *b);

/* Gives the nodes of a graph the work of those of another, which compares equal, and the graph its user objects. */
CUresult graph_take_over_locked(struct CUgraph_st *graph, const struct CUgraph_st *from);

/* The graph that an executable graph would run, or NULL. */
struct CUgraph_st *exec_graph_locked(CUgraphExec exec);

/* Begins a function on a graph or a node: under the mutex, which LEAVE gives up. */
#define ENTER(condition)                                                                                               \
    REQUIRE_INITIALISED();                                                                                             \
    graph_lock();                                                                                                      \
    if (!(condition)) {                                                                                                \
        graph_unlock();                                                                                                \
        return CUDA_ERROR_INVALID_VALUE;                                                                               \
    }
/* The same for functions of CUDA 11 and later, which look at their arguments first. */
#define CHECK_AND_ENTER(condition)                                                                                     \
    graph_lock();                                                                                                      \
    if (!(condition)) {                                                                                                \
        graph_unlock();                                                                                                \
        return CUDA_ERROR_INVALID_VALUE;                                                                               \
    }                                                                                                                  \
    if (!driver_ready()) {                                                                                             \
        graph_unlock();                                                                                                \
        return CUDA_ERROR_NOT_INITIALIZED;                                                                             \
    }
#define LEAVE(result)                                                                                                  \
    do {                                                                                                               \
        CUresult leave_result = (result);                                                                              \
        graph_unlock();                                                                                                \
        return leave_result;                                                                                           \
    } while (0)

#endif
