/* What NVIDIA's runtime library stores with a context, through a private table of the driver (tables.c). */
#ifndef SIMGPU_STORAGE_H
#define SIMGPU_STORAGE_H

#include "cuda/driver.h"

/* Called with the context, the key and the value when the context has ended. */
typedef void storage_destructor(CUcontext context, void *key, void *value);

/* CUDA_ERROR_INVALID_CONTEXT without a context: NULL means the current one. */
CUresult storage_put(CUcontext context, void *key, void *value, storage_destructor *destructor);
CUresult storage_delete(CUcontext context, void *key);
/* CUDA_ERROR_INVALID_HANDLE if nothing is stored under this key. */
CUresult storage_get(void **value, CUcontext context, void *key);

struct stored;
/* Takes out what is stored with a context that ends; then, without any lock, calls the destructors. */
struct stored *storage_context_gone(CUcontext context);
void storage_drop(struct stored *values);

#endif
