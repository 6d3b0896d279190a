/*
 * Physical memory of the virtual memory management: made by a handle, mapped, bound to multicast objects and sparse arrays,
 * exported and imported. It is charged until the last that holds it is gone; in this process that is counted here, between
 * processes by a share.
 */
#ifndef TRANCHE_PHYSICAL_H
#define TRANCHE_PHYSICAL_H

#include "state/charge.h"

/* Written down with one reference. A multicast object takes no memory itself. False when there is no memory for it. */
bool physical_made(struct process *process, bool multicast, CUmemGenericAllocationHandle handle, struct charge charge);

/* The same of what was imported, which this process may have already. */
bool physical_imported(struct process *process, bool multicast, CUmemGenericAllocationHandle handle,
                       struct charge charge);

/* The number by which memory is known here, whatever becomes of its handle; 0 if that is not ours to count. */
uint64_t physical_number(struct process *process, CUmemGenericAllocationHandle handle);

/* One reference more: a handle, a mapping, a binding. Taken before the driver is asked for what is to hold the memory, since
 * another thread may release the handle as soon as that does. False if there is no such memory. */
bool physical_hold(struct process *process, uint64_t number);

/* The same by its handle, for something that is to use that many bytes of it; and pays for them where nobody else does. `number` is
 * 0 for memory that is not ours to count. */
CUresult physical_hold_to_use(struct process *process, CUmemGenericAllocationHandle handle, uint64_t bytes,
                              uint64_t *number);

/* A reference less, at once: for what the driver has let go of already, or never held. */
void physical_let_go(struct process *process, uint64_t number);

/*
 * References less. Handles are looked up, and mappings and bindings taken out, before the driver is asked, since it may give the
 * same handle, address or part out again at once. physical_released, with what it answered, counts the references, so that
 * memory is given back only when the driver has done all that lets go of it; or it puts everything back as it was.
 */
#define RELEASES_FEW 8

/* All zero is none. */
struct releases {
    size_t count, room; /* room for more than a few is mapped */
    struct release {
        uint64_t number;      /* of the memory; 0 if it is not ours to count */
        enum kind holder;     /* KIND_MAPPING, ...; KINDS if it was a handle itself */
        struct entry holding; /* the mapping or binding */
    } few[RELEASES_FEW], *many;
};

void physical_release(struct process *process, CUmemGenericAllocationHandle handle, struct releases *releases);
void physical_unmap(struct process *process, CUdeviceptr address, uint64_t size, struct releases *releases);
void physical_unbind(struct process *process, enum kind kind, uint64_t whole, uint64_t part, struct releases *releases);
/* All that is bound to any part of something. */
void physical_unbind_all(struct process *process, enum kind kind, uint64_t whole, struct releases *releases);
void physical_released(struct process *process, struct releases *releases, CUresult result);

/* Something that the caller holds was exported: as a descriptor, which is to carry the number returned, or in another way, so that
 * nobody can see what becomes of it. 0 when there is no memory to write that down: then it is not to be given to the program. */
uint32_t physical_share(struct process *process, uint64_t number, bool by_descriptor);

/* Mappings, by address, and what is bound below: held by the caller before. */
void physical_mapped(struct process *process, CUdeviceptr address, uint64_t size, uint64_t number);

/* What is bound to a part of something else: a multicast object, by its number, or a sparse array, by its handle. */
void physical_bound(struct process *process, enum kind kind, uint64_t whole, uint64_t part, uint64_t number);

/* The whole is gone, and with it all its bindings. */
void physical_whole_gone(struct process *process, enum kind kind, uint64_t whole);

#endif
