/*
 * Linear device memory: allocations by address, each with its charge. A shard's lock (process.h) protects the
 * allocations in it; the functions take it.
 *
 * Small allocations: the GPU maps memory in blocks of 2 MiB, and the driver packs several small allocations into one
 * block. Only the address tells which block an allocation is in. So a whole block is taken before the driver is called,
 * and given back at once if that block was charged already; the last allocation that leaves a block gives it back. If no
 * block can be taken, the process's reserve covers the call (struct reserve). See blocks.h.
 *
 * Source: "Memory Management" in the CUDA driver API's documentation. The packing is not documented; it was observed.
 */
#ifndef TRANCHE_ALLOCATIONS_H
#define TRANCHE_ALLOCATIONS_H

#include "state/contexts.h"

/* An allocation that is charged and about to be made. */
struct grant {
    struct process *process;
    struct charge charge;
    uint32_t context;
    uint32_t takes;                  /* how often this process had taken from the region, see allocations.c */
    bool packed;                     /* the driver packs allocations of this size into blocks */
    uint64_t spare;                  /* pages that are charged beside, where the charge is: the reserve to be */
    uint32_t reserve;                /* that covers the call, as in struct reserve; 0: none does */
    struct further_charges *further; /* NULL: the memory cannot move to another GPU */
};

/* Charges on further GPUs, for memory that may move there. */
struct further_charges {
    unsigned count;
    struct charge charges[CLAIMS_MAX];
};

/*
 * Allocating in the current context: allocations_grant before the driver is called, allocations_allocated with the
 * driver's result. If the size is known only afterwards, the grant is an estimate, and allocations_resize corrects it.
 * The program gets what allocations_allocated returns. If that is an error, memory that the driver allocated is freed.
 */
CUresult allocations_grant(struct grant *grant, struct work *work, uint64_t bytes);
CUresult allocations_resize(struct grant *grant, uint64_t bytes);
CUresult allocations_allocated(struct grant *grant, CUresult result, CUdeviceptr address, uint64_t bytes);

/* The same for managed memory, which may move to any GPU of the process: each visible one must have room for all of it. */
CUresult allocations_grant_everywhere(struct grant *grant, struct work *work, struct further_charges *further,
                                      uint64_t bytes);

/* The same for memory beyond the limit, which lies in host memory. */
CUresult allocations_grant_spilled(struct grant *grant, struct work *work, uint64_t bytes);

/* Whether any of these bytes lie in such host memory. Costs one load if there is none. */
bool allocations_on_host(struct process *process, CUdeviceptr address, uint64_t bytes);

/*
 * Freeing: allocations_freeing removes the entry before the driver is called, which may return the address for another
 * allocation at once. If it returned true, allocations_freed follows with the driver's result; if the driver refused,
 * the entry is put back.
 */
bool allocations_freeing(CUdeviceptr address, struct entry *allocation);
void allocations_freed(const struct entry *allocation, CUresult result);

/* Gives back every allocation of a context that ended. */
void allocations_context_ended(struct process *process, uint32_t context);

/* Makes the charge of the memory at an address a share with this tag, since another process is about to open the
 * memory. */
void allocations_share(CUdeviceptr address, uint64_t tag);

/* The memory at an address is about to be exported: see charge_exporting. `found` is false if there is none. */
bool allocations_exporting(struct process *process, CUdeviceptr address, struct charge *held, bool *found);

#endif
