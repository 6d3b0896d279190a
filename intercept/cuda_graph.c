/*
 * Graphs that allocate. The driver takes memory for them when they are launched, from a pool of the device that all graphs
 * share, and keeps it until it is trimmed: see pools.h. What one launch can take is the sum of its allocations, seen when the
 * graph is instantiated.
 */
#include "contexts.h"
#include "cuda_real.h"
#include "gpus.h"
#include "mapped.h"
#include "objects.h"
#include "pools.h"
#include "streams.h"

#define GRAPH_DEVICES DEVICES_MAX
#define DEPTH_MAX 16
#define PIECE_BYTES (UINT64_C(32) << 20)

struct sizes {
    uint64_t bytes[GRAPH_DEVICES];
};

static void add_graph(CUgraph graph, struct sizes *sizes, int depth);

static void add_node(CUgraphNode node, struct sizes *sizes, int depth) {
    CUgraphNodeType type;
    CUDA_MEM_ALLOC_NODE_PARAMS allocation;
    CUgraph child;
    if (REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS)
        return;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH && REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS)
        add_graph(child, sizes, depth + 1);
    if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || REAL(cuGraphMemAllocNodeGetParams)(node, &allocation) != CUDA_SUCCESS ||
        allocation.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return;
    int device = allocation.poolProps.location.id;
    if (device >= 0 && device < GRAPH_DEVICES)
        sizes->bytes[device] += (allocation.bytesize + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
}

static void add_graph(CUgraph graph, struct sizes *sizes, int depth) {
    size_t count = 0;
    if (depth > DEPTH_MAX || REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return;
    size_t room = count * sizeof(CUgraphNode);
    CUgraphNode *nodes = mapped_new(room);
    if (nodes == NULL)
        return;
    if (REAL(cuGraphGetNodes)(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count; i++)
            add_node(nodes[i], sizes, depth);
    munmap(nodes, room);
}

/* An instance has an entry of its own, with a bit for each device, and one for each device with the bytes. */
static uint64_t key_of(CUgraphExec exec, int device) {
    return objects_key((uintptr_t)exec, (uint64_t)device + 1);
}

static void forget(struct process *process, CUgraphExec exec) {
    struct entry gone, of_device;
    if (!objects_remove(process, KIND_GRAPH_EXEC, (uintptr_t)exec, &gone))
        return;
    for (int device = 0; device < GRAPH_DEVICES; device++)
        if (gone.with >> device & 1)
            objects_remove(process, KIND_GRAPH_EXEC, key_of(exec, device), &of_device);
}

/* --- launching ------------------------------------------------------------------------------------------------------- */

struct launching {
    struct process *process;
    struct pool *pools[GRAPH_DEVICES];
    struct charge growth[GRAPH_DEVICES];
};

static CUresult take_for(struct launching *launching, CUdevice device, uint64_t bytes) {
    int gpu;
    CUresult result = gpus_find_claimed(launching->process, device, &gpu);
    if (result != CUDA_SUCCESS)
        return result;
    struct pool *pool = pools_graphs(launching->process, device, gpu);
    if (pool == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = pools_before(launching->process, pool, bytes, &launching->growth[device]);
    if (result == CUDA_SUCCESS)
        launching->pools[device] = pool;
    return result;
}

/* In the order of devices, so that two launches do not wait for each other. */
static CUresult before(struct launching *launching, const struct sizes *sizes) {
    CUresult result = CUDA_SUCCESS;
    for (int device = 0; device < GRAPH_DEVICES && result == CUDA_SUCCESS; device++)
        if (sizes->bytes[device] != 0)
            result = take_for(launching, device, sizes->bytes[device]);
    for (int device = 0; device < GRAPH_DEVICES; device++) {
        if (launching->pools[device] == NULL)
            continue;
        if (result == CUDA_SUCCESS)
            pools_enter(launching->pools[device]);
        else
            charge_give(launching->process, &launching->growth[device]);
    }
    return result;
}

/* What a launch frees, it frees when the stream comes to it. */
static CUresult launched(struct launching *launching, CUstream stream, CUresult result) {
    bool any = false;
    for (int device = 0; device < GRAPH_DEVICES; device++)
        any = any || launching->pools[device] != NULL;
    if (any && result == CUDA_SUCCESS)
        streams_freed_in(launching->process, stream);
    return result;
}

static CUresult after(struct launching *launching, CUresult result) {
    for (int device = 0; device < GRAPH_DEVICES; device++)
        if (launching->pools[device] != NULL)
            pools_leave(launching->process, launching->pools[device], &launching->growth[device],
                        (struct allocated){0});
    return result;
}

static struct sizes sizes_of(struct process *process, CUgraphExec exec) {
    struct sizes sizes = {0};
    struct entry devices, entry;
    if (!objects_find(process, KIND_GRAPH_EXEC, (uintptr_t)exec, &devices))
        return sizes;
    for (int device = 0; device < GRAPH_DEVICES; device++)
        if (devices.with >> device & 1 && objects_find(process, KIND_GRAPH_EXEC, key_of(exec, device), &entry))
            sizes.bytes[device] = entry.with;
    return sizes;
}

#define LAUNCH(exec, stream, call)                                                                                     \
    do {                                                                                                               \
        struct launching launching = {.process = process_if_open()};                                                   \
        if (!objects_any(launching.process, KIND_GRAPH_EXEC))                                                          \
            return call;                                                                                               \
        struct sizes sizes = sizes_of(launching.process, exec);                                                        \
        CUresult result = before(&launching, &sizes);                                                                  \
        return result == CUDA_SUCCESS ? launched(&launching, stream, after(&launching, call)) : result;                \
    } while (0)

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    LAUNCH(exec, stream, REAL(cuGraphLaunch)(exec, stream));
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    LAUNCH(exec, stream != NULL ? stream : CU_STREAM_PER_THREAD, REAL(cuGraphLaunch_ptsz)(exec, stream));
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    LAUNCH(exec, stream, REAL(cuGraphUpload)(exec, stream));
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
    LAUNCH(exec, stream != NULL ? stream : CU_STREAM_PER_THREAD, REAL(cuGraphUpload_ptsz)(exec, stream));
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    pools_settle(process_if_open());
    return result;
}

/* --- instantiating ---------------------------------------------------------------------------------------------------- */

static CUresult instantiated(CUresult result, CUgraphExec *exec, CUgraph graph) {
    struct process *process = process_if_open();
    struct sizes sizes = {0};
    if (result != CUDA_SUCCESS || process == NULL)
        return result;
    uint64_t devices = 0;
    forget(process, *exec);
    add_graph(graph, &sizes, 0);
    for (int device = 0; device < GRAPH_DEVICES; device++) {
        if (sizes.bytes[device] == 0)
            continue;
        devices |= UINT64_C(1) << device;
        objects_put(process, KIND_GRAPH_EXEC,
                    (struct entry){.key = key_of(*exec, device), .with = sizes.bytes[device]});
    }
    if (devices != 0)
        objects_put(process, KIND_GRAPH_EXEC, (struct entry){.key = (uintptr_t)*exec, .with = devices});
    return result;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size) {
    return instantiated(REAL(cuGraphInstantiate)(exec, graph, error, log, size), exec, graph);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size) {
    return instantiated(REAL(cuGraphInstantiate_v2)(exec, graph, error, log, size), exec, graph);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    return instantiated(REAL(cuGraphInstantiateWithFlags)(exec, graph, flags), exec, graph);
}

/* One of the flags uploads the graph at once, which takes the memory that a launch would. */
#define UPLOAD 2u

#define INSTANTIATE(exec, graph, parameters, call)                                                                     \
    do {                                                                                                               \
        struct launching launching = {.process = process_if_open()};                                                   \
        struct sizes sizes = {0};                                                                                      \
        if (launching.process != NULL && (parameters) != NULL && (*(const cuuint64_t *)(parameters)&UPLOAD))           \
            add_graph(graph, &sizes, 0);                                                                               \
        CUresult result = before(&launching, &sizes);                                                                  \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        return instantiated(after(&launching, call), exec, graph);                                                     \
    } while (0)

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    INSTANTIATE(exec, graph, parameters, REAL(cuGraphInstantiateWithParams)(exec, graph, parameters));
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    INSTANTIATE(exec, graph, parameters, REAL(cuGraphInstantiateWithParams_ptsz)(exec, graph, parameters));
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    struct process *process = process_if_open();
    if (objects_any(process, KIND_GRAPH_EXEC))
        forget(process, exec);
    return REAL(cuGraphExecDestroy)(exec);
}
