/*
 * load: keeps a GPU as busy as it is told. For the simulated GPU, whose kernels take as long as their names say.
 *
 *   load [--kernel US] [--depth N] [--graph N] [--burst N] [--pause US] [--gpus N] [--processes N] [--count N] [--ready]
 *        [--report] [--library FILE]
 *
 *   --kernel US     how long a kernel takes (1000)
 *   --depth N       launches that may be outstanding; 1: waits for each (64)
 *   --graph N       launches graphs of N kernels instead of kernels
 *   --burst N       waits for all outstanding work after N launches: a request
 *   --pause US      the pause after each request; without --burst after each launch
 *   --gpus N        launches a kernel on each of the first N GPUs instead of one on the first (1); not with --graph
 *   --processes N   as many processes do this at once (1)
 *   --count N       ends after N launches; else on SIGTERM
 *   --ready         writes the line "ready" once the first kernel has ended
 *   --report        at the end writes a line of JSON: how many launches; the median, the 99th percentile and the most of the
 *                   time that requests took, in microseconds, and launches, in nanoseconds; of the first process only,
 *                   since the last SIGUSR1
 *   --library FILE  uses this library (libcuda.so.1)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef int CUresult;
typedef void *handle;

#define DEPTH_MAX 1024
#define GPUS_MAX 8
#define SAMPLES 65536
#define PROCESSES_MAX 256

/* cuda.h's, of which only these are needed. */
#define FUNCTIONS(F)                                                                                                   \
    F(cuInit, (unsigned))                                                                                              \
    F(cuDevicePrimaryCtxRetain, (handle *, int))                                                                       \
    F(cuCtxSetCurrent, (handle))                                                                                       \
    F(cuCtxSynchronize, (void))                                                                                        \
    F(cuModuleLoadData, (handle *, const void *))                                                                      \
    F(cuModuleGetFunction, (handle *, handle, const char *))                                                           \
    F(cuStreamCreate, (handle *, unsigned))                                                                            \
    F(cuStreamBeginCapture_v2, (handle, int))                                                                          \
    F(cuStreamEndCapture, (handle, handle *))                                                                          \
    F(cuGraphInstantiateWithFlags, (handle *, handle, unsigned long long))                                             \
    F(cuGraphLaunch, (handle, handle))                                                                                 \
    F(cuEventCreate, (handle *, unsigned))                                                                             \
    F(cuEventRecord, (handle, handle))                                                                                 \
    F(cuEventSynchronize, (handle))                                                                                    \
    F(cuLaunchKernel,                                                                                                  \
      (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **))

#define DECLARE(name, args) static CUresult(*name) args;
FUNCTIONS(DECLARE)

static struct {
    unsigned long kernel_us, depth, graph, burst, pause_us, gpus, processes, count;
    bool ready, report;
    const char *library;
} options = {.library = "libcuda.so.1", .kernel_us = 1000, .depth = 64, .gpus = 1, .processes = 1};

static volatile sig_atomic_t stopping, forgetting;

static struct gpu { handle context, stream, function, events[DEPTH_MAX]; } gpus[GPUS_MAX];

static handle graph;

/* The latest of each, and the longest. */
static struct samples {
    uint64_t ns[SAMPLES];
    uint64_t count, longest_ns;
} requests, launches;

static void on_stop(int signal_number) {
    (void)signal_number;
    stopping = 1;
}

static void on_forget(int signal_number) {
    (void)signal_number;
    forgetting = 1;
}

static void check(CUresult result, const char *call) {
    if (result != 0) {
        fprintf(stderr, "load: %s: CUDA error %d\n", call, result);
        exit(1);
    }
}
#define OK(call) check(call, #call)

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void load_driver(void) {
    void *lib = dlopen(options.library, RTLD_NOW);
    if (lib == NULL) {
        fprintf(stderr, "load: %s\n", dlerror());
        exit(1);
    }
#define LOAD(name, args)                                                                                               \
    if ((*(void **)&(name) = dlsym(lib, #name)) == NULL) {                                                             \
        fprintf(stderr, "load: the driver has no %s\n", #name);                                                        \
        exit(1);                                                                                                       \
    }
    FUNCTIONS(LOAD)
}

static void launch_kernel(const struct gpu *gpu) {
    OK(cuLaunchKernel(gpu->function, 1, 1, 1, 1, 1, 1, 0, gpu->stream, NULL, NULL));
}

static void make_graph(const struct gpu *gpu) {
    handle captured;
    OK(cuStreamBeginCapture_v2(gpu->stream, 2)); /* relaxed */
    for (unsigned long i = 0; i < options.graph; i++) {
        launch_kernel(gpu);
    }
    OK(cuStreamEndCapture(gpu->stream, &captured));
    OK(cuGraphInstantiateWithFlags(&graph, captured, 0));
}

static void prepare_gpu(struct gpu *gpu, int device, const char *name) {
    handle module;
    char ptx[128];

    snprintf(ptx, sizeof ptx, ".version 8.0\n.entry %s\n", name);
    OK(cuDevicePrimaryCtxRetain(&gpu->context, device));
    OK(cuCtxSetCurrent(gpu->context));
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&gpu->function, module, name));
    OK(cuStreamCreate(&gpu->stream, 1));
    for (unsigned long i = 0; i < options.depth; i++) {
        OK(cuEventCreate(&gpu->events[i], 2)); /* without times */
    }
}

static void prepare(void) {
    char name[64];

    load_driver();
    OK(cuInit(0));
    snprintf(name, sizeof name, "spin_%luus", options.kernel_us);
    for (unsigned long i = 0; i < options.gpus; i++) {
        prepare_gpu(&gpus[i], (int)i, name);
    }
    if (options.graph > 0) {
        make_graph(&gpus[0]);
    }
}

/* Calls are about the current GPU, which is always the last where there is one only. */
static void use(const struct gpu *gpu) {
    if (options.gpus > 1) {
        OK(cuCtxSetCurrent(gpu->context));
    }
}

static void synchronize(void) {
    for (unsigned long i = 0; i < options.gpus; i++) {
        use(&gpus[i]);
        OK(cuCtxSynchronize());
    }
}

static void add_sample(struct samples *samples, uint64_t since_ns) {
    uint64_t ns = now_ns() - since_ns;

    samples->ns[samples->count++ % SAMPLES] = ns;
    samples->longest_ns = ns > samples->longest_ns ? ns : samples->longest_ns;
}

static void pause_for(unsigned long us) {
    struct timespec t = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    if (us > 0 && !stopping) {
        nanosleep(&t, NULL); /* a signal may end it */
    }
}

/* One launch, after the one that is `depth` before it has ended. */
static void launch_on(const struct gpu *gpu, unsigned long number) {
    handle event = gpu->events[number % options.depth];
    uint64_t start;

    use(gpu);
    if (number >= options.depth) {
        OK(cuEventSynchronize(event));
    }
    if (forgetting) {
        forgetting = 0;
        requests.count = requests.longest_ns = launches.count = launches.longest_ns = 0;
    }
    start = now_ns();
    if (options.graph > 0) {
        OK(cuGraphLaunch(graph, gpu->stream));
    } else {
        launch_kernel(gpu);
    }
    add_sample(&launches, start);
    OK(cuEventRecord(event, gpu->stream));
}

static void launch_one(unsigned long number) {
    for (unsigned long i = 0; i < options.gpus; i++) {
        launch_on(&gpus[i], number);
    }
}

static unsigned long work(void) {
    unsigned long number = 0;
    uint64_t start = now_ns();

    while (!stopping && (options.count == 0 || number < options.count)) {
        launch_one(number++);
        if (options.burst > 0 && number % options.burst != 0) {
            continue;
        }
        if (options.burst > 0 || options.depth == 1) {
            synchronize();
            add_sample(&requests, start);
        }
        pause_for(options.pause_us);
        start = now_ns();
    }
    synchronize();
    return number;
}

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void print_samples(const char *name, struct samples *samples, double unit_ns) {
    uint64_t count = samples->count < SAMPLES ? samples->count : SAMPLES;

    if (count == 0) {
        return;
    }
    qsort(samples->ns, count, sizeof samples->ns[0], compare);
    printf(",\"%s\":{\"p50\":%.3f,\"p99\":%.3f,\"longest\":%.3f}", name, (double)samples->ns[count / 2] / unit_ns,
           (double)samples->ns[count * 99 / 100] / unit_ns, (double)samples->longest_ns / unit_ns);
}

static void run(bool first) {
    unsigned long number;

    prepare();
    for (unsigned long i = 0; i < options.gpus; i++) {
        use(&gpus[i]);
        launch_kernel(&gpus[i]);
    }
    synchronize();
    if (first && options.ready) {
        puts("ready");
        fflush(stdout);
    }
    number = work();
    if (first && options.report) {
        printf("{\"launches\":%lu", number);
        print_samples("request_us", &requests, 1000);
        print_samples("launch_ns", &launches, 1);
        puts("}");
        fflush(stdout);
    }
}

static unsigned long number_of(const char *name, const char *text, unsigned long min, unsigned long max) {
    char *end;
    unsigned long value;

    errno = 0;
    value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value < min || value > max) {
        fprintf(stderr, "load: --%s must be a whole number from %lu to %lu, got %s\n", name, min, max, text);
        exit(2);
    }
    return value;
}

static void read_options(int argc, char **argv) {
    static const struct option known[] = {
        {"kernel", required_argument, NULL, 'k'},  {"depth", required_argument, NULL, 'd'},
        {"graph", required_argument, NULL, 'g'},   {"burst", required_argument, NULL, 'b'},
        {"pause", required_argument, NULL, 'p'},   {"processes", required_argument, NULL, 'n'},
        {"gpus", required_argument, NULL, 'G'},    {"count", required_argument, NULL, 'c'},
        {"ready", no_argument, NULL, 'r'},         {"report", no_argument, NULL, 'R'},
        {"library", required_argument, NULL, 'l'}, {0},
    };
    int c;

    while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
        switch (c) {
        case 'k':
            options.kernel_us = number_of("kernel", optarg, 1, 10000000);
            break;
        case 'd':
            options.depth = number_of("depth", optarg, 1, DEPTH_MAX);
            break;
        case 'g':
            options.graph = number_of("graph", optarg, 1, 10000);
            break;
        case 'b':
            options.burst = number_of("burst", optarg, 1, 1000000);
            break;
        case 'p':
            options.pause_us = number_of("pause", optarg, 1, 100000000);
            break;
        case 'G':
            options.gpus = number_of("gpus", optarg, 1, GPUS_MAX);
            break;
        case 'n':
            options.processes = number_of("processes", optarg, 1, PROCESSES_MAX);
            break;
        case 'c':
            options.count = number_of("count", optarg, 1, 1000000000);
            break;
        case 'r':
            options.ready = true;
            break;
        case 'R':
            options.report = true;
            break;
        case 'l':
            options.library = optarg;
            break;
        default:
            exit(2);
        }
    }
    if (options.gpus > 1 && options.graph > 0) {
        fprintf(stderr, "load: --gpus and --graph exclude each other\n");
        exit(2);
    }
    if (optind != argc) {
        fprintf(stderr, "load: %s is no option\n", argv[optind]);
        exit(2);
    }
}

/* The others, which end with this process or by its SIGTERM. */
static void start_others(pid_t *others) {
    pid_t parent = getpid();

    for (unsigned long i = 1; i < options.processes; i++) {
        if ((others[i] = fork()) == 0) {
            prctl(PR_SET_PDEATHSIG, SIGTERM);
            if (getppid() == parent) {
                run(false);
            }
            exit(0);
        }
    }
}

static bool stop_others(const pid_t *others) {
    bool well = true;
    int status;

    for (unsigned long i = 1; i < options.processes; i++) {
        well &= kill(others[i], SIGTERM) == 0 && waitpid(others[i], &status, 0) > 0 && status == 0;
    }
    return well;
}

int main(int argc, char **argv) {
    struct sigaction stop = {.sa_handler = on_stop}, forget = {.sa_handler = on_forget, .sa_flags = SA_RESTART};
    pid_t others[PROCESSES_MAX];

    read_options(argc, argv);
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGUSR1, &forget, NULL);
    start_others(others);
    run(true);
    return stop_others(others) ? 0 : 1;
}
