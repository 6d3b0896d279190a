#include "context/variables.h"

#include "context/libraries.h"
#include "context/modules.h"
#include "memory/objects.h"

void variables_unread(struct process *process, uint64_t whole, uint32_t context) {
    objects_put(process, KIND_UNREAD, (struct entry){.key = whole, .context = context});
}

void variables_unloaded(struct process *process, uint64_t whole) {
    struct entry entry;
    objects_remove(process, KIND_UNREAD, whole, &entry);
    while (objects_remove_one_of(process, KIND_VARIABLE, objects_mark(whole), &entry)) {
        /* without a charge of its own */
    }
}

/* The FNV-1a hash. */
static uint64_t hash_of(const char *name) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return hash;
}

static struct entry variable_of(uint64_t whole, const char *name, uint32_t context) {
    return (struct entry){
        .key = objects_key(whole, hash_of(name)), .context = context, .references = objects_mark(whole)};
}

/* Whether the variable is to be charged now. Under the libraries' lock. */
static bool is_new(struct process *process, uint64_t whole, const struct entry *variable) {
    struct entry known;
    return objects_find(process, KIND_UNREAD, whole, &known) &&
           !objects_find(process, KIND_VARIABLE, variable->key, &known);
}

CUresult variables_in_library(CUlibrary library, const char *name, uint64_t bytes) {
    struct process *process = process_if_open();
    CUresult result = CUDA_SUCCESS;
    if (!process_has(process, KIND_UNREAD))
        return result;
    struct entry variable = variable_of((uintptr_t)library, name, 0);
    reentrant_take(&process->libraries);
    if (is_new(process, (uintptr_t)library, &variable)) {
        result = libraries_grow(process, library, bytes);
        if (result == CUDA_SUCCESS)
            objects_put(process, KIND_VARIABLE, variable);
    }
    reentrant_give(&process->libraries);
    return result;
}

static CUresult in_own_module(struct process *process, CUmodule module, const char *name, uint64_t bytes,
                              uint32_t context) {
    struct entry variable = variable_of((uintptr_t)module, name, context);
    CUresult result = CUDA_SUCCESS;
    reentrant_take(&process->libraries);
    if (is_new(process, (uintptr_t)module, &variable)) {
        result = modules_grow(process, module, bytes);
        if (result == CUDA_SUCCESS)
            objects_put(process, KIND_VARIABLE, variable);
    }
    reentrant_give(&process->libraries);
    return result;
}

CUresult variables_in_module(CUmodule module, const char *name, uint64_t bytes) {
    struct process *process = process_if_open();
    struct entry entry;
    if (process == NULL || !modules_find(process, module, &entry))
        return CUDA_SUCCESS;
    return entry.references == 0
               ? in_own_module(process, module, name, bytes, entry.context)
               : variables_in_library((CUlibrary)(uintptr_t)entry.with, /* NOLINT(performance-no-int-to-ptr) */
                                      name, bytes);
}
