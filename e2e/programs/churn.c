/*
 * churn: many processes that allocate and free GPU memory at random while some of them are killed.
 *
 *   churn PROCESSES SECONDS KILLS SEED
 *
 * The parent keeps PROCESSES workers alive for SECONDS and kills KILLS of them, chosen at random, with SIGKILL, starting
 * another for each. Then the workers free what they hold and end, one more process sees how much it can get, and the
 * parent says what happened in one JSON object and stays until SIGTERM. Each worker times every call: nobody may wait
 * long for somebody who was killed. What counts is the time between call and return less the time in which the worker was
 * ready and had no processor: hundreds of processes on a few processors wait for those, and that is nobody's fault.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

#define MIB (1024ULL * 1024)
#define HELD_MAX 64

/* What a worker says at its end, in one write to a pipe. */
struct report {
    uint64_t calls, refused, failed, longest_ns;
    int32_t first_failure;
};

static volatile sig_atomic_t stopping;

static void on_stop(int signal_number) {
    (void)signal_number;
    stopping = 1;
}

/* Returns when SIGTERM has come, before or after the call. */
static void wait_for_stop(void) {
    sigset_t blocked, before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    sigprocmask(SIG_BLOCK, &blocked, &before);
    while (!stopping) {
        sigsuspend(&before);
    }
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* A small generator (xorshift64): a run can be repeated from its seed. */
static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* How long this process has been ready to run without a processor, in nanoseconds (second field of
 * /proc/self/schedstat, proc_pid_schedstat(5)); 0 where the kernel does not tell. */
static uint64_t not_running_ns(void) {
    static int file = -1;
    char text[96];
    unsigned long long running, waiting;
    if (file < 0 && (file = open("/proc/self/schedstat", O_RDONLY | O_CLOEXEC)) < 0) {
        return 0;
    }
    ssize_t size = pread(file, text, sizeof text - 1, 0);
    text[size > 0 ? size : 0] = '\0';
    return sscanf(text, "%llu %llu", &running, &waiting) == 2 ? waiting : 0;
}

/* When a call began, by both clocks. */
struct moment {
    uint64_t ns, not_running_ns;
};

static struct moment moment(void) {
    return (struct moment){.not_running_ns = not_running_ns(), .ns = now_ns()};
}

/* Notes how long a call took and what it answered. */
static CUresult note(struct report *report, struct moment began, CUresult result) {
    uint64_t wall = now_ns() - began.ns, not_running = not_running_ns() - began.not_running_ns;
    uint64_t took = wall > not_running ? wall - not_running : 0;
    report->calls++;
    report->longest_ns = took > report->longest_ns ? took : report->longest_ns;
    if (result == 2) {
        report->refused++;
    } else if (result != 0) {
        report->first_failure = report->failed++ == 0 ? result : report->first_failure;
    }
    return result;
}

#define TIMED(report, call)                                                                                            \
    __extension__({                                                                                                    \
        struct moment began = moment();                                                                                \
        note(report, began, call);                                                                                     \
    })

static void allocate_and_free(struct report *report, uint64_t *random) {
    CUdeviceptr held[HELD_MAX];
    unsigned count = 0;
    while (!stopping) {
        uint64_t r = next_random(random);
        if (count > 0 && (count == HELD_MAX || r % 2 == 0)) {
            unsigned i = (unsigned)(r >> 8) % count;
            TIMED(report, cuMemFree_v2(held[i]));
            held[i] = held[--count];
        } else {
            /* Small ones, which the driver packs, as often as large ones. */
            uint64_t size = (r >> 8) % 2 == 0 ? 1 + (r >> 16) % (64 * 1024) : MIB + (r >> 16) % (256 * MIB);
            count += TIMED(report, cuMemAlloc_v2(&held[count], size)) == 0;
        }
        nanosleep(&(struct timespec){.tv_nsec = (long)(1000000 + (r >> 20) % 20000000)}, NULL);
    }
    while (count > 0) {
        TIMED(report, cuMemFree_v2(held[--count]));
    }
}

/* Makes the context as soon as there is room for it: the others may have taken everything. */
static bool make_context(struct report *report, CUcontext *context) {
    CUresult result = 2;
    while (!stopping && (result = TIMED(report, cuDevicePrimaryCtxRetain(context, 0))) == 2) {
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    return result == 0;
}

static int worker(uint64_t seed, int reports) {
    struct report report = {0};
    CUcontext context;
    if (!load_driver() || TIMED(&report, cuInit(0)) != 0) {
        report.failed++;
    } else if (make_context(&report, &context)) {
        TIMED(&report, cuCtxSetCurrent(context));
        allocate_and_free(&report, &seed);
    }
    return write(reports, &report, sizeof report) == sizeof report ? 0 : 1;
}

static void block_stop(int how) {
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigprocmask(how, &stop, NULL);
}

/* SIGTERM stays blocked over fork and exec, until the worker has said what to do with it. */
static pid_t start_worker(uint64_t seed, int reports) {
    block_stop(SIG_BLOCK);
    pid_t pid = fork();
    if (pid == 0) {
        char seed_text[32], reports_text[16];
        snprintf(seed_text, sizeof seed_text, "%llu", (unsigned long long)seed);
        snprintf(reports_text, sizeof reports_text, "%d", reports);
        execl("/proc/self/exe", "churn", "worker", seed_text, reports_text, (char *)NULL);
        _exit(127);
    }
    block_stop(SIG_UNBLOCK);
    return pid;
}

static void sleep_ns(uint64_t ns) {
    struct timespec left = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR && !stopping) {
    }
}

/* How much a process gets that comes when all the others are gone, its context not counted. */
static uint64_t whole(void) {
    static const unsigned pieces_mib[] = {1024, 64, 2};
    struct report unused = {0};
    CUcontext context;
    CUdeviceptr pointer;
    uint64_t taken = 0;
    if (!load_driver() || cuInit(0) != 0 || !make_context(&unused, &context) || cuCtxSetCurrent(context) != 0) {
        return 0;
    }
    for (size_t i = 0; i < sizeof pieces_mib / sizeof pieces_mib[0]; i++) {
        while (cuMemAlloc_v2(&pointer, pieces_mib[i] * MIB) == 0) {
            taken += pieces_mib[i] * MIB;
        }
    }
    return taken;
}

/* The same in a process of its own, which gives everything back by ending. */
static uint64_t whole_elsewhere(void) {
    int answer[2];
    uint64_t taken = 0;
    if (pipe(answer) != 0) {
        return 0;
    }
    pid_t pid = fork();
    if (pid == 0) {
        taken = whole();
        _exit(write(answer[1], &taken, sizeof taken) == sizeof taken ? 0 : 1);
    }
    close(answer[1]);
    if (read(answer[0], &taken, sizeof taken) != sizeof taken) {
        taken = 0;
    }
    close(answer[0]);
    waitpid(pid, NULL, 0);
    return taken;
}

/* Kills and replaces workers at even intervals. */
static unsigned kill_some(pid_t *pids, unsigned processes, unsigned seconds, unsigned kills, uint64_t *seed,
                          int reports) {
    unsigned killed = 0;
    uint64_t interval = (uint64_t)seconds * 1000000000 / (kills + 1);
    for (; killed < kills && !stopping; killed++) {
        sleep_ns(interval);
        unsigned victim = (unsigned)(next_random(seed) % processes);
        kill(pids[victim], SIGKILL);
        waitpid(pids[victim], NULL, 0);
        pids[victim] = start_worker(next_random(seed), reports);
    }
    sleep_ns(interval);
    return killed;
}

static int parent(unsigned processes, unsigned seconds, unsigned kills, uint64_t seed) {
    int reports[2];
    pid_t *pids = calloc(processes, sizeof *pids);
    if (pids == NULL || pipe(reports) != 0) {
        perror("churn");
        return 1;
    }
    for (unsigned i = 0; i < processes; i++) {
        pids[i] = start_worker(next_random(&seed), reports[1]);
    }
    printf("{\"event\":\"started\",\"processes\":%u}\n", processes);
    fflush(stdout);
    unsigned killed = kill_some(pids, processes, seconds, kills, &seed, reports[1]);
    for (unsigned i = 0; i < processes; i++) {
        kill(pids[i], SIGTERM);
    }
    close(reports[1]);
    struct report sum = {0}, one;
    unsigned heard = 0;
    while (read(reports[0], &one, sizeof one) == sizeof one) {
        heard++;
        sum.calls += one.calls;
        sum.refused += one.refused;
        sum.failed += one.failed;
        sum.longest_ns = one.longest_ns > sum.longest_ns ? one.longest_ns : sum.longest_ns;
        sum.first_failure = sum.first_failure == 0 ? one.first_failure : sum.first_failure;
    }
    for (unsigned i = 0; i < processes; i++) {
        waitpid(pids[i], NULL, 0);
    }
    printf("{\"event\":\"done\",\"killed\":%u,\"heard\":%u,\"calls\":%llu,\"refused\":%llu,\"failed\":%llu,"
           "\"first_failure\":%d,\"longest_ms\":%llu,\"whole\":%llu}\n",
           killed, heard, (unsigned long long)sum.calls, (unsigned long long)sum.refused,
           (unsigned long long)sum.failed, sum.first_failure, (unsigned long long)sum.longest_ns / 1000000,
           (unsigned long long)whole_elsewhere());
    fflush(stdout);
    wait_for_stop();
    return 0;
}

int main(int argc, char **argv) {
    struct sigaction stop = {.sa_handler = on_stop};
    sigaction(SIGTERM, &stop, NULL);
    block_stop(SIG_UNBLOCK);
    if (argc == 4 && strcmp(argv[1], "worker") == 0) {
        return worker(strtoull(argv[2], NULL, 10) | 1, atoi(argv[3]));
    }
    if (argc != 5) {
        fprintf(stderr, "usage: churn PROCESSES SECONDS KILLS SEED\n");
        return 2;
    }
    return parent((unsigned)atoi(argv[1]), (unsigned)atoi(argv[2]), (unsigned)atoi(argv[3]),
                  strtoull(argv[4], NULL, 10) | 1);
}
