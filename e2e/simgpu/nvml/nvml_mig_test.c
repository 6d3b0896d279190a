/* Tests of MIG through NVML: modes, profiles, places, instances and their errors, and several processes at once. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nvml_test.h"

/* The GPUs of mixed.conf. */
enum { A100, A100_SECOND, H100, T4 };

enum { ID_1G = 19, ID_1G_MEDIA = 20, ID_1G_DOUBLE = 15, ID_2G = 14, ID_3G = 9, ID_4G = 5, ID_7G = 0 };

static void use_topology(const char *name) {
    char path[256], node[32];

    snprintf(path, sizeof(path), "e2e/simgpu/topologies/%s.conf", name);
    setenv("SIMGPU_TOPOLOGY", path, 1);
    for (int minor = 0; minor < 8; minor++) {
        snprintf(node, sizeof(node), "dev/nvidia%d", minor);
        write_file(node, "");
    }
    OK(nvmlInit_v2());
}

static nvmlReturn_t set_mode(unsigned int gpu, unsigned int mode) {
    nvmlReturn_t activation = NVML_ERROR_UNKNOWN;

    OK(nvmlDeviceSetMigMode(gpu_handle(gpu), mode, &activation));
    return activation;
}

static void check_mode(unsigned int gpu, unsigned int want_current, unsigned int want_pending) {
    unsigned int current, pending;

    OK(nvmlDeviceGetMigMode(gpu_handle(gpu), &current, &pending));
    CHECK_EQ(current, want_current);
    CHECK_EQ(pending, want_pending);
}

static void use_partitioned(const char *name, unsigned int gpu) {
    use_topology(name);
    OK(set_mode(gpu, 1));
}

static nvmlReturn_t create_at(unsigned int gpu, unsigned int id, unsigned int start, unsigned int size,
                              nvmlGpuInstance_t *instance) {
    nvmlGpuInstancePlacement_t placement = {.start = start, .size = size};

    return nvmlDeviceCreateGpuInstanceWithPlacement(gpu_handle(gpu), id, &placement, instance);
}

/* A GPU instance with one compute instance that is all of it. */
static nvmlComputeInstance_t make_device(unsigned int gpu, unsigned int id, unsigned int start, unsigned int size,
                                         unsigned int compute_profile) {
    nvmlGpuInstance_t instance;
    nvmlComputeInstance_t compute;

    OK(create_at(gpu, id, start, size, &instance));
    OK(nvmlGpuInstanceCreateComputeInstance(instance, compute_profile, &compute));
    return compute;
}

static nvmlComputeInstanceInfo_t info_of(nvmlComputeInstance_t compute) {
    nvmlComputeInstanceInfo_t info;

    OK(nvmlComputeInstanceGetInfo_v2(compute, &info));
    return info;
}

static unsigned int start_of(nvmlGpuInstance_t instance) {
    nvmlGpuInstanceInfo_t info;

    OK(nvmlGpuInstanceGetInfo(instance, &info));
    return info.placement.start;
}

/* Runs in a child process, whose failed checks are the test's. */
static void in_child(void (*run)(void)) {
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        run();
        _exit(0);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
}

/* ---- Modes ---- */

void test_mig_without(void) {
    unsigned int value, pending;
    nvmlReturn_t activation;
    nvmlGpuInstance_t gi;
    nvmlGpuInstanceProfileInfo_t info;
    nvmlDevice_t mig;

    use_topology("mixed");
    CHECK_EQ(nvmlDeviceGetMigMode(gpu_handle(T4), &value, &pending), NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQ(nvmlDeviceSetMigMode(gpu_handle(T4), 1, &activation), NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQ(nvmlDeviceGetGpuInstanceProfileInfo(gpu_handle(T4), 0, &info), NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQ(nvmlDeviceCreateGpuInstance(gpu_handle(T4), ID_1G, &gi), NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQ(nvmlDeviceGetMigDeviceHandleByIndex(gpu_handle(T4), 0, &mig), NVML_ERROR_NOT_SUPPORTED);
    OK(nvmlDeviceGetMaxMigDeviceCount(gpu_handle(T4), &value));
    CHECK_EQ(value, 0);
    /* With MIG, but not in its mode. */
    CHECK_EQ(nvmlDeviceCreateGpuInstance(gpu_handle(H100), ID_1G, &gi), NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQ(nvmlDeviceGetGpuInstanceById(gpu_handle(H100), 1, &gi), NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQ(nvmlDeviceSetMigMode(gpu_handle(H100), 2, &activation), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(nvmlDeviceSetMigMode(gpu_handle(H100), 1, NULL), NVML_ERROR_INVALID_ARGUMENT);
}

static void hold_session(void) {
    OK(nvmlInit_v2());
}

void test_mig_mode_of_hopper(void) {
    unsigned int value;
    nvmlGpuInstance_t gi;

    nvmlGpuVirtualizationMode_t virtualization;

    use_topology("mixed");
    nvmlDevice_t before = gpu_handle(H100);
    OK(nvmlDeviceGetVirtualizationMode(before, &virtualization));
    CHECK_EQ(virtualization, NVML_GPU_VIRTUALIZATION_MODE_NONE);
    check_mode(H100, 0, 0);
    OK(set_mode(H100, 1));
    check_mode(H100, 1, 1);
    check_mode(A100, 0, 0);
    OK(nvmlDeviceGetIndex(before, &value)); /* it was not bound anew */
    OK(nvmlDeviceGetMaxMigDeviceCount(gpu_handle(H100), &value));
    CHECK_EQ(value, 7);
    OK(nvmlDeviceCreateGpuInstance(gpu_handle(H100), ID_1G, &gi));
    CHECK_EQ(set_mode(H100, 0), NVML_ERROR_IN_USE);
    check_mode(H100, 1, 1);
    OK(nvmlGpuInstanceDestroy(gi));
    OK(set_mode(H100, 0));
    check_mode(H100, 0, 0);
    in_child(hold_session);
}

/* A process with a session of NVML; returns when it has it. */
static struct user start_session(void) {
    int ready[2], stop[2];
    char byte = 0;

    CHECK_EQ(pipe2(ready, O_CLOEXEC), 0);
    CHECK_EQ(pipe2(stop, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(stop[1]);
        nvmlShutdown();
        if (nvmlInit_v2() != NVML_SUCCESS || write(ready[1], &byte, 1) != 1 || read(stop[0], &byte, 1) != 0)
            _exit(1);
        _exit(0);
    }
    close(stop[0]);
    close(ready[1]);
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return (struct user){pid, stop[1]};
}

/* Before Hopper the GPU is bound anew, which needs that nobody else has a session. */
void test_mig_mode_of_ampere(void) {
    unsigned int value;

    use_topology("mixed");
    nvmlDevice_t before = gpu_handle(A100), other = gpu_handle(A100_SECOND);
    struct user session = start_session();
    CHECK_EQ(set_mode(A100, 1), NVML_ERROR_IN_USE);
    check_mode(A100, 0, 1);
    OK(nvmlDeviceGetIndex(before, &value));
    end_user(session);
    check_mode(A100, 0, 1);
    OK(set_mode(A100, 1));
    check_mode(A100, 1, 1);
    CHECK_EQ(nvmlDeviceGetIndex(before, &value), NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlDeviceGetIndex(other, &value));
    OK(nvmlDeviceGetIndex(gpu_handle(A100), &value));
    /* A reset from outside does it, too. */
    session = start_session();
    CHECK_EQ(set_mode(A100_SECOND, 1), NVML_ERROR_IN_USE);
    end_user(session);
    CHECK_EQ(sim_mig_reset(A100_SECOND), 0);
    check_mode(A100_SECOND, 1, 1);
    /* To want what is calls off what was pending. */
    session = start_session();
    CHECK_EQ(set_mode(A100, 0), NVML_ERROR_IN_USE);
    OK(set_mode(A100, 1));
    check_mode(A100, 1, 1);
    end_user(session);
}

void test_mig_mode_and_processes(void) {
    use_topology("mixed");
    struct user user = start_user(H100, 64 * MIB, 0);
    CHECK_EQ(set_mode(H100, 1), NVML_ERROR_IN_USE);
    check_mode(H100, 0, 0); /* there is no reset for which it could wait */
    CHECK_EQ(set_mode(A100_SECOND, 1), NVML_SUCCESS);
    end_user(user);
    OK(set_mode(H100, 1));
    user = start_user(A100, 64 * MIB, 0);
    CHECK_EQ(set_mode(A100, 1), NVML_ERROR_IN_USE);
    CHECK_EQ(sim_mig_reset(A100), -16);
    kill_user(user);
    OK(set_mode(A100, 1));
}

static void without_privilege(void) {
    nvmlReturn_t activation;
    nvmlGpuInstance_t gi;
    nvmlComputeInstance_t ci;
    unsigned int count;

    OK(nvmlInit_v2());
    CHECK_EQ(setresuid(65534, 65534, 65534), 0);
    CHECK_EQ(nvmlDeviceSetMigMode(gpu_handle(H100), 0, &activation), NVML_ERROR_NO_PERMISSION);
    CHECK_EQ(nvmlDeviceCreateGpuInstance(gpu_handle(H100), ID_1G, &gi), NVML_ERROR_NO_PERMISSION);
    CHECK_EQ(nvmlDeviceGetGpuInstanceRemainingCapacity(gpu_handle(H100), ID_1G, &count), NVML_ERROR_NO_PERMISSION);
    OK(nvmlDeviceGetGpuInstanceById(gpu_handle(H100), 7, &gi));
    CHECK_EQ(nvmlGpuInstanceCreateComputeInstance(gi, 0, &ci), NVML_ERROR_NO_PERMISSION);
    CHECK_EQ(nvmlGpuInstanceDestroy(gi), NVML_ERROR_NO_PERMISSION);
    OK(nvmlGpuInstanceGetComputeInstanceById(gi, 0, &ci));
    CHECK_EQ(nvmlComputeInstanceDestroy(ci), NVML_ERROR_NO_PERMISSION);
}

void test_mig_privilege(void) {
    use_partitioned("mixed", H100);
    make_device(H100, ID_1G, 0, 1, NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE);
    OK(nvmlShutdown()); /* a child inherits no session */
    in_child(without_privilege);
}

/* ---- Profiles ---- */

/* "1g.5gb 19 1 7 4864 14 0123456:1" */
static void describe_profile(unsigned int number, char *text, size_t size) {
    nvmlGpuInstanceProfileInfo_v2_t v2 = {.version = nvmlGpuInstanceProfileInfo_v2};
    nvmlGpuInstanceProfileInfo_v3_t v3 = {.version = nvmlGpuInstanceProfileInfo_v3};
    nvmlGpuInstanceProfileInfo_t info;
    nvmlGpuInstancePlacement_t placements[8];
    unsigned int count, first = 8;
    char starts[16] = "";

    OK(nvmlDeviceGetGpuInstanceProfileInfo(gpu_handle(0), number, &info));
    OK(nvmlDeviceGetGpuInstanceProfileInfoV(gpu_handle(0), number, &v2));
    OK(nvmlDeviceGetGpuInstanceProfileInfoV(gpu_handle(0), number, (nvmlGpuInstanceProfileInfo_v2_t *)(void *)&v3));
    CHECK_STR(v2.name, v3.name);
    CHECK_EQ(v2.id, info.id);
    CHECK_EQ(v3.memorySizeMB, info.memorySizeMB);
    CHECK_EQ(v3.sliceCount, v2.sliceCount);
    OK(nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu_handle(0), info.id, NULL, &count));
    OK(nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu_handle(0), info.id, placements, &first));
    CHECK_EQ(first, count);
    for (unsigned int i = 0; i < count; i++) {
        starts[i] = (char)('0' + placements[i].start);
        CHECK_EQ(placements[i].size, placements[0].size);
    }
    snprintf(text, size, "%s %u %u %u %llu %u %s:%u", v2.name, info.id, info.sliceCount, info.instanceCount,
             info.memorySizeMB, info.multiprocessorCount, starts, placements[0].size);
}

/* Profile, ID, slices, instances, MiB, multiprocessors, starts:size; in the order of NVML's numbers. */
static const struct {
    const char *topology;
    const char *profiles[8];
} boards[] = {
    {"a30x8",
     {"1g.6gb 14 1 4 5952 14 0123:1", "2g.12gb 5 2 2 11968 28 02:2", "4g.24gb 0 4 1 24000 56 0:4",
      "1g.6gb+me 21 1 1 5952 14 0123:1", "2g.12gb+me 6 2 1 11968 28 02:2"}},
    {"a100-40x8",
     {"1g.5gb 19 1 7 4864 14 0123456:1", "2g.10gb 14 2 3 9856 28 024:2", "3g.20gb 9 3 2 19968 42 04:4",
      "4g.20gb 5 4 1 19968 56 0:4", "7g.40gb 0 7 1 40192 98 0:8", "1g.5gb+me 20 1 1 4864 14 0123456:1",
      "1g.10gb 15 1 4 9856 14 0246:2"}},
    {"a100-80x8",
     {"1g.10gb 19 1 7 9856 14 0123456:1", "2g.20gb 14 2 3 19968 28 024:2", "3g.40gb 9 3 2 40192 42 04:4",
      "4g.40gb 5 4 1 40192 56 0:4", "7g.80gb 0 7 1 80384 98 0:8", "1g.10gb+me 20 1 1 9856 14 0123456:1",
      "1g.20gb 15 1 4 19968 14 0246:2"}},
    {"h100x8",
     {"1g.10gb 19 1 7 9984 16 0123456:1", "2g.20gb 14 2 3 20096 32 024:2", "3g.40gb 9 3 2 40448 60 04:4",
      "4g.40gb 5 4 1 40448 64 0:4", "7g.80gb 0 7 1 81152 132 0:8", "1g.10gb+me 20 1 1 9984 16 0123456:1",
      "1g.20gb 15 1 4 20096 26 0246:2"}},
    {"h200x8",
     {"1g.18gb 19 1 7 16384 16 0123456:1", "2g.35gb 14 2 3 33280 32 024:2", "3g.71gb 9 3 2 71680 60 04:4",
      "4g.71gb 5 4 1 71680 64 0:4", "7g.141gb 0 7 1 143360 132 0:8", "1g.18gb+me 20 1 1 16384 16 0123456:1",
      "1g.35gb 15 1 4 33280 26 0246:2"}},
    {"b200x8",
     {"1g.23gb 19 1 7 22528 18 0123456:1", "2g.45gb 14 2 3 45056 36 024:2", "3g.90gb 9 3 2 90624 54 04:4",
      "4g.90gb 5 4 1 90624 72 0:4", "7g.180gb 0 7 1 182272 126 0:8", "1g.23gb+me 20 1 1 22528 18 0123456:1",
      "1g.45gb 15 1 4 45056 18 0246:2"}},
};

static void check_board(const char *topology, const char *const *profiles) {
    nvmlGpuInstanceProfileInfo_t info;
    unsigned int found = 0;
    char text[128];

    use_partitioned(topology, 0);
    for (unsigned int number = 0; number < NVML_GPU_INSTANCE_PROFILE_COUNT; number++) {
        nvmlReturn_t ret = nvmlDeviceGetGpuInstanceProfileInfo(gpu_handle(0), number, &info);

        if (ret == NVML_ERROR_NOT_SUPPORTED)
            continue;
        OK(ret);
        describe_profile(number, text, sizeof(text));
        if (profiles[found] == NULL || strcmp(text, profiles[found]) != 0)
            printf("    %s: %s\n", topology, text);
        CHECK(profiles[found] != NULL);
        CHECK_STR(text, profiles[found++]);
    }
    CHECK(profiles[found] == NULL);
    CHECK_EQ(nvmlDeviceGetGpuInstanceProfileInfo(gpu_handle(0), NVML_GPU_INSTANCE_PROFILE_COUNT, &info),
             NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlShutdown());
    unlink(in_node("state"));
}

void test_mig_profiles(void) {
    for (size_t i = 0; i < sizeof(boards) / sizeof(boards[0]); i++)
        check_board(boards[i].topology, boards[i].profiles);
}

/* Later GPUs tell their profiles without MIG mode, too. */
void test_mig_profiles_without_mode(void) {
    nvmlGpuInstanceProfileInfo_t info;
    nvmlGpuInstanceProfileInfo_v2_t versioned = {.version = 7};

    use_topology("mixed");
    CHECK_EQ(nvmlDeviceGetGpuInstanceProfileInfo(gpu_handle(A100), 0, &info), NVML_ERROR_NOT_SUPPORTED);
    OK(nvmlDeviceGetGpuInstanceProfileInfo(gpu_handle(H100), 0, &info));
    CHECK_EQ(nvmlDeviceGetGpuInstanceProfileInfoV(gpu_handle(H100), 0, &versioned),
             NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    CHECK_EQ(nvmlDeviceGetGpuInstanceProfileInfo(gpu_handle(H100), 0, NULL), NVML_ERROR_INVALID_ARGUMENT);
}

/* ---- Places ---- */

static nvmlReturn_t create_anywhere(unsigned int id, unsigned int *start) {
    nvmlGpuInstance_t gi;
    nvmlReturn_t ret = nvmlDeviceCreateGpuInstance(gpu_handle(0), id, &gi);

    if (ret == NVML_SUCCESS)
        *start = start_of(gi);
    return ret;
}

/* The driver begins at the end, so that the order in which instances are made decides what fits. */
void test_mig_places_chosen(void) {
    unsigned int start = 99;

    use_partitioned("a100-40x8", 0);
    OK(create_anywhere(ID_3G, &start));
    CHECK_EQ(start, 4);
    OK(create_anywhere(ID_2G, &start));
    CHECK_EQ(start, 2);
    OK(create_anywhere(ID_2G, &start));
    CHECK_EQ(start, 0);
    CHECK_EQ(create_anywhere(ID_1G, &start), NVML_ERROR_INSUFFICIENT_RESOURCES);
    CHECK_EQ(sim_mig_reset(0), 0);
    OK(create_anywhere(ID_1G, &start));
    CHECK_EQ(start, 6);
    OK(create_anywhere(ID_1G, &start));
    OK(create_anywhere(ID_2G, &start));
    CHECK_EQ(start, 2);
    CHECK_EQ(create_anywhere(ID_3G, &start), NVML_ERROR_INSUFFICIENT_RESOURCES);
}

struct place {
    unsigned int id, start, size;
};

static unsigned int all_places(struct place *places) {
    static const unsigned int ids[] = {ID_1G, ID_1G_MEDIA, ID_1G_DOUBLE, ID_2G, ID_3G, ID_4G, ID_7G};
    nvmlGpuInstancePlacement_t placements[8];
    unsigned int count = 0, of_profile;

    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        OK(nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu_handle(0), ids[i], placements, &of_profile));
        for (unsigned int p = 0; p < of_profile; p++)
            places[count++] = (struct place){ids[i], placements[p].start, placements[p].size};
    }
    return count;
}

/* Two instances fit if and only if they share no slot, and are not both the one with media engines. */
static void check_pair(struct place a, struct place b) {
    nvmlGpuInstance_t first, second;
    bool apart = a.start + a.size <= b.start || b.start + b.size <= a.start;
    bool fits = apart && (a.id != ID_1G_MEDIA || b.id != ID_1G_MEDIA);

    OK(create_at(0, a.id, a.start, a.size, &first));
    CHECK_EQ(create_at(0, b.id, b.start, b.size, &second), fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_RESOURCES);
    if (fits)
        OK(nvmlGpuInstanceDestroy(second));
    OK(nvmlGpuInstanceDestroy(first));
}

void test_mig_places_asked_for(void) {
    struct place places[64];
    nvmlGpuInstance_t gi;

    use_partitioned("h100x8", 0);
    unsigned int count = all_places(places);
    CHECK_EQ(count, 25);
    for (unsigned int a = 0; a < count; a++) {
        for (unsigned int b = 0; b < count; b++)
            check_pair(places[a], places[b]);
    }
    CHECK_EQ(create_at(0, ID_2G, 6, 2, &gi), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(create_at(0, ID_2G, 1, 2, &gi), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(create_at(0, ID_2G, 0, 1, &gi), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(create_at(0, ID_1G, 7, 1, &gi), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(create_at(0, ID_4G, 4, 4, &gi), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(create_at(0, 77, 0, 1, &gi), NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQ(nvmlDeviceCreateGpuInstanceWithPlacement(gpu_handle(0), ID_1G, NULL, &gi), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(nvmlDeviceCreateGpuInstance(gpu_handle(0), ID_1G, NULL), NVML_ERROR_INVALID_ARGUMENT);
}

static unsigned int capacity(unsigned int id) {
    unsigned int count;

    OK(nvmlDeviceGetGpuInstanceRemainingCapacity(gpu_handle(0), id, &count));
    return count;
}

void test_mig_capacity(void) {
    nvmlGpuInstance_t gi, all[8];
    unsigned int start, count;

    use_partitioned("h200x8", 0);
    CHECK_EQ(capacity(ID_1G), 7);
    CHECK_EQ(capacity(ID_1G_DOUBLE), 4);
    CHECK_EQ(capacity(ID_3G), 2);
    OK(create_at(0, ID_2G, 2, 2, &gi));
    CHECK_EQ(capacity(ID_1G), 5);
    CHECK_EQ(capacity(ID_1G_DOUBLE), 3);
    CHECK_EQ(capacity(ID_2G), 2);
    CHECK_EQ(capacity(ID_3G), 1);
    CHECK_EQ(capacity(ID_4G), 0);
    CHECK_EQ(capacity(ID_7G), 0);
    OK(nvmlGpuInstanceDestroy(gi));
    CHECK_EQ(capacity(ID_1G_MEDIA), 1);
    OK(create_at(0, ID_1G_MEDIA, 0, 1, &gi));
    CHECK_EQ(capacity(ID_1G_MEDIA), 0);
    OK(nvmlGpuInstanceDestroy(gi));
    for (int i = 0; i < 7; i++)
        OK(create_anywhere(ID_1G, &start));
    CHECK_EQ(create_anywhere(ID_1G, &start), NVML_ERROR_INSUFFICIENT_RESOURCES);
    CHECK_EQ(capacity(ID_1G), 0);
    OK(nvmlDeviceGetGpuInstances(gpu_handle(0), ID_1G, all, &count));
    CHECK_EQ(count, 7);
    OK(nvmlDeviceGetGpuInstances(gpu_handle(0), ID_2G, all, &count));
    CHECK_EQ(count, 0);
}

/* ---- Instances ---- */

void test_mig_a_life(void) {
    char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE], cap[64];
    nvmlDeviceAttributes_t attributes;
    nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
    nvmlDevice_t parent, mig;
    nvmlGpuInstance_t gi, again;
    unsigned int value;

    use_partitioned("mixed", A100);
    nvmlComputeInstance_t ci = make_device(A100, ID_3G, 4, 4, NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE);
    nvmlComputeInstanceInfo_t info = info_of(ci);
    CHECK_EQ(info.id, 0);
    CHECK_EQ(info.placement.size, 3);
    OK(nvmlDeviceIsMigDeviceHandle(info.device, &value));
    CHECK_EQ(value, 1);
    OK(nvmlDeviceGetName(info.device, name, sizeof(name)));
    CHECK_STR(name, "NVIDIA A100-SXM4-40GB MIG 3g.20gb");
    OK(nvmlDeviceGetAttributes_v2(info.device, &attributes));
    CHECK_EQ(attributes.memorySizeMB, 19968);
    CHECK_EQ(attributes.multiprocessorCount, 42);
    CHECK_EQ(attributes.gpuInstanceSliceCount, 3);
    CHECK_EQ(attributes.computeInstanceSliceCount, 3);
    CHECK_EQ(attributes.sharedDecoderCount, 2);
    OK(nvmlDeviceGetMemoryInfo_v2(info.device, &memory));
    CHECK_EQ(memory.total, 19968 * MIB);
    CHECK(memory.reserved > 0);
    OK(nvmlDeviceGetGpuInstanceId(info.device, &value));
    CHECK_EQ(value, 2);
    OK(nvmlDeviceGetComputeInstanceId(info.device, &value));
    CHECK_EQ(value, 0);
    OK(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(info.device, &parent));
    CHECK(parent.handle == gpu_handle(A100).handle);
    OK(nvmlDeviceGetMigDeviceHandleByIndex(gpu_handle(A100), 0, &mig));
    CHECK(mig.handle == info.device.handle);
    CHECK_EQ(nvmlDeviceGetMigDeviceHandleByIndex(gpu_handle(A100), 1, &mig), NVML_ERROR_NOT_FOUND);
    CHECK_EQ(nvmlDeviceGetMigDeviceHandleByIndex(gpu_handle(A100), 7, &mig), NVML_ERROR_INVALID_ARGUMENT);
    snprintf(cap, sizeof(cap), "dev/nvidia-caps/nvidia-cap%d", 3 + 2 * 9 + 1);
    CHECK_EQ(access(in_node(cap), R_OK), 0);

    OK(nvmlDeviceGetGpuInstanceById(gpu_handle(A100), 2, &gi));
    CHECK_EQ(nvmlDeviceGetGpuInstanceById(gpu_handle(A100), 1, &again), NVML_ERROR_NOT_FOUND);
    CHECK_EQ(nvmlGpuInstanceDestroy(gi), NVML_ERROR_IN_USE);
    OK(nvmlComputeInstanceDestroy(ci));
    CHECK_EQ(nvmlDeviceGetName(info.device, name, sizeof(name)), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(nvmlComputeInstanceDestroy(ci), NVML_ERROR_INVALID_ARGUMENT);
    CHECK(access(in_node(cap), F_OK) != 0);
    OK(nvmlGpuInstanceDestroy(gi));
    CHECK_EQ(nvmlGpuInstanceDestroy(gi), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(nvmlDeviceGetGpuInstanceById(gpu_handle(A100), 2, &gi), NVML_ERROR_NOT_FOUND);
}

static void uuid_of(nvmlComputeInstance_t ci, char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE]) {
    nvmlDevice_t device = info_of(ci).device, by_uuid;

    OK(nvmlDeviceGetUUID(device, uuid, NVML_DEVICE_UUID_V2_BUFFER_SIZE));
    OK(nvmlDeviceGetHandleByUUID(uuid, &by_uuid));
    CHECK(by_uuid.handle == device.handle);
}

/* A function of GPU and instance: what is made again at the same place has the same one. */
void test_mig_uuids(void) {
    char first[NVML_DEVICE_UUID_V2_BUFFER_SIZE], again[NVML_DEVICE_UUID_V2_BUFFER_SIZE],
        other[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    nvmlDevice_t device;

    use_topology("mixed");
    OK(set_mode(A100, 1));
    OK(set_mode(A100_SECOND, 1));
    nvmlComputeInstance_t ci = make_device(A100, ID_1G, 3, 1, 0);
    uuid_of(ci, first);
    /* Version 5 of the name 10/0 in the space of the GPU's UUID. */
    CHECK_STR(first, "MIG-43c6413e-0c6f-5404-9f51-a99a9bff5d84");
    nvmlComputeInstanceInfo_t info = info_of(ci);
    OK(nvmlComputeInstanceDestroy(ci));
    CHECK_EQ(nvmlDeviceGetHandleByUUID(first, &device), NVML_ERROR_NOT_FOUND);
    OK(nvmlGpuInstanceDestroy(info.gpuInstance));
    uuid_of(make_device(A100, ID_1G, 3, 1, 0), again);
    CHECK_STR(again, first);
    uuid_of(make_device(A100, ID_1G, 2, 1, 0), other);
    CHECK(strcmp(other, first) != 0);
    uuid_of(make_device(A100_SECOND, ID_1G, 3, 1, 0), other);
    CHECK(strcmp(other, first) != 0);
}

/* Several in one GPU instance share its memory. */
void test_mig_compute_instances(void) {
    nvmlComputeInstanceProfileInfo_v2_t profile = {.version = nvmlComputeInstanceProfileInfo_v2};
    nvmlComputeInstanceProfileInfo_t plain;
    nvmlComputeInstancePlacement_t placement = {.start = 0, .size = 1}, placements[8];
    nvmlGpuInstance_t gi;
    nvmlComputeInstance_t one, two, third;
    char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
    nvmlMemory_t memory;
    unsigned int count;

    use_partitioned("h100x8", 0);
    OK(create_at(0, ID_3G, 0, 4, &gi));
    OK(nvmlGpuInstanceGetComputeInstanceProfileInfoV(gi, NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE, 0, &profile));
    CHECK_STR(profile.name, "1c.3g.40gb");
    CHECK_EQ(profile.multiprocessorCount, 16);
    CHECK_EQ(profile.instanceCount, 3);
    OK(nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE, 0, &plain));
    CHECK_EQ(plain.multiprocessorCount, 60);
    CHECK_EQ(nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE, 0, &plain),
             NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQ(nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, NVML_COMPUTE_INSTANCE_PROFILE_COUNT, 0, &plain),
             NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, 0, 1, &plain), NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlGpuInstanceGetComputeInstancePossiblePlacements(gi, NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE, placements,
                                                           &count));
    CHECK_EQ(count, 3);
    CHECK_EQ(placements[2].start, 2);

    OK(nvmlGpuInstanceCreateComputeInstance(gi, NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE, &two));
    CHECK_EQ(nvmlGpuInstanceCreateComputeInstanceWithPlacement(gi, 0, &placement, &one),
             NVML_ERROR_INSUFFICIENT_RESOURCES);
    CHECK_EQ(nvmlGpuInstanceCreateComputeInstance(gi, NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE, &one),
             NVML_ERROR_INSUFFICIENT_RESOURCES);
    OK(nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gi, 0, &count));
    CHECK_EQ(count, 1);
    OK(nvmlGpuInstanceCreateComputeInstance(gi, NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE, &one));
    CHECK_EQ(info_of(one).placement.start, 2);
    CHECK_EQ(info_of(one).id, 1);
    CHECK_EQ(nvmlGpuInstanceCreateComputeInstance(gi, 0, &third), NVML_ERROR_INSUFFICIENT_RESOURCES);
    OK(nvmlGpuInstanceGetComputeInstances(gi, 0, &third, &count));
    CHECK_EQ(count, 1);
    CHECK(third.handle == one.handle);
    OK(nvmlDeviceGetName(info_of(two).device, name, sizeof(name)));
    CHECK_STR(name, "NVIDIA H100 80GB HBM3 MIG 2c.3g.40gb");

    struct user user = start_user(sim_mig_device(0, 1), 100 * MIB, 0);
    OK(nvmlDeviceGetMemoryInfo(info_of(two).device, &memory));
    CHECK(memory.used >= 100 * MIB);
    CHECK_EQ(nvmlComputeInstanceDestroy(one), NVML_ERROR_IN_USE);
    OK(nvmlComputeInstanceDestroy(two));
    end_user(user);
    OK(nvmlComputeInstanceDestroy(one));
}

void test_mig_in_use(void) {
    use_partitioned("mixed", H100);
    nvmlComputeInstance_t ci = make_device(H100, ID_1G, 0, 1, 0), other = make_device(H100, ID_1G, 1, 1, 0);
    nvmlComputeInstanceInfo_t info = info_of(ci);
    struct user user = start_user(sim_mig_device(H100, 0), 64 * MIB, 0);
    CHECK_EQ(nvmlComputeInstanceDestroy(ci), NVML_ERROR_IN_USE);
    CHECK_EQ(nvmlGpuInstanceDestroy(info.gpuInstance), NVML_ERROR_IN_USE);
    CHECK_EQ(set_mode(H100, 0), NVML_ERROR_IN_USE);
    OK(nvmlComputeInstanceDestroy(other));
    kill_user(user);
    OK(nvmlComputeInstanceDestroy(ci));
    OK(nvmlGpuInstanceDestroy(info.gpuInstance));
}

void test_mig_processes(void) {
    nvmlProcessInfo_t infos[4];
    nvmlMemory_t memory;
    nvmlMemory_v2_t whole = {.version = nvmlMemory_v2};
    nvmlUtilization_t rates;
    unsigned int count = 4, failed;

    use_partitioned("mixed", H100);
    nvmlDevice_t mig = info_of(make_device(H100, ID_2G, 4, 2, NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE)).device;
    nvmlDevice_t idle = info_of(make_device(H100, ID_1G, 0, 1, 0)).device;
    struct user user = start_user(sim_mig_device(H100, 0), 64 * MIB, 0);
    OK(nvmlDeviceGetComputeRunningProcesses_v3(mig, &count, infos));
    CHECK_EQ(count, 1);
    CHECK_EQ(infos[0].pid, user.pid);
    CHECK_EQ(infos[0].usedGpuMemory, 64 * MIB);
    CHECK_EQ(infos[0].gpuInstanceId, 5);
    CHECK_EQ(infos[0].computeInstanceId, 0);
    count = 4;
    OK(nvmlDeviceGetComputeRunningProcesses_v3(idle, &count, infos));
    CHECK_EQ(count, 0);
    count = 4;
    OK(nvmlDeviceGetComputeRunningProcesses_v3(gpu_handle(H100), &count, infos));
    CHECK_EQ(count, 1);
    CHECK_EQ(infos[0].gpuInstanceId, 5);
    OK(nvmlDeviceGetMemoryInfo(mig, &memory));
    CHECK_EQ(memory.total, 20096 * MIB);
    OK(nvmlDeviceGetMemoryInfo_v2(gpu_handle(H100), &whole));
    CHECK_EQ(whole.used, 64 * MIB);
    CHECK_EQ(nvmlDeviceGetUtilizationRates(mig, &rates), NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQ(nvmlDeviceGetUtilizationRates(gpu_handle(H100), &rates), NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQ(nvmlDeviceGetRemappedRows(gpu_handle(H100), &count, &count, &count, &failed), NVML_ERROR_NOT_SUPPORTED);
    end_user(user);
}

/* ---- Several processes ---- */

enum { ROUNDS = 40 };

/* Tries to make an instance at each of the first places in turn, when the other does; tells which it got. */
static void make_many(int to, unsigned int *arrived) {
    char got[ROUNDS];
    nvmlGpuInstance_t gi;

    if (nvmlInit_v2() != NVML_SUCCESS)
        _exit(1);
    for (int round = 0; round < ROUNDS; round++) {
        __atomic_fetch_add(arrived, 1, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(arrived, __ATOMIC_SEQ_CST) < 2 * ((unsigned int)round + 1)) {
        }
        /* Rounds are apart in places, so that nobody destroys what the other makes. */
        got[round] = create_at((unsigned int)round / 7, ID_1G, (unsigned int)round % 7, 1, &gi) == NVML_SUCCESS;
    }
    _exit(write(to, got, sizeof(got)) == sizeof(got) ? 0 : 1);
}

/* Of two processes that want the same place one gets it, whoever that is; what they made survives them. */
void test_mig_two_makers(void) {
    char got[2][ROUNDS];
    int ends[2][2];
    nvmlGpuInstance_t gi;
    unsigned int *arrived = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(arrived != MAP_FAILED);
    use_topology("h100x8");
    for (unsigned int gpu = 0; gpu < 8; gpu++)
        OK(set_mode(gpu, 1));
    sim_fault_mig_delay(2);
    OK(nvmlShutdown());
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(pipe(ends[i]), 0);
        if (fork() == 0)
            make_many(ends[i][1], arrived);
    }
    for (int i = 0; i < 2; i++)
        CHECK_EQ(read(ends[i][0], got[i], ROUNDS), ROUNDS);
    while (wait(NULL) > 0) {
    }
    OK(nvmlInit_v2());
    for (int round = 0; round < ROUNDS; round++) {
        CHECK_EQ(got[0][round] + got[1][round], 1);
        OK(nvmlDeviceGetGpuInstanceById(gpu_handle((unsigned int)round / 7), 7 + (unsigned int)round % 7, &gi));
    }
}

static int count_event(const struct sim_mig_event *event, void *arg) {
    ((int *)arg)[event->what]++;
    return 0;
}

void test_mig_reload(void) {
    int events[8] = {0};
    nvmlDevice_t device;
    nvmlGpuInstance_t gi;

    use_topology("mixed");
    OK(set_mode(A100, 1));
    OK(set_mode(H100, 1));
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    uuid_of(make_device(A100, ID_1G, 0, 1, 0), uuid);
    make_device(H100, ID_1G, 0, 1, 0);
    struct user user = start_user(sim_mig_device(H100, 0), 64 * MIB, 0);
    CHECK_EQ(sim_mig_reload(false), -16);
    end_user(user);
    CHECK_EQ(sim_mig_reload(false), 0);
    check_mode(A100, 1, 1);
    check_mode(H100, 0, 0);
    CHECK_EQ(nvmlDeviceGetHandleByUUID(uuid, &device), NVML_ERROR_NOT_FOUND);
    CHECK_EQ(nvmlDeviceGetGpuInstanceById(gpu_handle(A100), 7, &gi), NVML_ERROR_NOT_FOUND);
    sim_each_mig_event(count_event, events);
    CHECK_EQ(events[MIG_GI_CREATED], 2);
    CHECK_EQ(events[MIG_CI_CREATED], 2);
    CHECK_EQ(events[MIG_CI_DESTROYED], 2);
    CHECK_EQ(events[MIG_GI_DESTROYED], 2);
    CHECK_EQ(events[MIG_MODE], 3);
    CHECK_EQ(events[MIG_RELOADED], 1);
}

void test_mig_faults(void) {
    nvmlGpuInstance_t gi;
    nvmlComputeInstance_t ci;
    nvmlReturn_t activation;

    use_partitioned("mixed", H100);
    sim_fault_mig(MIG_ACT_GI_CREATE, 1, NVML_ERROR_UNKNOWN);
    CHECK_EQ(create_at(H100, ID_1G, 0, 1, &gi), NVML_ERROR_UNKNOWN);
    OK(create_at(H100, ID_1G, 0, 1, &gi));
    sim_fault_mig(MIG_ACT_CI_CREATE, 2, NVML_ERROR_INSUFFICIENT_RESOURCES);
    CHECK_EQ(nvmlGpuInstanceCreateComputeInstance(gi, 0, &ci), NVML_ERROR_INSUFFICIENT_RESOURCES);
    sim_fault_clear();
    OK(nvmlGpuInstanceCreateComputeInstance(gi, 0, &ci));
    sim_fault_mig(MIG_ACT_CI_DESTROY, 1, NVML_ERROR_IN_USE);
    CHECK_EQ(nvmlComputeInstanceDestroy(ci), NVML_ERROR_IN_USE);
    OK(nvmlComputeInstanceDestroy(ci));
    sim_fault_mig(MIG_ACT_GI_DESTROY, 1, NVML_ERROR_TIMEOUT);
    CHECK_EQ(nvmlGpuInstanceDestroy(gi), NVML_ERROR_TIMEOUT);
    OK(nvmlGpuInstanceDestroy(gi));
    sim_fault_mig(MIG_ACT_MODE, 1, NVML_ERROR_UNKNOWN);
    CHECK_EQ(nvmlDeviceSetMigMode(gpu_handle(H100), 0, &activation), NVML_ERROR_UNKNOWN);
    sim_fault_mig_delay(50);
    uint64_t before = sim_now_ns();
    OK(create_at(H100, ID_1G, 0, 1, &gi));
    CHECK(sim_now_ns() - before >= 50000000);
}

static int no_group(const struct sim_group_info *info, void *arg) {
    int index = *(int *)arg;

    return info->gpus[index].peak_bytes != 0 || info->gpus[index].launches != 0;
}

static int find_peak(const struct sim_mig_event *event, void *arg) {
    if (event->what == MIG_GI_DESTROYED)
        *(uint64_t *)arg = event->peak_bytes;
    return 0;
}

/* What is told of an instance is not that of an earlier one in its seat; the record keeps the peak. */
void test_mig_seats_forget(void) {
    use_partitioned("mixed", H100);
    nvmlComputeInstance_t ci = make_device(H100, ID_1G, 0, 1, 0);
    nvmlComputeInstanceInfo_t info = info_of(ci);
    int index = sim_mig_device(H100, 0);
    uint64_t peak = 0;
    kill_user(start_user(index, 64 * MIB, 1000000));
    CHECK_EQ(sim_each_group(no_group, &index), 1);
    CHECK(sim_gpu_busy_ns(index) != 0);
    OK(nvmlComputeInstanceDestroy(ci));
    OK(nvmlGpuInstanceDestroy(info.gpuInstance));
    sim_each_mig_event(find_peak, &peak);
    CHECK_EQ(peak, 64 * MIB);
    make_device(H100, ID_2G, 2, 2, 1);
    CHECK_EQ(sim_each_group(no_group, &index), 0);
    CHECK_EQ(sim_gpu_busy_ns(index), 0);
}

/* Asks about MIG devices while they come and go: every answer is of one that was there, or that it is gone. */
static void *ask(void *stop) {
    while (!__atomic_load_n((int *)stop, __ATOMIC_ACQUIRE)) {
        nvmlDevice_t mig;
        char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
        nvmlMemory_t memory;

        if (nvmlDeviceGetMigDeviceHandleByIndex(gpu_handle(H100), 0, &mig) != NVML_SUCCESS)
            continue;
        if (nvmlDeviceGetName(mig, name, sizeof(name)) == NVML_SUCCESS)
            CHECK(strstr(name, "MIG") != NULL);
        if (nvmlDeviceGetMemoryInfo(mig, &memory) == NVML_SUCCESS)
            CHECK(memory.total == 9984 * MIB || memory.total == 20096 * MIB);
    }
    return NULL;
}

void test_mig_threads(void) {
    pthread_t threads[3];
    int stop = 0;

    use_partitioned("mixed", H100);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, ask, &stop), 0);
    for (int i = 0; i < 60; i++) {
        nvmlComputeInstance_t ci = make_device(H100, i % 2 ? ID_2G : ID_1G, 0, i % 2 ? 2 : 1, i % 2 ? 1 : 0);
        nvmlComputeInstanceInfo_t info = info_of(ci);
        OK(nvmlComputeInstanceDestroy(ci));
        OK(nvmlGpuInstanceDestroy(info.gpuInstance));
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
}
