/* cuInit, and the life of contexts: each is charged with what it costs before its first allocation. */
#include "account.h"
#include "cuda_real.h"

CUresult cuInit(unsigned int flags) {
    /* The regions first: see map_low in region.c. */
    CUresult result = account_open();
    return result == CUDA_SUCCESS ? REAL(cuInit)(flags) : result;
}

/* Creates an explicit context by `call`, which stores it in `context`. */
#define CREATE(context, device, call)                                                                                  \
    do {                                                                                                               \
        struct grant grant;                                                                                            \
        CUresult result = account_grant_context(&grant, device);                                                       \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        result = call;                                                                                                 \
        return account_created(&grant, result, result == CUDA_SUCCESS ? *(context) : NULL);                            \
    } while (0)

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) {
    CREATE(context, device, REAL(cuCtxCreate)(context, flags, device));
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    CREATE(context, device, REAL(cuCtxCreate_v2)(context, flags, device));
}

CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned int flags,
                        CUdevice device) {
    CREATE(context, device, REAL(cuCtxCreate_v3)(context, affinity, count, flags, device));
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *create, unsigned int flags, CUdevice device) {
    CREATE(context, device, REAL(cuCtxCreate_v4)(context, create, flags, device));
}

static CUresult destroy(cuCtxDestroy_v2_function real, CUcontext context) {
    uint32_t serial = account_context_serial(context);
    CUresult result = real(context);
    if (result == CUDA_SUCCESS)
        account_destroyed(context, serial);
    return result;
}

CUresult cuCtxDestroy(CUcontext context) {
    return destroy(REAL(cuCtxDestroy), context);
}

CUresult cuCtxDestroy_v2(CUcontext context) {
    return destroy(REAL(cuCtxDestroy_v2), context);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    struct grant grant;
    CUresult result = account_primary_enter(device);
    if (result != CUDA_SUCCESS)
        return result;
    result = account_grant_primary(&grant, device);
    if (result == CUDA_SUCCESS) {
        result = REAL(cuDevicePrimaryCtxRetain)(context, device);
        account_retained(&grant, result, device, result == CUDA_SUCCESS ? *context : NULL);
    }
    account_primary_leave(device);
    return result;
}

/* Releases or resets a primary context by `real`, and tells the account by `ended`. */
static CUresult end_primary(cuDevicePrimaryCtxRelease_function real, void (*ended)(CUdevice), CUdevice device) {
    if (account_primary_enter(device) != CUDA_SUCCESS)
        return real(device);
    CUresult result = real(device);
    if (result == CUDA_SUCCESS)
        ended(device);
    account_primary_leave(device);
    return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return end_primary(REAL(cuDevicePrimaryCtxRelease), account_primary_released, device);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return end_primary(REAL(cuDevicePrimaryCtxRelease_v2), account_primary_released, device);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    return end_primary(REAL(cuDevicePrimaryCtxReset), account_primary_reset, device);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return end_primary(REAL(cuDevicePrimaryCtxReset_v2), account_primary_reset, device);
}
