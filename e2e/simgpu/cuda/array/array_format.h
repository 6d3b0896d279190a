/* How the texels of each array format lie in memory. */
#ifndef SIMGPU_ARRAY_FORMAT_H
#define SIMGPU_ARRAY_FORMAT_H

#include "cuda/driver.h"

/* One plane: a texel of it stands for x by y texels of the array. */
struct array_plane {
    CUarray_format format; /* as an array of its own */
    uint8_t channels;
    uint8_t x, y;
};

struct array_format {
    CUarray_format format;
    uint8_t channels;                  /* that a descriptor must state; 0: 1, 2 or 4 */
    uint8_t block_width, block_height; /* texels that are stored together */
    uint8_t bytes;                     /* of such a block; where `channels` is 0, of one channel */
    uint8_t plane_count;               /* 0: the texels are all in one place */
    struct array_plane planes[3];
};

/* NULL for what is no format. */
const struct array_format *array_format(CUarray_format format);

/* Bytes of one block of texels. */
static inline unsigned array_format_bytes(const struct array_format *format, unsigned channels) {
    return format->channels == 0 ? format->bytes * channels : format->bytes;
}

#endif
