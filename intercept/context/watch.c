#include "context/watch.h"

#include "driver/cuda_real.h"

static bool make_current(struct watch *watch, uint32_t context) {
    bool current = contexts_current(&watch->process, &watch->place) == CUDA_SUCCESS;
    if (current && (context == 0 || context == watch->place.context))
        return true;
    CUcontext other = contexts_handle(watch->process, context);
    if (other == NULL || REAL(cuCtxPushCurrent_v2)(other) != CUDA_SUCCESS)
        return false;
    watch->pushed = true;
    if (contexts_current(&watch->process, &watch->place) == CUDA_SUCCESS)
        return true;
    REAL(cuCtxPopCurrent_v2)(&other);
    return false;
}

/* Without what the dead held: that is free already. */
static uint64_t used_bytes(struct watch *watch) {
    claims_reap(&watch->process->claims, watch->place.gpu);
    return claims_used_bytes(&watch->process->claims, watch->place.gpu);
}

bool watch_begin(struct watch *watch, struct process *process, uint32_t context) {
    size_t total;
    *watch = (struct watch){.process = process};
    if (!make_current(watch, context))
        return false;
    watch->used = used_bytes(watch);
    watch->known = REAL(cuMemGetInfo_v2)(&watch->free, &total) == CUDA_SUCCESS;
    return true;
}

uint64_t watch_taken(struct watch *watch) {
    size_t free, total;
    if (!watch->known || REAL(cuMemGetInfo_v2)(&free, &total) != CUDA_SUCCESS)
        return UINT64_MAX;
    /* What others of the claim gave back meanwhile is free now, and hides as much of what was taken. */
    uint64_t used = used_bytes(watch);
    uint64_t before = watch->free + (watch->used > used ? watch->used - used : 0);
    return before > free ? before - free : 0;
}

void watch_end(struct watch *watch) {
    CUcontext context;
    if (watch->pushed)
        REAL(cuCtxPopCurrent_v2)(&context);
}
