/*
 * The use of modules and libraries whose images hide something (image/image.h): the driver may take their memory when
 * they are loaded or later, when something in them is first asked for. These calls are measured, one at a time in a
 * process. What the driver takes beyond what was charged before is charged then; if there is no room for that, the
 * module or library is unloaded.
 */
#ifndef TRANCHE_HIDDEN_H
#define TRANCHE_HIDDEN_H

#include "context/measure.h"

struct hidden_use {
    struct process *process;
    CUmodule module;   /* NULL: a library is used */
    CUlibrary library; /* if `module` is NULL */
    struct measurement measurement;
};

/* Begins to measure a call that uses a module, in the module's context, or a library, in the current one. True if it is
 * to be measured: then the libraries' lock is held until hidden_use_end. */
bool hidden_use_module(struct hidden_use *use, CUmodule module);
bool hidden_use_library(struct hidden_use *use, CUlibrary library);

/* Returns the driver's `result`, or CUDA_ERROR_OUT_OF_MEMORY if what it took does not fit. */
CUresult hidden_use_end(struct hidden_use *use, CUresult result);

/* Returns what `call` does, measured if `begins` is true. */
#define MEASURED(begins, call)                                                                                         \
    do {                                                                                                               \
        struct hidden_use use;                                                                                         \
        if (!(begins))                                                                                                 \
            return call;                                                                                               \
        CUresult result = call;                                                                                        \
        return hidden_use_end(&use, result);                                                                           \
    } while (0)

/* Loads a library's kernels, whose handles the program is about to get, in the current context, so that their memory is
 * measured. Without a current context, that is done in the next context that is created. */
CUresult hidden_load_kernels(struct process *process, CUlibrary library, CUkernel *kernels, unsigned count);

/* Loads into a new context what could not be measured before for want of one. */
void hidden_load_owed(struct process *process, const struct place *place);

#endif
