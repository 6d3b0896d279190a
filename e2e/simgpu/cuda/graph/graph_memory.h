/*
 * The memory of graphs. An allocation has its address from the making of its node on. Physical memory comes from a
 * reserve that each GPU has for all graphs, which grows when a graph is launched or uploaded for which it is too small,
 * and shrinks when it is trimmed. Since a GPU does its work in the order of its launches, what one graph needs only
 * while it runs serves the next as well.
 *
 * All of it is under the mutex of graph.h.
 */
#ifndef SIMGPU_GRAPH_MEMORY_H
#define SIMGPU_GRAPH_MEMORY_H

#include "cuda/memory/heap.h"

struct CUgraph_st;
struct CUgraphNode_st;

struct graph_alloc {
    unsigned references; /* nodes, and the memory's being allocated */
    CUmemPoolProps props;
    CUdevice device;
    CUdeviceptr address;
    uint64_t size, bytes; /* as asked for; as taken from the GPU */
    struct extent *extent;
    struct graph_alloc *previous, *next; /* of all */
    uint64_t graph;                      /* the id of the one whose node allocates it */
    bool freed_at_home;                  /* in that graph */
    bool freed_abroad;                   /* by a node of another graph */
    bool allocated;                      /* after its graph ran, until it is freed */
};

CUresult graph_alloc_new(const CUmemPoolProps *props, uint64_t size, uint64_t graph, struct graph_alloc **out);
void graph_alloc_unref(struct graph_alloc *alloc);

/* What begins at this address, or NULL. */
struct graph_alloc *graph_alloc_at(CUdeviceptr address);

/*
 * Takes what running the nodes in this order needs, and makes allocated and free what they leave so; an upload does the
 * first alone. `again`: what an earlier run left allocated is freed first.
 */
CUresult graph_memory_run(struct CUgraphNode_st **nodes, size_t count, bool again);

/* After a run that succeeded: the work of it ends at the mark. */
void graph_memory_launched(struct CUgraphNode_st **nodes, size_t count, CUdevice device, uint64_t mark);

CUresult graph_memory_upload(struct CUgraphNode_st **nodes, size_t count);

/* No more graphs live that used the reserves. */
void graph_memory_unused(void);

/* Frees what a graph allocated and left allocated. CUDA_ERROR_INVALID_VALUE if that is not so. Takes the mutex. */
CUresult graph_memory_free(CUdeviceptr address);

/* Resetting a device's primary context frees the memory of its graphs. Takes the mutex. */
void graph_memory_reset(CUdevice device);

#endif
