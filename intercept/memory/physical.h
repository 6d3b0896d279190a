/*
 * Physical memory of virtual memory management: created with a handle, mapped, bound to multicast objects and sparse
 * arrays, exported and imported. It is charged until its last reference is gone. References in this process (handles,
 * mappings, bindings) are counted here; between processes a share counts them.
 *
 * Source: "Virtual Memory Management" and "Multicast Object Management" in the CUDA driver API's documentation.
 */
#ifndef TRANCHE_PHYSICAL_H
#define TRANCHE_PHYSICAL_H

#include "state/charge.h"

/* Records created memory with one reference. A multicast object itself takes no memory. False, and the charge is ended,
 * if there is no memory for the record. */
bool physical_made(struct process *process, bool multicast, CUmemGenericAllocationHandle handle, struct charge charge);

/* The same for imported memory, which this process may have already. */
bool physical_imported(struct process *process, bool multicast, CUmemGenericAllocationHandle handle,
                       struct charge charge);

/* The number that identifies memory here, since its handle may be reused; 0 if it is not recorded. */
uint64_t physical_number(struct process *process, CUmemGenericAllocationHandle handle);

/* Adds a reference, for a handle, a mapping or a binding. Taken before the driver is called to make that, since another
 * thread may release the handle at once after. False if there is no such memory. */
bool physical_hold(struct process *process, uint64_t number);

/* Adds a reference for a handle that the driver has returned once more. False if its memory is not recorded. */
bool physical_retained(struct process *process, CUmemGenericAllocationHandle handle);

/* Whether it is a handle of this memory that no thread has released. */
bool physical_has_handle(struct process *process, CUmemGenericAllocationHandle handle, uint64_t number);

/* The same by a handle, for a use of that many bytes. Charges them if the memory was imported from outside of the
 * claim. `number` is 0 for memory that is not recorded. */
CUresult physical_hold_to_use(struct process *process, CUmemGenericAllocationHandle handle, uint64_t bytes,
                              uint64_t *number);

/* Removes a reference that the driver has released already or never had. Number 0 is none. */
void physical_drop(struct process *process, uint64_t number);

/*
 * Removing references. Handles are looked up, and mappings and bindings removed, before the driver is called, since it
 * may reuse the handle, address or part at once. physical_released, with the driver's result, removes the references,
 * so that memory is given back only after the driver has released it; if the driver refused, it restores everything.
 */
#define RELEASES_FEW 8

/* All zero is none. */
struct releases {
    size_t count, room; /* `room` is that of `many`, which is mapped */
    struct release {
        uint64_t number;      /* of the memory; 0 if it is not recorded */
        enum kind holder;     /* KIND_MAPPING, ...; KINDS for a handle */
        struct entry holding; /* the mapping or binding */
    } few[RELEASES_FEW], *many;
};

void physical_release(struct process *process, CUmemGenericAllocationHandle handle, struct releases *releases);
void physical_unmap(struct process *process, CUdeviceptr address, uint64_t size, struct releases *releases);
void physical_unbind(struct process *process, enum kind kind, uint64_t whole, uint64_t part, struct releases *releases);
/* Everything that is bound to any part of an object. */
void physical_unbind_all(struct process *process, enum kind kind, uint64_t whole, struct releases *releases);
void physical_released(struct process *process, struct releases *releases, CUresult result);

/* Memory that the caller holds is about to be exported: see charge_exporting. Memory of another claim is charged to whoever
 * maps it: then `held` has no share. */
bool physical_exporting(struct process *process, uint64_t number, struct charge *held);

/* Records a mapping. The caller holds the memory for it. */
void physical_mapped(struct process *process, CUdeviceptr address, uint64_t size, uint64_t number);

/* Whether memory is mapped at this address, and where that mapping begins. */
bool physical_find_mapping(struct process *process, uint64_t number, CUdeviceptr address, CUdeviceptr *begin);

/* Records a binding, held likewise, to a part of a multicast object (by number) or of a sparse array (by handle). What was
 * bound there is to be removed before. */
void physical_bound(struct process *process, enum kind kind, uint64_t whole, uint64_t part, uint64_t number);

/* A multicast object or sparse array ended, and with it all its bindings. */
void physical_whole_ended(struct process *process, enum kind kind, uint64_t whole);

#endif
