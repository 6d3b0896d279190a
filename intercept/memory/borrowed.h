/*
 * Memory that is used by addresses that this process has not allocated: external memory by the buffers and arrays mapped on it,
 * a pool of another process by pointers imported from it. Each such address holds what is charged for the whole, which may be
 * ended before it: a buffer outlives its external memory's handle, a pointer its pool's.
 */
#ifndef TRANCHE_BORROWED_H
#define TRANCHE_BORROWED_H

#include "state/contexts.h"

/* External memory: what was imported, and the end of its handle; the entry is taken out before the driver is asked and put back
 * if it refuses. False from the first when there is no memory for it: then it stays charged until this process ends. */
bool borrowed_imported(struct process *process, CUexternalMemory memory, struct charge charge, uint32_t context);
bool borrowed_destroying(struct process *process, CUexternalMemory memory, struct entry *handle);
void borrowed_destroyed(struct process *process, const struct entry *handle, CUresult result);

/* An address about to be mapped on external memory: held before the driver is asked, so that the memory is not taken for gone
 * meanwhile; written down with what the driver answered. `address` is a mipmapped array's handle where that is made. */
bool borrowed_mapping(struct process *process, CUexternalMemory memory, struct entry *mapped);
void borrowed_mapped(struct process *process, struct entry *mapped, CUresult result, uint64_t address);

/* A pointer that was imported from a pool of another process: what keeps the pool counted, if its owner is of this claim; else
 * this process pays for what lies at the pointer, and must free it if there is no room for that. */
CUresult borrowed_from_pool(struct process *process, CUmemoryPool pool, CUdeviceptr address);

/* Freeing, of any of these: as in allocations.h. */
bool borrowed_freeing(struct process *process, uint64_t address, struct entry *mapped);
void borrowed_freed(struct process *process, const struct entry *mapped, CUresult result);

#endif
