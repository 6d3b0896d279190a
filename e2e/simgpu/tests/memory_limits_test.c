/* Limits of memory by cgroup. They need root, cgroup v2 and a kernel with programs for cgroups (5.3). */
#include <errno.h>
#include <fcntl.h>
#include <mntent.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "health.h"
#include "memory_limits.h"

/* ---- Cgroups ---- */

/* Where cgroup v2 is mounted. */
static const char *hierarchy(void) {
    static char path[256];
    FILE *mounts = setmntent("/proc/self/mounts", "re");
    struct mntent *mount;

    while (mounts != NULL && path[0] == '\0' && (mount = getmntent(mounts)) != NULL) {
        if (strcmp(mount->mnt_type, "cgroup2") == 0)
            snprintf(path, sizeof(path), "%s", mount->mnt_dir);
    }
    if (mounts != NULL)
        endmntent(mounts);
    return path;
}

/* A cgroup of this test's; "" is the one above all of them. */
static const char *cgroup(const char *name) {
    static char buffers[8][512];
    static unsigned next;
    char *buffer = buffers[next++ % 8];
    const char *node = strrchr(node_path(""), '.');

    snprintf(buffer, sizeof(buffers[0]), "%s/simgpu-test%.8s%s%s", hierarchy(), node, *name != '\0' ? "/" : "", name);
    return buffer;
}

static void enter(const char *name) {
    char path[600];
    int fd;

    snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup(name));
    fd = open(path, O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0 && write(fd, "0", 1) == 1);
    close(fd);
}

static void move(pid_t pid, const char *name) {
    char path[600];
    FILE *file;

    snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup(name));
    file = fopen(path, "we");
    CHECK(file != NULL && fprintf(file, "%d", pid) > 0 && fclose(file) == 0);
}

/* The kernel lets go of a process a little after its end is seen. */
static void remove_cgroup(const char *name) {
    for (int tries = 0; rmdir(cgroup(name)) != 0 && errno == EBUSY && tries < 1000; tries++)
        sleep_ms(1);
    CHECK(access(cgroup(name), F_OK) != 0);
}

static void make_cgroups(const char *const *names, size_t count) {
    node_use_topology("r615.conf");
    CHECK(hierarchy()[0] != '\0');
    CHECK_INT(mkdir(cgroup(""), 0755), 0);
    for (size_t i = 0; i < count; i++)
        CHECK_INT(mkdir(cgroup(names[i]), 0755), 0);
}

#define MAKE(...)                                                                                                      \
    static const char *const names[] = {__VA_ARGS__};                                                                  \
    make_cgroups(names, sizeof(names) / sizeof(names[0]))

/* Innermost last. */
#define REMOVE()                                                                                                       \
    do {                                                                                                               \
        for (size_t i = sizeof(names) / sizeof(names[0]); i > 0; i--)                                                  \
            remove_cgroup(names[i - 1]);                                                                               \
        remove_cgroup("");                                                                                             \
    } while (0)

/* ---- The calls, from outside: in a process of their own, which opens the state for all GPUs ---- */

struct call {
    int gpu, result;
    bool get, reload;
    char path[512];
    struct sim_memory_limit limit;
    uint64_t peak;
};

static int add_peak(const struct sim_memory_limit_info *info, void *arg) {
    struct call *call = arg;

    if (info->gpu == call->gpu && strcmp(info->path, call->path) == 0 && info->peak > call->peak)
        call->peak = info->peak;
    return 0;
}

static void make_call(struct call *call) {
    int fd = open(call->path, O_RDONLY | O_CLOEXEC);

    call->result = sim_open_all();
    if (call->result != 0)
        return;
    if (call->reload) {
        sim_driver_unload();
        sim_driver_load();
    } else if (call->get) {
        call->result = sim_memory_limit_get(call->gpu, fd, &call->limit);
        sim_each_memory_limit(add_peak, call);
    } else {
        call->result = sim_memory_limit_set(call->gpu, fd, call->path, call->limit.soft, call->limit.hard);
    }
}

static void outside(struct call *call) {
    int ends[2], status;
    pid_t pid;

    CHECK_INT(pipe2(ends, O_CLOEXEC), 0);
    pid = fork();
    if (pid == 0) {
        make_call(call);
        _exit(write(ends[1], call, sizeof(*call)) != (ssize_t)sizeof(*call));
    }
    close(ends[1]);
    if (read(ends[0], call, sizeof(*call)) != (ssize_t)sizeof(*call))
        call->result = -EIO;
    close(ends[0]);
    waitpid(pid, &status, 0);
}

static int set_path(int gpu, const char *path, uint64_t soft, uint64_t hard) {
    struct call call = {.gpu = gpu, .limit = {.soft = soft, .hard = hard}};

    snprintf(call.path, sizeof(call.path), "%s", path);
    outside(&call);
    return call.result;
}

static int set(int gpu, const char *name, uint64_t hard) {
    return set_path(gpu, cgroup(name), 0, hard);
}

static struct call get(int gpu, const char *name) {
    struct call call = {.gpu = gpu, .get = true};

    snprintf(call.path, sizeof(call.path), "%s", cgroup(name));
    outside(&call);
    return call;
}

static uint64_t used(const char *name) {
    struct call call = get(0, name);

    return call.result == 0 ? call.limit.used : UINT64_MAX;
}

/* ---- Workers ---- */

/* In the cgroup and with a context. 'a': allocates, 'f': frees what it has last, 'e': ends; says 'y' or 'n'. */
static void in_cgroup(void *arg) {
    CUdeviceptr pointers[64];
    int count = 0;

    enter(arg);
    context_on(0);
    say('r');
    for (char what = hear(); what != 'e' && what != 0; what = hear()) {
        CUresult ret = what == 'a' ? cuMemAlloc_v2(&pointers[count], 10 * MIB) : cuMemFree_v2(pointers[count - 1]);

        CHECK(ret == CUDA_SUCCESS || ret == CUDA_ERROR_OUT_OF_MEMORY);
        count += ret != CUDA_SUCCESS ? 0 : what == 'a' ? 1 : -1;
        say(ret == CUDA_SUCCESS ? 'y' : 'n');
    }
}

static struct worker start_in(const char *name) {
    struct worker worker = worker_start(in_cgroup, (void *)(uintptr_t)name);

    CHECK_INT(worker_hear(&worker), 'r');
    return worker;
}

static bool does(struct worker *worker, char what) {
    worker_tell(worker, what);
    return worker_hear(worker) == 'y';
}

/* ---- Setting and reading ---- */

static void what_the_driver_refuses(void) {
    MAKE("a");
    CHECK_INT(set_path(0, "/proc", 0, 100 * MIB), -EINVAL);
    CHECK_INT(set_path(0, "/does/not/exist", 0, 100 * MIB), -EINVAL);
    CHECK_INT(set_path(0, hierarchy(), 0, 100 * MIB), -EOPNOTSUPP);
    CHECK_INT(get(0, "a").result, -EOPNOTSUPP);
    CHECK_INT(set(0, "a", 100 * MIB), 0);
    CHECK_INT(get(0, "a").limit.hard, 100 * MIB);
    CHECK_INT(get(1, "a").result, -ENOENT);
    CHECK_INT(get(0, "").result, -EOPNOTSUPP);
    REMOVE();
}

static void only_new_drivers_have_limits(void) {
    MAKE("a");
    node_use_topology("small.conf");
    CHECK_INT(set(0, "a", 100 * MIB), -EOPNOTSUPP);
    CHECK_INT(get(0, "a").result, -EOPNOTSUPP);
    node_add_to_topology("memory_limits = misc");
    CHECK_INT(set(0, "a", 100 * MIB), -EOPNOTSUPP);
    node_use_topology("r615.conf");
    node_add_to_topology("memory_limits = off");
    CHECK_INT(set(0, "a", 100 * MIB), -EOPNOTSUPP);
    REMOVE();
}

/* As memacctSetLimits: an entry that is cleared stays. */
static void clearing_a_limit(void) {
    MAKE("a");
    CHECK_INT(set(0, "a", 80 * MIB), 0);
    struct worker worker = start_in("a");
    CHECK(does(&worker, 'a') && !does(&worker, 'a'));
    CHECK_INT(set(0, "a", SIM_MEMORY_LIMIT_MAX), 0);
    CHECK(does(&worker, 'a') && does(&worker, 'a'));
    CHECK_INT(used("a"), GPU0_CONTEXT + 30 * MIB);
    CHECK_INT(set(0, "a", 90 * MIB), -EBUSY);
    CHECK_INT(get(0, "a").limit.hard, SIM_MEMORY_LIMIT_MAX);
    CHECK_INT(set(0, "a", 94 * MIB), 0);
    CHECK(!does(&worker, 'a'));
    worker_join(&worker);
    REMOVE();
}

static void memory_from_before_is_not_counted(void) {
    MAKE("a");
    struct worker worker = start_in("a");

    CHECK(does(&worker, 'a'));
    CHECK_INT(set(0, "a", 20 * MIB), 0);
    CHECK_INT(used("a"), 0);
    CHECK(does(&worker, 'a') && does(&worker, 'a') && !does(&worker, 'a'));
    CHECK(does(&worker, 'f') && does(&worker, 'f'));
    CHECK_INT(used("a"), 0);
    CHECK(does(&worker, 'f'));
    CHECK_INT(used("a"), 0);
    CHECK_INT(look("test").used[0], GPU0_CONTEXT);
    worker_join(&worker);
    REMOVE();
}

static void a_reload_drops_all_limits(void) {
    MAKE("a");
    CHECK_INT(set(0, "a", 100 * MIB), 0);
    CHECK_INT(set(1, "a", 100 * MIB), 0);
    struct call reload = {.reload = true};
    outside(&reload);
    CHECK_INT(reload.result, 0);
    CHECK_INT(get(0, "a").result, -EOPNOTSUPP);
    CHECK_INT(get(1, "a").result, -EOPNOTSUPP);
    struct worker worker = start_in("a");
    CHECK(does(&worker, 'a') && does(&worker, 'a') && does(&worker, 'a') && does(&worker, 'a'));
    worker_join(&worker);
    REMOVE();
}

/* ---- Charging ---- */

static void processes_share_a_limit(void) {
    MAKE("a", "b");
    CHECK_INT(set(0, "a", 2 * GPU0_CONTEXT + 20 * MIB), 0);
    struct worker first = start_in("a"), second = start_in("a"), other = start_in("b");
    CHECK_INT(used("a"), 2 * GPU0_CONTEXT);
    CHECK(does(&first, 'a') && does(&second, 'a'));
    CHECK(!does(&first, 'a') && !does(&second, 'a') && does(&other, 'a'));
    CHECK(does(&first, 'f') && does(&second, 'a') && !does(&first, 'a'));
    CHECK_INT(used("a"), 2 * GPU0_CONTEXT + 20 * MIB);
    CHECK_INT(get(0, "a").peak, 2 * GPU0_CONTEXT + 20 * MIB);
    worker_join(&first);
    worker_join(&second);
    worker_join(&other);
    CHECK_INT(used("a"), 0);
    REMOVE();
}

/* A context is memory as well. */
static void no_context(void *unused) {
    CUcontext context;

    (void)unused;
    enter("a");
    OK(cuInit(0));
    CHECK_INT(cuCtxCreate_v2(&context, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(look("test").used[0], 0);
    OK(cuCtxCreate_v2(&context, 0, 1));
}

static void contexts_are_charged(void) {
    MAKE("a");
    CHECK_INT(set(0, "a", GPU0_CONTEXT - MIB), 0);
    struct worker worker = worker_start(no_context, NULL);
    worker_join(&worker);
    REMOVE();
}

static void a_killed_process_gives_back(void) {
    MAKE("a");
    CHECK_INT(set(0, "a", 2 * GPU0_CONTEXT + 10 * MIB), 0);
    struct worker first = start_in("a"), second = start_in("a");
    CHECK(does(&first, 'a') && !does(&second, 'a'));
    worker_kill(&first, SIGKILL);
    CHECK(does(&second, 'a'));
    CHECK_INT(used("a"), GPU0_CONTEXT + 10 * MIB);
    worker_kill(&second, SIGKILL);
    CHECK_INT(used("a"), 0);
    REMOVE();
}

static void charges_stay_where_they_were_made(void) {
    MAKE("a", "b");
    CHECK_INT(set(0, "a", 200 * MIB), 0);
    CHECK_INT(set(0, "b", 200 * MIB), 0);
    struct worker worker = start_in("a");
    CHECK(does(&worker, 'a'));
    move(worker.pid, "b");
    CHECK(does(&worker, 'a') && does(&worker, 'a'));
    CHECK_INT(used("a"), GPU0_CONTEXT + 10 * MIB);
    CHECK_INT(used("b"), 20 * MIB);
    move(worker.pid, "");
    CHECK(does(&worker, 'a') && does(&worker, 'f'));
    CHECK(does(&worker, 'f') && does(&worker, 'f'));
    CHECK_INT(used("a"), GPU0_CONTEXT + 10 * MIB);
    CHECK_INT(used("b"), 0);
    CHECK(does(&worker, 'f'));
    CHECK_INT(used("a"), GPU0_CONTEXT);
    worker_kill(&worker, SIGKILL);
    CHECK_INT(used("a"), 0);
    REMOVE();
}

static int count_removed(const struct sim_memory_limit_info *info, void *arg) {
    *(uint64_t *)arg += info->removed ? info->used : 0;
    return 0;
}

static void held_by_removed(void *bytes) {
    CHECK_INT(sim_open_all(), 0);
    uint64_t removed = 0;
    sim_each_memory_limit(count_removed, &removed);
    CHECK_INT(removed, *(uint64_t *)bytes);
}

static void check_removed(uint64_t bytes) {
    struct worker worker = worker_start(held_by_removed, &bytes);

    worker_join(&worker);
}

static void limits_go_with_the_cgroup(void) {
    MAKE("a");
    CHECK_INT(set(0, "a", 100 * MIB), 0);
    struct worker worker = start_in("a");
    CHECK(does(&worker, 'a'));
    move(worker.pid, "");
    remove_cgroup("a");
    check_removed(GPU0_CONTEXT + 10 * MIB);
    /* Of the same name, but another one. */
    CHECK_INT(mkdir(cgroup("a"), 0755), 0);
    CHECK_INT(get(0, "a").result, -EOPNOTSUPP);
    check_removed(GPU0_CONTEXT + 10 * MIB);
    move(worker.pid, "a");
    for (int i = 0; i < 5; i++)
        CHECK(does(&worker, 'a'));
    CHECK_INT(set(0, "a", 10 * MIB), 0);
    CHECK(does(&worker, 'a') && !does(&worker, 'a'));
    CHECK_INT(used("a"), 10 * MIB);
    worker_join(&worker);
    check_removed(0);
    REMOVE();
}

static void only_the_nearest_limit_counts(void) {
    MAKE("a", "a/b", "a/b/c");
    CHECK_INT(set(0, "a", GPU0_CONTEXT + 10 * MIB), 0);
    /* Not charged to its parent, whose limit it would exceed. */
    CHECK_INT(set(0, "a/b", GPU0_CONTEXT + 30 * MIB), 0);
    struct worker inner = start_in("a/b/c"), outer = start_in("a");
    CHECK(does(&inner, 'a') && does(&inner, 'a') && does(&inner, 'a') && !does(&inner, 'a'));
    CHECK(does(&outer, 'a') && !does(&outer, 'a'));
    CHECK_INT(used("a"), GPU0_CONTEXT + 10 * MIB);
    CHECK_INT(used("a/b"), GPU0_CONTEXT + 30 * MIB);
    CHECK_INT(used("a/b/c"), GPU0_CONTEXT + 30 * MIB);
    worker_join(&inner);
    worker_join(&outer);
    REMOVE();
}

/* A limit of one GPU does not hide that of another GPU further out. */
static void limits_are_of_one_gpu(void) {
    MAKE("a", "a/b");
    CHECK_INT(set(0, "a", GPU0_CONTEXT + 10 * MIB), 0);
    CHECK_INT(set(1, "a/b", 100 * MIB), 0);
    struct worker worker = start_in("a/b");
    CHECK(does(&worker, 'a') && !does(&worker, 'a'));
    CHECK_INT(used("a"), GPU0_CONTEXT + 10 * MIB);
    CHECK_INT(get(1, "a/b").limit.used, 0);
    worker_join(&worker);
    REMOVE();
}

static void made_after_the_limit(void) {
    MAKE("a");
    CHECK_INT(set(0, "a", GPU0_CONTEXT + 10 * MIB), 0);
    CHECK_INT(mkdir(cgroup("a/b"), 0755), 0);
    struct worker worker = start_in("a/b");
    CHECK(does(&worker, 'a') && !does(&worker, 'a'));
    worker_join(&worker);
    remove_cgroup("a/b");
    REMOVE();
}

/* ---- What takes memory ---- */

static void everything_is_charged_here(void *unused) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUDA_ARRAY_DESCRIPTOR array_description = {4096, 4096, CU_AD_FORMAT_FLOAT, 1};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr pointer, managed, pooled;
    CUarray array;
    CUcontext context;

    (void)unused;
    enter("a");
    context = context_on(0);
    OK(cuMemAlloc_v2(&pointer, 100));
    CHECK_INT(used("a"), GPU0_CONTEXT + 2 * MIB);
    OK(cuMemCreate(&handle, 4 * MIB, &prop, 0));
    CHECK_INT(used("a"), GPU0_CONTEXT + 6 * MIB);
    OK(cuArrayCreate_v2(&array, &array_description));
    CHECK_INT(used("a"), look("test").used[0]);
    OK(cuMemAllocAsync(&pooled, 40 * MIB, NULL));
    CHECK_INT(used("a"), look("test").used[0]);
    OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 11 * MIB));
    CHECK_INT(used("a"), look("test").used[0]);
    uint64_t before = used("a");
    OK(cuMemAllocManaged(&managed, 8 * MIB, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemPrefetchAsync(managed, 8 * MIB, 0, NULL));
    CHECK_INT(used("a"), before);
    CHECK_INT(look("test").used[0], before + 8 * MIB);
    OK(cuMemFree_v2(managed));
    OK(cuMemFree_v2(pointer));
    OK(cuMemRelease(handle));
    OK(cuArrayDestroy(array));
    CHECK_INT(used("a"), look("test").used[0]);
    OK(cuCtxDestroy_v2(context));
    CHECK_INT(used("a"), look("test").used[0]);
    say('d');
    hear();
}

static void everything_is_charged(void) {
    MAKE("a");
    CHECK_INT(set(0, "a", 900 * MIB), 0);
    struct worker worker = worker_start(everything_is_charged_here, NULL);
    CHECK_INT(worker_hear(&worker), 'd');
    worker_join(&worker);
    CHECK_INT(used("a"), 0);
    REMOVE();
}

/* Pools get what is left in smaller pieces, as on a full GPU. */
static void pools_fill_the_limit_here(void *unused) {
    CUdeviceptr pointer;
    int count = 0;

    (void)unused;
    enter("a");
    context_on(0);
    while (cuMemAllocAsync(&pointer, 2 * MIB, NULL) == CUDA_SUCCESS)
        count++;
    CHECK_INT(count, 23);
}

static void pools_fill_the_limit(void) {
    MAKE("a");
    CHECK_INT(set(0, "a", GPU0_CONTEXT + 46 * MIB), 0);
    struct worker worker = worker_start(pools_fill_the_limit_here, NULL);
    worker_join(&worker);
    CHECK_INT(get(0, "a").peak, GPU0_CONTEXT + 46 * MIB);
    REMOVE();
}

/* ---- Memory that processes share ---- */

static void export(void *arg) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle;
    CUipcMemHandle *ipc = arg;
    CUdeviceptr pointer;
    int fd;

    enter("a");
    context_on(0);
    OK(cuMemAlloc_v2(&pointer, 20 * MIB));
    OK(cuIpcGetMemHandle(ipc, pointer));
    OK(cuMemCreate(&handle, 10 * MIB, &prop, 0));
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK_INT(used("a"), GPU0_CONTEXT + 30 * MIB);
    OK(cuMemRelease(handle));
    CHECK_INT(used("a"), GPU0_CONTEXT + 30 * MIB);
    close(fd);
    CHECK_INT(used("a"), GPU0_CONTEXT + 20 * MIB);
    say('r');
    hear();
}

static void import(void *ipc) {
    CUdeviceptr pointer;

    enter("b");
    context_on(0);
    OK(cuIpcOpenMemHandle_v2(&pointer, *(CUipcMemHandle *)ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    say('r');
    hear();
}

static void shared_memory_is_its_makers(void) {
    CUipcMemHandle *ipc = mmap(NULL, sizeof(*ipc), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    MAKE("a", "b");
    CHECK_INT(set(0, "a", 200 * MIB), 0);
    CHECK_INT(set(0, "b", 200 * MIB), 0);
    struct worker maker = worker_start(export, ipc), user;
    CHECK_INT(worker_hear(&maker), 'r');
    user = worker_start(import, ipc);
    CHECK_INT(worker_hear(&user), 'r');
    CHECK_INT(used("b"), GPU0_CONTEXT);
    worker_kill(&maker, SIGKILL);
    /* The other process keeps it. */
    CHECK_INT(used("a"), 20 * MIB);
    worker_kill(&user, SIGKILL);
    CHECK_INT(used("a"), 0);
    CHECK_INT(used("b"), 0);
    REMOVE();
}

/* ---- What programs see ---- */

static void sees(void *arg) {
    uint64_t *want = arg;
    CUdeviceptr pointer;
    size_t free, total;

    enter(want[0] != 0 ? "a/b" : "a");
    context_on(0);
    OK(cuMemAlloc_v2(&pointer, 10 * MIB));
    OK(cuMemGetInfo_v2(&free, &total));
    CHECK_INT(total, want[1]);
    CHECK_INT(free, want[1] - GPU0_CONTEXT - 10 * MIB);
}

static void programs_see_their_own_limit(void) {
    uint64_t own[] = {0, 200 * MIB}, parents[] = {1, GPU0_BYTES};

    MAKE("a", "a/b");
    CHECK_INT(set(0, "a", 200 * MIB), 0);
    struct worker worker = worker_start(sees, own);
    worker_join(&worker);
    worker = worker_start(sees, parents);
    worker_join(&worker);
    CHECK_INT(set(0, "a", SIM_MEMORY_LIMIT_MAX), 0);
    own[1] = GPU0_BYTES;
    worker = worker_start(sees, own);
    worker_join(&worker);
    REMOVE();
}

/* ---- How a process is found ---- */

static void without_view(void *unused) {
    CUdeviceptr pointer;
    char output[512];

    (void)unused;
    enter("a/b");
    CHECK_INT(unshare(CLONE_NEWCGROUP | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC), 0);
    CHECK_INT(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
    CHECK_INT(shell(output, sizeof(output), "cp %s %s", getenv("SIMGPU_TOPOLOGY"), node_path("topology")), 0);
    /* A root without /proc and /sys. */
    CHECK_INT(chroot(node_path("")), 0);
    CHECK_INT(chdir("/"), 0);
    CHECK(access("/proc", F_OK) != 0 && access("/sys", F_OK) != 0);
    setenv("SIMGPU_TOPOLOGY", "/topology", 1);
    setenv("SIMGPU_STATE", "/state", 1);
    setenv("SIMGPU_DEV", "/dev", 1);
    CHECK_INT(setuid(65534), 0);
    context_on(0);
    OK(cuMemAlloc_v2(&pointer, 10 * MIB));
    CHECK_INT(cuMemAlloc_v2(&pointer, 10 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
}

static void found_without_proc_and_mounts(void) {
    MAKE("a", "a/b");
    CHECK_INT(set(0, "a", GPU0_CONTEXT + 10 * MIB), 0);
    chmod(node_path(""), 0755);
    chmod(node_path("dev/nvidiactl"), 0666);
    chmod(node_path("dev/nvidia0"), 0666);
    struct worker worker = worker_start(without_view, NULL);
    worker_join(&worker);
    CHECK_INT(get(0, "a").peak, GPU0_CONTEXT + 10 * MIB);
    REMOVE();
}

/* Other nodes' limits of the same cgroup are nothing to this one, however many there were. */
static void nodes_do_not_see_each_other(void) {
    MAKE("a");
    for (int i = 0; i < 70; i++) {
        char name[32];

        snprintf(name, sizeof(name), "state%d", i);
        setenv("SIMGPU_STATE", node_path(name), 1);
        CHECK_INT(get(0, "a").result, -EOPNOTSUPP);
        CHECK_INT(set(0, "a", 10 * MIB), 0);
    }
    setenv("SIMGPU_STATE", node_path("state"), 1);
    CHECK_INT(set(0, "", GPU0_CONTEXT + 10 * MIB), 0);
    struct worker worker = start_in("a");
    CHECK(does(&worker, 'a') && !does(&worker, 'a'));
    worker_join(&worker);
    REMOVE();
}

/* ---- Many at once ---- */

#define CROWD 8

static void allocate_at_the_limit(void *arg) {
    uint64_t end = now_ns() + *(unsigned *)arg * 1000000ull;
    unsigned seed = (unsigned)getpid();
    CUdeviceptr pointers[20] = {0};
    CUcontext context;

    enter(seed % 2 ? "a" : "a/b");
    OK(cuInit(0));
    while (cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS && now_ns() < end)
        usleep(1000);
    while (now_ns() < end) {
        CUdeviceptr *p = &pointers[rand_r(&seed) % 20];

        if (*p != 0)
            OK(cuMemFree_v2(*p));
        if (cuMemAlloc_v2(p, (size_t)(rand_r(&seed) % (10 * (int)MIB)) + 1) != CUDA_SUCCESS)
            *p = 0;
    }
    cuCtxDestroy_v2(context);
}

static void crowd_at_the_limit(unsigned ms, bool kill_some) {
    struct worker workers[CROWD];

    for (int i = 0; i < CROWD; i++)
        workers[i] = worker_start(allocate_at_the_limit, &ms);
    for (int i = 0; kill_some && i < CROWD; i += 2) {
        sleep_ms(ms / CROWD);
        worker_kill(&workers[i], SIGKILL);
    }
    for (int i = kill_some; i < CROWD; i += 1 + kill_some)
        worker_join(&workers[i]);
}

/* The record's own sum by process is the judge. */
static void never_over_the_limit(void) {
    uint64_t limit = 6 * GPU0_CONTEXT + 40 * MIB;

    MAKE("a", "a/b");
    CHECK_INT(set(0, "a", limit), 0);
    for (int i = 0; i < 10; i++) {
        crowd_at_the_limit(300, i % 2 == 1);
        CHECK(look("test").group_peak[0] <= limit);
        CHECK(get(0, "a").peak <= limit);
        CHECK_INT(used("a"), 0);
        CHECK_INT(look("test").used[0], 0);
    }
    CHECK(get(0, "a").peak > limit - 10 * MIB);
    REMOVE();
}

/* Now down to what is used, now up: at no time is more used than the limit that was set last. */
static void change_the_limit(void *arg) {
    uint64_t end = now_ns() + *(unsigned *)arg * 1000000ull;
    int changed = 0, refused = 0, fd = open(cgroup("a"), O_RDONLY | O_CLOEXEC);
    struct sim_memory_limit now;

    CHECK_INT(sim_open_all(), 0);
    for (int i = 0; now_ns() < end; i++) {
        int ret = sim_memory_limit_get(0, fd, &now);

        CHECK_INT(ret, 0);
        CHECK(now.used <= now.hard);
        ret = sim_memory_limit_set(0, fd, cgroup("a"), 0, i % 2 == 0 ? now.used : 575 * MIB);
        CHECK(ret == 0 || ret == -EBUSY);
        changed += ret == 0;
        refused += ret != 0;
    }
    CHECK(changed > 0 && refused > 0);
}

static void limits_that_change(void) {
    unsigned ms = 2000;

    MAKE("a", "a/b");
    CHECK_INT(set(0, "a", 575 * MIB), 0);
    struct worker changer = worker_start(change_the_limit, &ms);
    crowd_at_the_limit(ms, false);
    worker_join(&changer);
    CHECK_INT(used("a"), 0);
    REMOVE();
}

/* A client in a namespace of MPS v3: 100 MiB, and no more in the cgroup. */
static void take_as_client(void *unused) {
    CUdeviceptr pointer;
    size_t free, total;

    (void)unused;
    enter("a");
    setenv("CUDA_MPS_PIPE_DIRECTORY", node_path("pipe/gpu/task"), 1);
    context_on(0);
    OK(cuMemGetInfo_v2(&free, &total));
    CHECK_INT(total, 300 * MIB);
    OK(cuMemAlloc_v2(&pointer, 100 * MIB));
    CHECK_INT(cuMemAlloc_v2(&pointer, 200 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    say('y');
    hear();
}

/* Runs the control daemon's program, which lies beside the tool. */
static void mps_control(const char *arguments) {
    char said[4096];

    CHECK_INT(shell(said, sizeof(said), "%.*snvidia-cuda-mps-control %s",
                    (int)(strrchr(tool_path, '/') + 1 - tool_path), tool_path, arguments),
              0);
}

static void clients_of_mps_are_charged_themselves(void) {
    struct worker client;

    MAKE("a");
    CHECK_INT(set(0, "a", 300 * MIB), 0);
    mps_control("-d -p 3");
    mps_control("server create gpu");
    mps_control("namespace create task --server=gpu");
    client = worker_start(take_as_client, NULL);
    CHECK_INT(worker_hear(&client), 'y');
    CHECK_INT(used("a"), 100 * MIB + GPU0_CONTEXT);
    worker_tell(&client, 'e');
    worker_join(&client);
    mps_control("-q");
    CHECK_INT(used("a"), 0);
    REMOVE();
}

const struct test memory_limits_tests[] = {
    {"what the driver refuses", what_the_driver_refuses},
    {"only new drivers have limits", only_new_drivers_have_limits},
    {"clearing a limit", clearing_a_limit},
    {"memory from before is not counted", memory_from_before_is_not_counted},
    {"a reload drops all limits", a_reload_drops_all_limits},
    {"processes share a limit", processes_share_a_limit},
    {"contexts are charged", contexts_are_charged},
    {"a killed process gives back", a_killed_process_gives_back},
    {"charges stay where they were made", charges_stay_where_they_were_made},
    {"limits go with the cgroup", limits_go_with_the_cgroup},
    {"only the nearest limit counts", only_the_nearest_limit_counts},
    {"limits are of one GPU", limits_are_of_one_gpu},
    {"made after the limit", made_after_the_limit},
    {"everything is charged", everything_is_charged},
    {"pools fill the limit", pools_fill_the_limit},
    {"shared memory is its maker's", shared_memory_is_its_makers},
    {"programs see their own limit", programs_see_their_own_limit},
    {"found without /proc and mounts", found_without_proc_and_mounts},
    {"nodes do not see each other", nodes_do_not_see_each_other},
    {"never over the limit", never_over_the_limit},
    {"limits that change", limits_that_change},
    {"clients of MPS are charged themselves", clients_of_mps_are_charged_themselves},
    {NULL, NULL},
};
