/* Compute modes, and kernels that end with an exception. */
#include <signal.h>
#include <string.h>

#include "harness.h"
#include "health.h"
#include "sharing.h"

static void set_mode(uint64_t mode) {
    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(sim_set(0, SIM_COMPUTE_MODE, mode), 0);
}

/* Makes contexts on a device as it is told: 'c' one by cuCtxCreate, 'p' the primary one, 'd' gives the last back. */
static void make_contexts(void *device) {
    CUcontext context = NULL;
    bool primary = false;
    char what;

    OK(cuInit(0));
    while ((what = hear()) != 'e') {
        CUdevice on = *(CUdevice *)device;
        CUresult ret;

        if (what == 'd')
            ret = primary ? cuDevicePrimaryCtxRelease_v2(on) : cuCtxDestroy_v2(context);
        else
            ret = what == 'p' ? cuDevicePrimaryCtxRetain(&context, on) : cuCtxCreate_v2(&context, 0, on);
        primary = what == 'p';
        say(ret == CUDA_SUCCESS ? 'y' : ret == CUDA_ERROR_DEVICE_UNAVAILABLE ? 'n' : '?');
    }
}

static char tell(struct worker *worker, char what) {
    worker_tell(worker, what);
    return worker_hear(worker);
}

static void exclusive_is_for_one_process(void) {
    CUdevice first = 0, second = 1;
    struct worker a = worker_start(make_contexts, &first), b = worker_start(make_contexts, &first),
                  other = worker_start(make_contexts, &second);

    set_mode(SIM_COMPUTE_EXCLUSIVE_PROCESS);
    CHECK_INT(tell(&a, 'c'), 'y');
    CHECK_INT(tell(&a, 'p'), 'y'); /* of one process, any number */
    CHECK_INT(tell(&b, 'c'), 'n');
    CHECK_INT(tell(&b, 'p'), 'n');
    CHECK_INT(tell(&other, 'c'), 'y');
    CHECK_INT(tell(&a, 'd'), 'y');
    CHECK_INT(tell(&b, 'c'), 'n'); /* one is left */
    worker_kill(&a, SIGKILL);
    CHECK_INT(tell(&b, 'c'), 'y');
    CHECK_INT(tell(&b, 'd'), 'y');
    CHECK_INT(tell(&b, 'p'), 'y');
    worker_join(&b);
    worker_join(&other);
}

static void the_mode_does_not_touch_contexts_that_are_there(void) {
    CUdevice first = 0;
    struct worker a = worker_start(make_contexts, &first), b = worker_start(make_contexts, &first),
                  c = worker_start(make_contexts, &first);

    CHECK_INT(tell(&a, 'c'), 'y');
    CHECK_INT(tell(&b, 'c'), 'y');
    set_mode(SIM_COMPUTE_EXCLUSIVE_PROCESS);
    CHECK_INT(tell(&c, 'c'), 'n');
    CHECK_INT(tell(&a, 'd'), 'y');
    CHECK_INT(tell(&a, 'c'), 'n'); /* the other has the GPU now */
    worker_join(&b);
    CHECK_INT(tell(&c, 'c'), 'y');
    set_mode(SIM_COMPUTE_DEFAULT);
    CHECK_INT(tell(&a, 'c'), 'y');
    worker_join(&a);
    worker_join(&c);
}

static void prohibited_is_for_nobody(void) {
    CUdevice first = 0;
    struct worker a = worker_start(make_contexts, &first);
    int mode = -1;

    CHECK_INT(tell(&a, 'c'), 'y');
    set_mode(SIM_COMPUTE_PROHIBITED);
    CHECK_INT(tell(&a, 'p'), 'n');
    OK(cuInit(0));
    OK(cuDeviceGetAttribute(&mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0));
    CHECK_INT(mode, SIM_COMPUTE_PROHIBITED);
    OK(cuDeviceGetAttribute(&mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 1));
    CHECK_INT(mode, SIM_COMPUTE_DEFAULT);
    worker_join(&a);
}

static void an_exception_is_for_good(void) {
    static const char ptx[] = ".version 8.0\n.entry spin_300ms\n";
    CUcontext context = context_on(0), other;
    CUfunction kernel;
    CUmodule module;
    CUdeviceptr pointer;

    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&kernel, module, "spin_300ms"));
    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(sim_fault_kernel(0, 1, CUDA_ERROR_ILLEGAL_ADDRESS), 0);
    OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    CHECK_INT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK_INT(cuMemAlloc_v2(&pointer, 100), CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK_INT(cuCtxCreate_v2(&other, 0, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK_INT(sim_event_last(), 1);
    OK(cuCtxDestroy_v2(context));
    CHECK_INT(look("test").used[0], 0);
}

const struct test sharing_tests[] = {
    {"exclusive is for one process", exclusive_is_for_one_process},
    {"the mode does not touch contexts that are there", the_mode_does_not_touch_contexts_that_are_there},
    {"prohibited is for nobody", prohibited_is_for_nobody},
    {"an exception is for good", an_exception_is_for_good},
    {0},
};
