#include "context/measure.h"

#include "driver/cuda_real.h"

static bool make_current(struct measurement *measurement, uint32_t context) {
    bool current = contexts_current(&measurement->process, &measurement->place) == CUDA_SUCCESS;
    if (current && (context == 0 || context == measurement->place.context))
        return true;
    CUcontext other = contexts_handle(measurement->process, context);
    if (other == NULL || REAL(cuCtxPushCurrent_v2)(other) != CUDA_SUCCESS)
        return false;
    measurement->pushed = true;
    if (contexts_current(&measurement->process, &measurement->place) == CUDA_SUCCESS)
        return true;
    REAL(cuCtxPopCurrent_v2)(&other);
    return false;
}

/* Without what dead processes held, since the driver has freed that already. */
static uint64_t used_bytes(struct measurement *measurement) {
    claims_reap(&measurement->process->claims, measurement->place.gpu);
    return claims_used_bytes(&measurement->process->claims, measurement->place.gpu);
}

bool measure_begin(struct measurement *measurement, struct process *process, uint32_t context) {
    size_t total;
    *measurement = (struct measurement){.process = process};
    if (!make_current(measurement, context))
        return false;
    measurement->used = used_bytes(measurement);
    measurement->known = REAL(cuMemGetInfo_v2)(&measurement->free, &total) == CUDA_SUCCESS;
    return true;
}

uint64_t measure_taken(struct measurement *measurement) {
    size_t free, total;
    if (!measurement->known || REAL(cuMemGetInfo_v2)(&free, &total) != CUDA_SUCCESS)
        return UINT64_MAX;
    /* What other processes of the claim gave back meanwhile is free now, and would hide as much of what was taken. */
    uint64_t used = used_bytes(measurement);
    uint64_t before = measurement->free + (measurement->used > used ? measurement->used - used : 0);
    return before > free ? before - free : 0;
}

void measure_end(struct measurement *measurement) {
    CUcontext context;
    if (measurement->pushed)
        REAL(cuCtxPopCurrent_v2)(&context);
}
