/*
 * Modules: program images that are loaded into one context. The image's variables are charged module by module. Code is
 * small, and the driver packs the code of all modules of a context together; so code is charged as one sum for each
 * context (context/extra.h).
 *
 * The driver does not get a malformed image, since its size is unknown. What lazy loading takes later is charged when
 * the module is loaded. What cannot be read from the image is charged as far as context/variables.h says.
 *
 * Source: "Module Management" in the CUDA driver API's documentation.
 */
#ifndef TRANCHE_MODULES_H
#define TRANCHE_MODULES_H

#include "image/image.h"
#include "state/contexts.h"

/* A module that is being loaded into the current context; the caller sets `size`. */
struct module_loading {
    struct process *process;
    struct place place;
    struct image_size size;
    struct charge data;
};

/* Takes what an image needs in a context: its variables as `data`, its code as a part of the context's sum. */
CUresult modules_take(struct process *process, const struct place *place, const struct image_size *size,
                      struct charge *data);

/* Before the driver is called: takes what the image needs. */
CUresult modules_before(struct module_loading *loading, struct work *work);

/* After the driver answered with `result`: records the module, or gives back what was taken. */
CUresult modules_after(struct module_loading *loading, CUresult result, CUmodule module);

/* Unloads a module, and removes its record before another module that gets the handle is recorded. A handle without a
 * record may be that of a module which another thread is loading at this moment: then that is recorded first. */
CUresult modules_unload(struct process *process, CUmodule module);

/* A module's record, which is made if the module was loaded by a function that is not shadowed. False without one. Under
 * the libraries' lock. */
bool modules_find(struct process *process, CUmodule module, struct entry *entry);

/* Charges a module with more bytes. Under the libraries' lock. */
CUresult modules_grow(struct process *process, CUmodule module, uint64_t bytes);

#endif
