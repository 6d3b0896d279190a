/*
 * The formats, as far as sizes go. A cubin is an ELF file, whose sections .nv.global and .nv.global.init are variables; those of
 * shared and local memory take nothing when they are loaded. PTX is text, see image_ptx.c. A fat binary is a header and entries
 * of both, for several architectures, of which the driver takes one.
 *
 * An image is known up to `end`: NULL where nobody knows its end. Nothing is read that lies beyond, and what cannot be made
 * out is said to be hidden.
 */
#include "image.h"

#include "calls.h"
#include "charge.h"
#include "image_ptx.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FATBIN_WRAPPER_MAGIC 0x466243b1u
#define FATBIN_MAGIC 0xba55ed50u
#define FATBIN_PTX 1
#define FATBIN_ELF 2
#define FATBIN_COMPRESSED (0x2000u | 0x8000u)

struct fatbin_wrapper {
    uint32_t magic, version;
    const void *data;
};

struct fatbin_header {
    uint32_t magic;
    uint16_t version, size;
    uint64_t contents;
};

struct fatbin_entry {
    uint16_t kind, version;
    uint32_t size;
    uint64_t payload;
    uint32_t compressed, unused;
    uint16_t minor, major;
    uint32_t arch, name_offset, name_size;
    uint64_t flags, zero, uncompressed;
};

static const struct image_size unseen = {.hidden = true};

static void add(uint64_t *sum, uint64_t more) {
    if (__builtin_add_overflow(*sum, more, sum))
        *sum = UINT64_MAX;
}

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* Whether there are so many bytes from an offset on. */
static bool reaches(const char *image, const char *end, uint64_t offset, uint64_t bytes) {
    uint64_t room = end != NULL ? (uint64_t)(end - image) : UINT64_MAX - (uintptr_t)image;
    return offset <= room && bytes <= room - offset;
}

/* Copies what lies at an offset, which need not be aligned. */
static bool read_at(void *to, size_t bytes, const char *image, const char *end, uint64_t offset) {
    if (!reaches(image, end, offset, bytes))
        return false;
    memcpy(to, image + offset, bytes);
    return true;
}

/* --- cubin --------------------------------------------------------------------------------------------------------- */

#define SECTION_ALIGNMENT 512

/* Whether a name, of which there are so many bytes at most, begins so. */
static bool begins(const char *name, uint64_t room, const char *with) {
    size_t length = strlen(with);
    return room >= length && strncmp(name, with, length) == 0;
}

static void add_section(struct image_size *size, const char *name, uint64_t room, const Elf64_Shdr *section) {
    if (begins(name, room, ".nv.global") || begins(name, room, ".nv.constant")) {
        add(&size->data, section->sh_size);
        add(&size->data, larger(section->sh_addralign, SECTION_ALIGNMENT));
    } else if (begins(name, room, ".text.")) {
        add(&size->code, section->sh_size);
    }
}

static struct image_size elf_size(const char *image, const char *end) {
    struct image_size size = {0};
    Elf64_Ehdr header;
    Elf64_Shdr names, section;
    /* Files of another class, and of so many sections that their number is somewhere else, are not made by any compiler. */
    if (!read_at(&header, sizeof header, image, end, 0) || header.e_ident[EI_CLASS] != ELFCLASS64 ||
        header.e_shentsize != sizeof section || header.e_shstrndx >= header.e_shnum ||
        !reaches(image, end, header.e_shoff, header.e_shnum * sizeof section) ||
        !read_at(&names, sizeof names, image, end, header.e_shoff + header.e_shstrndx * sizeof section) ||
        !reaches(image, end, names.sh_offset, names.sh_size))
        return unseen;
    for (unsigned i = 0; i < header.e_shnum; i++) {
        memcpy(&section, image + header.e_shoff + i * sizeof section, sizeof section);
        if (section.sh_name < names.sh_size)
            add_section(&size, image + names.sh_offset + section.sh_name, names.sh_size - section.sh_name, &section);
        else
            size.hidden = true;
    }
    return size;
}

/* --- fat binaries -------------------------------------------------------------------------------------------------- */

/* Text that ends without a zero may go on, for all we know, in what follows it: the driver's reader may not know the entry's
 * size. */
static struct image_size entry_size(const struct fatbin_entry *entry, const char *payload) {
    const char *end = payload + entry->payload;
    if (entry->flags & FATBIN_COMPRESSED)
        return (struct image_size){.code = larger(entry->uncompressed, entry->payload), .hidden = true};
    if (entry->kind == FATBIN_ELF && begins(payload, entry->payload, ELFMAG))
        return elf_size(payload, end);
    if (entry->kind != FATBIN_PTX)
        return (struct image_size){.code = entry->payload, .hidden = true};
    struct image_size size = image_ptx_size(payload, strnlen(payload, entry->payload));
    size.hidden = size.hidden || memchr(payload, '\0', entry->payload) == NULL;
    return size;
}

static struct image_size fatbin_size(const char *image, const char *end) {
    struct image_size size = {0};
    struct fatbin_header header;
    struct fatbin_entry entry;
    if (!read_at(&header, sizeof header, image, end, 0) || header.size < sizeof header ||
        !reaches(image, end, header.size, header.contents))
        return unseen;
    const char *at = image + header.size;
    end = at + header.contents;
    for (; read_at(&entry, sizeof entry, at, end, 0); at += entry.size + entry.payload) {
        if (entry.size < sizeof entry || !reaches(at, end, entry.size, entry.payload)) {
            size.hidden = true;
            break;
        }
        struct image_size one = entry_size(&entry, at + entry.size);
        size.code = larger(size.code, one.code);
        size.data = larger(size.data, one.data);
        size.hidden = size.hidden || one.hidden;
    }
    return size;
}

/* --- images -------------------------------------------------------------------------------------------------------- */

/* The first four bytes; 0 for a text that is shorter. No magic number has a zero in it. */
static uint32_t magic_of(const char *image, const char *end) {
    uint32_t magic = 0;
    size_t room = end == NULL || (size_t)(end - image) > sizeof magic ? sizeof magic : (size_t)(end - image);
    if (strnlen(image, room) == sizeof magic)
        memcpy(&magic, image, sizeof magic);
    return magic;
}

static struct image_size any_size(const char *image, const char *end) {
    uint32_t magic = magic_of(image, end);
    struct fatbin_wrapper wrapper;
    bool wrapped = magic == FATBIN_WRAPPER_MAGIC;
    if (wrapped && end == NULL) {
        memcpy(&wrapper, image, sizeof wrapper);
        image = wrapper.data;
        magic = image != NULL ? magic_of(image, NULL) : 0;
    }
    if (magic == FATBIN_MAGIC)
        return fatbin_size(image, end);
    if (memcmp(&magic, ELFMAG, sizeof magic) == 0)
        return elf_size(image, end);
    /* A wrapper holds a pointer, which in a file leads nowhere. */
    if (wrapped || magic == 0)
        return unseen;
    return image_ptx_size(image, end != NULL ? strnlen(image, (size_t)(end - image)) : strlen(image));
}

/* What is more than any GPU has is refused; as much of it as sums can be made of is enough for that. */
static struct image_size bounded(struct image_size size) {
    const uint64_t most = UINT64_C(1) << 52;
    size.code = size.code < most ? size.code : most;
    size.data = size.data < most ? size.data : most;
    return size;
}

struct image_size image_size(const void *image) {
    return image != NULL ? bounded(any_size(image, NULL)) : (struct image_size){0};
}

struct image_size image_contents_size(const void *contents, size_t length) {
    return bounded(any_size(contents, (const char *)contents + length));
}

/* The kernel reads less than 2 GiB at a time. False if the file turned out to be shorter. */
static bool read_all(int descriptor, char *to, size_t length) {
    for (size_t at = 0; at < length;) {
        ssize_t got = call_pread(descriptor, to + at, length - at, (off_t)at);
        if (got == 0 || (got < 0 && errno != EINTR))
            return false;
        at += got > 0 ? (size_t)got : 0;
    }
    return true;
}

static struct image_size descriptor_size(int descriptor) {
    struct image_size size = unseen;
    off_t length = lseek(descriptor, 0, SEEK_END);
    if (length <= 0)
        return unseen;
    char *copy = mmap(NULL, (size_t)length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED)
        return unseen;
    if (read_all(descriptor, copy, (size_t)length))
        size = image_contents_size(copy, (size_t)length);
    munmap(copy, (size_t)length);
    return size;
}

struct image_size image_file_size(const char *path) {
    struct image_size size = {0};
    int error = errno;
    int descriptor = path == NULL ? -1 : call_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor >= 0) {
        size = descriptor_size(descriptor);
        call_close(descriptor);
    }
    errno = error;
    return size;
}
