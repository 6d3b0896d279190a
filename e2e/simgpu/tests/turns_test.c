/* What a switch between processes costs, and what the record says of the time that each group had. */
#include <signal.h>
#include <stdlib.h>

#include "harness.h"

static const char ptx[] = ".version 8.0\n.entry spin_100us\n.entry spin_20ms\n";

static void run(const char *name, int times) {
    CUfunction spin = kernel_of(ptx, name);

    for (int i = 0; i < times; i++)
        OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuCtxSynchronize());
}

static void run_100ms(void *group) {
    setenv("SIMGPU_LABEL", group, 1);
    context_on(0);
    run("spin_20ms", 5);
    say('d');
    hear();
}

static void time_of_the_dead_is_remembered(void) {
    struct worker worker = worker_start(run_100ms, "dead");

    CHECK_INT(worker_hear(&worker), 'd');
    CHECK_INT(look("dead").group_busy_ns[0], 100000000);
    worker_kill(&worker, SIGKILL);
    CHECK_INT(look("dead").group_busy_ns[0], 100000000);
    CHECK_INT(look("dead").group_busy_ns[1], 0);
    worker = worker_start(run_100ms, "dead");
    CHECK_INT(worker_hear(&worker), 'd');
    worker_join(&worker);
    CHECK_INT(look("dead").group_busy_ns[0], 200000000);
    CHECK_INT(look("dead").group_overlap_ns[0], 0);
    CHECK_INT(look("test").group_busy_ns[0], 0);
}

static double ms_of(const char *kernel) {
    uint64_t start = now_ns();

    run(kernel, 1);
    return (double)(now_ns() - start) / 1e6;
}

static void a_switch_takes_its_time(void) {
    struct worker worker;

    node_add_to_topology("switch_us = 500000\n");
    worker = worker_start(run_100ms, "other");
    CHECK_INT(worker_hear(&worker), 'd');
    CHECK_INT(look("other").switches[0], 0);
    context_on(0);
    CHECK(ms_of("spin_100us") >= 500.1);
    CHECK_INT(look("test").switches[0], 1);
    run("spin_100us", 10);
    CHECK_INT(look("test").switches[0], 1);
    /* The switch is nobody's time. */
    CHECK_INT(look("test").group_busy_ns[0], 1100000);
    CHECK_INT(look("other").group_busy_ns[0], 100000000);
    worker_join(&worker);
}

static void latencies(void) {
    node_add_to_topology("launch_us = 100000\nwake_us = 200000\n");
    context_on(0);
    CHECK(ms_of("spin_100us") >= 300.1);
    CHECK_INT(look("test").group_busy_ns[0], 100000);
}

/* Always has as much work queued as fits. */
static void run_heavy(void *unused) {
    CUfunction spin;

    (void)unused;
    setenv("SIMGPU_LABEL", "heavy", 1);
    context_on(0);
    spin = kernel_of(ptx, "spin_20ms");
    for (int i = 0; i < 5000; i++) {
        if (i == 50)
            say('q');
        OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    }
}

/*
 * Turns of the GPU alone are no shares: who waits for each short kernel gets little beside a full queue. The neighbour books
 * its turns only while it has a processor, so this is looked for until it has had one.
 */
static void a_heavy_neighbour_has_most_of_the_time(void) {
    struct worker heavy = worker_start(run_heavy, NULL);
    struct outside before, after = {0}, mine = {0};
    uint64_t rounds = 0, waited;
    bool most = false;

    context_on(0);
    CHECK_INT(worker_hear(&heavy), 'q');
    while (!most && rounds < 200) {
        before = look("heavy");
        waited = mine.group_overlap_ns[0];
        for (int i = 0; i < 20; i++)
            run("spin_100us", 1);
        after = look("heavy");
        mine = look("test");
        rounds++;
        most = after.group_busy_ns[0] - before.group_busy_ns[0] > 3 * 2000000 &&
               after.group_overlap_ns[0] > before.group_overlap_ns[0] && mine.group_overlap_ns[0] - waited > 2000000;
    }
    CHECK(most);
    CHECK_INT(mine.group_busy_ns[0], rounds * 2000000);
    /* At most a quantum and the switch before it for each kernel, and in turns of the other's. */
    CHECK(mine.group_overlap_ns[0] <= rounds * 20 * (2000000 + 60000));
    CHECK(mine.group_overlap_ns[0] <= after.group_busy_ns[0] + after.switches[0] * 60000);
    worker_kill(&heavy, SIGKILL);
}

const struct test turns_tests[] = {
    {"time of the dead is remembered", time_of_the_dead_is_remembered},
    {"a switch takes its time", a_switch_takes_its_time},
    {"latencies", latencies},
    {"a heavy neighbour has most of the time", a_heavy_neighbour_has_most_of_the_time},
    {0},
};
