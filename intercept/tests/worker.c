/*
 * What runs in front of the simulated GPU under a limit. It is linked with libcuda.so.1 and judged by the simulator's record;
 * what it prints is only to show that it got somewhere.
 *
 *   worker greedy               allocates whatever size it still gets, until it gets no byte; then waits to be killed
 *   worker hold MIB             allocates that much, says "ready", and waits to be killed
 *   worker random SEED          allocates, frees, makes and destroys contexts at random, without end
 *   worker campaign N S SEED    runs N random workers for S seconds, and kills, stops and replaces some all the time
 *   worker init N               N processes call cuInit at once; prints how many milliseconds the last one took
 *   worker forked               allocates in a child of a process that has a context
 */
#include "../cuda_api.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
CUresult cuMemGetInfo_v2(size_t *, size_t *);

#define MIB ((size_t)1 << 20)

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

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "campaign") == 0 && argc == 5)
        return campaign(argv[0], atoi(argv[2]), atof(argv[3]), (unsigned)strtoul(argv[4], NULL, 10));
    if (strcmp(mode, "init") == 0 && argc == 3)
        return init_at_once(atoi(argv[2]));
    CUresult result = cuInit(0);
    if (result != CUDA_SUCCESS)
        return fail("cuInit", result);
    if (strcmp(mode, "greedy") == 0)
        return greedy();
    if (strcmp(mode, "hold") == 0 && argc == 3)
        return hold((size_t)atoi(argv[2]));
    if (strcmp(mode, "random") == 0 && argc == 3)
        return random_calls((unsigned)strtoul(argv[2], NULL, 10));
    if (strcmp(mode, "forked") == 0)
        return forked();
    fprintf(stderr, "usage: see the beginning of %s\n", __FILE__);
    return 2;
}
