/* Copies and fills as they were before CUDA 3.2: those of today, with narrower parameters. */
#include "cuda/driver.h"

static CUDA_MEMCPY2D wide_2d(const CUDA_MEMCPY2D_v1 *c) {
    return (CUDA_MEMCPY2D){.srcXInBytes = c->srcXInBytes,
                           .srcY = c->srcY,
                           .srcMemoryType = c->srcMemoryType,
                           .srcHost = c->srcHost,
                           .srcDevice = c->srcDevice,
                           .srcArray = c->srcArray,
                           .srcPitch = c->srcPitch,
                           .dstXInBytes = c->dstXInBytes,
                           .dstY = c->dstY,
                           .dstMemoryType = c->dstMemoryType,
                           .dstHost = c->dstHost,
                           .dstDevice = c->dstDevice,
                           .dstArray = c->dstArray,
                           .dstPitch = c->dstPitch,
                           .WidthInBytes = c->WidthInBytes,
                           .Height = c->Height};
}

static CUDA_MEMCPY3D wide_3d(const CUDA_MEMCPY3D_v1 *c) {
    return (CUDA_MEMCPY3D){.srcXInBytes = c->srcXInBytes,
                           .srcY = c->srcY,
                           .srcZ = c->srcZ,
                           .srcLOD = c->srcLOD,
                           .srcMemoryType = c->srcMemoryType,
                           .srcHost = c->srcHost,
                           .srcDevice = c->srcDevice,
                           .srcArray = c->srcArray,
                           .srcPitch = c->srcPitch,
                           .srcHeight = c->srcHeight,
                           .dstXInBytes = c->dstXInBytes,
                           .dstY = c->dstY,
                           .dstZ = c->dstZ,
                           .dstLOD = c->dstLOD,
                           .dstMemoryType = c->dstMemoryType,
                           .dstHost = c->dstHost,
                           .dstDevice = c->dstDevice,
                           .dstArray = c->dstArray,
                           .dstPitch = c->dstPitch,
                           .dstHeight = c->dstHeight,
                           .WidthInBytes = c->WidthInBytes,
                           .Height = c->Height,
                           .Depth = c->Depth};
}

CUresult cuMemcpyHtoD(CUdeviceptr_v1 dstDevice, const void *srcHost, unsigned int ByteCount) {
    return cuMemcpyHtoD_v2(dstDevice, srcHost, ByteCount);
}

CUresult cuMemcpyDtoH(void *dstHost, CUdeviceptr_v1 srcDevice, unsigned int ByteCount) {
    return cuMemcpyDtoH_v2(dstHost, srcDevice, ByteCount);
}

CUresult cuMemcpyDtoD(CUdeviceptr_v1 dstDevice, CUdeviceptr_v1 srcDevice, unsigned int ByteCount) {
    return cuMemcpyDtoD_v2(dstDevice, srcDevice, ByteCount);
}

CUresult cuMemcpyDtoA(CUarray dstArray, unsigned int dstOffset, CUdeviceptr_v1 srcDevice, unsigned int ByteCount) {
    return cuMemcpyDtoA_v2(dstArray, dstOffset, srcDevice, ByteCount);
}

CUresult cuMemcpyAtoD(CUdeviceptr_v1 dstDevice, CUarray srcArray, unsigned int srcOffset, unsigned int ByteCount) {
    return cuMemcpyAtoD_v2(dstDevice, srcArray, srcOffset, ByteCount);
}

CUresult cuMemcpyHtoA(CUarray dstArray, unsigned int dstOffset, const void *srcHost, unsigned int ByteCount) {
    return cuMemcpyHtoA_v2(dstArray, dstOffset, srcHost, ByteCount);
}

CUresult cuMemcpyAtoH(void *dstHost, CUarray srcArray, unsigned int srcOffset, unsigned int ByteCount) {
    return cuMemcpyAtoH_v2(dstHost, srcArray, srcOffset, ByteCount);
}

CUresult cuMemcpyAtoA(CUarray dstArray, unsigned int dstOffset, CUarray srcArray, unsigned int srcOffset,
                      unsigned int ByteCount) {
    return cuMemcpyAtoA_v2(dstArray, dstOffset, srcArray, srcOffset, ByteCount);
}

CUresult cuMemcpy2D(const CUDA_MEMCPY2D_v1 *pCopy) {
    CUDA_MEMCPY2D copy;

    REQUIRE_INITIALISED();
    REQUIRE(pCopy != NULL, CUDA_ERROR_INVALID_VALUE);
    copy = wide_2d(pCopy);
    return cuMemcpy2D_v2(&copy);
}

CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D_v1 *pCopy) {
    CUDA_MEMCPY2D copy;

    REQUIRE_INITIALISED();
    REQUIRE(pCopy != NULL, CUDA_ERROR_INVALID_VALUE);
    copy = wide_2d(pCopy);
    return cuMemcpy2DUnaligned_v2(&copy);
}

CUresult cuMemcpy3D(const CUDA_MEMCPY3D_v1 *pCopy) {
    CUDA_MEMCPY3D copy;

    REQUIRE_INITIALISED();
    REQUIRE(pCopy != NULL, CUDA_ERROR_INVALID_VALUE);
    copy = wide_3d(pCopy);
    return cuMemcpy3D_v2(&copy);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr_v1 dstDevice, const void *srcHost, unsigned int ByteCount, CUstream hStream) {
    return cuMemcpyHtoDAsync_v2(dstDevice, srcHost, ByteCount, hStream);
}

CUresult cuMemcpyDtoHAsync(void *dstHost, CUdeviceptr_v1 srcDevice, unsigned int ByteCount, CUstream hStream) {
    return cuMemcpyDtoHAsync_v2(dstHost, srcDevice, ByteCount, hStream);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr_v1 dstDevice, CUdeviceptr_v1 srcDevice, unsigned int ByteCount,
                           CUstream hStream) {
    return cuMemcpyDtoDAsync_v2(dstDevice, srcDevice, ByteCount, hStream);
}

CUresult cuMemcpyHtoAAsync(CUarray dstArray, unsigned int dstOffset, const void *srcHost, unsigned int ByteCount,
                           CUstream hStream) {
    return cuMemcpyHtoAAsync_v2(dstArray, dstOffset, srcHost, ByteCount, hStream);
}

CUresult cuMemcpyAtoHAsync(void *dstHost, CUarray srcArray, unsigned int srcOffset, unsigned int ByteCount,
                           CUstream hStream) {
    return cuMemcpyAtoHAsync_v2(dstHost, srcArray, srcOffset, ByteCount, hStream);
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D_v1 *pCopy, CUstream hStream) {
    CUDA_MEMCPY2D copy;

    REQUIRE_INITIALISED();
    REQUIRE(pCopy != NULL, CUDA_ERROR_INVALID_VALUE);
    copy = wide_2d(pCopy);
    return cuMemcpy2DAsync_v2(&copy, hStream);
}

CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D_v1 *pCopy, CUstream hStream) {
    CUDA_MEMCPY3D copy;

    REQUIRE_INITIALISED();
    REQUIRE(pCopy != NULL, CUDA_ERROR_INVALID_VALUE);
    copy = wide_3d(pCopy);
    return cuMemcpy3DAsync_v2(&copy, hStream);
}

CUresult cuMemsetD8(CUdeviceptr_v1 dstDevice, unsigned char uc, unsigned int N) {
    return cuMemsetD8_v2(dstDevice, uc, N);
}

CUresult cuMemsetD16(CUdeviceptr_v1 dstDevice, unsigned short us, unsigned int N) {
    return cuMemsetD16_v2(dstDevice, us, N);
}

CUresult cuMemsetD32(CUdeviceptr_v1 dstDevice, unsigned int ui, unsigned int N) {
    return cuMemsetD32_v2(dstDevice, ui, N);
}

CUresult cuMemsetD2D8(CUdeviceptr_v1 dstDevice, unsigned int dstPitch, unsigned char uc, unsigned int Width,
                      unsigned int Height) {
    return cuMemsetD2D8_v2(dstDevice, dstPitch, uc, Width, Height);
}

CUresult cuMemsetD2D16(CUdeviceptr_v1 dstDevice, unsigned int dstPitch, unsigned short us, unsigned int Width,
                       unsigned int Height) {
    return cuMemsetD2D16_v2(dstDevice, dstPitch, us, Width, Height);
}

CUresult cuMemsetD2D32(CUdeviceptr_v1 dstDevice, unsigned int dstPitch, unsigned int ui, unsigned int Width,
                       unsigned int Height) {
    return cuMemsetD2D32_v2(dstDevice, dstPitch, ui, Width, Height);
}
