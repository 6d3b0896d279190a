/* MIG instances as CUDA shows them: where their nodes can be opened, one at a time, with a memory of their own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness.h"
#include "state.h"

#define BIG_UUID "MIG-51d40f7e-0c1a-4e6b-9f3d-5a1e00000a01"
#define SMALL_UUID "MIG-51d40f7e-0c1a-4e6b-9f3d-5a1e00000a02"
#define GPU0_FULL_UUID "GPU-51d40f7e-0c1a-4e6b-9f3d-5a1e00000000"

static void node_file(const char *name) {
    FILE *file = fopen(node_path(name), "w");

    CHECK(file != NULL);
    if (file != NULL)
        fclose(file);
}

static void use_mig(void) {
    static const char *const caps[] = {"12", "13", "84", "85"};
    char name[64];

    node_use_topology("h200-mig.conf");
    unlink(node_path("dev/nvidia1"));
    mkdir(node_path("dev/nvidia-caps"), 0755);
    for (size_t i = 0; i < sizeof(caps) / sizeof(caps[0]); i++) {
        snprintf(name, sizeof(name), "dev/nvidia-caps/nvidia-cap%s", caps[i]);
        node_file(name);
    }
}

/* The last byte of the only device's UUID, and its memory; 0 for no device. */
struct want {
    unsigned char last;
    size_t bytes;
};

static void device_is(void *arg) {
    const struct want *want = arg;
    int count = 0;
    size_t bytes = 0;
    CUuuid uuid;

    if (want->last == 0) {
        CHECK_INT(cuInit(0), CUDA_ERROR_NO_DEVICE);
        return;
    }
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    CHECK_INT(count, 1);
    OK(cuDeviceGetUuid_v2(&uuid, 0));
    CHECK_INT((unsigned char)uuid.bytes[15], want->last);
    OK(cuDeviceGetUuid(&uuid, 0));
    CHECK_INT(uuid.bytes[15], 0); /* the GPU's */
    OK(cuDeviceTotalMem_v2(&bytes, 0));
    CHECK_INT(bytes, want->bytes);
}

static void check_device(unsigned char last, size_t mib) {
    struct want want = {last, mib << 20};
    struct worker worker = worker_start(device_is, &want);

    worker_join(&worker);
}

static void one_instance_at_a_time(void) {
    use_mig();
    check_device(1, 71680);
    setenv("CUDA_VISIBLE_DEVICES", SMALL_UUID, 1);
    check_device(2, 16384);
    setenv("CUDA_VISIBLE_DEVICES", SMALL_UUID "," BIG_UUID, 1);
    check_device(2, 16384);
    /* The GPU itself is none of CUDA's devices. */
    setenv("CUDA_VISIBLE_DEVICES", GPU0_FULL_UUID, 1);
    check_device(0, 0);
}

static void an_instance_needs_its_nodes(void) {
    use_mig();
    unlink(node_path("dev/nvidia-caps/nvidia-cap13"));
    check_device(2, 16384);
    unlink(node_path("dev/nvidia-caps/nvidia-cap84"));
    check_device(0, 0);
    node_file("dev/nvidia-caps/nvidia-cap84");
    unlink(node_path("dev/nvidia0"));
    check_device(0, 0);
}

static void fill(void *unused) {
    CUdeviceptr pointer;
    size_t taken = 0;

    (void)unused;
    context_on(0);
    while (cuMemAlloc_v2(&pointer, 1ull << 30) == CUDA_SUCCESS)
        taken++;
    CHECK_INT(taken, 15); /* of 16 GiB the context takes some */
}

/* An instance's memory is its own: what one process takes of it is no other's. */
static void memory_is_the_instances_own(void) {
    struct worker first, second;

    use_mig();
    setenv("CUDA_VISIBLE_DEVICES", SMALL_UUID, 1);
    first = worker_start(fill, NULL);
    worker_join(&first);
    second = worker_start(fill, NULL);
    worker_join(&second);
    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(sim_gpu_count(), 4);
    CHECK(sim_gpu(3)->is_mig && sim_gpu(0)->mig_mode && !sim_gpu(1)->mig_mode);
    CHECK_INT(sim_gpu(3)->minor, 0);
    sim_close();
}

const struct test mig_tests[] = {
    {"one MIG instance at a time", one_instance_at_a_time},
    {"a MIG instance needs its nodes", an_instance_needs_its_nodes},
    {"a MIG instance's memory is its own", memory_is_the_instances_own},
    {0},
};
