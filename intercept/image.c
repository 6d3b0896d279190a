/*
 * The formats, as far as sizes go. A cubin is an ELF file, whose sections .nv.global and .nv.global.init are variables; those of
 * shared and local memory take nothing when they are loaded. PTX is text (PTX ISA, "State Spaces"): .global and .const declare
 * variables. A fat binary is a header and entries of both, for several architectures, of which the driver takes one.
 */
#include "image.h"

#include "calls.h"
#include "charge.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FATBIN_WRAPPER_MAGIC 0x466243b1u
#define FATBIN_MAGIC 0xba55ed50u
#define FATBIN_PTX 1
#define FATBIN_ELF 2
#define FATBIN_COMPRESSED (0x2000u | 0x8000u)
#define SECTIONS_MAX 65536u

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

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

static void add(uint64_t *sum, uint64_t more) {
    if (__builtin_add_overflow(*sum, more, sum))
        *sum = UINT64_MAX;
}

/* --- cubin --------------------------------------------------------------------------------------------------------- */

#define SECTION_ALIGNMENT 512

static void add_section(struct image_size *size, const char *name, const Elf64_Shdr *section) {
    if (begins(name, ".nv.global") || begins(name, ".nv.constant")) {
        add(&size->data, section->sh_size);
        add(&size->data, SECTION_ALIGNMENT);
    } else if (begins(name, ".text.")) {
        add(&size->code, section->sh_size);
    }
}

static struct image_size elf_size(const char *image) {
    struct image_size size = {0};
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr) ||
        header.e_shstrndx >= header.e_shnum)
        return size;
    const Elf64_Shdr *sections = (const void *)(image + header.e_shoff);
    const char *names = image + sections[header.e_shstrndx].sh_offset;
    for (unsigned i = 0; i < header.e_shnum; i++)
        if (sections[i].sh_name < sections[header.e_shstrndx].sh_size)
            add_section(&size, names + sections[i].sh_name, &sections[i]);
    return size;
}

/* --- PTX ----------------------------------------------------------------------------------------------------------- */

/* Bytes of a type after its dot: b8, u32, f64, f16x2, bf16x2; 0 if it is none. References to textures and the like are 8. */
static uint64_t type_bytes(const char *type) {
    char *end;
    const char *digits = type + (begins(type, "bf") ? 2 : strchr("busf", *type) != NULL ? 1 : 0);
    if (begins(type, "texref") || begins(type, "surfref") || begins(type, "samplerref"))
        return 8;
    if (digits == type || *digits < '0' || *digits > '9')
        return 0;
    uint64_t bytes = strtoull(digits, &end, 10) / 8;
    return product(bytes ? bytes : 1, *end == 'x' ? strtoull(end + 1, NULL, 10) : 1);
}

/* What a declaration says before the names: ".align 16 .v4 .f32". */
struct declared {
    uint64_t bytes, vector, alignment;
};

static struct declared read_type(const char *from, const char *to) {
    struct declared declared = {1, 1, 1};
    for (const char *dot = from; dot < to; dot++) {
        if (*dot != '.')
            continue;
        uint64_t bytes = type_bytes(dot + 1);
        if (bytes != 0)
            declared.bytes = bytes;
        else if (dot[1] == 'v' && dot[2] >= '2' && dot[2] <= '8')
            declared.vector = (uint64_t)(dot[2] - '0');
        else if (begins(dot, ".align"))
            declared.alignment = strtoull(dot + strlen(".align"), NULL, 0);
    }
    return declared;
}

/* Elements of "name[4][16]"; of "name[] = {1, 2, 3}" at most as many as the initial values have characters. */
static uint64_t elements(const char *name, const char *end, const char *initial) {
    uint64_t count = 1;
    for (const char *bracket = name; bracket < end; bracket++) {
        if (*bracket != '[')
            continue;
        const char *digit = bracket + 1 + strspn(bracket + 1, " \t\r\n");
        count = product(count, *digit == ']' ? strcspn(initial, ";") + 1 : strtoull(digit, NULL, 0));
    }
    return count;
}

/* A module's variables may lie together or each by itself: large ones take whole blocks, small ones share some, with gaps. */
static void add_variable(struct image_size *size, const struct declared *declared, uint64_t count) {
    uint64_t bytes = product(product(declared->bytes, declared->vector), count);
    if (bytes >= UINT64_MAX / 4) {
        size->data = UINT64_MAX;
        return;
    }
    add(&size->data, bytes >= BLOCK_BYTES / 2 ? pages_to_bytes(pages_of(bytes)) : 2 * bytes);
    add(&size->data, declared->alignment);
}

/* ".global .align 4 .b8 a[8], b, c[] = {1, 2};": names follow the last word that begins with a dot. */
static const char *add_declaration(struct image_size *size, const char *from) {
    const char *end = from + strcspn(from, ";={"), *names = from;
    for (const char *dot = from; dot < end; dot++)
        if (*dot == '.')
            names = dot;
    struct declared declared = read_type(from, end);
    for (const char *name = names; name < end;) {
        size_t length = strcspn(name, ",;={");
        add_variable(size, &declared, elements(name, name + length, end));
        name += length + 1;
    }
    return end;
}

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void add_variables(struct image_size *size, const char *text, const char *space) {
    while ((text = strstr(text, space)) != NULL) {
        text += strlen(space);
        /* An instruction (ld.global.u32 ...) is none: a declaration's space is followed by white space. */
        if (is_space(*text))
            text = add_declaration(size, text);
    }
}

/* A copy without comments, which may hold anything. */
static void strip(char *to, const char *from, size_t length) {
    const char *end = from + length;
    while (from < end) {
        const char *close = NULL;
        if (from[0] == '/' && from[1] == '/')
            close = from + strcspn(from, "\n");
        else if (from[0] == '/' && from[1] == '*')
            close = (close = strstr(from + 2, "*/")) != NULL ? close + 2 : end;
        if (close != NULL)
            *to++ = ' ';
        else
            *to++ = *from;
        from = close != NULL ? close : from + 1;
    }
    *to = '\0';
}

static struct image_size ptx_size(const char *text) {
    struct image_size size = {.code = strlen(text)};
    int error = errno;
    size_t room = size.code + 1;
    char *copy = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = error;
    if (copy == MAP_FAILED)
        return (struct image_size){.code = size.code, .data = UINT64_MAX}; /* more than any limit */
    strip(copy, text, size.code);
    add_variables(&size, copy, ".global");
    add_variables(&size, copy, ".const");
    if (strstr(copy, ".managed") != NULL) /* these lie apart from the others */
        add(&size.data, BLOCK_BYTES);
    munmap(copy, room);
    return size;
}

/* --- fat binaries -------------------------------------------------------------------------------------------------- */

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static struct image_size entry_size(const struct fatbin_entry *entry) {
    const char *payload = (const char *)entry + entry->size;
    if (entry->flags & FATBIN_COMPRESSED)
        return (struct image_size){.code = entry->uncompressed, .hidden = true};
    if (entry->kind == FATBIN_ELF && memcmp(payload, ELFMAG, SELFMAG) == 0)
        return elf_size(payload);
    if (entry->kind == FATBIN_PTX && memchr(payload, '\0', entry->payload) != NULL)
        return ptx_size(payload);
    return (struct image_size){.code = entry->payload};
}

static struct image_size fatbin_size(const struct fatbin_header *header) {
    struct image_size size = {0};
    const char *at = (const char *)header + header->size, *end = at + header->contents;
    while ((size_t)(end - at) >= sizeof(struct fatbin_entry)) {
        const struct fatbin_entry *entry = (const void *)at;
        if (entry->size < sizeof *entry || entry->size > (size_t)(end - at) ||
            entry->payload > (size_t)(end - at) - entry->size)
            break;
        struct image_size one = entry_size(entry);
        size.code = larger(size.code, one.code);
        size.data = larger(size.data, one.data);
        size.hidden = size.hidden || one.hidden;
        at += entry->size + entry->payload;
    }
    return size;
}

struct image_size image_size(const void *image) {
    struct image_size none = {0};
    uint32_t magic;
    if (image == NULL)
        return none;
    if (((const char *)image)[0] != ELFMAG[0] && strnlen(image, sizeof magic) == sizeof magic) {
        /* Text, unless it is a fat binary. */
        memcpy(&magic, image, sizeof magic);
        if (magic != FATBIN_WRAPPER_MAGIC && magic != FATBIN_MAGIC)
            return ptx_size(image);
    }
    if (strnlen(image, 1) == 0)
        return none;
    memcpy(&magic, image, sizeof magic);
    if (magic == FATBIN_WRAPPER_MAGIC) {
        image = ((const struct fatbin_wrapper *)image)->data;
        memcpy(&magic, image, sizeof magic);
    }
    if (magic == FATBIN_MAGIC)
        return fatbin_size(image);
    return memcmp(&magic, ELFMAG, SELFMAG) == 0 ? elf_size(image) : none;
}

struct image_size image_file_size(const char *path) {
    struct image_size size = {0};
    int error = errno;
    int descriptor = path == NULL ? -1 : call_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    off_t length = descriptor < 0 ? -1 : lseek(descriptor, 0, SEEK_END);
    if (length > 0) {
        /* With a page more, so that text ends. */
        size_t room = (size_t)length + 1;
        char *copy = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (copy != MAP_FAILED) {
            if (call_pread(descriptor, copy, (size_t)length, 0) == length)
                size = image_size(copy);
            munmap(copy, room);
        }
    }
    if (descriptor >= 0)
        call_close(descriptor);
    errno = error;
    return size;
}
