/*
 * Programs for the checks of compute shares. A kernel does a fixed amount of work, of which `calibrate` finds out how much takes
 * a millisecond: a clock that the kernel reads would go on while the GPU works for others. Simulated kernels take as long as
 * their names say.
 *
 *   probe calibrate                            how many loops of a kernel take a millisecond
 *   probe switch ROUNDS                        what a switch between two processes costs
 *   probe gate ROUNDS DRIVER                   what a launch costs, by the library and by the driver behind it
 *   probe work LOOPS US DEPTH BURST PAUSE_US   keeps the GPU busy with kernels of US microseconds. At each line on stdin it says
 *                                              how many have ended, when, and how long its requests took since the last line
 */
#include "probe.h"

#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* The loop's result is used, so that no compiler leaves it out; the address is NULL. */
static const char kernel_format[] = ".visible .entry spin_%uus(.param .u32 loops, .param .u64 result) {\n"
                                    "    .reg .pred %%p<3>; .reg .b32 %%r<4>; .reg .b64 %%rd<2>;\n"
                                    "    ld.param.u32 %%r1, [loops];\n"
                                    "    ld.param.u64 %%rd1, [result];\n"
                                    "    mov.u32 %%r2, %%clock;\n"
                                    "    mov.u32 %%r3, 0;\n"
                                    "NEXT:\n"
                                    "    mad.lo.u32 %%r2, %%r2, 1664525, 1013904223;\n"
                                    "    add.u32 %%r3, %%r3, 1;\n"
                                    "    setp.lt.u32 %%p1, %%r3, %%r1;\n"
                                    "    @%%p1 bra NEXT;\n"
                                    "    setp.eq.u64 %%p2, %%rd1, 0;\n"
                                    "    @%%p2 bra DONE;\n"
                                    "    st.global.u32 [%%rd1], %%r2;\n"
                                    "DONE:\n"
                                    "    ret;\n"
                                    "}\n";

static CUfunction kernel;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the values. */
static double percentile(double *values, size_t count, unsigned percent) {
    qsort(values, count, sizeof *values, compare);
    return count == 0 ? 0 : values[(count - 1) * percent / 100];
}

static void load_kernel(unsigned us) {
    char body[1024], name[32];
    CUmodule module;
    snprintf(body, sizeof body, kernel_format, us);
    snprintf(name, sizeof name, "spin_%uus", us);
    must(load_ptx(&module, body), "loading a kernel");
    must(cuda.cuModuleGetFunction(&kernel, module, name), "cuModuleGetFunction");
}

typedef CUresult (*launcher)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                             void **, void **);

static void launch_by(launcher by, unsigned loops) {
    unsigned long long result = 0;
    void *parameters[] = {&loops, &result};
    must(by(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL), "cuLaunchKernel");
}

static void launch_and_wait(unsigned loops) {
    launch_by(cuda.cuLaunchKernel, loops);
    must(cuda.cuCtxSynchronize(), "cuCtxSynchronize");
}

/* --- calibrate --- */

int probe_calibrate(int argc, char **argv) {
    enum { ROUNDS = 8, AT_ONCE = 64, MOST = 1 << 30, NS_PER_MS = 1000000 };
    (void)argc, (void)argv;
    double loops = 10000;
    open_context();
    load_kernel(1000);
    for (int round = 0; round < ROUNDS; round++) { /* the clocks rise in the first ones */
        uint64_t began = now_ns();
        for (int i = 0; i < AT_ONCE; i++)
            launch_by(cuda.cuLaunchKernel, (unsigned)loops);
        must(cuda.cuCtxSynchronize(), "cuCtxSynchronize");
        loops *= (double)NS_PER_MS * AT_ONCE / (double)(now_ns() - began);
        loops = loops < 1 ? 1 : loops > MOST ? MOST : loops;
    }
    say("calibrated", "\"loops\":%u", (unsigned)loops);
    return 0;
}

/* --- switch --- */

/* Launches whenever it is told to, and answers always. */
static void follow(int socket) {
    char told;
    open_context();
    load_kernel(1);
    launch_and_wait(1);
    do {
        if (read(socket, &told, 1) != 1)
            exit(0);
        if (told == 'l')
            launch_and_wait(1);
    } while (write(socket, &told, 1) == 1);
    exit(0);
}

static void have(int socket, char what) {
    if (write(socket, &what, 1) != 1 || read(socket, &what, 1) != 1) {
        fprintf(stderr, "probe: the other process has ended\n");
        exit(1);
    }
}

/* A launch here, and one here or in the other process, with a message to it in any case. */
static double two_launches(int socket, bool in_both) {
    launch_and_wait(1);
    uint64_t began = now_ns();
    have(socket, in_both ? 'l' : 'n');
    if (!in_both)
        launch_and_wait(1);
    launch_and_wait(1);
    return (double)(now_ns() - began);
}

int probe_switch(int argc, char **argv) {
    int sockets[2], rounds = argc == 1 ? atoi(argv[0]) : 0;
    double *one = calloc((size_t)rounds + 1, sizeof *one), *both = calloc((size_t)rounds + 1, sizeof *both);
    if (rounds < 1 || one == NULL || both == NULL || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
        return 2;
    pid_t peer = fork();
    close(sockets[peer == 0 ? 0 : 1]);
    if (peer == 0)
        follow(sockets[1]);
    open_context();
    load_kernel(1);
    have(sockets[0], 'n');
    for (int i = 0; i < rounds; i++) {
        one[i] = two_launches(sockets[0], false);
        both[i] = two_launches(sockets[0], true);
    }
    say("switched", "\"value\":%.0f", (percentile(both, rounds, 50) - percentile(one, rounds, 50)) / 2);
    return 0;
}

/* --- gate --- */

/* Nanoseconds for a launch. */
static double batch(launcher by) {
    enum { LAUNCHES = 64 };
    must(cuda.cuCtxSynchronize(), "cuCtxSynchronize");
    uint64_t began = now_ns();
    for (int i = 0; i < LAUNCHES; i++)
        launch_by(by, 1);
    return (double)(now_ns() - began) / LAUNCHES;
}

int probe_gate(int argc, char **argv) {
    int rounds = argc == 2 ? atoi(argv[0]) : 0;
    double *drivers = calloc((size_t)rounds + 1, sizeof *drivers), *ours = calloc((size_t)rounds + 1, sizeof *ours);
    void *driver = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) : NULL;
    launcher bare = driver == NULL ? NULL : (launcher)dlsym(driver, "cuLaunchKernel");
    if (rounds < 1 || drivers == NULL || ours == NULL || bare == NULL) {
        fprintf(stderr, "probe: the library has not loaded the driver %s\n", argc == 2 ? argv[1] : "");
        return 2;
    }
    open_context();
    load_kernel(1);
    for (int i = 0; i < rounds; i++) {
        drivers[i] = batch(bare);
        ours[i] = batch(cuda.cuLaunchKernel);
    }
    say("gate", "\"driver_ns\":%.1f,\"value\":%.1f,\"same\":%s", percentile(drivers, rounds, 50),
        percentile(ours, rounds, 50), bare == cuda.cuLaunchKernel ? "true" : "false");
    return 0;
}

/* --- work --- */

enum { DEPTH_MAX = 1024, REQUESTS = 65536 };

static CUevent events[DEPTH_MAX];
static double requests[REQUESTS];
static size_t request_count;

/* Answers the lines that have come. False at the end of stdin. */
static bool answer(unsigned long long ended) {
    char line[16];
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    while (poll(&input, 1, 0) == 1) {
        if (read(STDIN_FILENO, line, sizeof line) <= 0)
            return false;
        size_t count = request_count < REQUESTS ? request_count : REQUESTS;
        say("at", "\"kernels\":%llu,\"at_ns\":%llu,\"requests\":%zu,\"p50_us\":%.1f,\"p99_us\":%.1f", ended,
            (unsigned long long)now_ns(), count, percentile(requests, count, 50), percentile(requests, count, 99));
        request_count = 0;
    }
    return true;
}

static void work(unsigned loops, unsigned long depth, unsigned long burst, unsigned long pause_us) {
    struct timespec pause = {(time_t)(pause_us / 1000000), (long)(pause_us % 1000000) * 1000};
    unsigned long long launched = 0, ended = 0;
    uint64_t began = now_ns();
    while (answer(ended)) {
        if (launched >= depth) {
            must(cuda.cuEventSynchronize(events[launched % depth]), "cuEventSynchronize");
            ended = launched - depth + 1 > ended ? launched - depth + 1 : ended;
        }
        launch_by(cuda.cuLaunchKernel, loops);
        must(cuda.cuEventRecord(events[launched++ % depth], NULL), "cuEventRecord");
        if (burst == 0 || launched % burst != 0)
            continue;
        must(cuda.cuCtxSynchronize(), "cuCtxSynchronize");
        ended = launched;
        requests[request_count++ % REQUESTS] = (double)(now_ns() - began) / 1000;
        nanosleep(&pause, NULL);
        began = now_ns();
    }
}

int probe_work(int argc, char **argv) {
    if (argc != 5)
        return 2;
    double per_ms = strtod(argv[0], NULL);
    unsigned us = (unsigned)strtoul(argv[1], NULL, 10);
    unsigned long depth = strtoul(argv[2], NULL, 10);
    if (depth < 1 || depth > DEPTH_MAX)
        return 2;
    open_context();
    load_kernel(us);
    for (unsigned long i = 0; i < depth; i++)
        must(cuda.cuEventCreate(&events[i], EVENT_DISABLE_TIMING), "cuEventCreate");
    launch_and_wait(1);
    say("works", "\"result\":0");
    work((unsigned)(per_ms * us / 1000) + 1, depth, strtoul(argv[3], NULL, 10), strtoul(argv[4], NULL, 10));
    return 0;
}
