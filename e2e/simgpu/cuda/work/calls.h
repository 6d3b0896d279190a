/*
 * Calls: what this process does when a stream reaches it. Host functions, and operations on memory that come after one
 * that waits (../memop). A kernel that is behind a call in its stream takes its time on the GPU before: kernels here do
 * nothing else, so no program can tell but by the time.
 *
 * A call that waits holds up those behind it in its stream, and nothing else: it is looked at again and again, by a
 * thread that is there only while there are such calls, as the GPU itself does.
 */
#ifndef SIMGPU_CALLS_H
#define SIMGPU_CALLS_H

#include "cuda/driver.h"

struct CUstream_st;

struct stream_call {
    struct CUstream_st *stream;
    void (*run)(struct stream_call *call);         /* NULL: there is nothing to do */
    bool (*ready)(const struct stream_call *call); /* whether what it waits for is there; NULL: it waits for nothing */
    void (*discard)(const struct stream_call *call); /* before it is freed; NULL: there is nothing to give up */
    uint64_t number;                                 /* grows with each call, and each point between them */
    struct stream_call *next;                        /* of those that are held up */
};

/* Puts a call into its stream, and frees it when it was made, or cannot be: CUDA_ERROR_OUT_OF_MEMORY. */
CUresult call_queue(struct stream_call *call);

/* Waits for the calls of a stream, or of a context. */
void stream_wait_calls(struct CUstream_st *stream);
void context_wait_calls(struct CUctx_st *context);
bool stream_calls_done(struct CUstream_st *stream);

/* Whether the stream has a call that waits, so that what comes behind it must not be done in the program's own thread. */
bool stream_waits(struct CUstream_st *stream);
extern _Atomic uint32_t calls_waiting; /* in any stream */

/* The context ends: none of its calls waits any more. */
void context_abandon_waits(struct CUctx_st *context);

/* Deletes a stream once its calls are made. */
void stream_delete_after_calls(struct CUstream_st *stream);

/* Something may be as a call waits for it. */
void calls_look(void);

/*
 * The calls that are queued in a stream at this moment, for an event or a free that comes after them: NULL if there are
 * none. CUDA_ERROR_OUT_OF_MEMORY if there is no memory for it. Whoever has it drops it.
 */
struct calls_point;
CUresult calls_point_new(struct CUstream_st *stream, struct calls_point **point);
bool calls_point_reached(struct calls_point *point);
void calls_point_wait(struct calls_point *point);
void calls_point_drop(struct calls_point *point);

/* What is put into the stream from now on comes after the point. */
CUresult stream_wait_point(struct CUstream_st *stream, struct calls_point *point);

#endif
