/*
 * Cubins: ELF files. The code of kernel NAME is in .text.NAME; variables are symbols in .nv.global (no contents),
 * .nv.global.init and .nv.constant3; what a thread of a kernel needs of local memory stands in .nv.info, and the kernel's
 * parameters in .nv.info.NAME.
 */
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/memory/heap.h"
#include "image.h"

#define SECTION_ALIGNMENT 256
#define MANAGED 0x4 /* in a symbol's st_other */
#define TEXTURE 10  /* types of symbols */
#define SURFACE 12
#define INFO_SIZED 0x04
#define INFO_FRAME_SIZE 0x11
#define INFO_PARAMETER 0x17
#define INFO_PARAMETER_BYTES 12
#define PARAMETER_SIZE_SHIFT 18
#define INFO ".nv.info"

/* An image may lie at any address. */
typedef Elf64_Ehdr file_header __attribute__((aligned(1)));
typedef Elf64_Shdr section_header __attribute__((aligned(1)));
typedef Elf64_Sym symbol_entry __attribute__((aligned(1)));

struct cubin {
    const char *bytes;
    uint64_t size; /* as far as can be told */
    const section_header *sections;
    unsigned count;
    const section_header *names;
};

/* Whether a section has contents, which lie in the file. */
static bool has_contents(const struct cubin *cubin, const section_header *section) {
    return section->sh_type != SHT_NOBITS && section->sh_type != SHT_NULL && section->sh_offset <= cubin->size &&
           section->sh_size <= cubin->size - section->sh_offset;
}

/* A string of a table, "" where it is none. */
static const char *string_at(const struct cubin *cubin, const section_header *table, uint64_t offset) {
    const char *strings = cubin->bytes + table->sh_offset;

    if (!has_contents(cubin, table) || offset >= table->sh_size ||
        memchr(strings + offset, '\0', table->sh_size - offset) == NULL)
        return "";
    return strings + offset;
}

static const char *name_of(const struct cubin *cubin, const section_header *section) {
    return string_at(cubin, cubin->names, section->sh_name);
}

static const section_header *find_section(const struct cubin *cubin, const char *name) {
    for (unsigned i = 0; i < cubin->count; i++) {
        if (strcmp(name_of(cubin, &cubin->sections[i]), name) == 0)
            return &cubin->sections[i];
    }
    return NULL;
}

static bool open_cubin(const void *data, struct cubin *cubin) {
    const file_header *elf = data;
    uint64_t end = elf->e_phoff + (uint64_t)elf->e_phnum * elf->e_phentsize;

    if (elf->e_ident[EI_CLASS] != ELFCLASS64 || elf->e_shentsize != sizeof(section_header) || elf->e_shnum == 0 ||
        elf->e_shstrndx >= elf->e_shnum || elf->e_shoff >= (uint64_t)1 << 40 || end >= (uint64_t)1 << 40)
        return false;
    *cubin = (struct cubin){.bytes = data, .count = elf->e_shnum};
    cubin->sections = (const void *)(cubin->bytes + elf->e_shoff);
    cubin->names = &cubin->sections[elf->e_shstrndx];
    cubin->size = elf->e_shoff + (uint64_t)elf->e_shnum * elf->e_shentsize;
    if (end > cubin->size)
        cubin->size = end;
    return true;
}

static bool begins(const char *name, const char *with) {
    return strncmp(name, with, strlen(with)) == 0;
}

static bool holds_variables(const char *name) {
    return strcmp(name, ".nv.global") == 0 || strcmp(name, ".nv.global.init") == 0 ||
           strcmp(name, ".nv.constant3") == 0;
}

/* Where each section's variables begin among the image's data; UINT64_MAX for a section that has none. */
static CUresult read_sections(const struct cubin *cubin, struct image *image, uint64_t *begin) {
    for (unsigned i = 0; i < cubin->count; i++) {
        const section_header *section = &cubin->sections[i];
        const char *name = name_of(cubin, section);

        begin[i] = UINT64_MAX;
        REQUIRE(section->sh_size < (uint64_t)1 << 40, CUDA_ERROR_INVALID_IMAGE);
        if (begins(name, ".text.")) {
            image->code_bytes += section->sh_size;
            TRY(image_add_kernel(image, name + 6, strlen(name + 6), 0, 0));
        } else if (holds_variables(name)) {
            begin[i] = round_up(image->data_bytes, SECTION_ALIGNMENT);
            image->data_bytes = begin[i] + section->sh_size;
        } else if (begins(name, ".nv.constant")) {
            image->code_bytes += section->sh_size;
        }
    }
    return CUDA_SUCCESS;
}

/* A symbol's value is its offset in its section. */
static bool is_in_section(const section_header *section, const symbol_entry *symbol) {
    return symbol->st_value <= section->sh_size && symbol->st_size <= section->sh_size - symbol->st_value;
}

static CUresult read_symbol(const struct cubin *cubin, const symbol_entry *symbol, const char *name,
                            const uint64_t *begin, struct image *image) {
    struct image_variable variable = {.size = symbol->st_size, .alignment = 1};
    unsigned type = ELF64_ST_TYPE(symbol->st_info);

    if ((type == TEXTURE || type == SURFACE) && *name != '\0') {
        variable =
            (struct image_variable){.kind = type == TEXTURE ? IMAGE_TEXTURE : IMAGE_SURFACE, .offset = UINT64_MAX};
        return image_add_variable(image, name, strlen(name), variable);
    }
    if (type != STT_OBJECT || *name == '\0' || symbol->st_size == 0 || symbol->st_shndx >= cubin->count ||
        begin[symbol->st_shndx] == UINT64_MAX)
        return CUDA_SUCCESS;
    variable.managed = (symbol->st_other & MANAGED) != 0;
    REQUIRE(variable.managed || is_in_section(&cubin->sections[symbol->st_shndx], symbol), CUDA_ERROR_INVALID_IMAGE);
    variable.offset = variable.managed ? UINT64_MAX : begin[symbol->st_shndx] + symbol->st_value;
    if (variable.managed)
        variable.alignment = SECTION_ALIGNMENT;
    return image_add_variable(image, name, strlen(name), variable);
}

struct symbols {
    const symbol_entry *first;
    uint64_t count;
    const section_header *names;
};

static struct symbols find_symbols(const struct cubin *cubin) {
    const section_header *table = find_section(cubin, ".symtab");

    if (table == NULL || !has_contents(cubin, table) || table->sh_link >= cubin->count)
        return (struct symbols){0};
    return (struct symbols){(const void *)(cubin->bytes + table->sh_offset), table->sh_size / sizeof(symbol_entry),
                            &cubin->sections[table->sh_link]};
}

/* Entries of .nv.info: a format, an attribute, and two bytes, which with INFO_SIZED say how many more there are. */
typedef CUresult info_fn(void *arg, uint8_t attribute, const uint8_t *value, uint16_t size);

static CUresult each_info(const struct cubin *cubin, const section_header *info, info_fn *fn, void *arg) {
    const uint8_t *at, *end;

    if (info == NULL || !has_contents(cubin, info))
        return CUDA_SUCCESS;
    at = (const uint8_t *)cubin->bytes + info->sh_offset;
    for (end = at + info->sh_size; end - at >= 4;) {
        uint16_t size = at[0] == INFO_SIZED ? (uint16_t)(at[2] | at[3] << 8) : 0;

        if (size > end - at - 4)
            break;
        TRY(fn(arg, at[1], at + 4, size));
        at += 4 + size;
    }
    return CUDA_SUCCESS;
}

static struct image_kernel *find_kernel(struct image *image, const char *name) {
    for (unsigned i = 0; i < image->kernel_count; i++) {
        if (strcmp(image->kernels[i].name, name) == 0)
            return &image->kernels[i];
    }
    return NULL;
}

struct frame_sizes {
    const struct cubin *cubin;
    struct symbols symbols;
    struct image *image;
};

static CUresult read_frame_size(void *arg, uint8_t attribute, const uint8_t *value, uint16_t size) {
    const struct frame_sizes *f = arg;
    uint32_t words[2]; /* the kernel's symbol, bytes */
    struct image_kernel *kernel;

    if (attribute != INFO_FRAME_SIZE || size != sizeof(words))
        return CUDA_SUCCESS;
    memcpy(words, value, sizeof(words));
    if (words[0] >= f->symbols.count)
        return CUDA_SUCCESS;
    kernel = find_kernel(f->image, string_at(f->cubin, f->symbols.names, f->symbols.first[words[0]].st_name));
    if (kernel != NULL)
        kernel->local_bytes = words[1];
    return CUDA_SUCCESS;
}

/* Four bytes of no interest, the parameter's number, its offset, and four bytes whose upper 14 bits are its size. */
static CUresult read_parameter(void *kernel, uint8_t attribute, const uint8_t *value, uint16_t size) {
    uint16_t place[2];
    uint32_t bits;

    if (attribute != INFO_PARAMETER || size != INFO_PARAMETER_BYTES)
        return CUDA_SUCCESS;
    memcpy(place, value + 4, sizeof(place));
    memcpy(&bits, value + 8, sizeof(bits));
    return image_set_parameter(kernel, place[0], (struct image_parameter){place[1], bits >> PARAMETER_SIZE_SHIFT});
}

/* What is told of all kernels together, and of each in a section of its own. */
static CUresult read_infos(const struct cubin *cubin, struct symbols symbols, struct image *image) {
    struct frame_sizes frames = {cubin, symbols, image};

    TRY(each_info(cubin, find_section(cubin, INFO), read_frame_size, &frames));
    for (unsigned i = 0; i < cubin->count; i++) {
        const char *name = name_of(cubin, &cubin->sections[i]);
        struct image_kernel *kernel = begins(name, INFO ".") ? find_kernel(image, name + strlen(INFO ".")) : NULL;

        if (kernel != NULL)
            TRY(each_info(cubin, &cubin->sections[i], read_parameter, kernel));
    }
    return CUDA_SUCCESS;
}

CUresult image_read_cubin(const void *elf, struct image *image) {
    struct symbols symbols;
    struct cubin cubin;
    uint64_t *begin;
    CUresult ret;

    REQUIRE(open_cubin(elf, &cubin), CUDA_ERROR_INVALID_IMAGE);
    begin = calloc(cubin.count, sizeof(*begin));
    REQUIRE(begin != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    ret = read_sections(&cubin, image, begin);
    symbols = find_symbols(&cubin);
    for (uint64_t i = 0; i < symbols.count && ret == CUDA_SUCCESS; i++)
        ret = read_symbol(&cubin, &symbols.first[i], string_at(&cubin, symbols.names, symbols.first[i].st_name), begin,
                          image);
    if (ret == CUDA_SUCCESS)
        ret = read_infos(&cubin, symbols, image);
    free(begin);
    return ret;
}

/* ---- Writing one ---- */

enum { S_NONE, S_NAMES, S_STRINGS, S_SYMBOLS, S_INFO, S_GLOBAL, S_CODE, S_FIRST_KERNEL };

struct writer {
    char *bytes;
    size_t used, room;
    bool failed;
};

/* Appends zeros, if there are no data. The offset of what was appended, for what it is worth after a failure. */
static size_t put(struct writer *writer, const void *data, size_t size) {
    size_t at = writer->used;

    if (writer->room - writer->used < size) {
        size_t room = 2 * writer->room + size + 4096;
        char *grown = realloc(writer->bytes, room);

        if (grown == NULL) {
            writer->failed = true;
            return 0;
        }
        writer->bytes = grown;
        writer->room = room;
    }
    if (data != NULL)
        memcpy(writer->bytes + at, data, size);
    else
        memset(writer->bytes + at, 0, size);
    writer->used += size;
    return at;
}

struct cubin_parts {
    struct writer names, strings, symbols, info, parameters, sections, file;
};

static void add_section(struct cubin_parts *p, const char *prefix, const char *name, Elf64_Shdr section) {
    section.sh_name = (Elf64_Word)put(&p->names, prefix, strlen(prefix));
    put(&p->names, name, strlen(name) + 1);
    put(&p->sections, &section, sizeof(section));
}

static void add_symbol(struct cubin_parts *p, const char *name, Elf64_Sym symbol) {
    symbol.st_name = (Elf64_Word)put(&p->strings, name, strlen(name) + 1);
    put(&p->symbols, &symbol, sizeof(symbol));
}

static void add_frame_size(struct cubin_parts *p, uint32_t symbol, uint32_t bytes) {
    const uint8_t head[4] = {INFO_SIZED, INFO_FRAME_SIZE, 8, 0};
    uint32_t value[2] = {symbol, bytes};

    put(&p->info, head, sizeof(head));
    put(&p->info, value, sizeof(value));
}

static void add_parameters(struct cubin_parts *p, const struct image_kernel *kernel) {
    const uint8_t head[4] = {INFO_SIZED, INFO_PARAMETER, INFO_PARAMETER_BYTES, 0};

    for (unsigned i = 0; i < kernel->parameter_count; i++) {
        const struct image_parameter *parameter = &kernel->parameters[i];
        const uint16_t place[2] = {(uint16_t)i, (uint16_t)parameter->offset};
        const uint32_t bits = (uint32_t)parameter->size << PARAMETER_SIZE_SHIFT;

        put(&p->parameters, head, sizeof(head));
        put(&p->parameters, NULL, sizeof(uint32_t));
        put(&p->parameters, place, sizeof(place));
        put(&p->parameters, &bits, sizeof(bits));
    }
}

static void describe(struct cubin_parts *p, const struct image *image) {
    put(&p->names, "", 1);
    put(&p->strings, "", 1);
    put(&p->symbols, NULL, sizeof(Elf64_Sym));
    for (unsigned i = 0; i < image->kernel_count; i++) {
        add_symbol(p, image->kernels[i].name,
                   (Elf64_Sym){.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
                               .st_shndx = (Elf64_Section)(S_FIRST_KERNEL + i)});
        add_frame_size(p, i + 1, (uint32_t)image->kernels[i].local_bytes);
    }
    for (unsigned i = 0; i < image->variable_count; i++) {
        const struct image_variable *v = &image->variables[i];
        unsigned char type = v->kind == IMAGE_TEXTURE ? TEXTURE : v->kind == IMAGE_SURFACE ? SURFACE : STT_OBJECT;

        add_symbol(p, v->name,
                   (Elf64_Sym){.st_info = ELF64_ST_INFO(STB_GLOBAL, type),
                               .st_other = v->managed ? MANAGED : 0,
                               .st_shndx = S_GLOBAL,
                               .st_value = v->managed ? 0 : v->offset,
                               .st_size = v->size});
    }
}

static void add_sections(struct cubin_parts *p, const struct image *image) {
    add_section(p, "", "", (Elf64_Shdr){0});
    add_section(p, ".shstrtab", "", (Elf64_Shdr){.sh_type = SHT_STRTAB});
    add_section(p, ".strtab", "", (Elf64_Shdr){.sh_type = SHT_STRTAB, .sh_size = p->strings.used});
    add_section(p, ".symtab", "",
                (Elf64_Shdr){.sh_type = SHT_SYMTAB, .sh_size = p->symbols.used, .sh_link = S_STRINGS});
    add_section(p, INFO, "", (Elf64_Shdr){.sh_type = SHT_LOPROC, .sh_size = p->info.used});
    add_section(p, ".nv.global", "", (Elf64_Shdr){.sh_type = SHT_NOBITS, .sh_size = image->data_bytes});
    add_section(p, ".nv.constant2", "", (Elf64_Shdr){.sh_type = SHT_NOBITS, .sh_size = image->code_bytes});
    for (unsigned i = 0; i < image->kernel_count; i++)
        add_section(p, ".text.", image->kernels[i].name, (Elf64_Shdr){.sh_type = SHT_NOBITS});
    for (unsigned i = 0; i < image->kernel_count; i++) {
        size_t begin = p->parameters.used;

        add_parameters(p, &image->kernels[i]);
        add_section(p, INFO ".", image->kernels[i].name,
                    (Elf64_Shdr){.sh_type = SHT_LOPROC, .sh_offset = begin, .sh_size = p->parameters.used - begin});
    }
}

/* The sections of parameters lie where all parameters lie; each knows its offset among them. */
static void place_parameters(struct cubin_parts *p, Elf64_Shdr *sections, unsigned count) {
    size_t begin = put(&p->file, p->parameters.bytes, p->parameters.used);

    for (unsigned i = S_FIRST_KERNEL + (count - S_FIRST_KERNEL) / 2; i < count; i++)
        sections[i].sh_offset += begin;
}

static bool assemble(struct cubin_parts *p, Elf64_Ehdr header) {
    Elf64_Shdr *sections = (void *)p->sections.bytes;

    if (p->names.failed || p->strings.failed || p->symbols.failed || p->info.failed || p->parameters.failed ||
        p->sections.failed)
        return false;
    put(&p->file, &header, sizeof(header));
    sections[S_SYMBOLS].sh_offset = put(&p->file, p->symbols.bytes, p->symbols.used);
    sections[S_INFO].sh_offset = put(&p->file, p->info.bytes, p->info.used);
    place_parameters(p, sections, header.e_shnum);
    sections[S_STRINGS].sh_offset = put(&p->file, p->strings.bytes, p->strings.used);
    sections[S_NAMES].sh_offset = put(&p->file, p->names.bytes, p->names.used);
    sections[S_NAMES].sh_size = p->names.used;
    put(&p->file, NULL, (8 - p->file.used % 8) % 8);
    header.e_shoff = put(&p->file, sections, p->sections.used);
    if (p->file.failed)
        return false;
    memcpy(p->file.bytes, &header, sizeof(header));
    return true;
}

/* The code has no contents: nobody here runs it. All of it is said to be in one section; kernels' own are empty. */
CUresult image_write_cubin(const struct image *image, void **cubin, size_t *size) {
    Elf64_Ehdr header = {.e_machine = 190, .e_shentsize = sizeof(Elf64_Shdr), .e_shstrndx = S_NAMES};
    struct cubin_parts p = {0};
    bool good;

    REQUIRE(image->kernel_count < (SHN_LORESERVE - S_FIRST_KERNEL) / 2, CUDA_ERROR_INVALID_IMAGE);
    memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_ident[EI_VERSION] = EV_CURRENT;
    header.e_shnum = (Elf64_Half)(S_FIRST_KERNEL + 2 * image->kernel_count);
    describe(&p, image);
    add_sections(&p, image);
    good = assemble(&p, header);
    free(p.names.bytes);
    free(p.strings.bytes);
    free(p.symbols.bytes);
    free(p.info.bytes);
    free(p.parameters.bytes);
    free(p.sections.bytes);
    if (!good)
        free(p.file.bytes);
    REQUIRE(good, CUDA_ERROR_OUT_OF_MEMORY);
    *cubin = p.file.bytes;
    *size = p.file.used;
    return CUDA_SUCCESS;
}
