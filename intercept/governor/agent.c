/*
 * The agent: a thread of the process that talks to the governor. It is started at the first cuInit, has all signals blocked,
 * and sleeps until there is a message, or until work may be done for which the governor waits; a second at most, since the program
 * may have closed its descriptors.
 */
#include "driver/cuda_real.h"
#include "governor/clock.h"
#include "governor/connection.h"
#include "governor/governor.h"
#include "governor/queues.h"
#include "governor/turn.h"
#include "system/explain.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

#define STACK_BYTES ((size_t)256 << 10)
#define JOIN_MOST_NS (250 * NS_PER_MS)
#define END_MOST_NS (100 * NS_PER_MS)
#define SLEEP_MOST_NS NS_PER_SECOND

/*
 * glibc 2.34 gave these functions a new symbol version; see driver/real.c. Before it they are libpthread.so.0's, which a
 * process with the driver's library has. Without it there is no agent, and the gates stay open.
 */
#if defined(__x86_64__)
#define OLDEST_GLIBC "GLIBC_2.2.5"
#else
#define OLDEST_GLIBC "GLIBC_2.17"
#endif
#ifndef REGION_TEST /* sanitizers replace pthread_create */
__asm__(".symver pthread_create, pthread_create@" OLDEST_GLIBC);
__asm__(".symver pthread_attr_setstacksize, pthread_attr_setstacksize@" OLDEST_GLIBC);
#endif
#pragma weak pthread_create
#pragma weak pthread_attr_setstacksize

static struct {
    _Atomic bool started;
    _Atomic uint32_t tried; /* a futex: the first attempts to join are over */
    _Atomic bool calling;   /* the agent may be in the driver */
    _Atomic bool ended;     /* the process ends: the driver is not called any more */
} agent;

static void say_tried(void) {
    if (atomic_load(&agent.tried) != 0 || connections_pending())
        return;
    atomic_store(&agent.tried, 1);
    syscall(SYS_futex, &agent.tried, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Returns after how many ns to look again. */
static uint64_t look(void) {
    uint64_t next = SLEEP_MOST_NS, now = clock_now();
    atomic_store(&agent.calling, true);
    for (int gpu = 0; gpu < GOVERNOR_GPUS_MAX && !atomic_load(&agent.ended); gpu++) {
        uint64_t after = turn_look(gpu, now);
        next = after < next ? after : next;
    }
    atomic_store(&agent.calling, false);
    uint64_t retry = connections_next_try();
    if (retry != 0) {
        uint64_t after = retry > now ? retry - now : 0;
        next = after < next ? after : next;
    }
    return next;
}

static void *run(void *unused) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    prctl(PR_SET_NAME, "tranche");
    prctl(PR_SET_TIMERSLACK, 1UL);
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    for (;;) {
        struct pollfd polled[CONNECTIONS_MAX];
        connections_try(clock_now());
        say_tried();
        struct timespec span = clock_span(look());
        unsigned count = connections_poll(polled);
        if (ppoll(polled, count, &span, NULL) > 0)
            connections_read(polled, count, turn_received);
    }
    return unused;
}

static void forked(void) {
    governor_page_forked();
    memset(passages, 0, sizeof passages);
    memset(&agent, 0, sizeof agent);
    connections_forked();
    turns_forked();
    queues_forked();
}

static int create(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_create == NULL || pthread_attr_setstacksize == NULL)
        return ENOSYS;
    int error = pthread_attr_init(&attributes);
    if (error != 0)
        return error;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    error = pthread_create(&thread, &attributes, run, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

static bool create_without_signals(void) {
    static _Atomic bool prepared; /* a forked child is */
    uint64_t all = UINT64_MAX, before;
    if (!atomic_exchange(&prepared, true))
        pthread_atfork(NULL, NULL, forked);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof all);
    int error = create();
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before);
    if (error != 0)
        explain(CAUSE_GOVERNOR, "cannot start the thread that shares GPU time: errno %d; this process's is not limited",
                error);
    return error == 0;
}

void governor_start(struct process *process) {
    int error = errno;
    if (!atomic_exchange(&agent.started, true)) {
        queues_start(process);
        if (!connections_start(process) || !create_without_signals())
            atomic_store(&agent.tried, 1);
    }
    if (atomic_load(&agent.tried) == 0) {
        struct timespec most = clock_span(JOIN_MOST_NS);
        syscall(SYS_futex, &agent.tried, FUTEX_WAIT_PRIVATE, 0, &most, NULL, 0);
        atomic_store(&agent.tried, 1);
    }
    errno = error;
}

/* The driver's library is unloaded after this one: the agent is not to be in it then. */
__attribute__((destructor)) static void end(void) {
    atomic_store(&agent.ended, true);
    for (uint64_t limit = clock_now() + END_MOST_NS; atomic_load(&agent.calling) && clock_now() < limit;)
        clock_sleep(NS_PER_MS / 10);
    connections_bye();
}

void governor_stream_ending(CUstream stream) {
    queues_stream_ending(stream);
}

void governor_context_ended(CUcontext context) {
    queues_context_ended(context);
}
