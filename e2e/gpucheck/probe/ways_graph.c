/* Graphs with memory nodes: the memory is taken when the graph is launched, and stays with the device until it is
 * trimmed. */
#include "ways.h"

static CUstream stream;

static const char *need_pools(void) {
    enum { NON_BLOCKING = 1 };
    CUresult result;
    if (!attribute(device, ATTRIBUTE_MEMORY_POOLS))
        return "this GPU has no memory pools";
    if ((result = cuda.cuStreamCreate(&stream, NON_BLOCKING)) != CUDA_SUCCESS)
        return because("cuStreamCreate: %s", error_name(result));
    return NULL;
}

/* Launches what a graph allocates; the executable graph is kept in piece->second, the address is set already. */
static CUresult launch(CUgraph graph, struct piece *piece) {
    CUgraphExec executable = NULL;
    CUresult result = cuda.cuGraphInstantiateWithFlags(&executable, graph, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuGraphLaunch(executable, stream);
    if (result == CUDA_SUCCESS)
        result = cuda.cuStreamSynchronize(stream);
    if (result != CUDA_SUCCESS)
        cuda.cuGraphExecDestroy(executable);
    piece->second = executable;
    return result;
}

static CUresult take_nodes(uint64_t bytes, struct piece *piece) {
    CUmemAccessDesc access = device_access();
    CUgraphAllocParams wanted = {.pool = device_pool(false), .access = &access, .access_count = 1, .size = bytes};
    CUgraphNode node;
    CUgraph graph;
    CUresult result = cuda.cuGraphCreate(&graph, 0);
    if (result != CUDA_SUCCESS)
        return result;
    if ((result = cuda.cuGraphAddMemAllocNode(&node, graph, NULL, 0, &wanted)) == CUDA_SUCCESS) {
        piece->address = wanted.address;
        result = launch(graph, piece);
    }
    cuda.cuGraphDestroy(graph);
    return result;
}

static CUresult take_captured(uint64_t bytes, struct piece *piece) {
    enum { RELAXED = 2 };
    CUgraph graph = NULL;
    CUresult result = cuda.cuStreamBeginCapture_v2(stream, RELAXED);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda.cuMemAllocAsync(&piece->address, bytes, stream);
    CUresult ended = cuda.cuStreamEndCapture(stream, &graph);
    if (result == CUDA_SUCCESS)
        result = ended;
    if (result == CUDA_SUCCESS)
        result = launch(graph, piece);
    if (graph != NULL)
        cuda.cuGraphDestroy(graph);
    return result;
}

static CUresult give_launched(struct piece *piece) {
    CUresult result = cuda.cuMemFreeAsync(piece->address, stream);
    cuda.cuStreamSynchronize(stream);
    cuda.cuGraphExecDestroy(piece->second);
    return result;
}

static void trim(void) {
    cuda.cuCtxSynchronize();
    cuda.cuDeviceGraphMemTrim(device);
}

#define GRAPH                                                                                                          \
    "cuGraphCreate", "cuGraphDestroy", "cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuGraphExecDestroy",           \
        "cuDeviceGraphMemTrim", "cuMemFreeAsync", "cuStreamSynchronize", "cuStreamCreate", "cuCtxSynchronize"

const struct way graph_ways[] = {
    {"graph", "a graph's memory node, launched", 2 * MIB, FUNCTIONS(GRAPH, "cuGraphAddMemAllocNode"), need_pools,
     take_nodes, give_launched, trim},
    {"graph-captured", "cuMemAllocAsync captured into a graph, launched", 2 * MIB,
     FUNCTIONS(GRAPH, "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuMemAllocAsync"), need_pools, take_captured,
     give_launched, trim},
    {0},
};
