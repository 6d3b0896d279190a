#include "context/variables.h"

#include "context/libraries.h"
#include "context/modules.h"
#include "memory/objects.h"

void variables_unread(struct process *process, uint64_t whole, uint32_t context, uint64_t spare) {
    objects_put(process, KIND_UNREAD, (struct entry){.key = whole, .with = spare, .context = context});
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

/* Whether the variable is to be charged now, and what it takes of the bytes that are spare. Under the libraries' lock. */
static bool is_new(struct process *process, uint64_t whole, const struct entry *variable, uint64_t bytes,
                   struct entry *unread, uint64_t *spared) {
    struct entry known;
    if (!objects_find(process, KIND_UNREAD, whole, unread) ||
        objects_find(process, KIND_VARIABLE, variable->key, &known))
        return false;
    *spared = bytes < unread->with ? bytes : unread->with;
    return true;
}

static void charged(struct process *process, const struct entry *variable, const struct entry *unread,
                    uint64_t spared) {
    objects_update(process, KIND_UNREAD, unread->key, unread->charge, unread->with - spared);
    objects_put(process, KIND_VARIABLE, *variable);
}

CUresult variables_in_library(CUlibrary library, const char *name, uint64_t bytes) {
    struct process *process = process_if_open();
    CUresult result = CUDA_SUCCESS;
    if (!process_has(process, KIND_UNREAD))
        return result;
    struct entry variable = variable_of((uintptr_t)library, name, 0), unread;
    uint64_t spared = 0;
    reentrant_take(&process->libraries);
    if (is_new(process, (uintptr_t)library, &variable, bytes, &unread, &spared)) {
        result = libraries_grow(process, library, bytes - spared);
        if (result == CUDA_SUCCESS)
            charged(process, &variable, &unread, spared);
    }
    reentrant_give(&process->libraries);
    return result;
}

static CUresult in_own_module(struct process *process, CUmodule module, const char *name, uint64_t bytes,
                              uint32_t context) {
    struct entry variable = variable_of((uintptr_t)module, name, context), unread;
    CUresult result = CUDA_SUCCESS;
    uint64_t spared = 0;
    reentrant_take(&process->libraries);
    if (is_new(process, (uintptr_t)module, &variable, bytes, &unread, &spared)) {
        result = modules_grow(process, module, bytes - spared);
        if (result == CUDA_SUCCESS)
            charged(process, &variable, &unread, spared);
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
