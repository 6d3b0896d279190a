/* Memory pools: what they take from the GPU, what they keep, and when they give it back. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness.h"

#define CHUNK (32 * MIB)
#define ELEMENTS(array) (sizeof(array) / sizeof((array)[0]))

static int64_t code_bytes; /* of the kernels that work() loaded */

/* Bytes of GPU 0 beyond one context and its code. */
static int64_t taken(void) {
    return (int64_t)look("test").used[0] - (int64_t)GPU0_CONTEXT - code_bytes;
}

static uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute attribute) {
    cuuint64_t value = UINT64_MAX;

    OK(cuMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

static uint64_t reserved(CUmemoryPool pool) {
    return attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
}

static uint64_t used(CUmemoryPool pool) {
    return attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
}

static void set_threshold(CUmemoryPool pool, cuuint64_t bytes) {
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes));
}

static CUmemoryPool default_pool(int device) {
    CUmemoryPool pool = NULL;

    OK(cuDeviceGetDefaultMemPool(&pool, device));
    return pool;
}

static CUmemoryPool new_pool(int device, size_t max_size) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
                            .maxSize = max_size};
    CUmemoryPool pool = NULL;

    OK(cuMemPoolCreate(&pool, &props));
    return pool;
}

static CUstream new_stream(void) {
    CUstream stream = NULL;

    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

/* A kernel that takes `ms` milliseconds, in the stream. */
static void work(CUstream stream, unsigned ms) {
    char image[256];
    CUfunction function;
    CUmodule module;
    int64_t before = taken();

    snprintf(image, sizeof(image), ".version 8.0\n.target sm_80\n.visible .entry spin_%ums()\n{\nret;\n}\n", ms);
    OK(cuModuleLoadData(&module, image));
    snprintf(image, sizeof(image), "spin_%ums", ms);
    OK(cuModuleGetFunction(&function, module, image));
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    code_bytes += taken() - before;
}

static void wait_at(void *open) {
    while (!atomic_load((_Atomic bool *)open))
        sleep_ms(1);
}

/* The GPU gets no further in the stream until `open` is true. A kernel would be over after its time, however little of that
 * a busy machine gave the test. */
static void gate(CUstream stream, _Atomic bool *open) {
    OK(cuLaunchHostFunc(stream, wait_at, open));
}

static void a_pool_grows_by_chunks(void) {
    CUdeviceptr small, large, larger;
    CUmemoryPool pool;

    context_on(0);
    pool = default_pool(0);
    CHECK_INT(taken(), 0);
    OK(cuMemAllocAsync(&small, 100, NULL));
    CHECK_INT(small % 512, 0);
    CHECK_INT(taken(), CHUNK);
    CHECK_INT(reserved(pool), CHUNK);
    CHECK_INT(used(pool), 512);
    OK(cuMemAllocAsync(&large, 20 * MIB, NULL));
    CHECK_INT(taken(), CHUNK);
    OK(cuMemAllocAsync(&larger, 33 * MIB, NULL));
    CHECK_INT(taken(), 3 * CHUNK);
    CHECK_INT(reserved(pool), 3 * CHUNK);
    CHECK_INT(used(pool), 512 + 53 * MIB);
}

static void what_is_freed_stays_until_a_synchronisation(void) {
    enum { STREAM, EVENT, CONTEXT, WAYS };
    CUdeviceptr pointer, other;
    CUmemoryPool pool;
    CUstream stream;
    CUevent event;

    context_on(0);
    pool = default_pool(0);
    stream = new_stream();
    OK(cuEventCreate(&event, 0));
    for (int way = 0; way < WAYS; way++) {
        OK(cuMemAllocAsync(&pointer, 40 * MIB, stream));
        OK(cuMemAllocAsync(&other, 100, stream));
        OK(cuMemFreeAsync(pointer, stream));
        CHECK_INT(taken(), 2 * CHUNK);
        CHECK_INT(reserved(pool), 2 * CHUNK);
        CHECK_INT(used(pool), 512);
        OK(cuMemFreeAsync(other, stream));
        OK(cuEventRecord(event, stream));
        CHECK_INT(taken(), 2 * CHUNK);
        if (way == STREAM)
            OK(cuStreamSynchronize(stream));
        else if (way == EVENT)
            OK(cuEventSynchronize(event));
        else
            OK(cuCtxSynchronize());
        CHECK_INT(taken(), 0);
        CHECK_INT(reserved(pool), 0);
    }
    CHECK_INT(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 2 * CHUNK);
}

static void only_wholly_unused_chunks_go(void) {
    CUdeviceptr kept, pointers[3];
    CUmemoryPool pool;

    context_on(0);
    pool = default_pool(0);
    for (int i = 0; i < 3; i++)
        OK(cuMemAllocAsync(&pointers[i], 24 * MIB, NULL));
    OK(cuMemAllocAsync(&kept, 100, NULL));
    CHECK_INT(taken(), 3 * CHUNK);
    for (int i = 0; i < 3; i++)
        OK(cuMemFreeAsync(pointers[i], NULL));
    OK(cuCtxSynchronize());
    CHECK_INT(taken(), CHUNK);
    CHECK_INT(reserved(pool), CHUNK);
    OK(cuMemFreeAsync(kept, NULL));
    OK(cuCtxSynchronize());
    CHECK_INT(taken(), 0);
}

static void the_threshold_holds_memory_back(void) {
    CUdeviceptr pointers[3];
    CUmemoryPool pool;

    context_on(0);
    pool = default_pool(0);
    set_threshold(pool, 2 * CHUNK);
    CHECK_INT(attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 2 * CHUNK);
    for (int i = 0; i < 3; i++)
        OK(cuMemAllocAsync(&pointers[i], CHUNK, NULL));
    for (int i = 0; i < 3; i++)
        OK(cuMemFreeAsync(pointers[i], NULL));
    OK(cuCtxSynchronize());
    CHECK_INT(taken(), 2 * CHUNK);
    OK(cuMemPoolTrimTo(pool, CHUNK + 1));
    CHECK_INT(taken(), 2 * CHUNK);
    OK(cuMemPoolTrimTo(pool, CHUNK));
    CHECK_INT(taken(), CHUNK);
    OK(cuMemPoolTrimTo(pool, 0));
    CHECK_INT(taken(), 0);
}

static void what_is_freed_is_used_again(void) {
    _Atomic bool open = false;
    CUdeviceptr first, again;
    CUstream a, b;

    context_on(0);
    a = new_stream();
    b = new_stream();
    OK(cuMemAllocAsync(&first, CHUNK, a));
    gate(a, &open);
    OK(cuMemFreeAsync(first, a));
    /* The same stream can have it at once; the other not, since the GPU has not got there. */
    OK(cuMemAllocAsync(&again, CHUNK, b));
    CHECK(again != first);
    CHECK_INT(taken(), 2 * CHUNK);
    OK(cuMemFreeAsync(again, b));
    OK(cuMemAllocAsync(&again, CHUNK, a));
    CHECK(again == first);
    OK(cuMemFreeAsync(again, a));
    OK(cuMemPoolTrimTo(default_pool(0), 0));
    CHECK_INT(taken(), CHUNK);
    atomic_store(&open, true);
    OK(cuStreamSynchronize(a));
    CHECK_INT(taken(), 0);
    /* After a kernel, too. That one may be over before the other stream asks, which may have the memory then. */
    OK(cuMemAllocAsync(&first, CHUNK, a));
    work(a, 60);
    OK(cuMemFreeAsync(first, a));
    OK(cuMemAllocAsync(&again, CHUNK, b));
    CHECK(again != first || cuStreamQuery(a) == CUDA_SUCCESS);
}

static void an_event_hands_memory_over(void) {
    CUdeviceptr first, again;
    CUstream a, b;
    CUevent event;

    context_on(0);
    a = new_stream();
    b = new_stream();
    OK(cuEventCreate(&event, 0));
    OK(cuMemAllocAsync(&first, CHUNK, a));
    work(a, 60);
    OK(cuMemFreeAsync(first, a));
    OK(cuEventRecord(event, a));
    OK(cuStreamWaitEvent(b, event, 0));
    OK(cuMemAllocAsync(&again, CHUNK, b));
    CHECK(again == first);
    OK(cuMemFreeAsync(again, b));
    OK(cuCtxSynchronize());
}

static void flags_say_what_may_be_used_again(void) {
    static const CUmemPool_attribute flags[] = {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
                                                CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
                                                CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES};
    CUdeviceptr first, again;
    CUstream a, b;
    CUmemoryPool pool;
    int value;

    context_on(0);
    pool = default_pool(0);
    for (size_t i = 0; i < ELEMENTS(flags); i++) {
        OK(cuMemPoolGetAttribute(pool, flags[i], &value));
        CHECK_INT(value, 1);
        value = 0;
        OK(cuMemPoolSetAttribute(pool, flags[i], &value));
        OK(cuMemPoolGetAttribute(pool, flags[i], &value));
        CHECK_INT(value, 0);
    }
    a = new_stream();
    b = new_stream();
    OK(cuMemAllocAsync(&first, CHUNK, a));
    OK(cuMemFreeAsync(first, a));
    OK(cuMemAllocAsync(&again, CHUNK, b));
    CHECK(again != first);
    CHECK_INT(taken(), 2 * CHUNK);
    OK(cuMemFreeAsync(again, b));
    OK(cuCtxSynchronize());
    CHECK_INT(taken(), 0);
}

static void a_full_gpu_is_filled_in_small_steps(void) {
    uint64_t room = GPU0_BYTES - GPU0_CONTEXT;
    CUdeviceptr other, most, rest, none;

    context_on(0);
    OK(cuMemAlloc_v2(&other, 20 * MIB));
    OK(cuMemAllocAsync(&most, room - 30 * MIB, NULL));
    CHECK_INT(taken(), room - 10 * MIB);
    OK(cuMemAllocAsync(&rest, 9 * MIB, NULL));
    CHECK_INT(taken(), room);
    OK(cuMemAllocAsync(&none, MIB, NULL));
    CHECK_INT(cuMemAllocAsync(&other, 512, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(cuMemAllocAsync(&other, SIZE_MAX, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFreeAsync(most, NULL));
    OK(cuMemFreeAsync(rest, NULL));
    OK(cuMemFreeAsync(none, NULL));
    CHECK_INT(taken(), room);
    /* Chunks that are unused but each too small make room for a larger one. */
    OK(cuMemAllocAsync(&most, room - 25 * MIB, NULL));
    CHECK_INT(taken(), room - 4 * MIB);
}

static void a_full_gpu_waits_for_another_streams_free(void) {
    uint64_t room = GPU0_BYTES - GPU0_CONTEXT - 2 * MIB;
    CUdeviceptr first, again;
    CUevent freed, had;
    CUstream a, b;
    float ms = -1;

    context_on(0);
    a = new_stream();
    b = new_stream();
    OK(cuEventCreate(&freed, 0));
    OK(cuEventCreate(&had, 0));
    OK(cuMemAllocAsync(&first, room, a));
    work(a, 40);
    OK(cuMemFreeAsync(first, a));
    OK(cuEventRecord(freed, a));
    OK(cuMemAllocAsync(&again, room, b));
    OK(cuEventRecord(had, b));
    OK(cuMemFreeAsync(again, b));
    OK(cuStreamSynchronize(b));
    CHECK_INT(taken(), 0);
    /* By the GPU's clock, since the kernel may be over before the test is asked to go on. */
    OK(cuEventElapsedTime(&ms, freed, had));
    CHECK(ms >= 0);
}

static void a_pool_has_a_largest_size(void) {
    CUdeviceptr pointer, more;
    CUmemoryPool pool;

    context_on(0);
    pool = new_pool(0, 41 * MIB);
    OK(cuMemAllocFromPoolAsync(&pointer, 100, pool, NULL));
    CHECK_INT(taken(), CHUNK);
    CHECK_INT(cuMemAllocFromPoolAsync(&more, 43 * MIB, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAllocFromPoolAsync(&more, CHUNK - MIB, pool, NULL));
    CHECK_INT(taken(), CHUNK);
    CHECK_INT(cuMemAllocFromPoolAsync(&pointer, 11 * MIB, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAllocFromPoolAsync(&pointer, 10 * MIB, pool, NULL));
    CHECK_INT(taken(), 42 * MIB);
    CHECK_INT(reserved(pool), 42 * MIB);
}

static void a_destroyed_pool_lives_until_its_last_free(void) {
    CUdeviceptr a, b;
    CUmemoryPool pool, none;
    CUstream stream;

    context_on(0);
    stream = new_stream();
    pool = new_pool(0, 0);
    set_threshold(pool, UINT64_MAX);
    OK(cuMemAllocFromPoolAsync(&a, CHUNK, pool, stream));
    OK(cuMemAllocFromPoolAsync(&b, CHUNK, pool, stream));
    OK(cuMemPoolDestroy(pool));
    CHECK_INT(taken(), 2 * CHUNK);
    CHECK_INT(cuMemAllocFromPoolAsync(&a, 1, pool, stream), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemPoolTrimTo(pool, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuPointerGetAttribute(&none, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, a));
    CHECK(none == NULL);
    OK(cuMemFreeAsync(a, stream));
    OK(cuMemFree_v2(b));
    CHECK_INT(taken(), 0);
    CHECK_INT(cuMemFreeAsync(a, stream), CUDA_ERROR_INVALID_VALUE);
}

/* Nobody synchronises: the GPU's own progress gives the memory back. */
static void a_destroyed_pool_ends_with_its_work(void) {
    _Atomic bool open = false;
    CUdeviceptr pointer;
    CUmemoryPool pool;
    CUstream stream;
    uint64_t start;

    context_on(0);
    stream = new_stream();
    pool = new_pool(0, 0);
    OK(cuMemAllocFromPoolAsync(&pointer, CHUNK, pool, stream));
    work(stream, 40);
    gate(stream, &open);
    OK(cuMemFreeAsync(pointer, stream));
    OK(cuMemPoolDestroy(pool));
    CHECK_INT(taken(), CHUNK);
    atomic_store(&open, true);
    for (start = now_ns(); taken() != 0 && now_ns() - start < 2000000000u;)
        sleep_ms(5);
    CHECK_INT(taken(), 0);
}

/* Memory that is freed behind one host function, with another behind the free, and perhaps a third in another stream between. */
static void free_between(CUstream stream, CUstream other) {
    _Atomic bool before = false, elsewhere = false, after = false;
    CUmemoryPool pool = new_pool(0, 0);
    CUdeviceptr pointer;
    CUevent event;
    bool done = false;

    OK(cuEventCreate(&event, 0));
    OK(cuMemAllocFromPoolAsync(&pointer, CHUNK, pool, stream));
    gate(stream, &before);
    if (other != NULL)
        gate(other, &elsewhere);
    OK(cuMemFreeAsync(pointer, stream));
    OK(cuEventRecord(event, stream));
    gate(stream, &after);
    OK(cuMemPoolDestroy(pool));
    CHECK_INT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    CHECK_INT(taken(), CHUNK);
    atomic_store(&before, true);
    for (uint64_t start = now_ns(); !(done = cuEventQuery(event) == CUDA_SUCCESS) && now_ns() - start < 2000000000u;)
        sleep_ms(1);
    CHECK(done);
    if (done)
        OK(cuEventSynchronize(event));
    CHECK_INT(taken(), 0);
    atomic_store(&elsewhere, true);
    atomic_store(&after, true);
    OK(cuCtxSynchronize());
}

static void a_free_waits_only_for_what_comes_before_it(void) {
    CUstream stream, other;

    context_on(0);
    stream = new_stream();
    other = new_stream();
    free_between(stream, NULL);
    free_between(NULL, NULL);
    free_between(stream, other);
    free_between(NULL, other);
}

static void a_device_has_a_current_pool(void) {
    CUmemoryPool pool, current, other;
    CUdeviceptr pointer;

    context_on(0);
    pool = new_pool(0, 0);
    other = new_pool(1, 0);
    OK(cuDeviceGetMemPool(&current, 0));
    CHECK(current == default_pool(0));
    CHECK_INT(cuDeviceSetMemPool(0, other), CUDA_ERROR_INVALID_VALUE);
    OK(cuDeviceSetMemPool(0, pool));
    OK(cuDeviceGetMemPool(&current, 0));
    CHECK(current == pool);
    OK(cuMemAllocAsync(&pointer, 1, NULL));
    CHECK_INT(reserved(pool), CHUNK);
    CHECK_INT(reserved(default_pool(0)), 0);
    OK(cuMemPoolDestroy(pool));
    OK(cuDeviceGetMemPool(&current, 0));
    CHECK(current == default_pool(0));
    CHECK_INT(cuMemPoolDestroy(current), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuDeviceGetMemPool(&current, 2), CUDA_ERROR_INVALID_DEVICE);
}

static void a_pool_may_lie_on_another_gpu(void) {
    CUmemAccess_flags flags;
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, there = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
    CUmemAccessDesc desc = {here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr pointer;
    CUmemoryPool pool;
    int ordinal;

    context_on(0);
    pool = new_pool(1, 0);
    OK(cuMemPoolGetAccess(&flags, pool, &here));
    CHECK_INT(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    OK(cuMemPoolGetAccess(&flags, pool, &there));
    CHECK_INT(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(cuMemPoolSetAccess(pool, &desc, 1));
    OK(cuMemPoolGetAccess(&flags, pool, &here));
    CHECK_INT(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    desc = (CUmemAccessDesc){there, CU_MEM_ACCESS_FLAGS_PROT_NONE};
    CHECK_INT(cuMemPoolSetAccess(pool, &desc, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAllocFromPoolAsync(&pointer, MIB, pool, NULL));
    CHECK_INT(look("test").used[1], CHUNK);
    CHECK_INT(taken(), 0);
    OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer));
    CHECK_INT(ordinal, 1);
}

static void pointers_tell_their_pool(void) {
    unsigned long long id, other_id;
    CUmemoryPool pool, named;
    CUdeviceptr a, b, base;
    CUcontext context;
    size_t size;
    char text[8] = "";

    context_on(0);
    pool = new_pool(0, 0);
    OK(cuMemAllocFromPoolAsync(&a, 1000, pool, NULL));
    OK(cuMemAllocFromPoolAsync(&b, 3 * MIB, pool, NULL));
    OK(cuPointerGetAttribute(&named, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, b + 2 * MIB));
    CHECK(named == pool);
    OK(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, b));
    CHECK(context == NULL);
    OK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, a));
    OK(cuPointerGetAttribute(&other_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, b));
    CHECK(id != other_id);
    OK(cuMemGetAddressRange_v2(&base, &size, a + 999));
    CHECK_INT(base, a);
    CHECK_INT(size, 1000);
    CHECK_INT(cuMemGetAddressRange_v2(&base, &size, a + 1000), CUDA_ERROR_NOT_FOUND);
    OK(cuMemcpyHtoD_v2(b + 2 * MIB, "pooled", 7));
    OK(cuMemcpyDtoH_v2(text, b + 2 * MIB, 7));
    CHECK(strcmp(text, "pooled") == 0);
    CHECK_INT(cuMemcpyHtoD_v2(a, text, 1001), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAlloc_v2(&b, 1));
    OK(cuPointerGetAttribute(&named, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, b));
    CHECK(named == NULL);
}

static void either_free_takes_either_memory(void) {
    CUdeviceptr plain, pooled;

    context_on(0);
    OK(cuMemAlloc_v2(&plain, 10 * MIB));
    OK(cuMemFreeAsync(plain, NULL));
    CHECK_INT(taken(), 0);
    CHECK_INT(cuMemFreeAsync(plain, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAllocAsync(&pooled, 10 * MIB, NULL));
    OK(cuMemFree_v2(pooled));
    CHECK_INT(used(default_pool(0)), 0);
    CHECK_INT(cuMemFree_v2(pooled), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemFreeAsync(pooled, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAllocAsync(&pooled, 10 * MIB, NULL));
    CHECK_INT(cuMemFreeAsync(pooled + 512, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemFree_v2(pooled + 512), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemFreeAsync(0, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemFreeAsync((uintptr_t)&plain, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFreeAsync(pooled, NULL));
    OK(cuCtxSynchronize());
    CHECK_INT(taken(), 0);
}

static void bad_calls_are_refused(void) {
    CUmemPoolProps good = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemPoolProps bad;
    CUdeviceptr pointer;
    CUmemoryPool pool;
    cuuint64_t value = 1;

    CHECK_INT(cuMemPoolCreate(&pool, &good), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_INT(cuMemAllocAsync(&pointer, 1, NULL), CUDA_ERROR_NOT_INITIALIZED);
    OK(cuInit(0));
    CHECK_INT(cuMemAllocAsync(&pointer, 1, NULL), CUDA_ERROR_INVALID_CONTEXT);
    context_on(0);
    CHECK_INT(cuMemAllocAsync(&pointer, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemAllocAsync(NULL, 1, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemAllocAsync(&pointer, 1, (CUstream)0x1234), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(cuMemAllocFromPoolAsync(&pointer, 1, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    bad = good;
    bad.allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
    CHECK_INT(cuMemPoolCreate(&pool, &bad), CUDA_ERROR_INVALID_VALUE);
    bad = good;
    bad.location.type = CU_MEM_LOCATION_TYPE_HOST;
    CHECK_INT(cuMemPoolCreate(&pool, &bad), CUDA_ERROR_INVALID_VALUE);
    bad = good;
    bad.location.id = 7;
    CHECK_INT(cuMemPoolCreate(&pool, &bad), CUDA_ERROR_INVALID_DEVICE);
    bad = good;
    bad.handleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
    CHECK_INT(cuMemPoolCreate(&pool, &bad), CUDA_ERROR_NOT_SUPPORTED);
    pool = default_pool(0);
    CHECK_INT(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &value), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemPoolGetAttribute(pool, 99, &value), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(taken(), 0);
}

static void pools_outlive_contexts_but_not_a_reset(void) {
    CUdeviceptr from_default, from_own;
    CUcontext explicit, primary;
    CUmemoryPool own;

    explicit = context_on(0);
    own = new_pool(0, 0);
    OK(cuMemAllocAsync(&from_default, MIB, NULL));
    OK(cuMemAllocFromPoolAsync(&from_own, MIB, own, NULL));
    OK(cuCtxDestroy_v2(explicit));
    CHECK_INT(look("test").used[0], 2 * CHUNK);
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    OK(cuMemcpyHtoD_v2(from_default, "still there", 12));
    OK(cuDevicePrimaryCtxReset_v2(0));
    CHECK_INT(look("test").used[0], CHUNK);
    CHECK_INT(reserved(default_pool(0)), 0);
    CHECK_INT(used(default_pool(0)), 0);
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    CHECK_INT(cuMemFree_v2(from_default), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(from_own));
    OK(cuMemPoolDestroy(own));
    CHECK_INT(taken(), 0);
}

static void use_a_parents_pool(void *arg) {
    CUmemoryPool pool = arg;
    CUdeviceptr pointer;

    CHECK_INT(cuMemAllocFromPoolAsync(&pointer, 1, pool, NULL), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_INT(cuMemPoolTrimTo(pool, 0), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_INT(cuMemPoolDestroy(pool), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_INT(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_ERROR_NOT_INITIALIZED);
}

static void a_child_finds_no_pools(void) {
    struct worker worker;
    CUdeviceptr pointer;
    CUmemoryPool pool;

    context_on(0);
    pool = new_pool(0, 0);
    OK(cuMemAllocFromPoolAsync(&pointer, 1, pool, NULL));
    worker = worker_start(use_a_parents_pool, pool);
    worker_join(&worker);
    CHECK_INT(taken(), CHUNK);
    OK(cuMemFreeAsync(pointer, NULL));
}

static void ordered_faults_come(void) {
    CUdeviceptr pointer;

    context_on(0);
    OK(sim_open());
    OK(cuMemAllocAsync(&pointer, 1, NULL));
    OK(sim_fault_alloc(0, 1, CUDA_ERROR_OUT_OF_MEMORY));
    CHECK_INT(cuMemAllocAsync(&pointer, 1, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAllocAsync(&pointer, 1, NULL));
}

struct churn {
    CUcontext context;
    CUmemoryPool pool;
    unsigned seed;
    int errors;
};

static void *churn(void *arg) {
    struct churn *c = arg;
    CUdeviceptr held[16] = {0};
    CUstream stream;

    cuCtxSetCurrent(c->context);
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 4000; i++) {
        CUdeviceptr *slot = &held[rand_r(&c->seed) % ELEMENTS(held)];

        if (*slot != 0) {
            c->errors += cuMemFreeAsync(*slot, stream) != CUDA_SUCCESS;
            *slot = 0;
        } else {
            c->errors += cuMemAllocFromPoolAsync(slot, 1 + (uint64_t)rand_r(&c->seed) % (2 * MIB), c->pool, stream) !=
                         CUDA_SUCCESS;
        }
        if (i % 97 == 0)
            cuStreamSynchronize(stream);
    }
    for (size_t i = 0; i < ELEMENTS(held); i++) {
        if (held[i] != 0)
            c->errors += cuMemFreeAsync(held[i], stream) != CUDA_SUCCESS;
    }
    cuStreamSynchronize(stream);
    return NULL;
}

static void many_threads_share_a_pool(void) {
    struct churn churns[8];
    pthread_t threads[8];
    CUcontext context = context_on(0);
    CUmemoryPool pool = new_pool(0, 0);

    for (unsigned i = 0; i < 8; i++) {
        churns[i] = (struct churn){context, pool, i, 0};
        pthread_create(&threads[i], NULL, churn, &churns[i]);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        CHECK_INT(churns[i].errors, 0);
    }
    CHECK_INT(used(pool), 0);
    CHECK_INT(reserved(pool), 0);
    CHECK_INT(taken(), 0);
    CHECK_INT(look("test").sum[0].allocations, 0);
}

/* ---- Between processes. The worker imports what the test exports. ---- */

static int channel[2];

static void send_pool(int fd, const CUmemPoolPtrExportData *data) {
    char control[CMSG_SPACE(sizeof(int))] = "";
    struct iovec part = {(void *)(uintptr_t)data, sizeof(*data)};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    CHECK(sendmsg(channel[0], &message, 0) == (ssize_t)sizeof(*data));
}

static int receive_pool(CUmemPoolPtrExportData *data) {
    char control[CMSG_SPACE(sizeof(int))] = "";
    struct iovec part = {data, sizeof(*data)};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    int fd = -1;

    CHECK(recvmsg(channel[1], &message, 0) == (ssize_t)sizeof(*data));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
    return fd;
}

static void import_pool(void *unused) {
    CUmemPoolPtrExportData data;
    CUdeviceptr pointer, none;
    CUmemoryPool pool = NULL;
    char text[8] = "";
    int fd;

    (void)unused;
    context_on(0);
    fd = receive_pool(&data);
    OK(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    close(fd);
    CHECK_INT(cuMemAllocFromPoolAsync(&none, 1, pool, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuDeviceSetMemPool(0, pool), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemPoolImportPointer(&pointer, pool, &data));
    OK(cuMemcpyDtoH_v2(text, pointer, 7));
    CHECK(strcmp(text, "shared") == 0);
    CHECK_INT(reserved(pool), 0);
    data.reserved[8]++;
    CHECK_INT(cuMemPoolImportPointer(&none, pool, &data), CUDA_ERROR_INVALID_VALUE);
    say('i');
    hear(); /* the exporter gave up what it had */
    OK(cuMemcpyDtoH_v2(text, pointer, 7));
    OK(cuMemFreeAsync(pointer, NULL));
    CHECK_INT(cuMemFreeAsync(pointer, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemPoolDestroy(pool));
    say('d');
    hear();
}

static void export_pool(void *unused) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemPoolPtrExportData data;
    CUdeviceptr first, pointer;
    CUmemoryPool pool;
    int fd = -1;

    (void)unused;
    context_on(0);
    OK(cuMemAllocAsync(&first, 1, NULL));
    CHECK_INT(cuMemPoolExportPointer(&data, first), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemPoolExportToShareableHandle(&fd, default_pool(0), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(first));
    OK(cuCtxSynchronize());
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemAllocFromPoolAsync(&first, 3 * MIB, pool, NULL));
    OK(cuMemAllocFromPoolAsync(&pointer, 40 * MIB, pool, NULL));
    CHECK_INT(reserved(pool), 3 * CHUNK);
    OK(cuMemFreeAsync(first, NULL));
    OK(cuMemPoolTrimTo(pool, 0));
    CHECK_INT(reserved(pool), 2 * CHUNK);
    OK(cuMemcpyHtoD_v2(pointer, "shared", 7));
    OK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemPoolExportPointer(&data, pointer));
    send_pool(fd, &data);
    close(fd);
    say('e');
    hear();
}

/* What the GPU gave to exporter and importer, contexts left out. */
static int64_t shared_bytes(int contexts) {
    return (int64_t)look("test").used[0] - contexts * (int64_t)GPU0_CONTEXT;
}

static void an_exported_pool_outlives_its_process(void) {
    struct worker exporter, importer;

    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, channel) == 0);
    exporter = worker_start(export_pool, NULL);
    importer = worker_start(import_pool, NULL);
    CHECK_INT(worker_hear(&exporter), 'e');
    CHECK_INT(worker_hear(&importer), 'i');
    CHECK_INT(shared_bytes(2), 2 * CHUNK);
    CHECK_INT(look("test").group_bytes[0], 2 * CHUNK + 2 * GPU0_CONTEXT);
    worker_kill(&exporter, SIGKILL);
    CHECK_INT(shared_bytes(1), 2 * CHUNK);
    worker_tell(&importer, 'g');
    CHECK_INT(worker_hear(&importer), 'd');
    CHECK_INT(shared_bytes(1), 0);
    worker_join(&importer);
}

static void device_attributes_tell_of_pools(void) {
    int value;

    OK(cuInit(0));
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0));
    CHECK_INT(value, 1);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 0));
    CHECK_INT(value, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

static void get_proc_address_knows_pools(void) {
    void *plain, *per_thread, *early;

    OK(cuInit(0));
    OK(cuGetProcAddress("cuMemAllocAsync", &plain, 11020, 0));
    OK(cuGetProcAddress("cuMemAllocAsync", &per_thread, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM));
    CHECK(plain == (void *)(uintptr_t)cuMemAllocAsync);
    CHECK(per_thread == (void *)(uintptr_t)cuMemAllocAsync_ptsz);
    CHECK_INT(cuGetProcAddress("cuMemAllocAsync", &early, 11010, 0), CUDA_ERROR_NOT_FOUND);
}

const struct test pool_tests[] = {
    {"a pool grows by chunks", a_pool_grows_by_chunks},
    {"what is freed stays until a synchronisation", what_is_freed_stays_until_a_synchronisation},
    {"only wholly unused chunks go", only_wholly_unused_chunks_go},
    {"the threshold holds memory back", the_threshold_holds_memory_back},
    {"what is freed is used again", what_is_freed_is_used_again},
    {"an event hands memory over", an_event_hands_memory_over},
    {"flags say what may be used again", flags_say_what_may_be_used_again},
    {"a full gpu is filled in small steps", a_full_gpu_is_filled_in_small_steps},
    {"a full gpu waits for another streams free", a_full_gpu_waits_for_another_streams_free},
    {"a pool has a largest size", a_pool_has_a_largest_size},
    {"a destroyed pool lives until its last free", a_destroyed_pool_lives_until_its_last_free},
    {"a destroyed pool ends with its work", a_destroyed_pool_ends_with_its_work},
    {"a free waits only for what comes before it", a_free_waits_only_for_what_comes_before_it},
    {"a device has a current pool", a_device_has_a_current_pool},
    {"a pool may lie on another gpu", a_pool_may_lie_on_another_gpu},
    {"pointers tell their pool", pointers_tell_their_pool},
    {"either free takes either memory", either_free_takes_either_memory},
    {"bad calls are refused", bad_calls_are_refused},
    {"pools outlive contexts but not a reset", pools_outlive_contexts_but_not_a_reset},
    {"a child finds no pools", a_child_finds_no_pools},
    {"ordered faults come", ordered_faults_come},
    {"many threads share a pool", many_threads_share_a_pool},
    {"an exported pool outlives its process", an_exported_pool_outlives_its_process},
    {"device attributes tell of pools", device_attributes_tell_of_pools},
    {"get proc address knows pools", get_proc_address_knows_pools},
    {0},
};
