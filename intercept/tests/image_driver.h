/* The simulated driver's reader of images, to compare with the shadow library's. */
#ifndef TRANCHE_TESTS_IMAGE_DRIVER_H
#define TRANCHE_TESTS_IMAGE_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes of GPU memory that an image takes; false if the driver does not load it. Text ends with a zero. */
bool image_driver_takes(const void *image, uint64_t *bytes);

#endif
