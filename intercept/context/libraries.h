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

#include "context/measure.h"
#include "image/image.h"

/* A library that is being loaded; the caller sets `process` and `size`. */
struct library_loading {
    struct process *process;
    CUlibrary handle;
    struct image_size size;
    struct measurement measurement; /* if `measured` */
    bool measured;                  /* something is hidden, and there is a context in which it can be measured */
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

/* Charges what the driver has taken for a library in one context beyond what is charged for it there already. The
 * driver may take the same in every other context, so it is charged in all of them. The caller holds the lock. */
CUresult libraries_settle(struct process *process, CUlibrary library, const struct place *place, uint64_t taken);

/* Records whether a library's hidden memory is still to be measured, in the next context that is created. The caller
 * holds the lock. */
void libraries_set_owed(struct process *process, uint64_t library, bool owed);

/* Gives back what an unloaded library was charged with. The caller holds the lock. */
void libraries_unloaded(struct process *process, CUlibrary library);

#endif
