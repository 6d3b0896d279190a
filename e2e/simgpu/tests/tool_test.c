/* The simgpu tool: the record, faults, and driver roots. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "harness.h"
#include "mig/mig.h"

static char output[65536];

#define TOOL(...) shell(output, sizeof(output), __VA_ARGS__)
#define CHECK_OUTPUT(text)                                                                                             \
    do {                                                                                                               \
        if (strstr(output, text) == NULL)                                                                              \
            check_failed(__FILE__, __LINE__, "no %s in: %s", text, output);                                            \
    } while (0)

static void hold(void *unused) {
    CUdeviceptr pointer;

    (void)unused;
    context_on(0);
    OK(cuMemAlloc_v2(&pointer, 10 * MIB));
    say('r');
    hear();
}

static void the_record(void) {
    struct worker worker = worker_start(hold, NULL);
    char expected[512];

    worker_hear(&worker);
    CHECK_INT(TOOL("%s record --json", tool_path), 0);
    CHECK_OUTPUT("{\"simulated\":true,\"gpus\":[{\"uuid\":\"" GPU0_UUID "\",\"name\":\"Simulated GPU S1\","
                 "\"memory_bytes\":1073741824,\"used_bytes\":77594624,");
    snprintf(expected, sizeof(expected),
             "{\"pid\":%d,\"nspid\":%d,\"group\":\"test\",\"alive\":true,\"gpus\":[{\"uuid\":\"" GPU0_UUID
             "\",\"bytes\":77594624,\"context_bytes\":67108864,\"allocations\":1,\"launches\":0,",
             worker.pid, worker.pid);
    CHECK_OUTPUT(expected);
    CHECK_OUTPUT("\"groups\":[{\"group\":\"test\",\"gpu_uuid\":\"" GPU0_UUID
                 "\",\"bytes\":77594624,\"peak_bytes\":77594624,\"processes\":1,\"launches\":0,\"busy_ns\":0,\"overlap_"
                 "ns\":0}]");
    CHECK_INT(TOOL("%s record", tool_path), 0);
    CHECK_OUTPUT("SIMULATED");
    worker_join(&worker);
    CHECK_INT(TOOL("%s record --json", tool_path), 0);
    CHECK_OUTPUT("\"processes\":[]");
    CHECK_OUTPUT("\"bytes\":0,\"peak_bytes\":77594624,\"processes\":0");
    CHECK_INT(TOOL("%s reset-peak && %s record --json", tool_path, tool_path), 0);
    CHECK_OUTPUT("\"groups\":[]");
}

static void the_default_group_is_the_pid_namespace(void) {
    char link[64], expected[128];
    struct worker worker;
    ssize_t length;

    unsetenv("SIMGPU_LABEL");
    worker = worker_start(hold, NULL);
    worker_hear(&worker);
    length = readlink("/proc/self/ns/pid", link, sizeof(link) - 1);
    link[length > 0 ? length - 1 : 0] = '\0';
    snprintf(expected, sizeof(expected), "\"group\":\"pidns:%s:", link + strlen("pid:["));
    CHECK_INT(TOOL("%s record --json", tool_path), 0);
    CHECK_OUTPUT(expected);
    worker_join(&worker);
}

static void faults_from_outside(void) {
    CUdeviceptr pointer;

    context_on(0);
    CHECK_INT(TOOL("%s fault alloc 0 1 2", tool_path), 0);
    CHECK_INT(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&pointer, 1));
    CHECK_INT(TOOL("%s fault lost 0 on", tool_path), 0);
    CHECK_INT(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_DEVICE_UNAVAILABLE);
    CHECK_INT(TOOL("%s fault clear", tool_path), 0);
    OK(cuMemAlloc_v2(&pointer, 1));
    CHECK_INT(TOOL("%s fault xid 1 48 && %s fault nvml-absent on", tool_path, tool_path), 0);
    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(sim_event_last(), 2);
    CHECK(sim_nvml_absent());
}

/* What `simgpu` says of MIG, and does to it. */
static void mig_from_outside(void) {
    struct sim_gi gi;
    struct sim_ci ci;

    node_use_topology("mixed.conf");
    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(sim_mig_set_mode(0, true), 0);
    CHECK_INT(sim_gi_create(0, sim_mig_profile(0, 14), 2, &gi), 0);
    CHECK_INT(TOOL("%s record --json", tool_path), 0);
    CHECK_OUTPUT("\"mig\":{\"gpus\":[{\"uuid\":\"GPU-51d40f7e-a140-4e6b-9f3d-5a1e00000000\",\"mode\":true,"
                 "\"pending\":true,\"gpu_instances\":[{\"id\":4,\"profile\":\"2g.10gb\",\"profile_id\":14,\"start\":2,"
                 "\"size\":2,\"memory_bytes\":");
    CHECK_OUTPUT("\"compute_instances\":[]}");
    CHECK_OUTPUT("\"what\":\"gi-created\"");
    CHECK_INT(sim_ci_create(0, gi.seat, 2, -1, &ci), 0);
    CHECK_INT(TOOL("%s record --json", tool_path), 0);
    CHECK_OUTPUT("\"compute_instances\":[{\"id\":0,\"uuid\":\"MIG-");
    CHECK_OUTPUT("\"name\":\"NVIDIA A100-SXM4-40GB MIG 2g.10gb\",\"start\":0,\"size\":2,\"sm_count\":28,");
    CHECK_INT(TOOL("%s fault mig gi-create 1 19 && %s fault mig-delay 3", tool_path, tool_path), 0);
    CHECK_INT(sim_fault_mig_take(MIG_ACT_GI_CREATE), 19);
    CHECK_INT(sim_fault_mig_take(MIG_ACT_GI_CREATE), 0);
    CHECK_INT(TOOL("%s reset 1", tool_path), 0);
    CHECK_INT(sim_gi_get(0, gi.seat, &gi), 0);
    CHECK_INT(TOOL("%s reload", tool_path), 0);
    CHECK(sim_gi_get(0, gi.seat, &gi) != 0 && sim_mig_on(0));
    CHECK_INT(TOOL("%s record", tool_path), 0);
    CHECK_OUTPUT("reloaded");
}

static void bad_commands(void) {
    static const struct {
        const char *arguments, *says;
    } cases[] = {
        {"", "usage"},
        {"nonsense", "usage"},
        {"fault alloc 9 1 2", "9: must be a whole number from 0 to 1"},
        {"fault alloc 0 x 2", "x: must be a whole number"},
        {"fault lost 0 maybe", "maybe: must be on or off"},
        {"fault", "fault: one of these must follow"},
        {"fault xid 0", "xid GPU N [GI [CI]]"},
        {"fault ecc 0 corrected nowhere 1", "dram, l1, l2, registers or sram must follow"},
        {"fault driver sideways", "must be unload or load"},
        {"fault recovery 0 8", "8: must be a whole number from 0 to 7"},
        {"set 0 colour 1", "there is no setting colour"},
        {"set 0 encoder_utilisation 101", "101: must be a whole number from 0 to 100"},
        {"set 0 power_mw", "GPU NAME VALUE|unsupported|default must follow"},
        {"reset", "reset: the GPU must follow"},
        {"fault mig x 1 2", "x: must be mode, gi-create"},
        {"fault alloc MIG-1 1 2", "MIG-1: there is no such MIG device"},
        {"reload x", "only --force"},
        {"reset 9", "9: must be a whole number"},
        {"record --xml", "only --json"},
        {"root", "the directory must follow"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CHECK(TOOL("%s %s 2>&1", tool_path, cases[i].arguments) != 0);
        CHECK_OUTPUT(cases[i].says);
    }
    CHECK_INT(TOOL("SIMGPU_TOPOLOGY=/nonexistent %s record 2>&1", tool_path), 1);
    CHECK_OUTPUT("/nonexistent: No such file or directory");
}

static void check_root(const char *root) {
    char path[PATH_MAX], target[PATH_MAX] = "";
    struct stat info;

    snprintf(path, sizeof(path), "%s/usr/lib/x86_64-linux-gnu/libcuda.so", root);
    CHECK(realpath(path, target) != NULL);
    CHECK(strstr(target, "libcuda.so.570.124.06") != NULL);
    snprintf(path, sizeof(path), "%s/dev/nvidia1", root);
    CHECK_INT(stat(path, &info), 0);
    if (geteuid() == 0) {
        CHECK(S_ISCHR(info.st_mode));
        CHECK_INT(major(info.st_rdev), 10);
        CHECK_INT(minor(info.st_rdev), 229);
    } else {
        CHECK(S_ISREG(info.st_mode));
    }
    CHECK_INT(info.st_mode & 0777, 0666);
    snprintf(path, sizeof(path), "%s/run/simgpu/state", root);
    CHECK_INT(stat(path, &info), 0);
    CHECK_INT(info.st_mode & 0777, 0666);
}

static void check_cdi(const char *root) {
    char expected[PATH_MAX * 2];

    CHECK_INT(TOOL("cat %s/etc/cdi/simulated-gpu.json", root), 0);
    CHECK_OUTPUT("{\"cdiVersion\":\"0.5.0\",\"kind\":\"nvidia.com/gpu\"");
    CHECK_OUTPUT("{\"name\":\"" GPU1_UUID "\"");
    CHECK_OUTPUT("{\"name\":\"0\"");
    CHECK_OUTPUT("{\"name\":\"all\"");
    snprintf(expected, sizeof(expected), "{\"path\":\"/dev/nvidia1\",\"hostPath\":\"%s/dev/nvidia1\"", root);
    CHECK_OUTPUT(expected);
    snprintf(expected, sizeof(expected),
             "{\"hostPath\":\"%s/usr/lib/x86_64-linux-gnu/libcuda.so.570.124.06\","
             "\"containerPath\":\"/usr/lib/x86_64-linux-gnu/libcuda.so.1\"",
             root);
    CHECK_OUTPUT(expected);
    CHECK_OUTPUT("\"containerPath\":\"/run/simgpu\",\"options\":[\"rw\"");
}

static void make_root(void *unused) {
    char root[PATH_MAX];

    (void)unused;
    snprintf(root, sizeof(root), "%s", node_path("root"));
    CHECK_INT(TOOL("%s root %s 2>&1", tool_path, root), 0);
    if (geteuid() != 0)
        CHECK_OUTPUT("device nodes need root");
    check_root(root);
    check_cdi(root);
    /* Once more, now from the root itself: the same tree, and the state is kept. */
    CHECK_INT(TOOL("stat -c %%i %s/run/simgpu/state", root), 0);
    {
        char inode[64];

        snprintf(inode, sizeof(inode), "%.63s", output);
        CHECK_INT(TOOL("SIMGPU_TOPOLOGY=%s/run/simgpu/topology %s root %s 2>&1", root, tool_path, root), 0);
        check_root(root);
        CHECK_INT(TOOL("stat -c %%i %s/run/simgpu/state", root), 0);
        CHECK(strcmp(inode, output) == 0);
    }
}

static void a_driver_root(void) {
    struct worker worker = worker_start(make_root, NULL);

    worker_join(&worker);
}

static void become_nobody(void *unused) {
    if (geteuid() == 0) {
        CHECK_INT(setgid(65534), 0);
        CHECK_INT(setuid(65534), 0);
    }
    make_root(unused);
}

static void a_driver_root_without_being_root(void) {
    struct worker worker;

    CHECK_INT(chmod(node_path("."), 0777), 0);
    worker = worker_start(become_nobody, NULL);
    worker_join(&worker);
}

const struct test tool_tests[] = {
    {"the record", the_record},
    {"the default group is the pid namespace", the_default_group_is_the_pid_namespace},
    {"faults from outside", faults_from_outside},
    {"MIG from outside", mig_from_outside},
    {"bad commands", bad_commands},
    {"a driver root", a_driver_root},
    {"a driver root without being root", a_driver_root_without_being_root},
    {0},
};
