/* What the files of the shadow NVML share: the driver's own functions, and the claim that is for a device. */
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

/* The driver's own function. Where this driver has none, one that says so. */
#define REAL(symbol) ((symbol##_function)nvml_find(NVML_##symbol))

/* What a device's claims allow and have taken; nothing of a device without a claim. */
struct fraction {
    struct claims *claims;
    int gpu; /* in claims, or -1 */
    unsigned long long limit, used;
};

nvmlReturn_t nvml_read_fraction(nvmlDevice_t device, struct fraction *fraction);

static inline unsigned long long minimum(unsigned long long a, unsigned long long b) {
    return a < b ? a : b;
}

static inline unsigned long long maximum(unsigned long long a, unsigned long long b) {
    return a > b ? a : b;
}

/* One process of the claims. */
struct member {
    unsigned int pid;
    unsigned long long bytes;
};

/* The living processes of the claims for a device, ordered by process ID. */
struct members {
    unsigned int count;
    size_t size;
    struct member *list; /* a mapping of `size` bytes, or NULL */
};

/* On success nvml_drop_members must follow. */
nvmlReturn_t nvml_read_members(const struct fraction *fraction, struct members *members);
void nvml_drop_members(struct members *members);

/* The member with this process ID, or NULL. */
const struct member *nvml_find_member(const struct members *members, unsigned int pid);

/* Memory that is not the program's malloc's. NULL where there is none. */
void *nvml_take_room(size_t size);
void nvml_drop_room(void *room, size_t size);

/* A list as the driver answered it, which names processes that the caller must not see. */
struct answer {
    size_t entry, pid_offset; /* of one entry: its size, where in it the process ID lies */
    unsigned int count;       /* entries, as asked of the driver and as answered */
    char *list;               /* NULL at first */
    size_t size;
    int attempts;
};

/* Asks the driver, an expression that uses answer.count and answer.list, until its list fits. On every result
 * nvml_drop_answer must follow. */
#define NVML_ASK(answer, call)                                                                                         \
    ({                                                                                                                 \
        nvmlReturn_t asked_;                                                                                           \
        do                                                                                                             \
            asked_ = (call);                                                                                           \
        while (nvml_enlarge(&(answer), asked_));                                                                       \
        asked_;                                                                                                        \
    })
bool nvml_enlarge(struct answer *answer, nvmlReturn_t result);
void nvml_drop_answer(struct answer *answer);

/* Leaves in it only the members' entries; none, where the driver's process IDs may be another namespace's. */
void nvml_keep_members(struct answer *answer, const struct members *members);

/* NVML's protocol: too little room is an error, and the caller is told how much is needed. */
nvmlReturn_t nvml_check_room(unsigned int *count, const void *array, unsigned int found);

#endif
