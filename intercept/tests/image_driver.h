/* What the simulated driver's reader of images makes of one, to compare with what the shadow library says of it. */
#ifndef TRANCHE_TESTS_IMAGE_DRIVER_H
#define TRANCHE_TESTS_IMAGE_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes of the GPU's memory that an image takes; false if the driver does not load it. Text ends in a zero. */
bool image_driver_takes(const void *image, uint64_t *bytes);

#endif
