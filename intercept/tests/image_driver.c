#include "image_driver.h"

#include "../../e2e/simgpu/cuda/image/image.h"

bool image_driver_takes(const void *image, uint64_t *bytes) {
    struct image read;
    if (image_read(image, &read) != CUDA_SUCCESS)
        return false;
    *bytes = read.code_bytes + read.data_bytes + read.managed_bytes;
    image_free(&read);
    return true;
}
