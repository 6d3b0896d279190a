/* Streams, events and one memory pool per device of the driver in fake_driver.c. */
#ifndef TRANCHE_TESTS_FAKE_STREAMS_H
#define TRANCHE_TESTS_FAKE_STREAMS_H

#include "fake_driver.h"

#include <stdbool.h>

/* A pool grows by pieces of this size, finds the first place that is free, and keeps pieces until it is trimmed. */
#define FAKE_PIECE_BYTES (32 * FAKE_MIB)

CUstream fake_stream_new(void);

/* Whether a stream, or everything, is stuck before what is put into it from now on; what was put in before is done. */
void fake_stream_stick(CUstream stream, bool stuck);

/* Stuck until events in it were queried so often. */
void fake_stream_stick_for(CUstream stream, unsigned queries);

/* As another thread does it while memory is freed in the stream: once the library in front has asked for the context. */
void fake_stream_destroy_beside_free(CUstream stream);

/* What is allocated in it is a node of a graph, until the capture ends. */
void fake_stream_capture(CUstream stream);

/* As another thread begins it when the next event is recorded, and ends it at once or not. */
void fake_stream_capture_beside_event(CUstream stream, bool ends);

/* Of the next allocation from a pool. */
struct fake_pool_orders {
    void (*allocating)(void); /* called first */
    bool grows;               /* whatever is free */
};
extern struct fake_pool_orders fake_pool_orders;

/* Frees pool memory behind the shadow's back. */
CUresult fake_free_unseen_in(CUdeviceptr address, CUstream stream);

/* The pool that an address is of, or NULL. */
CUmemoryPool fake_pool_at(CUdeviceptr address);

/* What the library in front has done. */
struct fake_counts {
    unsigned events;           /* that live */
    unsigned queries;          /* of events */
    unsigned captures;         /* times it asked whether a stream is in capture */
    unsigned synchronizations; /* of streams and events */
    unsigned trims;
    unsigned invalid; /* queries of an event of a capture in progress */
};
extern struct fake_counts fake_counts;

/* Whether a capture forbids nothing to this thread. */
bool fake_is_relaxed(void);

void *fake_streams_lookup(const char *name);

/* What fake_driver.c has for these. */
CUcontext fake_current(void);
void fake_take(CUdevice device, int64_t bytes);

#endif
