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
    while (objects_remove_part(process, KIND_VARIABLE, whole, &entry)) {
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

/* Charges a variable that is requested for the first time. Bytes that are spare are charged already. */
static CUresult charge(struct process *process, uint64_t whole, bool is_library, uint32_t context, const char *name,
                       uint64_t bytes) {
    struct entry variable = {
        .key = objects_key(whole, hash_of(name)), .with = whole, .context = context, .references = OBJECTS_PART};
    struct entry unread, known;
    CUresult result = CUDA_SUCCESS;
    reentrant_take(&process->libraries);
    if (objects_find(process, KIND_UNREAD, whole, &unread) &&
        !objects_find(process, KIND_VARIABLE, variable.key, &known)) {
        uint64_t spared = bytes < unread.with ? bytes : unread.with;
        void *handle = (void *)(uintptr_t)whole; /* NOLINT(performance-no-int-to-ptr) */
        result = is_library ? libraries_grow(process, handle, bytes - spared)
                            : modules_grow(process, handle, bytes - spared);
        if (result == CUDA_SUCCESS) {
            objects_replace(process, KIND_UNREAD, &unread, unread.charge, unread.with - spared);
            objects_put(process, KIND_VARIABLE, variable);
        }
    }
    reentrant_give(&process->libraries);
    return result;
}

CUresult variables_in_library(CUlibrary library, const char *name, uint64_t bytes) {
    struct process *process = process_if_open();
    return process_has(process, KIND_UNREAD) ? charge(process, (uintptr_t)library, true, 0, name, bytes) : CUDA_SUCCESS;
}

CUresult variables_in_module(CUmodule module, const char *name, uint64_t bytes) {
    struct process *process = process_if_open();
    struct entry entry;
    if (process == NULL || !modules_find(process, module, &entry))
        return CUDA_SUCCESS;
    bool of_library = entry.references != 0;
    return of_library ? charge(process, entry.with, true, 0, name, bytes)
                      : charge(process, (uintptr_t)module, false, entry.context, name, bytes);
}
