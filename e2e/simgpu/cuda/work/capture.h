/*
 * Stream capture: what is put into a capturing stream becomes nodes of a graph, and calls that would not go well with
 * that fail and spoil the capture.
 *
 * All captures are under the mutex of graph.h. While there is none, nothing here costs more than a look at one number.
 */
#ifndef SIMGPU_CAPTURE_H
#define SIMGPU_CAPTURE_H

#include "cuda/graph/graph.h"

extern _Atomic uint32_t captures_alive;

static inline bool capture_possible(void) {
    return atomic_load_explicit(&captures_alive, memory_order_relaxed) != 0;
}

/* Slow ways of the functions below. */
CUresult capture_enter_slowly(struct CUstream_st *stream, bool *captured);
CUresult capture_forbid_slowly(struct CUstream_st *stream);
CUresult capture_unsafe_slowly(void);
CUresult capture_forbid_context_slowly(const struct CUctx_st *context);

/* Before work is put into a stream: whether it has to become a node instead, or why it cannot be done. */
static inline CUresult capture_enter(struct CUstream_st *stream, bool *captured) {
    *captured = false;
    return capture_possible() ? capture_enter_slowly(stream, captured) : CUDA_SUCCESS;
}

/* Before a stream, or a whole context, is waited for or asked how far it is. */
static inline CUresult capture_forbid(struct CUstream_st *stream) {
    return capture_possible() ? capture_forbid_slowly(stream) : CUDA_SUCCESS;
}

static inline CUresult capture_forbid_context(const struct CUctx_st *context) {
    return capture_possible() ? capture_forbid_context_slowly(context) : CUDA_SUCCESS;
}

/* Before something that may wait for the GPU as a whole, as allocating and freeing may. */
static inline CUresult capture_unsafe(void) {
    return capture_possible() ? capture_unsafe_slowly() : CUDA_SUCCESS;
}

/* Work of a capturing stream. */
CUresult capture_node(struct CUstream_st *stream, CUgraphNodeType type, const union node_work *work);
CUresult capture_kernel(struct CUstream_st *stream, const CUDA_KERNEL_NODE_PARAMS *params,
                        const struct kernel_attributes *attributes);
CUresult capture_graph(struct CUstream_st *stream, CUgraphExec exec);
CUresult capture_alloc(struct CUstream_st *stream, CUdevice device, uint64_t size, CUdeviceptr *address);
CUresult capture_free(struct CUstream_st *stream, CUdeviceptr address);

/* What an event stands for that was recorded in a capturing stream. */
struct captured_event;
void captured_event_delete(struct captured_event *captured);

/* Notes where a capturing stream is. */
CUresult capture_record(struct CUstream_st *stream, struct captured_event **captured);

/*
 * A stream shall wait for an event: one that was captured (a stream that is not capturing begins to), or, where that
 * is NULL, one that was not, which no capturing stream can wait for.
 */
CUresult capture_wait(struct CUstream_st *stream, const struct captured_event *captured);

/* A stream is destroyed; a capture that began in it ends. */
void capture_stream_gone(struct CUstream_st *stream);

#endif
