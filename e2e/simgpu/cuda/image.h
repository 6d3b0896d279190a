/* What a module's image says: the names in it. */
#ifndef SIMGPU_IMAGE_H
#define SIMGPU_IMAGE_H

#include "driver.h"

struct image {
    char *bytes; /* a copy */
    uint64_t size;
    enum { IMAGE_PTX, IMAGE_CUBIN, IMAGE_FATBIN } kind;
};

/* Recognises and copies an image: CUDA_ERROR_INVALID_IMAGE for what is none. */
CUresult image_read(const void *data, struct image *image);
void image_free(struct image *image);

bool image_has_kernel(const struct image *image, const char *name);
unsigned image_kernel_count(const struct image *image);

/* Bytes of a global variable, 0 if there is none of this name. Only PTX tells. */
uint64_t image_global_bytes(const struct image *image, const char *name);

#endif
