/* Calls of a device that stand alone: profiling, and what a GPU in a Linux server does not do. */
#include "driver.h"

/* Gone since CUDA 12, initialised or not. */
CUresult cuProfilerInitialize(const char *configFile, const char *outputFile, CUoutput_mode outputMode) {
    (void)configFile, (void)outputFile, (void)outputMode;
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* There is never a profiler attached that these could start or stop. */
CUresult cuProfilerStart(void) {
    REQUIRE_CONTEXT(context);
    (void)context;
    return CUDA_SUCCESS;
}

CUresult cuProfilerStop(void) {
    REQUIRE_CONTEXT(context);
    (void)context;
    return CUDA_SUCCESS;
}

/* No device here has CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS. */
CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope) {
    REQUIRE_CONTEXT(context);
    (void)context;
    REQUIRE(target == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER ||
                scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES,
            CUDA_ERROR_INVALID_VALUE);
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* NvSciSync is a library of NVIDIA's embedded systems. */
CUresult cuDeviceGetNvSciSyncAttributes(void *nvSciSyncAttrList, CUdevice dev, int flags) {
    REQUIRE_INITIALISED();
    REQUIRE(device_valid(dev), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(nvSciSyncAttrList != NULL && flags != 0 &&
                (flags & ~(CUDA_NVSCISYNC_ATTR_SIGNAL | CUDA_NVSCISYNC_ATTR_WAIT)) == 0,
            CUDA_ERROR_INVALID_VALUE);
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* The system takes memory from a process only on Windows. */
CUresult cuDeviceRegisterAsyncNotification(CUdevice device, CUasyncCallback callbackFunc, void *userData,
                                           CUasyncCallbackHandle *callback) {
    (void)userData;
    REQUIRE_INITIALISED();
    REQUIRE(device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(callbackFunc != NULL && callback != NULL, CUDA_ERROR_INVALID_VALUE);
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* No handle was ever given out. */
CUresult cuDeviceUnregisterAsyncNotification(CUdevice device, CUasyncCallbackHandle callback) {
    (void)callback;
    REQUIRE_INITIALISED();
    REQUIRE(device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    return CUDA_ERROR_INVALID_VALUE;
}
