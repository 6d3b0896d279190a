/*
 * The page: what the governor says to a process. A memory file of one page, which only the governor can write; the
 * process maps it over governor_page. Before it has joined, after the governor's end and in a forked child that page is
 * private and all zero, which means that every gate is open. governor/page has the same in Go; a test there compares the
 * two.
 *
 * The governor stores a GPU's state first, then `gate`, and then wakes the waiters of both words (shared futexes).
 */
#ifndef TRANCHE_GOVERNOR_PAGE_H
#define TRANCHE_GOVERNOR_PAGE_H

#include "governor/protocol.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GOVERNOR_PAGE_SIZE 4096
#define GOVERNOR_STALE_NS UINT64_C(250000000) /* an older heartbeat is that of a governor that hangs: gates are open */

/* Of a claim on a GPU, the same in all of its processes. */
enum gate_state {
    GATE_OPEN = 0,    /* alone on the GPU: nothing is counted */
    GATE_METERED = 1, /* its turn, while others have joined: outstanding work is capped by time */
    GATE_CLOSED = 2,  /* not its turn */
};

struct governor_gpu {
    _Atomic uint32_t state; /* enum gate_state; a futex */
    uint32_t reserved;
    _Atomic uint64_t turn;      /* number of the current turn, or of the last one */
    _Atomic uint64_t meter_ns;  /* the most outstanding work while METERED */
    _Atomic uint64_t turn_end;  /* CLOCK_MONOTONIC; 0 if unknown */
    _Atomic uint64_t switch_ns; /* cost of a switch between claims, as measured */
    uint64_t unused[3];
};

struct governor_page {
    _Atomic uint32_t gate; /* the highest state of all GPUs; a futex. The stubs of launches read only this. */
    uint32_t unused[15];
    _Atomic uint64_t heartbeat; /* CLOCK_MONOTONIC in ns: the governor's last look */
    uint64_t unused2[7];
    struct governor_gpu gpus[GOVERNOR_GPUS_MAX];
};

_Static_assert(offsetof(struct governor_page, heartbeat) == 64, "the layout is part of the protocol");
_Static_assert(offsetof(struct governor_page, gpus) == 128, "the layout is part of the protocol");
_Static_assert(sizeof(struct governor_gpu) == 64, "the layout is part of the protocol");
_Static_assert(sizeof(struct governor_page) <= GOVERNOR_PAGE_SIZE, "the layout is part of the protocol");

/* The process's page lies in the library's own memory, so that a launch reads a constant address. */
#ifdef __aarch64__
#define GOVERNOR_PAGE_ROOM 65536 /* pages of the kernel may be as large */
#else
#define GOVERNOR_PAGE_ROOM GOVERNOR_PAGE_SIZE
#endif
extern union governor_page_room {
    struct governor_page page;
    char room[GOVERNOR_PAGE_ROOM];
} governor_page;

/* Maps the governor's memory file over the page. False if it is not usable, or not the one that is mapped already. */
bool governor_page_map(int descriptor);

/* Makes the page private and all zero again, and wakes the threads that wait. */
void governor_page_unmap(void);

/* The same in a forked child, which has one thread. */
void governor_page_forked(void);

/* Waits until a word of the page is no longer `value`, at most so long. */
void governor_page_wait(_Atomic uint32_t *word, uint32_t value, uint64_t ns);

/* Whether the governor has looked at its clients lately. */
bool governor_page_is_alive(void);

#endif
