/*
 * Green contexts: shares of a GPU's multiprocessors. A green context is the primary context under another handle, and
 * costs some memory of its own. Kernels here take the same time wherever they run.
 */
#include <string.h>

#include "cuda/memory/heap.h"
#include "cuda/work/stream.h"
#include "mps_client.h"

#define GREEN_BYTES (16 * MIB)
#define RESOURCE_MAGIC 0x53694d67u /* in the resources' padding: that we made them */
#define MAX_GROUPS 256

struct CUgreenCtx_st {
    struct handle handle;
    CUdevice device;
    unsigned sm_count;
    struct CUctx_st *primary;
    struct CUctx_st *context; /* its handle as a context */
};

struct CUdevResourceDesc_st {
    struct handle handle;
    CUdevice device;
    unsigned sm_count;
};

static struct handle_table greens = HANDLE_TABLE(6, 1 << 12);
static struct handle_table descs = HANDLE_TABLE(6, 1 << 16);
_Static_assert(sizeof(struct CUgreenCtx_st) <= 1 << 6, "a green context must fit into its element");

/* What is in a resource's padding. */
struct origin {
    uint32_t magic;
    CUdevice device;
    uint32_t split; /* which call made it; 0: it is not a part */
};
_Static_assert(sizeof(struct origin) <= sizeof(((CUdevResource *)NULL)->_internal_padding), "must fit");

/* ---- Resources ---- */

static CUdevResource resource_of(CUdevice device, unsigned sm_count, uint32_t split) {
    const struct origin origin = {RESOURCE_MAGIC, device, split};
    CUdevResource resource = {.type = CU_DEV_RESOURCE_TYPE_SM};

    memcpy(resource._internal_padding, &origin, sizeof(origin));
    resource.sm.smCount = sm_count;
    return resource;
}

static CUresult origin_of(const CUdevResource *resource, struct origin *origin) {
    REQUIRE(resource->type == CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE);
    memcpy(origin, resource->_internal_padding, sizeof(*origin));
    REQUIRE(origin->magic == RESOURCE_MAGIC && device_valid(origin->device), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    return CUDA_SUCCESS;
}

static CUresult give_resource(CUdevResource *out, CUdevResourceType type, CUdevice device, unsigned sm_count) {
    REQUIRE(out != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(type == CU_DEV_RESOURCE_TYPE_SM, CUDA_ERROR_INVALID_RESOURCE_TYPE);
    *out = resource_of(device, sm_count, 0);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type) {
    REQUIRE_INITIALISED();
    REQUIRE(device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    return give_resource(resource, type, device, (unsigned)mps_client_multiprocessors(device));
}

CUresult cuCtxGetDevResource(CUcontext hCtx, CUdevResource *resource, CUdevResourceType type) {
    REQUIRE(resource != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_INITIALISED();
    REQUIRE(handle_valid(&contexts, hCtx), CUDA_ERROR_INVALID_CONTEXT);
    return give_resource(resource, type, hCtx->device,
                         hCtx->green != NULL ? hCtx->green->sm_count
                                             : (unsigned)mps_client_multiprocessors(hCtx->device));
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx hCtx, CUdevResource *resource, CUdevResourceType type) {
    REQUIRE(resource != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_INITIALISED();
    REQUIRE(handle_valid(&greens, hCtx), CUDA_ERROR_INVALID_CONTEXT);
    return give_resource(resource, type, hCtx->device, hCtx->sm_count);
}

/* The fewest multiprocessors of a group; group sizes are multiples of `step`. */
static unsigned group_size(CUdevice device, unsigned flags, unsigned wanted) {
    int major = device_gpu(device)->cc_major;
    bool alone = (flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING) != 0;
    unsigned step = major >= 9 && !alone ? 8 : major >= 7 ? 2 : 1;
    unsigned least = major >= 9 && !alone ? 8 : major == 8 && !alone ? 4 : step;

    return (unsigned)round_up(wanted > least ? wanted : least, step);
}

CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *nbGroups, const CUdevResource *input,
                                     CUdevResource *remaining, unsigned int useFlags, unsigned int minCount) {
    static _Atomic uint32_t splits;
    unsigned size, count;
    struct origin origin;
    uint32_t split;

    REQUIRE_INITIALISED();
    REQUIRE(nbGroups != NULL && input != NULL && useFlags <= 3, CUDA_ERROR_INVALID_VALUE);
    TRY(origin_of(input, &origin));
    REQUIRE(origin.split == 0, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    REQUIRE(minCount <= input->sm.smCount && (result == NULL || *nbGroups > 0), CUDA_ERROR_INVALID_VALUE);
    size = group_size(origin.device, useFlags, minCount);
    count = input->sm.smCount / size;
    REQUIRE(count > 0, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    if (result != NULL && *nbGroups < count)
        count = *nbGroups;
    split = atomic_fetch_add(&splits, 1) + 1;
    for (unsigned i = 0; i < count && result != NULL; i++)
        result[i] = resource_of(origin.device, size, split);
    if (remaining != NULL) {
        unsigned rest = input->sm.smCount - count * size;

        *remaining = rest > 0 ? resource_of(origin.device, rest, split) : (CUdevResource){0};
    }
    *nbGroups = count;
    return CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *phDesc, CUdevResource *resources, unsigned int nbResources) {
    struct origin first = {0}, origin;
    struct CUdevResourceDesc_st *desc;
    unsigned sm_count = 0;

    REQUIRE_INITIALISED();
    REQUIRE(phDesc != NULL && resources != NULL && nbResources > 0 && nbResources <= MAX_GROUPS,
            CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < nbResources; i++) {
        TRY(origin_of(&resources[i], &origin));
        if (i == 0)
            first = origin;
        REQUIRE(origin.device == first.device &&
                    (nbResources == 1 || (origin.split != 0 && origin.split == first.split)),
                CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
        sm_count += resources[i].sm.smCount;
    }
    desc = handle_new(&descs);
    REQUIRE(desc != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    desc->device = first.device;
    desc->sm_count = sm_count;
    *phDesc = desc;
    return CUDA_SUCCESS;
}

/* ---- Contexts ---- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* around the making and the end of green contexts */

static CUresult take_memory(struct CUgreenCtx_st *green) {
    TRY(heap_reserve_physical(driver->gpus[green->device], GREEN_BYTES, green));
    green->context = context_green_new(green->primary, green);
    if (green->context == NULL) {
        sim_release(driver->gpus[green->device], GREEN_BYTES, green);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_count_context(driver->gpus[green->device], (int64_t)GREEN_BYTES);
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags) {
    struct CUgreenCtx_st *green;
    struct CUctx_st *primary;
    CUresult ret;

    REQUIRE_INITIALISED();
    REQUIRE(phCtx != NULL && flags == CU_GREEN_CTX_DEFAULT_STREAM && handle_valid(&descs, desc),
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_valid(dev) && dev == desc->device, CUDA_ERROR_INVALID_DEVICE);
    TRY(cuDevicePrimaryCtxRetain(&primary, dev));
    pthread_mutex_lock(&mutex);
    green = handle_new(&greens);
    ret = CUDA_ERROR_OUT_OF_MEMORY;
    if (green != NULL) {
        green->device = dev;
        green->sm_count = desc->sm_count;
        green->primary = primary;
        ret = take_memory(green);
    }
    if (green != NULL && ret != CUDA_SUCCESS)
        handle_delete(&greens, green);
    pthread_mutex_unlock(&mutex);
    if (ret != CUDA_SUCCESS) {
        cuDevicePrimaryCtxRelease_v2(dev);
        return ret;
    }
    *phCtx = green;
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreenCtx hCtx) {
    struct CUgreenCtx_st gone = {0};
    bool valid;

    REQUIRE_INITIALISED();
    pthread_mutex_lock(&mutex);
    valid = handle_valid(&greens, hCtx);
    if (valid) {
        gone = *hCtx;
        handle_delete(&greens, hCtx);
    }
    pthread_mutex_unlock(&mutex);
    REQUIRE(valid, CUDA_ERROR_INVALID_CONTEXT);
    context_wait(gone.primary);
    context_green_delete(gone.context);
    sim_count_context(driver->gpus[gone.device], -(int64_t)GREEN_BYTES);
    sim_release(driver->gpus[gone.device], GREEN_BYTES, hCtx);
    cuDevicePrimaryCtxRelease_v2(gone.device);
    return CUDA_SUCCESS;
}

CUresult cuCtxFromGreenCtx(CUcontext *pContext, CUgreenCtx hCtx) {
    REQUIRE(pContext != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_INITIALISED();
    REQUIRE(handle_valid(&greens, hCtx), CUDA_ERROR_INVALID_CONTEXT);
    *pContext = hCtx->context;
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxRecordEvent(CUgreenCtx hCtx, CUevent hEvent) {
    REQUIRE_INITIALISED();
    REQUIRE(handle_valid(&greens, hCtx), CUDA_ERROR_INVALID_CONTEXT);
    return event_record_all(hCtx->primary, hEvent);
}

CUresult cuGreenCtxWaitEvent(CUgreenCtx hCtx, CUevent hEvent) {
    REQUIRE_INITIALISED();
    REQUIRE(handle_valid(&greens, hCtx), CUDA_ERROR_INVALID_CONTEXT);
    return event_wait_all(hCtx->device, hEvent);
}

/* ---- Streams ---- */

CUresult cuGreenCtxStreamCreate(CUstream *phStream, CUgreenCtx greenCtx, unsigned int flags, int priority) {
    CUresult ret;

    REQUIRE_INITIALISED();
    REQUIRE(phStream != NULL && flags == CU_STREAM_NON_BLOCKING, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(handle_valid(&greens, greenCtx), CUDA_ERROR_INVALID_CONTEXT);
    TRY(cuCtxPushCurrent_v2(greenCtx->context));
    ret = cuStreamCreateWithPriority(phStream, flags, priority);
    cuCtxPopCurrent_v2(NULL);
    return ret;
}

CUresult cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx *phCtx) {
    struct CUgreenCtx_st *green;
    struct CUstream_st *stream;

    REQUIRE(phCtx != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_CONTEXT(context);
    TRY(stream_find(context, hStream, false, &stream));
    green = hStream > CU_STREAM_PER_THREAD ? stream->green : context_green();
    *phCtx = handle_valid(&greens, green) ? green : NULL;
    return CUDA_SUCCESS;
}
