/*
 * What real hardware and a real driver do that the simulated GPU can only assume: measured by whoever runs this, at each
 * step, from outside.
 *
 *   probe facts BYTES    uses no more than so many bytes at once, contexts aside
 */
#include "probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t most;

/* `own` is what the driver itself says of it, by whatever function there is; 0 for nothing. */
static void fact(const char *group, const char *what, CUresult result, uint64_t asked, uint64_t own) {
    step("fact", "\"group\":\"%s\",\"what\":\"%s\",\"result\":%d,\"name\":\"%s\",\"asked\":%llu,\"own\":%llu", group,
         what, result, error_name(result), (unsigned long long)asked, (unsigned long long)own);
}

static const char *text(const char *format, unsigned long long number) {
    static char buffer[160];
    snprintf(buffer, sizeof buffer, format, number);
    return buffer;
}

static void contexts(void) {
    CUcontext more[2] = {0};
    fact("contexts", "before cuInit", 0, 0, 0);
    must(cuda.cuInit(0), "cuInit");
    must(cuda.cuDeviceGet(&device, 0), "cuDeviceGet");
    fact("contexts", "after cuInit", 0, 0, 0);
    open_context();
    fact("contexts", "the primary context", 0, 0, 0);
    for (int i = 0; i < 2; i++)
        fact("contexts", "one more by cuCtxCreate", cuda.cuCtxCreate_v2(&more[i], 0, device), 0, 0);
    for (int i = 0; i < 2; i++)
        if (more[i] != NULL)
            cuda.cuCtxDestroy_v2(more[i]);
    cuda.cuCtxSetCurrent(context);
    fact("contexts", "both destroyed", 0, 0, 0);
}

static void linear(void) {
    static const uint64_t sizes[] = {1,           4096,    64 << 10,    512 << 10, MIB - 1,     MIB,         MIB + 1,
                                     2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 3 * MIB,   4 * MIB + 1, 32 * MIB + 1};
    enum { COPIES = 16 };
    CUdeviceptr addresses[COPIES];
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int count = 0;
        CUresult result = CUDA_SUCCESS;
        while (count < COPIES && result == CUDA_SUCCESS && sizes[i] * (unsigned)(count + 1) <= most)
            if ((result = cuda.cuMemAlloc_v2(&addresses[count], sizes[i])) == CUDA_SUCCESS)
                count++;
        fact("linear memory", text("16 times cuMemAlloc of %llu bytes", sizes[i]), result, sizes[i] * (unsigned)count,
             0);
        while (count > 0)
            cuda.cuMemFree_v2(addresses[--count]);
        fact("linear memory", "freed", 0, 0, 0);
    }
}

static uint64_t reserved(CUmemoryPool pool) {
    uint64_t bytes = 0;
    CALL(cuMemPoolGetAttribute, pool, POOL_RESERVED_CURRENT, &bytes);
    return bytes;
}

static void pools(void) {
    static const uint64_t sizes[] = {1, MIB, 2 * MIB, 30 * MIB, 31 * MIB, 32 * MIB, 33 * MIB, 65 * MIB, 100 * MIB};
    enum { COUNT = sizeof sizes / sizeof sizes[0] };
    CUdeviceptr addresses[COUNT] = {0};
    CUmemoryPool pool;
    uint64_t sum = 0;
    if (!attribute(device, ATTRIBUTE_MEMORY_POOLS) || CALL(cuDeviceGetDefaultMemPool, &pool, device) != CUDA_SUCCESS)
        return;
    fact("the default pool", "untouched", 0, 0, reserved(pool));
    for (size_t i = 0; i < COUNT && sum + sizes[i] <= most; i++) {
        CUresult result = cuda.cuMemAllocAsync(&addresses[i], sizes[i], NULL);
        cuda.cuStreamSynchronize(NULL);
        sum += sizes[i];
        fact("the default pool", text("%llu bytes more", sizes[i]), result, sum, reserved(pool));
    }
    for (size_t i = 0; i < COUNT; i++)
        if (addresses[i] != 0)
            cuda.cuMemFreeAsync(addresses[i], NULL);
    fact("the default pool", "all freed, not yet synchronised", 0, 0, reserved(pool));
    cuda.cuStreamSynchronize(NULL);
    fact("the default pool", "synchronised", 0, 0, reserved(pool));
    cuda.cuMemPoolTrimTo(pool, 0);
    fact("the default pool", "trimmed", 0, 0, reserved(pool));
}

static uint64_t requirements(const CUarray3DDescriptor *wanted) {
    CUarray3DDescriptor deferred = *wanted;
    CUarrayRequirements needs = {.size = 0};
    CUarray array = NULL;
    deferred.flags |= ARRAY_DEFERRED;
    if (attribute(device, ATTRIBUTE_DEFERRED_ARRAYS) && CALL(cuArray3DCreate_v2, &array, &deferred) == CUDA_SUCCESS) {
        CALL(cuArrayGetMemoryRequirements, &needs, array, device);
        cuda.cuArrayDestroy(array);
    }
    return needs.size;
}

static void arrays(void) {
    static const struct {
        const char *what;
        CUarray3DDescriptor wanted;
    } kinds[] = {
        {"16 arrays of 16 x 16 bytes", {16, 16, 0, FORMAT_UINT8, 1, 0}},
        {"16 arrays of 100 x 100 floats", {100, 100, 0, FORMAT_FLOAT, 1, 0}},
        {"16 arrays of 1000 x 1000 x 4 bytes", {1000, 1000, 0, FORMAT_UINT8, 4, 0}},
        {"16 arrays of 1024 x 1024 x 4 floats", {1024, 1024, 0, FORMAT_FLOAT, 4, 0}},
        {"16 arrays of 1000 floats, one dimension", {1000, 0, 0, FORMAT_FLOAT, 1, 0}},
        {"16 arrays of 100 x 100 x 100 floats", {100, 100, 100, FORMAT_FLOAT, 1, 0}},
        {"16 arrays of 100 x 100 bytes, 5 layers", {100, 100, 5, FORMAT_UINT8, 1, ARRAY_LAYERED}},
        {"16 arrays of 1000 x 1000, BC1", {1000, 1000, 0, FORMAT_BC1, 4, 0}},
        {"16 arrays of 1000 x 1000, BC7", {1000, 1000, 0, FORMAT_BC7, 4, 0}},
    };
    enum { COPIES = 16 };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        CUarray made[COPIES];
        int count = 0;
        CUresult result = CUDA_SUCCESS;
        while (count < COPIES && result == CUDA_SUCCESS)
            if ((result = CALL(cuArray3DCreate_v2, &made[count], &kinds[i].wanted)) == CUDA_SUCCESS)
                count++;
        fact("arrays (the driver's figure: cuArrayGetMemoryRequirements)", kinds[i].what, result, 0,
             requirements(&kinds[i].wanted) * COPIES);
        while (count > 0)
            cuda.cuArrayDestroy(made[--count]);
        fact("arrays (the driver's figure: cuArrayGetMemoryRequirements)", "destroyed", 0, 0, 0);
    }
}

static void modules(void) {
    static const uint64_t sizes[] = {16, 64 << 10, MIB, 3 * MIB, 33 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char body[256];
        CUmodule module = NULL;
        CUdeviceptr address;
        size_t size;
        snprintf(body, sizeof body, ".visible .global .align 16 .b8 variable[%llu];\n.visible .entry use() { ret; }\n",
                 (unsigned long long)sizes[i]);
        CUresult result = load_ptx(&module, body);
        fact("modules", text("loaded, with a variable of %llu bytes", sizes[i]), result, sizes[i], 0);
        if (result != CUDA_SUCCESS)
            continue;
        result = cuda.cuModuleGetGlobal_v2(&address, &size, module, "variable");
        fact("modules", "its variable asked for", result, sizes[i], 0);
        result = run_kernel(module, "use", 1, 1);
        fact("modules", "its kernel run", result, sizes[i], 0);
        cuda.cuModuleUnload(module);
        fact("modules", "unloaded", 0, 0, 0);
    }
}

static void granularities(void) {
    CUmemAllocationProp properties = device_memory(false);
    CUmulticastProp multicast = {.devices = 1, .size = 2 * MIB, .handle_types = HANDLE_POSIX_FD};
    size_t bytes = 0;
    CUresult result = CALL(cuMemGetAllocationGranularity, &bytes, &properties, 0);
    fact("granularity", "cuMemGetAllocationGranularity, minimum", result, 0, bytes);
    result = CALL(cuMemGetAllocationGranularity, &bytes, &properties, 1);
    fact("granularity", "cuMemGetAllocationGranularity, recommended", result, 0, bytes);
    bytes = 0;
    result = CALL(cuMulticastGetGranularity, &bytes, &multicast, 0);
    fact("granularity", "cuMulticastGetGranularity, minimum", result, 0, bytes);
}

static uint64_t graph_memory(void) {
    uint64_t bytes = 0;
    CALL(cuDeviceGetGraphMemAttribute, device, GRAPH_RESERVED_CURRENT, &bytes);
    return bytes;
}

static void graphs(void) {
    const struct way *way = find_way("graph");
    static const uint64_t sizes[] = {MIB, 3 * MIB, 33 * MIB};
    struct piece pieces[3] = {{0}};
    const char *missing;
    if (!driver_has(way->functions, &missing) || way->prepare() != NULL)
        return;
    int count = 0;
    for (; count < 3; count++) {
        pieces[count].bytes = sizes[count];
        CUresult result = way->take(sizes[count], &pieces[count]);
        fact("graphs", text("launched, with a node that allocates %llu bytes", sizes[count]), result, sizes[count],
             graph_memory());
        if (result != CUDA_SUCCESS)
            break;
    }
    while (count > 0)
        way->give(&pieces[--count]);
    fact("graphs", "all freed, the graphs destroyed", 0, 0, graph_memory());
    way->settle();
    fact("graphs", "trimmed", 0, 0, graph_memory());
}

int probe_facts(int argc, char **argv) {
    if (argc != 1)
        return 2;
    most = strtoull(argv[0], NULL, 10);
    contexts();
    linear();
    pools();
    arrays();
    modules();
    graphs();
    granularities();
    return 0;
}
