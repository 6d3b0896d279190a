#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *topologies;
const char *tool_path;
static char directory[256];
static int failures; /* of this process */
static int said = -1, heard = -1;

void check_failed(const char *file, int line, const char *format, ...) {
    va_list args;
    char text[1024];

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fprintf(stderr, "    %s:%d: %s\n", file, line, text);
    failures++;
}

/* ---- The node ---- */

const char *node_path(const char *name) {
    static char buffers[8][512];
    static unsigned next;
    char *buffer = buffers[next++ % 8];

    snprintf(buffer, sizeof(buffers[0]), "%s/%s", directory, name);
    return buffer;
}

void node_use_topology(const char *name) {
    char path[512];

    snprintf(path, sizeof(path), "%s/%s", topologies, name);
    setenv("SIMGPU_TOPOLOGY", path, 1);
}

void node_add_to_topology(const char *lines) {
    FILE *from = fopen(getenv("SIMGPU_TOPOLOGY"), "re"), *to = fopen(node_path("topology"), "we");
    char line[512];

    if (from == NULL || to == NULL)
        exit(2);
    fprintf(to, "%s\n", lines);
    while (fgets(line, sizeof(line), from) != NULL)
        fputs(line, to);
    fclose(from);
    fclose(to);
    setenv("SIMGPU_TOPOLOGY", node_path("topology"), 1);
}

static void touch(const char *path) {
    int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0666);

    if (fd >= 0)
        close(fd);
}

static void node_make(void) {
    static const char *const unset[] = {"CUDA_VISIBLE_DEVICES", "SIMGPU_KERNEL_US", "CUDA_DEVICE_ORDER",
                                        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"};

    snprintf(directory, sizeof(directory), "/tmp/simgpu-test.XXXXXX");
    if (mkdtemp(directory) == NULL)
        exit(2);
    mkdir(node_path("dev"), 0755);
    touch(node_path("dev/nvidiactl"));
    touch(node_path("dev/nvidia0"));
    touch(node_path("dev/nvidia1"));
    node_use_topology("small.conf");
    setenv("SIMGPU_STATE", node_path("state"), 1);
    setenv("SIMGPU_DEV", node_path("dev"), 1);
    setenv("SIMGPU_LABEL", "test", 1);
    setenv("CUDA_MPS_PIPE_DIRECTORY", node_path("pipe"), 1);
    setenv("CUDA_MPS_LOG_DIRECTORY", node_path("log"), 1);
    for (size_t i = 0; i < sizeof(unset) / sizeof(unset[0]); i++)
        unsetenv(unset[i]);
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *where) {
    (void)info, (void)type, (void)where;
    return remove(path);
}

static void node_remove(void) {
    nftw(directory, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- Workers ---- */

struct worker worker_start(void (*run)(void *arg), void *arg) {
    struct worker worker;
    int to[2], from[2];

    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0)
        exit(2);
    fflush(NULL);
    worker.pid = fork();
    if (worker.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(to[1]);
        close(from[0]);
        heard = to[0];
        said = from[1];
        failures = 0;
        run(arg);
        _exit(failures != 0);
    }
    close(to[0]);
    close(from[1]);
    worker.to = to[1];
    worker.from = from[0];
    return worker;
}

static char read_byte(int fd) {
    char what = 0;

    while (read(fd, &what, 1) < 0 && errno == EINTR) {
    }
    return what;
}

static void write_byte(int fd, char what) {
    while (write(fd, &what, 1) < 0 && errno == EINTR) {
    }
}

void worker_tell(struct worker *worker, char what) {
    write_byte(worker->to, what);
}

char worker_hear(struct worker *worker) {
    return read_byte(worker->from);
}

void say(char what) {
    write_byte(said, what);
}

char hear(void) {
    return read_byte(heard);
}

static int reap(struct worker *worker) {
    int status = 0;

    while (waitpid(worker->pid, &status, 0) < 0 && errno == EINTR) {
    }
    close(worker->to);
    close(worker->from);
    return status;
}

void worker_kill(struct worker *worker, int signal) {
    kill(worker->pid, signal);
    if (signal == SIGKILL)
        reap(worker);
}

void worker_join(struct worker *worker) {
    int status;

    /* Workers that were started later have the pipe's end too, so closing it would not do. */
    worker_tell(worker, 'e');
    status = reap(worker);
    if (WIFSIGNALED(status))
        check_failed(__FILE__, __LINE__, "a worker died by signal %d", WTERMSIG(status));
    else if (WEXITSTATUS(status) != 0)
        check_failed(__FILE__, __LINE__, "a worker failed");
}

/* ---- Looking ---- */

CUcontext context_on(int device) {
    CUcontext context = NULL;

    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, device));
    return context;
}

CUfunction kernel_of(const char *ptx, const char *name) {
    CUfunction function = NULL;
    CUmodule module;

    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

struct looking {
    struct outside *outside;
    const char *group;
};

static int add_process(const struct sim_process_info *info, void *arg) {
    struct looking *looking = arg;

    looking->outside->processes++;
    for (int i = 0; i < 2; i++) {
        looking->outside->sum[i].bytes += info->gpus[i].bytes;
        looking->outside->sum[i].context_bytes += info->gpus[i].context_bytes;
        looking->outside->sum[i].allocations += info->gpus[i].allocations;
        looking->outside->sum[i].launches += info->gpus[i].launches;
    }
    return 0;
}

static int add_group(const struct sim_group_info *info, void *arg) {
    struct looking *looking = arg;

    if (strcmp(info->group, looking->group) != 0)
        return 0;
    looking->outside->group_processes = info->processes;
    for (int i = 0; i < 2; i++) {
        looking->outside->group_bytes[i] = info->gpus[i].bytes;
        looking->outside->group_peak[i] = info->gpus[i].peak_bytes;
        looking->outside->group_launches[i] = info->gpus[i].launches;
        looking->outside->group_busy_ns[i] = info->gpus[i].busy_ns;
        looking->outside->group_overlap_ns[i] = info->gpus[i].overlap_ns;
    }
    return 0;
}

static void look_here(int fd, const char *group) {
    struct outside outside = {0};
    struct looking looking = {&outside, group};

    if (sim_open_all() == 0) {
        sim_reap();
        for (int i = 0; i < sim_gpu_count() && i < 2; i++) {
            outside.used[i] = sim_gpu_used(i);
            outside.switches[i] = sim_gpu_switches(i);
        }
        sim_each_process(add_process, &looking);
        sim_each_group(add_group, &looking);
    }
    if (write(fd, &outside, sizeof(outside)) != (ssize_t)sizeof(outside))
        _exit(1);
    _exit(0);
}

struct outside look(const char *group) {
    struct outside outside = {0};
    int ends[2];
    pid_t pid;

    if (pipe2(ends, O_CLOEXEC) != 0)
        exit(2);
    pid = fork();
    if (pid == 0)
        look_here(ends[1], group);
    close(ends[1]);
    if (read(ends[0], &outside, sizeof(outside)) != (ssize_t)sizeof(outside))
        check_failed(__FILE__, __LINE__, "the state cannot be looked at");
    close(ends[0]);
    waitpid(pid, NULL, 0);
    return outside;
}

uint64_t now_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void sleep_ms(unsigned ms) {
    struct timespec time = {ms / 1000, (long)(ms % 1000) * 1000000};

    nanosleep(&time, NULL);
}

int shell(char *output, size_t size, const char *format, ...) {
    char command[2048];
    va_list args;
    size_t got;
    FILE *pipe;

    va_start(args, format);
    vsnprintf(command, sizeof(command), format, args);
    va_end(args);
    pipe = popen(command, "re");
    if (pipe == NULL)
        return -1;
    got = fread(output, 1, size - 1, pipe);
    output[got] = '\0';
    return WEXITSTATUS(pclose(pipe));
}

/* ---- Running ---- */

static bool run_test(const char *file, const struct test *test) {
    uint64_t start = now_ns();
    int status;
    pid_t pid;

    node_make();
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        alarm(180); /* a hang ends, too, and with it the workers */
        test->run();
        _exit(failures != 0);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    node_remove();
    if (WIFSIGNALED(status))
        fprintf(stderr, "    died by signal %d\n", WTERMSIG(status));
    printf("%s %s: %s (%.0f ms)\n", status == 0 ? "ok  " : "FAIL", file, test->name, (double)(now_ns() - start) / 1e6);
    fflush(stdout);
    return status == 0;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        const struct test *tests;
    } files[] = {
        {"mig", mig_tests},         {"init", init_tests},         {"context", context_tests},
        {"memory", memory_tests},   {"sums", sums_tests},         {"module", module_tests},
        {"time", time_tests},       {"turns", turns_tests},       {"fault", fault_tests},
        {"tool", tool_tests},       {"pool", pool_tests},         {"graph", graph_tests},
        {"vmm", vmm_tests},         {"ipc", ipc_tests},           {"array", array_tests},
        {"image", image_tests},     {"limits", limits_tests},     {"managed", managed_tests},
        {"sharing", sharing_tests}, {"mps", mps_tests},           {"runtime", runtime_tests},
        {"texture", texture_tests}, {"graphics", graphics_tests}, {"node", node_tests},
        {"stream", stream_tests},   {"memop", memop_tests},       {"memory_limits", memory_limits_tests},
        {"mps_v3", mps_v3_tests},
    };
    int passed = 0, failed = 0;

    if (argc < 3) {
        fprintf(stderr, "usage: %s TOPOLOGIES SIMGPU [FILE [TEST]]\n", argv[0]);
        return 2;
    }
    topologies = argv[1];
    tool_path = argv[2];
    signal(SIGPIPE, SIG_IGN);
    for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++) {
        if (argc > 3 && strcmp(argv[3], files[f].name) != 0)
            continue;
        for (const struct test *test = files[f].tests; test->name != NULL; test++) {
            if (argc > 4 && strcmp(argv[4], test->name) != 0)
                continue;
            if (run_test(files[f].name, test))
                passed++;
            else
                failed++;
        }
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0 || passed == 0;
}
