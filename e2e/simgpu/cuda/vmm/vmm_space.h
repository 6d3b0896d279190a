/* Address space that is set aside outside the heap. All under vmm_mutex but space_any. */
#ifndef SIMGPU_VMM_SPACE_H
#define SIMGPU_VMM_SPACE_H

#include "cuda/driver.h"

/* An address that is a multiple of the alignment, `wanted` if it can be; 0 if there is none. */
CUdeviceptr space_reserve(uint64_t size, uint64_t alignment, CUdeviceptr wanted);
void space_free(CUdeviceptr base, uint64_t size);

/* Whether a reservation begins at the address and is that long. */
bool space_is(CUdeviceptr base, uint64_t size);
/* Whether addresses lie in one reservation. */
bool space_contains(CUdeviceptr base, uint64_t size);
bool space_reserved(CUdeviceptr address);
bool space_any(void);

/* Takes whatever lies at the addresses away. */
bool space_hide(CUdeviceptr base, uint64_t size);

#endif
