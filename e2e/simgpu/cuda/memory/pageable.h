/*
 * The program's own memory (malloc, mmap) on a GPU, where the topology says that the GPU reaches it (addressing_mode).
 * It comes to a GPU by prefetching only: kernels here do not touch it. Pages are of 2 MiB, and since the driver does
 * not see free(), they stay until they are prefetched to the host or the process ends.
 */
#ifndef SIMGPU_PAGEABLE_H
#define SIMGPU_PAGEABLE_H

#include "cuda/driver.h"

/* Whether a GPU reaches such memory. */
bool pageable_access(CUdevice device);

/* Whether a range is the program's own memory, on a node whose GPUs reach it. */
bool pageable_is_own(CUdeviceptr address, uint64_t size);

/* Moves a range to a GPU, or to the host (CU_DEVICE_CPU). What finds no room stays where it is. */
void pageable_prefetch(CUdeviceptr address, uint64_t size, CUdevice device);

#endif
