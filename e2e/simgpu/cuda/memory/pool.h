/* Memory pools as the API knows them. */
#ifndef SIMGPU_POOL_H
#define SIMGPU_POOL_H

#include "pool_blocks.h"

struct CUmemPoolHandle_st {
    struct handle handle;
    struct pool *pool;
};

/* A handle for a new pool; see pool_new. */
CUresult pool_handle_new(const CUmemPoolProps *props, uint64_t object, bool imported, CUmemoryPool *handle);

/* A handle for a new pool whose memory other processes may come to hold. */
CUresult pool_new_shared(const CUmemPoolProps *props, CUmemoryPool *handle);

/* The pool that a handle means, or NULL. */
struct pool *pool_of(CUmemoryPool handle);

/* Resetting a device's primary context empties its default pool. */
void pools_device_reset(CUdevice device);

#endif
