/*
 * Shared by the files of the shadow libnvidia-ml.so.1: the driver's functions, the claims of a device, and their
 * processes.
 *
 * Source: NVML API Reference.
 */
#ifndef TRANCHE_NVML_CLAIM_H
#define TRANCHE_NVML_CLAIM_H

#include "driver/nvml_api.h"
#include "driver/shadowed.h"
#include "region/claims.h"

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

typedef void (*nvml_any_function)(void);
nvml_any_function nvml_find(enum nvml_function function);

/* The driver's function. If this driver has none, one that returns NVML_ERROR_FUNCTION_NOT_FOUND. */
#define REAL(symbol) ((symbol##_function)nvml_find(NVML_##symbol))

/* The limit and the use of a device's claims, in bytes; both 0 for a device without a claim. */
struct claimed {
    struct claims *claims;
    int gpu; /* an index of `claims`; -1: no claim */
    unsigned long long limit, used;
};

/* NVML_ERROR_OPERATING_SYSTEM, with a line on stderr, if the regions cannot be read. */
nvmlReturn_t nvml_read_claims(nvmlDevice_t device, struct claimed *claimed);

static inline unsigned long long minimum(unsigned long long a, unsigned long long b) {
    return a < b ? a : b;
}

static inline unsigned long long maximum(unsigned long long a, unsigned long long b) {
    return a > b ? a : b;
}

/* A process of the claims, and the GPU memory that it holds. */
struct member {
    unsigned int pid;
    unsigned long long bytes;
};

/* The living processes of the claims for a device, ordered by process ID. */
struct members {
    unsigned long long limit; /* of the claims, in bytes */
    unsigned int count;
    size_t size;
    struct member *list; /* a mapping of `size` bytes, or NULL */
};

/* Reads the processes of a device's claims. nvml_free_members must follow. */
nvmlReturn_t nvml_read_members(nvmlDevice_t device, struct members *members);
void nvml_free_members(struct members *members);

/* The member with this process ID, or NULL. */
const struct member *nvml_find_member(const struct members *members, unsigned int pid);

/* A list of the driver's, which may contain processes that the caller must not see. */
struct answer {
    size_t entry, pid_offset; /* the size of an entry, and the offset of the process ID in it */
    unsigned int count;       /* entries: room before the query, number after it */
    char *list;               /* NULL at first */
    size_t size;
    int attempts;
};

/* Repeats `call`, which queries the driver with answer.count and answer.list, until the list fits. nvml_free_answer
 * must follow. */
#define NVML_QUERY(answer, call)                                                                                       \
    ({                                                                                                                 \
        nvmlReturn_t result_;                                                                                          \
        do                                                                                                             \
            result_ = (call);                                                                                          \
        while (nvml_enlarge(&(answer), result_));                                                                      \
        result_;                                                                                                       \
    })
bool nvml_enlarge(struct answer *answer, nvmlReturn_t result);
void nvml_free_answer(struct answer *answer);

/*
 * Removes the entries of processes that are no members; all entries if the driver's process IDs may be of another
 * namespace. `listed` is whether the answer is a list of running processes: samples and accounts have the host's IDs with
 * some drivers, and with others those of processes outside the caller's namespace.
 */
void nvml_keep_members(struct answer *answer, const struct members *members, bool listed);

/* Stores the number of entries in `count`. NVML_ERROR_INSUFFICIENT_SIZE if the caller's array has no room for them. */
nvmlReturn_t nvml_check_room(unsigned int *count, const void *array, unsigned int found);

#endif
