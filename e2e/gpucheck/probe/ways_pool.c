/* Stream-ordered allocation. What is freed stays in the pool until it is trimmed, or a synchronisation finds more than
 * the release threshold. */
#include "ways.h"

static CUmemoryPool pool;
static CUstream stream;

static const char *need_pools(void) {
    return attribute(device, ATTRIBUTE_MEMORY_POOLS) ? NULL : "this GPU has no memory pools";
}

static const char *prepare_default(void) {
    const char *why = need_pools();
    CUresult result;
    if (why != NULL)
        return why;
    if ((result = cuda.cuDeviceGetDefaultMemPool(&pool, device)) != CUDA_SUCCESS)
        return because("cuDeviceGetDefaultMemPool: %s", error_name(result));
    return NULL;
}

static const char *prepare_stream(void) {
    enum { NON_BLOCKING = 1 };
    const char *why = prepare_default();
    CUresult result;
    if (why == NULL && (result = cuda.cuStreamCreate(&stream, NON_BLOCKING)) != CUDA_SUCCESS)
        why = because("cuStreamCreate: %s", error_name(result));
    return why;
}

CUmemPoolProps device_pool(bool exported) {
    return (CUmemPoolProps){.type = ALLOCATION_PINNED,
                            .handle_types = exported ? HANDLE_POSIX_FD : 0,
                            .location = {LOCATION_DEVICE, device}};
}

/* A pool that gives nothing back by itself. */
static const char *prepare_pool(void) {
    const char *why = need_pools();
    CUmemPoolProps properties = device_pool(false);
    uint64_t everything = UINT64_MAX;
    CUresult result;
    if (why != NULL)
        return why;
    if ((result = cuda.cuMemPoolCreate(&pool, &properties)) != CUDA_SUCCESS)
        return because("cuMemPoolCreate: %s", error_name(result));
    if ((result = cuda.cuMemPoolSetAttribute(pool, POOL_RELEASE_THRESHOLD, &everything)) != CUDA_SUCCESS)
        return because("cuMemPoolSetAttribute: %s", error_name(result));
    return NULL;
}

static CUresult take_async(uint64_t bytes, struct piece *piece) {
    CUresult result = cuda.cuMemAllocAsync(&piece->address, bytes, stream);
    return result == CUDA_SUCCESS ? cuda.cuStreamSynchronize(stream) : result;
}

static CUresult take_from_pool(uint64_t bytes, struct piece *piece) {
    CUresult result = cuda.cuMemAllocFromPoolAsync(&piece->address, bytes, pool, stream);
    return result == CUDA_SUCCESS ? cuda.cuStreamSynchronize(stream) : result;
}

static CUresult give_async(struct piece *piece) {
    CUresult result = cuda.cuMemFreeAsync(piece->address, stream);
    return result == CUDA_SUCCESS ? cuda.cuStreamSynchronize(stream) : result;
}

static CUresult give_plainly(struct piece *piece) {
    return cuda.cuMemFree_v2(piece->address);
}

static void trim(void) {
    cuda.cuStreamSynchronize(stream);
    cuda.cuMemPoolTrimTo(pool, 0);
}

static void destroy(void) {
    cuda.cuStreamSynchronize(stream);
    cuda.cuMemPoolDestroy(pool);
}

#define ASYNC                                                                                                          \
    FUNCTIONS("cuMemAllocAsync", "cuMemFreeAsync", "cuDeviceGetDefaultMemPool", "cuMemPoolTrimTo", "cuStreamCreate",   \
              "cuStreamSynchronize")

const struct way pool_ways[] = {
    {"async", "cuMemAllocAsync, default pool, default stream", 2 * MIB, ASYNC, prepare_default, take_async, give_async,
     trim},
    {"async-stream", "cuMemAllocAsync on a stream, freed with cuMemFree", 2 * MIB, ASYNC, prepare_stream, take_async,
     give_plainly, trim},
    {"pool", "cuMemAllocFromPoolAsync, own pool that keeps everything", 2 * MIB,
     FUNCTIONS("cuMemAllocFromPoolAsync", "cuMemFreeAsync", "cuMemPoolCreate", "cuMemPoolDestroy",
               "cuMemPoolSetAttribute", "cuStreamSynchronize"),
     prepare_pool, take_from_pool, give_async, destroy},
    {0},
};

/* docs/counting.md, "Memory pools in a full claim". */
uint64_t pool_most_again(const struct way *way, uint64_t bytes) {
    const uint64_t most = 32 * MIB;
    const struct way *end = pool_ways + sizeof pool_ways / sizeof pool_ways[0];
    return way >= pool_ways && way < end && bytes > most ? most : bytes;
}
