/* Operations on memory that a stream does when it reaches them: waiting for a value, writing one. */
#ifndef SIMGPU_MEMOP_H
#define SIMGPU_MEMOP_H

#include "cuda/work/stream.h"

/* Some of them, that graphs' nodes share and nobody changes. */
struct batch {
    _Atomic uint32_t references;
    CUcontext context;
    unsigned count, flags;
    CUstreamBatchMemOpParams ops[];
};

/* A copy of what a program gives; the caller has its one reference. CUDA_ERROR_INVALID_VALUE if it cannot be done. */
CUresult batch_new(unsigned count, const CUstreamBatchMemOpParams *ops, unsigned flags, struct batch **batch);
void batch_hold(struct batch *batch);
void batch_drop(struct batch *batch);

/* Puts them into a stream. */
CUresult batch_queue(struct CUstream_st *stream, const struct batch *batch);

#endif
