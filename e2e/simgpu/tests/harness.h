/*
 * Tests of the simulated GPU. Each test runs in a process of its own, on a node of its own: a directory with a
 * topology, a state and files that stand for device nodes. Tests that need several processes fork workers.
 */
#ifndef SIMGPU_HARNESS_H
#define SIMGPU_HARNESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cuda_sim.h"
#include "state.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

/* What small.conf says. */
#define GPU0_BYTES (1024 * MIB)
#define GPU1_BYTES (2048 * MIB)
#define GPU0_CONTEXT (64 * MIB)
#define GPU0_MULTIPROCESSORS 16
#define GPU1_CONTEXT (96 * MIB)
#define GPU0_UUID "GPU-7e570000-0000-4000-8000-000000000000"
#define GPU1_UUID "GPU-7e570000-0000-4000-8000-000000000001"

struct test {
    const char *name;
    void (*run)(void);
};

/* Each file of tests has such a list, ended by a NULL name. */
extern const struct test init_tests[], context_tests[], memory_tests[], sums_tests[], module_tests[], time_tests[],
    turns_tests[], fault_tests[], tool_tests[], pool_tests[], graph_tests[], vmm_tests[], ipc_tests[], array_tests[],
    image_tests[], limits_tests[], managed_tests[], mig_tests[], sharing_tests[], mps_tests[], mps_v3_tests[],
    runtime_tests[], texture_tests[], graphics_tests[], node_tests[], stream_tests[], memop_tests[],
    memory_limits_tests[];

void check_failed(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            check_failed(__FILE__, __LINE__, "%s", #condition);                                                        \
    } while (0)
#define CHECK_INT(got, want)                                                                                           \
    do {                                                                                                               \
        long long check_got = (long long)(got), check_want = (long long)(want);                                        \
        if (check_got != check_want)                                                                                   \
            check_failed(__FILE__, __LINE__, "%s is %lld, not %lld", #got, check_got, check_want);                     \
    } while (0)
#define OK(call) CHECK_INT(call, CUDA_SUCCESS)

/* The node's directory, and paths in it. */
const char *node_path(const char *name);
void node_use_topology(const char *name);
/* Lines before the first GPU of the topology. Before the first call of the driver. */
void node_add_to_topology(const char *lines);
extern const char *tool_path;

/* A worker is a child process; it says and hears single bytes. */
struct worker {
    pid_t pid;
    int to, from;
};

struct worker worker_start(void (*run)(void *arg), void *arg);
void worker_tell(struct worker *worker, char what);
char worker_hear(struct worker *worker); /* 0: it is gone */
void worker_kill(struct worker *worker, int signal);
/* Waits for its end; its failed checks count as the test's. */
void worker_join(struct worker *worker);

/* In the worker. */
void say(char what);
char hear(void);

/* cuInit and a context on the device. */
CUcontext context_on(int device);
/* A kernel of a module that is loaded for it into the current context. */
CUfunction kernel_of(const char *ptx, const char *name);

/* The state as somebody outside sees it; opens it for all GPUs, in a process of its own, and closes it again. */
struct outside {
    uint64_t used[2];
    uint64_t group_bytes[2], group_peak[2], group_launches[2]; /* of the group with this label */
    uint64_t group_busy_ns[2], group_overlap_ns[2];
    uint64_t switches[2];
    int processes, group_processes;
    struct sim_process_gpu sum[2]; /* over all processes */
};
struct outside look(const char *group);

uint64_t now_ns(void);
void sleep_ms(unsigned ms);

/* Runs a command in a shell, keeps its output in the buffer; its exit status. */
int shell(char *output, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
