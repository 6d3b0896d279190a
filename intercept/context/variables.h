/*
 * Variables of images that could not be read before they were loaded (image/image.h), or that were loaded by a function
 * that is not shadowed. No function of the driver reports how much such an image takes: the free memory that it reports
 * is the whole GPU's, which others change at any time. So a variable is charged when the program first requests its
 * address, which is when the driver reports its size. As small ones share blocks, they are charged like code: as one
 * sum for each context (context/extra.h).
 */
#ifndef TRANCHE_VARIABLES_H
#define TRANCHE_VARIABLES_H

#include "context/work.h"

/* A module or library that was loaded, of which something could not be read, and of whose charge so many bytes are for
 * its variables (`spare` in image/image.h); and one that was unloaded. */
void variables_unread(struct process *process, uint64_t whole, uint32_t context, uint64_t spare);
void variables_unloaded(struct process *process, uint64_t whole);

/* The driver returned the size of a variable of the module or library. CUDA_ERROR_OUT_OF_MEMORY if there is no room. */
CUresult variables_in_module(CUmodule module, const char *name, uint64_t bytes);
CUresult variables_in_library(CUlibrary library, const char *name, uint64_t bytes);

/* Returns a variable of a module or library by the driver's function `get`, and charges it by `charge`, before another one
 * gets the handle. One that there is no room for is not returned. `size` may be NULL. */
#define GET_GLOBAL(address, size, whole, name, get, charge)                                                            \
    do {                                                                                                               \
        struct process *process = process_if_open();                                                                   \
        size_t bytes = 0;                                                                                              \
        if (process == NULL)                                                                                           \
            return get(address, size, whole, name);                                                                    \
        WORK_IN_CONTEXT;                                                                                               \
        reentrant_take(&process->libraries);                                                                           \
        CUresult result = get(address, (size) != NULL ? (size) : &bytes, whole, name);                                 \
        if (result == CUDA_SUCCESS)                                                                                    \
            result = charge(whole, name, (size) != NULL ? *(size) : bytes);                                            \
        reentrant_give(&process->libraries);                                                                           \
        if (result == CUDA_ERROR_OUT_OF_MEMORY && (address) != NULL)                                                   \
            *(address) = 0;                                                                                            \
        return result;                                                                                                 \
    } while (0)

#endif
