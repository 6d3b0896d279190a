/* The nodes of graphs: their parameters, in a graph and in an executable graph, and the user objects of graphs. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "harness.h"

static const char ptx[] = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry spin_30ms()\n{\nret;\n}\n"
                          ".visible .entry quick()\n{\nret;\n}\n";

static CUmodule module;

static CUfunction begin(const char *name) {
    CUfunction function = NULL;

    context_on(0);
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

static CUgraph new_graph(void) {
    CUgraph graph = NULL;

    OK(cuGraphCreate(&graph, 0));
    return graph;
}

static CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec exec = NULL;

    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}

static void run(CUgraphExec exec) {
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
}

static CUDA_KERNEL_NODE_PARAMS one_block(CUfunction function) {
    return (CUDA_KERNEL_NODE_PARAMS){function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL, NULL};
}

static CUDA_MEMCPY3D to_host(CUdeviceptr from, void *to, size_t size) {
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = from,
                           .dstMemoryType = CU_MEMORYTYPE_HOST,
                           .dstHost = to,
                           .WidthInBytes = size,
                           .Height = 1,
                           .Depth = 1};
}

static CUDA_MEMSET_NODE_PARAMS filling(CUdeviceptr pointer, unsigned value) {
    return (CUDA_MEMSET_NODE_PARAMS){pointer, 0, value, 4, 4, 1};
}

static void add_one(void *number) {
    ++*(int *)number;
}

static void times_ten(void *number) {
    *(int *)number *= 10;
}

static CUgraphNode add_host(CUgraph graph, CUgraphNode after, CUhostFn fn, int *number) {
    CUDA_HOST_NODE_PARAMS params = {fn, number};
    CUgraphNode node = NULL;

    OK(cuGraphAddHostNode(&node, graph, &after, after != NULL, &params));
    return node;
}

static unsigned launches(void) {
    return (unsigned)look("test").sum[0].launches;
}

static void kernel_parameters_are_kept(void) {
    CUDA_KERNEL_NODE_PARAMS params, got;
    CUDA_KERNEL_NODE_PARAMS_v1 old;
    CUfunction other;
    CUgraphNode node, empty;
    CUgraph graph;

    params = one_block(begin("quick"));
    OK(cuModuleGetFunction(&other, module, "spin_30ms"));
    graph = new_graph();
    OK(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &params));
    OK(cuGraphAddEmptyNode(&empty, graph, NULL, 0));
    OK(cuGraphKernelNodeGetParams_v2(node, &got));
    CHECK(memcmp(&got, &params, sizeof(got)) == 0);
    params.func = NULL;
    params.kern = (CUkernel)other;
    params.gridDimY = 7;
    params.blockDimZ = 3;
    OK(cuGraphKernelNodeSetParams_v2(node, &params));
    OK(cuGraphKernelNodeGetParams_v2(node, &got));
    CHECK(memcmp(&got, &params, sizeof(got)) == 0);
    OK(cuGraphKernelNodeGetParams(node, &old));
    CHECK(old.func == other && old.gridDimY == 7 && old.blockDimZ == 3);
    old.gridDimX = 5;
    OK(cuGraphKernelNodeSetParams(node, &old));
    OK(cuGraphKernelNodeGetParams_v2(node, &got));
    CHECK(got.func == other && got.kern == NULL && got.gridDimX == 5);
    old.func = NULL;
    CHECK_INT(cuGraphKernelNodeSetParams(node, &old), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphKernelNodeSetParams_v2(node, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphKernelNodeGetParams_v2(node, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphKernelNodeGetParams_v2(empty, &got), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphKernelNodeSetParams_v2(empty, &got), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphDestroyNode(node));
    CHECK_INT(cuGraphKernelNodeGetParams_v2(node, &got), CUDA_ERROR_INVALID_VALUE);
}

static void other_parameters_are_kept(void) {
    CUDA_MEMSET_NODE_PARAMS fill, fill_got;
    CUDA_HOST_NODE_PARAMS host = {add_one, &host}, host_got;
    CUDA_MEMCPY3D copy, copy_got;
    CUgraphNode fills, copies, hosts, records, waits;
    CUevent first, second, event;
    unsigned words[4];
    CUdeviceptr pointer;
    CUgraph graph;

    begin("quick");
    OK(cuMemAlloc_v2(&pointer, 4096));
    OK(cuEventCreate(&first, 0));
    OK(cuEventCreate(&second, 0));
    graph = new_graph();
    fill = filling(pointer, 1);
    copy = to_host(pointer, words, 8);
    OK(cuGraphAddMemsetNode(&fills, graph, NULL, 0, &fill, NULL));
    OK(cuGraphAddMemcpyNode(&copies, graph, NULL, 0, &copy, NULL));
    OK(cuGraphAddHostNode(&hosts, graph, NULL, 0, &host));
    OK(cuGraphAddEventRecordNode(&records, graph, NULL, 0, first));
    OK(cuGraphAddEventWaitNode(&waits, graph, NULL, 0, first));
    fill = filling(pointer + 64, 2);
    copy = to_host(pointer + 64, words, 16);
    host.fn = times_ten;
    OK(cuGraphMemsetNodeSetParams(fills, &fill));
    OK(cuGraphMemsetNodeGetParams(fills, &fill_got));
    CHECK(memcmp(&fill, &fill_got, sizeof(fill)) == 0);
    OK(cuGraphMemcpyNodeSetParams(copies, &copy));
    OK(cuGraphMemcpyNodeGetParams(copies, &copy_got));
    CHECK(memcmp(&copy, &copy_got, sizeof(copy)) == 0);
    OK(cuGraphHostNodeSetParams(hosts, &host));
    OK(cuGraphHostNodeGetParams(hosts, &host_got));
    CHECK(memcmp(&host, &host_got, sizeof(host)) == 0);
    OK(cuGraphEventRecordNodeSetEvent(records, second));
    OK(cuGraphEventRecordNodeGetEvent(records, &event));
    CHECK(event == second);
    OK(cuGraphEventWaitNodeGetEvent(waits, &event));
    CHECK(event == first);
    OK(cuGraphEventWaitNodeSetEvent(waits, second));
    OK(cuGraphEventWaitNodeGetEvent(waits, &event));
    CHECK(event == second);
    fill.elementSize = 3;
    CHECK_INT(cuGraphMemsetNodeSetParams(fills, &fill), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphMemsetNodeGetParams(copies, &fill), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphMemcpyNodeGetParams(fills, &copy), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphMemcpyNodeSetParams(copies, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphHostNodeSetParams(hosts, &(CUDA_HOST_NODE_PARAMS){0}), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphHostNodeGetParams(waits, &host), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphEventRecordNodeGetEvent(waits, &event), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphEventWaitNodeSetEvent(waits, NULL), CUDA_ERROR_INVALID_VALUE);
}

static void generic_parameters_go_by_the_type(void) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_HOST};
    CUgraph graph, child;
    CUgraphNode host, children;
    CUgraphExec exec;
    int number = 1;

    begin("quick");
    graph = new_graph();
    child = new_graph();
    host = add_host(graph, NULL, add_one, &number);
    OK(cuGraphAddChildGraphNode(&children, graph, &host, 1, child));
    params.host = (CUDA_HOST_NODE_PARAMS){times_ten, &number};
    CHECK_INT(cuGraphNodeSetParams(children, &params), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphNodeSetParams(host, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphNodeSetParams(host, &params));
    add_host(child, NULL, add_one, &number);
    exec = instantiate(graph);
    run(exec);
    CHECK_INT(number, 10);
    params.type = CU_GRAPH_NODE_TYPE_GRAPH;
    params.graph.graph = child;
    OK(cuGraphNodeSetParams(children, &params));
    CHECK_INT(cuGraphExecNodeSetParams(exec, children, &params), CUDA_ERROR_INVALID_VALUE);
    run(instantiate(graph));
    CHECK_INT(number, 101);
    params.type = CU_GRAPH_NODE_TYPE_HOST;
    params.host = (CUDA_HOST_NODE_PARAMS){add_one, &number};
    OK(cuGraphExecNodeSetParams(exec, host, &params));
    run(exec);
    CHECK_INT(number, 102);
    params.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    CHECK_INT(cuGraphNodeSetParams(host, &params), CUDA_ERROR_NOT_SUPPORTED);
}

static void executable_nodes_are_set(void) {
    CUDA_MEMSET_NODE_PARAMS fill;
    CUDA_HOST_NODE_PARAMS ten;
    CUDA_MEMCPY3D copy;
    CUgraphNode fills, copies, hosts;
    unsigned words[4] = {0}, other[4] = {0};
    int number = 1;
    CUdeviceptr pointer, second;
    CUgraph graph;
    CUgraphExec exec;

    begin("quick");
    OK(cuMemAlloc_v2(&pointer, 2 * MIB));
    OK(cuMemAlloc_v2(&second, 2 * MIB));
    ten = (CUDA_HOST_NODE_PARAMS){times_ten, &number};
    fill = filling(pointer, 1);
    copy = to_host(pointer, words, 16);
    graph = new_graph();
    OK(cuGraphAddMemsetNode(&fills, graph, NULL, 0, &fill, NULL));
    OK(cuGraphAddMemcpyNode(&copies, graph, &fills, 1, &copy, NULL));
    hosts = add_host(graph, copies, add_one, &number);
    exec = instantiate(graph);
    fill = filling(second, 2);
    copy = to_host(second, other, 16);
    OK(cuGraphExecMemsetNodeSetParams(exec, fills, &fill, NULL));
    OK(cuGraphExecMemcpyNodeSetParams(exec, copies, &copy, NULL));
    OK(cuGraphExecHostNodeSetParams(exec, hosts, &ten));
    run(exec);
    CHECK_INT(other[3], 2);
    CHECK_INT(words[3], 0);
    CHECK_INT(number, 10);
    /* The graph stays as it was. */
    OK(cuGraphMemcpyNodeGetParams(copies, &copy));
    CHECK(copy.srcDevice == pointer && copy.dstHost == words);
    run(instantiate(graph));
    CHECK_INT(words[3], 1);
    CHECK_INT(number, 11);
    CHECK_INT(cuGraphExecHostNodeSetParams(exec, copies, &ten), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphExecDestroy(exec));
    CHECK_INT(cuGraphExecHostNodeSetParams(exec, hosts, &ten), CUDA_ERROR_INVALID_VALUE);
}

static void executable_kernels_are_set(void) {
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUDA_KERNEL_NODE_PARAMS_v1 old;
    CUfunction far, slow;
    CUgraphNode node;
    CUcontext near;
    CUgraph graph;
    CUgraphExec exec;
    uint64_t start;

    kernel = one_block(begin("quick"));
    OK(cuModuleGetFunction(&slow, module, "spin_30ms"));
    OK(cuCtxGetCurrent(&near));
    context_on(1);
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&far, module, "quick"));
    OK(cuCtxSetCurrent(near));
    graph = new_graph();
    OK(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &kernel));
    exec = instantiate(graph);
    kernel.func = far;
    CHECK_INT(cuGraphExecKernelNodeSetParams_v2(exec, node, &kernel), CUDA_ERROR_INVALID_VALUE);
    kernel.func = slow;
    OK(cuGraphExecKernelNodeSetParams_v2(exec, node, &kernel));
    start = now_ns();
    run(exec);
    CHECK(now_ns() - start >= 30000000);
    OK(cuGraphKernelNodeGetParams(node, &old));
    CHECK(old.func != slow);
    old.gridDimX = 0;
    OK(cuGraphExecKernelNodeSetParams(exec, node, &old));
    CHECK_INT(cuGraphLaunch(exec, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphExecKernelNodeSetParams(NULL, node, &old), CUDA_ERROR_INVALID_VALUE);
}

static void operands_stay_where_they_are(void) {
    CUDA_MEMSET_NODE_PARAMS fill;
    CUDA_MEMCPY3D copy, bad;
    CUgraphNode fills, copies;
    unsigned words[64] = {0};
    CUdeviceptr pointer, far;
    CUcontext near;
    CUgraph graph;
    CUgraphExec exec;

    begin("quick");
    OK(cuMemAlloc_v2(&pointer, 2 * MIB));
    OK(cuCtxGetCurrent(&near));
    context_on(1);
    OK(cuMemAlloc_v2(&far, 2 * MIB));
    OK(cuCtxSetCurrent(near));
    graph = new_graph();
    fill = filling(pointer, 1);
    copy = to_host(pointer, words, 16);
    OK(cuGraphAddMemsetNode(&fills, graph, NULL, 0, &fill, NULL));
    OK(cuGraphAddMemcpyNode(&copies, graph, &fills, 1, &copy, NULL));
    exec = instantiate(graph);
    bad = to_host(far, words, 16);
    CHECK_INT(cuGraphExecMemcpyNodeSetParams(exec, copies, &bad, NULL), CUDA_ERROR_INVALID_VALUE);
    bad = to_host(pointer, words, 0);
    CHECK_INT(cuGraphExecMemcpyNodeSetParams(exec, copies, &bad, NULL), CUDA_ERROR_INVALID_VALUE);
    bad = to_host(pointer, words, 16);
    bad.Height = 2;
    CHECK_INT(cuGraphExecMemcpyNodeSetParams(exec, copies, &bad, NULL), CUDA_ERROR_INVALID_VALUE);
    bad = to_host(pointer, words, 16);
    bad.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    bad.dstDevice = pointer + 64;
    CHECK_INT(cuGraphExecMemcpyNodeSetParams(exec, copies, &bad, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphExecMemcpyNodeSetParams(exec, copies, &copy, (CUcontext)words), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphExecMemcpyNodeSetParams(exec, copies, &copy, near));
    fill = filling(far, 1);
    CHECK_INT(cuGraphExecMemsetNodeSetParams(exec, fills, &fill, NULL), CUDA_ERROR_INVALID_VALUE);
    fill = filling(pointer, 1);
    fill.height = 2;
    fill.pitch = 64;
    CHECK_INT(cuGraphExecMemsetNodeSetParams(exec, fills, &fill, NULL), CUDA_ERROR_INVALID_VALUE);
    /* What was laid out in two dimensions cannot be changed at all. */
    OK(cuGraphMemsetNodeSetParams(fills, &fill));
    fill.height = 1;
    CHECK_INT(cuGraphExecMemsetNodeSetParams(instantiate(graph), fills, &fill, NULL), CUDA_ERROR_INVALID_VALUE);
}

static void events_of_executable_graphs_are_set(void) {
    CUgraphNode records, waits;
    CUevent first, second;
    CUgraph graph;
    CUgraphExec exec;
    float ms;

    begin("quick");
    OK(cuEventCreate(&first, 0));
    OK(cuEventCreate(&second, 0));
    graph = new_graph();
    OK(cuGraphAddEventRecordNode(&records, graph, NULL, 0, first));
    OK(cuGraphAddEventWaitNode(&waits, graph, &records, 1, first));
    exec = instantiate(graph);
    OK(cuGraphExecEventRecordNodeSetEvent(exec, records, second));
    OK(cuGraphExecEventWaitNodeSetEvent(exec, waits, second));
    CHECK_INT(cuGraphExecEventWaitNodeSetEvent(exec, records, second), CUDA_ERROR_INVALID_VALUE);
    run(exec);
    OK(cuEventElapsedTime(&ms, second, second));
    CHECK_INT(cuEventElapsedTime(&ms, first, first), CUDA_ERROR_INVALID_HANDLE);
}

static void a_disabled_node_does_nothing(void) {
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUDA_MEMSET_NODE_PARAMS fill;
    CUgraphNode kernels, fills, hosts;
    CUdeviceptr pointer;
    CUgraph graph;
    CUgraphExec exec;
    unsigned enabled = 7, word = 0, before;
    int number = 0;

    kernel = one_block(begin("quick"));
    OK(cuMemAlloc_v2(&pointer, 4096));
    OK(cuMemsetD32_v2(pointer, 0, 4));
    fill = filling(pointer, 9);
    graph = new_graph();
    OK(cuGraphAddKernelNode_v2(&kernels, graph, NULL, 0, &kernel));
    OK(cuGraphAddMemsetNode(&fills, graph, &kernels, 1, &fill, NULL));
    hosts = add_host(graph, fills, add_one, &number);
    exec = instantiate(graph);
    OK(cuGraphNodeGetEnabled(exec, kernels, &enabled));
    CHECK_INT(enabled, 1);
    OK(cuGraphNodeSetEnabled(exec, kernels, 0));
    OK(cuGraphNodeSetEnabled(exec, fills, 0));
    OK(cuGraphNodeGetEnabled(exec, kernels, &enabled));
    CHECK_INT(enabled, 0);
    CHECK_INT(cuGraphNodeSetEnabled(exec, hosts, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphNodeGetEnabled(exec, kernels, NULL), CUDA_ERROR_INVALID_VALUE);
    before = launches();
    run(exec);
    OK(cuMemcpyDtoH_v2(&word, pointer, 4));
    CHECK_INT(launches(), before);
    CHECK_INT(word, 0);
    CHECK_INT(number, 1);
    /* Its parameters change all the same. */
    fill.value = 5;
    OK(cuGraphExecMemsetNodeSetParams(exec, fills, &fill, NULL));
    OK(cuGraphNodeSetEnabled(exec, kernels, 1));
    OK(cuGraphNodeSetEnabled(exec, fills, 2));
    run(exec);
    OK(cuMemcpyDtoH_v2(&word, pointer, 4));
    CHECK(launches() > before);
    CHECK_INT(word, 5);
}

static void an_update_keeps_the_names_of_nodes(void) {
    CUgraphExecUpdateResultInfo info;
    CUDA_HOST_NODE_PARAMS ten;
    CUgraph graph, other;
    CUgraphNode node, stranger;
    CUgraphExec exec;
    int number = 1;

    begin("quick");
    ten = (CUDA_HOST_NODE_PARAMS){times_ten, &number};
    graph = new_graph();
    other = new_graph();
    node = add_host(graph, NULL, add_one, &number);
    add_host(graph, node, add_one, &number);
    stranger = add_host(other, NULL, add_one, &number);
    add_host(other, stranger, add_one, &number);
    exec = instantiate(graph);
    OK(cuGraphExecUpdate_v2(exec, other, &info));
    CHECK_INT(cuGraphExecHostNodeSetParams(exec, stranger, &ten), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphExecHostNodeSetParams(exec, node, &ten));
    run(exec);
    CHECK_INT(number, 11);
    /* A new node is not the removed one, whose handle it has. */
    OK(cuGraphDestroyNode(node));
    stranger = add_host(graph, NULL, add_one, &number);
    CHECK_INT(cuGraphExecHostNodeSetParams(exec, stranger, &ten), CUDA_ERROR_INVALID_VALUE);
}

/* Three nodes, the third of which comes after the first or the second. */
static CUgraph add_fork(int after, int *number) {
    CUgraph graph = new_graph();
    CUgraphNode nodes[2];

    nodes[0] = add_host(graph, NULL, add_one, number);
    nodes[1] = add_host(graph, NULL, add_one, number);
    add_host(graph, nodes[after], times_ten, number);
    return graph;
}

static void an_update_compares_edges(void) {
    CUgraphExecUpdateResultInfo info;
    CUgraphExec exec;
    int number = 0;

    begin("quick");
    exec = instantiate(add_fork(0, &number));
    OK(cuGraphExecUpdate_v2(exec, add_fork(0, &number), &info));
    CHECK_INT(cuGraphExecUpdate_v2(exec, add_fork(1, &number), &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    CHECK_INT(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
}

static void a_child_graph_is_updated(void) {
    CUgraph graph, child, other;
    CUgraphNode node, a, b;
    CUgraphExec exec;
    int number = 1;

    begin("quick");
    graph = new_graph();
    child = new_graph();
    other = new_graph();
    a = add_host(child, NULL, add_one, &number);
    add_host(child, a, add_one, &number);
    OK(cuGraphAddChildGraphNode(&node, graph, NULL, 0, child));
    exec = instantiate(graph);
    a = add_host(other, NULL, times_ten, &number);
    b = add_host(other, NULL, add_one, &number);
    CHECK_INT(cuGraphExecChildGraphNodeSetParams(exec, node, other), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphAddDependencies(other, &b, &a, 1));
    CHECK_INT(cuGraphExecChildGraphNodeSetParams(exec, node, other), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphRemoveDependencies(other, &b, &a, 1));
    OK(cuGraphAddDependencies(other, &a, &b, 1));
    CHECK_INT(cuGraphExecChildGraphNodeSetParams(exec, a, other), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphExecChildGraphNodeSetParams(exec, node, other));
    OK(cuGraphDestroy(other));
    run(exec);
    CHECK_INT(number, 11);
}

static void attributes_are_kept(void) {
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUkernelNodeAttrValue value;
    CUgraphNode node, other, empty;
    CUgraph graph, clone;

    kernel = one_block(begin("quick"));
    kernel.gridDimX = 4;
    graph = new_graph();
    OK(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &kernel));
    OK(cuGraphAddKernelNode_v2(&other, graph, NULL, 0, &kernel));
    OK(cuGraphAddEmptyNode(&empty, graph, NULL, 0));
    memset(&value, 0x5a, sizeof(value));
    OK(cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
    CHECK(value.accessPolicyWindow.num_bytes == 0 && value.accessPolicyWindow.hitProp == CU_ACCESS_PROPERTY_NORMAL);
    CHECK_INT(value.pad[sizeof(CUaccessPolicyWindow)], 0x5a);
    OK(cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, &value));
    CHECK(value.memSyncDomainMap.default_ == 0 && value.memSyncDomainMap.remote == 1);
    value.priority = -2;
    OK(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    value.accessPolicyWindow = (CUaccessPolicyWindow){&value, 512, 0.5F, CU_ACCESS_PROPERTY_PERSISTING, 0};
    OK(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
    value.accessPolicyWindow.hitRatio = 2;
    CHECK_INT(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value),
              CUDA_ERROR_INVALID_VALUE);
    value = (CUkernelNodeAttrValue){.clusterDim = {2, 1, 1}};
    OK(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value));
    value.clusterDim[0] = 3;
    CHECK_INT(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value),
              CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphKernelNodeSetAttribute(empty, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphKernelNodeGetAttribute(node, (CUkernelNodeAttrID)3, &value), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphKernelNodeCopyAttributes(empty, node), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphKernelNodeCopyAttributes(other, node));
    OK(cuGraphClone(&clone, graph));
    OK(cuGraphNodeFindInClone(&other, other, clone));
    OK(cuGraphKernelNodeGetAttribute(other, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    CHECK_INT(value.priority, -2);
    OK(cuGraphKernelNodeGetAttribute(other, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
    CHECK_INT(value.accessPolicyWindow.num_bytes, 512);
    OK(cuGraphKernelNodeGetAttribute(other, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value));
    CHECK_INT(value.clusterDim[0], 2);
    /* A cooperative kernel must fit onto the GPU as a whole. */
    kernel.gridDimX = 1 << 20;
    OK(cuGraphKernelNodeSetParams_v2(node, &kernel));
    OK(cuGraphLaunch(instantiate(graph), NULL));
    value.cooperative = 1;
    OK(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value));
    CHECK_INT(cuGraphLaunch(instantiate(graph), NULL), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
}

static CUkernelNodeAttrValue attribute_of_first(CUgraph graph, CUkernelNodeAttrID attribute) {
    CUkernelNodeAttrValue value = {0};
    CUgraphNode node;
    size_t count = 1;

    OK(cuGraphGetRootNodes(graph, &node, &count));
    OK(cuGraphKernelNodeGetAttribute(node, attribute, &value));
    return value;
}

static void captured_launches_bring_their_attributes(void) {
    CUlaunchAttribute attributes[2] = {{.id = CU_LAUNCH_ATTRIBUTE_PRIORITY, .value.priority = -1}, {.id = 6}};
    CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, NULL, attributes, 2};
    CUfunction function = begin("quick");
    CUgraph graph;

    OK(cuStreamCreate(&config.hStream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture_v2(config.hStream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuLaunchKernelEx(&config, function, NULL, NULL));
    OK(cuStreamEndCapture(config.hStream, &graph));
    CHECK_INT(attribute_of_first(graph, CU_LAUNCH_ATTRIBUTE_PRIORITY).priority, -1);
    CHECK_INT(attribute_of_first(graph, CU_LAUNCH_ATTRIBUTE_COOPERATIVE).cooperative, 0);
    OK(cuStreamBeginCapture_v2(config.hStream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuLaunchCooperativeKernel(function, 1, 1, 1, 1, 1, 1, 0, config.hStream, NULL));
    OK(cuStreamEndCapture(config.hStream, &graph));
    CHECK_INT(attribute_of_first(graph, CU_LAUNCH_ATTRIBUTE_COOPERATIVE).cooperative, 1);
    run(instantiate(graph));
}

static atomic_int destroyed;

static void count_destroyed(void *by) {
    atomic_fetch_add(&destroyed, *(int *)by);
}

/* Destructors run in a thread of the driver's. */
static void expect_destroyed(int want) {
    for (int i = 0; i < 1000 && atomic_load(&destroyed) < want; i++)
        sleep_ms(1);
    CHECK_INT(atomic_load(&destroyed), want);
}

static void user_objects_count_their_references(void) {
    static int one = 1;
    CUuserObject object;
    CUgraph graph;

    begin("quick");
    CHECK_INT(cuUserObjectCreate(&object, &one, count_destroyed, 1, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuUserObjectCreate(&object, &one, NULL, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuUserObjectCreate(&object, &one, count_destroyed, 0, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
              CUDA_ERROR_INVALID_VALUE);
    OK(cuUserObjectCreate(&object, &one, count_destroyed, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    OK(cuUserObjectRetain(object, 3));
    CHECK_INT(cuUserObjectRelease(object, 6), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuUserObjectRelease(object, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuUserObjectRelease(object, 4));
    graph = new_graph();
    CHECK_INT(cuGraphRetainUserObject(graph, object, 1, 2), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphReleaseUserObject(graph, object, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphRetainUserObject(graph, object, 1, 0));
    OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    CHECK_INT(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuUserObjectRelease(object, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphReleaseUserObject(graph, object, 1));
    sleep_ms(20);
    expect_destroyed(0);
    OK(cuGraphReleaseUserObject(graph, object, 1));
    expect_destroyed(1);
    CHECK_INT(cuUserObjectRetain(object, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphDestroy(graph));
    sleep_ms(20);
    expect_destroyed(1);
}

/* A new object, one reference to which is the graph's, and no other is left. */
static void give_object(CUgraph graph, int *by) {
    CUuserObject object;

    OK(cuUserObjectCreate(&object, by, count_destroyed, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
}

static void graphs_keep_user_objects(void) {
    static int one = 1, hundred = 100;
    CUgraphExecUpdateResultInfo info;
    CUgraph graph, clone, parent, other;
    CUgraphNode node;
    CUgraphExec exec;

    begin("quick");
    graph = new_graph();
    parent = new_graph();
    give_object(graph, &one);
    OK(cuGraphClone(&clone, graph));
    OK(cuGraphAddChildGraphNode(&node, parent, NULL, 0, graph));
    exec = instantiate(parent);
    OK(cuGraphDestroy(graph));
    OK(cuGraphDestroy(parent));
    OK(cuGraphDestroy(clone));
    sleep_ms(20);
    expect_destroyed(0);
    /* An update brings the objects of the new graph. */
    parent = new_graph();
    other = new_graph();
    give_object(other, &hundred);
    OK(cuGraphAddChildGraphNode(&node, parent, NULL, 0, other));
    OK(cuGraphExecUpdate_v2(exec, parent, &info));
    expect_destroyed(1);
    OK(cuGraphDestroy(parent));
    OK(cuGraphDestroy(other));
    sleep_ms(20);
    expect_destroyed(1);
    OK(cuGraphExecDestroy(exec));
    expect_destroyed(101);
}

static void a_launch_keeps_user_objects(void) {
    static int one = 1;
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUgraphNode node;
    CUgraph graph;
    CUgraphExec exec;

    kernel = one_block(begin("spin_30ms"));
    graph = new_graph();
    OK(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &kernel));
    give_object(graph, &one);
    exec = instantiate(graph);
    for (int i = 0; i < 4; i++)
        OK(cuGraphLaunch(exec, NULL));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    sleep_ms(10);
    CHECK_INT(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    CHECK_INT(atomic_load(&destroyed), 0);
    OK(cuCtxSynchronize());
    expect_destroyed(1);
}

static void read_dot(char *text, size_t size) {
    FILE *file = fopen(node_path("graph.dot"), "r");

    memset(text, 0, size);
    if (file == NULL || fread(text, 1, size - 1, file) == 0)
        check_failed(__FILE__, __LINE__, "there is no graph.dot");
    if (file != NULL)
        fclose(file);
}

static void a_graph_is_printed(void) {
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUDA_MEMSET_NODE_PARAMS fill;
    CUgraphNode node, next;
    CUdeviceptr pointer;
    CUgraph graph;
    char text[4096] = "";

    kernel = one_block(begin("quick"));
    kernel.gridDimX = 77;
    OK(cuMemAlloc_v2(&pointer, 4096));
    fill = filling(pointer, 4711);
    graph = new_graph();
    OK(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &kernel));
    OK(cuGraphAddMemsetNode(&next, graph, &node, 1, &fill, NULL));
    OK(cuGraphDebugDotPrint(graph, node_path("graph.dot"), 0));
    read_dot(text, sizeof(text));
    CHECK(strncmp(text, "digraph", 7) == 0);
    CHECK(strstr(text, "KERNEL") != NULL && strstr(text, "quick") != NULL && strstr(text, " -> ") != NULL);
    CHECK(strstr(text, "77") == NULL && strstr(text, "4711") == NULL);
    OK(cuGraphDebugDotPrint(graph, node_path("graph.dot"), CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE));
    read_dot(text, sizeof(text));
    CHECK(strstr(text, "grid 77") != NULL && strstr(text, "4711") != NULL);
    CHECK_INT(cuGraphDebugDotPrint(graph, NULL, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphDebugDotPrint(graph, "/nonexistent/graph.dot", 0), CUDA_ERROR_OPERATING_SYSTEM);
}

static void edges_have_no_data(void) {
    CUgraphNode a, b, from, to;
    CUgraphEdgeData data = {1, 1, 1, {1}};
    CUgraphConditionalHandle handle;
    CUgraph graph;
    size_t count = 1;
    void *function;

    begin("quick");
    graph = new_graph();
    OK(cuGraphAddEmptyNode(&a, graph, NULL, 0));
    OK(cuGraphAddEmptyNode(&b, graph, &a, 1));
    OK(cuGraphGetEdges_v2(graph, &from, &to, &data, &count));
    CHECK(count == 1 && from == a && to == b && data.from_port == 0 && data.type == 0);
    data.type = 1;
    OK(cuGraphNodeGetDependencies_v2(b, &from, &data, &count));
    CHECK(count == 1 && from == a && data.type == 0);
    data.type = 1;
    OK(cuGraphNodeGetDependentNodes_v2(a, &to, &data, &count));
    CHECK(count == 1 && to == b && data.type == 0);
    OK(cuGraphRemoveDependencies_v2(graph, &a, &b, &data, 1));
    OK(cuGraphGetEdges_v2(graph, NULL, NULL, NULL, &count));
    CHECK_INT(count, 0);
    OK(cuGetProcAddress_v2("cuGraphGetEdges", &function, 12030, 0, NULL));
    CHECK(function == (void *)(uintptr_t)cuGraphGetEdges_v2);
    OK(cuGetProcAddress_v2("cuGraphKernelNodeGetParams", &function, 11080, 0, NULL));
    CHECK(function == (void *)(uintptr_t)cuGraphKernelNodeGetParams);
    OK(cuGetProcAddress_v2("cuGraphKernelNodeGetParams", &function, 12000, 0, NULL));
    CHECK(function == (void *)(uintptr_t)cuGraphKernelNodeGetParams_v2);
    CHECK_INT(cuGraphConditionalHandleCreate(&handle, graph, NULL, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
    CHECK_INT(cuGraphConditionalHandleCreate(NULL, graph, NULL, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

const struct test node_tests[] = {
    {"kernel parameters are kept", kernel_parameters_are_kept},
    {"other parameters are kept", other_parameters_are_kept},
    {"generic parameters go by the type", generic_parameters_go_by_the_type},
    {"executable nodes are set", executable_nodes_are_set},
    {"executable kernels are set", executable_kernels_are_set},
    {"operands stay where they are", operands_stay_where_they_are},
    {"events of executable graphs are set", events_of_executable_graphs_are_set},
    {"a disabled node does nothing", a_disabled_node_does_nothing},
    {"an update keeps the names of nodes", an_update_keeps_the_names_of_nodes},
    {"an update compares edges", an_update_compares_edges},
    {"a child graph is updated", a_child_graph_is_updated},
    {"attributes are kept", attributes_are_kept},
    {"captured launches bring their attributes", captured_launches_bring_their_attributes},
    {"user objects count their references", user_objects_count_their_references},
    {"graphs keep user objects", graphs_keep_user_objects},
    {"a launch keeps user objects", a_launch_keeps_user_objects},
    {"a graph is printed", a_graph_is_printed},
    {"edges have no data", edges_have_no_data},
    {0},
};
