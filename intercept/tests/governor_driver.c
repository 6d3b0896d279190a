#include "governor_driver.h"

#include "../driver/real.h"
#include "../governor/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define STREAMS 256
#define CONTEXTS 16
#define DEPTH 8

struct CUstream_st {
    CUcontext context;
    uint64_t end_ns;
    bool capturing;
};

struct CUctx_st {
    bool live;
    unsigned serial; /* those of one handle have different ones */
    CUdevice device;
    struct CUstream_st stream; /* the legacy default stream */
};

struct CUevent_st {
    uint64_t end_ns;
    CUcontext context;
    unsigned serial; /* of the context */
};

const char *const driver_uuids[DRIVER_DEVICES] = {"GPU-01020304-0506-0708-090a-0b0c0d0e0f00",
                                                  "GPU-01020304-0506-0708-090a-0b0c0d0e0f01"};
struct driver_counts driver_counts;
_Atomic bool driver_holds, driver_dawdles;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool initialised;
static struct CUctx_st contexts[CONTEXTS];
static struct CUstream_st streams[STREAMS];
static pthread_mutex_t retaining = PTHREAD_MUTEX_INITIALIZER; /* what follows; before the other */
static CUcontext primaries[DRIVER_DEVICES];
static unsigned retained[DRIVER_DEVICES];
static unsigned streams_made;
static _Thread_local CUcontext stack[DEPTH];
static _Thread_local unsigned depth;

static CUcontext current(void) {
    return depth > 0 ? stack[depth - 1] : NULL;
}

static struct CUstream_st *stream_of(CUstream stream) {
    return (uintptr_t)stream <= 2 ? &current()->stream : stream;
}

uint64_t driver_end(void) {
    uint64_t end = 0;
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; i < streams_made; i++)
        end = streams[i].end_ns > end ? streams[i].end_ns : end;
    for (unsigned i = 0; i < CONTEXTS; i++)
        end = contexts[i].stream.end_ns > end ? contexts[i].stream.end_ns : end;
    pthread_mutex_unlock(&mutex);
    return end;
}

static _Atomic uint64_t released; /* an end later than a year is not known; until then it is this */

static bool is_over(uint64_t end) {
    return clock_now() >= end || (end >> 60 != 0 && released != 0);
}

void driver_release(void) {
    released = 1;
}

/* --- devices and contexts ----------------------------------------------------------------------------------------- */

static CUresult init(unsigned int flags) {
    initialised = true;
    return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult device_count(int *count) {
    *count = DRIVER_DEVICES;
    return initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult device_uuid(CUuuid *uuid, CUdevice device) {
    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    for (int i = 0; i < 16; i++)
        uuid->bytes[i] = (char)(i < 15 ? i + 1 : device);
    return device < DRIVER_DEVICES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUcontext make(CUdevice device) {
    pthread_mutex_lock(&mutex);
    CUcontext context = contexts;
    while (context->live)
        context++;
    *context = (struct CUctx_st){.live = true, .serial = context->serial + 1, .device = device};
    context->stream.context = context;
    pthread_mutex_unlock(&mutex);
    return context;
}

static CUresult push(CUcontext context) {
    if (depth == DEPTH)
        abort();
    pthread_mutex_lock(&mutex);
    bool live = context->live;
    pthread_mutex_unlock(&mutex);
    if (!live)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *context) {
    *context = stack[--depth];
    return CUDA_SUCCESS;
}

static CUresult create(CUcontext *context, unsigned int flags, CUdevice device) {
    (void)flags;
    *context = make(device);
    return push(*context);
}

static CUresult set_current(CUcontext context) {
    depth = 0;
    return context != NULL ? push(context) : CUDA_SUCCESS;
}

static CUresult get_current(CUcontext *context) {
    *context = current();
    return CUDA_SUCCESS;
}

static CUresult get_device(CUdevice *device) {
    if (current() == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = current()->device;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUcontext context) {
    pthread_mutex_lock(&mutex);
    context->live = false;
    context->stream.end_ns = 0;
    for (unsigned i = 0; i < streams_made; i++)
        if (streams[i].context == context)
            streams[i].end_ns = 0;
    pthread_mutex_unlock(&mutex);
    if (current() == context)
        depth--;
    return CUDA_SUCCESS;
}

/* A green context's handle is that of its context. */
static CUresult from_green(CUcontext *context, CUgreenCtx green) {
    *context = (CUcontext)green;
    return CUDA_SUCCESS;
}

static CUresult primary_state(CUdevice device, unsigned int *flags, int *active) {
    *flags = 0;
    pthread_mutex_lock(&retaining);
    *active = primaries[device] != NULL;
    pthread_mutex_unlock(&retaining);
    return CUDA_SUCCESS;
}

static CUresult primary_retain(CUcontext *context, CUdevice device) {
    pthread_mutex_lock(&retaining);
    if (primaries[device] == NULL)
        primaries[device] = make(device);
    *context = primaries[device];
    retained[device]++;
    pthread_mutex_unlock(&retaining);
    return CUDA_SUCCESS;
}

static CUresult end_primary(CUdevice device, bool resets) {
    pthread_mutex_lock(&retaining);
    if (resets || --retained[device] == 0) {
        destroy(primaries[device]);
        primaries[device] = NULL;
    }
    pthread_mutex_unlock(&retaining);
    return CUDA_SUCCESS;
}

static CUresult primary_reset(CUdevice device) {
    return end_primary(device, true);
}

static CUresult primary_release(CUdevice device) {
    return end_primary(device, false);
}

/* --- streams and events ------------------------------------------------------------------------------------------- */

static CUresult stream_create(CUstream *stream, unsigned int flags) {
    (void)flags;
    pthread_mutex_lock(&mutex);
    if (streams_made == STREAMS)
        abort();
    *stream = &streams[streams_made++];
    (*stream)->context = current();
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

static CUresult stream_destroy(CUstream stream) {
    (void)stream;
    return CUDA_SUCCESS;
}

static CUresult stream_query(CUstream stream) {
    pthread_mutex_lock(&mutex);
    uint64_t end = stream_of(stream)->end_ns;
    pthread_mutex_unlock(&mutex);
    return is_over(end) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult stream_context(CUstream stream, CUcontext *context) {
    *context = stream_of(stream)->context;
    return CUDA_SUCCESS;
}

static CUresult begin_capture(CUstream stream, CUstreamCaptureMode mode) {
    (void)mode;
    pthread_mutex_lock(&mutex);
    stream_of(stream)->capturing = true;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status) {
    pthread_mutex_lock(&mutex);
    *status = (CUstreamCaptureStatus)stream_of(stream)->capturing;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

static CUresult exchange_mode(CUstreamCaptureMode *mode) {
    (void)mode;
    return CUDA_SUCCESS;
}

static CUresult event_create(CUevent *event, unsigned int flags) {
    (void)flags;
    *event = calloc(1, sizeof **event);
    if (*event == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    driver_counts.events++;
    (*event)->context = current();
    (*event)->serial = current()->serial;
    return CUDA_SUCCESS;
}

/* A real driver may crash. */
static void note_use(CUevent event) {
    driver_counts.ended_events += !event->context->live || event->context->serial != event->serial;
}

static CUresult event_record(CUevent event, CUstream stream) {
    pthread_mutex_lock(&mutex);
    driver_counts.broken_captures += stream_of(stream)->capturing;
    note_use(event);
    event->end_ns = stream_of(stream)->end_ns;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

static CUresult event_query(CUevent event) {
    pthread_mutex_lock(&mutex);
    uint64_t end = event->end_ns;
    note_use(event);
    pthread_mutex_unlock(&mutex);
    while (driver_dawdles && !is_over(end))
        clock_sleep(NS_PER_MS / 10);
    return is_over(end) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult event_destroy(CUevent event) {
    note_use(event);
    free(event);
    driver_counts.events--;
    return CUDA_SUCCESS;
}

static CUresult run(CUstream stream, uint64_t ns) {
    struct CUstream_st *of = stream_of(stream);
    uint64_t now = clock_now();
    driver_counts.held += driver_holds;
    while (driver_holds)
        clock_sleep(NS_PER_MS);
    pthread_mutex_lock(&mutex);
    driver_counts.captured += of->capturing;
    if (!of->capturing) {
        of->end_ns = (of->end_ns > now ? of->end_ns : now) + ns;
        if (of->end_ns - now > driver_counts.most_ns)
            driver_counts.most_ns = of->end_ns - now;
        driver_counts.launches++;
    }
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                       unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
                       CUstream stream, void **parameters, void **extra) {
    (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z, (void)shared;
    (void)parameters, (void)extra;
    return run(stream, (uintptr_t)function);
}

/* For as many ns as the value; 0: until driver_release. */
static CUresult wait_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
    (void)address, (void)flags;
    return run(stream, value != 0 ? value : (uintptr_t)ENDLESS);
}

static CUresult graph_launch(CUgraphExec exec, CUstream stream) {
    return run(stream, (uintptr_t)exec);
}

static CUresult set_memory(CUdeviceptr address, unsigned char value, size_t count) {
    (void)address, (void)value;
    return run(NULL, count);
}

/* Addresses above 1 GiB are device memory. */
static CUresult attribute_of(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    (void)attribute;
    *(unsigned int *)value = address >> 30 != 0 ? CU_MEMORYTYPE_DEVICE : 1;
    return CUDA_SUCCESS;
}

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    (void)to, (void)from;
    return run(NULL, bytes);
}

/* --- looking up --------------------------------------------------------------------------------------------------- */

typedef void (*any_function)(void);

void *real_lookup(const char *file, const char *name) {
    static const struct {
        const char *name;
        any_function function;
    } functions[] = {
        {"cuInit", (any_function)init},
        {"cuDeviceGetCount", (any_function)device_count},
        {"cuDeviceGetUuid_v2", (any_function)device_uuid},
        {"cuCtxCreate_v2", (any_function)create},
        {"cuCtxDestroy_v2", (any_function)destroy},
        {"cuCtxPushCurrent_v2", (any_function)push},
        {"cuCtxPopCurrent_v2", (any_function)pop},
        {"cuCtxSetCurrent", (any_function)set_current},
        {"cuCtxGetCurrent", (any_function)get_current},
        {"cuCtxGetDevice", (any_function)get_device},
        {"cuDevicePrimaryCtxGetState", (any_function)primary_state},
        {"cuDevicePrimaryCtxRetain", (any_function)primary_retain},
        {"cuDevicePrimaryCtxRelease_v2", (any_function)primary_release},
        {"cuDevicePrimaryCtxReset_v2", (any_function)primary_reset},
        {"cuCtxFromGreenCtx", (any_function)from_green},
        {"cuGreenCtxDestroy", (any_function)destroy},
        {"cuStreamCreate", (any_function)stream_create},
        {"cuStreamDestroy_v2", (any_function)stream_destroy},
        {"cuStreamQuery", (any_function)stream_query},
        {"cuStreamGetCtx", (any_function)stream_context},
        {"cuStreamBeginCapture_v2", (any_function)begin_capture},
        {"cuStreamIsCapturing", (any_function)is_capturing},
        {"cuThreadExchangeStreamCaptureMode", (any_function)exchange_mode},
        {"cuEventCreate", (any_function)event_create},
        {"cuEventRecord", (any_function)event_record},
        {"cuEventQuery", (any_function)event_query},
        {"cuEventDestroy_v2", (any_function)event_destroy},
        {"cuLaunchKernel", (any_function)launch},
        {"cuStreamWaitValue32_v2", (any_function)wait_value},
        {"cuLaunchKernel_ptsz", (any_function)launch},
        {"cuGraphLaunch", (any_function)graph_launch},
        {"cuMemsetD8_v2", (any_function)set_memory},
        {"cuPointerGetAttribute", (any_function)attribute_of},
        {"cuMemcpy", (any_function)copy},
    };
    (void)file;
    for (unsigned i = 0; i < sizeof functions / sizeof functions[0]; i++)
        if (strcmp(functions[i].name, name) == 0)
            return (void *)functions[i].function;
    return NULL;
}
