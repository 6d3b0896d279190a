/*
 * Texture and surface references: variables of a module that say what its kernels read and write, in the way that came
 * before objects. A program can make texture references of its own, too.
 */
#ifndef SIMGPU_REFERENCE_H
#define SIMGPU_REFERENCE_H

#include "cuda/driver.h"

/* What both begin with. */
struct reference {
    struct handle handle;
    struct CUctx_st *context;
    CUmodule module; /* that declares it, or NULL: the program made it */
    char *name;      /* there */
};

struct CUtexref_st {
    struct reference reference;
    bool bound;
    CUDA_RESOURCE_DESC resource; /* if it is bound */
    CUarray_format format;
    int channels; /* 0: the format is not set yet */
    CUDA_TEXTURE_DESC sampling;
};

struct CUsurfref_st {
    struct reference reference;
    CUarray array; /* NULL: none yet */
};

bool texture_reference_valid(CUtexref reference);
bool surface_reference_valid(CUsurfref reference);

/* Lets go of what a module declared; of all references of a context. */
void references_module_gone(CUmodule module);
void references_context_gone(struct CUctx_st *context);

#endif
