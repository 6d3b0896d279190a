/* Kernels, and the modules and libraries that they come from. */
#ifndef SIMGPU_MODULE_H
#define SIMGPU_MODULE_H

#include "cuda/driver.h"
#include "image.h"

/* CUfunction and CUkernel are both this: the driver too takes a CUkernel where it wants a CUfunction. */
struct function {
    struct handle handle;
    struct CUmod_st *module;  /* NULL: a library's kernel, good in any context */
    struct CUlib_st *library; /* NULL: a module's function */
    struct function *next;    /* of the same module or library */
    char *name;
    uint64_t duration_ns;
    uint64_t local_bytes, shared_bytes;
    int dynamic_shared_bytes;                /* how much a launch may ask for */
    unsigned old_block[3], old_shared_bytes; /* for launches as they were before CUDA 4.0 */
    _Atomic uint64_t ready;                  /* the launch epoch of the context in which nothing is left to prepare */
};

/* The function that a handle means in the context: CUDA_ERROR_INVALID_HANDLE if none. */
CUresult function_find(const struct CUctx_st *context, CUfunction handle, struct function **function);

/* The context of a module's function. NULL for a library's kernel, which is good in any, and for what is none. */
const struct CUctx_st *function_context(CUfunction handle);

/* Loads its module into the context and brings there what a launch needs: local memory, managed memory. */
CUresult function_prepare(struct CUctx_st *context, struct function *function);

/* To be called before each launch. */
static inline CUresult function_make_ready(struct CUctx_st *context, struct function *function) {
    if (__builtin_expect(atomic_load_explicit(&function->ready, memory_order_relaxed) ==
                             atomic_load_explicit(&context->launch_epoch, memory_order_relaxed),
                         1))
        return CUDA_SUCCESS;
    return function_prepare(context, function);
}

/* A file's contents, with zeros after them; free() it. `bytes` may be NULL. */
CUresult module_read_file(const char *path, char **contents, size_t *bytes);

/* The context of a module that declares a texture or surface reference of this name; else CUDA_ERROR_NOT_FOUND. */
CUresult module_find_reference(CUmodule module, const char *name, enum image_variable_kind kind,
                               struct CUctx_st **context);

/* Whether the address is that of a module's variable, whose memory is the module's to give back. */
bool module_holds(CUdeviceptr address);

#endif
