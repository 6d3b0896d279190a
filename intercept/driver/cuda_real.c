#include "driver/cuda_real.h"

#include "driver/real.h"

#include <stdatomic.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define X(symbol, parameters)                                                                                          \
    static CUresult absent_##symbol parameters {                                                                       \
        return CUDA_ERROR_NOT_SUPPORTED;                                                                               \
    }
CUDA_DRIVERS
#undef X
#pragma GCC diagnostic pop

static const struct {
    const char *symbol;
    any_function absent;
} functions[CUDA_FUNCTION_COUNT] = {
#define X(symbol, parameters) {#symbol, (any_function)absent_##symbol},
    CUDA_DRIVERS
#undef X
};

_Atomic(any_function) cuda_found[CUDA_FUNCTION_COUNT];

/* Needs no lock: two threads find the same function. So a child that was forked meanwhile finds no lock held. */
any_function cuda_find(enum cuda_function function) {
    any_function real = (any_function)real_lookup("driver-libcuda.so", functions[function].symbol);
    if (real == NULL)
        real = functions[function].absent;
    atomic_store_explicit(&cuda_found[function], real, memory_order_release);
    return real;
}

bool cuda_driver_has(enum cuda_function function) {
    return cuda_real(function) != functions[function].absent;
}

/* It is made current even if its handle is: this thread may have that of a former context. */
bool cuda_context_is_gone(CUcontext context) {
    CUcontext pushed;
    size_t free, total;
    CUresult result = REAL(cuCtxPushCurrent_v2)(context);
    if (result == CUDA_SUCCESS) {
        result = REAL(cuMemGetInfo_v2)(&free, &total);
        REAL(cuCtxPopCurrent_v2)(&pushed);
    }
    return result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* All functions are found while this library is loaded. Later, in a child forked from a program with threads, the
 * loader's locks may be held by a thread that does not exist in the child. */
__attribute__((constructor)) static void find_all(void) {
    for (int function = 0; function < CUDA_FUNCTION_COUNT; function++)
        cuda_find((enum cuda_function)function);
}
