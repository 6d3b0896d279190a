/*
 * Modules and libraries: their variables and their code take memory of the GPU, once for each context. What lazy loading takes
 * later is counted when the module is loaded.
 *
 * Code is small, and the driver packs that of all modules of a context together; so does the sum that we keep of it for each
 * context. Variables are charged module by module.
 *
 * What a malformed image takes nobody can tell, so the driver does not get it. What an image takes of which image.h calls
 * something hidden shows only when the driver takes it: when it is loaded, or later, when something in it is asked for. These
 * calls are watched, one at a time in a process. What is taken beyond what was charged before is charged then, without any
 * threshold; if there is no room for that, the module or library is unloaded.
 */
#include "context/extra.h"
#include "context/libraries.h"
#include "context/watch.h"
#include "driver/cuda_real.h"
#include "image/image.h"
#include "memory/objects.h"
#include "memory/pools.h"
#include "state/contexts.h"
#include "state/gpus.h"
#include "system/mapped.h"

#define CODE_SHIFT 12 /* what is remembered of a library's code, rounded up */
#define LIBRARIES_AT_ONCE 64

/* --- one module in one context -------------------------------------------------------------------------------------- */

struct loading {
    struct process *process;
    struct place place;
    struct image_size size;
    struct charge data;
    struct watch watch; /* if something is hidden */
};

static CUresult before(struct loading *loading) {
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
        watch_begin(&loading->watch, loading->process, 0);
    }
    return result;
}

/* What was taken uses up what was charged before, `left`; the pages that must be charged beyond that. */
static uint64_t pages_beyond(uint64_t *left, uint64_t taken) {
    uint64_t pages = taken > *left ? pages_of(taken - *left) : 0;
    *left = pages != 0 ? pages_to_bytes(pages) - (taken - *left) : *left - taken;
    return pages;
}

/* A module's entry among the unseen says what is charged beyond the image's own word, and how much of all that the driver has
 * not taken yet. */
static CUresult settle_module(struct process *process, CUmodule module, int gpu, uint64_t taken) {
    struct entry unseen;
    if (!objects_find(process, KIND_UNSEEN, (uintptr_t)module, &unseen))
        return CUDA_SUCCESS;
    uint64_t pages = pages_beyond(&unseen.with, taken);
    CUresult result = pages != 0 ? pools_extend(process, &unseen.charge, gpu, pages) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS)
        objects_update(process, KIND_UNSEEN, (uintptr_t)module, unseen.charge, unseen.with);
    return result;
}

static CUresult end_watch(struct loading *loading, CUresult result, CUmodule module) {
    uint64_t taken = watch_taken(&loading->watch);
    struct entry unseen = {.key = (uintptr_t)module,
                           .charge = {.gpu = (uint8_t)(loading->place.gpu & 0x7f)},
                           .context = loading->place.context,
                           .with = pages_to_bytes(loading->data.pages) + loading->size.code};
    if (result == CUDA_SUCCESS) {
        bool put = objects_put(loading->process, KIND_UNSEEN, unseen);
        result = put ? settle_module(loading->process, module, loading->place.gpu, taken) : CUDA_ERROR_OUT_OF_MEMORY;
        if (result != CUDA_SUCCESS) {
            REAL(cuModuleUnload)(module);
            objects_remove(loading->process, KIND_UNSEEN, (uintptr_t)module, &unseen);
        }
    }
    watch_end(&loading->watch);
    lock_give(&loading->process->libraries);
    return result;
}

static void give_back(struct loading *loading) {
    context_extra_subtract(loading->process, loading->place.context, EXTRA_CODE, loading->size.code);
    charge_give(loading->process, &loading->data);
}

static CUresult after(struct loading *loading, CUresult result, CUmodule module) {
    if (loading->size.hidden)
        result = end_watch(loading, result, module);
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
        WORK_IN_CONTEXT;                                                                                               \
        CUresult result = before(&loading);                                                                            \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        result = call;                                                                                                 \
        return after(&loading, result, result == CUDA_SUCCESS ? *(module) : NULL);                                     \
    } while (0)

static CUresult load_file(CUmodule *module, const struct image_file *file) {
    LOAD(module, file->path, file->size, REAL(cuModuleLoad)(module, file->path));
}

CUresult cuModuleLoad(CUmodule *module, const char *path) {
    struct image_file file;
    image_file_open(&file, path);
    CUresult result = load_file(module, &file);
    image_file_close(&file);
    return result;
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

static void end_unseen(struct process *process, enum kind kind, uint64_t key) {
    struct entry unseen;
    if (objects_remove(process, kind, key, &unseen))
        charge_end(process, &unseen.charge);
}

/* A library's module, which has another thing's handle in `with`, is not unloaded by itself: the driver says so. */
CUresult cuModuleUnload(CUmodule module) {
    struct process *process = process_if_open();
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
    end_unseen(process, KIND_UNSEEN, (uintptr_t)module);
    return result;
}

/* --- libraries: the same for every context --------------------------------------------------------------------------- */

struct library {
    struct process *process;
    CUlibrary handle;
    struct image_size size;
    struct watch watch; /* if something is hidden */
    bool watched;       /* there is a context in which it can be */
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
        library->result = pools_take(library->process, gpu, pages_of(library->size.data), &charge);
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

static void library_unloaded(struct process *process, CUlibrary library) {
    struct entry entry;
    objects_remove(process, KIND_LIBRARY, (uintptr_t)library, &entry);
    objects_remove(process, KIND_LIBRARY_KERNELS, (uintptr_t)library, &entry);
    objects_remove(process, KIND_UNSEEN_LIBRARY, (uintptr_t)library, &entry);
    while (objects_remove_one_of(process, KIND_UNSEEN, objects_mark((uintptr_t)library), &entry)) {
        /* what is left of its charges, which themselves follow */
    }
    while (objects_remove_one_of(process, KIND_MODULE, objects_mark((uintptr_t)library), &entry)) {
        /* what cuLibraryGetModule put there, which is charged with nothing */
    }
    unload(process, library);
}

/* A library in a context turned out to take more. */
struct beyond {
    struct process *process;
    uint64_t library; /* its handle */
    uint64_t pages;
    CUresult result;
};

static void charge_beyond(uint32_t context, int gpu, void *argument) {
    struct beyond *beyond = argument;
    struct process *process = beyond->process;
    uint64_t key = objects_key(beyond->library, context);
    struct entry known = {.key = key,
                          .charge = {.gpu = (uint8_t)(gpu & 0x7f)},
                          .context = context,
                          .references = objects_mark(beyond->library)};
    struct entry unseen;
    if (beyond->result != CUDA_SUCCESS)
        return;
    bool loaded = objects_find(process, KIND_LIBRARY_IN_CONTEXT, key, &known);
    beyond->result = pools_extend(process, &known.charge, gpu, beyond->pages);
    if (beyond->result != CUDA_SUCCESS)
        return;
    if (loaded)
        objects_update(process, KIND_LIBRARY_IN_CONTEXT, key, known.charge, known.with);
    else
        objects_put(process, KIND_LIBRARY_IN_CONTEXT, known);
    if (objects_find(process, KIND_UNSEEN, key, &unseen))
        objects_update(process, KIND_UNSEEN, key, unseen.charge, unseen.with + pages_to_bytes(beyond->pages));
}

/* A library's entries among the unseen, by context, say how much of what is charged there the driver has not taken yet. What it
 * takes beyond that in one context it may take in every other, now or later. */
static CUresult settle_library(struct process *process, CUlibrary library, const struct place *place, uint64_t taken) {
    uint64_t key = objects_key((uintptr_t)library, place->context);
    struct beyond beyond = {.process = process, .library = (uintptr_t)library};
    struct entry whole, unseen;
    if (!objects_find(process, KIND_LIBRARY, (uintptr_t)library, &whole))
        return CUDA_SUCCESS;
    if (!objects_find(process, KIND_UNSEEN, key, &unseen)) {
        uint64_t code = ((uint64_t)whole.references - 2) << CODE_SHIFT;
        unseen = (struct entry){.key = key,
                                .context = place->context,
                                .with = code + (whole.with != 0 ? pages_to_bytes(pages_of(whole.with)) : 0),
                                .references = objects_mark((uintptr_t)library)};
    }
    beyond.pages = pages_beyond(&unseen.with, taken);
    if (beyond.pages != 0) {
        contexts_each(process, charge_beyond, &beyond);
        if (place->context == 0)
            charge_beyond(place->context, place->gpu, &beyond);
        objects_update(process, KIND_LIBRARY, (uintptr_t)library, whole.charge,
                       whole.with + pages_to_bytes(beyond.pages));
    }
    if (beyond.result == CUDA_SUCCESS && !objects_put(process, KIND_UNSEEN, unseen))
        beyond.result = CUDA_ERROR_OUT_OF_MEMORY;
    return beyond.result;
}

/* Whether it is to be measured in the next context that is made, for want of one now. */
static void set_owed(struct process *process, uint64_t library, bool owed) {
    objects_put(process, KIND_UNSEEN_LIBRARY, (struct entry){.key = library, .with = owed});
}

static CUresult library_loaded(struct library *library, CUlibrary handle) {
    struct process *process = library->process;
    uint64_t taken = library->watched ? watch_taken(&library->watch) : 0;
    if (library->result != CUDA_SUCCESS) {
        unload(process, NULL);
        return library->result;
    }
    rename_to(process, handle);
    objects_put(process, KIND_LIBRARY,
                (struct entry){.key = (uintptr_t)handle,
                               .with = library->size.data,
                               .references = (uint32_t)(library->size.code >> CODE_SHIFT) + 2});
    if (library->size.hidden)
        set_owed(process, (uintptr_t)handle, !library->watched);
    if (library->watched)
        library->result = settle_library(process, handle, &library->watch.place, taken);
    if (library->result != CUDA_SUCCESS) {
        REAL(cuLibraryUnload)(handle);
        library_unloaded(process, handle);
    }
    return library->result;
}

#define LOAD_LIBRARY(library, from, image_size, call)                                                                  \
    do {                                                                                                               \
        if ((library) == NULL || (from) == NULL)                                                                       \
            return call;                                                                                               \
        struct library loading = {.process = process_if_open(), .size = image_size};                                   \
        if (loading.process == NULL)                                                                                   \
            return call;                                                                                               \
        if (loading.size.malformed)                                                                                    \
            return CUDA_ERROR_INVALID_IMAGE;                                                                           \
        WORK_IN_CONTEXT;                                                                                               \
        lock_take(&loading.process->libraries);                                                                        \
        contexts_each(loading.process, load_into, &loading);                                                           \
        loading.watched = loading.size.hidden && watch_begin(&loading.watch, loading.process, 0);                      \
        if (loading.result == CUDA_SUCCESS)                                                                            \
            loading.result = call;                                                                                     \
        loading.result = library_loaded(&loading, loading.result == CUDA_SUCCESS ? *(library) : NULL);                 \
        if (loading.watched)                                                                                           \
            watch_end(&loading.watch);                                                                                 \
        lock_give(&loading.process->libraries);                                                                        \
        return loading.result;                                                                                         \
    } while (0)

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit, void **jit_values,
                           unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count) {
    LOAD_LIBRARY(library, code, image_size(code),
                 REAL(cuLibraryLoadData)(library, code, jit, jit_values, jit_count, options, values, count));
}

static CUresult load_library_file(CUlibrary *library, const struct image_file *file, CUjit_option *jit,
                                  void **jit_values, unsigned int jit_count, CUlibraryOption *options, void **values,
                                  unsigned int count) {
    LOAD_LIBRARY(library, file->path, file->size,
                 REAL(cuLibraryLoadFromFile)(library, file->path, jit, jit_values, jit_count, options, values, count));
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit, void **jit_values,
                               unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count) {
    struct image_file file;
    image_file_open(&file, path);
    CUresult result = load_library_file(library, &file, jit, jit_values, jit_count, options, values, count);
    image_file_close(&file);
    return result;
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

/* --- the use of what was loaded, where the driver may take more --------------------------------------------------------- */

struct use {
    struct process *process;
    CUmodule module; /* NULL: of a library */
    CUlibrary library;
    struct watch watch;
};

/* Watches the use of what an image hides something of. False if there is nothing to watch. */
static bool use_begin(struct use *use, uint32_t context) {
    enum kind kind = use->module != NULL ? KIND_UNSEEN : KIND_UNSEEN_LIBRARY;
    uint64_t key = use->module != NULL ? (uintptr_t)use->module : (uintptr_t)use->library;
    struct entry unseen;
    if (!objects_find(use->process, kind, key, &unseen))
        return false;
    lock_take(&use->process->libraries);
    if (objects_find(use->process, kind, key, &unseen) && watch_begin(&use->watch, use->process, context))
        return true;
    lock_give(&use->process->libraries);
    return false;
}

static CUresult use_end(struct use *use, CUresult result) {
    uint64_t taken = watch_taken(&use->watch);
    CUresult settled = use->module != NULL ? settle_module(use->process, use->module, use->watch.place.gpu, taken)
                                           : settle_library(use->process, use->library, &use->watch.place, taken);
    if (settled != CUDA_SUCCESS && use->module != NULL) {
        cuModuleUnload(use->module);
    } else if (settled != CUDA_SUCCESS && REAL(cuLibraryUnload)(use->library) == CUDA_SUCCESS) {
        library_unloaded(use->process, use->library);
    }
    watch_end(&use->watch);
    lock_give(&use->process->libraries);
    return result == CUDA_SUCCESS ? settled : result;
}

static bool has_unseen(struct process *process) {
    return process_has(process, KIND_UNSEEN) || process_has(process, KIND_UNSEEN_LIBRARY);
}

/* In the module's own context. */
static bool use_module(struct use *use, CUmodule module) {
    struct entry entry;
    *use = (struct use){.process = process_if_open(), .module = module};
    if (!has_unseen(use->process) || !objects_find(use->process, KIND_MODULE, (uintptr_t)module, &entry))
        return false;
    if (entry.references != 0)
        *use = (struct use){.process = use->process,
                            .library = (CUlibrary)(uintptr_t)entry.with}; /* NOLINT(performance-no-int-to-ptr) */
    return use_begin(use, entry.context);
}

/* In the current context, without which the driver refuses the call. */
static bool use_library(struct use *use, CUlibrary library) {
    CUcontext current = NULL;
    *use = (struct use){.process = process_if_open(), .library = library};
    return has_unseen(use->process) && REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current != NULL &&
           use_begin(use, 0);
}

#define WATCHED(begins, call)                                                                                          \
    do {                                                                                                               \
        struct use use;                                                                                                \
        if (!(begins))                                                                                                 \
            return call;                                                                                               \
        CUresult result = call;                                                                                        \
        return use_end(&use, result);                                                                                  \
    } while (0)

CUresult cuModuleGetGlobal(CUdeviceptr_v1 *address, unsigned int *size, CUmodule module, const char *name) {
    WORK_IN_CONTEXT;
    WATCHED(use_module(&use, module), REAL(cuModuleGetGlobal)(address, size, module, name));
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module, const char *name) {
    WORK_IN_CONTEXT;
    WATCHED(use_module(&use, module), REAL(cuModuleGetGlobal_v2)(address, size, module, name));
}

CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name) {
    WORK_IN_CONTEXT;
    WATCHED(use_library(&use, library), REAL(cuLibraryGetGlobal)(address, size, library, name));
}

CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name) {
    WORK_IN_CONTEXT;
    WATCHED(use_library(&use, library), REAL(cuLibraryGetManaged)(address, size, library, name));
}

/* Its functions live where it does. */
static CUresult get_module(CUmodule *module, CUlibrary library) {
    WATCHED(use_library(&use, library), REAL(cuLibraryGetModule)(module, library));
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    WORK_IN_CONTEXT;
    struct process *process;
    struct place place;
    CUresult result = get_module(module, library);
    if (result == CUDA_SUCCESS && contexts_current(&process, &place) == CUDA_SUCCESS)
        objects_put(process, KIND_MODULE,
                    (struct entry){.key = (uintptr_t)*module,
                                   .charge = {.gpu = (uint8_t)(place.gpu & 0x7f)},
                                   .with = (uintptr_t)library,
                                   .context = place.context,
                                   .references = objects_mark((uintptr_t)library)});
    return result;
}

/* A kernel can be launched wherever there is a context, and only then the driver would load it. So it is loaded when its handle
 * is asked for, in one context for all. */
static CUresult load_kernels(struct process *process, CUlibrary library, CUkernel *kernels, unsigned count) {
    struct use use = {.process = process, .library = library};
    CUfunction function;
    struct entry unseen;
    if (!objects_find(process, KIND_UNSEEN_LIBRARY, (uintptr_t)library, &unseen))
        return CUDA_SUCCESS;
    if (!use_begin(&use, 0)) {
        lock_take(&process->libraries);
        if (objects_find(process, KIND_UNSEEN_LIBRARY, (uintptr_t)library, &unseen))
            set_owed(process, (uintptr_t)library, true);
        lock_give(&process->libraries);
        return CUDA_SUCCESS;
    }
    for (unsigned i = 0; i < count; i++)
        if (REAL(cuKernelGetFunction)(&function, kernels[i]) == CUDA_SUCCESS)
            REAL(cuFuncLoad)(function);
    return use_end(&use, CUDA_SUCCESS);
}

/* All of a library, in the current context. */
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
    while (objects_copy(process, KIND_UNSEEN_LIBRARY, (*at)++, &entry, 1) == 1) {
        *library = (CUlibrary)(uintptr_t)entry.key; /* NOLINT(performance-no-int-to-ptr) */
        if (entry.with != 0)
            return true;
    }
    return false;
}

void libraries_entered(struct process *process, const struct place *place) {
    struct use use = {.process = process};
    for (size_t at = 0; next_owed(process, &at, &use.library);) {
        if (!use_begin(&use, place->context))
            continue;
        load_whole(use.library);
        set_owed(process, (uintptr_t)use.library, false);
        use_end(&use, CUDA_SUCCESS);
    }
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

static CUresult get_function(CUfunction *function, CUmodule module, const char *name) {
    WATCHED(use_module(&use, module), REAL(cuModuleGetFunction)(function, module, name));
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    WORK_IN_CONTEXT;
    CUfunction found = NULL;
    uint64_t bytes = 0;
    CUresult result = get_function(function != NULL ? &found : NULL, module, name);
    if (result != CUDA_SUCCESS)
        return result;
    local_of_function(found, &bytes);
    result = charge_in_module(module, bytes);
    if (result == CUDA_SUCCESS)
        *function = found;
    return result;
}

/* In an array that is larger than it need be, only as much is looked at as there is. To say what they need, the functions are
 * loaded. */
static CUresult local_of_listed(CUfunction *functions, unsigned count, CUmodule module, uint64_t *most) {
    unsigned there = 0;
    CUresult result = REAL(cuModuleGetFunctionCount)(&there, module);
    there = there < count ? there : count;
    for (unsigned i = 0; i < there && result == CUDA_SUCCESS; i++)
        result = local_of_function(functions[i], most);
    return result;
}

static CUresult local_of_listed_watched(CUfunction *functions, unsigned count, CUmodule module, uint64_t *most) {
    WATCHED(use_module(&use, module), local_of_listed(functions, count, module, most));
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int count, CUmodule module) {
    WORK_IN_CONTEXT;
    uint64_t bytes = 0;
    CUresult result = REAL(cuModuleEnumerateFunctions)(functions, count, module);
    if (result != CUDA_SUCCESS || functions == NULL)
        return result;
    result = local_of_listed_watched(functions, count, module, &bytes);
    if (result == CUDA_SUCCESS)
        result = charge_in_module(module, bytes);
    for (unsigned i = 0; i < count && result != CUDA_SUCCESS; i++)
        functions[i] = NULL;
    return result;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    WORK_IN_CONTEXT;
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
    WORK_IN_CONTEXT;
    struct process *process = process_if_open();
    CUkernel found = NULL;
    uint64_t bytes = 0;
    CUresult result = REAL(cuLibraryGetKernel)(kernel != NULL ? &found : NULL, library, name);
    if (result == CUDA_SUCCESS && process != NULL)
        result = load_kernels(process, library, &found, 1);
    if (result == CUDA_SUCCESS && process != NULL) {
        local_of_kernel(process, found, &bytes);
        result = charge_in_library(process, library, bytes);
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
    if (result == CUDA_SUCCESS)
        result = load_kernels(process, library, kernels, there);
    for (unsigned i = 0; i < there && result == CUDA_SUCCESS; i++)
        local_of_kernel(process, kernels[i], &bytes);
    if (result == CUDA_SUCCESS)
        result = charge_in_library(process, library, bytes);
    for (unsigned i = 0; i < there && result != CUDA_SUCCESS; i++)
        kernels[i] = NULL;
    return result;
}
