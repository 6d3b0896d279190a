/* Streams that wait for a value in memory, or write one, and what comes behind; semaphores of other APIs. */
#include <string.h>

#include "harness.h"

static const char ptx[] = ".version 8.0\n.entry spin_20ms\n";

/* Pinned memory, which both the program and the GPU reach at one address. */
static volatile uint32_t *word(void) {
    void *memory;

    OK(cuMemAllocHost_v2(&memory, 4096));
    memset(memory, 0, 4096);
    return memory;
}

static CUdeviceptr at(volatile uint32_t *memory) {
    return (CUdeviceptr)(uintptr_t)memory;
}

static CUstream stream_of(unsigned flags) {
    CUstream stream;

    OK(cuStreamCreate(&stream, flags));
    return stream;
}

/* Returns when the driver has looked at all waits that were there before. */
static void driver_has_looked(void) {
    volatile uint32_t *memory = word();
    CUstream stream = stream_of(CU_STREAM_NON_BLOCKING);

    OK(cuStreamWaitValue32_v2(stream, at(memory), 0, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuStreamSynchronize(stream));
    OK(cuStreamDestroy_v2(stream));
}

static void a_stream_waits_for_a_value(void) {
    volatile uint32_t *memory;
    CUstream stream, other;
    CUevent event;

    context_on(0);
    memory = word();
    stream = stream_of(0);
    other = stream_of(0);
    OK(cuEventCreate(&event, 0));
    OK(cuStreamWaitValue32_v2(stream, at(memory), 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuEventRecord(event, stream));
    driver_has_looked();
    CHECK_INT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    CHECK_INT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    /* Nobody else waits. */
    OK(cuLaunchKernel(kernel_of(ptx, "spin_20ms"), 1, 1, 1, 1, 1, 1, 0, other, NULL, NULL));
    OK(cuStreamSynchronize(other));
    CHECK_INT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    *memory = 1;
    OK(cuEventSynchronize(event));
    OK(cuStreamQuery(stream));
}

static void conditions(void) {
    static const struct {
        uint64_t found, value;
        unsigned condition;
        bool wide, met;
    } cases[] = {
        {5, 5, CU_STREAM_WAIT_VALUE_GEQ, false, true},
        {4, 5, CU_STREAM_WAIT_VALUE_GEQ, false, false},
        {2, 0xfffffff0, CU_STREAM_WAIT_VALUE_GEQ, false, true},
        {2, 0xfffffff0, CU_STREAM_WAIT_VALUE_GEQ, true, false},
        {2, UINT64_MAX, CU_STREAM_WAIT_VALUE_GEQ, true, true},
        {6, 5, CU_STREAM_WAIT_VALUE_EQ, false, false},
        {1ULL << 40 | 5, 5, CU_STREAM_WAIT_VALUE_EQ, false, true},
        {1ULL << 40 | 5, 5, CU_STREAM_WAIT_VALUE_EQ, true, false},
        {6, 4, CU_STREAM_WAIT_VALUE_AND, false, true},
        {6, 1, CU_STREAM_WAIT_VALUE_AND, true, false},
        {0xffff0000, 0xffff, CU_STREAM_WAIT_VALUE_NOR, false, false},
        {0xffff0000, 0xffff, CU_STREAM_WAIT_VALUE_NOR, true, true},
        {0xffff0000, 0x7fff, CU_STREAM_WAIT_VALUE_NOR, false, true},
    };

    context_on(0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        volatile uint32_t *memory = word();
        CUstream stream = stream_of(CU_STREAM_NON_BLOCKING);
        CUresult result;

        *(volatile uint64_t *)(volatile void *)memory = cases[i].found;
        if (cases[i].wide)
            OK(cuStreamWaitValue64_v2(stream, at(memory), cases[i].value, cases[i].condition));
        else
            OK(cuStreamWaitValue32_v2(stream, at(memory), (uint32_t)cases[i].value, cases[i].condition));
        if (cases[i].met)
            OK(cuStreamSynchronize(stream));
        driver_has_looked();
        result = cuStreamQuery(stream);
        if (result != (cases[i].met ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY))
            check_failed(__FILE__, __LINE__, "case %zu: %d", i, result);
    }
}

static void values_are_written_in_order(void) {
    uint64_t both[2] = {1, 1};
    CUdeviceptr memory;
    CUstream stream;

    context_on(0);
    stream = stream_of(0);
    OK(cuMemAlloc_v2(&memory, 4096));
    OK(cuMemsetD8_v2(memory, 0xff, 4096));
    OK(cuLaunchKernel(kernel_of(ptx, "spin_20ms"), 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    OK(cuStreamWriteValue32_v2(stream, memory, 7, 0));
    OK(cuStreamWriteValue64_v2(stream, memory + 8, 1ULL << 40, 0));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH_v2(both, memory, sizeof(both)));
    CHECK(both[0] == (0xffffffff00000000 | 7));
    CHECK(both[1] == 1ULL << 40);
    /* Another stream waits for what this one writes. */
    OK(cuStreamWaitValue32_v2(CU_STREAM_PER_THREAD, memory, 8, CU_STREAM_WAIT_VALUE_GEQ));
    driver_has_looked();
    CHECK_INT(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
    OK(cuStreamWriteValue32_v2(stream, memory, 8, 0));
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
}

static void note(void *place) {
    *(volatile uint32_t *)place = *((volatile uint32_t *)place + 1) + 1;
}

/* All of it by the thread that writes the value in the end. */
static void what_is_behind_a_wait_comes_after_it(void) {
    volatile uint32_t *memory, *noted;
    uint32_t copied = 1, own = 11;
    CUdeviceptr device, pooled;
    CUstream stream;

    context_on(0);
    memory = word();
    noted = word();
    stream = stream_of(CU_STREAM_NON_BLOCKING);
    OK(cuMemAlloc_v2(&device, 4096));
    OK(cuMemsetD32_v2(device, 5, 4));
    OK(cuMemAllocAsync(&pooled, 2 * MIB, stream));
    OK(cuStreamWaitValue32_v2(stream, at(memory), 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuMemcpyDtoHAsync_v2((void *)(uintptr_t)(noted + 1), device, 4, stream));
    OK(cuLaunchHostFunc(stream, note, (void *)(uintptr_t)noted));
    OK(cuMemsetD32Async(device, 6, 4, stream));
    OK(cuStreamWriteValue32_v2(stream, at(memory + 1), 9, 0));
    OK(cuMemcpyHtoDAsync_v2(device + 64, &own, 4, stream));
    own = 12; /* the program's own memory is its own again */
    OK(cuMemFreeAsync(pooled, stream));
    driver_has_looked();
    CHECK_INT(noted[1], 0);
    CHECK_INT(noted[0], 0);
    CHECK_INT(memory[1], 0);
    OK(cuMemcpyDtoH_v2(&copied, device, 4));
    CHECK_INT(copied, 5);
    *memory = 1;
    OK(cuStreamSynchronize(stream));
    CHECK_INT(noted[1], 5);
    CHECK_INT(noted[0], 6);
    CHECK_INT(memory[1], 9);
    OK(cuMemcpyDtoH_v2(&copied, device, 4));
    CHECK_INT(copied, 6);
    OK(cuMemcpyDtoH_v2(&copied, device + 64, 4));
    CHECK_INT(copied, 11);
}

static void events_carry_a_wait_to_other_streams(void) {
    volatile uint32_t *memory;
    CUstream first, second;
    CUevent event;

    context_on(0);
    memory = word();
    first = stream_of(CU_STREAM_NON_BLOCKING);
    second = stream_of(CU_STREAM_NON_BLOCKING);
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamWaitValue32_v2(first, at(memory), 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuEventRecord(event, first));
    OK(cuStreamWaitEvent(second, event, 0));
    OK(cuStreamWriteValue32_v2(second, at(memory + 1), 2, 0));
    OK(cuEventDestroy_v2(event));
    driver_has_looked();
    CHECK_INT(memory[1], 0);
    CHECK_INT(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
    *memory = 1;
    OK(cuStreamSynchronize(second));
    CHECK_INT(memory[1], 2);
}

static void the_legacy_stream_comes_behind_too(void) {
    volatile uint32_t *memory;
    uint32_t copied = 0, value = 3;
    CUdeviceptr device;
    CUstream stream;

    context_on(0);
    memory = word();
    stream = stream_of(0);
    OK(cuMemAlloc_v2(&device, 4096));
    OK(cuMemcpyHtoD_v2(device, &value, 4));
    OK(cuStreamWaitValue32_v2(stream, at(memory), 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuMemcpyDtoHAsync_v2((void *)(uintptr_t)(memory + 2), device, 4, NULL));
    OK(cuMemcpyDtoHAsync_v2(&copied, device, 4, stream_of(CU_STREAM_NON_BLOCKING)));
    CHECK_INT(copied, 3);
    driver_has_looked();
    CHECK_INT(memory[2], 0);
    CHECK_INT(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    *memory = 1;
    OK(cuStreamSynchronize(NULL));
    CHECK_INT(memory[2], 3);
}

static void streams_and_contexts_end_before_their_waits(void) {
    volatile uint32_t *memory;
    CUcontext context;
    CUstream stream;

    context_on(0);
    memory = word();
    stream = stream_of(0);
    OK(cuStreamWaitValue32_v2(stream, at(memory), 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuStreamWriteValue32_v2(stream, at(memory + 1), 2, 0));
    OK(cuStreamDestroy_v2(stream));
    CHECK_INT(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(cuStreamDestroy_v2(stream), CUDA_ERROR_INVALID_HANDLE);
    *memory = 1;
    OK(cuCtxSynchronize());
    CHECK_INT(memory[1], 2);
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuStreamWaitValue32_v2(NULL, at(memory), 5, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuCtxDestroy_v2(context));
    /* What the context of before waits for, it still waits for. */
    OK(cuStreamWaitValue32_v2(NULL, at(memory), 6, CU_STREAM_WAIT_VALUE_EQ));
    driver_has_looked();
    CHECK_INT(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    *memory = 6;
    OK(cuStreamSynchronize(NULL));
}

static CUstreamBatchMemOpParams op(CUstreamBatchMemOpType operation, CUdeviceptr address, uint32_t value) {
    return (CUstreamBatchMemOpParams){
        .waitValue = {.operation = operation,
                      .address = address,
                      .value = value,
                      .flags = operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ? CU_STREAM_WAIT_VALUE_EQ : 0}};
}

/* Writes 1 to the first word, waits for 2 in the second, and writes 3 to the third. */
static void make_batch(CUstreamBatchMemOpParams *ops, volatile uint32_t *memory) {
    ops[0] = op(CU_STREAM_MEM_OP_WRITE_VALUE_32, at(memory), 1);
    ops[1] = (CUstreamBatchMemOpParams){.memoryBarrier = {.operation = CU_STREAM_MEM_OP_BARRIER}};
    ops[2] = op(CU_STREAM_MEM_OP_WAIT_VALUE_32, at(memory + 1), 2);
    ops[3] = op(CU_STREAM_MEM_OP_WRITE_VALUE_32, at(memory + 2), 3);
}

static void check_batch(volatile uint32_t *memory, CUstream stream) {
    driver_has_looked();
    CHECK_INT(memory[0], 1);
    CHECK_INT(memory[2], 0);
    memory[1] = 2;
    OK(cuStreamSynchronize(stream));
    CHECK_INT(memory[2], 3);
}

static void batches(void) {
    CUstreamBatchMemOpParams ops[4];
    volatile uint32_t *memory;
    CUstream stream;

    context_on(0);
    memory = word();
    stream = stream_of(0);
    make_batch(ops, memory);
    OK(cuStreamBatchMemOp_v2(stream, 4, ops, 0));
    memset(ops, 0, sizeof(ops));
    check_batch(memory, stream);
}

static void what_cannot_be_done_is_refused(void) {
    CUstreamBatchMemOpParams ops[257];
    volatile uint32_t *memory;
    int value;

    CHECK_INT(cuStreamWaitValue32_v2(NULL, 4096, 0, 0), CUDA_ERROR_NOT_INITIALIZED);
    context_on(0);
    memory = word();
    for (int i = 0; i < 257; i++)
        ops[i] = op(CU_STREAM_MEM_OP_WRITE_VALUE_32, at(memory), 1);
    CHECK_INT(cuStreamWaitValue32_v2(NULL, at(memory) + 2, 0, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuStreamWaitValue64_v2(NULL, at(memory) + 4, 0, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuStreamWaitValue32_v2(NULL, 4096, 0, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuStreamWaitValue32_v2(NULL, at(memory), 0, 4), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuStreamWaitValue32_v2(NULL, at(memory), 0, CU_STREAM_WAIT_VALUE_FLUSH), CUDA_ERROR_NOT_SUPPORTED);
    CHECK_INT(cuStreamWriteValue32_v2(NULL, at(memory), 0, 2), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuStreamWriteValue32_v2(NULL, at(memory), 0, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER),
              CUDA_ERROR_NOT_SUPPORTED);
    CHECK_INT(cuStreamBatchMemOp_v2(NULL, 0, ops, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuStreamBatchMemOp_v2(NULL, 257, ops, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuStreamBatchMemOp_v2(NULL, 1, NULL, 0), CUDA_ERROR_INVALID_VALUE);
    ops[1].operation = CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES;
    CHECK_INT(cuStreamBatchMemOp_v2(NULL, 2, ops, 0), CUDA_ERROR_NOT_SUPPORTED);
    CHECK_INT(memory[0], 0); /* none of a batch is done that cannot be done as a whole */
    CHECK_INT(cuStreamWaitValue32_v2((CUstream)(uintptr_t)memory, at(memory), 0, 0), CUDA_ERROR_INVALID_HANDLE);
    /* The older form is off, as an attribute says. */
    CHECK_INT(cuStreamWaitValue32(NULL, at(memory), 0, 0), CUDA_ERROR_NOT_SUPPORTED);
    CHECK_INT(cuStreamBatchMemOp_ptsz(NULL, 1, ops, 0), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 0));
    CHECK_INT(value, 0);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, 0));
    CHECK_INT(value, 0);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0));
    CHECK_INT(value, 1);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 0));
    CHECK_INT(value, 1);
}

static void run_graph(CUgraph graph, volatile uint32_t *memory, CUgraphNode node) {
    CUstream stream = stream_of(0);
    CUstreamBatchMemOpParams ops[4];
    volatile uint32_t *others = word();
    CUgraphExec exec;

    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    check_batch(memory, stream);
    make_batch(ops, others);
    OK(cuGraphExecBatchMemOpNodeSetParams(exec, node, &(CUDA_BATCH_MEM_OP_NODE_PARAMS){.count = 4, .paramArray = ops}));
    OK(cuGraphLaunch(exec, stream));
    OK(cuGraphExecDestroy(exec));
    check_batch(others, stream);
}

static void nodes_of_graphs(void) {
    CUstreamBatchMemOpParams ops[4];
    CUDA_BATCH_MEM_OP_NODE_PARAMS params = {.count = 4, .paramArray = ops}, got;
    volatile uint32_t *memory;
    CUgraph graph, clone;
    CUgraphNode node;

    context_on(0);
    memory = word();
    make_batch(ops, word());
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &params));
    OK(cuGraphBatchMemOpNodeGetParams(node, &got));
    CHECK(got.count == 4 && got.paramArray != ops && got.paramArray[2].waitValue.value == 2);
    make_batch(ops, memory);
    OK(cuGraphBatchMemOpNodeSetParams(node, &params));
    params.count = 0;
    CHECK_INT(cuGraphBatchMemOpNodeSetParams(node, &params), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &params), CUDA_ERROR_INVALID_VALUE);
    params.count = 4;
    CHECK_INT(cuGraphAddBatchMemOpNode(&node, NULL, NULL, 0, &params), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphClone(&clone, graph));
    run_graph(graph, memory, node);
    OK(cuGraphDestroy(graph));
    OK(cuGraphDestroy(clone));
}

static void captured_operations(void) {
    CUstreamBatchMemOpParams ops[4];
    volatile uint32_t *memory;
    CUgraphNode node;
    CUgraph graph;
    size_t count = 1;
    CUstream stream;

    context_on(0);
    memory = word();
    stream = stream_of(0);
    make_batch(ops, memory);
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamBatchMemOp_v2(stream, 4, ops, 0));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphGetNodes(graph, &node, &count));
    CHECK_INT(count, 1);
    run_graph(graph, memory, node);
    OK(cuGraphDestroy(graph));
}

static void semaphores_of_other_apis_are_refused(void) {
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC desc = {.type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD};
    CUexternalSemaphore semaphore = NULL;

    CHECK_INT(cuImportExternalSemaphore(&semaphore, &desc), CUDA_ERROR_NOT_INITIALIZED);
    context_on(0);
    CHECK_INT(cuImportExternalSemaphore(&semaphore, &desc), CUDA_ERROR_NOT_SUPPORTED);
    CHECK_INT(cuImportExternalSemaphore(NULL, &desc), CUDA_ERROR_INVALID_VALUE);
    desc.type = 0;
    CHECK_INT(cuImportExternalSemaphore(&semaphore, &desc), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuDestroyExternalSemaphore(semaphore), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(cuWaitExternalSemaphoresAsync(&semaphore, (void *)&desc, 1, NULL), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(cuSignalExternalSemaphoresAsync(&semaphore, (void *)&desc, 0, NULL), CUDA_ERROR_INVALID_VALUE);
}

const struct test memop_tests[] = {
    {"a stream waits for a value", a_stream_waits_for_a_value},
    {"conditions", conditions},
    {"values are written in order", values_are_written_in_order},
    {"what is behind a wait comes after it", what_is_behind_a_wait_comes_after_it},
    {"events carry a wait to other streams", events_carry_a_wait_to_other_streams},
    {"the legacy stream comes behind too", the_legacy_stream_comes_behind_too},
    {"streams and contexts end before their waits", streams_and_contexts_end_before_their_waits},
    {"batches", batches},
    {"what cannot be done is refused", what_cannot_be_done_is_refused},
    {"nodes of graphs", nodes_of_graphs},
    {"captured operations", captured_operations},
    {"semaphores of other APIs are refused", semaphores_of_other_apis_are_refused},
    {0},
};
