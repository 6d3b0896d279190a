/* What images say of themselves, when they are loaded, and the linker. */
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

#define HEAD ".version 8.0\n.target sm_90\n.address_size 64\n"

static const char ptx[] =
    HEAD "// .global .b8 comment[9999999];\n"
         "# 1 \"/*.cu\n"
         "/* .global .b8 another[9999999]; */\n"
         ".extern .global .align 4 .b8 elsewhere[9999999];\n"
         ".visible .global .align 16 .v4 .f32 vectors[1024];\n"
         ".global .align 8 .u64 table[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};\n"
         ".global .b16 counted[] = {1, 2, 3};\n"
         ".const .align 4 .f32 factor = 0f3F800000;\n"
         ".visible .global .align 4 .b8 big[4194304];\n"
         ".visible .global .attribute(.managed) .align 8 .b8 both[3145728];\n"
         ".func (.param .u32 r) helper(.param .u32 a)\n{\n .local .b8 not_a_kernels[64];\n ret;\n}\n"
         ".visible .entry plain(.param .u64 p)\n{\n .reg .u32 x;\n ld.global.u32 x, [vectors];\n"
         " { .shared .align 4 .b8 tile[256]; }\n ret;\n}\n"
         ".visible .entry deep(.param .u64 p, .param .align 8 .b8 q[24])\n.maxntid 128, 1, 1\n{\n"
         " .local .align 16 .b8 depot[8192];\n st.local.u32 [depot], 1;\n ret;\n}\n";

static uint64_t taken(void) {
    return look("test").used[0] - GPU0_CONTEXT;
}

static uint64_t size_of(CUmodule module, const char *name) {
    CUdeviceptr address = 0;
    size_t bytes = 0;

    OK(cuModuleGetGlobal_v2(&address, &bytes, module, name));
    CHECK(address != 0);
    return bytes;
}

static void ptx_says_what_it_declares(void) {
    CUdeviceptr address, managed;
    CUfunction function;
    CUmodule module;
    size_t bytes;
    unsigned count;
    int value;

    context_on(0);
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunctionCount(&count, module));
    CHECK_INT(count, 2);
    CHECK_INT(taken(), 0);
    CHECK_INT(size_of(module, "vectors"), 16384);
    CHECK_INT(size_of(module, "table"), 64);
    CHECK_INT(size_of(module, "counted"), 6);
    CHECK_INT(size_of(module, "factor"), 4);
    CHECK_INT(size_of(module, "big"), 4 * MIB);
    CHECK_INT(taken(), 6 * MIB); /* all but the managed ones */
    CHECK_INT(cuModuleGetGlobal_v2(&address, &bytes, module, "elsewhere"), CUDA_ERROR_NOT_FOUND);
    CHECK_INT(cuModuleGetGlobal_v2(&address, &bytes, module, "comment"), CUDA_ERROR_NOT_FOUND);
    CHECK_INT(cuModuleGetGlobal_v2(&address, &bytes, module, "tile"), CUDA_ERROR_NOT_FOUND);
    OK(cuModuleGetGlobal_v2(&managed, &bytes, module, "both"));
    CHECK_INT(bytes, 3 * MIB);
    *(char *)(uintptr_t)managed = 1;
    OK(cuMemsetD8_v2(managed, 0, bytes));
    CHECK_INT(taken(), 10 * MIB);
    CHECK_INT(cuModuleGetFunction(&function, module, "helper"), CUDA_ERROR_NOT_FOUND);
    OK(cuModuleGetFunction(&function, module, "plain"));
    OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function));
    CHECK_INT(value, 256);
    OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function));
    CHECK_INT(value, 0);
    OK(cuModuleGetFunction(&function, module, "deep"));
    OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function));
    CHECK_INT(value, 8192);
    CHECK_INT(cuMemFree_v2(managed), CUDA_ERROR_INVALID_VALUE);
    OK(cuModuleUnload(module));
    CHECK_INT(taken(), 0);
}

static void eager_modules_take_memory_at_once(void) {
    CUmoduleLoadingMode mode;
    CUdeviceptr filler;
    CUcontext context;
    CUlibrary library;
    CUmodule module;

    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    context_on(0);
    OK(cuModuleGetLoadingMode(&mode));
    CHECK_INT(mode, CU_MODULE_EAGER_LOADING);
    OK(cuModuleLoadData(&module, ptx));
    CHECK_INT(taken(), 6 * MIB);
    OK(cuModuleUnload(module));
    /* A library goes into all contexts, those to come included. */
    OK(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    CHECK_INT(taken(), 6 * MIB);
    OK(cuCtxCreate_v2(&context, 0, 0));
    CHECK_INT(taken(), 12 * MIB + GPU0_CONTEXT);
    OK(cuLibraryUnload(library));
    CHECK_INT(taken(), GPU0_CONTEXT);
    OK(cuMemAlloc_v2(&filler, GPU0_BYTES - 2 * GPU0_CONTEXT - 4 * MIB));
    CHECK_INT(cuModuleLoadData(&module, ptx), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(taken(), GPU0_BYTES - GPU0_CONTEXT - 4 * MIB);
}

static void lazy_modules_take_memory_when_used(void) {
    CUfunctionLoadingState state;
    CUmoduleLoadingMode mode;
    CUfunction functions[2];
    CUkernel kernels[3] = {0};
    CUlibrary library;
    CUmodule module;
    unsigned count;
    int value;

    context_on(0);
    OK(cuModuleGetLoadingMode(&mode));
    CHECK_INT(mode, CU_MODULE_LAZY_LOADING);
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleEnumerateFunctions(functions, 2, module));
    OK(cuFuncIsLoaded(&state, functions[1]));
    CHECK_INT(state, CU_FUNCTION_LOADING_STATE_UNLOADED);
    CHECK_INT(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, functions[1]),
              CUDA_ERROR_FUNCTION_NOT_LOADED);
    CHECK_INT(taken(), 0);
    OK(cuFuncLoad(functions[1]));
    OK(cuFuncIsLoaded(&state, functions[1]));
    CHECK_INT(state, CU_FUNCTION_LOADING_STATE_LOADED);
    CHECK_INT(taken(), 6 * MIB);
    OK(cuModuleUnload(module));
    OK(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernelCount(&count, library));
    CHECK_INT(count, 2);
    OK(cuLibraryEnumerateKernels(kernels, 3, library));
    CHECK(kernels[1] != NULL && kernels[2] == NULL);
    CHECK_INT(taken(), 0);
    OK(cuLaunchKernel((CUfunction)kernels[0], 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    CHECK_INT(taken(), 6 * MIB + 4 * MIB); /* a launch brings the managed variables, too */
    OK(cuLaunchKernel((CUfunction)kernels[0], 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    CHECK_INT(taken(), 10 * MIB);
    OK(cuLibraryUnload(library));
    CHECK_INT(taken(), 0);
}

static void no_launch_without_room_for_the_module(void) {
    CUdeviceptr filler;
    CUlibrary library;
    CUkernel kernel;

    context_on(0);
    OK(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "plain"));
    OK(cuMemAlloc_v2(&filler, GPU0_BYTES - GPU0_CONTEXT - 4 * MIB));
    CHECK_INT(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(look("test").sum[0].launches, 0);
    OK(cuMemFree_v2(filler));
    OK(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

static void managed_variables(void) {
    CUdeviceptr address = 0;
    CUlibrary library;
    size_t bytes;

    context_on(0);
    OK(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetManaged(&address, &bytes, library, "both"));
    CHECK_INT(bytes, 3 * MIB);
    ((char *)(uintptr_t)address)[bytes - 1] = 1;
    CHECK_INT(cuLibraryGetManaged(&address, &bytes, library, "big"), CUDA_ERROR_NOT_FOUND);
    OK(cuLibraryGetGlobal(&address, &bytes, library, "big"));
}

/* A cubin with variables of 3 MiB without contents, 1 MiB with, and 20 MiB of code. */
static void cubins_say_it_in_sections(void) {
    static const char names[] = "\0.shstrtab\0.text.mul\0.nv.global\0.nv.global.init\0.symtab\0.strtab\0.nv.info\0"
                                ".nv.constant0.mul\0.nv.info.mul";
    struct {
        Elf64_Ehdr header;
        char names[128];
        char strings[32];
        Elf64_Sym symbols[4];
        uint8_t info[16];
        uint8_t parameters[32];
        Elf64_Shdr sections[10];
    } cubin = {0};
    CUfunction function;
    CUmodule module;
    size_t offset, bytes;
    int value;

    memcpy(cubin.header.e_ident, ELFMAG, SELFMAG);
    cubin.header.e_ident[EI_CLASS] = ELFCLASS64;
    cubin.header.e_shoff = (Elf64_Off)((char *)cubin.sections - (char *)&cubin);
    cubin.header.e_shentsize = sizeof(Elf64_Shdr);
    cubin.header.e_shnum = 10;
    cubin.header.e_shstrndx = 1;
    memcpy(cubin.names, names, sizeof(names));
    memcpy(cubin.strings, "\0mul\0zeros\0ones", 16);
    cubin.symbols[1] = (Elf64_Sym){.st_name = 1, .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), .st_shndx = 2};
    cubin.symbols[2] =
        (Elf64_Sym){.st_name = 5, .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT), .st_shndx = 3, .st_size = 3 * MIB};
    cubin.symbols[3] = (Elf64_Sym){
        .st_name = 11, .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT), .st_shndx = 4, .st_value = 8, .st_size = 100};
    /* The last parameter comes first: number 1 of 24 bytes at 8, number 0 of 8 bytes at 0. */
    memcpy(cubin.parameters,
           "\4\x17\14\0\0\0\0\0\1\0\10\0\0\xf0\x61\0"
           "\4\x17\14\0\0\0\0\0\0\0\0\0\0\xf0\x21\0",
           32);
    memcpy(cubin.info, "\4\x11\10\0\1\0\0\0\0\20\0\0", 12); /* symbol 1, 4096 bytes */
    cubin.sections[1] = (Elf64_Shdr){.sh_name = 1,
                                     .sh_type = SHT_STRTAB,
                                     .sh_offset = (Elf64_Off)(cubin.names - (char *)&cubin),
                                     .sh_size = sizeof(names)};
    cubin.sections[2] = (Elf64_Shdr){.sh_name = 11, .sh_type = SHT_NOBITS, .sh_size = 20 * MIB};
    cubin.sections[3] = (Elf64_Shdr){.sh_name = 21, .sh_type = SHT_NOBITS, .sh_size = 3 * MIB};
    cubin.sections[4] = (Elf64_Shdr){.sh_name = 32, .sh_type = SHT_NOBITS, .sh_size = MIB};
    cubin.sections[5] = (Elf64_Shdr){.sh_name = 48,
                                     .sh_type = SHT_SYMTAB,
                                     .sh_link = 6,
                                     .sh_offset = (Elf64_Off)((char *)cubin.symbols - (char *)&cubin),
                                     .sh_size = sizeof(cubin.symbols)};
    cubin.sections[6] = (Elf64_Shdr){.sh_name = 56,
                                     .sh_type = SHT_STRTAB,
                                     .sh_offset = (Elf64_Off)(cubin.strings - (char *)&cubin),
                                     .sh_size = sizeof(cubin.strings)};
    cubin.sections[7] = (Elf64_Shdr){.sh_name = 64,
                                     .sh_type = SHT_LOPROC,
                                     .sh_offset = (Elf64_Off)((char *)cubin.info - (char *)&cubin),
                                     .sh_size = 12};
    cubin.sections[8] = (Elf64_Shdr){.sh_name = 73, .sh_type = SHT_NOBITS, .sh_size = MIB};
    cubin.sections[9] = (Elf64_Shdr){.sh_name = 91,
                                     .sh_type = SHT_LOPROC,
                                     .sh_offset = (Elf64_Off)((char *)cubin.parameters - (char *)&cubin),
                                     .sh_size = sizeof(cubin.parameters)};

    context_on(0);
    OK(cuModuleLoadData(&module, &cubin));
    OK(cuModuleGetFunction(&function, module, "mul"));
    CHECK_INT(taken(), 4 * MIB + 6 * MIB); /* 4 MiB of variables, 21 of code and constants, of which 16 are included */
    CHECK_INT(size_of(module, "zeros"), 3 * MIB);
    CHECK_INT(size_of(module, "ones"), 100);
    OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function));
    CHECK_INT(value, 4096);
    for (size_t i = 0; i < 2; i++) {
        OK(cuFuncGetParamInfo(function, i, &offset, &bytes));
        CHECK_INT(offset, i == 0 ? 0 : 8);
        CHECK_INT(bytes, i == 0 ? 8 : 24);
    }
    CHECK_INT(cuFuncGetParamInfo(function, 2, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
    OK(cuModuleUnload(module));
    CHECK_INT(taken(), 0);
    cubin.header.e_shstrndx = 10;
    CHECK_INT(cuModuleLoadData(&module, &cubin), CUDA_ERROR_INVALID_IMAGE);
}

static const char parameters_ptx[] = HEAD
    ".extern .func declared(.param .b32 a);\n"
    ".visible .entry many(\n .param .u8 many_0,\n .param .u64 .ptr .global .align 1 many_1,\n"
    " .param .align 16 .b8 many_2[20],\n .param .u16 many_3, .param .f64 many_4\n)\n.maxntid 128, 1, 1\n{\n ret;\n}\n"
    ".visible .entry none()\n{\n ret;\n}\n";

static void many_has_its_parameters(CUfunction function) {
    static const size_t want[][2] = {{0, 1}, {8, 8}, {16, 20}, {36, 2}, {40, 8}};
    size_t offset = 99, size = 99;

    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        OK(cuFuncGetParamInfo(function, i, &offset, &size));
        CHECK_INT(offset, want[i][0]);
        CHECK_INT(size, want[i][1]);
    }
    CHECK_INT(cuFuncGetParamInfo(function, 5, &offset, &size), CUDA_ERROR_INVALID_VALUE);
    OK(cuFuncGetParamInfo(function, 1, &offset, NULL));
    CHECK_INT(offset, 8);
    CHECK_INT(cuFuncGetParamInfo(function, 0, NULL, &size), CUDA_ERROR_INVALID_VALUE);
}

static void kernels_have_parameters(void) {
    CUfunction function;
    CUlibrary library;
    CUmodule module;
    CUkernel kernel;
    size_t offset, size;

    CHECK_INT(cuFuncGetParamInfo(NULL, 0, &offset, NULL), CUDA_ERROR_NOT_INITIALIZED);
    context_on(0);
    OK(cuModuleLoadData(&module, parameters_ptx));
    OK(cuModuleGetFunction(&function, module, "many"));
    many_has_its_parameters(function);
    OK(cuModuleGetFunction(&function, module, "none"));
    CHECK_INT(cuFuncGetParamInfo(function, 0, &offset, &size), CUDA_ERROR_INVALID_VALUE);
    OK(cuLibraryLoadData(&library, parameters_ptx, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "many"));
    OK(cuKernelGetParamInfo(kernel, 2, &offset, &size));
    CHECK_INT(offset, 16);
    CHECK_INT(size, 20);
    CHECK_INT(cuKernelGetParamInfo(kernel, 5, &offset, &size), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuKernelGetParamInfo((CUkernel)function, 0, &offset, &size), CUDA_ERROR_INVALID_HANDLE);
    OK(cuKernelGetFunction(&function, kernel));
    many_has_its_parameters(function);
    CHECK_INT(cuModuleLoadData(&module, HEAD ".visible .entry bad(.param .u64)\n{\n ret;\n}\n"),
              CUDA_ERROR_INVALID_PTX);
}

static void linked_kernels_have_parameters(void) {
    CUlinkState link;
    CUfunction function;
    CUmodule module;
    void *cubin;
    size_t size, offset;

    context_on(0);
    OK(cuLinkCreate_v2(0, NULL, NULL, &link));
    OK(cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, (void *)(uintptr_t)ptx, sizeof(ptx), "a", 0, NULL, NULL));
    OK(cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, (void *)(uintptr_t)parameters_ptx, sizeof(parameters_ptx), "b", 0, NULL,
                        NULL));
    OK(cuLinkComplete(link, &cubin, &size));
    OK(cuModuleLoadData(&module, cubin));
    OK(cuLinkDestroy(link));
    OK(cuModuleGetFunction(&function, module, "many"));
    many_has_its_parameters(function);
    OK(cuModuleGetFunction(&function, module, "deep"));
    OK(cuFuncGetParamInfo(function, 1, &offset, &size));
    CHECK_INT(offset, 8);
    CHECK_INT(size, 24);
}

struct fat {
    struct {
        uint32_t magic;
        uint16_t version, header_bytes;
        uint64_t content_bytes;
    } header;
    struct {
        uint16_t kind, version;
        uint32_t header_bytes;
        uint64_t content_bytes;
        uint32_t words[8];
        uint64_t zero, uncompressed_bytes;
    } first;
    char first_contents[256];
    char rest[8192];
};

static void fat_binaries_hold_several(void) {
    static struct fat fat = {.header = {0xba55ed50, 1, 16, sizeof(fat) - 16},
                             .first = {.kind = 1, .header_bytes = 64, .content_bytes = 256},
                             .first_contents = HEAD ".visible .entry small()\n{\nret;\n}\n"};
    const uint64_t payload = sizeof(fat.rest) - 64;
    size_t bytes;
    CUfunction function;
    CUmodule module;

    _Static_assert(sizeof(fat.first) == 64, "an entry's header has 64 bytes");
    memcpy(fat.rest, &fat.first, sizeof(fat.first));
    memcpy(fat.rest + 8, &payload, sizeof(payload));
    memcpy(fat.rest + 64, ptx, sizeof(ptx));
    context_on(0);
    OK(cuModuleLoadData(&module, &fat));
    CHECK_INT(cuModuleGetFunction(&function, module, "small"), CUDA_ERROR_NOT_FOUND);
    OK(cuModuleGetFunction(&function, module, "deep"));
    CHECK_INT(taken(), 6 * MIB);
    OK(cuModuleUnload(module));
    /* Of a compressed one, only how large it becomes is known. */
    fat.first.words[6] = 0x2000;
    fat.first.uncompressed_bytes = 26 * MIB;
    OK(cuModuleLoadData(&module, &fat));
    OK(cuModuleGetFunction(&function, module, "anything"));
    CHECK_INT(taken(), 10 * MIB);
    CHECK_INT(cuFuncGetParamInfo(function, 0, &bytes, NULL), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuModuleUnload(module));
}

/* As an LZ4 block, of two sequences: all but the last line with forty spaces after it, of which 39 are a match, and a newline. */
static uint32_t pack(const char *text, unsigned char *packed) {
    const size_t literals = strlen(text) + 1;
    unsigned char *to = packed;

    *to++ = 15 << 4 | 15;
    *to++ = (unsigned char)(literals - 15);
    memcpy(to, text, literals - 1);
    to += literals - 1;
    *to++ = ' ';
    *to++ = 1;
    *to++ = 0;
    *to++ = 39 - 15 - 4;
    *to++ = 1 << 4;
    *to++ = '\n';
    return (uint32_t)(to - packed);
}

static void fat_binaries_are_unpacked(void) {
    static const char text[] =
        HEAD ".visible .global .align 4 .b8 wide[3145728];\n.visible .entry small()\n{\nret;\n}\n";
    static struct fat fat = {.header = {0xba55ed50, 1, 16, 64 + 256},
                             .first = {.kind = 1, .header_bytes = 64, .content_bytes = 256}};
    CUfunction function;
    CUmodule module;

    _Static_assert(sizeof(text) > 15 && sizeof(text) < 15 + 255, "a length of two bytes");
    fat.first.words[0] = pack(text, (unsigned char *)fat.first_contents);
    fat.first.words[6] = 0x2000;
    fat.first.uncompressed_bytes = strlen(text) + 41;
    context_on(0);
    OK(cuModuleLoadData(&module, &fat));
    OK(cuModuleGetFunction(&function, module, "small"));
    CHECK_INT(cuModuleGetFunction(&function, module, "anything"), CUDA_ERROR_NOT_FOUND);
    CHECK_INT(size_of(module, "wide"), 3 * MIB);
    CHECK_INT(taken(), 4 * MIB);
    OK(cuModuleUnload(module));
    /* What does not become as much as it says is not read. */
    fat.first.uncompressed_bytes++;
    OK(cuModuleLoadData(&module, &fat));
    OK(cuModuleGetFunction(&function, module, "anything"));
    OK(cuModuleUnload(module));
}

static void the_linker_makes_a_cubin(void) {
    static const char other[] = HEAD ".visible .global .align 4 .b8 more[2097152];\n"
                                     ".visible .entry second()\n{\n .local .align 4 .b8 x[2048];\n ret;\n}\n";
    CUlinkState link;
    CUfunction function;
    CUmodule module;
    void *cubin;
    size_t size;
    int value;

    context_on(0);
    OK(cuLinkCreate_v2(0, NULL, NULL, &link));
    OK(cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, (void *)(uintptr_t)ptx, sizeof(ptx), "a", 0, NULL, NULL));
    OK(cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, (void *)(uintptr_t)other, sizeof(other) - 1, "b", 0, NULL, NULL));
    CHECK_INT(cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, (void *)(uintptr_t) "no ptx", 6, "c", 0, NULL, NULL),
              CUDA_ERROR_INVALID_PTX);
    CHECK_INT(cuLinkAddFile_v2(link, CU_JIT_INPUT_PTX, "/nonexistent", 0, NULL, NULL), CUDA_ERROR_FILE_NOT_FOUND);
    OK(cuLinkComplete(link, &cubin, &size));
    CHECK_INT(taken(), 0);
    OK(cuModuleLoadData(&module, cubin));
    OK(cuLinkDestroy(link));
    CHECK_INT(cuLinkDestroy(link), CUDA_ERROR_INVALID_HANDLE);
    OK(cuModuleGetFunction(&function, module, "plain"));
    OK(cuModuleGetFunction(&function, module, "second"));
    OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function));
    CHECK_INT(value, 2048);
    CHECK_INT(taken(), 8 * MIB);
    CHECK_INT(size_of(module, "big"), 4 * MIB);
    CHECK_INT(size_of(module, "more"), 2 * MIB);
    CHECK_INT(size_of(module, "both"), 3 * MIB);
    OK(cuModuleUnload(module));
    CHECK_INT(taken(), 0);
}

const struct test image_tests[] = {
    {"PTX says what it declares", ptx_says_what_it_declares},
    {"eager modules take memory at once", eager_modules_take_memory_at_once},
    {"lazy modules take memory when used", lazy_modules_take_memory_when_used},
    {"no launch without room for the module", no_launch_without_room_for_the_module},
    {"managed variables", managed_variables},
    {"cubins say it in sections", cubins_say_it_in_sections},
    {"kernels have parameters", kernels_have_parameters},
    {"linked kernels have parameters", linked_kernels_have_parameters},
    {"fat binaries hold several", fat_binaries_hold_several},
    {"fat binaries are unpacked", fat_binaries_are_unpacked},
    {"the linker makes a cubin", the_linker_makes_a_cubin},
    {0},
};
