/* The sums that all processes share: exact, whoever dies or stops in the midst. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness.h"

static void hold(void *mib) {
    CUdeviceptr pointer;

    context_on(0);
    OK(cuMemAlloc_v2(&pointer, *(int *)mib * MIB));
    say('r');
    hear();
}

static void the_gpu_is_shared_until_it_is_full(void) {
    int mib = 400;
    struct worker first = worker_start(hold, &mib);
    CUdeviceptr pointer;
    size_t free, total;

    worker_hear(&first);
    context_on(0);
    OK(cuMemGetInfo_v2(&free, &total));
    CHECK_INT(free, GPU0_BYTES - 2 * GPU0_CONTEXT - 400 * MIB);
    CHECK_INT(cuMemAlloc_v2(&pointer, free + 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&pointer, free));
    CHECK_INT(cuMemAlloc_v2(&pointer, 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemGetInfo_v2(&free, &total));
    CHECK_INT(free, 0);
    worker_join(&first);
    OK(cuMemAlloc_v2(&pointer, 400 * MIB));
}

static void a_killed_process_gives_back_everything(void) {
    int mib = 400;
    struct worker first = worker_start(hold, &mib);
    CUdeviceptr pointer;

    worker_hear(&first);
    context_on(0);
    CHECK_INT(cuMemAlloc_v2(&pointer, 800 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    worker_kill(&first, SIGKILL);
    OK(cuMemAlloc_v2(&pointer, 800 * MIB));
    CHECK_INT(look("test").used[0], GPU0_CONTEXT + 800 * MIB);
}

/* Leaves the pipes to the test open. */
static void close_all_files(void) {
    struct stat info;

    for (int fd = 3; fd < (int)sysconf(_SC_OPEN_MAX); fd++) {
        if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode))
            close(fd);
    }
}

static void close_all_files_and_take_more(void *unused) {
    CUdeviceptr pointer;

    (void)unused;
    context_on(0);
    OK(cuMemAlloc_v2(&pointer, 20 * MIB));
    close_all_files();
    say('r');
    hear();
    OK(cuMemAlloc_v2(&pointer, 20 * MIB));
    say('r');
    hear();
}

/* As with NVIDIA's driver, whose files are mapped. */
static void whoever_closes_all_files_lives_on(void) {
    struct worker worker = worker_start(close_all_files_and_take_more, NULL);

    worker_hear(&worker);
    CHECK_INT(look("test").used[0], GPU0_CONTEXT + 20 * MIB);
    worker_tell(&worker, 'g');
    worker_hear(&worker);
    CHECK_INT(look("test").used[0], GPU0_CONTEXT + 40 * MIB);
    worker_kill(&worker, SIGKILL);
    CHECK_INT(look("test").used[0], 0);
}

/* Takes what there is for as long as it lives; one step for each byte it hears, or as fast as it can. */
static void allocate_at_random(void *arg) {
    CUdeviceptr pointers[20] = {0};
    unsigned seed = (unsigned)getpid();
    uint64_t end = now_ns() + *(unsigned *)arg * 1000000ull;

    /* There may be no room for the context at first. */
    CUcontext context;
    OK(cuInit(0));
    while (cuCtxCreate_v2(&context, 0, 0) != CUDA_SUCCESS && now_ns() < end)
        usleep(1000);
    for (unsigned steps = 0; now_ns() < end; steps++) {
        CUdeviceptr *p = &pointers[rand_r(&seed) % 20];

        if (*p != 0)
            OK(cuMemFree_v2(*p));
        *p = 0;
        if (cuMemAlloc_v2(p, (size_t)(rand_r(&seed) % (steps % 2 ? 20000 : 10 * (int)MIB)) + 1) != CUDA_SUCCESS)
            *p = 0;
    }
    cuCtxDestroy_v2(context);
}

static void check_samples(unsigned ms) {
    uint64_t end = now_ns() + ms * 1000000ull;

    while (now_ns() < end) {
        struct outside o = look("test");

        CHECK(o.used[0] <= GPU0_BYTES);
        CHECK(o.group_bytes[0] <= GPU0_BYTES);
        CHECK(o.group_peak[0] <= GPU0_BYTES);
        usleep(500);
    }
}

#define CHURNERS 10

static void killing_at_random_loses_nothing(void) {
    unsigned ms = 60000;
    struct worker workers[CHURNERS];

    for (int i = 0; i < CHURNERS; i++)
        workers[i] = worker_start(allocate_at_random, &ms);
    for (int round = 0; round < 150; round++) {
        int victim = rand() % CHURNERS;

        check_samples(3);
        worker_kill(&workers[victim], SIGKILL);
        workers[victim] = worker_start(allocate_at_random, &ms);
    }
    for (int i = 0; i < CHURNERS; i++)
        worker_kill(&workers[i], SIGKILL);
    CHECK_INT(look("test").used[0], 0);
    CHECK_INT(look("test").group_bytes[0], 0);
    CHECK_INT(look("test").processes, 0);
}

static void the_stopped_hold_nobody_up(void) {
    unsigned ms = 60000;
    struct worker workers[CHURNERS];
    CUdeviceptr pointer;

    for (int i = 0; i < CHURNERS; i++)
        workers[i] = worker_start(allocate_at_random, &ms);
    context_on(1);
    sleep_ms(200);
    /* Stopped anywhere, perhaps in the midst of a change, again and again. */
    for (int round = 0; round < 50; round++) {
        uint64_t start = now_ns();

        for (int i = 0; i < CHURNERS; i++)
            kill(workers[i].pid, SIGSTOP);
        for (int i = 0; i < 50; i++) {
            OK(cuMemAlloc_v2(&pointer, 5000));
            OK(cuMemFree_v2(pointer));
        }
        CHECK(look("test").used[0] <= GPU0_BYTES);
        CHECK(now_ns() - start < 1000000000);
        for (int i = 0; i < CHURNERS; i++)
            kill(workers[i].pid, SIGCONT);
        usleep(2000);
    }
    for (int i = 0; i < CHURNERS; i++)
        worker_kill(&workers[i], SIGKILL);
    CHECK_INT(look("test").used[0], 0);
}

/* In one process: the sum over processes, groups and the GPU agree when nothing changes. */
static void sums_agree(void) {
    struct worker workers[6];
    struct outside o;
    int mib[6];

    for (int i = 0; i < 6; i++) {
        mib[i] = 10 * (i + 1);
        setenv("SIMGPU_LABEL", i % 2 ? "odd" : "even", 1);
        workers[i] = worker_start(hold, &mib[i]);
        worker_hear(&workers[i]);
    }
    o = look("odd");
    CHECK_INT(o.processes, 6);
    CHECK_INT(o.group_processes, 3);
    CHECK_INT(o.used[0], 210 * MIB + 6 * GPU0_CONTEXT);
    CHECK_INT(o.sum[0].bytes, o.used[0]);
    CHECK_INT(o.sum[0].context_bytes, 6 * GPU0_CONTEXT);
    CHECK_INT(o.group_bytes[0], 120 * MIB + 3 * GPU0_CONTEXT);
    CHECK_INT(o.group_peak[0], o.group_bytes[0]);
    CHECK_INT(look("even").group_bytes[0], 90 * MIB + 3 * GPU0_CONTEXT);
    for (int i = 0; i < 6; i++)
        worker_join(&workers[i]);
    CHECK_INT(look("odd").used[0], 0);
    CHECK_INT(look("odd").group_peak[0], 120 * MIB + 3 * GPU0_CONTEXT);
}

static void the_peak_is_exact_and_can_be_reset(void) {
    CUdeviceptr a, b;

    context_on(0);
    OK(cuMemAlloc_v2(&a, 300 * MIB));
    OK(cuMemAlloc_v2(&b, 20 * MIB));
    OK(cuMemFree_v2(a));
    OK(cuMemAlloc_v2(&a, 100 * MIB));
    CHECK_INT(look("test").group_peak[0], GPU0_CONTEXT + 320 * MIB);
    CHECK_INT(look("test").group_bytes[0], GPU0_CONTEXT + 120 * MIB);
    sim_open_all();
    sim_reset_peaks();
    sim_close();
    CHECK_INT(look("test").group_peak[0], GPU0_CONTEXT + 120 * MIB);
    OK(cuMemFree_v2(a));
    CHECK_INT(look("test").group_peak[0], GPU0_CONTEXT + 120 * MIB);
}

static void the_peak_does_not_count_the_dead(void) {
    int mib = 300;

    for (int round = 0; round < 30; round++) {
        struct worker worker = worker_start(hold, &mib);

        worker_hear(&worker);
        worker_kill(&worker, SIGKILL);
    }
    CHECK_INT(look("test").group_peak[0], GPU0_CONTEXT + 300 * MIB);
}

/* A lock on a file of the test's own, on a description of its own. Byte 0 by a low descriptor, byte 1 by a high one. */
static void lock_own_file(int byte) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int fd = open(node_path("locks"), O_RDWR | O_CREAT | O_CLOEXEC, 0666);

    if (byte == 1)
        fd = fcntl(fd, F_DUPFD_CLOEXEC, 900);
    CHECK_INT(fcntl(fd, F_OFD_SETLK, &lock), 0);
}

static void hold_with_locks_when_told(void *unused) {
    CUdeviceptr pointer;

    (void)unused;
    hear();
    context_on(0);
    lock_own_file(0);
    lock_own_file(1);
    OK(cuMemAlloc_v2(&pointer, 600 * MIB));
    say('r');
    hear();
}

/* Whatever else tells of a death, and in whatever order the kernel lets go: by then the memory is free. */
static void a_death_shows_no_later_than_elsewhere(void) {
    struct worker workers[100];
    CUdeviceptr pointer;
    int fd;

    for (int i = 0; i < 100; i++)
        workers[i] = worker_start(hold_with_locks_when_told, NULL);
    context_on(0);
    fd = open(node_path("locks"), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    for (int i = 0; i < 100; i++) {
        struct flock lock;

        worker_tell(&workers[i], 'g');
        worker_hear(&workers[i]);
        kill(workers[i].pid, SIGKILL);
        do {
            lock = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = i % 2, .l_len = 1};
        } while (fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK);
        OK(cuMemAlloc_v2(&pointer, 600 * MIB));
        worker_kill(&workers[i], SIGKILL);
        OK(cuMemFree_v2(pointer));
    }
    CHECK_INT(look("test").group_peak[0], 2 * GPU0_CONTEXT + 600 * MIB);
}

static void init_and_wait(void *unused) {
    (void)unused;
    OK(cuInit(0));
    say('r');
    hear();
}

#define MANY 300

static void many_start_at_once(void) {
    static struct worker workers[MANY];
    uint64_t start = now_ns();

    for (int i = 0; i < MANY; i++)
        workers[i] = worker_start(init_and_wait, NULL);
    for (int i = 0; i < MANY; i++)
        CHECK_INT(worker_hear(&workers[i]), 'r');
    CHECK(now_ns() - start < 20000000000ull);
    CHECK_INT(look("test").processes, MANY);
    for (int i = 0; i < MANY; i++)
        worker_kill(&workers[i], SIGKILL);
    CHECK_INT(look("test").processes, 0);
}

static void join_one_after_the_other(void *unused) {
    (void)unused;
    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(sim_join(), 0);
    CHECK_INT(sim_reserve(0, MIB, NULL), 0);
}

/* Slots of the dead are used again, without anybody's asking for the record in between. */
static void slots_do_not_run_out(void) {
    for (int i = 0; i < SIM_MAX_PROCESSES / 8; i++) {
        struct worker worker = worker_start(join_one_after_the_other, NULL);

        worker_join(&worker);
    }
    CHECK_INT(look("test").used[0], 0);
}

static void sums_by_many_threads_and_processes(void *unused) {
    (void)unused;
    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(sim_join(), 0);
    for (int i = 0; i < 20000; i++) {
        CHECK_INT(sim_reserve(0, 64 * 1024, NULL), 0);
        CHECK_INT(sim_reserve(1, 128 * 1024, NULL), 0);
        sim_release(0, 64 * 1024, NULL);
        sim_release(1, 128 * 1024, NULL);
    }
    CHECK_INT(sim_reserve(0, 64 * 1024, NULL), 0);
    say('r');
    hear();
}

static void nothing_is_lost_between_processes(void) {
    struct worker workers[8];

    for (int i = 0; i < 8; i++)
        workers[i] = worker_start(sums_by_many_threads_and_processes, NULL);
    for (int i = 0; i < 8; i++)
        worker_hear(&workers[i]);
    CHECK_INT(look("test").used[0], 8 * 64 * 1024);
    CHECK_INT(look("test").sum[0].bytes, 8 * 64 * 1024);
    CHECK_INT(look("test").group_bytes[0], 8 * 64 * 1024);
    CHECK_INT(look("test").used[1], 0);
    CHECK(look("test").group_peak[1] <= 8 * 128 * 1024);
    for (int i = 0; i < 8; i++)
        worker_join(&workers[i]);
    CHECK_INT(look("test").used[0], 0);
}

static void a_reservation_is_for_those_who_joined(void) {
    CHECK_INT(sim_reserve(0, 1, NULL), -EINVAL);
    CHECK_INT(sim_open_all(), 0);
    CHECK_INT(sim_reserve(0, 1, NULL), -EINVAL);
    CHECK_INT(sim_join(), 0);
    CHECK_INT(sim_reserve(0, 1, NULL), 0);
    CHECK_INT(sim_gpu_used(0), 64 * 1024);
    CHECK_INT(sim_reserve(2, 1, NULL), -EINVAL);
    CHECK_INT(sim_reserve(0, GPU0_BYTES, NULL), -ENOMEM);
    CHECK_INT(sim_reserve(0, UINT64_MAX, NULL), -ENOMEM);
    sim_close();
    CHECK_INT(look("test").used[0], 0);
}

const struct test sums_tests[] = {
    {"the GPU is shared until it is full", the_gpu_is_shared_until_it_is_full},
    {"a killed process gives back everything", a_killed_process_gives_back_everything},
    {"whoever closes all files lives on", whoever_closes_all_files_lives_on},
    {"killing at random loses nothing", killing_at_random_loses_nothing},
    {"the stopped hold nobody up", the_stopped_hold_nobody_up},
    {"sums agree", sums_agree},
    {"the peak is exact and can be reset", the_peak_is_exact_and_can_be_reset},
    {"the peak does not count the dead", the_peak_does_not_count_the_dead},
    {"a death shows no later than elsewhere", a_death_shows_no_later_than_elsewhere},
    {"many start at once", many_start_at_once},
    {"slots do not run out", slots_do_not_run_out},
    {"nothing is lost between processes", nothing_is_lost_between_processes},
    {"a reservation is for those who joined", a_reservation_is_for_those_who_joined},
    {0},
};
