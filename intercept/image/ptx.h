/* The variables that PTX declares. */
#ifndef TRANCHE_IMAGE_PTX_H
#define TRANCHE_IMAGE_PTX_H

#include "image/image.h"

/* Reads text of this length, which need not end in a zero. */
struct image_size image_ptx_size(const char *text, size_t length);

#endif
