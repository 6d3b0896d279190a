/*
 * Tests of compute shares: with a driver whose work takes time, and a stand-in for the governor. Built for the library that
 * limits memory too, and for the one that does not (TRANCHE_COMPUTE_ONLY).
 */
#include "../driver/cuda_real.h"
#include "../driver/real.h"
#include "../governor/clock.h"
#include "../governor/passage.h"
#include "../governor/queues.h"
#include "check.h"
#include "fixture.h"
#include "governor_double.h"
#include "governor_driver.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define FIRST "0000000a"
#define SECOND "0000000b"
#define MS NS_PER_MS
#define METER (2 * MS)

static CUcontext context;

static void set_current(CUcontext to) {
    ((CUresult(*)(CUcontext))real_lookup("", "cuCtxSetCurrent"))(to);
}

static void make_claims(void) {
    const char *directory = fixture_directory();
    fixture_claim(directory, FIRST, driver_uuids[0], (uint64_t)1 << 30, 1 << 20);
    fixture_claim(directory, SECOND, driver_uuids[1], (uint64_t)1 << 30, 1 << 20);
    setenv("TRANCHE_REGIONS", directory, 1);
    double_meter(0, METER);
    double_meter(1, METER);
}

static void start_program(void) {
    CHECK(cuInit(0) == CUDA_SUCCESS, "init");
    CHECK(cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS, "context");
}

/* The program goes on without the governor if that is late, as it may be on a busy machine. */
static void await_joined(int claims) {
    while (passages[0].joined + passages[1].joined < claims)
        clock_sleep(MS);
}

/* A governor that runs before the program does. */
static void start(enum gate_state state) {
    make_claims();
    double_set(0, state, 1);
    double_listen(getenv("TRANCHE_REGIONS"), FIRST, SECOND);
    start_program();
    if (double_answer == ANSWER_WELCOME)
        await_joined(2);
}

static CUresult launch(CUstream stream, uint64_t ns) {
    return cuLaunchKernel(KERNEL(ns), 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static CUstream make_stream(void) {
    CUstream stream = NULL;
    cuStreamCreate(&stream, 1);
    return stream;
}

/* A thread that launches once. */
struct launcher {
    pthread_t thread;
    CUcontext context;
    CUstream stream;
    CUresult result;
};

static void *run_launcher(void *argument) {
    struct launcher *launcher = argument;
    set_current(launcher->context);
    launcher->result = launch(launcher->stream, 1000);
    return NULL;
}

static void start_launcher(struct launcher *launcher, CUcontext in, CUstream stream) {
    *launcher = (struct launcher){.context = in, .stream = stream, .result = CUDA_ERROR_NOT_READY};
    pthread_create(&launcher->thread, NULL, run_launcher, launcher);
}

static void await_launcher(struct launcher *launcher) {
    pthread_join(launcher->thread, NULL);
    CHECK(launcher->result == CUDA_SUCCESS, "a launch gave %d", launcher->result);
}

static unsigned launches(void) {
    return driver_counts.launches;
}

/* --- joining ------------------------------------------------------------------------------------------------------ */

static void test_without_a_governor_all_is_open(void) {
    make_claims();
    start_program();
    CHECK(launch(NULL, 1000) == CUDA_SUCCESS, "launch");
    CHECK(governor_page.page.gate == GATE_OPEN, "the page");
    CHECK(driver_counts.events == 0, "%u events", driver_counts.events);
}

/* Unless that takes the governor very long. */
static void test_joins_before_the_first_launch(void) {
    double_answer = ANSWER_LATE;
    uint64_t begin = clock_now();
    start(GATE_CLOSED);
    uint64_t took = clock_now() - begin;
    CHECK(took > 240 * MS || governor_page.page.gate == GATE_CLOSED, "the gate is %u", governor_page.page.gate);
    struct governor_message hello = double_await(GOVERNOR_HELLO);
    CHECK((pid_t)hello.value[0] == getpid(), "HELLO of %d", (int)hello.value[0]);
    CHECK(hello.value[1] + double_await(GOVERNOR_HELLO).value[1] == 1, "indices 0 and 1");
}

static void test_joins_a_governor_that_comes_later(void) {
    make_claims();
    start_program();
    double_set(0, GATE_CLOSED, 1);
    double_listen(getenv("TRANCHE_REGIONS"), FIRST, SECOND);
    double_await(GOVERNOR_HELLO);
    struct launcher launcher;
    while (governor_page.page.gate != GATE_CLOSED)
        clock_sleep(MS);
    start_launcher(&launcher, context, NULL);
    double_await(GOVERNOR_WANT);
    CHECK(launches() == 0, "%u launches", launches());
    double_end(); /* and another one */
    await_launcher(&launcher);
    double_listen(getenv("TRANCHE_REGIONS"), FIRST, SECOND);
    double_await(GOVERNOR_HELLO);
}

/* A user may have 128 instances of inotify in all. */
static void test_uses_no_inotify(void) {
    char path[64], file[256];
    start(GATE_CLOSED);
    for (int fd = 0; fd < 1024; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t size = readlink(path, file, sizeof file - 1);
        file[size > 0 ? size : 0] = 0;
        CHECK(strstr(file, "inotify") == NULL, "descriptor %d is of %s", fd, file);
    }
}

static void test_stays_open_if_refused(void) {
    double_answer = ANSWER_REFUSED;
    start(GATE_CLOSED);
    CHECK(launch(NULL, 1000) == CUDA_SUCCESS, "launch");
    CHECK(governor_page.page.gate == GATE_OPEN, "the page");
}

static void test_malformed_answers_end_the_connection(void) {
    double_answer = ANSWER_SHORT;
    start(GATE_CLOSED);
    double_await(DOUBLE_EOF);
    CHECK(launch(NULL, 1000) == CUDA_SUCCESS, "launch");
}

static void test_a_governor_that_never_answers(void) {
    double_answer = ANSWER_NONE;
    start(GATE_CLOSED);
    CHECK(launch(NULL, 1000) == CUDA_SUCCESS, "launch");
}

/* --- the gate ----------------------------------------------------------------------------------------------------- */

static void test_closed_blocks_until_granted(void) {
    start(GATE_CLOSED);
    struct launcher one, other;
    start_launcher(&one, context, NULL);
    start_launcher(&other, context, make_stream());
    struct governor_message want = double_await(GOVERNOR_WANT);
    CHECK(want.gpu == 0 && want.turn == 1, "WANT of GPU %u after turn %d", want.gpu, (int)want.turn);
    CHECK(double_count(GOVERNOR_WANT) == 0, "one WANT for both");
    CHECK(launches() == 0, "%u launches", launches());
    double_grant(0, 2);
    await_launcher(&one);
    await_launcher(&other);
    CHECK(launches() == 2, "%u launches", launches());
    double_revoke(0, 2);
    start_launcher(&one, context, NULL);
    CHECK(double_await(GOVERNOR_WANT).turn == 2, "one for the next turn");
    double_set(0, GATE_OPEN, 2);
    await_launcher(&one);
}

/* Other forms of giving the GPU work. */
#define FORMS 4

static void *run_form(void *form) {
    set_current(context);
    switch ((uintptr_t)form) {
    case 0:
        cuGraphLaunch((CUgraphExec)(uintptr_t)1000, NULL);
        break;
    case 1:
        cuMemsetD8_v2(0, 0, 1000);
        break;
    case 2:
        cuMemcpy((CUdeviceptr)1 << 32, (CUdeviceptr)1 << 33, 1000);
        break;
    default:
        cuLaunchKernel_ptsz(KERNEL(1000), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    }
    return NULL;
}

static void test_all_work_is_gated(void) {
    pthread_t thread;
    start(GATE_CLOSED);
    double_await(GOVERNOR_DRAINED);
    CHECK(cuMemcpy(1, (CUdeviceptr)1 << 32, 1000) == CUDA_SUCCESS, "a copy to the host");
    CHECK(launches() == 1, "it is not gated");
    for (uintptr_t form = 0; form < FORMS; form++) {
        pthread_create(&thread, NULL, run_form, (void *)form);
        CHECK(double_await(GOVERNOR_WANT).turn == form + 1, "form %d", (int)form);
        CHECK(launches() == form + 1, "form %d: %u launches", (int)form, launches());
        double_grant(0, form + 2);
        pthread_join(thread, NULL);
        CHECK(launches() == form + 2, "form %d: %u launches", (int)form, launches());
        double_revoke(0, form + 2);
        CHECK(double_await(GOVERNOR_DRAINED).value[2] != 0, "form %d had waited", (int)form);
    }
}

static void test_the_governors_end_opens(void) {
    struct launcher launcher;
    start(GATE_CLOSED);
    start_launcher(&launcher, context, NULL);
    double_await(GOVERNOR_WANT);
    double_end();
    await_launcher(&launcher);
    CHECK(launch(NULL, 1000) == CUDA_SUCCESS, "and it stays open");
}

static void test_a_governor_that_hangs_opens(void) {
    struct launcher launcher;
    start(GATE_CLOSED);
    start_launcher(&launcher, context, NULL);
    double_await(GOVERNOR_WANT);
    double_hang();
    await_launcher(&launcher);
}

static void test_captures_pass(void) {
    start(GATE_CLOSED);
    CUstream stream = make_stream();
    cuStreamBeginCapture_v2(stream, 0);
    for (int i = 0; i < 1000; i++)
        launch(stream, MS);
    double_grant(0, 2);
    for (int i = 0; i < 1000; i++)
        launch(stream, MS);
    double_revoke(0, 2);
    double_await(GOVERNOR_DRAINED);
    CHECK(driver_counts.captured == 2000, "%u captured", driver_counts.captured);
    CHECK(driver_counts.broken_captures == 0, "%u events in a capture", driver_counts.broken_captures);
    CHECK(double_count(GOVERNOR_WANT) == 0, "nobody waited");
}

static void test_gpus_are_apart(void) {
    CUcontext other;
    struct launcher launcher;
    start(GATE_CLOSED);
    cuCtxCreate_v2(&other, 0, 1);
    CHECK(launch(NULL, 1000) == CUDA_SUCCESS && launches() == 1, "the other GPU is open");
    start_launcher(&launcher, context, NULL);
    CHECK(double_await(GOVERNOR_WANT).gpu == 0, "the first one waits");
    double_revoke(1, 1);
    double_await(GOVERNOR_DRAINED);
    double_grant(0, 2);
    await_launcher(&launcher);
    start_launcher(&launcher, other, NULL);
    CHECK(double_await(GOVERNOR_WANT).gpu == 1, "the other one waits");
    double_grant(1, 2);
    await_launcher(&launcher);
}

/* --- metering ----------------------------------------------------------------------------------------------------- */

/* What is outstanding exceeds the meter by a kernel or two, and by more on a machine on which this thread waits for a
 * processor. Without a meter it would be 40 ms. */
#define CAPPED (METER + 10 * MS)

static void test_outstanding_work_is_capped(void) {
    start(GATE_METERED);
    CUstream stream = make_stream();
    for (int i = 0; i < 40; i++)
        launch(stream, MS);
    CHECK(driver_counts.most_ns <= CAPPED, "%d us", (int)(driver_counts.most_ns / 1000));
    CHECK(driver_counts.most_ns > MS, "more than one kernel is");
}

/* As with a thread that has no processor while it asks whether work is done. */
static void test_slow_queries_do_not_make_kernels_short(void) {
    start(GATE_METERED);
    CUstream stream = make_stream();
    driver_dawdles = true;
    for (int i = 0; i < 4; i++)
        launch(stream, MS);
    driver_dawdles = false;
    for (int i = 0; i < 40; i++)
        launch(stream, MS);
    CHECK(driver_counts.most_ns <= CAPPED, "%d us", (int)(driver_counts.most_ns / 1000));
}

static void test_one_launch_always_passes(void) {
    start(GATE_METERED);
    for (int i = 0; i < 4; i++)
        launch(NULL, 20 * MS);
    CHECK(driver_counts.most_ns <= 40 * MS, "%d us", (int)(driver_counts.most_ns / 1000));
}

/* It is launched while the meter's worth of the one before is left, so that the GPU does not stand still in between. */
static void test_the_next_long_launch_comes_before_the_end(void) {
    start(GATE_METERED);
    CUstream stream = make_stream();
    for (int i = 0; i < 3; i++)
        launch(stream, 10 * MS); /* how long they take is not known */
    driver_counts.most_ns = 0;
    for (int i = 0; i < 1000 && driver_counts.most_ns <= 11 * MS; i++)
        launch(stream, 10 * MS);
    CHECK(driver_counts.most_ns > 11 * MS, "%d us", (int)(driver_counts.most_ns / 1000));
    CHECK(driver_counts.most_ns <= 20 * MS, "%d us", (int)(driver_counts.most_ns / 1000));
}

static void test_short_launches_have_few_events(void) {
    start(GATE_METERED);
    for (int i = 0; i < 20000; i++)
        launch(NULL, 1);
    CHECK(launches() == 20000, "%u launches", launches());
    CHECK(driver_counts.events <= 16, "%u events", driver_counts.events);
}

/* The kernel in one stream waits for that in the other. */
static void test_a_kernel_may_wait_for_the_next(void) {
    start(GATE_METERED);
    CUstream stream = make_stream();
    cuLaunchKernel(ENDLESS, 1, 1, 1, 1, 1, 1, 0, make_stream(), NULL, NULL);
    for (int i = 0; i < 3; i++)
        launch(stream, MS);
    CHECK(launches() == 4, "%u launches", launches());
}

/* However long the work takes, if no stream waits for memory. */
static void test_a_long_turn_waits_for_no_launch(void) {
    start(GATE_METERED);
    struct launcher launcher;
    CUstream stream = make_stream();
    CHECK(cuStreamWaitValue32_v2(make_stream(), 0, MS, 0) == CUDA_SUCCESS, "a wait that is soon over");
    CHECK(cuLaunchKernel(ENDLESS, 1, 1, 1, 1, 1, 1, 0, make_stream(), NULL, NULL) == CUDA_SUCCESS, "endless");
    double_set(0, GATE_CLOSED, 1);
    start_launcher(&launcher, context, stream);
    unsigned before = launches();
    clock_sleep(2300 * MS); /* nothing is to happen */
    CHECK(launches() == before && double_count(GOVERNOR_DRAINED) == 0, "%u launches more", launches() - before);
    double_set(0, GATE_METERED, 2);
    await_launcher(&launcher);
    driver_release();
}

/* What is outstanding of the last turn waits for a launch, which would wait for the next. What passes is outstanding, too. */
static void test_a_turn_may_wait_for_a_launch(void) {
    start(GATE_METERED);
    struct launcher launcher;
    CUstream stream = make_stream();
    CHECK(cuStreamWaitValue32_v2(make_stream(), 0, 0, 0) == CUDA_SUCCESS, "until it is written");
    uint64_t begin = clock_now();
    double_set(0, GATE_CLOSED, 1);
    start_launcher(&launcher, context, stream);
    await_launcher(&launcher);
    uint64_t took = clock_now() - begin;
    CHECK(took >= 1900 * MS && double_count(GOVERNOR_DRAINED) == 0, "it passed after %d ms", (int)(took / MS));
    CHECK(launch(stream, 400 * MS) == CUDA_SUCCESS, "at once, or two seconds later");
    uint64_t end = clock_now() + 350 * MS;
    driver_release();
    double_await(GOVERNOR_DRAINED);
    CHECK(clock_now() >= end, "drained before it ended");
}

static void *launch_many(void *argument) {
    struct launcher *launcher = argument;
    set_current(launcher->context);
    launcher->result = CUDA_SUCCESS;
    for (int i = 0; i < 20 && launcher->result == CUDA_SUCCESS; i++)
        launcher->result = launch(launcher->stream, 20 * MS);
    return NULL;
}

/* A few, and no more before what they took has passed many times. */
static void test_few_launches_pass(void) {
    start(GATE_METERED);
    struct launcher launcher = {.context = context, .stream = make_stream()};
    CHECK(cuStreamWaitValue32_v2(make_stream(), 0, 0, 0) == CUDA_SUCCESS, "until it is written");
    unsigned before = launches();
    double_set(0, GATE_CLOSED, 1);
    pthread_create(&launcher.thread, NULL, launch_many, &launcher);
    while (launches() < before + 8)
        clock_sleep(MS);
    clock_sleep(2300 * MS); /* nothing is to happen */
    CHECK(launches() == before + 8, "%u launches", launches() - before);
    double_set(0, GATE_METERED, 2);
    await_launcher(&launcher);
    driver_release();
}

/* --- ends of turns ------------------------------------------------------------------------------------------------ */

/* The agent has begun to wait for the end of what was launched in a stream. */
static void await_drain(CUstream stream) {
    while (atomic_load(&queues_find(stream)->used))
        clock_sleep(MS / 10);
}

/* The page and not the message is what counts: a message may be lost, or have been sent before the process was welcome. */
static void test_drains_without_a_message(void) {
    start(GATE_METERED);
    launch(NULL, 10 * MS);
    double_set(0, GATE_CLOSED, 1);
    uint64_t end = driver_end();
    struct governor_message drained = double_await(GOVERNOR_DRAINED);
    CHECK(drained.turn == 1 && drained.value[0] >= end, "turn %d", (int)drained.turn);
}

static void test_drains_a_turn_that_ended_before_it_joined(void) {
    start(GATE_CLOSED);
    CHECK(double_await(GOVERNOR_DRAINED).turn == 1, "it has nothing outstanding");
}

static void test_answers(void) {
    start(GATE_METERED);
    CUstream stream = make_stream();
    cuLaunchKernel(ENDLESS, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    double_revoke(0, 1);
    await_drain(stream);
    CHECK(double_count(GOVERNOR_ENDING) + double_count(GOVERNOR_DRAINED) == 0, "it was not asked");
    for (int i = 0; i < 2; i++) {
        double_ask(0, 1);
        struct governor_message ending = double_await(GOVERNOR_ENDING);
        CHECK(ending.turn == 1 && ending.value[0] == 0, "turn %d", (int)ending.turn);
    }
    driver_release();
    CHECK(double_await(GOVERNOR_DRAINED).turn == 1, "the turn");
    double_ask(0, 1);
    CHECK(double_await(GOVERNOR_DRAINED).turn == 1, "the turn again");
}

static void test_says_that_it_only_waits(void) {
    start(GATE_METERED);
    CHECK(cuStreamWaitValue32_v2(make_stream(), 0, 0, 0) == CUDA_SUCCESS, "until it is written");
    launch(make_stream(), 30 * MS);
    uint64_t end = clock_now() + 29 * MS;
    double_revoke(0, 1);
    while (double_await(GOVERNOR_ENDING).value[1] == 0) {
    }
    CHECK(clock_now() >= end, "it computed until then");
    driver_release();
    CHECK(double_await(GOVERNOR_DRAINED).turn == 1, "the turn");
}

static void await_drained(uint64_t turn) {
    uint64_t end = driver_end();
    struct governor_message drained = double_await(GOVERNOR_DRAINED);
    CHECK(drained.turn == turn, "turn %d", (int)drained.turn);
    CHECK(drained.value[0] >= end, "%d us before the end", (int)((end - drained.value[0]) / 1000));
}

static void test_drains_what_is_outstanding(void) {
    start(GATE_METERED);
    CUstream stream = make_stream();
    launch(stream, 10 * MS);
    launch(NULL, 1000);
    launch(stream, 10 * MS);
    double_revoke(0, 1);
    struct launcher launcher;
    start_launcher(&launcher, context, stream); /* while it drains */
    await_drained(1);
    CHECK(launches() == 3, "%u launches", launches());
    double_grant(0, 2);
    await_launcher(&launcher);
    double_revoke(0, 2);
    await_drained(2);
}

/* A launch that is in the driver at the end of a turn. The agent has looked at the first GPU before it answers about the
 * second. */
static void test_drains_launches_on_their_way(void) {
    struct launcher launcher;
    start(GATE_METERED);
    driver_holds = true;
    start_launcher(&launcher, context, NULL);
    while (driver_counts.held == 0)
        clock_sleep(MS);
    double_revoke(0, 1);
    double_revoke(1, 1);
    double_await(GOVERNOR_DRAINED);
    double_revoke(1, 2);
    double_await(GOVERNOR_DRAINED);
    driver_holds = false;
    await_launcher(&launcher);
    CHECK(double_await(GOVERNOR_DRAINED).gpu == 0, "the first GPU is the last");
}

/* Launches were not seen until then. */
static void test_drains_what_was_launched_while_open(void) {
    start(GATE_OPEN);
    CUstream stream = make_stream();
    launch(stream, 10 * MS);
    launch(NULL, 15 * MS);
    double_revoke(0, 1);
    await_drained(1);
}

static void test_drains_what_was_launched_before_it_joined(void) {
    make_claims();
    start_program();
    launch(make_stream(), 300 * MS);
    double_set(0, GATE_CLOSED, 1);
    double_listen(getenv("TRANCHE_REGIONS"), FIRST, NULL);
    double_await(GOVERNOR_HELLO);
    while (governor_page.page.gate != GATE_CLOSED)
        clock_sleep(MS);
    double_revoke(0, 1);
    await_drained(1);
}

static void test_drains_destroyed_streams(void) {
    start(GATE_METERED);
    CUstream stream = make_stream();
    launch(stream, 20 * MS);
    cuStreamDestroy_v2(stream);
    double_revoke(0, 1);
    await_drained(1);
    double_grant(0, 2);
    for (int i = 0; i < 100; i++) {
        stream = make_stream();
        launch(stream, 1000);
        cuStreamDestroy_v2(stream);
    }
    double_revoke(0, 2);
    await_drained(2);
    CHECK(driver_counts.events <= 9, "%u events live on", driver_counts.events);
}

static void test_contexts_end_with_work_outstanding(void) {
    CUcontext primary;
    start(GATE_METERED);
    cuLaunchKernel(ENDLESS, 1, 1, 1, 1, 1, 1, 0, make_stream(), NULL, NULL);
    cuCtxDestroy_v2(context);
    cuDevicePrimaryCtxRetain(&primary, 0);
    set_current(primary);
    cuLaunchKernel(ENDLESS, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    double_revoke(0, 1);
    await_drain(NULL);
    CHECK(double_count(GOVERNOR_DRAINED) == 0, "it is not drained");
    cuDevicePrimaryCtxReset_v2(0);
    double_await(GOVERNOR_DRAINED);
}

/* The next context has the handle of the one before. */
static void test_events_end_with_their_context(void) {
    CUcontext primary;
    start(GATE_METERED);
    for (unsigned turn = 1; turn < 7; turn += 2) {
        CHECK(cuDevicePrimaryCtxRetain(&primary, 0) == CUDA_SUCCESS, "retain");
        set_current(primary);
        launch(make_stream(), MS);
        launch(NULL, MS);
        set_current(NULL);
        CHECK((turn < 3 ? cuDevicePrimaryCtxReset_v2 : cuDevicePrimaryCtxRelease_v2)(0) == CUDA_SUCCESS, "end");
        CHECK(cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS, "context");
        launch(NULL, MS);
        CHECK(cuCtxDestroy_v2(context) == CUDA_SUCCESS, "destroy");
        double_revoke(0, turn);
        double_await(GOVERNOR_DRAINED);
        double_grant(0, turn + 2);
    }
    CHECK(driver_counts.ended_events == 0, "%u uses of events of ended contexts", driver_counts.ended_events);
}

/* The governor goes on after its deadline. */
static void test_a_turn_that_is_not_drained(void) {
    start(GATE_METERED);
    CUstream stream = make_stream();
    cuLaunchKernel(ENDLESS, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    double_revoke(0, 1);
    await_drain(stream);
    double_grant(0, 2);
    launch(NULL, 1000);
    double_revoke(0, 2);
    await_drain(NULL);
    driver_release();
    CHECK(double_await(GOVERNOR_DRAINED).turn == 2, "the second turn");
    CHECK(double_count(GOVERNOR_DRAINED) == 0, "and not the first");
    CHECK(double_count(GOVERNOR_ENDING) == 0, "nothing is known of such kernels");
}

/* A thread that has no processor for long knows less of its kernels: then there are more turns. */
static void test_says_when_a_turn_will_have_ended(void) {
    enum { KERNELS = 8, TURNS = 1000 };
    unsigned turn = 1;
    start(GATE_METERED);
    CUstream stream = make_stream();
    for (; double_count(GOVERNOR_ENDING) == 0 && turn < TURNS; turn++) {
        for (int i = 0; i < KERNELS; i++)
            launch(stream, 5 * MS);
        double_revoke(0, turn);
        double_await(GOVERNOR_DRAINED);
        double_grant(0, turn + 1);
    }
    CHECK(turn < TURNS && double_await(GOVERNOR_ENDING).value[0] <= 15 * MS, "turn %u", turn);
}

static void test_says_when_it_is_idle(void) {
    start(GATE_METERED);
    uint64_t last = 0;
    double_await(GOVERNOR_IDLE); /* from the start */
    for (int i = 0; i < 3; i++) {
        launch(make_stream(), 5 * MS);
        struct governor_message idle = double_await(GOVERNOR_IDLE);
        CHECK(clock_now() >= driver_end() && idle.value[0] > 0, "after the work");
        CHECK(idle.turn == 1, "in turn %d", (int)idle.turn);
        last = idle.value[0];
    }
    CHECK(last < 30 * NS_PER_SECOND, "%d us", (int)(last / 1000));
}

/* A turn without work, and one in which work of the turn before goes on. */
static void test_says_how_long_nothing_was_outstanding(void) {
    start(GATE_METERED);
    double_await(GOVERNOR_IDLE);
    double_revoke(0, 1);
    double_await(GOVERNOR_DRAINED);
    uint64_t begin = clock_now();
    double_grant(0, 2);
    double_await(GOVERNOR_IDLE); /* it has looked */
    double_revoke(0, 2);
    uint64_t empty = double_await(GOVERNOR_DRAINED).value[1], most = clock_now() - begin;
    CHECK(empty > 0 && empty <= most, "%d of %d us", (int)(empty / 1000), (int)(most / 1000));
    double_grant(0, 3);
    CUstream stream = make_stream();
    cuLaunchKernel(ENDLESS, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    double_revoke(0, 3);
    await_drain(stream);
    double_grant(0, 4);
    clock_sleep(5 * MS);
    double_revoke(0, 4);
    clock_sleep(5 * MS);
    driver_release();
    struct governor_message drained = double_await(GOVERNOR_DRAINED);
    CHECK(drained.turn == 4 && drained.value[1] == 0, "%d us of turn %d", (int)(drained.value[1] / 1000),
          (int)drained.turn);
}

/* --- processes ---------------------------------------------------------------------------------------------------- */

/* The parent waits at its gate; the child is a new process. */
static void test_fork(void) {
    struct launcher launcher;
    start(GATE_CLOSED);
    double_await(GOVERNOR_HELLO);
    double_await(GOVERNOR_HELLO);
    start_launcher(&launcher, context, NULL);
    double_await(GOVERNOR_WANT);
    pid_t child = fork();
    if (child == 0) {
        bool open = governor_page.page.gate == GATE_OPEN && launch(NULL, 1000) == CUDA_SUCCESS;
        bool again = cuInit(0) == CUDA_SUCCESS;
        await_joined(2);
        bool joined = again && governor_page.page.gate == GATE_CLOSED;
        _exit(open && joined ? 0 : open + 2 * joined + 1);
    }
    int status;
    CHECK((pid_t)double_await(GOVERNOR_HELLO).value[0] == child, "the child joins anew");
    CHECK(waitpid(child, &status, 0) == child && status == 0, "it ended with %#x", (unsigned)status);
    CHECK(launches() == 0, "the parent still waits");
    double_grant(0, 2);
    await_launcher(&launcher);
}

/* A child does not keep its parent's connection. */
static void test_the_parents_end_is_seen(void) {
    int pipes[2];
    make_claims();
    double_listen(getenv("TRANCHE_REGIONS"), FIRST, NULL);
    CHECK(pipe(pipes) == 0, "a pipe");
    pid_t parent = fork();
    if (parent == 0) {
        start_program();
        await_joined(1);
        if (fork() == 0) {
            char byte;
            close(pipes[1]);
            _exit(read(pipes[0], &byte, 1) == 0 ? 0 : 1);
        }
        _exit(0);
    }
    waitpid(parent, NULL, 0);
    double_await(DOUBLE_EOF);
    close(pipes[1]);
}

/* Closes all descriptors and has sockets of its own at their numbers. Returns how many of these anybody else used. */
static int disturbed_sockets(void) {
    enum { PAIRS = 16 };
    int ends[PAIRS][2], disturbed = 0;
    for (int fd = 3; fd < 4096; fd++)
        close(fd);
    for (int pair = 0; pair < PAIRS; pair++)
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends[pair]) != 0 || write(ends[pair][0], "own", 3) != 3 ||
            write(ends[pair][1], "own", 3) != 3)
            return -1;
    launch(NULL, 1000);
    await_joined(1);
    for (int end = 0; end < 2 * PAIRS; end++) {
        char bytes[256];
        disturbed += recv(ends[end / 2][end % 2], bytes, sizeof bytes, MSG_DONTWAIT) != 3;
    }
    return disturbed;
}

static void test_joins_anew_when_the_program_closes_its_descriptors(void) {
    int status;
    make_claims();
    double_set(0, GATE_CLOSED, 1);
    double_listen(getenv("TRANCHE_REGIONS"), FIRST, NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(300);
        start_program();
        await_joined(1);
        _exit(disturbed_sockets());
    }
    double_await(GOVERNOR_HELLO);
    double_await(GOVERNOR_HELLO);
    double_grant(0, 2);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "sockets of the program were used: %#x", (unsigned)status);
}

static void client(enum gate_state state) {
    start_program();
    await_joined(1);
    if (state == GATE_METERED)
        cuLaunchKernel(ENDLESS, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    launch(make_stream(), 1000);
    for (;;)
        pause();
}

static void test_killed_in_each_state(void) {
    make_claims();
    double_listen(getenv("TRANCHE_REGIONS"), FIRST, NULL);
    for (int state = GATE_OPEN; state <= GATE_CLOSED + 1; state++) {
        bool draining = state > GATE_CLOSED;
        double_set(0, draining ? GATE_METERED : (enum gate_state)state, 1);
        pid_t pid = fork();
        if (pid == 0)
            client(draining ? GATE_METERED : (enum gate_state)state);
        double_await(GOVERNOR_HELLO);
        if (state == GATE_CLOSED)
            double_await(GOVERNOR_WANT);
        if (draining) {
            clock_sleep(20 * MS);
            double_revoke(0, 1);
        }
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        double_await(DOUBLE_EOF);
    }
}

static void exit_3(int signal_number) {
    (void)signal_number;
    exit(3);
}

static volatile sig_atomic_t handled;

static void note(int signal_number) {
    (void)signal_number;
    handled = 1;
}

/* What signals do to a program that waits for its turn is what they do in a call of the driver that takes long. */
static void test_signals_at_the_gate(void) {
    void (*const handlers[])(int) = {SIG_DFL, exit_3, note};
    make_claims();
    double_listen(getenv("TRANCHE_REGIONS"), FIRST, NULL);
    for (int i = 0; i < 3; i++) {
        int status;
        double_set(0, GATE_CLOSED, 1);
        pid_t pid = fork();
        if (pid == 0) {
            signal(SIGTERM, handlers[i]);
            start_program();
            await_joined(1);
            launch(NULL, 1000);
            _exit(4 + handled);
        }
        double_await(GOVERNOR_WANT);
        kill(pid, SIGTERM);
        if (handlers[i] == note)
            double_grant(0, 2);
        waitpid(pid, &status, 0);
        double_await(DOUBLE_EOF);
        if (i == 0)
            CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "it ended with %#x", (unsigned)status);
        else
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == (i == 1 ? 3 : 5), "it ended with %#x", (unsigned)status);
    }
}

static void test_says_bye(void) {
    make_claims();
    double_listen(getenv("TRANCHE_REGIONS"), FIRST, NULL);
    pid_t pid = fork();
    if (pid == 0) {
        start_program();
        await_joined(1);
        exit(0);
    }
    waitpid(pid, NULL, 0);
    double_await(GOVERNOR_BYE);
    double_await(DOUBLE_EOF);
}

/* --- threads ------------------------------------------------------------------------------------------------------ */

#define THREADS 4

static _Atomic bool ends;

static void *run_busy(void *unused) {
    set_current(context);
    CUstream stream = make_stream();
    for (unsigned i = 0; !ends; i++) {
        launch(i % 3 == 0 ? NULL : stream, 20000);
        if (i % 50 == 0) {
            cuStreamDestroy_v2(stream);
            stream = make_stream();
        }
    }
    return unused;
}

/* Every turn is drained, and nothing is launched outside. */
static void test_turns_of_busy_threads(void) {
    pthread_t threads[THREADS];
    start(GATE_CLOSED);
    double_await(GOVERNOR_DRAINED);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, run_busy, NULL);
    for (unsigned turn = 2; turn < 12; turn++) {
        double_await(GOVERNOR_WANT);
        uint64_t granted = clock_now();
        double_grant(0, turn);
        clock_sleep(2 * MS);
        double_revoke(0, turn);
        struct governor_message drained = double_await(GOVERNOR_DRAINED);
        CHECK(drained.value[2] == 0 || (drained.value[2] >= granted && drained.value[2] <= drained.value[0]),
              "it went on %d us after the turn began", (int)((int64_t)(drained.value[2] - granted) / 1000));
        unsigned before = launches();
        CHECK(drained.turn == turn, "turn %d", (int)drained.turn);
        CHECK(driver_end() <= drained.value[0], "work is outstanding");
        CHECK(launches() == before, "%u launches outside a turn", launches() - before);
    }
    ends = true;
    double_set(0, GATE_OPEN, 12);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

/* --- where memory is not limited ----------------------------------------------------------------------------------- */

#ifdef TRANCHE_COMPUTE_ONLY

/* As NVIDIA's runtime library gets it, by a private table. */
static CUcontext retain_unseen(void) {
    CUcontext primary = NULL;
    ((CUresult(*)(CUcontext *, CUdevice))real_lookup("", "cuDevicePrimaryCtxRetain"))(&primary, 0);
    return primary;
}

static void test_drains_contexts_that_were_not_seen(void) {
    start(GATE_OPEN);
    set_current(retain_unseen());
    launch(NULL, 15 * MS);
    double_revoke(0, 1);
    await_drained(1);
}

/* Nobody else may have retained it. */
static void test_keeps_no_context(void) {
    unsigned int flags;
    int active = 1;
    start(GATE_OPEN);
    retain_unseen();
    double_revoke(0, 1);
    await_drained(1);
    CHECK(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS, "release");
    REAL(cuDevicePrimaryCtxGetState)(0, &flags, &active);
    CHECK(!active, "the primary context lives on");
}

static void test_events_end_with_their_green_context(void) {
    CUcontext green;
    start(GATE_METERED);
    for (unsigned turn = 1; turn < 4; turn++) {
        ((CUresult(*)(CUcontext *, unsigned, CUdevice))real_lookup("", "cuCtxCreate_v2"))(&green, 0, 0);
        launch(make_stream(), MS);
        CHECK(cuGreenCtxDestroy((CUgreenCtx)green) == CUDA_SUCCESS, "destroy");
        double_revoke(0, turn);
        double_await(GOVERNOR_DRAINED);
        double_grant(0, turn + 1);
    }
    CHECK(driver_counts.ended_events == 0, "%u uses of events of ended contexts", driver_counts.ended_events);
}

static void test_runs_without_claims(void) {
    setenv("TRANCHE_REGIONS", "/nonexistent", 1);
    start_program();
    CHECK(launch(make_stream(), 1000) == CUDA_SUCCESS && launches() == 1, "launch");
    CHECK(cuCtxDestroy_v2(context) == CUDA_SUCCESS, "destroy");
}

/* Limits are the driver's, so a claim may have no accounts. */
static void test_uses_no_accounts(void) {
    char path[256];
    make_claims();
    snprintf(path, sizeof path, "%s/" FIRST "/" REGION_USAGE_FILE, getenv("TRANCHE_REGIONS"));
    CHECK(unlink(path) == 0, "unlink");
    double_set(0, GATE_CLOSED, 1);
    double_listen(getenv("TRANCHE_REGIONS"), FIRST, SECOND);
    start_program();
    await_joined(2);
    struct launcher launcher;
    start_launcher(&launcher, context, NULL);
    double_await(GOVERNOR_WANT);
    double_grant(0, 2);
    await_launcher(&launcher);
}

#endif

int main(int argc, char **argv) {
    checks_start();
    alarm(600);
#define RUN(test)                                                                                                      \
    if (argc < 2 || strcmp(argv[1], #test) == 0)                                                                       \
    checks_run(#test, test)
    RUN(test_without_a_governor_all_is_open);
    RUN(test_joins_before_the_first_launch);
    RUN(test_joins_a_governor_that_comes_later);
    RUN(test_uses_no_inotify);
    RUN(test_stays_open_if_refused);
    RUN(test_malformed_answers_end_the_connection);
    RUN(test_a_governor_that_never_answers);
    RUN(test_closed_blocks_until_granted);
    RUN(test_all_work_is_gated);
    RUN(test_the_governors_end_opens);
    RUN(test_a_governor_that_hangs_opens);
    RUN(test_captures_pass);
    RUN(test_gpus_are_apart);
    RUN(test_outstanding_work_is_capped);
    RUN(test_slow_queries_do_not_make_kernels_short);
    RUN(test_one_launch_always_passes);
    RUN(test_the_next_long_launch_comes_before_the_end);
    RUN(test_short_launches_have_few_events);
    RUN(test_a_kernel_may_wait_for_the_next);
    RUN(test_a_long_turn_waits_for_no_launch);
    RUN(test_a_turn_may_wait_for_a_launch);
    RUN(test_few_launches_pass);
    RUN(test_says_that_it_only_waits);
    RUN(test_drains_without_a_message);
    RUN(test_drains_a_turn_that_ended_before_it_joined);
    RUN(test_answers);
    RUN(test_drains_what_is_outstanding);
    RUN(test_drains_launches_on_their_way);
    RUN(test_drains_what_was_launched_while_open);
    RUN(test_drains_what_was_launched_before_it_joined);
    RUN(test_drains_destroyed_streams);
    RUN(test_contexts_end_with_work_outstanding);
    RUN(test_events_end_with_their_context);
    RUN(test_a_turn_that_is_not_drained);
    RUN(test_says_when_a_turn_will_have_ended);
    RUN(test_says_when_it_is_idle);
    RUN(test_says_how_long_nothing_was_outstanding);
    RUN(test_fork);
    RUN(test_the_parents_end_is_seen);
    RUN(test_joins_anew_when_the_program_closes_its_descriptors);
    RUN(test_killed_in_each_state);
    RUN(test_signals_at_the_gate);
    RUN(test_says_bye);
    RUN(test_turns_of_busy_threads);
#ifdef TRANCHE_COMPUTE_ONLY
    RUN(test_drains_contexts_that_were_not_seen);
    RUN(test_keeps_no_context);
    RUN(test_events_end_with_their_green_context);
    RUN(test_runs_without_claims);
    RUN(test_uses_no_accounts);
#endif
    return checks_report();
}
