/* Modules, libraries, functions, and what a launch refuses. */
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static const char ptx[] = ".version 8.0\n.target sm_90\n.address_size 64\n"
                          ".global .align 4 .u32 counter;\n"
                          ".visible .global .align 16 .b8 buffer[3145728];\n"
                          ".visible .entry add(.param .u64 p)\n{\n ret;\n}\n"
                          ".visible .entry spin_100us()\n{\n ret;\n}\n";

/*
 * Stands in front of the driver's function of this name, as a shadow library does. The driver's own calls of it, and
 * what cuGetProcAddress answers, must be the driver's all the same.
 */
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func, int blockSize,
                                                     size_t dynamicSMemSize) {
    (void)numBlocks, (void)func, (void)blockSize, (void)dynamicSMemSize;
    return CUDA_ERROR_UNKNOWN;
}

static CUfunction function_of(CUmodule module, const char *name) {
    CUfunction function = NULL;

    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

static void functions_are_found_by_name(void) {
    CUmodule module;
    CUfunction add, again;
    unsigned count;
    const char *name;

    context_on(0);
    OK(cuModuleLoadData(&module, ptx));
    add = function_of(module, "add");
    again = function_of(module, "add");
    CHECK(add == again);
    CHECK(add != function_of(module, "spin_100us"));
    CHECK_INT(cuModuleGetFunction(&again, module, "ad"), CUDA_ERROR_NOT_FOUND);
    CHECK_INT(cuModuleGetFunction(&again, module, "ret"), CUDA_ERROR_NOT_FOUND);
    OK(cuModuleGetFunctionCount(&count, module));
    CHECK_INT(count, 2);
    OK(cuFuncGetName(&name, add));
    CHECK(strcmp(name, "add") == 0);
    OK(cuModuleUnload(module));
    CHECK_INT(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(cuModuleGetFunction(&again, module, "add"), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
}

static void images_are_checked(void) {
    CUmodule module;

    context_on(0);
    CHECK_INT(cuModuleLoadData(&module, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuModuleLoadData(NULL, ptx), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuModuleLoadData(&module, "\1\2\3\4\5\6\7\10 and so on"), CUDA_ERROR_INVALID_IMAGE);
    CHECK_INT(cuModuleLoadData(&module, "int main(void) { return 0; }"), CUDA_ERROR_INVALID_PTX);
    CHECK_INT(cuModuleLoad(&module, "/nonexistent.cubin"), CUDA_ERROR_FILE_NOT_FOUND);
}

/* A cubin is an ELF file whose sections .text.<name> are the kernels. */
static void cubins(void) {
    struct {
        Elf64_Ehdr header;
        char names[64];
        Elf64_Shdr sections[3];
    } cubin = {0};
    static const char names[] = "\0.shstrtab\0.text.mul";
    CUmodule module;
    CUfunction function;
    FILE *file;

    memcpy(cubin.header.e_ident, ELFMAG, SELFMAG);
    cubin.header.e_ident[EI_CLASS] = ELFCLASS64;
    cubin.header.e_shoff = (Elf64_Off)((char *)cubin.sections - (char *)&cubin);
    cubin.header.e_shentsize = sizeof(Elf64_Shdr);
    cubin.header.e_shnum = 3;
    cubin.header.e_shstrndx = 1;
    memcpy(cubin.names, names, sizeof(names));
    cubin.sections[1].sh_name = 1;
    cubin.sections[1].sh_type = SHT_STRTAB;
    cubin.sections[1].sh_offset = sizeof(Elf64_Ehdr);
    cubin.sections[1].sh_size = sizeof(names);
    cubin.sections[2].sh_name = 11;
    file = fopen(node_path("a.cubin"), "w");
    fwrite(&cubin, sizeof(cubin), 1, file);
    fclose(file);

    context_on(0);
    OK(cuModuleLoad(&module, node_path("a.cubin")));
    OK(cuModuleGetFunction(&function, module, "mul"));
    CHECK_INT(cuModuleGetFunction(&function, module, "mu"), CUDA_ERROR_NOT_FOUND);
    OK(cuModuleUnload(module));
}

static void globals_take_memory(void) {
    CUdeviceptr address, again;
    CUmodule module;
    size_t bytes;

    context_on(0);
    OK(cuModuleLoadData(&module, ptx));
    CHECK_INT(look("test").used[0], GPU0_CONTEXT); /* nothing in it was used yet */
    OK(cuModuleGetGlobal_v2(&address, &bytes, module, "counter"));
    CHECK_INT(bytes, 4);
    CHECK_INT(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
    OK(cuModuleGetGlobal_v2(&again, NULL, module, "counter"));
    CHECK_INT(address, again);
    OK(cuModuleGetGlobal_v2(&address, &bytes, module, "buffer"));
    CHECK_INT(bytes, 3 * MIB);
    CHECK_INT(look("test").used[0], GPU0_CONTEXT + 4 * MIB); /* the two lie together */
    CHECK_INT(cuModuleGetGlobal_v2(&address, &bytes, module, "buff"), CUDA_ERROR_NOT_FOUND);
    OK(cuModuleUnload(module));
    CHECK_INT(look("test").used[0], GPU0_CONTEXT);
}

static void much_code_takes_memory(void) {
    size_t size = 20 * MIB;
    char *big = malloc(size + 1);
    CUmodule first, second;

    memset(big, ' ', size);
    memcpy(big, ptx, sizeof(ptx) - 1);
    big[size] = '\0';
    context_on(0);
    OK(cuModuleLoadData(&first, big));
    function_of(first, "add");
    CHECK_INT(look("test").used[0], GPU0_CONTEXT + 4 * MIB + 4 * MIB); /* and the variables */
    OK(cuModuleLoadData(&second, big));
    function_of(second, "add");
    CHECK_INT(look("test").used[0], GPU0_CONTEXT + 24 * MIB + 8 * MIB);
    OK(cuModuleUnload(first));
    CHECK_INT(look("test").used[0], GPU0_CONTEXT + 4 * MIB + 4 * MIB);
    OK(cuModuleUnload(second));
    CHECK_INT(look("test").used[0], GPU0_CONTEXT);
    free(big);
}

static void libraries_work_in_any_context(void) {
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    CUmodule module, again;

    OK(cuInit(0));
    OK(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "add"));
    CHECK_INT(cuLibraryGetKernel(&kernel, library, "sub"), CUDA_ERROR_NOT_FOUND);
    for (int device = 0; device < 2; device++) {
        context_on(device);
        OK(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
        OK(cuKernelGetFunction(&function, kernel));
        OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
        OK(cuLibraryGetModule(&module, library));
        OK(cuLibraryGetModule(&again, library));
        CHECK(module == again);
        CHECK_INT(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
    }
    CHECK_INT(look("test").sum[0].launches, 2);
    CHECK_INT(look("test").sum[1].launches, 2);
    OK(cuLibraryUnload(library));
    CHECK_INT(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
}

static void launches_are_checked(void) {
    CUcontext other;
    CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, NULL, NULL, 0};
    CUmodule module;
    CUfunction add;
    CUstream stream;
    int local = 0;

    context_on(0);
    OK(cuModuleLoadData(&module, ptx));
    add = function_of(module, "add");
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuLaunchKernel(add, 1, 1, 1, 1024, 1, 1, 0, stream, NULL, NULL));
    OK(cuLaunchKernel_ptsz(add, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuLaunchKernelEx(&config, add, NULL, NULL));
    OK(cuLaunchCooperativeKernel(add, 16, 1, 1, 1024, 1, 1, 0, stream, NULL));
    CHECK_INT(cuLaunchCooperativeKernel(add, 33, 1, 1, 1024, 1, 1, 0, stream, NULL),
              CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    CHECK_INT(cuLaunchKernel(add, 0, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuLaunchKernel(add, 1, 1, 1, 1025, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuLaunchKernel(add, 1, 1, 1, 64, 32, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 100000, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000));
    OK(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 100000, NULL, NULL, NULL));
    CHECK_INT(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(cuLaunchKernel((CUfunction)&local, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, (CUstream)&local, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(look("test").sum[0].launches, 5);
    CHECK_INT(look("test").group_launches[0], 5);
    other = context_on(0);
    CHECK_INT(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuCtxDestroy_v2(other));
    OK(cuStreamSynchronize(stream));
    OK(cuStreamDestroy_v2(stream));
    CHECK_INT(cuStreamDestroy_v2(stream), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
}

static void the_driver_calls_its_own_functions(void) {
    CUresult (*occupancy)(int *, CUfunction, int, size_t) = NULL;
    CUmodule module;
    CUfunction add;
    void *found;
    int blocks;

    context_on(0);
    OK(cuModuleLoadData(&module, ptx));
    add = function_of(module, "add");
    OK(cuLaunchCooperativeKernel(add, 1, 1, 1, 1, 1, 1, 0, NULL, NULL));
    OK(cuGetProcAddress("cuOccupancyMaxActiveBlocksPerMultiprocessor", &found, 12000, 0));
    memcpy(&occupancy, &found, sizeof(found));
    OK(occupancy(&blocks, add, 1024, 0));
    CHECK_INT(blocks, 2);
}

const struct test module_tests[] = {
    {"functions are found by name", functions_are_found_by_name},
    {"images are checked", images_are_checked},
    {"cubins", cubins},
    {"globals take memory", globals_take_memory},
    {"much code takes memory", much_code_takes_memory},
    {"libraries work in any context", libraries_work_in_any_context},
    {"launches are checked", launches_are_checked},
    {"the driver calls its own functions", the_driver_calls_its_own_functions},
    {0},
};
