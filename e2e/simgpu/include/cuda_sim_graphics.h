/*
 * Sharing resources with graphics: OpenGL, EGL and VDPAU. The simulated machine is a server that has none of them. Like
 * cuda_sim.h, which includes it.
 */
#ifndef CUDA_SIM_GRAPHICS_H
#define CUDA_SIM_GRAPHICS_H

#include "cuda_sim_more.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUgraphicsResource_st *CUgraphicsResource;

#define CU_GRAPHICS_MAP_RESOURCE_FLAGS_NONE 0x00
#define CU_GRAPHICS_MAP_RESOURCE_FLAGS_READ_ONLY 0x01
#define CU_GRAPHICS_MAP_RESOURCE_FLAGS_WRITE_DISCARD 0x02

/* Of the graphics interfaces themselves */
typedef unsigned int CUglName, CUglEnum; /* GLuint, GLenum */
typedef void *CUeglImage, *CUeglStream;  /* EGLImageKHR, EGLStreamKHR */
typedef uint32_t CUvdpHandle;            /* VdpDevice, VdpVideoSurface, VdpOutputSurface */
typedef int CUvdpGetProcAddress(CUvdpHandle device, uint32_t function, void **pointer);

typedef enum CUGLDeviceList_enum {
    CU_GL_DEVICE_LIST_ALL = 0x01,
    CU_GL_DEVICE_LIST_CURRENT_FRAME = 0x02,
    CU_GL_DEVICE_LIST_NEXT_FRAME = 0x03
} CUGLDeviceList;

typedef struct CUeglStreamConnection_st *CUeglStreamConnection;

typedef struct CUeglFrame_st {
    union {
        CUarray pArray[3];
        void *pPitch[3];
    } frame;
    unsigned int width, height, depth, pitch, planeCount, numChannels;
    int frameType, eglColorFormat;
    CUarray_format cuFormat;
} CUeglFrame;

/*
 * ROW(kind, name, parameters) for each entry point that begins something with a graphics interface, or needs what only
 * those can have made. See graphics.c for what the kinds answer.
 */
/* clang-format off */
#define CUDA_SIM_GRAPHICS_MISSING(ROW)                                                                                 \
    ROW(GL, cuGLInit, (void))                                                                                          \
    ROW(GL, cuGLCtxCreate, (CUcontext *pCtx, unsigned int Flags, CUdevice device))                                     \
    ROW(GL, cuGLCtxCreate_v2, (CUcontext *pCtx, unsigned int Flags, CUdevice device))                                  \
    ROW(GL, cuGLGetDevices, (unsigned int *pCudaDeviceCount, CUdevice *pCudaDevices,                                   \
                             unsigned int cudaDeviceCount, CUGLDeviceList deviceList))                                 \
    ROW(GL, cuGLGetDevices_v2, (unsigned int *pCudaDeviceCount, CUdevice *pCudaDevices,                                \
                                unsigned int cudaDeviceCount, CUGLDeviceList deviceList))                              \
    ROW(GL_OF_CONTEXT, cuGLRegisterBufferObject, (CUglName buffer))                                                    \
    ROW(GL_OF_CONTEXT, cuGLUnregisterBufferObject, (CUglName buffer))                                                  \
    ROW(GL_OF_CONTEXT, cuGLSetBufferObjectMapFlags, (CUglName buffer, unsigned int Flags))                             \
    ROW(GL_OF_CONTEXT, cuGLMapBufferObject, (CUdeviceptr_v1 *dptr, unsigned int *size, CUglName buffer))               \
    ROW(GL_OF_CONTEXT, cuGLMapBufferObject_v2, (CUdeviceptr *dptr, size_t *size, CUglName buffer))                     \
    ROW(GL_OF_CONTEXT, cuGLMapBufferObject_v2_ptds, (CUdeviceptr *dptr, size_t *size, CUglName buffer))                \
    ROW(GL_OF_CONTEXT, cuGLMapBufferObjectAsync,                                                                       \
        (CUdeviceptr_v1 *dptr, unsigned int *size, CUglName buffer, CUstream hStream))                                 \
    ROW(GL_OF_CONTEXT, cuGLMapBufferObjectAsync_v2,                                                                    \
        (CUdeviceptr *dptr, size_t *size, CUglName buffer, CUstream hStream))                                          \
    ROW(GL_OF_CONTEXT, cuGLMapBufferObjectAsync_v2_ptsz,                                                               \
        (CUdeviceptr *dptr, size_t *size, CUglName buffer, CUstream hStream))                                          \
    ROW(GL_OF_CONTEXT, cuGLUnmapBufferObject, (CUglName buffer))                                                       \
    ROW(GL_OF_CONTEXT, cuGLUnmapBufferObjectAsync, (CUglName buffer, CUstream hStream))                                \
    ROW(GL_OF_CONTEXT, cuGraphicsGLRegisterBuffer,                                                                     \
        (CUgraphicsResource *pCudaResource, CUglName buffer, unsigned int Flags))                                      \
    ROW(GL_OF_CONTEXT, cuGraphicsGLRegisterImage,                                                                      \
        (CUgraphicsResource *pCudaResource, CUglName image, CUglEnum target, unsigned int Flags))                      \
    ROW(EGL, cuGraphicsEGLRegisterImage, (CUgraphicsResource *pCudaResource, CUeglImage image, unsigned int flags))    \
    ROW(EGL_CONNECTION, cuEGLStreamConsumerDisconnect, (CUeglStreamConnection *conn))                                  \
    ROW(EGL_CONNECTION, cuEGLStreamConsumerAcquireFrame,                                                               \
        (CUeglStreamConnection *conn, CUgraphicsResource *pCudaResource, CUstream *pStream, unsigned int timeout))     \
    ROW(EGL_CONNECTION, cuEGLStreamConsumerReleaseFrame,                                                               \
        (CUeglStreamConnection *conn, CUgraphicsResource pCudaResource, CUstream *pStream))                            \
    ROW(EGL_CONNECTION, cuEGLStreamProducerDisconnect, (CUeglStreamConnection *conn))                                  \
    ROW(EGL_CONNECTION, cuEGLStreamProducerPresentFrame,                                                               \
        (CUeglStreamConnection *conn, CUeglFrame eglframe, CUstream *pStream))                                         \
    ROW(EGL_CONNECTION, cuEGLStreamProducerReturnFrame,                                                                \
        (CUeglStreamConnection *conn, CUeglFrame *eglframe, CUstream *pStream))                                        \
    ROW(VDPAU, cuVDPAUGetDevice,                                                                                       \
        (CUdevice *pDevice, CUvdpHandle vdpDevice, CUvdpGetProcAddress *vdpGetProcAddress))                            \
    ROW(VDPAU, cuVDPAUCtxCreate, (CUcontext *pCtx, unsigned int flags, CUdevice device, CUvdpHandle vdpDevice,         \
                                  CUvdpGetProcAddress *vdpGetProcAddress))                                             \
    ROW(VDPAU, cuVDPAUCtxCreate_v2, (CUcontext *pCtx, unsigned int flags, CUdevice device, CUvdpHandle vdpDevice,      \
                                     CUvdpGetProcAddress *vdpGetProcAddress))                                          \
    ROW(VDPAU_SURFACE, cuGraphicsVDPAURegisterVideoSurface,                                                            \
        (CUgraphicsResource *pCudaResource, CUvdpHandle vdpSurface, unsigned int flags))                               \
    ROW(VDPAU_SURFACE, cuGraphicsVDPAURegisterOutputSurface,                                                           \
        (CUgraphicsResource *pCudaResource, CUvdpHandle vdpSurface, unsigned int flags))
/* clang-format on */

#pragma GCC visibility push(default)

#define CUDA_SIM_GRAPHICS_PROTOTYPE(kind, name, parameters) CUresult name parameters;
CUDA_SIM_GRAPHICS_MISSING(CUDA_SIM_GRAPHICS_PROTOTYPE)
#undef CUDA_SIM_GRAPHICS_PROTOTYPE

CUresult cuEGLStreamConsumerConnect(CUeglStreamConnection *conn, CUeglStream stream);
CUresult cuEGLStreamConsumerConnectWithFlags(CUeglStreamConnection *conn, CUeglStream stream, unsigned int flags);
CUresult cuEGLStreamProducerConnect(CUeglStreamConnection *conn, CUeglStream stream, int width, int height);
CUDA_SIM_BOTH_ASYNC(cuGraphicsMapResources, (unsigned int count, CUgraphicsResource *resources, CUstream hStream));
CUDA_SIM_BOTH_ASYNC(cuGraphicsUnmapResources, (unsigned int count, CUgraphicsResource *resources, CUstream hStream));
CUresult cuGraphicsUnregisterResource(CUgraphicsResource resource);
CUresult cuGraphicsSubResourceGetMappedArray(CUarray *pArray, CUgraphicsResource resource, unsigned int arrayIndex,
                                             unsigned int mipLevel);
CUresult cuGraphicsResourceGetMappedMipmappedArray(CUmipmappedArray *pMipmappedArray, CUgraphicsResource resource);
CUresult cuGraphicsResourceGetMappedPointer(CUdeviceptr_v1 *pDevPtr, unsigned int *pSize, CUgraphicsResource resource);
CUresult cuGraphicsResourceGetMappedPointer_v2(CUdeviceptr *pDevPtr, size_t *pSize, CUgraphicsResource resource);
CUresult cuGraphicsResourceGetMappedEglFrame(CUeglFrame *eglFrame, CUgraphicsResource resource, unsigned int index,
                                             unsigned int mipLevel);
CUresult cuGraphicsResourceSetMapFlags(CUgraphicsResource resource, unsigned int flags);
CUresult cuGraphicsResourceSetMapFlags_v2(CUgraphicsResource resource, unsigned int flags);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
