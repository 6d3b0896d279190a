/*
 * cuGetProcAddress: the way past the loader. It maps one name to different functions by version and flags, and the driver
 * alone knows how. So the driver answers, and then we look whether the pointer is that of a function which we shadow.
 *
 * Nothing promises that the driver answers with the pointers that dlsym finds, so we collect, once, what it answers for
 * every name of ours with every version that makes a difference and every flag. Should it still answer a name of ours with
 * a pointer that we do not know, the name decides: better a function of ours with an older form than one that does not count.
 */
#include "driver/cuda_real.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#define ANSWERS_MAX 512

typedef void (*any_function)(void);

enum stream { ANY, LEGACY, PER_THREAD };

static const struct row {
    const char *name;
    int since;
    enum stream stream;
    enum cuda_function function;
    any_function shadow;
} rows[] = {
#define X(symbol, name, since, stream, parameters) {name, since, stream, CUDA_##symbol, (any_function)symbol},
    CUDA_SHADOWED(X)
#undef X
};

#define ROWS (sizeof rows / sizeof rows[0])

/* Pointers with which the driver answered although dlsym finds others. Whoever comes first collects them; several threads
 * at once collect some twice, which does no harm, and no lock can be left held in a forked child. */
static struct {
    struct answer {
        _Atomic(any_function) driver; /* written last */
        any_function shadow;
    } answers[ANSWERS_MAX];
    _Atomic unsigned count;
    _Atomic bool complete;
} collected;

/* The function that a name stands for: of those that this version has, the newest. */
static any_function by_name(const char *name, int version, cuuint64_t flags) {
    const struct row *best = NULL, *oldest = NULL;
    enum stream unwanted = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? LEGACY : PER_THREAD;
    for (const struct row *row = rows; row < rows + ROWS; row++) {
        if (strcmp(row->name, name) != 0 || row->stream == unwanted)
            continue;
        if (row->since <= version && (best == NULL || row->since >= best->since))
            best = row;
        if (oldest == NULL || row->since < oldest->since)
            oldest = row;
    }
    if (best == NULL)
        best = oldest;
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

static CUresult ask(const char *symbol, void **function, int version, cuuint64_t flags) {
    if (!cuda_driver_has(CUDA_cuGetProcAddress_v2))
        return REAL(cuGetProcAddress)(symbol, function, version, flags);
    CUdriverProcAddressQueryResult status;
    return REAL(cuGetProcAddress_v2)(symbol, function, version, flags, &status);
}

static void collect_answer(const char *name, int version, cuuint64_t flags) {
    void *function = NULL;
    if (ask(name, &function, version, flags) != CUDA_SUCCESS || function == NULL ||
        by_pointer((any_function)function) != NULL)
        return;
    unsigned index = atomic_fetch_add(&collected.count, 1);
    if (index >= ANSWERS_MAX)
        return; /* then the name decides */
    collected.answers[index].shadow = by_name(name, version, flags);
    atomic_store_explicit(&collected.answers[index].driver, (any_function)function, memory_order_release);
}

static void collect(void) {
    int newest = 0;
    REAL(cuDriverGetVersion)(&newest);
    for (const struct row *row = rows; row < rows + ROWS; row++) {
        static const cuuint64_t flags[] = {CU_GET_PROC_ADDRESS_DEFAULT, CU_GET_PROC_ADDRESS_LEGACY_STREAM,
                                           CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM};
        for (unsigned i = 0; i < sizeof flags / sizeof flags[0]; i++) {
            /* The forms of a name change at the versions in the table; what is newer than the table, the driver has. */
            for (const struct row *other = rows; other < rows + ROWS; other++)
                if (strcmp(other->name, row->name) == 0)
                    collect_answer(row->name, other->since, flags[i]);
            collect_answer(row->name, newest, flags[i]);
        }
    }
}

/* What to answer instead of what the driver answered. */
static void *replace(const char *symbol, void *driver, int version, cuuint64_t flags) {
    if (!atomic_load(&collected.complete)) {
        collect();
        atomic_store(&collected.complete, true);
    }
    any_function shadow = by_pointer((any_function)driver);
    if (shadow == NULL)
        shadow = by_name(symbol, version, flags);
    return shadow != NULL ? (void *)shadow : driver;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags) {
    CUresult result = REAL(cuGetProcAddress)(symbol, function, version, flags);
    if (result == CUDA_SUCCESS && *function != NULL)
        *function = replace(symbol, *function, version, flags);
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    CUresult result = REAL(cuGetProcAddress_v2)(symbol, function, version, flags, status);
    if (result == CUDA_SUCCESS && *function != NULL)
        *function = replace(symbol, *function, version, flags);
    return result;
}
