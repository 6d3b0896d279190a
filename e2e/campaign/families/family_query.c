/* What reports memory shows the claim, and the truth. */
#include "family.h"
#include "worker.h"

#define FUNCTIONS(X)                                                                                                   \
    X(cuMemGetInfo_v2, "cuMemGetInfo", 3020)                                                                           \
    X(cuMemGetInfo, "cuMemGetInfo", 2000)                                                                              \
    X(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020)                                                                   \
    X(cuDeviceTotalMem, "cuDeviceTotalMem", 2000)
FAMILY_FUNCTIONS(FUNCTIONS)

static void info(struct call *call) {
    size_t free = 0, total = 0;
    if (!need_context(call))
        return;
    CUresult result = CALL(cu.cuMemGetInfo_v2(&free, &total));
    say(call, "cuMemGetInfo_v2: %zu of %zu free on %d", free, total, call->device);
    if (!expect(call, result, CUDA_SUCCESS, "cuMemGetInfo_v2"))
        return;
    grows(call, 0, 0);
    if (!board->bare && total != board->limit_bytes[call->gpu])
        wrong(call, "the limit is %llu", (unsigned long long)board->limit_bytes[call->gpu]);
    if (free > total)
        wrong(call, "more free than there is");
    call->desk->reported_used = total - free;
}

static unsigned clamped(uint64_t bytes) {
    return bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes;
}

static void info_v1(struct call *call) {
    unsigned free = 0, total = 0;
    if (!need_context(call))
        return;
    CUresult result = CALL(cu.cuMemGetInfo(&free, &total));
    say(call, "cuMemGetInfo: %u of %u free on %d", free, total, call->device);
    if (!expect(call, result, CUDA_SUCCESS, "cuMemGetInfo"))
        return;
    grows(call, 0, 0);
    if (!board->bare && total != clamped(board->limit_bytes[call->gpu]))
        wrong(call, "the limit is %llu", (unsigned long long)board->limit_bytes[call->gpu]);
}

static void total(struct call *call) {
    size_t bytes = 0;
    unsigned bytes_v1 = 0;
    int device = (int)random_below(&call->random, (uint64_t)device_count()), gpu = gpu_of_device(device);
    say(call, "cuDeviceTotalMem(%d)", device);
    if (!expect(call, CALL(cu.cuDeviceTotalMem_v2(&bytes, device)), CUDA_SUCCESS, "cuDeviceTotalMem_v2") ||
        !expect(call, CALL(cu.cuDeviceTotalMem(&bytes_v1, device)), CUDA_SUCCESS, "cuDeviceTotalMem"))
        return;
    if (!board->bare && (bytes != board->limit_bytes[gpu] || bytes_v1 != clamped(board->limit_bytes[gpu])))
        wrong(call, "%zu and %u, where the limit is %llu", bytes, bytes_v1,
              (unsigned long long)board->limit_bytes[gpu]);
}

static const struct operation operations[] = {
    {"query.info", 12, info, "cuMemGetInfo_v2", false, false},
    {"query.info_v1", 3, info_v1, "cuMemGetInfo", false, false},
    {"query.total", 3, total, "cuDeviceTotalMem_v2 cuDeviceTotalMem", false, false},
    {0},
};

const struct family family_query = {"query", functions, operations};
