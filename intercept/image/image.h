/* How much GPU memory a program image takes once it is loaded: its code, its constants and its variables. */
#ifndef TRANCHE_IMAGE_H
#define TRANCHE_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct image_size {
    uint64_t code, data; /* in bytes: upper bounds */
    bool hidden;         /* there may be more than `code` and `data` */
    bool malformed; /* not for the driver: its headers point outside of it or of memory, or PTX that cannot be read */
    uint64_t spare; /* so many bytes of `data` are not taken if what is hidden is what the driver loads */
};

/*
 * The size of an image in memory, as cuModuleLoadData takes it: a cubin's sections; PTX's variables and, for its code,
 * its text; the largest entry of a fat binary. The image's end is not known, so its headers are followed, and each page
 * is checked to be readable before it is read.
 *
 * `hidden` is set for compressed entries, unknown formats, and sections without a name. The
 * code of such an entry counts as large as the entry, or as it declares to be uncompressed.
 *
 * A driver that loads a hidden entry of a fat binary loads no other one. So the variables of the largest entry leave
 * room for the hidden ones: `spare`, without the variables that are known of the hidden entry itself.
 */
struct image_size image_size(const void *image);

/* The same for the contents of a file, which are not trusted. */
struct image_size image_contents_size(const void *contents, size_t length);

/* The same for a file: all 0 if it cannot be opened, since the driver refuses it then; `hidden` if it cannot be read. */
struct image_size image_file_size(const char *path);

#endif
