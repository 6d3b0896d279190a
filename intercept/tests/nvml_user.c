/*
 * A process on the first GPU for the tests of NVML: nvml_user MIB [busy]. It holds a context and that much memory,
 * prints "ready", and waits to be killed; a busy one keeps the GPU working.
 */
#include "../driver/cuda_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream_of_test;

CUresult cuInit(unsigned int);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxSynchronize(void);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        CUstream_of_test, void **, void **);

static void must(const char *what, CUresult result) {
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "nvml_user: %s: %d\n", what, result);
    exit(1);
}

static void work(void) {
    static const char image[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
                                ".visible .entry spin_1ms()\n{\n ret;\n}\n";
    CUmodule module;
    CUfunction spin;
    must("cuModuleLoadData", cuModuleLoadData(&module, image));
    must("cuModuleGetFunction", cuModuleGetFunction(&spin, module, "spin_1ms"));
    for (unsigned i = 0;; i++) {
        must("cuLaunchKernel", cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
        must("cuCtxSynchronize", cuCtxSynchronize());
        if (i == 0) {
            puts("ready");
            fflush(stdout);
        }
    }
}

int main(int argc, char **argv) {
    CUcontext context;
    CUdeviceptr address;
    if (argc < 2)
        return 2;
    must("cuInit", cuInit(0));
    must("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
    must("cuCtxSetCurrent", cuCtxSetCurrent(context));
    if (atoi(argv[1]) > 0)
        must("cuMemAlloc", cuMemAlloc_v2(&address, (size_t)atoi(argv[1]) << 20));
    if (argc > 2 && strcmp(argv[2], "busy") == 0)
        work();
    puts("ready");
    fflush(stdout);
    return pause();
}
