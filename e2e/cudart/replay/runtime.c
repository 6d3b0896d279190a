/*
 * What the runtime does with the driver at each call. The first call of a thread that needs a device makes its primary
 * context current. What the runtime knows of a context is stored with the context, which says when it is gone.
 */
#include "runtime.h"

#include <pthread.h>
#include <stdlib.h>

#include "driver.h"

static __thread int thread_device;

static const struct fat_wrapper *image;
static enum loading loading;
static CUlibrary library; /* the image, for LOAD_LIBRARY */

/* What is stored with a context. */
struct stored {
    int device;
    CUmodule module;
};
static char key;

/* Around the first use of a context. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool retained[MAX_DEVICES];

void runtime_register(const struct fat_wrapper *of, enum loading how) {
    image = of;
    loading = how;
}

/* ---- Contexts ---- */

/* The driver calls it when a context ends, and it may call the driver. */
static void context_gone(CUcontext context, void *stored_key, void *value) {
    struct stored *stored = value;
    unsigned flags;
    int active;

    (void)context;
    (void)stored_key;
    TELL(cuDevicePrimaryCtxGetState, devices[stored->device].device, &flags, &active);
    free(stored);
}

static CUresult retain(int device) {
    CUcontext context;
    unsigned flags;
    int active;

    TRY(TELL(cuDevicePrimaryCtxGetState, devices[device].device, &flags, &active));
    if (active)
        return CUDA_SUCCESS;
    TRY(TELL(cuDevicePrimaryCtxRetain, &context, devices[device].device));
    retained[device] = true;
    return context == devices[device].primary ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult store(CUcontext context, int device, struct stored **stored) {
    void *found = NULL;

    if (driver.get(&found, context, &key) != CUDA_SUCCESS) {
        found = calloc(1, sizeof(**stored));
        if (found == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        ((struct stored *)found)->device = device;
        TRY(told("storing", driver.put(context, &key, found, context_gone)));
    }
    *stored = found;
    return CUDA_SUCCESS;
}

/* Makes the thread's device usable, at the beginning of each call that needs one. */
static CUresult enter(struct stored **stored) {
    CUcontext current = NULL, primary = devices[thread_device].primary;
    CUresult result = driver.cuCtxGetCurrent(&current);

    if (result != CUDA_SUCCESS)
        return told("cuCtxGetCurrent", result);
    pthread_mutex_lock(&mutex);
    result = retain(thread_device);
    if (result == CUDA_SUCCESS && current != primary)
        result = driver.cuCtxSetCurrent(primary);
    if (result == CUDA_SUCCESS)
        result = store(primary, thread_device, stored);
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult runtime_set_device(int device) {
    struct stored *stored;

    if (device < 0 || device >= device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    thread_device = device;
    return enter(&stored);
}

CUresult runtime_device_reset(void) {
    CUresult result = TELL(cuDevicePrimaryCtxReset, devices[thread_device].device);

    retained[thread_device] = false;
    return result;
}

CUresult runtime_device_synchronize(void) {
    struct stored *stored;

    TRY(enter(&stored));
    return TELL(cuCtxSynchronize);
}

/* Libraries go first, then the contexts that the runtime has retained. */
void runtime_end(void) {
    if (library != NULL)
        TELL(cuLibraryUnload, library);
    library = NULL;
    for (int i = 0; i < device_count; i++) {
        if (retained[i])
            TELL(cuDevicePrimaryCtxRelease, devices[i].device);
        retained[i] = false;
    }
}

/* ---- Programs ---- */

static CUresult load_library(CUmodule *module) {
    if (library == NULL)
        TRY(TELL(cuLibraryLoadData, &library, image, NULL, NULL, 0, NULL, NULL, 0));
    return TELL(cuLibraryGetModule, module, library);
}

static CUresult load(CUmodule *module) {
    switch (loading) {
    case LOAD_SLOT_1:
        return told("slot 1", driver.load(module, image));
    case LOAD_SLOT_6:
        return told("slot 6", driver.load_with_options(module, image, NULL, NULL, 0));
    case LOAD_SLOT_8:
        return told("slot 8", driver.load_header(image->data, module, NULL, NULL, 0));
    case LOAD_MODULE:
        return TELL(cuModuleLoadFatBinary, module, image);
    case LOAD_LIBRARY:
        return load_library(module);
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* The program's module in the current context, which is loaded when something in it is first used. */
static CUresult enter_module(CUmodule *module) {
    CUresult result = CUDA_SUCCESS;
    struct stored *stored;

    TRY(enter(&stored));
    pthread_mutex_lock(&mutex);
    if (stored->module == NULL)
        result = load(&stored->module);
    *module = stored->module;
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult runtime_get_symbol_address(CUdeviceptr *address, const char *name) {
    CUmodule module;
    size_t bytes;

    TRY(enter_module(&module));
    return TELL(cuModuleGetGlobal, address, &bytes, module, name);
}

CUresult runtime_launch_kernel(const char *name, CUstream stream) {
    CUfunction function;
    CUmodule module;

    TRY(enter_module(&module));
    TRY(TELL(cuModuleGetFunction, &function, module, name));
    return TELL(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

CUresult runtime_graph_instantiate(CUgraphExec *exec, const char *kernel) {
    CUDA_KERNEL_NODE_PARAMS_v1 node = {
        .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
    CUgraphNode added;
    CUmodule module;
    CUgraph graph;

    TRY(enter_module(&module));
    TRY(TELL(cuModuleGetFunction, &node.func, module, kernel));
    TRY(TELL(cuGraphCreate, &graph, 0));
    TRY(TELL(cuGraphAddKernelNode, &added, graph, NULL, 0, &node));
    TRY(TELL(cuGraphInstantiate, exec, graph, NULL, NULL, 0));
    return TELL(cuGraphDestroy, graph);
}

/* ---- Memory and streams ---- */

#define IN_CONTEXT(function, ...)                                                                                      \
    struct stored *stored;                                                                                             \
    TRY(enter(&stored));                                                                                               \
    return TELL(function, __VA_ARGS__)

CUresult runtime_graph_launch(CUgraphExec exec, CUstream stream) {
    IN_CONTEXT(cuGraphLaunch, exec, stream);
}

CUresult runtime_graph_exec_destroy(CUgraphExec exec) {
    IN_CONTEXT(cuGraphExecDestroy, exec);
}

CUresult runtime_malloc(CUdeviceptr *address, size_t bytes) {
    IN_CONTEXT(cuMemAlloc, address, bytes);
}

CUresult runtime_free(CUdeviceptr address) {
    IN_CONTEXT(cuMemFree, address);
}

CUresult runtime_memcpy_to(CUdeviceptr to, const void *from, size_t bytes) {
    IN_CONTEXT(cuMemcpyHtoD, to, from, bytes);
}

CUresult runtime_memcpy_from(void *to, CUdeviceptr from, size_t bytes) {
    IN_CONTEXT(cuMemcpyDtoH, to, from, bytes);
}

CUresult runtime_mem_get_info(size_t *free_bytes, size_t *total) {
    IN_CONTEXT(cuMemGetInfo, free_bytes, total);
}

CUresult runtime_stream_create(CUstream *stream) {
    IN_CONTEXT(cuStreamCreate, stream, CU_STREAM_DEFAULT);
}

CUresult runtime_stream_synchronize(CUstream stream) {
    IN_CONTEXT(cuStreamSynchronize, stream);
}

CUresult runtime_stream_destroy(CUstream stream) {
    IN_CONTEXT(cuStreamDestroy, stream);
}

CUresult runtime_malloc_async(CUdeviceptr *address, size_t bytes, CUstream stream) {
    IN_CONTEXT(cuMemAllocAsync, address, bytes, stream);
}

CUresult runtime_free_async(CUdeviceptr address, CUstream stream) {
    IN_CONTEXT(cuMemFreeAsync, address, stream);
}
