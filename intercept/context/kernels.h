/*
 * Kernels that need more local memory than a context has. When such a kernel is first launched, the driver allocates
 * local memory for as many threads as the GPU can run at once. It is charged when the program gets the kernel's handle,
 * by which it can be launched; if there is no room, the program gets no handle. A module's functions can be launched in
 * the module's context, a library's kernels in every context, present and future.
 *
 * Source: CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES and cuCtxSetLimit in the CUDA driver API's documentation.
 */
#ifndef TRANCHE_KERNELS_H
#define TRANCHE_KERNELS_H

#include "state/contexts.h"

/* Raises `most` to the bytes of local memory per thread that a function needs. Loads the function if it is not loaded
 * yet, since the driver reports its needs only then. */
CUresult kernels_local_of_function(CUfunction function, uint64_t *most);

/* Raises `most` to what a library's kernel needs on any GPU of this process. */
void kernels_local_of(struct process *process, CUkernel kernel, uint64_t *most);

/* Charge so many bytes per thread: in the current context, where a module can be launched, and where a library can. */
CUresult kernels_charge_here(uint64_t bytes);
CUresult kernels_charge_in_module(CUmodule module, uint64_t bytes);
CUresult kernels_charge_in_library(struct process *process, CUlibrary library, uint64_t bytes);

#endif
