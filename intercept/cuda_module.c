/*
 * Modules and libraries: their variables and their code take memory of the GPU, once for each context. What lazy loading takes
 * later is counted when the module is loaded.
 *
 * Code is small, and the driver packs that of all modules of a context together; so does the sum that we keep of it for each
 * context. Variables are charged module by module.
 *
 * What compressed fat binaries declare cannot be seen before, nor whatever else image.h calls hidden. After one was loaded, the driver is asked how much less is free
 * of the whole GPU; a difference that is too large to be code is charged as the module's, or the module is unloaded again.
 */
#include "context_extra.h"
#include "contexts.h"
#include "cuda_real.h"
#include "gpus.h"
#include "image.h"
#include "libraries.h"
#include "objects.h"

#define CODE_SHIFT 12 /* what is remembered of a library's code, rounded up */
#define LIBRARIES_AT_ONCE 64
#define HIDDEN_MIN_BYTES (UINT64_C(16) << 20) /* less may be code, or others' */

/* --- one module in one context -------------------------------------------------------------------------------------- */

struct loading {
    struct process *process;
    struct place place;
    struct image_size size;
    struct charge data;
    size_t free_before;
};

static CUresult before(struct loading *loading) {
    CUresult result = contexts_current(&loading->process, &loading->place);
    size_t total;
    if (result == CUDA_SUCCESS && loading->size.data != 0)
        result = charge_take(loading->process, loading->place.gpu, pages_of(loading->size.data), &loading->data);
    if (result != CUDA_SUCCESS)
        return result;
    result = context_extra_add(loading->process, &loading->place, EXTRA_CODE, loading->size.code);
    if (result != CUDA_SUCCESS)
        charge_give(loading->process, &loading->data);
    if (loading->size.hidden && REAL(cuMemGetInfo_v2)(&loading->free_before, &total) != CUDA_SUCCESS)
        loading->free_before = 0;
    return result;
}

/* What a compressed image turned out to take. */
static CUresult charge_hidden(struct loading *loading) {
    size_t free, total;
    if (!loading->size.hidden || REAL(cuMemGetInfo_v2)(&free, &total) != CUDA_SUCCESS || free >= loading->free_before)
        return CUDA_SUCCESS;
    uint64_t taken = loading->free_before - free, seen = loading->size.code + loading->size.data;
    if (taken < seen + HIDDEN_MIN_BYTES)
        return CUDA_SUCCESS;
    return loading->data.pages != 0
               ? charge_grow(loading->process, &loading->data, pages_of(taken - seen))
               : charge_take(loading->process, loading->place.gpu, pages_of(taken - seen), &loading->data);
}

static void give_back(struct loading *loading) {
    context_extra_subtract(loading->process, loading->place.context, EXTRA_CODE, loading->size.code);
    charge_give(loading->process, &loading->data);
}

static CUresult after(struct loading *loading, CUresult result, CUmodule module) {
    if (result == CUDA_SUCCESS) {
        result = charge_hidden(loading);
        if (result != CUDA_SUCCESS)
            REAL(cuModuleUnload)(module);
    }
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

/* Loads by `call`; what is wrong with the arguments is the driver's to say. */
#define LOAD(module, from, image_size, call)                                                                           \
    do {                                                                                                               \
        if ((module) == NULL || (from) == NULL)                                                                        \
            return call;                                                                                               \
        struct loading loading = {.size = image_size};                                                                 \
        CUresult result = before(&loading);                                                                            \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        result = call;                                                                                                 \
        return after(&loading, result, result == CUDA_SUCCESS ? *(module) : NULL);                                     \
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
    struct entry entry;
    bool ours = process != NULL && objects_remove(process, KIND_MODULE, (uintptr_t)module, &entry);
    CUresult result = REAL(cuModuleUnload)(module);
    if (!ours)
        return result;
    if (result != CUDA_SUCCESS) {
        objects_put(process, KIND_MODULE, entry);
        return result;
    }
    context_extra_subtract(process, entry.context, EXTRA_CODE, entry.with);
    charge_end(process, &entry.charge);
    return result;
}

/* --- libraries: the same for every context --------------------------------------------------------------------------- */

struct library {
    struct process *process;
    CUlibrary handle;
    struct image_size size;
    size_t free_before; /* on the current context's GPU; 0: it is not to be compared */
    unsigned contexts;  /* it was loaded into */
    CUresult result;
};

/* A library in a context. Also called when a context is made after the library was loaded. */
static void load_into(uint32_t context, int gpu, void *argument) {
    struct library *library = argument;
    struct place place = {gpu, context};
    struct charge charge = {.gpu = (uint8_t)(gpu & 0x7f)};
    if (library->result != CUDA_SUCCESS)
        return;
    if (library->size.data != 0)
        library->result = charge_take(library->process, gpu, pages_of(library->size.data), &charge);
    if (library->result != CUDA_SUCCESS)
        return;
    library->result = context_extra_add(library->process, &place, EXTRA_CODE, library->size.code);
    if (library->result != CUDA_SUCCESS) {
        charge_give(library->process, &charge);
        return;
    }
    objects_put(library->process, KIND_LIBRARY_IN_CONTEXT,
                (struct entry){.key = objects_key((uintptr_t)library->handle, context),
                               .charge = charge,
                               .with = library->size.code,
                               .context = context,
                               .references = objects_mark((uintptr_t)library->handle)});
    library->contexts++;
}

static void unload(struct process *process, CUlibrary library) {
    struct entry entry;
    while (objects_remove_one_of(process, KIND_LIBRARY_IN_CONTEXT, objects_mark((uintptr_t)library), &entry)) {
        context_extra_subtract(process, entry.context, EXTRA_CODE, entry.with);
        charge_end(process, &entry.charge);
    }
}

/* What was taken for a library before it had a handle goes by that. */
static void rename_to(struct process *process, CUlibrary library) {
    struct entry entry;
    while (objects_remove_one_of(process, KIND_LIBRARY_IN_CONTEXT, objects_mark(0), &entry)) {
        entry.key = objects_key((uintptr_t)library, entry.context);
        entry.references = objects_mark((uintptr_t)library);
        objects_put(process, KIND_LIBRARY_IN_CONTEXT, entry);
    }
}

static void look_at_free(struct library *library) {
    size_t total;
    if (library->size.hidden && REAL(cuMemGetInfo_v2)(&library->free_before, &total) != CUDA_SUCCESS)
        library->free_before = 0;
}

/* What a library with compressed images turned out to take on the current context's GPU, beyond what was seen: as a module's.
 * Later contexts are charged with as much as each of these. */
static CUresult charge_hidden_of(struct library *library, CUlibrary handle) {
    struct place place;
    struct charge charge;
    size_t free, total;
    if (library->free_before == 0 || library->contexts == 0 || REAL(cuMemGetInfo_v2)(&free, &total) != CUDA_SUCCESS ||
        contexts_current(&library->process, &place) != CUDA_SUCCESS || free >= library->free_before)
        return CUDA_SUCCESS;
    uint64_t seen = product(library->size.code + library->size.data, library->contexts);
    uint64_t taken = library->free_before - free;
    if (taken < seen + HIDDEN_MIN_BYTES)
        return CUDA_SUCCESS;
    CUresult result = charge_take(library->process, place.gpu, pages_of(taken - seen), &charge);
    if (result != CUDA_SUCCESS)
        return result;
    library->size.data += (taken - seen) / library->contexts;
    objects_put(library->process, KIND_LIBRARY_IN_CONTEXT,
                (struct entry){.key = objects_key((uintptr_t)handle, 0),
                               .charge = charge,
                               .context = place.context,
                               .references = objects_mark((uintptr_t)handle)});
    return CUDA_SUCCESS;
}

static CUresult library_loaded(struct library *library, CUlibrary handle) {
    if (library->result == CUDA_SUCCESS) {
        library->result = charge_hidden_of(library, handle);
        if (library->result != CUDA_SUCCESS)
            REAL(cuLibraryUnload)(handle);
    }
    if (library->result != CUDA_SUCCESS) {
        unload(library->process, NULL);
        return library->result;
    }
    rename_to(library->process, handle);
    objects_put(library->process, KIND_LIBRARY,
                (struct entry){.key = (uintptr_t)handle,
                               .with = library->size.data,
                               .references = (uint32_t)(library->size.code >> CODE_SHIFT) + 2});
    return CUDA_SUCCESS;
}

#define LOAD_LIBRARY(library, from, image_size, call)                                                                  \
    do {                                                                                                               \
        if ((library) == NULL || (from) == NULL)                                                                       \
            return call;                                                                                               \
        struct library loading = {.process = process_if_open(), .size = image_size};                                   \
        if (loading.process == NULL)                                                                                   \
            return call;                                                                                               \
        lock_take(&loading.process->libraries);                                                                        \
        contexts_each(loading.process, load_into, &loading);                                                           \
        look_at_free(&loading);                                                                                        \
        if (loading.result == CUDA_SUCCESS)                                                                            \
            loading.result = call;                                                                                     \
        loading.result = library_loaded(&loading, loading.result == CUDA_SUCCESS ? *(library) : NULL);                 \
        lock_give(&loading.process->libraries);                                                                        \
        return loading.result;                                                                                         \
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

static void library_unloaded(struct process *process, CUlibrary library) {
    struct entry entry;
    objects_remove(process, KIND_LIBRARY, (uintptr_t)library, &entry);
    objects_remove(process, KIND_LIBRARY_KERNELS, (uintptr_t)library, &entry);
    while (objects_remove_one_of(process, KIND_MODULE, objects_mark((uintptr_t)library), &entry)) {
        /* what cuLibraryGetModule put there, which is charged with nothing */
    }
    unload(process, library);
}

/* No other library gets the handle before this one is forgotten, since none is loaded meanwhile. */
CUresult cuLibraryUnload(CUlibrary library) {
    struct process *process = process_if_open();
    if (process == NULL)
        return REAL(cuLibraryUnload)(library);
    lock_take(&process->libraries);
    CUresult result = REAL(cuLibraryUnload)(library);
    if (result == CUDA_SUCCESS)
        library_unloaded(process, library);
    lock_give(&process->libraries);
    return result;
}

/* Its functions live where it does. */
CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    struct process *process;
    struct place place;
    CUresult result = REAL(cuLibraryGetModule)(module, library);
    if (result == CUDA_SUCCESS && contexts_current(&process, &place) == CUDA_SUCCESS)
        objects_put(process, KIND_MODULE,
                    (struct entry){.key = (uintptr_t)*module,
                                   .charge = {.gpu = (uint8_t)(place.gpu & 0x7f)},
                                   .context = place.context,
                                   .references = objects_mark((uintptr_t)library)});
    return result;
}

static CUresult libraries_load_into(struct process *process, const struct place *place) {
    struct library library = {.process = process};
    struct entry entries[LIBRARIES_AT_ONCE];
    for (size_t at = 0, count = 1; library.result == CUDA_SUCCESS && count != 0; at += count) {
        count = objects_copy(process, KIND_LIBRARY, at, entries, LIBRARIES_AT_ONCE);
        for (size_t i = 0; i < count; i++) {
            library.handle = (CUlibrary)(uintptr_t)entries[i].key; /* NOLINT(performance-no-int-to-ptr) */
            library.size = (struct image_size){.code = ((uint64_t)entries[i].references - 1) << CODE_SHIFT,
                                               .data = entries[i].with};
            load_into(place->context, place->gpu, &library);
        }
    }
    return library.result;
}

/* The most local memory that a kernel needs whose handle somebody has, of any library. */
static uint64_t most_of_kernels(struct process *process) {
    struct entry entries[LIBRARIES_AT_ONCE];
    uint64_t most = 0;
    for (size_t at = 0, count = 1; count != 0; at += count) {
        count = objects_copy(process, KIND_LIBRARY_KERNELS, at, entries, LIBRARIES_AT_ONCE);
        for (size_t i = 0; i < count; i++)
            most = entries[i].with > most ? entries[i].with : most;
    }
    return most;
}

CUresult libraries_enter(struct process *process, const struct place *place) {
    CUresult result = libraries_load_into(process, place);
    uint64_t most = most_of_kernels(process);
    return result == CUDA_SUCCESS && most != 0 ? context_extra_local(process, place, most) : result;
}

/* --- kernels that need more local memory than a context has ---------------------------------------------------------- */

/*
 * The driver makes local memory for as many threads as the GPU can run at once when such a kernel is first launched. That is
 * charged when somebody gets the kernel's handle, by which it can be launched; who is refused gets none. A module's functions
 * can be launched in the module's context, a library's kernels in every context, now or later.
 */

/* A function that was only listed is not loaded yet, and tells only then what it needs. */
static CUresult local_of_function(CUfunction function, uint64_t *most) {
    int bytes = 0;
    CUresult result = REAL(cuFuncGetAttribute)(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function);
    if (result != CUDA_SUCCESS && REAL(cuFuncLoad)(function) == CUDA_SUCCESS)
        result = REAL(cuFuncGetAttribute)(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function);
    if (result == CUDA_SUCCESS && bytes > 0 && (uint64_t)bytes > *most)
        *most = (uint64_t)bytes;
    return result;
}

/* On whichever GPU of ours it needs most. */
static void local_of_kernel(struct process *process, CUkernel kernel, uint64_t *most) {
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

/* In the current context, without which nothing can be launched. */
static CUresult charge_here(uint64_t bytes) {
    struct process *process;
    struct place place;
    if (bytes == 0 || contexts_current(&process, &place) != CUDA_SUCCESS)
        return CUDA_SUCCESS;
    return context_extra_local(process, &place, bytes);
}

/* In all contexts: also in the current one, if we have not seen it being made. */
static CUresult charge_everywhere(struct process *process, uint64_t bytes) {
    struct place place;
    CUresult result = context_extra_local_everywhere(process, bytes);
    if (result == CUDA_SUCCESS && contexts_current(&process, &place) == CUDA_SUCCESS && place.context == 0)
        result = context_extra_local(process, &place, bytes);
    return result;
}

static CUresult charge_in_module(CUmodule module, uint64_t bytes) {
    struct process *process = process_if_open();
    struct entry entry;
    if (bytes == 0 || process == NULL)
        return CUDA_SUCCESS;
    if (objects_find(process, KIND_MODULE, (uintptr_t)module, &entry))
        return context_extra_local(process, &(struct place){entry.charge.gpu, entry.context}, bytes);
    return charge_everywhere(process, bytes);
}

/* Remembered for the contexts that come. What its kernels needed before is charged wherever it must be. */
static CUresult charge_in_library(struct process *process, CUlibrary library, uint64_t bytes) {
    struct entry known = {0};
    CUresult result = CUDA_SUCCESS;
    objects_find(process, KIND_LIBRARY_KERNELS, (uintptr_t)library, &known);
    if (bytes <= known.with)
        return CUDA_SUCCESS;
    lock_take(&process->libraries);
    objects_find(process, KIND_LIBRARY_KERNELS, (uintptr_t)library, &known);
    if (bytes > known.with)
        result = charge_everywhere(process, bytes);
    if (result == CUDA_SUCCESS && bytes > known.with &&
        !objects_put(process, KIND_LIBRARY_KERNELS, (struct entry){.key = (uintptr_t)library, .with = bytes}))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    lock_give(&process->libraries);
    return result;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    CUfunction found = NULL;
    uint64_t bytes = 0;
    CUresult result = REAL(cuModuleGetFunction)(function != NULL ? &found : NULL, module, name);
    if (result != CUDA_SUCCESS)
        return result;
    local_of_function(found, &bytes);
    result = charge_in_module(module, bytes);
    if (result == CUDA_SUCCESS)
        *function = found;
    return result;
}

/* In an array that is larger than it need be, only as much is looked at as there is. */
CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int count, CUmodule module) {
    unsigned int there = 0;
    uint64_t bytes = 0;
    CUresult result = REAL(cuModuleEnumerateFunctions)(functions, count, module);
    if (result != CUDA_SUCCESS || functions == NULL)
        return result;
    result = REAL(cuModuleGetFunctionCount)(&there, module);
    there = there < count ? there : count;
    for (unsigned i = 0; i < there && result == CUDA_SUCCESS; i++)
        result = local_of_function(functions[i], &bytes);
    if (result == CUDA_SUCCESS)
        result = charge_in_module(module, bytes);
    for (unsigned i = 0; i < there && result != CUDA_SUCCESS; i++)
        functions[i] = NULL;
    return result;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    CUfunction found = NULL;
    uint64_t bytes = 0;
    CUresult result = REAL(cuKernelGetFunction)(function != NULL ? &found : NULL, kernel);
    if (result != CUDA_SUCCESS)
        return result;
    local_of_function(found, &bytes);
    result = charge_here(bytes);
    if (result == CUDA_SUCCESS)
        *function = found;
    return result;
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    struct process *process = process_if_open();
    CUkernel found = NULL;
    uint64_t bytes = 0;
    CUresult result = REAL(cuLibraryGetKernel)(kernel != NULL ? &found : NULL, library, name);
    if (result == CUDA_SUCCESS && process != NULL) {
        local_of_kernel(process, found, &bytes);
        result = charge_in_library(process, library, bytes);
    }
    if (result == CUDA_SUCCESS)
        *kernel = found;
    return result;
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int count, CUlibrary library) {
    struct process *process = process_if_open();
    unsigned int there = 0;
    uint64_t bytes = 0;
    CUresult result = REAL(cuLibraryEnumerateKernels)(kernels, count, library);
    if (result != CUDA_SUCCESS || kernels == NULL || process == NULL)
        return result;
    result = REAL(cuLibraryGetKernelCount)(&there, library);
    there = there < count ? there : count;
    for (unsigned i = 0; i < there && result == CUDA_SUCCESS; i++)
        local_of_kernel(process, kernels[i], &bytes);
    if (result == CUDA_SUCCESS)
        result = charge_in_library(process, library, bytes);
    for (unsigned i = 0; i < there && result != CUDA_SUCCESS; i++)
        kernels[i] = NULL;
    return result;
}
