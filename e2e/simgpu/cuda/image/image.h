/* What a module's image says: its kernels, its variables, and how much memory of the GPU they take. */
#ifndef SIMGPU_IMAGE_H
#define SIMGPU_IMAGE_H

#include "cuda/driver.h"

/* Where among a kernel's parameters one lies. */
struct image_parameter {
    uint64_t offset, size;
};

struct image_kernel {
    char *name;
    uint64_t local_bytes;  /* of each thread */
    uint64_t shared_bytes; /* of each block, declared */
    struct image_parameter *parameters;
    unsigned parameter_count;
};

/* References to textures and surfaces are declared like variables, but take no memory. */
enum image_variable_kind { IMAGE_MEMORY, IMAGE_TEXTURE, IMAGE_SURFACE };

struct image_variable {
    char *name;
    enum image_variable_kind kind;
    uint64_t size, alignment;
    uint64_t offset; /* among the image's data, or its managed data */
    bool managed;
};

struct image {
    bool open; /* holds any kernel that is asked for: compressed, so nobody can tell */
    uint64_t code_bytes;
    uint64_t data_bytes;
    uint64_t managed_bytes;
    struct image_kernel *kernels;
    unsigned kernel_count, kernel_room;
    struct image_variable *variables;
    unsigned variable_count, variable_room;
};

/*
 * Reads an image: PTX, a cubin, or a fat binary, of which the largest entry counts. CUDA_ERROR_INVALID_IMAGE for what is
 * none. The image keeps nothing of the data.
 */
CUresult image_read(const void *data, struct image *image);
void image_free(struct image *image);

/* NULL if there is none of this name. An open image gets the kernel. */
const struct image_kernel *image_kernel(struct image *image, const char *name);
const struct image_variable *image_variable(const struct image *image, const char *name);
/* Whether a texture or surface reference is declared; in an open image, any is that is asked for. */
bool image_reference(const struct image *image, const char *name, enum image_variable_kind kind);

/* For those who read a kind of image. Names are copied. */
CUresult image_add_kernel(struct image *image, const char *name, size_t length, uint64_t local_bytes,
                          uint64_t shared_bytes);
/* Makes it the kernel's parameter of this number; those before it that nobody told of have no size. */
CUresult image_set_parameter(struct image_kernel *kernel, unsigned number, struct image_parameter parameter);
/* Puts it after the others, where offset is UINT64_MAX. */
CUresult image_add_variable(struct image *image, const char *name, size_t length, struct image_variable variable);
CUresult image_read_ptx(const char *text, struct image *image);
CUresult image_read_cubin(const void *elf, struct image *image);

/* Everything that `from` holds, added to `image`: what a linker does. */
CUresult image_append(struct image *image, const struct image *from);
/* The image as a cubin; free() it. */
CUresult image_write_cubin(const struct image *image, void **cubin, size_t *size);

#endif
