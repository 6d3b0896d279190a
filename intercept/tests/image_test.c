/*
 * Tests the sizes of images: cubins, fat binaries, their wrappers and PTX, all generated here. Then every image
 * truncated at each length, and many with random bytes changed, each in memory that ends with the image, so that
 * reading beyond it is detected. The simulated driver must not take more for them than their computed size.
 *
 *   image_test [SEED]
 */
#include "../image/image.h"
#include "check.h"
#include "image_driver.h"

#include <elf.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define BLOCK (2 * MIB)
#define MOST (UINT64_C(1) << 52)
#define MUTATIONS 20000u
#define DEFAULT_SEED 1
#define RUN(test) checks_run(#test, test)

static uint64_t seed = DEFAULT_SEED;

static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* --- making images ------------------------------------------------------------------------------------------------ */

struct image {
    size_t length;
    char bytes[8192];
};

static void append(struct image *image, const void *bytes, size_t length) {
    if (length > sizeof image->bytes - image->length)
        abort();
    memcpy(image->bytes + image->length, bytes, length);
    image->length += length;
}

struct section {
    const char *name;
    uint64_t size, alignment;
};

/* Headers and names; the sections themselves are not there. */
static struct image cubin_of(const struct section *sections, unsigned count) {
    struct image image = {0};
    Elf64_Shdr headers[16] = {{0}};
    char names[512] = "";
    size_t names_length = 1;
    for (unsigned i = 0; i < count; i++) {
        headers[i + 2] = (Elf64_Shdr){.sh_name = (Elf64_Word)names_length,
                                      .sh_type = SHT_NOBITS,
                                      .sh_size = sections[i].size,
                                      .sh_addralign = sections[i].alignment};
        names_length += strlen(strcpy(names + names_length, sections[i].name)) + 1;
    }
    Elf64_Ehdr header = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
                         .e_machine = 190,
                         .e_shoff = sizeof header,
                         .e_shentsize = sizeof headers[0],
                         .e_shnum = (Elf64_Half)(count + 2),
                         .e_shstrndx = 1};
    headers[1] = (Elf64_Shdr){
        .sh_type = SHT_STRTAB, .sh_offset = sizeof header + (count + 2) * sizeof headers[0], .sh_size = names_length};
    append(&image, &header, sizeof header);
    append(&image, headers, (count + 2) * sizeof headers[0]);
    append(&image, names, names_length);
    return image;
}

#define MANAGED_BYTES 70000u

static struct image cubin(void) {
    static const struct section sections[] = {{".text.k0", 5000, 128},    {".nv.global", 3 * MIB, 256},
                                              {".nv.global.init", 77, 8}, {".nv.constant3", 1000, 4},
                                              {".nv.shared.k0", MIB, 4},  {".text.k1", 300, 128}};
    return cubin_of(sections, sizeof sections / sizeof sections[0]);
}

#define CUBIN_CODE 5300u
#define CUBIN_DATA (3 * MIB + 77 + 1000 + 3 * 512)

/* The same with a table of symbols: a variable in a section, and one that is managed. */
static struct image cubin_with_symbols(void) {
    static const struct section sections[] = {{".text.k0", 5000, 128}, {".nv.global", 4096, 256}, {".symtab", 0, 8}};
    struct image image = cubin_of(sections, sizeof sections / sizeof sections[0]);
    const Elf64_Sym symbols[] = {
        {0},
        {.st_name = 1, .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT), .st_shndx = 3, .st_size = 4000},
        {.st_name = 1,
         .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT),
         .st_other = 4,
         .st_shndx = 3,
         .st_size = MANAGED_BYTES}};
    Elf64_Shdr header;
    size_t at = sizeof(Elf64_Ehdr) + 4 * sizeof header;
    memcpy(&header, image.bytes + at, sizeof header);
    header.sh_type = SHT_SYMTAB;
    header.sh_link = 1;
    header.sh_offset = image.length;
    header.sh_size = sizeof symbols;
    memcpy(image.bytes + at, &header, sizeof header);
    append(&image, symbols, sizeof symbols);
    return image;
}

static struct image text(const char *ptx) {
    struct image image = {0};
    append(&image, ptx, strlen(ptx));
    return image;
}

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

enum { PTX = 1, CUBIN = 2, INTERMEDIATE = 16 };
enum { LZ4 = 0x2000, ZSTD = 0x8000 };

static struct image fatbin(void) {
    struct image image = {0};
    struct fatbin_header header = {.magic = 0xba55ed50u, .version = 1, .size = sizeof header};
    append(&image, &header, sizeof header);
    return image;
}

/* With a zero behind it, if it is text. */
static void add_entry(struct image *image, uint16_t kind, uint64_t flags, uint64_t uncompressed,
                      const struct image *payload) {
    struct fatbin_header header;
    struct fatbin_entry entry = {.kind = kind,
                                 .version = 0x101,
                                 .size = sizeof entry,
                                 .payload = payload->length + (kind == PTX),
                                 .flags = flags,
                                 .uncompressed = uncompressed};
    append(image, &entry, sizeof entry);
    append(image, payload->bytes, entry.payload);
    memcpy(&header, image->bytes, sizeof header);
    header.contents = image->length - sizeof header;
    memcpy(image->bytes, &header, sizeof header);
}

/* --- asking ------------------------------------------------------------------------------------------------------- */

/* The size of an image that lies in memory of just its length. */
static struct image_size size_of(const void *bytes, size_t length) {
    char *copy = malloc(length);
    if (copy == NULL && length != 0)
        abort();
    memcpy(copy, bytes, length);
    struct image_size size = image_contents_size(copy, length);
    free(copy);
    return size;
}

#define ROOM 65536               /* for an image */
#define BEHIND ((size_t)1 << 40) /* bytes behind it that are no memory, further than a damaged number often leads */

/* The size of an image in memory, which nobody says the end of, and behind which there is no more memory. */
static struct image_size size_in_memory(const void *bytes, size_t length) {
    static char *memory;
    if (memory == NULL)
        memory = mmap(NULL, ROOM + BEHIND, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, ROOM, PROT_READ | PROT_WRITE) != 0)
        abort();
    memcpy(memory + ROOM - length, bytes, length);
    return image_size(memory + ROOM - length);
}

static bool same(struct image_size one, struct image_size other) {
    return one.code == other.code && one.data == other.data && one.hidden == other.hidden &&
           one.malformed == other.malformed && one.spare == other.spare;
}

static bool is_binary(const struct image *image) {
    return image->length >= 4 &&
           (memcmp(image->bytes, ELFMAG, 4) == 0 || memcmp(image->bytes, "\x50\xed\x55\xba", 4) == 0);
}

/* The same of a file, and of memory whose end nobody says. */
static struct image_size size_in_all_ways(const struct image *image) {
    char path[] = "/tmp/tranche-test-image-XXXXXX";
    struct image_size size = size_of(image->bytes, image->length);
    int file = mkstemp(path);
    if (file < 0 || write(file, image->bytes, image->length) != (ssize_t)image->length)
        abort();
    struct image_size in_file = image_file_size(path);
    CHECK(image->length != 0 ? same(in_file, size) : in_file.hidden, "in a file");
    unlink(path);
    close(file);
    CHECK(same(size_in_memory(image->bytes, image->length + !is_binary(image)), size), "in memory");
    return size;
}

static void says(const struct image *image, uint64_t code, uint64_t data, bool hidden, const char *what) {
    struct image_size size = size_in_all_ways(image);
    CHECK(size.code == code && size.data == data && size.hidden == hidden && !size.malformed,
          "%s: %llu + %llu, hidden %d, malformed %d", what, (unsigned long long)size.code,
          (unsigned long long)size.data, size.hidden, size.malformed);
}

/* What PTX declares, of which nothing is hidden. */
static void declares(const char *ptx, uint64_t data) {
    struct image image = text(ptx);
    says(&image, strlen(ptx), data, false, ptx);
}

static void hides(const char *ptx) {
    struct image image = text(ptx);
    struct image_size size = size_in_all_ways(&image);
    CHECK(size.hidden && !size.malformed, "%s", ptx);
}

/* What the driver does not get, since it may take more than can be read. */
static void refuses(const char *ptx) {
    struct image image = text(ptx);
    CHECK(size_in_all_ways(&image).malformed, "%s", ptx);
}

/* --- cubins ------------------------------------------------------------------------------------------------------- */

static void test_cubin(void) {
    struct image image = cubin();
    says(&image, CUBIN_CODE, CUBIN_DATA, false, "a cubin");
    const struct section aligned = {".nv.global", 10, 4096};
    image = cubin_of(&aligned, 1);
    says(&image, 0, 10 + 4096, false, "a section with an alignment");
    image = cubin_with_symbols();
    says(&image, 5000, 4096 + 512 + BLOCK + MANAGED_BYTES + 512, false, "what is managed");
    const struct section huge[] = {{".nv.global", UINT64_MAX, 1}, {".nv.global.init", UINT64_MAX, 1}};
    image = cubin_of(huge, 2);
    says(&image, 0, MOST, false, "more than all memory");
}

/* A number that leads out of the image, or one that only says that the file is of a kind that we do not know. */
struct broken {
    size_t offset;
    uint64_t value;
    size_t bytes;
    bool malformed;
};

static void breaks(struct image image, const struct broken *broken, size_t number) {
    memcpy(image.bytes + broken->offset, &broken->value, broken->bytes);
    struct image_size size = size_in_all_ways(&image);
    CHECK(size.malformed == broken->malformed && size.hidden == !broken->malformed, "%zu: hidden %d, malformed %d",
          number, size.hidden, size.malformed);
}

#define SECTION(index, field) (sizeof(Elf64_Ehdr) + (index) * sizeof(Elf64_Shdr) + offsetof(Elf64_Shdr, field))

static void test_broken_cubins(void) {
    static const struct broken broken[] = {{offsetof(Elf64_Ehdr, e_shoff), UINT64_MAX, 8, true},
                                           {offsetof(Elf64_Ehdr, e_shoff), UINT64_MAX - 63, 8, true},
                                           {offsetof(Elf64_Ehdr, e_shoff), 8000, 8, true},
                                           {offsetof(Elf64_Ehdr, e_shnum), UINT16_MAX, 2, true},
                                           {offsetof(Elf64_Ehdr, e_phoff), UINT64_MAX, 8, true},
                                           {offsetof(Elf64_Ehdr, e_shnum), 0, 2, false},
                                           {offsetof(Elf64_Ehdr, e_shstrndx), UINT16_MAX, 2, false},
                                           {offsetof(Elf64_Ehdr, e_shentsize), 1, 2, false},
                                           {EI_CLASS, ELFCLASS32, 1, false},
                                           {SECTION(1, sh_offset), UINT64_MAX, 8, true},
                                           {SECTION(1, sh_size), UINT64_MAX, 8, true},
                                           {SECTION(2, sh_type), SHT_PROGBITS, 4, true},
                                           {SECTION(2, sh_name), UINT32_MAX, 4, false}};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++)
        breaks(cubin(), &broken[i], i);
}

/* --- fat binaries ------------------------------------------------------------------------------------------------- */

static void test_fatbin(void) {
    struct image image = fatbin(), part = cubin();
    says(&image, 0, 0, false, "an empty one");
    add_entry(&image, CUBIN, 0, 0, &part);
    says(&image, CUBIN_CODE, CUBIN_DATA, false, "a cubin");
    part = text(".version 8.0\n.global .b8 large[16777216];\n");
    add_entry(&image, PTX, 0, 0, &part);
    says(&image, CUBIN_CODE, 16 * MIB + 1, false, "the more of each");
    add_entry(&image, CUBIN, LZ4, 700000, &part);
    says(&image, 700000, 16 * MIB + 1, true, "compressed");
    add_entry(&image, PTX, ZSTD, 900000, &part);
    says(&image, 900000, 16 * MIB + 1, true, "compressed otherwise");
    add_entry(&image, CUBIN, LZ4, 0, &part);
    says(&image, 900000, 16 * MIB + 1, true, "compressed, and no word of its size");
}

/* What the driver takes for the variables of a hidden entry, it does not take for another one's. */
static void test_spare(void) {
    struct image image = fatbin(), part = cubin();
    CHECK(size_in_all_ways(&part).spare == 0, "nothing is hidden");
    add_entry(&image, CUBIN, 0, 0, &part);
    CHECK(size_in_all_ways(&image).spare == 0, "nothing is hidden");
    add_entry(&image, PTX, LZ4, 700000, &part);
    CHECK(size_in_all_ways(&image).spare == CUBIN_DATA, "all of the other one's");
    part = text(".version 8.0\n.global .b8 known[1000000];\n.func f() { .global .unheard_of x; }\n");
    uint64_t known = size_in_all_ways(&part).data;
    CHECK(known > 0 && size_in_all_ways(&part).spare == 0, "hidden beside what is known: %llu",
          (unsigned long long)known);
    add_entry(&image, PTX, 0, 0, &part);
    CHECK(size_in_all_ways(&image).spare == CUBIN_DATA - known, "but for what is known of the hidden one");
}

static void test_fatbin_of_unknown_parts(void) {
    struct image image = fatbin(), part = cubin();
    add_entry(&image, INTERMEDIATE, 0, 0, &part);
    says(&image, part.length, 0, true, "what we do not know");
    image = fatbin();
    part = text("not ELF");
    add_entry(&image, CUBIN, 0, 0, &part);
    says(&image, part.length, 0, true, "no cubin");
}

#define ENTRY(field) (sizeof(struct fatbin_header) + offsetof(struct fatbin_entry, field))

static void test_broken_fatbins(void) {
    static const struct broken broken[] = {{offsetof(struct fatbin_header, size), 1, 2, true},
                                           {offsetof(struct fatbin_header, size), UINT16_MAX, 2, true},
                                           {offsetof(struct fatbin_header, contents), UINT64_MAX, 8, true},
                                           {offsetof(struct fatbin_header, contents), UINT64_MAX - 15, 8, true},
                                           {ENTRY(size), 0, 4, false},
                                           {ENTRY(size), UINT32_MAX, 4, true},
                                           {ENTRY(payload), UINT64_MAX, 8, true},
                                           {ENTRY(payload), UINT64_MAX - 63, 8, true},
                                           {ENTRY(kind), INTERMEDIATE, 2, false}};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        struct image image = fatbin(), part = cubin();
        add_entry(&image, CUBIN, 0, 0, &part);
        breaks(image, &broken[i], i);
    }
}

/* Memory ends at once, or in the midst of what an image says that it has. */
static void test_memory_that_ends(void) {
    struct image image = fatbin(), part = cubin();
    add_entry(&image, CUBIN, 0, 0, &part);
    for (size_t length = 1; length < image.length; length++)
        CHECK(size_in_memory(image.bytes, length).malformed, "%zu bytes of a fat binary", length);
    for (size_t length = 1; length < part.length; length++)
        CHECK(size_in_memory(part.bytes, length).malformed, "%zu bytes of a cubin", length);
    CHECK(size_in_memory(".version 8.0", 12).malformed, "a text without an end");
    CHECK(image_size((const void *)8).malformed, "where there is no memory");
    CHECK(image_size((const void *)UINTPTR_MAX).malformed, "at the end of all addresses");
}

/* A wrapper is found in memory only: in a file its pointer leads nowhere. */
static void test_wrapper(void) {
    struct image image = fatbin(), part = cubin();
    add_entry(&image, CUBIN, 0, 0, &part);
    struct {
        uint32_t magic, version;
        const void *data;
        void *unused;
    } wrapper = {0x466243b1u, 1, image.bytes, NULL};
    CHECK(same(image_size(&wrapper), (struct image_size){.code = CUBIN_CODE, .data = CUBIN_DATA}), "in memory");
    struct image_size size = size_of(&wrapper, sizeof wrapper);
    CHECK(size.hidden && size.code == 0 && size.data == 0, "in a file");
    wrapper.data = NULL;
    CHECK(image_size(&wrapper).malformed, "around nothing");
    CHECK(size_of(&wrapper, 5).hidden, "a part of one");
    CHECK(same(image_size(NULL), (struct image_size){0}), "no image");
}

/* --- PTX ---------------------------------------------------------------------------------------------------------- */

static void test_ptx_declarations(void) {
    declares(".version 8.0\n.entry k() { ret; }\n", 0);
    declares(".global .b8 a[100];", 201);
    declares(".visible .global .align 16 .b8 a[100];", 216);
    declares(".const .f64 a;", 17);
    declares(".global .v4 .f32 a[10];", 321);
    declares(".global .b16 a, b[4], c = 7;", 2 * (2 + 8 + 2) + 3);
    declares(".global .u32 a[10][20];", 1601);
    declares(".global .u32 a<8>;", 65);
    declares(".global .b8 a[3145728];", 4 * MIB + 1);
    declares(".global .b8 a[1048575];", 2 * 1048575 + 1);
    declares(".global .texref a; .global .surfref b; .global .samplerref c;", 3 * 17);
    declares(".const[3] .b32 a[2];", 17);
    declares(".global .attribute(.managed) .b8 a[2];", BLOCK + 5);
    declares(".global .attribute(.unified(1, 2)) .b8 a[2];", 5);
    declares(".extern .global .b8 a[];", 3);
    declares(".global .b8 a[0];", 1);
    declares(".global .f16x2 a;", 9);
}

static void test_ptx_spaces_and_comments(void) {
    declares(".global\v.align\f4\r\n.b8\ta\v[\f8\r]\n;", 20);
    declares("// .global .b8 a[100];\n", 0);
    declares("/* .global .b8 a[100]; */", 0);
    declares("/* .global .b8 a[100];", 0);
    declares(".global /* of */ .b8 // bytes\n a[/**/8];", 17);
    declares(".file 1 \".global .b8 a[100];\"\n", 0);
    declares(".file 1 \"/*\"\n.global .b8 a[8];\n.file 2 \"*/\"\n", 17);
    declares("/* \" */ .global .b8 a[8]; // \"\n", 17);
    declares(".globally .constant", 0);
    declares("# 1 \"/* a.cu\"\n.global .b8 a[8];\n#line 2 \"it's\"\n", 17);
    declares("#\n.global\n  # 1 \"\n.b8\n#file /*\na[8]; # 2 .global .b8 b[8];", 17);
    refuses("#define N 8\n");
    refuses(" # include \"a.ptx\"\n");
}

static void test_ptx_numbers(void) {
    static const char *const numbers[] = {"15", "0xf", "0XF", "0x0000000000000000000F", "017", "0b1111", "0B01111"};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        for (int is_unsigned = 0; is_unsigned < 2; is_unsigned++) {
            char ptx[128];
            snprintf(ptx, sizeof ptx, ".global .align 0x8U .b8 a[%s%s], b<0b1U>;", numbers[i], is_unsigned ? "U" : "");
            declares(ptx, 2 * 15 + 8 + 2 + 8);
        }
    declares(".global .b8 a[0x40000000];", (UINT64_C(1) << 30) + 1);
    declares(".global .b8 a[0];", 1);
}

/* Compilers write no other expressions. */
static void test_ptx_expressions(void) {
    static const char *const expressions[] = {"2+3*4",     "(4)",  "1 << 4",       "-3 + 10", "~0 & 12",
                                              "1 ? 5 : 9", "018",  "(.u64) 4 * 2", "size",    "1.5",
                                              "0x",        "0xfg", "0b2",          "0b",      "10u",
                                              "10UU",      "0xU",  "12a",          "0x1.8p3", "0x11111111111111111"};
    for (size_t i = 0; i < sizeof expressions / sizeof expressions[0]; i++) {
        char ptx[128];
        snprintf(ptx, sizeof ptx, ".global .b8 a[%s];", expressions[i]);
        refuses(ptx);
    }
}

/* As many elements as there are values, of which there are no more than characters. */
static void test_ptx_values_give_the_size(void) {
    static const char *const texts[] = {".global .u32 a[] = {1, 2, 3, 4};", ".global .u32 a[]={1,2,3,4};",
                                        ".global .u32 a[][2] = {{1, 2}, {3, 4}};",
                                        ".global .b8 a[] = \"sixteen of them\";"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct image_size size = size_of(texts[i], strlen(texts[i]));
        CHECK(!size.hidden && size.data >= 2 * 16 && size.data < 1000, "%s: %llu", texts[i],
              (unsigned long long)size.data);
    }
    declares(".global .u32 a[4] = {1, 2, 3, 4}, b = {5};", 2 * (16 + 4) + 2);
}

static void test_ptx_instructions_declare_nothing(void) {
    declares("ld.global.u32 %r1, [p]; st.relaxed.gpu.global.u32 [p], %r1; atom.global.add.u32 %r1, [p], 1;", 0);
    declares("cvta.to.global.u64 %rd1, %rd2; prefetch.global.L2 [p]; ld.const.u32 %r1, [p];", 0);
    declares("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [a], [b], 128;",
             0);
    declares(".entry k(.param .u64 .ptr .global .align 8 p, .param .u64 .ptr .const q) { ret; }", 0);
}

static void test_ptx_that_is_not_understood(void) {
    refuses(".global .b8 a[-1];");
    refuses(".global .b8 a[18446744073709551616];");
    refuses(".global .unheard a[1];");
    refuses(".global .b8 a[1]");
    refuses(".global .b8");
    refuses(".global");
    refuses(".global .b8 1;");
    refuses(".global .attribute(.managed .b8 a;");
    refuses(".func f() { ret; }\n.global .unheard a[1];");
    hides(".func f() { unheard.global.u32 %r1, [p]; }");
    struct image_size size = size_of(".global .b64 a[9223372036854775807];", 36);
    CHECK(size.data == MOST && !size.hidden, "more than all memory: %llu", (unsigned long long)size.data);
    size = size_of(".global .b8 a[2147483647][2147483647][2147483647];", 50);
    CHECK(size.data == MOST, "a product that wraps: %llu", (unsigned long long)size.data);
}

/* --- every length, and any bytes ---------------------------------------------------------------------------------- */

#define SAMPLES 8

static void make_samples(struct image samples[SAMPLES]) {
    samples[0] = cubin();
    samples[1] = text(".version 8.0\n.visible .global .align 8 .b8 a[96], b<4>;\n/* \"x\" */ .const .v2 .f32 c[] = "
                      "{1.0, 2.0};\n.global .attribute(.managed) .u32 d[16][2] = {0}; // e\n.entry k(.param .u64 .ptr "
                      ".global p) { ld.global.u32 %r, [p]; }\n");
    samples[2] = fatbin();
    add_entry(&samples[2], CUBIN, 0, 0, &samples[0]);
    add_entry(&samples[2], PTX, 0, 0, &samples[1]);
    add_entry(&samples[2], CUBIN, LZ4, 5000, &samples[1]);
    samples[3] = fatbin();
    add_entry(&samples[3], PTX, ZSTD, 5000, &samples[1]);
    add_entry(&samples[3], PTX, 0, 0, &samples[1]);
    samples[4] = text(".global .b8 a[160];.global .b8 b[] = \"text\";");
    samples[5] =
        text(".version 8.0\n.extern .global .b8 x[99];.visible .global .align 16 .v4 .f32 a[64], b, c<4>;.global "
             ".b16 d[]={1,2,3};\n.global .b8 e[8388608];.const .u32 f[16][17];.weak .global .texref t;");
    samples[6] = cubin_with_symbols();
    samples[7] = fatbin();
    add_entry(&samples[7], CUBIN, 0, 0, &samples[6]);
    add_entry(&samples[7], INTERMEDIATE, 0, 0, &samples[1]);
    add_entry(&samples[7], PTX, 0, 0, &samples[5]);
}

/* Of what has headers nothing is overlooked without a word. */
static void test_truncations(void) {
    static struct image samples[SAMPLES];
    make_samples(samples);
    for (unsigned i = 0; i < SAMPLES; i++)
        for (size_t length = 0; length < samples[i].length; length++) {
            struct image_size size = size_of(samples[i].bytes, length);
            if (is_binary(&samples[i]) && length >= 4 && !size.malformed)
                CHECK(false, "image %u with %zu bytes of %zu is said to be whole", i, length, samples[i].length);
            if (size.code > MOST || size.data > MOST)
                CHECK(false, "image %u with %zu bytes", i, length);
        }
    CHECK(true, "done");
}

/* Changes a number somewhere: to one at a border, to another size in the image, or by little. */
static void change_number(uint64_t *random, struct image *image) {
    static const uint64_t borders[] = {0, 1, 0x7f, 0xff, 0x7fff, 0xffff, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX};
    size_t bytes = (size_t)1 << next_random(random) % 4;
    size_t at = next_random(random) % image->length;
    uint64_t number = 0;
    bytes = bytes < image->length - at ? bytes : image->length - at;
    memcpy(&number, image->bytes + at, bytes);
    switch (next_random(random) % 5) {
    case 0:
        number = borders[next_random(random) % (sizeof borders / sizeof borders[0])] - next_random(random) % 3;
        break;
    case 1:
        number += next_random(random) % 33 - 16;
        break;
    case 2:
        number = image->length - at + next_random(random) % 17 - 8;
        break;
    case 3:
        number ^= UINT64_C(1) << next_random(random) % (8 * bytes);
        break;
    default:
        number = next_random(random);
    }
    memcpy(image->bytes + at, &number, bytes);
}

/* Copies a piece over another, or into between. */
static void change_piece(uint64_t *random, struct image *image) {
    size_t from = next_random(random) % image->length, to = next_random(random) % image->length;
    size_t most = image->length - (from > to ? from : to);
    memmove(image->bytes + to, image->bytes + from, 1 + next_random(random) % most);
}

/* A character that means something in PTX. */
static void change_character(uint64_t *random, struct image *image) {
    static const char characters[] = ".,;[](){}<>=\"/*+-?:!~%&|^0129xXbBU_ \n\v\f\t";
    image->bytes[next_random(random) % image->length] = characters[next_random(random) % sizeof characters];
}

static void flip_bit(uint64_t *random, struct image *image) {
    image->bytes[next_random(random) % image->length] ^= (char)(1 << next_random(random) % 8);
}

static void cut(struct image *image, size_t bytes) {
    image->length -= bytes;
    memset(image->bytes + image->length, 0, bytes);
}

static void mutate(uint64_t *random, struct image *image) {
    for (uint64_t times = 1 + next_random(random) % 6; times > 0; times--) {
        uint64_t way = next_random(random) % 8;
        if (way < 3 && is_binary(image))
            change_number(random, image);
        else if (way < 4)
            flip_bit(random, image);
        else if (way < 6)
            change_character(random, image);
        else if (way == 6)
            change_piece(random, image);
        else if (image->length > 1)
            cut(image, next_random(random) % (next_random(random) % 2 ? image->length : 8 % image->length + 1));
    }
}

/* Nobody overlooks what the driver takes, in a copy of just the image's length. True if the driver loads it. */
static bool driver_agrees(const struct image *image, struct image_size size, unsigned mutation) {
    uint64_t taken = 0;
    char *copy = calloc(1, image->length + !is_binary(image));
    if (copy == NULL)
        abort();
    memcpy(copy, image->bytes, image->length);
    bool loads = !size.malformed && image_driver_takes(copy, &taken);
    if (loads && !size.hidden && taken > size.code + size.data)
        CHECK(false, "mutation %u of seed %llu: the driver takes %llu of %llu + %llu: %.*s", mutation,
              (unsigned long long)seed, (unsigned long long)taken, (unsigned long long)size.code,
              (unsigned long long)size.data, is_binary(image) ? 0 : (int)image->length, image->bytes);
    free(copy);
    return loads;
}

static void test_mutations(void) {
    static struct image samples[SAMPLES];
    make_samples(samples);
    uint64_t random = seed;
    unsigned known = 0, malformed = 0, loaded = 0;
    for (unsigned i = 0; i < MUTATIONS; i++) {
        struct image image = samples[next_random(&random) % SAMPLES];
        mutate(&random, &image);
        struct image_size size = size_of(image.bytes, image.length);
        if (size.code > MOST || size.data > MOST)
            CHECK(false, "mutation %u of seed %llu", i, (unsigned long long)seed);
        struct image_size memory = size_in_memory(image.bytes, image.length + !is_binary(&image));
        /* In memory an image may say that it has more than it makes use of. */
        if (!same(memory, size) && (memory.malformed || !size.malformed))
            CHECK(false, "mutation %u of seed %llu: %d%d in memory, %d%d in a file", i, (unsigned long long)seed,
                  memory.hidden, memory.malformed, size.hidden, size.malformed);
        loaded += driver_agrees(&image, size, i);
        known += !size.hidden && !size.malformed;
        malformed += size.malformed;
    }
    printf("image_test: %u known, %u malformed, %u loaded of %u\n", known, malformed, loaded, MUTATIONS);
    CHECK(known > MUTATIONS / 50 && malformed > MUTATIONS / 50 && loaded > MUTATIONS / 50 &&
              loaded < MUTATIONS - MUTATIONS / 50,
          "too few of a kind");
}

int main(int argc, char **argv) {
    if (argc > 1)
        seed = strtoull(argv[1], NULL, 0);
    printf("image_test: seed %llu\n", (unsigned long long)seed);
    checks_start();
    RUN(test_cubin);
    RUN(test_broken_cubins);
    RUN(test_fatbin);
    RUN(test_spare);
    RUN(test_fatbin_of_unknown_parts);
    RUN(test_broken_fatbins);
    RUN(test_memory_that_ends);
    RUN(test_wrapper);
    RUN(test_ptx_declarations);
    RUN(test_ptx_spaces_and_comments);
    RUN(test_ptx_numbers);
    RUN(test_ptx_expressions);
    RUN(test_ptx_values_give_the_size);
    RUN(test_ptx_instructions_declare_nothing);
    RUN(test_ptx_that_is_not_understood);
    RUN(test_truncations);
    RUN(test_mutations);
    return checks_report();
}
