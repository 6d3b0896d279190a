/*
 * cuGetProcAddress, which programs use in place of the loader. It maps a name to different functions by version and
 * flags, by rules that only the driver knows. So the driver answers, and if its pointer is that of a shadowed function,
 * the shadow's takes its place.
 *
 * The driver may answer with other pointers than dlsym finds. So its answers for every shadowed name, with every
 * relevant version and flag, are collected once. If it still answers a shadowed name with an unknown pointer, the name
 * and the version decide, up to the CUDA version that the table is complete for. In newer versions, a name may stand for
 * a function with other parameters: such a function is reported as not found.
 *
 * Source: "Driver Entry Point Access" in the CUDA driver API's documentation.
 */
#include "driver/cuda_real.h"
#include "system/explain.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#define ANSWERS_MAX 512

enum stream { ANY, LEGACY, PER_THREAD };

static const struct row {
    const char *symbol, *name;
    int since;
    enum stream stream;
    enum cuda_function function;
    any_function shadow;
} rows[] = {
#define X(symbol, name, since, stream, parameters, ...)                                                                \
    {#symbol, name, since, stream, CUDA_##symbol, (any_function)symbol},
    CUDA_SHADOWED(X)
#undef X
};

#define ROWS (sizeof rows / sizeof rows[0])

/* Pointers that the driver answers and dlsym does not find. The first call collects them, without a lock that a forked
 * child could find held; several threads at once collect some pointers twice, which is harmless. */
static struct {
    struct answer {
        _Atomic(any_function) driver; /* written last */
        any_function shadow;
    } answers[ANSWERS_MAX];
    _Atomic unsigned count;
    _Atomic bool complete;
} collected;

/* Functions of these names only wait. Memory that they return counts for longer if the shadow does not see them. */
static const char *const waiting[] = {"cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize"};

/* Newer drivers know some functions by their symbols too. */
static bool is_called(const struct row *row, const char *name) {
    return strcmp(row->name, name) == 0 || strcmp(row->symbol, name) == 0;
}

static bool must_be_seen(const char *name) {
    for (size_t i = 0; i < sizeof waiting / sizeof waiting[0]; i++)
        if (strcmp(waiting[i], name) == 0)
            return false;
    for (const struct row *row = rows; row < rows + ROWS; row++)
        if (is_called(row, name))
            return true;
    return false;
}

/* The shadowed function that a name stands for in a CUDA version. NULL if the table does not say. */
static any_function by_name(const char *name, int version, cuuint64_t flags) {
    const struct row *best = NULL;
    enum stream unwanted = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? LEGACY : PER_THREAD;
    if (version > CUDA_SHADOWED_UNTIL)
        return NULL;
    for (const struct row *row = rows; row < rows + ROWS; row++)
        if (is_called(row, name) && row->stream != unwanted && row->since <= version &&
            (best == NULL || row->since >= best->since))
            best = row;
    return best != NULL ? best->shadow : NULL;
}

static any_function by_pointer(any_function driver) {
    for (const struct row *row = rows; row < rows + ROWS; row++)
        if (cuda_real(row->function) == driver)
            return row->shadow;
    unsigned count = atomic_load(&collected.count);
    for (unsigned i = 0; i < count && i < ANSWERS_MAX; i++)
        if (atomic_load_explicit(&collected.answers[i].driver, memory_order_acquire) == driver)
            return collected.answers[i].shadow;
    return NULL;
}

/* As cuGetProcAddress_v2 answers. Drivers of before CUDA 12.0 have none, though this library exports it: then by what
 * their cuGetProcAddress answers. */
static CUresult query_driver(const char *symbol, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    if (cuda_driver_has(CUDA_cuGetProcAddress_v2))
        return REAL(cuGetProcAddress_v2)(symbol, function, version, flags, status);
    CUresult result = REAL(cuGetProcAddress)(symbol, function, version, flags);
    bool missing = result == CUDA_ERROR_NOT_FOUND;
    if (missing)
        *function = NULL;
    if (status != NULL && (missing || result == CUDA_SUCCESS))
        *status = missing ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS;
    return missing ? CUDA_SUCCESS : result;
}

static void collect_answer(const char *name, int version, cuuint64_t flags) {
    void *function = NULL;
    CUdriverProcAddressQueryResult status;
    any_function shadow = by_name(name, version, flags);
    if (shadow == NULL || query_driver(name, &function, version, flags, &status) != CUDA_SUCCESS || function == NULL ||
        by_pointer((any_function)function) != NULL)
        return;
    unsigned index = atomic_fetch_add(&collected.count, 1);
    if (index >= ANSWERS_MAX)
        return; /* the name decides for these */
    collected.answers[index].shadow = shadow;
    atomic_store_explicit(&collected.answers[index].driver, (any_function)function, memory_order_release);
}

static void collect(void) {
    int newest = 0;
    REAL(cuDriverGetVersion)(&newest);
    for (const struct row *row = rows; row < rows + ROWS; row++) {
        static const cuuint64_t flags[] = {CU_GET_PROC_ADDRESS_DEFAULT, CU_GET_PROC_ADDRESS_LEGACY_STREAM,
                                           CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM};
        for (unsigned i = 0; i < sizeof flags / sizeof flags[0]; i++) {
            /* A name changes its function at the versions in the table. */
            for (const struct row *other = rows; other < rows + ROWS; other++)
                if (strcmp(other->name, row->name) == 0 && other->since <= newest)
                    collect_answer(row->name, other->since, flags[i]);
        }
    }
}

/* The answer in place of the driver's. NULL if the program must not have that, and the shadow has none. */
static void *replace(const char *symbol, void *driver, int version, cuuint64_t flags) {
    if (!atomic_load(&collected.complete)) {
        collect();
        atomic_store(&collected.complete, true);
    }
    any_function shadow = by_pointer((any_function)driver);
    if (shadow == NULL)
        shadow = by_name(symbol, version, flags);
    if (shadow != NULL)
        return (void *)shadow;
    if (!must_be_seen(symbol))
        return driver;
    explain(CAUSE_FUNCTION,
            "%s of CUDA %d.%d is reported as not found: this version knows CUDA up to %d.%d and could not limit it; "
            "upgrade Tranche, or use an older CUDA",
            symbol, version / 1000, version % 1000 / 10, CUDA_SHADOWED_UNTIL / 1000, CUDA_SHADOWED_UNTIL % 1000 / 10);
    return NULL;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags) {
    CUresult result = REAL(cuGetProcAddress)(symbol, function, version, flags);
    if (result != CUDA_SUCCESS || *function == NULL)
        return result;
    *function = replace(symbol, *function, version, flags);
    return *function != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* A function that is not found is no error here: the pointer is NULL, and the status says why. */
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    CUresult result = query_driver(symbol, function, version, flags, status);
    if (result != CUDA_SUCCESS || *function == NULL)
        return result;
    *function = replace(symbol, *function, version, flags);
    if (*function == NULL && status != NULL)
        *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}
