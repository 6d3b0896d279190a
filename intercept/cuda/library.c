/* Libraries, and their kernels; see context/libraries.h. */
#include "context/kernels.h"
#include "context/libraries.h"
#include "context/variables.h"
#include "context/work.h"
#include "driver/cuda_real.h"
#include "memory/objects.h"

/* Loads a library by `call`, which stores its handle in `library`. The driver answers to missing arguments. */
#define LOAD_LIBRARY(library, from, image_size, call)                                                                  \
    do {                                                                                                               \
        if ((library) == NULL || (from) == NULL)                                                                       \
            return call;                                                                                               \
        struct library_loading loading = {.process = process_if_open(), .size = image_size};                           \
        if (loading.process == NULL)                                                                                   \
            return call;                                                                                               \
        if (loading.size.malformed)                                                                                    \
            return CUDA_ERROR_INVALID_IMAGE;                                                                           \
        WORK_IN_CONTEXT;                                                                                               \
        CUresult result = work_allowed(&work);                                                                         \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        result = libraries_before(&loading);                                                                           \
        if (result == CUDA_SUCCESS)                                                                                    \
            result = call;                                                                                             \
        return libraries_after(&loading, result, result == CUDA_SUCCESS ? *(library) : NULL);                          \
    } while (0)

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit, void **jit_values,
                           unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count) {
    LOAD_LIBRARY(library, code, image_size(code),
                 REAL(cuLibraryLoadData)(library, code, jit, jit_values, jit_count, options, values, count));
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit, void **jit_values,
                               unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count) {
    LOAD_LIBRARY(library, path, image_file_size(path),
                 REAL(cuLibraryLoadFromFile)(library, path, jit, jit_values, jit_count, options, values, count));
}

CUresult cuLibraryUnload(CUlibrary library) {
    return libraries_unload(process_if_open(), library);
}

CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name) {
    GET_GLOBAL(address, size, library, name, REAL(cuLibraryGetGlobal), variables_in_library);
}

CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name) {
    GET_GLOBAL(address, size, library, name, REAL(cuLibraryGetManaged), variables_in_library);
}

/* Recorded before the library is unloaded and another module gets the handle. */
static CUresult get_module(struct work *work, CUmodule *module, CUlibrary library) {
    reentrant_take(&work->process->libraries);
    CUresult result = REAL(cuLibraryGetModule)(module, library);
    if (result == CUDA_SUCCESS)
        objects_put(work->process, KIND_MODULE,
                    (struct entry){.key = (uintptr_t)*module,
                                   .charge = {.gpu = (uint8_t)(work->place.gpu & 0x7f)},
                                   .with = (uintptr_t)library,
                                   .context = work->place.context,
                                   .references = OBJECTS_PART});
    reentrant_give(&work->process->libraries);
    return result;
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    WORK_IN_CONTEXT;
    CUresult result = module != NULL ? work_allowed(&work) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        return result;
    return module != NULL && contexts_place(&work) == CUDA_SUCCESS ? get_module(&work, module, library)
                                                                   : REAL(cuLibraryGetModule)(module, library);
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    WORK_IN_CONTEXT;
    CUfunction found = NULL;
    uint64_t bytes = 0;
    CUresult result = REAL(cuKernelGetFunction)(function != NULL ? &found : NULL, kernel);
    if (result != CUDA_SUCCESS)
        return result;
    kernels_local_of_function(found, &bytes);
    result = kernels_charge_here(bytes);
    if (result == CUDA_SUCCESS)
        *function = found;
    return result;
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    WORK_IN_CONTEXT;
    struct process *process = process_if_open();
    CUkernel found = NULL;
    uint64_t bytes = 0;
    CUresult result = REAL(cuLibraryGetKernel)(kernel != NULL ? &found : NULL, library, name);
    if (result == CUDA_SUCCESS && process != NULL) {
        kernels_local_of(process, found, &bytes);
        result = kernels_charge_in_library(process, library, bytes);
    }
    if (result == CUDA_SUCCESS)
        *kernel = found;
    return result;
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int count, CUlibrary library) {
    WORK_IN_CONTEXT;
    struct process *process = process_if_open();
    unsigned int there = 0;
    uint64_t bytes = 0;
    CUresult result = REAL(cuLibraryEnumerateKernels)(kernels, count, library);
    if (result != CUDA_SUCCESS || kernels == NULL || process == NULL)
        return result;
    result = REAL(cuLibraryGetKernelCount)(&there, library);
    there = there < count ? there : count;
    for (unsigned i = 0; i < there && result == CUDA_SUCCESS; i++)
        kernels_local_of(process, kernels[i], &bytes);
    if (result == CUDA_SUCCESS)
        result = kernels_charge_in_library(process, library, bytes);
    for (unsigned i = 0; i < there && result != CUDA_SUCCESS; i++)
        kernels[i] = NULL;
    return result;
}
