/* Attributes of streams, copies of boxes between GPUs, occupancy, and the calls of a device that stand alone. */
#include <string.h>

#include "harness.h"

static const char ptx[] = ".version 8.0\n.entry nothing\n.entry spin_20ms\n";

static CUfunction kernel(const char *name) {
    return kernel_of(ptx, name);
}

static CUresult set_policy(CUstream stream, int policy) {
    CUstreamAttrValue value = {.syncPolicy = (CUsynchronizationPolicy)policy};

    return cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value);
}

static void attributes_are_kept(void) {
    CUstreamAttrValue value;
    CUstream stream, other;
    int priority;

    context_on(0);
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamCreateWithPriority(&other, 0, -2));
    OK(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    CHECK_INT(value.syncPolicy, CU_SYNC_POLICY_AUTO);
    OK(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, &value));
    CHECK(value.memSyncDomainMap.default_ == 0 && value.memSyncDomainMap.remote == 1);
    OK(cuStreamGetAttribute(other, CU_STREAM_ATTRIBUTE_PRIORITY, &value));
    CHECK_INT(value.priority, -2);
    OK(set_policy(stream, CU_SYNC_POLICY_BLOCKING_SYNC));
    value.priority = -100;
    OK(cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_PRIORITY, &value));
    OK(cuStreamGetPriority(stream, &priority));
    CHECK_INT(priority, -5);
    OK(cuStreamCopyAttributes(other, stream));
    OK(cuStreamGetAttribute(other, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    CHECK_INT(value.syncPolicy, CU_SYNC_POLICY_BLOCKING_SYNC);
    OK(cuStreamGetAttribute(other, CU_STREAM_ATTRIBUTE_PRIORITY, &value));
    CHECK_INT(value.priority, -5);
    /* The two default streams have attributes of their own. */
    OK(set_policy(NULL, CU_SYNC_POLICY_SPIN));
    OK(cuStreamGetAttribute_ptsz(NULL, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    CHECK_INT(value.syncPolicy, CU_SYNC_POLICY_AUTO);
    OK(cuStreamCopyAttributes_ptsz(NULL, CU_STREAM_LEGACY));
    OK(cuStreamGetAttribute_ptsz(NULL, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
    CHECK_INT(value.syncPolicy, CU_SYNC_POLICY_SPIN);
}

static void an_access_window_is_kept(void) {
    CUstreamAttrValue value = {.accessPolicyWindow = {(void *)0x1000, 4096, 0.5F, CU_ACCESS_PROPERTY_PERSISTING,
                                                      CU_ACCESS_PROPERTY_STREAMING}};
    CUstreamAttrValue got, bad = value;
    CUstream stream;

    context_on(0);
    OK(cuStreamCreate(&stream, 0));
    OK(cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
    bad.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_PERSISTING;
    CHECK_INT(cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &bad), CUDA_ERROR_INVALID_VALUE);
    bad = value;
    bad.accessPolicyWindow.hitRatio = 1.5F;
    CHECK_INT(cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &bad), CUDA_ERROR_INVALID_VALUE);
    bad = value;
    bad.accessPolicyWindow.num_bytes = 129 * MIB;
    CHECK_INT(cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &bad), CUDA_ERROR_INVALID_VALUE);
    OK(cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &got));
    CHECK(got.accessPolicyWindow.base_ptr == (void *)0x1000 && got.accessPolicyWindow.num_bytes == 4096 &&
          got.accessPolicyWindow.hitProp == CU_ACCESS_PROPERTY_PERSISTING);
}

static void bad_attributes_are_refused(void) {
    CUstreamAttrValue value = {.memSyncDomain = (CUlaunchMemSyncDomain)2};
    CUstream here, there;

    CHECK_INT(cuStreamGetAttribute(NULL, CU_STREAM_ATTRIBUTE_PRIORITY, &value), CUDA_ERROR_NOT_INITIALIZED);
    context_on(1);
    OK(cuStreamCreate(&there, 0));
    context_on(0);
    OK(cuStreamCreate(&here, 0));
    CHECK_INT(set_policy(here, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(set_policy(here, 5), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuStreamSetAttribute(here, CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN, &value), CUDA_ERROR_INVALID_VALUE);
    value.memSyncDomainMap = (CUlaunchMemSyncDomainMap){0, 4};
    CHECK_INT(cuStreamSetAttribute(here, CU_STREAM_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, &value), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuStreamSetAttribute(here, (CUstreamAttrID)2, &value), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuStreamGetAttribute(here, (CUstreamAttrID)2, &value), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuStreamGetAttribute(here, CU_STREAM_ATTRIBUTE_PRIORITY, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuStreamCopyAttributes(here, there), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_INT(cuStreamCopyAttributes(here, (CUstream)&value), CUDA_ERROR_INVALID_HANDLE);
}

/* A box of 4 bytes, 2 rows and 2 slices, from the middle of one of 8 × 4 × 3. */
static void boxes_are_copied_between_gpus(void) {
    unsigned char source[8 * 4 * 3], target[4 * 2 * 2];
    CUcontext first, second;
    CUdeviceptr from, to;
    CUDA_MEMCPY3D_PEER copy;

    for (unsigned i = 0; i < sizeof(source); i++)
        source[i] = (unsigned char)i;
    first = context_on(0);
    OK(cuMemAlloc_v2(&from, sizeof(source)));
    OK(cuMemcpyHtoD_v2(from, source, sizeof(source)));
    second = context_on(1);
    OK(cuMemAlloc_v2(&to, sizeof(target)));
    OK(cuMemsetD8_v2(to, 0xee, sizeof(target)));
    copy = (CUDA_MEMCPY3D_PEER){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = from,
                                .srcContext = first,
                                .srcXInBytes = 2,
                                .srcY = 1,
                                .srcZ = 1,
                                .srcPitch = 8,
                                .srcHeight = 4,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = to,
                                .dstContext = second,
                                .dstPitch = 4,
                                .dstHeight = 2,
                                .WidthInBytes = 4,
                                .Height = 2,
                                .Depth = 2};
    OK(cuMemcpy3DPeer(&copy));
    OK(cuMemcpyDtoH_v2(target, to, sizeof(target)));
    for (unsigned i = 0; i < sizeof(target); i++)
        CHECK_INT(target[i], 2 + i % 4 + (1 + i / 4 % 2) * 8 + (1 + i / 8) * 32);
    OK(cuMemsetD8_v2(to, 0xee, sizeof(target)));
    OK(cuMemcpy3DPeerAsync_ptsz(&copy, NULL));
    OK(cuStreamSynchronize_ptsz(NULL));
    OK(cuMemcpyDtoH_v2(target, to, sizeof(target)));
    CHECK_INT(target[0], 42);
    copy.srcContext = NULL;
    CHECK_INT(cuMemcpy3DPeer(&copy), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_INT(cuMemcpy3DPeerAsync(NULL, NULL), CUDA_ERROR_INVALID_VALUE);
}

static void a_cooperative_kernel_runs_on_several_gpus(void) {
    CUDA_LAUNCH_PARAMS list[2] = {
        {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1}};

    list[1] = list[0];
    for (int device = 0; device < 2; device++) {
        context_on(device);
        list[device].function = kernel("spin_20ms");
        OK(cuStreamCreate(&list[device].hStream, CU_STREAM_NON_BLOCKING));
    }
    OK(cuLaunchCooperativeKernelMultiDevice(list, 2, 0));
    CHECK_INT(cuStreamQuery(list[1].hStream), CUDA_ERROR_NOT_READY);
    OK(cuCtxSynchronize());
    CHECK_INT(look("test").sum[0].launches, 1);
    CHECK_INT(look("test").sum[1].launches, 1);
    CHECK_INT(cuLaunchCooperativeKernelMultiDevice(list, 0, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuLaunchCooperativeKernelMultiDevice(list, 3, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuLaunchCooperativeKernelMultiDevice(list, 2, 4), CUDA_ERROR_INVALID_VALUE);
    list[1].blockDimX = 64;
    CHECK_INT(cuLaunchCooperativeKernelMultiDevice(list, 2, 0), CUDA_ERROR_INVALID_VALUE);
    list[0] = list[1];
    CHECK_INT(cuLaunchCooperativeKernelMultiDevice(list, 2, 0), CUDA_ERROR_INVALID_DEVICE);
    list[0].hStream = NULL;
    CHECK_INT(cuLaunchCooperativeKernelMultiDevice(list, 1, 0), CUDA_ERROR_INVALID_HANDLE);
}

static size_t shared_for(int threads) {
    return 200 * (size_t)threads;
}

static void the_best_block_fills_a_multiprocessor(void) {
    int grid, block;
    CUfunction function;

    context_on(0);
    function = kernel("nothing");
    OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, function, NULL, 0, 0));
    CHECK_INT(block, 1024);
    CHECK_INT(grid, 2 * GPU0_MULTIPROCESSORS);
    OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, function, NULL, 0, 100));
    CHECK_INT(block, 64); /* 20 blocks of 100 threads are fewer threads than 32 of 64 */
    CHECK_INT(grid, 32 * GPU0_MULTIPROCESSORS);
    OK(cuOccupancyMaxPotentialBlockSizeWithFlags(&grid, &block, function, shared_for, 0, 0, 1));
    CHECK_INT(block, 576);
    CHECK_INT(grid, 2 * GPU0_MULTIPROCESSORS);
    CHECK_INT(cuOccupancyMaxPotentialBlockSizeWithFlags(&grid, &block, function, NULL, 0, 0, 2),
              CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuOccupancyMaxPotentialBlockSize(NULL, &block, function, NULL, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

static void occupancy_adds_up(void) {
    CUlaunchAttribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value = {.clusterDim = {2, 1, 1}}};
    CUlaunchConfig config = {4, 1, 1, 256, 1, 1, 0, NULL, &cluster, 1};
    int blocks, flagged, clusters, supported;
    CUfunction function;
    size_t bytes;

    context_on(0);
    function = kernel("nothing");
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&flagged, function, 256, 0, 1));
    CHECK_INT(flagged, 8);
    CHECK_INT(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&flagged, function, 256, 0, 2),
              CUDA_ERROR_INVALID_VALUE);
    /* With so much shared memory, so many blocks run; with more, fewer do. */
    for (int want = 1; want <= 8; want++) {
        OK(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, function, want, 256));
        OK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, function, 256, bytes, 0));
        CHECK_INT(blocks, want);
        OK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, function, 256, bytes + 1, 0));
        CHECK(blocks < want);
    }
    CHECK_INT(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, function, 9, 256), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, (CUfunction)&config, 1, 256), CUDA_ERROR_INVALID_HANDLE);
    OK(cuFuncSetSharedMemConfig(function, CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE));
    CHECK_INT(cuFuncSetSharedMemConfig(function, (CUsharedconfig)3), CUDA_ERROR_INVALID_VALUE);
    OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 0));
    if (!supported) {
        CHECK_INT(cuOccupancyMaxPotentialClusterSize(&clusters, function, &config), CUDA_ERROR_NOT_SUPPORTED);
        return;
    }
    OK(cuOccupancyMaxPotentialClusterSize(&clusters, function, &config));
    CHECK_INT(clusters, 8);
    OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    OK(cuOccupancyMaxActiveClusters(&clusters, function, &config));
    CHECK_INT(clusters, supported * 8 / 2);
    config.gridDimX = 3;
    CHECK_INT(cuOccupancyMaxActiveClusters(&clusters, function, &config), CUDA_ERROR_INVALID_CLUSTER_SIZE);
}

static void ignore_notification(struct CUasyncNotificationInfo_st *info, void *user, CUasyncCallbackHandle handle) {
    (void)info, (void)user, (void)handle;
}

static void calls_of_a_device_answer(void) {
    CUasyncCallbackHandle handle;
    char list[8];

    CHECK_INT(cuProfilerStart(), CUDA_ERROR_NOT_INITIALIZED);
    OK(cuInit(0));
    CHECK_INT(cuProfilerStop(), CUDA_ERROR_INVALID_CONTEXT);
    context_on(0);
    OK(cuProfilerStart());
    OK(cuProfilerStop());
    CHECK_INT(cuProfilerInitialize("a", "b", CU_OUT_CSV), CUDA_ERROR_NOT_SUPPORTED);
    CHECK_INT(cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                         CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER),
              CUDA_ERROR_NOT_SUPPORTED);
    CHECK_INT(cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX, 150),
              CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuDeviceGetNvSciSyncAttributes(list, 0, CUDA_NVSCISYNC_ATTR_SIGNAL), CUDA_ERROR_NOT_SUPPORTED);
    CHECK_INT(cuDeviceGetNvSciSyncAttributes(list, 0, 4), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuDeviceGetNvSciSyncAttributes(list, 9, CUDA_NVSCISYNC_ATTR_WAIT), CUDA_ERROR_INVALID_DEVICE);
    CHECK_INT(cuDeviceRegisterAsyncNotification(0, ignore_notification, NULL, &handle), CUDA_ERROR_NOT_SUPPORTED);
    CHECK_INT(cuDeviceRegisterAsyncNotification(0, NULL, NULL, &handle), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuDeviceUnregisterAsyncNotification(0, NULL), CUDA_ERROR_INVALID_VALUE);
}

#define FIND(name, version, flags, want)                                                                               \
    do {                                                                                                               \
        void *found = NULL;                                                                                            \
        OK(cuGetProcAddress_v2(name, &found, version, flags, NULL));                                                   \
        if (found != (void *)(uintptr_t)(want))                                                                        \
            check_failed(__FILE__, __LINE__, "%s, version %d: wrong answer", name, version);                           \
    } while (0)

static void names_are_found(void) {
    FIND("cuStreamSetAttribute", 11000, 0, cuStreamSetAttribute);
    FIND("cuStreamSetAttribute", 11000, 2, cuStreamSetAttribute_ptsz);
    FIND("cuStreamSetAttribute", 10020, 0, NULL);
    FIND("cuMemcpy3DPeer", 4000, 0, cuMemcpy3DPeer);
    FIND("cuMemcpy3DPeer", 4000, 2, NULL);
    FIND("cuMemcpy3DPeer", 7000, 2, cuMemcpy3DPeer_ptds);
    FIND("cuMemcpy3DPeerAsync", 7000, 2, cuMemcpy3DPeerAsync_ptsz);
    FIND("cuOccupancyMaxActiveClusters", 11070, 0, cuOccupancyMaxActiveClusters);
}

const struct test stream_tests[] = {
    {"attributes are kept", attributes_are_kept},
    {"an access window is kept", an_access_window_is_kept},
    {"bad attributes are refused", bad_attributes_are_refused},
    {"boxes are copied between GPUs", boxes_are_copied_between_gpus},
    {"a cooperative kernel runs on several GPUs", a_cooperative_kernel_runs_on_several_gpus},
    {"the best block fills a multiprocessor", the_best_block_fills_a_multiprocessor},
    {"occupancy adds up", occupancy_adds_up},
    {"calls of a device answer", calls_of_a_device_answer},
    {"names are found", names_are_found},
    {NULL, NULL},
};
