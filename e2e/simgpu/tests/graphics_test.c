/* Graphics interoperability where there is no graphics: every entry point says so, and none says that it worked. */
#include <string.h>

#include "harness.h"

/* An entry point with arguments, and what it gives with a context and without one. */
#define CALLS(CALL)                                                                                                    \
    CALL(cuGLInit(), GRAPHICS, GRAPHICS)                                                                               \
    CALL(cuGLCtxCreate(&context, 0, 0), GRAPHICS, GRAPHICS)                                                            \
    CALL(cuGLCtxCreate_v2(&context, 0, 0), GRAPHICS, GRAPHICS)                                                         \
    CALL(cuGLGetDevices(&count, &device, 1, CU_GL_DEVICE_LIST_ALL), GRAPHICS, GRAPHICS)                                \
    CALL(cuGLGetDevices_v2(&count, &device, 1, CU_GL_DEVICE_LIST_ALL), GRAPHICS, GRAPHICS)                             \
    CALL(cuGLRegisterBufferObject(1), GRAPHICS, CONTEXT)                                                               \
    CALL(cuGLUnregisterBufferObject(1), GRAPHICS, CONTEXT)                                                             \
    CALL(cuGLSetBufferObjectMapFlags(1, 0), GRAPHICS, CONTEXT)                                                         \
    CALL(cuGLMapBufferObject(&address32, &count, 1), GRAPHICS, CONTEXT)                                                \
    CALL(cuGLMapBufferObject_v2(&address, &size, 1), GRAPHICS, CONTEXT)                                                \
    CALL(cuGLMapBufferObject_v2_ptds(&address, &size, 1), GRAPHICS, CONTEXT)                                           \
    CALL(cuGLMapBufferObjectAsync(&address32, &count, 1, NULL), GRAPHICS, CONTEXT)                                     \
    CALL(cuGLMapBufferObjectAsync_v2(&address, &size, 1, NULL), GRAPHICS, CONTEXT)                                     \
    CALL(cuGLMapBufferObjectAsync_v2_ptsz(&address, &size, 1, NULL), GRAPHICS, CONTEXT)                                \
    CALL(cuGLUnmapBufferObject(1), GRAPHICS, CONTEXT)                                                                  \
    CALL(cuGLUnmapBufferObjectAsync(1, NULL), GRAPHICS, CONTEXT)                                                       \
    CALL(cuGraphicsGLRegisterBuffer(&resource, 1, 0), GRAPHICS, CONTEXT)                                               \
    CALL(cuGraphicsGLRegisterImage(&resource, 1, 0x0de1, 0), GRAPHICS, CONTEXT)                                        \
    CALL(cuGraphicsEGLRegisterImage(&resource, &count, 0), UNSUPPORTED, CONTEXT)                                       \
    CALL(cuEGLStreamConsumerConnect(&connection, &count), UNSUPPORTED, CONTEXT)                                        \
    CALL(cuEGLStreamConsumerConnectWithFlags(&connection, &count, 0), UNSUPPORTED, CONTEXT)                            \
    CALL(cuEGLStreamProducerConnect(&connection, &count, 64, 64), UNSUPPORTED, CONTEXT)                                \
    CALL(cuEGLStreamConsumerDisconnect(&connection), HANDLE, HANDLE)                                                   \
    CALL(cuEGLStreamConsumerAcquireFrame(&connection, &resource, &stream, 0), HANDLE, HANDLE)                          \
    CALL(cuEGLStreamConsumerReleaseFrame(&connection, resource, &stream), HANDLE, HANDLE)                              \
    CALL(cuEGLStreamProducerDisconnect(&connection), HANDLE, HANDLE)                                                   \
    CALL(cuEGLStreamProducerPresentFrame(&connection, frame, &stream), HANDLE, HANDLE)                                 \
    CALL(cuEGLStreamProducerReturnFrame(&connection, &frame, &stream), HANDLE, HANDLE)                                 \
    CALL(cuVDPAUGetDevice(&device, 1, get_address), VALUE, VALUE)                                                      \
    CALL(cuVDPAUCtxCreate(&context, 0, 0, 1, get_address), VALUE, VALUE)                                               \
    CALL(cuVDPAUCtxCreate_v2(&context, 0, 0, 1, get_address), VALUE, VALUE)                                            \
    CALL(cuGraphicsVDPAURegisterVideoSurface(&resource, 1, 0), HANDLE, CONTEXT)                                        \
    CALL(cuGraphicsVDPAURegisterOutputSurface(&resource, 1, 0), HANDLE, CONTEXT)                                       \
    CALL(cuGraphicsMapResources(1, &resource, NULL), HANDLE, CONTEXT)                                                  \
    CALL(cuGraphicsMapResources_ptsz(1, &resource, NULL), HANDLE, CONTEXT)                                             \
    CALL(cuGraphicsUnmapResources(1, &resource, NULL), HANDLE, CONTEXT)                                                \
    CALL(cuGraphicsUnmapResources_ptsz(1, &resource, NULL), HANDLE, CONTEXT)                                           \
    CALL(cuGraphicsUnregisterResource(resource), HANDLE, CONTEXT)                                                      \
    CALL(cuGraphicsSubResourceGetMappedArray(&array, resource, 0, 0), HANDLE, CONTEXT)                                 \
    CALL(cuGraphicsResourceGetMappedMipmappedArray(&mipmap, resource), HANDLE, CONTEXT)                                \
    CALL(cuGraphicsResourceGetMappedPointer(&address32, &count, resource), HANDLE, CONTEXT)                            \
    CALL(cuGraphicsResourceGetMappedPointer_v2(&address, &size, resource), HANDLE, CONTEXT)                            \
    CALL(cuGraphicsResourceGetMappedEglFrame(&frame, resource, 0, 0), HANDLE, CONTEXT)                                 \
    CALL(cuGraphicsResourceSetMapFlags(resource, 0), HANDLE, CONTEXT)                                                  \
    CALL(cuGraphicsResourceSetMapFlags_v2(resource, 0), HANDLE, CONTEXT)

enum {
    GRAPHICS = CUDA_ERROR_INVALID_GRAPHICS_CONTEXT,
    UNSUPPORTED = CUDA_ERROR_NOT_SUPPORTED,
    HANDLE = CUDA_ERROR_INVALID_HANDLE,
    VALUE = CUDA_ERROR_INVALID_VALUE,
    CONTEXT = CUDA_ERROR_INVALID_CONTEXT
};

static CUcontext context;
static CUdevice device;
static CUdeviceptr_v1 address32;
static CUdeviceptr address;
static CUgraphicsResource resource;
static CUeglStreamConnection connection;
static CUeglFrame frame;
static CUmipmappedArray mipmap;
static CUstream stream;
static CUarray array;
static unsigned count;
static size_t size;

static int get_address(CUvdpHandle vdp_device, uint32_t function, void **pointer) {
    (void)vdp_device, (void)function, (void)pointer;
    return 1;
}

#define WITH_CONTEXT(call, with, without) CHECK_INT(call, with);
#define WITHOUT_CONTEXT(call, with, without) CHECK_INT(call, without);
/* A connection is not even looked for. */
#define BEFORE_INIT(call, with, without)                                                                               \
    CHECK_INT(call, strstr(#call, "&connection") != NULL && (with) == HANDLE ? HANDLE : CUDA_ERROR_NOT_INITIALIZED);

static void nothing_works_before_the_driver_is_initialised(void) {
    CALLS(BEFORE_INIT)
}

static void what_needs_a_context_says_so(void) {
    OK(cuInit(0));
    CALLS(WITHOUT_CONTEXT)
}

static void what_is_missing_is_refused(void) {
    uint64_t before;

    context_on(0);
    before = look("test").used[0];
    CALLS(WITH_CONTEXT)
    CHECK_INT(look("test").used[0], before);
    CHECK(context == NULL && resource == NULL && connection == NULL);
}

static void arguments_are_looked_at_first(void) {
    context_on(0);
    CHECK_INT(cuGraphicsMapResources(0, &resource, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphicsMapResources(1, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuEGLStreamConsumerConnect(&connection, NULL), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(cuEGLStreamConsumerConnectWithFlags(&connection, NULL, 0), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(cuEGLStreamProducerConnect(&connection, NULL, 64, 64), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(cuGraphicsResourceSetMapFlags(resource, 3), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphicsSubResourceGetMappedArray(NULL, resource, 0, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphicsResourceGetMappedPointer_v2(NULL, NULL, resource), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphicsResourceGetMappedMipmappedArray(NULL, resource), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGraphicsResourceGetMappedEglFrame(NULL, resource, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

static void the_stream_must_be_good(void) {
    CUcontext first = context_on(0), second;
    CUstream foreign;

    OK(cuCtxCreate_v2(&second, 0, 0));
    OK(cuStreamCreate(&foreign, 0));
    OK(cuCtxSetCurrent(first));
    CHECK_INT(cuGraphicsMapResources(1, &resource, foreign), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_INT(cuGraphicsUnmapResources(1, &resource, foreign), CUDA_ERROR_INVALID_CONTEXT);
}

static void names_lead_to_the_version_asked_for(void) {
    void *symbol;

    OK(cuGetProcAddress("cuGraphicsMapResources", &symbol, 7000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM));
    CHECK(symbol == (void *)(uintptr_t)cuGraphicsMapResources_ptsz);
    OK(cuGetProcAddress("cuGraphicsMapResources", &symbol, 3000, 0));
    CHECK(symbol == (void *)(uintptr_t)cuGraphicsMapResources);
    OK(cuGetProcAddress("cuGLMapBufferObject", &symbol, 7000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM));
    CHECK(symbol == (void *)(uintptr_t)cuGLMapBufferObject_v2_ptds);
    OK(cuGetProcAddress("cuGLGetDevices", &symbol, 6000, 0));
    CHECK(symbol == (void *)(uintptr_t)cuGLGetDevices);
    OK(cuGetProcAddress("cuVDPAUCtxCreate", &symbol, 3020, 0));
    CHECK(symbol == (void *)(uintptr_t)cuVDPAUCtxCreate_v2);
}

const struct test graphics_tests[] = {
    {"nothing works before the driver is initialised", nothing_works_before_the_driver_is_initialised},
    {"what needs a context says so", what_needs_a_context_says_so},
    {"what is missing is refused", what_is_missing_is_refused},
    {"arguments are looked at first", arguments_are_looked_at_first},
    {"the stream must be good", the_stream_must_be_good},
    {"names lead to the version asked for", names_lead_to_the_version_asked_for},
    {0},
};
