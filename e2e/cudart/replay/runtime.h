/*
 * What NVIDIA's runtime library (cudart) of CUDA 11.2, 11.8 and 12.4 does with the driver, in its order: see start.c and
 * runtime.c. A function here stands for the one of the runtime API with the same name. Each result of the driver is
 * written to stderr, so that two runs can be compared.
 *
 * Sources: for the start, the real libraries on the simulated driver (asked.txt; the calls were recorded in the same way);
 * for what the private functions do, ZLUDA's dark_api (github.com/vosen/ZLUDA); for the rest, the runtime API's
 * documentation, which says what initialises a device and when.
 */
#ifndef REPLAY_RUNTIME_H
#define REPLAY_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda_sim.h"

/* How the runtime has the driver load a program's image. */
enum loading {
    LOAD_SLOT_1 = 1, /* private functions of the driver */
    LOAD_SLOT_6 = 6,
    LOAD_SLOT_8 = 8,
    LOAD_MODULE = 16, /* cuModuleLoadFatBinary */
    LOAD_LIBRARY,     /* cuLibraryLoadData */
};

/* The fat binary that nvcc puts into a program, and what refers to it. */
struct fat_wrapper {
    unsigned magic, version;
    const void *data;
    void *unused;
};

/* The first call of the runtime API. `version` is the runtime's: 11020, 11080 or 12040. */
CUresult runtime_start(int version);
/* The end of the program: what the runtime's destructors do. */
void runtime_end(void);

/* Before the start. Programs have one image here, with one kernel and one variable. */
void runtime_register(const struct fat_wrapper *image, enum loading loading);

CUresult runtime_set_device(int device);
CUresult runtime_device_reset(void);
CUresult runtime_malloc(CUdeviceptr *address, size_t bytes);
CUresult runtime_free(CUdeviceptr address);
CUresult runtime_memcpy_to(CUdeviceptr to, const void *from, size_t bytes);
CUresult runtime_memcpy_from(void *to, CUdeviceptr from, size_t bytes);
CUresult runtime_mem_get_info(size_t *free, size_t *total);
CUresult runtime_get_symbol_address(CUdeviceptr *address, const char *name);
CUresult runtime_launch_kernel(const char *name, CUstream stream);
/* A graph of one kernel: cudaGraphCreate, cudaGraphAddKernelNode, cudaGraphInstantiate, cudaGraphDestroy. */
CUresult runtime_graph_instantiate(CUgraphExec *exec, const char *kernel);
CUresult runtime_graph_launch(CUgraphExec exec, CUstream stream);
CUresult runtime_graph_exec_destroy(CUgraphExec exec);
CUresult runtime_device_synchronize(void);
CUresult runtime_stream_create(CUstream *stream);
CUresult runtime_stream_synchronize(CUstream stream);
CUresult runtime_stream_destroy(CUstream stream);
CUresult runtime_malloc_async(CUdeviceptr *address, size_t bytes, CUstream stream);
CUresult runtime_free_async(CUdeviceptr address, CUstream stream);

#endif
