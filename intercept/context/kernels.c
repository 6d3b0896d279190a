#include "context/kernels.h"

#include "context/extra.h"
#include "driver/cuda_real.h"
#include "memory/objects.h"
#include "state/gpus.h"

CUresult kernels_local_of_function(CUfunction function, uint64_t *most) {
    int bytes = 0;
    CUresult result = REAL(cuFuncGetAttribute)(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function);
    if (result != CUDA_SUCCESS && REAL(cuFuncLoad)(function) == CUDA_SUCCESS)
        result = REAL(cuFuncGetAttribute)(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function);
    if (result == CUDA_SUCCESS && bytes > 0 && (uint64_t)bytes > *most)
        *most = (uint64_t)bytes;
    return result;
}

void kernels_local_of(struct process *process, CUkernel kernel, uint64_t *most) {
    int devices = 0, gpu, bytes;
    REAL(cuDeviceGetCount)(&devices);
    for (CUdevice device = 0; device < devices; device++) {
        bytes = 0;
        if (gpus_find(process, device, &gpu) != CUDA_SUCCESS || gpu == NO_CLAIM)
            continue;
        REAL(cuKernelGetAttribute)(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, kernel, device);
        if (bytes > 0 && (uint64_t)bytes > *most)
            *most = (uint64_t)bytes;
    }
}

/* Without a current context, nothing can be launched. */
CUresult kernels_charge_here(uint64_t bytes) {
    struct process *process;
    struct place place;
    CUresult result = bytes != 0 ? contexts_current(&process, &place) : CUDA_ERROR_INVALID_CONTEXT;
    if (result == CUDA_SUCCESS)
        return context_extra_local(process, &place, bytes);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? result : CUDA_SUCCESS;
}

/* In all contexts; an error if the current one is not recorded since its cost does not fit. */
static CUresult charge_everywhere(struct process *process, uint64_t bytes) {
    struct place place;
    bool fits = contexts_current(&process, &place) != CUDA_ERROR_OUT_OF_MEMORY;
    return fits ? context_extra_local_everywhere(process, bytes) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult kernels_charge_in_module(CUmodule module, uint64_t bytes) {
    struct process *process = process_if_open();
    struct entry entry;
    if (bytes == 0 || process == NULL)
        return CUDA_SUCCESS;
    if (objects_find(process, KIND_MODULE, (uintptr_t)module, &entry))
        return context_extra_local(process, &(struct place){entry.charge.gpu, entry.context}, bytes);
    return charge_everywhere(process, bytes);
}

/* What the kernels of a library need that is charged already. */
static uint64_t charged_for(struct process *process, CUlibrary library) {
    struct entry known;
    return objects_find(process, KIND_LIBRARY_KERNELS, (uintptr_t)library, &known) ? known.with : 0;
}

/* Records the need for future contexts. */
CUresult kernels_charge_in_library(struct process *process, CUlibrary library, uint64_t bytes) {
    CUresult result = CUDA_SUCCESS;
    if (bytes <= charged_for(process, library))
        return CUDA_SUCCESS;
    reentrant_take(&process->libraries);
    if (bytes > charged_for(process, library)) {
        result = charge_everywhere(process, bytes);
        if (result == CUDA_SUCCESS &&
            !objects_put(process, KIND_LIBRARY_KERNELS, (struct entry){.key = (uintptr_t)library, .with = bytes}))
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    reentrant_give(&process->libraries);
    return result;
}
