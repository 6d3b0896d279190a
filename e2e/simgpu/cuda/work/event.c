/* Events: marks in the work of a GPU, with the time at which they are reached. */
#include "capture.h"
#include "cuda/ipc/ipc_event.h"
#include "cuda/memory/pool_blocks.h"
#include "shared_objects.h"
#include "stream.h"

#define FLAGS (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)

struct CUevent_st {
    struct handle handle;
    struct CUctx_st *context;
    unsigned flags;
    bool recorded;
    CUdevice device;
    struct stamp stamp;
    struct captured_event *captured; /* it was last recorded in a capturing stream */
    struct calls_point *calls;       /* that it comes after, or NULL */
    uint64_t object;                 /* of ipc_event.h, once other processes may have the event too; else 0 */
};

static struct handle_table events = HANDLE_TABLE(7, 1 << 20);
_Static_assert(sizeof(struct CUevent_st) <= 1 << 7, "an event must fit into its element");

CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags) {
    struct CUevent_st *event;

    REQUIRE_CONTEXT(context);
    REQUIRE(phEvent != NULL && (Flags & ~(unsigned)FLAGS) == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE((Flags & CU_EVENT_INTERPROCESS) == 0 || (Flags & CU_EVENT_DISABLE_TIMING) != 0, CUDA_ERROR_INVALID_VALUE);
    event = handle_new(&events);
    REQUIRE(event != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    event->context = context;
    event->device = context->device;
    event->flags = Flags;
    *phEvent = event;
    return CUDA_SUCCESS;
}

/* Begins a function on an event that needs no current context. */
#define REQUIRE_EVENT(event)                                                                                           \
    REQUIRE_INITIALISED();                                                                                             \
    REQUIRE(handle_valid(&events, event), CUDA_ERROR_INVALID_HANDLE)

CUresult cuEventDestroy_v2(CUevent hEvent) {
    REQUIRE_EVENT(hEvent);
    if (hEvent->recorded)
        engine_unstamp(hEvent->device, &hEvent->stamp);
    if (hEvent->object != 0)
        sim_shared_drop(hEvent->object);
    captured_event_delete(hEvent->captured);
    calls_point_drop(hEvent->calls);
    handle_delete(&events, hEvent);
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent hEvent) {
    return cuEventDestroy_v2(hEvent);
}

static void delete_if_of(void *element, void *context) {
    CUevent event = element;

    if (event->context == context)
        cuEventDestroy_v2(event);
}

void events_context_gone(struct CUctx_st *context) {
    handle_each(&events, delete_if_of, context);
}

static CUresult record(CUevent event, CUstream hStream, unsigned flags, bool per_thread) {
    struct CUstream_st *stream;
    struct calls_point *calls;
    bool captured;

    REQUIRE_CONTEXT(context);
    REQUIRE(handle_valid(&events, event), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(flags <= 1, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_find(context, hStream, per_thread, &stream));
    REQUIRE(event->context == context, CUDA_ERROR_INVALID_HANDLE);
    TRY(capture_enter(stream, &captured));
    if (captured)
        return flags == CU_EVENT_RECORD_EXTERNAL
                   ? capture_node(stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD, &(union node_work){.event = event})
                   : capture_record(stream, &event->captured);
    TRY(calls_point_new(stream, &calls));
    calls_point_drop(event->calls);
    event->calls = calls;
    captured_event_delete(event->captured);
    event->captured = NULL;
    if (event->recorded)
        engine_unstamp(event->device, &event->stamp);
    engine_stamp(event->device, &event->stamp, stream_mark(stream));
    event->recorded = true;
    return event->object != 0 ? ipc_event_recorded(event->object, event->device, event->stamp.mark) : CUDA_SUCCESS;
}

CUresult event_record_all(struct CUctx_st *context, CUevent event) {
    REQUIRE(handle_valid(&events, event) && event->context == context, CUDA_ERROR_INVALID_HANDLE);
    if (event->recorded)
        engine_unstamp(event->device, &event->stamp);
    engine_stamp(event->device, &event->stamp, atomic_load(&context->mark));
    event->recorded = true;
    return CUDA_SUCCESS;
}

CUresult event_wait_all(CUdevice device, CUevent event) {
    REQUIRE(handle_valid(&events, event), CUDA_ERROR_INVALID_HANDLE);
    if (event->recorded && event->device != device)
        engine_wait(event->device, event->stamp.mark);
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream) {
    return record(hEvent, hStream, 0, false);
}

CUresult cuEventRecord_ptsz(CUevent hEvent, CUstream hStream) {
    return record(hEvent, hStream, 0, true);
}

CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned int flags) {
    return record(hEvent, hStream, flags, false);
}

CUresult cuEventRecordWithFlags_ptsz(CUevent hEvent, CUstream hStream, unsigned int flags) {
    return record(hEvent, hStream, flags, true);
}

/* An event that was never recorded counts as done. */
CUresult cuEventQuery(CUevent hEvent) {
    REQUIRE_EVENT(hEvent);
    REQUIRE(hEvent->captured == NULL, CUDA_ERROR_CAPTURED_EVENT);
    if (hEvent->object != 0)
        return ipc_event_done(hEvent->object) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    if (!hEvent->recorded)
        return CUDA_SUCCESS;
    if (!engine_done(hEvent->device, hEvent->stamp.mark) || !calls_point_reached(hEvent->calls))
        return CUDA_ERROR_NOT_READY;
    return gpu_error(driver->gpus[hEvent->device]);
}

CUresult cuEventSynchronize(CUevent hEvent) {
    REQUIRE_EVENT(hEvent);
    REQUIRE(hEvent->captured == NULL, CUDA_ERROR_CAPTURED_EVENT);
    if (hEvent->recorded)
        engine_wait(hEvent->device, hEvent->stamp.mark);
    calls_point_wait(hEvent->calls);
    if (hEvent->object != 0)
        ipc_event_wait(hEvent->object);
    pools_synchronised(hEvent->device);
    return gpu_error(driver->gpus[hEvent->device]);
}

CUresult cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd) {
    uint64_t start, end;

    REQUIRE_EVENT(hStart);
    REQUIRE(handle_valid(&events, hEnd), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(pMilliseconds != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(hStart->captured == NULL && hEnd->captured == NULL, CUDA_ERROR_CAPTURED_EVENT);
    REQUIRE(hStart->recorded && hEnd->recorded && hStart->device == hEnd->device, CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(((hStart->flags | hEnd->flags) & CU_EVENT_DISABLE_TIMING) == 0, CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(engine_done(hStart->device, hStart->stamp.mark) && engine_done(hEnd->device, hEnd->stamp.mark),
            CUDA_ERROR_NOT_READY);
    start = atomic_load(&hStart->stamp.time_ns);
    end = atomic_load(&hEnd->stamp.time_ns);
    *pMilliseconds = (float)((double)(int64_t)(end - start) / 1e6);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd) {
    return cuEventElapsedTime(pMilliseconds, hStart, hEnd);
}

/*
 * On one GPU the work that the event stands for comes first anyway. Work of another GPU is waited for here and now:
 * what follows in the stream must not begin before it is done.
 */
static CUresult wait_event(CUstream hStream, CUevent event, unsigned flags, bool per_thread) {
    struct CUstream_st *stream;
    bool captured;

    REQUIRE_CONTEXT(context);
    REQUIRE(handle_valid(&events, event), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(flags <= 1, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_find(context, hStream, per_thread, &stream));
    TRY(capture_enter(stream, &captured));
    if (captured && flags == CU_EVENT_WAIT_EXTERNAL)
        return capture_node(stream, CU_GRAPH_NODE_TYPE_WAIT_EVENT, &(union node_work){.event = event});
    if (captured || event->captured != NULL)
        return capture_wait(stream, event->captured);
    if (event->object != 0)
        ipc_event_wait(event->object);
    if (!event->recorded)
        return CUDA_SUCCESS;
    if (event->device != context->device)
        engine_wait(event->device, event->stamp.mark);
    else
        stream_wait_mark(stream, event->stamp.mark);
    return stream_wait_point(stream, event->calls);
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) {
    return wait_event(hStream, hEvent, Flags, false);
}

CUresult cuStreamWaitEvent_ptsz(CUstream hStream, CUevent hEvent, unsigned int Flags) {
    return wait_event(hStream, hEvent, Flags, true);
}

/* ---- Between processes ---- */

CUresult cuIpcGetEventHandle(CUipcEventHandle *pHandle, CUevent event) {
    REQUIRE(pHandle != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_EVENT(event);
    REQUIRE((event->flags & CU_EVENT_INTERPROCESS) != 0, CUDA_ERROR_INVALID_VALUE);
    if (event->object != 0)
        return ipc_event_handle(event->object, pHandle);
    TRY(ipc_event_new(event->device, &event->object, pHandle));
    return event->recorded ? ipc_event_recorded(event->object, event->device, event->stamp.mark) : CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent *phEvent, CUipcEventHandle handle) {
    uint64_t object;
    CUresult ret;

    REQUIRE(phEvent != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_CONTEXT(context);
    (void)context;
    TRY(ipc_event_open(&handle, &object));
    ret = cuEventCreate(phEvent, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    if (ret == CUDA_SUCCESS)
        (*phEvent)->object = object;
    else
        sim_shared_drop(object);
    return ret;
}
