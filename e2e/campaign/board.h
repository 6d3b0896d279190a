/*
 * What the conductor and the workers of a campaign share: one file that all of them map. Each worker process has a seat,
 * each of its threads a desk, at which it takes orders. Everything that the judge has to know of a process is written
 * here before the call that it bears on, so that it is known of the dead and the stopped too.
 */
#ifndef CAMPAIGN_BOARD_H
#define CAMPAIGN_BOARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    SEATS = 32,
    DESKS = 8,
    GPUS = 2,
    OPERATIONS_MAX = 256,
    TEXT_SIZE = 240,
    OFFERS = 8,
    HEIRLOOMS = 12,
    CROWD_CLAIMS = 3,
};

/* What became of an operation. */
enum outcome {
    OUTCOME_NOTHING, /* there was nothing to do it with: no object to free, say */
    OUTCOME_DONE,
    OUTCOME_REFUSED, /* out of memory; `gpu` and `need` say what was asked for */
    OUTCOME_WRONG,   /* the driver answered what it must not; the text says what */
};

/* A thread's place. An order is complete when done == order. */
struct desk {
    _Atomic uint32_t order, done; /* futexes */
    _Atomic uint32_t taken;       /* a thread sits here */
    _Atomic uint32_t waiting;     /* for an order */
    uint32_t operation;
    bool by_choice; /* the thread's own, in a storm, and nobody's order */
    uint64_t seed;
    uint64_t argument;        /* what orders that are no operations need */
    uint64_t room[GPUS];      /* bytes that the claim has left, as the judge sees it; UINT64_MAX: it does not know */
    _Atomic uint64_t need;    /* bytes that may be taken at once, at most, before the call has returned */
    _Atomic int32_t gpu;      /* of which GPU */
    _Atomic uint32_t also;    /* and of which others as much, by bit */
    _Atomic uint32_t copy_of; /* 1 + the seat from whose process this thread takes a descriptor, until it has used it */
    /* The answer. */
    uint32_t outcome;
    int32_t result;
    bool grows;             /* the two bounds hold */
    int64_t least, most;    /* by how much the claim's physical bytes of `gpu` may have changed */
    uint64_t reported_used; /* what the shadow reported as used of `gpu`; UINT64_MAX: it was not asked */
    char text[TEXT_SIZE];
};

/* What a process has for others to import. */
struct offered {
    uint32_t kind;      /* its family knows which there are */
    int32_t pid;        /* whose it is */
    uint32_t claim;     /* of its seat */
    int32_t descriptor; /* in that process, or -1 */
    int32_t gpu;
    uint32_t context; /* serial number of the context that it lives in; 0: in none */
    bool tile_pool;
    uint64_t size;
    uint8_t bytes[64]; /* a handle */
};

struct offer {
    _Atomic uint32_t sequence; /* odd: what is here is good */
    _Atomic uint32_t busy;
    struct offered what;
};

/* From SEAT_STARTING on: a ticket, see seat_ticket. */
enum seat_state { SEAT_FREE, SEAT_ALIVE, SEAT_SITTING_DOWN, SEAT_STARTING };

/* A process's place. */
struct seat {
    _Atomic uint32_t state;
    _Atomic int32_t pid;
    _Atomic uint32_t ending;      /* it was told to end, or does so by itself */
    _Atomic uint32_t dying;       /* in a storm: see seat_may_die */
    _Atomic uint32_t family;      /* the seat of the first of those with whom it may share descriptions */
    _Atomic uint32_t cut_off;     /* `initialised` of those it was forked from: the driver is of no use to it */
    _Atomic uint32_t initialised; /* 1: calls cuInit, 2: has called it */
    _Atomic uint32_t stops;       /* how often it was stopped or continued; odd: it is stopped now */
    _Atomic uint32_t claim;       /* 0: the claims of lockstep and storm; else 1 + one of the crowd's */
    uint64_t seed;
    uint32_t devices_variant; /* which CUDA_VISIBLE_DEVICES it was started with */
    /* What the shadow may count beyond what is physically held, by its documented rules; may go below 0 for a moment. */
    _Atomic int64_t slack[GPUS];
    _Atomic int32_t contexts[GPUS]; /* alive */
    struct offer offers[OFFERS];
    struct desk desks[DESKS];
};

struct totals {
    _Atomic uint64_t tried, done, refused;
};

enum mode { MODE_LOCKSTEP, MODE_STORM };

/* What a bout of a crowd is like. */
struct crowd_dials {
    uint32_t claims;           /* so many share the GPU */
    uint64_t most_kib;         /* of one allocation */
    _Atomic uint32_t hesitate; /* threads sleep at one of so many mutexes; 0: at none */
    uint32_t few; /* streams, pools or graphs that a process has at most: with few, its threads share them */
    bool rest;    /* many sizes are about what is left of the limit */
    bool misuse;  /* objects are used by one thread while another one ends them */
    bool mixed;   /* claims share memory with each other */
};

struct board {
    /* Copies of descriptors that ended processes had offered: the conductor has them, which does not use CUDA. */
    struct offer heirlooms[HEIRLOOMS];
    _Atomic uint32_t mode; /* in a storm, threads choose what to do themselves */
    int32_t conductor;     /* its process: without it, workers end */
    uint32_t threads_max;
    uint32_t gpu_count;
    bool bare;     /* no shadow: the simulator against the model */
    bool no_fork;  /* in a storm, nobody forks */
    bool no_death; /* and nobody is killed, ends, or calls exec: to find out what a finding needs */
    uint8_t gpu_uuid[GPUS][16];
    uint64_t context_bytes[GPUS];
    uint64_t limit_bytes[GPUS];               /* 0: no claim on this GPU */
    uint64_t crowd_limit_bytes[CROWD_CLAIMS]; /* all of them on GPU 0 */
    _Atomic uint32_t tickets;                 /* that were given */
    bool crowd;                               /* who starts belongs to the crowd */
    struct crowd_dials dials;
    uint32_t weights[OPERATIONS_MAX];
    _Atomic uint32_t enabled[OPERATIONS_MAX];
    struct totals totals[OPERATIONS_MAX];
    _Atomic uint64_t calls;           /* of the driver */
    _Atomic uint64_t unscheduled_ns;  /* the longest that anybody lately waited for a processor in one operation */
    _Atomic uint64_t longest_call_ns; /* less the time in which the thread waited for a processor */
    _Atomic uint32_t wrong;           /* in a storm: the first finding of a worker, in wrong_text */
    char wrong_text[TEXT_SIZE];
    _Atomic uint32_t deaths[SEATS]; /* 1 + the seat of the one that dies, by family */
    struct seat seats[SEATS];
};

/*
 * Of a family, one dies at a time, or calls exec: where two let go of the same descriptions at once, one may finalise the region's
 * before the other does the driver's, which no library can help. False if another does.
 */
static inline bool family_take(struct board *board, unsigned seat) {
    uint32_t nobody = 0;
    return atomic_compare_exchange_strong(&board->deaths[atomic_load(&board->seats[seat].family)], &nobody, seat + 1);
}

static inline void family_give(struct board *board, unsigned seat) {
    for (unsigned family = 0; family < SEATS; family++) {
        uint32_t it = seat + 1;
        atomic_compare_exchange_strong(&board->deaths[family], &it, 0);
    }
}

/*
 * In a storm, nobody dies of whose descriptors somebody has a copy that was not imported yet: nobody can know then whose memory
 * that is, see docs/counting.md. So whoever dies says so first, and then looks for copies; whoever copies does the reverse.
 */
static inline bool seat_may_die(struct board *board, unsigned seat) {
    bool copied = false;
    if (!family_take(board, seat))
        return false;
    atomic_store(&board->seats[seat].dying, 1);
    for (unsigned i = 0; i < SEATS; i++)
        for (unsigned desk = 0; desk < DESKS && atomic_load(&board->seats[i].state) == SEAT_ALIVE; desk++)
            copied = copied || atomic_load(&board->seats[i].desks[desk].copy_of) == seat + 1;
    if (copied) {
        atomic_store(&board->seats[seat].dying, 0);
        family_give(board, seat);
    }
    return !copied;
}

/*
 * The state of a seat that waits for the child of another seat's process (of SEATS: the conductor's). Only the child with the same
 * ticket may sit down: if its parent dies before the child runs, the seat is given to another, perhaps one of the same parent's.
 */
static inline uint32_t seat_ticket(struct board *board, unsigned parent) {
    return SEAT_STARTING + parent + (SEATS + 1) * (atomic_fetch_add(&board->tickets, 1) % (1u << 24));
}

/* Frees the seats that wait for children of a process which will not fork them any more. */
static inline void seat_give_up_tickets(struct board *board, unsigned parent) {
    for (unsigned i = 0; i < SEATS; i++) {
        uint32_t state = atomic_load(&board->seats[i].state);
        if (state >= SEAT_STARTING && (state - SEAT_STARTING) % (SEATS + 1) == parent)
            atomic_compare_exchange_strong(&board->seats[i].state, &state, SEAT_FREE);
    }
}

/* A seat begins anew, in a family. */
static inline void seat_lives(struct seat *seat, uint32_t family) {
    atomic_store(&seat->dying, 0);
    atomic_store(&seat->family, family);
    for (unsigned desk = 0; desk < DESKS; desk++)
        atomic_store(&seat->desks[desk].copy_of, 0);
}

/* Orders that are no operations of the table. */
enum {
    ORDER_FREE_ALL = OPERATIONS_MAX, /* give back everything but the contexts */
    ORDER_INFO,                      /* ask cuMemGetInfo in every context */
    ORDER_WHOLE,                     /* take all of the room of GPU `argument` in one allocation, and give it back */
    ORDER_THREAD,                    /* start a thread for desk `argument` */
    ORDER_THREAD_END,
    ORDER_FORK, /* a child for seat `argument` */
    ORDER_EXEC,
    ORDER_EXIT,
    ORDER_EXIT_AT_ONCE, /* _exit */
};

#endif
