/* Contexts: which is current, what they cost, and how they end. */
#include <pthread.h>
#include <stdatomic.h>

#include "harness.h"

static void a_context_costs_its_overhead(void) {
    CUcontext first, second, other;

    first = context_on(0);
    CHECK_INT(look("test").used[0], GPU0_CONTEXT);
    second = context_on(0);
    other = context_on(1);
    CHECK_INT(look("test").used[0], 2 * GPU0_CONTEXT);
    CHECK_INT(look("test").used[1], GPU1_CONTEXT);
    CHECK_INT(look("test").sum[0].context_bytes, 2 * GPU0_CONTEXT);
    OK(cuCtxDestroy_v2(other));
    OK(cuCtxDestroy_v2(second));
    OK(cuCtxDestroy_v2(first));
    CHECK_INT(look("test").used[0], 0);
    CHECK_INT(look("test").used[1], 0);
    CHECK_INT(cuCtxDestroy_v2(first), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_INT(cuCtxDestroy_v2(NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuCtxDestroy_v2((CUcontext)0x1234), CUDA_ERROR_INVALID_CONTEXT);
}

static void destroying_gives_everything_back(void) {
    CUcontext context = context_on(0);
    CUdeviceptr pointer;
    size_t limit;

    for (int i = 0; i < 100; i++)
        OK(cuMemAlloc_v2(&pointer, (uint64_t)(i + 1) * 5000));
    OK(cuMemAllocManaged(&pointer, 3 * MIB, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemsetD8_v2(pointer, 0, 3 * MIB));
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 64 * MIB));
    OK(cuCtxGetLimit(&limit, CU_LIMIT_MALLOC_HEAP_SIZE));
    CHECK_INT(limit, 64 * MIB);
    CHECK(look("test").used[0] >= GPU0_CONTEXT + 56 * MIB + 25 * MIB);
    CHECK_INT(look("test").sum[0].allocations, 101);
    OK(cuCtxDestroy_v2(context));
    CHECK_INT(look("test").used[0], 0);
    CHECK_INT(look("test").sum[0].allocations, 0);
}

static void create_checks_its_arguments(void) {
    CUcontext context;

    OK(cuInit(0));
    CHECK_INT(cuCtxCreate_v2(&context, 0, 7), CUDA_ERROR_INVALID_DEVICE);
    CHECK_INT(cuCtxCreate_v2(&context, 0, -1), CUDA_ERROR_INVALID_DEVICE);
    CHECK_INT(cuCtxCreate_v2(NULL, 0, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuCtxCreate_v2(&context, 0x3, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuCtxCreate_v2(&context, 0x10000, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(look("test").used[0], 0);
    OK(cuCtxCreate(&context, 0, 0));
    OK(cuCtxCreate_v3(&context, NULL, 0, 0, 0));
    OK(cuCtxCreate_v4(&context, NULL, 0, 0));
    CHECK_INT(look("test").used[0], 3 * GPU0_CONTEXT);
}

static void the_stack_of_contexts(void) {
    CUcontext a, b, current;
    CUdevice device;

    OK(cuInit(0));
    OK(cuCtxGetCurrent(&current));
    CHECK(current == NULL);
    CHECK_INT(cuCtxPopCurrent_v2(&current), CUDA_ERROR_INVALID_CONTEXT);
    a = context_on(0);
    b = context_on(1);
    OK(cuCtxGetDevice(&device));
    CHECK_INT(device, 1);
    OK(cuCtxPopCurrent_v2(&current));
    CHECK(current == b);
    OK(cuCtxGetDevice(&device));
    CHECK_INT(device, 0);
    OK(cuCtxPushCurrent_v2(b));
    OK(cuCtxSetCurrent(a));
    OK(cuCtxGetDevice(&device));
    CHECK_INT(device, 0);
    OK(cuCtxSetCurrent(NULL));
    OK(cuCtxGetCurrent(&current));
    CHECK(current == a); /* what lay below */
    OK(cuCtxSetCurrent(b));
    OK(cuCtxDestroy_v2(b));
    CHECK_INT(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_INT(cuCtxPushCurrent_v2(b), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_INT(cuCtxSetCurrent(b), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuCtxDestroy_v2(a));
}

static void *find_destroyed(void *arg) {
    pthread_barrier_t *barrier = ((void **)arg)[0];
    CUdeviceptr pointer;

    OK(cuCtxSetCurrent(((void **)arg)[1]));
    pthread_barrier_wait(barrier);
    pthread_barrier_wait(barrier);
    CHECK_INT(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    return NULL;
}

static void another_thread_finds_its_context_destroyed(void) {
    CUcontext context = context_on(0), fresh;
    pthread_barrier_t barrier;
    void *arg[] = {&barrier, context};
    pthread_t thread;

    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&thread, NULL, find_destroyed, arg);
    pthread_barrier_wait(&barrier);
    OK(cuCtxDestroy_v2(context));
    fresh = context_on(0); /* may well have the same handle */
    pthread_barrier_wait(&barrier);
    pthread_join(thread, NULL);
    OK(cuCtxDestroy_v2(fresh));
}

static _Atomic(CUcontext) latest;
static _Atomic bool contexts_end;

static void *ask_the_latest(void *arg) {
    CUdevice device;

    while (!atomic_load(&contexts_end)) {
        CUcontext context = atomic_load(&latest);
        if (context == NULL || cuCtxSetCurrent(context) != CUDA_SUCCESS)
            continue;
        while (cuCtxGetDevice(&device) == CUDA_SUCCESS)
            CHECK_INT(device, 0);
    }
    return arg;
}

/* More threads than processors, so that some are interrupted in the midst of the call. */
static void a_context_ends_in_the_midst_of_a_call(void) {
    pthread_t threads[6];

    for (unsigned i = 0; i < 6; i++)
        pthread_create(&threads[i], NULL, ask_the_latest, NULL);
    for (unsigned i = 0; i < 20000; i++) {
        CUcontext context = context_on(0);
        atomic_store(&latest, context);
        OK(cuCtxDestroy_v2(context));
    }
    atomic_store(&contexts_end, true);
    for (unsigned i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
}

static void primary_contexts_are_counted(void) {
    CUcontext a, b;
    unsigned flags;
    int active;

    OK(cuInit(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK_INT(active, 0);
    OK(cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_BLOCKING_SYNC));
    OK(cuDevicePrimaryCtxRetain(&a, 0));
    OK(cuDevicePrimaryCtxRetain(&b, 0));
    CHECK(a == b);
    CHECK_INT(look("test").used[0], GPU0_CONTEXT);
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK_INT(active, 1);
    CHECK_INT(flags, CU_CTX_SCHED_BLOCKING_SYNC);
    CHECK_INT(cuDevicePrimaryCtxSetFlags(0, 0), CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE);
    OK(cuDevicePrimaryCtxSetFlags_v2(0, 0));
    CHECK_INT(cuCtxDestroy_v2(a), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    CHECK_INT(look("test").used[0], GPU0_CONTEXT);
    OK(cuDevicePrimaryCtxRelease(0));
    CHECK_INT(look("test").used[0], 0);
    CHECK_INT(cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_INT(cuDevicePrimaryCtxRetain(&a, 9), CUDA_ERROR_INVALID_DEVICE);
}

static void reset_gives_everything_back_and_the_handle_stays(void) {
    CUcontext before, after;
    CUdeviceptr pointer;

    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&before, 0));
    OK(cuCtxSetCurrent(before));
    OK(cuMemAlloc_v2(&pointer, 100 * MIB));
    OK(cuDevicePrimaryCtxReset_v2(0));
    CHECK_INT(look("test").used[0], 0);
    CHECK_INT(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cuDevicePrimaryCtxRetain(&after, 0));
    CHECK(before == after);
    OK(cuMemAlloc_v2(&pointer, 1));
    CHECK_INT(look("test").used[0], GPU0_CONTEXT + 2 * MIB);
    OK(cuDevicePrimaryCtxReset(0));
    OK(cuDevicePrimaryCtxReset(1));
    CHECK_INT(look("test").used[0], 0);
}

static void no_context_without_room_for_it(void) {
    CUcontext context;
    CUdeviceptr pointer;

    context_on(0);
    OK(cuMemAlloc_v2(&pointer, GPU0_BYTES - 2 * GPU0_CONTEXT + 2 * MIB));
    CHECK_INT(cuCtxCreate_v2(&context, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFree_v2(pointer));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
}

static void limits(void) {
    size_t value;

    context_on(0);
    OK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
    CHECK_INT(value, 1024);
    OK(cuCtxGetLimit(&value, CU_LIMIT_MALLOC_HEAP_SIZE));
    CHECK_INT(value, 8 * MIB);
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 11 * MIB));
    CHECK_INT(look("test").used[0], GPU0_CONTEXT + 4 * MIB);
    CHECK_INT(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, GPU0_BYTES), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, MIB));
    CHECK_INT(look("test").used[0], GPU0_CONTEXT);
    CHECK_INT(cuCtxGetLimit(&value, 99), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuCtxGetLimit(&value, CU_LIMIT_CIG_ENABLED), CUDA_ERROR_UNSUPPORTED_LIMIT);
    CHECK_INT(cuCtxGetLimit(NULL, CU_LIMIT_STACK_SIZE), CUDA_ERROR_INVALID_VALUE);
}

static void what_a_context_tells(void) {
    CUcontext context = context_on(0), peer;
    unsigned long long id, other_id;
    unsigned version, flags;
    int yes;

    OK(cuCtxGetApiVersion(context, &version));
    CHECK_INT(version, 3020);
    OK(cuCtxGetFlags(&flags));
    CHECK_INT(flags, 0);
    OK(cuCtxGetId(NULL, &id));
    peer = context_on(1);
    OK(cuCtxGetId(peer, &other_id));
    CHECK(id != other_id);
    OK(cuDeviceCanAccessPeer(&yes, 1, 0));
    CHECK_INT(yes, 1);
    OK(cuCtxEnablePeerAccess(context, 0));
    CHECK_INT(cuCtxEnablePeerAccess(context, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    OK(cuCtxDisablePeerAccess(context));
    CHECK_INT(cuCtxDisablePeerAccess(context), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
}

const struct test context_tests[] = {
    {"a context costs its overhead", a_context_costs_its_overhead},
    {"destroying gives everything back", destroying_gives_everything_back},
    {"create checks its arguments", create_checks_its_arguments},
    {"the stack of contexts", the_stack_of_contexts},
    {"another thread finds its context destroyed", another_thread_finds_its_context_destroyed},
    {"a context ends in the midst of a call", a_context_ends_in_the_midst_of_a_call},
    {"primary contexts are counted", primary_contexts_are_counted},
    {"reset gives everything back and the handle stays", reset_gives_everything_back_and_the_handle_stays},
    {"no context without room for it", no_context_without_room_for_it},
    {"limits", limits},
    {"what a context tells", what_a_context_tells},
    {0},
};
