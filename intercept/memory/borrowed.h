/*
 * Addresses in memory that this process did not allocate: buffers and arrays that are mapped on external memory, and
 * pointers that are imported from another process's pool. Each address holds the charge of the whole memory, since it
 * may outlive the memory's handle: a buffer outlives its external memory's handle, a pointer its pool's.
 *
 * Sources: "External Resource Interoperability" and cuMemPoolImportPointer in the CUDA driver API's documentation.
 */
#ifndef TRANCHE_BORROWED_H
#define TRANCHE_BORROWED_H

#include "state/contexts.h"

/*
 * A handle names the same memory, and it and its addresses are recorded if the driver knows them, under the lock
 * `borrowing` (process.h). It is held around the driver's calls that make or end handles of external memory and of
 * imported pools, or map their memory, and the recording. The caller of the functions below holds it.
 */

/* External memory. If borrowed_imported returns false, there is no memory for the record, and the charge stays until this
 * process ends. borrowed_destroyed follows the driver's call that destroyed the handle. */
bool borrowed_imported(struct process *process, CUexternalMemory memory, struct charge charge, uint32_t context);
void borrowed_destroyed(struct process *process, CUexternalMemory memory);

/* Mapping external memory in a context, which need not be that in which it was imported: borrowed_mapping holds the memory
 * before the driver is called, so that it does not end meanwhile; borrowed_mapped records the address with the driver's
 * result. For a mipmapped array, `address` is the array's handle. */
bool borrowed_mapping(struct process *process, CUexternalMemory memory, uint32_t context, struct entry *mapped);
void borrowed_mapped(struct process *process, struct entry *mapped, CUresult result, uint64_t address);

/* Removes a reference to external memory, by its number: that of a handle or an address. Number 0 is none. */
void borrowed_drop(struct process *process, uint64_t number);

/* A pointer that was imported from another process's pool. It holds the pool's share if the pool's owner is of this
 * claim. If not, this process is charged for the memory at the pointer; on an error, the caller frees the pointer. */
CUresult borrowed_from_pool(struct process *process, CUmemoryPool pool, CUdeviceptr address);

/* Before freeing an address that is not known: if another thread may be importing a pointer, which may be this one, waits
 * until it is recorded. The lock is held then, until after the driver's call. False if none may be. */
bool borrowed_await_imports(struct process *process);

/* The `references` of KIND_IPC_MEMORY (cuda/ipc.c): one for each opening, and for each that is being closed. Its `with` is
 * the address. */
#define ONE_OPEN 1
#define ONE_CLOSING (1 << 22)

bool borrowed_is_open_at(const struct entry *memory, uint64_t address);

/* The memory at any of these addresses, with its charge. False if there is none. */
bool borrowed_find(struct process *process, uint64_t address, struct entry *memory);

/* Freeing any of these addresses, as in allocations.h. */
bool borrowed_freeing(struct process *process, uint64_t address, struct entry *mapped);
void borrowed_freed(struct process *process, const struct entry *mapped, CUresult result);

#endif
