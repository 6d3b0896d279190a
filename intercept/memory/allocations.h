/*
 * Linear device memory, known by its address.
 *
 * Small allocations. The GPU maps memory in blocks of 2 MiB, and the driver packs small allocations into such blocks. Which
 * block an allocation went to is known only from its address. So a whole block is taken beforehand and given back at once
 * if the block was counted already; the last allocation that leaves a block gives it back.
 */
#ifndef TRANCHE_ALLOCATIONS_H
#define TRANCHE_ALLOCATIONS_H

#include "state/contexts.h"

/* An allocation that is about to happen. */
struct grant {
    struct process *process;
    struct charge charge;
    uint32_t context;
    uint32_t takes;              /* from the claim before the driver is asked */
    bool packed;                 /* the driver packs allocations of this size into larger blocks */
    struct elsewhere *elsewhere; /* NULL: it can only lie on the current context's GPU */
};

/* Charges on further GPUs. */
struct elsewhere {
    unsigned count;
    struct charge charges[CLAIMS_MAX];
};

/*
 * An allocation: grant before the driver is asked, in the current context; allocated with what it answered. An allocation
 * whose size is known only afterwards is granted by an estimate and then resized. What allocations_allocated returns is
 * what the program gets; if it returns an error although the driver allocated, the caller frees that.
 */
CUresult allocations_grant(struct grant *grant, CUcontext current, uint64_t bytes);
CUresult allocations_resize(struct grant *grant, uint64_t bytes);
CUresult allocations_allocated(struct grant *grant, CUresult result, CUdeviceptr address, uint64_t bytes);

/* The same for memory that may come to lie on any GPU of the process: each that it sees must have room for all of it. */
CUresult allocations_grant_everywhere(struct grant *grant, CUcontext current, struct elsewhere *elsewhere,
                                      uint64_t bytes);

/* The same for memory beyond the limit, which lives on the host. */
CUresult allocations_grant_spilled(struct grant *grant, CUcontext current, uint64_t bytes);

/* Whether any of these bytes belong to memory that was granted so. Costs a load where there is none. */
bool allocations_on_host(struct process *process, CUdeviceptr address, uint64_t bytes);

/*
 * Freeing: freeing before the driver is asked, since it may hand the address out again at once; freed with what it answered,
 * if the first returned true. An entry is put back if the driver refuses.
 */
bool allocations_freeing(CUdeviceptr address, struct entry *allocation);
void allocations_freed(const struct entry *allocation, CUresult result);

/* Gives back every allocation that lived in a context. */
void allocations_context_gone(struct process *process, uint32_t context);

/* Makes what lies at an address outlive this process, for whoever knows the tag. */
void allocations_share(CUdeviceptr address, const uint8_t tag[16]);

#endif
