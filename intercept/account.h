/*
 * What this process holds: contexts and allocations, and which region each is charged to.
 *
 * Everything is in memory that the kernel wipes when the process forks. A child so starts like a fresh process, with a slot
 * of its own once it needs one, and cannot touch what belongs to its parent.
 */
#ifndef TRANCHE_ACCOUNT_H
#define TRANCHE_ACCOUNT_H

#include "cuda_api.h"
#include "table.h"

#include <stdbool.h>
#include <stdint.h>

/* A reservation for a call of the driver that is about to happen. */
struct grant {
    uint64_t pages;
    uint32_t context; /* serial number of the context in which memory is allocated */
    uint16_t region;
    uint16_t gpu;
    bool packed; /* the driver packs allocations of this size into larger blocks */
};

/* Opens the regions, if it has not been done in this process. Says on stderr what is wrong when it cannot. */
CUresult account_open(void);

/*
 * An allocation: account_grant before the driver is asked, in its current context; account_allocated with what it answered,
 * which it returns. An allocation whose size is known only afterwards is granted by an estimate and then resized; if
 * account_resize fails, the caller frees what it got and reports an error to account_allocated.
 */
CUresult account_grant(struct grant *grant, uint64_t bytes);
CUresult account_resize(struct grant *grant, uint64_t bytes);
CUresult account_allocated(struct grant *grant, CUresult result, CUdeviceptr address, uint64_t bytes);

/* Freeing: account_freeing before the driver is asked, since it may hand the address out again at once; account_freed with
 * what it answered, if the first returned true. */
bool account_freeing(CUdeviceptr address, struct entry *allocation);
void account_freed(struct entry allocation, CUresult result);

/* An explicit context: granted on a device, then created or not. */
CUresult account_grant_context(struct grant *grant, CUdevice device);
CUresult account_created(struct grant *grant, CUresult result, CUcontext context);

/* Its destruction: the serial number (0 if unknown) before the driver is asked, since it may hand the handle out again. */
uint32_t account_context_serial(CUcontext context);
void account_destroyed(CUcontext context, uint32_t serial);

/* A device's primary context. Between enter and leave, which bracket the driver's calls that create and destroy it, the
 * state that the driver reports for it does not change under us. */
CUresult account_primary_enter(CUdevice device);
void account_primary_leave(CUdevice device);
CUresult account_grant_primary(struct grant *grant, CUdevice device);
CUresult account_retained(struct grant *grant, CUresult result, CUdevice device, CUcontext context);
void account_primary_released(CUdevice device);
void account_primary_reset(CUdevice device);

/* What a device's claim allows, and has left. All 0 for a device without a claim. */
CUresult account_device_limit(CUdevice device, uint64_t *limit_bytes);
/* The same for the current context's device; a device without a claim is an error here. */
CUresult account_current_limit(uint64_t *limit_bytes, uint64_t *free_bytes);

#endif
