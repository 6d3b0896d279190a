/* Virtual memory management within one process, and multicast objects. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static CUmemAllocationProp on_device(int device) {
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

static CUmemGenericAllocationHandle create(int device, uint64_t size) {
    CUmemAllocationProp prop = on_device(device);
    CUmemGenericAllocationHandle handle = 0;

    OK(cuMemCreate(&handle, size, &prop, 0));
    return handle;
}

static CUdeviceptr reserve(uint64_t size) {
    CUdeviceptr address = 0;

    OK(cuMemAddressReserve(&address, size, 0, 0, 0));
    return address;
}

static CUresult allow(CUdeviceptr address, uint64_t size, int device, CUmemAccess_flags flags) {
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}, .flags = flags};

    return cuMemSetAccess(address, size, &access, 1);
}

static void memory_lives_as_long_as_anything_refers_to_it(void) {
    CUmemGenericAllocationHandle handle, again;
    CUdeviceptr address;

    OK(cuInit(0));
    handle = create(0, 6 * MIB);
    CHECK_INT(look("test").used[0], 6 * MIB);
    address = reserve(6 * MIB);
    CHECK_INT(look("test").used[0], 6 * MIB);
    OK(cuMemMap(address, 6 * MIB, 0, handle, 0));
    CHECK_INT(look("test").used[0], 6 * MIB);
    OK(cuMemRelease(handle));
    CHECK_INT(look("test").used[0], 6 * MIB);
    CHECK_INT(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(address + 5)));
    OK(cuMemUnmap(address, 6 * MIB));
    CHECK_INT(look("test").used[0], 6 * MIB);
    OK(cuMemRelease(again));
    CHECK_INT(look("test").used[0], 0);
    OK(cuMemAddressFree(address, 6 * MIB));
}

static void bad_calls_are_refused(void) {
    CUmemAllocationProp prop = on_device(0), bad;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address, other;
    size_t granularity;

    CHECK_INT(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_ERROR_NOT_INITIALIZED);
    OK(cuInit(0));
    OK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK_INT(granularity, 2 * MIB);
    CHECK_INT(cuMemCreate(&handle, 2 * MIB + 1, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemCreate(&handle, 0, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemCreate(&handle, 2 * MIB, &prop, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemCreate(NULL, 2 * MIB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    bad = on_device(2);
    CHECK_INT(cuMemCreate(&handle, 2 * MIB, &bad, 0), CUDA_ERROR_INVALID_DEVICE);
    bad = prop;
    bad.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    CHECK_INT(cuMemCreate(&handle, 2 * MIB, &bad, 0), CUDA_ERROR_INVALID_VALUE);
    bad = prop;
    bad.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
    CHECK_INT(cuMemCreate(&handle, 2 * MIB, &bad, 0), CUDA_ERROR_NOT_SUPPORTED);
    CHECK_INT(cuMemCreate(&handle, GPU0_BYTES + 2 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(cuMemAddressReserve(&address, 100, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemAddressReserve(&address, 2 * MIB, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);

    handle = create(0, 4 * MIB);
    address = reserve(8 * MIB);
    CHECK_INT(cuMemMap(address, 6 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemMap(address, 2 * MIB, 2 * MIB, handle, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemMap(address + 6 * MIB, 4 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemMap(address, 4 * MIB, 0, handle + 64, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemMap(address, 4 * MIB, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemMap(address, 4 * MIB, 0, handle, 0));
    CHECK_INT(cuMemMap(address + 2 * MIB, 4 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemAddressFree(address, 8 * MIB), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemUnmap(address, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemUnmap(address, 8 * MIB), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(allow(address, 8 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(allow(address, 4 * MIB, 5, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_ERROR_INVALID_DEVICE);
    OK(cuMemMap(address + 4 * MIB, 4 * MIB, 0, handle, 0));
    OK(cuMemUnmap(address, 8 * MIB));
    CHECK_INT(cuMemAddressFree(address, 4 * MIB), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressFree(address, 8 * MIB));
    CHECK_INT(cuMemAddressFree(address, 8 * MIB), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressReserve(&other, 64 * MIB, 32 * MIB, 0, 0));
    CHECK_INT(other % (32 * MIB), 0);
    OK(cuMemRelease(handle));
    CHECK_INT(look("test").used[0], 0);
}

static void access_is_what_was_set(void) {
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemGenericAllocationHandle handle;
    unsigned long long flags = 9;
    CUdeviceptr address;
    char byte = 0;

    context_on(0);
    handle = create(0, 2 * MIB);
    address = reserve(2 * MIB);
    CHECK_INT(cuMemGetAccess(&flags, &location, address), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemMap(address, 2 * MIB, 0, handle, 0));
    OK(cuMemGetAccess(&flags, &location, address));
    CHECK_INT(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    CHECK(cuMemcpyDtoH_v2(&byte, address, 1) != CUDA_SUCCESS);
    OK(allow(address, 2 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemGetAccess(&flags, &location, address + MIB));
    CHECK_INT(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(cuMemcpyDtoH_v2(&byte, address, 1));
    OK(allow(address, 2 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE));
    CHECK(cuMemcpyDtoH_v2(&byte, address, 1) != CUDA_SUCCESS);
    OK(cuMemUnmap(address, 2 * MIB));
    CHECK(cuMemcpyDtoH_v2(&byte, address, 1) != CUDA_SUCCESS);
}

/* Also after it was unmapped everywhere, and across the border between two mappings. */
static void all_mappings_show_the_same(void) {
    CUmemGenericAllocationHandle a, b;
    CUdeviceptr address;
    char text[16] = "";

    context_on(0);
    a = create(0, 2 * MIB);
    b = create(0, 2 * MIB);
    address = reserve(6 * MIB);
    OK(cuMemMap(address, 2 * MIB, 0, a, 0));
    OK(cuMemMap(address + 2 * MIB, 2 * MIB, 0, b, 0));
    OK(cuMemMap(address + 4 * MIB, 2 * MIB, 0, a, 0));
    OK(allow(address, 6 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemcpyHtoD_v2(address + 2 * MIB - 4, "12345678", 8));
    OK(cuMemcpyDtoH_v2(text, address + 6 * MIB - 4, 4));
    CHECK(strcmp(text, "1234") == 0);
    CHECK(cuMemcpyDtoH_v2(text, address + 6 * MIB - 4, 8) != CUDA_SUCCESS);
    OK(cuMemUnmap(address, 6 * MIB));
    OK(cuMemMap(address, 2 * MIB, 0, b, 0));
    OK(allow(address, 2 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
    OK(cuMemcpyDtoH_v2(text, address, 4));
    CHECK(strcmp(text, "5678") == 0);
}

static void contexts_come_and_go_without_it(void) {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address, plain;
    CUcontext context;
    char text[4] = "";

    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    handle = create(0, 4 * MIB);
    address = reserve(4 * MIB);
    OK(cuMemMap(address, 4 * MIB, 0, handle, 0));
    OK(allow(address, 4 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemcpyHtoD_v2(address, "abc", 4));
    OK(cuMemAlloc_v2(&plain, 10 * MIB));
    CHECK_INT(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxDestroy_v2(context));
    CHECK_INT(look("test").used[0], 4 * MIB);
    OK(cuCtxCreate_v2(&context, 0, 1));
    OK(cuMemcpyDtoH_v2(text, address, 4));
    CHECK(strcmp(text, "abc") == 0);
    CHECK_INT(look("test").used[1], GPU1_CONTEXT);
}

static void memory_of_the_host_takes_none_of_the_gpu(void) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 0}};
    CUmemAccessDesc host = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;

    OK(cuInit(0));
    OK(cuMemCreate(&handle, 8 * MIB, &prop, 0));
    address = reserve(8 * MIB);
    OK(cuMemMap(address, 8 * MIB, 0, handle, 0));
    OK(cuMemSetAccess(address, 8 * MIB, &host, 1));
    *(volatile char *)(uintptr_t)address = 1;
    CHECK_INT(look("test").used[0] + look("test").used[1], 0);
    OK(cuMemUnmap(address, 8 * MIB));
    handle = create(0, 8 * MIB);
    OK(cuMemMap(address, 8 * MIB, 0, handle, 0));
    CHECK_INT(cuMemSetAccess(address, 8 * MIB, &host, 1), CUDA_ERROR_INVALID_VALUE);
}

static void it_is_told_from_other_memory(void) {
    CUmemGenericAllocationHandle handle;
    unsigned capable = 9, type = 0;
    CUdeviceptr address, plain, base;
    int supported = 0, ordinal = -1;
    size_t size;

    context_on(0);
    OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    CHECK_INT(supported, 1);
    OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 1));
    CHECK_INT(supported, 0);
    handle = create(1, 4 * MIB);
    address = reserve(4 * MIB);
    OK(cuMemMap(address, 4 * MIB, 0, handle, 0));
    OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address));
    CHECK_INT(capable, 0);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
    CHECK_INT(type, CU_MEMORYTYPE_DEVICE);
    OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address));
    CHECK_INT(ordinal, 1);
    OK(cuMemGetAddressRange_v2(&base, &size, address + 3 * MIB));
    CHECK_INT(base, address);
    CHECK_INT(size, 4 * MIB);
    OK(cuMemAlloc_v2(&plain, 100));
    OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, plain));
    CHECK_INT(capable, 1);
}

/* Of one allocation or several, as NVIDIA's open kernel module has it. */
static void a_dma_buf_keeps_memory(void) {
    CUmemGenericAllocationHandle handles[2];
    CUdeviceptr plain, range;
    uint64_t empty, before;
    int whole = -1, several = -1, supported = 0;

    context_on(0);
    OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0));
    CHECK_INT(supported, 1);
    empty = look("test").used[0];
    OK(cuMemAlloc_v2(&plain, 4 * MIB));
    range = reserve(4 * MIB);
    for (int i = 0; i < 2; i++) {
        handles[i] = create(0, 2 * MIB);
        OK(cuMemMap(range + (unsigned)i * 2 * MIB, 2 * MIB, 0, handles[i], 0));
    }
    before = look("test").used[0];
    CHECK_INT(before, empty + 8 * MIB);
    CHECK_INT(cuMemGetHandleForAddressRange(&whole, plain + 1, 4096, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
              CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemGetHandleForAddressRange(&whole, range, 6 * MIB, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
              CUDA_ERROR_INVALID_VALUE);
    OK(cuMemGetHandleForAddressRange(&whole, plain, 4 * MIB, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    OK(cuMemGetHandleForAddressRange(&several, range + MIB, 3 * MIB, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    OK(cuMemFree_v2(plain));
    for (int i = 0; i < 2; i++) {
        OK(cuMemUnmap(range + (unsigned)i * 2 * MIB, 2 * MIB));
        OK(cuMemRelease(handles[i]));
    }
    CHECK_INT(look("test").used[0], before);
    close(whole);
    CHECK_INT(look("test").used[0], before - 4 * MIB);
    close(several);
    CHECK_INT(look("test").used[0], empty);
}

static void entry_points_are_found(void) {
    void *found = NULL;

    OK(cuInit(0));
    OK(cuGetProcAddress("cuMemCreate", &found, 10020, 0));
    CHECK(found == (void *)(uintptr_t)cuMemCreate);
    CHECK_INT(cuGetProcAddress("cuMemCreate", &found, 10010, 0), CUDA_ERROR_NOT_FOUND);
    OK(cuGetProcAddress("cuIpcOpenMemHandle", &found, 10000, 0));
    CHECK(found == (void *)(uintptr_t)cuIpcOpenMemHandle);
    OK(cuGetProcAddress("cuIpcOpenMemHandle", &found, 12000, 0));
    CHECK(found == (void *)(uintptr_t)cuIpcOpenMemHandle_v2);
}

static void properties_are_kept(void) {
    CUmemAllocationProp prop = on_device(1), read;
    CUmemGenericAllocationHandle handle;

    OK(cuInit(0));
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    OK(cuMemGetAllocationPropertiesFromHandle(&read, handle));
    CHECK(memcmp(&read, &prop, sizeof(prop)) == 0);
    CHECK_INT(look("test").used[1], 2 * MIB);
}

static void an_ordered_fault_fails_a_creation(void) {
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle;

    OK(cuInit(0));
    CHECK_INT(sim_open(), 0);
    sim_fault_alloc(0, 1, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_INT(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
}

#define THREADS 6

static void *churn(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg;

    for (int i = 0; i < 300; i++) {
        uint64_t size = 2 * MIB * (1 + (unsigned)rand_r(&seed) % 4);
        CUmemGenericAllocationHandle handle = create(0, size);
        CUdeviceptr address = reserve(size);

        OK(cuMemMap(address, size, 0, handle, 0));
        OK(cuMemRelease(handle));
        OK(allow(address, size, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
        *(volatile char *)(uintptr_t)address = 1;
        OK(cuMemUnmap(address, size));
        OK(cuMemAddressFree(address, size));
    }
    return NULL;
}

static void threads_do_not_disturb_each_other(void) {
    pthread_t threads[THREADS];

    OK(cuInit(0));
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, churn, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK_INT(look("test").used[0], 0);
    CHECK_INT(look("test").group_peak[0] <= THREADS * 8 * MIB, 1);
}

static void hold(void *arg) {
    (void)arg;
    OK(cuInit(0));
    create(0, 500 * MIB);
    say('r');
    hear();
}

static void a_killed_process_gives_its_memory_back(void) {
    struct worker worker = worker_start(hold, NULL);
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle;

    worker_hear(&worker);
    OK(cuInit(0));
    CHECK_INT(cuMemCreate(&handle, 600 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    worker_kill(&worker, SIGKILL);
    OK(cuMemCreate(&handle, 600 * MIB, &prop, 0));
}

/* ---- Multicast ---- */

static void bindings_keep_memory_alive(void) {
    CUmulticastObjectProp prop = {.numDevices = 1, .size = 8 * MIB};
    CUmemGenericAllocationHandle multicast, memory;
    CUdeviceptr address;
    size_t granularity;

    OK(cuInit(0));
    OK(cuMulticastGetGranularity(&granularity, &prop, CU_MULTICAST_GRANULARITY_MINIMUM));
    CHECK_INT(granularity, 2 * MIB);
    OK(cuMulticastCreate(&multicast, &prop));
    OK(cuMulticastAddDevice(multicast, 0));
    CHECK_INT(cuMulticastAddDevice(multicast, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(look("test").used[0], 0);
    memory = create(0, 4 * MIB);
    OK(cuMulticastBindMem(multicast, 0, memory, 0, 4 * MIB, 0));
    CHECK_INT(cuMulticastBindMem(multicast, 2 * MIB, memory, 0, 4 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRelease(memory));
    CHECK_INT(look("test").used[0], 4 * MIB);
    OK(cuMulticastUnbind(multicast, 0, 0, 4 * MIB));
    CHECK_INT(look("test").used[0], 0);

    memory = create(0, 4 * MIB);
    OK(cuMulticastBindMem_v2(multicast, 0, 0, memory, 0, 4 * MIB, 0));
    OK(cuMulticastUnbind(multicast, 0, 0, 4 * MIB));
    address = reserve(8 * MIB);
    OK(cuMemMap(address, 4 * MIB, 0, memory, 0));
    OK(cuMulticastBindAddr_v2(multicast, 0, 0, address, 2 * MIB, 0));
    OK(cuMulticastUnbind(multicast, 0, 0, 2 * MIB));
    OK(cuMulticastBindAddr(multicast, 4 * MIB, address + 2 * MIB, 2 * MIB, 0));
    OK(cuMemRelease(memory));
    OK(cuMemUnmap(address, 4 * MIB));
    OK(cuMemMap(address, 8 * MIB, 0, multicast, 0));
    OK(allow(address, 8 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemRelease(multicast));
    CHECK_INT(look("test").used[0], 4 * MIB);
    OK(cuMemUnmap(address, 8 * MIB));
    CHECK_INT(look("test").used[0], 0);
}

static void multicast_is_checked(void) {
    CUmulticastObjectProp prop = {.numDevices = 1, .size = 4 * MIB}, bad = prop;
    CUmemGenericAllocationHandle multicast, memory;

    OK(cuInit(0));
    bad.numDevices = 0;
    CHECK_INT(cuMulticastCreate(&multicast, &bad), CUDA_ERROR_INVALID_VALUE);
    bad = prop;
    bad.size = 100;
    CHECK_INT(cuMulticastCreate(&multicast, &bad), CUDA_ERROR_INVALID_VALUE);
    OK(cuMulticastCreate(&multicast, &prop));
    CHECK_INT(cuMulticastAddDevice(multicast, 1), CUDA_ERROR_NOT_SUPPORTED);
    CHECK_INT(cuMulticastAddDevice(multicast, 7), CUDA_ERROR_INVALID_DEVICE);
    OK(cuMulticastAddDevice(multicast, 0));
    memory = create(1, 4 * MIB);
    CHECK_INT(cuMulticastBindMem(multicast, 0, memory, 0, 4 * MIB, 0), CUDA_ERROR_INVALID_DEVICE);
    CHECK_INT(cuMulticastBindMem_v2(multicast, 0, 0, memory, 0, 4 * MIB, 0), CUDA_ERROR_INVALID_DEVICE);
    CHECK_INT(cuMulticastBindMem_v2(multicast, 7, 0, memory, 0, 4 * MIB, 0), CUDA_ERROR_INVALID_DEVICE);
    CHECK_INT(cuMulticastBindMem(memory, 0, memory, 0, 4 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
    memory = create(0, 8 * MIB);
    CHECK_INT(cuMulticastBindMem(multicast, 0, memory, 0, 8 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMulticastBindMem(multicast, 0, memory, 6 * MIB, 4 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMulticastUnbind(multicast, 0, 0, 4 * MIB), CUDA_ERROR_INVALID_VALUE);
}

const struct test vmm_tests[] = {
    {"memory lives as long as anything refers to it", memory_lives_as_long_as_anything_refers_to_it},
    {"bad calls are refused", bad_calls_are_refused},
    {"access is what was set", access_is_what_was_set},
    {"all mappings show the same", all_mappings_show_the_same},
    {"contexts come and go without it", contexts_come_and_go_without_it},
    {"memory of the host takes none of the GPU", memory_of_the_host_takes_none_of_the_gpu},
    {"it is told from other memory", it_is_told_from_other_memory},
    {"a dma-buf keeps memory", a_dma_buf_keeps_memory},
    {"entry points are found", entry_points_are_found},
    {"properties are kept", properties_are_kept},
    {"an ordered fault fails a creation", an_ordered_fault_fails_a_creation},
    {"threads do not disturb each other", threads_do_not_disturb_each_other},
    {"a killed process gives its memory back", a_killed_process_gives_its_memory_back},
    {"bindings keep memory alive", bindings_keep_memory_alive},
    {"multicast is checked", multicast_is_checked},
    {NULL, NULL},
};
