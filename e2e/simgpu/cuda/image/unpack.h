/* Compressed contents. */
#ifndef SIMGPU_UNPACK_H
#define SIMGPU_UNPACK_H

#include <stddef.h>

#include "cuda/driver.h"

/* An LZ4 block's contents, with a zero after them; free() it. NULL if it is none that unpacks to exactly so much. */
char *unpack_lz4(const void *packed, size_t packed_bytes, size_t unpacked_bytes);

#endif
