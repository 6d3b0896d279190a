/* Kernels, and the modules and libraries that they come from. */
#ifndef SIMGPU_MODULE_H
#define SIMGPU_MODULE_H

#include "driver.h"

/* CUfunction and CUkernel are both this: the driver too takes a CUkernel where it wants a CUfunction. */
struct function {
    struct handle handle;
    struct CUmod_st *module;  /* NULL: a library's kernel, good in any context */
    struct CUlib_st *library; /* NULL: a module's function */
    struct function *next;    /* of the same module or library */
    char *name;
    uint64_t duration_ns;
    int dynamic_shared_bytes; /* how much a launch may ask for */
};

/* The function that a handle means in the context: CUDA_ERROR_INVALID_HANDLE if none. */
CUresult function_find(const struct CUctx_st *context, CUfunction handle, struct function **function);

#endif
