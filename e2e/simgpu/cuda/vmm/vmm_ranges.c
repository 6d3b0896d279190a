/* Addresses outside the heap: which memory lies where. */
#include <search.h>
#include <sys/mman.h>

#include "shared_objects.h"
#include "vmm.h"
#include "vmm_content.h"
#include "vmm_space.h"

static struct handle_table ranges = HANDLE_TABLE(8, 1 << 20);
_Static_assert(sizeof(struct range) <= 1 << 8, "a range must fit into its element");

static void *tree;                           /* of ranges, by address */
static _Atomic uint64_t count;               /* of ranges, so that whoever has none pays nothing */
static uint64_t next_id = (uint64_t)1 << 40; /* apart from those of the heap's extents */

static int compare(const void *a, const void *b) {
    const struct range *x = a, *y = b;

    return x->base + x->size <= y->base ? -1 : y->base + y->size <= x->base ? 1 : 0;
}

struct range *range_find_locked(CUdeviceptr address) {
    struct range key = {.base = address, .size = 1};
    struct range **found = tfind(&key, &tree, compare);

    return found != NULL ? *found : NULL;
}

bool range_overlaps_locked(CUdeviceptr base, uint64_t size) {
    struct range key = {.base = base, .size = size};

    return tfind(&key, &tree, compare) != NULL;
}

struct each {
    void (*fn)(struct range *range, void *arg);
    void *arg;
};

static void call(void *element, void *arg) {
    struct each *each = arg;

    each->fn(element, each->arg);
}

void ranges_each_locked(void (*fn)(struct range *range, void *arg), void *arg) {
    struct each each = {fn, arg};

    handle_each(&ranges, call, &each);
}

/* ---- Making and unmaking ---- */

static bool accessible(const struct range *range) {
    for (int i = 0; i < SIM_MAX_GPUS; i++) {
        if (range->access[i] != CU_MEM_ACCESS_FLAGS_PROT_NONE)
            return true;
    }
    return range->host_access != CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

bool range_show_locked(struct range *range) {
    void *address = (void *)(uintptr_t)range->base;
    const struct vmm_memory *memory = range->memory;

    if (!accessible(range))
        return space_hide(range->base, range->size);
    /* What goes through a multicast object reaches memory only by instructions of kernels. */
    if (memory->multicast)
        return mprotect(address, range->size, PROT_READ | PROT_WRITE) == 0;
    if (memory->object != 0)
        return sim_shared_map(memory->object, range->offset, address, range->size) == 0;
    return content_map(memory->content + range->offset, address, range->size);
}

struct range *range_insert_locked(enum range_kind kind, CUdeviceptr base, uint64_t size, struct vmm_memory *memory,
                                  uint64_t offset) {
    struct range *range = handle_new(&ranges);

    if (range == NULL)
        return NULL;
    range->kind = kind;
    range->base = base;
    range->size = size;
    range->memory = memory;
    range->offset = offset;
    range->extent = (struct extent){.blocks = (uint32_t)(round_up(size, SIM_GRANULARITY) / SIM_GRANULARITY),
                                    .kind = EXTENT_MAPPED,
                                    .touched = 1,
                                    .device = (int8_t)memory->device,
                                    .size = size,
                                    .buffer_id = next_id++};
    if (tsearch(range, &tree, compare) == NULL) {
        handle_delete(&ranges, range);
        return NULL;
    }
    atomic_fetch_add(&count, 1);
    return range;
}

void range_delete_locked(struct range *range) {
    tdelete(range, &tree, compare);
    atomic_fetch_sub(&count, 1);
    if (range->kind == RANGE_MAPPED)
        space_hide(range->base, range->size);
    else
        space_free(range->base, range->size);
    vmm_drop_locked(range->memory);
    handle_delete(&ranges, range);
}

CUresult range_new_locked(enum range_kind kind, struct CUctx_st *context, struct vmm_memory *memory, uint64_t offset,
                          uint64_t size, struct range **out) {
    CUdeviceptr base = space_reserve(size, SIM_GRANULARITY, 0);
    struct range *range = base != 0 ? range_insert_locked(kind, base, size, memory, offset) : NULL;

    if (range == NULL) {
        if (base != 0)
            space_free(base, size);
        vmm_drop_locked(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    range->extent.context = context;
    range->access[context->device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (!range_show_locked(range)) {
        range_delete_locked(range);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = range;
    return CUDA_SUCCESS;
}

/* ---- For heap.c ---- */

bool range_address(CUdeviceptr address) {
    bool found;

    if (!space_any())
        return false;
    pthread_mutex_lock(&vmm_mutex);
    found = space_reserved(address) || range_find_locked(address) != NULL;
    pthread_mutex_unlock(&vmm_mutex);
    return found;
}

bool range_find(CUdeviceptr address, struct allocation *allocation) {
    struct range *range;

    if (atomic_load(&count) == 0)
        return false;
    pthread_mutex_lock(&vmm_mutex);
    range = range_find_locked(address);
    if (range != NULL)
        *allocation = (struct allocation){.base = range->base, .size = range->size, .extent = &range->extent};
    pthread_mutex_unlock(&vmm_mutex);
    return range != NULL;
}

/* Several mappings side by side do as well as one. */
bool range_touch(CUdeviceptr address, uint64_t size) {
    struct range *range = NULL;
    CUdeviceptr end = address + size;

    if (atomic_load(&count) == 0 || end < address)
        return false;
    pthread_mutex_lock(&vmm_mutex);
    do {
        range = range_find_locked(address);
        if (range == NULL || !accessible(range) || range->memory->multicast)
            range = NULL;
        else
            address = range->base + range->size;
    } while (range != NULL && address < end);
    pthread_mutex_unlock(&vmm_mutex);
    return range != NULL;
}

CUresult range_free(CUdeviceptr address) {
    struct range *range;
    CUresult ret = CUDA_ERROR_INVALID_VALUE;

    if (atomic_load(&count) == 0)
        return ret;
    pthread_mutex_lock(&vmm_mutex);
    range = range_find_locked(address);
    if (range != NULL && range->kind == RANGE_EXTERNAL && range->base + range->within == address) {
        range_delete_locked(range);
        ret = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&vmm_mutex);
    return ret;
}

static void delete_if_of(struct range *range, void *context) {
    if (range->extent.context == context)
        range_delete_locked(range);
}

void ranges_context_gone(struct CUctx_st *context) {
    if (atomic_load(&count) == 0)
        return;
    pthread_mutex_lock(&vmm_mutex);
    ranges_each_locked(delete_if_of, context);
    pthread_mutex_unlock(&vmm_mutex);
}
