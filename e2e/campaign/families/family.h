/*
 * A family of operations: what a worker can do with one part of the driver's API. Each has a file of its own, with the
 * functions of the driver that it calls, its operations, and how what they make is given back.
 */
#ifndef CAMPAIGN_FAMILY_H
#define CAMPAIGN_FAMILY_H

#include "cuda_sim.h"

#include "board.h"
#include "objects.h"
#include "random.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define BLOCK (2 * MIB) /* what the driver takes memory in */

/* An operation under way in the calling thread. */
struct call {
    struct desk *desk;
    uint64_t random;
    int device; /* of the current context, when need_context has succeeded */
    int gpu;    /* the same GPU by its number in the topology */
    struct context *context;
};

struct operation {
    const char *name;
    unsigned weight;
    void (*perform)(struct call *);
    const char *needs; /* functions of the driver, separated by spaces */
    bool exclusive;    /* ends a context that other threads may be using */
    bool rare;         /* need not have succeeded in a campaign of default length */
};

/* A function of the driver. `base` and `version` as cuGetProcAddress wants them; version 0: dlsym only. */
struct function {
    const char *symbol, *base;
    int version;
    void **pointer;
};

struct family {
    const char *name;
    const struct function *functions;   /* ended by a NULL symbol */
    const struct operation *operations; /* ended by a NULL name */
};

extern const struct family *const families[]; /* ended by NULL */
unsigned operations_count(void);

const struct operation *operation_at(unsigned index);
const struct family *family_of(unsigned index);
/* Whether it is done in crowds, and in nothing else. */
bool is_of_crowd(unsigned index);

/*
 * A family's functions:
 *
 *   #define FUNCTIONS(X) X(cuMemAlloc_v2, "cuMemAlloc", 3020) ...
 *   FAMILY_FUNCTIONS(FUNCTIONS)
 *
 * declares `cu`, a structure of pointers with these names, and `functions`.
 */
#define FAMILY_POINTER(symbol, base, version) __typeof__(&symbol) symbol;
#define FAMILY_ROW(symbol, base, version) {#symbol, base, version, (void **)&cu.symbol},
#define FAMILY_FUNCTIONS(LIST)                                                                                         \
    static struct { LIST(FAMILY_POINTER) } cu;                                                                         \
    static const struct function functions[] = {LIST(FAMILY_ROW){NULL, NULL, 0, NULL}};

/* Calls the driver, with the clock running: nobody may be held up. */
#define CALL(expression)                                                                                               \
    __extension__({                                                                                                    \
        struct stopwatch call_watch = watch_start();                                                                   \
        CUresult call_result = (expression);                                                                           \
        watch_stop(&call_watch, #expression);                                                                          \
        call_result;                                                                                                   \
    })

struct stopwatch {
    uint64_t began_ns;
};
struct stopwatch watch_start(void);
void watch_stop(const struct stopwatch *watch, const char *what);

/* Appends to the text that tells of the operation. */
void say(struct call *call, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A finding: what the driver must not have answered. */
void wrong(struct call *call, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * Before a call that takes memory: `need` bytes of the current context's GPU at most. After it, judged says what its
 * result means: done, refused, or wrong. True if done. What is not CUDA_SUCCESS or out of memory is wrong.
 */
void needs(struct call *call, uint64_t bytes);
/* The same of every GPU that the process sees, for memory that may come to lie on any of them. */
void needs_everywhere(struct call *call, uint64_t bytes);
bool judged(struct call *call, CUresult result);
/* For a call that takes no memory. */
bool expect(struct call *call, CUresult result, CUresult expected, const char *what);
/* The claim's physical bytes change by that. */
void grows(struct call *call, int64_t least, int64_t most);

/* Makes a living context current, a new one if need be. False if there can be none now; the outcome is set then. */
bool need_context(struct call *call);
bool use_context(struct call *call, struct context *context);
/* Another context may be current for this thread than use_context remembers. */
void current_changed(void);
/* Destroys or resets it; exclusive. */
void context_end(struct call *call, struct context *context);

uint64_t rounded(uint64_t bytes, uint64_t to);

/* A size for an allocation: small, large, or such that it fits exactly, or just not. */
uint64_t random_size(struct call *call);

/* Whether this process can use the GPU (has a claim on it). */
bool gpu_claimed(int gpu);

#endif
