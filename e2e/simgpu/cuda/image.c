#include "image.h"

#include <ctype.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#define FATBIN_MAGIC 0xba55ed50u
#define FATBIN_WRAPPER_MAGIC 0x466243b1u

/* What nvcc puts before a fat binary's contents. */
struct fatbin_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t content_bytes;
};

struct fatbin_wrapper {
    uint32_t magic, version;
    const void *data;
    void *unused;
};

static CUresult copy(const void *data, uint64_t size, struct image *image) {
    image->bytes = malloc(size + 1);
    REQUIRE(image->bytes != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    memcpy(image->bytes, data, size);
    image->bytes[size] = '\0';
    image->size = size;
    return CUDA_SUCCESS;
}

static CUresult read_cubin(const Elf64_Ehdr *elf, struct image *image) {
    uint64_t size = elf->e_shoff + (uint64_t)elf->e_shnum * elf->e_shentsize;

    REQUIRE(elf->e_ident[EI_CLASS] == ELFCLASS64 && elf->e_shentsize == sizeof(Elf64_Shdr) && elf->e_shnum > 0 &&
                size < (uint64_t)1 << 40,
            CUDA_ERROR_INVALID_IMAGE);
    image->kind = IMAGE_CUBIN;
    return copy(elf, size, image);
}

static CUresult read_fatbin(const struct fatbin_header *header, struct image *image) {
    uint64_t size = header->header_bytes + header->content_bytes;

    REQUIRE(header->header_bytes >= sizeof(*header) && size < (uint64_t)1 << 40, CUDA_ERROR_INVALID_IMAGE);
    image->kind = IMAGE_FATBIN;
    return copy(header, size, image);
}

static bool is_text(const char *s) {
    for (int i = 0; i < 16 && s[i] != '\0'; i++) {
        if (!isprint((unsigned char)s[i]) && !isspace((unsigned char)s[i]))
            return false;
    }
    return *s != '\0';
}

CUresult image_read(const void *data, struct image *image) {
    const struct fatbin_wrapper *wrapper = data;
    uint32_t magic;

    memset(image, 0, sizeof(*image));
    if (memcmp(data, ELFMAG, 1) != 0 && is_text(data)) {
        REQUIRE(strstr(data, ".version") != NULL, CUDA_ERROR_INVALID_PTX);
        image->kind = IMAGE_PTX;
        return copy(data, strlen(data), image);
    }
    memcpy(&magic, data, sizeof(magic));
    if (magic == FATBIN_WRAPPER_MAGIC) {
        data = wrapper->data;
        memcpy(&magic, data, sizeof(magic));
    }
    if (magic == FATBIN_MAGIC)
        return read_fatbin(data, image);
    if (memcmp(&magic, ELFMAG, SELFMAG) == 0)
        return read_cubin(data, image);
    return CUDA_ERROR_INVALID_IMAGE;
}

void image_free(struct image *image) {
    free(image->bytes);
    image->bytes = NULL;
}

/* ---- PTX ---- */

static bool name_char(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '$';
}

/* The next word in the text that follows the directive, which names what it declares. Advances `text`. */
static const char *next_declared(const char **text, const char *directive, size_t *length) {
    const char *name = strstr(*text, directive);

    if (name == NULL)
        return NULL;
    name += strlen(directive);
    while (isspace((unsigned char)*name))
        name++;
    *length = 0;
    while (name_char(name[*length]))
        ++*length;
    *text = name + *length;
    return name;
}

static bool ptx_has_kernel(const char *text, const char *name) {
    const char *found;
    size_t length;

    while ((found = next_declared(&text, ".entry", &length)) != NULL) {
        if (length == strlen(name) && memcmp(found, name, length) == 0)
            return true;
    }
    return false;
}

/* Bytes of the type that a declaration such as ".align 4 .b8 name[1024]" has before the name. */
static uint64_t ptx_type_bytes(const char *from, const char *to) {
    for (const char *dot = to; dot > from; dot--) {
        if (dot[-1] == '.' && strchr("busf", *dot) != NULL && isdigit((unsigned char)dot[1]))
            return strtoull(dot + 1, NULL, 10) / 8;
    }
    return 0;
}

uint64_t image_global_bytes(const struct image *image, const char *name) {
    const char *text = image->kind == IMAGE_PTX ? image->bytes : "";

    while ((text = strstr(text, ".global")) != NULL) {
        const char *end = text + strcspn(text, ";={"), *found = text;

        while ((found = strstr(found, name)) != NULL && found < end) {
            const char *after = found + strlen(name);

            if (!name_char(found[-1]) && !name_char(*after)) {
                uint64_t bytes = ptx_type_bytes(text, found);

                return *after == '[' ? bytes * strtoull(after + 1, NULL, 10) : bytes;
            }
            found = after;
        }
        text = end;
    }
    return 0;
}

/* ---- cubin: the code of kernel NAME is in a section .text.NAME ---- */

/* Calls fn with the name of each kernel until it returns true; whether it did. */
static bool cubin_each(const struct image *image, bool (*fn)(const char *kernel, void *arg), void *arg) {
    const Elf64_Ehdr *elf = (const Elf64_Ehdr *)(const void *)image->bytes;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(const void *)(image->bytes + elf->e_shoff);
    const Elf64_Shdr *names = &sections[elf->e_shstrndx];

    if (elf->e_shstrndx >= elf->e_shnum || names->sh_offset > image->size ||
        names->sh_size > image->size - names->sh_offset)
        return false;
    for (unsigned i = 0; i < elf->e_shnum; i++) {
        const char *name = image->bytes + names->sh_offset + sections[i].sh_name;

        if (sections[i].sh_name < names->sh_size && strncmp(name, ".text.", 6) == 0 && fn(name + 6, arg))
            return true;
    }
    return false;
}

static bool same_name(const char *kernel, void *name) {
    return strcmp(kernel, name) == 0;
}

static bool count_one(const char *kernel, void *count) {
    (void)kernel;
    ++*(unsigned *)count;
    return false;
}

/* The contents of a fat binary may be compressed: it is taken to hold whatever is asked of it. */
bool image_has_kernel(const struct image *image, const char *name) {
    switch (image->kind) {
    case IMAGE_PTX:
        return ptx_has_kernel(image->bytes, name);
    case IMAGE_CUBIN:
        return cubin_each(image, same_name, (void *)(uintptr_t)name);
    case IMAGE_FATBIN:
        return *name != '\0';
    }
    return false;
}

unsigned image_kernel_count(const struct image *image) {
    const char *text = image->bytes;
    unsigned count = 0;
    size_t length;

    if (image->kind == IMAGE_PTX) {
        while (next_declared(&text, ".entry", &length) != NULL)
            count++;
    } else if (image->kind == IMAGE_CUBIN) {
        cubin_each(image, count_one, &count);
    }
    return count;
}
