/*
 * Starts, kills and stops processes in front of the simulated GPU. No process waits for a dead or stopped one; bytes of
 * dead processes are given back; bytes of living ones stay counted. The memory in use is read from the simulator's
 * record, the counted memory from NVML as the claim's processes see it.
 *
 *   life_test LIFE SECONDS [SCENARIO]   LIFE is the program of life.c, SECONDS how long a stopped process stays so
 *   life_test LIFE crowd N BARE         compares N processes at once with the driver in the directory BARE
 *
 * The environment is that of the processes: SIMGPU_*, TRANCHE_REGIONS, LD_LIBRARY_PATH; and LIFE_PAGE.
 */
#include "../driver/cuda_api.h"
#include "../driver/shadowed.h"
#include "check.h"
#include "life.h"
#include "state.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CONTEXT (64 * MIB) /* of the first GPU of small.conf */
#define SECOND_NS UINT64_C(1000000000)
#define PATIENCE_NS (20 * SECOND_NS) /* for what is only slow */

static const char *program;
static int stdout_file; /* what the programs write there; nothing, that is */
static struct life *life;
static pid_t pulses[PULSES];

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

static void must(bool done, const char *what) {
    if (done)
        return;
    fprintf(stderr, "life_test: cannot %s: %s\n", what, strerror(errno));
    exit(2);
}

/* What the survivors hold before and after each scenario. */
static const uint64_t survivors = PULSES * CONTEXT;

/* --- the judges --- */

static uint64_t held(void) {
    sim_reap();
    return sim_gpu_used(0);
}

/* NVML as the shadow answers. */
struct memory {
    unsigned long long total, free, used;
};

static uint64_t counted(void) {
    static void *device;
    static int (*memory_info)(void *, struct memory *);
    struct memory memory = {0};
    if (memory_info == NULL) {
        void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
        must(nvml != NULL, "load NVML");
        int (*init)(void) = (int (*)(void))dlsym(nvml, "nvmlInit_v2");
        int (*find)(unsigned, void **) = (int (*)(unsigned, void **))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
        must(init() == 0 && find(0, &device) == 0, "find the GPU in NVML");
        memory_info = (int (*)(void *, struct memory *))dlsym(nvml, "nvmlDeviceGetMemoryInfo");
    }
    must(memory_info(device, &memory) == 0, "ask NVML");
    return memory.used;
}

/* What is held and what is counted become this, on a busy machine within seconds. No event tells that the kernel has let
 * go of a process. */
static void check_settles(const char *when, uint64_t bytes) {
    CHECK(life_pause(life, true), "%s: a survivor does not answer", when);
    uint64_t end = now_ns() + 10 * SECOND_NS;
    while ((held() != bytes || counted() != bytes) && now_ns() < end)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    CHECK(held() == bytes, "%s: %zu MiB are held, %zu expected", when, (size_t)held() / MIB, (size_t)bytes / MIB);
    CHECK(counted() == bytes, "%s: %zu MiB are counted, %zu expected", when, (size_t)counted() / MIB,
          (size_t)bytes / MIB);
    life_pause(life, false);
}

/* --- processes --- */

static pid_t start_with(const char *scenario, int number, char **environment, int input) {
    char argument[16];
    snprintf(argument, sizeof argument, "%d", number);
    char *arguments[] = {(char *)program, (char *)scenario, argument, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, stdout_file, STDOUT_FILENO);
    if (input >= 0)
        posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
    pid_t pid;
    must(posix_spawn(&pid, program, &actions, NULL, arguments, environment) == 0, "start a program");
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

static pid_t start(const char *scenario, int number) {
    extern char **environ;
    return start_with(scenario, number, environ, -1);
}

/* Without this there is no use in going on. What was started ends with us. */
static void wait_until_ready(const char *scenario) {
    bool ready = life_wait(&life->ready);
    CHECK(ready, "%s does not get ready", scenario);
    if (!ready)
        exit(checks_report());
}

static pid_t start_ready(const char *scenario, int number) {
    pid_t pid = start(scenario, number);
    wait_until_ready(scenario);
    return pid;
}

/* The status of a child that ends by itself, or -1. */
static int end_of(pid_t pid) {
    struct pollfd end = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    int status = -1;
    if (poll(&end, 1, (int)(PATIENCE_NS / 1000000)) == 1)
        waitpid(pid, &status, 0);
    close(end.fd);
    return status;
}

static void end_by_force(pid_t pid) {
    kill(pid, SIGKILL);
    kill(pid, SIGCONT);
    waitpid(pid, NULL, 0);
}

/* Runs a program that judges for itself what it sees. */
static void run(const char *scenario, int number) {
    pid_t pid = start(scenario, number);
    int status = end_of(pid);
    CHECK(status == 0, "%s %d ended with status %#x (call %d)", scenario, number, (unsigned)status, life->call);
    if (status == -1)
        end_by_force(pid);
    check_settles(scenario, survivors);
}

/* --- scenarios --- */

static void test_exits(int unused) {
    (void)unused;
    run("exit-at-once", 0);
    run("exit-in-order", 0);
    for (int i = 0; i < 12; i++)
        run("exit-among-threads", i);
    life->handlers = 0;
    run("call-at-exit", 0);
    CHECK(life->handlers == 2, "%d of 2 calls while ending", life->handlers);
}

static void test_unload(int unused) {
    (void)unused;
    run("unload", 0);
    run("unload-among-threads", 0);
}

static void test_kill(int unused) {
    (void)unused;
    pid_t pids[4];
    for (int i = 0; i < 3; i++)
        pids[i] = start_ready("hold", 20);
    check_settles("holders", survivors + 3 * (CONTEXT + 20 * MIB));
    for (int i = 0; i < 3; i++)
        kill(pids[i], SIGKILL);
    for (int i = 0; i < 3; i++)
        waitpid(pids[i], NULL, 0);
    check_settles("killed holders", survivors);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 3; i++)
            pids[i] = start_ready("churn", 3 * round + i);
        nanosleep(&(struct timespec){.tv_nsec = 1000000 + 7919 * 997 * round % 5000000}, NULL);
        for (int i = 0; i < 3; i++)
            kill(pids[i], SIGKILL);
        for (int i = 0; i < 3; i++)
            waitpid(pids[i], NULL, 0);
        check_settles("killed in the midst of calls", survivors);
    }
}

/* The stopped may hold a call half done. It keeps its bytes, and the others go on. */
static void test_stop(int seconds) {
    pid_t pids[2] = {start_ready("churn", 1), start_ready("churn", 2)};
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 2; i++)
            kill(pids[i], SIGSTOP);
        for (int i = 0; i < 2; i++)
            waitpid(pids[i], NULL, WUNTRACED);
        uint64_t calls = life->pulses[0].calls, until = now_ns() + (round == 49 ? (uint64_t)seconds : 1) * SECOND_NS;
        while ((round == 49 || life->pulses[0].calls < calls + 5) && now_ns() < until)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        CHECK(life->pulses[0].calls >= calls + 5, "round %d: a survivor made %d calls beside the stopped", round,
              (int)(life->pulses[0].calls - calls));
        CHECK(counted() >= survivors + 2 * CONTEXT, "the bytes of the stopped are forgotten");
        for (int i = 0; i < 2; i++)
            kill(pids[i], SIGCONT);
    }
    for (int i = 0; i < 2; i++)
        end_by_force(pids[i]);
    check_settles("stopped, then killed", survivors);
    pid_t pid = start_ready("churn", 3);
    kill(pid, SIGSTOP);
    waitpid(pid, NULL, WUNTRACED);
    end_by_force(pid);
    check_settles("killed while stopped", survivors);
}

static void test_children(int unused) {
    (void)unused;
    run("fork-and-call", 0);
    /* What the driver does with a dead process's memory while its child has its descriptors, the account has to follow. */
    pid_t parent = start_ready("fork-and-die", 0);
    wait_until_ready("the child of fork-and-die");
    int child = life->pid;
    check_settles("parent and child", survivors + CONTEXT + 20 * MIB);
    end_by_force(parent);
    CHECK(life_pause(life, true), "a survivor does not answer");
    uint64_t after = held();
    life_pause(life, false);
    check_settles("the child outlives its parent", after);
    kill(child, SIGKILL);
    check_settles("child and parent are dead", survivors);
    run("fork-storm", 160);
    run("clone-storm", 160);
    run("vfork-storm", 80);
    run("spawn-storm", 80);
}

static void test_cancel(int unused) {
    (void)unused;
    run("cancel", 60);
    run("cancel-first-call", 0);
}

/* What becomes of the memory is the driver's affair, whose files are closed too. The account must not forget it before
 * the process is dead. */
static void test_closed_files(int unused) {
    (void)unused;
    pid_t pid = start_ready("close-everything", 0);
    CHECK(life_pause(life, true), "a survivor does not answer");
    CHECK(counted() == survivors + CONTEXT + 40 * MIB, "%zu MiB are counted", (size_t)counted() / MIB);
    life_pause(life, false);
    end_by_force(pid);
    check_settles("a process that has closed its files is dead", survivors);
}

/* What a program exported that has become another is not taken for what that one exports. */
static void test_exec(int unused) {
    (void)unused;
    pid_t pid = start_ready("export-over-exec", 0);
    check_settles("memory that outlived its program", survivors + CONTEXT + 12 * MIB);
    end_by_force(pid);
    check_settles("whoever held it is dead", survivors);
}

/* Memory that was handed from one process to the next counts for whoever has it last, mapped or not. */
static void test_passed_on(int unused) {
    (void)unused;
    pid_t pid = start_ready("hold-what-was-passed-on", 0);
    check_settles("memory whose maker is dead, and who passed it on", survivors + CONTEXT + 10 * MIB);
    end_by_force(pid);
    check_settles("whoever held it is dead", survivors);
}

/* Nobody knows how large it is, so it counts up to where it is mapped. */
static void test_left(int unused) {
    (void)unused;
    pid_t pid = start_ready("use-what-is-left", 0);
    check_settles("memory that is left of a process, mapped", survivors + CONTEXT + 6 * MIB);
    end_by_force(pid);
    check_settles("whoever held it is dead", survivors);
}

static void test_opened(int unused) {
    (void)unused;
    pid_t pid = start_ready("open-in-one-block", 0);
    check_settles("two handles at one address are closed", survivors + 2 * CONTEXT);
    end_by_force(pid);
    check_settles("whoever had them open is dead", survivors);
}

static const char *const shadowed[] = {
#define X(symbol, name, since, stream, parameters) #symbol,
    CUDA_SHADOWED(X)
#undef X
};

/* The last of them, which the driver does not get to see. */
#define X(symbol, name, since, stream, parameters) +1
enum { REFUSED = 0 CUDA_REFUSED(X) };
#undef X

static void run_bare(const char *scenario, int number) {
    char *ours = strdup(getenv("LD_LIBRARY_PATH")), *driver = strdup(getenv("LIFE_DRIVER")), path[4096];
    snprintf(path, sizeof path, "%s/libcuda.so.1", getenv("LIFE_BARE"));
    setenv("LD_LIBRARY_PATH", getenv("LIFE_BARE"), 1);
    setenv("LIFE_DRIVER", path, 1);
    run(scenario, number);
    setenv("LD_LIBRARY_PATH", ours, 1);
    setenv("LIFE_DRIVER", driver, 1);
    free(ours);
    free(driver);
}

/* What the driver refuses, it refuses with us in front of it too, and with the same result. */
static void test_zeros(int unused) {
    static struct life bare;
    (void)unused;
    for (int stage = 0; stage < 3; stage++) {
        run_bare("call-with-zeros", stage);
        memcpy(bare.calls, life->calls, sizeof bare.calls);
        run("call-with-zeros", stage);
        for (size_t i = 0; i < sizeof shadowed / sizeof shadowed[0] - REFUSED; i++) {
            if (bare.calls[i].result == -1)
                continue;
            CHECK(life->calls[i].result == bare.calls[i].result, "stage %d, %s: %d, without us %d", stage, shadowed[i],
                  life->calls[i].result, bare.calls[i].result);
            CHECK(!life->calls[i].errno_touched || bare.calls[i].errno_touched, "stage %d, %s: errno", stage,
                  shadowed[i]);
        }
    }
}

static void test_belongings(int unused) {
    (void)unused;
    run("errno", 0);
    run("signals", 0);
    run("threads", 0);
    int ours = life->threads_used;
    CHECK(life->threads_loaded == 1, "%d threads after loading the library", life->threads_loaded);
    run_bare("threads", 0);
    CHECK(ours == life->threads_used, "%d threads, %d without us", ours, life->threads_used);
}

static const struct {
    const char *name;
    void (*test)(int seconds);
} tests[] = {
    {"exits", test_exits},
    {"unload", test_unload},
    {"kill", test_kill},
    {"stop", test_stop},
    {"children", test_children},
    {"cancel", test_cancel},
    {"zeros", test_zeros},
    {"closed-files", test_closed_files},
    {"exec", test_exec},
    {"passed-on", test_passed_on},
    {"left", test_left},
    {"opened", test_opened},
    {"belongings", test_belongings},
};

static void start_survivors(void) {
    life->stop = 0;
    for (int i = 0; i < PULSES; i++) {
        life->pulses[i].calls = life->pulses[i].longest_ns = 0;
        pulses[i] = start_ready("pulse", i);
        life->survivors++;
    }
}

/* The survivors are asked to end, and none of their calls may have taken long. */
static void end_survivors(const char *name) {
    life->stop = 1;
    for (int i = 0; i < PULSES; i++) {
        int status = end_of(pulses[i]);
        CHECK(status == 0, "%s: a survivor ended with status %#x", name, (unsigned)status);
        if (status == -1)
            end_by_force(pulses[i]);
        life->survivors--;
        CHECK(life->pulses[i].calls > 0 && life->pulses[i].longest_ns < SECOND_NS,
              "%s: a survivor made %llu calls, and waited %.3f s at most", name,
              (unsigned long long)life->pulses[i].calls, (double)life->pulses[i].longest_ns / 1e9);
    }
    check_settles(name, 0);
}

static int run_tests(int seconds, const char *only) {
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        if (only != NULL && strcmp(only, tests[i].name) != 0)
            continue;
        uint64_t began = now_ns();
        start_survivors();
        tests[i].test(seconds);
        end_survivors(tests[i].name);
        printf("life: %s: %.1f s\n", tests[i].name, (double)(now_ns() - began) / 1e9);
    }
    struct stat written;
    must(fstat(stdout_file, &written) == 0, "look at what was written to stdout");
    CHECK(written.st_size == 0, "%zu bytes were written to stdout", (size_t)written.st_size);
    return checks_report();
}

/* --- many at once --- */

/* From the moment when everybody is there until the last has ended, in nanoseconds. */
static uint64_t crowd(int count, int with_context, const char *directory) {
    extern char **environ;
    int line[2];
    must(pipe2(line, O_CLOEXEC) == 0, "make a pipe");
    setenv("LD_LIBRARY_PATH", directory, 1);
    for (int i = 0; i < count; i++)
        start_with("crowd", with_context, environ, line[0]);
    close(line[0]);
    for (int i = 0; i < count; i++)
        wait_until_ready("crowd");
    uint64_t began = now_ns();
    close(line[1]);
    int failed = 0, status;
    while (wait(&status) > 0)
        failed += status != 0;
    uint64_t took = now_ns() - began;
    CHECK(failed == 0, "%d of %d processes failed", failed, count);
    return took;
}

static int run_crowds(int count, const char *bare) {
    char *ours = strdup(getenv("LD_LIBRARY_PATH"));
    for (int with_context = 0; with_context < 2; with_context++) {
        uint64_t without = crowd(count, with_context, bare), with = crowd(count, with_context, ours);
        printf("life: %d processes at once, %s: %.0f ms bare, %.0f ms with the shadow\n", count,
               with_context ? "cuInit and a context" : "cuInit", (double)without / 1e6, (double)with / 1e6);
        CHECK(with <= 2 * without + SECOND_NS, "%.0f ms against %.0f ms", (double)with / 1e6, (double)without / 1e6);
    }
    free(ours);
    return checks_report();
}

static void make_page(void) {
    const char *path = getenv("LIFE_PAGE");
    int fd = path != NULL ? open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
    must(fd >= 0 && ftruncate(fd, sizeof *life) == 0, "make the page that LIFE_PAGE names");
    life = mmap(NULL, sizeof *life, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(life != MAP_FAILED, "map it");
    close(fd);
    sem_init(&life->ready, 1, 0);
    sem_init(&life->paused, 1, 0);
    sem_init(&life->resume, 1, 0);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: see the beginning of %s\n", __FILE__);
        return 2;
    }
    program = argv[1];
    checks_start();
    make_page();
    stdout_file = memfd_create("stdout", MFD_CLOEXEC);
    must(stdout_file >= 0, "make a file for stdout");
    if (argc == 5 && strcmp(argv[2], "crowd") == 0)
        return run_crowds(atoi(argv[3]), argv[4]);
    must(sim_open_all() == 0, sim_error());
    return run_tests(atoi(argv[2]), argc > 3 ? argv[3] : NULL);
}
