/*
 * What a context takes beyond its first cost: code of its modules, local memory, heaps, the printf buffer. The lock
 * `extras` (process.h) protects it.
 *
 * Source: cuCtxSetLimit and "Module Management" in the CUDA driver API's documentation.
 */
#ifndef TRANCHE_CONTEXT_EXTRA_H
#define TRANCHE_CONTEXT_EXTRA_H

#include "state/contexts.h"

enum extra { EXTRA_CODE, EXTRA_LOCAL, EXTRA_STACK, EXTRA_KERNEL, EXTRA_PRINTF, EXTRA_HEAP };

/* Adds bytes to what a context takes, or subtracts them. CUDA_ERROR_OUT_OF_MEMORY if the limit refuses. */
CUresult context_extra_add(struct process *process, const struct place *place, enum extra extra, uint64_t bytes);
void context_extra_subtract(struct process *process, uint32_t context, enum extra extra, uint64_t bytes);

/* A kernel needs so many bytes of local memory for each thread of the GPU, in one context or in all: then all are
 * charged, or none. The charge stays until the context ends, which is when the driver frees local memory. */
CUresult context_extra_local(struct process *process, const struct place *place, uint64_t kernel);
CUresult context_extra_local_everywhere(struct process *process, uint64_t kernel);

/* The caller of the functions below holds the lock, also during the driver's call that changes a limit. */

/* Sets what a context takes. */
CUresult context_extra_set(struct process *process, const struct place *place, enum extra extra, uint64_t bytes);

/* The value that a context has at first, which its first cost includes: `now`, when this is first called. */
uint64_t context_extra_base(struct process *process, const struct place *place, enum extra extra, uint64_t now);

/* Sets the stack size of each thread, in bytes. */
CUresult context_extra_stack(struct process *process, const struct place *place, uint64_t stack);

#endif
