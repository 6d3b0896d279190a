/* Streams: which work of a context a program waits for together. */
#ifndef SIMGPU_STREAM_H
#define SIMGPU_STREAM_H

#include "calls.h"
#include "cuda/driver.h"
#include "engine.h"

/* What cuStreamSetAttribute sets, besides the priority. */
struct stream_attributes {
    CUaccessPolicyWindow window;
    CUsynchronizationPolicy sync_policy;
    CUlaunchMemSyncDomain domain;
    CUlaunchMemSyncDomainMap domain_map;
};

struct CUstream_st {
    struct handle handle;
    struct CUctx_st *context;
    struct CUgreenCtx_st *green;    /* that was current when it was made, or NULL; may be no more */
    _Atomic uint64_t mark;          /* the end of its work so far */
    struct stream_capture *capture; /* see capture.h; under its mutex */
    _Atomic uint64_t waited_mark;   /* the furthest event of its GPU that it was told to wait for */
    _Atomic uint32_t calls;         /* that were queued and have not been made; see calls.h; a futex */
    _Atomic uint32_t waits;         /* of these, that wait for something */
    _Atomic bool destroyed;         /* and there as long as calls are left */
    unsigned flags;
    int priority;
    uint64_t id;
    struct stream_attributes attributes;
};

/*
 * The stream that a handle means in the current context: CUDA_ERROR_INVALID_HANDLE if none, CUDA_ERROR_INVALID_CONTEXT
 * if it is another context's. `per_thread` says which default stream the handle 0 means.
 */
CUresult stream_find(struct CUctx_st *context, CUstream handle, bool per_thread, struct CUstream_st **stream);

/* Adds work of this length to the stream. */
void stream_submit(struct CUstream_st *stream, uint64_t ns);

/* Makes the stream wait for work up to the mark. */
void stream_follow(struct CUstream_st *stream, uint64_t mark);

/* The mark that stands for all work the stream waits for. */
uint64_t stream_mark(struct CUstream_st *stream);

/* Waits for what was queued so far, calls included. */
void stream_wait(struct CUstream_st *stream);

bool stream_done(struct CUstream_st *stream);

/* For calls.c: the stream's end, when nothing is left in it. */
void stream_delete(struct CUstream_st *stream);

/* Makes the stream wait for an event of its GPU, which stands at the mark. */
void stream_wait_mark(struct CUstream_st *stream, uint64_t mark);

#endif
