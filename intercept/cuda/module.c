/* Modules: cuModuleLoad and its siblings, and what they contain; see context/modules.h. */
#include "context/extra.h"
#include "context/kernels.h"
#include "context/modules.h"
#include "context/variables.h"
#include "context/work.h"
#include "driver/cuda_real.h"
#include "memory/objects.h"

/* Loads a module by `call`. The driver answers to missing arguments. */
#define LOAD(module, from, image_size, call)                                                                           \
    do {                                                                                                               \
        if ((module) == NULL || (from) == NULL)                                                                        \
            return call;                                                                                               \
        struct module_loading loading = {.size = image_size};                                                          \
        WORK_IN_CONTEXT;                                                                                               \
        CUresult result = modules_before(&loading, &work);                                                             \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        gate_enter(&loading.process->making);                                                                          \
        result = call;                                                                                                 \
        result = modules_after(&loading, result, result == CUDA_SUCCESS ? *(module) : NULL);                           \
        gate_leave(&loading.process->making);                                                                          \
        return result;                                                                                                 \
    } while (0)

CUresult cuModuleLoad(CUmodule *module, const char *path) {
    LOAD(module, path, image_file_size(path), REAL(cuModuleLoad)(module, path));
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    LOAD(module, image, image_size(image), REAL(cuModuleLoadData)(module, image));
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options,
                            void **values) {
    LOAD(module, image, image_size(image), REAL(cuModuleLoadDataEx)(module, image, count, options, values));
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    LOAD(module, image, image_size(image), REAL(cuModuleLoadFatBinary)(module, image));
}

CUresult cuModuleUnload(CUmodule module) {
    struct process *process = process_if_open();
    return process != NULL ? modules_unload(process, module) : REAL(cuModuleUnload)(module);
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module, const char *name) {
    GET_GLOBAL(address, size, module, name, REAL(cuModuleGetGlobal_v2), variables_in_module);
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    WORK_IN_CONTEXT;
    CUfunction found = NULL;
    uint64_t bytes = 0;
    CUresult result = REAL(cuModuleGetFunction)(function != NULL ? &found : NULL, module, name);
    if (result != CUDA_SUCCESS)
        return result;
    kernels_local_of_function(found, &bytes);
    result = kernels_charge_in_module(module, bytes);
    if (result == CUDA_SUCCESS)
        *function = found;
    return result;
}

/* Loads the functions, since the driver reports their needs only then. The array may be larger than their number. */
CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int count, CUmodule module) {
    WORK_IN_CONTEXT;
    unsigned int there = 0;
    uint64_t bytes = 0;
    CUresult result = REAL(cuModuleEnumerateFunctions)(functions, count, module);
    if (result != CUDA_SUCCESS || functions == NULL)
        return result;
    result = REAL(cuModuleGetFunctionCount)(&there, module);
    there = there < count ? there : count;
    for (unsigned i = 0; i < there && result == CUDA_SUCCESS; i++)
        result = kernels_local_of_function(functions[i], &bytes);
    if (result == CUDA_SUCCESS)
        result = kernels_charge_in_module(module, bytes);
    for (unsigned i = 0; i < count && result != CUDA_SUCCESS; i++)
        functions[i] = NULL;
    return result;
}
