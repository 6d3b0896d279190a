/*
 * Measures the time of calls that the shadow library changes, in nanoseconds: allocating and freeing, querying memory,
 * and, for comparison, launching a kernel, which it does not change.
 *
 *   callbench VARIANT [BENCHMARK...]
 *
 * It loads whatever libcuda.so.1 the loader finds, so run it with LD_LIBRARY_PATH pointing at a bare driver, and again
 * at the shadow; VARIANT is only copied to the output. Rows: benchmark, variant, threads, median, p99, unit, separated
 * by tabs. Median and 99th percentile are over batches of calls, each batch's mean being one value; of loading the
 * library, which a process does once, over as many processes.
 */
#include "driver/cuda_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef BATCHES /* a real driver's calls take longer, so gpucheck.mk makes fewer */
#define BATCHES 1000
#define CALLS 200 /* in a batch */
#endif
#define LOADS 100
#define THREADS_MAX 8
#define LIVE_BYTES 4096
#define CALL_BYTES (2u << 20)

static struct {
    CUresult (*cuInit)(unsigned int);
    CUresult (*cuDevicePrimaryCtxRetain)(CUcontext *, CUdevice);
    CUresult (*cuCtxSetCurrent)(CUcontext);
    CUresult (*cuCtxSynchronize)(void);
    CUresult (*cuMemAlloc_v2)(CUdeviceptr *, size_t);
    CUresult (*cuMemFree_v2)(CUdeviceptr);
    CUresult (*cuMemGetInfo_v2)(size_t *, size_t *);
    CUresult (*cuMemAllocAsync)(CUdeviceptr *, size_t, CUstream);
    CUresult (*cuMemFreeAsync)(CUdeviceptr, CUstream);
    CUresult (*cuMemCreate)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
    CUresult (*cuMemRelease)(CUmemGenericAllocationHandle);
    CUresult (*cuModuleLoadData)(CUmodule *, const void *);
    CUresult (*cuModuleGetFunction)(CUfunction *, CUmodule, const char *);
    CUresult (*cuLaunchKernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                               CUstream, void **, void **);
} cuda;

static CUcontext context;
static CUfunction kernel;

static void must(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "callbench: %s returned %d\n", what, result);
    exit(1);
}

static void load(bool kernels) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "callbench: %s\n", dlerror());
        exit(1);
    }
#define FIND(name)                                                                                                     \
    if ((*(void **)&cuda.name = dlsym(library, #name)) == NULL) {                                                      \
        fprintf(stderr, "callbench: no " #name "\n");                                                                  \
        exit(1);                                                                                                       \
    }
    FIND(cuInit)
    FIND(cuDevicePrimaryCtxRetain)
    FIND(cuCtxSetCurrent)
    FIND(cuCtxSynchronize)
    FIND(cuMemAlloc_v2)
    FIND(cuMemFree_v2)
    FIND(cuMemGetInfo_v2)
    /* Newer than CUDA 10: measured where the driver has them. */
    *(void **)&cuda.cuMemAllocAsync = dlsym(library, "cuMemAllocAsync");
    *(void **)&cuda.cuMemFreeAsync = dlsym(library, "cuMemFreeAsync");
    *(void **)&cuda.cuMemCreate = dlsym(library, "cuMemCreate");
    *(void **)&cuda.cuMemRelease = dlsym(library, "cuMemRelease");
    if (!kernels)
        return;
    FIND(cuModuleLoadData)
    FIND(cuModuleGetFunction)
    FIND(cuLaunchKernel)
#undef FIND
}

static void start(bool kernels) {
    static const char image[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry empty() { ret; }\n";
    CUmodule module;
    load(kernels);
    must(cuda.cuInit(0), "cuInit");
    must(cuda.cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    if (!kernels)
        return;
    must(cuda.cuModuleLoadData(&module, image), "cuModuleLoadData");
    must(cuda.cuModuleGetFunction(&kernel, module, "empty"), "cuModuleGetFunction");
}

/* --- what is measured ---------------------------------------------------------------------------------------------- */

static void allocate_and_free(void) {
    CUdeviceptr address;
    must(cuda.cuMemAlloc_v2(&address, CALL_BYTES), "cuMemAlloc");
    must(cuda.cuMemFree_v2(address), "cuMemFree");
}

static void allocate_and_free_small(void) {
    CUdeviceptr address;
    must(cuda.cuMemAlloc_v2(&address, LIVE_BYTES), "cuMemAlloc");
    must(cuda.cuMemFree_v2(address), "cuMemFree");
}

static void allocate_and_free_async(void) {
    CUdeviceptr address;
    must(cuda.cuMemAllocAsync(&address, CALL_BYTES, NULL), "cuMemAllocAsync");
    must(cuda.cuMemFreeAsync(address, NULL), "cuMemFreeAsync");
}

static void create_and_release(void) {
    static const CUmemAllocationProp properties = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle;
    must(cuda.cuMemCreate(&handle, CALL_BYTES, &properties, 0), "cuMemCreate");
    must(cuda.cuMemRelease(handle), "cuMemRelease");
}

static void get_info(void) {
    size_t free, total;
    must(cuda.cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
}

static void launch(void) {
    must(cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
}

static const struct benchmark {
    const char *name;
    void (*call)(void);
    size_t live;  /* other allocations that live meanwhile */
    bool drained; /* between batches */
} benchmarks[] = {
    {"allocate_free_live_1", allocate_and_free, 0, false},
    {"allocate_free_live_1000", allocate_and_free, 1000, false},
    {"allocate_free_live_100000", allocate_and_free, 100000, false},
    {"allocate_free_small", allocate_and_free_small, 0, false},
    {"allocate_free_async", allocate_and_free_async, 0, true},
    {"create_release", create_and_release, 0, false},
    {"mem_get_info", get_info, 0, false},
    {"launch", launch, 0, true},
};

#define BENCHMARKS (sizeof benchmarks / sizeof benchmarks[0])

/* --- measuring ----------------------------------------------------------------------------------------------------- */

static double nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

struct work {
    const struct benchmark *benchmark;
    pthread_barrier_t *start;
    double means[BATCHES];
};

static void *measure(void *argument) {
    struct work *work = argument;
    must(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    for (int i = 0; i < CALLS; i++)
        work->benchmark->call();
    pthread_barrier_wait(work->start);
    for (int batch = 0; batch < BATCHES; batch++) {
        if (work->benchmark->drained)
            must(cuda.cuCtxSynchronize(), "cuCtxSynchronize");
        double began = nanoseconds();
        for (int i = 0; i < CALLS; i++)
            work->benchmark->call();
        work->means[batch] = (nanoseconds() - began) / CALLS;
    }
    return NULL;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void run(const struct benchmark *benchmark, const char *variant, unsigned threads) {
    static struct work works[THREADS_MAX];
    static double means[THREADS_MAX * BATCHES];
    pthread_t handles[THREADS_MAX];
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, threads);
    for (unsigned i = 0; i < threads; i++) {
        works[i].benchmark = benchmark;
        works[i].start = &start;
        if (pthread_create(&handles[i], NULL, measure, &works[i]) != 0)
            abort();
    }
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(handles[i], NULL);
        memcpy(means + i * BATCHES, works[i].means, sizeof works[i].means);
    }
    pthread_barrier_destroy(&start);
    size_t count = (size_t)threads * BATCHES;
    qsort(means, count, sizeof means[0], compare);
    printf("%s\t%s\t%u\t%.1f\t%.1f\tns\n", benchmark->name, variant, threads, means[count / 2],
           means[count * 99 / 100]);
    fflush(stdout);
}

static void run_with_live(const struct benchmark *benchmark, const char *variant) {
    CUdeviceptr *live = calloc(benchmark->live + 1, sizeof *live);
    if (live == NULL)
        abort();
    for (size_t i = 0; i < benchmark->live; i++)
        must(cuda.cuMemAlloc_v2(&live[i], LIVE_BYTES), "cuMemAlloc");
    run(benchmark, variant, 1);
    run(benchmark, variant, THREADS_MAX);
    for (size_t i = 0; i < benchmark->live; i++)
        must(cuda.cuMemFree_v2(live[i]), "cuMemFree");
    free(live);
}

static bool possible(const struct benchmark *benchmark) {
    return (benchmark->call != allocate_and_free_async || cuda.cuMemAllocAsync != NULL) &&
           (benchmark->call != create_and_release || cuda.cuMemCreate != NULL);
}

/* One process's time to load the library, sent through a pipe. */
static double load_once(void) {
    int ends[2];
    double took = 0;
    if (pipe(ends) != 0)
        abort();
    pid_t child = fork();
    if (child == 0) {
        double began = nanoseconds();
        bool loaded = dlopen("libcuda.so.1", RTLD_NOW) != NULL;
        took = nanoseconds() - began;
        _exit(loaded && write(ends[1], &took, sizeof took) == sizeof took ? 0 : 1);
    }
    close(ends[1]);
    if (child < 0 || read(ends[0], &took, sizeof took) != sizeof took)
        must(CUDA_ERROR_NOT_FOUND, "dlopen(libcuda.so.1)");
    close(ends[0]);
    waitpid(child, NULL, 0);
    return took;
}

static void run_load(const char *variant) {
    static double times[LOADS];
    for (int i = 0; i < LOADS; i++)
        times[i] = load_once();
    qsort(times, LOADS, sizeof times[0], compare);
    printf("load_library\t%s\t1\t%.1f\t%.1f\tns\n", variant, times[LOADS / 2], times[LOADS * 99 / 100]);
    fflush(stdout);
}

static bool wanted(const char *name, int count, char **names) {
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return count == 0;
}

/* A process of its own for each benchmark, so that none finds what another left, such as a memory pool. */
static void run_alone(const struct benchmark *benchmark, const char *variant) {
    int status = 1;
    pid_t child = fork();
    if (child == 0) {
        start(benchmark->call == launch);
        if (possible(benchmark))
            run_with_live(benchmark, variant);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "callbench: %s: its process ended with status %d\n", benchmark->name, status);
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: callbench VARIANT [BENCHMARK...]\n");
        return 2;
    }
    if (wanted("load_library", argc - 2, argv + 2))
        run_load(argv[1]);
    for (size_t i = 0; i < BENCHMARKS; i++)
        if (wanted(benchmarks[i].name, argc - 2, argv + 2))
            run_alone(&benchmarks[i], argv[1]);
    return 0;
}
