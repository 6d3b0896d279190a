/* Coming up: which GPUs there are, what they are, and how functions are found. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"

static void uninitialised_is_an_error(void) {
    CUcontext context;
    CUdeviceptr pointer;
    size_t size;
    int n;

    CHECK_INT(cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_INT(cuCtxCreate_v2(&context, 0, 0), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_INT(cuCtxGetCurrent(&context), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_INT(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_INT(cuMemFree_v2(0), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_INT(cuMemGetInfo_v2(&size, &size), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_INT(cuMemcpyHtoD_v2(0, "", 1), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_INT(cuInit(1), CUDA_ERROR_INVALID_VALUE);
    OK(cuDriverGetVersion(&n));
    CHECK_INT(n, 12080);
    OK(cuInit(0));
    OK(cuInit(0));
    CHECK_INT(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_INT(cuMemGetInfo_v2(&size, &size), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_INT(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
}

static void gpus_are_as_the_topology_says(void) {
    char name[64], bus[32];
    CUuuid uuid;
    size_t bytes;
    int n, major, minor;
    CUdevice device;

    OK(cuInit(0));
    OK(cuDeviceGetCount(&n));
    CHECK_INT(n, 2);
    OK(cuDeviceGetName(name, sizeof(name), 1));
    CHECK(strcmp(name, "Simulated GPU S2") == 0);
    OK(cuDeviceTotalMem_v2(&bytes, 1));
    CHECK_INT(bytes, GPU1_BYTES);
    OK(cuDeviceGetUuid_v2(&uuid, 1));
    CHECK(memcmp(uuid.bytes, "\x7e\x57\0\0\0\0\x40\0\x80\0\0\0\0\0\0\1", 16) == 0);
    OK(cuDeviceComputeCapability(&major, &minor, 1));
    CHECK_INT(major * 10 + minor, 80);
    OK(cuDeviceGetAttribute(&n, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 1));
    CHECK_INT(n, 32);
    OK(cuDeviceGetPCIBusId(bus, sizeof(bus), 1));
    CHECK(strcmp(bus, "0000:02:00.0") == 0);
    OK(cuDeviceGetByPCIBusId(&device, "0000:02:00.0"));
    CHECK_INT(device, 1);
    OK(cuDeviceGetByPCIBusId(&device, "1:0"));
    CHECK_INT(device, 0);
    CHECK_INT(cuDeviceGetByPCIBusId(&device, "0000:77:00.0"), CUDA_ERROR_INVALID_DEVICE);
    CHECK_INT(cuDeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
    CHECK_INT(cuDeviceGet(&device, -1), CUDA_ERROR_INVALID_DEVICE);
    CHECK_INT(cuDeviceGet(NULL, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuDeviceGetAttribute(&n, 100000, 0), CUDA_ERROR_INVALID_VALUE);
}

static void init_is(void *wanted) {
    CHECK_INT(cuInit(0), *(int *)wanted);
}

/* cuInit in a process of its own. */
static void check_init(int wanted) {
    struct worker worker = worker_start(init_is, &wanted);

    worker_join(&worker);
}

static void only_gpu_is(void *uuid) {
    char wanted[64], text[64];
    CUuuid got;
    int n;

    OK(cuInit(0));
    OK(cuDeviceGetCount(&n));
    CHECK_INT(n, 1);
    OK(cuDeviceGetUuid(&got, 0));
    snprintf(wanted, sizeof(wanted), "%s", (const char *)uuid);
    snprintf(text, sizeof(text), "GPU-7e570000-0000-4000-8000-00000000000%d", got.bytes[15]);
    CHECK(strcmp(text, wanted) == 0);
}

static void check_only_gpu(const char *uuid) {
    struct worker worker = worker_start(only_gpu_is, (void *)(uintptr_t)uuid);

    worker_join(&worker);
}

static void a_gpu_needs_its_device_node(void) {
    unlink(node_path("dev/nvidia0"));
    check_only_gpu(GPU1_UUID);
    unlink(node_path("dev/nvidia1"));
    check_init(CUDA_ERROR_NO_DEVICE);
}

static void no_driver_without_nvidiactl(void) {
    unlink(node_path("dev/nvidiactl"));
    check_init(CUDA_ERROR_NO_DEVICE);
}

/* "10" for devices that are GPU 1 and then GPU 0. */
static void devices_are(void *arg) {
    const char *wanted = arg;
    int count;

    if (*wanted == '\0') {
        CHECK_INT(cuInit(0), CUDA_ERROR_NO_DEVICE);
        return;
    }
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    CHECK_INT(count, strlen(wanted));
    for (int i = 0; i < count; i++) {
        CUuuid uuid;

        OK(cuDeviceGetUuid(&uuid, i));
        CHECK_INT(uuid.bytes[15], wanted[i] - '0');
    }
}

static void cuda_visible_devices(void) {
    static const struct {
        const char *value, *devices;
    } cases[] = {
        {"0", "0"},
        {"1", "1"},
        {"1,0", "10"},
        {"0,1", "01"},
        {"", ""},
        {"-1", ""},
        {"2", ""},
        {"0,2,1", "0"},
        {"1,-1,0", "1"},
        {"x", ""},
        {"0,0", ""},
        {GPU1_UUID, "1"},
        {GPU1_UUID "," GPU0_UUID, "10"},
        {GPU1_UUID ",0", "10"},
        {"GPU-7e57", ""}, /* both begin so */
        {"GPU-ffff", ""},
        {"MIG-7e570000-0000-4000-8000-000000000000", ""},
        {"NoDevFiles", ""},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct worker worker;

        setenv("CUDA_VISIBLE_DEVICES", cases[i].value, 1);
        worker = worker_start(devices_are, (void *)(uintptr_t)cases[i].devices);
        worker_join(&worker);
    }
}

static void use_gpu(void *unused) {
    (void)unused;
    context_on(0);
}

static void a_state_of_other_gpus_is_refused(void) {
    struct worker worker = worker_start(use_gpu, NULL);

    worker_join(&worker);
    node_use_topology("h200x2.conf");
    check_init(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
}

static void a_truncated_state_is_refused(void) {
    struct worker worker = worker_start(use_gpu, NULL);

    worker_join(&worker);
    CHECK_INT(truncate(node_path("state"), 4096), 0);
    check_init(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
}

static void bad_topologies_are_named(void) {
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"nonsense\n", "1: nonsense: neither"},
        {"\ncuda_version = x\n", "2: cuda_version = x: must be a whole number"},
        {"colour = red\n", "1: unknown key colour"},
        {"[gpu 1]\n", "must be numbered"},
        {"[gpu 0]\nuuid = GPU-1\n", "2: uuid = GPU-1: must look like"},
        {"[gpu 0]\npci = 1\n", "must look like 0000:19:00.0"},
        {"[gpu 0]\nname = x\n", "[gpu 0] has no uuid"},
        {"[gpu 0]\nmemory_mib = -5\n", "must be a whole number"},
        {"[gpu 0]\naddressing_mode = on\n", "2: addressing_mode = on: must be none, hmm or ats"},
        {"[gpu 0]\nmig_of = 0\n", "[gpu 0] can be no MIG instance"},
        {"[gpu 0]\nuuid = MIG-00000000-0000-0000-0000-000000000000\n", "[gpu 0]: a MIG instance has mig_of"},
    };

    setenv("SIMGPU_TOPOLOGY", node_path("topology"), 1);
    CHECK(sim_open_all() < 0);
    CHECK(strstr(sim_error(), "No such file") != NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        FILE *file = fopen(node_path("topology"), "w");

        fputs(cases[i].text, file);
        fclose(file);
        CHECK(sim_open_all() < 0);
        if (strstr(sim_error(), cases[i].error) == NULL)
            check_failed(__FILE__, __LINE__, "the error is: %s, not: %s", sim_error(), cases[i].error);
    }
}

static void get_proc_address(void) {
    static const struct {
        const char *name;
        int version;
        unsigned flags;
        CUresult result;
        void *symbol;
        int status;
    } cases[] = {
#define FINDS(name, version, flags, symbol) {name, version, flags, CUDA_SUCCESS, (void *)(uintptr_t)(symbol), 0}
        FINDS("cuMemAlloc", 12080, 0, cuMemAlloc_v2),
        FINDS("cuMemAlloc", 3020, 0, cuMemAlloc_v2),
        FINDS("cuMemAlloc", 3010, 0, cuMemAlloc),
        FINDS("cuMemAlloc", 2000, 0, cuMemAlloc),
        FINDS("cuMemAlloc", 12000, 2, cuMemAlloc_v2),
        FINDS("cuCtxCreate", 3000, 0, cuCtxCreate),
        FINDS("cuCtxCreate", 11030, 0, cuCtxCreate_v2),
        FINDS("cuCtxCreate", 11040, 0, cuCtxCreate_v3),
        FINDS("cuCtxCreate", 12050, 0, cuCtxCreate_v4),
        FINDS("cuDevicePrimaryCtxReset", 10000, 0, cuDevicePrimaryCtxReset),
        FINDS("cuDevicePrimaryCtxReset", 11000, 0, cuDevicePrimaryCtxReset_v2),
        FINDS("cuLaunchKernel", 12000, 0, cuLaunchKernel),
        FINDS("cuLaunchKernel", 12000, 1, cuLaunchKernel),
        FINDS("cuLaunchKernel", 12000, 2, cuLaunchKernel_ptsz),
        FINDS("cuLaunchKernel", 7000, 3, cuLaunchKernel_ptsz),
        FINDS("cuMemcpyHtoD", 12000, 2, cuMemcpyHtoD_v2_ptds),
        FINDS("cuMemcpyHtoD", 12000, 0, cuMemcpyHtoD_v2),
        FINDS("cuGetProcAddress", 11030, 0, cuGetProcAddress),
        FINDS("cuGetProcAddress", 12000, 0, cuGetProcAddress_v2),
        FINDS("cuEventElapsedTime", 12000, 0, cuEventElapsedTime),
        FINDS("cuMemAlloc", 13000, 0, cuMemAlloc_v2), /* newer than the driver */
        FINDS("cuMemAlloc", -1, 0, cuMemAlloc_v2),
        {"cuLaunchKernel", 6050, 2, CUDA_ERROR_NOT_FOUND, NULL, 2}, /* older than per-thread default streams */
        {"cuMemAlloc", 1000, 0, CUDA_ERROR_NOT_FOUND, NULL, 2},
        {"cuLaunchKernelEx", 11050, 0, CUDA_ERROR_NOT_FOUND, NULL, 2},
        {"cuMemAlloc_v2", 12000, 0, CUDA_ERROR_NOT_FOUND, NULL, 1},
        {"cuNoSuchThing", 12000, 0, CUDA_ERROR_NOT_FOUND, NULL, 1},
    };
    CUdriverProcAddressQueryResult status;
    void *symbol;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        status = -1;
        OK(cuGetProcAddress_v2(cases[i].name, &symbol, cases[i].version, cases[i].flags, &status));
        if (symbol != cases[i].symbol || (int)status != cases[i].status)
            check_failed(__FILE__, __LINE__, "%s, version %d, flags %u: wrong answer", cases[i].name, cases[i].version,
                         cases[i].flags);
        symbol = &status; /* which stays if nothing is found */
        CHECK_INT(cuGetProcAddress(cases[i].name, &symbol, cases[i].version, cases[i].flags), cases[i].result);
        CHECK(symbol == (cases[i].result == CUDA_SUCCESS ? cases[i].symbol : &status));
    }
    CHECK((void *)(uintptr_t)cuLaunchKernel != (void *)(uintptr_t)cuLaunchKernel_ptsz);
    CHECK_INT(cuGetProcAddress_v2(NULL, &symbol, 12000, 0, &status), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGetProcAddress_v2("cuInit", NULL, 12000, 0, &status), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGetProcAddress_v2("cuInit", &symbol, 12000, 4, &status), CUDA_ERROR_INVALID_VALUE);
    OK(cuGetProcAddress_v2("cuInit", &symbol, 12000, 0, NULL));
}

static void errors_have_names(void) {
    const char *text;

    OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK(strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
    OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK(strcmp(text, "out of memory") == 0);
    CHECK_INT(cuGetErrorName(12345, &text), CUDA_ERROR_INVALID_VALUE);
    CHECK(text == NULL);
    CHECK_INT(cuGetErrorName(CUDA_SUCCESS, NULL), CUDA_ERROR_INVALID_VALUE);
}

static void child_of_initialised(void *pointer) {
    CUcontext context;

    CHECK_INT(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_INT(cuCtxGetCurrent(&context), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_INT(cuMemFree_v2(*(CUdeviceptr *)pointer), CUDA_ERROR_NOT_INITIALIZED);
    say('r');
    hear();
}

static void a_forked_child_is_not_initialised(void) {
    struct worker child;
    CUdeviceptr pointer;
    struct outside o;

    context_on(0);
    OK(cuMemAlloc_v2(&pointer, 10 * MIB));
    child = worker_start(child_of_initialised, &pointer);
    CHECK_INT(worker_hear(&child), 'r');
    o = look("test");
    CHECK_INT(o.processes, 1);
    CHECK_INT(o.used[0], GPU0_CONTEXT + 10 * MIB);
    worker_join(&child);
    OK(cuMemFree_v2(pointer));
    CHECK_INT(look("test").used[0], GPU0_CONTEXT);
}

static void fork_before_and_leave(void *arg) {
    CUdeviceptr pointer;

    (void)arg;
    context_on(0);
    OK(cuMemAlloc_v2(&pointer, 10 * MIB));
    say('r');
    hear();
    if (fork() == 0) {
        hear();
        _exit(0);
    }
}

static void memory_lives_as_long_as_a_forked_child_has_the_descriptors(void) {
    struct worker parent = worker_start(fork_before_and_leave, NULL);

    CHECK_INT(worker_hear(&parent), 'r');
    worker_tell(&parent, 'f');
    /* The parent ends; its child, which it leaves behind, still holds what the driver has open. */
    while (look("test").processes == 0)
        sleep_ms(1);
    sleep_ms(50);
    CHECK_INT(look("test").used[0], GPU0_CONTEXT + 10 * MIB);
    worker_tell(&parent, 'e');
    worker_join(&parent);
    for (int i = 0; i < 1000 && look("test").used[0] != 0; i++)
        sleep_ms(1);
    CHECK_INT(look("test").used[0], 0);
}

const struct test init_tests[] = {
    {"uninitialised is an error", uninitialised_is_an_error},
    {"GPUs are as the topology says", gpus_are_as_the_topology_says},
    {"a GPU needs its device node", a_gpu_needs_its_device_node},
    {"no driver without nvidiactl", no_driver_without_nvidiactl},
    {"CUDA_VISIBLE_DEVICES", cuda_visible_devices},
    {"a state of other GPUs is refused", a_state_of_other_gpus_is_refused},
    {"a truncated state is refused", a_truncated_state_is_refused},
    {"bad topologies are named", bad_topologies_are_named},
    {"cuGetProcAddress", get_proc_address},
    {"errors have names", errors_have_names},
    {"a forked child is not initialised", a_forked_child_is_not_initialised},
    {"memory lives as long as a forked child has the descriptors",
     memory_lives_as_long_as_a_forked_child_has_the_descriptors},
    {0},
};
