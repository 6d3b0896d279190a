/* The ways to take GPU memory, one after the other under the same test (fill.c). */
#ifndef GPUCHECK_WAYS_H
#define GPUCHECK_WAYS_H

#include "driver.h"

/* The device and the context of this probe; the context is current. */
extern CUdevice device;
extern CUcontext context;

/* What one call has taken. */
struct piece {
    uint64_t bytes;
    union {
        CUdeviceptr address;
        void *handle;
    };
    CUhandle memory;
    void *second;
    int descriptor;
};

struct way {
    const char *name, *title;
    uint64_t smallest;            /* no piece can be smaller */
    const char *const *functions; /* that it calls, ending with NULL */
    const char *(*prepare)(void); /* says why it is not possible; NULL if it is. May be NULL itself, as may `settle` */
    CUresult (*take)(uint64_t bytes, struct piece *piece);
    CUresult (*give)(struct piece *piece);
    void (*settle)(void); /* when all is given: makes the driver let go of what it keeps */
};

extern const struct way linear_ways[], array_ways[], pool_ways[], vmm_ways[], graph_ways[], module_ways[],
    context_ways[]; /* each ends with a way without a name */

/* The largest piece that is to be had again in a full claim after one of `bytes` was freed. */
uint64_t pool_most_again(const struct way *way, uint64_t bytes);

const struct way *find_way(const char *name);
void each_way(void (*call)(const struct way *way));

#define FUNCTIONS(...)                                                                                                 \
    (const char *const[]) {                                                                                            \
        __VA_ARGS__, NULL                                                                                              \
    }

/* Rounds up to a multiple of `unit`. */
static inline uint64_t round_up(uint64_t bytes, uint64_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

/* A sentence for `prepare`, kept in one place for all. */
const char *because(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Properties of device memory on this device, to be exported through a file descriptor or not. */
CUmemAllocationProp device_memory(bool exported);
CUmemPoolProps device_pool(bool exported);
CUmemAccessDesc device_access(void);

/* Maps device memory at a fresh address. */
CUresult map_memory(CUhandle memory, uint64_t bytes, CUdeviceptr *address);
void unmap_memory(CUdeviceptr address, uint64_t bytes);

/* Loads PTX that has only a body, under the first version and target that this driver and GPU accept. */
CUresult load_ptx(CUmodule *module, const char *body);
CUresult load_ptx_library(CUlibrary *library, const char *body);

/* Runs the kernel with this name over so many blocks and waits for it. */
CUresult run_kernel(CUmodule module, const char *name, unsigned blocks, unsigned threads);

#endif
