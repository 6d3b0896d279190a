/*
 * Tests the shadow library's code with a driver that counts the memory in use and fails when a test requests it
 * (fake_driver.c). Each test runs in a process of its own.
 */
#include "../driver/cuda_real.h"
#include "../memory/reserve.h"
#include "../region/claims.h"
#include "../state/process.h"
#include "check.h"
#include "fake_driver.h"
#include "fake_graphs.h"
#include "fake_streams.h"
#include "fixture.h"
#include "objects_test.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB FAKE_MIB
#define LIMIT (1000 * MIB)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

CUresult fake_cuCtxSetCurrent(CUcontext context);
CUresult fake_cuCtxGetDevice(CUdevice *device);

static unsigned seed;

/* --- setting up --------------------------------------------------------------------------------------------------- */

/* Claims on devices 0 and 1; device 2 has none. */
static const char *claims(uint64_t limit_bytes) {
    const char *directory = fixture_directory();
    fixture_claim(directory, "00000000", fake_uuid(0), limit_bytes, FAKE_CONTEXT_BYTES);
    fixture_claim(directory, "00000001", fake_uuid(1), limit_bytes, FAKE_CONTEXT_BYTES);
    setenv("TRANCHE_REGIONS", directory, 1);
    return directory;
}

static CUcontext with_context(uint64_t limit_bytes) {
    CUcontext context = NULL;
    claims(limit_bytes);
    CHECK(cuInit(0) == CUDA_SUCCESS, "cuInit");
    CHECK(cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS, "cuCtxCreate");
    return context;
}

/* What the process has in reserve for small allocations. */
static uint64_t reserve(CUdevice device) {
    struct process *process = process_if_open();
    return process != NULL && reserve_place(&process->reserves[device]) != 0 ? 2 * MIB : 0;
}

/* What the shadow says is taken of the current device, beside the reserve. */
static uint64_t used(void) {
    size_t free = 0, total = 0;
    CUdevice device = 0;
    CUresult result = cuMemGetInfo_v2(&free, &total);
    CHECK(result == CUDA_SUCCESS && total == LIMIT, "cuMemGetInfo: %d, total %zu", result, total);
    fake_cuCtxGetDevice(&device);
    return total - free - reserve(device);
}

/* What the claim counts at this moment, beside the reserve; unlike cuMemGetInfo, this settles nothing. */
static uint64_t counted(void) {
    static struct claims looking;
    CHECK(claims_open(&looking, false), "cannot be read");
    uint64_t bytes = claims_used_bytes(&looking, claims_find_gpu(&looking, fake_uuid(0)));
    claims_close(&looking);
    return bytes - reserve(0);
}

/* What is said on stderr between redirect and collect. */
static int saved_stderr, reading_stderr;

static void redirect(void) {
    int ends[2];
    if (pipe(ends) != 0)
        abort();
    saved_stderr = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    reading_stderr = ends[0];
}

static const char *collect(void) {
    static char text[8192];
    dup2(saved_stderr, STDERR_FILENO);
    ssize_t size = read(reading_stderr, text, sizeof text - 1);
    text[size > 0 ? size : 0] = '\0';
    return text;
}

static unsigned lines_in(const char *text) {
    unsigned lines = 0;
    for (; *text != '\0'; text++)
        lines += *text == '\n';
    return lines;
}

/* --- one process -------------------------------------------------------------------------------------------------- */

static void test_limit(void) {
    CUdeviceptr first, second;
    with_context(LIMIT);
    CHECK(used() == 100 * MIB && fake_physical(0) == 100 * MIB, "used %llu", (unsigned long long)used());
    CHECK(cuMemAlloc_v2(&first, 898 * MIB) == CUDA_SUCCESS, "what is left, but one block");
    CHECK(cuMemAlloc_v2(&second, 2 * MIB + 1) == CUDA_ERROR_OUT_OF_MEMORY, "one byte too much");
    CHECK(cuMemAlloc_v2(&second, 2 * MIB - 1) == CUDA_SUCCESS, "the last block");
    CHECK(used() == LIMIT, "used %llu", (unsigned long long)used());
    CHECK(cuMemFree_v2(second) == CUDA_SUCCESS && cuMemFree_v2(first) == CUDA_SUCCESS, "freed");
    CHECK(used() == 100 * MIB, "used %llu", (unsigned long long)used());
    CHECK(fake_peak(0) == LIMIT, "peak %llu", (unsigned long long)fake_peak(0));
    CHECK(cuMemAlloc_v2(&first, SIZE_MAX) == CUDA_ERROR_OUT_OF_MEMORY, "all the address space");
    CHECK(cuMemAlloc_v2(&first, SIZE_MAX - 2 * MIB) == CUDA_ERROR_OUT_OF_MEMORY, "nearly");
}

static void test_small_allocations_share_blocks(void) {
    enum { IN_A_BLOCK = 4096, MANY = 5 * IN_A_BLOCK };
    static CUdeviceptr addresses[MANY];
    with_context(LIMIT);
    for (int i = 0; i < MANY; i++)
        if (cuMemAlloc_v2(&addresses[i], 1 + (unsigned)i % 512) != CUDA_SUCCESS)
            abort();
    CHECK(used() == 110 * MIB, "used %llu", (unsigned long long)used());
    for (int i = 0; i < MANY; i++)
        if (i % IN_A_BLOCK != 17 && cuMemFree_v2(addresses[i]) != CUDA_SUCCESS)
            abort();
    CHECK(used() == 110 * MIB && used() == fake_physical(0), "used %llu", (unsigned long long)used());
    for (int i = 17; i < MANY; i += IN_A_BLOCK)
        cuMemFree_v2(addresses[i]);
    CHECK(used() == 100 * MIB && used() == fake_physical(0), "used %llu", (unsigned long long)used());
}

/* Fills the claim, and all but the last block with allocations of a block. Returns how many small ones there are. */
static int fill_with_small(CUdeviceptr *addresses, int most, size_t bytes, int blocks) {
    CUdeviceptr linear;
    int count = 0;
    CHECK(cuMemAlloc_v2(&linear, LIMIT - (102 + 2 * (uint64_t)blocks) * MIB) == CUDA_SUCCESS,
          "all but %d blocks and the reserve", blocks);
    while (count < most && cuMemAlloc_v2(&addresses[count], bytes) == CUDA_SUCCESS)
        count++;
    return count;
}

/* In a full claim what was freed within blocks can be allocated again, and what has no place there cannot. */
static void test_full_blocks_are_used_again(void) {
    enum { BLOCKS = 4, IN_A_BLOCK = 32, MANY = BLOCKS * IN_A_BLOCK };
    CUdeviceptr addresses[MANY + 1], other;
    with_context(LIMIT);
    CHECK(fill_with_small(addresses, MANY + 1, 64 << 10, BLOCKS) == MANY, "all blocks are full");
    for (int round = 0; round < 3; round++) {
        for (int i = round; i < MANY; i += 3)
            CHECK(cuMemFree_v2(addresses[i]) == CUDA_SUCCESS, "free %d", i);
        CHECK(cuMemAlloc_v2(&other, (64 << 10) + 1) == CUDA_ERROR_OUT_OF_MEMORY, "more than any hole");
        for (int i = round; i < MANY; i += 3)
            CHECK(cuMemAlloc_v2(&addresses[i], (64 << 10) - (unsigned)round) == CUDA_SUCCESS, "again %d", i);
        CHECK(cuMemAlloc_v2(&other, 1) == CUDA_ERROR_OUT_OF_MEMORY, "full");
    }
    CHECK(cuMemFree_v2(addresses[5]) == CUDA_SUCCESS && cuMemFree_v2(addresses[6]) == CUDA_SUCCESS, "neighbours");
    CHECK(cuMemAllocManaged(&other, 1, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_OUT_OF_MEMORY, "managed, in other blocks");
    CHECK(cuMemAlloc_v2(&other, 128 << 10) == CUDA_SUCCESS, "in the place of both");
    for (int i = 0; i < MANY; i++)
        CHECK(i == 5 || i == 6 || cuMemFree_v2(addresses[i]) == CUDA_SUCCESS, "end %d", i);
    CHECK(used() == LIMIT - 8 * MIB && fake_physical(0) == used(), "used %llu", (unsigned long long)used());
    CHECK(fake_peak(0) == LIMIT, "peak %llu", (unsigned long long)fake_peak(0));
}

/* A driver that takes a block though there is room: the reserve covers it until it is undone. */
static void test_block_though_there_is_room(void) {
    CUdeviceptr addresses[40], other;
    with_context(LIMIT);
    CHECK(fill_with_small(addresses, 40, 64 << 10, 1) == 32, "the block is full");
    CHECK(cuMemFree_v2(addresses[0]) == CUDA_SUCCESS, "a hole");
    fake_orders.new_block = true;
    CHECK(cuMemAlloc_v2(&other, 512) == CUDA_ERROR_OUT_OF_MEMORY && !fake_orders.new_block, "beside the hole");
    CHECK(fake_peak(0) == LIMIT && counted() == LIMIT - 2 * MIB && counted() == fake_physical(0), "undone: %llu",
          (unsigned long long)fake_physical(0));
    CHECK(cuMemAlloc_v2(&other, 512) == CUDA_SUCCESS && counted() == LIMIT - 2 * MIB, "in the hole");
}

static void begin_capture(CUdeviceptr address) {
    (void)address;
    fake_orders.captures = true;
}

/* Another thread begins a capture before an allocation that does not fit is undone. */
static void test_undone_during_a_capture(void) {
    CUdeviceptr addresses[40], other;
    with_context(LIMIT);
    CHECK(fill_with_small(addresses, 40, 64 << 10, 1) == 32, "the block is full");
    fake_orders.allocated = begin_capture;
    CHECK(cuMemAlloc_v2(&other, 512) == CUDA_ERROR_OUT_OF_MEMORY && fake_orders.captures, "refused");
    CHECK(fake_physical(0) == counted() && counted() == LIMIT - 2 * MIB, "undone: %llu",
          (unsigned long long)fake_physical(0));
    CHECK(cuMemFree_v2(addresses[0]) == CUDA_ERROR_NOT_PERMITTED, "forbidden to the program");
}

/* The reserve is there from the first small allocation on a GPU to the last. */
static void test_reserve(void) {
    CUdeviceptr first, second, large;
    with_context(LIMIT);
    CHECK(cuMemAlloc_v2(&first, 512) == CUDA_SUCCESS && reserve(0) != 0 && used() == 102 * MIB, "the first");
    CHECK(cuMemAlloc_v2(&large, LIMIT - 104 * MIB) == CUDA_SUCCESS, "the rest");
    CHECK(cuMemAlloc_v2(&large, 2 * MIB) == CUDA_ERROR_OUT_OF_MEMORY, "not the reserve");
    CHECK(cuMemAlloc_v2(&second, 512) == CUDA_SUCCESS, "beside the first");
    CHECK(cuMemFree_v2(first) == CUDA_SUCCESS && reserve(0) != 0, "one is left");
    CHECK(cuMemFree_v2(second) == CUDA_SUCCESS && reserve(0) == 0 && counted() == LIMIT - 4 * MIB, "none is left: %llu",
          (unsigned long long)counted());
    CHECK(cuMemAlloc_v2(&large, 2 * MIB) == CUDA_SUCCESS, "one block is left");
    CHECK(cuMemAlloc_v2(&first, 512) == CUDA_SUCCESS && reserve(0) == 0 && counted() == LIMIT, "without a reserve");
    CHECK(cuMemAlloc_v2(&second, 512) == CUDA_ERROR_OUT_OF_MEMORY, "nothing covers it");
    CHECK(cuMemFree_v2(large) == CUDA_SUCCESS && cuMemAlloc_v2(&second, 512) == CUDA_SUCCESS && reserve(0) != 0,
          "there is a reserve");
    CHECK(fake_peak(0) == LIMIT && cuMemFree_v2(first) == CUDA_SUCCESS && cuMemFree_v2(second) == CUDA_SUCCESS, "end");
}

enum { SMALL_THREADS = 4, SMALL_EACH = 16, SMALL_ROUNDS = 4000 };

static CUcontext of_threads;

static void *free_and_allocate_small(void *argument) {
    CUdeviceptr *addresses = argument;
    unsigned random = (unsigned)(uintptr_t)argument;
    fake_cuCtxSetCurrent(of_threads);
    for (int i = 0; i < SMALL_ROUNDS; i++) {
        CUdeviceptr *address = &addresses[rand_r(&random) % SMALL_EACH];
        if (*address == 0 && cuMemAlloc_v2(address, 64 << 10) != CUDA_SUCCESS)
            *address = 0;
        else if (rand_r(&random) % 2 == 0 && cuMemFree_v2(*address) == CUDA_SUCCESS)
            *address = 0;
    }
    return NULL;
}

/* More is wanted of the full blocks than they have: whoever finds room there must get that, and nothing else. */
static void test_full_blocks_of_many_threads(void) {
    CUdeviceptr addresses[SMALL_THREADS * SMALL_EACH] = {0};
    pthread_t threads[SMALL_THREADS];
    of_threads = with_context(LIMIT);
    CHECK(fill_with_small(addresses, SMALL_THREADS * SMALL_EACH, 64 << 10, 1) == 32, "full");
    for (int i = 0; i < SMALL_THREADS; i++)
        if (pthread_create(&threads[i], NULL, free_and_allocate_small, &addresses[i * SMALL_EACH]) != 0)
            abort();
    for (int i = 0; i < SMALL_THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK(fake_peak(0) == LIMIT && used() == fake_physical(0), "peak %llu", (unsigned long long)fake_peak(0));
}

static void test_old_forms(void) {
    CUdeviceptr_v1 address;
    CUcontext context;
    unsigned int pitch, free, total, bytes;
    with_context(LIMIT);
    redirect();
    CUresult linear = cuMemAlloc(&address, 1), pitched = cuMemAllocPitch(&address, &pitch, 1000, 1024, 4);
    const char *said = collect();
    CHECK(linear == CUDA_ERROR_NOT_SUPPORTED && pitched == linear && fake_physical(0) == 100 * MIB, "%d %d", linear,
          pitched);
    CHECK(lines_in(said) == 1 && strstr(said, "use cuMemAlloc_v2") != NULL, "said: %s", said);
    CHECK(cuMemGetInfo(&free, &total) == CUDA_SUCCESS && total == LIMIT && free == 900 * MIB, "%u of %u", free, total);
    CHECK(cuDeviceTotalMem(&bytes, 0) == CUDA_SUCCESS && bytes == LIMIT, "total %u", bytes);
    CHECK(cuCtxCreate(&context, 0, 0) == CUDA_SUCCESS && fake_physical(0) == 200 * MIB, "context");
    CHECK(cuCtxDestroy(context) == CUDA_SUCCESS && fake_physical(0) == 100 * MIB, "destroyed");
    CHECK(cuCtxCreate_v3(&context, NULL, 0, 0, 0) == CUDA_SUCCESS && used() == 200 * MIB, "context");
    CHECK(cuCtxCreate_v4(&context, NULL, 0, 0) == CUDA_ERROR_NOT_SUPPORTED, "what this driver does not have");
    CHECK(used() == fake_physical(0), "used %llu", (unsigned long long)used());
}

static void test_driver_errors_give_back(void) {
    CUdeviceptr address;
    CUcontext context;
    size_t pitch;
    with_context(LIMIT);
    fake_orders.fail_allocation = CUDA_ERROR_NOT_FOUND;
    CHECK(cuMemAlloc_v2(&address, 10 * MIB) == CUDA_ERROR_NOT_FOUND && used() == 100 * MIB, "alloc");
    fake_orders.fail_allocation = CUDA_ERROR_NOT_FOUND;
    CHECK(cuMemAlloc_v2(&address, 10) == CUDA_ERROR_NOT_FOUND && used() == 100 * MIB, "small alloc");
    fake_orders.fail_allocation = CUDA_ERROR_NOT_FOUND;
    CHECK(cuMemAllocPitch_v2(&address, &pitch, 100, 100, 4) == CUDA_ERROR_NOT_FOUND && used() == 100 * MIB, "pitch");
    fake_orders.fail_context = CUDA_ERROR_NOT_FOUND;
    CHECK(cuCtxCreate_v2(&context, 0, 0) == CUDA_ERROR_NOT_FOUND && used() == 100 * MIB, "context");
    fake_orders.fail_context = CUDA_ERROR_NOT_FOUND;
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_ERROR_NOT_FOUND && used() == 100 * MIB, "primary");

    CHECK(cuMemAlloc_v2(&address, 10 * MIB) == CUDA_SUCCESS, "alloc");
    fake_orders.fail_free = CUDA_ERROR_NOT_FOUND;
    CHECK(cuMemFree_v2(address) == CUDA_ERROR_NOT_FOUND && used() == 110 * MIB, "what is not freed stays counted");
    CHECK(cuMemFree_v2(address) == CUDA_SUCCESS && used() == 100 * MIB, "freed");
    CHECK(cuMemFree_v2(address) == CUDA_ERROR_INVALID_VALUE && used() == 100 * MIB, "double free");
    CHECK(cuMemFree_v2(0xdead000) == CUDA_ERROR_INVALID_VALUE && used() == 100 * MIB, "foreign address");
    CHECK(cuMemFree_v2(0) == CUDA_SUCCESS && used() == 100 * MIB, "no address");
    CHECK(cuMemAlloc_v2(&address, 0) == CUDA_ERROR_INVALID_VALUE && used() == 100 * MIB, "no bytes");
    CHECK(cuMemAlloc_v2(NULL, 10) == CUDA_ERROR_INVALID_VALUE && used() == 100 * MIB, "nowhere");
    CHECK(cuCtxDestroy_v2((CUcontext)0x1234) == CUDA_ERROR_INVALID_CONTEXT, "no context");
}

static void test_what_happens_unseen_is_caught_up(void) {
    CUdeviceptr address, again;
    CUcontext context = with_context(LIMIT), next, primary;
    CHECK(cuMemAlloc_v2(&address, 10 * MIB) == CUDA_SUCCESS, "alloc");
    fake_free_unseen(address);
    CHECK(cuMemAlloc_v2(&again, 6 * MIB) == CUDA_SUCCESS && again == address, "the same address");
    CHECK(used() == fake_physical(0), "used %llu", (unsigned long long)used());
    fake_destroy_unseen(context);
    CHECK(cuCtxCreate_v2(&next, 0, 0) == CUDA_SUCCESS && next == context, "the same handle");
    CHECK(used() == fake_physical(0) && used() == 100 * MIB, "used %llu", (unsigned long long)used());

    CHECK(cuDevicePrimaryCtxRetain(&primary, 1) == CUDA_SUCCESS, "primary");
    fake_cuCtxSetCurrent(primary);
    CHECK(cuMemAlloc_v2(&address, 10 * MIB) == CUDA_SUCCESS && used() == 110 * MIB, "alloc");
    REAL(cuDevicePrimaryCtxReset)(1);
    CHECK(cuDevicePrimaryCtxRetain(&primary, 1) == CUDA_SUCCESS, "primary again");
    fake_cuCtxSetCurrent(primary);
    CHECK(used() == fake_physical(1) && used() == 100 * MIB, "used %llu", (unsigned long long)used());
}

static void test_pitch_of_the_driver(void) {
    CUdeviceptr address;
    size_t pitch;
    with_context(LIMIT);
    CHECK(cuMemAllocPitch_v2(&address, &pitch, 1, 20480, 4) == CUDA_SUCCESS && pitch == 512, "pitch %zu", pitch);
    CHECK(used() == 110 * MIB, "used %llu", (unsigned long long)used());
    CHECK(cuMemFree_v2(address) == CUDA_SUCCESS && used() == 100 * MIB, "freed");
    fake_orders.pitch = 1024; /* more than we expect */
    CHECK(cuMemAllocPitch_v2(&address, &pitch, 1, 20480, 4) == CUDA_SUCCESS && pitch == 1024, "pitch %zu", pitch);
    CHECK(used() == 120 * MIB, "used %llu", (unsigned long long)used());
    CHECK(cuMemFree_v2(address) == CUDA_SUCCESS && used() == 100 * MIB, "freed");
    fake_orders.pitch = 64; /* less, so that it is packed */
    CHECK(cuMemAllocPitch_v2(&address, &pitch, 64, 4096, 4) == CUDA_SUCCESS && used() == 102 * MIB, "packed");
    CHECK(used() == fake_physical(0), "used %llu", (unsigned long long)used());
    CHECK(cuMemFree_v2(address) == CUDA_SUCCESS && used() == 100 * MIB, "freed");
    fake_orders.pitch = 64 * 1024;
    CHECK(cuMemAllocPitch_v2(&address, &pitch, 1, 20480, 4) == CUDA_ERROR_OUT_OF_MEMORY, "more than the limit");
    CHECK(used() == 100 * MIB && fake_physical(0) == 100 * MIB, "used %llu", (unsigned long long)used());
    CHECK(cuMemAllocPitch_v2(&address, &pitch, SIZE_MAX, SIZE_MAX, 4) == CUDA_ERROR_OUT_OF_MEMORY, "wraps");
    CHECK(cuMemAllocPitch_v2(&address, &pitch, 512, SIZE_MAX / 256, 4) == CUDA_ERROR_OUT_OF_MEMORY, "wraps");
}

static void test_contexts(void) {
    CUcontext context = with_context(LIMIT), second, primary, same;
    CUdeviceptr address;
    CHECK(cuMemAlloc_v2(&address, 100 * MIB) == CUDA_SUCCESS, "in the first");
    CHECK(cuCtxCreate_v2(&second, 0, 0) == CUDA_SUCCESS, "second");
    CHECK(cuMemAlloc_v2(&address, 100 * MIB) == CUDA_SUCCESS, "in the second");
    CHECK(cuMemAlloc_v2(&address, 5) == CUDA_SUCCESS, "a small one");
    CHECK(used() == 402 * MIB, "used %llu", (unsigned long long)used());
    CHECK(cuCtxDestroy_v2(context) == CUDA_SUCCESS && used() == 202 * MIB, "the first with its memory");
    CHECK(cuDevicePrimaryCtxRetain(&primary, 0) == CUDA_SUCCESS && used() == 302 * MIB, "primary");
    CHECK(cuDevicePrimaryCtxRetain(&same, 0) == CUDA_SUCCESS && same == primary && used() == 302 * MIB, "once");
    fake_cuCtxSetCurrent(primary);
    CHECK(cuMemAlloc_v2(&address, 2 * MIB) == CUDA_SUCCESS && used() == 304 * MIB, "in the primary");
    CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS && used() == 304 * MIB, "still retained");
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS, "released");
    fake_cuCtxSetCurrent(second);
    CHECK(used() == 202 * MIB && fake_physical(0) == 202 * MIB, "used %llu", (unsigned long long)used());
    CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_ERROR_INVALID_CONTEXT && used() == 202 * MIB, "once too often");
    CHECK(cuDevicePrimaryCtxRetain(&primary, 0) == CUDA_SUCCESS && used() == 302 * MIB, "primary");
    CHECK(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS && used() == 202 * MIB, "reset");
    CHECK(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS && used() == 202 * MIB, "reset again");
    CHECK(cuMemAlloc_v2(&address, 750 * MIB) == CUDA_SUCCESS, "no room for another context");
    CHECK(cuCtxCreate_v2(&context, 0, 0) == CUDA_ERROR_OUT_OF_MEMORY, "context");
    CHECK(cuDevicePrimaryCtxRetain(&primary, 0) == CUDA_ERROR_OUT_OF_MEMORY, "primary");
    CHECK(cuDevicePrimaryCtxRetain(&primary, -1) == CUDA_ERROR_INVALID_DEVICE, "no device");
    CHECK(cuDevicePrimaryCtxRetain(&primary, 1000) == CUDA_ERROR_INVALID_DEVICE, "no device");
    CHECK(cuDevicePrimaryCtxRelease_v2(-1) == CUDA_ERROR_INVALID_DEVICE, "no device");
    CHECK(cuDevicePrimaryCtxRetain(&primary, 1) == CUDA_SUCCESS, "the other GPU has a limit of its own");
    CHECK(fake_physical(1) == 100 * MIB, "physical %llu", (unsigned long long)fake_physical(1));
}

/* What the shadow says is taken of a device. */
static uint64_t used_of(CUcontext context) {
    CUcontext before = NULL;
    REAL(cuCtxGetCurrent)(&before);
    fake_cuCtxSetCurrent(context);
    uint64_t bytes = used();
    fake_cuCtxSetCurrent(before);
    return bytes;
}

static void test_managed_memory_counts_on_every_gpu(void) {
    enum { SMALL = 3000 };
    static CUdeviceptr small[SMALL];
    CUcontext first = with_context(LIMIT), second;
    CUdeviceptr address, other;
    CHECK(cuCtxCreate_v2(&second, 0, 1) == CUDA_SUCCESS && cuMemAlloc_v2(&other, 600 * MIB) == CUDA_SUCCESS, "second");
    fake_cuCtxSetCurrent(first);
    for (unsigned flags = 0; flags < 8; flags++) {
        CHECK(cuMemAllocManaged(&address, 300 * MIB, flags) == CUDA_SUCCESS, "with flags %u", flags);
        CHECK(used_of(first) == 400 * MIB && used_of(second) == 1000 * MIB, "flags %u", flags);
        CHECK(cuMemFree_v2(address) == CUDA_SUCCESS, "freed");
        CHECK(used_of(first) == 100 * MIB && used_of(second) == 700 * MIB, "flags %u", flags);
    }
    CHECK(cuMemAllocManaged(&address, 302 * MIB, 1) == CUDA_ERROR_OUT_OF_MEMORY, "more than the other GPU has");
    CHECK(used_of(first) == 100 * MIB && used_of(second) == 700 * MIB, "nothing is kept of what was refused");
    CHECK(cuMemAllocManaged(&address, 0, 1) == CUDA_ERROR_INVALID_VALUE, "no bytes");
    CHECK(cuMemAllocManaged(NULL, 10, 1) == CUDA_ERROR_INVALID_VALUE, "nowhere");
    CHECK(cuMemAllocManaged(&address, SIZE_MAX, 1) == CUDA_ERROR_OUT_OF_MEMORY, "all the address space");
    CHECK(cuMemAllocManaged(&address, SIZE_MAX - 2 * MIB, 1) == CUDA_ERROR_OUT_OF_MEMORY, "nearly");
    fake_orders.fail_allocation = CUDA_ERROR_NOT_FOUND;
    CHECK(cuMemAllocManaged(&address, 10 * MIB, 1) == CUDA_ERROR_NOT_FOUND, "the driver refuses");
    CHECK(used_of(first) == 100 * MIB && used_of(second) == 700 * MIB, "nothing is kept");

    CHECK(cuMemAllocManaged(&address, 10 * MIB, 1) == CUDA_SUCCESS, "alloc");
    fake_orders.fail_free = CUDA_ERROR_NOT_FOUND;
    CHECK(cuMemFree_v2(address) == CUDA_ERROR_NOT_FOUND, "the driver refuses to free");
    CHECK(used_of(first) == 110 * MIB && used_of(second) == 710 * MIB, "then it is still there");
    fake_free_unseen(address);
    CHECK(cuMemAlloc_v2(&other, 10 * MIB) == CUDA_SUCCESS && other == address, "the same address");
    CHECK(used_of(first) == 110 * MIB && used_of(second) == 700 * MIB, "ordinary memory now");
    CHECK(cuMemFree_v2(other) == CUDA_SUCCESS && used_of(first) == 100 * MIB, "freed");

    for (int i = 0; i < SMALL; i++)
        if (cuMemAllocManaged(&small[i], 512, 1) != CUDA_SUCCESS)
            abort();
    CHECK(used_of(first) == 102 * MIB && used_of(second) == 702 * MIB, "small ones share a block there too");
    for (int i = 1; i < SMALL; i++)
        if (cuMemFree_v2(small[i]) != CUDA_SUCCESS)
            abort();
    CHECK(used_of(first) == 102 * MIB && used_of(second) == 702 * MIB, "one is left in it");
    CHECK(cuMemFree_v2(small[0]) == CUDA_SUCCESS, "the last one");
    CHECK(used_of(first) == 100 * MIB && used_of(second) == 700 * MIB, "freed");

    CHECK(cuMemAllocManaged(&address, 20 * MIB, 1) == CUDA_SUCCESS, "alloc");
    CHECK(cuMemAllocManaged(&address, 5, 1) == CUDA_SUCCESS && used_of(second) == 722 * MIB, "a small one");
    CHECK(cuCtxDestroy_v2(first) == CUDA_SUCCESS && used_of(second) == 700 * MIB, "with the context");
}

/* Handles are handed out again, also for another GPU. */
static void test_context_on_another_gpu(void) {
    CUcontext context = with_context(LIMIT), other;
    CUdeviceptr address;
    CHECK(cuMemAlloc_v2(&address, 50 * MIB) == CUDA_SUCCESS && used() == 150 * MIB, "on the first");
    CHECK(cuCtxDestroy_v2(context) == CUDA_SUCCESS, "destroyed");
    CHECK(cuCtxCreate_v2(&other, 0, 1) == CUDA_SUCCESS && other == context, "the same handle");
    CHECK(used() == 100 * MIB, "used %llu", (unsigned long long)used());
    CHECK(cuMemAlloc_v2(&address, 70 * MIB) == CUDA_SUCCESS && used() == 170 * MIB, "on the second");
    CHECK(fake_physical(0) == 0 && fake_physical(1) == 170 * MIB, "physical");
}

/* --- modules and libraries ---------------------------------------------------------------------------------------- */

#define LOCAL(bytes) ((uint64_t)((bytes)-FAKE_FIRST_LOCAL_BYTES) * FAKE_THREADS) /* of a kernel; 8 MiB for each KiB */

static const char variables[] = ".version 8.0\n.global .b8 large[8388608];\n";

static CUlibrary load_library(const char *image) {
    CUlibrary library = NULL;
    CUresult result = cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0);
    CHECK(result == CUDA_SUCCESS, "cuLibraryLoadData: %d", result);
    return library;
}

/* Something in it cannot be understood. */
static const char hidden[] = ".version 8.0\n.func f() { .global .unheard_of x; }\n";

static void neighbour_takes(void) {
    fake_take(0, 2 * (int64_t)LIMIT);
}

/* What others take of the GPU meanwhile is not charged, nor is the image refused for it. */
static void test_neighbours_during_a_load(void) {
    CUfunction function;
    CUkernel kernel;
    CUmodule module;
    CUlibrary library;
    with_context(LIMIT);
    fake_orders.in_image = neighbour_takes;
    CHECK(cuModuleLoadData(&module, hidden) == CUDA_SUCCESS && used() == 100 * MIB, "a module: %llu",
          (unsigned long long)used());
    fake_orders.in_image = neighbour_takes;
    CHECK(cuModuleGetFunction(&function, module, "k0") == CUDA_SUCCESS && used() == 100 * MIB, "a function");
    fake_orders.in_image = neighbour_takes;
    CHECK(cuLibraryLoadData(&library, hidden, NULL, NULL, 0, NULL, NULL, 0) == CUDA_SUCCESS && used() == 100 * MIB,
          "a library: %llu", (unsigned long long)used());
    fake_orders.in_image = neighbour_takes;
    CHECK(cuLibraryGetKernel(&kernel, library, "k0") == CUDA_SUCCESS && used() == 100 * MIB, "a kernel");
}

/* The variables of a module that was unloaded unseen count until the driver uses its handle again. */
static void test_module_with_a_former_handle(void) {
    CUmodule module, next;
    with_context(LIMIT);
    CHECK(cuModuleLoadData(&module, variables) == CUDA_SUCCESS && used() == 110 * MIB, "loaded");
    REAL(cuModuleUnload)(module);
    CHECK(cuModuleLoadData(&next, variables) == CUDA_SUCCESS && next == module && used() == 110 * MIB, "again: %llu",
          (unsigned long long)used());
    CHECK(cuModuleUnload(next) == CUDA_SUCCESS && used() == 100 * MIB, "unloaded: %llu", (unsigned long long)used());
}

static CUresult get_variable(CUmodule module, const char *name, uint64_t bytes) {
    CUdeviceptr address = 1;
    size_t size;
    fake_orders.variable_bytes = bytes;
    CUresult result = cuModuleGetGlobal_v2(&address, name[0] == 's' ? &size : NULL, module, name);
    CHECK((result == CUDA_SUCCESS) == (address != 0), "%s: %d", name, result);
    return result;
}

/* They count with the module that has them, once, in its context; the first MiB is the context's. */
static void variables_of(CUmodule module) {
    CHECK(used() == 100 * MIB, "none is known yet");
    CHECK(get_variable(module, "large", 40 * MIB) == CUDA_SUCCESS && used() == 140 * MIB, "counted: %llu",
          (unsigned long long)used());
    CHECK(get_variable(module, "large", 40 * MIB) == CUDA_SUCCESS && used() == 140 * MIB, "once");
    CHECK(get_variable(module, "small", 2 * MIB) == CUDA_SUCCESS && used() == 142 * MIB, "another one");
    CHECK(get_variable(module, "too large", LIMIT) == CUDA_ERROR_OUT_OF_MEMORY && used() == 142 * MIB, "refused");
    CHECK(cuModuleUnload(module) == CUDA_SUCCESS && used() == 100 * MIB, "unloaded: %llu", (unsigned long long)used());
}

static void test_variables_of_unread_modules(void) {
    CUcontext context = with_context(LIMIT);
    CUmodule module;
    CHECK(cuModuleLoadData(&module, hidden) == CUDA_SUCCESS, "loaded");
    variables_of(module);
    CHECK(REAL(cuModuleLoadData)(&module, variables) == CUDA_SUCCESS, "loaded unseen");
    variables_of(module);
    CHECK(cuModuleLoadData(&module, variables) == CUDA_SUCCESS && used() == 110 * MIB, "read beforehand");
    CHECK(get_variable(module, "large", 8 * MIB) == CUDA_SUCCESS && used() == 110 * MIB, "not counted again");
    CHECK(cuModuleLoadData(&module, hidden) == CUDA_SUCCESS, "loaded");
    CHECK(get_variable(module, "large", 40 * MIB) == CUDA_SUCCESS && used() == 150 * MIB, "counted");
    CHECK(cuCtxDestroy_v2(context) == CUDA_SUCCESS && cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS,
          "another context");
    CHECK(used() == 100 * MIB, "nothing is left: %llu", (unsigned long long)used());
}

/* In every context, also in one that comes later. */
static void test_variables_of_unread_libraries(void) {
    CUcontext first = with_context(LIMIT), second;
    CUlibrary library = load_library(hidden);
    CUdeviceptr address;
    CUmodule module;
    size_t size;
    fake_orders.variable_bytes = 40 * MIB;
    CHECK(cuLibraryGetGlobal(&address, &size, library, "v") == CUDA_SUCCESS && used() == 140 * MIB, "counted: %llu",
          (unsigned long long)used());
    CHECK(cuLibraryGetModule(&module, library) == CUDA_SUCCESS, "as a module");
    CHECK(get_variable(module, "v", 40 * MIB) == CUDA_SUCCESS && used() == 140 * MIB, "the same variable");
    CHECK(get_variable(module, "w", 20 * MIB) == CUDA_SUCCESS && used() == 160 * MIB, "another one");
    CHECK(cuDevicePrimaryCtxRetain(&second, 1) == CUDA_SUCCESS && used_of(second) == 160 * MIB, "there, too: %llu",
          (unsigned long long)used_of(second));
    CHECK(cuLibraryUnload(library) == CUDA_SUCCESS && used_of(first) == 100 * MIB && used_of(second) == 100 * MIB,
          "unloaded");
}

/* A fat binary of PTX, plain and compressed: nvcc's has a cubin in place of the first. */
static const void *half_hidden(void) {
    static struct {
        struct {
            uint32_t magic;
            uint16_t version, bytes;
            uint64_t contents;
        } header;
        struct {
            uint16_t kind, version;
            uint32_t bytes;
            uint64_t contents;
            uint32_t words[6];
            uint64_t flags, zero, uncompressed;
            char text[64];
        } entries[2];
    } image;
    image.header.magic = 0xba55ed50u;
    image.header.bytes = sizeof image.header;
    image.header.contents = sizeof image.entries;
    for (int i = 0; i < 2; i++) {
        image.entries[i].kind = 1;
        image.entries[i].bytes = sizeof image.entries[i] - sizeof image.entries[i].text;
        image.entries[i].contents = sizeof image.entries[i].text;
    }
    strcpy(image.entries[0].text, variables);
    image.entries[1].flags = 0x2000;
    return &image;
}

/* Which of the two entries the driver has loaded is not known: variables that are requested count once what was counted for
 * the one that could be read is used up. */
static void test_variables_of_half_hidden_images(void) {
    CUcontext context = with_context(LIMIT);
    CUlibrary library;
    CUmodule module;
    CHECK(cuModuleLoadData(&module, half_hidden()) == CUDA_SUCCESS && used() == 110 * MIB, "loaded: %llu",
          (unsigned long long)used());
    CHECK(get_variable(module, "large", 8 * MIB) == CUDA_SUCCESS && used() == 110 * MIB, "counted already: %llu",
          (unsigned long long)used());
    CHECK(get_variable(module, "too large", LIMIT) == CUDA_ERROR_OUT_OF_MEMORY && used() == 110 * MIB, "refused");
    CHECK(get_variable(module, "more", 40 * MIB) == CUDA_SUCCESS && used() == 150 * MIB, "counted: %llu",
          (unsigned long long)used());
    CHECK(cuModuleUnload(module) == CUDA_SUCCESS && used() == 100 * MIB, "unloaded");
    library = load_library(half_hidden());
    CHECK(cuLibraryGetModule(&module, library) == CUDA_SUCCESS, "as a module");
    CHECK(get_variable(module, "first", 6 * MIB) == CUDA_SUCCESS && used_of(context) == 110 * MIB, "in a library: %llu",
          (unsigned long long)used_of(context));
    CHECK(get_variable(module, "second", 22 * MIB) == CUDA_SUCCESS && used_of(context) == 130 * MIB, "the rest: %llu",
          (unsigned long long)used_of(context));
    CHECK(cuLibraryUnload(library) == CUDA_SUCCESS && used_of(context) == 100 * MIB, "unloaded");
}

/* The driver does not get to see it. */
static void test_malformed(void) {
    static const uint32_t fatbin[4] = {0xba55ed50u, 0x00100001, UINT32_MAX, UINT32_MAX};
    CUmodule module = NULL;
    CUlibrary library = NULL;
    CHECK(cuModuleLoadData(&module, fatbin) == CUDA_ERROR_NOT_INITIALIZED, "before cuInit the driver speaks");
    with_context(LIMIT);
    fake_orders.image_blocks = 20;
    CHECK(cuModuleLoadData(&module, fatbin) == CUDA_ERROR_INVALID_IMAGE && module == NULL, "a module");
    CHECK(cuLibraryLoadData(&library, fatbin, NULL, NULL, 0, NULL, NULL, 0) == CUDA_ERROR_INVALID_IMAGE, "a library");
    CHECK(fake_physical(0) == 100 * MIB && used() == 100 * MIB, "nothing is taken");
}

static uint64_t to_allocate;

static void free_and_allocate(CUdeviceptr address) {
    CUdeviceptr other;
    CHECK(cuMemFree_v2(address) == CUDA_SUCCESS, "freed by an address from before");
    CHECK(cuMemAlloc_v2(&other, to_allocate) == CUDA_SUCCESS && other == address, "given out again");
}

/* A program frees what another of its threads is just being given, and allocates: of the two at one address that one
 * lives. */
static void allocate_twice_at_once(CUcontext context, uint64_t dead, uint64_t alive) {
    CUdeviceptr address;
    to_allocate = alive;
    fake_orders.allocated = free_and_allocate;
    CHECK(cuMemAlloc_v2(&address, dead) == CUDA_SUCCESS, "allocated");
    CHECK(used() >= fake_physical(0), "%llu used of %llu", (unsigned long long)used(),
          (unsigned long long)fake_physical(0));
    CHECK(cuMemFree_v2(address) == CUDA_SUCCESS && fake_physical(0) == 100 * MIB, "freed");
    CHECK(cuCtxDestroy_v2(context) == CUDA_SUCCESS, "what it had is gone");
    CHECK(cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS, "another one with the same handle");
    CHECK(used() == 100 * MIB, "nothing stays: %llu", (unsigned long long)used());
}

static void test_two_at_one_address(void) {
    CUcontext context = with_context(LIMIT);
    allocate_twice_at_once(context, 4 * MIB, 40 * MIB);
    allocate_twice_at_once(context, 40 * MIB, 4 * MIB);
    allocate_twice_at_once(context, 512, 40 * MIB);
    allocate_twice_at_once(context, 4 * MIB, 512);
}

/* In the context that the module lies in, whichever is current. */
static void test_functions_need_local_memory(void) {
    CUcontext first = with_context(LIMIT), second;
    CUfunction function = NULL, listed[5] = {NULL, NULL, NULL, NULL, NULL};
    CUmodule module;
    CHECK(cuModuleLoadData(&module, variables) == CUDA_SUCCESS && used() == 110 * MIB, "variables");
    CHECK(cuCtxCreate_v2(&second, 0, 1) == CUDA_SUCCESS, "second");
    CHECK(cuModuleGetFunction(&function, module, "k1") == CUDA_SUCCESS && function != NULL, "k1");
    CHECK(used_of(first) == 110 * MIB + LOCAL(2048) && used_of(second) == 100 * MIB,
          "charged where it can be launched");
    CHECK(cuModuleGetFunction(NULL, module, "k1") == CUDA_ERROR_INVALID_VALUE, "nowhere");
    CHECK(cuModuleGetFunction(&function, module, "none") == CUDA_ERROR_NOT_FOUND, "none");
    CHECK(cuModuleEnumerateFunctions(listed, 2, module) == CUDA_SUCCESS && listed[1] != NULL && listed[2] == NULL,
          "two");
    CHECK(used_of(first) == 110 * MIB + LOCAL(2048), "used %llu", (unsigned long long)used_of(first));
    CHECK(cuModuleEnumerateFunctions(listed, 5, module) == CUDA_SUCCESS && listed[2] != NULL, "all");
    CHECK(used_of(first) == 110 * MIB + LOCAL(4096), "used %llu", (unsigned long long)used_of(first));
    fake_cuCtxSetCurrent(first);
    CHECK(fake_launch(listed[2]) == CUDA_SUCCESS && fake_physical(0) <= used(), "launched");
    fake_orders.fail_unload = CUDA_ERROR_NOT_FOUND;
    CHECK(cuModuleUnload(module) == CUDA_ERROR_NOT_FOUND && used() == 110 * MIB + LOCAL(4096), "still there");
    CHECK(cuModuleUnload(module) == CUDA_SUCCESS && used() == 100 * MIB + LOCAL(4096), "its variables are gone");
    CHECK(cuCtxDestroy_v2(first) == CUDA_SUCCESS && fake_physical(0) == 0, "destroyed");
    CHECK(cuCtxCreate_v2(&first, 0, 0) == CUDA_SUCCESS && used() == 100 * MIB, "the rest with the context");
}

static void test_functions_that_do_not_fit(void) {
    CUcontext context = with_context(LIMIT);
    CUfunction function = NULL, listed[FAKE_KERNELS];
    CUdeviceptr address;
    CUmodule module;
    CHECK(cuModuleLoadData(&module, ".version 8.0\n") == CUDA_SUCCESS, "module");
    CHECK(cuMemAlloc_v2(&address, 900 * MIB - LOCAL(2048)) == CUDA_SUCCESS, "all but what k1 needs");
    CHECK(cuModuleGetFunction(&function, module, "k2") == CUDA_ERROR_OUT_OF_MEMORY && function == NULL, "k2");
    CHECK(cuModuleEnumerateFunctions(listed, FAKE_KERNELS, module) == CUDA_ERROR_OUT_OF_MEMORY, "all of them");
    CHECK(listed[0] == NULL && listed[2] == NULL && used() == LIMIT - LOCAL(2048), "nothing is kept");
    CHECK(cuModuleGetFunction(&function, module, "k1") == CUDA_SUCCESS && used() == LIMIT, "k1");
    CHECK(fake_launch(function) == CUDA_SUCCESS && fake_physical(0) == LIMIT && context != NULL, "launched");
}

/* Kernels can be launched in every context, also in one that comes later. */
static void test_kernels_need_local_memory(void) {
    CUcontext first, second, third;
    CUkernel kernel = NULL, listed[FAKE_KERNELS];
    CUdeviceptr address;
    claims(LIMIT);
    CHECK(cuInit(0) == CUDA_SUCCESS, "cuInit");
    CUlibrary library = load_library(variables);
    CHECK(cuLibraryGetKernel(&kernel, library, "k1") == CUDA_SUCCESS && kernel != NULL, "without a context");
    CHECK(cuCtxCreate_v2(&first, 0, 0) == CUDA_SUCCESS && used() == 110 * MIB + LOCAL(2048), "charged now");
    CHECK(fake_launch((CUfunction)kernel) == CUDA_SUCCESS && fake_physical(0) <= used(), "launched");
    CHECK(cuDevicePrimaryCtxRetain(&second, 1) == CUDA_SUCCESS && used_of(second) == 110 * MIB + LOCAL(2048), "again");
    CHECK(cuLibraryEnumerateKernels(listed, FAKE_KERNELS, library) == CUDA_SUCCESS && listed[2] != NULL, "all");
    CHECK(used_of(first) == 110 * MIB + LOCAL(4096) && used_of(second) == 110 * MIB + LOCAL(4096), "in both");
    CHECK(cuMemAlloc_v2(&address, 772 * MIB) == CUDA_SUCCESS, "not enough left for another context and its kernels");
    CHECK(cuCtxCreate_v2(&third, 0, 0) == CUDA_ERROR_OUT_OF_MEMORY && used() == 882 * MIB + LOCAL(4096),
          "nor is it made");
    fake_orders.fail_unload = CUDA_ERROR_NOT_FOUND;
    CHECK(cuLibraryUnload(library) == CUDA_ERROR_NOT_FOUND && used() == 882 * MIB + LOCAL(4096), "still there");
    CHECK(cuMemFree_v2(address) == CUDA_SUCCESS && cuLibraryUnload(library) == CUDA_SUCCESS, "unloaded");
    CHECK(used_of(first) == 100 * MIB + LOCAL(4096) && used_of(second) == 100 * MIB + LOCAL(4096),
          "variables are gone");
    CHECK(cuCtxCreate_v2(&third, 0, 0) == CUDA_SUCCESS && used() == 200 * MIB + LOCAL(4096),
          "its kernels are forgotten");
}

/* All contexts have room for a kernel, or none is charged. */
static void test_kernels_that_do_not_fit_everywhere(void) {
    CUcontext first = with_context(LIMIT), second;
    CUkernel kernel = NULL, listed[FAKE_KERNELS] = {NULL, NULL, NULL};
    CUfunction function = NULL;
    CUdeviceptr address;
    CUmodule module;
    CUlibrary library = load_library(".version 8.0\n");
    CHECK(cuCtxCreate_v2(&second, 0, 1) == CUDA_SUCCESS && cuMemAlloc_v2(&address, 890 * MIB) == CUDA_SUCCESS,
          "second");
    fake_cuCtxSetCurrent(first);
    CHECK(cuLibraryGetKernel(&kernel, library, "k1") == CUDA_SUCCESS && used() == 100 * MIB + LOCAL(2048), "k1 fits");
    kernel = NULL;
    CHECK(cuLibraryEnumerateKernels(listed, FAKE_KERNELS, library) == CUDA_ERROR_OUT_OF_MEMORY, "k2 does not");
    CHECK(listed[0] == NULL && listed[2] == NULL, "nor are others listed");
    CHECK(used_of(second) == 990 * MIB + LOCAL(2048), "used %llu", (unsigned long long)used_of(second));
    CHECK(used_of(first) == 100 * MIB + LOCAL(2048), "nothing is kept: %llu", (unsigned long long)used_of(first));
    CHECK(cuLibraryGetModule(&module, library) == CUDA_SUCCESS, "as a module of the first");
    fake_cuCtxSetCurrent(second);
    CHECK(cuModuleGetFunction(&function, module, "k2") == CUDA_SUCCESS, "which has room");
    CHECK(used_of(first) == 100 * MIB + LOCAL(4096) && used_of(second) == 990 * MIB + LOCAL(2048), "there alone");
    CHECK(cuLibraryUnload(library) == CUDA_SUCCESS, "unloaded");
}

static CUlibrary loaded;

static void load_now(void) {
    CUkernel kernel;
    loaded = load_library(variables);
    CHECK(cuLibraryGetKernel(&kernel, loaded, "k1") == CUDA_SUCCESS, "k1");
}

/* A context that is being made while a library is loaded has it. */
static void test_library_during_the_making_of_a_context(void) {
    CUcontext context;
    claims(LIMIT);
    CHECK(cuInit(0) == CUDA_SUCCESS, "cuInit");
    fake_orders.in_context = load_now;
    CHECK(cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS, "context");
    CHECK(used() == 110 * MIB + LOCAL(2048), "used %llu", (unsigned long long)used());
    CHECK(cuLibraryUnload(loaded) == CUDA_SUCCESS && used() == 100 * MIB + LOCAL(2048), "unloaded");
    CHECK(cuCtxDestroy_v2(context) == CUDA_SUCCESS, "destroyed");
    fake_orders.in_context = load_now;
    fake_orders.fail_context = CUDA_ERROR_NOT_FOUND;
    CHECK(cuCtxCreate_v2(&context, 0, 0) == CUDA_ERROR_NOT_FOUND, "refused by the driver");
    CHECK(cuLibraryUnload(loaded) == CUDA_SUCCESS, "unloaded");
    CHECK(cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS && used() == 100 * MIB, "nothing is left of it");
    load_now();
    CHECK(used() == 110 * MIB + LOCAL(2048), "nor is it charged: %llu", (unsigned long long)used());
}

static _Atomic bool loading;

static void *load_and_unload(void *unused) {
    (void)unused;
    for (int i = 0; i < 200; i++) {
        CUlibrary library = load_library(variables);
        CUkernel kernel;
        CHECK(cuLibraryGetKernel(&kernel, library, "k1") == CUDA_SUCCESS, "k1");
        CHECK(cuLibraryUnload(library) == CUDA_SUCCESS, "unloaded");
    }
    loading = false;
    return NULL;
}

/* Contexts come and go while libraries do: of either nothing is left in the other. */
static void test_libraries_and_contexts_at_once(void) {
    pthread_t thread;
    CUcontext context = with_context(LIMIT), other;
    loading = true;
    if (pthread_create(&thread, NULL, load_and_unload, NULL) != 0)
        abort();
    while (loading) {
        CHECK(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS, "created");
        CHECK(cuCtxDestroy_v2(other) == CUDA_SUCCESS, "destroyed");
    }
    pthread_join(thread, NULL);
    fake_cuCtxSetCurrent(context);
    CHECK(used() == 100 * MIB + LOCAL(2048), "used %llu", (unsigned long long)used());
}

static void test_before_initialisation_the_driver_speaks(void) {
    CUdeviceptr address;
    CUcontext context;
    size_t bytes, free;
    claims(LIMIT);
    CHECK(cuMemAlloc_v2(&address, 5) == CUDA_ERROR_NOT_INITIALIZED, "alloc");
    CHECK(cuCtxCreate_v2(&context, 0, 0) == CUDA_ERROR_NOT_INITIALIZED, "context");
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_ERROR_NOT_INITIALIZED, "primary");
    CHECK(cuDeviceTotalMem_v2(&bytes, 0) == CUDA_ERROR_NOT_INITIALIZED, "total");
    CHECK(cuMemGetInfo_v2(&free, &bytes) == CUDA_ERROR_NOT_INITIALIZED, "info");
    CHECK(cuInit(1) == CUDA_ERROR_INVALID_VALUE, "flags");
    CHECK(cuInit(0) == CUDA_SUCCESS && cuInit(0) == CUDA_SUCCESS, "twice");
    CHECK(cuMemAlloc_v2(&address, 5) == CUDA_ERROR_INVALID_CONTEXT, "no context");
    CHECK(cuMemGetInfo_v2(&free, &bytes) == CUDA_ERROR_INVALID_CONTEXT, "no context");
    CHECK(cuCtxCreate_v2(&context, 0, 99) == CUDA_ERROR_INVALID_DEVICE, "no device");
}

static void test_gpu_without_claim(void) {
    CUcontext context, primary;
    CUdeviceptr address;
    size_t bytes = 1, free;
    with_context(LIMIT);
    redirect();
    CHECK(cuDeviceTotalMem_v2(&bytes, 2) == CUDA_SUCCESS && bytes == 0, "total %zu", bytes);
    CUresult created = cuCtxCreate_v2(&context, 0, 2), retained = cuDevicePrimaryCtxRetain(&primary, 2);
    /* A context that somehow exists nonetheless. */
    REAL(cuCtxCreate_v2)(&context, 0, 2);
    CUresult allocated = cuMemAlloc_v2(&address, 5), info = cuMemGetInfo_v2(&free, &bytes);
    const char *said = collect();
    CHECK(created == CUDA_ERROR_NOT_PERMITTED && retained == CUDA_ERROR_NOT_PERMITTED, "%d %d", created, retained);
    CHECK(allocated == CUDA_ERROR_NOT_PERMITTED && info == CUDA_ERROR_NOT_PERMITTED, "%d %d", allocated, info);
    CHECK(lines_in(said) == 1 && strstr(said, "device 2") && strstr(said, "no claim"), "said: %s", said);
    CHECK(fake_physical(2) == 100 * MIB, "only what we created past the shadow");
}

static void test_context_that_the_shadow_did_not_see(void) {
    CUcontext context;
    CUdeviceptr address;
    with_context(LIMIT);
    REAL(cuCtxCreate_v2)(&context, 0, 1);
    CHECK(cuMemAlloc_v2(&address, 902 * MIB) == CUDA_ERROR_OUT_OF_MEMORY, "beside the context");
    CHECK(cuMemAlloc_v2(&address, 802 * MIB) == CUDA_SUCCESS && used() == 902 * MIB, "counted with the context");
    CHECK(cuMemAlloc_v2(&address, 100 * MIB) == CUDA_ERROR_OUT_OF_MEMORY, "and limited");
    CHECK(cuCtxDestroy_v2(context) == CUDA_SUCCESS && fake_physical(1) == 0, "destroyed");
    CHECK(cuCtxCreate_v2(&context, 0, 1) == CUDA_SUCCESS && used() == 100 * MIB, "nothing is left of it");
}

/* As NVIDIA's runtime library gets one. */
static CUcontext private_primary(void) {
    CUcontext primary = NULL;
    CHECK(REAL(cuDevicePrimaryCtxRetain)(&primary, 1) == CUDA_SUCCESS, "retained unseen");
    fake_cuCtxSetCurrent(primary);
    return primary;
}

static void test_primary_context_that_the_shadow_did_not_see(void) {
    CUcontext first = with_context(LIMIT), primary, same;
    CUdeviceptr address;
    primary = private_primary();
    CHECK(used() == 100 * MIB, "a query finds it: %llu", (unsigned long long)used());
    CHECK(cuMemAlloc_v2(&address, 50 * MIB) == CUDA_SUCCESS && used() == 150 * MIB, "memory in it");
    CHECK(cuDevicePrimaryCtxRetain(&same, 1) == CUDA_SUCCESS && same == primary && used() == 150 * MIB, "once");
    CHECK(cuDevicePrimaryCtxRelease_v2(1) == CUDA_SUCCESS && used() == 150 * MIB, "still retained");
    CHECK(cuDevicePrimaryCtxRelease_v2(1) == CUDA_SUCCESS && fake_physical(1) == 0, "released");
    CHECK(cuCtxCreate_v2(&same, 0, 1) == CUDA_SUCCESS && used() == 100 * MIB, "%llu", (unsigned long long)used());
    CHECK(cuCtxDestroy_v2(same) == CUDA_SUCCESS, "destroyed");
    for (int reset = 0; reset < 2; reset++) {
        private_primary();
        CHECK(cuMemAlloc_v2(&address, 50 * MIB) == CUDA_SUCCESS && used() == 150 * MIB, "found by an allocation");
        CHECK((reset ? cuDevicePrimaryCtxReset_v2(1) : cuDevicePrimaryCtxRelease_v2(1)) == CUDA_SUCCESS, "ended");
        CHECK(cuCtxCreate_v2(&same, 0, 1) == CUDA_SUCCESS && used() == 100 * MIB, "%llu", (unsigned long long)used());
        CHECK(cuCtxDestroy_v2(same) == CUDA_SUCCESS, "destroyed");
    }
    fake_cuCtxSetCurrent(first);
    CHECK(used() == 100 * MIB, "the other GPU has its own");
}

/* The first unknown context on a GPU is not the primary one, which ends first. */
static void test_unseen_contexts_are_told_apart(void) {
    CUcontext other, primary, again;
    CUdeviceptr address;
    with_context(LIMIT);
    REAL(cuCtxCreate_v2)(&other, 0, 1);
    REAL(cuDevicePrimaryCtxRetain)(&primary, 1);
    CHECK(cuMemAlloc_v2(&address, 10 * MIB) == CUDA_SUCCESS && used() == 110 * MIB, "the other is found");
    fake_cuCtxSetCurrent(primary);
    CHECK(cuMemAlloc_v2(&address, 20 * MIB) == CUDA_SUCCESS && used() == 230 * MIB, "and the primary one");
    CHECK(cuDevicePrimaryCtxReset_v2(1) == CUDA_SUCCESS, "reset");
    CHECK(used_of(other) == 110 * MIB && fake_physical(1) == 110 * MIB, "used %llu",
          (unsigned long long)used_of(other));

    REAL(cuDevicePrimaryCtxRetain)(&primary, 1);
    CHECK(cuDevicePrimaryCtxRetain(&again, 1) == CUDA_SUCCESS && again == primary, "found when it is retained");
    CHECK(used_of(other) == 210 * MIB, "used %llu", (unsigned long long)used_of(other));
    CHECK(cuDevicePrimaryCtxRelease_v2(1) == CUDA_SUCCESS && cuDevicePrimaryCtxRelease_v2(1) == CUDA_SUCCESS, "both");
    CHECK(used_of(other) == 110 * MIB, "used %llu", (unsigned long long)used_of(other));
}

/* What takes memory in it is refused until there is room. */
static void test_unseen_context_that_does_not_fit(void) {
    CUcontext first, context;
    CUdeviceptr address, other;
    CUmodule module;
    CUlibrary library;
    claims(LIMIT);
    CHECK(cuInit(0) == CUDA_SUCCESS && cuCtxCreate_v2(&first, 0, 1) == CUDA_SUCCESS, "context");
    CHECK(cuMemAlloc_v2(&address, 850 * MIB) == CUDA_SUCCESS, "most of the claim");
    REAL(cuCtxCreate_v2)(&context, 0, 1);
    CHECK(used() == 950 * MIB, "a query tells");
    CHECK(cuMemAlloc_v2(&other, 2 * MIB) == CUDA_ERROR_OUT_OF_MEMORY && used() == 950 * MIB, "memory");
    CHECK(cuModuleLoadData(&module, variables) == CUDA_ERROR_OUT_OF_MEMORY && used() == 950 * MIB, "a module");
    CHECK(cuLibraryLoadData(&library, "", NULL, NULL, 0, NULL, NULL, 0) == CUDA_ERROR_OUT_OF_MEMORY, "a library");
    CHECK(cuMemAllocAsync(&other, 2 * MIB, NULL) == CUDA_ERROR_OUT_OF_MEMORY && used() == 950 * MIB, "in a stream");
    CHECK(cuMemFree_v2(address) == CUDA_SUCCESS && cuMemAlloc_v2(&other, 2 * MIB) == CUDA_SUCCESS, "there is room");
    CHECK(used() == 202 * MIB && fake_physical(1) == 202 * MIB, "used %llu", (unsigned long long)used());
}

/* A context that ended unseen counts until a call fails in it. */
static void test_unseen_end_of_a_context(void) {
    CUcontext first = with_context(LIMIT), second;
    CUdeviceptr address;
    private_primary();
    CHECK(cuMemAlloc_v2(&address, 50 * MIB) == CUDA_SUCCESS && used() == 150 * MIB, "memory in it");
    CUcontext primary = fake_current();
    REAL(cuDevicePrimaryCtxReset_v2)(1);
    fake_cuCtxSetCurrent(primary);
    CHECK(cuMemAlloc_v2(&address, 2 * MIB) == CUDA_ERROR_CONTEXT_IS_DESTROYED, "as the driver says");
    CHECK(used_of(first) == 100 * MIB, "the other GPU");
    REAL(cuCtxCreate_v2)(&second, 0, 1);
    CHECK(used() == 100 * MIB, "used %llu", (unsigned long long)used());
    fake_destroy_unseen(second);
    CHECK(cuMemAlloc_v2(&address, 2 * MIB) == CUDA_ERROR_INVALID_CONTEXT, "none is current");
    CHECK(cuDevicePrimaryCtxRetain(&primary, 1) == CUDA_SUCCESS && used_of(primary) == 100 * MIB, "used %llu",
          (unsigned long long)used_of(primary));
}

static void test_limit_below_a_context(void) {
    CUcontext context;
    size_t bytes;
    claims(99 * MIB);
    redirect();
    CHECK(cuInit(0) == CUDA_SUCCESS, "cuInit");
    CUresult created = cuCtxCreate_v2(&context, 0, 0), retained = cuDevicePrimaryCtxRetain(&context, 0);
    const char *said = collect();
    CHECK(created == CUDA_ERROR_OUT_OF_MEMORY && retained == created, "%d %d", created, retained);
    CHECK(lines_in(said) == 1 && strstr(said, "takes 100 MiB") && strstr(said, "limit is 99 MiB"), "said: %s", said);
    CHECK(cuDeviceTotalMem_v2(&bytes, 0) == CUDA_SUCCESS && bytes == 99 * MIB, "total %zu", bytes);
}

/* Whatever is wrong with the region, cuInit says so and nothing of the driver can be had. */
static void no_gpu(const char *word) {
    CUcontext context;
    CUdeviceptr address;
    size_t bytes, free;
    redirect();
    CUresult first = cuInit(0), second = cuInit(0);
    /* Even if somebody initialises the driver past us. */
    REAL(cuInit)(0);
    CUresult created = cuCtxCreate_v2(&context, 0, 0), total = cuDeviceTotalMem_v2(&bytes, 0);
    REAL(cuCtxCreate_v2)(&context, 0, 0);
    CUresult allocated = cuMemAlloc_v2(&address, 5), info = cuMemGetInfo_v2(&free, &bytes);
    const char *said = collect();
    CHECK(first == CUDA_ERROR_SYSTEM_NOT_READY && second == first, "cuInit: %d %d", first, second);
    CHECK(created == first && total == first && allocated == first && info == first, "%d %d %d %d", created, total,
          allocated, info);
    CHECK(lines_in(said) == 1 && strstr(said, word), "said: %s, without %s", said, word);
}

static void test_no_variable(void) {
    unsetenv("TRANCHE_REGIONS");
    no_gpu("TRANCHE_REGIONS");
}

static void test_no_directory(void) {
    setenv("TRANCHE_REGIONS", "/nonexistent", 1);
    no_gpu("/nonexistent");
}

static void test_no_claim(void) {
    setenv("TRANCHE_REGIONS", fixture_directory(), 1);
    no_gpu("holds no claim");
}

static void test_one_bad_claim_of_two(void) {
    fixture_truncate(claims(LIMIT), "00000001", REGION_USAGE_FILE, 12345);
    no_gpu("12345 bytes");
}

static void test_region_damaged_in_use(void) {
    CUdeviceptr address, kept;
    const char *directory = fixture_directory();
    with_context(LIMIT);
    CHECK(cuMemAlloc_v2(&kept, 5 * MIB) == CUDA_SUCCESS, "before");
    fixture_write(directory, "00000000", REGION_USAGE_FILE, 0, "????????????????", 16);
    redirect();
    CUresult first = cuMemAlloc_v2(&address, 5), second = cuMemAlloc_v2(&address, 5 * MIB);
    const char *said = collect();
    CHECK(first == CUDA_ERROR_SYSTEM_NOT_READY && second == first, "%d %d", first, second);
    CHECK(lines_in(said) == 1 && strstr(said, "damaged"), "said: %s", said);
    CHECK(cuMemFree_v2(kept) == CUDA_SUCCESS, "freeing works");
}

static void test_two_claims_for_one_gpu(void) {
    CUdeviceptr address;
    CUcontext context;
    size_t bytes;
    const char *directory = claims(LIMIT);
    fixture_claim(directory, "00000002", fake_uuid(0), 500 * MIB, FAKE_CONTEXT_BYTES);
    CHECK(cuInit(0) == CUDA_SUCCESS && cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS, "cuInit");
    CHECK(cuDeviceTotalMem_v2(&bytes, 0) == CUDA_SUCCESS && bytes == 1500 * MIB, "total %zu", bytes);
    for (int i = 0; i < 14; i++)
        CHECK(cuMemAlloc_v2(&address, 100 * MIB) == CUDA_SUCCESS, "%d", i);
    CHECK(cuMemAlloc_v2(&address, 1) == CUDA_ERROR_OUT_OF_MEMORY, "full");
    CHECK(fake_peak(0) == 1500 * MIB, "peak %llu", (unsigned long long)fake_peak(0));
}

/* What one of two claims has too much of since its limit was lowered is not taken from the other. */
static void test_what_is_left_of_two_claims(void) {
    CUdeviceptr address;
    CUcontext context;
    size_t free, total;
    const char *directory = claims(LIMIT);
    fixture_claim(directory, "00000002", fake_uuid(0), LIMIT, FAKE_CONTEXT_BYTES);
    CHECK(cuInit(0) == CUDA_SUCCESS && cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS, "cuInit");
    CHECK(cuMemAlloc_v2(&address, 900 * MIB) == CUDA_SUCCESS, "all of the one");
    fixture_limit(directory, "00000000", 500 * MIB);
    fixture_limit(directory, "00000002", 500 * MIB);
    CHECK(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS && total == LIMIT && free == 500 * MIB, "%zu of %zu", free,
          total);
    CHECK(cuMemAlloc_v2(&address, 500 * MIB) == CUDA_SUCCESS, "what is left can be had");
    CHECK(cuMemAlloc_v2(&address, 1) == CUDA_ERROR_OUT_OF_MEMORY, "and no more");
}

static void test_reports(void) {
    CUdeviceptr address;
    size_t free, total;
    const char *directory = fixture_directory();
    with_context(LIMIT);
    fixture_limit(directory, "00000000", 2 * LIMIT);
    CHECK(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS && total == 2 * LIMIT && free == total - 100 * MIB,
          "%zu of %zu", free, total);
    CHECK(cuMemAlloc_v2(&address, 1500 * MIB) == CUDA_SUCCESS, "under the raised limit");
    fixture_limit(directory, "00000000", LIMIT);
    CHECK(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS && total == LIMIT && free == 0, "%zu of %zu", free, total);
    CHECK(cuMemFree_v2(address) == CUDA_SUCCESS && used() == 100 * MIB, "freed");
    /* Physically there is less than the limit. */
    fixture_limit(directory, "00000000", 2 * FAKE_DEVICE_BYTES);
    CHECK(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS && total == FAKE_DEVICE_BYTES &&
              free == FAKE_DEVICE_BYTES - 100 * MIB,
          "%zu of %zu", free, total);
    CHECK(cuDeviceTotalMem_v2(&total, 0) == CUDA_SUCCESS && total == FAKE_DEVICE_BYTES, "total %zu", total);
}

static void test_errno_is_kept(void) {
    CUdeviceptr address = 0;
    CUcontext context;
    size_t free, total;
    claims(LIMIT);
    errno = 77;
    cuInit(0);
    CHECK(errno == 77, "cuInit: %d", errno);
    cuCtxCreate_v2(&context, 0, 0);
    CHECK(errno == 77, "cuCtxCreate: %d", errno);
    cuMemAlloc_v2(&address, 5);
    cuMemAlloc_v2(&address, LIMIT);
    CHECK(errno == 77, "cuMemAlloc: %d", errno);
    cuMemGetInfo_v2(&free, &total);
    CHECK(errno == 77, "cuMemGetInfo: %d", errno);
    cuMemFree_v2(address);
    CHECK(errno == 77, "cuMemFree: %d", errno);
    int kept = dup(STDERR_FILENO);
    close(STDERR_FILENO); /* so that even what we have to say fails */
    errno = 77;
    CUresult refused = cuCtxCreate_v2(&context, 0, 2);
    int error = errno;
    dup2(kept, STDERR_FILENO);
    CHECK(refused == CUDA_ERROR_NOT_PERMITTED && error == 77, "cuCtxCreate: %d", error);
    setenv("TRANCHE_REGIONS", "/nonexistent", 1);
    pid_t pid = fork();
    if (pid == 0) {
        redirect();
        errno = 77;
        cuInit(0);
        _exit(errno != 77);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "cuInit that fails");
}

/* --- pools and streams -------------------------------------------------------------------------------------------- */

/* Each stream had memory of a pool freed in it. Stuck ones are not done when they are destroyed. */
static void destroy_streams(CUstream *streams, int count, bool stuck) {
    CUdeviceptr address;
    for (int i = 0; i < count; i++) {
        streams[i] = fake_stream_new();
        fake_stream_stick(streams[i], stuck);
        CHECK(cuMemAllocAsync(&address, MIB, streams[i]) == CUDA_SUCCESS, "stream %d", i);
        CHECK(cuMemFreeAsync(address, streams[i]) == CUDA_SUCCESS, "stream %d", i);
        CHECK(cuStreamDestroy_v2(streams[i]) == CUDA_SUCCESS, "stream %d", i);
    }
}

static void test_destroyed_streams_leave_nothing(void) {
    enum { MANY = 400 };
    static CUstream streams[MANY], others[MANY];
    with_context(LIMIT);
    destroy_streams(streams, MANY, false);
    CHECK(fake_counts.events == 0, "%u events live", fake_counts.events);
    unsigned queries = fake_counts.queries;
    CHECK(queries <= 8 * MANY, "%u queries", queries);

    destroy_streams(streams, MANY, true);
    CHECK(fake_counts.events == MANY, "%u events live, for as many streams that are not done", fake_counts.events);
    for (int i = 0; i < MANY; i++)
        fake_stream_stick(streams[i], false);
    destroy_streams(others, MANY, false);
    CHECK(fake_counts.events == 0, "%u events live", fake_counts.events);
    CHECK(fake_counts.queries - queries <= 16 * MANY, "%u queries", fake_counts.queries - queries);
}

/* A free in it that is never found done would make each refused allocation wait for half a second. */
static void test_stream_destroyed_beside_a_free(void) {
    CUdeviceptr address;
    with_context(LIMIT);
    CUstream stream = fake_stream_new();
    CHECK(cuMemAllocAsync(&address, MIB, stream) == CUDA_SUCCESS, "alloc");
    fake_stream_destroy_beside_free(stream);
    CHECK(cuMemFreeAsync(address, stream) == CUDA_SUCCESS, "free");
    for (int i = 0; i < 3; i++)
        CHECK(cuMemAlloc_v2(&address, LIMIT) == CUDA_ERROR_OUT_OF_MEMORY, "more than the limit");
    CHECK(fake_counts.captures <= 2, "the stream was asked %u times", fake_counts.captures);
    CHECK(fake_counts.events == 0, "%u events live", fake_counts.events);
}

static void test_asynchronous_free_of_linear_memory(void) {
    CUdeviceptr address, other;
    with_context(LIMIT);
    CUstream stream = fake_stream_new();
    CHECK(cuMemAlloc_v2(&address, 600 * MIB) == CUDA_SUCCESS, "alloc");
    CHECK(cuMemFreeAsync(address, stream) == CUDA_SUCCESS && used() == 100 * MIB, "an idle stream");
    CHECK(cuMemAlloc_v2(&address, 600 * MIB) == CUDA_SUCCESS, "alloc");
    fake_stream_stick(stream, true);
    CHECK(cuMemFreeAsync(address, stream) == CUDA_SUCCESS, "a stream that is not done");
    CHECK(fake_counts.synchronizations == 0, "%u times waited", fake_counts.synchronizations);
    CHECK(used() == 700 * MIB && fake_physical(0) == 700 * MIB, "used %llu", (unsigned long long)used());
    CHECK(cuMemAlloc_v2(&other, 302 * MIB) == CUDA_ERROR_OUT_OF_MEMORY, "it is not free yet");
    fake_stream_stick(stream, false);
    CHECK(cuMemAlloc_v2(&other, 302 * MIB) == CUDA_SUCCESS, "now it is");
    CHECK(used() == 402 * MIB && fake_physical(0) == 402 * MIB, "used %llu", (unsigned long long)used());
    CHECK(fake_counts.events == 0, "%u events live", fake_counts.events);
}

static void test_pool_counts_what_it_holds(void) {
    CUdeviceptr address, linear;
    with_context(LIMIT);
    CUstream stream = fake_stream_new();
    for (int i = 0; i < 3; i++) {
        CHECK(cuMemAllocAsync(&address, 5 * MIB, stream) == CUDA_SUCCESS, "%d", i);
        CHECK(counted() == 132 * MIB, "%d: counted %llu", i, (unsigned long long)counted());
    }
    CHECK(cuMemAlloc_v2(&linear, LIMIT - 132 * MIB) == CUDA_SUCCESS && counted() == LIMIT, "the rest");
}

/* In a full claim what is freed in a pool can be allocated again, without as much as a look at the streams. */
static void test_full_pool_is_used_again(void) {
    enum { MANY = 200 };
    CUdeviceptr addresses[MANY], linear;
    int count = 0;
    with_context(LIMIT);
    CUstream stream = fake_stream_new();
    while (count < MANY && cuMemAllocAsync(&addresses[count], 5 * MIB, stream) == CUDA_SUCCESS)
        count++;
    CHECK(count == 28 * 6, "%d allocations", count); /* six in each piece */
    CHECK(cuMemAlloc_v2(&linear, LIMIT - fake_physical(0)) == CUDA_SUCCESS, "the rest is there for other memory");
    fake_counts = (struct fake_counts){.events = fake_counts.events};
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < count; i += 2)
            CHECK(cuMemFreeAsync(addresses[i], stream) == CUDA_SUCCESS, "%d", i);
        for (int i = 0; i < count; i += 2)
            CHECK(cuMemAllocAsync(&addresses[i], 5 * MIB, stream) == CUDA_SUCCESS, "%d", i);
    }
    CHECK(fake_counts.trims == 0 && fake_counts.queries == 0 && fake_counts.synchronizations == 0,
          "%u trims, %u queries, %u synchronizations", fake_counts.trims, fake_counts.queries,
          fake_counts.synchronizations);
    CHECK(fake_peak(0) == LIMIT, "peak %llu", (unsigned long long)fake_peak(0));
}

/* What a pool has reserved beforehand stays its owner's, though the claim is full. */
static void test_preallocated_pool(void) {
    CUdeviceptr reserved, address, linear;
    with_context(LIMIT);
    CUstream stream = fake_stream_new(), other = fake_stream_new();
    CHECK(cuMemAllocAsync(&reserved, 27 * MIB, stream) == CUDA_SUCCESS, "of a piece");
    CHECK(cuMemAlloc_v2(&linear, LIMIT - 132 * MIB) == CUDA_SUCCESS && counted() == LIMIT, "full");
    CHECK(cuMemAllocAsync(&address, 5 * MIB, other) == CUDA_SUCCESS, "the rest of the piece is any stream's");
    fake_stream_stick(stream, true);
    CHECK(cuMemFreeAsync(reserved, stream) == CUDA_SUCCESS, "freed, but not yet");
    CHECK(cuMemAllocAsync(&address, 9 * MIB, other) == CUDA_ERROR_OUT_OF_MEMORY, "not free for another stream");
    fake_stream_stick(stream, false);
    CHECK(cuMemAllocAsync(&address, 9 * MIB, other) == CUDA_SUCCESS, "free");
    CHECK(cuMemAllocAsync(&address, 9 * MIB, stream) == CUDA_SUCCESS, "beside it");
    CHECK(cuMemAllocAsync(&address, 10 * MIB, stream) == CUDA_ERROR_OUT_OF_MEMORY, "more than is left of it");
    CHECK(cuMemAllocAsync(&address, 9 * MIB, stream) == CUDA_SUCCESS, "the last of it");
    fake_stream_stick(CU_STREAM_PER_THREAD, true);
    CHECK(cuMemFreeAsync(address, CU_STREAM_PER_THREAD) == CUDA_SUCCESS, "in a thread's default stream");
    CHECK(cuMemAllocAsync(&address, 9 * MIB, CU_STREAM_PER_THREAD) == CUDA_ERROR_OUT_OF_MEMORY, "perhaps another's");
    fake_stream_stick(CU_STREAM_PER_THREAD, false);
    CHECK(cuMemAllocAsync(&address, 9 * MIB, CU_STREAM_PER_THREAD) == CUDA_SUCCESS, "free");
    CHECK(fake_peak(0) == LIMIT && fake_physical(0) == LIMIT, "peak %llu", (unsigned long long)fake_peak(0));
}

/* What was tried again with success is no refusal, and what was tried several times in vain is one. */
static void test_refusals(void) {
    CUdeviceptr small, other, large, address;
    with_context(LIMIT);
    const _Atomic uint64_t *refused = &process_if_open()->claims.regions[0].usage->sums[REGION_GPU].refused;
    CUstream stream = fake_stream_new();
    CHECK(cuMemAlloc_v2(&small, 512) == CUDA_SUCCESS, "small");
    CHECK(cuMemAllocAsync(&address, 20 * MIB, stream) == CUDA_SUCCESS &&
              cuMemFreeAsync(address, stream) == CUDA_SUCCESS,
          "a pool that can be trimmed");
    CHECK(cuMemAlloc_v2(&large, LIMIT - 104 * MIB) == CUDA_SUCCESS && counted() == LIMIT - 2 * MIB, "full");
    CHECK(cuMemAlloc_v2(&other, 512) == CUDA_SUCCESS && atomic_load(refused) == 0, "covered by the reserve");
    CHECK(cuMemAlloc_v2(&other, 2 * MIB) == CUDA_ERROR_OUT_OF_MEMORY && atomic_load(refused) == 1, "linear: %u",
          (unsigned)atomic_load(refused));
    CHECK(cuMemAllocAsync(&other, 2 * MIB, stream) == CUDA_ERROR_OUT_OF_MEMORY && atomic_load(refused) == 2,
          "async: %u", (unsigned)atomic_load(refused));
    CHECK(cuMemFree_v2(large) == CUDA_SUCCESS && cuMemAllocAsync(&address, 20 * MIB, stream) == CUDA_SUCCESS, "a pool");
    CHECK(cuMemAlloc_v2(&large, LIMIT - 136 * MIB) == CUDA_SUCCESS && counted() == LIMIT - 2 * MIB, "full");
    CHECK(cuMemAllocAsync(&other, 8 * MIB, stream) == CUDA_SUCCESS && atomic_load(refused) == 2,
          "in a place of the pool");
    CHECK(cuMemAllocAsync(&other, 8 * MIB, stream) == CUDA_ERROR_OUT_OF_MEMORY && atomic_load(refused) == 3,
          "async: %u", (unsigned)atomic_load(refused));
}

/* What the driver no longer has when it is freed again was freed by another thread. */
static void test_pool_memory_freed_by_another(void) {
    CUdeviceptr address;
    with_context(LIMIT);
    CUstream stream = fake_stream_new();
    const struct objects *objects = &process_if_open()->objects;
    for (int in_stream = 0; in_stream < 2; in_stream++) {
        CHECK(cuMemAllocAsync(&address, 5 * MIB, stream) == CUDA_SUCCESS, "allocated");
        CHECK(objects->counts[KIND_POOL_MEMORY] == 1 && fake_free_unseen_in(address, stream) == CUDA_SUCCESS, "freed");
        CHECK((in_stream ? cuMemFreeAsync(address, stream) : cuMemFree_v2(address)) == CUDA_ERROR_INVALID_VALUE,
              "again");
        CHECK(objects->counts[KIND_POOL_MEMORY] == 0, "no record stays");
    }
}

/* For other memory pools give back what is missing, and no more. */
static void test_pools_are_trimmed_by_what_is_missing(void) {
    CUdeviceptr addresses[4], linear;
    with_context(LIMIT);
    CUstream stream = fake_stream_new();
    for (int i = 0; i < 4; i++)
        CHECK(cuMemAllocAsync(&addresses[i], 20 * MIB, stream) == CUDA_SUCCESS, "%d", i);
    for (int i = 0; i < 4; i++)
        CHECK(cuMemFreeAsync(addresses[i], stream) == CUDA_SUCCESS, "%d", i);
    CHECK(cuMemAlloc_v2(&linear, LIMIT - (100 + 4 * 32) * MIB) == CUDA_SUCCESS && counted() == LIMIT, "full");
    CHECK(cuMemAlloc_v2(&linear, 36 * MIB) == CUDA_SUCCESS, "of two pieces");
    CHECK(fake_physical(0) == LIMIT - 28 * MIB && counted() == LIMIT - 28 * MIB, "%llu taken, %llu counted",
          (unsigned long long)fake_physical(0), (unsigned long long)counted());
}

/* A driver that makes a pool grow though it has a place: this is undone once the stream has come to it. */
static void test_refused_growth_is_given_back(void) {
    CUdeviceptr first, address, linear;
    with_context(LIMIT);
    CUstream stream = fake_stream_new();
    CHECK(cuMemAllocAsync(&first, 5 * MIB, stream) == CUDA_SUCCESS, "of the pool");
    CHECK(cuMemAlloc_v2(&linear, LIMIT - 140 * MIB) == CUDA_SUCCESS, "all but 8 MiB");
    fake_pool_orders.grows = true;
    fake_stream_stick_for(stream, 3);
    CHECK(cuMemAllocAsync(&address, 10 * MIB, stream) == CUDA_ERROR_OUT_OF_MEMORY, "busy for a moment");
    CHECK(fake_peak(0) == LIMIT + 24 * MIB, "the pool grew: %llu", (unsigned long long)fake_peak(0));
    CHECK(fake_physical(0) == LIMIT - 8 * MIB && counted() == LIMIT - 8 * MIB, "%llu taken, %llu counted",
          (unsigned long long)fake_physical(0), (unsigned long long)counted());
    CHECK(cuMemAllocAsync(&address, 10 * MIB, stream) == CUDA_ERROR_OUT_OF_MEMORY, "nothing is certain any more");
    CHECK(cuMemFreeAsync(first, stream) == CUDA_SUCCESS, "freed");
    CHECK(cuMemAllocAsync(&address, 5 * MIB, stream) == CUDA_SUCCESS, "this is");
    CHECK(fake_counts.events == 0, "%u events live", fake_counts.events);
}

/* --- captures ----------------------------------------------------------------------------------------------------- */

static CUstream captured;
static _Atomic bool ended;

static void *end_capture(void *context) {
    CUgraph graph;
    (void)context;
    CHECK(cuStreamEndCapture(captured, &graph) == CUDA_SUCCESS, "ended");
    atomic_store(&ended, true);
    return NULL;
}

/* Another thread ends the capture at this moment. It has a second to do so. */
static void end_capture_meanwhile(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, end_capture, NULL) != 0)
        abort();
    pthread_detach(thread);
    for (int i = 0; i < 1000 && !atomic_load(&ended); i++)
        usleep(1000);
}

/* In a full claim an allocation is a node of a graph if its stream is captured, and refused if not, even if another thread
 * ends the capture. */
static void test_capture_ends_beside_an_allocation(void) {
    CUdeviceptr linear, address;
    with_context(LIMIT);
    captured = fake_stream_new();
    CHECK(cuMemAlloc_v2(&linear, LIMIT - 100 * MIB) == CUDA_SUCCESS && counted() == LIMIT, "full");
    CHECK(cuMemAllocAsync(&address, MIB, captured) == CUDA_ERROR_OUT_OF_MEMORY, "not captured");
    fake_stream_capture(captured);
    fake_pool_orders.allocating = end_capture_meanwhile;
    CHECK(cuMemAllocAsync(&address, MIB, captured) == CUDA_SUCCESS, "a node");
    for (int i = 0; i < 1000 && !atomic_load(&ended); i++)
        usleep(1000);
    CHECK(atomic_load(&ended) && fake_peak(0) == LIMIT && counted() == LIMIT, "peak %llu",
          (unsigned long long)fake_peak(0));
    CHECK(cuMemAllocAsync(&address, MIB, captured) == CUDA_ERROR_OUT_OF_MEMORY, "not captured any more");
}

/* Another thread begins a capture in a stream in which memory was freed, while an event is recorded there, and ends it at once or
 * not. That event is never done, but what was freed is. */
static void captured_beside_an_event(bool linear, bool ends) {
    CUdeviceptr address, other;
    CUgraph graph;
    with_context(LIMIT);
    CUstream stream = fake_stream_new();
    CHECK((linear ? cuMemAlloc_v2(&address, 600 * MIB) : cuMemAllocAsync(&address, 20 * MIB, stream)) == CUDA_SUCCESS,
          "alloc");
    fake_stream_stick(stream, true);
    if (linear)
        fake_stream_capture_beside_event(stream, ends);
    CHECK(cuMemFreeAsync(address, stream) == CUDA_SUCCESS, "free");
    if (!linear)
        fake_stream_capture_beside_event(stream, ends);
    CHECK(cuMemAlloc_v2(&other, LIMIT - 100 * MIB) == CUDA_ERROR_OUT_OF_MEMORY, "it is not free yet");
    fake_stream_stick(stream, false);
    if (!ends)
        CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS, "captured");
    CHECK(cuMemAlloc_v2(&other, LIMIT - 100 * MIB) == CUDA_SUCCESS, "afterwards");
    unsigned queries = fake_counts.queries;
    CHECK(cuMemAlloc_v2(&other, MIB) == CUDA_ERROR_OUT_OF_MEMORY && fake_counts.queries <= queries + 1,
          "it was waited for");
    CHECK(fake_counts.events == 0 && fake_counts.invalid == 0, "%u events live, %u captures are invalid",
          fake_counts.events, fake_counts.invalid);
}

static void test_capture_beside_an_event(void) {
    captured_beside_an_event(false, true);
}

static void test_capture_goes_on_beside_an_event(void) {
    captured_beside_an_event(false, false);
}

static void test_capture_beside_an_event_of_linear_memory(void) {
    captured_beside_an_event(true, true);
}

static void test_capture_goes_on_beside_linear_memory(void) {
    captured_beside_an_event(true, false);
}

/* --- the driver calls back ---------------------------------------------------------------------------------------- */

static CUgraphExec spare; /* instantiated */
static unsigned calls;    /* times that any_calls came to its end */

/* What a program may call from anywhere. What the driver answers in a context that ends does not matter. */
static void any_calls(void) {
    CUcontext before = fake_current(), other;
    CUdeviceptr address;
    CUmodule module;
    CUlibrary library;
    size_t free, total;
    cuMemGetInfo_v2(&free, &total);
    if (cuMemAlloc_v2(&address, 2 * MIB) == CUDA_SUCCESS)
        cuMemFree_v2(address);
    if (cuMemAllocAsync(&address, MIB, NULL) == CUDA_SUCCESS)
        cuMemFreeAsync(address, NULL);
    if (cuModuleLoadData(&module, variables) == CUDA_SUCCESS)
        cuModuleUnload(module);
    if (cuLibraryLoadData(&library, variables, NULL, NULL, 0, NULL, NULL, 0) == CUDA_SUCCESS)
        cuLibraryUnload(library);
    CHECK(cuGraphLaunch(spare, NULL) == CUDA_SUCCESS, "launched");
    CHECK(cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS, "retained");
    CHECK(cuDevicePrimaryCtxRelease_v2(1) == CUDA_SUCCESS, "released");
    CHECK(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS && cuCtxDestroy_v2(other) == CUDA_SUCCESS, "another context");
    fake_cuCtxSetCurrent(before);
    calls++;
}

static CUgraphExec exec_of(size_t bytes) {
    CUgraphExec exec = NULL;
    CUresult result = cuGraphInstantiateWithFlags(&exec, fake_graph_new(bytes), 0);
    CHECK(result == CUDA_SUCCESS, "instantiated: %d", result);
    return exec;
}

static void *call_in_thread(void *context) {
    fake_cuCtxSetCurrent(context);
    any_calls();
    CUgraphExec another = exec_of(MIB);
    CHECK(cuGraphLaunch(another, NULL) == CUDA_SUCCESS && cuGraphExecDestroy(another) == CUDA_SUCCESS, "another graph");
    return NULL;
}

/* The launch ends only when another thread has done what it does, as if a function in the graph waited for it. */
static void call_and_wait(void) {
    pthread_t thread;
    any_calls();
    if (pthread_create(&thread, NULL, call_in_thread, fake_current()) != 0)
        abort();
    pthread_join(thread, NULL);
}

/* In the primary context that any_calls retains and releases, for which the context's gate is closed. */
static void test_no_lock_during_a_launch(void) {
    CUcontext primary = NULL;
    with_context(LIMIT);
    CHECK(cuDevicePrimaryCtxRetain(&primary, 1) == CUDA_SUCCESS, "retained");
    fake_cuCtxSetCurrent(primary);
    spare = exec_of(MIB);
    CUgraphExec exec = exec_of(64 * MIB);
    fake_orders.in_launch = call_and_wait;
    CHECK(cuGraphLaunch(exec, NULL) == CUDA_SUCCESS && calls == 2, "called %u times", calls);
    CHECK(used() == fake_physical(1), "used %llu of %llu", (unsigned long long)used(),
          (unsigned long long)fake_physical(1));
    CHECK(cuGraphExecDestroy(exec) == CUDA_SUCCESS && cuGraphExecDestroy(spare) == CUDA_SUCCESS, "destroyed");
}

/* What the driver has reserved for graphs is charged, and nothing more while they are launched again. */
static void test_graphs_are_charged_what_is_reserved(void) {
    CUdeviceptr linear;
    with_context(LIMIT);
    CUgraphExec large = exec_of(64 * MIB), small = exec_of(MIB);
    CHECK(cuGraphLaunch(small, NULL) == CUDA_SUCCESS && used() == 132 * MIB, "used %llu", (unsigned long long)used());
    CHECK(cuGraphLaunch(large, NULL) == CUDA_SUCCESS && used() == 164 * MIB, "used %llu", (unsigned long long)used());
    CHECK(cuMemAlloc_v2(&linear, LIMIT - 164 * MIB) == CUDA_SUCCESS, "the claim is full");
    for (int i = 0; i < 3; i++)
        CHECK(cuGraphLaunch(large, NULL) == CUDA_SUCCESS && cuGraphLaunch(small, NULL) == CUDA_SUCCESS, "again");
    CHECK(cuMemFree_v2(linear) == CUDA_SUCCESS && cuDeviceGraphMemTrim(0) == CUDA_SUCCESS && used() == 100 * MIB,
          "trimmed: %llu", (unsigned long long)used());
    CHECK(cuMemAlloc_v2(&linear, LIMIT - 100 * MIB - 32 * MIB) == CUDA_SUCCESS, "room for the small one");
    CHECK(cuGraphLaunch(large, NULL) == CUDA_ERROR_OUT_OF_MEMORY && fake_peak(0) == LIMIT, "peak %llu",
          (unsigned long long)fake_peak(0));
    CHECK(cuGraphLaunch(small, NULL) == CUDA_SUCCESS && used() == LIMIT && fake_physical(0) == LIMIT, "used %llu",
          (unsigned long long)used());
}

static void end_unseen(CUgraph graph) {
    ((CUresult(*)(CUgraph))fake_graphs_lookup("cuGraphDestroy"))(graph);
}

static CUgraph destroyed;

static void *end_graph(void *graph) {
    CUresult result = cuGraphDestroy(graph);
    destroyed = graph;
    return result == CUDA_SUCCESS ? graph : NULL;
}

static pthread_t ending;

/* Another thread destroys the graph. */
static void end_beside(CUgraph graph) {
    fake_orders.in_instantiate = NULL;
    if (pthread_create(&ending, NULL, end_graph, graph) != 0)
        abort();
    for (int i = 0; i < 1000 && destroyed == NULL; i++)
        sched_yield();
}

/* A graph that is gone before it can be read is not taken for one that needs nothing. */
static void test_graph_destroyed_beside_its_instantiation(void) {
    CUgraphExec exec = NULL;
    void *done = NULL;
    with_context(LIMIT);
    fake_orders.in_instantiate = end_unseen;
    CHECK(cuGraphInstantiateWithFlags(&exec, fake_graph_new(64 * MIB), 0) != CUDA_SUCCESS, "not read");
    fake_orders.in_instantiate = end_beside;
    exec = exec_of(64 * MIB);
    CHECK(pthread_join(ending, &done) == 0 && done != NULL && done == destroyed, "destroyed");
    CHECK(cuGraphLaunch(exec, NULL) == CUDA_SUCCESS && used() == 164 * MIB && fake_physical(0) == used(), "used %llu",
          (unsigned long long)used());
}

/* Destructors that the program has registered. */
static void test_calls_while_something_ends(void) {
    CUcontext first = with_context(LIMIT), context, primary;
    CUlibrary library = load_library(variables);
    spare = exec_of(MIB);
    any_calls();
    uint64_t before = used();
    CHECK(cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS, "created");
    fake_orders.in_end = any_calls;
    CHECK(cuCtxDestroy_v2(context) == CUDA_SUCCESS && calls == 2, "destroyed");
    fake_cuCtxSetCurrent(first);
    CHECK(used() == before, "used %llu", (unsigned long long)used());
    for (int reset = 0; reset < 2; reset++) {
        CHECK(cuDevicePrimaryCtxRetain(&primary, 1) == CUDA_SUCCESS, "retained");
        fake_cuCtxSetCurrent(primary);
        fake_orders.in_end = any_calls;
        CHECK((reset ? cuDevicePrimaryCtxReset_v2(1) : cuDevicePrimaryCtxRelease_v2(1)) == CUDA_SUCCESS, "ended");
        fake_cuCtxSetCurrent(first);
        CHECK(used() == before && calls == 3u + (unsigned)reset, "used %llu", (unsigned long long)used());
    }
    CHECK(cuDevicePrimaryCtxRetain(&primary, 1) == CUDA_SUCCESS && used_of(primary) == fake_physical(1) + 10 * MIB,
          "the last is gone");
    fake_orders.in_end = any_calls;
    CHECK(cuLibraryUnload(library) == CUDA_SUCCESS && calls == 5, "unloaded");
    CHECK(used() == before - 10 * MIB && used_of(primary) == fake_physical(1), "used %llu", (unsigned long long)used());
}

/* --- forks -------------------------------------------------------------------------------------------------------- */

/* This driver goes on working in a forked child, which the real one does not: the child has an account of its own, with the
 * context. */
static void test_fork(void) {
    CUdeviceptr mine, other;
    int ready[2];
    with_context(LIMIT);
    CHECK(cuMemAlloc_v2(&mine, 100 * MIB) == CUDA_SUCCESS && used() == 200 * MIB, "before");
    CHECK(pipe(ready) == 0, "pipe");
    pid_t pid = fork();
    if (pid == 0) {
        /* The parent's allocation is not ours to give back. */
        CHECK(cuMemFree_v2(mine) == CUDA_SUCCESS && used() == 300 * MIB, "used %llu", (unsigned long long)used());
        CHECK(cuMemAlloc_v2(&other, 50 * MIB) == CUDA_SUCCESS && used() == 350 * MIB, "used %llu",
              (unsigned long long)used());
        CHECK(cuMemAlloc_v2(&other, 800 * MIB) == CUDA_ERROR_OUT_OF_MEMORY, "one limit for both");
        if (write(ready[1], "r", 1) != 1)
            _exit(1);
        pause();
    }
    char byte;
    close(ready[1]);
    CHECK(read(ready[0], &byte, 1) == 1, "the child");
    CHECK(used() == 350 * MIB, "used %llu", (unsigned long long)used());
    CHECK(cuMemAlloc_v2(&other, 10 * MIB) == CUDA_SUCCESS && used() == 360 * MIB, "the parent goes on");
    CHECK(cuMemFree_v2(other) == CUDA_SUCCESS && used() == 350 * MIB, "the parent goes on");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    CHECK(cuMemAlloc_v2(&other, 800 * MIB) == CUDA_SUCCESS && used() == LIMIT, "what the dead child had");
}

static void *hammer(void *context) {
    fake_cuCtxSetCurrent(context);
    for (int i = 0; i < 2000; i++) {
        CUdeviceptr address;
        if (cuMemAlloc_v2(&address, i % 2 ? 100 : 2 * MIB) == CUDA_SUCCESS)
            cuMemFree_v2(address);
    }
    return NULL;
}

/* Forked while other threads are in the midst of our code: the child must not wait for locks that nobody will give. */
static void test_fork_under_threads(void) {
    pthread_t threads[4];
    CUcontext context = with_context(LIMIT);
    for (unsigned i = 0; i < COUNT(threads); i++)
        pthread_create(&threads[i], NULL, hammer, context);
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(60);
            /* This call needs no lock of the driver's, which may be held too. Our own are what is tested. */
            size_t bytes;
            _exit(cuDeviceTotalMem_v2(&bytes, 0) != CUDA_SUCCESS || bytes != LIMIT);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0, "status %#x", (unsigned)status);
    }
    for (unsigned i = 0; i < COUNT(threads); i++)
        pthread_join(threads[i], NULL);
    CHECK(used() == 100 * MIB, "used %llu", (unsigned long long)used());
}

/* --- threads and chance ------------------------------------------------------------------------------------------- */

static void test_threads(void) {
    pthread_t threads[8];
    CUcontext context = with_context(LIMIT);
    for (unsigned i = 0; i < COUNT(threads); i++)
        pthread_create(&threads[i], NULL, hammer, context);
    for (unsigned i = 0; i < COUNT(threads); i++)
        pthread_join(threads[i], NULL);
    CHECK(used() == 100 * MIB && fake_physical(0) == 100 * MIB, "used %llu", (unsigned long long)used());
    CHECK(fake_peak(0) <= LIMIT, "peak %llu", (unsigned long long)fake_peak(0));
}

static void *first_calls(void *unused) {
    (void)unused;
    CUcontext context;
    void *function;
    CHECK(cuInit(0) == CUDA_SUCCESS, "cuInit");
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS, "primary");
    CHECK(cuGetProcAddress("cuMemAlloc", &function, 12000, 0) == CUDA_SUCCESS && function == (void *)cuMemAlloc_v2,
          "by name");
    return NULL;
}

static void test_first_calls_of_many_threads(void) {
    pthread_t threads[8];
    claims(LIMIT);
    fake_orders.answers = FAKE_TRAMPOLINES;
    for (unsigned i = 0; i < COUNT(threads); i++)
        pthread_create(&threads[i], NULL, first_calls, NULL);
    for (unsigned i = 0; i < COUNT(threads); i++)
        pthread_join(threads[i], NULL);
    CHECK(fake_physical(0) == 100 * MIB, "one context");
}

/* Random calls; after each, what is counted is what is physically taken, and a refusal was due. */
static void test_random_calls(void) {
    enum { STEPS = 20000, ALLOCATIONS = 400, CONTEXTS_MAX = 6 };
    static struct {
        CUdeviceptr address;
        CUcontext context;
    } live[ALLOCATIONS];
    CUcontext contexts[CONTEXTS_MAX] = {0}, primary;
    int retained = 0;
    contexts[0] = with_context(LIMIT);
    srandom(seed);
    CHECK(cuDevicePrimaryCtxRetain(&primary, 0) == CUDA_SUCCESS, "primary");
    retained = 1;
    for (int step = 0; step < STEPS; step++) {
        unsigned which = (unsigned)random() % ALLOCATIONS, c = (unsigned)random() % CONTEXTS_MAX;
        unsigned long long before = fake_physical(0);
        CUcontext gone = NULL, current = primary != NULL && random() % 3 == 0 ? primary : contexts[c];
        uint64_t grows = 0;
        CUresult result = CUDA_SUCCESS;
        fake_cuCtxSetCurrent(current);
        switch (random() % 100) {
        default:
            if (live[which].address != 0) {
                result = cuMemFree_v2(live[which].address);
                CHECK(result == CUDA_SUCCESS, "seed %u step %d: free: %d", seed, step, result);
                live[which].address = 0;
            } else if (current != NULL) {
                uint64_t size = random() % 2 ? 1 + (uint64_t)random() % MIB : 1 + (uint64_t)random() % (100 * MIB);
                size_t pitch;
                grows = size < MIB ? 2 * MIB : (size + 2 * MIB - 1) / (2 * MIB) * 2 * MIB;
                switch (random() % 3) {
                case 0:
                    result = cuMemAlloc_v2(&live[which].address, size);
                    break;
                case 1:
                    result = cuMemAllocManaged(&live[which].address, size, 1);
                    break;
                default:
                    grows = (((size / 100 + 511) / 512 * 512) * 100 + 2 * MIB) / (2 * MIB) * 2 * MIB;
                    result = size < 100 ? CUDA_SUCCESS
                                        : cuMemAllocPitch_v2(&live[which].address, &pitch, size / 100, 100, 4);
                }
                if (result != CUDA_SUCCESS)
                    live[which].address = 0;
                live[which].context = current;
            }
            break;
        case 0:
            grows = 100 * MIB;
            if (contexts[c] == NULL)
                result = cuCtxCreate_v2(&contexts[c], 0, 0);
            break;
        case 1:
            if (contexts[c] != NULL)
                result = cuCtxDestroy_v2(gone = contexts[c]);
            contexts[c] = NULL;
            break;
        case 2:
            grows = 100 * MIB;
            result = cuDevicePrimaryCtxRetain(&primary, 0);
            retained += result == CUDA_SUCCESS;
            break;
        case 3:
        case 4:
            if (retained > 0)
                result = cuDevicePrimaryCtxRelease_v2(0);
            gone = retained == 1 ? primary : NULL;
            retained -= retained > 0;
            break;
        case 5:
            result = cuDevicePrimaryCtxReset_v2(0);
            gone = retained ? primary : NULL;
            retained = 0;
        }
        if (retained == 0)
            primary = NULL;
        for (int i = 0; gone != NULL && i < ALLOCATIONS; i++)
            if (live[i].address != 0 && live[i].context == gone)
                live[i].address = 0;
        CHECK(result == CUDA_SUCCESS || (result == CUDA_ERROR_OUT_OF_MEMORY && before + grows > LIMIT - 2 * MIB),
              "seed %u step %d: %d with %llu taken, %llu more", seed, step, result, before, (unsigned long long)grows);
        CHECK(fake_peak(0) <= LIMIT, "seed %u step %d: peak %llu", seed, step, (unsigned long long)fake_peak(0));

        size_t bytes;
        uint64_t limit = 0;
        CHECK(cuDeviceTotalMem_v2(&bytes, 0) == CUDA_SUCCESS && bytes == LIMIT, "%llu", (unsigned long long)limit);
        CUcontext any = primary;
        for (int i = 0; i < CONTEXTS_MAX && any == NULL; i++)
            any = contexts[i];
        fake_cuCtxSetCurrent(any);
        CHECK(any == NULL || used() == fake_physical(0), "seed %u step %d: used %llu, physical %llu", seed, step,
              (unsigned long long)used(), (unsigned long long)fake_physical(0));
    }
}

/* --- memory that is not CUDA's ------------------------------------------------------------------------------------- */

/* Of a batch, only what goes to a GPU has to be managed memory, and only where the GPU uses other memory at all. */
static void test_batches_of_memory_that_is_not_cudas(void) {
    enum { MANAGED = 1 << 30, OWN = 2 << 20 };
    CUdeviceptr addresses[] = {MANAGED, OWN, MANAGED + 4 * MIB};
    size_t sizes[] = {4 * MIB, 4 * MIB, 4 * MIB}, firsts[] = {0, 1, 2};
    CUmemLocation locations[] = {
        {CU_MEM_LOCATION_TYPE_DEVICE, 0}, {CU_MEM_LOCATION_TYPE_HOST, 0}, {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    with_context(LIMIT);
    fake_orders.managed[0] = MANAGED;
    fake_orders.managed[1] = 8 * MIB;
    fake_prefetched = 0;
    fake_orders.pageable = true;
    CHECK(cuMemPrefetchBatchAsync(addresses, sizes, 3, locations, firsts, 3, 0, NULL) == CUDA_SUCCESS, "to the host");
    firsts[2] = 3; /* the range of the host's location is now two ranges */
    CHECK(cuMemPrefetchBatchAsync(addresses, sizes, 3, locations, firsts, 2, 0, NULL) == CUDA_SUCCESS, "the rest, too");
    CHECK(fake_prefetched == 6, "%zu were prefetched", fake_prefetched);
    locations[1].type = CU_MEM_LOCATION_TYPE_DEVICE;
    CHECK(cuMemPrefetchBatchAsync(addresses, sizes, 3, locations, firsts, 2, 0, NULL) == CUDA_ERROR_NOT_PERMITTED,
          "memory of malloc, to the GPU");
    addresses[1] = MANAGED + 6 * MIB;
    CHECK(cuMemPrefetchBatchAsync(addresses, sizes, 3, locations, firsts, 2, 0, NULL) == CUDA_ERROR_NOT_PERMITTED,
          "what begins in managed memory and goes on behind it");
    CHECK(fake_prefetched == 6, "%zu were prefetched", fake_prefetched);
    fake_orders.pageable = false;
    CHECK(cuMemPrefetchBatchAsync(addresses, sizes, 3, locations, firsts, 2, 0, NULL) == CUDA_SUCCESS,
          "the driver's answer");
}

/* --- checkpoints of processes ------------------------------------------------------------------------------------- */

/* What is charged on one GPU must not come back on another. */
static void test_checkpoint(void) {
    CUcheckpointGpuPair pairs[2] = {{{"first"}, {"first"}}, {{"second"}, {"second"}}};
    CUcheckpointCheckpointArgs checkpoint = {{0}};
    CUcheckpointRestoreArgs restore = {pairs, 2, {0}};

    CHECK(cuCheckpointProcessCheckpoint(1, NULL) == CUDA_SUCCESS && fake_checkpointed == 1, "without options");
    CHECK(cuCheckpointProcessCheckpoint(2, &checkpoint) == CUDA_SUCCESS && fake_checkpointed == 2, "empty options");
    checkpoint.reserved[7] = 1;
    CHECK(cuCheckpointProcessCheckpoint(3, &checkpoint) == CUDA_ERROR_NOT_SUPPORTED && fake_checkpointed == 2,
          "an unknown option");

    CHECK(cuCheckpointProcessRestore(1, NULL) == CUDA_SUCCESS && fake_restored == 1, "without options");
    CHECK(cuCheckpointProcessRestore(2, &restore) == CUDA_SUCCESS && fake_restored == 2, "where it was");
    pairs[1].newUuid.bytes[15] = 1;
    CHECK(cuCheckpointProcessRestore(3, &restore) == CUDA_ERROR_NOT_SUPPORTED && fake_restored == 2, "another GPU");
    restore.gpuPairsCount = 1;
    CHECK(cuCheckpointProcessRestore(4, &restore) == CUDA_SUCCESS && fake_restored == 4, "one pair");
    restore.reserved[sizeof restore.reserved - 1] = 1;
    CHECK(cuCheckpointProcessRestore(5, &restore) == CUDA_ERROR_NOT_SUPPORTED && fake_restored == 4,
          "an unknown option");
}

/* --- cuGetProcAddress --------------------------------------------------------------------------------------------- */

/* What each name stands for from each version on, written down once more, by hand. */
static const struct {
    const char *name;
    int version;
    void *function;
} expected[] = {
    {"cuInit", 2000, (void *)cuInit},
    {"cuInit", 13000, (void *)cuInit},
    {"cuMemAlloc", 2000, (void *)cuMemAlloc},
    {"cuMemAlloc", 3010, (void *)cuMemAlloc},
    {"cuMemAlloc", 3020, (void *)cuMemAlloc_v2},
    {"cuMemAlloc", 12080, (void *)cuMemAlloc_v2},
    {"cuMemFree", 2000, (void *)cuMemFree},
    {"cuMemFree", 11000, (void *)cuMemFree_v2},
    {"cuMemAllocPitch", 3010, (void *)cuMemAllocPitch},
    {"cuMemAllocPitch", 3020, (void *)cuMemAllocPitch_v2},
    {"cuMemAllocManaged", 6000, (void *)cuMemAllocManaged},
    {"cuMemGetInfo", 3000, (void *)cuMemGetInfo},
    {"cuMemGetInfo", 12000, (void *)cuMemGetInfo_v2},
    {"cuDeviceTotalMem", 3000, (void *)cuDeviceTotalMem},
    {"cuDeviceTotalMem", 12000, (void *)cuDeviceTotalMem_v2},
    {"cuCtxCreate", 2000, (void *)cuCtxCreate},
    {"cuCtxCreate", 3020, (void *)cuCtxCreate_v2},
    {"cuCtxCreate", 11030, (void *)cuCtxCreate_v2},
    {"cuCtxCreate", 11040, (void *)cuCtxCreate_v3},
    {"cuCtxDestroy", 3020, (void *)cuCtxDestroy},
    {"cuCtxDestroy", 4000, (void *)cuCtxDestroy_v2},
    {"cuDevicePrimaryCtxRetain", 7000, (void *)cuDevicePrimaryCtxRetain},
    {"cuDevicePrimaryCtxRelease", 10000, (void *)cuDevicePrimaryCtxRelease},
    {"cuDevicePrimaryCtxRelease", 11000, (void *)cuDevicePrimaryCtxRelease_v2},
    {"cuDevicePrimaryCtxReset", 10000, (void *)cuDevicePrimaryCtxReset},
    {"cuDevicePrimaryCtxReset", 11000, (void *)cuDevicePrimaryCtxReset_v2},
    {"cuGetProcAddress", 11030, (void *)cuGetProcAddress},
    {"cuGetProcAddress", 12000, (void *)cuGetProcAddress_v2},
};

/* A form of a function that came after the table was made must not be answered with an older one, whose parameters are
 * others. If nothing is lost when the shadow does not see it, the driver's is answered. */
static void ask_for_newer_forms(void) {
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    void *function = &status, *own = NULL;
    CUresult result = cuGetProcAddress_v2("cuMemAllocPitch", &function, FAKE_NEWER, 0, &status);
    CHECK(result == CUDA_SUCCESS && function == NULL && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, "newer: %d %p",
          result, function);
    result = cuGetProcAddress_v2("cuMemAllocPitch", &function, FAKE_NEWER, 0, NULL);
    CHECK(result == CUDA_SUCCESS && function == NULL, "newer, without a place for the status");
    result = cuGetProcAddress("cuMemAllocPitch", &function, FAKE_NEWER, 0);
    CHECK(result == CUDA_ERROR_NOT_FOUND && function == NULL, "newer, by the first form: %d %p", result, function);
    result = cuGetProcAddress("cuMemAllocPitch", &function, FAKE_NEWER - 10, 0);
    CHECK(fake_orders.answers == FAKE_NEVER_TWICE ? result == CUDA_ERROR_NOT_FOUND
                                                  : result == CUDA_SUCCESS && function == (void *)cuMemAllocPitch_v2,
          "the last before the newer form: %d %p", result, function);
    REAL(cuGetProcAddress)("cuCtxSynchronize", &own, FAKE_NEWER, 0);
    result = cuGetProcAddress("cuCtxSynchronize", &function, FAKE_NEWER, 0);
    CHECK(result == CUDA_SUCCESS && (fake_orders.answers == FAKE_NEVER_TWICE ? function != NULL : function == own) &&
              function != (void *)cuCtxSynchronize,
          "newer, and need not be seen: %d %p", result, function);
}

static void ask_for_everything(enum fake_answers answers) {
    CUdriverProcAddressQueryResult status;
    void *function, *own;
    fake_orders.answers = answers;
    for (unsigned i = 0; i < COUNT(expected); i++) {
        for (cuuint64_t flags = 0; flags < 3; flags++) {
            CUresult result = cuGetProcAddress(expected[i].name, &function, expected[i].version, flags);
            CHECK(result == CUDA_SUCCESS && function == expected[i].function, "%s %d %d", expected[i].name,
                  expected[i].version, (int)flags);
            result = cuGetProcAddress_v2(expected[i].name, &function, expected[i].version, flags, &status);
            CHECK(result == CUDA_SUCCESS && function == expected[i].function, "%s %d %d", expected[i].name,
                  expected[i].version, (int)flags);
        }
    }
    /* The rest is the driver's own business. */
    CHECK(cuGetProcAddress_v2("cuMemAllocManaged", &function, 5000, 0, &status) == CUDA_ERROR_NOT_FOUND &&
              function == NULL && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
          "too old");
    CHECK(cuGetProcAddress_v2("cuNoSuchFunction", &function, 5000, 0, &status) == CUDA_ERROR_NOT_FOUND &&
              function == NULL && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
          "unknown");
    CHECK(cuGetProcAddress(NULL, &function, 5000, 0) == CUDA_ERROR_INVALID_VALUE, "no name");
    CHECK(cuGetProcAddress("cuInit", NULL, 5000, 0) == CUDA_ERROR_INVALID_VALUE, "nowhere");
    if (answers != FAKE_NEVER_TWICE) {
        REAL(cuGetProcAddress)("cuCtxGetDevice", &own, 12000, 0);
        CHECK(cuGetProcAddress("cuCtxGetDevice", &function, 12000, 0) == CUDA_SUCCESS && function == own, "not ours");
    }
    ask_for_newer_forms();
}

static void test_procaddress_same(void) {
    ask_for_everything(FAKE_SAME);
}

static void test_procaddress_trampolines(void) {
    ask_for_everything(FAKE_TRAMPOLINES);
}

static void test_procaddress_never_twice(void) {
    ask_for_everything(FAKE_NEVER_TWICE);
}

static void test_procaddress_before_12(void) {
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    void *function = NULL;
    fake_orders.answers = FAKE_BEFORE_12;
    cuda_found[CUDA_cuGetProcAddress_v2] = NULL; /* it is looked for again */
    CUresult result = cuGetProcAddress_v2("cuMemAlloc", &function, 11040, 0, &status);
    CHECK(result == CUDA_SUCCESS && function == (void *)cuMemAlloc_v2 && status == CU_GET_PROC_ADDRESS_SUCCESS,
          "by the older function: %d", result);
    result = cuGetProcAddress_v2("cuNoSuchFunction", &function, 11040, 0, &status);
    CHECK(result == CUDA_SUCCESS && function == NULL && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, "none: %d",
          result);
    result = cuGetProcAddress_v2("cuMemFree", &function, 11040, 0, NULL);
    CHECK(result == CUDA_SUCCESS && function == (void *)cuMemFree_v2, "without a place for the status: %d", result);
    CHECK(cuGetProcAddress_v2(NULL, &function, 11040, 0, &status) == CUDA_ERROR_INVALID_VALUE, "no name");
    cuda_found[CUDA_cuGetProcAddress_v2] = NULL;
}

static bool wanted(const char *test, int count, char **names) {
    for (int i = 0; i < count; i++)
        if (strcmp(test, names[i]) == 0)
            return true;
    return count == 0;
}

/* shadow_test [SEED [TEST...]] */
int main(int argc, char **argv) {
    seed = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : (unsigned)getpid();
    checks_start();
    alarm(600);
#define RUN(test)                                                                                                      \
    if (wanted(#test, argc > 2 ? argc - 2 : 0, argv + 2))                                                              \
    checks_run(#test, test)
    RUN(test_limit);
    RUN(test_small_allocations_share_blocks);
    RUN(test_full_blocks_are_used_again);
    RUN(test_block_though_there_is_room);
    RUN(test_undone_during_a_capture);
    RUN(test_reserve);
    RUN(test_refusals);
    RUN(test_pool_memory_freed_by_another);
    RUN(test_full_blocks_of_many_threads);
    RUN(test_old_forms);
    RUN(test_driver_errors_give_back);
    RUN(test_what_happens_unseen_is_caught_up);
    RUN(test_pitch_of_the_driver);
    RUN(test_contexts);
    RUN(test_managed_memory_counts_on_every_gpu);
    RUN(test_context_on_another_gpu);
    RUN(test_functions_need_local_memory);
    RUN(test_functions_that_do_not_fit);
    RUN(test_kernels_need_local_memory);
    RUN(test_kernels_that_do_not_fit_everywhere);
    RUN(test_two_at_one_address);
    RUN(test_neighbours_during_a_load);
    RUN(test_module_with_a_former_handle);
    RUN(test_variables_of_unread_modules);
    RUN(test_variables_of_unread_libraries);
    RUN(test_variables_of_half_hidden_images);
    RUN(test_malformed);
    RUN(test_library_during_the_making_of_a_context);
    RUN(test_libraries_and_contexts_at_once);
    RUN(test_before_initialisation_the_driver_speaks);
    RUN(test_gpu_without_claim);
    RUN(test_context_that_the_shadow_did_not_see);
    RUN(test_primary_context_that_the_shadow_did_not_see);
    RUN(test_unseen_contexts_are_told_apart);
    RUN(test_unseen_context_that_does_not_fit);
    RUN(test_unseen_end_of_a_context);
    RUN(test_limit_below_a_context);
    RUN(test_no_variable);
    RUN(test_no_directory);
    RUN(test_no_claim);
    RUN(test_one_bad_claim_of_two);
    RUN(test_region_damaged_in_use);
    RUN(test_two_claims_for_one_gpu);
    RUN(test_what_is_left_of_two_claims);
    RUN(test_reports);
    RUN(test_errno_is_kept);
    RUN(test_destroyed_streams_leave_nothing);
    RUN(test_stream_destroyed_beside_a_free);
    RUN(test_asynchronous_free_of_linear_memory);
    RUN(test_pool_counts_what_it_holds);
    RUN(test_refused_growth_is_given_back);
    RUN(test_full_pool_is_used_again);
    RUN(test_preallocated_pool);
    RUN(test_pools_are_trimmed_by_what_is_missing);
    RUN(test_capture_ends_beside_an_allocation);
    RUN(test_capture_beside_an_event);
    RUN(test_capture_goes_on_beside_an_event);
    RUN(test_capture_beside_an_event_of_linear_memory);
    RUN(test_capture_goes_on_beside_linear_memory);
    RUN(test_holdings_of_alike_wholes);
    RUN(test_replaced_mappings);
    RUN(test_variables_of_alike_modules);
    RUN(test_alike_libraries);
    RUN(test_library_in_a_free_context);
    RUN(test_two_handles_of_one_address);
    RUN(test_opened_during_a_close);
    RUN(test_mapped_while_it_ends);
    RUN(test_mapped_in_another_context);
    RUN(test_pool_memory_freed_twice);
    RUN(test_pool_memory_freed_twice_and_refused);
    RUN(test_address_again_while_it_is_freed);
    RUN(test_objects_that_outlive_their_context);
    RUN(test_replacing_what_has_changed);
    RUN(test_destroyed_pools_are_not_found);
    RUN(test_aliases_are_not_contexts);
    RUN(test_no_lock_during_a_launch);
    RUN(test_graphs_are_charged_what_is_reserved);
    RUN(test_graph_destroyed_beside_its_instantiation);
    RUN(test_calls_while_something_ends);
    RUN(test_fork);
    RUN(test_fork_under_threads);
    RUN(test_threads);
    RUN(test_first_calls_of_many_threads);
    RUN(test_random_calls);
    RUN(test_batches_of_memory_that_is_not_cudas);
    RUN(test_checkpoint);
    RUN(test_procaddress_same);
    RUN(test_procaddress_trampolines);
    RUN(test_procaddress_never_twice);
    RUN(test_procaddress_before_12);
    return checks_report();
}
