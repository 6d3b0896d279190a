/*
 * Modules: program images that are loaded into one context. The image's variables are charged module by module. Code is
 * small, and the driver packs the code of all modules of a context together; so code is charged as one sum for each
 * context (context/extra.h).
 *
 * The driver does not get a malformed image, since its size is unknown. What lazy loading takes later is charged when
 * the module is loaded. Memory that cannot be read from the image is measured: see context/hidden.h.
 *
 * Source: "Module Management" in the CUDA driver API's documentation.
 */
#ifndef TRANCHE_MODULES_H
#define TRANCHE_MODULES_H

#include "context/measure.h"
#include "image/image.h"

/* A module that is being loaded into the current context; the caller sets `size`. */
struct module_loading {
    struct process *process;
    struct place place;
    struct image_size size;
    struct charge data;
    struct measurement measurement; /* if size.hidden */
};

/* Before the driver is called: takes what the image needs. If part of that is hidden, takes the libraries' lock too,
 * and begins to measure. */
CUresult modules_before(struct module_loading *loading);

/* After the driver answered with `result`: records the module, or gives back what was taken. If what was measured does
 * not fit, the module is unloaded again, and the result is CUDA_ERROR_OUT_OF_MEMORY. */
CUresult modules_after(struct module_loading *loading, CUresult result, CUmodule module);

/* Unloads a module. One that cuLibraryGetModule returned is not unloaded by itself: the driver refuses. */
CUresult modules_unload(struct process *process, CUmodule module);

/* Charges what the driver has taken for a module beyond what is charged for it already. Under the libraries' lock. */
CUresult modules_settle(struct process *process, CUmodule module, int gpu, uint64_t taken);

/* Subtracts bytes that the driver took from those that were charged and not taken before, `left`. Returns the pages to
 * charge for the rest; what these hold beyond it is left. */
uint64_t modules_pages_beyond(uint64_t *left, uint64_t taken);

#endif
