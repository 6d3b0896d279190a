#include "context/modules.h"

#include "context/extra.h"
#include "driver/cuda_real.h"
#include "memory/objects.h"
#include "memory/pools.h"

CUresult modules_before(struct module_loading *loading) {
    CUresult result = contexts_current(&loading->process, &loading->place);
    if (result == CUDA_SUCCESS && loading->size.malformed)
        result = CUDA_ERROR_INVALID_IMAGE;
    if (result == CUDA_SUCCESS && loading->size.data != 0)
        result = pools_take(loading->process, loading->place.gpu, pages_of(loading->size.data), &loading->data);
    if (result != CUDA_SUCCESS)
        return result;
    result = context_extra_add(loading->process, &loading->place, EXTRA_CODE, loading->size.code);
    if (result != CUDA_SUCCESS) {
        charge_give(loading->process, &loading->data);
        return result;
    }
    if (loading->size.hidden) {
        lock_take(&loading->process->libraries);
        measure_begin(&loading->measurement, loading->process, 0);
    }
    return result;
}

uint64_t modules_pages_beyond(uint64_t *left, uint64_t taken) {
    uint64_t pages = taken > *left ? pages_of(taken - *left) : 0;
    *left = pages != 0 ? pages_to_bytes(pages) - (taken - *left) : *left - taken;
    return pages;
}

/* A module's KIND_HIDDEN entry has the charge beyond what its image declares, and in `with` the charged bytes that the
 * driver has not taken yet. */
CUresult modules_settle(struct process *process, CUmodule module, int gpu, uint64_t taken) {
    struct entry hidden;
    if (!objects_find(process, KIND_HIDDEN, (uintptr_t)module, &hidden))
        return CUDA_SUCCESS;
    uint64_t pages = modules_pages_beyond(&hidden.with, taken);
    CUresult result = pages != 0 ? pools_extend(process, &hidden.charge, gpu, pages) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS)
        objects_update(process, KIND_HIDDEN, (uintptr_t)module, hidden.charge, hidden.with);
    return result;
}

static CUresult end_measurement(struct module_loading *loading, CUresult result, CUmodule module) {
    uint64_t taken = measure_taken(&loading->measurement);
    struct entry hidden = {.key = (uintptr_t)module,
                           .charge = {.gpu = (uint8_t)(loading->place.gpu & 0x7f)},
                           .context = loading->place.context,
                           .with = pages_to_bytes(loading->data.pages) + loading->size.code};
    if (result == CUDA_SUCCESS) {
        bool put = objects_put(loading->process, KIND_HIDDEN, hidden);
        result = put ? modules_settle(loading->process, module, loading->place.gpu, taken) : CUDA_ERROR_OUT_OF_MEMORY;
        if (result != CUDA_SUCCESS) {
            REAL(cuModuleUnload)(module);
            objects_remove(loading->process, KIND_HIDDEN, (uintptr_t)module, &hidden);
        }
    }
    measure_end(&loading->measurement);
    lock_give(&loading->process->libraries);
    return result;
}

static void give_back(struct module_loading *loading) {
    context_extra_subtract(loading->process, loading->place.context, EXTRA_CODE, loading->size.code);
    charge_give(loading->process, &loading->data);
}

CUresult modules_after(struct module_loading *loading, CUresult result, CUmodule module) {
    if (loading->size.hidden)
        result = end_measurement(loading, result, module);
    contexts_failed(loading->process, result);
    if (result != CUDA_SUCCESS) {
        give_back(loading);
        return result;
    }
    loading->data.gpu = (uint8_t)(loading->place.gpu & 0x7f);
    objects_put(loading->process, KIND_MODULE,
                (struct entry){.key = (uintptr_t)module,
                               .charge = loading->data,
                               .with = loading->size.code,
                               .context = loading->place.context});
    return result;
}

static void end_hidden(struct process *process, enum kind kind, uint64_t key) {
    struct entry hidden;
    if (objects_remove(process, kind, key, &hidden))
        charge_end(process, &hidden.charge);
}

/* `references` is not 0 for a module that cuLibraryGetModule returned: its `with` is the library's handle, and the
 * driver refuses to unload it. */
CUresult modules_unload(struct process *process, CUmodule module) {
    struct entry entry;
    bool ours = process != NULL && objects_remove(process, KIND_MODULE, (uintptr_t)module, &entry);
    CUresult result = REAL(cuModuleUnload)(module);
    if (!ours)
        return result;
    if (result != CUDA_SUCCESS) {
        objects_put_back(process, KIND_MODULE, entry);
        return result;
    }
    if (entry.references == 0)
        context_extra_subtract(process, entry.context, EXTRA_CODE, entry.with);
    charge_end(process, &entry.charge);
    end_hidden(process, KIND_HIDDEN, (uintptr_t)module);
    return result;
}
