/* Resource views: an array's texels read as another format, or only some of its levels and layers. */
#ifndef SIMGPU_VIEW_H
#define SIMGPU_VIEW_H

#include "cuda/driver.h"

/* Whether the view is one of this resource, which has been checked. CUDA_ERROR_INVALID_VALUE if not. */
CUresult view_check(const CUDA_RESOURCE_DESC *resource, const CUDA_RESOURCE_VIEW_DESC *view);

#endif
