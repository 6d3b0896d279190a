/* The rows of cuda_sim_graphics.h; see entry_points.h. */
#ifndef SIMGPU_ENTRY_POINTS_GRAPHICS_H
#define SIMGPU_ENTRY_POINTS_GRAPHICS_H

/* clang-format off */
#define ENTRY_POINTS_GRAPHICS(ENTRY, STREAM)                                                                           \
    ENTRY(cuEGLStreamConsumerAcquireFrame, 7000, cuEGLStreamConsumerAcquireFrame)                                      \
    ENTRY(cuEGLStreamConsumerConnect, 7000, cuEGLStreamConsumerConnect)                                                \
    ENTRY(cuEGLStreamConsumerConnectWithFlags, 8000, cuEGLStreamConsumerConnectWithFlags)                              \
    ENTRY(cuEGLStreamConsumerDisconnect, 7000, cuEGLStreamConsumerDisconnect)                                          \
    ENTRY(cuEGLStreamConsumerReleaseFrame, 7000, cuEGLStreamConsumerReleaseFrame)                                      \
    ENTRY(cuEGLStreamProducerConnect, 7000, cuEGLStreamProducerConnect)                                                \
    ENTRY(cuEGLStreamProducerDisconnect, 7000, cuEGLStreamProducerDisconnect)                                          \
    ENTRY(cuEGLStreamProducerPresentFrame, 7000, cuEGLStreamProducerPresentFrame)                                      \
    ENTRY(cuEGLStreamProducerReturnFrame, 7000, cuEGLStreamProducerReturnFrame)                                        \
    ENTRY(cuGLCtxCreate, 2000, cuGLCtxCreate)                                                                          \
    ENTRY(cuGLCtxCreate, 3020, cuGLCtxCreate_v2)                                                                       \
    ENTRY(cuGLGetDevices, 4010, cuGLGetDevices)                                                                        \
    ENTRY(cuGLGetDevices, 6050, cuGLGetDevices_v2)                                                                     \
    ENTRY(cuGLInit, 2000, cuGLInit)                                                                                    \
    STREAM(cuGLMapBufferObject, 2000, cuGLMapBufferObject, 7000, cuGLMapBufferObject_v2_ptds)                          \
    SYNC_ROW(STREAM, cuGLMapBufferObject, 3020, cuGLMapBufferObject_v2)                                                \
    STREAM(cuGLMapBufferObjectAsync, 2030, cuGLMapBufferObjectAsync, 7000, cuGLMapBufferObjectAsync_v2_ptsz)           \
    ASYNC_ROW(STREAM, cuGLMapBufferObjectAsync, 3020, cuGLMapBufferObjectAsync_v2)                                     \
    ENTRY(cuGLRegisterBufferObject, 2000, cuGLRegisterBufferObject)                                                    \
    ENTRY(cuGLSetBufferObjectMapFlags, 2030, cuGLSetBufferObjectMapFlags)                                              \
    ENTRY(cuGLUnmapBufferObject, 2000, cuGLUnmapBufferObject)                                                          \
    ENTRY(cuGLUnmapBufferObjectAsync, 2030, cuGLUnmapBufferObjectAsync)                                                \
    ENTRY(cuGLUnregisterBufferObject, 2000, cuGLUnregisterBufferObject)                                                \
    ENTRY(cuGraphicsEGLRegisterImage, 7000, cuGraphicsEGLRegisterImage)                                                \
    ENTRY(cuGraphicsGLRegisterBuffer, 3000, cuGraphicsGLRegisterBuffer)                                                \
    ENTRY(cuGraphicsGLRegisterImage, 3000, cuGraphicsGLRegisterImage)                                                  \
    ASYNC_ROW(STREAM, cuGraphicsMapResources, 3000, cuGraphicsMapResources)                                            \
    ENTRY(cuGraphicsResourceGetMappedEglFrame, 7000, cuGraphicsResourceGetMappedEglFrame)                              \
    ENTRY(cuGraphicsResourceGetMappedMipmappedArray, 5000, cuGraphicsResourceGetMappedMipmappedArray)                  \
    ENTRY(cuGraphicsResourceGetMappedPointer, 3000, cuGraphicsResourceGetMappedPointer)                                \
    ENTRY(cuGraphicsResourceGetMappedPointer, 3020, cuGraphicsResourceGetMappedPointer_v2)                             \
    ENTRY(cuGraphicsResourceSetMapFlags, 3000, cuGraphicsResourceSetMapFlags)                                          \
    ENTRY(cuGraphicsResourceSetMapFlags, 6050, cuGraphicsResourceSetMapFlags_v2)                                       \
    ENTRY(cuGraphicsSubResourceGetMappedArray, 3000, cuGraphicsSubResourceGetMappedArray)                              \
    ASYNC_ROW(STREAM, cuGraphicsUnmapResources, 3000, cuGraphicsUnmapResources)                                        \
    ENTRY(cuGraphicsUnregisterResource, 3000, cuGraphicsUnregisterResource)                                            \
    ENTRY(cuGraphicsVDPAURegisterOutputSurface, 3010, cuGraphicsVDPAURegisterOutputSurface)                            \
    ENTRY(cuGraphicsVDPAURegisterVideoSurface, 3010, cuGraphicsVDPAURegisterVideoSurface)                              \
    ENTRY(cuVDPAUCtxCreate, 3010, cuVDPAUCtxCreate)                                                                    \
    ENTRY(cuVDPAUCtxCreate, 3020, cuVDPAUCtxCreate_v2)                                                                 \
    ENTRY(cuVDPAUGetDevice, 3010, cuVDPAUGetDevice)
/* clang-format on */

#endif
