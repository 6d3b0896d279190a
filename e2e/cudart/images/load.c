/*
 * Loads an image that nvcc has made of kernels.cu, by the way that is asked for, and writes what it found there:
 * load data|library|link IMAGE.
 *
 *   kernel NAME RESULT
 *   variable NAME RESULT BYTES
 *   used MIB           of the GPU or the claim, by cuMemGetInfo, with the image and after all of its variables were asked for
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cuda_sim.h"

static const char *const kernels[] = {"small", "large", "none"};
static const char *const variables[] = {"plain", "initialised", "constant", "managed", "none"};

static void must(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS)
        return;
    printf("%s: %d\n", what, result);
    exit(1);
}

static void *contents(const char *path, size_t *bytes) {
    struct stat info;
    FILE *file = fopen(path, "re");
    char *data;

    if (file == NULL || fstat(fileno(file), &info) != 0 || (data = calloc(1, (size_t)info.st_size + 1)) == NULL ||
        fread(data, 1, (size_t)info.st_size, file) != (size_t)info.st_size)
        abort();
    fclose(file);
    *bytes = (size_t)info.st_size;
    return data;
}

/* Device code that is linked only now. */
static void *linked(void *image, size_t bytes) {
    CUlinkState state;
    void *cubin;

    must(cuLinkCreate_v2(0, NULL, NULL, &state), "cuLinkCreate");
    must(cuLinkAddData_v2(state, CU_JIT_INPUT_FATBINARY, image, bytes, "kernels", 0, NULL, NULL), "cuLinkAddData");
    must(cuLinkComplete(state, &cubin, NULL), "cuLinkComplete");
    return cubin;
}

static void tell_used(void) {
    size_t free_bytes, total_bytes;

    must(cuMemGetInfo_v2(&free_bytes, &total_bytes), "cuMemGetInfo");
    printf("used %zu\n", (total_bytes - free_bytes) >> 20);
}

int main(int argc, char **argv) {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUlibrary library = NULL;
    size_t bytes;

    if (argc != 3)
        return 2;
    void *image = contents(argv[2], &bytes);
    must(cuInit(0), "cuInit");
    must(cuDeviceGet(&device, 0), "cuDeviceGet");
    must(cuCtxCreate_v2(&context, 0, device), "cuCtxCreate");
    if (strcmp(argv[1], "link") == 0)
        image = linked(image, bytes);
    if (strcmp(argv[1], "library") == 0) {
        must(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0), "cuLibraryLoadData");
        must(cuLibraryGetModule(&module, library), "cuLibraryGetModule");
    } else {
        must(cuModuleLoadData(&module, image), "cuModuleLoadData");
    }
    tell_used();
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        CUfunction function;

        printf("kernel %s %d\n", kernels[i], cuModuleGetFunction(&function, module, kernels[i]));
    }
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        CUdeviceptr address;
        size_t size = 0;
        CUresult result = cuModuleGetGlobal_v2(&address, &size, module, variables[i]);

        printf("variable %s %d %zu\n", variables[i], result, size);
    }
    tell_used();
    must(library != NULL ? cuLibraryUnload(library) : cuModuleUnload(module), "unload");
    tell_used();
    return 0;
}
