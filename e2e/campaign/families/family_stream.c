/* Streams, events, waiting. */
#include "family.h"
#include "worker.h"

#define FUNCTIONS(X)                                                                                                   \
    X(cuStreamCreate, "cuStreamCreate", 2000)                                                                          \
    X(cuStreamDestroy_v2, "cuStreamDestroy", 4000)                                                                     \
    X(cuStreamSynchronize, "cuStreamSynchronize", 2000)                                                                \
    X(cuStreamSynchronize_ptsz, "cuStreamSynchronize", 7000)                                                           \
    X(cuCtxSynchronize, "cuCtxSynchronize", 2000)                                                                      \
    X(cuEventCreate, "cuEventCreate", 2000)                                                                            \
    X(cuEventRecord, "cuEventRecord", 2000)                                                                            \
    X(cuEventSynchronize, "cuEventSynchronize", 2000)                                                                  \
    X(cuEventDestroy_v2, "cuEventDestroy", 4000)
FAMILY_FUNCTIONS(FUNCTIONS)

static void create(struct call *call) {
    CUstream stream = NULL;
    if (!need_context(call) || objects_count(KIND_STREAM) >= 32)
        return;
    say(call, "cuStreamCreate on %d", call->device);
    if (!expect(call, CALL(cu.cuStreamCreate(&stream, (unsigned)random_below(&call->random, 2))), CUDA_SUCCESS,
                "cuStreamCreate"))
        return;
    grows(call, 0, 0);
    struct object object = {.handle = (uintptr_t)stream,
                            .context = call->context->serial,
                            .device = (int16_t)call->device,
                            .gpu = (int16_t)call->gpu,
                            .kind = KIND_STREAM};
    if (!object_put(&object))
        expect(call, CALL(cu.cuStreamDestroy_v2(stream)), CUDA_SUCCESS, "cuStreamDestroy");
}

static CUresult release_stream(const struct object *object) {
    return cu.cuStreamDestroy_v2((CUstream)(uintptr_t)object->handle);
}

static void destroy(struct call *call) {
    struct object object;
    if (!need_context(call) || !object_take(&call->random, KIND_STREAM, -1, &object))
        return;
    say(call, "cuStreamDestroy");
    expect(call, CALL(release_stream(&object)), CUDA_SUCCESS, "cuStreamDestroy");
}

static void synchronize(struct call *call) {
    struct object object;
    if (!need_context(call))
        return;
    switch (random_below(&call->random, 4)) {
    case 0:
        say(call, "cuCtxSynchronize");
        expect(call, CALL(cu.cuCtxSynchronize()), CUDA_SUCCESS, "cuCtxSynchronize");
        return;
    case 1:
        say(call, "cuStreamSynchronize(default)");
        expect(call, CALL(cu.cuStreamSynchronize(NULL)), CUDA_SUCCESS, "cuStreamSynchronize");
        return;
    case 2:
        say(call, "cuStreamSynchronize_ptsz(default)");
        expect(call, CALL(cu.cuStreamSynchronize_ptsz(NULL)), CUDA_SUCCESS, "cuStreamSynchronize_ptsz");
        return;
    default:
        if (!object_take_in(&call->random, KIND_STREAM, call->context->serial, &object))
            return;
        say(call, "cuStreamSynchronize");
        expect(call, CALL(cu.cuStreamSynchronize((CUstream)(uintptr_t)object.handle)), CUDA_SUCCESS,
               "cuStreamSynchronize");
        object_put(&object);
    }
}

static void event(struct call *call) {
    CUevent event = NULL;
    if (!need_context(call))
        return;
    say(call, "an event's life");
    if (!expect(call, CALL(cu.cuEventCreate(&event, 0)), CUDA_SUCCESS, "cuEventCreate"))
        return;
    expect(call, CALL(cu.cuEventRecord(event, NULL)), CUDA_SUCCESS, "cuEventRecord");
    expect(call, CALL(cu.cuEventSynchronize(event)), CUDA_SUCCESS, "cuEventSynchronize");
    expect(call, CALL(cu.cuEventDestroy_v2(event)), CUDA_SUCCESS, "cuEventDestroy");
}

__attribute__((constructor)) static void release_functions(void) {
    releases[KIND_STREAM] = release_stream;
}

static const struct operation operations[] = {
    {"stream.create", 5, create, "cuStreamCreate cuStreamDestroy_v2", false, false},
    {"stream.destroy", 4, destroy, "cuStreamDestroy_v2", false, false},
    {"stream.synchronize", 8, synchronize, "cuStreamSynchronize cuStreamSynchronize_ptsz cuCtxSynchronize", false,
     false},
    {"stream.event", 3, event, "cuEventCreate cuEventRecord cuEventSynchronize cuEventDestroy_v2", false, false},
    {0},
};

const struct family family_stream = {"stream", functions, operations};
