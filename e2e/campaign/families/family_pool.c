/* Stream-ordered allocation and memory pools. */
#include "family_pool.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "worker.h"

#define FUNCTIONS(X)                                                                                                   \
    X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020)                                                   \
    X(cuDeviceGetMemPool, "cuDeviceGetMemPool", 11020)                                                                 \
    X(cuDeviceSetMemPool, "cuDeviceSetMemPool", 11020)                                                                 \
    X(cuMemPoolCreate, "cuMemPoolCreate", 11020)                                                                       \
    X(cuMemPoolDestroy, "cuMemPoolDestroy", 11020)                                                                     \
    X(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020)                                                                       \
    X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020)                                                           \
    X(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", 11020)                                                           \
    X(cuMemAllocAsync, "cuMemAllocAsync", 11020)                                                                       \
    X(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020)                                                                  \
    X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020)                                                       \
    X(cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 11020)                                                  \
    X(cuMemFreeAsync, "cuMemFreeAsync", 11020)                                                                         \
    X(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020)                                                                    \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020)                                                                               \
    X(cuMemFree_v2, "cuMemFree", 3020)                                                                                 \
    X(cuPointerGetAttribute, "cuPointerGetAttribute", 4000)                                                            \
    X(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", 11040)                                                             \
    X(cuCtxCreate_v2, "cuCtxCreate", 3020)                                                                             \
    X(cuCtxDestroy_v2, "cuCtxDestroy", 4000)                                                                           \
    X(cuCtxPushCurrent_v2, "cuCtxPushCurrent", 4000)                                                                   \
    X(cuCtxPopCurrent_v2, "cuCtxPopCurrent", 4000)                                                                     \
    X(cuCtxSynchronize, "cuCtxSynchronize", 2000)                                                                      \
    X(cuStreamCreate, "cuStreamCreate", 2000)                                                                          \
    X(cuStreamDestroy_v2, "cuStreamDestroy", 4000)                                                                     \
    X(cuStreamSynchronize, "cuStreamSynchronize", 2000)                                                                \
    X(cuStreamSynchronize_ptsz, "cuStreamSynchronize", 7000)                                                           \
    X(cuEventCreate, "cuEventCreate", 2000)                                                                            \
    X(cuEventRecord, "cuEventRecord", 2000)                                                                            \
    X(cuEventSynchronize, "cuEventSynchronize", 2000)                                                                  \
    X(cuEventDestroy_v2, "cuEventDestroy", 4000)                                                                       \
    X(cuLaunchHostFunc, "cuLaunchHostFunc", 10000)                                                                     \
    X(cuLaunchHostFunc_ptsz, "cuLaunchHostFunc", 10000)                                                                \
    X(cuLaunchKernel, "cuLaunchKernel", 4000)                                                                          \
    X(cuLaunchKernel_ptsz, "cuLaunchKernel", 7000)                                                                     \
    X(cuModuleLoadData, "cuModuleLoadData", 2000)                                                                      \
    X(cuModuleUnload, "cuModuleUnload", 2000)                                                                          \
    X(cuModuleGetFunction, "cuModuleGetFunction", 2000)
FAMILY_FUNCTIONS(FUNCTIONS)

enum { STREAM_CYCLES = 2000 };

/* The objects of KIND_POOL. */
enum way {
    WAY_POOL,   /* made here; other: the most that it may hold, or 0 */
    WAY_DEVICE, /* a device's default pool, and its graphs' memory */
    WAY_KEEPER, /* see need_keeper */
};

/* Of KIND_ASYNC: family_context forgets those of way 0 when the device is reset. */
enum { OF_DEFAULT, OF_POOL };

static pthread_mutex_t async_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t keeper_mutex = PTHREAD_MUTEX_INITIALIZER;
static CUcontext keeper;
static int keeper_gpu; /* while there is one */
static _Atomic bool noted[GPUS];

/* ---- What both families need ---- */

void async_lock(void) {
    pthread_mutex_lock(&async_mutex);
}

void async_unlock(void) {
    pthread_mutex_unlock(&async_mutex);
}

static struct object object_of(const struct call *call, enum kind kind, uint64_t handle, uint64_t size, unsigned way) {
    return (struct object){.handle = handle,
                           .size = size,
                           .device = (int16_t)call->device,
                           .gpu = (int16_t)call->gpu,
                           .kind = (uint8_t)kind,
                           .way = (uint8_t)way};
}

static void make_keeper(struct call *call) {
    CUcontext popped;
    int64_t bytes = (int64_t)board->context_bytes[call->gpu];
    needs(call, board->context_bytes[call->gpu]);
    say(call, "cuCtxCreate(%d) for good", call->device);
    if (!judged(call, CALL(cu.cuCtxCreate_v2(&keeper, 0, call->device)))) {
        keeper = NULL;
        return;
    }
    keeper_gpu = call->gpu;
    current_changed();
    expect(call, CALL(cu.cuCtxPopCurrent_v2(&popped)), CUDA_SUCCESS, "cuCtxPopCurrent");
    grows(call, bytes, bytes);
    struct object object = object_of(call, KIND_POOL, (uintptr_t)keeper, 0, WAY_KEEPER);
    if (object_put(&object))
        return;
    expect(call, CALL(cu.cuCtxDestroy_v2(keeper)), CUDA_SUCCESS, "cuCtxDestroy");
    grows(call, 0, 0);
    keeper = NULL;
}

bool need_keeper(struct call *call) {
    pthread_mutex_lock(&keeper_mutex);
    bool there = keeper != NULL;
    if (!there)
        make_keeper(call);
    pthread_mutex_unlock(&keeper_mutex);
    return there;
}

void async_note_device(const struct call *call) {
    if (atomic_exchange(&noted[call->device], true))
        return;
    struct object object = object_of(call, KIND_POOL, 0, 0, WAY_DEVICE);
    object.slack = PIECE; /* near the limit, a pool keeps room for one */
    if (!object_put(&object))
        atomic_store(&noted[call->device], false); /* the next one will */
}

void stream_choose(struct call *call, struct choice *choice) {
    static const CUstream defaults[] = {NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
    *choice = (struct choice){.per_thread = random_once_in(&call->random, 3)};
    choice->stream = defaults[random_below(&call->random, 3)];
    choice->taken = !random_once_in(&call->random, 4) &&
                    object_take_in(&call->random, KIND_STREAM, call->context->serial, &choice->object);
    if (choice->taken)
        choice->stream = (CUstream)(uintptr_t)choice->object.handle;
}

void stream_done(const struct choice *choice) {
    if (choice->taken)
        object_put(&choice->object);
}

int keeper_on(void) {
    pthread_mutex_lock(&keeper_mutex);
    int gpu = keeper != NULL ? keeper_gpu : -1;
    pthread_mutex_unlock(&keeper_mutex);
    return gpu;
}

CUresult free_in_keeper(CUdeviceptr address) {
    CUcontext popped;
    CUresult result = cu.cuCtxPushCurrent_v2(keeper);
    if (result != CUDA_SUCCESS)
        return result;
    result = cu.cuMemFree_v2(address);
    cu.cuCtxPopCurrent_v2(&popped);
    return result;
}

void async_keep(struct call *call, CUdeviceptr address, uint64_t size, uint64_t from, bool of_default) {
    struct object object = object_of(call, KIND_ASYNC, address, size, of_default ? OF_DEFAULT : OF_POOL);
    object.other = from;
    async_note_device(call);
    if (!object_put(&object))
        expect(call, CALL(free_in_keeper(address)), CUDA_SUCCESS, "cuMemFree_v2");
}

/* Takes objects until one is as wanted (0: whichever), and puts the others back. Under the lock. */
static bool search(struct call *call, int device, CUdeviceptr address, uint64_t from, struct object *found) {
    static struct object others[2048];
    unsigned count = 0;
    bool there = false;
    while (!there && count < 2048 && object_take(&call->random, KIND_ASYNC, device, found)) {
        there = (address == 0 || found->handle == address) && (from == 0 || found->other == from);
        if (!there)
            others[count++] = *found;
    }
    while (count > 0)
        object_put(&others[--count]);
    return there;
}

bool async_lives(struct call *call, int device, CUdeviceptr address) {
    struct object object;
    bool there = search(call, device, address, 0, &object);
    if (there)
        object_put(&object);
    return there;
}

bool async_take_of_graph(struct call *call, struct object *object) {
    return search(call, -1, 0, FROM_GRAPH, object);
}

/* ---- Allocating ---- */

/* What there must be room for. A pool does not grow by the last piece, so that what is freed in it can be allocated again. */
static uint64_t most_for(uint64_t size) {
    return size > UINT64_MAX - 2 * PIECE ? UINT64_MAX : rounded(size, PIECE) + PIECE;
}

static uint64_t pool_size(struct call *call) {
    uint64_t room = call->desk->room[call->gpu];
    if (room != UINT64_MAX && room >= 2 * PIECE && random_once_in(&call->random, 8))
        return room / PIECE * PIECE - PIECE; /* exactly what fits */
    return random_once_in(&call->random, 3) ? 1 + random_below(&call->random, 80 * MIB) : random_size(call);
}

static void keep(struct call *call, CUdeviceptr address, uint64_t size) {
    CUmemoryPool pool = NULL, standard = NULL;
    say(call, " -> %#llx", (unsigned long long)address);
    grows(call, ANYTHING_LESS, (int64_t)rounded(size, PIECE));
    expect(call, CALL(cu.cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address)), CUDA_SUCCESS,
           "cuPointerGetAttribute");
    expect(call, CALL(cu.cuDeviceGetDefaultMemPool(&standard, call->device)), CUDA_SUCCESS,
           "cuDeviceGetDefaultMemPool");
    async_keep(call, address, size, (uintptr_t)pool, pool == standard);
}

static CUresult allocate_in(const struct choice *choice, CUdeviceptr *address, uint64_t size, CUmemoryPool pool) {
    if (pool == NULL)
        return choice->per_thread ? cu.cuMemAllocAsync_ptsz(address, size, choice->stream)
                                  : cu.cuMemAllocAsync(address, size, choice->stream);
    return choice->per_thread ? cu.cuMemAllocFromPoolAsync_ptsz(address, size, pool, choice->stream)
                              : cu.cuMemAllocFromPoolAsync(address, size, pool, choice->stream);
}

static CUresult free_in(const struct choice *choice, CUdeviceptr address) {
    return choice->per_thread ? cu.cuMemFreeAsync_ptsz(address, choice->stream)
                              : cu.cuMemFreeAsync(address, choice->stream);
}

/* From the device's current pool: pools that have a limit of their own never are that. */
static void allocate(struct call *call) {
    CUdeviceptr address = 0;
    struct choice choice;
    if (!need_context(call) || !need_keeper(call))
        return;
    uint64_t size = pool_size(call);
    stream_choose(call, &choice);
    needs(call, most_for(size));
    say(call, "cuMemAllocAsync%s(%llu) in %p on %d", choice.per_thread ? "_ptsz" : "", (unsigned long long)size,
        (void *)choice.stream, call->device);
    if (judged(call, CALL(allocate_in(&choice, &address, size, NULL))))
        keep(call, address, size);
    stream_done(&choice);
}

static uint64_t reserved(CUmemoryPool pool) {
    cuuint64_t bytes = 0;
    return cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes) == CUDA_SUCCESS ? bytes : 0;
}

/* A pool made here. Whoever takes it out puts it back. */
static bool take_pool(struct call *call, int device, struct object *object) {
    struct object others[3];
    unsigned count = 0;
    bool there = false;
    while (!there && count < 3 && object_take(&call->random, KIND_POOL, device, object)) {
        there = object->way == WAY_POOL;
        if (!there)
            others[count++] = *object;
    }
    while (count > 0)
        object_put(&others[--count]);
    return there;
}

static CUmemoryPool handle_of(const struct object *object) {
    return (CUmemoryPool)(uintptr_t)object->handle;
}

static void allocate_from(struct call *call) {
    CUdeviceptr address = 0;
    struct object pool;
    struct choice choice;
    if (!need_context(call) || !need_keeper(call) || !take_pool(call, call->device, &pool))
        return;
    uint64_t size = pool_size(call), held = reserved(handle_of(&pool));
    stream_choose(call, &choice);
    needs(call, most_for(size));
    say(call, "cuMemAllocFromPoolAsync%s(%llu) in %p on %d", choice.per_thread ? "_ptsz" : "", (unsigned long long)size,
        (void *)choice.stream, call->device);
    if (judged(call, CALL(allocate_in(&choice, &address, size, handle_of(&pool)))))
        keep(call, address, size);
    else if (pool.other != 0 && held + rounded(size, BLOCK) > rounded(pool.other, BLOCK))
        call->desk->outcome = OUTCOME_NOTHING; /* its own limit */
    if (pool.other != 0 && reserved(handle_of(&pool)) > rounded(pool.other, BLOCK))
        wrong(call, "the pool may hold %llu bytes at most", (unsigned long long)pool.other);
    stream_done(&choice);
    object_put(&pool);
}

/* ---- Freeing ---- */

/*
 * A destroyed pool counts what it held then, until the last of its memory is freed: one of its allocations stands for
 * that. False if nothing of it is left.
 */
static bool retired(struct call *call, CUmemoryPool pool, int device, uint64_t held) {
    static _Atomic uint64_t last = FROM_GRAPH; /* no pool's handle */
    struct object object;
    uint64_t name = atomic_fetch_add(&last, 1) + 1, slack = held;
    bool any = false;
    async_lock();
    while (search(call, device, 0, (uintptr_t)pool, &object)) {
        object.other = name;
        object.slack = slack;
        slack = 0;
        object_put(&object);
        any = true;
    }
    async_unlock();
    return any;
}

/* A destroyed pool that only the streams keep stays counted until this process has seen that they are done. */
static void ending(struct call *call, int device, uint64_t held) {
    struct object object = object_of(call, KIND_ENDING, 0, 0, 0);
    object.device = (int16_t)device;
    object.gpu = (int16_t)gpu_of_device(device);
    object.slack = held;
    if (held != 0)
        object_put(&object);
}

/* Of a destroyed pool: another one stands for it from now on. Under the lock. */
static void pass_on(struct call *call, const struct object *object) {
    struct object heir;
    if (object->slack == 0)
        return;
    if (search(call, object->device, 0, object->other, &heir)) {
        heir.slack = object->slack;
        object_put(&heir);
    } else {
        ending(call, object->device, object->slack);
    }
}

static CUresult free_by(struct call *call, const struct choice *choice, CUdeviceptr address) {
    if (random_once_in(&call->random, 3)) {
        say(call, "cuMemFree_v2(%#llx)", (unsigned long long)address);
        return CALL(cu.cuMemFree_v2(address));
    }
    say(call, "cuMemFreeAsync%s(%#llx) in %p", choice->per_thread ? "_ptsz" : "", (unsigned long long)address,
        (void *)choice->stream);
    return CALL(free_in(choice, address));
}

static void free_one(struct call *call) {
    struct object object;
    struct choice choice;
    if (!need_context(call))
        return;
    async_lock();
    bool there = object_take(&call->random, KIND_ASYNC, -1, &object);
    bool of_graph = there && object.other == FROM_GRAPH;
    if (there)
        pass_on(call, &object);
    if (!of_graph)
        async_unlock();
    if (there) {
        stream_choose(call, &choice);
        call->gpu = object.gpu;
        if (expect(call, free_by(call, &choice, object.handle), CUDA_SUCCESS, "freeing"))
            grows(call, ANYTHING_LESS, 0);
        stream_done(&choice);
    }
    if (of_graph)
        async_unlock();
}

static void free_linear(struct call *call) {
    struct object object;
    struct choice choice;
    if (!need_context(call) || !object_take_in(&call->random, KIND_LINEAR, call->context->serial, &object))
        return;
    stream_choose(call, &choice);
    say(call, "cuMemFreeAsync(%#llx) of %llu, which is linear", (unsigned long long)object.handle,
        (unsigned long long)object.size);
    if (expect(call, CALL(free_in(&choice, object.handle)), CUDA_SUCCESS, "cuMemFreeAsync"))
        grows(call, ANYTHING_LESS, object.size < MIB ? 0 : -(int64_t)rounded(object.size, BLOCK));
    stream_done(&choice);
}

/* ---- Pools ---- */

static CUresult new_pool(const struct call *call, CUmemoryPool *pool, uint64_t most, uint64_t threshold) {
    const CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                       .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = call->device},
                                       .maxSize = most};
    cuuint64_t value = threshold;
    CUresult result = CALL(cu.cuMemPoolCreate(pool, &properties));
    return result == CUDA_SUCCESS && threshold != 0
               ? CALL(cu.cuMemPoolSetAttribute(*pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value))
               : result;
}

static uint64_t random_threshold(struct call *call) {
    switch (random_below(&call->random, 4)) {
    case 0:
        return UINT64_MAX;
    case 1:
        return random_below(&call->random, 128 * MIB);
    default:
        return 0;
    }
}

static void create(struct call *call) {
    CUmemoryPool pool = NULL;
    if (!need_context(call) || !need_keeper(call) || objects_count(KIND_POOL) >= 12)
        return;
    uint64_t most = random_once_in(&call->random, 3) ? 1 + random_below(&call->random, 160 * MIB) : 0;
    uint64_t threshold = random_threshold(call);
    say(call, "cuMemPoolCreate(%d), at most %llu, threshold %llu", call->device, (unsigned long long)most,
        (unsigned long long)threshold);
    if (!expect(call, new_pool(call, &pool, most, threshold), CUDA_SUCCESS, "cuMemPoolCreate"))
        return;
    grows(call, 0, 0);
    async_note_device(call);
    struct object object = object_of(call, KIND_POOL, (uintptr_t)pool, 0, WAY_POOL);
    object.other = most;
    object.slack = PIECE;
    if (!object_put(&object))
        expect(call, CALL(cu.cuMemPoolDestroy(pool)), CUDA_SUCCESS, "cuMemPoolDestroy");
}

/* Exclusive: others may be about to allocate from it, as the device's current one. */
static void destroy(struct call *call) {
    struct object pool;
    if (!need_context(call) || !take_pool(call, -1, &pool))
        return;
    call->gpu = pool.gpu;
    uint64_t held = reserved(handle_of(&pool));
    say(call, "cuMemPoolDestroy on %d, which holds %llu", pool.device, (unsigned long long)held);
    if (!retired(call, handle_of(&pool), pool.device, held))
        ending(call, pool.device, held);
    if (expect(call, CALL(cu.cuMemPoolDestroy(handle_of(&pool))), CUDA_SUCCESS, "cuMemPoolDestroy"))
        grows(call, ANYTHING_LESS, 0);
}

/* The device's default pool, or one made here; put back by give_back. */
static CUmemoryPool any_pool(struct call *call, struct object *object) {
    CUmemoryPool pool = NULL;
    object->way = WAY_DEVICE;
    if (!random_once_in(&call->random, 3) && take_pool(call, call->device, object))
        return handle_of(object);
    expect(call, CALL(cu.cuDeviceGetDefaultMemPool(&pool, call->device)), CUDA_SUCCESS, "cuDeviceGetDefaultMemPool");
    return pool;
}

static void give_back(const struct object *object) {
    if (object->way == WAY_POOL)
        object_put(object);
}

static void trim(struct call *call) {
    struct object object;
    if (!need_context(call))
        return;
    CUmemoryPool pool = any_pool(call, &object);
    uint64_t to = random_once_in(&call->random, 2) ? 0 : random_below(&call->random, 128 * MIB);
    say(call, "cuMemPoolTrimTo(%llu) on %d", (unsigned long long)to, call->device);
    if (expect(call, CALL(cu.cuMemPoolTrimTo(pool, to)), CUDA_SUCCESS, "cuMemPoolTrimTo"))
        grows(call, ANYTHING_LESS, 0);
    give_back(&object);
}

static void set_threshold(struct call *call) {
    struct object object;
    if (!need_context(call))
        return;
    CUmemoryPool pool = any_pool(call, &object);
    cuuint64_t threshold = random_threshold(call);
    async_note_device(call);
    say(call, "a release threshold of %llu on %d", (unsigned long long)threshold, call->device);
    if (expect(call, CALL(cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold)), CUDA_SUCCESS,
               "cuMemPoolSetAttribute"))
        grows(call, 0, 0);
    give_back(&object);
}

static void set_current(struct call *call) {
    struct object object;
    if (!need_context(call))
        return;
    CUmemoryPool pool = any_pool(call, &object), now = NULL;
    if (object.way == WAY_DEVICE || object.other == 0) {
        say(call, "cuDeviceSetMemPool(%d, %s)", call->device, object.way == WAY_DEVICE ? "the default" : "another");
        expect(call, CALL(cu.cuDeviceSetMemPool(call->device, pool)), CUDA_SUCCESS, "cuDeviceSetMemPool");
        expect(call, CALL(cu.cuDeviceGetMemPool(&now, call->device)), CUDA_SUCCESS, "cuDeviceGetMemPool");
        grows(call, 0, 0);
    }
    give_back(&object);
}

/* ---- Waiting ---- */

static void wait_for_event(struct call *call, CUstream stream) {
    CUevent event = NULL;
    say(call, "cuEventSynchronize after all in %p", (void *)stream);
    if (!expect(call, CALL(cu.cuEventCreate(&event, 0)), CUDA_SUCCESS, "cuEventCreate"))
        return;
    expect(call, CALL(cu.cuEventRecord(event, stream)), CUDA_SUCCESS, "cuEventRecord");
    expect(call, CALL(cu.cuEventSynchronize(event)), CUDA_SUCCESS, "cuEventSynchronize");
    expect(call, CALL(cu.cuEventDestroy_v2(event)), CUDA_SUCCESS, "cuEventDestroy");
}

static void synchronize(struct call *call) {
    struct choice choice;
    if (!need_context(call))
        return;
    stream_choose(call, &choice);
    switch (random_below(&call->random, 4)) {
    case 0:
        say(call, "cuCtxSynchronize");
        expect(call, CALL(cu.cuCtxSynchronize()), CUDA_SUCCESS, "cuCtxSynchronize");
        break;
    case 1:
        wait_for_event(call, choice.stream);
        break;
    default:
        say(call, "cuStreamSynchronize%s(%p)", choice.per_thread ? "_ptsz" : "", (void *)choice.stream);
        expect(call,
               CALL(choice.per_thread ? cu.cuStreamSynchronize_ptsz(choice.stream)
                                      : cu.cuStreamSynchronize(choice.stream)),
               CUDA_SUCCESS, "cuStreamSynchronize");
    }
    grows(call, ANYTHING_LESS, 0);
    stream_done(&choice);
}

/* ---- What is still under way ---- */

static void nap(void *microseconds) {
    usleep((useconds_t)(uintptr_t)microseconds);
}

static const char slow_kernel[] = ".version 8.0\n.target sm_80\n.address_size 64\n"
                                  ".visible .entry spin_2ms()\n{\nret;\n}\n";

/* Keeps the stream busy for 2 ms: by a host function, or by a kernel, whose module is the caller's to unload. */
static bool keep_busy(struct call *call, const struct choice *choice, CUmodule *module) {
    CUfunction function = NULL;
    if (random_once_in(&call->random, 2)) {
        void *naps = (void *)(uintptr_t)2000;
        CUresult result = CALL(choice->per_thread ? cu.cuLaunchHostFunc_ptsz(choice->stream, nap, naps)
                                                  : cu.cuLaunchHostFunc(choice->stream, nap, naps));
        if (result == CUDA_ERROR_OUT_OF_MEMORY)
            return false; /* it needs a thread, and there is none to be had while another one calls exec */
        return expect(call, result, CUDA_SUCCESS, "cuLaunchHostFunc");
    }
    if (!judged(call, CALL(cu.cuModuleLoadData(module, slow_kernel))))
        return false;
    return expect(call, CALL(cu.cuModuleGetFunction(&function, *module, "spin_2ms")), CUDA_SUCCESS,
                  "cuModuleGetFunction") &&
           expect(call,
                  CALL(choice->per_thread
                           ? cu.cuLaunchKernel_ptsz(function, 1, 1, 1, 1, 1, 1, 0, choice->stream, NULL, NULL)
                           : cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, choice->stream, NULL, NULL)),
                  CUDA_SUCCESS, "cuLaunchKernel");
}

static void unload(struct call *call, CUmodule module) {
    if (module != NULL)
        expect(call, CALL(cu.cuModuleUnload(module)), CUDA_SUCCESS, "cuModuleUnload");
}

/* Part of an operation was refused, but it took memory before that. */
static void partly_done(struct call *call) {
    if (call->desk->outcome == OUTCOME_REFUSED)
        call->desk->outcome = OUTCOME_DONE;
}

/* Allocated and freed behind something slow: what the free gives back is still in use for a while. */
static void free_later(struct call *call) {
    CUdeviceptr address = 0;
    CUmodule module = NULL;
    struct choice choice;
    if (!need_context(call) || !need_keeper(call))
        return;
    uint64_t size = 1 + random_below(&call->random, 96 * MIB);
    stream_choose(call, &choice);
    needs(call, rounded(size, PIECE) + most_for(size) + 4 * BLOCK);
    say(call, "%llu allocated and freed in %p on %d, slowly", (unsigned long long)size, (void *)choice.stream,
        call->device);
    if (judged(call, CALL(allocate_in(&choice, &address, size, NULL)))) {
        async_note_device(call);
        bool busy = keep_busy(call, &choice, &module);
        expect(call, CALL(free_in(&choice, address)), CUDA_SUCCESS, "cuMemFreeAsync");
        if (busy && random_once_in(&call->random, 2)) {
            struct choice other;
            stream_choose(call, &other);
            address = 0;
            if (judged(call, CALL(allocate_in(&other, &address, size, NULL)))) {
                say(call, " and again in %p", (void *)other.stream);
                expect(call, CALL(free_in(&other, address)), CUDA_SUCCESS, "cuMemFreeAsync");
            }
            stream_done(&other);
        }
        if (module == NULL) /* a kernel takes managed memory to the GPU */
            grows(call, ANYTHING_LESS, (int64_t)(2 * rounded(size, PIECE)));
        unload(call, module);
        partly_done(call);
    }
    stream_done(&choice);
}

/* A pool is destroyed while some of its memory is in use, and some is being freed in streams that are not done. */
static void destroy_early(struct call *call) {
    CUdeviceptr addresses[2] = {0, 0};
    CUmodule module = NULL;
    CUmemoryPool pool = NULL;
    struct choice choices[2];
    if (!need_context(call) || !need_keeper(call))
        return;
    uint64_t size = 1 + random_below(&call->random, 48 * MIB);
    needs(call, rounded(size, PIECE) + most_for(size) + 4 * BLOCK);
    if (!expect(call, new_pool(call, &pool, 0, random_threshold(call)), CUDA_SUCCESS, "cuMemPoolCreate"))
        return;
    async_note_device(call);
    bool living = random_once_in(&call->random, 2), refused = false;
    say(call, "2 x %llu from a pool on %d, freed slowly, the pool destroyed %s", (unsigned long long)size, call->device,
        living ? "between" : "at once");
    for (unsigned i = 0; i < 2; i++) {
        stream_choose(call, &choices[i]);
        if (!refused && !judged(call, CALL(allocate_in(&choices[i], &addresses[i], size, pool))))
            refused = true;
    }
    if (addresses[0] != 0) {
        if (!refused)
            keep_busy(call, &choices[0], &module);
        expect(call, CALL(free_in(&choices[0], addresses[0])), CUDA_SUCCESS, "cuMemFreeAsync");
    }
    if (addresses[1] != 0 && random_once_in(&call->random, 3)) {
        async_keep(call, addresses[1], size, (uintptr_t)pool, false);
        retired(call, pool, call->device, reserved(pool));
        addresses[1] = 0;
    } else {
        ending(call, call->device, reserved(pool));
    }
    if (living)
        expect(call, CALL(cu.cuMemPoolDestroy(pool)), CUDA_SUCCESS, "cuMemPoolDestroy");
    if (addresses[1] != 0)
        expect(call, CALL(free_in(&choices[1], addresses[1])), CUDA_SUCCESS, "cuMemFreeAsync");
    if (!living)
        expect(call, CALL(cu.cuMemPoolDestroy(pool)), CUDA_SUCCESS, "cuMemPoolDestroy");
    if (module == NULL) /* a kernel takes managed memory to the GPU */
        grows(call, ANYTHING_LESS, (int64_t)(2 * rounded(size, PIECE)));
    unload(call, module);
    partly_done(call);
    for (unsigned i = 0; i < 2; i++)
        stream_done(&choices[i]);
}

/* ---- What must fit ---- */

/* Ends a pool that was made for one operation. What it held is gone after that, which the stream's end brings about. */
static void end_pool(struct call *call, const struct choice *choice, CUmemoryPool pool, CUdeviceptr address) {
    enum outcome outcome = call->desk->outcome;
    if (address != 0)
        expect(call, CALL(free_in(choice, address)), CUDA_SUCCESS, "cuMemFreeAsync");
    expect(
        call,
        CALL(choice->per_thread ? cu.cuStreamSynchronize_ptsz(choice->stream) : cu.cuStreamSynchronize(choice->stream)),
        CUDA_SUCCESS, "cuStreamSynchronize");
    expect(call, CALL(cu.cuMemPoolDestroy(pool)), CUDA_SUCCESS, "cuMemPoolDestroy");
    if (call->desk->outcome != OUTCOME_WRONG)
        call->desk->outcome = outcome;
    grows(call, ANYTHING_LESS, 0);
}

/* All that is left can be had, in one piece, though a pool holds some of it unused. */
static void take_from_pool(struct call *call) {
    CUdeviceptr address = 0, whole = 0;
    CUmemoryPool pool = NULL;
    struct choice choice;
    if (!need_context(call) || !need_keeper(call))
        return;
    uint64_t room = call->desk->room[call->gpu];
    uint64_t size = room == UINT64_MAX ? 2 * PIECE : room / BLOCK * BLOCK;
    if (size < 2 * PIECE)
        return;
    stream_choose(call, &choice);
    needs(call, size);
    uint64_t idle = (1 + random_below(&call->random, size / PIECE - 1)) * PIECE;
    say(call, "cuMemAlloc_v2(%llu) on %d, while a pool holds %llu", (unsigned long long)size, call->device,
        (unsigned long long)idle);
    if (!expect(call, new_pool(call, &pool, 0, UINT64_MAX), CUDA_SUCCESS, "cuMemPoolCreate"))
        return stream_done(&choice);
    async_note_device(call);
    if (judged(call, CALL(allocate_in(&choice, &address, idle, pool)))) {
        expect(call, CALL(free_in(&choice, address)), CUDA_SUCCESS, "cuMemFreeAsync");
        address = 0;
        if (judged(call, CALL(cu.cuMemAlloc_v2(&whole, size))))
            expect(call, CALL(cu.cuMemFree_v2(whole)), CUDA_SUCCESS, "cuMemFree_v2");
        else if (reserved(pool) != 0)
            wrong(call, "while the pool still holds %llu bytes", (unsigned long long)reserved(pool));
    }
    end_pool(call, &choice, pool, address);
    stream_done(&choice);
}

/* What fits into what a pool holds can be had as long as a piece is left beside it, which it does not take. */
static void reuse(struct call *call) {
    CUdeviceptr address = 0, rest = 0, again = 0;
    CUmemoryPool pool = NULL;
    struct choice choice;
    if (!need_context(call) || !need_keeper(call))
        return;
    uint64_t room = call->desk->room[call->gpu];
    if (room == UINT64_MAX || room < 3 * PIECE)
        return;
    stream_choose(call, &choice);
    needs(call, room / BLOCK * BLOCK);
    say(call, "half a pool's %llu on %d, the GPU's rest but a piece, then the other half", (unsigned long long)PIECE,
        call->device);
    if (!expect(call, new_pool(call, &pool, 0, 0), CUDA_SUCCESS, "cuMemPoolCreate"))
        return stream_done(&choice);
    async_note_device(call);
    if (judged(call, CALL(allocate_in(&choice, &address, PIECE / 2, pool))) &&
        judged(call, CALL(cu.cuMemAlloc_v2(&rest, (room - 2 * PIECE) / BLOCK * BLOCK)))) {
        if (reserved(pool) == PIECE && judged(call, CALL(allocate_in(&choice, &again, PIECE / 2, pool))))
            expect(call, CALL(free_in(&choice, again)), CUDA_SUCCESS, "cuMemFreeAsync");
        expect(call, CALL(cu.cuMemFree_v2(rest)), CUDA_SUCCESS, "cuMemFree_v2");
    }
    end_pool(call, &choice, pool, address);
    stream_done(&choice);
}

/* ---- What must not grow ---- */

/* Bytes of this process's own memory that it has touched. */
static uint64_t own_memory(void) {
    unsigned long long kib = 0;
    char line[128];
    FILE *file = fopen("/proc/self/status", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "RssAnon: %llu", &kib) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return kib * KIB;
}

/* Streams in which pool memory was freed, one after another, none of which is left. */
static bool streams_come_and_go(struct call *call, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        CUstream stream = NULL;
        CUdeviceptr address = 0;
        if (!expect(call, CALL(cu.cuStreamCreate(&stream, 0)), CUDA_SUCCESS, "cuStreamCreate"))
            return false;
        bool done = judged(call, CALL(cu.cuMemAllocAsync(&address, 4 * KIB, stream)));
        if (done)
            expect(call, CALL(cu.cuMemFreeAsync(address, stream)), CUDA_SUCCESS, "cuMemFreeAsync");
        CUresult result = CALL(cu.cuStreamDestroy_v2(stream));
        if (result != CUDA_SUCCESS)
            wrong(call, "cuStreamDestroy gave %d", result);
        if (!done)
            return false;
        call->desk->text[0] = '\0';
    }
    return true;
}

/* Exclusive: nothing else of this process takes memory meanwhile. The first half is for what is kept to be used again. */
static void cycle_streams(struct call *call) {
    if (!need_context(call) || !need_keeper(call))
        return;
    needs(call, 2 * PIECE);
    async_note_device(call);
    if (streams_come_and_go(call, STREAM_CYCLES)) {
        uint64_t before = own_memory();
        if (streams_come_and_go(call, STREAM_CYCLES)) {
            uint64_t after = own_memory();
            say(call, "%d streams came and went", STREAM_CYCLES);
            if (after > before + STREAM_CYCLES * 32)
                wrong(call, "and %llu KiB of the process's memory stayed", (unsigned long long)(after - before) / KIB);
        }
    }
    grows(call, ANYTHING_LESS, (int64_t)PIECE);
}

/* ---- Giving back ---- */

static void synchronize_all(int device) {
    CUcontext popped;
    for (unsigned i = 0; i < CONTEXTS; i++)
        if (context_at(i)->handle != NULL && context_at(i)->device == device &&
            cu.cuCtxPushCurrent_v2(context_at(i)->handle) == CUDA_SUCCESS) {
            cu.cuCtxSynchronize();
            cu.cuCtxPopCurrent_v2(&popped);
        }
}

/* Those that were destroyed wait for streams of other devices, too. */
static void synchronize_everything(void) {
    for (int device = 0; device < device_count(); device++)
        synchronize_all(device);
}

/* Exclusive: then nothing is under way, and what was is settled. */
static void settle(struct call *call) {
    if (!need_context(call))
        return;
    say(call, "every context is synchronised");
    synchronize_everything();
    for (int device = 0; device < device_count(); device++)
        objects_forget(KIND_ENDING, device, 0);
    call->desk->outcome = OUTCOME_DONE;
    grows(call, ANYTHING_LESS, 0);
}

static CUresult release_ending(const struct object *object) {
    (void)object;
    synchronize_everything();
    return CUDA_SUCCESS;
}

static CUresult release_memory(const struct object *object) {
    return free_in_keeper(object->handle);
}

static CUresult release_device(int device) {
    CUmemoryPool pool;
    cuuint64_t none = 0;
    CUresult result = cu.cuDeviceGetDefaultMemPool(&pool, device);
    atomic_store(&noted[device], false);
    if (result == CUDA_SUCCESS)
        result = cu.cuDeviceSetMemPool(device, pool);
    if (result == CUDA_SUCCESS)
        result = cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none);
    if (result == CUDA_SUCCESS)
        result = cu.cuMemPoolTrimTo(pool, 0);
    return result == CUDA_SUCCESS && cu.cuDeviceGraphMemTrim != NULL ? cu.cuDeviceGraphMemTrim(device) : result;
}

static CUresult release_pool(const struct object *object) {
    synchronize_everything();
    if (object->way == WAY_DEVICE)
        return release_device(object->device);
    if (object->way == WAY_POOL)
        return cu.cuMemPoolDestroy(handle_of(object));
    keeper = NULL;
    return cu.cuCtxDestroy_v2((CUcontext)(uintptr_t)object->handle);
}

__attribute__((constructor)) static void release_functions(void) {
    releases[KIND_ASYNC] = release_memory;
    releases[KIND_POOL] = release_pool;
    releases[KIND_ENDING] = release_ending;
}

#define MAKES "cuMemPoolCreate cuMemPoolDestroy cuMemPoolTrimTo cuMemAllocFromPoolAsync cuMemFreeAsync "

static const struct operation operations[] = {
    {"pool.alloc", 40, allocate, "cuMemAllocAsync cuMemAllocAsync_ptsz cuMemFreeAsync", false, false},
    {"pool.from", 30, allocate_from, MAKES "cuMemAllocFromPoolAsync_ptsz", false, false},
    {"pool.free", 65, free_one, "cuMemFreeAsync cuMemFreeAsync_ptsz cuMemFree_v2", false, false},
    {"pool.free_linear", 8, free_linear, "cuMemFreeAsync cuMemFreeAsync_ptsz", false, false},
    {"pool.create", 10, create, MAKES "cuMemPoolSetAttribute", false, false},
    {"pool.destroy", 7, destroy, MAKES, true, false},
    {"pool.trim", 8, trim, "cuMemPoolTrimTo cuDeviceGetDefaultMemPool", false, false},
    {"pool.threshold", 5, set_threshold, "cuMemPoolSetAttribute cuDeviceGetDefaultMemPool", false, false},
    {"pool.current", 5, set_current, "cuDeviceSetMemPool cuDeviceGetMemPool", false, false},
    {"pool.synchronize", 20, synchronize, "cuStreamSynchronize cuCtxSynchronize cuEventSynchronize", false, false},
    {"pool.settle", 8, settle, "cuCtxSynchronize", true, false},
    {"pool.free_later", 12, free_later, MAKES "cuLaunchHostFunc cuLaunchKernel cuModuleLoadData", false, false},
    {"pool.destroy_early", 8, destroy_early, MAKES "cuLaunchHostFunc cuLaunchKernel cuModuleLoadData", false, false},
    {"pool.give_way", 8, take_from_pool, MAKES "cuMemAlloc_v2", false, false},
    {"pool.streams", 1, cycle_streams, "cuStreamCreate cuStreamDestroy_v2 cuMemAllocAsync cuMemFreeAsync", true, false},
    {"pool.reuse", 8, reuse, MAKES "cuMemAlloc_v2", false, false},
    {0},
};

const struct family family_pool = {"pool", functions, operations};
