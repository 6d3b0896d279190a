/* Managed memory: when it takes memory of the GPU, and when it does not. */
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static const char ptx[] = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry add()\n{\n ret;\n}\n";

static uint64_t taken(void) {
    return look("test").used[0] - GPU0_CONTEXT;
}

static CUfunction kernel(void) {
    CUfunction function = NULL;
    CUmodule module;

    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&function, module, "add"));
    return function;
}

static void launch(CUfunction function) {
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

static void touching_brings_it_to_the_gpu(void) {
    CUdeviceptr a, b;
    char byte = 1;

    context_on(0);
    OK(cuMemAllocManaged(&a, 10 * MIB, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemAllocManaged(&b, 10 * MIB, CU_MEM_ATTACH_GLOBAL));
    CHECK_INT(taken(), 0);
    memset((void *)(uintptr_t)a, 1, 10 * MIB); /* the host's doing */
    CHECK_INT(taken(), 0);
    OK(cuMemsetD8_v2(a + 3 * MIB, 0, 2 * MIB));
    CHECK_INT(taken(), 4 * MIB); /* the two blocks in which that is */
    OK(cuMemcpyHtoD_v2(b, &byte, 1));
    CHECK_INT(taken(), 6 * MIB);
    launch(kernel());
    CHECK_INT(taken(), 20 * MIB);
    OK(cuMemFree_v2(a));
    CHECK_INT(taken(), 10 * MIB);
    OK(cuMemFree_v2(b));
    CHECK_INT(taken(), 0);
}

static void each_launch_looks_for_new_memory(void) {
    CUfunction function;
    CUdeviceptr pointer;

    context_on(0);
    function = kernel();
    launch(function);
    for (int i = 1; i <= 3; i++) {
        OK(cuMemAllocManaged(&pointer, 4 * MIB, CU_MEM_ATTACH_GLOBAL));
        launch(function);
        CHECK_INT(taken(), (uint64_t)i * 4 * MIB);
    }
    OK(cuMemPrefetchAsync(pointer, 4 * MIB, CU_DEVICE_CPU, NULL));
    CHECK_INT(taken(), 8 * MIB);
    launch(function);
    CHECK_INT(taken(), 12 * MIB);
}

static void what_finds_no_room_stays_with_the_host(void) {
    CUdeviceptr big, filler;
    CUfunction function;

    context_on(0);
    function = kernel();
    OK(cuMemAllocManaged(&big, 2 * GPU0_BYTES, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemAlloc_v2(&filler, GPU0_BYTES - GPU0_CONTEXT - 6 * MIB));
    launch(function);
    CHECK_INT(taken(), GPU0_BYTES - GPU0_CONTEXT);
    OK(cuMemsetD8_v2(big, 0, 2 * GPU0_BYTES));
    CHECK_INT(taken(), GPU0_BYTES - GPU0_CONTEXT);
    OK(cuMemFree_v2(big));
    OK(cuMemAllocManaged(&big, 10 * MIB, CU_MEM_ATTACH_GLOBAL));
    launch(function);
    CHECK_INT(taken(), GPU0_BYTES - GPU0_CONTEXT);
    OK(cuMemFree_v2(filler));
    CHECK_INT(taken(), 6 * MIB);
    launch(function); /* now there is room for the rest */
    CHECK_INT(taken(), 10 * MIB);
}

static void advice_and_prefetching_move_it(void) {
    CUmemLocation host = {CU_MEM_LOCATION_TYPE_HOST, 0}, gpu1 = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
    CUfunction function;
    CUdeviceptr pointer;

    context_on(0);
    function = kernel();
    OK(cuMemAllocManaged(&pointer, 8 * MIB, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemPrefetchAsync(pointer, 8 * MIB, 0, NULL));
    CHECK_INT(taken(), 8 * MIB);
    OK(cuMemPrefetchAsync_v2(pointer, 2 * MIB, host, 0, NULL));
    CHECK_INT(taken(), 6 * MIB);
    OK(cuMemAdvise(pointer, 8 * MIB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU));
    CHECK_INT(taken(), 0);
    launch(function);
    OK(cuMemsetD8_v2(pointer, 0, 8 * MIB));
    CHECK_INT(taken(), 0); /* the GPU reaches it where it is */
    OK(cuMemAdvise_v2(pointer, 4 * MIB, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, host));
    launch(function);
    CHECK_INT(taken(), 4 * MIB);
    OK(cuMemPrefetchAsync_v2(pointer, 8 * MIB, gpu1, 0, NULL));
    CHECK_INT(taken(), 0);
    CHECK_INT(look("test").used[1], 8 * MIB);
    OK(cuMemFree_v2(pointer));
    CHECK_INT(look("test").used[1], 0);
}

static void what_a_range_tells(void) {
    CUdeviceptr pointer, plain;
    int32_t value, devices[3];
    void *data[] = {&value, devices};
    size_t sizes[] = {sizeof(value), sizeof(devices)};
    CUmem_range_attribute attributes[] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY};

    context_on(0);
    OK(cuMemAllocManaged(&pointer, 8 * MIB, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemAlloc_v2(&plain, 8 * MIB));
    OK(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, pointer, 8 * MIB));
    CHECK_INT(value, CU_DEVICE_INVALID);
    OK(cuMemAdvise(pointer, 4 * MIB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 1));
    OK(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, pointer, 4 * MIB));
    CHECK_INT(value, 1);
    OK(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, pointer, 4 * MIB));
    CHECK_INT(value, CU_MEM_LOCATION_TYPE_DEVICE);
    OK(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, pointer, 8 * MIB));
    CHECK_INT(value, CU_DEVICE_INVALID); /* not the same for all of it */
    OK(cuMemPrefetchAsync(pointer, 8 * MIB, CU_DEVICE_CPU, NULL));
    OK(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, pointer, 8 * MIB));
    CHECK_INT(value, CU_DEVICE_CPU);
    OK(cuMemAdvise(pointer, 8 * MIB, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    OK(cuMemAdvise(pointer, 8 * MIB, CU_MEM_ADVISE_SET_ACCESSED_BY, 1));
    OK(cuMemAdvise(pointer, 8 * MIB, CU_MEM_ADVISE_SET_ACCESSED_BY, CU_DEVICE_CPU));
    OK(cuMemRangeGetAttributes(data, sizes, attributes, 2, pointer, 8 * MIB));
    CHECK_INT(value, 1);
    CHECK_INT(devices[0], 1);
    CHECK_INT(devices[1], CU_DEVICE_CPU);
    CHECK_INT(devices[2], CU_DEVICE_INVALID);
    CHECK_INT(cuMemRangeGetAttribute(&value, 8, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, pointer, 1),
              CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, plain, 1),
              CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemAdvise(plain, 1, CU_MEM_ADVISE_SET_READ_MOSTLY, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemAdvise(pointer, 9 * MIB, CU_MEM_ADVISE_SET_READ_MOSTLY, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemAdvise(pointer, 1, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 7), CUDA_ERROR_INVALID_DEVICE);
    CHECK_INT(cuMemPrefetchAsync(plain, 1, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemPrefetchAsync(pointer, 1, 7, NULL), CUDA_ERROR_INVALID_DEVICE);
}

static void managed_memory_goes_with_its_context(void) {
    CUcontext context = context_on(0);
    CUdeviceptr pointer;

    OK(cuMemAllocManaged(&pointer, 8 * MIB, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemPrefetchAsync(pointer, 2 * MIB, 1, NULL));
    OK(cuMemsetD8_v2(pointer + 2 * MIB, 0, 6 * MIB));
    CHECK_INT(taken(), 6 * MIB);
    OK(cuCtxDestroy_v2(context));
    CHECK_INT(look("test").used[0], 0);
    CHECK_INT(look("test").used[1], 0);
    context_on(0);
    OK(cuMemAllocManaged(&pointer, 8 * MIB, CU_MEM_ATTACH_GLOBAL)); /* the same blocks know nothing of it */
    CHECK_INT(taken(), 0);
    OK(cuMemsetD8_v2(pointer, 0, 8 * MIB));
    CHECK_INT(taken(), 8 * MIB);
}

static void own_memory_without_hmm(void) {
    int yes = -1;

    context_on(0);
    OK(cuDeviceGetAttribute(&yes, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0));
    CHECK_INT(yes, 0);
    char *own = malloc(4 * MIB);
    CHECK_INT(cuMemPrefetchAsync((CUdeviceptr)own, 4 * MIB, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemAdvise((CUdeviceptr)own, 4 * MIB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 0),
              CUDA_ERROR_INVALID_VALUE);
    free(own);
}

static void own_memory_with_hmm(void) {
    CUdeviceptr plain;
    int yes = 0;

    node_use_topology("hmm.conf");
    context_on(0);
    OK(cuDeviceGetAttribute(&yes, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0));
    CHECK_INT(yes, 1);
    OK(cuDeviceGetAttribute(&yes, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 0));
    CHECK_INT(yes, 0);
    OK(cuMemAlloc_v2(&plain, 2 * MIB));
    uint64_t before = taken();
    char *own = aligned_alloc(2 * MIB, 8 * MIB);
    OK(cuMemPrefetchAsync((CUdeviceptr)own, 6 * MIB, 0, NULL));
    CHECK_INT(taken() - before, 6 * MIB);
    OK(cuMemPrefetchAsync((CUdeviceptr)own, 6 * MIB, 0, NULL)); /* there already */
    CHECK_INT(taken() - before, 6 * MIB);
    OK(cuMemPrefetchAsync((CUdeviceptr)own, 2 * MIB, 1, NULL));
    CHECK_INT(taken() - before, 4 * MIB);
    CHECK_INT(look("test").used[1], 2 * MIB);
    OK(cuMemPrefetchAsync((CUdeviceptr)own, 6 * MIB, CU_DEVICE_CPU, NULL));
    CHECK_INT(taken(), before);
    CHECK_INT(cuMemAdvise((CUdeviceptr)own, 1, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 0), CUDA_ERROR_NOT_SUPPORTED);
    CHECK_INT(cuMemPrefetchAsync(plain, 2 * MIB, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_INT(cuMemPrefetchAsync(4096, 1, 0, NULL), CUDA_ERROR_INVALID_VALUE); /* nothing is mapped there */
    free(own);
}

const struct test managed_tests[] = {
    {"touching brings it to the GPU", touching_brings_it_to_the_gpu},
    {"each launch looks for new memory", each_launch_looks_for_new_memory},
    {"what finds no room stays with the host", what_finds_no_room_stays_with_the_host},
    {"advice and prefetching move it", advice_and_prefetching_move_it},
    {"what a range tells", what_a_range_tells},
    {"managed memory goes with its context", managed_memory_goes_with_its_context},
    {"the program's own memory without HMM", own_memory_without_hmm},
    {"the program's own memory with HMM", own_memory_with_hmm},
    {0},
};
