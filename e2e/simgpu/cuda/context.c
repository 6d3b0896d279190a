/* Contexts: which one is current for a thread, and what one costs. */
#include <stdlib.h>
#include <string.h>

#include "cuda/memory/heap.h"
#include "cuda/memory/pool.h"
#include "cuda/private/storage.h"
#include "cuda/work/capture.h"
#include "cuda/work/engine.h"
#include "mps_client.h"

#include "../sharing.h"

#define STACK_DEPTH 64
#define THREADS_PER_SM 2048
#define INCLUDED_LOCAL_BYTES 1024
#define MAX_LOCAL_BYTES (512 * KIB)

struct handle_table contexts = HANDLE_TABLE(10, 4096);
_Static_assert(sizeof(struct CUctx_st) <= 1 << 10, "a context must fit into its element");

/* The thread's stack of contexts, the current one last. An entry may be NULL: cuCtxSetCurrent(NULL). The entries are made
 * with the first one: a static program that loads us has hardly any room for variables of a thread. */
struct stack_entry {
    struct CUctx_st *context;
    uint64_t id;
};
static __thread struct {
    int depth;
    struct stack_entry *entries;
} stack;
static pthread_key_t stack_key;
static pthread_once_t stack_key_made = PTHREAD_ONCE_INIT;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* around the making and unmaking of contexts */
static uint64_t next_id = 1, lives;
static struct primary {
    struct CUctx_st *context; /* made at the first retain, and from then on the same */
    uint64_t id;
    unsigned retained;
    unsigned flags;
    bool active;
} primaries[SIM_MAX_GPUS];

/* A primary context that was reset or released is in its table still: its handle must stay the same. */
static bool context_alive(const struct CUctx_st *context) {
    return handle_valid(&contexts, context) && (!context->primary || primaries[context->device].active);
}

/* The target of a context that lives; NULL of one that does not, or is being made. It is read first: another thread may
 * destroy the context at any time, and make another of the same element. */
static struct CUctx_st *living_target(const struct CUctx_st *context) {
    struct CUctx_st *target = handle_valid(&contexts, context) ? context->target : NULL;

    return context_alive(context) ? target : NULL;
}

CUresult context_current(struct CUctx_st **context) {
    struct CUctx_st *current, *target;

    REQUIRE_INITIALISED();
    if (stack.depth == 0 || stack.entries[stack.depth - 1].context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    current = stack.entries[stack.depth - 1].context;
    target = living_target(current);
    if (target == NULL || current->id != stack.entries[stack.depth - 1].id)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    TRY(gpu_error(context_gpu(target)));
    *context = target;
    return CUDA_SUCCESS;
}

/* ---- Making and unmaking. Under the mutex. ---- */

static void set_default_limits(struct CUctx_st *context) {
    context->limits[CU_LIMIT_STACK_SIZE] = 1024;
    context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = MIB;
    context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 * MIB;
    context->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
    context->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
    context->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 128;
}

/* The server has the GPU for the clients of MPS, but nobody gets a context where the compute mode is to have none. */
static CUresult enter_gpu(CUdevice device) {
    int gpu = driver->gpus[device];

    if (mps_client())
        return sim_compute_mode(gpu) == SIM_COMPUTE_PROHIBITED ? CUDA_ERROR_DEVICE_UNAVAILABLE
                                                               : mps_client_context_new(device);
    return sim_use(gpu) == 0 ? CUDA_SUCCESS : CUDA_ERROR_DEVICE_UNAVAILABLE;
}

static void leave_gpu(CUdevice device) {
    if (mps_client())
        mps_client_context_gone(device);
    else
        sim_unuse(driver->gpus[device]);
}

/* Gives back everything that the context holds. */
static void clear(struct CUctx_st *context) {
    uint64_t heaps = context->overhead_bytes;

    context_abandon_waits(context);
    context_wait(context);
    context->ending = false; /* a primary one may be revived */
    pools_synchronised(context->device);
    events_context_gone(context);
    streams_context_gone(context);
    modules_context_gone(context);
    textures_context_gone(context);
    arrays_context_gone(context);
    memory_context_gone(context);
    sim_count_context(context_gpu(context), -(int64_t)heaps);
    sim_release(context_gpu(context), heaps, context);
    leave_gpu(context->device);
    context->overhead_bytes = 0;
    context->peers = 0;
}

void context_launches_anew(struct CUctx_st *context) {
    static _Atomic uint64_t epoch = 1;

    atomic_store(&context->launch_epoch, atomic_fetch_add(&epoch, 1) + 1);
}

/* Takes the context's overhead from the GPU and makes it usable. */
static CUresult revive(struct CUctx_st *context) {
    uint64_t overhead = device_gpu(context->device)->context_bytes;
    CUresult ret;

    TRY(gpu_error(context_gpu(context)));
    TRY(enter_gpu(context->device));
    ret = heap_reserve_physical(context_gpu(context), overhead, context);
    if (ret == CUDA_SUCCESS && !streams_context_new(context)) {
        sim_release(context_gpu(context), overhead, context);
        ret = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (ret != CUDA_SUCCESS) {
        leave_gpu(context->device);
        return ret;
    }
    context->target = context;
    context->overhead_bytes = overhead;
    context->local_bytes = context->kernel_local_bytes = 0;
    context->life = ++lives;
    context->launched = false;
    set_default_limits(context);
    sim_count_context(context_gpu(context), (int64_t)overhead);
    context_launches_anew(context);
    ret = libraries_context_new(context);
    if (ret != CUDA_SUCCESS)
        clear(context);
    return ret;
}

/* A handle, without anything on the GPU until it is revived. NULL if there is no room. */
static struct CUctx_st *context_handle(CUdevice device, unsigned flags, unsigned api_version) {
    struct CUctx_st *fresh = handle_new(&contexts);

    if (fresh == NULL)
        return NULL;
    fresh->device = device;
    fresh->flags = flags;
    fresh->api_version = api_version;
    fresh->attached = 1;
    fresh->id = next_id++;
    return fresh;
}

static CUresult context_new(CUdevice device, unsigned flags, unsigned api_version, struct CUctx_st **context) {
    struct CUctx_st *fresh = context_handle(device, flags, api_version);
    CUresult ret;

    if (fresh == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    ret = revive(fresh);
    if (ret != CUDA_SUCCESS) {
        handle_delete(&contexts, fresh);
        return ret;
    }
    *context = fresh;
    return CUDA_SUCCESS;
}

/* ---- The thread's stack ---- */

/* At the end of a thread, whose other destructors may still call us. */
static void drop_stack(void *entries) {
    free(entries);
    stack.entries = NULL;
    stack.depth = 0;
}

static void make_stack_key(void) {
    pthread_key_create(&stack_key, drop_stack);
}

static bool stack_has_room(void) {
    if (stack.entries == NULL) {
        pthread_once(&stack_key_made, make_stack_key);
        stack.entries = calloc(STACK_DEPTH, sizeof(*stack.entries));
        pthread_setspecific(stack_key, stack.entries);
    }
    return stack.entries != NULL && stack.depth < STACK_DEPTH;
}

static CUresult push(struct CUctx_st *context) {
    if (!stack_has_room())
        return CUDA_ERROR_OUT_OF_MEMORY;
    stack.entries[stack.depth].context = context;
    stack.entries[stack.depth].id = context->id;
    stack.depth++;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
    REQUIRE_INITIALISED();
    REQUIRE(ctx != NULL && context_alive(ctx), CUDA_ERROR_INVALID_CONTEXT);
    return push(ctx);
}

CUresult cuCtxPushCurrent(CUcontext ctx) {
    return cuCtxPushCurrent_v2(ctx);
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx) {
    REQUIRE_INITIALISED();
    REQUIRE(stack.depth > 0 && stack.entries[stack.depth - 1].context != NULL, CUDA_ERROR_INVALID_CONTEXT);
    stack.depth--;
    if (pctx != NULL)
        *pctx = stack.entries[stack.depth].context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *pctx) {
    return cuCtxPopCurrent_v2(pctx);
}

CUresult cuCtxSetCurrent(CUcontext ctx) {
    REQUIRE_INITIALISED();
    REQUIRE(ctx == NULL || context_alive(ctx), CUDA_ERROR_INVALID_CONTEXT);
    if (stack.depth > 0)
        stack.depth--;
    return ctx != NULL ? push(ctx) : CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *pctx) {
    REQUIRE_INITIALISED();
    REQUIRE(pctx != NULL, CUDA_ERROR_INVALID_VALUE);
    *pctx = stack.depth > 0 ? stack.entries[stack.depth - 1].context : NULL;
    return CUDA_SUCCESS;
}

/* ---- Green contexts: the primary context under another handle ---- */

/* Under the mutex from the first on: a handle that is not `primary` yet is for cuCtxDestroy. */
struct CUctx_st *context_green_new(struct CUctx_st *primary, struct CUgreenCtx_st *green) {
    struct CUctx_st *handle;

    pthread_mutex_lock(&mutex);
    handle = handle_new(&contexts);
    if (handle != NULL) {
        handle->primary = true; /* lives and dies with it */
        handle->device = primary->device;
        handle->flags = primary->flags;
        handle->api_version = primary->api_version;
        handle->target = primary;
        handle->green = green;
        handle->id = next_id++;
    }
    pthread_mutex_unlock(&mutex);
    return handle;
}

void context_green_delete(struct CUctx_st *handle) {
    if (stack.depth > 0 && stack.entries[stack.depth - 1].context == handle)
        stack.depth--;
    pthread_mutex_lock(&mutex);
    handle_delete(&contexts, handle);
    pthread_mutex_unlock(&mutex);
}

struct CUgreenCtx_st *context_green(void) {
    struct CUctx_st *current = stack.depth > 0 ? stack.entries[stack.depth - 1].context : NULL;

    return current != NULL && context_alive(current) ? current->green : NULL;
}

/* ---- Explicit contexts ---- */

static bool flags_valid(unsigned flags) {
    unsigned scheduling = flags & CU_CTX_SCHED_MASK;

    return (flags & ~(unsigned)CU_CTX_FLAGS_MASK) == 0 &&
           (scheduling == CU_CTX_SCHED_AUTO || scheduling == CU_CTX_SCHED_SPIN || scheduling == CU_CTX_SCHED_YIELD ||
            scheduling == CU_CTX_SCHED_BLOCKING_SYNC);
}

static CUresult create(CUcontext *pctx, unsigned flags, CUdevice dev, unsigned api_version) {
    struct CUctx_st *context;
    CUresult ret;

    REQUIRE_INITIALISED();
    REQUIRE(pctx != NULL && flags_valid(flags), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_valid(dev), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(stack_has_room(), CUDA_ERROR_OUT_OF_MEMORY);
    pthread_mutex_lock(&mutex);
    ret = context_new(dev, flags, api_version, &context);
    pthread_mutex_unlock(&mutex);
    if (ret != CUDA_SUCCESS)
        return ret;
    push(context);
    *pctx = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev) {
    return create(pctx, flags, dev, 3010);
}

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev) {
    return create(pctx, flags, dev, 3020);
}

/* Execution affinity is for MPS clients; the simulated MPS knows percentages only. */
CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags,
                        CUdevice dev) {
    REQUIRE_INITIALISED();
    REQUIRE((paramsArray != NULL) == (numParams > 0) && numParams >= 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(numParams == 0, CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
    return create(pctx, flags, dev, 3020);
}

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev) {
    REQUIRE_INITIALISED();
    if (ctxCreateParams != NULL) {
        REQUIRE(ctxCreateParams->cigParams == NULL, CUDA_ERROR_NOT_SUPPORTED);
        return cuCtxCreate_v3(pctx, ctxCreateParams->execAffinityParams, ctxCreateParams->numExecAffinityParams, flags,
                              dev);
    }
    return create(pctx, flags, dev, 3020);
}

CUresult cuCtxDestroy_v2(CUcontext ctx) {
    struct stored *values;

    REQUIRE(ctx != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_INITIALISED();
    pthread_mutex_lock(&mutex);
    if (!context_alive(ctx) || ctx->primary) {
        pthread_mutex_unlock(&mutex);
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    values = storage_context_gone(ctx);
    clear(ctx);
    /* Destroying the current context pops it; other threads find out when they next use it. */
    if (stack.depth > 0 && stack.entries[stack.depth - 1].context == ctx)
        stack.depth--;
    handle_delete(&contexts, ctx);
    pthread_mutex_unlock(&mutex);
    storage_drop(values);
    return CUDA_SUCCESS;
}

CUresult cuCtxDestroy(CUcontext ctx) {
    return cuCtxDestroy_v2(ctx);
}

CUresult cuCtxAttach(CUcontext *pctx, unsigned int flags) {
    REQUIRE_CONTEXT(context);
    REQUIRE(pctx != NULL && flags == 0, CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&mutex);
    context->attached++;
    pthread_mutex_unlock(&mutex);
    *pctx = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext ctx) {
    bool last;

    REQUIRE_CONTEXT(context);
    REQUIRE(ctx == context && !ctx->primary, CUDA_ERROR_INVALID_CONTEXT);
    pthread_mutex_lock(&mutex);
    last = --ctx->attached == 0;
    pthread_mutex_unlock(&mutex);
    return last ? cuCtxDestroy_v2(ctx) : CUDA_SUCCESS;
}

/* ---- Primary contexts ---- */

/* The context's handle, which is the same whether it is active or not. */
static CUresult primary_handle_locked(struct primary *primary, CUdevice device) {
    if (primary->context == NULL) {
        primary->context = context_handle(device, primary->flags, 3020);
        REQUIRE(primary->context != NULL, CUDA_ERROR_OUT_OF_MEMORY);
        primary->context->primary = true;
    }
    return CUDA_SUCCESS;
}

CUresult context_primary_handle(CUdevice device, CUcontext *context) {
    CUresult ret;

    pthread_mutex_lock(&mutex);
    ret = primary_handle_locked(&primaries[device], device);
    if (ret == CUDA_SUCCESS)
        *context = primaries[device].context;
    pthread_mutex_unlock(&mutex);
    return ret;
}

static CUresult retain_locked(struct primary *primary, CUdevice device) {
    CUresult ret = primary_handle_locked(primary, device);

    if (ret == CUDA_SUCCESS && !primary->active) {
        primary->context->flags = primary->flags;
        ret = revive(primary->context);
    }
    if (ret == CUDA_SUCCESS) {
        primary->active = true;
        primary->retained++;
    }
    return ret;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
    CUresult ret;

    REQUIRE_INITIALISED();
    REQUIRE(pctx != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_valid(dev), CUDA_ERROR_INVALID_DEVICE);
    pthread_mutex_lock(&mutex);
    ret = retain_locked(&primaries[dev], dev);
    if (ret == CUDA_SUCCESS)
        *pctx = primaries[dev].context;
    pthread_mutex_unlock(&mutex);
    return ret;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
    struct stored *values = NULL;
    CUresult ret = CUDA_SUCCESS;

    REQUIRE_INITIALISED();
    REQUIRE(device_valid(dev), CUDA_ERROR_INVALID_DEVICE);
    pthread_mutex_lock(&mutex);
    if (primaries[dev].retained == 0) {
        ret = CUDA_ERROR_INVALID_CONTEXT;
    } else if (--primaries[dev].retained == 0) {
        values = storage_context_gone(primaries[dev].context);
        clear(primaries[dev].context);
        primaries[dev].active = false;
    }
    pthread_mutex_unlock(&mutex);
    storage_drop(values);
    return ret;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
    return cuDevicePrimaryCtxRelease_v2(dev);
}

/* Whoever retained it has to retain it anew. */
CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
    struct stored *values = NULL;

    REQUIRE_INITIALISED();
    REQUIRE(device_valid(dev), CUDA_ERROR_INVALID_DEVICE);
    pthread_mutex_lock(&mutex);
    if (primaries[dev].active) {
        values = storage_context_gone(primaries[dev].context);
        clear(primaries[dev].context);
        primaries[dev].active = false;
        primaries[dev].retained = 0;
    }
    pools_device_reset(dev);
    graph_memory_reset(dev);
    pthread_mutex_unlock(&mutex);
    storage_drop(values);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev) {
    return cuDevicePrimaryCtxReset_v2(dev);
}

static CUresult set_primary_flags(CUdevice dev, unsigned flags, bool while_active) {
    CUresult ret = CUDA_SUCCESS;

    REQUIRE_INITIALISED();
    REQUIRE(flags_valid(flags), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_valid(dev), CUDA_ERROR_INVALID_DEVICE);
    pthread_mutex_lock(&mutex);
    if (primaries[dev].active && !while_active) {
        ret = CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE;
    } else {
        primaries[dev].flags = flags;
        if (primaries[dev].active)
            primaries[dev].context->flags = flags;
    }
    pthread_mutex_unlock(&mutex);
    return ret;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
    return set_primary_flags(dev, flags, false);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
    return set_primary_flags(dev, flags, true);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active) {
    REQUIRE(flags != NULL && active != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_INITIALISED();
    REQUIRE(device_valid(dev), CUDA_ERROR_INVALID_DEVICE);
    pthread_mutex_lock(&mutex);
    *flags = primaries[dev].flags;
    *active = primaries[dev].active;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

/* ---- What a context can be asked ---- */

CUresult cuCtxGetDevice(CUdevice *device) {
    REQUIRE_CONTEXT(context);
    REQUIRE(device != NULL, CUDA_ERROR_INVALID_VALUE);
    *device = context->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int *flags) {
    REQUIRE(flags != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_CONTEXT(context);
    *flags = context->flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags) {
    REQUIRE_CONTEXT(context);
    REQUIRE(flags_valid(flags), CUDA_ERROR_INVALID_VALUE);
    context->flags = flags;
    return CUDA_SUCCESS;
}

/* The context that a call means which takes NULL for the current one. */
static CUresult named_context(CUcontext ctx, struct CUctx_st **context) {
    REQUIRE_INITIALISED();
    if (ctx == NULL)
        return context_current(context);
    *context = living_target(ctx);
    return *context != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long *ctxId) {
    struct CUctx_st *context;

    REQUIRE(ctxId != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(named_context(ctx, &context));
    *ctxId = context->id;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version) {
    struct CUctx_st *context;

    TRY(named_context(ctx, &context));
    REQUIRE(version != NULL, CUDA_ERROR_INVALID_VALUE);
    *version = context->api_version;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
    REQUIRE_CONTEXT(context);
    TRY(capture_forbid_context(context));
    context_wait(context);
    pools_synchronised(context->device);
    return gpu_error(context_gpu(context));
}

/* What a context takes beyond its overhead, more or less of it: all of it goes when the context does. */
static CUresult resize_overhead(struct CUctx_st *context, uint64_t before, uint64_t after) {
    if (after > before)
        TRY(heap_reserve_physical(context_gpu(context), after - before, context));
    else
        sim_release(context_gpu(context), before - after, context);
    context->overhead_bytes += after - before;
    sim_count_context(context_gpu(context), (int64_t)(after - before));
    return CUDA_SUCCESS;
}

/*
 * The device heap and the printf buffer of their default size are part of the context's overhead; what they are made
 * larger by is taken from the GPU, in its granularity.
 */
static CUresult resize_heap(struct CUctx_st *context, CUlimit limit, size_t value) {
    uint64_t included = limit == CU_LIMIT_MALLOC_HEAP_SIZE ? 8 * MIB : MIB;
    uint64_t before =
        context->limits[limit] > included ? round_up(context->limits[limit] - included, SIM_GRANULARITY) : 0;
    uint64_t after = value > included ? round_up(value - included, SIM_GRANULARITY) : 0;

    if (value > device_gpu(context->device)->memory_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(resize_overhead(context, before, after));
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}

/* There is local memory for every thread that the GPU can run at once. What 1 KiB for each takes is in the overhead. */
static uint64_t local_memory(const struct CUctx_st *context, uint64_t bytes) {
    uint64_t threads = (uint64_t)mps_client_multiprocessors(context->device) * THREADS_PER_SM;

    return bytes > INCLUDED_LOCAL_BYTES ? round_up((bytes - INCLUDED_LOCAL_BYTES) * threads, SIM_GRANULARITY) : 0;
}

static CUresult resize_local(struct CUctx_st *context, uint64_t stack_bytes, uint64_t kernel_bytes) {
    uint64_t bytes = stack_bytes > kernel_bytes ? stack_bytes : kernel_bytes;

    TRY(resize_overhead(context, local_memory(context, context->local_bytes), local_memory(context, bytes)));
    context->local_bytes = bytes;
    context->limits[CU_LIMIT_STACK_SIZE] = stack_bytes;
    context->kernel_local_bytes = kernel_bytes;
    return CUDA_SUCCESS;
}

CUresult context_grow_local(struct CUctx_st *context, uint64_t bytes) {
    CUresult ret = CUDA_SUCCESS;

    pthread_mutex_lock(&mutex);
    if (!context_alive(context))
        ret = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    else if (bytes > context->kernel_local_bytes)
        ret = resize_local(context, context->limits[CU_LIMIT_STACK_SIZE], bytes);
    pthread_mutex_unlock(&mutex);
    return ret;
}

/* ---- What the driver takes on its own ---- */

CUresult context_take_own(struct CUctx_st *context, uint64_t bytes, uint64_t *life) {
    CUresult ret = CUDA_ERROR_CONTEXT_IS_DESTROYED;

    pthread_mutex_lock(&mutex);
    if (context_alive(context)) {
        ret = resize_overhead(context, 0, bytes);
        *life = context->life;
    }
    pthread_mutex_unlock(&mutex);
    return ret;
}

void context_give_own(struct CUctx_st *context, uint64_t life, uint64_t bytes) {
    pthread_mutex_lock(&mutex);
    if (context_alive(context) && context->life == life)
        resize_overhead(context, bytes, 0);
    pthread_mutex_unlock(&mutex);
}

CUresult context_first_launch(struct CUctx_st *context) {
    CUresult ret = CUDA_SUCCESS;

    pthread_mutex_lock(&mutex);
    if (!context_alive(context))
        ret = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    else if (!context->launched)
        ret = resize_overhead(context, 0, sim_topology()->own_launch_bytes);
    context->launched |= ret == CUDA_SUCCESS;
    pthread_mutex_unlock(&mutex);
    return ret;
}

/* ---- Limits ---- */

static bool limit_known(CUlimit limit) {
    return (int)limit >= 0 && limit < CU_LIMIT_MAX;
}

static bool limit_supported(CUlimit limit) {
    return limit <= CU_LIMIT_PERSISTING_L2_CACHE_SIZE;
}

static CUresult set_limit(struct CUctx_st *context, CUlimit limit, size_t value) {
    REQUIRE(context_alive(context), CUDA_ERROR_CONTEXT_IS_DESTROYED); /* since the caller found it */
    if (limit == CU_LIMIT_MALLOC_HEAP_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE)
        return resize_heap(context, limit, value);
    if (limit == CU_LIMIT_STACK_SIZE)
        return value <= MAX_LOCAL_BYTES ? resize_local(context, value, context->kernel_local_bytes)
                                        : CUDA_ERROR_INVALID_VALUE;
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    CUresult ret;

    REQUIRE_CONTEXT(context);
    REQUIRE(limit_known(limit), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(limit_supported(limit), CUDA_ERROR_UNSUPPORTED_LIMIT);
    pthread_mutex_lock(&mutex);
    ret = set_limit(context, limit, value);
    pthread_mutex_unlock(&mutex);
    return ret;
}

CUresult cuCtxGetLimit(size_t *pvalue, CUlimit limit) {
    REQUIRE_CONTEXT(context);
    REQUIRE(pvalue != NULL && limit_known(limit), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(limit_supported(limit), CUDA_ERROR_UNSUPPORTED_LIMIT);
    *pvalue = context->limits[limit];
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *pconfig) {
    REQUIRE_CONTEXT(context);
    REQUIRE(pconfig != NULL, CUDA_ERROR_INVALID_VALUE);
    *pconfig = context->cache_config;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
    REQUIRE_CONTEXT(context);
    REQUIRE((int)config >= CU_FUNC_CACHE_PREFER_NONE && config <= CU_FUNC_CACHE_PREFER_EQUAL, CUDA_ERROR_INVALID_VALUE);
    context->cache_config = config;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig *pConfig) {
    REQUIRE_CONTEXT(context);
    REQUIRE(pConfig != NULL, CUDA_ERROR_INVALID_VALUE);
    *pConfig = context->shared_config;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
    REQUIRE_CONTEXT(context);
    REQUIRE((int)config >= 0 && config <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE, CUDA_ERROR_INVALID_VALUE);
    context->shared_config = config;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority) {
    REQUIRE_CONTEXT(context);
    (void)context;
    if (leastPriority != NULL)
        *leastPriority = 0;
    if (greatestPriority != NULL)
        *greatestPriority = -5;
    return CUDA_SUCCESS;
}

CUresult cuCtxResetPersistingL2Cache(void) {
    REQUIRE_CONTEXT(context);
    (void)context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetExecAffinity(CUexecAffinityParam *pExecAffinity, CUexecAffinityType type) {
    REQUIRE_CONTEXT(context);
    (void)context;
    REQUIRE(pExecAffinity != NULL && type == CU_EXEC_AFFINITY_TYPE_SM_COUNT, CUDA_ERROR_INVALID_VALUE);
    return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
}

CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) {
    REQUIRE_CONTEXT(context);
    REQUIRE(Flags == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(peerContext != NULL && context_alive(peerContext) && peerContext != context, CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(peerContext->device != context->device, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    REQUIRE((context->peers & 1u << peerContext->device) == 0, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    context->peers |= 1u << peerContext->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peerContext) {
    REQUIRE_CONTEXT(context);
    REQUIRE(peerContext != NULL && context_alive(peerContext), CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE((context->peers & 1u << peerContext->device) != 0, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    context->peers &= ~(1u << peerContext->device);
    return CUDA_SUCCESS;
}
