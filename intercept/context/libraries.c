#include "context/libraries.h"

#include "context/extra.h"
#include "context/modules.h"
#include "context/variables.h"
#include "driver/cuda_real.h"
#include "memory/objects.h"

#define CODE_SHIFT 12 /* a library's code is recorded in units of 4 KiB, rounded up */

/* Charges a context with a library. Also called when a context is created after the library was loaded. */
static void load_into(uint32_t context, int gpu, void *argument) {
    struct library_loading *library = argument;
    struct place place = {gpu, context};
    struct charge charge;
    if (library->result == CUDA_SUCCESS)
        library->result = modules_take(library->process, &place, &library->size, &charge);
    if (library->result != CUDA_SUCCESS)
        return;
    objects_put(library->process, KIND_LIBRARY_IN_CONTEXT,
                (struct entry){.key = objects_key((uintptr_t)library->handle, context),
                               .charge = charge,
                               .with = library->size.code,
                               .context = context});
}

static void unload_from(uint32_t context, int gpu, void *argument) {
    const struct library_loading *library = argument;
    struct entry entry;
    (void)gpu;
    if (!objects_remove(library->process, KIND_LIBRARY_IN_CONTEXT, objects_key((uintptr_t)library->handle, context),
                        &entry))
        return;
    context_extra_subtract(library->process, context, EXTRA_CODE, entry.with);
    charge_end(library->process, &entry.charge);
}

/* Records what was taken for a library before it had a handle by its handle. */
static void rename_in(uint32_t context, int gpu, void *argument) {
    const struct library_loading *library = argument;
    struct entry entry;
    (void)gpu;
    if (!objects_remove(library->process, KIND_LIBRARY_IN_CONTEXT, objects_key(0, context), &entry))
        return;
    entry.key = objects_key((uintptr_t)library->handle, context);
    objects_put(library->process, KIND_LIBRARY_IN_CONTEXT, entry);
}

void libraries_unloaded(struct process *process, CUlibrary library) {
    struct entry entry;
    objects_remove(process, KIND_LIBRARY, (uintptr_t)library, &entry);
    objects_remove(process, KIND_LIBRARY_KERNELS, (uintptr_t)library, &entry);
    variables_unloaded(process, (uintptr_t)library);
    while (objects_remove_part(process, KIND_MODULE, (uintptr_t)library, &entry)) {
        /* recorded by cuLibraryGetModule, without a charge */
    }
    contexts_each(process, unload_from, &(struct library_loading){.process = process, .handle = library});
}

/* A library that takes more in every context than is charged. */
struct growing {
    struct process *process;
    uint64_t library; /* its handle */
    uint64_t bytes;
    CUresult result;
};

static void grow_in(uint32_t context, int gpu, void *argument) {
    struct growing *growing = argument;
    struct process *process = growing->process;
    struct place place = {gpu, context};
    struct entry known;
    uint64_t key = objects_key(growing->library, context);
    if (growing->result != CUDA_SUCCESS || !objects_find(process, KIND_LIBRARY_IN_CONTEXT, key, &known))
        return;
    growing->result = context_extra_add(process, &place, EXTRA_CODE, growing->bytes);
    if (growing->result == CUDA_SUCCESS)
        objects_replace(process, KIND_LIBRARY_IN_CONTEXT, &known, known.charge, known.with + growing->bytes);
}

/* If one context has no room, those before it stay charged until the library is unloaded. */
CUresult libraries_grow(struct process *process, CUlibrary library, uint64_t bytes) {
    struct growing growing = {.process = process, .library = (uintptr_t)library, .bytes = bytes};
    contexts_each(process, grow_in, &growing);
    if (growing.result == CUDA_SUCCESS)
        objects_refer(process, KIND_LIBRARY, (uintptr_t)library, (int)((bytes + (1 << CODE_SHIFT) - 1) >> CODE_SHIFT),
                      &(struct entry){0});
    return growing.result;
}

CUresult libraries_before(struct library_loading *library) {
    reentrant_take(&library->process->libraries);
    contexts_each(library->process, load_into, library);
    return library->result;
}

CUresult libraries_after(struct library_loading *library, CUresult result, CUlibrary handle) {
    struct process *process = library->process;
    if (result == CUDA_SUCCESS) {
        library->handle = handle;
        contexts_each(process, rename_in, library);
        objects_put(process, KIND_LIBRARY,
                    (struct entry){.key = (uintptr_t)handle,
                                   .with = library->size.data,
                                   .references = (uint32_t)(library->size.code >> CODE_SHIFT) + 2});
    } else {
        contexts_each(process, unload_from, library);
    }
    if (result == CUDA_SUCCESS && library->size.hidden)
        variables_unread(process, (uintptr_t)handle, 0, library->size.spare);
    reentrant_give(&process->libraries);
    return result;
}

/* No other library gets the handle before this one is removed, since none is loaded meanwhile. */
CUresult libraries_unload(struct process *process, CUlibrary library) {
    if (process == NULL)
        return REAL(cuLibraryUnload)(library);
    reentrant_take(&process->libraries);
    CUresult result = REAL(cuLibraryUnload)(library);
    if (result == CUDA_SUCCESS)
        libraries_unloaded(process, library);
    reentrant_give(&process->libraries);
    return result;
}

static CUresult load_all_into(struct process *process, const struct place *place) {
    struct library_loading library = {.process = process};
    struct entry known;
    for (size_t at = 0; library.result == CUDA_SUCCESS && objects_next(process, KIND_LIBRARY, &at, &known);) {
        library.handle = (CUlibrary)(uintptr_t)known.key; /* NOLINT(performance-no-int-to-ptr) */
        library.size = (struct image_size){.code = ((uint64_t)known.references - 1) << CODE_SHIFT, .data = known.with};
        load_into(place->context, place->gpu, &library);
    }
    return library.result;
}

/* The most local memory that a kernel of any library needs whose handle the program has. */
static uint64_t most_of_kernels(struct process *process) {
    struct entry kernels;
    uint64_t most = 0;
    for (size_t at = 0; objects_next(process, KIND_LIBRARY_KERNELS, &at, &kernels);)
        most = kernels.with > most ? kernels.with : most;
    return most;
}

CUresult libraries_enter(struct process *process, const struct place *place) {
    CUresult result = load_all_into(process, place);
    uint64_t most = most_of_kernels(process);
    return result == CUDA_SUCCESS && most != 0 ? context_extra_local(process, place, most) : result;
}
