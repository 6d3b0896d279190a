/* Host memory that the driver knows of: allocated pinned, or registered. None of it is the GPU's. */
#ifndef SIMGPU_HOST_MEMORY_H
#define SIMGPU_HOST_MEMORY_H

#include "cuda/driver.h"

struct host_range {
    uintptr_t base;
    uint64_t size;
    unsigned flags;
    bool registered; /* the program's own memory, not allocated here */
    struct CUctx_st *context;
    CUdevice device;
    uint64_t id;
};

/* The range in which an address lies. */
bool host_range_find(uintptr_t address, struct host_range *range);

#endif
