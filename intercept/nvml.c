/*
 * The shadow libnvidia-ml.so.1: what it says of a GPU's memory is what the claim says. It only looks at the regions, and
 * takes no slot in them.
 */
#include "claims.h"
#include "explain.h"
#include "nvml_api.h"
#include "real.h"
#include "shadowed.h"

#include <errno.h>
#include <sys/mman.h>

typedef void (*any_function)(void);

#define X(symbol, parameters)                                                                                          \
    __attribute__((visibility("default"))) nvmlReturn_t symbol parameters;                                             \
    typedef nvmlReturn_t(*symbol##_function) parameters;
NVML_SHADOWED(X)
#undef X
#define X(symbol, parameters) typedef nvmlReturn_t(*symbol##_function) parameters;
NVML_CALLED(X)
#undef X

enum nvml_function {
#define X(symbol, parameters) NVML_##symbol,
    NVML_SHADOWED(X) NVML_CALLED(X)
#undef X
        NVML_FUNCTION_COUNT
};

/* The driver's own function. Where this driver has none, one that says so. */
#define REAL(symbol) ((symbol##_function)find(NVML_##symbol))

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
    any_function absent;
} functions[NVML_FUNCTION_COUNT] = {
#define X(symbol, parameters) {#symbol, (any_function)absent_##symbol},
    NVML_SHADOWED(X) NVML_CALLED(X)
#undef X
};

static any_function find(enum nvml_function function) {
    static _Atomic(any_function) found[NVML_FUNCTION_COUNT];
    any_function real = atomic_load_explicit(&found[function], memory_order_acquire);
    if (real != NULL)
        return real;
    /* Two threads may do this at once and find the same. */
    real = (any_function)real_lookup("driver-libnvidia-ml.so", functions[function].symbol);
    if (real == NULL)
        real = functions[function].absent;
    atomic_store_explicit(&found[function], real, memory_order_release);
    return real;
}

/* The claims, opened by the first who asks; of several at once, one keeps them. A forked child may go on using them:
 * nothing in them is ours alone. */
static struct claims *claims(void) {
    static _Atomic(struct claims *) kept;
    struct claims *all = atomic_load_explicit(&kept, memory_order_acquire);
    if (all != NULL)
        return all;
    int error = errno;
    char why[512] = "no memory";
    struct claims *fresh = mmap(NULL, sizeof *fresh, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED || !claims_open(fresh, false, why, sizeof why)) {
        explain(CAUSE_REGION,
                "NVML tells nothing of GPU memory, because this process's limit cannot be read: %s; start it in a "
                "container that was given GPU slices, or by `tranche run`",
                why);
        if (fresh != MAP_FAILED)
            munmap(fresh, sizeof *fresh);
    } else if (atomic_compare_exchange_strong(&kept, &all, fresh)) {
        all = fresh;
    } else {
        claims_close(fresh);
        munmap(fresh, sizeof *fresh);
    }
    errno = error;
    return all;
}

/* What a device's claim allows and has taken; nothing of a device without a claim. */
struct fraction {
    unsigned long long limit, used;
};

static nvmlReturn_t read_fraction(nvmlDevice_t device, struct fraction *fraction) {
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    struct claims *all = claims();
    if (all == NULL)
        return NVML_ERROR_OPERATING_SYSTEM;
    nvmlReturn_t result = REAL(nvmlDeviceGetUUID)(device, uuid, sizeof uuid);
    if (result != NVML_SUCCESS)
        return result;
    int gpu = claims_find_gpu(all, uuid);
    *fraction = (struct fraction){0};
    if (gpu >= 0) {
        claims_reap(all, gpu); /* nobody asks NVML so often that it would matter */
        *fraction = (struct fraction){claims_limit_bytes(all, gpu), claims_used_bytes(all, gpu)};
    }
    return NVML_SUCCESS;
}

static unsigned long long minimum(unsigned long long a, unsigned long long b) {
    return a < b ? a : b;
}

/* Replaces what the driver said by the fraction; free is never more than what is physically free. */
#define REPORT_FRACTION(memory, fraction)                                                                              \
    do {                                                                                                               \
        (memory)->total = minimum((memory)->total, (fraction).limit);                                                  \
        (memory)->used = minimum((fraction).used, (memory)->total);                                                    \
        (memory)->free = minimum((memory)->free, (memory)->total - (memory)->used);                                    \
    } while (0)

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    struct fraction fraction;
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    if (result == NVML_SUCCESS)
        result = read_fraction(device, &fraction);
    if (result == NVML_SUCCESS)
        REPORT_FRACTION(memory, fraction);
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    struct fraction fraction;
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    if (result == NVML_SUCCESS)
        result = read_fraction(device, &fraction);
    if (result == NVML_SUCCESS) {
        REPORT_FRACTION(memory, fraction);
        memory->reserved = 0; /* the driver's own share is nobody's fraction */
    }
    return result;
}
