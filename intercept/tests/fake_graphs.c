#include "fake_graphs.h"

#include "fake_streams.h"

#include <stdlib.h>
#include <string.h>

#define MADE 64

struct CUgraph_st {
    size_t bytes; /* 0: free */
    bool destroyed;
};

static struct CUgraph_st made[MADE]; /* instances too */

static uint64_t reserved; /* for all graphs: memory is used again by the next launch */

CUgraph fake_graph_new(size_t bytes) {
    for (int i = 0; i < MADE; i++) {
        if (made[i].bytes != 0)
            continue;
        made[i] = (struct CUgraph_st){.bytes = bytes};
        return &made[i];
    }
    abort();
}

/* A graph is its own node. */
static CUresult get_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    if (graph->destroyed)
        return CUDA_ERROR_INVALID_VALUE;
    *count = 1;
    if (nodes != NULL)
        *nodes = (CUgraphNode)graph;
    return CUDA_SUCCESS;
}

static CUresult node_type(CUgraphNode node, CUgraphNodeType *type) {
    (void)node;
    *type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    return CUDA_SUCCESS;
}

static CUresult node_parameters(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *parameters) {
    memset(parameters, 0, sizeof *parameters);
    parameters->poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    parameters->bytesize = ((CUgraph)node)->bytes;
    parameters->dptr = (uintptr_t)node;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUgraph graph) {
    graph->destroyed = true;
    return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    (void)flags;
    *exec = (CUgraphExec)fake_graph_new(graph->bytes);
    if (fake_orders.in_instantiate != NULL)
        fake_orders.in_instantiate(graph);
    return CUDA_SUCCESS;
}

static CUresult exec_destroy(CUgraphExec exec) {
    ((CUgraph)exec)->bytes = 0;
    return CUDA_SUCCESS;
}

static CUresult launch(CUgraphExec exec, CUstream stream) {
    void (*in_launch)(void) = fake_orders.in_launch;
    (void)stream;
    fake_orders.in_launch = NULL;
    if (in_launch != NULL)
        in_launch();
    uint64_t needed = (((CUgraph)exec)->bytes + FAKE_PIECE_BYTES - 1) / FAKE_PIECE_BYTES * FAKE_PIECE_BYTES;
    if (needed > reserved) {
        fake_take(0, (int64_t)(needed - reserved));
        reserved = needed;
    }
    return CUDA_SUCCESS;
}

static CUresult memory_attribute(CUdevice device, CUgraphMem_attribute attribute, void *value) {
    (void)attribute; /* all that is reserved may be in use */
    *(cuuint64_t *)value = device == 0 ? reserved : 0;
    return CUDA_SUCCESS;
}

static CUresult trim(CUdevice device) {
    if (device == 0) {
        fake_take(0, -(int64_t)reserved);
        reserved = 0;
    }
    return CUDA_SUCCESS;
}

typedef void (*any_function)(void);

void *fake_graphs_lookup(const char *name) {
    static const struct {
        const char *name;
        any_function function;
    } functions[] = {
        {"cuGraphGetNodes", (any_function)get_nodes},
        {"cuGraphNodeGetType", (any_function)node_type},
        {"cuGraphMemAllocNodeGetParams", (any_function)node_parameters},
        {"cuGraphInstantiateWithFlags", (any_function)instantiate},
        {"cuGraphDestroy", (any_function)destroy},
        {"cuGraphExecDestroy", (any_function)exec_destroy},
        {"cuGraphLaunch", (any_function)launch},
        {"cuDeviceGetGraphMemAttribute", (any_function)memory_attribute},
        {"cuDeviceGraphMemTrim", (any_function)trim},
    };
    for (unsigned i = 0; i < sizeof functions / sizeof functions[0]; i++)
        if (strcmp(functions[i].name, name) == 0)
            return (void *)functions[i].function;
    return NULL;
}
