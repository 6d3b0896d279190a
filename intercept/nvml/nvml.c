/* The driver's own functions behind the shadow libnvidia-ml.so.1, and the claims of a device. NVML only reads regions,
 * and takes no slot in them. */
#include "driver/real.h"
#include "nvml/claim.h"
#include "system/mapped.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define X(symbol, parameters)                                                                                          \
    static nvmlReturn_t absent_##symbol parameters {                                                                   \
        return NVML_ERROR_FUNCTION_NOT_FOUND;                                                                          \
    }
NVML_SHADOWED(X)
NVML_CALLED(X)
#undef X
#pragma GCC diagnostic pop

static const struct {
    const char *symbol;
    nvml_any_function absent;
} functions[NVML_FUNCTION_COUNT] = {
#define X(symbol, parameters) {#symbol, (nvml_any_function)absent_##symbol},
    NVML_SHADOWED(X) NVML_CALLED(X)
#undef X
};

nvml_any_function nvml_find(enum nvml_function function) {
    static _Atomic(nvml_any_function) found[NVML_FUNCTION_COUNT];
    nvml_any_function real = atomic_load_explicit(&found[function], memory_order_acquire);
    if (real != NULL)
        return real;
    /* Two threads may do this at once, with the same result. */
    real = (nvml_any_function)real_lookup("driver-libnvidia-ml.so", functions[function].symbol);
    if (real == NULL)
        real = functions[function].absent;
    atomic_store_explicit(&found[function], real, memory_order_release);
    return real;
}

/* The claims, opened at the first call. If several threads open them at once, one result is kept. A forked child may
 * use them, since they contain nothing that belongs to one process. */
static struct claims *claims(void) {
    static _Atomic(struct claims *) kept;
    struct claims *all = atomic_load_explicit(&kept, memory_order_acquire);
    if (all != NULL)
        return all;
    int error = errno;
    struct claims *fresh = mapped_new(sizeof *fresh);
    if (fresh == NULL || !claims_open(fresh, false)) {
        mapped_free(fresh, sizeof *fresh);
    } else if (atomic_compare_exchange_strong(&kept, &all, fresh)) {
        all = fresh;
    } else {
        claims_close(fresh);
        mapped_free(fresh, sizeof *fresh);
    }
    errno = error;
    return all;
}

nvmlReturn_t nvml_read_claims(nvmlDevice_t device, struct claimed *claimed) {
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    struct claims *all = claims();
    if (all == NULL)
        return NVML_ERROR_OPERATING_SYSTEM;
    nvmlReturn_t result = REAL(nvmlDeviceGetUUID)(device, uuid, sizeof uuid);
    if (result != NVML_SUCCESS)
        return result;
    int gpu = claims_find_gpu(all, uuid);
    *claimed = (struct claimed){.claims = all, .gpu = gpu};
    if (gpu >= 0) {
        claimed->limit = claims_limit_bytes(all, gpu);
        claimed->used = claims_used_bytes(all, gpu);
    }
    return NVML_SUCCESS;
}
