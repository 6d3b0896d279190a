/*
 * Where managed memory is. It comes to a GPU when the GPU first touches it, and only then takes memory of it; where the
 * GPU is full, it stays with the host. The driver moves pages; here it is blocks of 2 MiB, which small managed
 * allocations share.
 */
#ifndef SIMGPU_MANAGED_H
#define SIMGPU_MANAGED_H

#include "cuda/driver.h"

/* Under the heap's lock: blocks that the GPU of the thread's current context touches (without one, `device`). */
void managed_touch(uint32_t first, uint32_t count, CUdevice device);

/* Under the heap's lock: blocks that are free again. */
void managed_forget(uint32_t first, uint32_t count);

/* Brings all managed memory of the context to its GPU, for a kernel. Whether there was room for all of it. */
bool managed_prepare_launch(struct CUctx_st *context);

#endif
