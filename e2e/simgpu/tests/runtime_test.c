/* What NVIDIA's runtime library does with the driver that no documentation tells: private tables, and what it asks for. */
#include <stdio.h>
#include <string.h>

#include "harness.h"

typedef CUresult load_function(CUmodule *module, const void *wrapper);
typedef CUresult primary_function(CUcontext *context, CUdevice device);
typedef CUresult load_header_function(const void *header, CUmodule *module, void *, void *, unsigned int);
typedef CUresult put_function(CUcontext context, void *key, void *value, void (*gone)(CUcontext, void *, void *));
typedef CUresult delete_function(CUcontext context, void *key);
typedef CUresult get_function(void **value, CUcontext context, void *key);

/* Slots of the runtime's interface and of the storage; the first slot of the interface is its size. */
enum { SLOT_LOAD = 1, SLOT_PRIMARY = 2, SLOT_LOAD_HEADER = 8 };
enum { SLOT_PUT, SLOT_DELETE, SLOT_GET };

static const unsigned char interface_id[] = "\x6b\xd5\xfb\x6c\x5b\xf4\xe7\x4a\x89\x87\xd9\x39\x12\xfd\x9d\xf9",
                           storage_id[] = "\xc6\x93\x33\x6e\x11\x21\xdf\x11\xa8\xc3\x68\xf3\x55\xd8\x95\x93",
                           validity_id[] = "\xd4\x08\x20\x55\xbd\xe6\x70\x4b\x8d\x34\xba\x12\x3c\x66\xe1\xf2";

static CUresult find_table(const unsigned char id[16], void *const **table) {
    CUuuid uuid;

    memcpy(uuid.bytes, id, sizeof(uuid.bytes));
    return cuGetExportTable((const void **)table, &uuid);
}

static void *slot_of(const unsigned char id[16], int slot) {
    void *const *table = NULL;

    OK(find_table(id, &table));
    return table != NULL ? table[slot] : NULL;
}

static void tables_are_as_long_as_the_drivers(void) {
    void *const *table = NULL;

    OK(find_table(interface_id, &table));
    CHECK_INT((uintptr_t)table[0], 12 * sizeof(void *));
    table = (void *const *)&table;
    CHECK_INT(find_table(validity_id, &table), CUDA_ERROR_INVALID_VALUE);
    CHECK(table == NULL);
    CHECK_INT(cuGetExportTable(NULL, (const CUuuid *)interface_id), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuGetExportTable((const void **)&table, NULL), CUDA_ERROR_INVALID_VALUE);
}

static void a_primary_contexts_handle_takes_nothing(void) {
    primary_function *primary;
    CUcontext handle = NULL, again = NULL, retained = NULL;
    unsigned flags;
    int active = 1;

    OK(cuInit(0));
    *(void **)&primary = slot_of(interface_id, SLOT_PRIMARY);
    CHECK_INT(primary(&handle, 9), CUDA_ERROR_INVALID_DEVICE);
    CHECK_INT(primary(NULL, 0), CUDA_ERROR_INVALID_VALUE);
    OK(primary(&handle, 0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK_INT(active, 0);
    CHECK_INT(look("").used[0], 0);
    CHECK(cuCtxSetCurrent(handle) != CUDA_SUCCESS);
    OK(cuDevicePrimaryCtxRetain(&retained, 0));
    OK(primary(&again, 0));
    CHECK(handle != NULL && handle == retained && handle == again);
    CHECK_INT(look("").used[0], GPU0_CONTEXT);
    OK(cuCtxSetCurrent(handle));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    CHECK_INT(look("").used[0], 0);
}

static void a_primary_context_may_come_active(void) {
    primary_function *primary;
    CUcontext handle = NULL;

    node_add_to_topology("private_context = active");
    OK(cuInit(0));
    *(void **)&primary = slot_of(interface_id, SLOT_PRIMARY);
    OK(primary(&handle, 0));
    CHECK_INT(look("").used[0], GPU0_CONTEXT);
    OK(cuCtxSetCurrent(handle));
    OK(cuCtxSynchronize());
    OK(cuDevicePrimaryCtxReset_v2(0));
    CHECK_INT(look("").used[0], 0);
}

static void *gone_key, *gone_value;
static CUcontext gone_context;
static int gone_count;

/* Which may call the driver: nothing is locked. */
static void note_gone(CUcontext context, void *key, void *value) {
    CUcontext current;

    OK(cuCtxGetCurrent(&current));
    gone_context = context;
    gone_key = key;
    gone_value = value;
    gone_count++;
}

static void what_is_stored_goes_with_its_context(void) {
    put_function *put;
    delete_function *forget;
    get_function *get;
    int keys[3], values[3];
    void *value = NULL;
    CUcontext own;

    OK(cuInit(0));
    *(void **)&put = slot_of(storage_id, SLOT_PUT);
    *(void **)&forget = slot_of(storage_id, SLOT_DELETE);
    *(void **)&get = slot_of(storage_id, SLOT_GET);
    CHECK_INT(put(NULL, &keys[0], &values[0], NULL), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuCtxCreate_v2(&own, 0, 0));
    OK(put(NULL, &keys[0], &values[0], note_gone));
    OK(put(own, &keys[1], &values[1], NULL));
    OK(get(&value, own, &keys[0]));
    CHECK(value == &values[0]);
    OK(put(own, &keys[0], &values[2], note_gone)); /* in its place */
    OK(get(&value, NULL, &keys[0]));
    CHECK(value == &values[2]);
    CHECK_INT(get(&value, own, &keys[2]), CUDA_ERROR_INVALID_HANDLE);
    OK(put(own, &keys[2], &values[0], note_gone));
    OK(forget(own, &keys[2]));
    CHECK_INT(get(&value, own, &keys[2]), CUDA_ERROR_INVALID_HANDLE);
    CHECK_INT(gone_count, 0);
    OK(cuCtxDestroy_v2(own));
    CHECK_INT(gone_count, 1);
    CHECK(gone_context == own && gone_key == &keys[0] && gone_value == &values[2]);
    OK(cuDevicePrimaryCtxRetain(&own, 1));
    OK(put(own, &keys[0], &values[0], note_gone));
    OK(cuDevicePrimaryCtxReset_v2(1));
    CHECK_INT(gone_count, 2);
}

/* As nvcc leaves them in a program: a fat binary, and what refers to it. */
static void modules_are_loaded_through_private_slots(void) {
    static const char ptx[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry k() { ret; }\n";
    static struct {
        uint32_t magic;
        uint16_t version, header_bytes;
        uint64_t content_bytes;
        uint16_t kind, entry_version;
        uint32_t entry_header_bytes;
        uint64_t entry_bytes;
        uint32_t unused[12];
        char text[sizeof(ptx)];
    } __attribute__((packed)) fat = {0xba55ed50, 1, 16, 0, 1, 0x101, 64, sizeof(ptx), {0}, {0}};
    const struct {
        uint32_t magic, version;
        const void *data;
        void *unused;
    } wrapper = {0x466243b1, 1, &fat, NULL};
    load_function *load;
    load_header_function *load_header;
    CUmodule module = NULL, other = NULL;
    CUfunction function;

    memcpy(fat.text, ptx, sizeof(ptx));
    fat.entry_header_bytes = (uint32_t)(sizeof(fat) - 16 - sizeof(fat.text));
    fat.content_bytes = sizeof(fat) - 16;
    context_on(0);
    *(void **)&load = slot_of(interface_id, SLOT_LOAD);
    *(void **)&load_header = slot_of(interface_id, SLOT_LOAD_HEADER);
    OK(load(&module, &wrapper));
    OK(cuModuleGetFunction(&function, module, "k"));
    OK(load_header(&fat, &other, NULL, NULL, 0));
    OK(cuModuleGetFunction(&function, other, "k"));
    OK(cuModuleUnload(module));
    OK(cuModuleUnload(other));
}

/* asked.txt is what the runtime libraries of CUDA 11.2, 11.8 and 12.4 ask for: e2e/cudart/asked_test.sh. */
static void all_that_the_runtime_asks_for_is_there(void) {
    FILE *list = fopen("e2e/cudart/asked.txt", "re");
    char line[200], name[100];
    unsigned long long flags;
    int version, asked = 0;

    CHECK(list != NULL);
    while (list != NULL && fgets(line, sizeof(line), list) != NULL) {
        CUdriverProcAddressQueryResult status;
        void *function = NULL;

        if (sscanf(line, "function %99s %d %llu", name, &version, &flags) != 3)
            continue;
        asked++;
        OK(cuGetProcAddress_v2(name, &function, version, flags, &status));
        if (function == NULL)
            check_failed(__FILE__, __LINE__, "%s of %d is not there", name, version);
    }
    CHECK(asked > 400);
    if (list != NULL)
        fclose(list);
}

const struct test runtime_tests[] = {
    {"tables are as long as the driver's", tables_are_as_long_as_the_drivers},
    {"a primary context's handle takes nothing", a_primary_contexts_handle_takes_nothing},
    {"a primary context may come active", a_primary_context_may_come_active},
    {"what is stored goes with its context", what_is_stored_goes_with_its_context},
    {"modules are loaded through private slots", modules_are_loaded_through_private_slots},
    {"all that the runtime asks for is there", all_that_the_runtime_asks_for_is_there},
    {0},
};
