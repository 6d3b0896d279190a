/* What contexts take beyond their overhead, and green contexts. */
#include <pthread.h>
#include <string.h>

#include "harness.h"

#define THREADS ((uint64_t)16 * 2048) /* of GPU 0 */

static const char ptx[] = ".version 8.0\n.target sm_90\n.address_size 64\n"
                          ".visible .entry flat()\n{\n ret;\n}\n"
                          ".visible .entry deep()\n{\n .local .align 4 .b8 depot[5120];\n ret;\n}\n"
                          ".visible .entry deeper()\n{\n .local .align 4 .b8 depot[524288];\n ret;\n}\n";

static uint64_t taken(void) {
    return look("test").used[0] - GPU0_CONTEXT;
}

static CUresult launch(CUmodule module, const char *name) {
    CUfunction function = NULL;

    OK(cuModuleGetFunction(&function, module, name));
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

static void stacks_take_memory_for_every_thread(void) {
    CUcontext context = context_on(0);
    size_t value;

    OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
    CHECK_INT(taken(), 3072 * THREADS);
    CHECK_INT(look("test").sum[0].context_bytes, GPU0_CONTEXT + 3072 * THREADS);
    OK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
    CHECK_INT(value, 4096);
    CHECK_INT(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 512 << 10), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1 << 20), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(taken(), 3072 * THREADS);
    OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 512));
    CHECK_INT(taken(), 0);
    OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
    OK(cuCtxDestroy_v2(context));
    CHECK_INT(look("test").used[0], 0);
}

static void printf_buffers_take_memory(void) {
    CUcontext context = context_on(0);

    OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 11 * MIB));
    CHECK_INT(taken(), 10 * MIB);
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 16 * MIB));
    CHECK_INT(taken(), 18 * MIB);
    OK(cuCtxDestroy_v2(context));
    CHECK_INT(look("test").used[0], 0);
}

static void kernels_local_memory_is_the_contexts(void) {
    CUcontext context = context_on(0);
    CUmodule module;

    OK(cuModuleLoadData(&module, ptx));
    OK(launch(module, "flat"));
    CHECK_INT(taken(), 0);
    OK(launch(module, "deep"));
    CHECK_INT(taken(), 4096 * THREADS);
    OK(launch(module, "deep"));
    OK(launch(module, "flat"));
    CHECK_INT(taken(), 4096 * THREADS);
    CHECK_INT(launch(module, "deeper"), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(look("test").sum[0].launches, 4);
    OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096)); /* there is more already */
    CHECK_INT(taken(), 4096 * THREADS);
    OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 6144));
    CHECK_INT(taken(), 5120 * THREADS);
    OK(cuModuleUnload(module));
    CHECK_INT(taken(), 5120 * THREADS); /* it stays */
    OK(cuCtxDestroy_v2(context));
    CHECK_INT(look("test").used[0], 0);
}

static void primary_contexts_begin_anew(void) {
    CUcontext context;
    CUmodule module;
    size_t value;

    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, ptx));
    OK(launch(module, "deep"));
    OK(cuDevicePrimaryCtxReset_v2(0));
    CHECK_INT(look("test").used[0], 0);
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK_INT(taken(), 0);
    OK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
    CHECK_INT(value, 1024);
    OK(cuModuleLoadData(&module, ptx));
    OK(launch(module, "deep"));
    CHECK_INT(taken(), 4096 * THREADS);
}

/* ---- What the driver takes on its own ---- */

static void the_first_launch_may_take_memory(void) {
    CUcontext context;
    CUmodule module;

    node_add_to_topology("own_launch_mib = 12");
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, ptx));
    CHECK_INT(taken(), 0);
    OK(launch(module, "flat"));
    OK(launch(module, "flat"));
    CHECK_INT(taken(), 12 * MIB);
    CHECK_INT(look("test").sum[0].context_bytes, GPU0_CONTEXT + 12 * MIB);
    OK(cuDevicePrimaryCtxReset_v2(0));
    CHECK_INT(look("test").used[0], 0);
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuModuleLoadData(&module, ptx));
    CHECK_INT(taken(), 0);
    OK(launch(module, "flat"));
    CHECK_INT(taken(), 12 * MIB);
}

static void code_may_take_more_than_it_has(void) {
    CUmodule modules[2];

    node_add_to_topology("own_code_mib = 20");
    context_on(0);
    for (int i = 0; i < 2; i++) {
        OK(cuModuleLoadData(&modules[i], ptx));
        CHECK_INT(taken(), i * 6 * MIB); /* by the launch: modules are loaded lazily */
        OK(launch(modules[i], "flat"));
    }
    CHECK_INT(taken(), 26 * MIB); /* in whole blocks, without the 16 MiB of code that are in a context's cost */
    OK(cuModuleUnload(modules[0]));
    CHECK_INT(taken(), 6 * MIB);
}

static CUgraphExec make_graph_exec(CUmodule module) {
    CUDA_KERNEL_NODE_PARAMS kernel = {
        .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
    CUgraphExec exec = NULL;
    CUgraphNode node;
    CUgraph graph;

    OK(cuModuleGetFunction(&kernel.func, module, "flat"));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &kernel));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    return exec;
}

static void executable_graphs_may_take_memory(void) {
    CUgraphExec first, second;
    CUcontext context;
    CUmodule module;

    node_add_to_topology("own_graph_mib = 10");
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, ptx));
    first = make_graph_exec(module);
    second = make_graph_exec(module);
    CHECK_INT(taken(), 0);
    OK(cuGraphLaunch(first, NULL));
    OK(cuGraphLaunch(first, NULL));
    CHECK_INT(taken(), 10 * MIB);
    OK(cuGraphUpload(second, NULL));
    CHECK_INT(taken(), 20 * MIB);
    OK(cuGraphExecDestroy(first));
    CHECK_INT(taken(), 10 * MIB);
    OK(cuDevicePrimaryCtxReset_v2(0));
    CHECK_INT(look("test").used[0], 0);
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuGraphExecDestroy(second));
    CHECK_INT(taken(), 0);
}

static void attached_contexts_live_until_all_detach(void) {
    CUcontext context = context_on(0), again;

    OK(cuCtxAttach(&again, 0));
    CHECK(again == context);
    OK(cuCtxDetach(context));
    CHECK_INT(look("test").used[0], GPU0_CONTEXT);
    OK(cuCtxDetach(context));
    CHECK_INT(look("test").used[0], 0);
    CHECK_INT(cuCtxDetach(context), CUDA_ERROR_INVALID_CONTEXT);
}

static void resources_are_split(void) {
    CUdevResource all, groups[4], rest;
    CUdevResourceDesc desc;
    unsigned count = 4;

    OK(cuInit(0));
    OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    CHECK_INT(all.sm.smCount, 16);
    CHECK_INT(cuDeviceGetDevResource(0, &all, 7), CUDA_ERROR_INVALID_RESOURCE_TYPE);
    CHECK_INT(cuDeviceGetDevResource(9, &all, CU_DEV_RESOURCE_TYPE_SM), CUDA_ERROR_INVALID_DEVICE);
    OK(cuDevSmResourceSplitByCount(NULL, &count, &all, NULL, 0, 1));
    CHECK_INT(count, 2); /* at least 8 each, on this GPU */
    count = 1;
    OK(cuDevSmResourceSplitByCount(groups, &count, &all, &rest, 0, 5));
    CHECK_INT(count, 1);
    CHECK_INT(groups[0].sm.smCount, 8);
    CHECK_INT(rest.sm.smCount, 8);
    CHECK_INT(cuDevSmResourceSplitByCount(groups, &count, &all, &rest, 0, 17), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuDevSmResourceSplitByCount(groups + 1, &count, &groups[0], &rest, 0, 8),
              CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    OK(cuDevResourceGenerateDesc(&desc, groups, 1));
    groups[1] = all;
    CHECK_INT(cuDevResourceGenerateDesc(&desc, groups, 2), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    memset(groups, 0, sizeof(groups));
    CHECK_INT(cuDevResourceGenerateDesc(&desc, groups, 1), CUDA_ERROR_INVALID_RESOURCE_TYPE);
    OK(cuDeviceGetDevResource(1, &all, CU_DEV_RESOURCE_TYPE_SM));
    count = 4;
    OK(cuDevSmResourceSplitByCount(groups, &count, &all, &rest, 0, 1));
    CHECK_INT(count, 4);
    CHECK_INT(groups[3].sm.smCount, 4);
    CHECK_INT(rest.sm.smCount, 16);
}

static CUgreenCtx green_on(CUdevice device) {
    CUdevResourceDesc desc = NULL;
    CUdevResource all;
    CUgreenCtx green = NULL;
    unsigned count = 1;

    OK(cuInit(0));
    OK(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevSmResourceSplitByCount(&all, &count, &all, NULL, 0, 8));
    OK(cuDevResourceGenerateDesc(&desc, &all, 1));
    OK(cuGreenCtxCreate(&green, desc, device, CU_GREEN_CTX_DEFAULT_STREAM));
    CHECK_INT(cuGreenCtxCreate(&green, desc, device, 0), CUDA_ERROR_INVALID_VALUE);
    return green;
}

static void a_green_context_is_the_primary_and_some_memory(void) {
    CUcontext primary, context, current;
    CUgreenCtx first = green_on(0), second;
    CUdevResource resource;
    CUdeviceptr pointer;
    CUmodule module;

    CHECK_INT(look("test").used[0], GPU0_CONTEXT + 16 * MIB);
    second = green_on(0);
    CHECK_INT(look("test").used[0], GPU0_CONTEXT + 32 * MIB);
    CHECK_INT(look("test").sum[0].context_bytes, GPU0_CONTEXT + 32 * MIB);
    OK(cuCtxFromGreenCtx(&context, first));
    OK(cuCtxSetCurrent(context));
    OK(cuCtxGetCurrent(&current));
    CHECK(current == context);
    OK(cuCtxGetDevResource(context, &resource, CU_DEV_RESOURCE_TYPE_SM));
    CHECK_INT(resource.sm.smCount, 8);
    OK(cuModuleLoadData(&module, ptx));
    OK(cuMemAlloc_v2(&pointer, 4 * MIB));
    OK(launch(module, "flat"));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    CHECK(primary != context);
    CHECK_INT(look("test").used[0], GPU0_CONTEXT + 36 * MIB);
    OK(cuCtxSetCurrent(primary));
    OK(launch(module, "flat")); /* what is the one's is the other's */
    CHECK_INT(cuCtxDestroy_v2(context), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuCtxSetCurrent(context));
    OK(cuGreenCtxDestroy(first));
    CHECK_INT(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_INT(cuCtxSetCurrent(context), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_INT(cuGreenCtxDestroy(first), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_INT(look("test").used[0], GPU0_CONTEXT + 20 * MIB); /* the memory is the primary context's */
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuGreenCtxDestroy(second));
    CHECK_INT(look("test").used[0], 0);
}

static void streams_of_green_contexts(void) {
    CUgreenCtx green = green_on(0), of;
    CUstream stream, plain;
    CUcontext context;
    CUevent event;

    CHECK_INT(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_DEFAULT, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&plain, 0));
    OK(cuStreamGetGreenCtx(stream, &of));
    CHECK(of == green);
    OK(cuStreamGetGreenCtx(plain, &of));
    CHECK(of == NULL);
    OK(cuStreamGetGreenCtx(NULL, &of));
    CHECK(of == NULL);
    OK(cuEventCreate(&event, 0));
    OK(cuGreenCtxRecordEvent(green, event));
    OK(cuGreenCtxWaitEvent(green, event));
    OK(cuEventSynchronize(event));
    OK(cuStreamSynchronize(stream));
}

static void no_green_context_without_room(void) {
    CUdevResourceDesc desc;
    CUdevResource all;
    CUgreenCtx green;
    CUdeviceptr pointer;

    context_on(0);
    OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevResourceGenerateDesc(&desc, &all, 1));
    OK(cuMemAlloc_v2(&pointer, GPU0_BYTES - 2 * GPU0_CONTEXT - 10 * MIB));
    CHECK_INT(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(look("test").used[0], GPU0_BYTES - GPU0_CONTEXT - 10 * MIB);
}

/* What another thread destroys, whatever has the handle at that moment, until it is told to end. */
static struct {
    _Atomic(CUcontext) view;
    _Atomic(CUgreenCtx) green;
    _Atomic int ended, ends;
} handles;

static void *destroy_again(void *arg) {
    while (!handles.ends) {
        if (handles.view != NULL && cuCtxDestroy_v2(handles.view) == CUDA_SUCCESS)
            handles.ended += 1000000;
        if (handles.green != NULL && cuGreenCtxDestroy(handles.green) == CUDA_SUCCESS)
            handles.ended++;
    }
    return arg;
}

/* Each green context ends once, and a view is never one for cuCtxDestroy. */
static void green_contexts_end_once(void) {
    enum { TIMES = 20000 };
    CUdevResourceDesc desc;
    CUdevResource all;
    CUcontext view;
    pthread_t thread;
    int ended = 0;

    context_on(0);
    OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevResourceGenerateDesc(&desc, &all, 1));
    CHECK_INT(pthread_create(&thread, NULL, destroy_again, NULL), 0);
    for (int i = 0; i < TIMES; i++) {
        CUgreenCtx green;

        OK(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
        if (cuCtxFromGreenCtx(&view, green) == CUDA_SUCCESS)
            handles.view = view;
        handles.green = green;
        ended += cuGreenCtxDestroy(green) == CUDA_SUCCESS;
    }
    handles.ends = 1;
    pthread_join(thread, NULL);
    CHECK_INT(ended + handles.ended, TIMES);
    CHECK_INT(look("test").used[0], GPU0_CONTEXT);
    CHECK_INT(look("test").sum[0].context_bytes, GPU0_CONTEXT);
}

const struct test limits_tests[] = {
    {"stacks take memory for every thread", stacks_take_memory_for_every_thread},
    {"printf buffers take memory", printf_buffers_take_memory},
    {"kernels' local memory is the context's", kernels_local_memory_is_the_contexts},
    {"primary contexts begin anew", primary_contexts_begin_anew},
    {"the first launch may take memory", the_first_launch_may_take_memory},
    {"code may take more than it has", code_may_take_more_than_it_has},
    {"executable graphs may take memory", executable_graphs_may_take_memory},
    {"attached contexts live until all detach", attached_contexts_live_until_all_detach},
    {"resources are split", resources_are_split},
    {"a green context is the primary and some memory", a_green_context_is_the_primary_and_some_memory},
    {"streams of green contexts", streams_of_green_contexts},
    {"no green context without room", no_green_context_without_room},
    {"green contexts end once", green_contexts_end_once},
    {0},
};
