#include "context/modules.h"

#include "context/extra.h"
#include "context/variables.h"
#include "driver/cuda_real.h"
#include "memory/objects.h"
#include "memory/pools.h"

CUresult modules_take(struct process *process, const struct place *place, const struct image_size *size,
                      struct charge *data) {
    CUresult result = CUDA_SUCCESS;
    *data = (struct charge){.gpu = (uint8_t)(place->gpu & 0x7f)};
    if (size->data != 0)
        result = pools_take(process, place->gpu, pages_of(size->data), data);
    if (result != CUDA_SUCCESS)
        return result;
    result = context_extra_add(process, place, EXTRA_CODE, size->code);
    if (result != CUDA_SUCCESS)
        charge_give(process, data);
    return result;
}

CUresult modules_before(struct module_loading *loading, struct work *work) {
    CUresult result = contexts_place(work);
    loading->process = work->process;
    loading->place = work->place;
    if (result == CUDA_SUCCESS && loading->size.malformed)
        result = CUDA_ERROR_INVALID_IMAGE;
    return result != CUDA_SUCCESS ? result
                                  : modules_take(loading->process, &loading->place, &loading->size, &loading->data);
}

CUresult modules_after(struct module_loading *loading, CUresult result, CUmodule module) {
    contexts_failed(loading->process, result);
    if (result != CUDA_SUCCESS) {
        context_extra_subtract(loading->process, loading->place.context, EXTRA_CODE, loading->size.code);
        charge_give(loading->process, &loading->data);
        return result;
    }
    reentrant_take(&loading->process->libraries);
    objects_put(loading->process, KIND_MODULE,
                (struct entry){.key = (uintptr_t)module,
                               .charge = loading->data,
                               .with = loading->size.code,
                               .context = loading->place.context});
    if (loading->size.hidden)
        variables_unread(loading->process, (uintptr_t)module, loading->place.context, loading->size.spare);
    reentrant_give(&loading->process->libraries);
    return result;
}

/* `references` is not 0 for a module that cuLibraryGetModule returned: its `with` is the library's handle, and the
 * driver refuses to unload it. */
static void unloaded(struct process *process, CUmodule module) {
    struct entry entry;
    variables_unloaded(process, (uintptr_t)module);
    if (!objects_remove(process, KIND_MODULE, (uintptr_t)module, &entry))
        return;
    if (entry.references == 0)
        context_extra_subtract(process, entry.context, EXTRA_CODE, entry.with);
    charge_end(process, &entry.charge);
}

static CUresult unload(struct process *process, CUmodule module) {
    CUresult result = REAL(cuModuleUnload)(module);
    if (result == CUDA_SUCCESS)
        unloaded(process, module);
    return result;
}

CUresult modules_unload(struct process *process, CUmodule module) {
    struct entry entry;
    reentrant_take(&process->libraries);
    bool known = objects_find(process, KIND_MODULE, (uintptr_t)module, &entry);
    CUresult result = known ? unload(process, module) : CUDA_SUCCESS;
    reentrant_give(&process->libraries);
    if (known)
        return result;
    gate_close(&process->making);
    reentrant_take(&process->libraries);
    result = unload(process, module);
    reentrant_give(&process->libraries);
    gate_open(&process->making);
    return result;
}

/* One that is not known was loaded by a function that is not shadowed: into the current context, if any. */
bool modules_find(struct process *process, CUmodule module, struct entry *entry) {
    struct process *same;
    struct place place;
    if (objects_find(process, KIND_MODULE, (uintptr_t)module, entry))
        return true;
    if (contexts_current(&same, &place) != CUDA_SUCCESS)
        return false;
    *entry = (struct entry){
        .key = (uintptr_t)module, .charge = {.gpu = (uint8_t)(place.gpu & 0x7f)}, .context = place.context};
    variables_unread(process, (uintptr_t)module, place.context, 0);
    return objects_put(process, KIND_MODULE, *entry);
}

CUresult modules_grow(struct process *process, CUmodule module, uint64_t bytes) {
    struct entry entry;
    if (!objects_find(process, KIND_MODULE, (uintptr_t)module, &entry))
        return CUDA_SUCCESS;
    struct place place = {entry.charge.gpu, entry.context};
    CUresult result = context_extra_add(process, &place, EXTRA_CODE, bytes);
    if (result == CUDA_SUCCESS)
        objects_replace(process, KIND_MODULE, &entry, entry.charge, entry.with + bytes);
    return result;
}
