/*
 * Programs that run on the simulated GPU under a limit, linked with libcuda.so.1. The tests check the simulator's
 * record; the output only shows progress.
 *
 *   worker greedy               allocates in smaller and smaller sizes until it gets no byte; then waits to be killed
 *   worker hold MIB             allocates that much, says "ready", and waits to be killed
 *   worker random SEED          allocates, frees, makes and destroys contexts at random, without end
 *   worker campaign N S SEED    runs N random workers for S seconds, and kills, stops and replaces some all the time
 *   worker init N               N processes call cuInit at once; prints how many milliseconds the last one took
 *   worker reset SECONDS        resets the primary context in which other threads allocate at that moment
 *   worker launch SECONDS       destroys executable graphs that other threads launch at that moment, with little left of the limit
 *   worker graphs               launches graphs that need no more than is left, in all orders of their nodes
 *   worker advise               advises managed memory to a GPU with a claim, and to one without
 *   worker own                  prefetches and advises memory of malloc to a GPU; prints what the call returned
 *   worker elsewhere            is refused memory of one GPU's pool in the other one's stream, on a full GPU
 *   worker green-cost           makes a green context beside the primary one
 *   worker green                sets limits in green contexts whose primary ones were reset, of two GPUs
 *   worker former               has a former context's handle current, which another thread's context got
 *   worker tiles                maps memory into boxes of a sparse array, and unmaps it
 *   worker streams              has closed its standard streams; says which of their numbers the library has
 *   worker spare                allocates what a child had that died, without a descriptor left
 *   worker pools N ROUNDS SEED   N processes at once allocate from memory pools at the limit, and free; none is killed
 *   worker full WAY             takes all that is free by pieces of 2 MiB (async, prealloc) or 64 KiB (small), then frees every
 *                               other one and takes it again; prints how many MiB were free, and what it got
 *   worker borrow CLAIMS LABEL MIB  imports memory from a pool of a process of other claims, which ends; then as greedy
 *   worker forked               allocates in a child of a process that has a context
 */
#include "../driver/cuda_api.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

CUresult cuInit(unsigned int);
CUresult cuCtxCreate_v2(CUcontext *, unsigned int, CUdevice);
CUresult cuCtxDestroy_v2(CUcontext);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemAllocPitch_v2(CUdeviceptr *, size_t *, size_t, size_t, unsigned int);
CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned int);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuCtxSetLimit(CUlimit, size_t);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice);
typedef union {
    uint64_t words[64]; /* more than any driver's */
} CUdevResource;
CUresult cuDeviceGetDevResource(CUdevice, CUdevResource *, int);
CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *, CUdevResource *, unsigned int);
CUresult cuGreenCtxCreate(CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned int);
CUresult cuCtxFromGreenCtx(CUcontext *, CUgreenCtx);
CUresult cuGreenCtxDestroy(CUgreenCtx);
CUresult cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuMemPrefetchAsync(CUdeviceptr, size_t, CUdevice, CUstream);
CUresult cuMemPrefetchAsync_v2(CUdeviceptr, size_t, CUmemLocation, unsigned int, CUstream);
CUresult cuMemAdvise(CUdeviceptr, size_t, CUmem_advise, CUdevice);
CUresult cuMemAdvise_v2(CUdeviceptr, size_t, CUmem_advise, CUmemLocation);
CUresult cuCtxSynchronize(void);
CUresult cuArray3DCreate_v2(CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *);
CUresult cuArrayDestroy(CUarray);
CUresult cuMemMapArrayAsync(CUarrayMapInfo *, unsigned int, CUstream);
CUresult cuMemCreate(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
CUresult cuMemRelease(CUmemGenericAllocationHandle);
CUresult cuGraphCreate(CUgraph *, unsigned int);
CUresult cuGraphAddMemAllocNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUDA_MEM_ALLOC_NODE_PARAMS *);
CUresult cuGraphAddMemFreeNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *, CUgraph, unsigned long long);
CUresult cuGraphLaunch(CUgraphExec, CUstream);
CUresult cuGraphExecDestroy(CUgraphExec);
CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
CUresult cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, void *);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *, CUdevice);
CUresult cuMemPoolCreate(CUmemoryPool *, const CUmemPoolProps *);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
CUresult cuMemPoolExportToShareableHandle(void *, CUmemoryPool, CUmemAllocationHandleType, unsigned long long);
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *, void *, CUmemAllocationHandleType, unsigned long long);
CUresult cuMemPoolExportPointer(void *, CUdeviceptr);
CUresult cuMemPoolImportPointer(CUdeviceptr *, CUmemoryPool, void *);
CUresult cuStreamCreate(CUstream *, unsigned int);
CUresult cuStreamSynchronize(CUstream);

#define MIB ((size_t)1 << 20)
#define NON_BLOCKING 1u                            /* CU_STREAM_NON_BLOCKING */
#define RESOURCE_PROCESSORS 1                      /* CU_DEV_RESOURCE_TYPE_SM */
#define GREEN_DEFAULT_STREAM 1                     /* CU_GREEN_CTX_DEFAULT_STREAM */
#define RELEASE_THRESHOLD ((CUmemPool_attribute)4) /* CU_MEMPOOL_ATTR_RELEASE_THRESHOLD */

static int fail(const char *what, CUresult result) {
    fprintf(stderr, "worker: %s: %d\n", what, result);
    return 1;
}

static int greedy(void) {
    CUdeviceptr address;
    CUcontext context;
    CUresult result = cuCtxCreate_v2(&context, 0, 0);
    if (result != CUDA_SUCCESS)
        return fail("cuCtxCreate", result);
    unsigned long allocations = 0;
    for (size_t size = 1024 * MIB; size > 0; size /= 2)
        while ((result = cuMemAlloc_v2(&address, size)) == CUDA_SUCCESS)
            allocations++;
    size_t free = 1, total = 0;
    cuMemGetInfo_v2(&free, &total);
    printf("refused with %d, %zu of %zu MiB left\n", result, free / MIB, total / MIB);
    fflush(stdout);
    for (int i = 0; i < 10000; i++)
        if (cuMemAlloc_v2(&address, 2 * MIB) == CUDA_SUCCESS)
            return fail("another allocation", CUDA_SUCCESS);
    puts("ready");
    fflush(stdout);
    return pause();
}

static int hold(size_t mib) {
    CUdeviceptr address;
    CUcontext context;
    CUresult result = cuDevicePrimaryCtxRetain(&context, 0);
    if (result == CUDA_SUCCESS)
        result = cuCtxSetCurrent(context);
    if (result == CUDA_SUCCESS && mib > 0)
        result = cuMemAlloc_v2(&address, mib * MIB);
    if (result != CUDA_SUCCESS)
        return fail("hold", result);
    puts("ready");
    fflush(stdout);
    return pause();
}

/* One context with some allocations, then a fresh one. Ends only with an error that is not a lack of memory. */
static int random_calls(unsigned seed) {
    enum { ALLOCATIONS = 32 };
    srandom(seed);
    for (;;) {
        CUdeviceptr live[ALLOCATIONS] = {0};
        CUcontext context;
        int primary = random() % 2;
        CUresult result = primary ? cuDevicePrimaryCtxRetain(&context, 0) : cuCtxCreate_v2(&context, 0, 0);
        if (result == CUDA_ERROR_OUT_OF_MEMORY)
            continue;
        if (result != CUDA_SUCCESS || (result = cuCtxSetCurrent(context)) != CUDA_SUCCESS)
            return fail("context", result);
        for (int step = 0; step < 300; step++) {
            CUdeviceptr *slot = &live[random() % ALLOCATIONS];
            size_t size = random() % 2 ? 1 + (size_t)random() % MIB : 1 + (size_t)random() % (16 * MIB), pitch;
            int kind = (int)(random() % 3);
            if (*slot != 0) {
                result = cuMemFree_v2(*slot);
                *slot = 0;
            } else if (kind == 0) {
                result = cuMemAllocPitch_v2(slot, &pitch, 1 + size / 64, 64, 4);
            } else {
                result = kind == 1 ? cuMemAllocManaged(slot, size, 1) : cuMemAlloc_v2(slot, size);
            }
            if (result == CUDA_ERROR_OUT_OF_MEMORY)
                *slot = 0;
            else if (result != CUDA_SUCCESS)
                return fail("step", result);
        }
        if (!primary)
            result = cuCtxDestroy_v2(context);
        else
            result = random() % 2 ? cuDevicePrimaryCtxRelease_v2(0) : cuDevicePrimaryCtxReset_v2(0);
        if (result != CUDA_SUCCESS)
            return fail("end of context", result);
    }
}

static double seconds(void);

/* --- a primary context that is reset ------------------------------------------------------------------------------ */

static _Atomic bool reset_ends;
static CUcontext primary;

/* Takes all that it can get, and gives back what is still there. */
static void *take_and_give(void *unused) {
    CUdeviceptr live[64];
    (void)unused;
    cuCtxSetCurrent(primary);
    while (!reset_ends) {
        size_t count = 0;
        while (count < sizeof live / sizeof live[0] && cuMemAlloc_v2(&live[count], 8 * MIB) == CUDA_SUCCESS)
            count++;
        while (count > 0)
            cuMemFree_v2(live[--count]);
    }
    return NULL;
}

static int reset(double duration) {
    pthread_t threads[3];
    int resets = 0;
    /* Held twice, so that the context goes on. */
    if (cuDevicePrimaryCtxRetain(&primary, 0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&primary, 0) != CUDA_SUCCESS)
        return fail("cuDevicePrimaryCtxRetain", CUDA_SUCCESS);
    for (int i = 0; i < 3; i++)
        if (pthread_create(&threads[i], NULL, take_and_give, NULL) != 0)
            abort();
    for (double end = seconds() + duration; seconds() < end; resets++) {
        cuDevicePrimaryCtxReset_v2(0);
        cuDevicePrimaryCtxRetain(&primary, 0);
        sched_yield();
    }
    reset_ends = true;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    printf("%d resets\n", resets);
    return 0;
}

/* --- graphs that are destroyed ------------------------------------------------------------------------------------ */

static _Atomic(CUgraphExec) launchable;
static _Atomic bool launch_ends;
static _Atomic int launching;

static void *launch(void *unused) {
    (void)unused;
    cuCtxSetCurrent(primary);
    while (!launch_ends) {
        if (launchable == NULL) {
            sched_yield();
            continue;
        }
        launching++;
        CUgraphExec exec = launchable;
        if (exec != NULL && cuGraphLaunch(exec, NULL) == CUDA_SUCCESS)
            cuCtxSynchronize();
        launching--;
    }
    return NULL;
}

/* Each launch would take more than what is left. */
static int launch_and_destroy(double duration) {
    CUDA_MEM_ALLOC_NODE_PARAMS allocation = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
        .bytesize = 64 * MIB};
    pthread_t threads[12];
    CUgraph graph;
    CUgraphNode node;
    CUdeviceptr address;
    size_t free, total;
    if (cuDevicePrimaryCtxRetain(&primary, 0) != CUDA_SUCCESS || cuCtxSetCurrent(primary) != CUDA_SUCCESS ||
        cuMemGetInfo_v2(&free, &total) != CUDA_SUCCESS || cuMemAlloc_v2(&address, free - 4 * MIB) != CUDA_SUCCESS ||
        cuGraphCreate(&graph, 0) != CUDA_SUCCESS ||
        cuGraphAddMemAllocNode(&node, graph, NULL, 0, &allocation) != CUDA_SUCCESS)
        return fail("launch", CUDA_SUCCESS);
    for (int i = 0; i < 12; i++)
        if (pthread_create(&threads[i], NULL, launch, NULL) != 0)
            abort();
    for (double end = seconds() + duration; seconds() < end;) {
        CUgraphExec exec;
        if (cuGraphInstantiateWithFlags(&exec, graph, 0) != CUDA_SUCCESS)
            return fail("cuGraphInstantiate", CUDA_SUCCESS);
        launchable = exec;
        while (launching == 0)
            sched_yield();
        cuGraphExecDestroy(exec);
        /* The driver may give the same handle to the next one. */
        for (launchable = NULL; launching != 0;)
            sched_yield();
    }
    launch_ends = true;
    for (int i = 0; i < 12; i++)
        pthread_join(threads[i], NULL);
    return 0;
}

/* --- graphs that fit ---------------------------------------------------------------------------------------------- */

/* A graph of allocations, each of which is freed before the next: one after the other, or all beside each other. */
static CUgraphExec exec_of(int count, size_t bytes, bool chain) {
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CUgraphNode last = NULL;
    CUresult result = cuGraphCreate(&graph, 0);
    for (int i = 0; i < count && result == CUDA_SUCCESS; i++) {
        CUDA_MEM_ALLOC_NODE_PARAMS allocation = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                               .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
                                                 .bytesize = bytes};
        CUgraphNode node;
        result = cuGraphAddMemAllocNode(&node, graph, &last, chain && last != NULL, &allocation);
        if (result == CUDA_SUCCESS)
            result = cuGraphAddMemFreeNode(&last, graph, &node, 1, allocation.dptr);
    }
    if (result == CUDA_SUCCESS)
        result = cuGraphInstantiateWithFlags(&exec, graph, 0);
    if (result != CUDA_SUCCESS)
        fail("graph", result);
    return exec;
}

static bool launches(CUgraphExec exec, const char *what) {
    CUresult result = exec != NULL ? cuGraphLaunch(exec, NULL) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = cuCtxSynchronize();
    if (result != CUDA_SUCCESS)
        fail(what, result);
    return result == CUDA_SUCCESS;
}

static int launch_graphs(void) {
    enum { SMALL = 60 };
    CUdeviceptr address;
    size_t left, total;
    if (cuDevicePrimaryCtxRetain(&primary, 0) != CUDA_SUCCESS || cuCtxSetCurrent(primary) != CUDA_SUCCESS)
        return fail("context", CUDA_SUCCESS);
    CUgraphExec small = exec_of(SMALL, MIB / 2, false), large = exec_of(40, 128 * MIB, true);
    bool done = launches(small, "small allocations") && launches(large, "large ones, one after the other");
    done = done && cuMemGetInfo_v2(&left, &total) == CUDA_SUCCESS &&
           cuMemAlloc_v2(&address, left / (2 * MIB) * (2 * MIB)) == CUDA_SUCCESS;
    for (int i = 0; i < 10 && done; i++)
        done = launches(small, "small ones again, in a full claim") && launches(large, "large ones again");
    if (done && cuGraphLaunch(exec_of(6, 64 * MIB, false), NULL) != CUDA_ERROR_OUT_OF_MEMORY)
        return fail("a graph without room", CUDA_SUCCESS);
    return done ? 0 : 1;
}

/* --- advice ------------------------------------------------------------------------------------------------------- */

#define SET_READ_MOSTLY ((CUmem_advise)1)
#define UNSET_ACCESSED_BY ((CUmem_advise)6)

static int advise(void) {
    static const CUmem_advise refused[] = {CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_MEM_ADVISE_SET_ACCESSED_BY};
    CUdeviceptr address;
    int wrong = 0;
    if (cuDevicePrimaryCtxRetain(&primary, 0) != CUDA_SUCCESS || cuCtxSetCurrent(primary) != CUDA_SUCCESS ||
        cuMemAllocManaged(&address, 4 * MIB, CU_MEM_ATTACH_GLOBAL) != CUDA_SUCCESS)
        return fail("cuMemAllocManaged", CUDA_SUCCESS);
    for (unsigned i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        CUmemLocation other = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
        wrong += cuMemAdvise(address, 4 * MIB, refused[i], 0) != CUDA_SUCCESS;
        wrong += cuMemAdvise(address, 4 * MIB, refused[i], CU_DEVICE_CPU) != CUDA_SUCCESS;
        wrong += cuMemAdvise(address, 4 * MIB, refused[i], 1) != CUDA_ERROR_NOT_PERMITTED;
        wrong += cuMemAdvise_v2(address, 4 * MIB, refused[i], other) != CUDA_ERROR_NOT_PERMITTED;
    }
    wrong += cuMemAdvise(address, 4 * MIB, UNSET_ACCESSED_BY, 1) != CUDA_SUCCESS;
    wrong += cuMemAdvise(address, 4 * MIB, SET_READ_MOSTLY, 1) != CUDA_SUCCESS;
    if (wrong != 0)
        fprintf(stderr, "worker: %d wrong answers to advice\n", wrong);
    return wrong != 0;
}

/* Prints the answers for memory of malloc to the GPU, for managed memory, and for memory of malloc to the host. */
static int own_memory(void) {
    enum { BYTES = 8 * MIB };
    CUmemLocation gpu = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    void *memory = aligned_alloc(2 * MIB, BYTES);
    CUdeviceptr own = (CUdeviceptr)memory, managed;
    if (memory == NULL || cuDevicePrimaryCtxRetain(&primary, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(primary) != CUDA_SUCCESS ||
        cuMemAllocManaged(&managed, BYTES, CU_MEM_ATTACH_GLOBAL) != CUDA_SUCCESS) {
        free(memory);
        return fail("cuMemAllocManaged", CUDA_SUCCESS);
    }
    printf("%d", cuMemPrefetchAsync(own, BYTES, 0, NULL));
    printf(" %d", cuMemPrefetchAsync_v2(own, BYTES, gpu, 0, NULL));
    printf(" %d", cuMemAdvise(own, BYTES, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 0));
    printf("; %d", cuMemPrefetchAsync(managed, BYTES, 0, NULL));
    printf(" %d", cuMemAdvise(managed + 1, BYTES - 1, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 0));
    printf("; %d\n", cuMemPrefetchAsync(own, BYTES, CU_DEVICE_CPU, NULL));
    free(memory);
    return 0;
}

/* --- a pool of another GPU ---------------------------------------------------------------------------------------- */

static size_t free_now(CUcontext context) {
    size_t free = 0, total;
    return cuCtxSetCurrent(context) == CUDA_SUCCESS && cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS ? free : 0;
}

/* What a pool of one GPU has no room for is not taken of another one, whose stream it is asked for in. */
static int refused_elsewhere(void) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUcontext here, there;
    CUmemoryPool pool;
    CUdeviceptr address;
    CUstream stream;
    if (cuCtxCreate_v2(&here, 0, 0) != CUDA_SUCCESS || cuMemPoolCreate(&pool, &properties) != CUDA_SUCCESS ||
        cuMemAlloc_v2(&address, free_now(here) - 60 * MIB) != CUDA_SUCCESS)
        return fail("all but 60 MiB", CUDA_SUCCESS);
    if (cuCtxCreate_v2(&there, 0, 1) != CUDA_SUCCESS || cuStreamCreate(&stream, 1) != CUDA_SUCCESS)
        return fail("a stream of the other GPU", CUDA_SUCCESS);
    CUresult result = cuMemAllocFromPoolAsync(&address, 60 * MIB, pool, stream);
    size_t left = free_now(here);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && left == 60 * MIB)
        return 0;
    fprintf(stderr, "worker: %zu MiB are left\n", left / MIB);
    return fail("memory of a pool of a full GPU", result);
}

/* --- green contexts after a reset --------------------------------------------------------------------------------- */

static bool make_green(CUdevice device, CUgreenCtx *green, CUcontext *view) {
    CUdevResource resource;
    CUdevResourceDesc described;
    return cuDeviceGetDevResource(device, &resource, RESOURCE_PROCESSORS) == CUDA_SUCCESS &&
           cuDevResourceGenerateDesc(&described, &resource, 1) == CUDA_SUCCESS &&
           cuGreenCtxCreate(green, described, device, GREEN_DEFAULT_STREAM) == CUDA_SUCCESS &&
           cuCtxFromGreenCtx(view, *green) == CUDA_SUCCESS;
}

/* It costs at least what the simulator takes for one, and no more than a whole context; all of it comes back. */
static int green_cost(void) {
    CUgreenCtx green;
    CUcontext view;
    if (cuDevicePrimaryCtxRetain(&primary, 0) != CUDA_SUCCESS)
        return fail("a primary context", CUDA_SUCCESS);
    size_t before = free_now(primary);
    if (!make_green(0, &green, &view))
        return fail("a green context", CUDA_SUCCESS);
    size_t cost = before - free_now(primary);
    CUresult result = cuGreenCtxDestroy(green);
    if (cost >= 16 * MIB && cost <= 64 * MIB && result == CUDA_SUCCESS && free_now(primary) == before)
        return 0;
    fprintf(stderr, "worker: it cost %zu MiB\n", cost / MIB);
    return fail("a green context's cost", result);
}

/* A green context of a device, whose primary one is reset then. */
static CUcontext green_and_reset(CUdevice device) {
    CUgreenCtx green;
    CUcontext view;
    bool made = make_green(device, &green, &view) && cuDevicePrimaryCtxReset_v2(device) == CUDA_SUCCESS;
    return made ? view : NULL;
}

/* What is set in it counts for its own GPU. */
static int green_limits(void) {
    CUcontext views[2] = {green_and_reset(0), green_and_reset(1)};
    CUdeviceptr address;
    for (CUdevice device = 1; device >= 0; device--)
        if (views[device] == NULL || cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS ||
            cuCtxSetCurrent(views[device]) != CUDA_SUCCESS ||
            cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 100 * MIB) != CUDA_SUCCESS)
            return fail("a green context", CUDA_SUCCESS);
    size_t left = free_now(views[0]);
    CUresult result = cuMemAlloc_v2(&address, 100 * MIB);
    return left < 100 * MIB && result == CUDA_ERROR_OUT_OF_MEMORY ? 0 : fail("beside a limit of 100 MiB", result);
}

/* A pool's memory that was freed in a green context, the last that held the primary one, is there for another process. */
static int green_pool(void) {
    int freed[2], status;
    char byte = 0;
    CUdeviceptr address;
    CUcontext context;
    CUgreenCtx green;
    if (pipe(freed) != 0)
        return 1;
    pid_t pid = fork(); /* before cuInit, for both to use the GPU */
    if (pid == 0 && read(freed[0], &byte, 1) != 1)
        return 1;
    if (cuInit(0) != CUDA_SUCCESS)
        return fail("cuInit", CUDA_SUCCESS);
    if (pid == 0)
        return cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS || cuMemAlloc_v2(&address, 350 * MIB) != CUDA_SUCCESS;
    if (!make_green(0, &green, &context) || cuCtxSetCurrent(context) != CUDA_SUCCESS ||
        cuMemAllocAsync(&address, 200 * MIB, NULL) != CUDA_SUCCESS || cuMemFreeAsync(address, NULL) != CUDA_SUCCESS ||
        cuCtxSetCurrent(NULL) != CUDA_SUCCESS || cuGreenCtxDestroy(green) != CUDA_SUCCESS)
        return fail("a pool of a green context", CUDA_SUCCESS);
    if (write(freed[1], &byte, 1) != 1 || waitpid(pid, &status, 0) != pid)
        return 1;
    return status == 0 ? 0 : fail("another process gets no memory", CUDA_ERROR_OUT_OF_MEMORY);
}

/* --- a former context's handle ------------------------------------------------------------------------------------ */

/* The driver reuses the handle of a context that was destroyed. */
static void *replace_context(void *argument) {
    CUcontext former = argument, context = NULL;
    CUdeviceptr address;
    if (cuCtxDestroy_v2(former) != CUDA_SUCCESS)
        return NULL;
    for (int i = 0; i < 16 && context != former; i++)
        if ((context != NULL && cuCtxDestroy_v2(context) != CUDA_SUCCESS) ||
            cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS)
            return NULL;
    return context == former && cuMemAlloc_v2(&address, 200 * MIB) == CUDA_SUCCESS ? argument : NULL;
}

/* What is in the new context stays counted when a call fails in the former one. */
static int former_context(void) {
    CUcontext context;
    CUdeviceptr address;
    pthread_t thread;
    void *replaced = NULL;
    if (cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS ||
        pthread_create(&thread, NULL, replace_context, context) != 0 || pthread_join(thread, &replaced) != 0 ||
        replaced == NULL)
        return fail("another context with the same handle", CUDA_SUCCESS);
    CUresult result = cuMemAlloc_v2(&address, MIB);
    if (result != CUDA_ERROR_CONTEXT_IS_DESTROYED)
        return fail("in the former context", result);
    if (cuCtxSetCurrent(context) != CUDA_SUCCESS)
        return fail("cuCtxSetCurrent", CUDA_SUCCESS);
    result = cuMemAlloc_v2(&address, 350 * MIB);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? 0 : fail("more than is left", result);
}

/* --- no descriptor left ------------------------------------------------------------------------------------------- */

static int without_spare_descriptors(void) {
    int ready[2];
    char byte = 0;
    struct rlimit few;
    CUdeviceptr address;
    CUcontext context;
    if (pipe(ready) != 0)
        return 1;
    pid_t pid = fork();
    bool child = pid == 0;
    if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS ||
        (child && (cuMemAlloc_v2(&address, 200 * MIB) != CUDA_SUCCESS || write(ready[1], &byte, 1) != 1)))
        return fail("spare", CUDA_SUCCESS);
    if (child)
        return pause();
    if (read(ready[0], &byte, 1) != 1 || getrlimit(RLIMIT_NOFILE, &few) != 0)
        return 1;
    few.rlim_cur = 3;
    if (setrlimit(RLIMIT_NOFILE, &few) != 0 || kill(pid, SIGKILL) != 0 || waitpid(pid, NULL, 0) != pid)
        return 1;
    CUresult result = cuMemAlloc_v2(&address, 400 * MIB);
    return result == CUDA_SUCCESS ? 0 : fail("what the child had", result);
}

#define TILE 128 /* texels, of 4 bytes */

/* Maps fresh memory to some tiles of a row, and lets go of its handle; unmaps them if there is no `map`. */
static CUresult use_tiles(CUarray array, unsigned from, unsigned count, bool map) {
    const CUmemAllocationProp tiles = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                       .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                       .allocFlags = {.usage = 1 /* CU_MEM_CREATE_USAGE_TILE_POOL */}};
    CUarrayMapInfo info = {
        .resource.array = array, .memOperationType = CU_MEM_OPERATION_TYPE_UNMAP, .deviceBitMask = 1};
    info.subresource.sparseLevel.offsetX = from * TILE;
    info.subresource.sparseLevel.extentWidth = count * TILE;
    info.subresource.sparseLevel.extentHeight = TILE;
    info.subresource.sparseLevel.extentDepth = 1;
    if (!map)
        return cuMemMapArrayAsync(&info, 1, NULL);
    info.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
    CUresult result = cuMemCreate(&info.memHandle.memHandle, 2 * MIB, &tiles, 0);
    if (result == CUDA_SUCCESS)
        result = cuMemMapArrayAsync(&info, 1, NULL);
    return result == CUDA_SUCCESS ? cuMemRelease(info.memHandle.memHandle) : result;
}

/* What a box shows counts until the same box shows something else; in any case until the array is destroyed. */
static int map_tiles(void) {
    static const struct {
        unsigned from, count, map, counted; /* MiB */
    } steps[] = {{0, 1, 1, 2}, {0, 1, 1, 2}, {0, 1, 0, 0}, {0, 1, 1, 2}, {0, 2, 1, 4}, {0, 2, 0, 2}, {2, 1, 1, 4}};
    CUDA_ARRAY3D_DESCRIPTOR wanted = {
        .Width = 4 * TILE, .Height = 4 * TILE, .Format = 0x20, .NumChannels = 1, .Flags = CUDA_ARRAY3D_SPARSE};
    size_t all, left, total;
    CUcontext context;
    CUarray array;
    if (cuInit(0) != CUDA_SUCCESS || cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS ||
        cuArray3DCreate_v2(&array, &wanted) != CUDA_SUCCESS || cuMemGetInfo_v2(&all, &total) != CUDA_SUCCESS)
        return fail("tiles", CUDA_SUCCESS);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        CUresult result = use_tiles(array, steps[i].from, steps[i].count, steps[i].map);
        if (result != CUDA_SUCCESS || cuMemGetInfo_v2(&left, &total) != CUDA_SUCCESS)
            return fail("tiles", result);
        if (all - left != steps[i].counted * MIB) {
            fprintf(stderr, "worker: step %zu: %zu MiB are counted, not %u\n", i, (all - left) / MIB, steps[i].counted);
            return 1;
        }
    }
    if (cuArrayDestroy(array) != CUDA_SUCCESS || cuMemGetInfo_v2(&left, &total) != CUDA_SUCCESS || left != all)
        return fail("the array's end", CUDA_SUCCESS);
    return 0;
}

/* Frees in one of the ways that there are. */
static CUresult pool_free(CUdeviceptr *address, CUstream stream) {
    CUresult result = *address == 0       ? CUDA_SUCCESS
                      : random() % 3 != 0 ? cuMemFreeAsync(*address, stream)
                                          : cuMemFree_v2(*address);
    *address = 0;
    return result;
}

/*
 * Fills the pool, and frees it again so that there is one place for `large` behind many that are too small for it. A
 * driver does not look at all of them before it has the pool grow.
 */
static CUresult pool_round(CUdeviceptr *live, int count, CUstream stream) {
    const size_t large = 1008 << 10, small = 630 << 10;
    CUresult result = CUDA_SUCCESS;
    CUdeviceptr last = 0;
    for (int i = 0; i < count && result == CUDA_SUCCESS; i++)
        if ((result = cuMemAllocAsync(&live[i], i == 0 ? large : small, stream)) != CUDA_SUCCESS)
            live[i] = 0;
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY)
        result = cuStreamSynchronize(stream);
    for (int i = 0; i < count && result == CUDA_SUCCESS; i += 2)
        result = pool_free(&live[i], stream);
    if (result == CUDA_SUCCESS)
        result = cuStreamSynchronize(stream);
    if (result == CUDA_SUCCESS && (result = cuMemAllocAsync(&last, large, stream)) == CUDA_ERROR_OUT_OF_MEMORY)
        result = CUDA_SUCCESS, last = 0;
    for (int i = 1; i < count && result == CUDA_SUCCESS; i += 2)
        result = pool_free(&live[i], stream);
    return result == CUDA_SUCCESS ? pool_free(&last, stream) : result;
}

static int pool_calls(int rounds, unsigned seed) {
    enum { ALLOCATIONS = 1000, STREAMS = 3 };
    CUdeviceptr live[ALLOCATIONS] = {0};
    CUstream streams[STREAMS] = {0};
    cuuint64_t threshold = UINT64_MAX;
    CUmemoryPool pool;
    CUcontext context;
    srandom(seed);
    CUresult result = cuCtxCreate_v2(&context, 0, 0);
    for (int i = 1; i < STREAMS && result == CUDA_SUCCESS; i++)
        result = cuStreamCreate(&streams[i], NON_BLOCKING);
    if (result == CUDA_SUCCESS)
        result = cuDeviceGetDefaultMemPool(&pool, 0);
    if (result == CUDA_SUCCESS && random() % 2)
        result = cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, &threshold);
    char byte = 0;
    if (write(STDOUT_FILENO, &byte, 1) != 1 || read(STDIN_FILENO, &byte, 1) != 0) /* until all have their contexts */
        return 2;
    for (int round = 0; round < rounds && result == CUDA_SUCCESS; round++)
        result = pool_round(live, ALLOCATIONS, streams[random() % STREAMS]);
    return result == CUDA_SUCCESS ? 0 : fail("pool", result);
}

/* --- a full claim ------------------------------------------------------------------------------------------------- */

static CUstream filling;

static CUresult take_piece(CUdeviceptr *piece, size_t bytes) {
    return filling != NULL ? cuMemAllocAsync(piece, bytes, filling) : cuMemAlloc_v2(piece, bytes);
}

/* A pool is filled with one allocation, which is freed; then the rest of the claim is taken otherwise. */
static CUresult preallocate(CUmemoryPool pool, size_t bytes, size_t rest) {
    CUdeviceptr all, other;
    CUresult result = cuMemAllocFromPoolAsync(&all, bytes, pool, filling);
    if (result == CUDA_SUCCESS && (result = cuMemFreeAsync(all, filling)) == CUDA_SUCCESS)
        result = cuStreamSynchronize(filling);
    return result == CUDA_SUCCESS ? cuMemAlloc_v2(&other, rest) : result;
}

static int fill(const char *way) {
    enum { MOST = 1 << 14 };
    static CUdeviceptr pieces[MOST];
    bool small = strcmp(way, "small") == 0, reserved = strcmp(way, "prealloc") == 0;
    size_t bytes = small ? 64 << 10 : 2 * MIB, free;
    cuuint64_t threshold = UINT64_MAX;
    int count = 0, again = 0;
    CUmemoryPool pool;
    CUcontext context;
    CUresult result = cuCtxCreate_v2(&context, 0, 0);
    if (result != CUDA_SUCCESS || (free = free_now(context)) == 0)
        return fail("cuCtxCreate", result);
    if (!small && ((result = cuStreamCreate(&filling, NON_BLOCKING)) != CUDA_SUCCESS ||
                   (result = cuDeviceGetDefaultMemPool(&pool, 0)) != CUDA_SUCCESS ||
                   (result = cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, &threshold)) != CUDA_SUCCESS))
        return fail("a pool", result);
    if (reserved &&
        (result = preallocate(pool, free / (64 * MIB) * 32 * MIB, free - free / (64 * MIB) * 32 * MIB)) != 0)
        return fail("preallocated", result);
    while (count < MOST && take_piece(&pieces[count], bytes) == CUDA_SUCCESS)
        count++;
    for (int i = 0; i < count && result == CUDA_SUCCESS; i += 2)
        result = filling != NULL ? cuMemFreeAsync(pieces[i], filling) : cuMemFree_v2(pieces[i]);
    if (result == CUDA_SUCCESS && filling != NULL)
        result = cuStreamSynchronize(filling);
    for (int i = 0; i < count && result == CUDA_SUCCESS; i += 2)
        again += take_piece(&pieces[i], bytes) == CUDA_SUCCESS;
    printf("%zu free, got %zu, freed %d, got %d again\n", free / MIB, (size_t)count * bytes / MIB, (count + 1) / 2,
           again);
    return result == CUDA_SUCCESS ? 0 : fail("free", result);
}

/* A pointer into a pool, and a descriptor of the pool beside it. */
struct lent {
    unsigned char pointer[64];
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
};

static struct msghdr message_of(struct lent *lent, struct iovec *data) {
    *data = (struct iovec){lent->pointer, sizeof lent->pointer};
    return (struct msghdr){.msg_iov = data,
                           .msg_iovlen = 1,
                           .msg_control = lent->control.room,
                           .msg_controllen = sizeof lent->control.room};
}

/* Its stdin is a socket. */
static int lend(size_t mib) {
    const CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                       .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                       .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    struct lent lent = {0};
    struct iovec data;
    struct msghdr message = message_of(&lent, &data);
    CUdeviceptr address;
    CUmemoryPool pool;
    CUcontext context;
    int descriptor;
    CUresult result = cuCtxCreate_v2(&context, 0, 0);
    if (result != CUDA_SUCCESS || (result = cuMemPoolCreate(&pool, &properties)) != CUDA_SUCCESS ||
        (result = cuMemAllocFromPoolAsync(&address, mib * MIB, pool, NULL)) != CUDA_SUCCESS ||
        (result = cuMemPoolExportToShareableHandle(&descriptor, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)) !=
            CUDA_SUCCESS ||
        (result = cuMemPoolExportPointer(lent.pointer, address)) != CUDA_SUCCESS)
        return fail("lend", result);
    lent.control.header = (struct cmsghdr){CMSG_LEN(sizeof descriptor), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&lent.control.header), &descriptor, sizeof descriptor);
    return sendmsg(STDIN_FILENO, &message, 0) < 0 || pause();
}

static pid_t start_lender(const char *self, char **arguments, int socket) {
    pid_t pid = fork();
    if (pid == 0) {
        setenv("TRANCHE_REGIONS", arguments[0], 1);
        setenv("SIMGPU_LABEL", arguments[1], 1);
        dup2(socket, STDIN_FILENO);
        execl(self, self, "lend", arguments[2], (char *)NULL);
        _exit(127);
    }
    return pid;
}

static int borrow(const char *self, char **arguments) {
    struct lent lent = {0};
    struct iovec data;
    struct msghdr message = message_of(&lent, &data);
    CUdeviceptr address;
    CUmemoryPool pool;
    CUcontext context;
    int sockets[2], descriptor;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0)
        return 1;
    pid_t lender = start_lender(self, arguments, sockets[1]);
    close(sockets[1]);
    CUresult result = cuInit(0);
    if (result != CUDA_SUCCESS || (result = cuCtxCreate_v2(&context, 0, 0)) != CUDA_SUCCESS)
        return fail("borrow", result);
    if (recvmsg(sockets[0], &message, 0) <= 0 || message.msg_controllen == 0)
        return fail("receive", CUDA_SUCCESS);
    memcpy(&descriptor, CMSG_DATA(&lent.control.header), sizeof descriptor);
    result = cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)descriptor,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result == CUDA_SUCCESS)
        result = cuMemPoolImportPointer(&address, pool, lent.pointer);
    if (result != CUDA_SUCCESS)
        return fail("import", result);
    close(descriptor);
    kill(lender, SIGKILL);
    waitpid(lender, NULL, 0);
    return greedy();
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static pid_t start(const char *self, const char *mode, const char *argument) {
    pid_t pid = fork();
    if (pid == 0) {
        execl(self, self, mode, argument, (char *)NULL);
        _exit(127);
    }
    return pid;
}

/* Each worker is a program of its own, so that it has not inherited anything. */
static int campaign(const char *self, int count, double duration, unsigned seed) {
    pid_t workers[1024] = {0};
    unsigned long killed = 0, failed = 0;
    srandom(seed);
    for (double end = seconds() + duration; seconds() < end;) {
        for (int i = 0; i < count; i++) {
            char argument[32];
            snprintf(argument, sizeof argument, "%ld", random());
            if (workers[i] == 0)
                workers[i] = start(self, "random", argument);
        }
        struct timespec pause = {.tv_nsec = 1000000 + random() % 10000000};
        nanosleep(&pause, NULL);
        int victim = (int)(random() % count), other = (int)(random() % count);
        if (random() % 2)
            kill(workers[other], random() % 2 ? SIGSTOP : SIGCONT);
        kill(workers[victim], SIGKILL);
        int status;
        for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
            for (int i = 0; i < count; i++)
                if (workers[i] == pid)
                    workers[i] = 0;
            killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
            failed += !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL;
        }
    }
    for (int i = 0; i < count; i++)
        if (workers[i] != 0)
            kill(workers[i], SIGKILL);
    while (wait(NULL) > 0 || errno == EINTR)
        ;
    printf("%lu killed, %lu failed\n", killed, failed);
    return failed != 0 || killed == 0;
}

static int pools_at_once(const char *self, int count, const char *rounds, unsigned seed) {
    int failed = 0, status, ready[2], start_line[2];
    char byte;
    if (pipe(ready) != 0 || pipe(start_line) != 0)
        return 1;
    for (int i = 0; i < count; i++) {
        char argument[32];
        snprintf(argument, sizeof argument, "%u", seed + (unsigned)i);
        if (fork() == 0) {
            dup2(ready[1], STDOUT_FILENO);
            dup2(start_line[0], STDIN_FILENO);
            close(start_line[1]);
            execl(self, self, "pool", rounds, argument, (char *)NULL);
            _exit(127);
        }
    }
    close(ready[1]);
    for (int i = 0; i < count; i++)
        failed += read(ready[0], &byte, 1) != 1;
    close(start_line[1]);
    while (wait(&status) > 0)
        failed += status != 0;
    return failed != 0;
}

static int init_at_once(int count) {
    int start_line[2];
    if (pipe(start_line) != 0)
        return 1;
    for (int i = 0; i < count; i++) {
        if (fork() == 0) {
            char byte;
            close(start_line[1]);
            if (read(start_line[0], &byte, 1) != 0) /* until all are there */
                _exit(2);
            _exit(cuInit(0) != CUDA_SUCCESS);
        }
    }
    double began = seconds();
    close(start_line[0]);
    close(start_line[1]);
    int failed = 0, status;
    while (wait(&status) > 0)
        failed += status != 0;
    printf("%.0f\n", (seconds() - began) * 1000);
    return failed != 0;
}

/* The driver does not work in a forked child; whatever it answers, nothing may be had there past the limit. */
static int forked(void) {
    CUcontext context;
    CUresult result = cuCtxCreate_v2(&context, 0, 0);
    if (result != CUDA_SUCCESS)
        return fail("cuCtxCreate", result);
    pid_t pid = fork();
    if (pid == 0) {
        CUdeviceptr address;
        size_t free, total;
        cuInit(0);
        cuMemGetInfo_v2(&free, &total);
        cuCtxCreate_v2(&context, 0, 0);
        while (cuMemAlloc_v2(&address, 16 * MIB) == CUDA_SUCCESS)
            ;
        _exit(0);
    }
    int status;
    if (waitpid(pid, &status, 0) != pid || status != 0)
        return fail("child", CUDA_SUCCESS);
    CUdeviceptr address;
    result = cuMemAlloc_v2(&address, 16 * MIB);
    return result == CUDA_SUCCESS ? 0 : fail("the parent goes on", result);
}

/* Like a daemon. What it writes to the numbers of its streams must not reach the claim. The simulated driver takes one. */
static int without_streams(void) {
    CUcontext context;
    CUdeviceptr address;
    int said = fcntl(STDOUT_FILENO, F_DUPFD, 100);
    for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; stream++)
        close(stream);
    CUresult result = cuInit(0);
    if (result == CUDA_SUCCESS)
        result = cuCtxCreate_v2(&context, 0, 0);
    if (result == CUDA_SUCCESS)
        result = cuMemAlloc_v2(&address, MIB);
    dprintf(said, "%d\n", result);
    for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; stream++) {
        char link[64], file[256];
        snprintf(link, sizeof link, "/proc/self/fd/%d", stream);
        ssize_t length = readlink(link, file, sizeof file - 1);
        file[length > 0 ? length : 0] = '\0';
        if (strncmp(file, "socket:", 7) == 0 ||
            strncmp(file, getenv("TRANCHE_REGIONS"), strlen(getenv("TRANCHE_REGIONS"))) == 0)
            dprintf(said, "%d is %s\n", stream, file);
    }
    return 0;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "campaign") == 0 && argc == 5)
        return campaign(argv[0], atoi(argv[2]), atof(argv[3]), (unsigned)strtoul(argv[4], NULL, 10));
    if (strcmp(mode, "pools") == 0 && argc == 5)
        return pools_at_once(argv[0], atoi(argv[2]), argv[3], (unsigned)strtoul(argv[4], NULL, 10));
    if (strcmp(mode, "borrow") == 0 && argc == 5)
        return borrow(argv[0], argv + 2);
    if (strcmp(mode, "init") == 0 && argc == 3)
        return init_at_once(atoi(argv[2]));
    if (strcmp(mode, "tiles") == 0)
        return map_tiles();
    if (strcmp(mode, "streams") == 0)
        return without_streams();
    if (strcmp(mode, "spare") == 0)
        return without_spare_descriptors();
    if (strcmp(mode, "green-pool") == 0)
        return green_pool();
    CUresult result = cuInit(0);
    if (result != CUDA_SUCCESS)
        return fail("cuInit", result);
    if (strcmp(mode, "greedy") == 0)
        return greedy();
    if (strcmp(mode, "hold") == 0 && argc == 3)
        return hold((size_t)atoi(argv[2]));
    if (strcmp(mode, "lend") == 0 && argc == 3)
        return lend((size_t)atoi(argv[2]));
    if (strcmp(mode, "random") == 0 && argc == 3)
        return random_calls((unsigned)strtoul(argv[2], NULL, 10));
    if (strcmp(mode, "launch") == 0 && argc == 3)
        return launch_and_destroy(atof(argv[2]));
    if (strcmp(mode, "graphs") == 0)
        return launch_graphs();
    if (strcmp(mode, "advise") == 0)
        return advise();
    if (strcmp(mode, "former") == 0)
        return former_context();
    if (strcmp(mode, "own") == 0)
        return own_memory();
    if (strcmp(mode, "green") == 0)
        return green_limits();
    if (strcmp(mode, "green-cost") == 0)
        return green_cost();
    if (strcmp(mode, "full") == 0 && argc == 3)
        return fill(argv[2]);
    if (strcmp(mode, "elsewhere") == 0)
        return refused_elsewhere();
    if (strcmp(mode, "reset") == 0 && argc == 3)
        return reset(atof(argv[2]));
    if (strcmp(mode, "pool") == 0 && argc == 4)
        return pool_calls(atoi(argv[2]), (unsigned)strtoul(argv[3], NULL, 10));
    if (strcmp(mode, "forked") == 0)
        return forked();
    fprintf(stderr, "usage: see the beginning of %s\n", __FILE__);
    return 2;
}
