#include "image.h"

#include <ctype.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/memory/heap.h"
#include "unpack.h"

#define FATBIN_MAGIC 0xba55ed50u
#define FATBIN_WRAPPER_MAGIC 0x466243b1u
#define FATBIN_PTX 1
#define FATBIN_CUBIN 2
#define FATBIN_LZ4 0x2000u
#define FATBIN_ZSTANDARD 0x8000u
#define FATBIN_COMPRESSED (FATBIN_LZ4 | FATBIN_ZSTANDARD)
#define SIZE_LIMIT ((uint64_t)1 << 40)

/* What nvcc puts before a fat binary's contents, and before each entry of them. */
struct fatbin_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t content_bytes;
} __attribute__((packed));

struct fatbin_entry {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t content_bytes;
    uint32_t compressed_bytes, unknown;
    uint16_t minor, major;
    uint32_t arch, name_offset, name_bytes;
    uint64_t flags, zero, uncompressed_bytes;
} __attribute__((packed));

struct fatbin_wrapper {
    uint32_t magic, version;
    const void *data;
    void *unused;
} __attribute__((packed));

/* ---- What an image holds ---- */

static bool make_room(void **array, unsigned count, unsigned *room, size_t element) {
    void *grown;

    if (count < *room)
        return true;
    grown = realloc(*array, (size_t)(2 * *room + 16) * element);
    if (grown == NULL)
        return false;
    *array = grown;
    *room = 2 * *room + 16;
    return true;
}

CUresult image_add_kernel(struct image *image, const char *name, size_t length, uint64_t local_bytes,
                          uint64_t shared_bytes) {
    void *array = image->kernels;
    char *copy = NULL;

    if (make_room(&array, image->kernel_count, &image->kernel_room, sizeof(*image->kernels)))
        copy = strndup(name, length);
    image->kernels = array;
    REQUIRE(copy != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    image->kernels[image->kernel_count++] =
        (struct image_kernel){.name = copy, .local_bytes = local_bytes, .shared_bytes = shared_bytes};
    return CUDA_SUCCESS;
}

CUresult image_set_parameter(struct image_kernel *kernel, unsigned number, struct image_parameter parameter) {
    if (number >= kernel->parameter_count) {
        struct image_parameter *grown = realloc(kernel->parameters, ((size_t)number + 1) * sizeof(*grown));

        REQUIRE(grown != NULL, CUDA_ERROR_OUT_OF_MEMORY);
        memset(grown + kernel->parameter_count, 0, (number + 1 - kernel->parameter_count) * sizeof(*grown));
        kernel->parameters = grown;
        kernel->parameter_count = number + 1;
    }
    kernel->parameters[number] = parameter;
    return CUDA_SUCCESS;
}

CUresult image_add_variable(struct image *image, const char *name, size_t length, struct image_variable variable) {
    uint64_t *end = variable.managed ? &image->managed_bytes : &image->data_bytes;
    void *array = image->variables;

    REQUIRE(variable.size < SIZE_LIMIT && variable.alignment < SIZE_LIMIT, CUDA_ERROR_INVALID_IMAGE);
    variable.name = NULL;
    if (make_room(&array, image->variable_count, &image->variable_room, sizeof(*image->variables)))
        variable.name = strndup(name, length);
    image->variables = array;
    REQUIRE(variable.name != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    if (variable.offset == UINT64_MAX)
        variable.offset = round_up(*end, variable.alignment != 0 ? variable.alignment : 1);
    if (variable.offset + variable.size > *end)
        *end = variable.offset + variable.size;
    image->variables[image->variable_count++] = variable;
    return CUDA_SUCCESS;
}

CUresult image_append(struct image *image, const struct image *from) {
    for (unsigned i = 0; i < from->kernel_count; i++) {
        const struct image_kernel *kernel = &from->kernels[i];

        TRY(image_add_kernel(image, kernel->name, strlen(kernel->name), kernel->local_bytes, kernel->shared_bytes));
        for (unsigned p = 0; p < kernel->parameter_count; p++)
            TRY(image_set_parameter(&image->kernels[image->kernel_count - 1], p, kernel->parameters[p]));
    }
    for (unsigned i = 0; i < from->variable_count; i++) {
        struct image_variable variable = from->variables[i];

        variable.offset = UINT64_MAX;
        TRY(image_add_variable(image, variable.name, strlen(variable.name), variable));
    }
    image->open |= from->open;
    image->code_bytes += from->code_bytes;
    return CUDA_SUCCESS;
}

void image_free(struct image *image) {
    for (unsigned i = 0; i < image->kernel_count; i++) {
        free(image->kernels[i].parameters);
        free(image->kernels[i].name);
    }
    for (unsigned i = 0; i < image->variable_count; i++)
        free(image->variables[i].name);
    free(image->kernels);
    free(image->variables);
    *image = (struct image){0};
}

const struct image_kernel *image_kernel(struct image *image, const char *name) {
    for (unsigned i = 0; i < image->kernel_count; i++) {
        if (strcmp(image->kernels[i].name, name) == 0)
            return &image->kernels[i];
    }
    if (!image->open || *name == '\0' || image_add_kernel(image, name, strlen(name), 0, 0) != CUDA_SUCCESS)
        return NULL;
    return &image->kernels[image->kernel_count - 1];
}

static const struct image_variable *find_variable(const struct image *image, const char *name,
                                                  enum image_variable_kind kind) {
    for (unsigned i = 0; i < image->variable_count; i++) {
        if (image->variables[i].kind == kind && strcmp(image->variables[i].name, name) == 0)
            return &image->variables[i];
    }
    return NULL;
}

const struct image_variable *image_variable(const struct image *image, const char *name) {
    return find_variable(image, name, IMAGE_MEMORY);
}

bool image_reference(const struct image *image, const char *name, enum image_variable_kind kind) {
    return (image->open && *name != '\0') || find_variable(image, name, kind) != NULL;
}

/* ---- Recognising one ---- */

static bool is_text(const char *s) {
    for (int i = 0; i < 16 && s[i] != '\0'; i++) {
        if (!isprint((unsigned char)s[i]) && !isspace((unsigned char)s[i]))
            return false;
    }
    return *s != '\0';
}

/* The PTX need not end with a zero here. */
static CUresult read_ptx_entry(const char *contents, uint64_t bytes, struct image *image) {
    char *text = strndup(contents, bytes);
    CUresult ret;

    REQUIRE(text != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    ret = image_read_ptx(text, image);
    free(text);
    return ret;
}

static CUresult read_contents(const struct fatbin_entry *entry, const char *contents, uint64_t bytes,
                              struct image *image) {
    if (entry->kind == FATBIN_PTX)
        return read_ptx_entry(contents, bytes, image);
    REQUIRE(bytes >= sizeof(Elf64_Ehdr) && memcmp(contents, ELFMAG, SELFMAG) == 0, CUDA_ERROR_INVALID_IMAGE);
    return image_read_cubin(contents, image);
}

/*
 * One that cannot be unpacked, by Zstandard or made by a test without real contents, counts by what it would become, and may
 * hold any kernel; it has no variables here.
 */
static CUresult read_compressed(const struct fatbin_entry *entry, const char *contents, struct image *image) {
    char *unpacked = NULL;
    CUresult ret;

    if ((entry->flags & FATBIN_LZ4) != 0 && entry->compressed_bytes <= entry->content_bytes)
        unpacked = unpack_lz4(contents, entry->compressed_bytes, entry->uncompressed_bytes);
    if (unpacked == NULL) {
        image->open = true;
        image->code_bytes = entry->uncompressed_bytes;
        return CUDA_SUCCESS;
    }
    ret = read_contents(entry, unpacked, entry->uncompressed_bytes, image);
    free(unpacked);
    return ret;
}

static CUresult read_entry(const struct fatbin_entry *entry, struct image *image) {
    const char *contents = (const char *)entry + entry->header_bytes;

    if ((entry->flags & FATBIN_COMPRESSED) != 0)
        return read_compressed(entry, contents, image);
    return read_contents(entry, contents, entry->content_bytes, image);
}

static uint64_t entry_bytes(const struct fatbin_entry *entry) {
    return (entry->flags & FATBIN_COMPRESSED) != 0 ? entry->uncompressed_bytes : entry->content_bytes;
}

/* Entries for several GPUs lie one after another; the driver takes the one that fits, here the largest. */
static CUresult read_fatbin(const struct fatbin_header *header, struct image *image) {
    const struct fatbin_entry *largest = NULL;
    uint64_t offset = header->header_bytes, end = header->header_bytes + header->content_bytes;

    REQUIRE(header->header_bytes >= sizeof(*header) && header->content_bytes < SIZE_LIMIT, CUDA_ERROR_INVALID_IMAGE);
    while (end - offset >= sizeof(*largest)) {
        const struct fatbin_entry *entry = (const void *)((const char *)header + offset);

        REQUIRE(entry->header_bytes >= sizeof(*entry) && entry->content_bytes <= end - offset &&
                    entry->header_bytes <= end - offset - entry->content_bytes &&
                    entry->uncompressed_bytes < SIZE_LIMIT,
                CUDA_ERROR_INVALID_IMAGE);
        if ((entry->kind == FATBIN_PTX || entry->kind == FATBIN_CUBIN) &&
            (largest == NULL || entry_bytes(entry) > entry_bytes(largest)))
            largest = entry;
        offset += entry->header_bytes + entry->content_bytes;
    }
    REQUIRE(largest != NULL, CUDA_ERROR_NO_BINARY_FOR_GPU);
    return read_entry(largest, image);
}

static CUresult read_any(const void *data, struct image *image) {
    const struct fatbin_wrapper *wrapper = data;
    uint32_t magic;

    if (memcmp(data, ELFMAG, 1) != 0 && is_text(data)) {
        REQUIRE(strstr(data, ".version") != NULL, CUDA_ERROR_INVALID_PTX);
        return image_read_ptx(data, image);
    }
    REQUIRE(strnlen(data, sizeof(magic)) == sizeof(magic), CUDA_ERROR_INVALID_IMAGE);
    memcpy(&magic, data, sizeof(magic));
    if (magic == FATBIN_WRAPPER_MAGIC) {
        data = wrapper->data;
        memcpy(&magic, data, sizeof(magic));
    }
    if (magic == FATBIN_MAGIC)
        return read_fatbin(data, image);
    if (memcmp(&magic, ELFMAG, SELFMAG) == 0)
        return image_read_cubin(data, image);
    return CUDA_ERROR_INVALID_IMAGE;
}

CUresult image_read(const void *data, struct image *image) {
    CUresult ret;

    *image = (struct image){0};
    ret = read_any(data, image);
    if (ret != CUDA_SUCCESS)
        image_free(image);
    return ret;
}
