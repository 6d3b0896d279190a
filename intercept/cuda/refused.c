/* Functions of before CUDA 3.2: their addresses have 32 bits, too few for any GPU's memory today. Programs get them only by
 * their old names, since cuda.h has had others for the same functions ever since. */
#include "driver/cuda_real.h"
#include "system/explain.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"
#define X(symbol, name, since, stream, parameters, ...)                                                                \
    CUresult symbol parameters {                                                                                       \
        explain(CAUSE_REFUSED, #symbol " is of before CUDA 3.2 and not supported; use " #symbol "_v2");                \
        return CUDA_ERROR_NOT_SUPPORTED;                                                                               \
    }
CUDA_REFUSED(X)
