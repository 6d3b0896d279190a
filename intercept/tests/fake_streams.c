/* Not thread-safe. */
#include "fake_streams.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define PIECES 64
#define UNIT ((uint64_t)512 << 10)
#define UNITS (FAKE_PIECE_BYTES / UNIT)
#define POOL_BASE ((CUdeviceptr)0x7e0000000000)
#define NODE_BASE ((CUdeviceptr)0x7d0000000000)
#define LATER 4096
#define STREAMS 4096

struct fake_counts fake_counts;
struct fake_pool_orders fake_pool_orders;

/* Work has numbers; that up to `done` is done unless the stream is stuck. */
struct CUstream_st {
    CUcontext context;
    bool stuck, destroyed, ends_beside_free, captures_beside_event, ends_at_once;
    _Atomic bool capturing;
    uint64_t put, done;
    unsigned queries; /* until it is no longer stuck; 0: for good */
};

struct CUevent_st {
    struct CUstream_st *stream;
    uint64_t number;
    bool captured;
};

static struct CUstream_st default_stream;

CUresult fake_cuMemFree_v2(CUdeviceptr address);
CUresult fake_cuCtxSetCurrent(CUcontext context);
CUresult fake_cuCtxGetDevice(CUdevice *device);

/* --- streams and events ------------------------------------------------------------------------------------------- */

static struct CUstream_st *stream_of(CUstream stream) {
    return (uintptr_t)stream <= 2 ? &default_stream : stream;
}

static bool is_done(const struct CUstream_st *stream, uint64_t number) {
    return !stream->stuck || number <= stream->done;
}

CUstream fake_stream_new(void) {
    static struct CUstream_st streams[STREAMS];
    static unsigned made;
    if (made == STREAMS)
        abort();
    streams[made].context = fake_current();
    return &streams[made++];
}

static CUresult stream_context(CUstream stream, CUcontext *context) {
    struct CUstream_st *of = stream_of(stream);
    CUresult result = of->destroyed ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS)
        *context = of->context;
    return result;
}

static CUresult stream_capturing(CUstream stream, CUstreamCaptureStatus *status) {
    fake_counts.captures++;
    *status =
        atomic_load(&stream_of(stream)->capturing) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return stream_of(stream)->destroyed ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static __thread CUstreamCaptureMode mode_of_thread;

static CUresult exchange_mode(CUstreamCaptureMode *mode) {
    CUstreamCaptureMode before = mode_of_thread;
    mode_of_thread = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

bool fake_is_relaxed(void) {
    return mode_of_thread == CU_STREAM_CAPTURE_MODE_RELAXED;
}

void fake_stream_capture(CUstream stream) {
    atomic_store(&stream_of(stream)->capturing, true);
}

void fake_stream_capture_beside_event(CUstream stream, bool ends) {
    stream->captures_beside_event = true;
    stream->ends_at_once = ends;
}

static CUresult end_capture(CUstream stream, CUgraph *graph) {
    *graph = NULL;
    return atomic_exchange(&stream_of(stream)->capturing, false) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult stream_synchronize(CUstream stream) {
    (void)stream; /* one that is stuck would never return */
    fake_counts.synchronizations++;
    return CUDA_SUCCESS;
}

/* It lives on for the events in it. */
static CUresult stream_destroy(CUstream stream) {
    stream->destroyed = true;
    return CUDA_SUCCESS;
}

static CUresult event_create(CUevent *event, unsigned int flags) {
    (void)flags;
    *event = calloc(1, sizeof **event);
    fake_counts.events += *event != NULL;
    return *event != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult event_record(CUevent event, CUstream stream) {
    event->stream = stream_of(stream);
    event->number = event->stream->put;
    event->captured = event->stream->captures_beside_event || atomic_load(&event->stream->capturing);
    if (event->stream->captures_beside_event)
        atomic_store(&event->stream->capturing, !event->stream->ends_at_once);
    event->stream->captures_beside_event = false;
    return event->stream->destroyed ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult event_query(CUevent event) {
    fake_counts.queries++;
    if (event->stream != NULL && event->stream->queries != 0 && --event->stream->queries == 0)
        fake_stream_stick(event->stream, false);
    if (event->captured) {
        fake_counts.invalid += atomic_load(&event->stream->capturing);
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    return event->stream == NULL || is_done(event->stream, event->number) ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static CUresult event_synchronize(CUevent event) {
    (void)event;
    fake_counts.synchronizations++;
    return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event) {
    fake_counts.events--;
    free(event);
    return CUDA_SUCCESS;
}

static CUcontext pushed[16];
static unsigned pushes;

static CUresult context_push(CUcontext context) {
    pushed[pushes++ % 16] = fake_current();
    return fake_cuCtxSetCurrent(context);
}

static CUresult context_pop(CUcontext *context) {
    *context = fake_current();
    return fake_cuCtxSetCurrent(pushed[--pushes % 16]);
}

/* --- pools -------------------------------------------------------------------------------------------------------- */

static struct pool {
    struct piece {
        bool reserved;
        unsigned lengths[UNITS]; /* in units, of the allocation that begins here */
        bool taken[UNITS];
    } pieces[PIECES];
} pools[FAKE_DEVICES];

/* What is freed when a stream comes to it. */
static struct later {
    struct CUstream_st *stream;
    uint64_t number;
    CUdeviceptr address;
} later[LATER];

static struct piece *piece_of(CUdeviceptr address, CUdevice *device) {
    uint64_t index = (address - POOL_BASE) / FAKE_PIECE_BYTES;
    *device = (CUdevice)(index / PIECES);
    return address < POOL_BASE || index >= PIECES * FAKE_DEVICES ? NULL : &pools[*device].pieces[index % PIECES];
}

static CUresult free_now(CUdeviceptr address) {
    CUdevice device;
    struct piece *piece = piece_of(address, &device);
    if (piece == NULL)
        return fake_cuMemFree_v2(address);
    unsigned at = (unsigned)((address - POOL_BASE) % FAKE_PIECE_BYTES / UNIT), length = piece->lengths[at];
    memset(piece->taken + at, 0, length * sizeof *piece->taken);
    piece->lengths[at] = 0;
    return length != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void fake_stream_stick(CUstream stream, bool stuck) {
    struct CUstream_st *of = stream_of(stream);
    of->stuck = stuck;
    of->queries = 0;
    of->done = of->put;
    for (unsigned i = 0; i < LATER; i++) {
        if (later[i].stream != of || !is_done(of, later[i].number))
            continue;
        free_now(later[i].address);
        later[i].stream = NULL;
    }
}

void fake_stream_stick_for(CUstream stream, unsigned queries) {
    fake_stream_stick(stream, true);
    stream_of(stream)->queries = queries;
}

void fake_stream_destroy_beside_free(CUstream stream) {
    stream->ends_beside_free = true;
}

static CUresult free_async(CUdeviceptr address, CUstream stream) {
    struct CUstream_st *of = stream_of(stream);
    of->put++;
    of->destroyed = of->destroyed || of->ends_beside_free;
    if (is_done(of, of->put))
        return free_now(address);
    unsigned i = 0;
    while (later[i].stream != NULL)
        if (++i == LATER)
            abort();
    later[i] = (struct later){of, of->put, address};
    return CUDA_SUCCESS;
}

CUresult fake_free_unseen_in(CUdeviceptr address, CUstream stream) {
    return free_async(address, stream);
}

static CUdeviceptr place_in(struct pool *pool, unsigned index, unsigned units, CUdevice device) {
    struct piece *piece = &pool->pieces[index];
    for (unsigned at = 0, free = 0; at < UNITS; at++) {
        free = piece->taken[at] ? 0 : free + 1;
        if (free < units)
            continue;
        unsigned start = at + 1 - units;
        memset(piece->taken + start, 1, units * sizeof *piece->taken);
        piece->lengths[start] = units;
        return POOL_BASE + ((uint64_t)device * PIECES + index) * FAKE_PIECE_BYTES + start * UNIT;
    }
    return 0;
}

static CUresult allocate(CUdeviceptr *address, size_t bytes, CUmemoryPool handle, CUstream stream) {
    struct pool *pool = (struct pool *)handle;
    CUdevice device = (CUdevice)(pool - pools);
    unsigned units = (unsigned)((bytes + UNIT - 1) / UNIT);
    bool grows = fake_pool_orders.grows;
    if (fake_pool_orders.allocating != NULL)
        fake_pool_orders.allocating();
    fake_pool_orders = (struct fake_pool_orders){0};
    *address = 0;
    if (atomic_load(&stream_of(stream)->capturing)) {
        *address = NODE_BASE;
        return CUDA_SUCCESS;
    }
    for (unsigned i = 0; i < PIECES && *address == 0; i++)
        if (pool->pieces[i].reserved && !grows)
            *address = place_in(pool, i, units, device);
    for (unsigned i = 0; i < PIECES && *address == 0 && units <= UNITS; i++) {
        if (pool->pieces[i].reserved)
            continue;
        pool->pieces[i].reserved = true;
        fake_take(device, FAKE_PIECE_BYTES);
        *address = place_in(pool, i, units, device);
    }
    return *address != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult device_pool(CUmemoryPool *pool, CUdevice device) {
    *pool = (CUmemoryPool)&pools[device];
    return CUDA_SUCCESS;
}

static CUresult allocate_from_current(CUdeviceptr *address, size_t bytes, CUstream stream) {
    CUdevice device = 0;
    fake_cuCtxGetDevice(&device);
    return allocate(address, bytes, (CUmemoryPool)&pools[device], stream);
}

static CUresult pool_attribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value) {
    const struct pool *pool = (struct pool *)handle;
    cuuint64_t reserved = 0, used = 0;
    for (unsigned i = 0; i < PIECES; i++) {
        reserved += pool->pieces[i].reserved ? FAKE_PIECE_BYTES : 0;
        for (unsigned at = 0; at < UNITS; at++)
            used += pool->pieces[i].lengths[at] * UNIT;
    }
    *(cuuint64_t *)value = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? reserved : used;
    return CUDA_SUCCESS;
}

/* As NVIDIA's documentation has it: until the pool holds less than this. */
static CUresult pool_trim(CUmemoryPool handle, size_t keep) {
    struct pool *pool = (struct pool *)handle;
    cuuint64_t reserved;
    fake_counts.trims++;
    pool_attribute(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
    for (unsigned i = 0; i < PIECES && (reserved > keep || keep == 0); i++) {
        bool used = false;
        for (unsigned at = 0; at < UNITS; at++)
            used = used || pool->pieces[i].taken[at];
        if (used || !pool->pieces[i].reserved)
            continue;
        pool->pieces[i].reserved = false;
        reserved -= FAKE_PIECE_BYTES;
        fake_take((CUdevice)(pool - pools), -(int64_t)FAKE_PIECE_BYTES);
    }
    return CUDA_SUCCESS;
}

CUmemoryPool fake_pool_at(CUdeviceptr address) {
    CUdevice device;
    const struct piece *piece = piece_of(address, &device);
    bool used = piece != NULL && piece->lengths[(address - POOL_BASE) % FAKE_PIECE_BYTES / UNIT] != 0;
    return used ? (CUmemoryPool)&pools[device] : NULL;
}

/* --- looking up --------------------------------------------------------------------------------------------------- */

typedef void (*any_function)(void);

void *fake_streams_lookup(const char *name) {
    static const struct {
        const char *name;
        any_function function;
    } functions[] = {
        {"cuStreamGetCtx", (any_function)stream_context},
        {"cuStreamIsCapturing", (any_function)stream_capturing},
        {"cuThreadExchangeStreamCaptureMode", (any_function)exchange_mode},
        {"cuStreamEndCapture", (any_function)end_capture},
        {"cuStreamSynchronize", (any_function)stream_synchronize},
        {"cuStreamDestroy_v2", (any_function)stream_destroy},
        {"cuEventCreate", (any_function)event_create},
        {"cuEventRecord", (any_function)event_record},
        {"cuEventQuery", (any_function)event_query},
        {"cuEventSynchronize", (any_function)event_synchronize},
        {"cuEventDestroy_v2", (any_function)event_destroy},
        {"cuCtxPushCurrent_v2", (any_function)context_push},
        {"cuCtxPopCurrent_v2", (any_function)context_pop},
        {"cuMemFreeAsync", (any_function)free_async},
        {"cuMemAllocAsync", (any_function)allocate_from_current},
        {"cuMemAllocFromPoolAsync", (any_function)allocate},
        {"cuDeviceGetMemPool", (any_function)device_pool},
        {"cuDeviceGetDefaultMemPool", (any_function)device_pool},
        {"cuMemPoolGetAttribute", (any_function)pool_attribute},
        {"cuMemPoolTrimTo", (any_function)pool_trim},
    };
    for (unsigned i = 0; i < sizeof functions / sizeof functions[0]; i++)
        if (strcmp(functions[i].name, name) == 0)
            return (void *)functions[i].function;
    return NULL;
}
