#include "context/hidden.h"

#include "context/libraries.h"
#include "context/modules.h"
#include "driver/cuda_real.h"
#include "memory/objects.h"
#include "system/mapped.h"

/* Begins to measure the use of a module or library whose image hides something. False if it hides nothing, or without a
 * context. */
static bool use_begin(struct hidden_use *use, uint32_t context) {
    enum kind kind = use->module != NULL ? KIND_HIDDEN : KIND_HIDDEN_LIBRARY;
    uint64_t key = use->module != NULL ? (uintptr_t)use->module : (uintptr_t)use->library;
    struct entry hidden;
    if (!objects_find(use->process, kind, key, &hidden))
        return false;
    lock_take(&use->process->libraries);
    if (objects_find(use->process, kind, key, &hidden) && measure_begin(&use->measurement, use->process, context))
        return true;
    lock_give(&use->process->libraries);
    return false;
}

CUresult hidden_use_end(struct hidden_use *use, CUresult result) {
    uint64_t taken = measure_taken(&use->measurement);
    CUresult settled = use->module != NULL
                           ? modules_settle(use->process, use->module, use->measurement.place.gpu, taken)
                           : libraries_settle(use->process, use->library, &use->measurement.place, taken);
    if (settled != CUDA_SUCCESS && use->module != NULL) {
        modules_unload(use->process, use->module);
    } else if (settled != CUDA_SUCCESS && REAL(cuLibraryUnload)(use->library) == CUDA_SUCCESS) {
        libraries_unloaded(use->process, use->library);
    }
    measure_end(&use->measurement);
    lock_give(&use->process->libraries);
    return result == CUDA_SUCCESS ? settled : result;
}

static bool any_hidden(struct process *process) {
    return process_has(process, KIND_HIDDEN) || process_has(process, KIND_HIDDEN_LIBRARY);
}

bool hidden_use_module(struct hidden_use *use, CUmodule module) {
    struct entry entry;
    *use = (struct hidden_use){.process = process_if_open(), .module = module};
    if (!any_hidden(use->process) || !objects_find(use->process, KIND_MODULE, (uintptr_t)module, &entry))
        return false;
    if (entry.references != 0)
        *use = (struct hidden_use){.process = use->process,
                                   .library = (CUlibrary)(uintptr_t)entry.with}; /* NOLINT(performance-no-int-to-ptr) */
    return use_begin(use, entry.context);
}

/* Without a current context, the driver refuses the call. */
bool hidden_use_library(struct hidden_use *use, CUlibrary library) {
    CUcontext current = NULL;
    *use = (struct hidden_use){.process = process_if_open(), .library = library};
    return any_hidden(use->process) && REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current != NULL &&
           use_begin(use, 0);
}

/* The driver would load a kernel only when it is launched, which is possible in any context. */
CUresult hidden_load_kernels(struct process *process, CUlibrary library, CUkernel *kernels, unsigned count) {
    struct hidden_use use = {.process = process, .library = library};
    CUfunction function;
    struct entry hidden;
    if (!objects_find(process, KIND_HIDDEN_LIBRARY, (uintptr_t)library, &hidden))
        return CUDA_SUCCESS;
    if (!use_begin(&use, 0)) {
        lock_take(&process->libraries);
        if (objects_find(process, KIND_HIDDEN_LIBRARY, (uintptr_t)library, &hidden))
            libraries_set_owed(process, (uintptr_t)library, true);
        lock_give(&process->libraries);
        return CUDA_SUCCESS;
    }
    for (unsigned i = 0; i < count; i++)
        if (REAL(cuKernelGetFunction)(&function, kernels[i]) == CUDA_SUCCESS)
            REAL(cuFuncLoad)(function);
    return hidden_use_end(&use, CUDA_SUCCESS);
}

/* Loads all functions of a library, in the current context. */
static void load_whole(CUlibrary library) {
    unsigned count = 0;
    CUmodule module;
    if (REAL(cuLibraryGetModule)(&module, library) != CUDA_SUCCESS ||
        REAL(cuModuleGetFunctionCount)(&count, module) != CUDA_SUCCESS || count == 0)
        return;
    CUfunction *functions = mapped_new(count * sizeof *functions);
    if (functions != NULL && REAL(cuModuleEnumerateFunctions)(functions, count, module) == CUDA_SUCCESS)
        for (unsigned i = 0; i < count; i++)
            REAL(cuFuncLoad)(functions[i]);
    if (functions != NULL)
        munmap(functions, count * sizeof *functions);
}

static bool next_owed(struct process *process, size_t *at, CUlibrary *library) {
    struct entry entry;
    while (objects_copy(process, KIND_HIDDEN_LIBRARY, (*at)++, &entry, 1) == 1) {
        *library = (CUlibrary)(uintptr_t)entry.key; /* NOLINT(performance-no-int-to-ptr) */
        if (entry.with != 0)
            return true;
    }
    return false;
}

void hidden_load_owed(struct process *process, const struct place *place) {
    struct hidden_use use = {.process = process};
    for (size_t at = 0; next_owed(process, &at, &use.library);) {
        if (!use_begin(&use, place->context))
            continue;
        load_whole(use.library);
        libraries_set_owed(process, (uintptr_t)use.library, false);
        hidden_use_end(&use, CUDA_SUCCESS);
    }
}
