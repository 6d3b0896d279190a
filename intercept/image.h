/* How much of the GPU's memory a program image takes once it is loaded: its code and constants, and its variables. */
#ifndef TRANCHE_IMAGE_H
#define TRANCHE_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct image_size {
    uint64_t code, data; /* bytes, at most */
    bool hidden;         /* there is more that cannot be seen: compressed parts of a fat binary */
};

/*
 * The size of an image in memory, as cuModuleLoadData takes it: of a cubin its sections, of PTX its variables and, for its code,
 * its text, of a fat binary the largest of its entries. All 0 for what is no image: that is the driver's to refuse.
 */
struct image_size image_size(const void *image);

/* The same of a file. */
struct image_size image_file_size(const char *path);

#endif
