/* What a context takes beyond what every context takes: code of its modules, local memory, heaps. */
#ifndef TRANCHE_CONTEXT_EXTRA_H
#define TRANCHE_CONTEXT_EXTRA_H

#include "state/contexts.h"

enum extra { EXTRA_CODE, EXTRA_LOCAL, EXTRA_STACK, EXTRA_KERNEL, EXTRA_PRINTF, EXTRA_HEAP };

/* Adds bytes to what a context takes; refused as an allocation is. */
CUresult context_extra_add(struct process *process, const struct place *place, enum extra extra, uint64_t bytes);
void context_extra_subtract(struct process *process, uint32_t context, enum extra extra, uint64_t bytes);

/* A kernel needs so much local memory for each of the GPU's threads, in a context or in all that there are: there all of them
 * take it, or none. It stays until the context ends, since that is when the driver gives it back. */
CUresult context_extra_local(struct process *process, const struct place *place, uint64_t kernel);
CUresult context_extra_local_everywhere(struct process *process, uint64_t kernel);

/* One thread at a time changes limits, together with the driver's call: what follows is for between enter and leave. */
void context_extra_enter(struct process *process);
void context_extra_leave(struct process *process);

/* Sets what is taken, or raises it if it is less. */
CUresult context_extra_set(struct process *process, const struct place *place, enum extra extra, uint64_t bytes);
CUresult context_extra_raise(struct process *process, const struct place *place, enum extra extra, uint64_t bytes);

/* What is included in every context: the value that was there when we were first asked. */
uint64_t context_extra_base(struct process *process, const struct place *place, enum extra extra, uint64_t now);

/* The stack of each of so many threads is to be so large. */
CUresult context_extra_stack(struct process *process, const struct place *place, uint64_t threads, uint64_t stack);

#endif
