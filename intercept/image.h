/* How much of the GPU's memory a program image takes once it is loaded: its code and constants, and its variables. */
#ifndef TRANCHE_IMAGE_H
#define TRANCHE_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct image_size {
    uint64_t code, data; /* bytes, at most */
    bool hidden;         /* there may be more that cannot be seen; what can be seen is in the sums nonetheless */
};

/*
 * What is hidden: the variables of what is compressed, entries of a fat binary and files of a form that we do not know, sections
 * without a name, PTX declarations that we do not understand, and whatever lies outside of the bounds. Of what is compressed the
 * code is taken to be as large as it says it becomes, of other such entries as large as they are. Whoever loads an image in
 * which something is hidden compares what is free before and after.
 *
 * The size of an image in memory, as cuModuleLoadData takes it: of a cubin its sections, of PTX its variables and, for its code,
 * its text, of a fat binary the largest of its entries. Nobody says where it ends, so what it says of itself is trusted, as the
 * driver must.
 */
struct image_size image_size(const void *image);

/* The same of a file's contents, which may say anything. */
struct image_size image_contents_size(const void *contents, size_t length);

/* The same of a file; all 0 for one that cannot be opened: that is the driver's to refuse. */
struct image_size image_file_size(const char *path);

#endif
