/* Which claimed GPU a CUDA device is. Device numbers follow CUDA_VISIBLE_DEVICES; claims name UUIDs. */
#ifndef TRANCHE_GPUS_H
#define TRANCHE_GPUS_H

#include "state/process.h"

#define NO_CLAIM (-1)

/* The GPU of a device (an index of claims.h); NO_CLAIM if there is no claim on it, which is not an error here. */
CUresult gpus_find(struct process *process, CUdevice device, int *gpu);

/* The same; a device without a claim is CUDA_ERROR_NOT_PERMITTED, with a line on stderr. */
CUresult gpus_find_claimed(struct process *process, CUdevice device, int *gpu);

/* The same for a call that may be the first: opens the regions, after the driver's own errors (not initialised, no such
 * device). */
CUresult gpus_open(struct process **process, CUdevice device, int *gpu);

/* The claimed GPUs that are devices of this process: a bit for each. */
uint64_t gpus_visible(struct process *process);

/* How many threads a GPU can run at once; 0 if unknown. Its device must have been found before; else those of the current
 * context's device. */
uint64_t gpus_threads(struct process *process, int gpu);

/* The device of a GPU on which a context was created; -1 if there was none. */
CUdevice gpus_device(struct process *process, int gpu);

/* Whether the driver knows the device: CUDA_SUCCESS, or the driver's error. Does not query it about one that it knew. */
CUresult gpus_check(CUdevice device);

#endif
