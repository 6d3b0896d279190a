/*
 * Programs that start and end in every way that programs do. life_test.c runs them and checks the result. A program
 * that finds an error itself exits with a status other than 0 and a line on stderr.
 *
 *   life SCENARIO [NUMBER]     see scenarios, at the end
 */
#include "life.h"
#include "../driver/cuda_api.h"
#include "../driver/shadowed.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct life *life;

#define FUNCTIONS(X)                                                                                                   \
    X(cuInit, (unsigned int))                                                                                          \
    X(cuGetProcAddress, (const char *, void **, int, cuuint64_t))                                                      \
    X(cuCtxCreate_v2, (CUcontext *, unsigned int, CUdevice))                                                           \
    X(cuCtxDestroy_v2, (CUcontext))                                                                                    \
    X(cuCtxSetCurrent, (CUcontext))                                                                                    \
    X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                               \
    X(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                                        \
    X(cuDevicePrimaryCtxReset_v2, (CUdevice))                                                                          \
    X(cuDeviceTotalMem_v2, (size_t *, CUdevice))                                                                       \
    X(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                          \
    X(cuMemAllocPitch_v2, (CUdeviceptr *, size_t *, size_t, size_t, unsigned int))                                     \
    X(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned int))                                                        \
    X(cuMemFree_v2, (CUdeviceptr))                                                                                     \
    X(cuMemGetInfo_v2, (size_t *, size_t *))                                                                           \
    X(cuIpcGetMemHandle, (CUipcMemHandle *, CUdeviceptr))                                                              \
    X(cuIpcOpenMemHandle_v2, (CUdeviceptr *, CUipcMemHandle, unsigned int))                                            \
    X(cuIpcCloseMemHandle, (CUdeviceptr))                                                                              \
    X(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))          \
    X(cuMemExportToShareableHandle,                                                                                    \
      (void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long))                           \
    X(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType))             \
    X(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                           \
    X(cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))                       \
    X(cuMemMapArrayAsync, (CUarrayMapInfo *, unsigned int, CUstream))

#define X(symbol, parameters) static CUresult(*symbol) parameters;
FUNCTIONS(X)
#undef X

static const struct {
    const char *symbol;
    void **function;
} functions[] = {
#define X(symbol, parameters) {#symbol, (void **)&(symbol)},
    FUNCTIONS(X)
#undef X
};

#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "life: line %d: not so: %s\n", __LINE__, #condition);                                      \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)
#define MUST_DO(call) MUST((call) == CUDA_SUCCESS)

static void *load(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    MUST(library != NULL);
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        MUST((*functions[i].function = dlsym(library, functions[i].symbol)) != NULL);
    return library;
}

static CUcontext context;

static void begin(void) {
    load();
    MUST_DO(cuInit(0));
    MUST_DO(cuDevicePrimaryCtxRetain(&context, 0));
    MUST_DO(cuCtxSetCurrent(context));
}

static CUdeviceptr take(size_t mib) {
    CUdeviceptr address;
    MUST_DO(cuMemAlloc_v2(&address, mib * MIB));
    return address;
}

static size_t used_mib(void) {
    size_t free, total;
    MUST_DO(cuMemGetInfo_v2(&free, &total));
    return (total - free) / MIB;
}

/* The same while the survivors hold nothing but their contexts, and after the time for which an answer may include what
 * a process held that died a moment ago. */
static size_t quiet_used_mib(void) {
    life_pause(life, true);
    nanosleep(&(struct timespec){.tv_nsec = 60000000}, NULL);
    size_t used = used_mib();
    life_pause(life, false);
    return used;
}

static int stay(void) {
    sem_post(&life->ready);
    for (;;)
        pause();
    return 0;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* How long this thread has been ready to run without a processor; nobody's fault on a busy machine. */
static uint64_t not_running_ns(void) {
    static int file = -1;
    char text[96] = "";
    unsigned long long running, waiting;
    if (file < 0)
        file = open("/proc/self/schedstat", O_RDONLY | O_CLOEXEC);
    return pread(file, text, sizeof text - 1, 0) > 0 && sscanf(text, "%llu %llu", &running, &waiting) == 2 ? waiting
                                                                                                           : 0;
}

/* --- one process among others --- */

static int hold(int mib) {
    begin();
    take((size_t)mib);
    return stay();
}

/* A survivor: calls all the time, and notes the longest that it had to wait for an answer. */
static int pulse(int index) {
    begin();
    sem_post(&life->ready);
    while (!life->stop) {
        if (life->pause) {
            sem_post(&life->paused);
            sem_wait(&life->resume);
        }
        CUdeviceptr address = 0;
        uint64_t not_running = not_running_ns(), began = now_ns();
        CUresult result = cuMemAlloc_v2(&address, 2 * MIB);
        MUST(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
        used_mib();
        if (result == CUDA_SUCCESS)
            MUST_DO(cuMemFree_v2(address));
        uint64_t took = now_ns() - began;
        not_running = not_running_ns() - not_running;
        took -= took > not_running ? not_running : took;
        if (took > life->pulses[index].longest_ns)
            life->pulses[index].longest_ns = took;
        life->pulses[index].calls++;
    }
    return 0;
}

/* Allocates and frees without end. Of several threads each has its own. */
static _Atomic long churned;
static _Atomic bool churn_ends;

static void churn_once(unsigned *seed) {
    CUdeviceptr addresses[4];
    int count = 0;
    for (int i = 0; i < 4; i++) {
        size_t size = rand_r(seed) % 2 ? 1 + (size_t)rand_r(seed) % MIB : (1 + (size_t)rand_r(seed) % 6) * MIB;
        CUresult result = cuMemAlloc_v2(&addresses[count], size);
        if (result == CUDA_SUCCESS)
            count++;
        else
            MUST(result == CUDA_ERROR_OUT_OF_MEMORY);
    }
    while (count > 0)
        MUST_DO(cuMemFree_v2(addresses[--count]));
    churned++;
}

static void *churn_thread(void *seed) {
    unsigned random = (unsigned)(uintptr_t)seed;
    MUST_DO(cuCtxSetCurrent(context));
    while (!churn_ends)
        churn_once(&random);
    return NULL;
}

/* Makes the calls that a process seldom makes, and which take longest: whoever forks does so in the midst of one. */
static void *retain_thread(void *unused) {
    (void)unused;
    while (!churn_ends) {
        CUcontext same;
        MUST_DO(cuDevicePrimaryCtxRetain(&same, 0));
        MUST_DO(cuDevicePrimaryCtxRelease_v2(0));
    }
    return NULL;
}

static void churn_at_least(long times) {
    for (long until = churned + times; churned < until;)
        sched_yield();
}

static int churn(int seed) {
    begin();
    sem_post(&life->ready);
    churn_thread((void *)(uintptr_t)seed);
    return 0;
}

/* --- ends --- */

static int exit_at_once(int unused) {
    (void)unused;
    begin();
    take(20);
    _exit(0);
}

static int exit_in_order(int unused) {
    (void)unused;
    begin();
    take(20);
    return 0;
}

static void *exit_thread(void *unused) {
    (void)unused;
    exit(0);
}

/* Threads that are in the midst of calls when the process ends: by main's return, by exit, by a thread's exit. */
static int exit_among_threads(int way) {
    pthread_t thread;
    begin();
    for (uintptr_t i = 0; i < 4; i++)
        MUST(pthread_create(&thread, NULL, churn_thread, (void *)(i + 1)) == 0);
    churn_at_least(50);
    if (way % 3 == 0)
        return 0;
    if (way % 3 == 1)
        exit(0);
    MUST(pthread_create(&thread, NULL, exit_thread, NULL) == 0);
    pthread_join(thread, NULL);
    return 1;
}

static CUdeviceptr held_at_exit;

static void call_while_ending(void) {
    CUdeviceptr address;
    if (held_at_exit == 0)
        return;
    MUST_DO(cuMemAlloc_v2(&address, 2 * MIB));
    MUST_DO(cuMemFree_v2(address));
    used_mib();
    life->handlers++;
}

__attribute__((destructor)) static void call_in_destructor(void) {
    call_while_ending();
}

static int call_at_exit(int unused) {
    (void)unused;
    atexit(call_while_ending);
    begin();
    held_at_exit = take(20);
    return 0;
}

static int unload(int unused) {
    (void)unused;
    begin();
    size_t before = quiet_used_mib();
    for (int i = 0; i < 200; i++) {
        void *library = load();
        CUdeviceptr address = take(4);
        for (int j = 0; j < 3; j++) /* more often than it was opened */
            dlclose(library);
        load();
        MUST_DO(cuMemFree_v2(address));
    }
    MUST(quiet_used_mib() == before);
    return 0;
}

static int unload_among_threads(int unused) {
    pthread_t threads[3];
    (void)unused;
    begin();
    for (uintptr_t i = 0; i < 3; i++)
        MUST(pthread_create(&threads[i], NULL, churn_thread, (void *)(i + 1)) == 0);
    for (int i = 0; i < 200; i++) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        for (int j = 0; j < 3; j++)
            dlclose(library);
    }
    churn_at_least(100);
    churn_ends = true;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    return 0;
}

/* --- children --- */

/* The driver does not work in a forked child. Nothing may be had there, and nobody may be kept waiting. */
static void call_in_child(CUdeviceptr parents) {
    CUdeviceptr address;
    CUcontext child;
    size_t size;
    MUST(cuMemGetInfo_v2(&size, &size) != CUDA_SUCCESS);
    MUST(cuMemAlloc_v2(&address, 2 * MIB) != CUDA_SUCCESS);
    MUST(cuMemFree_v2(parents) != CUDA_SUCCESS);
    MUST(cuInit(0) != CUDA_SUCCESS);
    MUST(cuCtxCreate_v2(&child, 0, 0) != CUDA_SUCCESS);
    MUST(cuDevicePrimaryCtxRetain(&child, 0) != CUDA_SUCCESS);
    cuDevicePrimaryCtxReset_v2(0);
    MUST(cuMemAlloc_v2(&address, 2 * MIB) != CUDA_SUCCESS);
}

static void wait_for(pid_t pid) {
    int status;
    while (waitpid(pid, &status, 0) != pid)
        MUST(errno == EINTR);
    MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int fork_and_call(int unused) {
    (void)unused;
    begin();
    CUdeviceptr address = take(20);
    size_t before = quiet_used_mib();
    for (int i = 0; i < 10; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(60);
            if (i % 2 == 0)
                call_in_child(address);
            if (i % 3 == 0)
                _exit(0);
            exit(0); /* with the parent's atexit handlers and destructors */
        }
        wait_for(pid);
        MUST(quiet_used_mib() == before);
    }
    MUST_DO(cuMemFree_v2(address));
    MUST(quiet_used_mib() == before - 20);
    return 0;
}

static int fork_and_die(int unused) {
    (void)unused;
    begin();
    take(20);
    pid_t pid = fork();
    if (pid != 0)
        life->pid = pid;
    return stay();
}

/* How a child is made and what becomes of it, in the midst of other threads' calls. */
static void child_of_storm(int i, CUdeviceptr parents) {
    alarm(60); /* a child that waits for a lock which it cannot get */
    if (i % 4 != 3)
        call_in_child(parents);
    if (i % 2 == 0)
        execl("/bin/true", "true", (char *)NULL);
    _exit(0);
}

static void storm(int children, pid_t (*make)(int i)) {
    pthread_t threads[3];
    begin();
    size_t before = quiet_used_mib();
    CUdeviceptr address = take(20);
    for (uintptr_t i = 0; i < 3; i++)
        MUST(pthread_create(&threads[i], NULL, i < 2 ? churn_thread : retain_thread, (void *)(i + 1)) == 0);
    pid_t pids[16];
    for (int i = 0; i < children; i += 16) {
        for (int j = 0; j < 16; j++) {
            pids[j] = make(i + j);
            if (pids[j] == 0)
                child_of_storm(i + j, address);
            MUST(pids[j] > 0);
        }
        for (int j = 0; j < 16; j++)
            wait_for(pids[j]);
    }
    churn_ends = true;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    MUST_DO(cuMemFree_v2(address));
    MUST(quiet_used_mib() == before);
}

static pid_t by_fork(int i) {
    (void)i;
    return fork();
}

/* Without what the C library does around a fork; every other one shares our descriptors. */
static pid_t by_clone(int i) {
    return (pid_t)syscall(SYS_clone, SIGCHLD | (i % 2 == 0 ? CLONE_FILES : 0), NULL, NULL, NULL, 0);
}

static pid_t by_vfork(int i) {
    (void)i;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    pid_t pid = vfork();
#pragma GCC diagnostic pop
    if (pid == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    return pid;
}

static pid_t by_spawn(int i) {
    extern char **environ;
    char *arguments[] = {(char *)"true", NULL};
    pid_t pid;
    (void)i;
    return posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, environ) == 0 ? pid : -1;
}

static int fork_storm(int children) {
    storm(children, by_fork);
    return 0;
}

static int clone_storm(int children) {
    storm(children, by_clone);
    return 0;
}

static int vfork_storm(int children) {
    storm(children, by_vfork);
    return 0;
}

static int spawn_storm(int children) {
    storm(children, by_spawn);
    return 0;
}

/* --- threads that are cancelled --- */

static _Atomic(CUdeviceptr) left_by_cancelled;

static void *cancelled_thread(void *unused) {
    (void)unused;
    MUST_DO(cuCtxSetCurrent(context));
    for (;;) {
        /* What it holds is always known, unless it is cancelled in the midst of a call. */
        CUdeviceptr address;
        MUST_DO(cuMemAlloc_v2(&address, 2 * MIB));
        left_by_cancelled = address;
        used_mib();
        MUST_DO(cuMemFree_v2(address));
        left_by_cancelled = 0;
        churned++;
        pthread_testcancel();
    }
    return NULL;
}

static int cancel(int times) {
    begin();
    size_t before = quiet_used_mib();
    for (int i = 0; i < times; i++) {
        pthread_t thread, other;
        churn_ends = false;
        MUST(pthread_create(&thread, NULL, cancelled_thread, NULL) == 0);
        MUST(pthread_create(&other, NULL, churn_thread, (void *)(uintptr_t)(i + 1)) == 0);
        churn_at_least(i % 7);
        pthread_cancel(thread);
        pthread_join(thread, NULL);
        churn_ends = true;
        pthread_join(other, NULL);
        if (left_by_cancelled != 0)
            MUST_DO(cuMemFree_v2(left_by_cancelled));
        left_by_cancelled = 0;
    }
    MUST(quiet_used_mib() == before);
    return 0;
}

/* Initialises the driver past the shadow, so that what happens in the first calls afterwards is the shadow's doing. */
static void initialise_driver(void) {
    void *driver = dlopen(getenv("LIFE_DRIVER"), RTLD_NOW);
    MUST(driver != NULL);
    CUresult (*init)(unsigned int) = (CUresult(*)(unsigned int))dlsym(driver, "cuInit");
    CUresult (*version)(int *) = (CUresult(*)(int *))dlsym(driver, "cuDriverGetVersion");
    MUST_DO(init(0));
    MUST_DO(version(&(int){0}));
}

/* A thread whose cancellation is pending when it makes the process's first call. */
static void *first_call_thread(void *unused) {
    (void)unused;
    pthread_cancel(pthread_self());
    cuInit(0);
    pthread_testcancel();
    return NULL;
}

static int cancel_first_call(int unused) {
    (void)unused;
    load();
    initialise_driver();
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, first_call_thread, NULL) == 0);
    pthread_join(thread, NULL);
    alarm(60);
    begin();
    MUST_DO(cuMemFree_v2(take(2)));
    return 0;
}

/* --- what belongs to the process --- */

static int count_threads(void) {
    int count = 0;
    DIR *directory = opendir("/proc/self/task");
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

static int threads(int unused) {
    (void)unused;
    load();
    life->threads_loaded = count_threads();
    begin();
    take(20);
    life->threads_used = count_threads();
    return 0;
}

/* Calls everything once, with success, and some with failure. errno must stay as it is: it belongs to the program. */
#define UNTOUCHED 4711
#define CALL(call)                                                                                                     \
    do {                                                                                                               \
        errno = UNTOUCHED;                                                                                             \
        MUST_DO(call);                                                                                                 \
        MUST(errno == UNTOUCHED);                                                                                      \
    } while (0)
#define REFUSED(call)                                                                                                  \
    do {                                                                                                               \
        errno = UNTOUCHED;                                                                                             \
        MUST((call) != CUDA_SUCCESS);                                                                                  \
        MUST(errno == UNTOUCHED);                                                                                      \
    } while (0)

/* A page's end, behind which there is no memory: a list that is shorter than is said. */
static CUarrayMapInfo *short_list(void) {
    char *pages = mmap(NULL, 2 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(pages != MAP_FAILED && mprotect(pages + 4096, 4096, PROT_NONE) == 0);
    return (CUarrayMapInfo *)(void *)(pages + 4096 - sizeof(CUarrayMapInfo));
}

static void call_everything(void) {
    static const char no_stream[64];
    CUdeviceptr address;
    CUcontext other;
    void *function;
    size_t size, also;
    CALL(cuDevicePrimaryCtxRetain(&context, 0));
    CALL(cuCtxSetCurrent(context));
    CALL(cuMemAlloc_v2(&address, 20 * MIB));
    CALL(cuMemFree_v2(address));
    REFUSED(cuMemFree_v2(address));
    CALL(cuMemAlloc_v2(&address, 1));
    CALL(cuMemFree_v2(address));
    CALL(cuMemAllocPitch_v2(&address, &size, 1000, 1000, 4));
    CALL(cuMemFree_v2(address));
    CALL(cuMemAllocManaged(&address, 2 * MIB, 1));
    CALL(cuMemFree_v2(address));
    REFUSED(cuMemAlloc_v2(&address, 0));
    REFUSED(cuMemAlloc_v2(&address, (size_t)1 << 50));
    CALL(cuMemGetInfo_v2(&size, &also));
    CALL(cuDeviceTotalMem_v2(&size, 0));
    REFUSED(cuDeviceTotalMem_v2(&size, 99));
    CALL(cuGetProcAddress("cuMemAlloc", &function, 12000, 0));
    REFUSED(cuGetProcAddress("cuNoSuchFunction", &function, 12000, 0));
    REFUSED(cuMemMapArrayAsync(short_list(), 1000, (CUstream)&no_stream));
    CALL(cuCtxCreate_v2(&other, 0, 0));
    CALL(cuMemAlloc_v2(&address, 4 * MIB));
    CALL(cuCtxDestroy_v2(other));
    REFUSED(cuCtxCreate_v2(&other, 0, 99));
    CALL(cuDevicePrimaryCtxRelease_v2(0));
    CALL(cuDevicePrimaryCtxReset_v2(0));
}

static int error_number(int unused) {
    (void)unused;
    load();
    REFUSED(cuMemAlloc_v2(&(CUdeviceptr){0}, 2 * MIB));
    REFUSED(cuMemGetInfo_v2(&(size_t){0}, &(size_t){0}));
    initialise_driver();
    CALL(cuInit(0));
    call_everything();
    return 0;
}

static const char *const shadowed[] = {
#define X(symbol, name, since, stream, parameters) #symbol,
    CUDA_SHADOWED(X)
#undef X
};

typedef CUresult (*any_function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                                 uint64_t, uint64_t);

/* Every function of the shadow with nothing but zeros, before cuInit, after it, and with a context. */
static int call_with_zeros(int stage) {
    _Static_assert(sizeof shadowed / sizeof shadowed[0] <= CALLS_MAX, "calls");
    void *library = load();
    if (stage > 0)
        initialise_driver();
    if (stage == 1)
        MUST_DO(cuInit(0));
    if (stage == 2)
        begin();
    for (size_t i = 0; i < sizeof shadowed / sizeof shadowed[0]; i++) {
        any_function function = (any_function)dlsym(library, shadowed[i]);
        life->call = (int)i;
        life->calls[i].result = -1;
        if (function == NULL || strcmp(shadowed[i], "cuInit") == 0)
            continue;
        errno = UNTOUCHED;
        life->calls[i].result = (int)function(0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        life->calls[i].errno_touched = errno != UNTOUCHED;
    }
    return 0;
}

static void ignore(int signal_number) {
    (void)signal_number;
}

/* Only what the kernel fills in: the C library's sets are longer. */
struct signals {
    struct {
        void (*handler)(int);
        uint64_t flags, mask;
    } actions[65];
    uint64_t mask, pending;
    void *stack;
};

static void note_signals(struct signals *signals) {
    sigset_t set;
    stack_t stack;
    memset(signals, 0, sizeof *signals);
    for (int i = 1; i < 65; i++) {
        struct sigaction action;
        if (sigaction(i, NULL, &action) != 0)
            continue; /* the C library's own */
        signals->actions[i].handler = action.sa_handler;
        signals->actions[i].flags = (unsigned)action.sa_flags;
        memcpy(&signals->actions[i].mask, &action.sa_mask, sizeof signals->actions[i].mask);
    }
    sigprocmask(SIG_SETMASK, NULL, &set);
    memcpy(&signals->mask, &set, sizeof signals->mask);
    sigpending(&set);
    memcpy(&signals->pending, &set, sizeof signals->pending);
    sigaltstack(NULL, &stack);
    signals->stack = stack.ss_sp;
}

/* Signals of every kind of disposition: none of them changes. */
static int signals(int unused) {
    static struct signals before, after;
    sigset_t blocked;
    (void)unused;
    signal(SIGUSR1, ignore);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGSEGV, ignore);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    sigaddset(&blocked, SIGTERM);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    raise(SIGUSR2);
    note_signals(&before);
    load();
    note_signals(&after);
    MUST(memcmp(&before, &after, sizeof before) == 0); /* no change at all by being loaded */
    initialise_driver();
    MUST_DO(cuInit(0));
    call_everything();
    note_signals(&after);
    MUST(memcmp(&before, &after, sizeof before) == 0);
    return 0;
}

/* A daemon that closes whatever it did not open, the account's files among them, and goes on. */
static int close_everything(int unused) {
    (void)unused;
    begin();
    take(20);
    MUST(syscall(SYS_close_range, 3, ~0U, 0) == 0);
    CUdeviceptr address = take(20);
    take(20);
    MUST_DO(cuMemFree_v2(address));
    return stay();
}

/* --- what is handed over --- */

#define BY_DESCRIPTOR CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static int make_and_export(size_t mib) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = BY_DESCRIPTOR,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle handle;
    int descriptor = -1;
    MUST_DO(cuMemCreate(&handle, mib * MIB, &properties, 0));
    MUST_DO(cuMemExportToShareableHandle(&descriptor, handle, BY_DESCRIPTOR, 0));
    return descriptor;
}

/* The process that had made the memory has become another program, which has its number, makes something too, and uses
 * both. */
static int import_over_exec(int descriptor) {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    begin();
    quiet_used_mib(); /* which looks for what is no longer held */
    make_and_export(4);
    MUST_DO(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)descriptor, BY_DESCRIPTOR));
    MUST(close(descriptor) == 0);
    MUST_DO(cuMemAddressReserve(&address, 8 * MIB, 0, 0, 0));
    MUST_DO(cuMemMap(address, 8 * MIB, 0, handle, 0));
    return stay();
}

static int export_over_exec(int unused) {
    char number[16];
    (void)unused;
    begin();
    int descriptor = make_and_export(8);
    MUST(fcntl(descriptor, F_SETFD, 0) == 0);
    snprintf(number, sizeof number, "%d", descriptor);
    execl("/proc/self/exe", "life", "import-over-exec", number, (char *)NULL);
    return 1;
}

static void send_descriptor(int to, int descriptor) {
    union {
        char bytes[CMSG_SPACE(sizeof descriptor)];
        struct cmsghdr header;
    } control = {
        .header = {.cmsg_len = CMSG_LEN(sizeof descriptor), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    struct iovec byte = {.iov_base = (char[]){0}, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.bytes};
    memcpy(CMSG_DATA(&control.header), &descriptor, sizeof descriptor);
    MUST(sendmsg(to, &message, 0) == 1 && close(descriptor) == 0);
}

static int receive_descriptor(int from) {
    int descriptor;
    union {
        char bytes[CMSG_SPACE(sizeof descriptor)];
        struct cmsghdr header;
    } control;
    struct iovec byte = {.iov_base = (char[]){0}, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    MUST(recvmsg(from, &message, MSG_CMSG_CLOEXEC) == 1 && message.msg_controllen != 0);
    memcpy(&descriptor, CMSG_DATA(&control.header), sizeof descriptor);
    return descriptor;
}

static CUmemGenericAllocationHandle import_from(int from) {
    CUmemGenericAllocationHandle handle;
    int descriptor = receive_descriptor(from);
    MUST_DO(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)descriptor, BY_DESCRIPTOR));
    MUST(close(descriptor) == 0);
    return handle;
}

static void export_to(int to, CUmemGenericAllocationHandle handle) {
    int descriptor = -1;
    MUST_DO(cuMemExportToShareableHandle(&descriptor, handle, BY_DESCRIPTOR, 0));
    send_descriptor(to, descriptor);
}

static pid_t start_beside(void (*run)(int from, int to), int from, int to) {
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        begin();
        run(from, to);
        pause();
    }
    return pid;
}

static void make_two(int unused, int to) {
    (void)unused;
    send_descriptor(to, make_and_export(6));
    send_descriptor(to, make_and_export(4));
}

/* Passes one on while its maker lives, and one when that is dead. */
static void pass_on_two(int from, int to) {
    CUmemGenericAllocationHandle first = import_from(from), second = import_from(from);
    char byte;
    export_to(to, first);
    MUST(read(to, &byte, 1) == 1);
    export_to(to, second);
}

static void end(pid_t pid) {
    MUST(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
}

/* Holds what two processes that are dead have handed on, and does not use it. */
static int hold_what_was_passed_on(int unused) {
    int made[2], passed[2];
    (void)unused;
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, made) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, passed) == 0);
    pid_t maker = start_beside(make_two, -1, made[0]), second = start_beside(pass_on_two, made[1], passed[0]);
    int first = receive_descriptor(passed[1]);
    end(maker);
    MUST(write(passed[1], "d", 1) == 1);
    begin();
    import_from(passed[1]);
    send_descriptor(made[0], first);
    import_from(made[1]);
    end(second);
    return stay();
}

static void make_one(int unused, int to) {
    (void)unused;
    send_descriptor(to, make_and_export(6));
}

/* Memory that comes from a process which is dead by then, and that nobody else holds. */
static int use_what_is_left(int unused) {
    int made[2];
    CUdeviceptr address;
    (void)unused;
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, made) == 0);
    pid_t maker = start_beside(make_one, -1, made[0]);
    int descriptor = receive_descriptor(made[1]);
    end(maker);
    begin();
    send_descriptor(made[0], descriptor);
    CUmemGenericAllocationHandle handle = import_from(made[1]);
    MUST_DO(cuMemAddressReserve(&address, 6 * MIB, 0, 0, 0));
    MUST_DO(cuMemMap(address, 6 * MIB, 0, handle, 0));
    return stay();
}

/* What another process has opened is freed by its owner, which makes something of another size in its place. */
static void own_in_one_block(int to, int from) {
    CUdeviceptr first, other, second;
    CUipcMemHandle handle;
    char byte;
    begin();
    MUST_DO(cuMemAlloc_v2(&first, 8192));
    MUST_DO(cuMemAlloc_v2(&other, 8192)); /* keeps the block */
    MUST_DO(cuIpcGetMemHandle(&handle, first));
    MUST(write(to, &handle, sizeof handle) == sizeof handle && read(from, &byte, 1) == 1);
    MUST_DO(cuMemFree_v2(first));
    MUST_DO(cuMemAlloc_v2(&second, 4096));
    MUST(second == first);
    MUST_DO(cuIpcGetMemHandle(&handle, second));
    MUST(write(to, &handle, sizeof handle) == sizeof handle && read(from, &byte, 1) == 1);
    MUST_DO(cuMemFree_v2(second));
    MUST_DO(cuMemFree_v2(other));
    MUST(write(to, "f", 1) == 1);
    pause();
}

static CUdeviceptr open_next(int from, int to) {
    CUdeviceptr address;
    CUipcMemHandle handle;
    MUST(read(from, &handle, sizeof handle) == sizeof handle);
    MUST_DO(cuIpcOpenMemHandle_v2(&address, handle, 1));
    MUST(write(to, "n", 1) == 1);
    return address;
}

static int open_in_one_block(int unused) {
    int there[2], back[2];
    char byte;
    (void)unused;
    MUST(pipe(there) == 0 && pipe(back) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        own_in_one_block(there[1], back[0]);
    }
    begin();
    CUdeviceptr first = open_next(there[0], back[1]), second = open_next(there[0], back[1]);
    MUST(first == second && read(there[0], &byte, 1) == 1);
    MUST_DO(cuIpcCloseMemHandle(first));
    MUST_DO(cuIpcCloseMemHandle(second));
    return stay();
}

/* --- beginnings --- */

/* For life_test.c's crowd: this process calls cuInit, and makes a context if told so, as soon as everybody is there. */
static int crowd(int with_context) {
    char byte;
    CUcontext own;
    load();
    sem_post(&life->ready);
    MUST(read(STDIN_FILENO, &byte, 1) == 0);
    MUST_DO(cuInit(0));
    if (with_context)
        MUST_DO(cuCtxCreate_v2(&own, 0, 0));
    return 0;
}

static const struct {
    const char *name;
    int (*run)(int number);
} scenarios[] = {
    {"hold", hold},
    {"pulse", pulse},
    {"churn", churn},
    {"exit-at-once", exit_at_once},
    {"exit-in-order", exit_in_order},
    {"exit-among-threads", exit_among_threads},
    {"call-at-exit", call_at_exit},
    {"unload", unload},
    {"unload-among-threads", unload_among_threads},
    {"fork-and-call", fork_and_call},
    {"fork-and-die", fork_and_die},
    {"fork-storm", fork_storm},
    {"clone-storm", clone_storm},
    {"vfork-storm", vfork_storm},
    {"spawn-storm", spawn_storm},
    {"cancel", cancel},
    {"cancel-first-call", cancel_first_call},
    {"threads", threads},
    {"errno", error_number},
    {"call-with-zeros", call_with_zeros},
    {"signals", signals},
    {"close-everything", close_everything},
    {"export-over-exec", export_over_exec},
    {"import-over-exec", import_over_exec},
    {"open-in-one-block", open_in_one_block},
    {"hold-what-was-passed-on", hold_what_was_passed_on},
    {"use-what-is-left", use_what_is_left},
    {"crowd", crowd},
};

int main(int argc, char **argv) {
    int fd = open(getenv("LIFE_PAGE"), O_RDWR | O_CLOEXEC);
    MUST(fd >= 0);
    life = mmap(NULL, sizeof *life, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(life != MAP_FAILED);
    close(fd);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (size_t i = 0; argc > 1 && i < sizeof scenarios / sizeof scenarios[0]; i++)
        if (strcmp(argv[1], scenarios[i].name) == 0)
            return scenarios[i].run(argc > 2 ? atoi(argv[2]) : 0);
    fprintf(stderr, "life: no such scenario\n");
    return 2;
}
