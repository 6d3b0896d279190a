#include "graph.h"

#include <stdlib.h>

/* A GPU's reserve, bytes. */
static struct reserve {
    uint64_t allocated; /* by graphs that ran, and not freed */
    uint64_t mapped;    /* for graphs that live, whether they run or not */
    uint64_t reserved;
    uint64_t mapped_high, reserved_high;
    uint64_t busy; /* may be in use until the GPU has got to the mark, or while a launch is being made */
    CUdevice busy_on;
    uint64_t busy_mark;
} reserves[SIM_MAX_GPUS];

static struct graph_alloc *allocs;
static unsigned launching;

static void raise_to(uint64_t *high, uint64_t value) {
    if (*high < value)
        *high = value;
}

/* ---- Allocations ---- */

CUresult graph_alloc_new(const CUmemPoolProps *props, uint64_t size, uint64_t graph, struct graph_alloc **out) {
    struct graph_alloc *alloc;

    REQUIRE(size <= device_gpu(props->location.id)->memory_bytes, CUDA_ERROR_OUT_OF_MEMORY);
    alloc = calloc(1, sizeof(*alloc));
    REQUIRE(alloc != NULL, CUDA_ERROR_OUT_OF_MEMORY);
    alloc->extent = heap_range_new(props->location.id, EXTENT_GRAPH, size, alloc);
    if (alloc->extent == NULL) {
        free(alloc);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    alloc->references = 1;
    alloc->props = *props;
    alloc->device = props->location.id;
    alloc->address = heap_extent_address(alloc->extent);
    alloc->size = size;
    alloc->bytes = round_up(size, SIM_GRANULARITY);
    alloc->graph = graph;
    alloc->next = allocs;
    if (allocs != NULL)
        allocs->previous = alloc;
    allocs = alloc;
    *out = alloc;
    return CUDA_SUCCESS;
}

void graph_alloc_unref(struct graph_alloc *alloc) {
    if (--alloc->references != 0)
        return;
    if (alloc->previous != NULL)
        alloc->previous->next = alloc->next;
    else
        allocs = alloc->next;
    if (alloc->next != NULL)
        alloc->next->previous = alloc->previous;
    heap_range_delete(alloc->extent);
    free(alloc);
}

struct graph_alloc *graph_alloc_at(CUdeviceptr address) {
    struct graph_alloc *alloc = heap_range_owner(address, EXTENT_GRAPH);

    return alloc != NULL && alloc->address == address ? alloc : NULL;
}

static void set_allocated(struct graph_alloc *alloc) {
    alloc->allocated = true;
    alloc->references++;
    reserves[alloc->device].allocated += alloc->bytes;
    sim_count_allocation(driver->gpus[alloc->device], 1);
}

static void set_free(struct graph_alloc *alloc) {
    alloc->allocated = false;
    reserves[alloc->device].allocated -= alloc->bytes;
    sim_count_allocation(driver->gpus[alloc->device], -1);
    graph_alloc_unref(alloc);
}

/* ---- Running ---- */

/* The most that is allocated on each device in the course of a run. */
static void most_needed(struct CUgraphNode_st **nodes, size_t count, uint64_t *most) {
    uint64_t now[SIM_MAX_GPUS];

    for (int i = 0; i < SIM_MAX_GPUS; i++)
        now[i] = most[i] = reserves[i].allocated;
    for (size_t i = 0; i < count; i++) {
        const struct graph_alloc *alloc = nodes[i]->work.memory;

        if (nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
            now[alloc->device] += alloc->bytes;
            raise_to(&most[alloc->device], now[alloc->device]);
        } else if (nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
            now[alloc->device] -= alloc->bytes;
        }
    }
}

static CUresult grow(CUdevice device, uint64_t most) {
    struct reserve *r = &reserves[device];

    if (most > r->reserved) {
        TRY(heap_reserve_physical(driver->gpus[device], most - r->reserved, r));
        r->reserved = most;
        raise_to(&r->reserved_high, most);
    }
    return CUDA_SUCCESS;
}

static bool has_memory(struct CUgraphNode_st **nodes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
            return true;
    }
    return false;
}

/* What was reserved for one GPU stays reserved if another has no room: it is there to be trimmed. */
static CUresult reserve_all(struct CUgraphNode_st **nodes, size_t count, uint64_t *most) {
    most_needed(nodes, count, most);
    for (int i = 0; i < driver->device_count; i++)
        TRY(grow(i, most[i]));
    for (int i = 0; i < driver->device_count; i++) {
        raise_to(&reserves[i].mapped, most[i]);
        raise_to(&reserves[i].mapped_high, reserves[i].mapped);
    }
    return CUDA_SUCCESS;
}

CUresult graph_memory_upload(struct CUgraphNode_st **nodes, size_t count) {
    uint64_t most[SIM_MAX_GPUS];

    return has_memory(nodes, count) ? reserve_all(nodes, count, most) : CUDA_SUCCESS;
}

/* What the graph frees must be allocated when it begins, or by itself; what it allocates must not be. */
static CUresult check_run(struct CUgraphNode_st **nodes, size_t count, bool again) {
    for (size_t i = 0; i < count; i++) {
        const struct graph_alloc *alloc = nodes[i]->work.memory;

        if (nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            REQUIRE(!alloc->allocated || again, CUDA_ERROR_INVALID_VALUE);
        else if (nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
            REQUIRE(alloc->freed_at_home || alloc->allocated, CUDA_ERROR_INVALID_VALUE);
    }
    return CUDA_SUCCESS;
}

CUresult graph_memory_run(struct CUgraphNode_st **nodes, size_t count, bool again) {
    uint64_t most[SIM_MAX_GPUS];

    if (!has_memory(nodes, count))
        return CUDA_SUCCESS;
    TRY(check_run(nodes, count, again));
    for (size_t i = 0; i < count; i++) {
        if (nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && nodes[i]->work.memory->allocated)
            set_free(nodes[i]->work.memory);
    }
    TRY(reserve_all(nodes, count, most));
    for (size_t i = 0; i < count; i++) {
        if (nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            set_allocated(nodes[i]->work.memory);
        else if (nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_FREE && nodes[i]->work.memory->allocated)
            set_free(nodes[i]->work.memory);
    }
    for (int i = 0; i < driver->device_count; i++)
        raise_to(&reserves[i].busy, most[i]);
    launching++;
    return CUDA_SUCCESS;
}

static void busy_until(struct reserve *r, CUdevice device, uint64_t mark) {
    if (r->busy_on != device || r->busy_mark < mark)
        r->busy_mark = mark;
    r->busy_on = device;
}

void graph_memory_launched(struct CUgraphNode_st **nodes, size_t count, CUdevice device, uint64_t mark) {
    if (!has_memory(nodes, count))
        return;
    launching--;
    for (int i = 0; i < driver->device_count; i++)
        busy_until(&reserves[i], device, mark);
}

void graph_memory_unused(void) {
    for (int i = 0; i < driver->device_count; i++)
        reserves[i].mapped = reserves[i].allocated;
}

CUresult graph_memory_free(CUdeviceptr address) {
    struct graph_alloc *alloc;
    bool allocated;

    graph_lock();
    alloc = graph_alloc_at(address);
    allocated = alloc != NULL && alloc->allocated;
    if (allocated) {
        raise_to(&reserves[alloc->device].busy, reserves[alloc->device].allocated);
        busy_until(&reserves[alloc->device], alloc->device, engine_mark(alloc->device));
        set_free(alloc);
    }
    graph_unlock();
    return allocated ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- The reserve ---- */

/* Down to what is allocated, or may be in use by graphs that the GPU has not got done yet. */
static void trim(CUdevice device) {
    struct reserve *r = &reserves[device];
    uint64_t keep;

    if (launching == 0 && engine_done(r->busy_on, r->busy_mark))
        r->busy = 0;
    keep = r->busy > r->allocated ? r->busy : r->allocated;
    r->mapped = keep;
    if (keep >= r->reserved)
        return;
    sim_release(driver->gpus[device], r->reserved - keep, r);
    r->reserved = keep;
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
    REQUIRE_INITIALISED();
    REQUIRE(device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    graph_lock();
    trim(device);
    graph_unlock();
    return CUDA_SUCCESS;
}

void graph_memory_reset(CUdevice device) {
    struct reserve *r = &reserves[device];

    graph_lock();
    for (struct graph_alloc *alloc = allocs, *next; alloc != NULL; alloc = next) {
        next = alloc->next;
        if (alloc->device == device && alloc->allocated)
            set_free(alloc);
    }
    sim_release(driver->gpus[device], r->reserved, r);
    r->reserved = r->mapped = r->busy = 0;
    graph_unlock();
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value) {
    const struct reserve *r = &reserves[device];
    CUresult ret = CUDA_SUCCESS;

    REQUIRE_INITIALISED();
    REQUIRE(device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(value != NULL, CUDA_ERROR_INVALID_VALUE);
    graph_lock();
    switch (attr) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
        *(cuuint64_t *)value = r->mapped > r->allocated ? r->mapped : r->allocated;
        break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
        *(cuuint64_t *)value = r->mapped_high;
        break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
        *(cuuint64_t *)value = r->reserved;
        break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
        *(cuuint64_t *)value = r->reserved_high;
        break;
    default:
        ret = CUDA_ERROR_INVALID_VALUE;
    }
    graph_unlock();
    return ret;
}

/* The high marks can be set to 0, which is to say, to what is now. */
CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value) {
    REQUIRE_INITIALISED();
    REQUIRE(device_valid(device), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH,
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(value != NULL && *(cuuint64_t *)value == 0, CUDA_ERROR_INVALID_VALUE);
    graph_lock();
    if (attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        reserves[device].mapped_high = reserves[device].mapped;
    else
        reserves[device].reserved_high = reserves[device].reserved;
    graph_unlock();
    return CUDA_SUCCESS;
}
