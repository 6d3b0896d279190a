/* The functions of the shadow libcuda.so.1, and those of the driver's behind them; both are generated from the table in
 * driver/shadowed.h. */
#ifndef TRANCHE_CUDA_REAL_H
#define TRANCHE_CUDA_REAL_H

#include "driver/cuda_api.h"
#include "driver/shadowed.h"

#include <stdatomic.h>
#include <stdbool.h>

/* The exported functions. */
#define X(symbol, name, since, stream, parameters, ...)                                                                \
    __attribute__((visibility("default"))) CUresult symbol parameters;
CUDA_SHADOWED(X)
#undef X

/* The driver's functions: an X of the symbol and the parameters for each. */
#define CUDA_DRIVERS_ROW(symbol, name, since, stream, parameters, ...) X(symbol, parameters)
#define CUDA_DRIVERS CUDA_SHADOWED(CUDA_DRIVERS_ROW) CUDA_CALLED(X)

#define X(symbol, parameters) typedef CUresult(*symbol##_function) parameters;
CUDA_DRIVERS
#undef X

enum cuda_function {
#define X(symbol, parameters) CUDA_##symbol,
    CUDA_DRIVERS
#undef X
        CUDA_FUNCTION_COUNT
};

/* The driver's function. If this driver has none, a function that returns CUDA_ERROR_NOT_SUPPORTED. */
#define REAL(symbol) ((symbol##_function)cuda_real(CUDA_##symbol))

typedef void (*any_function)(void);

/* What was found, once this library is loaded; hidden. */
extern _Atomic(any_function) cuda_found[CUDA_FUNCTION_COUNT];

any_function cuda_find(enum cuda_function function);

static inline any_function cuda_real(enum cuda_function function) {
    any_function real = atomic_load_explicit(&cuda_found[function], memory_order_acquire);
    return real != NULL ? real : cuda_find(function);
}

/* Makes a call that undoes what the driver has just done. A capture that another thread has begun since does not forbid it, as it
 * may a call of the program's (cuThreadExchangeStreamCaptureMode in the CUDA driver API's documentation). */
#define UNDO(call)                                                                                                     \
    do {                                                                                                               \
        CUstreamCaptureMode undo_mode = CU_STREAM_CAPTURE_MODE_RELAXED;                                                \
        CUresult undo_relaxed = REAL(cuThreadExchangeStreamCaptureMode)(&undo_mode);                                   \
        call;                                                                                                          \
        if (undo_relaxed == CUDA_SUCCESS)                                                                              \
            REAL(cuThreadExchangeStreamCaptureMode)(&undo_mode);                                                       \
    } while (0)

/* Whether this driver has the function. */
bool cuda_driver_has(enum cuda_function function);

/* Whether the driver answers to any call in a context that it has ended, or that it is not active. */
bool cuda_context_is_gone(CUcontext context);

#endif
