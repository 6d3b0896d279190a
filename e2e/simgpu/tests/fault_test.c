/* Faults that a test orders reach every process. */
#include <errno.h>
#include <stdlib.h>

#include "harness.h"

static void allocations_fail_as_ordered(void) {
    CUcontext context = context_on(0), other;
    CUdeviceptr pointer;

    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(sim_fault_alloc(0, 2, CUDA_ERROR_ECC_UNCORRECTABLE), 0);
    CHECK_INT(cuMemAlloc_v2(&pointer, 100), CUDA_ERROR_ECC_UNCORRECTABLE);
    CHECK_INT(cuMemAlloc_v2(&pointer, 10 * MIB), CUDA_ERROR_ECC_UNCORRECTABLE);
    OK(cuMemAlloc_v2(&pointer, 10 * MIB));
    CHECK_INT(sim_fault_alloc(0, 1, CUDA_ERROR_OUT_OF_MEMORY), 0);
    CHECK_INT(cuMemAllocManaged(&pointer, 10 * MIB, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(sim_fault_alloc(-1, 1, CUDA_ERROR_OUT_OF_MEMORY), 0);
    CHECK_INT(cuCtxCreate_v2(&other, 0, 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuCtxCreate_v2(&other, 0, 1));
    CHECK_INT(sim_fault_alloc(1, 5, CUDA_ERROR_OUT_OF_MEMORY), 0);
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc_v2(&pointer, 100)); /* the other GPU's fault */
    OK(cuCtxSetCurrent(other));
    sim_fault_clear();
    OK(cuMemAlloc_v2(&pointer, 100));
    CHECK_INT(sim_fault_alloc(7, 1, CUDA_ERROR_OUT_OF_MEMORY), -EINVAL);
    CHECK_INT(sim_fault_alloc(0, 1, 0), -EINVAL);
}

static void one_gpu_is_left(void *unused) {
    int n;

    (void)unused;
    hear();
    OK(cuInit(0));
    OK(cuDeviceGetCount(&n));
    CHECK_INT(n, 1);
    say('d');
}

static void none_is_left(void *unused) {
    (void)unused;
    hear();
    CHECK_INT(cuInit(0), CUDA_ERROR_NO_DEVICE);
}

static void a_gpu_falls_off_the_bus(void) {
    /* Started while this process has not initialised the driver: the child of one that has could not either. */
    struct worker early = worker_start(one_gpu_is_left, NULL), late = worker_start(none_is_left, NULL);
    CUcontext context = context_on(0), other;
    CUdeviceptr pointer;
    size_t size;

    OK(cuMemAlloc_v2(&pointer, 100));
    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(sim_fault_lost(0, true), 0);
    CHECK_INT(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_DEVICE_UNAVAILABLE);
    CHECK_INT(cuMemGetInfo_v2(&size, &size), CUDA_ERROR_DEVICE_UNAVAILABLE);
    CHECK_INT(cuCtxSynchronize(), CUDA_ERROR_DEVICE_UNAVAILABLE);
    CHECK_INT(cuCtxCreate_v2(&other, 0, 0), CUDA_ERROR_DEVICE_UNAVAILABLE);
    OK(cuCtxCreate_v2(&other, 0, 1));
    worker_tell(&early, 'g');
    worker_hear(&early);
    CHECK_INT(sim_fault_lost(1, true), 0);
    worker_join(&late);
    CHECK(sim_gpu_lost(0) && sim_gpu_lost(1));
    worker_join(&early);
    sim_fault_clear();
    OK(cuCtxSetCurrent(context));
    OK(cuMemFree_v2(pointer));
}

static void wait_for_an_event(void *unused) {
    struct sim_event event;

    (void)unused;
    CHECK_INT(sim_open_all(), 0);
    say('r');
    CHECK_INT(sim_event_wait(sim_event_last(), 20000, &event), 0);
    CHECK_INT(event.xid, 31);
    CHECK_INT(event.gpu, 1);
}

static void events_wake_who_waits(void) {
    struct worker worker = worker_start(wait_for_an_event, NULL);
    struct sim_event event;
    uint64_t start;

    worker_hear(&worker);
    sleep_ms(20);
    CHECK_INT(sim_open_all(), 0);
    start = now_ns();
    CHECK_INT(sim_fault_xid(1, 31), 0);
    worker_join(&worker);
    CHECK(now_ns() - start < 2000000000);
    CHECK_INT(sim_fault_lost(0, true), 0);
    CHECK_INT(sim_fault_lost(0, true), 0); /* already */
    CHECK_INT(sim_event_last(), 2);
    CHECK_INT(sim_event_wait(0, 0, &event), 0);
    CHECK_INT(event.serial, 1);
    CHECK_INT(sim_event_wait(1, 0, &event), 0);
    CHECK_INT(event.xid, 79);
    CHECK_INT(sim_event_wait(2, 0, &event), -ETIMEDOUT);
    start = now_ns();
    CHECK_INT(sim_event_wait(2, 30, &event), -ETIMEDOUT);
    CHECK(now_ns() - start >= 30000000);
    for (int i = 0; i < 1000; i++)
        sim_fault_xid(0, 1000 + (unsigned)i);
    CHECK_INT(sim_event_wait(2, 0, &event), 0); /* the oldest that is remembered */
    CHECK(event.serial > 2 && event.serial <= 1002);
    CHECK_INT(sim_event_wait(1001, 0, &event), 0);
    CHECK_INT(event.xid, 1999);
}

static void nvml_absent(void) {
    CHECK_INT(sim_open_all(), 0);
    CHECK(!sim_nvml_absent());
    sim_fault_nvml_absent(true);
    CHECK(sim_nvml_absent());
    sim_fault_clear();
    CHECK(!sim_nvml_absent());
}

const struct test fault_tests[] = {
    {"allocations fail as ordered", allocations_fail_as_ordered},
    {"a GPU falls off the bus", a_gpu_falls_off_the_bus},
    {"events wake who waits", events_wake_who_waits},
    {"NVML absent", nvml_absent},
    {0},
};
