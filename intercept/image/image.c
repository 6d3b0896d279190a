/*
 * The formats, as far as needed for sizes. A cubin is an ELF file; its sections .nv.global and .nv.global.init are
 * variables, of which managed ones are counted once more by their symbols. Sections of shared and local memory take
 * nothing when they are loaded. PTX is text, see ptx.c. A fat binary is a header with entries of both kinds, for
 * several architectures; the driver loads one entry.
 *
 * Only what an image's headers lead to is read, and only memory that is readable. An image whose headers lead elsewhere
 * is malformed, and so is PTX that cannot be parsed; what else cannot be is hidden.
 */
#include "image/image.h"

#include "image/ptx.h"
#include "region/pages.h"
#include "system/calls.h"
#include "system/mapped.h"

#include <elf.h>
#include <string.h>

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

static const struct image_size unknown_format = {.hidden = true};
static const struct image_size malformed = {.malformed = true};

/* An image or a part of one: at most `room` bytes. Unless `present`, they may not be in memory. */
struct view {
    const char *at;
    uint64_t room;
    bool present;
};

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

#define PAGE_BYTES 4096u /* the smallest page size of the supported architectures */

/* Whether a page can be read. Has the kernel read a signal mask there, with an invalid operation: it reads the mask
 * before it refuses the operation. Not at the page's beginning, since the address 0 means no mask. */
static bool page_readable(uintptr_t page) {
    const int no_change = ~0;
    int error = errno;
    syscall(SYS_rt_sigprocmask, no_change, page + 8, NULL, (size_t)8);
    bool readable = errno != EFAULT;
    errno = error;
    return readable;
}

static bool readable(const char *from, uint64_t bytes) {
    uintptr_t page = (uintptr_t)from & ~(uintptr_t)(PAGE_BYTES - 1), end = (uintptr_t)from + bytes;
    bool all = true;
    for (; bytes != 0 && page < end && all; page += PAGE_BYTES)
        all = page_readable(page);
    return all;
}

/* Whether so many bytes at an offset are within the image's room. They need not be in memory. */
static bool fits(const struct view *image, uint64_t offset, uint64_t bytes) {
    return offset <= image->room && bytes <= image->room - offset;
}

/* Whether they can be read, too. */
static bool reaches(const struct view *image, uint64_t offset, uint64_t bytes) {
    return fits(image, offset, bytes) && (image->present || readable(image->at + offset, bytes));
}

/* A part of an image. */
static struct view part_of(const struct view *image, uint64_t offset, uint64_t bytes) {
    return (struct view){image->at + offset, bytes, image->present};
}

/* Copies bytes at an offset, which need not be aligned. */
static bool read_at(void *to, size_t bytes, const struct view *image, uint64_t offset) {
    if (!reaches(image, offset, bytes))
        return false;
    memcpy(to, image->at + offset, bytes);
    return true;
}

/* The length of a text up to its terminating zero, or of all of it. False if memory ends before that. */
static bool text_length(const struct view *text, uint64_t *length) {
    for (*length = 0; *length < text->room;) {
        uint64_t step = PAGE_BYTES - ((uintptr_t)(text->at + *length) & (PAGE_BYTES - 1));
        step = step < text->room - *length ? step : text->room - *length;
        if (!reaches(text, *length, step))
            return false;
        size_t characters = strnlen(text->at + *length, step);
        *length += characters;
        if (characters < step)
            return true;
    }
    return true;
}

/* --- cubin -------------------------------------------------------------------------------------------------------- */

#define SECTION_ALIGNMENT 512

/* Whether a name of at most `room` bytes begins with a text. */
static bool begins(const char *name, uint64_t room, const char *with) {
    size_t length = strlen(with);
    return room >= length && strncmp(name, with, length) == 0;
}

static void add_section(struct image_size *size, const char *name, uint64_t room, const Elf64_Shdr *section) {
    if (begins(name, room, ".nv.global") || begins(name, room, ".nv.constant")) {
        add_to(&size->data, section->sh_size);
        add_to(&size->data, larger(section->sh_addralign, SECTION_ALIGNMENT));
    } else if (begins(name, room, ".text.")) {
        add_to(&size->code, section->sh_size);
    }
}

/* Whether a section has bytes in the image. */
static bool holds_bytes(const Elf64_Shdr *section) {
    return section->sh_type != SHT_NOBITS && section->sh_type != SHT_NULL;
}

/* A cubin's symbols have this bit in st_other if they are managed variables, which the driver places outside of the
 * sections. */
#define SYMBOL_MANAGED 0x4

static void add_symbols(struct image_size *size, const struct view *image, const Elf64_Shdr *table) {
    uint64_t managed = 0;
    for (uint64_t at = 0; holds_bytes(table) && table->sh_size - at >= sizeof(Elf64_Sym); at += sizeof(Elf64_Sym)) {
        Elf64_Sym symbol;
        memcpy(&symbol, image->at + table->sh_offset + at, sizeof symbol);
        if (ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT || !(symbol.st_other & SYMBOL_MANAGED))
            continue;
        add_to(&managed, symbol.st_size);
        add_to(&managed, SECTION_ALIGNMENT);
    }
    if (managed != 0)
        add_to(&size->data, BLOCK_BYTES);
    add_to(&size->data, managed);
}

/* Compilers make no files of another class, and none with extended section numbers. */
static bool is_usual(const Elf64_Ehdr *header) {
    return header->e_ident[EI_CLASS] == ELFCLASS64 && header->e_shentsize == sizeof(Elf64_Shdr) &&
           header->e_shstrndx < header->e_shnum;
}

static struct image_size elf_size(const struct view *image) {
    struct image_size size = {0};
    Elf64_Ehdr header;
    Elf64_Shdr names, section;
    if (!read_at(&header, sizeof header, image, 0))
        return malformed;
    if (!is_usual(&header))
        return unknown_format;
    if (!reaches(image, header.e_phoff, (uint64_t)header.e_phnum * header.e_phentsize) ||
        !reaches(image, header.e_shoff, header.e_shnum * sizeof section) ||
        !read_at(&names, sizeof names, image, header.e_shoff + header.e_shstrndx * sizeof section) ||
        !reaches(image, names.sh_offset, names.sh_size))
        return malformed;
    for (unsigned i = 0; i < header.e_shnum; i++) {
        memcpy(&section, image->at + header.e_shoff + i * sizeof section, sizeof section);
        uint64_t room = section.sh_name < names.sh_size ? names.sh_size - section.sh_name : 0;
        const char *name = image->at + names.sh_offset + section.sh_name;
        add_section(&size, name, room, &section);
        size.hidden = size.hidden || room == 0;
        if (holds_bytes(&section) && !reaches(image, section.sh_offset, section.sh_size))
            return malformed;
        if (section.sh_type == SHT_SYMTAB || begins(name, room, ".symtab"))
            add_symbols(&size, image, &section);
    }
    return size;
}

/* --- PTX ---------------------------------------------------------------------------------------------------------- */

static struct image_size text_size(const struct view *text) {
    uint64_t length;
    return text_length(text, &length) ? image_ptx_size(text->at, length) : malformed;
}

/* --- fat binaries ------------------------------------------------------------------------------------------------- */

/* PTX without a terminating zero may continue behind the entry: the driver may ignore the entry's size. */
static struct image_size entry_size(const struct fatbin_entry *entry, const struct view *payload) {
    char magic[SELFMAG];
    if (entry->flags & FATBIN_COMPRESSED)
        return (struct image_size){.code = larger(entry->uncompressed, entry->payload), .hidden = true};
    if (fits(payload, 0, sizeof magic) && !read_at(magic, sizeof magic, payload, 0))
        return malformed;
    if (entry->kind == FATBIN_ELF && payload->room >= sizeof magic && memcmp(magic, ELFMAG, SELFMAG) == 0)
        return elf_size(payload);
    if (entry->kind != FATBIN_PTX)
        return (struct image_size){.code = entry->payload, .hidden = true};
    struct image_size size = text_size(payload);
    size.hidden = size.hidden || size.code == payload->room;
    return size;
}

/* An entry smaller than the known header ends the list, since the next entry cannot be found. */
static struct image_size fatbin_size(const struct view *image) {
    struct image_size size = {0};
    uint64_t beside_hidden = 0; /* the most bytes that are known of an entry that hides others */
    struct fatbin_header header;
    struct fatbin_entry entry;
    if (!read_at(&header, sizeof header, image, 0) || header.size < sizeof header ||
        !fits(image, header.size, header.contents))
        return malformed;
    struct view contents = part_of(image, header.size, header.contents);
    for (uint64_t at = 0; fits(&contents, at, sizeof entry); at += entry.size + entry.payload) {
        if (!read_at(&entry, sizeof entry, &contents, at))
            return malformed;
        if (entry.size < sizeof entry) {
            size.hidden = true;
            break;
        }
        if (!fits(&contents, at + entry.size, entry.payload))
            return malformed;
        struct view payload = part_of(&contents, at + entry.size, entry.payload);
        struct image_size one = entry_size(&entry, &payload);
        if (one.malformed)
            return malformed;
        size.code = larger(size.code, one.code);
        size.data = larger(size.data, one.data);
        size.hidden = size.hidden || one.hidden;
        beside_hidden = one.hidden ? larger(beside_hidden, one.data) : beside_hidden;
    }
    size.spare = size.hidden ? size.data - beside_hidden : 0;
    return size;
}

/* --- images ------------------------------------------------------------------------------------------------------- */

/* The first four bytes; 0 for a shorter text. No magic number contains a zero byte. */
static bool magic_of(const struct view *image, uint32_t *magic) {
    struct view first = part_of(image, 0, image->room < sizeof *magic ? image->room : sizeof *magic);
    uint64_t length;
    *magic = 0;
    if (!text_length(&first, &length))
        return false;
    if (length == sizeof *magic)
        memcpy(magic, image->at, sizeof *magic);
    return true;
}

static struct image_size bare_size(const struct view *image) {
    uint32_t magic;
    if ((image->room == 0 && !image->present) || !magic_of(image, &magic))
        return malformed;
    if (magic == FATBIN_MAGIC)
        return fatbin_size(image);
    if (memcmp(&magic, ELFMAG, sizeof magic) == 0)
        return elf_size(image);
    if (magic == 0 || magic == FATBIN_WRAPPER_MAGIC)
        return unknown_format;
    return text_size(image);
}

/* All memory that a program can have from an address on. */
static struct view memory_from(const void *address) {
    uintptr_t from = (uintptr_t)address;
    return (struct view){.at = address, .room = from < INT64_MAX ? INT64_MAX - from : 0};
}

/* A wrapper contains a pointer, which is valid only in memory. */
static struct image_size memory_size(const struct view *image) {
    struct fatbin_wrapper wrapper;
    uint32_t magic;
    if (!magic_of(image, &magic) || magic != FATBIN_WRAPPER_MAGIC)
        return bare_size(image);
    if (!read_at(&wrapper, sizeof wrapper, image, 0))
        return malformed;
    struct view wrapped = memory_from(wrapper.data);
    return bare_size(&wrapped);
}

/* Bounds sizes that exceed any GPU's memory, so that sums of them do not overflow. */
static struct image_size bounded(struct image_size size) {
    const uint64_t most = UINT64_C(1) << 52;
    size.code = size.code < most ? size.code : most;
    size.data = size.data < most ? size.data : most;
    size.spare = size.spare < most ? size.spare : most;
    return size;
}

struct image_size image_size(const void *image) {
    struct view memory = memory_from(image);
    return image != NULL ? bounded(memory_size(&memory)) : (struct image_size){0};
}

struct image_size image_contents_size(const void *contents, size_t length) {
    struct view file = {contents, length, .present = true};
    return bounded(bare_size(&file));
}

/* Read rather than mapped: a file that is truncated meanwhile ends no program. */
static struct image_size descriptor_size(int descriptor) {
    struct stat status;
    struct image_size size = unknown_format;
    if (!call_fstat(descriptor, &status) || !S_ISREG(status.st_mode) || status.st_size == 0)
        return size;
    size_t length = (size_t)status.st_size, at = 0;
    char *contents = mapped_new(length);
    for (ssize_t got = 1; contents != NULL && at < length && got > 0; at += got > 0 ? (size_t)got : 0)
        got = call_pread(descriptor, contents + at, length - at, (off_t)at);
    if (contents != NULL && at == length)
        size = image_contents_size(contents, length);
    mapped_free(contents, length);
    return size;
}

struct image_size image_file_size(const char *path) {
    struct image_size size = {0};
    int error = errno, descriptor = call_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor >= 0) {
        size = descriptor_size(descriptor);
        call_close(descriptor);
    }
    errno = error;
    return size;
}
