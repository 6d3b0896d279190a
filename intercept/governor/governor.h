/*
 * Compute shares: what the rest of the library calls. The governed libcuda.so.1 is built with TRANCHE_GOVERNED; in the
 * other one these functions do nothing.
 *
 * Calls go one way: launches and hooks → passage and agent → turn and connection → queues → page.
 *
 * A launch does not wait for a lock while it waits for its turn, and no lock is held over a call of the driver that may call
 * back into the program or wait for the GPU.
 */
#ifndef TRANCHE_GOVERNOR_H
#define TRANCHE_GOVERNOR_H

#include "driver/cuda_api.h"

#ifdef TRANCHE_GOVERNED

#include "governor/passage.h"
#include "state/process.h"

/* After cuInit has succeeded: starts the agent's thread, and waits until it has joined the governors that run, at most
 * 250 ms. */
void governor_start(struct process *process);

/* A stream is about to be destroyed; a context has ended, or lost its streams. */
void governor_stream_ending(CUstream stream);
void governor_context_ended(CUcontext context);

/* The rest of the block gives the GPU work in a stream. */
#define GOVERNED_LAUNCH(stream) PASSAGE(stream)

#else

struct process;

static inline void governor_start(struct process *process) {
    (void)process;
}

static inline void governor_stream_ending(CUstream stream) {
    (void)stream;
}

static inline void governor_context_ended(CUcontext context) {
    (void)context;
}

#define GOVERNED_LAUNCH(stream) ((void)0)

#endif

#endif
