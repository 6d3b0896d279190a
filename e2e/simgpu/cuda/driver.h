/* What the files of the simulated CUDA driver share. */
#ifndef SIMGPU_DRIVER_H
#define SIMGPU_DRIVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cuda_sim.h"
#include "state.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

/* ---- Initialisation ---- */

/*
 * Lies in a page that the kernel wipes in a forked child, so the child of an initialised process finds itself
 * uninitialised, as with the driver, however it was forked.
 */
struct driver {
    atomic_bool initialised;
    int device_count;
    int gpus[SIM_MAX_GPUS]; /* device ordinal → GPU of the shared state */
    uint64_t kernel_ns;     /* how long a kernel takes whose name says nothing */
    uint64_t wake_ns;       /* from the end of work to the return of who waits for it */
    _Atomic int fatal;      /* the CUDA result of a kernel's exception: all calls give it from then on */
};

extern struct driver *driver;

/* The CUDA version of the topology, 12080 for 12.8; known before cuInit. 0 if there is no topology. */
int driver_version(void);

static inline bool driver_ready(void) {
    return driver != NULL && atomic_load_explicit(&driver->initialised, memory_order_acquire);
}

/* Returns from the calling function where the driver is not initialised, or, in the other, where an argument is bad. */
#define REQUIRE_INITIALISED()                                                                                          \
    do {                                                                                                               \
        if (!driver_ready())                                                                                           \
            return CUDA_ERROR_NOT_INITIALIZED;                                                                         \
    } while (0)
#define REQUIRE(condition, error)                                                                                      \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return (error);                                                                                            \
    } while (0)
/* Returns from the calling function with the result of `call` unless it succeeds. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        CUresult try_result = (call);                                                                                  \
        if (try_result != CUDA_SUCCESS)                                                                                \
            return try_result;                                                                                         \
    } while (0)

static inline bool device_valid(CUdevice device) {
    return device >= 0 && device < driver->device_count;
}

static inline const struct sim_gpu *device_gpu(CUdevice device) {
    return sim_gpu(driver->gpus[device]);
}

/* What all calls give that have to do with a GPU, or with this one; CUDA_SUCCESS as long as nothing is wrong. */
CUresult driver_error(void);
CUresult gpu_error(int gpu);

/* Counts a launch. The kernel may have been ordered to end with an exception, which the next call tells. */
void kernel_launched(CUdevice device);

/* ---- Handles ---- */

/*
 * Handles are addresses of elements of one table per type, so that a handle which is not alive is told from one that
 * is without touching memory that is not ours. Each element begins with `live`.
 */
struct handle_table {
    pthread_mutex_t mutex;
    unsigned shift;    /* an element takes 1 << shift bytes */
    uint32_t capacity; /* elements */
    _Atomic uint32_t used;
    uint32_t free_head; /* 1 + index of the first free element below `used` */
    char *base;
};

#define HANDLE_TABLE(element_shift, count)                                                                             \
    { .mutex = PTHREAD_MUTEX_INITIALIZER, .shift = (element_shift), .capacity = (count) }

struct handle {
    _Atomic uint32_t live;
    uint32_t next_free;
};

/* A new element, zeroed but for `live`; NULL if there is no room. */
void *handle_new(struct handle_table *table);
void handle_delete(struct handle_table *table, void *element);

static inline bool handle_valid(const struct handle_table *table, const void *handle) {
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)table->base;

    return table->base != NULL && offset >> table->shift < atomic_load_explicit(&table->used, memory_order_acquire) &&
           (offset & (((uintptr_t)1 << table->shift) - 1)) == 0 &&
           atomic_load_explicit(&((const struct handle *)handle)->live, memory_order_acquire) != 0;
}

/* Calls fn for every live element. */
void handle_each(struct handle_table *table, void (*fn)(void *element, void *arg), void *arg);

/* ---- Contexts ---- */

enum pack_kind { PACK_DEVICE, PACK_MANAGED, PACK_LOW, PACK_KINDS };
enum { PACK_BINS = 13 };

struct CUctx_st {
    struct handle handle;
    CUdevice device;
    unsigned flags;
    unsigned api_version;
    bool primary;
    int attached;
    uint64_t id; /* never used again; a primary context keeps its own through destruction and revival */
    uint64_t overhead_bytes;
    size_t limits[CU_LIMIT_MAX];
    CUfunc_cache cache_config;
    CUsharedconfig shared_config;
    _Atomic uint64_t mark;                  /* the end of all its GPU work, see engine.h */
    _Atomic uint64_t blocking_mark;         /* and of what the legacy default stream waits for */
    _Atomic uint32_t calls, blocking_calls; /* likewise, see calls.h; futexes */
    _Atomic uint32_t blocking_waits;        /* of these, that wait for something */
    _Atomic bool ending;                    /* nothing waits in it any more */
    struct CUstream_st *legacy;             /* its default stream */
    uint32_t allocations;                   /* head of its list, see heap.h */
    uint32_t packs[PACK_KINDS][PACK_BINS];
    uint64_t code_bytes; /* of its modules */
    uint64_t code_reserved_bytes;
    uint32_t peers; /* bit per device to whose primary or other context access was enabled */
    /* The context itself, of a green context's handle the primary context; NULL until it is made. */
    struct CUctx_st *_Atomic target;
    struct CUgreenCtx_st *green;   /* whose handle this is, or NULL */
    _Atomic uint64_t launch_epoch; /* see module.h: a launch has nothing to prepare if its function knows this one */
    uint64_t local_bytes;          /* of local memory for each thread, its kernels' and its limit's maximum */
    uint64_t kernel_local_bytes;   /* its kernels' alone */
    uint64_t life;                 /* another one each time it is revived */
    bool launched;                 /* the driver has taken what it takes with the first launch */
};

extern struct handle_table contexts;

/* The calling thread's current context: CUDA_ERROR_INVALID_CONTEXT without one, and what else may be wrong with it. */
CUresult context_current(struct CUctx_st **context);

static inline int context_gpu(const struct CUctx_st *context) {
    return driver->gpus[context->device];
}

/* Begins a function that needs a context: declares `context`. */
#define REQUIRE_CONTEXT(context)                                                                                       \
    struct CUctx_st *context;                                                                                          \
    do {                                                                                                               \
        CUresult context_result = context_current(&context);                                                           \
        if (context_result != CUDA_SUCCESS)                                                                            \
            return context_result;                                                                                     \
    } while (0)

/* The handle of a device's primary context, which need not be active. */
CUresult context_primary_handle(CUdevice device, CUcontext *context);

/* A context's legacy default stream is there from the beginning. */
bool streams_context_new(struct CUctx_st *context);

/* Waits for all work of the context, calls included. */
void context_wait(struct CUctx_st *context);

/* Makes every function look anew, at its next launch in the context, for what there is to prepare. */
void context_launches_anew(struct CUctx_st *context);

/* Libraries that are loaded eagerly go into every new context. */
CUresult libraries_context_new(struct CUctx_st *context);

/* A handle under which a green context can be current: it stands for the primary context. */
struct CUctx_st *context_green_new(struct CUctx_st *primary, struct CUgreenCtx_st *green);
void context_green_delete(struct CUctx_st *handle);

/* The green context that is current, or NULL. */
struct CUgreenCtx_st *context_green(void);

/* The event stands for all work of the context so far. */
CUresult event_record_all(struct CUctx_st *context, CUevent event);
/* Work of the GPU that is submitted from now on comes after the event. */
CUresult event_wait_all(CUdevice device, CUevent event);

/* Makes the context's local memory large enough for a kernel that needs so much for each thread. */
CUresult context_grow_local(struct CUctx_st *context, uint64_t bytes);

/* The driver takes memory on its own: with the first launch in the context, or for something that lives in it. What was
 * taken in this life of the context is given back with it, if not before. */
CUresult context_first_launch(struct CUctx_st *context);
CUresult context_take_own(struct CUctx_st *context, uint64_t bytes, uint64_t *life);
void context_give_own(struct CUctx_st *context, uint64_t life, uint64_t bytes);

/* What the other files let go of when a context dies. Called in this order. */
void events_context_gone(struct CUctx_st *context);
void streams_context_gone(struct CUctx_st *context);
void modules_context_gone(struct CUctx_st *context);
void textures_context_gone(struct CUctx_st *context);
void arrays_context_gone(struct CUctx_st *context);
void memory_context_gone(struct CUctx_st *context);

#endif
