#include "images.h"

#include <elf.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

#define MIB ((uint64_t)1 << 20)
#define BLOCK (2 * MIB)
#define FATBIN_MAGIC 0xba55ed50u
#define FATBIN_PTX 1
#define FATBIN_CUBIN 2
#define FATBIN_COMPRESSED 0x2000u

static uint64_t round_to(uint64_t bytes, uint64_t to) {
    return (bytes + to - 1) / to * to;
}

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

void program_free(struct program *program) {
    free(program->bytes);
    *program = (struct program){0};
}

/* ---- PTX ---- */

/* Text that grows. */
static bool add(struct program *program, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool add(struct program *program, const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    size_t length = (size_t)vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    char *grown = realloc(program->bytes, program->size + length + 1);
    if (grown == NULL)
        return false;
    memcpy(grown + program->size, line, length + 1);
    program->bytes = grown;
    program->size += length;
    return true;
}

struct type {
    const char *name;
    unsigned bytes;
};

static const struct type types[] = {{".b8", 1},  {".b8", 1}, {".u16", 2},      {".b32", 4},
                                    {".f64", 8}, {".s8", 1}, {".v4 .f32", 16}, {".v2 .u64", 16}};

/* Large ones come in blocks of their own, small ones share some. */
static uint64_t most_counted(uint64_t bytes) {
    return bytes >= MIB ? round_to(bytes, BLOCK) : 2 * bytes;
}

/* Counts a variable, and says where it begins among the others. */
static void count(struct program *program, uint64_t bytes, uint64_t alignment, bool managed) {
    uint64_t *end = managed ? &program->managed : &program->data;
    *end = round_to(*end, alignment) + bytes;
    program->counted += most_counted(bytes) + alignment;
}

static uint64_t variable_bytes(uint64_t *random, uint64_t most) {
    switch (random_below(random, 6)) {
    case 0: /* around what shares blocks and what does not */
        most = most < MIB + 64 ? most : MIB - 32 + random_below(random, 64);
        break;
    case 1:
        most = most < 64 ? most : 1 + random_below(random, 64);
        break;
    case 2: /* around whole blocks */
        most = most < 8 * BLOCK ? most : (1 + random_below(random, 7)) * BLOCK - 32 + random_below(random, 64);
        break;
    case 3:
        most = most < 4096 ? most : 1 + random_below(random, 4096);
        break;
    default:
        most = 1 + random_below(random, most);
    }
    return most;
}

/* An integer constant, in any of the forms that PTX has. */
static bool add_number(uint64_t *random, struct program *program, uint64_t number) {
    static const char *const forms[] = {"%llu", "%llu", "%lluU", "0x%llx", "0X%llXU", "0%llo", "0%lloU"};
    char binary[72] = "0b";
    unsigned form = (unsigned)random_below(random, sizeof forms / sizeof forms[0] + 1);
    if (form < sizeof forms / sizeof forms[0])
        return add(program, forms[form], (unsigned long long)number);
    for (unsigned bits = number != 0 ? 64 - (unsigned)__builtin_clzll(number) : 1, i = 0; i < bits; i++)
        binary[2 + i] = (char)('0' + (number >> (bits - 1 - i) & 1));
    return add(program, "%s", binary);
}

static bool add_variable(uint64_t *random, const struct program_wish *wish, unsigned index, struct program *program) {
    static const char *const spaces[] = {".global", ".visible .global", ".weak\t.global", ".visible .global"};
    const struct type *type = &types[random_below(random, sizeof types / sizeof types[0])];
    uint64_t elements = variable_bytes(random, wish->data_most) / type->bytes + 1;
    bool managed = wish->managed && random_once_in(random, 5), table = elements % 4 == 0;
    uint64_t alignment = type->bytes;
    const char *space = spaces[random_below(random, 4)];
    bool added = add(program, "%s ", space);
    if (managed)
        added = add(program, ".attribute(.managed) ");
    if (random_once_in(random, 2)) {
        alignment = larger(alignment, (uint64_t)1 << random_below(random, 5));
        added = add(program, ".align %llu ", (unsigned long long)alignment);
    }
    added = added && add(program, "%s %sv%u", type->name, wish->prefix, index);
    if (elements == 1 && random_once_in(random, 2))
        added = added && add(program, ";\n");
    else
        added = added && add(program, "[") && add_number(random, program, table ? elements / 4 : elements) &&
                add(program, table ? "][4];\n" : "];\n");
    count(program, elements * type->bytes, alignment, managed);
    if (index == 0)
        program->variable_size = elements * type->bytes;
    program->has_variable = true;
    return added;
}

/* One whose size is in its values. */
static bool add_values(uint64_t *random, const char *prefix, struct program *program) {
    unsigned values = 1 + (unsigned)random_below(random, 60);
    bool added = add(program, ".visible .const .align 4 .u32 %scoefficients[] = {0x10", prefix);
    for (unsigned i = 1; i < values && added; i++)
        added = add(program, ", %u", i);
    count(program, 4 * values, 4, false);
    program->counted += 4096; /* it may be taken for as many as it has characters */
    return added && add(program, "};\n");
}

static bool add_kernels(uint64_t *random, const char *prefix, struct program *program) {
    if (random_once_in(random, 3))
        program->local = 8 * (1 + random_below(random, random_once_in(random, 3) ? 2048 : 400));
    return add(program,
               ".visible .entry %sk0(.param .u64 p)\n{\n.reg .b32 %%r<2>;\nld.global.u32 %%r1, [p];\nret;\n}\n",
               prefix) &&
           add(program, ".visible .entry %sk1()\n{\n.local .align 8 .b8 __local_depot1[%llu];\nret;\n}\n", prefix,
               (unsigned long long)larger(program->local, 1));
}

bool program_ptx(uint64_t *random, const struct program_wish *wish, struct program *program) {
    *program = (struct program){.has_kernels = true, .local = 1};
    bool added = add(program, ".version 8.0\n.target sm_80\n.address_size 64\n");
    if (random_once_in(random, 4)) /* where the text is from */
        added = added && add(program, "# 1 \"/*.cu\n");
    unsigned variables = wish->data_most == 0 ? 0 : (unsigned)random_below(random, random_once_in(random, 4) ? 24 : 4);
    for (unsigned i = 0; i < variables && added; i++)
        added = add_variable(random, wish, i, program);
    if (random_once_in(random, 4))
        added = added && add_values(random, wish->prefix, program);
    added = added && add_kernels(random, wish->prefix, program);
    /* Now and then more text than a block holds. */
    uint64_t lines = random_once_in(random, 12) ? random_below(random, 6000) : random_below(random, 40);
    for (uint64_t i = 0; i < lines && added; i++)
        added = add(program, "// %0400u\n", (unsigned)i);
    if (!added)
        program_free(program);
    program->code = program->size;
    /* What is managed lies in blocks of its own. */
    program->counted = round_to(program->counted, BLOCK) + (program->managed != 0 ? BLOCK : 0);
    program->size++; /* and its zero */
    return added;
}

/* ---- Cubins: sections of sizes and nothing in them ---- */

enum { C_NONE, C_NAMES, C_GLOBAL, C_INIT, C_CONSTANT, C_K0, C_K1, C_SECTIONS };

struct cubin {
    Elf64_Ehdr header;
    char names[128];
    Elf64_Shdr sections[C_SECTIONS];
};

static void set_section(struct cubin *cubin, unsigned index, size_t *at, const char *name, uint32_t type,
                        uint64_t size) {
    cubin->sections[index] =
        (Elf64_Shdr){.sh_name = (Elf64_Word)*at, .sh_type = type, .sh_offset = sizeof *cubin, .sh_size = size};
    strcpy(cubin->names + *at, name);
    *at += strlen(name) + 1;
}

bool program_cubin(uint64_t *random, const struct program_wish *wish, struct program *program) {
    struct cubin *cubin = calloc(1, sizeof *cubin + 64);
    size_t names = 1;
    if (cubin == NULL)
        return false;
    uint64_t global = wish->data_most != 0 && random_once_in(random, 2) ? variable_bytes(random, wish->data_most) : 0;
    uint64_t init = wish->data_most != 0 && random_once_in(random, 3) ? variable_bytes(random, wish->data_most) : 0;
    uint64_t code = 1 + random_below(random, random_once_in(random, 6) ? 24 * MIB : 64 << 10);
    uint64_t constant = random_once_in(random, 4) ? 1 + random_below(random, 64 << 10) : 0;
    memcpy(cubin->header.e_ident, ELFMAG, SELFMAG);
    cubin->header.e_ident[EI_CLASS] = ELFCLASS64;
    cubin->header.e_ident[EI_DATA] = ELFDATA2LSB;
    cubin->header.e_ident[EI_VERSION] = EV_CURRENT;
    cubin->header.e_machine = 190;
    cubin->header.e_shoff = offsetof(struct cubin, sections);
    cubin->header.e_shentsize = sizeof(Elf64_Shdr);
    cubin->header.e_shnum = C_SECTIONS;
    cubin->header.e_shstrndx = C_NAMES;
    set_section(cubin, C_NAMES, &names, ".shstrtab", SHT_STRTAB, sizeof cubin->names);
    cubin->sections[C_NAMES].sh_offset = offsetof(struct cubin, names);
    set_section(cubin, C_GLOBAL, &names, ".nv.global", SHT_NOBITS, global);
    set_section(cubin, C_INIT, &names, ".nv.global.init", SHT_NOBITS, init);
    set_section(cubin, C_CONSTANT, &names, ".nv.constant3", SHT_NOBITS, constant);
    set_section(cubin, C_K0, &names, ".text.k0", SHT_NOBITS, code);
    set_section(cubin, C_K1, &names, ".text.k1", SHT_NOBITS, 512);
    *program = (struct program){.bytes = (char *)cubin,
                                .size = round_to(sizeof *cubin, 8),
                                .code = code + 512 + constant,
                                .has_kernels = true,
                                .local = 0};
    program->data = round_to(round_to(round_to(0, 256) + global, 256) + init, 256) + constant;
    program->counted = round_to(global + init + constant + 3 * 512, BLOCK);
    return true;
}

/* ---- Fat binaries ---- */

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

static char *put_entry(char *at, const struct program *part) {
    struct fatbin_entry entry = {.kind = part->bytes[0] == '.' ? FATBIN_PTX : FATBIN_CUBIN,
                                 .version = 0x101,
                                 .size = sizeof entry,
                                 .payload = round_to(part->size, 8),
                                 .major = 8};
    memcpy(at, &entry, sizeof entry);
    memcpy(at + sizeof entry, part->bytes, part->size);
    return at + sizeof entry + entry.payload;
}

bool program_fatbin(struct program *first, struct program *second, struct program *program) {
    struct fatbin_header header = {.magic = FATBIN_MAGIC, .version = 1, .size = sizeof header};
    size_t size =
        sizeof header + 2 * sizeof(struct fatbin_entry) + round_to(first->size, 8) + round_to(second->size, 8);
    char *bytes = calloc(1, size + 64);
    if (bytes != NULL) {
        header.contents = size - sizeof header;
        memcpy(bytes, &header, sizeof header);
        put_entry(put_entry(bytes + sizeof header, first), second);
        *program = round_to(second->size, 8) > round_to(first->size, 8) ? *second : *first;
        program->bytes = bytes;
        program->size = size;
        program->code = larger(first->code, second->code);
        program->counted = larger(first->counted, second->counted);
    }
    program_free(first);
    program_free(second);
    return bytes != NULL;
}

bool program_compressed(uint64_t code, struct program *program) {
    struct fatbin_header header = {
        .magic = FATBIN_MAGIC, .version = 1, .size = sizeof header, .contents = sizeof(struct fatbin_entry) + 64};
    struct fatbin_entry entry = {.kind = FATBIN_CUBIN,
                                 .version = 0x101,
                                 .size = sizeof entry,
                                 .payload = 64,
                                 .compressed = 60,
                                 .major = 8,
                                 .flags = FATBIN_COMPRESSED,
                                 .uncompressed = code};
    *program = (struct program){
        .bytes = calloc(1, 256), .size = sizeof header + sizeof entry + 64, .code = code, .has_kernels = true};
    if (program->bytes == NULL)
        return false;
    memcpy(program->bytes, &header, sizeof header);
    memcpy(program->bytes + sizeof header, &entry, sizeof entry);
    return true;
}
