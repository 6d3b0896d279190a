/* A crowd in which one handle is used or ended by two threads at the same moment, of what no other operation shares. */
#include "crowd.h"
#include "hesitate.h"
#include "worker.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define FUNCTIONS(X)                                                                                                   \
    X(cuCtxCreate_v2, "cuCtxCreate", 3020)                                                                             \
    X(cuCtxDestroy_v2, "cuCtxDestroy", 4000)                                                                           \
    X(cuCtxPopCurrent_v2, "cuCtxPopCurrent", 4000)                                                                     \
    X(cuDeviceGetDevResource, "cuDeviceGetDevResource", 12040)                                                         \
    X(cuDevResourceGenerateDesc, "cuDevResourceGenerateDesc", 12040)                                                   \
    X(cuGreenCtxCreate, "cuGreenCtxCreate", 12040)                                                                     \
    X(cuGreenCtxDestroy, "cuGreenCtxDestroy", 12040)                                                                   \
    X(cuCtxFromGreenCtx, "cuCtxFromGreenCtx", 12040)                                                                   \
    X(cuGraphCreate, "cuGraphCreate", 10000)                                                                           \
    X(cuGraphDestroy, "cuGraphDestroy", 10000)                                                                         \
    X(cuGraphAddMemAllocNode, "cuGraphAddMemAllocNode", 11040)                                                         \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040)                                               \
    X(cuGraphLaunch, "cuGraphLaunch", 10000)                                                                           \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", 10000)                                                                 \
    X(cuMemCreate, "cuMemCreate", 10020)                                                                               \
    X(cuMemRelease, "cuMemRelease", 10020)                                                                             \
    X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020)                                             \
    X(cuImportExternalMemory, "cuImportExternalMemory", 10000)                                                         \
    X(cuExternalMemoryGetMappedBuffer, "cuExternalMemoryGetMappedBuffer", 10000)                                       \
    X(cuDestroyExternalMemory, "cuDestroyExternalMemory", 10000)                                                       \
    X(cuMemFree_v2, "cuMemFree", 3020)                                                                                 \
    X(cuArrayCreate_v2, "cuArrayCreate", 3020)                                                                         \
    X(cuArrayDestroy, "cuArrayDestroy", 2000)
FAMILY_FUNCTIONS(FUNCTIONS)

/* ---- Two at once ---- */

/* Another thread, which does something until it is told to end, as a rule once. */
struct beside {
    pthread_t thread;
    void (*act)(struct beside *beside);
    uint64_t random, handle;
    _Atomic bool ends;
};

static void pause_shortly(uint64_t *random) {
    for (volatile uint64_t i = random_below(random, random_once_in(random, 2) ? 200 : 6000); i > 0; i--)
        ;
}

static void *run(void *argument) {
    struct beside *beside = argument;
    hesitate(random_next(&beside->random), &board->dials.hesitate);
    pause_shortly(&beside->random);
    beside->act(beside);
    return NULL;
}

static bool begin(struct call *call, struct beside *beside, void (*act)(struct beside *beside), uint64_t handle) {
    *beside = (struct beside){.act = act, .random = random_next(&call->random), .handle = handle};
    return pthread_create(&beside->thread, NULL, run, beside) == 0;
}

static void end(struct beside *beside) {
    atomic_store(&beside->ends, true);
    pthread_join(beside->thread, NULL);
}

/* ---- A graph that ends while it is instantiated ---- */

static void destroy_graph(struct beside *beside) {
    cu.cuGraphDestroy((CUgraph)(uintptr_t)beside->handle);
}

static CUgraph make_graph(struct call *call) {
    CUgraph graph = NULL;
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS memory = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
        .bytesize = crowd_size(call)};
    if (!crowd_did(call, cu.cuGraphCreate(&graph, 0)))
        return NULL;
    if (crowd_did(call, cu.cuGraphAddMemAllocNode(&node, graph, NULL, 0, &memory)))
        return graph;
    cu.cuGraphDestroy(graph);
    return NULL;
}

static void instantiate(struct call *call) {
    struct beside beside;
    CUgraphExec exec = NULL;
    CUgraph graph = crowd_enter(call) && crowd_has_room(KIND_CROWD_GRAPH, 16) ? make_graph(call) : NULL;
    if (graph == NULL || !begin(call, &beside, destroy_graph, (uintptr_t)graph))
        return;
    say(call, "instantiating a graph that another thread destroys");
    pause_shortly(&call->random);
    bool made =
        crowd_did(call, cu.cuGraphInstantiateWithFlags(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    end(&beside);
    if (!made)
        return;
    crowd_work_begin();
    crowd_did(call, cu.cuGraphLaunch(exec, crowd_stream(call)));
    crowd_work_end();
    if (!crowd_keep(call, KIND_CROWD_GRAPH, (uintptr_t)exec, 0, 0))
        cu.cuGraphExecDestroy(exec);
}

/* ---- A context that is destroyed twice, where green contexts come and go ---- */

static void destroy_context(struct beside *beside) {
    while (!atomic_load(&beside->ends)) {
        CUcontext context = (CUcontext)(uintptr_t)__atomic_load_n(&beside->handle, __ATOMIC_RELAXED);
        if (context != NULL)
            cu.cuCtxDestroy_v2(context);
    }
}

static void make_green(struct beside *beside) {
    CUdevResource processors;
    CUdevResourceDesc all = NULL;
    CUgreenCtx green = NULL;
    CUcontext view = NULL;
    if (cu.cuDeviceGetDevResource(0, &processors, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS ||
        cu.cuDevResourceGenerateDesc(&all, &processors, 1) != CUDA_SUCCESS)
        return;
    while (!atomic_load(&beside->ends)) {
        if (cu.cuGreenCtxCreate(&green, all, 0, CU_GREEN_CTX_DEFAULT_STREAM) != CUDA_SUCCESS)
            continue;
        if (random_once_in(&beside->random, 2))
            cu.cuCtxFromGreenCtx(&view, green);
        pause_shortly(&beside->random);
        cu.cuGreenCtxDestroy(green);
    }
}

static void destroy_twice_now(struct call *call) {
    struct beside destroying, making;
    if (!crowd_enter(call) || !begin(call, &destroying, destroy_context, 0))
        return;
    say(call, "contexts that are destroyed twice beside green ones");
    bool green = begin(call, &making, make_green, 0);
    for (unsigned i = 0; i < 100 && crowd_goes_on(); i++) {
        CUcontext context = NULL, popped = NULL;
        if (!crowd_did(call, cu.cuCtxCreate_v2(&context, 0, 0)))
            continue;
        cu.cuCtxPopCurrent_v2(&popped);
        __atomic_store_n(&destroying.handle, (uintptr_t)context, __ATOMIC_RELAXED);
        pause_shortly(&call->random);
        cu.cuCtxDestroy_v2(context);
    }
    end(&destroying);
    if (green)
        end(&making);
}

/* Nobody works in a context meanwhile. A driver alone need not bear it. */
static void destroy_twice(struct call *call) {
    if (board->bare)
        return;
    crowd_end_begin();
    destroy_twice_now(call);
    crowd_work_end();
}

/* ---- External memory that ends while it is mapped ---- */

static void destroy_external(struct beside *beside) {
    cu.cuDestroyExternalMemory((CUexternalMemory)(uintptr_t)beside->handle);
}

/* The driver owns the descriptor of what it has imported. */
static CUexternalMemory import(struct call *call, CUmemGenericAllocationHandle handle, uint64_t size) {
    CUexternalMemory external = NULL;
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = size};
    if (!crowd_did(call, cu.cuMemExportToShareableHandle(&from.handle.fd, handle,
                                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)))
        return NULL;
    if (crowd_did(call, cu.cuImportExternalMemory(&external, &from)))
        return external;
    close(from.handle.fd);
    return NULL;
}

static void map(struct call *call, CUexternalMemory external, uint64_t size) {
    struct beside beside;
    CUdeviceptr address = 0;
    const CUDA_EXTERNAL_MEMORY_BUFFER_DESC whole = {.size = size};
    if (!begin(call, &beside, destroy_external, (uintptr_t)external))
        return;
    pause_shortly(&call->random);
    if (crowd_did(call, cu.cuExternalMemoryGetMappedBuffer(&address, external, &whole)) &&
        !crowd_keep(call, KIND_CROWD_LINEAR, address, 0, size))
        cu.cuMemFree_v2(address);
    end(&beside);
}

static void map_external(struct call *call) {
    CUmemGenericAllocationHandle handle;
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    uint64_t size = rounded(crowd_size(call), BLOCK);
    if (!crowd_enter(call) || !crowd_did(call, cu.cuMemCreate(&handle, size, &properties, 0)))
        return;
    say(call, "mapping %llu that another thread destroys", (unsigned long long)size);
    CUexternalMemory external = import(call, handle, size);
    if (external != NULL)
        map(call, external, size);
    cu.cuMemRelease(handle);
}

/* ---- Arrays that end before their maker has them ---- */

enum { ARRAYS = 24 };

static void destroy_arrays(struct beside *beside) {
    while (!atomic_load(&beside->ends))
        cu.cuArrayDestroy((CUarray)(uintptr_t)__atomic_load_n(&beside->handle, __ATOMIC_RELAXED));
}

static CUarray make_array(struct call *call, struct beside *beside) {
    CUarray array = NULL;
    const CUDA_ARRAY_DESCRIPTOR wanted = {.Width = 1024,
                                          .Height = random_once_in(&call->random, 2) ? 16 : 4096,
                                          .Format = CU_AD_FORMAT_FLOAT,
                                          .NumChannels = 4};
    if (crowd_did(call, cu.cuArrayCreate_v2(&array, &wanted)))
        __atomic_store_n(&beside->handle, (uintptr_t)array, __ATOMIC_RELAXED);
    return array;
}

static void make_arrays(struct call *call) {
    struct beside beside;
    CUarray arrays[ARRAYS] = {NULL};
    if (!crowd_enter(call) || !begin(call, &beside, destroy_arrays, 0))
        return;
    say(call, "arrays that another thread destroys");
    for (unsigned i = 0; i < ARRAYS && crowd_goes_on(); i++)
        arrays[i] = make_array(call, &beside);
    end(&beside);
    for (unsigned i = 0; i < ARRAYS; i++)
        if (arrays[i] != NULL)
            cu.cuArrayDestroy(arrays[i]);
}

static const struct operation operations[] = {
    {"crowd_race.graph", 20, instantiate, "cuGraphAddMemAllocNode cuGraphInstantiateWithFlags", false, false},
    {"crowd_race.context", 4, destroy_twice, "cuGreenCtxCreate cuCtxDestroy_v2", false, false},
    {"crowd_race.external", 12, map_external, "cuImportExternalMemory cuMemExportToShareableHandle", false, false},
    {"crowd_race.array", 4, make_arrays, "cuArrayCreate_v2 cuArrayDestroy", false, false},
    {0},
};

const struct family family_crowd_race = {"crowd_race", functions, operations};
