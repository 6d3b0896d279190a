/* A crowd at the limit: every way to allocate, and everything that ends what it lives in, by many threads at once. */
#include "crowd.h"
#include "worker.h"

#include <pthread.h>
#include <stdlib.h>

#define FUNCTIONS(X)                                                                                                   \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000)                                                      \
    X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000)                                                \
    X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000)                                                    \
    X(cuCtxCreate_v2, "cuCtxCreate", 3020)                                                                             \
    X(cuCtxDestroy_v2, "cuCtxDestroy", 4000)                                                                           \
    X(cuCtxPopCurrent_v2, "cuCtxPopCurrent", 4000)                                                                     \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000)                                                                        \
    X(cuCtxGetDevice, "cuCtxGetDevice", 2000)                                                                          \
    X(cuCtxSynchronize, "cuCtxSynchronize", 2000)                                                                      \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020)                                                                               \
    X(cuMemFree_v2, "cuMemFree", 3020)                                                                                 \
    X(cuMemGetInfo_v2, "cuMemGetInfo", 3020)                                                                           \
    X(cuMemAllocAsync, "cuMemAllocAsync", 11020)                                                                       \
    X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020)                                                       \
    X(cuMemFreeAsync, "cuMemFreeAsync", 11020)                                                                         \
    X(cuMemPoolCreate, "cuMemPoolCreate", 11020)                                                                       \
    X(cuMemPoolDestroy, "cuMemPoolDestroy", 11020)                                                                     \
    X(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020)                                                                       \
    X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020)                                                           \
    X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020)                                                   \
    X(cuStreamCreate, "cuStreamCreate", 2000)                                                                          \
    X(cuStreamDestroy_v2, "cuStreamDestroy", 4000)                                                                     \
    X(cuStreamSynchronize, "cuStreamSynchronize", 2000)                                                                \
    X(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010)                                                          \
    X(cuStreamEndCapture, "cuStreamEndCapture", 10000)                                                                 \
    X(cuGraphCreate, "cuGraphCreate", 10000)                                                                           \
    X(cuGraphDestroy, "cuGraphDestroy", 10000)                                                                         \
    X(cuGraphAddMemAllocNode, "cuGraphAddMemAllocNode", 11040)                                                         \
    X(cuGraphAddMemFreeNode, "cuGraphAddMemFreeNode", 11040)                                                           \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040)                                               \
    X(cuGraphLaunch, "cuGraphLaunch", 10000)                                                                           \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", 10000)                                                                 \
    X(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", 11040)
FAMILY_FUNCTIONS(FUNCTIONS)

enum { HOLES = 1024 };

/* ---- What crowds have in common ---- */

bool crowd_did(struct call *call, CUresult result) {
    struct desk *desk = call->desk;
    atomic_fetch_add_explicit(&board->calls, 1, memory_order_relaxed);
    desk->result = result;
    desk->outcome = result == CUDA_SUCCESS               ? OUTCOME_DONE
                    : result == CUDA_ERROR_OUT_OF_MEMORY ? OUTCOME_REFUSED
                                                         : OUTCOME_NOTHING;
    return result == CUDA_SUCCESS;
}

bool crowd_enter(struct call *call) {
    CUcontext context = NULL;
    CUdevice device = 0;
    call->device = 0;
    call->gpu = gpu_of_device(0);
    if (cu.cuCtxGetDevice(&device) == CUDA_SUCCESS)
        return true;
    return crowd_did(call, cu.cuDevicePrimaryCtxRetain(&context, 0)) && crowd_did(call, cu.cuCtxSetCurrent(context));
}

/* Within `around` of what is left. */
static uint64_t size_about_rest(struct call *call, uint64_t around) {
    size_t rest = 0, total = 0;
    if (cu.cuMemGetInfo_v2(&rest, &total) != CUDA_SUCCESS)
        return around;
    return (rest > around ? rest - around : 0) + 1 + random_below(&call->random, 2 * around);
}

uint64_t crowd_size(struct call *call) {
    uint64_t most = board->dials.most_kib * KIB;
    if (board->dials.rest && random_once_in(&call->random, 2))
        return size_about_rest(call, most);
    if (random_once_in(&call->random, 4))
        return most - random_below(&call->random, most / 16);
    return 1 + random_below(&call->random, random_once_in(&call->random, 8) ? MIB : most);
}

bool crowd_goes_on(void) {
    return atomic_load(&board->mode) == MODE_STORM;
}

bool crowd_has_room(enum kind kind, unsigned most) {
    return objects_count(kind) < (most < board->dials.few ? most : board->dials.few);
}

unsigned crowd_burst(struct call *call) {
    return 1 + (unsigned)random_below(&call->random, random_once_in(&call->random, 4) ? 32 : 3);
}

bool crowd_borrow(struct call *call, enum kind kind, struct borrowed *borrowed) {
    borrowed->left = board->dials.misuse && random_once_in(&call->random, 2);
    return borrowed->left ? object_look(&call->random, kind, &borrowed->object)
                          : object_take(&call->random, kind, -1, &borrowed->object);
}

void crowd_return(const struct borrowed *borrowed) {
    if (!borrowed->left)
        object_put(&borrowed->object);
}

bool crowd_keep(struct call *call, enum kind kind, uint64_t handle, uint64_t other, uint64_t size) {
    struct object object = {.handle = handle,
                            .other = other,
                            .size = size,
                            .device = (int16_t)call->device,
                            .gpu = (int16_t)call->gpu,
                            .kind = (uint8_t)kind};
    return objects_count(kind) < CROWD_OBJECTS && object_put(&object);
}

CUstream crowd_stream(struct call *call) {
    struct object stream;
    static const CUstream defaults[] = {NULL, CU_STREAM_PER_THREAD};
    return random_once_in(&call->random, 2) && object_look(&call->random, KIND_CROWD_STREAM, &stream)
               ? (CUstream)(uintptr_t)stream.handle
               : defaults[random_below(&call->random, 2)];
}

static pthread_rwlock_t working = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

void crowd_work_begin(void) {
    pthread_rwlock_rdlock(&working);
}

void crowd_end_begin(void) {
    pthread_rwlock_wrlock(&working);
}

void crowd_work_end(void) {
    pthread_rwlock_unlock(&working);
}

/* ---- Memory ---- */

static bool allocate_one(struct call *call, uint64_t size) {
    CUdeviceptr address = 0;
    say(call, "cuMemAlloc_v2(%llu) ", (unsigned long long)size);
    if (!crowd_did(call, cu.cuMemAlloc_v2(&address, size)))
        return false;
    if (!crowd_keep(call, KIND_CROWD_LINEAR, address, 0, size))
        cu.cuMemFree_v2(address);
    return true;
}

/* Of half the size whenever it is refused: so the claim is full soon, and stays so. */
static void allocate(struct call *call) {
    if (!crowd_enter(call))
        return;
    for (unsigned burst = crowd_burst(call); burst > 0; burst--)
        for (uint64_t size = crowd_size(call); !allocate_one(call, size) && size > 64 * KIB; size /= 2)
            ;
}

/* All that is left: whatever is held and not counted is beyond the limit now. */
static void fill(struct call *call) {
    if (!crowd_enter(call))
        return;
    unsigned count = 0;
    for (uint64_t size = 512 * MIB; size >= BLOCK; size /= 2)
        while (count < 64 && allocate_one(call, size))
            count++;
}

static void free_one_now(struct call *call) {
    struct borrowed memory;
    if (!crowd_enter(call))
        return;
    say(call, "cuMemFree_v2");
    for (unsigned burst = crowd_burst(call); burst > 0 && crowd_borrow(call, KIND_CROWD_LINEAR, &memory); burst--)
        crowd_did(call, random_once_in(&call->random, 4) ? cu.cuMemFreeAsync(memory.object.handle, crowd_stream(call))
                                                         : cu.cuMemFree_v2(memory.object.handle));
}

static void free_one(struct call *call) {
    crowd_work_begin();
    free_one_now(call);
    crowd_work_end();
}

/* ---- Pools ---- */

static CUmemoryPool some_pool(struct call *call) {
    struct object pool;
    bool there = random_once_in(&call->random, 2) && object_look(&call->random, KIND_CROWD_POOL, &pool);
    return there && (pool.other == 0 || !board->dials.mixed) /* see export_pool */
               ? (CUmemoryPool)(uintptr_t)pool.handle
               : NULL;
}

static bool allocate_in_stream(struct call *call, uint64_t size) {
    CUdeviceptr address = 0;
    CUmemoryPool pool = some_pool(call);
    CUstream stream = crowd_stream(call);
    say(call, "cuMemAllocAsync(%llu) from %p in %p ", (unsigned long long)size, (void *)pool, (void *)stream);
    if (!crowd_did(call, pool != NULL ? cu.cuMemAllocFromPoolAsync(&address, size, pool, stream)
                                      : cu.cuMemAllocAsync(&address, size, stream)))
        return false;
    if (!crowd_keep(call, KIND_CROWD_ASYNC, address, 0, size))
        cu.cuMemFreeAsync(address, stream);
    return true;
}

static void allocate_async_now(struct call *call) {
    if (!crowd_enter(call))
        return;
    for (uint64_t size = crowd_size(call); !allocate_in_stream(call, size) && size > 64 * KIB; size /= 2)
        ;
}

static void allocate_async(struct call *call) {
    crowd_work_begin();
    allocate_async_now(call);
    crowd_work_end();
}

static int by_address(const void *a, const void *b) {
    const CUdeviceptr *first = a, *second = b;
    return *first < *second ? -1 : *first > *second;
}

/* Allocates blocks of nearly the same size, one in 128 larger, until there is room for no more. Returns how many. */
static unsigned fill_pool(struct call *call, uint64_t most, CUstream stream, CUdeviceptr *addresses) {
    unsigned count = 0;
    while (count < HOLES && crowd_goes_on() &&
           crowd_did(call, cu.cuMemAllocAsync(&addresses[count],
                                              random_once_in(&call->random, 128)
                                                  ? most - random_below(&call->random, most / 16)
                                                  : most / 2 + 1 + random_below(&call->random, most / 3),
                                              stream)))
        count++;
    return count;
}

/* A pool full of holes: every other block is freed. What is allocated then fits few of them. */
static void make_holes_now(struct call *call) {
    CUdeviceptr addresses[HOLES], more = 0;
    uint64_t most = (uint64_t)64 * KIB << random_below(&call->random, 6);
    if (!crowd_enter(call))
        return;
    CUstream stream = crowd_stream(call);
    unsigned count = fill_pool(call, most, stream, addresses);
    say(call, "a pool of %u blocks of up to %llu, with holes", count, (unsigned long long)most);
    cu.cuStreamSynchronize(stream);
    qsort(addresses, count, sizeof addresses[0], by_address);
    for (unsigned i = 0; i < count; i += 2)
        crowd_did(call, cu.cuMemFreeAsync(addresses[i], stream));
    cu.cuStreamSynchronize(stream);
    for (unsigned burst = crowd_burst(call); burst > 0; burst--)
        if (crowd_did(call, cu.cuMemAllocAsync(&more, most - random_below(&call->random, most / 16), stream)) &&
            !crowd_keep(call, KIND_CROWD_ASYNC, more, 0, most))
            cu.cuMemFreeAsync(more, stream);
    for (unsigned i = 1; i < count; i += 2)
        if (!random_once_in(&call->random, 8) || !crowd_keep(call, KIND_CROWD_ASYNC, addresses[i], 0, most))
            cu.cuMemFreeAsync(addresses[i], stream);
}

static void make_holes(struct call *call) {
    crowd_work_begin();
    make_holes_now(call);
    crowd_work_end();
}

static void free_async_now(struct call *call) {
    struct borrowed memory;
    if (!crowd_enter(call) || !crowd_borrow(call, KIND_CROWD_ASYNC, &memory))
        return;
    say(call, "cuMemFreeAsync(%#llx)", (unsigned long long)memory.object.handle);
    crowd_did(call, random_once_in(&call->random, 4) ? cu.cuMemFree_v2(memory.object.handle)
                                                     : cu.cuMemFreeAsync(memory.object.handle, crowd_stream(call)));
}

static void free_async(struct call *call) {
    crowd_work_begin();
    free_async_now(call);
    crowd_work_end();
}

static void make_pool(struct call *call) {
    CUmemoryPool pool = NULL;
    CUmemPoolProps wanted = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    cuuint64_t threshold = random_once_in(&call->random, 2) ? UINT64_MAX : 0;
    if (!crowd_enter(call) || !crowd_has_room(KIND_CROWD_POOL, 12))
        return;
    say(call, "cuMemPoolCreate");
    if (!crowd_did(call, cu.cuMemPoolCreate(&pool, &wanted)))
        return;
    cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
    if (!crowd_keep(call, KIND_CROWD_POOL, (uintptr_t)pool, 0, 0))
        cu.cuMemPoolDestroy(pool);
}

/* Those that are offered to others end elsewhere. */
static void end_pool_now(struct call *call) {
    struct object pool;
    if (!crowd_enter(call) || !object_take(&call->random, KIND_CROWD_POOL, -1, &pool))
        return;
    if (pool.other != 0) {
        object_put(&pool);
        return;
    }
    say(call, "cuMemPoolDestroy");
    crowd_did(call, cu.cuMemPoolDestroy((CUmemoryPool)(uintptr_t)pool.handle));
}

static void end_pool(struct call *call) {
    crowd_end_begin();
    end_pool_now(call);
    crowd_work_end();
}

static void trim_now(struct call *call) {
    CUmemoryPool pool = some_pool(call);
    if (!crowd_enter(call) || (pool == NULL && cu.cuDeviceGetDefaultMemPool(&pool, 0) != CUDA_SUCCESS))
        return;
    say(call, "cuMemPoolTrimTo");
    crowd_did(call, cu.cuMemPoolTrimTo(pool, 0));
}

static void trim(struct call *call) {
    crowd_work_begin();
    trim_now(call);
    crowd_work_end();
}

static void set_threshold_now(struct call *call) {
    CUmemoryPool pool = NULL;
    cuuint64_t threshold = random_once_in(&call->random, 3) ? 0 : UINT64_MAX;
    if (!crowd_enter(call) || cu.cuDeviceGetDefaultMemPool(&pool, 0) != CUDA_SUCCESS)
        return;
    say(call, "a threshold of %llu", (unsigned long long)threshold);
    crowd_did(call, cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
}

static void set_threshold(struct call *call) {
    crowd_work_begin();
    set_threshold_now(call);
    crowd_work_end();
}

/* ---- Streams ---- */

static void make_stream(struct call *call) {
    CUstream stream = NULL;
    if (!crowd_enter(call) || !crowd_has_room(KIND_CROWD_STREAM, 16))
        return;
    say(call, "cuStreamCreate");
    if (crowd_did(call, cu.cuStreamCreate(&stream, (unsigned)random_below(&call->random, 2))) &&
        !crowd_keep(call, KIND_CROWD_STREAM, (uintptr_t)stream, 0, 0))
        cu.cuStreamDestroy_v2(stream);
}

static void end_stream_now(struct call *call) {
    struct object stream;
    if (!crowd_enter(call) || !object_take(&call->random, KIND_CROWD_STREAM, -1, &stream))
        return;
    say(call, "cuStreamDestroy");
    crowd_did(call, cu.cuStreamDestroy_v2((CUstream)(uintptr_t)stream.handle));
}

static void end_stream(struct call *call) {
    crowd_end_begin();
    end_stream_now(call);
    crowd_work_end();
}

static void synchronize_now(struct call *call) {
    if (!crowd_enter(call))
        return;
    say(call, "synchronising");
    crowd_did(call,
              random_once_in(&call->random, 2) ? cu.cuCtxSynchronize() : cu.cuStreamSynchronize(crowd_stream(call)));
}

static void synchronize(struct call *call) {
    crowd_work_begin();
    synchronize_now(call);
    crowd_work_end();
}

/* ---- Contexts, which others use ---- */

static void retain(struct call *call) {
    CUcontext context = NULL;
    say(call, "cuDevicePrimaryCtxRetain");
    crowd_did(call, cu.cuDevicePrimaryCtxRetain(&context, 0));
}

static void release_now(struct call *call) {
    say(call, "cuDevicePrimaryCtxRelease");
    crowd_did(call, cu.cuDevicePrimaryCtxRelease_v2(0));
}

static void release(struct call *call) {
    crowd_end_begin();
    release_now(call);
    crowd_work_end();
}

static void reset_now(struct call *call) {
    CUcontext context = NULL;
    say(call, "cuDevicePrimaryCtxReset");
    for (unsigned burst = crowd_burst(call); burst > 0; burst--)
        if (crowd_did(call, cu.cuDevicePrimaryCtxReset_v2(0)) &&
            cu.cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS)
            cu.cuCtxSetCurrent(context);
}

static void reset(struct call *call) {
    crowd_end_begin();
    reset_now(call);
    crowd_work_end();
}

static void make_context(struct call *call) {
    CUcontext context = NULL, popped = NULL;
    if (objects_count(KIND_CROWD_CONTEXT) >= 3)
        return;
    say(call, "cuCtxCreate");
    if (!crowd_did(call, cu.cuCtxCreate_v2(&context, 0, 0)))
        return;
    cu.cuCtxPopCurrent_v2(&popped);
    if (!crowd_keep(call, KIND_CROWD_CONTEXT, (uintptr_t)context, 0, 0))
        cu.cuCtxDestroy_v2(context);
    else
        cu.cuCtxSetCurrent(context);
}

static void end_context_now(struct call *call) {
    struct object context;
    if (!object_take(&call->random, KIND_CROWD_CONTEXT, -1, &context))
        return;
    say(call, "cuCtxDestroy");
    crowd_did(call, cu.cuCtxDestroy_v2((CUcontext)(uintptr_t)context.handle));
}

static void end_context(struct call *call) {
    crowd_end_begin();
    end_context_now(call);
    crowd_work_end();
}

static void change_context(struct call *call) {
    struct object context;
    bool explicit_one = object_look(&call->random, KIND_CROWD_CONTEXT, &context);
    say(call, "cuCtxSetCurrent");
    crowd_did(call, cu.cuCtxSetCurrent(explicit_one ? (CUcontext)(uintptr_t)context.handle : NULL));
}

/* ---- Graphs ---- */

static CUresult add_memory(struct call *call, CUgraph graph) {
    CUgraphNode last = NULL;
    CUresult result = CUDA_SUCCESS;
    unsigned count = 1 + (unsigned)random_below(&call->random, 3);
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        CUDA_MEM_ALLOC_NODE_PARAMS memory = {
            .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
            .bytesize = crowd_size(call)};
        CUgraphNode node = NULL;
        result = cu.cuGraphAddMemAllocNode(&node, graph, &last, last != NULL, &memory);
        last = result == CUDA_SUCCESS ? node : last;
        if (result == CUDA_SUCCESS && random_once_in(&call->random, 2) &&
            cu.cuGraphAddMemFreeNode(&node, graph, &last, 1, memory.dptr) == CUDA_SUCCESS)
            last = node;
    }
    return result;
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph) {
    return cu.cuGraphInstantiateWithFlags(exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
}

static void make_graph(struct call *call) {
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    if (!crowd_enter(call) || !crowd_has_room(KIND_CROWD_GRAPH, 16))
        return;
    say(call, "a graph is made");
    if (!crowd_did(call, cu.cuGraphCreate(&graph, 0)))
        return;
    if (crowd_did(call, add_memory(call, graph)) && crowd_did(call, instantiate(&exec, graph)) &&
        !crowd_keep(call, KIND_CROWD_GRAPH, (uintptr_t)exec, 0, 0))
        cu.cuGraphExecDestroy(exec);
    cu.cuGraphDestroy(graph);
}

static void launch_now(struct call *call) {
    struct borrowed graph;
    if (!crowd_enter(call) || !crowd_borrow(call, KIND_CROWD_GRAPH, &graph))
        return;
    say(call, "cuGraphLaunch");
    for (unsigned burst = crowd_burst(call); burst > 0; burst--)
        crowd_did(call, cu.cuGraphLaunch((CUgraphExec)(uintptr_t)graph.object.handle, crowd_stream(call)));
    crowd_return(&graph);
}

static void launch(struct call *call) {
    crowd_work_begin();
    launch_now(call);
    crowd_work_end();
}

/* What others allocate in the stream meanwhile is a node of a graph, or not any more. */
static bool capture_once(struct call *call, CUstream stream) {
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CUstreamCaptureMode mode =
        random_once_in(&call->random, 16) ? CU_STREAM_CAPTURE_MODE_GLOBAL : CU_STREAM_CAPTURE_MODE_RELAXED;
    if (!crowd_did(call, cu.cuStreamBeginCapture_v2(stream, mode)))
        return false;
    for (volatile uint64_t spin = random_below(&call->random, 3000); spin > 0; spin--)
        ;
    if (!crowd_did(call, cu.cuStreamEndCapture(stream, &graph)) || graph == NULL)
        return false;
    if (random_once_in(&call->random, 64) && crowd_has_room(KIND_CROWD_GRAPH, 16) &&
        crowd_did(call, instantiate(&exec, graph)) && !crowd_keep(call, KIND_CROWD_GRAPH, (uintptr_t)exec, 0, 0))
        cu.cuGraphExecDestroy(exec);
    cu.cuGraphDestroy(graph);
    return true;
}

static void capture_now(struct call *call) {
    struct object stream;
    if (!crowd_enter(call) || !object_look(&call->random, KIND_CROWD_STREAM, &stream))
        return;
    say(call, "captures of %#llx", (unsigned long long)stream.handle);
    for (unsigned i = 0; i < 200 && crowd_goes_on() && capture_once(call, (CUstream)(uintptr_t)stream.handle); i++)
        ;
}

static void capture(struct call *call) {
    crowd_work_begin();
    capture_now(call);
    crowd_work_end();
}

/* Others may launch it meanwhile; what is left to them although it has ended gives an error from then on. */
static void end_graph(struct call *call) {
    struct borrowed graph;
    if (!crowd_enter(call) || !crowd_borrow(call, KIND_CROWD_GRAPH, &graph))
        return;
    say(call, "cuGraphExecDestroy");
    crowd_did(call, cu.cuGraphExecDestroy((CUgraphExec)(uintptr_t)graph.object.handle));
}

static void trim_graphs(struct call *call) {
    if (!crowd_enter(call))
        return;
    say(call, "cuDeviceGraphMemTrim");
    crowd_did(call, cu.cuDeviceGraphMemTrim(0));
}

static const struct operation operations[] = {
    {"crowd.alloc", 30, allocate, "cuMemAlloc_v2", false, false},
    {"crowd.free", 24, free_one, "cuMemFree_v2 cuMemFreeAsync", false, false},
    {"crowd.fill", 4, fill, "cuMemAlloc_v2", false, true}, /* ends with a refusal, but for others that free */
    {0},
};

static const struct operation pool_operations[] = {
    {"crowd_pool.alloc", 30, allocate_async, "cuMemAllocAsync cuMemAllocFromPoolAsync", false, false},
    {"crowd_pool.free", 28, free_async, "cuMemFreeAsync cuMemFree_v2", false, false},
    {"crowd_pool.holes", 2, make_holes, "cuMemAllocAsync cuMemFreeAsync", false, false},
    {"crowd_pool.create", 2, make_pool, "cuMemPoolCreate cuMemPoolSetAttribute", false, false},
    {"crowd_pool.destroy", 2, end_pool, "cuMemPoolDestroy", false, false},
    {"crowd_pool.trim", 4, trim, "cuMemPoolTrimTo", false, false},
    {"crowd_pool.threshold", 2, set_threshold, "cuMemPoolSetAttribute", false, false},
    {"crowd_pool.stream", 3, make_stream, "cuStreamCreate", false, false},
    {"crowd_pool.end_stream", 3, end_stream, "cuStreamDestroy_v2", false, false},
    {"crowd_pool.capture", 3, capture, "cuStreamBeginCapture_v2 cuStreamEndCapture", false, false},
    {"crowd_pool.synchronize", 4, synchronize, "cuCtxSynchronize cuStreamSynchronize", false, false},
    {0},
};

static const struct operation context_operations[] = {
    {"crowd_context.retain", 12, retain, "cuDevicePrimaryCtxRetain", false, false},
    {"crowd_context.release", 2, release, "cuDevicePrimaryCtxRelease_v2", false, false},
    {"crowd_context.reset", 2, reset, "cuDevicePrimaryCtxReset_v2", false, false},
    {"crowd_context.create", 4, make_context, "cuCtxCreate_v2", false, false},
    {"crowd_context.change", 6, change_context, "cuCtxSetCurrent", false, false},
    {"crowd_context.destroy", 4, end_context, "cuCtxDestroy_v2", false, false},
    {0},
};

static const struct operation graph_operations[] = {
    {"crowd_graph.create", 20, make_graph, "cuGraphAddMemAllocNode cuGraphInstantiateWithFlags", false, false},
    {"crowd_graph.launch", 30, launch, "cuGraphLaunch", false, false},
    {"crowd_graph.destroy", 14, end_graph, "cuGraphExecDestroy", false, false},
    {"crowd_graph.trim", 4, trim_graphs, "cuDeviceGraphMemTrim", false, false},
    {0},
};

static const struct function none[] = {{0}};

const struct family family_crowd = {"crowd", functions, operations};
const struct family family_crowd_pool = {"crowd_pool", none, pool_operations};
const struct family family_crowd_context = {"crowd_context", none, context_operations};
const struct family family_crowd_graph = {"crowd_graph", none, graph_operations};
