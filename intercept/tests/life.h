/* A page of memory, in the file LIFE_PAGE, that the programs of life.c share with their runner, life_test.c. */
#ifndef TRANCHE_TESTS_LIFE_H
#define TRANCHE_TESTS_LIFE_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define MIB ((size_t)1 << 20)
#define PULSES 2
#define CALLS_MAX 512

struct life {
    sem_t ready;                              /* the program is where its scenario wants it */
    _Atomic int pid;                          /* of a process that the program has made */
    _Atomic int threads_loaded, threads_used; /* how many it had after loading the library, and after using it */
    _Atomic int handlers;                     /* calls that succeeded while the process was ending */
    _Atomic int stop;                         /* tells the pulses to end */
    _Atomic int pause;                        /* tells them to hold nothing, post `paused` and wait for `resume` */
    sem_t paused, resume;
    struct {
        int result; /* -1: the library has no such function */
        bool errno_touched;
    } calls[CALLS_MAX];    /* of each shadowed function with zeros for arguments */
    _Atomic int call;      /* the one under way */
    _Atomic int survivors; /* how many there are */
    struct {
        _Atomic uint64_t calls, longest_ns;
    } pulses[PULSES];
};

/* Waits for a post, for twenty seconds. */
static inline bool life_wait(sem_t *semaphore) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 20;
    return sem_timedwait(semaphore, &end) == 0;
}

/* Has the survivors hold nothing but their contexts, or go on. False if one does not answer. */
static inline bool life_pause(struct life *life, bool pause) {
    bool answered = true;
    life->pause = pause;
    for (int i = 0; i < life->survivors; i++) {
        if (pause)
            answered = life_wait(&life->paused) && answered;
        else
            sem_post(&life->resume);
    }
    return answered;
}

#endif
