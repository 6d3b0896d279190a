/* cuGetProcAddress: one name, many entry points, by the version and the default stream that the caller wants. */
#include "entry_points.h"

#include <string.h>

#include "driver.h"
#include "entry_points_more.h"
#include "entry_points_pool.h"
#include "entry_points_vmm.h"

struct entry_point {
    const char *name;
    int since, per_thread_since;
    void *symbol, *per_thread_symbol; /* NULL: the default stream plays no part */
};

#define ENTRY(name, since, symbol) {#name, since, 0, (void *)(uintptr_t)(symbol), NULL},
#define STREAM(name, since, symbol, per_thread_since, per_thread_symbol)                                               \
    {#name, since, per_thread_since, (void *)(uintptr_t)(symbol), (void *)(uintptr_t)(per_thread_symbol)},

static const struct entry_point *find(const char *name, int version, bool *known) {
    static const struct entry_point entries[] = {ENTRY_POINTS(ENTRY, STREAM) ENTRY_POINTS_MORE(ENTRY, STREAM)
                                                     ENTRY_POINTS_POOL(ENTRY, STREAM) ENTRY_POINTS_VMM(ENTRY, STREAM)};
    const struct entry_point *best = NULL;

    *known = false;
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        const struct entry_point *e = &entries[i];

        if (strcmp(e->name, name) != 0 || e->since > driver_version())
            continue;
        *known = true;
        if (e->since <= version && (best == NULL || e->since > best->since))
            best = e;
    }
    return best;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *symbolStatus) {
    const struct entry_point *e;
    bool known;

    REQUIRE(symbol != NULL && pfn != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(flags <= CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cudaVersion <= driver_version(), CUDA_ERROR_INVALID_VALUE);
    *pfn = NULL;
    e = find(symbol, cudaVersion, &known);
    if (symbolStatus != NULL)
        *symbolStatus = e != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                        : known   ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                  : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    REQUIRE(e != NULL, CUDA_ERROR_NOT_FOUND);
    *pfn = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM && e->per_thread_symbol != NULL &&
                   cudaVersion >= e->per_thread_since
               ? e->per_thread_symbol
               : e->symbol;
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags) {
    return cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, NULL);
}
