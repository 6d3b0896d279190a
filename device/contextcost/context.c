#include "context.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The few declarations of the CUDA driver API that one context takes. */
typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct {
    char bytes[16];
} CUuuid;

struct driver {
    void *handle;
    CUresult (*init)(unsigned int flags);
    CUresult (*device_count)(int *count);
    CUresult (*device)(CUdevice *device, int ordinal);
    CUresult (*device_uuid)(CUuuid *uuid, CUdevice device);
    CUresult (*retain)(CUcontext *context, CUdevice device);
    CUresult (*error_name)(CUresult result, const char **name);
};

/* dlsym gives an object pointer; ISO C has no conversion to a function pointer, POSIX says that its bits are one. */
static int find(void *handle, const char *name, void *function, char *error, size_t error_size) {
    void *symbol = dlsym(handle, name);
    if (symbol == NULL) {
        snprintf(error, error_size, "the driver library has no %s: it is too old or broken", name);
        return -1;
    }
    memcpy(function, &symbol, sizeof symbol);
    return 0;
}

static int load(struct driver *driver, const char *path, char *error, size_t error_size) {
    driver->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (driver->handle == NULL) {
        snprintf(error, error_size, "load the driver library: %s", dlerror());
        return -1;
    }
    void *handle = driver->handle;
    if (find(handle, "cuInit", &driver->init, error, error_size) != 0 ||
        find(handle, "cuDeviceGetCount", &driver->device_count, error, error_size) != 0 ||
        find(handle, "cuDeviceGet", &driver->device, error, error_size) != 0 ||
        find(handle, "cuDevicePrimaryCtxRetain", &driver->retain, error, error_size) != 0 ||
        find(handle, "cuGetErrorName", &driver->error_name, error, error_size) != 0) {
        return -1;
    }
    /* Only the second version tells MIG instances apart; drivers before CUDA 11.4 have only the first. */
    if (find(handle, "cuDeviceGetUuid_v2", &driver->device_uuid, error, error_size) != 0 &&
        find(handle, "cuDeviceGetUuid", &driver->device_uuid, error, error_size) != 0) {
        return -1;
    }
    return 0;
}

static int failed(const struct driver *driver, const char *call, CUresult result, char *error, size_t error_size) {
    const char *name = NULL;
    if (driver->error_name(result, &name) != 0 || name == NULL) {
        name = "unknown";
    }
    snprintf(error, error_size, "%s gave %s (%d)", call, name, result);
    return -1;
}

/* Code has room in every context; so that this room is measured as well, some is loaded. A driver that does not take it shows a
 * context without: then a program's first module counts for itself. */
static void load_code(const struct driver *driver, CUcontext context) {
    static const char image[] = ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry tranche() { ret; }\n";
    CUresult (*set_current)(CUcontext);
    CUresult (*load_data)(void **, const void *);
    CUresult (*get_function)(void **, void *, const char *);
    char ignored[128];
    void *module = NULL, *function = NULL;
    if (find(driver->handle, "cuCtxSetCurrent", &set_current, ignored, sizeof ignored) != 0 ||
        find(driver->handle, "cuModuleLoadData", &load_data, ignored, sizeof ignored) != 0 ||
        find(driver->handle, "cuModuleGetFunction", &get_function, ignored, sizeof ignored) != 0) {
        return;
    }
    /* Asking for the function makes a driver load it that loads lazily. */
    if (set_current(context) == 0 && load_data(&module, image) == 0) {
        get_function(&function, module, "tranche");
    }
}

int tranche_make_context(const char *path, const unsigned char uuid[16], char *error, size_t error_size) {
    struct driver driver;
    if (load(&driver, path, error, error_size) != 0) {
        return -1;
    }
    CUresult result = driver.init(0);
    if (result != 0) {
        return failed(&driver, "cuInit", result, error, error_size);
    }
    int count = 0;
    result = driver.device_count(&count);
    if (result != 0) {
        return failed(&driver, "cuDeviceGetCount", result, error, error_size);
    }
    for (int i = 0; i < count; i++) {
        CUdevice device;
        CUuuid found;
        CUcontext context;
        if (driver.device(&device, i) != 0 || driver.device_uuid(&found, device) != 0 ||
            memcmp(found.bytes, uuid, sizeof found.bytes) != 0) {
            continue;
        }
        result = driver.retain(&context, device);
        if (result != 0) {
            return failed(&driver, "cuDevicePrimaryCtxRetain", result, error, error_size);
        }
        load_code(&driver, context);
        return 0;
    }
    snprintf(error, error_size, "CUDA sees %d GPUs, and none has that UUID", count);
    return -1;
}
