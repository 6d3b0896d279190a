/* MIG instances as CUDA shows them: where their nodes can be opened, one at a time, with a memory of their own. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness.h"
#include "mig/mig_local.h"
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
    int devices[2 * SIM_MIG_SEATS];

    use_mig();
    setenv("CUDA_VISIBLE_DEVICES", SMALL_UUID, 1);
    first = worker_start(fill, NULL);
    worker_join(&first);
    second = worker_start(fill, NULL);
    worker_join(&second);
    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(sim_gpu_count(), 2);
    CHECK(sim_mig_on(0) && !sim_mig_on(1));
    CHECK_INT(sim_mig_devices(0, devices), 2);
    CHECK_INT(sim_mig_devices(1, devices + 2), 0);
    CHECK(strcmp(sim_gpu(devices[1])->uuid, SMALL_UUID) == 0);
    CHECK_INT(sim_gpu(devices[1])->minor, 0);
    sim_close();
}

/* ---- Instances that are made while the driver is loaded ---- */

static void use_eight(const char *topology) {
    char name[32];

    node_use_topology(topology);
    for (int minor = 0; minor < 8; minor++) {
        snprintf(name, sizeof(name), "dev/nvidia%d", minor);
        node_file(name);
    }
}

/* Makes a MIG device on GPU 0; its index among the GPUs. */
static int make_device(unsigned profile_id, int start) {
    const struct sim_mig_profile *profile = sim_mig_profile(0, profile_id);
    struct sim_gi gi;
    struct sim_ci ci;

    CHECK_INT(sim_gi_create(0, profile, start, &gi), 0);
    CHECK_INT(sim_ci_create(0, gi.seat, profile->slices, -1, &ci), 0);
    return sim_mig_device(0, ci.seat);
}

static int destroy_device(int device) {
    struct sim_ci ci;
    int ret = sim_ci_get(0, sim_mig_seat(device), &ci);

    if (ret == 0)
        ret = sim_ci_destroy(0, ci.seat);
    return ret != 0 ? ret : sim_gi_destroy(0, ci.gi_seat);
}

static void takes_all(void *unused) {
    char name[96];
    CUdeviceptr pointer;
    size_t free, total;
    int sms, count;

    (void)unused;
    context_on(0);
    OK(cuDeviceGetCount(&count));
    CHECK_INT(count, 1);
    OK(cuDeviceGetName(name, sizeof(name), 0));
    CHECK(strcmp(name, "NVIDIA H100 80GB HBM3 MIG 2g.20gb") == 0);
    OK(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    CHECK_INT(sms, 32);
    OK(cuMemGetInfo_v2(&free, &total));
    CHECK_INT(total, 20096 * MIB - (480 * MIB * 2 / 8)); /* without its share of the reserve */
    CHECK_INT(cuMemAlloc_v2(&pointer, free + 2 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&pointer, free));
    CHECK_INT(cuMemAlloc_v2(&pointer, 2 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    say('r');
    hear();
}

static void an_instance_made_later_is_a_device(void) {
    struct worker worker;
    int device;

    use_eight("h100x8.conf");
    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(sim_mig_set_mode(0, true), 0);
    device = make_device(14, 2);
    setenv("CUDA_VISIBLE_DEVICES", sim_gpu(device)->uuid, 1);
    worker = worker_start(takes_all, NULL);
    CHECK_INT(worker_hear(&worker), 'r');
    CHECK_INT(destroy_device(device), -EBUSY);
    worker_join(&worker);
    worker = worker_start(takes_all, NULL);
    CHECK_INT(worker_hear(&worker), 'r');
    worker_kill(&worker, SIGKILL);
    CHECK_INT(destroy_device(device), 0);
    CHECK_INT(sim_gpu(device) == NULL, 1);
}

static void uses_first(void *uuid) {
    CUuuid got;
    int count;

    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    CHECK_INT(count, 1);
    OK(cuDeviceGetUuid_v2(&got, 0));
    CHECK(memcmp(got.bytes, uuid, sizeof(got.bytes)) == 0);
}

/* Of several the first by its ID; the other GPUs of the node are none then, unless they are named alone. */
static void the_first_instance_is_taken(void) {
    struct worker worker;
    uint8_t uuid[16];
    int second, first;

    use_eight("h100x8.conf");
    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(sim_mig_set_mode(0, true), 0);
    second = make_device(19, 4);
    first = make_device(19, 1);
    worker = worker_start(uses_first, (void *)sim_gpu(first)->uuid_bytes);
    worker_join(&worker);
    setenv("CUDA_VISIBLE_DEVICES", sim_gpu(second)->uuid, 1);
    worker = worker_start(uses_first, (void *)sim_gpu(second)->uuid_bytes);
    worker_join(&worker);
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);             /* the second of the whole ones, as GPU 0 is none */
    memcpy(uuid, sim_gpu(2)->uuid_bytes, sizeof(uuid)); /* a child has no topology */
    worker = worker_start(uses_first, uuid);
    worker_join(&worker);
}

static void waits_and_makes_a_context(void *unused) {
    CUcontext context;

    (void)unused;
    OK(cuInit(0));
    say('r');
    hear();
    CHECK_INT(cuCtxCreate_v2(&context, 0, 0), CUDA_ERROR_DEVICE_UNAVAILABLE);
    say('d');
    hear();
}

/* Nor is the next one that is made in its seat this process's. */
static void a_destroyed_instance_is_of_no_use(void) {
    struct worker worker;
    int device;

    use_eight("h100x8.conf");
    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(sim_mig_set_mode(0, true), 0);
    device = make_device(19, 0);
    worker = worker_start(waits_and_makes_a_context, NULL);
    CHECK_INT(worker_hear(&worker), 'r');
    CHECK_INT(destroy_device(device), 0);
    CHECK_INT(make_device(19, 0), device);
    worker_tell(&worker, 'g');
    CHECK_INT(worker_hear(&worker), 'd');
    CHECK_INT(sim_gpu_used(device), 0);
    worker_join(&worker);
}

static void uses_until_it_is_gone(void *unused) {
    CUdeviceptr pointer;

    (void)unused;
    context_on(0);
    OK(cuMemAlloc_v2(&pointer, 10 * MIB));
    say('r');
    hear();
    CHECK_INT(cuMemAlloc_v2(&pointer, 10 * MIB), CUDA_ERROR_DEVICE_UNAVAILABLE);
    say('d');
    hear();
}

/* A forced reload takes the instance from its process; what it holds still keeps the seat from the next one. */
static void a_driver_loaded_anew_takes_instances(void) {
    struct worker worker;
    struct sim_gi gi;
    int device;

    use_eight("h100x8.conf");
    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(sim_mig_set_mode(0, true), 0);
    device = make_device(19, 0);
    worker = worker_start(uses_until_it_is_gone, NULL);
    CHECK_INT(worker_hear(&worker), 'r');
    CHECK_INT(sim_mig_reload(false), -EBUSY);
    CHECK_INT(sim_mig_reload(true), 0);
    CHECK(sim_gpu(device) == NULL && !sim_mig_on(0));
    worker_tell(&worker, 'g');
    CHECK_INT(worker_hear(&worker), 'd');
    CHECK_INT(sim_mig_set_mode(0, true), -EBUSY);
    worker_join(&worker);
    CHECK_INT(sim_mig_set_mode(0, true), 0);
    CHECK_INT(sim_gi_create(0, sim_mig_profile(0, 19), 0, &gi), 0);
    CHECK_INT(gi.used_bytes, 0);
}

/* The mode of an A100 stays, so that an instance can be made at once: not in the seat that still has somebody's memory. */
static void a_seat_with_memory_is_not_used_again(void) {
    struct worker worker;
    struct sim_gi gi;

    use_eight("a100-40x8.conf");
    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(sim_mig_set_mode(0, true), 0);
    make_device(19, 0);
    worker = worker_start(uses_until_it_is_gone, NULL);
    CHECK_INT(worker_hear(&worker), 'r');
    CHECK_INT(sim_mig_reload(true), 0);
    CHECK_INT(sim_gi_create(0, sim_mig_profile(0, 19), 0, &gi), 0);
    CHECK_INT(gi.used_bytes, 0);
    worker_tell(&worker, 'g');
    CHECK_INT(worker_hear(&worker), 'd');
    worker_join(&worker);
}

static void makes_a_context_in_vain(void *unused) {
    CUcontext context;

    (void)unused;
    OK(cuInit(0));
    say('r');
    hear();
    CHECK_INT(cuCtxCreate_v2(&context, 0, 0), CUDA_ERROR_DEVICE_UNAVAILABLE);
    say('d');
    hear();
}

/* Who takes memory between the look for it and the end of the instance waits, finds the end, and gives it back. */
static void memory_taken_at_the_end_is_given_back(void) {
    struct worker worker;
    struct state_ci *ci;
    int device, entry;

    use_eight("h100x8.conf");
    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(sim_mig_set_mode(0, true), 0);
    device = make_device(19, 0);
    entry = entry_of(device);
    ci = ci_state(device);
    worker = worker_start(makes_a_context_in_vain, NULL);
    CHECK_INT(worker_hear(&worker), 'r');
    mig_lock();
    atomic_fetch_or(&ci->live, LIVE_CLOSING);
    worker_tell(&worker, 'g');
    for (int i = 0; i < 5000 && entry_used(entry) == 0; i++)
        sleep_ms(1);
    CHECK(entry_used(entry) != 0);
    atomic_store(&ci->live, 0);
    mig_unlock();
    CHECK_INT(worker_hear(&worker), 'd');
    CHECK_INT(entry_used(entry), 0);
    worker_join(&worker);
}

/* A process that saw the whole GPU gets nothing of it once it is partitioned. */
static void a_gpu_in_mig_mode_is_no_device(void) {
    struct worker worker;

    use_eight("h100x8.conf");
    CHECK_INT(sim_open_all(), 0);
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    worker = worker_start(waits_and_makes_a_context, NULL);
    CHECK_INT(worker_hear(&worker), 'r');
    CHECK_INT(sim_mig_set_mode(0, true), 0);
    worker_tell(&worker, 'g');
    CHECK_INT(worker_hear(&worker), 'd');
    worker_join(&worker);
}

/* Takes and gives back memory of the instance as long as that is there; says when it has some for the first time. */
static void takes_and_gives(void *unused) {
    bool taken = false;
    CUcontext context;
    CUresult ret;

    (void)unused;
    OK(cuInit(0));
    while ((ret = cuCtxCreate_v2(&context, 0, 0)) == CUDA_SUCCESS) {
        if (!taken)
            say('r');
        taken = true;
        OK(cuCtxDestroy_v2(context));
    }
    CHECK_INT(ret, CUDA_ERROR_DEVICE_UNAVAILABLE);
}

/* An instance that two processes take memory of all the time is destroyed when neither has any, and is gone then. */
static void destroying_and_taking_at_once(void) {
    struct worker workers[2];
    struct sim_ci ci;
    int device, refused = 0;

    use_eight("h100x8.conf");
    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(sim_mig_set_mode(0, true), 0);
    for (int round = 0; round < 5; round++) {
        device = make_device(19, 0);
        for (int i = 0; i < 2; i++) {
            workers[i] = worker_start(takes_and_gives, NULL);
            CHECK_INT(worker_hear(&workers[i]), 'r');
        }
        CHECK_INT(sim_ci_get(0, sim_mig_seat(device), &ci), 0);
        while (sim_ci_destroy(0, ci.seat) != 0)
            refused++;
        /* Who finds it gone has taken memory for a moment. */
        while (sim_gi_destroy(0, ci.gi_seat) != 0) {
        }
        CHECK_INT(sim_gpu_used(device), 0);
        for (int i = 0; i < 2; i++)
            worker_join(&workers[i]);
    }
    CHECK(refused > 0);
}

const struct test mig_tests[] = {
    {"one MIG instance at a time", one_instance_at_a_time},
    {"a MIG instance needs its nodes", an_instance_needs_its_nodes},
    {"a MIG instance's memory is its own", memory_is_the_instances_own},
    {"an instance made later is a device", an_instance_made_later_is_a_device},
    {"the first instance is taken", the_first_instance_is_taken},
    {"a destroyed instance is of no use", a_destroyed_instance_is_of_no_use},
    {"a driver loaded anew takes instances", a_driver_loaded_anew_takes_instances},
    {"a seat with memory is not used again", a_seat_with_memory_is_not_used_again},
    {"memory taken at the end is given back", memory_taken_at_the_end_is_given_back},
    {"a GPU in MIG mode is no device", a_gpu_in_mig_mode_is_no_device},
    {"destroying and taking at once", destroying_and_taking_at_once},
    {0},
};
