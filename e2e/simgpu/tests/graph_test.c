/* Graphs: what their memory nodes take from the GPU, and what capturing a stream makes of it. */
#include <pthread.h>
#include <string.h>

#include "harness.h"

#define ELEMENTS(array) (sizeof(array) / sizeof((array)[0]))

static const char ptx[] = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry "
                          "spin_30ms()\n{\nret;\n}\n.visible .entry spin_200ms()\n{\nret;\n}\n"
                          ".visible .entry quick()\n{\nret;\n}\n";

static int64_t base; /* bytes of GPU 0 before the test began to look */

static int64_t taken(void) {
    return (int64_t)look("test").used[0] - base;
}

/* A context with the kernels loaded, run once, and no bytes counted so far. */
static CUfunction begin(const char *name) {
    CUfunction function = NULL;
    CUmodule module;

    context_on(0);
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&function, module, name));
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuCtxSynchronize());
    base = 0;
    base = taken();
    return function;
}

static CUstream new_stream(unsigned flags) {
    CUstream stream = NULL;

    OK(cuStreamCreate(&stream, flags));
    return stream;
}

static CUgraph new_graph(void) {
    CUgraph graph = NULL;

    OK(cuGraphCreate(&graph, 0));
    return graph;
}

static CUgraphExec instantiate(CUgraph graph, unsigned long long flags) {
    CUgraphExec exec = NULL;

    OK(cuGraphInstantiateWithFlags(&exec, graph, flags));
    return exec;
}

static CUDA_MEM_ALLOC_NODE_PARAMS params_of(size_t size) {
    return (CUDA_MEM_ALLOC_NODE_PARAMS){
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
        .bytesize = size};
}

/* Adds a node after another, or after none. */
static CUgraphNode add_alloc(CUgraph graph, CUgraphNode after, size_t size, CUdeviceptr *pointer) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = params_of(size);
    CUgraphNode node = NULL;

    OK(cuGraphAddMemAllocNode(&node, graph, &after, after != NULL, &params));
    *pointer = params.dptr;
    return node;
}

static CUgraphNode add_free(CUgraph graph, CUgraphNode after, CUdeviceptr pointer) {
    CUgraphNode node = NULL;

    OK(cuGraphAddMemFreeNode(&node, graph, &after, after != NULL, pointer));
    return node;
}

/* Memory that lives in the graph only. */
static void add_both(CUgraph graph, size_t size) {
    CUdeviceptr pointer;
    CUgraphNode node = add_alloc(graph, NULL, size, &pointer);

    add_free(graph, node, pointer);
}

static uint64_t attribute(CUgraphMem_attribute attribute) {
    cuuint64_t value = UINT64_MAX;

    OK(cuDeviceGetGraphMemAttribute(0, attribute, &value));
    return value;
}

static uint64_t reserved(void) {
    return attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
}

static void memory_is_taken_at_the_launch(void) {
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node;
    CUdeviceptr pointer;

    begin("quick");
    graph = new_graph();
    node = add_alloc(graph, NULL, 9 * MIB, &pointer);
    CHECK(pointer != 0);
    add_free(graph, node, pointer);
    exec = instantiate(graph, 0);
    CHECK_INT(taken(), 0);
    CHECK_INT(reserved(), 0);
    OK(cuGraphLaunch(exec, NULL));
    CHECK_INT(taken(), 10 * MIB);
    CHECK_INT(reserved(), 10 * MIB);
    OK(cuGraphLaunch(exec, NULL));
    CHECK_INT(taken(), 10 * MIB);
    CHECK_INT(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 10 * MIB);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    CHECK_INT(taken(), 10 * MIB);
    OK(cuCtxSynchronize());
    OK(cuDeviceGraphMemTrim(0));
    CHECK_INT(taken(), 0);
    CHECK_INT(reserved(), 0);
    CHECK_INT(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
    CHECK_INT(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), 10 * MIB);
}

static void an_upload_takes_it_before(void) {
    CUDA_GRAPH_INSTANTIATE_PARAMS params = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD};
    CUgraph graph;
    CUgraphExec exec;

    begin("quick");
    graph = new_graph();
    add_both(graph, 2 * MIB);
    exec = instantiate(graph, 0);
    OK(cuGraphUpload(exec, NULL));
    CHECK_INT(taken(), 2 * MIB);
    OK(cuGraphExecDestroy(exec));
    OK(cuDeviceGraphMemTrim(0));
    CHECK_INT(taken(), 0);
    CHECK_INT(cuGraphInstantiateWithFlags(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphInstantiateWithParams(&exec, graph, &params));
    CHECK_INT(params.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
    CHECK_INT(taken(), 2 * MIB);
}

static void freed_memory_serves_again_in_the_graph(void) {
    CUgraph graph;
    CUgraphNode node;
    CUdeviceptr a, b, c;

    begin("quick");
    graph = new_graph();
    node = add_alloc(graph, NULL, 10 * MIB, &a);
    node = add_alloc(graph, node, 4 * MIB, &b);
    node = add_free(graph, node, a);
    node = add_alloc(graph, node, 8 * MIB, &c);
    node = add_free(graph, node, b);
    add_free(graph, node, c);
    CHECK(a != b && b != c && a != c);
    OK(cuGraphLaunch(instantiate(graph, 0), NULL));
    CHECK_INT(taken(), 14 * MIB);
}

static void graphs_share_what_they_do_not_keep(void) {
    CUgraph first = NULL, second = NULL;

    begin("quick");
    first = new_graph();
    second = new_graph();
    add_both(first, 20 * MIB);
    add_both(second, 16 * MIB);
    OK(cuGraphLaunch(instantiate(first, 0), NULL));
    OK(cuGraphLaunch(instantiate(second, 0), NULL));
    CHECK_INT(taken(), 20 * MIB);
}

static void what_is_left_allocated_is_freed_elsewhere(void) {
    CUgraph graph, freeing;
    CUgraphExec exec, free_exec;
    CUdeviceptr pointer, found;
    CUgraphNode node;
    size_t size;
    char text[8] = "";

    begin("quick");
    graph = new_graph();
    node = add_alloc(graph, NULL, 6 * MIB - 1, &pointer);
    exec = instantiate(graph, 0);
    CHECK_INT(cuMemFree_v2(pointer), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphLaunch(exec, NULL));
    CHECK_INT(look("test").sum[0].allocations, 1);
    OK(cuMemGetAddressRange_v2(&found, &size, pointer + MIB));
    CHECK_INT(found, pointer);
    CHECK_INT(size, 6 * MIB - 1);
    OK(cuMemcpyHtoD_v2(pointer, "graphs", 7));
    OK(cuMemcpyDtoH_v2(text, pointer, 7));
    CHECK(strcmp(text, "graphs") == 0);
    /* Not to be launched again before it is free. */
    CHECK_INT(cuGraphLaunch(exec, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuDeviceGraphMemTrim(0));
    CHECK_INT(taken(), 6 * MIB);
    OK(cuMemFreeAsync(pointer, NULL));
    CHECK_INT(cuMemFreeAsync(pointer, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphLaunch(exec, NULL));
    OK(cuMemFree_v2(pointer));
    OK(cuGraphLaunch(exec, NULL));
    CHECK_INT(taken(), 6 * MIB);
    freeing = new_graph();
    add_free(freeing, NULL, pointer);
    CHECK_INT(cuGraphAddMemFreeNode(&node, graph, NULL, 0, pointer), CUDA_ERROR_INVALID_VALUE);
    free_exec = instantiate(freeing, 0);
    OK(cuGraphLaunch(free_exec, NULL));
    CHECK_INT(cuGraphLaunch(free_exec, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxSynchronize());
    OK(cuDeviceGraphMemTrim(0));
    CHECK_INT(taken(), 0);
    CHECK_INT(look("test").sum[0].allocations, 0);
}

static void it_outlives_the_graph(void) {
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr pointer;

    begin("quick");
    graph = new_graph();
    add_alloc(graph, NULL, 4 * MIB, &pointer);
    exec = instantiate(graph, 0);
    OK(cuGraphLaunch(exec, NULL));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuMemsetD8_v2(pointer, 1, 4 * MIB));
    OK(cuDeviceGraphMemTrim(0));
    CHECK_INT(taken(), 4 * MIB);
    OK(cuMemFree_v2(pointer));
    CHECK_INT(cuMemsetD8_v2(pointer, 1, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuDeviceGraphMemTrim(0));
    CHECK_INT(taken(), 0);
}

static void auto_free_frees_at_the_next_launch(void) {
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr pointer;
    cuuint64_t flags;

    begin("quick");
    graph = new_graph();
    add_alloc(graph, NULL, 4 * MIB, &pointer);
    exec = instantiate(graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    for (int i = 0; i < 3; i++)
        OK(cuGraphLaunch(exec, NULL));
    CHECK_INT(taken(), 4 * MIB);
    CHECK_INT(look("test").sum[0].allocations, 1);
    OK(cuGraphExecGetFlags(exec, &flags));
    CHECK_INT(flags, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
}

static void a_running_graph_is_not_trimmed(void) {
    CUDA_KERNEL_NODE_PARAMS kernel = {
        .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
    CUgraph graph;
    CUgraphNode node, work;
    CUgraphExec exec;
    CUdeviceptr pointer;
    uint64_t left;

    kernel.func = begin("spin_200ms");
    graph = new_graph();
    node = add_alloc(graph, NULL, 4 * MIB, &pointer);
    OK(cuGraphAddKernelNode_v2(&work, graph, &node, 1, &kernel));
    add_free(graph, work, pointer);
    exec = instantiate(graph, 0);
    /* Until it was still running when it had been looked at: on a busy machine that may take longer than the kernel. */
    do {
        OK(cuGraphLaunch(exec, NULL));
        OK(cuDeviceGraphMemTrim(0));
        left = taken();
    } while (cuStreamQuery(NULL) == CUDA_SUCCESS);
    CHECK_INT(left, 4 * MIB);
    OK(cuCtxSynchronize());
    OK(cuDeviceGraphMemTrim(0));
    CHECK_INT(taken(), 0);
}

static void a_full_gpu_refuses_the_launch(void) {
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr other;

    begin("quick");
    OK(cuMemAlloc_v2(&other, GPU0_BYTES - GPU0_CONTEXT - 20 * MIB));
    graph = new_graph();
    add_both(graph, 40 * MIB);
    exec = instantiate(graph, 0);
    CHECK_INT(cuGraphLaunch(exec, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(reserved(), 0);
    OK(cuMemFree_v2(other));
    OK(cuGraphLaunch(exec, NULL));
    CHECK_INT(taken(), 40 * MIB);
}

static void memory_nodes_restrict_their_graph(void) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = params_of(0), asked;
    CUgraph graph, other;
    CUgraphNode node, freed, none;
    CUgraphExec exec, second;
    CUdeviceptr pointer, told;

    begin("quick");
    graph = new_graph();
    CHECK_INT(cuGraphAddMemAllocNode(&none, graph, NULL, 0, &params), CUDA_ERROR_INVALID_VALUE);
    node = add_alloc(graph, NULL, 3 * MIB, &pointer);
    OK(cuGraphMemAllocNodeGetParams(node, &asked));
    CHECK_INT(asked.dptr, pointer);
    CHECK_INT(asked.bytesize, 3 * MIB);
    freed = add_free(graph, node, pointer);
    OK(cuGraphMemFreeNodeGetParams(freed, &told));
    CHECK_INT(told, pointer);
    CHECK_INT(cuGraphMemFreeNodeGetParams(node, &told), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphAddMemFreeNode(&none, graph, &node, 1, pointer), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphAddMemFreeNode(&none, graph, &node, 1, pointer + 512), CUDA_ERROR_INVALID_VALUE);
    other = new_graph();
    CHECK_INT(cuGraphAddMemFreeNode(&none, other, NULL, 0, pointer), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphClone(&other, graph), CUDA_ERROR_NOT_SUPPORTED);
    other = new_graph();
    CHECK_INT(cuGraphAddChildGraphNode(&none, other, NULL, 0, graph), CUDA_ERROR_NOT_SUPPORTED);
    CHECK_INT(cuGraphDestroyNode(freed), CUDA_ERROR_NOT_SUPPORTED);
    exec = instantiate(graph, 0);
    CHECK_INT(cuGraphInstantiateWithFlags(&second, graph, 0), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuGraphExecDestroy(exec));
    instantiate(graph, 0);
}

static void a_reset_frees_graph_memory(void) {
    CUcontext primary;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr pointer;

    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    graph = new_graph();
    add_alloc(graph, NULL, 4 * MIB, &pointer);
    exec = instantiate(graph, 0);
    OK(cuGraphLaunch(exec, NULL));
    OK(cuDevicePrimaryCtxReset_v2(0));
    CHECK_INT(look("test").used[0], 0);
    CHECK_INT(reserved(), 0);
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    CHECK_INT(cuMemFree_v2(pointer), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphLaunch(exec, NULL));
    CHECK_INT(look("test").used[0], GPU0_CONTEXT + 4 * MIB);
}

static void add_one(void *number) {
    ++*(int *)number;
}

static void times_ten(void *number) {
    *(int *)number *= 10;
}

static void nodes_run_in_order(void) {
    CUDA_HOST_NODE_PARAMS one, ten;
    CUgraph graph, child, clone, inner;
    CUgraphNode a, b, c, found, nodes[8], from[8], to[8];
    CUgraphNodeType type;
    size_t count = 8;
    int number = 0;

    begin("quick");
    one = (CUDA_HOST_NODE_PARAMS){add_one, &number};
    ten = (CUDA_HOST_NODE_PARAMS){times_ten, &number};
    child = new_graph();
    OK(cuGraphAddHostNode(&a, child, NULL, 0, &ten));
    graph = new_graph();
    OK(cuGraphAddHostNode(&b, graph, NULL, 0, &one));
    OK(cuGraphAddHostNode(&a, graph, NULL, 0, &one));
    OK(cuGraphAddChildGraphNode(&c, graph, &a, 1, child));
    /* b, which was there first, comes last. */
    OK(cuGraphAddDependencies(graph, &c, &b, 1));
    CHECK_INT(cuGraphAddDependencies(graph, &c, &b, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphDestroy(child));
    OK(cuGraphLaunch(instantiate(graph, 0), NULL));
    OK(cuStreamSynchronize(NULL));
    CHECK_INT(number, 11);
    OK(cuGraphClone(&clone, graph));
    OK(cuGraphNodeFindInClone(&found, c, clone));
    OK(cuGraphNodeGetType(found, &type));
    CHECK_INT(type, CU_GRAPH_NODE_TYPE_GRAPH);
    OK(cuGraphChildGraphNodeGetGraph(found, &inner));
    CHECK_INT(cuGraphDestroy(inner), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphDestroy(graph));
    OK(cuGraphLaunch(instantiate(clone, 0), NULL));
    OK(cuStreamSynchronize(NULL));
    CHECK_INT(number, 121);
    OK(cuGraphGetNodes(clone, nodes, &count));
    CHECK_INT(count, 3);
    CHECK(nodes[3] == NULL);
    count = 8;
    OK(cuGraphGetEdges(clone, from, to, &count));
    CHECK_INT(count, 2);
    count = 8;
    OK(cuGraphGetRootNodes(clone, nodes, &count));
    CHECK_INT(count, 1);
    /* In a circle nothing runs. */
    OK(cuGraphAddDependencies(clone, &to[0], &nodes[0], 1));
    CHECK(cuGraphInstantiateWithFlags(&(CUgraphExec){NULL}, clone, 0) == CUDA_ERROR_INVALID_VALUE);
}

static void every_kind_of_node_runs(void) {
    CUgraphNodeParams params[8] = {0};
    CUgraph graph, child;
    CUgraphNode node = NULL;
    CUdeviceptr pointer;
    CUevent event;
    unsigned words[4] = {0};
    size_t count = 0;

    params[0].type = CU_GRAPH_NODE_TYPE_EMPTY;
    params[1].type = CU_GRAPH_NODE_TYPE_KERNEL;
    params[1].kernel = (CUDA_KERNEL_NODE_PARAMS){begin("quick"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL, NULL};
    OK(cuMemAlloc_v2(&pointer, 4096));
    OK(cuEventCreate(&event, 0));
    child = new_graph();
    params[2].type = CU_GRAPH_NODE_TYPE_MEMSET;
    params[2].memset = (CUDA_MEMSET_NODE_PARAMS_v2){pointer, 0, 0x12345678, 4, 4, 1, NULL};
    params[3].type = CU_GRAPH_NODE_TYPE_MEMCPY;
    params[3].memcpy.copyParams = (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                                  .srcDevice = pointer,
                                                  .dstMemoryType = CU_MEMORYTYPE_HOST,
                                                  .dstHost = words,
                                                  .WidthInBytes = 16,
                                                  .Height = 1,
                                                  .Depth = 1};
    params[4].type = CU_GRAPH_NODE_TYPE_GRAPH;
    params[4].graph.graph = child;
    params[5].type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    params[5].eventRecord.event = event;
    params[6].type = CU_GRAPH_NODE_TYPE_WAIT_EVENT;
    params[6].eventWait.event = event;
    params[7].type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    params[7].alloc = params_of(5);
    graph = new_graph();
    for (size_t i = 0; i < ELEMENTS(params); i++) {
        CUgraphNode after = node;

        OK(cuGraphAddNode_v2(&node, graph, &after, NULL, after != NULL, &params[i]));
    }
    OK(cuGraphGetNodes(graph, NULL, &count));
    CHECK_INT(count, 8);
    params[0].type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    CHECK_INT(cuGraphAddNode(&node, graph, NULL, 0, &params[0]), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuGraphLaunch(instantiate(graph, 0), NULL));
    OK(cuStreamSynchronize(NULL));
    CHECK_INT(words[3], 0x12345678);
    CHECK_INT(look("test").sum[0].launches, 2);
    OK(cuMemFree_v2(params[7].alloc.dptr));
}

static void an_executable_graph_is_updated(void) {
    CUgraphExecUpdateResultInfo info;
    CUDA_HOST_NODE_PARAMS one, ten;
    CUgraph graph, other;
    CUgraphNode node;
    CUgraphExec exec;
    int number = 1;

    begin("quick");
    one = (CUDA_HOST_NODE_PARAMS){add_one, &number};
    ten = (CUDA_HOST_NODE_PARAMS){times_ten, &number};
    graph = new_graph();
    other = new_graph();
    OK(cuGraphAddHostNode(&node, graph, NULL, 0, &one));
    OK(cuGraphAddHostNode(&node, other, NULL, 0, &ten));
    exec = instantiate(graph, 0);
    OK(cuGraphExecUpdate_v2(exec, other, &info));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuStreamSynchronize(NULL));
    CHECK_INT(number, 10);
    OK(cuGraphAddEmptyNode(&node, other, NULL, 0));
    CHECK_INT(cuGraphExecUpdate_v2(exec, other, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    CHECK_INT(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
}

/* ---- Capture ---- */

static void captured_work_becomes_nodes(void) {
    static const CUgraphNodeType expected[] = {CU_GRAPH_NODE_TYPE_MEM_ALLOC, CU_GRAPH_NODE_TYPE_MEMSET,
                                               CU_GRAPH_NODE_TYPE_KERNEL,    CU_GRAPH_NODE_TYPE_MEMCPY,
                                               CU_GRAPH_NODE_TYPE_HOST,      CU_GRAPH_NODE_TYPE_MEM_FREE};
    CUfunction function = begin("quick");
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    CUstreamCaptureStatus status;
    CUgraphNode nodes[8];
    CUgraphNodeType type;
    size_t count = 8;
    CUdeviceptr pointer;
    CUgraphExec exec;
    CUgraph graph;
    char bytes[4] = "";
    int number = 0;

    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamIsCapturing(stream, &status));
    CHECK_INT(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuMemAllocAsync(&pointer, 10 * MIB, stream));
    OK(cuMemsetD8Async(pointer, 7, 10 * MIB, stream));
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    OK(cuMemcpyDtoHAsync_v2(bytes, pointer + 9 * MIB, 4, stream));
    OK(cuLaunchHostFunc(stream, add_one, &number));
    OK(cuMemFreeAsync(pointer, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuStreamIsCapturing(stream, &status));
    CHECK_INT(status, CU_STREAM_CAPTURE_STATUS_NONE);
    CHECK_INT(taken(), 0);
    CHECK_INT(number, 0);
    CHECK_INT(look("test").sum[0].launches, 1);
    OK(cuGraphGetNodes(graph, nodes, &count));
    CHECK_INT(count, ELEMENTS(expected));
    for (size_t i = 0; i < ELEMENTS(expected); i++) {
        OK(cuGraphNodeGetType(nodes[i], &type));
        CHECK_INT(type, expected[i]);
    }
    exec = instantiate(graph, 0);
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    CHECK_INT(bytes[3], 7);
    CHECK_INT(number, 1);
    CHECK_INT(taken(), 10 * MIB);
    CHECK_INT(look("test").sum[0].launches, 2);
    CHECK_INT(cuMemFreeAsync(pointer, stream), CUDA_ERROR_INVALID_VALUE);
}

static void other_streams_join_by_events(void) {
    CUstream a, b;
    CUevent fork, join;
    CUgraph graph;
    CUstreamCaptureStatus status;
    const CUgraphNode *ends;
    CUfunction function = begin("quick");
    cuuint64_t id, other_id;
    size_t count;

    a = new_stream(CU_STREAM_NON_BLOCKING);
    b = new_stream(CU_STREAM_NON_BLOCKING);
    OK(cuEventCreate(&fork, 0));
    OK(cuEventCreate(&join, 0));
    for (int joined = 0; joined < 2; joined++) {
        OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_RELAXED));
        OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, a, NULL, NULL));
        OK(cuEventRecord(fork, a));
        OK(cuStreamWaitEvent(b, fork, 0));
        OK(cuStreamGetCaptureInfo_v2(a, &status, &id, NULL, NULL, NULL));
        OK(cuStreamGetCaptureInfo_v2(b, &status, &other_id, NULL, NULL, NULL));
        CHECK_INT(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
        CHECK_INT(id, other_id);
        OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, b, NULL, NULL));
        OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, a, NULL, NULL));
        OK(cuEventRecord(join, b));
        CHECK_INT(cuEventQuery(join), CUDA_ERROR_CAPTURED_EVENT);
        if (!joined) {
            CHECK_INT(cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
            CHECK(graph == NULL);
            continue;
        }
        OK(cuStreamWaitEvent(a, join, 0));
        OK(cuStreamGetCaptureInfo_v2(a, &status, NULL, NULL, &ends, &count));
        CHECK_INT(count, 2);
        OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, a, NULL, NULL));
        OK(cuStreamEndCapture(a, &graph));
        OK(cuStreamIsCapturing(b, &status));
        CHECK_INT(status, CU_STREAM_CAPTURE_STATUS_NONE);
        count = 0;
        OK(cuGraphGetEdges(graph, NULL, NULL, &count));
        CHECK_INT(count, 4);
    }
    CHECK_INT(cuStreamWaitEvent(b, join, 0), CUDA_ERROR_CAPTURED_EVENT);
}

/* What is not allowed while a stream captures: the call, its error, and whether the capture is spoilt. */
static void forbidden_calls_spoil_the_capture(void) {
    enum { SYNC, QUERY, CONTEXT, ALLOC, FREE, ARRAY, LEGACY, LEGACY_COPY, EVENT, CALLS };
    static const CUresult errors[CALLS] = {
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
        CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
    };
    CUDA_ARRAY_DESCRIPTOR d = {16, 16, CU_AD_FORMAT_FLOAT, 1};
    CUdeviceptr memory, pointer;
    CUfunction function = begin("quick");
    CUstream stream = new_stream(CU_STREAM_DEFAULT);
    CUstreamCaptureStatus status;
    CUresult got = CUDA_SUCCESS;
    CUarray array;
    CUevent event;
    CUgraph graph;

    OK(cuMemAlloc_v2(&memory, 1));
    OK(cuEventCreate(&event, 0));
    OK(cuEventRecord(event, NULL));
    for (int call = 0; call < CALLS; call++) {
        OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        switch (call) {
        case SYNC:
            got = cuStreamSynchronize(stream);
            break;
        case QUERY:
            got = cuStreamQuery(stream);
            break;
        case CONTEXT:
            got = cuCtxSynchronize();
            break;
        case ALLOC:
            got = cuMemAlloc_v2(&pointer, 1);
            break;
        case FREE:
            got = cuMemFree_v2(memory);
            break;
        case ARRAY:
            got = cuArrayCreate_v2(&array, &d);
            break;
        case LEGACY:
            got = cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
            break;
        case LEGACY_COPY:
            got = cuMemsetD8_v2(memory, 0, 1);
            break;
        case EVENT:
            got = cuStreamWaitEvent(stream, event, 0);
            break;
        }
        CHECK_INT(got, errors[call]);
        OK(cuStreamIsCapturing(stream, &status));
        CHECK_INT(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        CHECK_INT(cuMemAllocAsync(&pointer, 1, stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        CHECK_INT(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        CHECK(graph == NULL);
    }
    OK(cuMemFree_v2(memory));
    CHECK_INT(taken(), 0);
}

static void *allocate_in_thread(void *arg) {
    static CUresult result;
    CUdeviceptr pointer;

    cuCtxSetCurrent(arg);
    result = cuMemAlloc_v2(&pointer, 1);
    return &result;
}

static void *end_in_thread(void *stream) {
    static CUresult result;
    CUcontext context;
    CUgraph graph;

    OK(cuStreamGetCtx(stream, &context));
    result = cuStreamEndCapture(stream, &graph);
    return &result;
}

static CUresult in_thread(void *(*run)(void *), void *arg) {
    pthread_t thread;
    void *result;

    pthread_create(&thread, NULL, run, arg);
    pthread_join(thread, &result);
    return *(CUresult *)result;
}

static void *end_with_context(void *arg) {
    void **both = arg;

    cuCtxSetCurrent(both[0]);
    return end_in_thread(both[1]);
}

static void modes_say_whom_a_capture_hinders(void) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUcontext context;
    CUdeviceptr pointer;
    CUstream stream;
    CUgraph graph;

    begin("quick");
    OK(cuCtxGetCurrent(&context));
    stream = new_stream(CU_STREAM_NON_BLOCKING);
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK_INT(in_thread(allocate_in_thread, context), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_INT(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CHECK_INT(in_thread(allocate_in_thread, context), CUDA_SUCCESS);
    CHECK_INT(in_thread(end_with_context, (void *[]){context, stream}), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    CHECK_INT(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    OK(cuMemAlloc_v2(&pointer, 1));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemAlloc_v2(&pointer, 1));
    CHECK_INT(in_thread(end_with_context, (void *[]){context, stream}), CUDA_SUCCESS);
}

static void captures_begin_and_end_properly(void) {
    CUstream stream, other;
    CUgraph graph;
    CUgraphNode node;
    CUdeviceptr pointer;
    size_t count = 0;

    begin("quick");
    stream = new_stream(CU_STREAM_NON_BLOCKING);
    other = new_stream(CU_STREAM_NON_BLOCKING);
    CHECK_INT(cuStreamBeginCapture(NULL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_INT(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
    OK(cuStreamBeginCapture(stream));
    CHECK_INT(cuStreamBeginCapture(stream), CUDA_ERROR_ILLEGAL_STATE);
    OK(cuStreamDestroy_v2(stream));
    OK(cuMemAlloc_v2(&pointer, 1)); /* the capture went with its stream */
    OK(cuMemFree_v2(pointer));
    graph = new_graph();
    OK(cuGraphAddEmptyNode(&node, graph, NULL, 0));
    OK(cuStreamBeginCaptureToGraph(other, graph, &node, NULL, 1, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK_INT(cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAllocAsync(&pointer, 1, other));
    CHECK_INT(cuMemFreeAsync(pointer + 512, other), CUDA_ERROR_INVALID_VALUE);
    OK(cuStreamEndCapture(other, &graph));
    OK(cuGraphGetEdges(graph, NULL, NULL, &count));
    CHECK_INT(count, 1);
    OK(cuGraphLaunch(instantiate(graph, 0), other));
    OK(cuMemFree_v2(pointer));
}

static void a_captured_launch_is_a_child_graph(void) {
    CUDA_HOST_NODE_PARAMS one;
    CUgraph graph, outer;
    CUgraphNode node;
    CUgraphExec exec;
    CUstream stream;
    CUdeviceptr pointer;
    int number = 0;

    begin("quick");
    one = (CUDA_HOST_NODE_PARAMS){add_one, &number};
    stream = new_stream(CU_STREAM_NON_BLOCKING);
    graph = new_graph();
    OK(cuGraphAddHostNode(&node, graph, NULL, 0, &one));
    exec = instantiate(graph, 0);
    OK(cuStreamBeginCapture(stream));
    OK(cuGraphLaunch(exec, stream));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamEndCapture(stream, &outer));
    OK(cuGraphLaunch(instantiate(outer, 0), stream));
    OK(cuStreamSynchronize(stream));
    CHECK_INT(number, 2);
    graph = new_graph();
    add_alloc(graph, NULL, 1, &pointer);
    exec = instantiate(graph, 0);
    OK(cuStreamBeginCapture(stream));
    CHECK_INT(cuGraphLaunch(exec, stream), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuStreamEndCapture(stream, &outer));
}

static void use_a_parents_graph(void *arg) {
    cuuint64_t value;

    CHECK_INT(cuGraphLaunch(arg, NULL), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_INT(cuGraphExecDestroy(arg), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_INT(cuDeviceGetGraphMemAttribute(0, 0, &value), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_INT(cuGraphCreate(&(CUgraph){NULL}, 0), CUDA_ERROR_NOT_INITIALIZED);
}

static void a_child_finds_no_graphs(void) {
    struct worker worker;
    CUdeviceptr pointer;
    CUgraphExec exec;
    CUgraph graph;

    begin("quick");
    graph = new_graph();
    add_alloc(graph, NULL, 1, &pointer);
    exec = instantiate(graph, 0);
    OK(cuGraphLaunch(exec, NULL));
    worker = worker_start(use_a_parents_graph, exec);
    worker_join(&worker);
    CHECK_INT(taken(), 2 * MIB);
}

static void *launch_often(void *arg) {
    CUresult result = CUDA_SUCCESS;
    void **both = arg;
    CUstream stream;

    cuCtxSetCurrent(both[0]);
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 300; i++) {
        CUresult got = cuGraphLaunch(both[1], stream);

        if (got != CUDA_SUCCESS)
            result = got;
        if (i % 50 == 0)
            cuDeviceGraphMemTrim(0);
    }
    return (void *)(uintptr_t)result;
}

static void many_threads_launch_graphs(void) {
    pthread_t threads[4];
    void *args[4][2], *result;
    CUcontext context;
    CUgraph graph;

    begin("quick");
    OK(cuCtxGetCurrent(&context));
    for (size_t i = 0; i < ELEMENTS(threads); i++) {
        graph = new_graph();
        add_both(graph, (i + 1) * MIB);
        args[i][0] = context;
        args[i][1] = instantiate(graph, 0);
        pthread_create(&threads[i], NULL, launch_often, args[i]);
    }
    for (size_t i = 0; i < ELEMENTS(threads); i++) {
        pthread_join(threads[i], &result);
        OK((CUresult)(uintptr_t)result);
    }
    OK(cuCtxSynchronize());
    OK(cuDeviceGraphMemTrim(0));
    CHECK_INT(taken(), 0);
    CHECK_INT(look("test").sum[0].allocations, 0);
}

const struct test graph_tests[] = {
    {"memory is taken at the launch", memory_is_taken_at_the_launch},
    {"an upload takes it before", an_upload_takes_it_before},
    {"freed memory serves again in the graph", freed_memory_serves_again_in_the_graph},
    {"graphs share what they do not keep", graphs_share_what_they_do_not_keep},
    {"what is left allocated is freed elsewhere", what_is_left_allocated_is_freed_elsewhere},
    {"it outlives the graph", it_outlives_the_graph},
    {"auto free frees at the next launch", auto_free_frees_at_the_next_launch},
    {"a running graph is not trimmed", a_running_graph_is_not_trimmed},
    {"a full GPU refuses the launch", a_full_gpu_refuses_the_launch},
    {"memory nodes restrict their graph", memory_nodes_restrict_their_graph},
    {"a reset frees graph memory", a_reset_frees_graph_memory},
    {"nodes run in order", nodes_run_in_order},
    {"every kind of node runs", every_kind_of_node_runs},
    {"an executable graph is updated", an_executable_graph_is_updated},
    {"captured work becomes nodes", captured_work_becomes_nodes},
    {"other streams join by events", other_streams_join_by_events},
    {"forbidden calls spoil the capture", forbidden_calls_spoil_the_capture},
    {"modes say whom a capture hinders", modes_say_whom_a_capture_hinders},
    {"captures begin and end properly", captures_begin_and_end_properly},
    {"a captured launch is a child graph", a_captured_launch_is_a_child_graph},
    {"a child finds no graphs", a_child_finds_no_graphs},
    {"many threads launch graphs", many_threads_launch_graphs},
    {0},
};
