/* What textures and surfaces read: arrays and memory that a context can reach. */
#ifndef SIMGPU_RESOURCE_H
#define SIMGPU_RESOURCE_H

#include "cuda/driver.h"

/* CUDA_ERROR_INVALID_VALUE where no texture of the context can be made of the resource. */
CUresult resource_check(struct CUctx_st *context, const CUDA_RESOURCE_DESC *resource);

/* Bytes of an element of linear memory; 0 where no linear texture has such elements. */
unsigned resource_element_bytes(CUarray_format format, unsigned channels);

/* What the context's GPU says of itself. */
uint64_t resource_attribute(const struct CUctx_st *context, CUdevice_attribute attribute);

#endif
