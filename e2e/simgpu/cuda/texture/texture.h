/* What texture objects and texture references have in common. */
#ifndef SIMGPU_TEXTURE_H
#define SIMGPU_TEXTURE_H

#include "cuda/driver.h"

#define TEXTURE_FLAGS                                                                                                  \
    (CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB |                                         \
     CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION | CU_TRSF_SEAMLESS_CUBEMAP)

static inline bool texture_address_mode_valid(CUaddress_mode mode) {
    return (unsigned)mode <= CU_TR_ADDRESS_MODE_BORDER;
}

static inline bool texture_filter_mode_valid(CUfilter_mode mode) {
    return (unsigned)mode <= CU_TR_FILTER_MODE_LINEAR;
}

#endif
