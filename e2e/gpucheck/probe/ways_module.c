/* Modules: their variables are memory like any other. */
#include "ways.h"

#include <stdio.h>
#include <stdlib.h>

/* Drivers stop accepting old targets at some time, and old drivers do not know new ones. */
static const char *const targets[] = {
    ".version 6.3\n.target sm_75\n", ".version 6.0\n.target sm_50\n",  ".version 7.0\n.target sm_80\n",
    ".version 7.8\n.target sm_90\n", ".version 8.7\n.target sm_100\n",
};

#define TARGETS (sizeof targets / sizeof targets[0])

static CUresult try_targets(CUresult (*load)(void *object, const char *text), void *object, const char *body) {
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    size_t size = snprintf(NULL, 0, "%s", body) + 128;
    char *text = malloc(size);
    if (text == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < TARGETS; i++) {
        snprintf(text, size, "%s.address_size 64\n%s\n", targets[i], body);
        result = load(object, text);
        if (result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY)
            break;
    }
    free(text);
    return result;
}

static CUresult load_module(void *object, const char *text) {
    return CALL(cuModuleLoadData, object, text);
}

static CUresult load_library(void *object, const char *text) {
    return CALL(cuLibraryLoadData, object, text, NULL, NULL, 0, NULL, NULL, 0);
}

CUresult load_ptx(CUmodule *module, const char *body) {
    return try_targets(load_module, module, body);
}

CUresult load_ptx_library(CUlibrary *library, const char *body) {
    return try_targets(load_library, library, body);
}

CUresult run_kernel(CUmodule module, const char *name, unsigned blocks, unsigned threads) {
    CUfunction kernel;
    CUresult result = cuda.cuModuleGetFunction(&kernel, module, name);
    if (result == CUDA_SUCCESS)
        result = cuda.cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, NULL, NULL, NULL);
    return result == CUDA_SUCCESS ? cuda.cuCtxSynchronize() : result;
}

static void write_body(char *body, size_t size, uint64_t bytes) {
    snprintf(body, size,
             ".visible .global .align 16 .b8 variable[%llu];\n"
             ".visible .entry touch() { ret; }\n",
             (unsigned long long)bytes);
}

/* The variable is asked for, since a driver may put off what nobody asks for. */
static CUresult take_module(uint64_t bytes, struct piece *piece) {
    char body[256];
    CUmodule module;
    CUdeviceptr address;
    size_t size;
    write_body(body, sizeof body, bytes);
    CUresult result = load_ptx(&module, body);
    if (result != CUDA_SUCCESS)
        return result;
    if ((result = cuda.cuModuleGetGlobal_v2(&address, &size, module, "variable")) != CUDA_SUCCESS)
        cuda.cuModuleUnload(module);
    piece->handle = module;
    return result;
}

static CUresult give_module(struct piece *piece) {
    return cuda.cuModuleUnload(piece->handle);
}

static CUresult take_library(uint64_t bytes, struct piece *piece) {
    char body[256];
    CUlibrary library;
    CUdeviceptr address;
    size_t size;
    write_body(body, sizeof body, bytes);
    CUresult result = load_ptx_library(&library, body);
    if (result != CUDA_SUCCESS)
        return result;
    if ((result = cuda.cuLibraryGetGlobal(&address, &size, library, "variable")) != CUDA_SUCCESS)
        cuda.cuLibraryUnload(library);
    piece->handle = library;
    return result;
}

static CUresult give_library(struct piece *piece) {
    return cuda.cuLibraryUnload(piece->handle);
}

const struct way module_ways[] = {
    {"module", "a module's variable (cuModuleLoadData)", 2 * MIB,
     FUNCTIONS("cuModuleLoadData", "cuModuleUnload", "cuModuleGetGlobal_v2"), NULL, take_module, give_module, NULL},
    {"library", "a library's variable (cuLibraryLoadData)", 2 * MIB,
     FUNCTIONS("cuLibraryLoadData", "cuLibraryUnload", "cuLibraryGetGlobal"), NULL, take_library, give_library, NULL},
    {0},
};
