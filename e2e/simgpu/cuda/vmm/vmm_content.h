/* Contents of the process's own memory: one file without a name, in which each memory has a place that none had before. */
#ifndef SIMGPU_VMM_CONTENT_H
#define SIMGPU_VMM_CONTENT_H

#include "cuda/driver.h"

/* A place; CUDA_ERROR_OUT_OF_MEMORY without a file. */
CUresult content_new(uint64_t size, uint64_t *content);
void content_free(uint64_t content, uint64_t size);
bool content_map(uint64_t content, void *address, uint64_t size);

/* Copies as much as an object keeps. */
void content_to_object(uint64_t content, uint64_t size, uint64_t object);

#endif
