/*
 * A driver for tests of the shadow library alone. It counts the memory in use, and does what a driver rarely does when
 * a test requests it. Linked with the shadow's objects, in place of driver/real.c, or built as the driver's library
 * (FAKE_DRIVER_LIBRARY).
 */
#ifndef TRANCHE_TESTS_FAKE_DRIVER_H
#define TRANCHE_TESTS_FAKE_DRIVER_H

#include "../driver/cuda_api.h"

#include <stdbool.h>
#include <stdint.h>

#define FAKE_DEVICES 3
#define FAKE_MIB ((uint64_t)1 << 20)
#define FAKE_CONTEXT_BYTES (100 * FAKE_MIB)
#define FAKE_DEVICE_BYTES (64 * 1024 * FAKE_MIB)

/* How cuGetProcAddress answers. */
enum fake_answers {
    FAKE_SAME,        /* with the pointers that dlsym finds */
    FAKE_TRAMPOLINES, /* with others */
    FAKE_NEVER_TWICE, /* with a pointer that it has not given before and will not give again */
    FAKE_BEFORE_12,   /* with those that dlsym finds, and there is no cuGetProcAddress_v2 */
};

/* The CUDA version, newer than the shadow's table, from which cuMemAllocPitch and cuCtxSynchronize have another form. */
#define FAKE_NEWER 99000

struct fake_orders {
    CUresult fail_allocation;       /* what the next allocation returns */
    void (*allocating)(void);       /* called first by the next allocation */
    void (*allocated)(CUdeviceptr); /* called after the next allocation, before its caller hears of it */
    bool new_block;                 /* for the next small allocation, though there is room in another */
    CUresult fail_free;
    bool captures; /* there is a capture that forbids threads that are not relaxed to free linear memory */
    CUresult fail_context;
    void (*in_context)(void); /* called when the next context is about to be made */
    CUresult fail_unload;     /* what the next cuModuleUnload or cuLibraryUnload returns */
    uint64_t image_blocks;    /* of 2 MiB that the next module or library takes of the current device */
    void (*in_image)(void);   /* called when the next image is about to be loaded, or asked for something */
    void (*in_launch)(void);  /* called while the next graph is launched */
    void (*in_instantiate)(CUgraph graph); /* called when a graph has been instantiated */
    void (*in_end)(void);    /* called when the next context is about to end, library unloaded, or handle closed */
    uint64_t opened[2];      /* where memory of other processes is opened, and its bytes */
    uint64_t variable_bytes; /* the size of any variable */
    bool pageable;           /* the devices use memory of malloc */
    uint64_t managed[2];     /* where managed memory begins, and its bytes */
    size_t pitch;            /* what the next pitched allocation takes as pitch; 0 is the usual */
    enum fake_answers answers;
};

extern struct fake_orders fake_orders;

/* What is physically taken of a device, and was at most. */
uint64_t fake_physical(CUdevice device);
uint64_t fake_peak(CUdevice device);

/* The device's UUID as the limit file has it. */
const char *fake_uuid(CUdevice device);

/* Everything as before cuInit. */
void fake_reset(void);

/* Every image has these kernels, k0 and so on, whose threads need so much local memory. It is taken for so many threads
 * when one is launched, beyond what a context has at first for each. */
#define FAKE_KERNELS 3
#define FAKE_LOCAL_BYTES                                                                                               \
    { 0, 2048, 4096 }
#define FAKE_FIRST_LOCAL_BYTES 1024
#define FAKE_THREADS 8192
CUresult fake_launch(CUfunction function);

/* A function that the shadow does not know and that ends a context or frees an address behind its back. */
CUresult fake_destroy_unseen(CUcontext context);
CUresult fake_free_unseen(CUdeviceptr address);

/* The ranges that were prefetched in batches. */
extern size_t fake_prefetched;

/* The processes for which a checkpoint and a restore were last requested. */
extern int fake_checkpointed, fake_restored;

#endif
