/* How much GPU memory the driver takes during a call, where that cannot be known beforehand. */
#ifndef TRANCHE_MEASURE_H
#define TRANCHE_MEASURE_H

#include "state/contexts.h"

struct measurement {
    struct process *process;
    struct place place; /* the context in which the driver takes memory */
    uint64_t used;      /* bytes of the claim in use at the beginning */
    size_t free;        /* bytes of the GPU free at the beginning */
    bool known;         /* the driver reported `free` */
    bool pushed;        /* the context was made current for the measurement */
};

/*
 * Begins a measurement on a context's GPU, and makes the context current until measure_end. `context` is a serial
 * number; 0 is the current context or, if the thread has none, any. False if there is no such context. The caller holds
 * the libraries' lock: one thread of the process measures at a time.
 */
bool measure_begin(struct measurement *measurement, struct process *process, uint32_t context);

/*
 * Bytes that the driver has taken since the beginning: by how much less of the GPU is free, plus what the claim gave
 * back meanwhile. That is too much if others took memory at the same time, and too little only if others outside of the
 * claim freed some. UINT64_MAX if the driver does not report the free memory.
 */
uint64_t measure_taken(struct measurement *measurement);

/* Ends it, and makes the former context current again. */
void measure_end(struct measurement *measurement);

#endif
