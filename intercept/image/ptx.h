/* The variables that PTX declares; and sums that do not overflow. */
#ifndef TRANCHE_IMAGE_PTX_H
#define TRANCHE_IMAGE_PTX_H

#include "image/image.h"

static inline void add(uint64_t *sum, uint64_t more) {
    if (__builtin_add_overflow(*sum, more, sum))
        *sum = UINT64_MAX;
}

/* Reads text of this length, which need not end in a zero. */
struct image_size image_ptx_size(const char *text, size_t length);

#endif
