/*
 * The gate of launches: what a launch does between its call and the driver's. While the page says that all gates are open,
 * that is one load and a comparison.
 */
#ifndef TRANCHE_GOVERNOR_PASSAGE_H
#define TRANCHE_GOVERNOR_PASSAGE_H

#include "driver/cuda_api.h"
#include "governor/page.h"

#define PASSAGES_BEGUN_SHIFT 24

/* By index in the page. */
extern struct passages {
    _Alignas(
        64) _Atomic uint64_t count; /* metered launches: those in progress, and above the shift those that have begun */
    _Atomic uint64_t wanted;        /* 1 + the turn after which a WANT was sent; 0: none */
    _Atomic uint64_t woken;         /* the last turn for which a thread had waited */
    _Atomic uint64_t woken_ns;      /* when the first such thread went on */
    _Atomic uint64_t drains_ns;     /* since when its last turn drains; 0: it does not */
    _Atomic bool unseen;            /* launches have passed since then */
    _Atomic uint64_t passing_ns;    /* since when they pass; 0: they do not */
    _Atomic uint64_t passes_ns;     /* when they may pass again */
    _Atomic uint32_t passed;        /* since `passing_ns` */
    _Atomic bool joined;            /* a governor governs the GPU */
} passages[GOVERNOR_GPUS_MAX];

/* A GPU's state; open if no governor governs it. */
static inline enum gate_state passages_state(int gpu) {
    if (!atomic_load_explicit(&passages[gpu].joined, memory_order_acquire))
        return GATE_OPEN;
    return (enum gate_state)atomic_load(&governor_page.page.gpus[gpu].state);
}

/* A launch on its way. */
struct passage {
    int gpu; /* NO_GPU: it is not counted */
};

/* Waits until it is the claim's turn on the stream's GPU and the GPU has not too much work. */
void passage_wait(struct passage *passage, CUstream stream);
void passage_end(struct passage *passage);

static inline bool passages_are_open(void) {
    return __builtin_expect(atomic_load_explicit(&governor_page.page.gate, memory_order_relaxed) == (uint32_t)GATE_OPEN,
                            1);
}

static inline struct passage passage_begin(CUstream stream) {
    struct passage passage = {.gpu = -1};
    if (!passages_are_open())
        passage_wait(&passage, stream);
    return passage;
}

#define PASSAGE(stream)                                                                                                \
    __attribute__((cleanup(passage_end), unused)) struct passage passage_of_launch = passage_begin(stream)

#endif
