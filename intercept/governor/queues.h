/*
 * Outstanding work. A queue is a stream to which governed GPUs are given work; the default streams of a context are two
 * more. Work is measured by marks: events that are recorded every few launches.
 *
 * A queue is found by its stream without a lock. All else of it is under one lock, under which the driver is called to
 * record and to query events and never to wait; contexts_hold keeps contexts from ending meanwhile.
 *
 * A stream that is being captured has no outstanding work, and an event recorded in it would break the capture: it is
 * passed over.
 */
#ifndef TRANCHE_GOVERNOR_QUEUES_H
#define TRANCHE_GOVERNOR_QUEUES_H

#include "state/process.h"

#define NO_GPU (-1)

/* The index in the page of a GPU of claims.h; NO_GPU if the page has no room for it. */
int queues_index(const struct process *process, int gpu);

struct queue {
    _Atomic uint32_t launches; /* since the last mark; threads that launch at once may lose some */
    _Atomic uint32_t every;    /* launches from mark to mark */
    _Atomic bool used;         /* given work since the last drain */
    int gpu;                   /* index in the page; NO_GPU if it is not governed; never changes */
};

/* Before all others: what there is of the process's devices. */
void queues_start(struct process *process);

/* The queue of a stream, which may be a default one. NULL if there is no current context, or no room. */
struct queue *queues_find(CUstream stream);

/* A device's GPU: its index in the page, or NO_GPU. That of the current context, for work without a queue. */
int queues_device_gpu(CUdevice device);
int queues_current_gpu(void);

/* A stream was created; is about to be destroyed; its context has ended. */
void queues_created(CUstream stream);
void queues_stream_ending(CUstream stream);
void queues_context_ended(CUcontext context);

/* Of the contexts with queues on a GPU, the one with the next higher handle; NULL if there is none. */
CUcontext queues_next_context(int gpu, CUcontext after);

/* Around a call that begins a capture: no event is recorded meanwhile. */
void queues_capture_begins(void);
void queues_capture_begun(void);

bool queues_is_capturing(CUstream stream);

/* A stream was made to wait for memory or for a semaphore. Whether streams of a GPU may still wait, since what was put into them
 * before the last such wait, or that itself, is not done, and all others are empty. */
void queues_waits(CUstream stream);
bool queues_only_wait(int gpu);

/* Marks the launches so far in a queue. `stream` is the queue's, as the calling thread names it. */
void queues_mark(struct queue *queue, CUstream stream);

/* Looks which marks of a GPU are done. Returns the estimated time until all others are, in ns; 0 if there are none. */
uint64_t queues_settle(int gpu);

/* What the work of one mark may take before something is amiss with it: five times the estimate of the longest. */
uint64_t queues_patience(int gpu);

/* For the agent's thread. Whether nothing is outstanding: launches without a mark get one first. */
bool queues_idle(int gpu);

/* For the agent's thread. Whether no work is outstanding now, of what is known: the streams that were used since the last
 * drain, and what that has left. */
bool queues_empty(int gpu);

/* Records an event in each queue of the GPU that was given work since the last drain, or with `all` in every one. */
void queues_drain(int gpu, bool all);

/* Whether all of them are done. `left_ns` is the estimated time until then; 0 if it is unknown, or has passed. */
bool queues_drained(int gpu, uint64_t *left_ns);

/* In a forked child. */
void queues_forked(void);

#endif
