#include "fake_driver.h"

#include "../driver/real.h"
#include "fake_graphs.h"
#include "fake_streams.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef FAKE_DRIVER_LIBRARY
#define FAKE(name) __attribute__((visibility("default"))) name
#define SELF(name) name
#else
#define FAKE(name) fake_##name
#define SELF(name) fake_##name
#endif

#define BLOCKS 4096 /* of 2 MiB, the whole address space */
#define CONTEXTS 64
#define BLOCK (2 * FAKE_MIB)
#define BASE ((CUdeviceptr)0x7f0000000000)
#define SMALL_SLOTS 4096 /* of 512 bytes in a block */

struct CUctx_st {
    bool used, primary;
    CUdevice device;
    uint64_t local; /* for each thread */
};

struct fake_orders fake_orders;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool initialised;
static struct CUctx_st contexts[CONTEXTS];
static pthread_key_t current_key; /* not _Thread_local: a static program's dlopen cannot give that to us */
static struct {
    CUcontext context;
    int retained;
} primaries[FAKE_DEVICES];
static struct block {
    CUcontext context; /* NULL is free */
    unsigned follow;   /* further blocks of the same allocation */
    bool packed;
    unsigned live;                       /* allocations in a packed block */
    unsigned short lengths[SMALL_SLOTS]; /* of the allocation that starts here, in slots */
    unsigned char taken[SMALL_SLOTS];
} blocks[BLOCKS];
static struct { uint64_t now, peak; } physical[FAKE_DEVICES];

#define IMAGES 16

struct CUfunc_st {
    int local;
    bool loaded;
};

/* Of a library in no context it is NULL; then its functions are kernels, and its modules lie behind it. */
struct image {
    bool used, library;
    CUcontext context;
    CUdevice device;
    uint64_t blocks; /* of the device */
    struct image *of;
    struct CUfunc_st functions[FAKE_KERNELS];
};

static struct image images[IMAGES];

__attribute__((constructor)) static void make_key(void) {
    if (pthread_key_create(&current_key, NULL) != 0)
        abort();
}

static void set_current(CUcontext context) {
    pthread_setspecific(current_key, context);
}

static CUcontext current(void) {
    return pthread_getspecific(current_key);
}

static void take(CUdevice device, uint64_t bytes) {
    physical[device].now += bytes;
    if (physical[device].now > physical[device].peak)
        physical[device].peak = physical[device].now;
}

uint64_t fake_physical(CUdevice device) {
    pthread_mutex_lock(&mutex);
    uint64_t bytes = physical[device].now;
    pthread_mutex_unlock(&mutex);
    return bytes;
}

uint64_t fake_peak(CUdevice device) {
    return physical[device].peak;
}

const char *fake_uuid(CUdevice device) {
    static const char *const uuids[] = {"GPU-01020304-0506-0708-090a-0b0c0d0e0f00",
                                        "GPU-01020304-0506-0708-090a-0b0c0d0e0f01",
                                        "GPU-01020304-0506-0708-090a-0b0c0d0e0f02"};
    return uuids[device];
}

void fake_reset(void) {
    initialised = false;
    set_current(NULL);
    memset(contexts, 0, sizeof contexts);
    memset(primaries, 0, sizeof primaries);
    memset(blocks, 0, sizeof blocks);
    memset(physical, 0, sizeof physical);
    memset(images, 0, sizeof images);
    memset(&fake_orders, 0, sizeof fake_orders);
}

static CUresult ordered(CUresult *order) {
    CUresult result = *order;
    if (result != CUDA_SUCCESS)
        *order = CUDA_SUCCESS;
    return result;
}

/* --- devices and contexts ----------------------------------------------------------------------------------------- */

CUresult FAKE(cuInit)(unsigned int flags) {
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    initialised = true;
    return CUDA_SUCCESS;
}

CUresult FAKE(cuDriverGetVersion)(int *version) {
    *version = 12080;
    return CUDA_SUCCESS;
}

CUresult FAKE(cuDeviceGetUuid_v2)(CUuuid *uuid, CUdevice device) {
    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (device < 0 || device >= FAKE_DEVICES)
        return CUDA_ERROR_INVALID_DEVICE;
    for (int i = 0; i < 16; i++)
        uuid->bytes[i] = (char)(i < 15 ? i + 1 : device);
    return CUDA_SUCCESS;
}

CUresult FAKE(cuDeviceTotalMem_v2)(size_t *bytes, CUdevice device) {
    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (device < 0 || device >= FAKE_DEVICES)
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = FAKE_DEVICE_BYTES;
    return CUDA_SUCCESS;
}

CUresult FAKE(cuDeviceTotalMem)(unsigned int *bytes, CUdevice device) {
    size_t all;
    CUresult result = SELF(cuDeviceTotalMem_v2)(&all, device);
    if (result == CUDA_SUCCESS)
        *bytes = all > UINT32_MAX ? UINT32_MAX : (unsigned int)all;
    return result;
}

CUresult FAKE(cuCtxGetCurrent)(CUcontext *context) {
    *context = current();
    return initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult FAKE(cuCtxSetCurrent)(CUcontext context) {
    set_current(context);
    return CUDA_SUCCESS;
}

/* One deep, and of one thread at a time. */
static CUcontext pushed_over;

CUresult FAKE(cuCtxPushCurrent_v2)(CUcontext context) {
    if (!context->used)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    pushed_over = current();
    set_current(context);
    return CUDA_SUCCESS;
}

CUresult FAKE(cuCtxPopCurrent_v2)(CUcontext *context) {
    *context = current();
    set_current(pushed_over);
    return CUDA_SUCCESS;
}

CUresult FAKE(cuCtxGetDevice)(CUdevice *device) {
    if (current() == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = current()->device;
    return CUDA_SUCCESS;
}

static CUresult create(CUcontext *context, CUdevice device, bool primary) {
    CUresult result = ordered(&fake_orders.fail_context);
    if (result != CUDA_SUCCESS || !initialised)
        return initialised ? result : CUDA_ERROR_NOT_INITIALIZED;
    for (int i = 0; i < CONTEXTS; i++) {
        if (contexts[i].used)
            continue;
        contexts[i] = (struct CUctx_st){.used = true, .primary = primary, .device = device};
        take(device, FAKE_CONTEXT_BYTES);
        *context = &contexts[i];
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void free_all_of(CUcontext context) {
    for (int i = 0; i < BLOCKS; i++) {
        if (blocks[i].context != context)
            continue;
        memset(&blocks[i], 0, sizeof blocks[i]);
        physical[context->device].now -= BLOCK;
    }
}

static uint64_t local_of(CUcontext context) {
    uint64_t local = context->local;
    return local > FAKE_FIRST_LOCAL_BYTES ? (local - FAKE_FIRST_LOCAL_BYTES) * FAKE_THREADS : 0;
}

static void destroy(CUcontext context) {
    free_all_of(context);
    physical[context->device].now -= FAKE_CONTEXT_BYTES + local_of(context);
    context->used = false;
    if (current() == context)
        set_current(NULL);
}

static CUresult create_locked(CUcontext *context, CUdevice device) {
    void (*in_context)(void) = fake_orders.in_context;
    fake_orders.in_context = NULL;
    if (in_context != NULL)
        in_context();
    pthread_mutex_lock(&mutex);
    CUresult result = create(context, device, false);
    pthread_mutex_unlock(&mutex);
    if (result == CUDA_SUCCESS)
        set_current(*context);
    return result;
}

CUresult FAKE(cuCtxCreate)(CUcontext *context, unsigned int flags, CUdevice device) {
    (void)flags;
    return create_locked(context, device);
}

CUresult FAKE(cuCtxCreate_v2)(CUcontext *context, unsigned int flags, CUdevice device) {
    (void)flags;
    return create_locked(context, device);
}

CUresult FAKE(cuCtxCreate_v3)(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned int flags,
                              CUdevice device) {
    (void)affinity, (void)count, (void)flags;
    return create_locked(context, device);
}

/* There is no cuCtxCreate_v4: this driver is too old for it. */

static void call_in_end(void) {
    void (*in_end)(void) = fake_orders.in_end;
    fake_orders.in_end = NULL;
    if (in_end != NULL)
        in_end();
}

CUresult FAKE(cuCtxDestroy_v2)(CUcontext context) {
    call_in_end();
    pthread_mutex_lock(&mutex);
    bool valid = context >= contexts && context < contexts + CONTEXTS && context->used && !context->primary;
    if (valid)
        destroy(context);
    pthread_mutex_unlock(&mutex);
    return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult FAKE(cuCtxDestroy)(CUcontext context) {
    return SELF(cuCtxDestroy_v2)(context);
}

CUresult fake_destroy_unseen(CUcontext context) {
    return SELF(cuCtxDestroy_v2)(context);
}

CUresult FAKE(cuDevicePrimaryCtxRetain)(CUcontext *context, CUdevice device) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    if (primaries[device].context == NULL)
        result = create(&primaries[device].context, device, true);
    if (result == CUDA_SUCCESS) {
        primaries[device].retained++;
        *context = primaries[device].context;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

static CUresult end_primary(CUdevice device, bool reset) {
    CUresult result = CUDA_SUCCESS;
    if (device < 0 || device >= FAKE_DEVICES)
        return CUDA_ERROR_INVALID_DEVICE;
    call_in_end();
    pthread_mutex_lock(&mutex);
    if (!reset && primaries[device].retained == 0) {
        result = CUDA_ERROR_INVALID_CONTEXT;
    } else if (reset || --primaries[device].retained == 0) {
        if (primaries[device].context != NULL)
            destroy(primaries[device].context);
        primaries[device].context = NULL;
        primaries[device].retained = 0;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult FAKE(cuDevicePrimaryCtxRelease)(CUdevice device) {
    return end_primary(device, false);
}

CUresult FAKE(cuDevicePrimaryCtxRelease_v2)(CUdevice device) {
    return end_primary(device, false);
}

CUresult FAKE(cuDevicePrimaryCtxReset)(CUdevice device) {
    return end_primary(device, true);
}

CUresult FAKE(cuDevicePrimaryCtxReset_v2)(CUdevice device) {
    return end_primary(device, true);
}

CUresult FAKE(cuDevicePrimaryCtxGetState)(CUdevice device, unsigned int *flags, int *active) {
    pthread_mutex_lock(&mutex);
    *flags = 0;
    *active = primaries[device].context != NULL;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static bool fits(const unsigned char *taken, unsigned at, unsigned slots) {
    for (unsigned i = 0; i < slots; i++)
        if (taken[at + i])
            return false;
    return true;
}

static CUdeviceptr place_in(struct block *block, unsigned slots) {
    for (unsigned at = 0; at + slots <= SMALL_SLOTS; at++) {
        if (!fits(block->taken, at, slots))
            continue;
        memset(block->taken + at, 1, slots);
        block->lengths[at] = (unsigned short)slots;
        block->live++;
        return BASE + (CUdeviceptr)(block - blocks) * BLOCK + at * 512u;
    }
    return 0;
}

static CUdeviceptr take_blocks(uint64_t count, bool packed) {
    for (uint64_t at = 0; at + count <= BLOCKS; at++) {
        uint64_t free = 0;
        while (free < count && blocks[at + free].context == NULL)
            free++;
        if (free < count) {
            at += free;
            continue;
        }
        for (uint64_t i = 0; i < count; i++)
            blocks[at + i].context = current();
        blocks[at].follow = (unsigned)count - 1;
        blocks[at].packed = packed;
        take(current()->device, count * BLOCK);
        return BASE + at * BLOCK;
    }
    return 0;
}

static CUdeviceptr place_small(unsigned slots) {
    CUdeviceptr address = 0;
    for (int i = 0; i < BLOCKS && address == 0; i++)
        if (blocks[i].packed && blocks[i].context == current() && !fake_orders.new_block)
            address = place_in(&blocks[i], slots);
    fake_orders.new_block = false;
    if (address == 0 && (address = take_blocks(1, true)) != 0)
        place_in(&blocks[(address - BASE) / BLOCK], slots);
    return address;
}

CUresult FAKE(cuMemAlloc_v2)(CUdeviceptr *address, size_t size) {
    CUresult result = ordered(&fake_orders.fail_allocation);
    if (result != CUDA_SUCCESS)
        return result;
    if (address == NULL || size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (current() == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!current()->used)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    pthread_mutex_lock(&mutex);
    void (*allocating)(void) = fake_orders.allocating;
    fake_orders.allocating = NULL;
    pthread_mutex_unlock(&mutex);
    if (allocating != NULL)
        allocating();
    pthread_mutex_lock(&mutex);
    CUdeviceptr placed =
        size < FAKE_MIB ? place_small((unsigned)((size + 511) / 512)) : take_blocks((size + BLOCK - 1) / BLOCK, false);
    void (*allocated)(CUdeviceptr) = fake_orders.allocated;
    fake_orders.allocated = NULL;
    pthread_mutex_unlock(&mutex);
    if (placed == 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *address = placed;
    if (allocated != NULL)
        allocated(placed);
    return CUDA_SUCCESS;
}

CUresult FAKE(cuMemAllocManaged)(CUdeviceptr *address, size_t size, unsigned int flags) {
    (void)flags;
    return SELF(cuMemAlloc_v2)(address, size);
}

CUresult FAKE(cuMemAllocPitch_v2)(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                                  unsigned int element) {
    (void)element;
    *pitch = fake_orders.pitch ? fake_orders.pitch : (width + 511) / 512 * 512;
    fake_orders.pitch = 0;
    return SELF(cuMemAlloc_v2)(address, *pitch * height);
}

CUresult FAKE(cuMemFree_v2)(CUdeviceptr address) {
    CUresult result = ordered(&fake_orders.fail_free);
    if (result == CUDA_SUCCESS && fake_orders.captures && !fake_is_relaxed())
        result = CUDA_ERROR_NOT_PERMITTED;
    if (result != CUDA_SUCCESS || address == 0)
        return result;
    if (address < BASE || address >= BASE + BLOCKS * BLOCK)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    struct block *block = &blocks[(address - BASE) / BLOCK];
    unsigned at = (unsigned)((address - BASE) % BLOCK / 512);
    CUcontext context = block->context;
    unsigned blocks_freed = 0;
    if (context == NULL || (block->packed ? block->lengths[at] == 0 : address % BLOCK != 0)) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (block->packed) {
        memset(block->taken + at, 0, block->lengths[at]);
        block->lengths[at] = 0;
        blocks_freed = --block->live == 0;
    } else {
        blocks_freed = block->follow + 1;
    }
    for (unsigned i = 0; i < blocks_freed; i++) {
        memset(&block[i], 0, sizeof block[i]);
        physical[context->device].now -= BLOCK;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

CUresult fake_free_unseen(CUdeviceptr address) {
    return SELF(cuMemFree_v2)(address);
}

/* Memory of another process takes nothing of the device. */
CUresult FAKE(cuIpcOpenMemHandle_v2)(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags) {
    (void)handle, (void)flags;
    *address = fake_orders.opened[0];
    return CUDA_SUCCESS;
}

CUresult FAKE(cuIpcCloseMemHandle)(CUdeviceptr address) {
    (void)address;
    call_in_end();
    return ordered(&fake_orders.fail_free);
}

CUresult FAKE(cuMemGetAddressRange_v2)(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
    (void)base, (void)address;
    *size = fake_orders.opened[1];
    return CUDA_SUCCESS;
}

/* External memory and pools of other processes take nothing of the device either. What is mapped lies where
 * `fake_orders.opened` says. */
CUresult FAKE(cuImportExternalMemory)(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *from) {
    *memory = (CUexternalMemory)&physical[from->type];
    return CUDA_SUCCESS;
}

CUresult FAKE(cuExternalMemoryGetMappedBuffer)(CUdeviceptr *address, CUexternalMemory memory,
                                               const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *wanted) {
    (void)memory, (void)wanted;
    *address = fake_orders.opened[0];
    return CUDA_SUCCESS;
}

CUresult FAKE(cuDestroyExternalMemory)(CUexternalMemory memory) {
    (void)memory;
    call_in_end();
    return ordered(&fake_orders.fail_free);
}

CUresult FAKE(cuMemPoolImportFromShareableHandle)(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type,
                                                  unsigned long long flags) {
    (void)handle, (void)type, (void)flags;
    *pool = (CUmemoryPool)&physical[0];
    return CUDA_SUCCESS;
}

CUresult FAKE(cuMemPoolImportPointer)(CUdeviceptr *address, CUmemoryPool pool, CUmemPoolPtrExportData *data) {
    (void)pool, (void)data;
    *address = fake_orders.opened[0];
    return CUDA_SUCCESS;
}

CUresult FAKE(cuMemPoolDestroy)(CUmemoryPool pool) {
    (void)pool;
    call_in_end();
    return ordered(&fake_orders.fail_free);
}

/* Only their addresses are of use. */
CUresult FAKE(cuMemAlloc)(CUdeviceptr_v1 *address, unsigned int size) {
    (void)address, (void)size;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult FAKE(cuMemAllocPitch)(CUdeviceptr_v1 *address, unsigned int *pitch, unsigned int width, unsigned int height,
                               unsigned int element) {
    (void)address, (void)pitch, (void)width, (void)height, (void)element;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult FAKE(cuMemFree)(CUdeviceptr_v1 address) {
    (void)address;
    return CUDA_ERROR_NOT_FOUND;
}

CUresult FAKE(cuMemGetInfo_v2)(size_t *free, size_t *total) {
    if (current() == NULL)
        return initialised ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_NOT_INITIALIZED;
    if (!current()->used)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *total = FAKE_DEVICE_BYTES;
    *free = FAKE_DEVICE_BYTES - fake_physical(current()->device);
    return CUDA_SUCCESS;
}

CUresult FAKE(cuMemGetInfo)(unsigned int *free, unsigned int *total) {
    size_t whole_free, whole_total;
    CUresult result = SELF(cuMemGetInfo_v2)(&whole_free, &whole_total);
    if (result == CUDA_SUCCESS) {
        *free = whole_free > UINT32_MAX ? UINT32_MAX : (unsigned int)whole_free;
        *total = whole_total > UINT32_MAX ? UINT32_MAX : (unsigned int)whole_total;
    }
    return result;
}

/* --- modules and libraries ---------------------------------------------------------------------------------------- */

static void *new_image(bool library, struct image *of) {
    static const int local[FAKE_KERNELS] = FAKE_LOCAL_BYTES;
    for (int i = 0; i < IMAGES; i++) {
        if (images[i].used)
            continue;
        images[i] = (struct image){.used = true, .library = library, .of = of, .context = library ? NULL : current()};
        for (int k = 0; k < FAKE_KERNELS; k++)
            images[i].functions[k] = (struct CUfunc_st){local[k], library};
        if (current() != NULL) {
            images[i].device = current()->device;
            images[i].blocks = fake_orders.image_blocks;
            take(images[i].device, images[i].blocks * BLOCK);
        }
        fake_orders.image_blocks = 0;
        return &images[i];
    }
    return NULL;
}

static void end_image(struct image *image) {
    if (image->used)
        physical[image->device].now -= image->blocks * BLOCK;
    image->used = false;
}

static void call_in_image(void) {
    void (*in_image)(void) = fake_orders.in_image;
    fake_orders.in_image = NULL;
    if (in_image != NULL)
        in_image();
}

CUresult FAKE(cuModuleLoadData)(CUmodule *module, const void *image) {
    call_in_image();
    *module = new_image(false, NULL);
    return *module != NULL && image != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult FAKE(cuModuleUnload)(CUmodule module) {
    CUresult result = ordered(&fake_orders.fail_unload);
    if (result == CUDA_SUCCESS)
        end_image((struct image *)module);
    return result;
}

CUresult FAKE(cuLibraryLoadData)(CUlibrary *library, const void *code, CUjit_option *jit, void **jit_values,
                                 unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count) {
    (void)code, (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    call_in_image();
    *library = new_image(true, NULL);
    return *library != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult FAKE(cuLibraryUnload)(CUlibrary library) {
    call_in_end();
    CUresult result = ordered(&fake_orders.fail_unload);
    for (int i = 0; i < IMAGES && result == CUDA_SUCCESS; i++)
        if (&images[i] == (struct image *)library || images[i].of == (struct image *)library)
            end_image(&images[i]);
    return result;
}

CUresult FAKE(cuLibraryGetModule)(CUmodule *module, CUlibrary library) {
    *module = new_image(false, (struct image *)library);
    return *module != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult named(struct image *image, const char *name, CUfunction *function) {
    unsigned kernel = (unsigned)name[1] - '0';
    if (name[0] != 'k' || kernel >= FAKE_KERNELS)
        return CUDA_ERROR_NOT_FOUND;
    *function = &image->functions[kernel];
    return CUDA_SUCCESS;
}

CUresult FAKE(cuModuleGetFunction)(CUfunction *function, CUmodule module, const char *name) {
    if (function == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = named((struct image *)module, name, function);
    call_in_image();
    if (result == CUDA_SUCCESS)
        (*function)->loaded = true;
    return result;
}

CUresult FAKE(cuLibraryGetKernel)(CUkernel *kernel, CUlibrary library, const char *name) {
    call_in_image();
    return kernel == NULL ? CUDA_ERROR_INVALID_VALUE : named((struct image *)library, name, (CUfunction *)kernel);
}

/* Into the current context, as the first launch would. The kernel is the library's whatever its context. */
CUresult FAKE(cuKernelGetFunction)(CUfunction *function, CUkernel kernel) {
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

CUresult FAKE(cuModuleGetGlobal_v2)(CUdeviceptr *address, size_t *size, CUmodule module, const char *name) {
    (void)module, (void)name;
    *address = BASE;
    *size = fake_orders.variable_bytes;
    return CUDA_SUCCESS;
}

CUresult FAKE(cuLibraryGetGlobal)(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name) {
    return SELF(cuModuleGetGlobal_v2)(address, size, (CUmodule)library, name);
}

CUresult FAKE(cuModuleGetFunctionCount)(unsigned int *count, CUmodule module) {
    (void)module;
    *count = FAKE_KERNELS;
    return CUDA_SUCCESS;
}

CUresult FAKE(cuLibraryGetKernelCount)(unsigned int *count, CUlibrary library) {
    (void)library;
    *count = FAKE_KERNELS;
    return CUDA_SUCCESS;
}

CUresult FAKE(cuModuleEnumerateFunctions)(CUfunction *functions, unsigned int count, CUmodule module) {
    for (unsigned i = 0; i < count && i < FAKE_KERNELS; i++)
        functions[i] = &((struct image *)module)->functions[i];
    return CUDA_SUCCESS;
}

CUresult FAKE(cuLibraryEnumerateKernels)(CUkernel *kernels, unsigned int count, CUlibrary library) {
    return SELF(cuModuleEnumerateFunctions)((CUfunction *)kernels, count, (CUmodule)library);
}

CUresult FAKE(cuFuncLoad)(CUfunction function) {
    function->loaded = true;
    return CUDA_SUCCESS;
}

CUresult FAKE(cuFuncGetAttribute)(int *value, CUfunction_attribute attribute, CUfunction function) {
    if (attribute != CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES || !function->loaded)
        return CUDA_ERROR_NOT_FOUND;
    *value = function->local;
    return CUDA_SUCCESS;
}

CUresult FAKE(cuKernelGetAttribute)(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) {
    (void)device;
    return SELF(cuFuncGetAttribute)(value, attribute, (CUfunction)kernel);
}

CUresult FAKE(cuDeviceGetCount)(int *count) {
    *count = FAKE_DEVICES;
    return CUDA_SUCCESS;
}

CUresult FAKE(cuDeviceGetAttribute)(int *value, CUdevice_attribute attribute, CUdevice device) {
    (void)device;
    if (attribute == CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)
        *value = fake_orders.pageable;
    else
        *value = attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? FAKE_THREADS / 2048 : 2048;
    return CUDA_SUCCESS;
}

/* Of managed memory, but for the device and whose pool's it is. */
CUresult FAKE(cuPointerGetAttribute)(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
        *(int *)value = 0;
        return CUDA_SUCCESS;
    }
#ifndef FAKE_DRIVER_LIBRARY
    if (attribute == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) {
        *(CUmemoryPool *)value = fake_pool_at(address);
        return CUDA_SUCCESS;
    }
#endif
    if (address - fake_orders.managed[0] >= fake_orders.managed[1])
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)value = 1;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)value = fake_orders.managed[0];
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)value = fake_orders.managed[1];
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

size_t fake_prefetched;

CUresult FAKE(cuMemPrefetchBatchAsync)(CUdeviceptr *addresses, size_t *sizes, size_t count, CUmemLocation *locations,
                                       size_t *firsts, size_t locations_count, unsigned long long flags,
                                       CUstream stream) {
    (void)addresses, (void)sizes, (void)locations, (void)firsts, (void)locations_count, (void)flags, (void)stream;
    fake_prefetched += count;
    return CUDA_SUCCESS;
}

CUresult FAKE(cuCtxGetLimit)(size_t *value, CUlimit limit) {
    *value = limit == CU_LIMIT_STACK_SIZE ? FAKE_FIRST_LOCAL_BYTES : 0;
    return current() != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult fake_launch(CUfunction function) {
    CUcontext context = current();
    for (int i = 0; i < IMAGES; i++)
        if (function >= images[i].functions && function < images[i].functions + FAKE_KERNELS &&
            (!images[i].used || (!images[i].library && images[i].context != context)))
            return CUDA_ERROR_NOT_FOUND;
    uint64_t before = local_of(context);
    if ((uint64_t)function->local > context->local)
        context->local = (uint64_t)function->local;
    take(context->device, local_of(context) - before);
    return CUDA_SUCCESS;
}

/* --- checkpoints of processes ------------------------------------------------------------------------------------- */

int fake_checkpointed, fake_restored;

CUresult FAKE(cuCheckpointProcessCheckpoint)(int process, CUcheckpointCheckpointArgs *wanted) {
    (void)wanted;
    fake_checkpointed = process;
    return CUDA_SUCCESS;
}

CUresult FAKE(cuCheckpointProcessRestore)(int process, CUcheckpointRestoreArgs *wanted) {
    (void)wanted;
    fake_restored = process;
    return CUDA_SUCCESS;
}

/* --- cuGetProcAddress --------------------------------------------------------------------------------------------- */

typedef void (*any_function)(void);

CUresult FAKE(cuGetProcAddress)(const char *symbol, void **function, int version, cuuint64_t flags);
CUresult FAKE(cuGetProcAddress_v2)(const char *symbol, void **function, int version, cuuint64_t flags,
                                   CUdriverProcAddressQueryResult *status);

/* Places to answer with that no dlsym finds. Nobody calls them. */
static char trampolines[128], fresh[1 << 16];

static void newer_pitch(void) {
}
static void newer_synchronize(void) {
}

static const struct {
    const char *symbol, *name;
    int since;
    any_function function;
} functions[] = {
#define F(symbol, name, since)                                                                                         \
    { #symbol, name, since, (any_function)SELF(symbol) }
    F(cuInit, "cuInit", 2000),
    F(cuDriverGetVersion, "cuDriverGetVersion", 2020),
    F(cuDeviceGetUuid_v2, "cuDeviceGetUuid", 11040),
    F(cuDeviceTotalMem, "cuDeviceTotalMem", 2000),
    F(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020),
    F(cuCtxGetCurrent, "cuCtxGetCurrent", 4000),
    F(cuCtxSetCurrent, "cuCtxSetCurrent", 4000),
    F(cuCtxGetDevice, "cuCtxGetDevice", 2000),
    F(cuCtxPushCurrent_v2, "cuCtxPushCurrent", 4000),
    F(cuCtxPopCurrent_v2, "cuCtxPopCurrent", 4000),
    F(cuCtxCreate, "cuCtxCreate", 2000),
    F(cuCtxCreate_v2, "cuCtxCreate", 3020),
    F(cuCtxCreate_v3, "cuCtxCreate", 11040),
    F(cuCtxDestroy, "cuCtxDestroy", 2000),
    F(cuCtxDestroy_v2, "cuCtxDestroy", 4000),
    F(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000),
    F(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 7000),
    F(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000),
    F(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000),
    F(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000),
    F(cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", 7000),
    F(cuMemAlloc, "cuMemAlloc", 2000),
    F(cuMemAlloc_v2, "cuMemAlloc", 3020),
    F(cuMemAllocPitch, "cuMemAllocPitch", 2000),
    F(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020),
    F(cuMemAllocManaged, "cuMemAllocManaged", 6000),
    F(cuMemFree, "cuMemFree", 2000),
    F(cuMemFree_v2, "cuMemFree", 3020),
    F(cuMemGetAddressRange_v2, "cuMemGetAddressRange", 3020),
    F(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000),
    F(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010),
    F(cuImportExternalMemory, "cuImportExternalMemory", 10000),
    F(cuExternalMemoryGetMappedBuffer, "cuExternalMemoryGetMappedBuffer", 10000),
    F(cuDestroyExternalMemory, "cuDestroyExternalMemory", 10000),
    F(cuMemPoolImportFromShareableHandle, "cuMemPoolImportFromShareableHandle", 11020),
    F(cuMemPoolImportPointer, "cuMemPoolImportPointer", 11020),
    F(cuMemPoolDestroy, "cuMemPoolDestroy", 11020),
    F(cuMemGetInfo, "cuMemGetInfo", 2000),
    F(cuMemGetInfo_v2, "cuMemGetInfo", 3020),
    F(cuModuleLoadData, "cuModuleLoadData", 2000),
    F(cuModuleUnload, "cuModuleUnload", 2000),
    F(cuModuleGetFunction, "cuModuleGetFunction", 2000),
    F(cuModuleGetGlobal_v2, "cuModuleGetGlobal", 3020),
    F(cuKernelGetFunction, "cuKernelGetFunction", 12000),
    F(cuModuleGetFunctionCount, "cuModuleGetFunctionCount", 12040),
    F(cuModuleEnumerateFunctions, "cuModuleEnumerateFunctions", 12040),
    F(cuLibraryLoadData, "cuLibraryLoadData", 12000),
    F(cuLibraryUnload, "cuLibraryUnload", 12000),
    F(cuLibraryGetGlobal, "cuLibraryGetGlobal", 12000),
    F(cuLibraryGetModule, "cuLibraryGetModule", 12000),
    F(cuLibraryGetKernel, "cuLibraryGetKernel", 12000),
    F(cuLibraryGetKernelCount, "cuLibraryGetKernelCount", 12040),
    F(cuLibraryEnumerateKernels, "cuLibraryEnumerateKernels", 12040),
    F(cuFuncLoad, "cuFuncLoad", 12040),
    F(cuFuncGetAttribute, "cuFuncGetAttribute", 2020),
    F(cuKernelGetAttribute, "cuKernelGetAttribute", 12000),
    F(cuDeviceGetCount, "cuDeviceGetCount", 2000),
    F(cuDeviceGetAttribute, "cuDeviceGetAttribute", 2000),
    F(cuPointerGetAttribute, "cuPointerGetAttribute", 4000),
    F(cuMemPrefetchBatchAsync, "cuMemPrefetchBatchAsync", 13000),
    F(cuCtxGetLimit, "cuCtxGetLimit", 3010),
    F(cuCheckpointProcessCheckpoint, "cuCheckpointProcessCheckpoint", 12080),
    F(cuCheckpointProcessRestore, "cuCheckpointProcessRestore", 12080),
    F(cuGetProcAddress, "cuGetProcAddress", 11030),
    F(cuGetProcAddress_v2, "cuGetProcAddress", 12000),
    {"cuMemAllocPitch_v3", "cuMemAllocPitch", FAKE_NEWER, newer_pitch},
    {"cuCtxSynchronize_v3", "cuCtxSynchronize", FAKE_NEWER, newer_synchronize},
#undef F
};

#define FUNCTIONS (sizeof functions / sizeof functions[0])

CUresult FAKE(cuGetProcAddress_v2)(const char *symbol, void **function, int version, cuuint64_t flags,
                                   CUdriverProcAddressQueryResult *status) {
    static _Atomic unsigned given;
    unsigned best = FUNCTIONS;
    CUdriverProcAddressQueryResult unwanted;
    if (status == NULL)
        status = &unwanted;
    if (symbol == NULL || function == NULL || flags > 2)
        return CUDA_ERROR_INVALID_VALUE;
    *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    *function = NULL;
    for (unsigned i = 0; i < FUNCTIONS; i++) {
        if (strcmp(functions[i].name, symbol) != 0)
            continue;
        *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        if (functions[i].since <= version)
            best = i;
    }
    if (best == FUNCTIONS)
        return CUDA_ERROR_NOT_FOUND;
    *status = CU_GET_PROC_ADDRESS_SUCCESS;
    *function = (void *)functions[best].function;
    if (fake_orders.answers == FAKE_TRAMPOLINES)
        *function = &trampolines[best];
    if (fake_orders.answers == FAKE_NEVER_TWICE)
        *function = &fresh[given++ % sizeof fresh];
    return CUDA_SUCCESS;
}

CUresult FAKE(cuGetProcAddress)(const char *symbol, void **function, int version, cuuint64_t flags) {
    CUdriverProcAddressQueryResult status;
    return SELF(cuGetProcAddress_v2)(symbol, function, version, flags, &status);
}

#ifndef FAKE_DRIVER_LIBRARY
void *real_lookup(const char *soname, const char *name) {
    (void)soname;
    if (fake_orders.answers == FAKE_BEFORE_12 && strcmp(name, "cuGetProcAddress_v2") == 0)
        return NULL;
    for (unsigned i = 0; i < FUNCTIONS; i++)
        if (strcmp(functions[i].symbol, name) == 0)
            return (void *)functions[i].function;
    void *function = fake_streams_lookup(name);
    return function != NULL ? function : fake_graphs_lookup(name);
}

CUcontext fake_current(void) {
    return current();
}

void fake_take(CUdevice device, int64_t bytes) {
    pthread_mutex_lock(&mutex);
    take(device, (uint64_t)bytes);
    pthread_mutex_unlock(&mutex);
}
#endif
