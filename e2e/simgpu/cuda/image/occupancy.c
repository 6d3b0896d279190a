/* How many blocks, and clusters of blocks, of a kernel run at a time; see also module.c. */
#include "cuda/mps_client.h"
#include "module.h"

#define SM_SHARED_BYTES 233472
#define SM_BLOCKS 32
#define WARP 32
#define SM_THREADS 2048
#define RESERVED_SHARED_BYTES 1024 /* of each block */
#define PORTABLE_CLUSTER 8         /* blocks; larger clusters need an attribute that no function here has */

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, CUfunction func, int blockSize,
                                                              size_t dynamicSMemSize, unsigned int flags) {
    REQUIRE_INITIALISED();
    REQUIRE(flags <= CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE, CUDA_ERROR_INVALID_VALUE);
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(numBlocks, func, blockSize, dynamicSMemSize);
}

/* Of the sizes in whole warps the largest that has the most threads running at a time. */
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *minGridSize, int *blockSize, CUfunction func,
                                                   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   size_t dynamicSMemSize, int blockSizeLimit, unsigned int flags) {
    int most, running = 0, best = 0, best_blocks = 0, blocks;

    REQUIRE_CONTEXT(context);
    REQUIRE(minGridSize != NULL && blockSize != NULL && blockSizeLimit >= 0, CUDA_ERROR_INVALID_VALUE);
    TRY(cuFuncGetAttribute(&most, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, func));
    if (blockSizeLimit != 0 && blockSizeLimit < most)
        most = blockSizeLimit;
    for (int size = most; size > 0; size = (size - 1) / WARP * WARP) {
        size_t bytes = blockSizeToDynamicSMemSize != NULL ? blockSizeToDynamicSMemSize(size) : dynamicSMemSize;

        TRY(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, func, size, bytes, flags));
        if (blocks * size > running) {
            running = blocks * size;
            best = size;
            best_blocks = blocks;
        }
    }
    *minGridSize = best_blocks * mps_client_multiprocessors(context->device);
    *blockSize = best;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
                                          CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize,
                                          int blockSizeLimit) {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
                                                     dynamicSMemSize, blockSizeLimit, CU_OCCUPANCY_DEFAULT);
}

/* No block gets more than a launch may ask for at most. */
CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *dynamicSmemSize, CUfunction func, int numBlocks,
                                                 int blockSize) {
    struct function *function;
    int most, bytes;

    REQUIRE_CONTEXT(context);
    TRY(function_find(context, func, &function));
    REQUIRE(dynamicSmemSize != NULL && blockSize > 0 && blockSize <= 1024 && numBlocks > 0 && numBlocks <= SM_BLOCKS &&
                numBlocks <= SM_THREADS / blockSize,
            CUDA_ERROR_INVALID_VALUE);
    TRY(cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, context->device));
    bytes = SM_SHARED_BYTES / numBlocks - RESERVED_SHARED_BYTES;
    bytes = (bytes < most ? bytes : most) - (int)function->shared_bytes;
    *dynamicSmemSize = bytes > 0 ? (size_t)bytes : 0;
    return CUDA_SUCCESS;
}

/* Only GPUs that launch clusters can say how large they may be. */
static CUresult check_clusters(const struct CUctx_st *context) {
    int supported;

    TRY(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, context->device));
    return supported ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult check_config(const CUlaunchConfig *config) {
    REQUIRE(config != NULL && (config->numAttrs == 0 || config->attrs != NULL), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(config->blockDimX != 0 && config->blockDimY != 0 && config->blockDimZ != 0 &&
                (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ <= 1024,
            CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

static CUresult blocks_at_a_time(CUfunction func, const CUlaunchConfig *config, int *blocks) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks, func, (int)(config->blockDimX * config->blockDimY * config->blockDimZ), config->sharedMemBytes);
}

CUresult cuOccupancyMaxPotentialClusterSize(int *clusterSize, CUfunction func, const CUlaunchConfig *config) {
    int blocks;

    REQUIRE(clusterSize != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_CONTEXT(context);
    TRY(check_config(config));
    TRY(check_clusters(context));
    TRY(blocks_at_a_time(func, config, &blocks));
    *clusterSize = blocks > 0 ? PORTABLE_CLUSTER : 0;
    return CUDA_SUCCESS;
}

/* The blocks of a cluster as the launch has it; 0 where it has none, or one that does not divide the grid. */
static unsigned cluster_of(const CUlaunchConfig *config) {
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const unsigned *dim = config->attrs[i].value.clusterDim;

        if (config->attrs[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            continue;
        for (int axis = 0; axis < 3; axis++) {
            if (dim[axis] == 0 || dim[axis] > PORTABLE_CLUSTER)
                return 0;
        }
        return config->gridDimX % dim[0] == 0 && config->gridDimY % dim[1] == 0 && config->gridDimZ % dim[2] == 0
                   ? dim[0] * dim[1] * dim[2]
                   : 0;
    }
    return 0;
}

CUresult cuOccupancyMaxActiveClusters(int *numClusters, CUfunction func, const CUlaunchConfig *config) {
    unsigned cluster;
    int blocks;

    REQUIRE(numClusters != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_CONTEXT(context);
    TRY(check_config(config));
    TRY(check_clusters(context));
    cluster = cluster_of(config);
    REQUIRE(cluster != 0 && cluster <= PORTABLE_CLUSTER, CUDA_ERROR_INVALID_CLUSTER_SIZE);
    TRY(blocks_at_a_time(func, config, &blocks));
    *numClusters = (int)((unsigned)(blocks * mps_client_multiprocessors(context->device)) / cluster);
    return CUDA_SUCCESS;
}
