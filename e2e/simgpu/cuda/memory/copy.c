/*
 * Copies and fills. They take no time on the GPU and are done when the call returns, in order with the stream's calls;
 * kernels here do not touch memory, so no program can tell. Behind a call that waits they become calls themselves: what
 * it waits for may come from this thread.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda/array/array.h"
#include "cuda/work/capture.h"
#include "cuda/work/stream.h"
#include "heap.h"
#include "host_memory.h"

/* Fills, and copies from GPU to GPU, keep contents up to here: a program may fill a whole GPU, no test machine can. */
#define CONTENT_BYTES (64 * MIB)

static uint64_t kept(uint64_t size) {
    return size < CONTENT_BYTES ? size : CONTENT_BYTES;
}

CUresult device_bytes(CUdeviceptr address, uint64_t size, char **bytes) {
    struct host_range range;

    if (!heap_touch(address, size)) {
        REQUIRE(host_range_find((uintptr_t)address, &range) && size <= range.size - (address - range.base),
                CUDA_ERROR_INVALID_VALUE);
    }
    *bytes = (char *)(uintptr_t)address;
    return CUDA_SUCCESS;
}

/* The bytes at an address of either kind. What lies among device addresses must be allocated. */
static CUresult any_bytes(CUdeviceptr address, uint64_t size, char **bytes) {
    if (heap_address(address))
        return device_bytes(address, size, bytes);
    REQUIRE(address != 0, CUDA_ERROR_INVALID_VALUE);
    *bytes = (char *)(uintptr_t)address;
    return CUDA_SUCCESS;
}

static CUresult array_bytes(CUarray array, uint64_t offset, uint64_t size, char **bytes) {
    uint64_t whole;

    REQUIRE(array_valid(array), CUDA_ERROR_INVALID_HANDLE);
    whole = array->row_bytes * array->rows * array->layers;
    REQUIRE(array->address != 0 && offset <= whole && size <= whole - offset, CUDA_ERROR_INVALID_VALUE);
    return device_bytes(array->address + offset, size, bytes);
}

/* Which stream an operation is in, and whether the caller waits for what is in it already. */
struct order {
    CUstream stream;
    bool per_thread;
    bool wait;
    bool reached; /* it was put off, and its turn has come */
};

static CUresult in_order(struct order order) {
    struct CUstream_st *stream;

    if (order.reached)
        return CUDA_SUCCESS;
    REQUIRE_CONTEXT(context);
    TRY(stream_find(context, order.stream, order.per_thread, &stream));
    if (order.wait) {
        TRY(capture_forbid(stream));
        stream_wait(stream);
    } else {
        stream_wait_calls(stream);
    }
    return CUDA_SUCCESS;
}

/* An operation that was put off. */
struct later {
    struct stream_call call;
    CUgraphNodeType type;
    union node_work work;
    char *staged; /* what is copied, or NULL */
};

static void do_now(struct stream_call *call);

static void discard(const struct stream_call *call) {
    free(((const struct later *)call)->staged);
}

/* Memory of the program's own may be another one's when the copy is made, so the driver takes what is in it at once. */
static bool stage(struct later *later) {
    CUDA_MEMCPY3D *c = &later->work.copy;
    const char *from = c->srcMemoryType == CU_MEMORYTYPE_HOST ? c->srcHost : NULL;
    struct host_range range;

    if (c->srcMemoryType == CU_MEMORYTYPE_UNIFIED && !heap_address(c->srcDevice))
        from = (const char *)(uintptr_t)c->srcDevice;
    if (from == NULL || c->Height > 1 || c->Depth > 1 || host_range_find((uintptr_t)from, &range))
        return true;
    later->staged = malloc(c->WidthInBytes + 1);
    if (later->staged == NULL)
        return false;
    memcpy(later->staged, from + c->srcXInBytes, c->WidthInBytes);
    c->srcMemoryType = CU_MEMORYTYPE_HOST;
    c->srcHost = later->staged;
    c->srcXInBytes = 0;
    return true;
}

static CUresult put_off(struct CUstream_st *stream, CUgraphNodeType type, const union node_work *work) {
    struct later *later = malloc(sizeof(*later));

    REQUIRE(later != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    *later = (struct later){.call = {.stream = stream, .run = do_now, .discard = discard}, .type = type, .work = *work};
    if (type == CU_GRAPH_NODE_TYPE_MEMCPY && !stage(later)) {
        free(later);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return call_queue(&later->call);
}

/* Makes a node of it, where this is work of a capturing stream, or puts it off behind a call that waits. */
static CUresult set_aside(struct order order, CUgraphNodeType type, const union node_work *work, bool *aside) {
    struct CUstream_st *stream;

    REQUIRE_CONTEXT(context);
    TRY(stream_find(context, order.stream, order.per_thread, &stream));
    TRY(capture_enter(stream, aside));
    if (*aside)
        return capture_node(stream, type, work);
    *aside = stream_waits(stream);
    return *aside ? put_off(stream, type, work) : CUDA_SUCCESS;
}

/* Returns from the calling function where this is not to be done now. */
#define SET_ASIDE(order, type, ...)                                                                                    \
    do {                                                                                                               \
        bool is_aside = false;                                                                                         \
        if (!(order).wait && !(order).reached && (capture_possible() || atomic_load(&calls_waiting) != 0))             \
            TRY(set_aside(order, type, &(union node_work){__VA_ARGS__}, &is_aside));                                   \
        if (is_aside)                                                                                                  \
            return CUDA_SUCCESS;                                                                                       \
    } while (0)

/* A copy of one piece as a node has it. */
static CUDA_MEMCPY3D piece(CUmemorytype to_type, uint64_t to, CUmemorytype from_type, uint64_t from, size_t size) {
    return (CUDA_MEMCPY3D){.dstMemoryType = to_type,
                           .dstHost = to_type == CU_MEMORYTYPE_HOST ? (void *)(uintptr_t)to : NULL,
                           .dstDevice = to,
                           .srcMemoryType = from_type,
                           .srcHost = from_type == CU_MEMORYTYPE_HOST ? (const void *)(uintptr_t)from : NULL,
                           .srcDevice = from,
                           .WidthInBytes = size,
                           .Height = 1,
                           .Depth = 1};
}

/* ---- Copies of one piece ---- */

static CUresult copy_any(struct order order, CUdeviceptr to, CUdeviceptr from, size_t size) {
    char *target, *source;

    SET_ASIDE(order, CU_GRAPH_NODE_TYPE_MEMCPY,
              .copy = piece(CU_MEMORYTYPE_UNIFIED, to, CU_MEMORYTYPE_UNIFIED, from, size));
    TRY(in_order(order));
    if (size == 0)
        return CUDA_SUCCESS;
    TRY(any_bytes(to, size, &target));
    TRY(any_bytes(from, size, &source));
    memmove(target, source, heap_address(to) && heap_address(from) ? kept(size) : size);
    return CUDA_SUCCESS;
}

static CUresult copy_to_host(struct order order, void *to, CUdeviceptr from, size_t size) {
    char *source;

    SET_ASIDE(order, CU_GRAPH_NODE_TYPE_MEMCPY,
              .copy = piece(CU_MEMORYTYPE_HOST, (uintptr_t)to, CU_MEMORYTYPE_DEVICE, from, size));
    TRY(in_order(order));
    if (size == 0)
        return CUDA_SUCCESS;
    REQUIRE(to != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(device_bytes(from, size, &source));
    memmove(to, source, size);
    return CUDA_SUCCESS;
}

static CUresult copy_from_host(struct order order, CUdeviceptr to, const void *from, size_t size) {
    char *target;

    SET_ASIDE(order, CU_GRAPH_NODE_TYPE_MEMCPY,
              .copy = piece(CU_MEMORYTYPE_DEVICE, to, CU_MEMORYTYPE_HOST, (uintptr_t)from, size));
    TRY(in_order(order));
    if (size == 0)
        return CUDA_SUCCESS;
    REQUIRE(from != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(device_bytes(to, size, &target));
    memmove(target, from, size);
    return CUDA_SUCCESS;
}

static CUresult copy_on_device(struct order order, CUdeviceptr to, CUdeviceptr from, size_t size) {
    char *target, *source;

    SET_ASIDE(order, CU_GRAPH_NODE_TYPE_MEMCPY,
              .copy = piece(CU_MEMORYTYPE_DEVICE, to, CU_MEMORYTYPE_DEVICE, from, size));
    TRY(in_order(order));
    if (size == 0)
        return CUDA_SUCCESS;
    TRY(device_bytes(to, size, &target));
    TRY(device_bytes(from, size, &source));
    memmove(target, source, kept(size));
    return CUDA_SUCCESS;
}

static CUresult copy_peer(struct order order, CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                          CUcontext from_context, size_t size) {
    REQUIRE_INITIALISED();
    REQUIRE(handle_valid(&contexts, to_context) && handle_valid(&contexts, from_context), CUDA_ERROR_INVALID_CONTEXT);
    return copy_on_device(order, to, from, size);
}

static CUresult copy_bytes(struct order order, char *to, const char *from, size_t size) {
    TRY(in_order(order));
    memmove(to, from, size);
    return CUDA_SUCCESS;
}

static CUresult array_from_device(struct order order, CUarray to, size_t offset, CUdeviceptr from, size_t size) {
    char *target, *source;

    REQUIRE_INITIALISED();
    TRY(array_bytes(to, offset, size, &target));
    TRY(device_bytes(from, size, &source));
    return copy_bytes(order, target, source, kept(size));
}

static CUresult array_to_device(struct order order, CUdeviceptr to, CUarray from, size_t offset, size_t size) {
    char *target, *source;

    REQUIRE_INITIALISED();
    TRY(device_bytes(to, size, &target));
    TRY(array_bytes(from, offset, size, &source));
    return copy_bytes(order, target, source, kept(size));
}

static CUresult array_from_host(struct order order, CUarray to, size_t offset, const void *from, size_t size) {
    char *target;

    REQUIRE_INITIALISED();
    REQUIRE(from != NULL, CUDA_ERROR_INVALID_VALUE);
    SET_ASIDE(order, CU_GRAPH_NODE_TYPE_MEMCPY,
              .copy = {.dstMemoryType = CU_MEMORYTYPE_ARRAY,
                       .dstArray = to,
                       .dstXInBytes = offset,
                       .srcMemoryType = CU_MEMORYTYPE_HOST,
                       .srcHost = from,
                       .WidthInBytes = size,
                       .Height = 1,
                       .Depth = 1});
    TRY(array_bytes(to, offset, size, &target));
    return copy_bytes(order, target, from, size);
}

static CUresult array_to_host(struct order order, void *to, CUarray from, size_t offset, size_t size) {
    char *source;

    REQUIRE_INITIALISED();
    REQUIRE(to != NULL, CUDA_ERROR_INVALID_VALUE);
    SET_ASIDE(order, CU_GRAPH_NODE_TYPE_MEMCPY,
              .copy = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                       .srcArray = from,
                       .srcXInBytes = offset,
                       .dstMemoryType = CU_MEMORYTYPE_HOST,
                       .dstHost = to,
                       .WidthInBytes = size,
                       .Height = 1,
                       .Depth = 1});
    TRY(array_bytes(from, offset, size, &source));
    return copy_bytes(order, to, source, size);
}

static CUresult array_to_array(struct order order, CUarray to, size_t to_offset, CUarray from, size_t from_offset,
                               size_t size) {
    char *target, *source;

    REQUIRE_INITIALISED();
    TRY(array_bytes(to, to_offset, size, &target));
    TRY(array_bytes(from, from_offset, size, &source));
    return copy_bytes(order, target, source, kept(size));
}

/* ---- Copies of boxes ---- */

/* One end of such a copy: where its first byte is and how far rows and slices lie apart. */
struct end {
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    uint64_t x, y, z, pitch, height;
};

static CUresult resolve(struct end end, uint64_t width, uint64_t rows, uint64_t slices, char **first, uint64_t *pitch,
                        uint64_t *slice) {
    uint64_t begin, span;

    if (end.type == CU_MEMORYTYPE_ARRAY) {
        REQUIRE(array_valid(end.array), CUDA_ERROR_INVALID_HANDLE);
        end.pitch = end.array->row_bytes;
        end.height = end.array->rows;
    }
    if (end.pitch == 0)
        end.pitch = end.x + width;
    if (end.height == 0)
        end.height = end.y + rows;
    REQUIRE(end.pitch >= end.x + width && end.height >= end.y + rows, CUDA_ERROR_INVALID_VALUE);
    *pitch = end.pitch;
    *slice = end.pitch * end.height;
    begin = end.z * *slice + end.y * *pitch + end.x;
    span = (slices - 1) * *slice + (rows - 1) * *pitch + width;
    switch (end.type) {
    case CU_MEMORYTYPE_HOST:
        REQUIRE(end.host != NULL, CUDA_ERROR_INVALID_VALUE);
        *first = (char *)(uintptr_t)end.host + begin;
        return CUDA_SUCCESS;
    case CU_MEMORYTYPE_DEVICE:
        return device_bytes(end.device + begin, span, first);
    case CU_MEMORYTYPE_ARRAY:
        return array_bytes(end.array, begin, span, first);
    case CU_MEMORYTYPE_UNIFIED:
        return any_bytes(end.device + begin, span, first);
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult copy_box(struct order order, struct end to, struct end from, uint64_t width, uint64_t rows,
                         uint64_t slices) {
    uint64_t to_pitch, to_slice, from_pitch, from_slice;
    char *target, *source;

    TRY(in_order(order));
    if (width == 0 || rows == 0 || slices == 0)
        return CUDA_SUCCESS;
    TRY(resolve(to, width, rows, slices, &target, &to_pitch, &to_slice));
    TRY(resolve(from, width, rows, slices, &source, &from_pitch, &from_slice));
    for (uint64_t z = 0; z < slices; z++) {
        for (uint64_t y = 0; y < rows; y++)
            memmove(target + z * to_slice + y * to_pitch, source + z * from_slice + y * from_pitch, width);
    }
    return CUDA_SUCCESS;
}

static CUresult copy_2d(struct order order, const CUDA_MEMCPY2D *c) {
    REQUIRE_INITIALISED();
    REQUIRE(c != NULL, CUDA_ERROR_INVALID_VALUE);
    SET_ASIDE(order, CU_GRAPH_NODE_TYPE_MEMCPY,
              .copy = {.srcXInBytes = c->srcXInBytes,
                       .srcY = c->srcY,
                       .srcMemoryType = c->srcMemoryType,
                       .srcHost = c->srcHost,
                       .srcDevice = c->srcDevice,
                       .srcArray = c->srcArray,
                       .srcPitch = c->srcPitch,
                       .dstXInBytes = c->dstXInBytes,
                       .dstY = c->dstY,
                       .dstMemoryType = c->dstMemoryType,
                       .dstHost = c->dstHost,
                       .dstDevice = c->dstDevice,
                       .dstArray = c->dstArray,
                       .dstPitch = c->dstPitch,
                       .WidthInBytes = c->WidthInBytes,
                       .Height = c->Height,
                       .Depth = 1});
    return copy_box(order,
                    (struct end){c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray, c->dstXInBytes, c->dstY, 0,
                                 c->dstPitch, 0},
                    (struct end){c->srcMemoryType, c->srcHost, c->srcDevice, c->srcArray, c->srcXInBytes, c->srcY, 0,
                                 c->srcPitch, 0},
                    c->WidthInBytes, c->Height, 1);
}

static CUresult copy_3d(struct order order, const CUDA_MEMCPY3D *c) {
    REQUIRE_INITIALISED();
    REQUIRE(c != NULL && c->srcLOD == 0 && c->dstLOD == 0, CUDA_ERROR_INVALID_VALUE);
    SET_ASIDE(order, CU_GRAPH_NODE_TYPE_MEMCPY, .copy = *c);
    return copy_box(order,
                    (struct end){c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray, c->dstXInBytes, c->dstY,
                                 c->dstZ, c->dstPitch, c->dstHeight},
                    (struct end){c->srcMemoryType, c->srcHost, c->srcDevice, c->srcArray, c->srcXInBytes, c->srcY,
                                 c->srcZ, c->srcPitch, c->srcHeight},
                    c->WidthInBytes, c->Height, c->Depth);
}

static bool peer_context_valid(CUmemorytype type, CUcontext context) {
    return type == CU_MEMORYTYPE_ARRAY || type == CU_MEMORYTYPE_HOST || handle_valid(&contexts, context);
}

/* Both have one layout, but that the contexts lie where a copy within one context has nothing. */
static CUresult copy_3d_peer(struct order order, const CUDA_MEMCPY3D_PEER *c) {
    CUDA_MEMCPY3D copy;

    _Static_assert(sizeof(copy) == sizeof(*c), "a copy between contexts is laid out as one within a context");
    REQUIRE_INITIALISED();
    REQUIRE(c != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(peer_context_valid(c->srcMemoryType, c->srcContext) && peer_context_valid(c->dstMemoryType, c->dstContext),
            CUDA_ERROR_INVALID_CONTEXT);
    memcpy(&copy, c, sizeof(copy));
    copy.reserved0 = copy.reserved1 = NULL;
    return copy_3d(order, &copy);
}

/* ---- Fills ---- */

static void fill_row(char *target, unsigned value, unsigned width, uint64_t count) {
    if (width == 1) {
        memset(target, (int)(value & 0xff), count);
        return;
    }
    for (uint64_t i = 0; i < count; i++)
        memcpy(target + i * width, &value, width); /* the low bytes: the machine is little-endian */
}

static CUresult fill(struct order order, CUdeviceptr to, unsigned value, unsigned width, uint64_t count) {
    char *target;

    SET_ASIDE(order, CU_GRAPH_NODE_TYPE_MEMSET,
              .fill = {.dst = to, .value = value, .elementSize = width, .width = count, .height = 1});
    TRY(in_order(order));
    if (count == 0)
        return CUDA_SUCCESS;
    REQUIRE(count <= UINT64_MAX / width && to % width == 0, CUDA_ERROR_INVALID_VALUE);
    TRY(device_bytes(to, count * width, &target));
    fill_row(target, value, width, kept(count * width) / width);
    return CUDA_SUCCESS;
}

static CUresult fill_2d(struct order order, CUdeviceptr to, size_t pitch, unsigned value, unsigned width,
                        uint64_t columns, uint64_t rows) {
    char *target;

    SET_ASIDE(
        order, CU_GRAPH_NODE_TYPE_MEMSET,
        .fill = {.dst = to, .pitch = pitch, .value = value, .elementSize = width, .width = columns, .height = rows});
    TRY(in_order(order));
    if (columns == 0 || rows == 0)
        return CUDA_SUCCESS;
    REQUIRE(columns <= UINT32_MAX && to % width == 0 && (rows == 1 || pitch >= columns * width),
            CUDA_ERROR_INVALID_VALUE);
    TRY(device_bytes(to, (rows - 1) * pitch + columns * width, &target));
    for (uint64_t y = 0; y < rows && y * pitch < CONTENT_BYTES; y++)
        fill_row(target + y * pitch, value, width, columns);
    return CUDA_SUCCESS;
}

/* ---- What was put off ---- */

/* Its errors are nobody's, as the GPU's own would be. */
static void do_now(struct stream_call *call) {
    const struct later *later = (const struct later *)call;
    const struct order order = {.reached = true};
    const CUDA_MEMSET_NODE_PARAMS *f = &later->work.fill;

    if (later->type == CU_GRAPH_NODE_TYPE_MEMCPY)
        copy_3d(order, &later->work.copy);
    else
        fill_2d(order, f->dst, f->height > 1 ? f->pitch : f->width * f->elementSize, f->value, f->elementSize, f->width,
                f->height);
}

/* ---- The API, each call for both default streams ---- */

#define SYNC(name, parameters, call)                                                                                   \
    CUresult name parameters {                                                                                         \
        const struct order order = {NULL, false, true, false};                                                         \
        return call;                                                                                                   \
    }                                                                                                                  \
    CUresult name##_ptds parameters {                                                                                  \
        const struct order order = {NULL, true, true, false};                                                          \
        return call;                                                                                                   \
    }
#define ASYNC(name, parameters, call)                                                                                  \
    CUresult name parameters {                                                                                         \
        const struct order order = {hStream, false, false, false};                                                     \
        return call;                                                                                                   \
    }                                                                                                                  \
    CUresult name##_ptsz parameters {                                                                                  \
        const struct order order = {hStream, true, false, false};                                                      \
        return call;                                                                                                   \
    }

SYNC(cuMemcpy, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount), copy_any(order, dst, src, ByteCount))
SYNC(cuMemcpyPeer,
     (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount),
     copy_peer(order, dstDevice, dstContext, srcDevice, srcContext, ByteCount))
SYNC(cuMemcpyHtoD_v2, (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount),
     copy_from_host(order, dstDevice, srcHost, ByteCount))
SYNC(cuMemcpyDtoH_v2, (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount),
     copy_to_host(order, dstHost, srcDevice, ByteCount))
SYNC(cuMemcpyDtoD_v2, (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount),
     copy_on_device(order, dstDevice, srcDevice, ByteCount))
SYNC(cuMemcpyDtoA_v2, (CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount),
     array_from_device(order, dstArray, dstOffset, srcDevice, ByteCount))
SYNC(cuMemcpyAtoD_v2, (CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount),
     array_to_device(order, dstDevice, srcArray, srcOffset, ByteCount))
SYNC(cuMemcpyHtoA_v2, (CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount),
     array_from_host(order, dstArray, dstOffset, srcHost, ByteCount))
SYNC(cuMemcpyAtoH_v2, (void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount),
     array_to_host(order, dstHost, srcArray, srcOffset, ByteCount))
SYNC(cuMemcpyAtoA_v2, (CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset, size_t ByteCount),
     array_to_array(order, dstArray, dstOffset, srcArray, srcOffset, ByteCount))
SYNC(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *pCopy), copy_2d(order, pCopy))
SYNC(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *pCopy), copy_2d(order, pCopy))
SYNC(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *pCopy), copy_3d(order, pCopy))
SYNC(cuMemcpy3DPeer, (const CUDA_MEMCPY3D_PEER *pCopy), copy_3d_peer(order, pCopy))
ASYNC(cuMemcpyAsync, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream),
      copy_any(order, dst, src, ByteCount))
ASYNC(cuMemcpyPeerAsync,
      (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount,
       CUstream hStream),
      copy_peer(order, dstDevice, dstContext, srcDevice, srcContext, ByteCount))
ASYNC(cuMemcpyHtoDAsync_v2, (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream),
      copy_from_host(order, dstDevice, srcHost, ByteCount))
ASYNC(cuMemcpyDtoHAsync_v2, (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
      copy_to_host(order, dstHost, srcDevice, ByteCount))
ASYNC(cuMemcpyDtoDAsync_v2, (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
      copy_on_device(order, dstDevice, srcDevice, ByteCount))
ASYNC(cuMemcpyHtoAAsync_v2,
      (CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount, CUstream hStream),
      array_from_host(order, dstArray, dstOffset, srcHost, ByteCount))
ASYNC(cuMemcpyAtoHAsync_v2, (void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount, CUstream hStream),
      array_to_host(order, dstHost, srcArray, srcOffset, ByteCount))
ASYNC(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *pCopy, CUstream hStream), copy_2d(order, pCopy))
ASYNC(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *pCopy, CUstream hStream), copy_3d(order, pCopy))
ASYNC(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream), copy_3d_peer(order, pCopy))
SYNC(cuMemsetD8_v2, (CUdeviceptr dstDevice, unsigned char uc, size_t N), fill(order, dstDevice, uc, 1, N))
SYNC(cuMemsetD16_v2, (CUdeviceptr dstDevice, unsigned short us, size_t N), fill(order, dstDevice, us, 2, N))
SYNC(cuMemsetD32_v2, (CUdeviceptr dstDevice, unsigned int ui, size_t N), fill(order, dstDevice, ui, 4, N))
SYNC(cuMemsetD2D8_v2, (CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height),
     fill_2d(order, dstDevice, dstPitch, uc, 1, Width, Height))
SYNC(cuMemsetD2D16_v2, (CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height),
     fill_2d(order, dstDevice, dstPitch, us, 2, Width, Height))
SYNC(cuMemsetD2D32_v2, (CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height),
     fill_2d(order, dstDevice, dstPitch, ui, 4, Width, Height))
ASYNC(cuMemsetD8Async, (CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream),
      fill(order, dstDevice, uc, 1, N))
ASYNC(cuMemsetD16Async, (CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream),
      fill(order, dstDevice, us, 2, N))
ASYNC(cuMemsetD32Async, (CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream),
      fill(order, dstDevice, ui, 4, N))
ASYNC(cuMemsetD2D8Async,
      (CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width, size_t Height, CUstream hStream),
      fill_2d(order, dstDevice, dstPitch, uc, 1, Width, Height))
ASYNC(cuMemsetD2D16Async,
      (CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width, size_t Height, CUstream hStream),
      fill_2d(order, dstDevice, dstPitch, us, 2, Width, Height))
ASYNC(cuMemsetD2D32Async,
      (CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width, size_t Height, CUstream hStream),
      fill_2d(order, dstDevice, dstPitch, ui, 4, Width, Height))
