/*
 * Tests the lock of system/lock.h at every instruction: one thread is stopped after each single instruction of taking
 * or releasing the lock (by the processor's trap flag), and continues after another thread has released the lock and
 * taken it again. A thread that waits for the lock must get it in the end.
 */
#include "../system/lock.h"
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_SECONDS 10

static struct lock lock;

/* --- one thread that is stopped ----------------------------------------------------------------------------------- */

/* The number of the instruction to stop after, 0 for none; and how far the thread that is stepped through has come. */
static struct {
    int stop_after, steps;
    _Atomic bool stopped, go_on;
} stepped;

static void on_step(int number) {
    (void)number;
    if (++stepped.steps != stepped.stop_after)
        return;
    stepped.stopped = true;
    while (!stepped.go_on)
        sched_yield();
}

/* Below the red zone of the function that this becomes a part of. On other processors no thread is ever stopped. */
static inline __attribute__((always_inline)) void step(bool on) {
#if defined(__x86_64__)
    if (on)
        __asm__ volatile("sub $128, %%rsp; pushfq; orl $0x100, (%%rsp); popfq; add $128, %%rsp" ::: "memory", "cc");
    else
        __asm__ volatile("sub $128, %%rsp; pushfq; andl $~0x100, (%%rsp); popfq; add $128, %%rsp" ::: "memory", "cc");
#else
    (void)on;
#endif
}

static void stop_after(int steps) {
    stepped.steps = 0;
    stepped.stop_after = steps;
    stepped.stopped = stepped.go_on = false;
}

/* --- threads that take the lock and give it ----------------------------------------------------------------------- */

struct user {
    pthread_t thread;
    bool steps_taking, steps_giving;
    _Atomic pid_t id;
    _Atomic bool holds, may_give, done;
};

static void *use_lock(void *argument) {
    struct user *user = argument;
    user->id = (pid_t)syscall(SYS_gettid);
    if (user->steps_taking)
        step(true);
    lock_take(&lock);
    step(false);
    user->holds = true;
    while (!user->may_give)
        sched_yield();
    if (user->steps_giving)
        step(true);
    lock_give(&lock);
    step(false);
    user->done = true;
    return NULL;
}

static void start(struct user *user) {
    if (pthread_create(&user->thread, NULL, use_lock, user) != 0)
        abort();
}

/* Nothing in use_lock sleeps but taking the lock. */
static bool sleeps(const struct user *user) {
    char path[64], text[128] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", user->id);
    FILE *file = user->id != 0 ? fopen(path, "r") : NULL;
    if (file == NULL)
        return false;
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    const char *end = size != 0 ? strrchr(text, ')') : NULL;
    return end != NULL && end[1] == ' ' && end[2] == 'S';
}

/* Waits until a user is stopped, sleeps or has what it wants. False if it was not stopped. */
static bool wait_until_stopped(const struct user *user, const _Atomic bool *wanted) {
    while (!stepped.stopped && !sleeps(user) && !*wanted)
        sched_yield();
    return stepped.stopped;
}

/* Whether it has got the lock and given it. A thread that sleeps for ever ends with the process of the test. */
static void check_ends(struct user *user, const char *what, int instruction) {
    struct timespec end;
    user->may_give = true;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += PATIENCE_SECONDS;
    bool ended = pthread_timedjoin_np(user->thread, NULL, &end) == 0;
    CHECK(ended, "%s, stopped after instruction %d: the one that waits is never woken", what, instruction);
    if (!ended)
        _exit(1);
}

/* --- tests -------------------------------------------------------------------------------------------------------- */

/* The holder gives the lock while another is about to sleep for it, and takes it again if told so. False when the taker
 * came to sleep without being stopped. */
static bool stop_taker(int instruction, bool take_again) {
    struct user taker = {.steps_taking = true, .may_give = true};
    stop_after(instruction);
    lock_take(&lock);
    start(&taker);
    bool stopped = wait_until_stopped(&taker, &taker.holds);
    if (stopped) {
        lock_give(&lock);
        if (take_again)
            lock_take(&lock);
    }
    stepped.go_on = true;
    while (stopped && take_again && !sleeps(&taker))
        sched_yield();
    if (take_again || !stopped)
        lock_give(&lock);
    check_ends(&taker, take_again ? "given and taken again" : "given", instruction);
    return stopped;
}

static void test_taking(void) {
    for (int again = 0; again < 2; again++) {
        int instruction = 1;
        while (stop_taker(instruction, again))
            instruction++;
        printf("a taker was stopped after each of %d instructions\n", instruction - 1);
    }
}

/* One sleeps for the lock, another comes by, while the holder gives it. False when it gave it without being stopped. */
static bool stop_giver(int instruction) {
    struct user giver = {.steps_giving = true}, sleeper = {.may_give = true}, passer = {.may_give = true};
    stop_after(instruction);
    start(&giver);
    while (!giver.holds)
        sched_yield();
    start(&sleeper);
    while (!sleeps(&sleeper))
        sched_yield();
    giver.may_give = true;
    while (!stepped.stopped && !giver.done)
        sched_yield();
    bool stopped = stepped.stopped;
    start(&passer);
    while (!sleeps(&passer) && !passer.done)
        sched_yield();
    stepped.go_on = true;
    check_ends(&giver, "gives", instruction);
    check_ends(&sleeper, "slept", instruction);
    check_ends(&passer, "came by", instruction);
    return stopped;
}

static void test_giving(void) {
    int instruction = 1;
    while (stop_giver(instruction))
        instruction++;
    printf("a giver was stopped after each of %d instructions\n", instruction - 1);
}

/* All locks lie in memory that is wiped for a child, see process.h: so it finds free what a thread of its parent held. */
static void test_free_in_a_child(void) {
    struct lock *wiped = mmap(NULL, sizeof *wiped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int status = 1;
    if (wiped == MAP_FAILED || madvise(wiped, sizeof *wiped, MADV_WIPEONFORK) != 0)
        abort();
    lock_take(wiped);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        lock_take(wiped);
        lock_give(wiped);
        _exit(0);
    }
    waitpid(child, &status, 0);
    CHECK(status == 0, "status %d", status);
    lock_give(wiped);
}

int main(void) {
    checks_start();
    signal(SIGTRAP, on_step);
    checks_run("test_taking", test_taking);
    checks_run("test_giving", test_giving);
    checks_run("test_free_in_a_child", test_free_in_a_child);
    return checks_report();
}
