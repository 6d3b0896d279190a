/* Which GPU of ours a CUDA device is. Devices follow CUDA_VISIBLE_DEVICES; limits follow UUIDs. */
#ifndef TRANCHE_GPUS_H
#define TRANCHE_GPUS_H

#include "state/process.h"

#define NO_CLAIM (-1)

/* The GPU of a device; NO_CLAIM if none, which is no error here. */
CUresult gpus_find(struct process *process, CUdevice device, int *gpu);

/* The same where a device without a claim is an error, which is explained on stderr. */
CUresult gpus_find_claimed(struct process *process, CUdevice device, int *gpu);

/* The GPUs with a claim that are devices of this process, by bit. */
uint64_t gpus_visible(struct process *process);

/* How many threads the current context's device can run at once. */
uint64_t gpus_threads(void);

/* The same of one of ours, of which some device was found before. */
uint64_t gpus_threads_of(struct process *process, int gpu);

/* Whether the driver knows the device: what it says if not. */
CUresult gpus_check(CUdevice device);

#endif
