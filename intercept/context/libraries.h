/*
 * Libraries: program images that the driver loads into every context, present and future. Each is charged in every
 * context as a module is (context/modules.h). Everything here is under the libraries' lock (process.h), which the
 * functions take unless they say otherwise: one library is loaded or unloaded at a time, while no context comes or
 * goes.
 *
 * Source: "Library Management" in the CUDA driver API's documentation.
 */
#ifndef TRANCHE_LIBRARIES_H
#define TRANCHE_LIBRARIES_H

#include "image/image.h"
#include "state/contexts.h"

/* A library that is being loaded; the caller sets `process` and `size`. */
struct library_loading {
    struct process *process;
    CUlibrary handle;
    struct image_size size;
    CUresult result;
};

/* Before the driver is called: takes the lock, and what the library needs in each context. */
CUresult libraries_before(struct library_loading *library);

/* After the driver answered with `result`, or without calling it if libraries_before refused: records the library or
 * gives back what was taken, and releases the lock. */
CUresult libraries_after(struct library_loading *library, CUresult result, CUlibrary handle);

CUresult libraries_unload(struct process *process, CUlibrary library);

/* Charges a context that is about to be created with all libraries, and with the local memory of those of their kernels
 * whose handles the program has. The caller holds the lock. */
CUresult libraries_enter(struct process *process, const struct place *place);

/* Charges a library with more bytes in every context, present and future. The caller holds the lock. */
CUresult libraries_grow(struct process *process, CUlibrary library, uint64_t bytes);

/* Gives back what an unloaded library was charged with. The caller holds the lock. */
void libraries_unloaded(struct process *process, CUlibrary library);

#endif
