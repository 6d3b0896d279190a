/*
 * cuGetProcAddress, which programs use in place of the loader. It maps a name to different functions by version and
 * flags, by rules that only the driver knows. So the driver answers, and a shadowed function's pointer is replaced.
 *
 * The driver may answer with other pointers than dlsym finds. Then the table decides by name and version, up to
 * CUDA_SHADOWED_UNTIL. In newer versions, a name may stand for a function with other parameters. If the driver answers
 * the same pointer for both versions, it does not; else the function is reported as not found.
 *
 * Source: "Driver Entry Point Access" in the CUDA driver API's documentation.
 */
#include "driver/cuda_real.h"
#include "system/explain.h"

#include <stdbool.h>
#include <string.h>

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

/* Functions of these names only wait. Memory that they return counts for longer if the shadow does not see them. */
static const char *const waiting[] = {"cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize"};

/* Newer drivers know some functions by their symbols too. */
static bool is_called(const struct row *row, const char *name) {
    return strcmp(row->name, name) == 0 || strcmp(row->symbol, name) == 0;
}

static bool is_shadowed(const char *name) {
    for (const struct row *row = rows; row < rows + ROWS; row++)
        if (is_called(row, name))
            return true;
    return false;
}

static bool only_waits(const char *name) {
    for (size_t i = 0; i < sizeof waiting / sizeof waiting[0]; i++)
        if (strcmp(waiting[i], name) == 0)
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

/* The version by which the table names what the driver has answered; the given one if it does not. */
static int known_version(const char *name, const void *driver, int version, cuuint64_t flags) {
    CUdriverProcAddressQueryResult status;
    void *function = NULL;
    int newest = 0;
    if (version > CUDA_SHADOWED_UNTIL &&
        (query_driver(name, &function, CUDA_SHADOWED_UNTIL, flags, &status) != CUDA_SUCCESS || function != driver))
        return version;
    version = version < CUDA_SHADOWED_UNTIL ? version : CUDA_SHADOWED_UNTIL;
    REAL(cuDriverGetVersion)(&newest);
    return version < newest ? version : newest;
}

/* The answer in place of the driver's. NULL if the program must not have that, and the shadow has none. */
static void *replace(const char *symbol, void *driver, int version, cuuint64_t flags) {
    any_function shadow = by_pointer((any_function)driver);
    bool ours = shadow != NULL || is_shadowed(symbol);
    if (shadow == NULL && ours)
        shadow = by_name(symbol, known_version(symbol, driver, version, flags), flags);
    if (shadow != NULL)
        return (void *)shadow;
    if (!ours || only_waits(symbol))
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
