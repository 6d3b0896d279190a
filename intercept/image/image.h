/* How much of the GPU's memory a program image takes once it is loaded: its code and constants, and its variables. */
#ifndef TRANCHE_IMAGE_H
#define TRANCHE_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct image_size {
    uint64_t code, data; /* bytes, at most */
    bool hidden;         /* there may be more that cannot be seen; what can be seen is in the sums nonetheless */
    bool malformed;      /* no driver can load it: what it says of itself leads out of it, or out of memory */
};

/*
 * The size of an image in memory, as cuModuleLoadData takes it: of a cubin its sections, of PTX its variables and, for its code,
 * its text, of a fat binary the largest of its entries. Nobody says where it ends, so what it says of itself is followed as far
 * as there is memory, which is looked at before it is read.
 *
 * Hidden are the variables of what is compressed, entries of a fat binary and files of a form that we do not know, sections
 * without a name, and PTX declarations that we do not understand. Of what is compressed the code is taken to be as large as it
 * says it becomes, of other such entries as large as they are. Whoever loads an image in which something is hidden has to
 * compare what is free before and after.
 */
struct image_size image_size(const void *image);

/* The same of a file's contents, which may say anything. */
struct image_size image_contents_size(const void *contents, size_t length);

/* A file with an image, and what the driver is to load of it: a copy that nobody changes, so that it loads what was counted. */
struct image_file {
    struct image_size size; /* all 0 for one that cannot be opened: that is the driver's to refuse */
    const char *path; /* of the copy; of the file itself where there is none, and then something is hidden in it */
    char copy_path[32];
    int copy; /* a descriptor, or -1 */
};

/* `path` may be NULL. */
void image_file_open(struct image_file *file, const char *path);
void image_file_close(const struct image_file *file);

#endif
