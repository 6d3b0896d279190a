/* Contexts: primary ones and explicit ones, of every version. */
#include <pthread.h>

#include "family.h"
#include "worker.h"

#define FUNCTIONS(X)                                                                                                   \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000)                                                      \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 7000)                                                    \
    X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000)                                                \
    X(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000)                                                        \
    X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000)                                                    \
    X(cuCtxCreate, "cuCtxCreate", 2000)                                                                                \
    X(cuCtxCreate_v2, "cuCtxCreate", 3020)                                                                             \
    X(cuCtxCreate_v3, "cuCtxCreate", 11040)                                                                            \
    X(cuCtxCreate_v4, "cuCtxCreate", 12050)                                                                            \
    X(cuCtxDestroy, "cuCtxDestroy", 2000)                                                                              \
    X(cuCtxDestroy_v2, "cuCtxDestroy", 4000)                                                                           \
    X(cuCtxAttach, "", 0)                                                                                              \
    X(cuCtxDetach, "", 0)                                                                                              \
    X(cuCtxPopCurrent_v2, "cuCtxPopCurrent", 4000)                                                                     \
    X(cuCtxPushCurrent_v2, "cuCtxPushCurrent", 4000)
FAMILY_FUNCTIONS(FUNCTIONS)

/* Around looking whether a primary context is known and making it known. */
static pthread_mutex_t primary_lock = PTHREAD_MUTEX_INITIALIZER;

/* A device that this process sees; the call is about its GPU from now on. */
static void choose_device(struct call *call) {
    call->device = (int)random_below(&call->random, (uint64_t)device_count());
    call->gpu = gpu_of_device(call->device);
}

/* On a GPU without a claim nothing can be had. */
static bool may_use(struct call *call, CUresult result) {
    if (gpu_claimed(call->gpu))
        return true;
    grows(call, 0, 0);
    expect(call, result, CUDA_ERROR_NOT_PERMITTED, "a context on a GPU without a claim");
    return false;
}

static void retain(struct call *call) {
    CUcontext handle = NULL;
    choose_device(call);
    needs(call, board->context_bytes[call->gpu]);
    pthread_mutex_lock(&primary_lock);
    bool known = context_primary(call->device) != NULL;
    pthread_mutex_unlock(&primary_lock);
    say(call, "cuDevicePrimaryCtxRetain(%d)", call->device);
    CUresult result = CALL(cu.cuDevicePrimaryCtxRetain(&handle, call->device));
    if (!may_use(call, result) || !judged(call, result))
        return;
    int64_t bytes = (int64_t)board->context_bytes[call->gpu];
    grows(call, known ? 0 : bytes, known ? 0 : bytes);
    pthread_mutex_lock(&primary_lock);
    struct context *context = context_primary(call->device);
    if (context != NULL) {
        context->retained++;
        if (context->handle != handle)
            wrong(call, "another handle than before");
    } else {
        context = context_add(handle, call->device, call->gpu, true);
    }
    pthread_mutex_unlock(&primary_lock);
    if (context != NULL)
        use_context(call, context);
}

static void ended(struct call *call, struct context *context) {
    grows(call, -((int64_t)1 << 50), -(int64_t)board->context_bytes[context->gpu]);
    context_forget(context);
    current_changed();
}

static void release(struct call *call) {
    choose_device(call);
    struct context *context = context_primary(call->device);
    if (context == NULL)
        return;
    say(call, "cuDevicePrimaryCtxRelease(%d)", call->device);
    CUresult result = CALL(random_once_in(&call->random, 4) ? cu.cuDevicePrimaryCtxRelease(call->device)
                                                            : cu.cuDevicePrimaryCtxRelease_v2(call->device));
    if (!expect(call, result, CUDA_SUCCESS, "cuDevicePrimaryCtxRelease"))
        return;
    if (--context->retained == 0)
        ended(call, context);
    else
        grows(call, 0, 0);
}

static void reset_primary(struct call *call, struct context *context) {
    say(call, "cuDevicePrimaryCtxReset(%d)", context->device);
    CUresult result = CALL(random_once_in(&call->random, 4) ? cu.cuDevicePrimaryCtxReset(context->device)
                                                            : cu.cuDevicePrimaryCtxReset_v2(context->device));
    if (expect(call, result, CUDA_SUCCESS, "cuDevicePrimaryCtxReset")) {
        objects_forget(KIND_ASYNC, context->device, 0); /* what came from the default pool */
        ended(call, context);
    }
}

static void reset(struct call *call) {
    choose_device(call);
    struct context *context = context_primary(call->device);
    if (context != NULL)
        reset_primary(call, context);
}

static CUresult create_by(unsigned way, CUcontext *handle, CUdevice device) {
    switch (way) {
    case 0:
        return CALL(cu.cuCtxCreate(handle, 0, device));
    case 1:
        return CALL(cu.cuCtxCreate_v3(handle, NULL, 0, 0, device));
    case 2:
        return CALL(cu.cuCtxCreate_v4(handle, NULL, 0, device));
    default:
        return CALL(cu.cuCtxCreate_v2(handle, CU_CTX_SCHED_BLOCKING_SYNC, device));
    }
}

static void create(struct call *call) {
    CUcontext handle = NULL, popped = NULL;
    unsigned way = (unsigned)random_below(&call->random, 5);
    choose_device(call);
    if (contexts_count() >= CONTEXTS - DESKS)
        return;
    needs(call, board->context_bytes[call->gpu]);
    say(call, "cuCtxCreate(%d), way %u", call->device, way);
    CUresult result = create_by(way, &handle, call->device);
    if (!may_use(call, result) || !judged(call, result))
        return;
    grows(call, (int64_t)board->context_bytes[call->gpu], (int64_t)board->context_bytes[call->gpu]);
    current_changed();
    struct context *context = context_add(handle, call->device, call->gpu, false);
    /* Off the thread's stack, which would fill up. */
    result = CALL(cu.cuCtxPopCurrent_v2(&popped));
    if (result != CUDA_SUCCESS || popped != handle)
        wrong(call, "the new context is not current: %d", result);
    else if (context != NULL)
        use_context(call, context);
}

static void destroy_explicit(struct call *call, struct context *context) {
    say(call, "cuCtxDestroy on %d", context->device);
    CUresult result =
        CALL(random_once_in(&call->random, 4) ? cu.cuCtxDestroy(context->handle) : cu.cuCtxDestroy_v2(context->handle));
    if (expect(call, result, CUDA_SUCCESS, "cuCtxDestroy"))
        ended(call, context);
}

void context_end(struct call *call, struct context *context) {
    call->gpu = context->gpu;
    if (context->primary)
        reset_primary(call, context);
    else
        destroy_explicit(call, context);
}

static struct context *random_explicit(struct call *call) {
    struct context *context = context_random(&call->random);
    if (context == NULL || context->primary)
        return NULL;
    call->gpu = context->gpu;
    return context;
}

static void destroy(struct call *call) {
    struct context *context = random_explicit(call);
    if (context != NULL)
        destroy_explicit(call, context);
}

/* Attaching counts: the first detach ends nothing, the last one does. */
static void attach(struct call *call) {
    CUcontext handle = NULL;
    struct context *context = random_explicit(call);
    if (context == NULL || !use_context(call, context))
        return;
    say(call, "cuCtxAttach and cuCtxDetach on %d", context->device);
    if (expect(call, CALL(cu.cuCtxAttach(&handle, 0)), CUDA_SUCCESS, "cuCtxAttach") &&
        expect(call, CALL(cu.cuCtxDetach(handle)), CUDA_SUCCESS, "cuCtxDetach"))
        grows(call, 0, 0);
    if (call->desk->outcome != OUTCOME_DONE || !random_once_in(&call->random, 3))
        return;
    if (expect(call, CALL(cu.cuCtxDetach(handle)), CUDA_SUCCESS, "the last cuCtxDetach"))
        ended(call, context);
}

/* In the midst of pushing and popping, as libraries do. */
static void push(struct call *call) {
    CUcontext popped = NULL;
    struct context *context = context_random(&call->random);
    if (context == NULL)
        return;
    call->gpu = context->gpu;
    say(call, "cuCtxPushCurrent, cuCtxPopCurrent");
    if (expect(call, CALL(cu.cuCtxPushCurrent_v2(context->handle)), CUDA_SUCCESS, "cuCtxPushCurrent") &&
        expect(call, CALL(cu.cuCtxPopCurrent_v2(&popped)), CUDA_SUCCESS, "cuCtxPopCurrent"))
        grows(call, 0, 0);
}

static const struct operation operations[] = {
    {"context.retain", 30, retain, "cuDevicePrimaryCtxRetain", false, false},
    {"context.release", 9, release, "cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2", true, false},
    {"context.reset", 3, reset, "cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2", true, false},
    {"context.create", 12, create, "cuCtxCreate cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuCtxPopCurrent_v2", false,
     false},
    {"context.destroy", 8, destroy, "cuCtxDestroy cuCtxDestroy_v2", true, false},
    {"context.push", 6, push, "cuCtxPushCurrent_v2 cuCtxPopCurrent_v2", false, false},
    {0},
};

static const struct operation detach_operations[] = {
    {"detach.attach", 4, attach, "cuCtxAttach cuCtxDetach", true, false},
    {0},
};

static const struct function none[] = {{0}};

const struct family family_context = {"context", functions, operations};
/* What nobody has used since CUDA 4. */
const struct family family_detach = {"detach", none, detach_operations};
