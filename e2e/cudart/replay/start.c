/*
 * The start of the runtime: it finds all functions of the driver, initialises it, gets the private tables and all devices.
 * The last table that it asks for, by which it tests whether driver and runtime are NVIDIA's own, is left out.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

struct replay_driver driver;
struct replay_device devices[MAX_DEVICES];
int device_count;

static pthread_mutex_t telling = PTHREAD_MUTEX_INITIALIZER;

CUresult told(const char *call, CUresult result) {
    pthread_mutex_lock(&telling);
    fprintf(stderr, "%s %d\n", call, result);
    pthread_mutex_unlock(&telling);
    return result;
}

/* ---- Functions ---- */

typedef CUresult ask_function(const char *name, void **function, int version, cuuint64_t flags);
typedef CUresult ask_v2_function(const char *name, void **function, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *status);

static struct {
    void *library;
    int version;         /* the runtime's */
    ask_function *ask;   /* from 11.3 on */
    ask_v2_function *v2; /* from 12.0 on */
} source;

static void *ask(const char *name, int version, cuuint64_t flags) {
    CUdriverProcAddressQueryResult status;
    void *function = NULL;

    if (source.v2 != NULL)
        source.v2(name, &function, version, flags, &status);
    else if (source.ask(name, &function, version, flags) != CUDA_SUCCESS)
        function = NULL;
    return function;
}

/* One line of asked.txt, if a runtime of this version asks so. What is not there is written. */
static void ask_for_line(const char *line) {
    char name[100];
    unsigned long long flags;
    int version;
    void *function = NULL;

    if (source.ask == NULL && sscanf(line, "symbol %99s", name) == 1)
        function = dlsym(source.library, name);
    else if (source.ask == NULL || sscanf(line, "function %99s %d %llu", name, &version, &flags) != 3 ||
             version > source.version)
        return;
    else
        function = ask(name, version, flags);
    if (function == NULL)
        fprintf(stderr, "no %s", line);
}

static CUresult ask_for_all(void) {
    FILE *list = fopen("e2e/cudart/asked.txt", "re");
    char line[200];

    if (list == NULL)
        return CUDA_ERROR_FILE_NOT_FOUND;
    while (fgets(line, sizeof(line), list) != NULL)
        ask_for_line(line);
    fclose(list);
    return CUDA_SUCCESS;
}

static void *find(const char *name, const char *symbol, int version) {
    return source.ask != NULL ? ask(name, version, 0) : dlsym(source.library, symbol);
}

#define FIND(name, symbol, version)                                                                                    \
    *(void **)&driver.name = find(#name, #symbol, version);                                                            \
    if (driver.name == NULL)                                                                                           \
        return CUDA_ERROR_NOT_FOUND;

static CUresult find_used(void) {
    REPLAY_FUNCTIONS(FIND)
    if (source.version >= 11070) {
        REPLAY_FUNCTIONS_11_7(FIND)
    }
    if (source.version >= 12000) {
        REPLAY_FUNCTIONS_12_0(FIND)
    }
    return CUDA_SUCCESS;
}

static CUresult find_functions(int version) {
    source.library = dlopen("libcuda.so.1", RTLD_NOW);
    source.version = version;
    if (source.library == NULL)
        return CUDA_ERROR_NO_DEVICE;
    if (version >= 11030)
        *(void **)&source.ask = dlsym(source.library, "cuGetProcAddress");
    if (version >= 12000)
        *(void **)&source.v2 = dlsym(source.library, "cuGetProcAddress_v2");
    if ((version >= 11030 && source.ask == NULL) || (version >= 12000 && source.v2 == NULL))
        return CUDA_ERROR_NOT_FOUND;
    TRY(ask_for_all());
    return find_used();
}

/* ---- Private tables ---- */

#define ID_INTERFACE "\x6b\xd5\xfb\x6c\x5b\xf4\xe7\x4a\x89\x87\xd9\x39\x12\xfd\x9d\xf9"
#define ID_TOOLS "\xa0\x94\x79\x8c\x2e\x74\x2e\x74\x93\xf2\x08\x00\x20\x0c\x0a\x66"
#define ID_TOOLS_THREADS "\x42\xd8\x5a\x81\x23\xf6\xcb\x47\x82\x98\xf6\xe7\x8a\x3a\xec\xdc"
#define ID_STORAGE "\xc6\x93\x33\x6e\x11\x21\xdf\x11\xa8\xc3\x68\xf3\x55\xd8\x95\x93"
#define ID_CONTEXT_CHECKS "\x26\x3e\x88\x60\x7c\xd2\x61\x43\x92\xf6\xbb\xd5\x00\x6d\xfa\x7e"

typedef void hooks_function(void **buffer, size_t *size);
typedef unsigned check_function(void);

static CUresult get_table(const char *id, void *const **table) {
    CUuuid uuid;

    memcpy(uuid.bytes, id, sizeof(uuid.bytes));
    return TELL(cuGetExportTable, (const void **)table, &uuid);
}

static CUresult get_first_tables(void *const **tools) {
    void *const *interface;

    TRY(get_table(ID_INTERFACE, &interface));
    *(void **)&driver.load = interface[1];
    *(void **)&driver.primary = interface[2];
    *(void **)&driver.load_with_options = interface[6];
    *(void **)&driver.load_header = interface[8];
    return get_table(ID_TOOLS, tools);
}

static void get_hooks(void *const *tools) {
    hooks_function *first, *further;
    void *buffer;
    size_t size;

    *(void **)&first = tools[2];
    *(void **)&further = tools[6];
    first(&buffer, &size);
    further(&buffer, &size);
}

static CUresult get_last_tables(void) {
    void *const *table;
    check_function *check;

    TRY(get_table(ID_TOOLS_THREADS, &table));
    TRY(get_table(ID_STORAGE, &table));
    *(void **)&driver.put = table[0];
    *(void **)&driver.get = table[2];
    if (source.version < 12000)
        return CUDA_SUCCESS;
    TRY(get_table(ID_CONTEXT_CHECKS, &table));
    *(void **)&check = table[3];
    return check() == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- Devices ---- */

enum { ATTRIBUTES = 95 };

static CUresult get_device(int index, struct replay_device *device) {
    size_t total;
    CUuuid uuid;
    char name[256];
    int value;

    TRY(TELL(cuDeviceGet, &device->device, index));
    TRY(told("the primary context", driver.primary(&device->primary, device->device)));
    TRY(TELL(cuDeviceGetName, name, sizeof(name), device->device));
    TRY(TELL(cuDeviceTotalMem, &total, device->device));
    for (int attribute = 1; attribute <= ATTRIBUTES; attribute++)
        driver.cuDeviceGetAttribute(&value, (CUdevice_attribute)attribute, device->device);
    return TELL(cuDeviceGetUuid, &uuid, device->device);
}

static CUresult get_devices(void) {
    TRY(TELL(cuDeviceGetCount, &device_count));
    if (device_count > MAX_DEVICES)
        device_count = MAX_DEVICES;
    for (int i = 0; i < device_count; i++)
        TRY(get_device(i, &devices[i]));
    return CUDA_SUCCESS;
}

CUresult runtime_start(int version) {
    CUmoduleLoadingMode mode;
    void *const *tools;
    int driver_version;

    TRY(find_functions(version));
    TRY(TELL(cuDriverGetVersion, &driver_version));
    TRY(TELL(cuInit, 0));
    TRY(get_first_tables(&tools));
    if (version >= 11070)
        TRY(TELL(cuModuleGetLoadingMode, &mode));
    TRY(get_devices());
    get_hooks(tools);
    return get_last_tables();
}
