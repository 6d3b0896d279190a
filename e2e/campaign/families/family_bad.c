/* Bad calls: they fail as the driver says, and nobody's bytes move. */
#include "family.h"
#include "worker.h"

#define FUNCTIONS(X)                                                                                                   \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020)                                                                               \
    X(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020)                                                                     \
    X(cuMemAllocManaged, "cuMemAllocManaged", 6000)                                                                    \
    X(cuMemFree_v2, "cuMemFree", 3020)                                                                                 \
    X(cuCtxCreate_v2, "cuCtxCreate", 3020)                                                                             \
    X(cuCtxDestroy_v2, "cuCtxDestroy", 4000)                                                                           \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000)                                                      \
    X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000)                                                \
    X(cuMemGetInfo_v2, "cuMemGetInfo", 3020)
FAMILY_FUNCTIONS(FUNCTIONS)

/* Exclusive, so that the address is not another thread's by the second free. */
static void free_twice(struct call *call) {
    struct object object;
    if (!need_context(call) || !object_take(&call->random, KIND_LINEAR, -1, &object))
        return;
    call->gpu = object.gpu;
    say(call, "cuMemFree_v2(%#llx) of %llu, twice", (unsigned long long)object.handle, (unsigned long long)object.size);
    expect(call, CALL(cu.cuMemFree_v2(object.handle)), CUDA_SUCCESS, "the first free");
    if (expect(call, CALL(cu.cuMemFree_v2(object.handle)), CUDA_ERROR_INVALID_VALUE, "the second free"))
        grows(call, -(int64_t)rounded(object.size, BLOCK),
              object.size < MIB ? 0 : -(int64_t)rounded(object.size, BLOCK));
}

static void free_foreign(struct call *call) {
    struct object object;
    if (!need_context(call))
        return;
    say(call, "cuMemFree_v2 of what is not ours");
    grows(call, 0, 0);
    expect(call, CALL(cu.cuMemFree_v2(0)), CUDA_SUCCESS, "cuMemFree_v2(0)");
    expect(call, CALL(cu.cuMemFree_v2(0x7000)), CUDA_ERROR_INVALID_VALUE, "an address of nothing");
    expect(call, CALL(cu.cuMemFree_v2((uintptr_t)call)), CUDA_ERROR_INVALID_VALUE, "an address on the stack");
    if (!object_take(&call->random, KIND_LINEAR, -1, &object))
        return;
    if (object.size > 2 * MIB)
        expect(call, CALL(cu.cuMemFree_v2(object.handle + 512)), CUDA_ERROR_INVALID_VALUE, "an inner address");
    object_put(&object);
}

/* Where the claim is exhausted, that may be said first. */
static void refuse(struct call *call, CUresult result, const char *what) {
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        expect(call, result, CUDA_ERROR_INVALID_VALUE, what);
}

static void allocate_nothing(struct call *call) {
    CUdeviceptr address = 1;
    size_t pitch;
    if (!need_context(call))
        return;
    say(call, "nothing allocated, or to nowhere");
    grows(call, 0, 0);
    expect(call, CALL(cu.cuMemAlloc_v2(&address, 0)), CUDA_ERROR_INVALID_VALUE, "0 bytes");
    refuse(call, CALL(cu.cuMemAlloc_v2(NULL, 4096)), "to NULL");
    expect(call, CALL(cu.cuMemAllocPitch_v2(&address, &pitch, 0, 1, 4)), CUDA_ERROR_INVALID_VALUE, "no width");
    expect(call, CALL(cu.cuMemAllocPitch_v2(&address, NULL, 1, 1, 4)), CUDA_ERROR_INVALID_VALUE, "no pitch");
    refuse(call, CALL(cu.cuMemAllocPitch_v2(&address, &pitch, 512, 16, 5)), "5-byte elements");
    expect(call, CALL(cu.cuMemAllocManaged(&address, 0, 1)), CUDA_ERROR_INVALID_VALUE, "0 managed bytes");
    refuse(call, CALL(cu.cuMemAllocManaged(NULL, 4096, 1)), "managed to NULL");
    refuse(call, CALL(cu.cuMemAllocManaged(&address, 4096, 99)), "odd flags");
}

static void bad_contexts(struct call *call) {
    CUcontext context = NULL;
    say(call, "contexts of nothing");
    expect(call, CALL(cu.cuCtxCreate_v2(&context, 0, 77)), CUDA_ERROR_INVALID_DEVICE, "device 77");
    expect(call, CALL(cu.cuDevicePrimaryCtxRetain(&context, -1)), CUDA_ERROR_INVALID_DEVICE, "device -1");
    expect(call, CALL(cu.cuCtxDestroy_v2(NULL)), CUDA_ERROR_INVALID_VALUE, "destroying NULL");
    expect(call, CALL(cu.cuCtxDestroy_v2((CUcontext)(uintptr_t)0x1000)), CUDA_ERROR_INVALID_CONTEXT,
           "destroying nonsense");
    expect(call, CALL(cu.cuDevicePrimaryCtxRelease_v2(77)), CUDA_ERROR_INVALID_DEVICE, "releasing device 77");
}

/* The primary context that nobody retains is not there to be released; a primary one is not to be destroyed. */
static void bad_ends(struct call *call) {
    int device = (int)random_below(&call->random, (uint64_t)device_count());
    struct context *primary = context_primary(device);
    call->gpu = gpu_of_device(device);
    say(call, "ending what must not end, on %d", device);
    if (primary == NULL)
        expect(call, CALL(cu.cuDevicePrimaryCtxRelease_v2(device)), CUDA_ERROR_INVALID_CONTEXT,
               "releasing what nobody retains");
    else
        expect(call, CALL(cu.cuCtxDestroy_v2(primary->handle)), CUDA_ERROR_INVALID_CONTEXT,
               "destroying a primary context");
    grows(call, 0, 0);
}

static const struct operation operations[] = {
    {"bad.free_twice", 4, free_twice, "cuMemFree_v2", true, false},
    {"bad.free_foreign", 3, free_foreign, "cuMemFree_v2", true, false},
    {"bad.nothing", 3, allocate_nothing, "cuMemAlloc_v2 cuMemAllocPitch_v2 cuMemAllocManaged", false, false},
    {"bad.contexts", 2, bad_contexts,
     "cuCtxCreate_v2 cuCtxDestroy_v2 cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease_v2", false, false},
    {"bad.ends", 2, bad_ends, "cuDevicePrimaryCtxRelease_v2 cuCtxDestroy_v2", true, false},
    {0},
};

const struct family family_bad = {"bad", functions, operations};
