/* A graph as text for Graphviz: its nodes and child graphs, and what each node comes after. */
#include <inttypes.h>
#include <stdio.h>

#include "cuda/image/module.h"
#include "graph.h"

#define ALL_FLAGS (2 * CU_GRAPH_DEBUG_DOT_FLAGS_CONDITIONAL_NODE_PARAMS - 1)

static const char *type_name(CUgraphNodeType type) {
    static const char *const names[] = {
        [CU_GRAPH_NODE_TYPE_KERNEL] = "KERNEL",         [CU_GRAPH_NODE_TYPE_MEMCPY] = "MEMCPY",
        [CU_GRAPH_NODE_TYPE_MEMSET] = "MEMSET",         [CU_GRAPH_NODE_TYPE_HOST] = "HOST",
        [CU_GRAPH_NODE_TYPE_GRAPH] = "GRAPH",           [CU_GRAPH_NODE_TYPE_EMPTY] = "EMPTY",
        [CU_GRAPH_NODE_TYPE_WAIT_EVENT] = "WAIT_EVENT", [CU_GRAPH_NODE_TYPE_EVENT_RECORD] = "EVENT_RECORD",
        [CU_GRAPH_NODE_TYPE_MEM_ALLOC] = "MEM_ALLOC",   [CU_GRAPH_NODE_TYPE_MEM_FREE] = "MEM_FREE",
    };

    return (size_t)type < sizeof(names) / sizeof(names[0]) && names[type] != NULL ? names[type] : "UNKNOWN";
}

static void print_kernel(FILE *out, const struct CUgraphNode_st *node, unsigned flags) {
    const CUDA_KERNEL_NODE_PARAMS *k = &node->work.kernel;
    CUfunction f = kernel_function(k);
    const char *name;

    if (cuFuncGetName(&name, f) == CUDA_SUCCESS)
        fprintf(out, "\\n%s", name);
    if ((flags & CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES) != 0)
        fprintf(out, "\\nfunction %p", (void *)f);
    if ((flags & CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_PARAMS) != 0)
        fprintf(out, "\\ngrid %u %u %u\\nblock %u %u %u\\nshared %u", k->gridDimX, k->gridDimY, k->gridDimZ,
                k->blockDimX, k->blockDimY, k->blockDimZ, k->sharedMemBytes);
    if ((flags & CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_ATTRIBUTES) != 0)
        fprintf(out, "\\ncooperative %d\\npriority %d", node->attributes.cooperative, node->attributes.priority);
}

static const char *operand(CUmemorytype type) {
    return type == CU_MEMORYTYPE_HOST     ? "host"
           : type == CU_MEMORYTYPE_DEVICE ? "device"
           : type == CU_MEMORYTYPE_ARRAY  ? "array"
                                          : "unified";
}

static void print_copy(FILE *out, const CUDA_MEMCPY3D *c, unsigned flags) {
    fprintf(out, "\\n%s to %s", operand(c->srcMemoryType), operand(c->dstMemoryType));
    if ((flags & CU_GRAPH_DEBUG_DOT_FLAGS_MEMCPY_NODE_PARAMS) != 0)
        fprintf(out, "\\n%zu x %zu x %zu bytes", c->WidthInBytes, c->Height, c->Depth);
}

/* What the flags want to be said of the node. */
static void print_params(FILE *out, const struct CUgraphNode_st *node, unsigned flags) {
    const union node_work *w = &node->work;

    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        print_kernel(out, node, flags);
        break;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        print_copy(out, &w->copy, flags);
        break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        if ((flags & CU_GRAPH_DEBUG_DOT_FLAGS_MEMSET_NODE_PARAMS) != 0)
            fprintf(out, "\\n0x%" PRIx64 "\\nvalue %u, %u bytes\\n%zu x %zu", (uint64_t)w->fill.dst, w->fill.value,
                    w->fill.elementSize, w->fill.width, w->fill.height);
        break;
    case CU_GRAPH_NODE_TYPE_HOST:
        if ((flags & CU_GRAPH_DEBUG_DOT_FLAGS_HOST_NODE_PARAMS) != 0)
            fprintf(out, "\\nfn %p\\ndata %p", (void *)(uintptr_t)w->host.fn, w->host.userData);
        break;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        if ((flags & CU_GRAPH_DEBUG_DOT_FLAGS_EVENT_NODE_PARAMS) != 0)
            fprintf(out, "\\nevent %p", (void *)w->event);
        break;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        if ((flags & CU_GRAPH_DEBUG_DOT_FLAGS_MEM_ALLOC_NODE_PARAMS) != 0)
            fprintf(out, "\\n0x%" PRIx64 "\\n%" PRIu64 " bytes", (uint64_t)w->memory->address, w->memory->size);
        break;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        if ((flags & CU_GRAPH_DEBUG_DOT_FLAGS_MEM_FREE_NODE_PARAMS) != 0)
            fprintf(out, "\\n0x%" PRIx64, (uint64_t)w->memory->address);
        break;
    default:
        break;
    }
}

/* Child graphs are clusters of their own. Nodes are numbered from 0 in each graph, as they were added. */
static void print_graph(FILE *out, const struct CUgraph_st *graph, unsigned flags) {
    unsigned number = 0;

    fprintf(out, "subgraph cluster_%" PRIu64 " {\nlabel=\"graph_%" PRIu64 "\";\n", graph->id, graph->id);
    for (const struct CUgraphNode_st *node = graph->first; node != NULL; node = node->next) {
        fprintf(out, "node_%" PRIu64 " [label=\"%u\\n%s", node->id, number++, type_name(node->type));
        if ((flags & CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES) != 0)
            fprintf(out, "\\nnode %p", (const void *)node);
        print_params(out, node, flags);
        fprintf(out, "\"];\n");
        if (node->type == CU_GRAPH_NODE_TYPE_GRAPH)
            print_graph(out, node->work.child, flags);
    }
    for (const struct CUgraphNode_st *node = graph->first; node != NULL; node = node->next) {
        for (uint32_t i = 0; i < node->dependency_count; i++)
            fprintf(out, "node_%" PRIu64 " -> node_%" PRIu64 ";\n", node->dependencies[i]->id, node->id);
    }
    fprintf(out, "}\n");
}

static CUresult print_locked(CUgraph graph, const char *path, unsigned flags) {
    FILE *out = fopen(path, "we");
    bool good;

    REQUIRE(out != NULL, CUDA_ERROR_OPERATING_SYSTEM);
    fprintf(out, "digraph dot {\n");
    print_graph(out, graph, flags);
    fprintf(out, "}\n");
    good = ferror(out) == 0;
    good = fclose(out) == 0 && good;
    return good ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cuGraphDebugDotPrint(CUgraph hGraph, const char *path, unsigned int flags) {
    if ((flags & CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE) != 0)
        flags = ALL_FLAGS;
    CHECK_AND_ENTER(graph_valid(hGraph) && path != NULL && (flags & ~(unsigned)ALL_FLAGS) == 0);
    LEAVE(print_locked(hGraph, path, flags));
}
