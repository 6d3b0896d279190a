/* Graphs that allocate, built by hand or captured. */
#include "family_pool.h"

#include <stdlib.h>

#include "worker.h"

#define FUNCTIONS(X)                                                                                                   \
    X(cuGraphCreate, "cuGraphCreate", 10000)                                                                           \
    X(cuGraphDestroy, "cuGraphDestroy", 10000)                                                                         \
    X(cuGraphClone, "cuGraphClone", 10000)                                                                             \
    X(cuGraphAddEmptyNode, "cuGraphAddEmptyNode", 10000)                                                               \
    X(cuGraphAddChildGraphNode, "cuGraphAddChildGraphNode", 10000)                                                     \
    X(cuGraphAddMemAllocNode, "cuGraphAddMemAllocNode", 11040)                                                         \
    X(cuGraphAddMemFreeNode, "cuGraphAddMemFreeNode", 11040)                                                           \
    X(cuGraphAddNode, "cuGraphAddNode", 12020)                                                                         \
    X(cuGraphAddNode_v2, "cuGraphAddNode", 12030)                                                                      \
    X(cuGraphInstantiate, "cuGraphInstantiate", 10000)                                                                 \
    X(cuGraphInstantiate_v2, "cuGraphInstantiate", 11000)                                                              \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040)                                               \
    X(cuGraphInstantiateWithParams, "cuGraphInstantiateWithParams", 12000)                                             \
    X(cuGraphInstantiateWithParams_ptsz, "cuGraphInstantiateWithParams", 12000)                                        \
    X(cuGraphLaunch, "cuGraphLaunch", 10000)                                                                           \
    X(cuGraphLaunch_ptsz, "cuGraphLaunch", 10000)                                                                      \
    X(cuGraphUpload, "cuGraphUpload", 11010)                                                                           \
    X(cuGraphUpload_ptsz, "cuGraphUpload", 11010)                                                                      \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", 10000)                                                                 \
    X(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", 11040)                                                             \
    X(cuDeviceGetGraphMemAttribute, "cuDeviceGetGraphMemAttribute", 11040)                                             \
    X(cuStreamCreate, "cuStreamCreate", 2000)                                                                          \
    X(cuStreamDestroy_v2, "cuStreamDestroy", 4000)                                                                     \
    X(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010)                                                          \
    X(cuStreamEndCapture, "cuStreamEndCapture", 10000)                                                                 \
    X(cuMemAllocAsync, "cuMemAllocAsync", 11020)                                                                       \
    X(cuMemFreeAsync, "cuMemFreeAsync", 11020)                                                                         \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020)                                                                               \
    X(cuMemFree_v2, "cuMemFree", 3020)
FAMILY_FUNCTIONS(FUNCTIONS)

enum { ALLOCATIONS = 3 };

/* A graph with its executable form; KIND_GRAPH_EXEC's handle points to it. */
struct made {
    CUgraph graph; /* NULL: destroyed by now */
    CUgraphExec exec;
    bool frees_again; /* what is still allocated when it is launched */
    unsigned count;
    uint64_t most;                 /* bytes that a launch takes at most */
    CUdeviceptr left[ALLOCATIONS]; /* allocated, and not freed by itself; 0: none */
    uint64_t sizes[ALLOCATIONS];
};

/* ---- Building ---- */

static CUresult add_allocation(struct call *call, CUgraph graph, CUgraphNode *last, uint64_t size,
                               CUdeviceptr *address) {
    CUDA_MEM_ALLOC_NODE_PARAMS one = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                    .location = {CU_MEM_LOCATION_TYPE_DEVICE, call->device}},
                                      .bytesize = size};
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .alloc = one};
    size_t count = *last != NULL;
    CUgraphNode node = NULL;
    CUresult result;
    switch (random_below(&call->random, 3)) {
    case 0:
        result = CALL(cu.cuGraphAddNode(&node, graph, last, count, &any));
        *address = any.alloc.dptr;
        break;
    case 1:
        result = CALL(cu.cuGraphAddNode_v2(&node, graph, last, NULL, count, &any));
        *address = any.alloc.dptr;
        break;
    default:
        result = CALL(cu.cuGraphAddMemAllocNode(&node, graph, last, count, &one));
        *address = one.dptr;
    }
    if (result == CUDA_SUCCESS)
        *last = node;
    return result;
}

static CUresult add_free(struct call *call, CUgraph graph, CUgraphNode *last, CUdeviceptr address) {
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free = {address}};
    size_t count = *last != NULL;
    CUgraphNode node = NULL;
    CUresult result = random_once_in(&call->random, 2)
                          ? CALL(cu.cuGraphAddNode(&node, graph, last, count, &any))
                          : CALL(cu.cuGraphAddMemFreeNode(&node, graph, last, count, address));
    if (result == CUDA_SUCCESS)
        *last = node;
    return result;
}

/* A child graph is copied into its parent. It must not allocate. */
static CUresult add_child(CUgraph graph, CUgraphNode *last) {
    CUgraph child = NULL;
    CUgraphNode node = NULL;
    CUresult result = CALL(cu.cuGraphCreate(&child, 0));
    if (result != CUDA_SUCCESS)
        return result;
    result = CALL(cu.cuGraphAddEmptyNode(&node, child, NULL, 0));
    if (result == CUDA_SUCCESS)
        result = CALL(cu.cuGraphAddChildGraphNode(&node, graph, last, *last != NULL, child));
    if (result == CUDA_SUCCESS)
        *last = node;
    CUresult end = CALL(cu.cuGraphDestroy(child));
    return result == CUDA_SUCCESS ? end : result;
}

static uint64_t random_bytes(struct call *call) {
    return 1 + random_below(&call->random, random_once_in(&call->random, 2) ? 4 * MIB : 72 * MIB);
}

static void remember(struct made *made, unsigned i, CUdeviceptr address, uint64_t size, bool freed) {
    made->left[i] = freed ? 0 : address;
    made->sizes[i] = size;
    made->most += rounded(size, BLOCK);
}

static bool build(struct call *call, struct made *made) {
    CUgraphNode last = NULL;
    if (!expect(call, CALL(cu.cuGraphCreate(&made->graph, 0)), CUDA_SUCCESS, "cuGraphCreate"))
        return false;
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < made->count && result == CUDA_SUCCESS; i++) {
        CUdeviceptr address = 0;
        uint64_t size = random_bytes(call);
        bool freed = random_once_in(&call->random, 2);
        if (random_once_in(&call->random, 3))
            result = add_child(made->graph, &last);
        if (result == CUDA_SUCCESS)
            result = add_allocation(call, made->graph, &last, size, &address);
        if (result == CUDA_SUCCESS && freed)
            result = add_free(call, made->graph, &last, address);
        remember(made, i, address, size, freed);
    }
    return expect(call, result, CUDA_SUCCESS, "building a graph");
}

/* Recorded: allocations become nodes. Nobody else of this process calls the driver meanwhile. */
static bool record(struct call *call, struct made *made) {
    static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                CU_STREAM_CAPTURE_MODE_RELAXED};
    CUstreamCaptureMode mode = modes[random_below(&call->random, 3)];
    CUstream stream = NULL;
    if (!expect(call, CALL(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)), CUDA_SUCCESS, "cuStreamCreate"))
        return false;
    CUresult result = CALL(cu.cuStreamBeginCapture_v2(stream, mode));
    for (unsigned i = 0; i < made->count && result == CUDA_SUCCESS; i++) {
        CUdeviceptr address = 0;
        uint64_t size = random_bytes(call);
        bool freed = random_once_in(&call->random, 2);
        result = CALL(cu.cuMemAllocAsync(&address, size, stream));
        if (result == CUDA_SUCCESS && freed)
            result = CALL(cu.cuMemFreeAsync(address, stream));
        remember(made, i, address, size, freed);
    }
    expect(call, result, CUDA_SUCCESS, "recording");
    if (mode == CU_STREAM_CAPTURE_MODE_RELAXED && random_once_in(&call->random, 2)) {
        /* Something else meanwhile, which is refused: nothing of that spoils the recording. */
        CUdeviceptr absurd;
        say(call, ", a refusal meanwhile");
        if (CALL(cu.cuMemAlloc_v2(&absurd, (uint64_t)1 << 45)) == CUDA_SUCCESS)
            wrong(call, "so much cannot be had");
    }
    expect(call, CALL(cu.cuStreamEndCapture(stream, &made->graph)), CUDA_SUCCESS, "cuStreamEndCapture");
    expect(call, CALL(cu.cuStreamDestroy_v2(stream)), CUDA_SUCCESS, "cuStreamDestroy");
    return call->desk->outcome == OUTCOME_DONE && made->graph != NULL;
}

/* ---- Instantiating ---- */

static CUresult with_parameters(struct call *call, struct made *made, bool upload) {
    CUDA_GRAPH_INSTANTIATE_PARAMS parameters = {
        .flags = (made->frees_again ? CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH : 0) |
                 (upload ? CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD : 0)};
    return random_once_in(&call->random, 2)
               ? CALL(cu.cuGraphInstantiateWithParams(&made->exec, made->graph, &parameters))
               : CALL(cu.cuGraphInstantiateWithParams_ptsz(&made->exec, made->graph, &parameters));
}

static bool instantiate(struct call *call, struct made *made) {
    unsigned way = (unsigned)random_below(&call->random, 6);
    bool upload = way >= 4;
    CUresult result;
    made->frees_again = way >= 2 && random_once_in(&call->random, 2);
    if (way == 0)
        result = CALL(cu.cuGraphInstantiate(&made->exec, made->graph, NULL, NULL, 0));
    else if (way == 1)
        result = CALL(cu.cuGraphInstantiate_v2(&made->exec, made->graph, NULL, NULL, 0));
    else if (way == 2)
        result = CALL(cu.cuGraphInstantiateWithFlags(
            &made->exec, made->graph, made->frees_again ? CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH : 0));
    else
        result = with_parameters(call, made, upload);
    say(call, ", instantiated by way %u%s", way, made->frees_again ? ", which frees on launch" : "");
    if (!upload)
        return expect(call, result, CUDA_SUCCESS, "instantiating");
    say(call, ", uploaded");
    return judged(call, result);
}

static CUresult unmake(struct made *made) {
    CUresult result = made->exec != NULL ? cu.cuGraphExecDestroy(made->exec) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS && made->graph != NULL)
        result = cu.cuGraphDestroy(made->graph);
    free(made);
    return result;
}

static void finish(struct call *call, struct made *made, bool (*graph)(struct call *, struct made *)) {
    async_note_device(call);
    needs(call, (uint64_t)ALLOCATIONS * 96 * MIB); /* at most, until it is known */
    bool good = graph(call, made);
    say(call, ": %u allocations of %llu bytes", made->count, (unsigned long long)made->most);
    needs(call, made->most);
    good = good && instantiate(call, made);
    grows(call, ANYTHING_LESS, (int64_t)made->most);
    struct object object = {
        .handle = (uintptr_t)made, .device = (int16_t)call->device, .gpu = (int16_t)call->gpu, .kind = KIND_GRAPH_EXEC};
    if (good && object_put(&object))
        return;
    enum outcome outcome = call->desk->outcome;
    expect(call, unmake(made), CUDA_SUCCESS, "destroying a graph");
    if (outcome == OUTCOME_REFUSED && call->desk->outcome != OUTCOME_WRONG)
        call->desk->outcome = outcome;
}

static void make(struct call *call, bool (*graph)(struct call *, struct made *), const char *what) {
    if (!need_context(call) || !need_keeper(call) || objects_count(KIND_GRAPH_EXEC) >= 40)
        return;
    struct made *made = calloc(1, sizeof *made);
    if (made == NULL)
        return;
    made->count = 1 + (unsigned)random_below(&call->random, ALLOCATIONS);
    say(call, "a graph on %d, %s", call->device, what);
    finish(call, made, graph);
}

static void create(struct call *call) {
    make(call, build, "built");
}

static void capture(struct call *call) {
    make(call, record, "recorded");
}

/* ---- Launching ---- */

static struct made *made_of(const struct object *object) {
    return (struct made *)(uintptr_t)object->handle;
}

/* Some of what it left allocated still is. Under the lock. */
static bool has_left(struct call *call, const struct object *object) {
    const struct made *made = made_of(object);
    bool lives = false;
    for (unsigned i = 0; i < made->count && !lives; i++)
        lives = made->left[i] != 0 && async_lives(call, object->device, made->left[i]);
    return lives;
}

static void note_left(struct call *call, const struct object *object) {
    const struct made *made = made_of(object);
    call->device = object->device;
    for (unsigned i = 0; i < made->count; i++)
        if (made->left[i] != 0 && !async_lives(call, object->device, made->left[i]))
            async_keep(call, made->left[i], made->sizes[i], FROM_GRAPH, true);
}

static bool take_graph(struct call *call, struct object *object) {
    if (!need_context(call) || !need_keeper(call) || !object_take(&call->random, KIND_GRAPH_EXEC, -1, object))
        return false;
    call->gpu = object->gpu;
    return true;
}

static void launch(struct call *call) {
    struct object object;
    struct choice choice;
    if (!take_graph(call, &object))
        return;
    const struct made *made = made_of(&object);
    stream_choose(call, &choice);
    async_lock();
    bool cannot = !made->frees_again && has_left(call, &object);
    needs(call, made->most);
    async_note_device(&(struct call){.device = object.device, .gpu = object.gpu});
    say(call, "cuGraphLaunch%s in %p of device %d, on %d%s", choice.per_thread ? "_ptsz" : "", (void *)choice.stream,
        object.device, call->device, cannot ? ", too early" : "");
    CUresult result = CALL(choice.per_thread ? cu.cuGraphLaunch_ptsz(made->exec, choice.stream)
                                             : cu.cuGraphLaunch(made->exec, choice.stream));
    grows(call, ANYTHING_LESS, (int64_t)made->most);
    if (cannot && result != CUDA_ERROR_OUT_OF_MEMORY)
        expect(call, result, CUDA_ERROR_INVALID_VALUE, "a launch before all is free");
    else if (judged(call, result))
        note_left(call, &object);
    async_unlock();
    object_put(&object);
    stream_done(&choice);
}

static void upload(struct call *call) {
    struct object object;
    struct choice choice;
    if (!take_graph(call, &object))
        return;
    const struct made *made = made_of(&object);
    stream_choose(call, &choice);
    needs(call, made->most);
    async_note_device(&(struct call){.device = object.device, .gpu = object.gpu});
    say(call, "cuGraphUpload of device %d", object.device);
    if (judged(call, CALL(choice.per_thread ? cu.cuGraphUpload_ptsz(made->exec, choice.stream)
                                            : cu.cuGraphUpload(made->exec, choice.stream))))
        grows(call, ANYTHING_LESS, (int64_t)made->most);
    object_put(&object);
    stream_done(&choice);
}

/* ---- Freeing ---- */

/* By a graph of its own. */
static void free_by_graph(struct call *call, const struct object *memory) {
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CUgraphNode last = NULL;
    say(call, "%#llx freed by a graph", (unsigned long long)memory->handle);
    if (!expect(call, CALL(cu.cuGraphCreate(&graph, 0)), CUDA_SUCCESS, "cuGraphCreate"))
        return;
    if (expect(call, add_free(call, graph, &last, memory->handle), CUDA_SUCCESS, "a node that frees") &&
        expect(call, CALL(cu.cuGraphInstantiateWithFlags(&exec, graph, 0)), CUDA_SUCCESS, "instantiating")) {
        expect(call, CALL(cu.cuGraphLaunch(exec, NULL)), CUDA_SUCCESS, "cuGraphLaunch");
        expect(call, CALL(cu.cuGraphExecDestroy(exec)), CUDA_SUCCESS, "cuGraphExecDestroy");
    }
    expect(call, CALL(cu.cuGraphDestroy(graph)), CUDA_SUCCESS, "cuGraphDestroy");
}

static void free_one(struct call *call) {
    struct object object;
    if (!need_context(call))
        return;
    async_lock();
    if (async_take_of_graph(call, &object)) {
        call->gpu = object.gpu;
        switch (random_below(&call->random, 3)) {
        case 0:
            free_by_graph(call, &object);
            break;
        case 1:
            say(call, "cuMemFreeAsync(%#llx), a graph's", (unsigned long long)object.handle);
            expect(call, CALL(cu.cuMemFreeAsync(object.handle, NULL)), CUDA_SUCCESS, "cuMemFreeAsync");
            break;
        default:
            say(call, "cuMemFree_v2(%#llx), a graph's", (unsigned long long)object.handle);
            expect(call, CALL(cu.cuMemFree_v2(object.handle)), CUDA_SUCCESS, "cuMemFree_v2");
        }
        grows(call, ANYTHING_LESS, 0);
    }
    async_unlock();
}

static void trim(struct call *call) {
    if (!need_context(call))
        return;
    say(call, "cuDeviceGraphMemTrim(%d)", call->device);
    if (expect(call, CALL(cu.cuDeviceGraphMemTrim(call->device)), CUDA_SUCCESS, "cuDeviceGraphMemTrim"))
        grows(call, ANYTHING_LESS, 0);
}

/* What it left allocated lives on. */
static void destroy(struct call *call) {
    struct object object;
    if (!need_context(call) || !object_take(&call->random, KIND_GRAPH_EXEC, -1, &object))
        return;
    call->gpu = object.gpu;
    struct made *made = made_of(&object);
    say(call, "a graph of device %d ends", object.device);
    if (made->graph != NULL && random_once_in(&call->random, 2)) {
        expect(call, CALL(cu.cuGraphDestroy(made->graph)), CUDA_SUCCESS, "cuGraphDestroy");
        made->graph = NULL;
        if (random_once_in(&call->random, 2)) { /* it can still be launched */
            object_put(&object);
            return;
        }
    }
    if (expect(call, CALL(unmake(made)), CUDA_SUCCESS, "destroying a graph"))
        grows(call, ANYTHING_LESS, 0);
}

/* A copy of a graph without memory runs; of one with memory there is none. */
static void clone_graph(struct call *call) {
    CUgraph graph = NULL, copy = NULL;
    CUgraphNode last = NULL;
    CUgraphExec exec = NULL;
    CUdeviceptr address;
    if (!need_context(call) || !expect(call, CALL(cu.cuGraphCreate(&graph, 0)), CUDA_SUCCESS, "cuGraphCreate"))
        return;
    say(call, "a graph is copied");
    expect(call, CALL(cu.cuGraphAddEmptyNode(&last, graph, NULL, 0)), CUDA_SUCCESS, "cuGraphAddEmptyNode");
    expect(call, add_child(graph, &last), CUDA_SUCCESS, "cuGraphAddChildGraphNode");
    if (expect(call, CALL(cu.cuGraphClone(&copy, graph)), CUDA_SUCCESS, "cuGraphClone") &&
        expect(call, CALL(cu.cuGraphInstantiateWithFlags(&exec, copy, 0)), CUDA_SUCCESS, "instantiating")) {
        expect(call, CALL(cu.cuGraphLaunch(exec, NULL)), CUDA_SUCCESS, "cuGraphLaunch");
        expect(call, CALL(cu.cuGraphExecDestroy(exec)), CUDA_SUCCESS, "cuGraphExecDestroy");
        expect(call, CALL(cu.cuGraphDestroy(copy)), CUDA_SUCCESS, "cuGraphDestroy");
    }
    expect(call, add_allocation(call, graph, &last, MIB, &address), CUDA_SUCCESS, "cuGraphAddMemAllocNode");
    if (CALL(cu.cuGraphClone(&copy, graph)) == CUDA_SUCCESS)
        wrong(call, "a graph that allocates was copied");
    expect(call, CALL(cu.cuGraphDestroy(graph)), CUDA_SUCCESS, "cuGraphDestroy");
    grows(call, 0, 0);
}

static CUresult release_graph(const struct object *object) {
    return unmake(made_of(object));
}

__attribute__((constructor)) static void release_functions(void) {
    releases[KIND_GRAPH_EXEC] = release_graph;
}

#define MAKES                                                                                                          \
    "cuGraphCreate cuGraphAddNode_v2 cuGraphAddMemAllocNode cuGraphInstantiateWithParams_ptsz cuGraphLaunch_ptsz "     \
    "cuMemPoolCreate "

static const struct operation operations[] = {
    {"graph.create", 14, create, MAKES, false, false},
    {"graph.capture", 8, capture, MAKES "cuStreamBeginCapture_v2 cuMemAllocAsync", true, false},
    {"graph.launch", 40, launch, MAKES, false, false},
    {"graph.upload", 6, upload, MAKES "cuGraphUpload_ptsz", false, false},
    {"graph.free", 30, free_one, MAKES "cuGraphAddMemFreeNode", false, false},
    {"graph.trim", 8, trim, MAKES "cuDeviceGraphMemTrim", false, false},
    {"graph.destroy", 12, destroy, MAKES, false, false},
    {"graph.clone", 4, clone_graph, MAKES "cuGraphClone cuGraphAddChildGraphNode", false, false},
    {0},
};

const struct family family_graph = {"graph", functions, operations};
