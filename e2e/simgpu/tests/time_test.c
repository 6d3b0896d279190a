/* Kernels take time, one process at a time, in turns. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "harness.h"

static const char ptx[] = ".version 8.0\n.entry nothing\n.entry spin_100us\n.entry spin_1ms\n.entry spin_20ms\n"
                          ".entry spin_300ms\n";

static CUfunction kernel(const char *name) {
    return kernel_of(ptx, name);
}

static void launch(CUfunction function, CUstream stream) {
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
}

static double ms_since(uint64_t start) {
    return (double)(now_ns() - start) / 1e6;
}

/* Never faster than the GPU; how much slower, a busy test machine decides. */
#define CHECK_MS(got, least, most)                                                                                     \
    do {                                                                                                               \
        double check_ms = (got);                                                                                       \
        if (check_ms < (least) || check_ms > (most))                                                                   \
            check_failed(__FILE__, __LINE__, "%s is %.3f ms, not %.3f to %.3f", #got, check_ms, (double)(least),       \
                         (double)(most));                                                                              \
    } while (0)

static void a_kernel_takes_its_time(void) {
    CUfunction spin;
    CUstream stream;
    uint64_t start;

    context_on(0);
    spin = kernel("spin_20ms");
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    start = now_ns();
    launch(spin, stream);
    CHECK_INT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    OK(cuStreamQuery(NULL)); /* which does not wait for this stream */
    OK(cuStreamSynchronize(stream));
    CHECK_MS(ms_since(start), 20, 200);
    OK(cuStreamQuery(stream));
    start = now_ns();
    for (int i = 0; i < 5; i++)
        launch(spin, NULL);
    CHECK_INT(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    OK(cuCtxSynchronize());
    CHECK_MS(ms_since(start), 100, 400);
    start = now_ns();
    OK(cuCtxSynchronize());
    CHECK_MS(ms_since(start), 0, 10);
}

static void work_goes_on_while_nobody_looks(void) {
    CUfunction spin;
    uint64_t start;

    context_on(0);
    spin = kernel("spin_20ms");
    for (int i = 0; i < 5; i++)
        launch(spin, NULL);
    sleep_ms(150);
    start = now_ns();
    OK(cuStreamQuery(NULL));
    OK(cuCtxSynchronize());
    CHECK_MS(ms_since(start), 0, 10);
}

static void default_time_and_override(void) {
    CUfunction nothing;
    uint64_t start;

    setenv("SIMGPU_KERNEL_US", "30000", 1);
    context_on(0);
    nothing = kernel("nothing");
    start = now_ns();
    launch(nothing, NULL);
    OK(cuCtxSynchronize());
    CHECK_MS(ms_since(start), 30, 200);
}

static void freeing_waits_for_kernels(void) {
    CUdeviceptr pointer;
    uint64_t start;

    context_on(0);
    OK(cuMemAlloc_v2(&pointer, 1));
    start = now_ns();
    launch(kernel("spin_20ms"), NULL);
    OK(cuMemFree_v2(pointer));
    CHECK_MS(ms_since(start), 20, 200);
}

static void events_tell_the_time(void) {
    CUevent start, end, untimed;
    CUfunction spin;
    CUstream stream;
    float ms;

    context_on(0);
    spin = kernel("spin_1ms");
    OK(cuStreamCreate(&stream, 0));
    OK(cuEventCreate(&start, 0));
    OK(cuEventCreate(&end, 0));
    OK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
    OK(cuEventQuery(end)); /* never recorded */
    CHECK_INT(cuEventElapsedTime(&ms, start, end), CUDA_ERROR_INVALID_HANDLE);
    launch(spin, stream);
    OK(cuEventRecord(start, stream));
    for (int i = 0; i < 10; i++)
        launch(spin, stream);
    OK(cuEventRecord(end, stream));
    OK(cuEventRecord(untimed, stream));
    CHECK_INT(cuEventQuery(end), CUDA_ERROR_NOT_READY);
    CHECK_INT(cuEventElapsedTime(&ms, start, end), CUDA_ERROR_NOT_READY);
    OK(cuEventSynchronize(end));
    OK(cuEventQuery(end));
    OK(cuEventElapsedTime(&ms, start, end));
    CHECK_MS(ms, 9.99, 12); /* alone on the GPU, kernels follow each other without a gap */
    CHECK_INT(cuEventElapsedTime(&ms, start, untimed), CUDA_ERROR_INVALID_HANDLE);
    OK(cuEventDestroy_v2(end));
    CHECK_INT(cuEventQuery(end), CUDA_ERROR_INVALID_HANDLE);
}

static void streams_wait_for_events(void) {
    CUstream first, second;
    CUevent event;
    uint64_t start;

    context_on(0);
    OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, 0));
    start = now_ns();
    launch(kernel("spin_20ms"), first);
    OK(cuEventRecord(event, first));
    OK(cuStreamQuery(second));
    OK(cuStreamWaitEvent(second, event, 0));
    CHECK_INT(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
    OK(cuStreamSynchronize(second));
    CHECK_MS(ms_since(start), 20, 200);
}

static atomic_int calls;
static uint64_t called_ns;

static void called(void *arg) {
    called_ns = now_ns();
    atomic_fetch_add(&calls, *(int *)arg);
}

static void called_back(CUstream stream, CUresult status, void *arg) {
    (void)stream;
    CHECK_INT(status, CUDA_SUCCESS);
    called(arg);
}

static void host_functions_run_in_order(void) {
    CUstream stream;
    uint64_t start;
    int one = 1;

    context_on(0);
    OK(cuStreamCreate(&stream, 0));
    start = now_ns();
    launch(kernel("spin_20ms"), stream);
    OK(cuLaunchHostFunc(stream, called, &one));
    CHECK_INT(atomic_load(&calls), 0);
    CHECK_INT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    OK(cuStreamSynchronize(stream));
    CHECK_INT(atomic_load(&calls), 1);
    CHECK_MS((double)(called_ns - start) / 1e6, 20, 200);
    OK(cuStreamAddCallback(stream, called_back, &one, 0));
    OK(cuLaunchHostFunc(NULL, called, &one));
    OK(cuCtxSynchronize());
    CHECK_INT(atomic_load(&calls), 3);
}

static void hold_up(void *until) {
    _Atomic bool *released = until;
    while (!atomic_load(released))
        sleep_ms(1);
}

static void events_come_after_host_functions(void) {
    _Atomic bool released = false;
    CUstream stream, other;
    CUevent event, legacy, elsewhere;

    context_on(0);
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, 0));
    OK(cuEventCreate(&legacy, 0));
    OK(cuEventCreate(&elsewhere, 0));
    OK(cuLaunchHostFunc(stream, hold_up, &released));
    OK(cuEventRecord(event, stream));
    OK(cuEventRecord(legacy, NULL));
    OK(cuEventRecord(elsewhere, other));
    CHECK_INT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    CHECK_INT(cuEventQuery(legacy), CUDA_ERROR_NOT_READY);
    CHECK_INT(cuEventQuery(elsewhere), CUDA_SUCCESS);
    atomic_store(&released, true);
    OK(cuEventSynchronize(legacy));
    CHECK_INT(cuEventQuery(event), CUDA_SUCCESS);
    OK(cuEventDestroy_v2(event));
}

static void *wait_for_own_stream(void *context) {
    uint64_t start = now_ns();

    OK(cuCtxSetCurrent(context));
    OK(cuStreamSynchronize_ptsz(NULL));
    CHECK_MS(ms_since(start), 0, 100);
    return NULL;
}

static void each_thread_has_a_stream_of_its_own(void) {
    CUcontext context = context_on(0);
    pthread_t thread;

    OK(cuLaunchKernel_ptsz(kernel("spin_300ms"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    pthread_create(&thread, NULL, wait_for_own_stream, context);
    pthread_join(thread, NULL);
    CHECK_INT(cuStreamQuery_ptsz(NULL), CUDA_ERROR_NOT_READY);
    CHECK_INT(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
    OK(cuStreamSynchronize_ptsz(NULL));
}

static void a_full_queue_makes_a_launch_wait(void) {
    CUfunction spin;
    uint64_t start;

    context_on(0);
    spin = kernel("spin_100us");
    start = now_ns();
    for (int i = 0; i < 2048; i++)
        launch(spin, NULL);
    CHECK_MS(ms_since(start), 100, 2000); /* half of them are done */
    OK(cuCtxSynchronize());
    CHECK_MS(ms_since(start), 204.8, 2000);
}

#define QUEUED 50

/* Keeps the GPU busy for as many times 20 ms as it is told, and says when QUEUED of them, or all, are in the queue. */
static void work(void *number) {
    int times = *(int *)number;
    CUfunction spin;
    uint64_t start;

    context_on(0);
    spin = kernel("spin_20ms");
    say('r');
    hear();
    start = now_ns();
    for (int i = 0; i < times; i++) {
        launch(spin, NULL);
        if (i + 1 == (times < QUEUED ? times : QUEUED))
            say('q');
    }
    OK(cuCtxSynchronize());
    say(ms_since(start) > 25.0 * times ? 's' : 'f');
}

static void processes_take_turns(void) {
    int times = 10;
    struct worker a = worker_start(work, &times), b = worker_start(work, &times);
    uint64_t start;

    worker_hear(&a);
    worker_hear(&b);
    start = now_ns();
    worker_tell(&a, 'g');
    worker_tell(&b, 'g');
    CHECK_INT(worker_hear(&a), 'q');
    CHECK_INT(worker_hear(&b), 'q');
    /* Both are slowed down, and together they take as long as both take alone. */
    CHECK_INT(worker_hear(&a), 's');
    CHECK_INT(worker_hear(&b), 's');
    CHECK_MS(ms_since(start), 400, 1200);
    worker_join(&a);
    worker_join(&b);
}

static void a_short_job_does_not_wait_for_a_long_one(void) {
    int many = 5000; /* 100 seconds */
    struct worker busy = worker_start(work, &many);
    CUfunction spin;
    uint64_t start;

    context_on(0);
    spin = kernel("spin_20ms");
    worker_hear(&busy);
    worker_tell(&busy, 'g');
    CHECK_INT(worker_hear(&busy), 'q');
    start = now_ns();
    launch(spin, NULL);
    OK(cuCtxSynchronize());
    CHECK_MS(ms_since(start), 20, 50000); /* every other turn is ours */
    worker_kill(&busy, SIGKILL);
}

static void the_queues_of_the_killed_and_stopped_hold_nobody_up(void) {
    int many = 5000;
    struct worker killed = worker_start(work, &many), stopped = worker_start(work, &many);
    CUfunction spin;
    uint64_t start;

    context_on(0);
    spin = kernel("spin_20ms");
    worker_hear(&killed);
    worker_hear(&stopped);
    worker_tell(&killed, 'g');
    worker_tell(&stopped, 'g');
    CHECK_INT(worker_hear(&killed), 'q');
    CHECK_INT(worker_hear(&stopped), 'q');
    worker_kill(&stopped, SIGSTOP);
    worker_kill(&killed, SIGKILL);
    start = now_ns();
    launch(spin, NULL);
    OK(cuCtxSynchronize());
    CHECK_MS(ms_since(start), 20, 50000);
    worker_kill(&stopped, SIGKILL);
}

static void utilisation_is_the_share_of_time(void) {
    uint64_t busy;

    context_on(0);
    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(sim_gpu_utilisation(0), 0);
    busy = sim_gpu_busy_ns(0);
    launch(kernel("spin_300ms"), NULL);
    OK(cuCtxSynchronize());
    CHECK_MS((double)(sim_gpu_busy_ns(0) - busy) / 1e6, 299.9, 300.1);
    sleep_ms(130); /* the second ends with a whole eighth */
    CHECK_MS(sim_gpu_utilisation(0), 25, 35);
    CHECK_INT(sim_gpu_utilisation(1), 0);
}

const struct test time_tests[] = {
    {"a kernel takes its time", a_kernel_takes_its_time},
    {"work goes on while nobody looks", work_goes_on_while_nobody_looks},
    {"default time and override", default_time_and_override},
    {"freeing waits for kernels", freeing_waits_for_kernels},
    {"events tell the time", events_tell_the_time},
    {"streams wait for events", streams_wait_for_events},
    {"host functions run in order", host_functions_run_in_order},
    {"events come after host functions", events_come_after_host_functions},
    {"each thread has a stream of its own", each_thread_has_a_stream_of_its_own},
    {"a full queue makes a launch wait", a_full_queue_makes_a_launch_wait},
    {"processes take turns", processes_take_turns},
    {"a short job does not wait for a long one", a_short_job_does_not_wait_for_a_long_one},
    {"the queues of the killed and stopped hold nobody up", the_queues_of_the_killed_and_stopped_hold_nobody_up},
    {"utilisation is the share of time", utilisation_is_the_share_of_time},
    {0},
};
