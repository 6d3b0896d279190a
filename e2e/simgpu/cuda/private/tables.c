/*
 * The driver's private tables of functions, which NVIDIA's runtime library asks for by cuGetExportTable when it starts: it
 * gets the primary contexts through one of them, and stores its own state of a context through another.
 *
 * Which tables there are, and how long they are, was read off the libraries of the drivers 470, 535 and 550, which answer
 * without a GPU. What their slots do is known as far as the dark_api of ZLUDA (github.com/vosen/ZLUDA) describes them. A
 * slot of which nothing is known says so when it is called. The table by which the runtime tests whether driver and
 * runtime are genuine is not here: NVIDIA's runtime library is for NVIDIA's driver.
 */
#include <stdio.h>
#include <string.h>

#include "storage.h"

static CUresult unknown_slot(void) {
    fprintf(stderr, "simgpu: the runtime called a private function of the driver that the simulator does not know\n");
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- The runtime's interface ---- */

static CUresult load_module(CUmodule *module, const void *wrapper) {
    return cuModuleLoadFatBinary(module, wrapper);
}

static CUresult load_module_with_options(CUmodule *module, const void *wrapper, void *unused, void *also_unused,
                                         unsigned int number) {
    (void)unused;
    (void)also_unused;
    (void)number;
    return cuModuleLoadFatBinary(module, wrapper);
}

/* Here the fat binary itself comes first, not the structure that refers to it. */
static CUresult load_module_of_header(const void *header, CUmodule *module, void *unused, void *also_unused,
                                      unsigned int number) {
    (void)unused;
    (void)also_unused;
    (void)number;
    return cuModuleLoadData(module, header);
}

/* The handle alone: the context takes nothing before it is retained. NVIDIA does not say which; the topology may have it
 * otherwise. */
static CUresult primary_context(CUcontext *context, CUdevice device) {
    REQUIRE_INITIALISED();
    REQUIRE(context != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    return sim_topology()->private_context_active ? cuDevicePrimaryCtxRetain(context, device)
                                                  : context_primary_handle(device, context);
}

static CUresult seventh_slot(size_t size) {
    (void)size;
    return CUDA_SUCCESS;
}

static CUresult load_compilers(void) {
    return CUDA_SUCCESS;
}

/* ---- Tools ---- */

static char hooks[1024], more_hooks[14];

static void first_hooks(void **buffer, size_t *size) {
    *buffer = hooks;
    *size = sizeof(hooks);
}

static void further_hooks(void **buffer, size_t *size) {
    *buffer = more_hooks;
    *size = sizeof(more_hooks);
}

/* Nothing is wrong with it. */
static CUresult check_context(CUcontext context, uint32_t *answer, const void **more) {
    (void)context;
    (void)more;
    REQUIRE(answer != NULL, CUDA_ERROR_INVALID_VALUE);
    *answer = 0;
    return CUDA_SUCCESS;
}

static uint32_t check_nothing(void) {
    return 0;
}

/* ---- The tables ---- */

/* The first slot of most tables is their size in bytes. */
#define BYTES(slots) ((void *)((slots) * sizeof(void *)))
#define SLOT(function) ((void *)(uintptr_t)(function))
#define UNKNOWN SLOT(unknown_slot)

#define INTERFACE(slots)                                                                                               \
    {                                                                                                                  \
        BYTES(slots), SLOT(load_module), SLOT(primary_context), UNKNOWN, UNKNOWN, UNKNOWN,                             \
            SLOT(load_module_with_options), SLOT(seventh_slot), SLOT(load_module_of_header), UNKNOWN, NULL,            \
            SLOT(load_compilers)                                                                                       \
    }

static void *const interface_11[] = INTERFACE(10), *const interface_12_0[] = INTERFACE(11),
                   *const interface_12_4[] = INTERFACE(12);
static void *const tools_hooks[] = {BYTES(7), UNKNOWN, SLOT(first_hooks),  UNKNOWN,
                                    UNKNOWN,  UNKNOWN, SLOT(further_hooks)};
static void *const tools_threads[] = {BYTES(3), UNKNOWN, UNKNOWN};
static void *const storage[] = {SLOT(storage_put), SLOT(storage_delete), SLOT(storage_get), NULL};
static void *const context_checks[] = {BYTES(5), UNKNOWN, SLOT(check_context), SLOT(check_nothing), UNKNOWN};

/* Of the tables of an ID, the last that is no newer than the driver is meant. */
static const struct {
    unsigned char id[16];
    int since;
    void *const *table;
} tables[] = {
    {"\x6b\xd5\xfb\x6c\x5b\xf4\xe7\x4a\x89\x87\xd9\x39\x12\xfd\x9d\xf9", 0, interface_11},
    {"\x6b\xd5\xfb\x6c\x5b\xf4\xe7\x4a\x89\x87\xd9\x39\x12\xfd\x9d\xf9", 12000, interface_12_0},
    {"\x6b\xd5\xfb\x6c\x5b\xf4\xe7\x4a\x89\x87\xd9\x39\x12\xfd\x9d\xf9", 12040, interface_12_4},
    {"\xa0\x94\x79\x8c\x2e\x74\x2e\x74\x93\xf2\x08\x00\x20\x0c\x0a\x66", 0, tools_hooks},
    {"\x42\xd8\x5a\x81\x23\xf6\xcb\x47\x82\x98\xf6\xe7\x8a\x3a\xec\xdc", 0, tools_threads},
    {"\xc6\x93\x33\x6e\x11\x21\xdf\x11\xa8\xc3\x68\xf3\x55\xd8\x95\x93", 0, storage},
    {"\x26\x3e\x88\x60\x7c\xd2\x61\x43\x92\xf6\xbb\xd5\x00\x6d\xfa\x7e", 12040, context_checks},
};

CUresult cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId) {
    REQUIRE(ppExportTable != NULL && pExportTableId != NULL, CUDA_ERROR_INVALID_VALUE);
    *ppExportTable = NULL;
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        if (tables[i].since <= driver_version() &&
            memcmp(tables[i].id, pExportTableId->bytes, sizeof(tables[i].id)) == 0)
            *ppExportTable = tables[i].table;
    }
    return *ppExportTable != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
