#include "objects_test.h"

#include "../context/libraries.h"
#include "../context/lifecycle.h"
#include "../context/variables.h"
#include "../driver/cuda_real.h"
#include "../memory/borrowed.h"
#include "../memory/objects.h"
#include "../memory/physical.h"
#include "../memory/pools.h"
#include "check.h"
#include "fake_driver.h"
#include "fake_streams.h"
#include "fixture.h"

#include <stdlib.h>

CUresult fake_cuCtxSetCurrent(CUcontext context);

#define MIB FAKE_MIB
#define LIMIT (1000 * MIB)

/* Two handles of which objects_key makes the same 31 bits, so that they are told apart by nothing less than themselves. */
static const uint64_t alike[2] = {0x7f5cdfe1d350, 0x7f2dfd405fd0};

static uint64_t context_bytes = FAKE_CONTEXT_BYTES;

static struct process *with_context(CUcontext *context) {
    const char *directory = fixture_directory();
    fixture_claim(directory, "00000000", fake_uuid(0), LIMIT, context_bytes);
    setenv("TRANCHE_REGIONS", directory, 1);
    CHECK(cuInit(0) == CUDA_SUCCESS && cuCtxCreate_v2(context, 0, 0) == CUDA_SUCCESS, "context");
    CHECK(objects_key(alike[0], 1) >> 33 == objects_key(alike[1], 1) >> 33, "their hashes differ");
    return process_if_open();
}

/* What is charged beyond the context's first cost. */
static uint64_t used_mib(void) {
    size_t free = 0, total = 0;
    CHECK(cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS && total == LIMIT, "cuMemGetInfo");
    return (total - free - context_bytes) / MIB;
}

static struct charge charge_of(struct process *process, uint64_t mib) {
    struct charge charge;
    CHECK(pools_take(process, 0, pages_of(mib * MIB), &charge) == CUDA_SUCCESS, "taken");
    return charge;
}

/* --- wholes and their parts --------------------------------------------------------------------------------------- */

static void end_at_once(struct process *process, enum kind kind, uint64_t whole) {
    physical_whole_ended(process, kind, whole);
}

static void end_with_the_driver(struct process *process, enum kind kind, uint64_t whole) {
    struct releases releases = {0};
    physical_unbind_all(process, kind, whole, &releases);
    physical_released(process, &releases, CUDA_SUCCESS);
}

/* Memory of 10 MiB that only a part of the whole holds. */
static void hold(struct process *process, enum kind kind, uint64_t whole, uint64_t part) {
    static CUmemGenericAllocationHandle last;
    CHECK(physical_made(process, false, ++last, charge_of(process, 10)), "made");
    physical_bound(process, kind, whole, part, physical_number(process, last));
}

static void holdings(struct process *process, enum kind kind, void (*end)(struct process *, enum kind, uint64_t)) {
    for (uint64_t part = 0; part < 3; part++)
        for (int i = 0; i < 2; i++)
            hold(process, kind, alike[i], part);
    CHECK(used_mib() == 60, "held: %llu MiB", (unsigned long long)used_mib());
    end(process, kind, alike[0]);
    CHECK(used_mib() == 30, "one has ended: %llu MiB", (unsigned long long)used_mib());
    end(process, kind, alike[1]);
    CHECK(used_mib() == 0, "both have ended: %llu MiB", (unsigned long long)used_mib());
}

void test_holdings_of_alike_wholes(void) {
    CUcontext context;
    struct process *process = with_context(&context);
    holdings(process, KIND_ARRAY_MAPPING, end_at_once);
    holdings(process, KIND_ARRAY_MAPPING, end_with_the_driver);
    holdings(process, KIND_BINDING, end_at_once);
    holdings(process, KIND_BINDING, end_with_the_driver);
}

/* What a record says that it holds is not read as a charge when another one takes its place. */
void test_replaced_mappings(void) {
    CUcontext context;
    struct process *process = with_context(&context);
    CUdeviceptr begin;
    hold(process, KIND_BINDING, alike[0], 0);
    for (uint64_t number = BLOCK_PAGES; number < BLOCK_PAGES + 2; number++)
        physical_mapped(process, alike[0], 2 * MIB, number);
    CHECK(used_mib() == 10, "a charge is lost: %llu MiB", (unsigned long long)used_mib());
    CHECK(physical_find_mapping(process, BLOCK_PAGES + 1, alike[0] + 2 * MIB - 1, &begin) && begin == alike[0],
          "the mapping");
    CHECK(!physical_find_mapping(process, BLOCK_PAGES, alike[0], &begin), "the former one");
    CHECK(!physical_find_mapping(process, BLOCK_PAGES + 1, alike[0] + 2 * MIB, &begin), "what lies behind it");
    CHECK(!physical_find_mapping(process, BLOCK_PAGES + 1, alike[0] - 1, &begin), "what lies before it");
}

void test_variables_of_alike_modules(void) {
    CUcontext context;
    struct process *process = with_context(&context);
    CUmodule modules[] = {(CUmodule)(uintptr_t)alike[0], (CUmodule)(uintptr_t)alike[1]}; /* NOLINT */
    for (int i = 0; i < 2; i++)
        CHECK(variables_in_module(modules[i], "v", 10 * MIB) == CUDA_SUCCESS, "variable");
    uint64_t both = used_mib();
    variables_unloaded(process, alike[0]);
    CHECK(variables_in_module(modules[1], "v", 10 * MIB) == CUDA_SUCCESS && used_mib() == both,
          "charged again: %llu MiB after %llu", (unsigned long long)used_mib(), (unsigned long long)both);
}

static void load(struct process *process, uint64_t handle) {
    struct library_loading loading = {.process = process, .size = {.data = 10 * MIB}};
    CUlibrary library = (CUlibrary)(uintptr_t)handle; /* NOLINT(performance-no-int-to-ptr) */
    CHECK(libraries_after(&loading, libraries_before(&loading), library) == CUDA_SUCCESS, "loaded");
}

static void unload(struct process *process, uint64_t handle) {
    reentrant_take(&process->libraries);
    libraries_unloaded(process, (CUlibrary)(uintptr_t)handle); /* NOLINT(performance-no-int-to-ptr) */
    reentrant_give(&process->libraries);
}

void test_alike_libraries(void) {
    CUcontext contexts[2];
    CUmodule modules[3];
    struct process *process = with_context(&contexts[0]);
    struct entry known;
    load(process, alike[0]);
    load(process, alike[1]);
    CHECK(used_mib() == 20, "loaded: %llu MiB", (unsigned long long)used_mib());
    CHECK(cuCtxCreate_v2(&contexts[1], 0, 0) == CUDA_SUCCESS && used_mib() == 140, "in another context: %llu MiB",
          (unsigned long long)used_mib());
    for (int i = 0; i < 2; i++)
        /* NOLINTNEXTLINE(performance-no-int-to-ptr) */
        CHECK(cuLibraryGetModule(&modules[i], (CUlibrary)(uintptr_t)alike[i]) == CUDA_SUCCESS, "as a module");
    struct entry sized = {.key = 1, .with = alike[0]}; /* a module with as many bytes of code */
    objects_put(process, KIND_MODULE, sized);
    unload(process, alike[0]);
    CHECK(used_mib() == 120, "one is unloaded: %llu MiB", (unsigned long long)used_mib());
    CHECK(!objects_find(process, KIND_MODULE, (uintptr_t)modules[0], &known) &&
              objects_find(process, KIND_MODULE, (uintptr_t)modules[1], &known) &&
              objects_find(process, KIND_MODULE, sized.key, &known),
          "its modules have ended, and no others");
    CHECK(cuCtxDestroy_v2(contexts[1]) == CUDA_SUCCESS, "destroyed");
    fake_cuCtxSetCurrent(contexts[0]);
    CHECK(used_mib() == 10, "one is left: %llu MiB", (unsigned long long)used_mib());
    unload(process, alike[1]);
    CHECK(used_mib() == 0, "both are unloaded: %llu MiB", (unsigned long long)used_mib());
}

/* A context that costs nothing is charged like the others. */
void test_library_in_a_free_context(void) {
    CUcontext contexts[2];
    context_bytes = 0;
    struct process *process = with_context(&contexts[0]);
    load(process, alike[0]);
    CHECK(used_mib() == 10, "loaded: %llu MiB", (unsigned long long)used_mib());
    CHECK(cuCtxCreate_v2(&contexts[1], 0, 0) == CUDA_SUCCESS && used_mib() == 20, "in another context: %llu MiB",
          (unsigned long long)used_mib());
    unload(process, alike[0]);
    CHECK(used_mib() == 0, "unloaded: %llu MiB", (unsigned long long)used_mib());
}

/* --- memory of other processes ------------------------------------------------------------------------------------ */

/* Opens the handle with this name at an address. */
static void open_at(CUdeviceptr at, char name, uint64_t mib) {
    CUipcMemHandle handle = {{name}};
    CUdeviceptr address = 0;
    fake_orders.opened[0] = at;
    fake_orders.opened[1] = mib * MIB;
    CHECK(cuIpcOpenMemHandle_v2(&address, handle, 0) == CUDA_SUCCESS && address == at, "opened %c", name);
}

static void close_at(CUdeviceptr address, uint64_t left_mib) {
    CHECK(cuIpcCloseMemHandle(address) == CUDA_SUCCESS && used_mib() == left_mib, "left: %llu MiB, not %llu",
          (unsigned long long)used_mib(), (unsigned long long)left_mib);
}

/* The owner of `a` has freed it, and has allocated `b` in the same block. */
void test_two_handles_of_one_address(void) {
    CUcontext context;
    with_context(&context);
    open_at(alike[0], 'a', 2);
    open_at(alike[0], 'b', 2);
    open_at(alike[0], 'b', 2);
    open_at(alike[1], 'c', 6);
    CHECK(used_mib() == 10, "opened: %llu MiB", (unsigned long long)used_mib());
    close_at(alike[1], 4);
    open_at(alike[1], 'c', 6);
    fake_orders.fail_free = CUDA_ERROR_INVALID_VALUE;
    CHECK(cuIpcCloseMemHandle(alike[0]) == CUDA_ERROR_INVALID_VALUE && used_mib() == 10, "refused");
    for (int i = 0; i < 3; i++)
        CHECK(cuIpcCloseMemHandle(alike[0]) == CUDA_SUCCESS, "closed");
    CHECK(used_mib() == 6, "both are closed: %llu MiB", (unsigned long long)used_mib());
    close_at(alike[1], 0);
}

static void open_elsewhere(void) {
    open_at(alike[1], 'a', 2);
}

static void open_and_close_another(void) {
    open_at(alike[0], 'b', 6);
    close_at(alike[0], 2);
}

/* By another thread, after the driver has closed `a` and before that call returns. */
void test_opened_during_a_close(void) {
    CUcontext context;
    with_context(&context);
    open_at(alike[0], 'a', 2);
    fake_orders.in_end = open_elsewhere;
    close_at(alike[0], 2);
    close_at(alike[1], 0);
    open_at(alike[0], 'a', 2);
    fake_orders.in_end = open_and_close_another;
    close_at(alike[0], 0);
}

static CUexternalMemory external;
static CUmemoryPool pool;

static void map_external(void) {
    CUdeviceptr address;
    fake_orders.opened[0] = alike[0];
    CHECK(cuExternalMemoryGetMappedBuffer(&address, external, NULL) == CUDA_SUCCESS, "mapped");
}

static void import_pointer(void) {
    CUdeviceptr address;
    fake_orders.opened[0] = alike[1];
    fake_orders.opened[1] = 20 * MIB;
    CHECK(cuMemPoolImportPointer(&address, pool, NULL) == CUDA_SUCCESS, "imported");
}

/* The driver still has the handle, of which it makes an address before it ends it. */
void test_mapped_while_it_ends(void) {
    CUcontext context;
    const CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {.handle.fd = -1, .size = 10 * MIB};
    with_context(&context);
    CHECK(cuImportExternalMemory(&external, &from) == CUDA_SUCCESS && used_mib() == 10, "imported");
    fake_orders.fail_free = CUDA_ERROR_INVALID_VALUE;
    CHECK(cuDestroyExternalMemory(external) == CUDA_ERROR_INVALID_VALUE && used_mib() == 10, "refused");
    fake_orders.in_end = map_external;
    CHECK(cuDestroyExternalMemory(external) == CUDA_SUCCESS && used_mib() == 10, "it is mapped: %llu MiB",
          (unsigned long long)used_mib());
    CHECK(cuMemPoolImportFromShareableHandle(&pool, NULL, 0, 0) == CUDA_SUCCESS, "a pool of another claim");
    fake_orders.in_end = import_pointer;
    CHECK(cuMemPoolDestroy(pool) == CUDA_SUCCESS && used_mib() == 30, "a pointer is imported: %llu MiB",
          (unsigned long long)used_mib());
    CHECK(cuMemFree_v2(alike[0]) != CUDA_ERROR_OUT_OF_MEMORY && used_mib() == 30, "the driver refuses to free it");
}

/* A mapping keeps the memory after the context ended in which that was imported, and ends with its own. */
void test_mapped_in_another_context(void) {
    CUcontext first, imports, maps;
    const CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {.handle.fd = -1, .size = 10 * MIB};
    struct process *process = with_context(&first);
    struct entry known;
    CHECK(cuCtxCreate_v2(&imports, 0, 0) == CUDA_SUCCESS, "context");
    CHECK(cuImportExternalMemory(&external, &from) == CUDA_SUCCESS, "imported");
    CHECK(cuCtxCreate_v2(&maps, 0, 0) == CUDA_SUCCESS, "context");
    map_external();
    CHECK(cuCtxDestroy_v2(imports) == CUDA_SUCCESS, "destroyed");
    fake_cuCtxSetCurrent(first);
    CHECK(used_mib() == 110, "it is mapped: %llu MiB", (unsigned long long)used_mib());
    CHECK(cuCtxDestroy_v2(maps) == CUDA_SUCCESS, "destroyed");
    fake_cuCtxSetCurrent(first);
    CHECK(used_mib() == 0 && !objects_find(process, KIND_BORROWED, alike[0], &known), "nothing is left: %llu MiB",
          (unsigned long long)used_mib());
}

/* While a thread frees a mapping that another has freed, a third gets its address. */
void test_address_again_while_it_is_freed(void) {
    CUcontext context;
    const CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {.handle.fd = -1, .size = 10 * MIB};
    struct process *process = with_context(&context);
    struct entry mapped;
    CHECK(cuImportExternalMemory(&external, &from) == CUDA_SUCCESS, "imported");
    map_external();
    CHECK(cuDestroyExternalMemory(external) == CUDA_SUCCESS, "destroyed");
    CHECK(borrowed_freeing(process, alike[0], &mapped), "its record is removed");
    CHECK(cuImportExternalMemory(&external, &from) == CUDA_SUCCESS, "imported");
    map_external();
    CHECK(used_mib() == 20, "both: %llu MiB", (unsigned long long)used_mib());
    borrowed_freed(process, &mapped, CUDA_ERROR_INVALID_VALUE);
    CHECK(used_mib() == 10, "the first is gone: %llu MiB", (unsigned long long)used_mib());
    map_external();
    CHECK(cuDestroyExternalMemory(external) == CUDA_SUCCESS, "destroyed");
    CHECK(borrowed_freeing(process, alike[0], &mapped), "its record is removed");
    borrowed_freed(process, &mapped, CUDA_SUCCESS);
    CHECK(used_mib() == 0, "nothing is left: %llu MiB", (unsigned long long)used_mib());
}

/* Another thread frees it, too, and a third gets smaller memory at its address, before the driver answers that it has freed what
 * is there, or that it has not. */
static void free_twice(struct process *process, CUresult result) {
    CUdeviceptr first, second, third, linear;
    struct entry memory, known;
    uint32_t changes;
    CUstream stream = fake_stream_new();
    CHECK(cuMemAllocAsync(&first, 30 * MIB, stream) == CUDA_SUCCESS, "first");
    CHECK(pools_freeing(process, first, &memory, &changes), "it is of a pool");
    CHECK(fake_free_unseen_in(first, stream) == CUDA_SUCCESS, "freed by another thread");
    CHECK(cuMemAllocAsync(&second, 4 * MIB, stream) == CUDA_SUCCESS && second == first, "there again");
    CHECK(cuMemAllocAsync(&third, 20 * MIB, stream) == CUDA_SUCCESS && third == second + 4 * MIB, "beside it");
    CHECK(result != CUDA_SUCCESS || fake_free_unseen_in(second, stream) == CUDA_SUCCESS, "freed");
    pools_freed(process, &memory, changes, result);
    CHECK(objects_find(process, KIND_POOL_MEMORY, second, &known) && (known.holds & ~UINT64_C(511)) == 4 * MIB,
          "the record of the second: %llu MiB", (unsigned long long)(known.holds / MIB));
    uint64_t rest = LIMIT - context_bytes - used_mib() * MIB;
    CHECK(cuMemAlloc_v2(&linear, rest) == CUDA_SUCCESS, "the rest");
    CHECK(cuMemAllocAsync(&first, 28 * MIB, stream) == CUDA_ERROR_OUT_OF_MEMORY && fake_peak(0) <= LIMIT, "peak %llu",
          (unsigned long long)fake_peak(0));
}

void test_pool_memory_freed_twice(void) {
    CUcontext context;
    free_twice(with_context(&context), CUDA_SUCCESS);
}

void test_pool_memory_freed_twice_and_refused(void) {
    CUcontext context;
    free_twice(with_context(&context), CUDA_ERROR_INVALID_VALUE);
}

/* --- what changes meanwhile --------------------------------------------------------------------------------------- */

void test_objects_that_outlive_their_context(void) {
    CUcontext first, second;
    struct process *process = with_context(&first);
    struct place place;
    struct entry entry = {.key = 1, .charge = charge_of(process, 10)}, known;
    CHECK(cuCtxCreate_v2(&second, 0, 0) == CUDA_SUCCESS && contexts_find(process, second, &place), "context");
    entry.context = place.context;
    objects_put_back(process, KIND_ARRAY, entry);
    CHECK(objects_remove(process, KIND_ARRAY, entry.key, &known) && used_mib() == 110, "it lives: %llu MiB",
          (unsigned long long)used_mib());
    CHECK(cuCtxDestroy_v2(second) == CUDA_SUCCESS, "destroyed");
    fake_cuCtxSetCurrent(first);
    objects_put_back(process, KIND_ARRAY, entry);
    CHECK(!objects_find(process, KIND_ARRAY, entry.key, &known) && used_mib() == 0, "it ended: %llu MiB",
          (unsigned long long)used_mib());
}

/* What another thread has changed since it was read is not replaced. */
void test_replacing_what_has_changed(void) {
    CUcontext context;
    struct process *process = with_context(&context);
    const struct entry entry = {.key = 1, .with = 1, .charge = {.pages = 1, .share = 1, .region = 1}};
    struct entry changed[] = {entry, entry, entry, entry}, known;
    changed[0].with = 2;
    changed[1].charge.pages = 2;
    changed[2].charge.share = 2;
    changed[3].charge.region = 2;
    for (int i = 0; i < 4; i++) {
        CHECK(objects_put(process, KIND_ARRAY, changed[i]), "put");
        CHECK(!objects_replace(process, KIND_ARRAY, &entry, entry.charge, 3), "change %d was not seen", i);
        CHECK(objects_replace(process, KIND_ARRAY, &changed[i], entry.charge, 3), "replaced");
        CHECK(objects_remove(process, KIND_ARRAY, 1, &known) && known.with == 3, "with %d", (int)known.with);
        CHECK(!objects_replace(process, KIND_ARRAY, &known, entry.charge, 4), "what is gone");
    }
}

void test_destroyed_pools_are_not_found(void) {
    CUcontext context;
    struct process *process = with_context(&context);
    CUmemoryPool handle = (CUmemoryPool)(uintptr_t)alike[0]; /* NOLINT(performance-no-int-to-ptr) */
    struct pool *graphs = pools_graphs(process, 0, 0), *pool = pools_memory(process, handle, 0, 0);
    CHECK(graphs != NULL && pool != graphs && pools_find(process, handle) == pool, "found");
    CHECK(pools_find(process, NULL) == NULL, "the memory of graphs is not a pool");
    CHECK(pools_destroying(pool) && pools_find(process, handle) == NULL, "it is being destroyed");
    pools_destroyed(process, pool, CUDA_ERROR_INVALID_VALUE);
    CHECK(pools_find(process, handle) == pool, "the driver refused");
    CHECK(pools_destroying(pool), "destroyed");
    pools_destroyed(process, pool, CUDA_SUCCESS);
    CHECK(pools_find(process, handle) == NULL && pools_find(process, NULL) == NULL, "it is gone");
    CHECK(pools_memory(process, handle, 0, 0) != graphs && pools_find(process, handle) != NULL, "the handle again");
}

/* The driver makes and ends contexts under a handle that stood for another context a moment before. */
void test_aliases_are_not_contexts(void) {
    CUcontext first, reused = (CUcontext)(uintptr_t)alike[0]; /* NOLINT(performance-no-int-to-ptr) */
    struct process *process = with_context(&first);
    struct context_grant grant;
    struct context_end end;
    struct place place, known;
    CUdeviceptr address;
    CHECK(cuMemAlloc_v2(&address, 50 * MIB) == CUDA_SUCCESS && contexts_find(process, first, &place), "in the first");
    contexts_alias(process, reused, first);
    CHECK(contexts_find(process, reused, &known) && known.context == place.context, "an alias");
    context_ending(process, reused, &end);
    context_ended(&end, ENDED_CONTEXT);
    CHECK(used_mib() == 50, "one of its handle has ended: %llu MiB", (unsigned long long)used_mib());
    contexts_alias(process, reused, first);
    CHECK(context_grant(&grant, 0) == CUDA_SUCCESS && context_created(&grant, CUDA_SUCCESS, reused) == CUDA_SUCCESS,
          "one of its handle is made");
    CHECK(used_mib() == 50 + context_bytes / MIB, "made: %llu MiB", (unsigned long long)used_mib());
    CHECK(contexts_find(process, reused, &known) && known.context == grant.place.context, "it is its own");
    context_ending(process, reused, &end);
    context_ended(&end, ENDED_CONTEXT);
    CHECK(used_mib() == 50 && !contexts_find(process, reused, &known), "ended: %llu MiB",
          (unsigned long long)used_mib());
}
