/* Tests of the simulated NVML, under ASan and UBSan. Every test runs in a process of its own, on a node of its own: a
 * directory with a topology, a state and device nodes (regular files, which the simulator opens as gladly). */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nvml_test.h"

#define H200_UUID "GPU-11111111-2222-3333-4444-555555555555"
#define T4_UUID "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"

static const char topology[] = "driver_version = 570.124.06\n"
                               "cuda_version = 12080\n"
                               "device_number = 10:229\n"
                               "\n"
                               "[gpu 0]\n"
                               "name = NVIDIA H200\n"
                               "uuid = " H200_UUID "\n"
                               "pci = 0000:19:00.0\n"
                               "minor = 0\n"
                               "memory_mib = 4096\n"
                               "reserved_mib = 500\n"
                               "sm_count = 132\n"
                               "compute_capability = 9.0\n"
                               "context_mib = 300\n"
                               "\n"
                               "[gpu 1]\n"
                               "name = Tesla T4\n"
                               "uuid = " T4_UUID "\n"
                               "pci = 0001:3b:00.0\n"
                               "minor = 3\n"
                               "memory_mib = 1024\n"
                               "sm_count = 40\n"
                               "compute_capability = 7.5\n"
                               "context_mib = 100\n";

static char node[] = "/tmp/nvml-test-XXXXXX";

static void remove_node(void);

void fail_at(const char *file, int line, const char *what, long long got, long long want) {
    printf("    %s:%d: %s is %lld, want %lld\n", file, line, what, got, want);
    fflush(stdout);
    remove_node();
    _exit(1);
}

const char *in_node(const char *name) {
    static char paths[4][256];
    static unsigned int next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof(paths[0]), "%s/%s", node, name);
    return path;
}

void write_file(const char *name, const char *content) {
    int fd = open(in_node(name), O_WRONLY | O_CREAT | O_TRUNC, 0666);

    CHECK(fd >= 0);
    CHECK_EQ(write(fd, content, strlen(content)), strlen(content));
    close(fd);
}

static void make_node(void) {
    CHECK(mkdtemp(node) != NULL);
    CHECK_EQ(mkdir(in_node("dev"), 0777), 0);
    write_file("topology", topology);
    write_file("dev/nvidiactl", "");
    write_file("dev/nvidia0", "");
    write_file("dev/nvidia3", "");
    setenv("SIMGPU_TOPOLOGY", in_node("topology"), 1);
    setenv("SIMGPU_STATE", in_node("state"), 1);
    setenv("SIMGPU_DEV", in_node("dev"), 1);
    unsetenv("SIMGPU_LABEL");
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *where) {
    (void)info, (void)type, (void)where;
    return remove(path);
}

static void remove_node(void) {
    nftw(node, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

nvmlDevice_t gpu_handle(unsigned int index) {
    nvmlDevice_t device;

    OK(nvmlDeviceGetHandleByIndex_v2(index, &device));
    return device;
}

/* ---- Processes that use a GPU ---- */

/* "server", or "client" of a server that does not matter. */
static void be_to_mps(const char *role) {
    if (role != NULL && strcmp(role, "server") == 0)
        sim_mps_serve();
    if (role != NULL && strcmp(role, "client") == 0)
        sim_mps_join(sim_shared_process());
}

static struct user start_mps_user(const char *role, uint64_t bytes) {
    struct user user;

    setenv("NVML_TEST_MPS", role, 1);
    user = start_user(0, bytes, 0);
    unsetenv("NVML_TEST_MPS");
    return user;
}

/* The program of such a process, started afresh by exec: it holds `bytes` of the GPU until its standard input ends. */
static int use_gpu(int gpu, uint64_t bytes, uint64_t busy_ns) {
    char byte = 1;

    if (sim_open() != 0 || sim_join() != 0 || (gpu >= sim_gpu_count() && sim_bind(gpu) != 0))
        return 1;
    sim_opens(&gpu, 1);
    be_to_mps(getenv("NVML_TEST_MPS"));
    if (sim_reserve(gpu, bytes, &bytes) != 0)
        return 1;
    while (busy_ns > 0) {
        struct sim_turn turn = sim_turn_book(gpu, busy_ns, 0);
        busy_ns -= turn.end_ns - turn.start_ns;
    }
    if (write(STDOUT_FILENO, &byte, 1) != 1)
        return 1;
    return read(STDIN_FILENO, &byte, 1) == 0 ? 0 : 1;
}

/* Starts one and returns when it holds the memory. */
struct user start_user(int gpu, uint64_t bytes, uint64_t busy_ns) {
    int ready[2], stop[2];
    char byte, gpu_arg[16], bytes_arg[32], busy_arg[32];

    snprintf(gpu_arg, sizeof(gpu_arg), "%d", gpu);
    snprintf(bytes_arg, sizeof(bytes_arg), "%llu", (unsigned long long)bytes);
    snprintf(busy_arg, sizeof(busy_arg), "%llu", (unsigned long long)busy_ns);
    CHECK_EQ(pipe2(ready, O_CLOEXEC), 0);
    CHECK_EQ(pipe2(stop, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(stop[0], STDIN_FILENO);
        dup2(ready[1], STDOUT_FILENO);
        execl("/proc/self/exe", "nvml-test", "use", gpu_arg, bytes_arg, busy_arg, (char *)NULL);
        _exit(127);
    }
    CHECK(pid > 0);
    close(stop[0]);
    close(ready[1]);
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return (struct user){pid, stop[1]};
}

void end_user(struct user user) {
    close(user.stop);
    CHECK_EQ(waitpid(user.pid, NULL, 0), user.pid);
}

void kill_user(struct user user) {
    kill(user.pid, SIGKILL);
    end_user(user);
}

/* ---- Tests ---- */

static void test_uninitialised(void) {
    unsigned int count;
    char name[96];
    nvmlDevice_t device = {.handle = NULL};
    nvmlMemory_t memory;
    nvmlEventSet_t set;

    CHECK_EQ(nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
    CHECK_EQ(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_ERROR_UNINITIALIZED);
    CHECK_EQ(nvmlDeviceGetHandleByUUID(H200_UUID, &device), NVML_ERROR_UNINITIALIZED);
    CHECK_EQ(nvmlDeviceGetName(device, name, sizeof(name)), NVML_ERROR_UNINITIALIZED);
    CHECK_EQ(nvmlDeviceGetMemoryInfo(device, &memory), NVML_ERROR_UNINITIALIZED);
    CHECK_EQ(nvmlDeviceGetFanSpeed(device, &count), NVML_ERROR_UNINITIALIZED);
    CHECK_EQ(nvmlEventSetCreate(&set), NVML_ERROR_UNINITIALIZED);
    CHECK_EQ(nvmlSystemGetDriverVersion(name, sizeof(name)), NVML_ERROR_UNINITIALIZED);
    CHECK_EQ(nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
    CHECK_STR(nvmlErrorString(NVML_ERROR_UNINITIALIZED), "Uninitialized");
    CHECK_STR(nvmlErrorString(NVML_ERROR_GPU_IS_LOST), "GPU is lost");
    CHECK_STR(nvmlErrorString(NVML_ERROR_UNKNOWN), "Unknown Error");
    CHECK_STR(nvmlErrorString((nvmlReturn_t)500), "Unknown Error");
}

static void test_initialisation_is_counted(void) {
    unsigned int count;

    OK(nvmlInit_v2());
    OK(nvmlInit());
    OK(nvmlInitWithFlags(NVML_INIT_FLAG_NO_GPUS));
    CHECK_EQ(nvmlInitWithFlags(1u << 30), NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlShutdown());
    OK(nvmlShutdown());
    OK(nvmlDeviceGetCount_v2(&count));
    OK(nvmlShutdown());
    CHECK_EQ(nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
    CHECK_EQ(nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
}

static void test_driver_absent(void) {
    unsigned int count;

    CHECK_EQ(unlink(in_node("dev/nvidiactl")), 0);
    CHECK_EQ(nvmlInit_v2(), NVML_ERROR_DRIVER_NOT_LOADED);
    CHECK_EQ(nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
    write_file("dev/nvidiactl", "");
    OK(nvmlInit_v2());
    sim_fault_nvml_absent(true);
    OK(nvmlShutdown());
    CHECK_EQ(nvmlInit_v2(), NVML_ERROR_DRIVER_NOT_LOADED);
    CHECK_EQ(sim_open(), 0);
    sim_fault_nvml_absent(false);
    sim_close();
    OK(nvmlInit_v2());
    CHECK_EQ(unlink(in_node("topology")), 0);
    OK(nvmlShutdown());
    CHECK_EQ(nvmlInit_v2(), NVML_ERROR_DRIVER_NOT_LOADED);
}

static void test_only_gpus_with_a_node_are_seen(void) {
    unsigned int count, minor;
    char uuid[96];

    OK(nvmlInit_v2());
    OK(nvmlInit_v2());
    OK(nvmlDeviceGetCount_v2(&count));
    CHECK_EQ(count, 2);
    OK(nvmlShutdown());
    OK(nvmlShutdown());
    CHECK_EQ(unlink(in_node("dev/nvidia0")), 0);
    OK(nvmlInit_v2());
    OK(nvmlDeviceGetCount_v2(&count));
    CHECK_EQ(count, 1);
    OK(nvmlDeviceGetUUID(gpu_handle(0), uuid, sizeof(uuid)));
    CHECK_STR(uuid, T4_UUID);
    OK(nvmlDeviceGetMinorNumber(gpu_handle(0), &minor));
    CHECK_EQ(minor, 3);
    OK(nvmlShutdown());

    /* The next initialisation finds what was not there before. */
    write_file("dev/nvidia0", "");
    OK(nvmlInit_v2());
    OK(nvmlDeviceGetCount_v2(&count));
    CHECK_EQ(count, 2);
    OK(nvmlShutdown());

    CHECK_EQ(unlink(in_node("dev/nvidia0")), 0);
    CHECK_EQ(unlink(in_node("dev/nvidia3")), 0);
    OK(nvmlInit_v2());
    OK(nvmlDeviceGetCount(&count));
    CHECK_EQ(count, 0);
}

static void test_identity(void) {
    char text[96];
    int major, minor, cuda;
    unsigned int value;
    nvmlPciInfo_t pci;
    nvmlPciInfoExt_t ext = {.version = nvmlPciInfoExt_v1};
    nvmlBrandType_t brand;
    nvmlDeviceArchitecture_t architecture;

    OK(nvmlSystemGetCudaDriverVersion(&cuda)); /* needs no initialisation */
    CHECK_EQ(cuda, 12080);
    OK(nvmlInit_v2());
    OK(nvmlSystemGetDriverVersion(text, sizeof(text)));
    CHECK_STR(text, "570.124.06");
    OK(nvmlSystemGetNVMLVersion(text, sizeof(text)));
    CHECK_STR(text, "12.570.124.06");

    nvmlDevice_t h200 = gpu_handle(0), t4 = gpu_handle(1);
    OK(nvmlDeviceGetName(h200, text, sizeof(text)));
    CHECK_STR(text, "NVIDIA H200");
    OK(nvmlDeviceGetUUID(h200, text, sizeof(text)));
    CHECK_STR(text, H200_UUID);
    OK(nvmlDeviceGetIndex(t4, &value));
    CHECK_EQ(value, 1);
    OK(nvmlDeviceGetMinorNumber(t4, &value));
    CHECK_EQ(value, 3);
    OK(nvmlDeviceGetCudaComputeCapability(h200, &major, &minor));
    CHECK_EQ(major * 10 + minor, 90);
    OK(nvmlDeviceGetArchitecture(h200, &architecture));
    CHECK_EQ(architecture, NVML_DEVICE_ARCH_HOPPER);
    OK(nvmlDeviceGetArchitecture(t4, &architecture));
    CHECK_EQ(architecture, NVML_DEVICE_ARCH_TURING);
    OK(nvmlDeviceGetBrand(h200, &brand));
    CHECK_EQ(brand, NVML_BRAND_NVIDIA);
    OK(nvmlDeviceGetBrand(t4, &brand));
    CHECK_EQ(brand, NVML_BRAND_TESLA);
    OK(nvmlDeviceGetNumGpuCores(h200, &value));
    CHECK_EQ(value, 132 * 128);
    OK(nvmlDeviceGetPciInfo_v3(t4, &pci));
    CHECK_STR(pci.busId, "00000001:3B:00.0");
    CHECK_STR(pci.busIdLegacy, "0001:3B:00.0");
    CHECK_EQ(pci.domain, 1);
    CHECK_EQ(pci.bus, 0x3b);
    CHECK_EQ(pci.pciDeviceId & 0xFFFF, 0x10DE);
    OK(nvmlDeviceGetPciInfoExt(h200, &ext));
    CHECK_STR(ext.busId, "00000000:19:00.0");
}

static void test_handles(void) {
    nvmlDevice_t device, same;
    nvmlUUID_t uuid = {.version = nvmlUUID_v1, .type = NVML_UUID_TYPE_BINARY};
    char name[96];
    static const char *const forms[] = {"0001:3b:00.0", "00000001:3B:00.0", "1:3b:0"};

    OK(nvmlInit_v2());
    CHECK_EQ(nvmlDeviceGetHandleByIndex_v2(2, &device), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(nvmlDeviceGetHandleByIndex_v2(0, NULL), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(nvmlDeviceGetHandleByUUID("GPU-0", &device), NVML_ERROR_NOT_FOUND);
    OK(nvmlDeviceGetHandleByUUID(T4_UUID, &device));
    same = gpu_handle(1);
    CHECK(device.handle == same.handle);
    memcpy(uuid.value.bytes, "\xaa\xaa\xaa\xaa\xbb\xbb\xcc\xcc\xdd\xdd\xee\xee\xee\xee\xee\xee", 16);
    OK(nvmlDeviceGetHandleByUUIDV(&uuid, &device));
    CHECK(device.handle == same.handle);
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        OK(nvmlDeviceGetHandleByPciBusId_v2(forms[i], &device));
        CHECK(device.handle == same.handle);
    }
    CHECK_EQ(nvmlDeviceGetHandleByPciBusId_v2("0000:3b:00.0", &device), NVML_ERROR_NOT_FOUND);
    CHECK_EQ(nvmlDeviceGetHandleByPciBusId_v2("not an address", &device), NVML_ERROR_INVALID_ARGUMENT);
    device.handle = (struct nvmlDevice_st *)name;
    CHECK_EQ(nvmlDeviceGetName(device, name, sizeof(name)), NVML_ERROR_INVALID_ARGUMENT);
    device.handle = NULL;
    CHECK_EQ(nvmlDeviceGetName(device, name, sizeof(name)), NVML_ERROR_INVALID_ARGUMENT);
}

static void test_string_buffers(void) {
    char text[sizeof("NVIDIA H200")];

    OK(nvmlInit_v2());
    OK(nvmlDeviceGetName(gpu_handle(0), text, sizeof(text)));
    CHECK_EQ(nvmlDeviceGetName(gpu_handle(0), text, sizeof(text) - 1), NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_EQ(nvmlDeviceGetUUID(gpu_handle(0), text, sizeof(text)), NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_EQ(nvmlSystemGetDriverVersion(text, 3), NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_EQ(nvmlDeviceGetName(gpu_handle(0), NULL, 96), NVML_ERROR_INVALID_ARGUMENT);
    memset(text, 'x', sizeof(text));
    OK(nvmlSystemGetProcessName((unsigned int)getpid(), text, 5));
    CHECK_EQ(strlen(text), 4);
    CHECK_EQ(nvmlSystemGetProcessName(0x7FFFFFFF, text, sizeof(text)), NVML_ERROR_NOT_FOUND);
}

/* Both versions say the same of `used` bytes held by processes, of `allocatable` ones. */
static void check_memory(unsigned int gpu, uint64_t allocatable, uint64_t used) {
    nvmlMemory_t v1;
    nvmlMemory_v2_t v2 = {.version = nvmlMemory_v2};
    uint64_t reserved = gpu == 0 ? 500 * MIB : 0, total = allocatable + reserved;

    OK(nvmlDeviceGetMemoryInfo(gpu_handle(gpu), &v1));
    OK(nvmlDeviceGetMemoryInfo_v2(gpu_handle(gpu), &v2));
    CHECK_EQ(v1.total, total);
    CHECK_EQ(v2.total, total);
    CHECK_EQ(v2.used, used);
    CHECK_EQ(v2.reserved, reserved);
    CHECK_EQ(v1.used, v2.used + v2.reserved);
    CHECK_EQ(v1.free, v2.free);
    CHECK(v2.free <= total);
    CHECK_EQ(v2.total, v2.used + v2.free + v2.reserved);
    CHECK_EQ(v1.total, v1.used + v1.free);
}

static void test_memory(void) {
    nvmlMemory_v2_t wrong = {.version = 1};
    nvmlBAR1Memory_t bar1;

    OK(nvmlInit_v2());
    check_memory(0, 4096 * MIB, 0);
    struct user first = start_user(0, 100 * MIB, 0), second = start_user(0, 200 * MIB, 0);
    struct user other = start_user(1, 50 * MIB, 0);
    check_memory(0, 4096 * MIB, 300 * MIB);
    check_memory(1, 1024 * MIB, 50 * MIB);
    kill_user(first);
    check_memory(0, 4096 * MIB, 200 * MIB);
    end_user(second);
    end_user(other);
    check_memory(0, 4096 * MIB, 0);
    check_memory(1, 1024 * MIB, 0);

    /* Full to the last byte; the reserve cannot be had. */
    first = start_user(1, 1024 * MIB, 0);
    check_memory(1, 1024 * MIB, 1024 * MIB);
    end_user(first);
    first = start_user(0, 4096 * MIB, 0);
    check_memory(0, 4096 * MIB, 4096 * MIB);
    CHECK_EQ(sim_join(), 0);
    CHECK_EQ(sim_reserve(0, MIB, &first), -ENOMEM);
    end_user(first);

    CHECK_EQ(nvmlDeviceGetMemoryInfo_v2(gpu_handle(0), &wrong), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    CHECK_EQ(nvmlDeviceGetMemoryInfo(gpu_handle(0), NULL), NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlDeviceGetBAR1MemoryInfo(gpu_handle(0), &bar1));
    CHECK_EQ(bar1.bar1Total, bar1.bar1Free + bar1.bar1Used);
}

static void test_running_processes(void) {
    unsigned int count = 0;
    nvmlProcessInfo_v1_t v1[4];
    nvmlProcessInfo_v2_t v2[4];
    nvmlProcessInfo_t v3[4];
    nvmlProcessDetail_v1_t details[4] = {{0}};
    nvmlProcessDetailList_t list = {.version = nvmlProcessDetailList_v1, .mode = NVML_PROCESS_MODE_ALL};

    OK(nvmlInit_v2());
    nvmlDevice_t device = gpu_handle(0);
    OK(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL));
    CHECK_EQ(count, 0);

    struct user users[2] = {start_user(0, 100 * MIB, 0), start_user(0, 200 * MIB, 0)};
    struct user other = start_user(1, 50 * MIB, 0);
    CHECK_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL), NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_EQ(count, 2);
    count = 1;
    CHECK_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, v3), NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_EQ(count, 2);
    count = 4;
    CHECK_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL), NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlDeviceGetComputeRunningProcesses(device, &count, v1));
    CHECK_EQ(count, 2);
    count = 4;
    OK(nvmlDeviceGetComputeRunningProcesses_v2(device, &count, v2));
    count = 4;
    OK(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, v3));
    CHECK_EQ(nvmlDeviceGetRunningProcessDetailList(device, &list), NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_EQ(list.numProcArrayEntries, 2);
    list.procArray = details;
    OK(nvmlDeviceGetRunningProcessDetailList(device, &list));

    int first = users[0].pid < users[1].pid ? 0 : 1;
    for (int i = 0; i < 2; i++) {
        int user = i == 0 ? first : 1 - first;
        uint64_t bytes = user == 0 ? 100 * MIB : 200 * MIB;
        CHECK_EQ(v1[i].pid, users[user].pid);
        CHECK_EQ(v1[i].usedGpuMemory, bytes);
        CHECK_EQ(v2[i].pid, users[user].pid);
        CHECK_EQ(v2[i].usedGpuMemory, bytes);
        CHECK_EQ(v2[i].gpuInstanceId, NO_INSTANCE);
        CHECK_EQ(v3[i].pid, users[user].pid);
        CHECK_EQ(v3[i].usedGpuMemory, bytes);
        CHECK_EQ(v3[i].computeInstanceId, NO_INSTANCE);
        CHECK_EQ(details[i].pid, users[user].pid);
        CHECK_EQ(details[i].usedGpuMemory, bytes);
    }
    list.mode = NVML_PROCESS_MODE_GRAPHICS;
    OK(nvmlDeviceGetRunningProcessDetailList(device, &list));
    CHECK_EQ(list.numProcArrayEntries, 0);
    list.mode = NVML_PROCESS_MODE_MAX;
    CHECK_EQ(nvmlDeviceGetRunningProcessDetailList(device, &list), NVML_ERROR_INVALID_ARGUMENT);
    kill_user(users[0]);
    count = 4;
    OK(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, v3));
    CHECK_EQ(count, 1);
    CHECK_EQ(v3[0].pid, users[1].pid);
    count = 4;
    OK(nvmlDeviceGetGraphicsRunningProcesses_v3(device, &count, v3));
    CHECK_EQ(count, 0);
    count = 4;
    OK(nvmlDeviceGetMPSComputeRunningProcesses_v3(device, &count, v3));
    CHECK_EQ(count, 0);
    end_user(users[1]);
    end_user(other);
}

static struct user start_graphics_user(const char *graphics, uint64_t bytes) {
    struct user user;

    setenv("SIMGPU_GRAPHICS", graphics, 1);
    user = start_user(0, bytes, 0);
    unsetenv("SIMGPU_GRAPHICS");
    return user;
}

/* A process that renders is on the list of graphics, and on that of compute if it computes, too. */
static void test_graphics_processes(void) {
    nvmlProcessInfo_t infos[4];
    nvmlProcessInfo_v1_t v1[4];
    nvmlProcessDetail_v1_t details[4];
    nvmlProcessDetailList_t list = {.version = nvmlProcessDetailList_v1, .procArray = details};
    unsigned int count = 4;

    OK(nvmlInit_v2());
    nvmlDevice_t device = gpu_handle(0);
    struct user users[3] = {start_graphics_user("only", 50 * MIB), start_graphics_user("too", 100 * MIB),
                            start_user(0, 200 * MIB, 0)};
    OK(nvmlDeviceGetGraphicsRunningProcesses_v3(device, &count, infos));
    CHECK_EQ(count, 2);
    CHECK_EQ(infos[0].pid, users[0].pid);
    CHECK_EQ(infos[0].usedGpuMemory, 50 * MIB);
    CHECK_EQ(infos[1].pid, users[1].pid);
    count = 4;
    OK(nvmlDeviceGetGraphicsRunningProcesses(device, &count, v1));
    CHECK_EQ(count, 2);
    count = 4;
    OK(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, infos));
    CHECK_EQ(count, 2);
    CHECK_EQ(infos[0].pid, users[1].pid);
    CHECK_EQ(infos[1].pid, users[2].pid);
    for (unsigned int mode = NVML_PROCESS_MODE_COMPUTE; mode < NVML_PROCESS_MODE_MAX; mode++) {
        static const unsigned int found[] = {2, 2, 0, 3};

        list.mode = mode;
        list.numProcArrayEntries = 4;
        OK(nvmlDeviceGetRunningProcessDetailList(device, &list));
        CHECK_EQ(list.numProcArrayEntries, found[mode]);
    }
    for (int i = 0; i < 3; i++)
        end_user(users[i]);
}

static void test_mps_processes(void) {
    nvmlProcessInfo_v1_t v1[4];
    nvmlProcessInfo_v2_t v2[4];
    nvmlProcessInfo_t v3[4];
    unsigned int count = 0;

    OK(nvmlInit_v2());
    nvmlDevice_t device = gpu_handle(0);
    struct user users[3] = {start_mps_user("server", 50 * MIB), start_mps_user("client", 100 * MIB),
                            start_user(0, 200 * MIB, 0)};
    CHECK_EQ(nvmlDeviceGetMPSComputeRunningProcesses_v3(device, &count, NULL), NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_EQ(count, 1);
    count = 4;
    OK(nvmlDeviceGetMPSComputeRunningProcesses(device, &count, v1));
    CHECK_EQ(count, 1);
    count = 4;
    OK(nvmlDeviceGetMPSComputeRunningProcesses_v2(device, &count, v2));
    CHECK_EQ(count, 1);
    count = 4;
    OK(nvmlDeviceGetMPSComputeRunningProcesses_v3(device, &count, v3));
    CHECK_EQ(count, 1);
    CHECK_EQ(v1[0].pid, users[1].pid);
    CHECK_EQ(v2[0].pid, users[1].pid);
    CHECK_EQ(v3[0].pid, users[1].pid);
    CHECK_EQ(v3[0].usedGpuMemory, 100 * MIB);
    count = 4;
    OK(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, v3));
    CHECK_EQ(count, 3);
    count = 4;
    OK(nvmlDeviceGetMPSComputeRunningProcesses_v3(gpu_handle(1), &count, v3));
    CHECK_EQ(count, 0);
    for (int i = 0; i < 3; i++)
        end_user(users[i]);
}

/* The init of a pid namespace of its own: its process is there under its own number, the one outside not at all. */
static void see_from_namespace(void) {
    unsigned int count = 4;
    nvmlProcessInfo_t infos[4];

    CHECK_EQ(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
    CHECK_EQ(mount("proc", "/proc", "proc", 0, NULL), 0);
    struct user inside = start_user(0, 200 * MIB, 0);
    OK(nvmlInit_v2());
    OK(nvmlDeviceGetComputeRunningProcesses_v3(gpu_handle(0), &count, infos));
    CHECK_EQ(count, 1);
    CHECK_EQ(infos[0].pid, inside.pid);
    CHECK_EQ(infos[0].usedGpuMemory, 200 * MIB);
    check_memory(0, 4096 * MIB, 300 * MIB);
    end_user(inside);
}

static void test_pid_namespaces(void) {
    int status;
    struct user outside = start_user(0, 100 * MIB, 0);

    /* Between this process and that init stands one that leaves by _exit: a process whose children belong to a
     * namespace that has ended cannot start the leak checker's thread. */
    pid_t between = fork();
    if (between == 0) {
        if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) {
            printf("    skipped: a pid namespace needs root (%s)\n", strerror(errno));
            fflush(stdout);
            _exit(0);
        }
        pid_t init = fork();
        if (init == 0) {
            see_from_namespace();
            _exit(0);
        }
        waitpid(init, &status, 0);
        _exit(status != 0);
    }
    CHECK_EQ(waitpid(between, &status, 0), between);
    CHECK_EQ(status, 0);
    end_user(outside);
}

static void test_lost_gpu(void) {
    char name[96];
    unsigned int value;
    nvmlMemory_t memory;
    nvmlDevice_t found;

    OK(nvmlInit_v2());
    nvmlDevice_t lost = gpu_handle(0), other = gpu_handle(1);
    CHECK_EQ(sim_fault_lost(0, true), 0);
    CHECK_EQ(nvmlDeviceGetName(lost, name, sizeof(name)), NVML_ERROR_GPU_IS_LOST);
    CHECK_EQ(nvmlDeviceGetMemoryInfo(lost, &memory), NVML_ERROR_GPU_IS_LOST);
    CHECK_EQ(nvmlDeviceGetComputeRunningProcesses_v3(lost, &value, NULL), NVML_ERROR_GPU_IS_LOST);
    CHECK_EQ(nvmlDeviceGetHandleByIndex_v2(0, &found), NVML_ERROR_GPU_IS_LOST);
    CHECK_EQ(nvmlDeviceGetHandleByUUID(H200_UUID, &found), NVML_ERROR_GPU_IS_LOST);
    CHECK_EQ(nvmlDeviceGetHandleByPciBusId_v2("0000:19:00.0", &found), NVML_ERROR_GPU_IS_LOST);
    OK(nvmlDeviceGetIndex(lost, &value));
    CHECK_EQ(value, 0);
    OK(nvmlDeviceGetCount_v2(&value));
    CHECK_EQ(value, 2);
    OK(nvmlDeviceGetName(other, name, sizeof(name)));
    CHECK_EQ(sim_fault_lost(0, false), 0);
    OK(nvmlDeviceGetName(lost, name, sizeof(name)));
}

static void *order_xid(void *xid) {
    sim_fault_xid(0, *(uint64_t *)xid);
    return NULL;
}

static void test_events(void) {
    nvmlEventSet_t set;
    nvmlEventData_t data;
    unsigned long long types;
    uint64_t xid = 48;
    pthread_t thread;

    OK(nvmlInit_v2());
    nvmlDevice_t device = gpu_handle(0);
    CHECK_EQ(sim_fault_xid(0, 13), 0);
    OK(nvmlEventSetCreate(&set));
    CHECK_EQ(sim_fault_xid(0, 31), 0);
    OK(nvmlDeviceGetSupportedEventTypes(device, &types));
    CHECK(types & nvmlEventTypeXidCriticalError);
    CHECK_EQ(nvmlDeviceRegisterEvents(device, nvmlEventTypeClock, set), NVML_ERROR_NOT_SUPPORTED);
    OK(nvmlDeviceRegisterEvents(device, types, set));

    /* What happened before the registration, and on other GPUs, is not for this set. */
    CHECK_EQ(sim_fault_xid(1, 43), 0);
    CHECK_EQ(nvmlEventSetWait_v2(set, &data, 0), NVML_ERROR_TIMEOUT);
    uint64_t begin_ns = sim_now_ns();
    CHECK_EQ(nvmlEventSetWait_v2(set, &data, 50), NVML_ERROR_TIMEOUT);
    CHECK(sim_now_ns() - begin_ns >= 50000000);

    /* Two that are there already come in order, each once. */
    CHECK_EQ(sim_fault_xid(0, 61), 0);
    CHECK_EQ(sim_fault_xid(0, 62), 0);
    OK(nvmlEventSetWait_v2(set, &data, 0));
    CHECK_EQ(data.eventData, 61);
    CHECK_EQ(data.eventType, nvmlEventTypeXidCriticalError);
    CHECK(data.device.handle == device.handle);
    CHECK_EQ(data.gpuInstanceId, NO_INSTANCE);
    OK(nvmlEventSetWait(set, &data, 0));
    CHECK_EQ(data.eventData, 62);
    CHECK_EQ(nvmlEventSetWait_v2(set, &data, 0), NVML_ERROR_TIMEOUT);

    /* A waiter is woken. */
    begin_ns = sim_now_ns();
    CHECK_EQ(pthread_create(&thread, NULL, order_xid, &xid), 0);
    OK(nvmlEventSetWait_v2(set, &data, 20000));
    CHECK(sim_now_ns() - begin_ns < 5000000000ull);
    CHECK_EQ(data.eventData, 48);
    pthread_join(thread, NULL);
    OK(nvmlEventSetFree(set));
    CHECK_EQ(nvmlEventSetFree((nvmlEventSet_t){NULL}), NVML_ERROR_INVALID_ARGUMENT);
}

static void test_events_of_a_lost_gpu(void) {
    nvmlEventSet_t set;
    nvmlEventData_t data;

    OK(nvmlInit_v2());
    OK(nvmlEventSetCreate(&set));
    OK(nvmlDeviceRegisterEvents(gpu_handle(0), nvmlEventTypeXidCriticalError, set));
    CHECK_EQ(sim_fault_lost(0, true), 0);
    OK(nvmlEventSetWait_v2(set, &data, 1000));
    CHECK_EQ(data.eventData, 79);
    CHECK_EQ(nvmlEventSetWait_v2(set, &data, 1000), NVML_ERROR_GPU_IS_LOST);
    OK(nvmlEventSetFree(set));

    /* Who waits for the other GPU is not told. */
    OK(nvmlEventSetCreate(&set));
    OK(nvmlDeviceRegisterEvents(gpu_handle(1), nvmlEventTypeXidCriticalError, set));
    CHECK_EQ(nvmlEventSetWait_v2(set, &data, 10), NVML_ERROR_TIMEOUT);
    OK(nvmlEventSetFree(set));
}

static void test_utilisation(void) {
    nvmlUtilization_t rates;
    nvmlProcessUtilizationSample_t samples[4];
    nvmlProcessUtilizationInfo_v1_t entries[4];
    nvmlProcessesUtilizationInfo_t info = {.version = nvmlProcessesUtilizationInfo_v1, .procUtilArray = entries};
    unsigned int count = 4, percent, period, idle, busy;

    OK(nvmlInit_v2());
    nvmlDevice_t device = gpu_handle(0);
    OK(nvmlDeviceGetUtilizationRates(device, &rates));
    CHECK_EQ(rates.gpu, 0);
    OK(nvmlDeviceGetPowerUsage(device, &idle));
    CHECK_EQ(nvmlDeviceGetProcessUtilization(device, samples, &count, 0), NVML_ERROR_NOT_FOUND);

    struct user user = start_user(0, 100 * MIB, 2000000000);
    struct user lazy = start_user(0, 100 * MIB, 0);
    usleep(300000); /* GPU time is measured over wall time, and some must pass */
    OK(nvmlDeviceGetUtilizationRates(device, &rates));
    CHECK(rates.gpu > 0 && rates.gpu <= 100);
    OK(nvmlDeviceGetPowerUsage(device, &busy));
    CHECK(busy > idle);
    count = 0;
    CHECK_EQ(nvmlDeviceGetProcessUtilization(device, NULL, &count, 0), NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_EQ(count, 2);
    OK(nvmlDeviceGetProcessUtilization(device, samples, &count, 0));
    CHECK_EQ(count, 1);
    CHECK_EQ(samples[0].pid, user.pid);
    CHECK(samples[0].smUtil > 0 && samples[0].smUtil <= 100);
    CHECK_EQ(nvmlDeviceGetProcessesUtilizationInfo(device, &info), NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_EQ(info.processSamplesCount, 2);
    CHECK_EQ(nvmlDeviceGetProcessesUtilizationInfo(device, &info), NVML_ERROR_NOT_FOUND); /* nothing since */
    end_user(user);
    end_user(lazy);

    OK(nvmlDeviceGetEncoderUtilization(device, &percent, &period));
    CHECK_EQ(percent, 0);
    OK(nvmlDeviceGetDecoderUtilization(device, &percent, &period));
}

static void test_accounting(void) {
    nvmlEnableState_t mode;
    nvmlAccountingStats_t stats;
    nvmlAccountingStats_v2_t stats2 = {0};
    unsigned int count = 4, pids[4];

    OK(nvmlInit_v2());
    nvmlDevice_t device = gpu_handle(0);
    OK(nvmlDeviceGetAccountingMode(device, &mode));
    CHECK_EQ(mode, NVML_FEATURE_DISABLED);
    CHECK_EQ(nvmlDeviceGetAccountingPids(device, &count, pids), NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQ(nvmlDeviceGetAccountingStats(device, 1, &stats), NVML_ERROR_NOT_SUPPORTED);
    if (geteuid() != 0) {
        CHECK_EQ(nvmlDeviceSetAccountingMode(device, NVML_FEATURE_ENABLED), NVML_ERROR_NO_PERMISSION);
        return;
    }
    OK(nvmlDeviceSetAccountingMode(device, NVML_FEATURE_ENABLED));
    struct user user = start_user(0, 100 * MIB, 0);
    count = 0;
    CHECK_EQ(nvmlDeviceGetAccountingPids(device, &count, NULL), NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_EQ(count, 1);
    OK(nvmlDeviceGetAccountingPids(device, &count, pids));
    CHECK_EQ(count, 1);
    CHECK_EQ(pids[0], user.pid);
    OK(nvmlDeviceGetAccountingStats(device, pids[0], &stats));
    CHECK_EQ(stats.maxMemoryUsage, 100 * MIB);
    CHECK_EQ(stats.isRunning, 1);
    CHECK_EQ(nvmlDeviceGetAccountingStats(device, 0x7FFFFFFF, &stats), NVML_ERROR_NOT_FOUND);
    CHECK_EQ(nvmlDeviceGetAccountingStats(device, pids[0], NULL), NVML_ERROR_INVALID_ARGUMENT);
    end_user(user);

    /* What a process gave back stays its greatest use; the next in its place begins anew. */
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(sim_join(), 0);
        CHECK_EQ(sim_reserve(0, (300 - (uint64_t)i) * MIB, NULL), 0);
        sim_release(0, 200 * MIB, NULL);
        stats2.pid = (unsigned int)getpid();
        OK(nvmlDeviceGetAccountingStats_v2(device, &stats2));
        CHECK_EQ(stats2.maxMemoryUsage, (300 - (uint64_t)i) * MIB);
        CHECK_EQ(stats2.pid, getpid());
        OK(nvmlShutdown());
        OK(nvmlInit_v2());
    }
    stats2.pid = 0x7FFFFFFF;
    CHECK_EQ(nvmlDeviceGetAccountingStats_v2(device, &stats2), NVML_ERROR_NOT_FOUND);

    /* The mode is the GPU's: another process sees it, and the other GPU does not have it. */
    OK(nvmlShutdown());
    pid_t other = fork();
    if (other == 0) {
        OK(nvmlInit_v2());
        OK(nvmlDeviceGetAccountingMode(gpu_handle(0), &mode));
        CHECK_EQ(mode, NVML_FEATURE_ENABLED);
        OK(nvmlDeviceGetAccountingMode(gpu_handle(1), &mode));
        CHECK_EQ(mode, NVML_FEATURE_DISABLED);
        OK(nvmlDeviceSetAccountingMode(gpu_handle(0), NVML_FEATURE_DISABLED));
        _exit(0);
    }
    int status;
    CHECK_EQ(waitpid(other, &status, 0), other);
    CHECK_EQ(status, 0);
    OK(nvmlInit_v2());
    CHECK_EQ(nvmlDeviceGetAccountingPids(device, &count, pids), NVML_ERROR_NOT_SUPPORTED);
}

static void test_mig(void) {
    unsigned int current, pending, value;
    nvmlDevice_t mig;
    nvmlDeviceAttributes_t attributes;

    OK(nvmlInit_v2());
    OK(nvmlDeviceGetMigMode(gpu_handle(0), &current, &pending));
    CHECK_EQ(current, NVML_DEVICE_MIG_DISABLE);
    CHECK_EQ(nvmlDeviceGetMigMode(gpu_handle(1), &current, &pending), NVML_ERROR_NOT_SUPPORTED);
    OK(nvmlDeviceGetMaxMigDeviceCount(gpu_handle(0), &value));
    CHECK_EQ(value, 0);
    OK(nvmlDeviceIsMigDeviceHandle(gpu_handle(0), &value));
    CHECK_EQ(value, 0);
    CHECK_EQ(nvmlDeviceGetMigDeviceHandleByIndex(gpu_handle(0), 0, &mig), NVML_ERROR_NOT_FOUND);
    CHECK_EQ(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpu_handle(0), &mig), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(nvmlDeviceGetGpuInstanceId(gpu_handle(0), &value), NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQ(nvmlDeviceGetAttributes_v2(gpu_handle(0), &attributes), NVML_ERROR_NOT_SUPPORTED);
}

#define MIG_UUID "MIG-99999999-2222-3333-4444-555555555555"

/* The H200 with one MIG instance. */
static void partition(void) {
    char text[sizeof(topology) + 512];

    snprintf(text, sizeof(text),
             "%s\n[gpu 2]\nmig_of = 0\nname = NVIDIA H200 MIG 2g.1gb\nuuid = " MIG_UUID "\nmig_instances = 5/0\n"
             "mig_caps = 12/13\nmig_slices = 2\nmemory_mib = 1024\nsm_count = 32\n",
             topology);
    write_file("topology", text);
    CHECK_EQ(mkdir(in_node("dev/nvidia-caps"), 0777), 0);
    write_file("dev/nvidia-caps/nvidia-cap12", "");
    write_file("dev/nvidia-caps/nvidia-cap13", "");
}

static void test_mig_devices(void) {
    unsigned int current, pending, value;
    nvmlDevice_t mig, by_uuid, parent;
    nvmlDeviceAttributes_t attributes;
    nvmlMemory_t memory;
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];

    partition();
    OK(nvmlInit_v2());
    OK(nvmlDeviceGetCount_v2(&value));
    CHECK_EQ(value, 2); /* instances are not counted */
    CHECK_EQ(nvmlDeviceGetHandleByIndex_v2(2, &mig), NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlDeviceGetMigMode(gpu_handle(0), &current, &pending));
    CHECK_EQ(current, NVML_DEVICE_MIG_ENABLE);
    OK(nvmlDeviceGetMaxMigDeviceCount(gpu_handle(0), &value));
    CHECK_EQ(value, 7);
    OK(nvmlDeviceGetMigDeviceHandleByIndex(gpu_handle(0), 0, &mig));
    CHECK_EQ(nvmlDeviceGetMigDeviceHandleByIndex(gpu_handle(0), 1, &parent), NVML_ERROR_NOT_FOUND);
    OK(nvmlDeviceIsMigDeviceHandle(mig, &value));
    CHECK_EQ(value, 1);
    OK(nvmlDeviceGetUUID(mig, uuid, sizeof(uuid)));
    CHECK_STR(uuid, MIG_UUID);
    OK(nvmlDeviceGetHandleByUUID(MIG_UUID, &by_uuid));
    CHECK(by_uuid.handle == mig.handle);
    OK(nvmlDeviceGetIndex(mig, &value));
    CHECK_EQ(value, 0);
    OK(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig, &parent));
    CHECK(parent.handle == gpu_handle(0).handle);
    OK(nvmlDeviceGetGpuInstanceId(mig, &value));
    CHECK_EQ(value, 5);
    OK(nvmlDeviceGetAttributes_v2(mig, &attributes));
    CHECK_EQ(attributes.memorySizeMB, 1024);
    OK(nvmlDeviceGetMemoryInfo(mig, &memory));
    CHECK_EQ(memory.total, 1024 * MIB);
}

static void test_mig_instances(void) {
    nvmlGpuInstance_t gi;
    nvmlComputeInstance_t ci;
    nvmlGpuInstanceInfo_t gi_info;
    nvmlComputeInstanceInfo_t ci_info;
    nvmlGpuInstanceProfileInfo_t gi_profile;
    nvmlComputeInstanceProfileInfo_t ci_profile;

    partition();
    OK(nvmlInit_v2());
    CHECK_EQ(nvmlDeviceGetGpuInstanceById(gpu_handle(0), 4, &gi), NVML_ERROR_NOT_FOUND);
    OK(nvmlDeviceGetGpuInstanceById(gpu_handle(0), 5, &gi));
    OK(nvmlGpuInstanceGetInfo(gi, &gi_info));
    CHECK_EQ(gi_info.id, 5);
    OK(nvmlDeviceGetGpuInstanceProfileInfo(gpu_handle(0), NVML_GPU_INSTANCE_PROFILE_2_SLICE, &gi_profile));
    CHECK_EQ(gi_profile.id, gi_info.profileId);
    CHECK_EQ(gi_profile.sliceCount, 2);
    CHECK_EQ(nvmlGpuInstanceGetComputeInstanceById(gi, 1, &ci), NVML_ERROR_NOT_FOUND);
    OK(nvmlGpuInstanceGetComputeInstanceById(gi, 0, &ci));
    OK(nvmlComputeInstanceGetInfo_v2(ci, &ci_info));
    OK(nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE, 0, &ci_profile));
    CHECK_EQ(ci_profile.id, ci_info.profileId);
    CHECK_EQ(nvmlDeviceGetGpuInstanceProfileInfo(gpu_handle(1), 0, &gi_profile), NVML_ERROR_NOT_SUPPORTED);
}

/* Without the nodes of its capabilities nobody sees an instance. */
static void test_mig_nodes(void) {
    nvmlDevice_t mig;

    partition();
    unlink(in_node("dev/nvidia-caps/nvidia-cap13"));
    OK(nvmlInit_v2());
    CHECK_EQ(nvmlDeviceGetMigDeviceHandleByIndex(gpu_handle(0), 0, &mig), NVML_ERROR_NOT_FOUND);
    CHECK_EQ(nvmlDeviceGetHandleByUUID(MIG_UUID, &mig), NVML_ERROR_NOT_FOUND);
}

static void test_settings_and_counters(void) {
    nvmlEnableState_t state, pending;
    nvmlComputeMode_t compute;
    unsigned int value, max;
    unsigned long long errors;
    nvmlFieldValue_t fields[2] = {{.fieldId = NVML_FI_DEV_POWER_INSTANT}, {.fieldId = 9999}};

    OK(nvmlInit_v2());
    nvmlDevice_t device = gpu_handle(0);
    OK(nvmlDeviceGetComputeMode(device, &compute));
    CHECK_EQ(compute, NVML_COMPUTEMODE_DEFAULT);
    OK(nvmlDeviceGetPersistenceMode(device, &state));
    OK(nvmlDeviceGetDisplayMode(device, &state));
    CHECK_EQ(state, NVML_FEATURE_DISABLED);
    OK(nvmlDeviceGetDisplayActive(device, &state));
    OK(nvmlDeviceGetEccMode(device, &state, &pending));
    CHECK_EQ(state, NVML_FEATURE_ENABLED);
    OK(nvmlDeviceGetTotalEccErrors(device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, &errors));
    CHECK_EQ(errors, 0);
    OK(nvmlDeviceGetMemoryErrorCounter(device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC,
                                       NVML_MEMORY_LOCATION_L2_CACHE, &errors));
    CHECK_EQ(nvmlDeviceGetTotalEccErrors(device, NVML_MEMORY_ERROR_TYPE_COUNT, NVML_VOLATILE_ECC, &errors),
             NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &value));
    OK(nvmlDeviceGetPowerManagementLimit(device, &value));
    OK(nvmlDeviceGetClockInfo(device, NVML_CLOCK_SM, &value));
    OK(nvmlDeviceGetMaxClockInfo(device, NVML_CLOCK_SM, &max));
    CHECK(value <= max);
    CHECK_EQ(nvmlDeviceGetClockInfo(device, NVML_CLOCK_COUNT, &value), NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlDeviceGetPcieThroughput(device, NVML_PCIE_UTIL_RX_BYTES, &value));
    OK(nvmlDeviceGetMaxPcieLinkGeneration(device, &value));
    OK(nvmlDeviceGetMaxPcieLinkWidth(device, &value));
    OK(nvmlDeviceGetFieldValues(device, 2, fields));
    OK(fields[0].nvmlReturn);
    CHECK_EQ(fields[1].nvmlReturn, NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQ(nvmlDeviceGetFanSpeed(device, &value), NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQ(nvmlDeviceGetNumaNodeId(device, &value), NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQ(nvmlDeviceGetGpuFabricInfo_v4(device, NULL), NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQ(nvmlDeviceGetAddressingMode(device, NULL), NVML_ERROR_NOT_SUPPORTED);
}

static void *query_for_a_while(void *arg) {
    (void)arg;
    for (int i = 0; i < 200; i++) {
        nvmlMemory_t memory;
        nvmlUtilization_t rates;
        nvmlProcessUtilizationSample_t samples[8];
        unsigned int count = 8;
        OK(nvmlInit_v2());
        OK(nvmlDeviceGetMemoryInfo(gpu_handle(0), &memory));
        OK(nvmlDeviceGetUtilizationRates(gpu_handle(0), &rates));
        nvmlDeviceGetProcessUtilization(gpu_handle(0), samples, &count, 0);
        OK(nvmlShutdown());
    }
    return NULL;
}

static void test_threads(void) {
    pthread_t threads[4];

    OK(nvmlInit_v2());
    struct user user = start_user(0, 100 * MIB, 1000000);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, query_for_a_while, NULL), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    end_user(user);
    OK(nvmlShutdown());
}

#define TESTS(X)                                                                                                       \
    X(uninitialised)                                                                                                   \
    X(initialisation_is_counted)                                                                                       \
    X(driver_absent)                                                                                                   \
    X(only_gpus_with_a_node_are_seen)                                                                                  \
    X(identity)                                                                                                        \
    X(handles)                                                                                                         \
    X(string_buffers)                                                                                                  \
    X(memory)                                                                                                          \
    X(running_processes)                                                                                               \
    X(graphics_processes)                                                                                              \
    X(mps_processes)                                                                                                   \
    X(pid_namespaces)                                                                                                  \
    X(lost_gpu)                                                                                                        \
    X(events)                                                                                                          \
    X(events_of_a_lost_gpu)                                                                                            \
    X(utilisation)                                                                                                     \
    X(accounting)                                                                                                      \
    X(mig)                                                                                                             \
    X(mig_devices)                                                                                                     \
    X(mig_instances)                                                                                                   \
    X(mig_nodes)                                                                                                       \
    X(settings_and_counters)                                                                                           \
    X(threads)

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
#define ENTRY(name) {#name, test_##name},
    TESTS(ENTRY) MIG_TESTS(ENTRY)
#undef ENTRY
};

/* Runs one test in a process of its own, which a hang does not outlive. */
static bool run(size_t test) {
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        alarm(60);
        make_node();
        tests[test].run();
        fflush(stdout);
        remove_node();
        /* exit and not _exit: the leak checker runs at exit. */
        exit(0);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

int main(int argc, char **argv) {
    size_t passed = 0, failed = 0;

    if (argc == 5 && strcmp(argv[1], "use") == 0)
        return use_gpu(atoi(argv[2]), strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
        bool ok = run(i);
        printf("%s %s\n", ok ? "ok  " : "FAIL", tests[i].name);
        *(ok ? &passed : &failed) += 1;
    }
    printf("nvml: %zu passed, %zu failed\n", passed, failed);
    return failed == 0 ? 0 : 1;
}
