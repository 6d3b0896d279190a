/*
 * Graphics interoperability on a server without OpenGL, EGL and VDPAU. Nothing can be registered, so no resource and no
 * connection is valid; what begins with a graphics interface is refused as the driver refuses it where that is missing.
 */
#include "cuda/driver.h"
#include "cuda/work/stream.h"

enum missing { GL, GL_OF_CONTEXT, EGL, EGL_CONNECTION, VDPAU, VDPAU_SURFACE };

static CUresult refuse(enum missing what) {
    static const struct {
        bool of_context; /* is asked of the current context */
        CUresult error;
    } refusals[] = {
        [GL] = {false, CUDA_ERROR_INVALID_GRAPHICS_CONTEXT}, /* no OpenGL context is current in any thread */
        [GL_OF_CONTEXT] = {true, CUDA_ERROR_INVALID_GRAPHICS_CONTEXT},
        [EGL] = {true, CUDA_ERROR_NOT_SUPPORTED},
        [EGL_CONNECTION] = {false, CUDA_ERROR_INVALID_HANDLE}, /* even before cuInit */
        [VDPAU] = {false, CUDA_ERROR_INVALID_VALUE},           /* whatever the VdpDevice is, it is no GPU of ours */
        [VDPAU_SURFACE] = {true, CUDA_ERROR_INVALID_HANDLE},
    };

    REQUIRE(driver_ready() || what == EGL_CONNECTION, CUDA_ERROR_NOT_INITIALIZED);
    if (refusals[what].of_context) {
        REQUIRE_CONTEXT(context);
        (void)context;
    }
    return refusals[what].error;
}

/* A refusal does not look at what it is asked. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define REFUSAL(kind, name, parameters)                                                                                \
    CUresult name parameters {                                                                                         \
        return refuse(kind);                                                                                           \
    }
/* cppcheck-suppress unknownMacro ; in cuda_sim_graphics.h */
CUDA_SIM_GRAPHICS_MISSING(REFUSAL)
#pragma GCC diagnostic pop

/* That there is a stream is looked at first of all. */
static CUresult connect_stream(CUeglStream stream) {
    REQUIRE(stream != NULL, CUDA_ERROR_INVALID_HANDLE);
    return refuse(EGL);
}

CUresult cuEGLStreamConsumerConnect(CUeglStreamConnection *conn, CUeglStream stream) {
    (void)conn;
    return connect_stream(stream);
}

CUresult cuEGLStreamConsumerConnectWithFlags(CUeglStreamConnection *conn, CUeglStream stream, unsigned int flags) {
    (void)conn, (void)flags;
    return connect_stream(stream);
}

CUresult cuEGLStreamProducerConnect(CUeglStreamConnection *conn, CUeglStream stream, int width, int height) {
    (void)conn, (void)width, (void)height;
    return connect_stream(stream);
}

/* ---- Resources ---- */

/* What every question about a resource comes to, if it has somewhere to put the answer. */
static CUresult no_resource(bool arguments_good) {
    REQUIRE_CONTEXT(context);
    (void)context;
    REQUIRE(arguments_good, CUDA_ERROR_INVALID_VALUE);
    return CUDA_ERROR_INVALID_HANDLE;
}

/* The stream is looked at first: a call with a bad one says so. */
static CUresult map_or_unmap(unsigned count, const CUgraphicsResource *resources, CUstream handle, bool per_thread) {
    struct CUstream_st *stream;

    REQUIRE_CONTEXT(context);
    REQUIRE(count != 0 && resources != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(stream_find(context, handle, per_thread, &stream));
    return CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuGraphicsMapResources(unsigned int count, CUgraphicsResource *resources, CUstream hStream) {
    return map_or_unmap(count, resources, hStream, false);
}

CUresult cuGraphicsMapResources_ptsz(unsigned int count, CUgraphicsResource *resources, CUstream hStream) {
    return map_or_unmap(count, resources, hStream, true);
}

CUresult cuGraphicsUnmapResources(unsigned int count, CUgraphicsResource *resources, CUstream hStream) {
    return map_or_unmap(count, resources, hStream, false);
}

CUresult cuGraphicsUnmapResources_ptsz(unsigned int count, CUgraphicsResource *resources, CUstream hStream) {
    return map_or_unmap(count, resources, hStream, true);
}

CUresult cuGraphicsUnregisterResource(CUgraphicsResource resource) {
    (void)resource;
    return no_resource(true);
}

CUresult cuGraphicsSubResourceGetMappedArray(CUarray *pArray, CUgraphicsResource resource, unsigned int arrayIndex,
                                             unsigned int mipLevel) {
    (void)resource, (void)arrayIndex, (void)mipLevel;
    return no_resource(pArray != NULL);
}

CUresult cuGraphicsResourceGetMappedMipmappedArray(CUmipmappedArray *pMipmappedArray, CUgraphicsResource resource) {
    (void)resource;
    return no_resource(pMipmappedArray != NULL);
}

CUresult cuGraphicsResourceGetMappedPointer(CUdeviceptr_v1 *pDevPtr, unsigned int *pSize, CUgraphicsResource resource) {
    (void)resource;
    return no_resource(pDevPtr != NULL || pSize != NULL);
}

CUresult cuGraphicsResourceGetMappedPointer_v2(CUdeviceptr *pDevPtr, size_t *pSize, CUgraphicsResource resource) {
    (void)resource;
    return no_resource(pDevPtr != NULL || pSize != NULL);
}

CUresult cuGraphicsResourceGetMappedEglFrame(CUeglFrame *eglFrame, CUgraphicsResource resource, unsigned int index,
                                             unsigned int mipLevel) {
    (void)resource, (void)index, (void)mipLevel;
    return no_resource(eglFrame != NULL);
}

CUresult cuGraphicsResourceSetMapFlags(CUgraphicsResource resource, unsigned int flags) {
    (void)resource;
    return no_resource(flags <= CU_GRAPHICS_MAP_RESOURCE_FLAGS_WRITE_DISCARD);
}

CUresult cuGraphicsResourceSetMapFlags_v2(CUgraphicsResource resource, unsigned int flags) {
    return cuGraphicsResourceSetMapFlags(resource, flags);
}
