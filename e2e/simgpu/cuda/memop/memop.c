#include "memop.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/memory/heap.h"
#include "cuda/work/capture.h"

#define MOST_AT_ONCE 256
#define CONDITION 0x3u

struct memop {
    struct stream_call call;
    CUstreamBatchMemOpParams op;
};

static bool is_wide(const CUstreamBatchMemOpParams *op) {
    return op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 || op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}

static bool is_wait(const CUstreamBatchMemOpParams *op) {
    return op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 || op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}

/* ---- When the stream has reached one ---- */

/* Differences count in a circle. */
static bool compare(uint64_t found, uint64_t value, unsigned condition, bool wide) {
    switch (condition) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return wide ? (int64_t)(found - value) >= 0 : (int32_t)(uint32_t)(found - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return found == value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (found & value) != 0;
    default:
        return (wide ? ~(found | value) : (uint32_t) ~(found | value)) != 0;
    }
}

/* Another thread, or another process, may be writing it. */
static uint64_t load(const char *bytes, bool wide) {
    return wide ? atomic_load((const _Atomic uint64_t *)(const void *)bytes)
                : atomic_load((const _Atomic uint32_t *)(const void *)bytes);
}

/* Memory that was freed meanwhile never has the value. */
static bool is_there(const struct stream_call *call) {
    const CUstreamBatchMemOpParams *op = &((const struct memop *)call)->op;
    uint64_t value = is_wide(op) ? op->waitValue.value64 : op->waitValue.value;
    char *bytes;

    return device_bytes(op->waitValue.address, is_wide(op) ? 8 : 4, &bytes) == CUDA_SUCCESS &&
           compare(load(bytes, is_wide(op)), value, op->waitValue.flags & CONDITION, is_wide(op));
}

static void write_value(struct stream_call *call) {
    const CUstreamBatchMemOpParams *op = &((const struct memop *)call)->op;
    char *bytes;

    if (device_bytes(op->writeValue.address, is_wide(op) ? 8 : 4, &bytes) != CUDA_SUCCESS)
        return;
    if (is_wide(op))
        atomic_store((_Atomic uint64_t *)(void *)bytes, op->writeValue.value64);
    else
        atomic_store((_Atomic uint32_t *)(void *)bytes, op->writeValue.value);
    calls_look();
}

/* ---- Putting them into a stream ---- */

static CUresult check_value(const CUstreamBatchMemOpParams *op, unsigned flags) {
    uint64_t bytes = is_wide(op) ? 8 : 4;
    char *place;

    REQUIRE((op->waitValue.flags & ~flags) == 0 && op->waitValue.address % bytes == 0, CUDA_ERROR_INVALID_VALUE);
    return device_bytes(op->waitValue.address, bytes, &place);
}

/* The GPU cannot flush what other devices wrote: CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES. Writes without a barrier
 * were only in the older form. */
static CUresult check(const CUstreamBatchMemOpParams *op) {
    switch (op->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        REQUIRE((op->waitValue.flags & CU_STREAM_WAIT_VALUE_FLUSH) == 0, CUDA_ERROR_NOT_SUPPORTED);
        return check_value(op, CONDITION);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        REQUIRE(op->writeValue.flags != CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER, CUDA_ERROR_NOT_SUPPORTED);
        return check_value(op, CU_STREAM_WRITE_VALUE_DEFAULT);
    case CU_STREAM_MEM_OP_BARRIER:
        REQUIRE(op->memoryBarrier.flags <= CU_STREAM_MEMORY_BARRIER_TYPE_GPU, CUDA_ERROR_INVALID_VALUE);
        return CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult queue(struct CUstream_st *stream, const CUstreamBatchMemOpParams *op) {
    struct memop *copy;

    if (op->operation == CU_STREAM_MEM_OP_BARRIER)
        return CUDA_SUCCESS; /* all is done in order anyway */
    copy = malloc(sizeof(*copy));
    REQUIRE(copy != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    *copy = (struct memop){.call = {.stream = stream}, .op = *op};
    if (is_wait(op))
        copy->call.ready = is_there;
    else
        copy->call.run = write_value;
    return call_queue(&copy->call);
}

CUresult batch_new(unsigned count, const CUstreamBatchMemOpParams *ops, unsigned flags, struct batch **batch) {
    struct batch *made;

    REQUIRE(ops != NULL && count > 0 && count <= MOST_AT_ONCE && flags == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_INITIALISED();
    for (unsigned i = 0; i < count; i++)
        TRY(check(&ops[i]));
    made = calloc(1, sizeof(*made) + count * sizeof(*ops));
    REQUIRE(made != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    made->references = 1;
    made->count = count;
    made->flags = flags;
    memcpy(made->ops, ops, count * sizeof(*ops));
    *batch = made;
    return CUDA_SUCCESS;
}

void batch_hold(struct batch *batch) {
    atomic_fetch_add(&batch->references, 1);
}

void batch_drop(struct batch *batch) {
    if (atomic_fetch_sub(&batch->references, 1) == 1)
        free(batch);
}

CUresult batch_queue(struct CUstream_st *stream, const struct batch *batch) {
    for (unsigned i = 0; i < batch->count; i++)
        TRY(queue(stream, &batch->ops[i]));
    return CUDA_SUCCESS;
}

/* ---- The API ---- */

static CUresult put(CUstream handle, bool per_thread, unsigned count, const CUstreamBatchMemOpParams *ops,
                    unsigned flags) {
    struct CUstream_st *stream;
    struct batch *batch;
    bool captured;
    CUresult ret;

    REQUIRE_CONTEXT(context);
    TRY(stream_find(context, handle, per_thread, &stream));
    TRY(batch_new(count, ops, flags, &batch));
    ret = capture_enter(stream, &captured);
    if (ret == CUDA_SUCCESS && captured) {
        batch->context = context;
        ret = capture_node(stream, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, &(union node_work){.batch = batch});
        if (ret == CUDA_SUCCESS)
            return ret; /* the batch is the node's */
    } else if (ret == CUDA_SUCCESS) {
        ret = batch_queue(stream, batch);
    }
    batch_drop(batch);
    return ret;
}

static CUresult put_one(CUstream stream, bool per_thread, CUstreamBatchMemOpType operation, CUdeviceptr address,
                        uint64_t value, unsigned flags) {
    CUstreamBatchMemOpParams op = {
        .waitValue = {.operation = operation, .address = address, .value64 = value, .flags = flags}};

    _Static_assert(offsetof(CUstreamBatchMemOpParams, waitValue.value64) ==
                       offsetof(CUstreamBatchMemOpParams, writeValue.value),
                   "waits and writes are laid out alike");
    return put(stream, per_thread, 1, &op, 0);
}

/* The form of before CUDA 11.7, which is off unless NVIDIA's kernel module has NVreg_EnableStreamMemOPs=1. */
static CUresult old_form(CUstream handle, bool per_thread) {
    struct CUstream_st *stream;

    REQUIRE_CONTEXT(context);
    TRY(stream_find(context, handle, per_thread, &stream));
    return CUDA_ERROR_NOT_SUPPORTED;
}

#define FUNCTIONS(suffix, per_thread)                                                                                  \
    CUresult cuStreamWaitValue32_v2##suffix(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) { \
        return put_one(stream, per_thread, CU_STREAM_MEM_OP_WAIT_VALUE_32, addr, value, flags);                        \
    }                                                                                                                  \
    CUresult cuStreamWaitValue64_v2##suffix(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags) { \
        return put_one(stream, per_thread, CU_STREAM_MEM_OP_WAIT_VALUE_64, addr, value, flags);                        \
    }                                                                                                                  \
    CUresult cuStreamWriteValue32_v2##suffix(CUstream stream, CUdeviceptr addr, cuuint32_t value,                      \
                                             unsigned int flags) {                                                     \
        return put_one(stream, per_thread, CU_STREAM_MEM_OP_WRITE_VALUE_32, addr, value, flags);                       \
    }                                                                                                                  \
    CUresult cuStreamWriteValue64_v2##suffix(CUstream stream, CUdeviceptr addr, cuuint64_t value,                      \
                                             unsigned int flags) {                                                     \
        return put_one(stream, per_thread, CU_STREAM_MEM_OP_WRITE_VALUE_64, addr, value, flags);                       \
    }                                                                                                                  \
    CUresult cuStreamBatchMemOp_v2##suffix(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *paramArray,  \
                                           unsigned int flags) {                                                       \
        return put(stream, per_thread, count, paramArray, flags);                                                      \
    }                                                                                                                  \
    CUresult cuStreamWaitValue32##suffix(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {    \
        (void)addr, (void)value, (void)flags;                                                                          \
        return old_form(stream, per_thread);                                                                           \
    }                                                                                                                  \
    CUresult cuStreamWaitValue64##suffix(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags) {    \
        (void)addr, (void)value, (void)flags;                                                                          \
        return old_form(stream, per_thread);                                                                           \
    }                                                                                                                  \
    CUresult cuStreamWriteValue32##suffix(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {   \
        (void)addr, (void)value, (void)flags;                                                                          \
        return old_form(stream, per_thread);                                                                           \
    }                                                                                                                  \
    CUresult cuStreamWriteValue64##suffix(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags) {   \
        (void)addr, (void)value, (void)flags;                                                                          \
        return old_form(stream, per_thread);                                                                           \
    }                                                                                                                  \
    CUresult cuStreamBatchMemOp##suffix(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *paramArray,     \
                                        unsigned int flags) {                                                          \
        (void)count, (void)paramArray, (void)flags;                                                                    \
        return old_form(stream, per_thread);                                                                           \
    }
FUNCTIONS(, false)
FUNCTIONS(_ptsz, true)
