/*
 * The launches of driver/governed.h. While the gates are open, each is a load, a comparison and a jump to the driver's
 * function, with all arguments where the caller put them: that is what the assembler is for. On other machines the compiler
 * makes a few instructions more of the same.
 */
#include "driver/cuda_real.h"
#include "driver/governed.h"
#include "governor/governor.h"
#include "governor/queues.h"

#define IN_LEGACY(stream) (stream)
#define IN_PER_THREAD(stream) ((stream) != NULL ? (stream) : CU_STREAM_PER_THREAD)

/* Not a stream: the work is none of the GPU's processors. */
#define NO_STREAM ((CUstream)UINTPTR_MAX)

/* cuMemcpy and cuMemcpyAsync find out by themselves where memory lies: only copies inside device memory are gated. */
#define COPY_IN(to, from, stream) (is_on_device(to) && is_on_device(from) ? (stream) : NO_STREAM)

static bool is_on_device(CUdeviceptr address) {
    unsigned int type = 0;
    return REAL(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_DEVICE;
}

#define X(symbol, name, since, kind, parameters, arguments, where)                                                     \
    static __attribute__((used, noinline)) CUresult governed_##symbol parameters __asm__("governed_" #symbol);         \
    static CUresult governed_##symbol parameters {                                                                     \
        CUstream stream_of_launch = where;                                                                             \
        if (stream_of_launch == NO_STREAM)                                                                             \
            return REAL(symbol) arguments;                                                                             \
        PASSAGE(stream_of_launch);                                                                                     \
        return REAL(symbol) arguments;                                                                                 \
    }
CUDA_LAUNCHES(X)
#undef X

#if defined(__x86_64__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
_Static_assert(offsetof(struct governor_page, gate) == 0 && GATE_OPEN == 0, "what the launches compare");
#define X(symbol, name, since, kind, parameters, arguments, where)                                                     \
    __attribute__((naked)) CUresult symbol parameters {                                                                \
        __asm__("cmpl $0, governor_page(%%rip)\n\t"                                                                    \
                "jne governed_" #symbol "\n\t"                                                                         \
                "jmp *cuda_found+%c0(%%rip)"                                                                           \
                :                                                                                                      \
                : "i"(sizeof(void *) * CUDA_##symbol));                                                                \
    }
CUDA_LAUNCHES(X)
#undef X
#pragma GCC diagnostic pop
#else
#define X(symbol, name, since, kind, parameters, arguments, where)                                                     \
    CUresult symbol parameters {                                                                                       \
        return passages_are_open() ? REAL(symbol) arguments : governed_##symbol arguments;                             \
    }
CUDA_LAUNCHES(X)
#undef X
#endif

/* One launch for each of several GPUs. It waits for one after the other; holding one's turn meanwhile could have two such
 * programs wait for each other. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned int count, unsigned int flags) {
    for (unsigned i = 0; i < count && !passages_are_open(); i++) {
        PASSAGE(launches[i].hStream);
    }
    return REAL(cuLaunchCooperativeKernelMultiDevice)(launches, count, flags);
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

static CUresult created(CUresult result, const CUstream *stream) {
    if (result == CUDA_SUCCESS)
        queues_created(*stream);
    return result;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    return created(REAL(cuStreamCreate)(stream, flags), stream);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    return created(REAL(cuStreamCreateWithPriority)(stream, flags, priority), stream);
}

CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned int flags, int priority) {
    return created(REAL(cuGreenCtxStreamCreate)(stream, green, flags, priority), stream);
}

#define CAPTURE(call)                                                                                                  \
    do {                                                                                                               \
        queues_capture_begins();                                                                                       \
        CUresult result = call;                                                                                        \
        queues_capture_begun();                                                                                        \
        return result;                                                                                                 \
    } while (0)

CUresult cuStreamBeginCapture(CUstream stream) {
    CAPTURE(REAL(cuStreamBeginCapture)(stream));
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
    CAPTURE(REAL(cuStreamBeginCapture_ptsz)(stream));
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    CAPTURE(REAL(cuStreamBeginCapture_v2)(stream, mode));
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
    CAPTURE(REAL(cuStreamBeginCapture_v2_ptsz)(stream, mode));
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
    CAPTURE(REAL(cuStreamBeginCaptureToGraph)(stream, graph, dependencies, edges, count, mode));
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                          const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode) {
    CAPTURE(REAL(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, dependencies, edges, count, mode));
}

/* --- streams that wait for memory or for semaphores ---------------------------------------------------------------- */

/* What they wait for may come after a later launch of this process. */
static CUresult waits(CUresult result, CUstream stream) {
    if (result == CUDA_SUCCESS)
        queues_waits(stream);
    return result;
}

#define WAITS(symbol, in, parameters, arguments)                                                                       \
    CUresult symbol parameters {                                                                                       \
        return waits(REAL(symbol) arguments, in(stream));                                                              \
    }

#define WAIT_FORMS(symbol, parameters, arguments)                                                                      \
    WAITS(symbol, IN_LEGACY, parameters, arguments)                                                                    \
    WAITS(symbol##_ptsz, IN_PER_THREAD, parameters, arguments)

#define MEMORY_WAITS(suffix)                                                                                           \
    WAIT_FORMS(cuStreamWaitValue32##suffix,                                                                            \
               (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags),                           \
               (stream, address, value, flags))                                                                        \
    WAIT_FORMS(cuStreamWaitValue64##suffix,                                                                            \
               (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags),                           \
               (stream, address, value, flags))                                                                        \
    WAIT_FORMS(cuStreamBatchMemOp##suffix,                                                                             \
               (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *operations, unsigned int flags),        \
               (stream, count, operations, flags))

MEMORY_WAITS()
MEMORY_WAITS(_v2)
WAIT_FORMS(cuWaitExternalSemaphoresAsync,
           (const CUexternalSemaphore *semaphores, const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *parameters,
            unsigned int count, CUstream stream),
           (semaphores, parameters, count, stream))
