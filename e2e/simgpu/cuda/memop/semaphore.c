/*
 * Semaphores of other APIs, on a server without Vulkan: no handle is one of theirs, so none is imported and none is
 * valid.
 */
#include "cuda/work/stream.h"

CUresult cuImportExternalSemaphore(CUexternalSemaphore *extSem_out,
                                   const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *semHandleDesc) {
    REQUIRE_CONTEXT(context);
    (void)context;
    REQUIRE(extSem_out != NULL && semHandleDesc != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(semHandleDesc->type >= CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD &&
                semHandleDesc->type <= CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_WIN32,
            CUDA_ERROR_INVALID_VALUE);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuDestroyExternalSemaphore(CUexternalSemaphore extSem) {
    (void)extSem;
    REQUIRE_INITIALISED();
    return CUDA_ERROR_INVALID_HANDLE;
}

static CUresult in_stream(bool some, CUstream handle, bool per_thread) {
    struct CUstream_st *stream;

    REQUIRE_CONTEXT(context);
    TRY(stream_find(context, handle, per_thread, &stream));
    return some ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
}

#define FUNCTIONS(suffix, per_thread)                                                                                  \
    CUresult cuSignalExternalSemaphoresAsync##suffix(const CUexternalSemaphore *extSemArray,                           \
                                                     const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *paramsArray,         \
                                                     unsigned int numExtSems, CUstream stream) {                       \
        return in_stream(extSemArray != NULL && paramsArray != NULL && numExtSems != 0, stream, per_thread);           \
    }                                                                                                                  \
    CUresult cuWaitExternalSemaphoresAsync##suffix(const CUexternalSemaphore *extSemArray,                             \
                                                   const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *paramsArray,             \
                                                   unsigned int numExtSems, CUstream stream) {                         \
        return in_stream(extSemArray != NULL && paramsArray != NULL && numExtSems != 0, stream, per_thread);           \
    }
FUNCTIONS(, false)
FUNCTIONS(_ptsz, true)

/* ---- Nodes of graphs: without a semaphore there is none, before cuInit either ---- */

#define NODES(kind, Params)                                                                                            \
    CUresult cuGraphAddExternalSemaphores##kind##Node(CUgraphNode *phGraphNode, CUgraph hGraph,                        \
                                                      const CUgraphNode *dependencies, size_t numDependencies,         \
                                                      const Params *nodeParams) {                                      \
        (void)phGraphNode, (void)hGraph, (void)dependencies, (void)numDependencies, (void)nodeParams;                  \
        return CUDA_ERROR_INVALID_VALUE;                                                                               \
    }                                                                                                                  \
    CUresult cuGraphExternalSemaphores##kind##NodeGetParams(CUgraphNode hNode, Params *params_out) {                   \
        (void)hNode, (void)params_out;                                                                                 \
        return CUDA_ERROR_INVALID_VALUE;                                                                               \
    }                                                                                                                  \
    CUresult cuGraphExternalSemaphores##kind##NodeSetParams(CUgraphNode hNode, const Params *nodeParams) {             \
        (void)hNode, (void)nodeParams;                                                                                 \
        return CUDA_ERROR_INVALID_VALUE;                                                                               \
    }                                                                                                                  \
    CUresult cuGraphExecExternalSemaphores##kind##NodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,             \
                                                                const Params *nodeParams) {                            \
        (void)hGraphExec, (void)hNode, (void)nodeParams;                                                               \
        return CUDA_ERROR_INVALID_VALUE;                                                                               \
    }
NODES(Signal, CUDA_EXT_SEM_SIGNAL_NODE_PARAMS)
NODES(Wait, CUDA_EXT_SEM_WAIT_NODE_PARAMS)
