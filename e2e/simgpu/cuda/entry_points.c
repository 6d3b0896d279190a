/* cuGetProcAddress: one name, many entry points, by the version and the default stream that the caller wants. */
#include "entry_points.h"

#include <string.h>

#include "driver.h"
#include "entry_points_graph.h"
#include "entry_points_graphics.h"
#include "entry_points_memop.h"
#include "entry_points_more.h"
#include "entry_points_old.h"
#include "entry_points_pool.h"
#include "entry_points_stream.h"
#include "entry_points_texture.h"
#include "entry_points_vmm.h"

#define EVERY_FLAG (CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)

struct entry_point {
    const char *name;
    int since, per_thread_since;
    void *symbol, *per_thread_symbol; /* NULL: the default stream plays no part */
};

#define ENTRY(name, since, symbol) {#name, since, 0, (void *)(uintptr_t)(symbol), NULL},
#define STREAM(name, since, symbol, per_thread_since, per_thread_symbol)                                               \
    {#name, since, per_thread_since, (void *)(uintptr_t)(symbol), (void *)(uintptr_t)(per_thread_symbol)},

/* By bits: version and flags as the driver has them, which takes a version below 0 for the newest. */
static void *find(const char *name, unsigned version, cuuint64_t flags, bool *known) {
    static const struct entry_point entries[] = {
        ENTRY_POINTS(ENTRY, STREAM) ENTRY_POINTS_MORE(ENTRY, STREAM) ENTRY_POINTS_POOL(ENTRY, STREAM)
            ENTRY_POINTS_VMM(ENTRY, STREAM) ENTRY_POINTS_TEXTURE(ENTRY, STREAM) ENTRY_POINTS_GRAPHICS(ENTRY, STREAM)
                ENTRY_POINTS_GRAPH(ENTRY, STREAM) ENTRY_POINTS_STREAM(ENTRY, STREAM) ENTRY_POINTS_MEMOP(ENTRY, STREAM)
                    ENTRY_POINTS_OLD(ENTRY, STREAM)};
    bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    unsigned newest = 0;
    void *best = NULL;

    *known = false;
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        const struct entry_point *e = &entries[i];
        bool other = per_thread && e->per_thread_symbol != NULL;
        unsigned since = (unsigned)(other ? e->per_thread_since : e->since);

        if (strcmp(e->name, name) != 0 || e->since > driver_version())
            continue;
        *known = true;
        if (since <= version && since >= newest) {
            newest = since;
            best = other ? e->per_thread_symbol : e->symbol;
        }
    }
    return best;
}

#define ALL_FLAGS (CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)

/* A name that is not found is no error here: the status and a NULL pointer say so. */
CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *symbolStatus) {
    bool known;

    REQUIRE(symbol != NULL && pfn != NULL && flags <= EVERY_FLAG, CUDA_ERROR_INVALID_VALUE);
    *pfn = find(symbol, (unsigned)cudaVersion, flags, &known);
    if (symbolStatus != NULL)
        *symbolStatus = *pfn != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                        : known      ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                     : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

/* The function of before CUDA 12 has no status, and gives an error in place of it. */
CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags) {
    void *found;

    REQUIRE(pfn != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(cuGetProcAddress_v2(symbol, &found, cudaVersion, flags, NULL));
    REQUIRE(found != NULL, CUDA_ERROR_NOT_FOUND);
    *pfn = found;
    return CUDA_SUCCESS;
}
