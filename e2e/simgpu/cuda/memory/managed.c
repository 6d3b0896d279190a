#include "managed.h"

#include <string.h>
#include <sys/mman.h>

#include "cuda/work/stream.h"
#include "heap.h"
#include "pageable.h"

/* A place: none, the host, a node of the host, or a GPU. */
enum { NOWHERE, HOST, HOST_NODE, FIRST_DEVICE };
#define AT_DEVICE(device) ((uint8_t)(FIRST_DEVICE + (device)))
#define CPU_BIT (1u << SIM_MAX_GPUS)

struct block {
    uint8_t at;         /* NOWHERE: with the host */
    uint8_t preferred;  /* place */
    uint8_t prefetched; /* place */
    uint8_t read_mostly;
    uint32_t accessed_by; /* bit per device, and the CPU's */
};

static struct block *blocks; /* [block of the heap] */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_blocks(void) {
    void *space = mmap(NULL, heap_block_limit() * sizeof(*blocks), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    blocks = space != MAP_FAILED ? space : NULL;
}

static bool ready(void) {
    pthread_once(&once, make_blocks);
    return blocks != NULL;
}

/* ---- Moving. Under the heap's lock. It has no owner: no limit of a cgroup counts managed memory. ---- */

static void take_off(struct block *block) {
    if (block->at >= FIRST_DEVICE)
        sim_release(driver->gpus[block->at - FIRST_DEVICE], SIM_GRANULARITY, NULL);
    block->at = NOWHERE;
}

static bool wanted_at(const struct block *block, uint8_t place) {
    return block->at != place;
}

/* Brings blocks to a GPU; those for which there is no room stay where they are. Whether there was room for all. */
static bool bring(uint32_t first, uint32_t count, CUdevice device) {
    uint8_t place = AT_DEVICE(device);
    int gpu = driver->gpus[device];
    uint64_t missing = 0;
    bool reserved;

    for (uint32_t i = first; i < first + count; i++)
        missing += wanted_at(&blocks[i], place);
    if (missing == 0)
        return true;
    reserved = sim_reserve(gpu, missing * SIM_GRANULARITY, NULL) == 0;
    for (uint32_t i = first; i < first + count; i++) {
        if (!wanted_at(&blocks[i], place))
            continue;
        if (!reserved && sim_reserve(gpu, SIM_GRANULARITY, NULL) != 0)
            return false;
        take_off(&blocks[i]);
        blocks[i].at = place;
    }
    return true;
}

/* A GPU touches blocks: they come to it, but for those that are to be elsewhere, which it reaches where they are. */
static bool touch(uint32_t first, uint32_t count, CUdevice device) {
    bool all = true;

    for (uint32_t end = first + count, run; first < end; first += run) {
        uint8_t preferred = blocks[first].preferred;

        for (run = 1; first + run < end && blocks[first + run].preferred == preferred; run++) {
        }
        if (preferred == NOWHERE)
            all &= bring(first, run, device);
        else if (preferred >= FIRST_DEVICE)
            all &= bring(first, run, preferred - FIRST_DEVICE);
    }
    return all;
}

void managed_touch(uint32_t first, uint32_t count, CUdevice device) {
    struct CUctx_st *context;

    if (context_current(&context) == CUDA_SUCCESS)
        device = context->device;
    if (ready())
        touch(first, count, device);
}

void managed_forget(uint32_t first, uint32_t count) {
    if (!ready())
        return;
    for (uint32_t i = first; i < first + count; i++) {
        take_off(&blocks[i]);
        blocks[i] = (struct block){0};
    }
}

/* Memory that was moved, or may move now, comes back with the next launch. */
static void look_anew(void *context, void *arg) {
    (void)arg;
    context_launches_anew(context);
}

struct launch {
    CUdevice device;
    bool all;
};

static void touch_for_launch(uint32_t first, uint32_t count, void *arg) {
    struct launch *launch = arg;

    launch->all &= touch(first, count, launch->device);
}

bool managed_prepare_launch(struct CUctx_st *context) {
    struct launch launch = {.device = context->device, .all = true};

    if (ready())
        heap_each_managed(context, touch_for_launch, &launch);
    return launch.all;
}

/* ---- Advice and prefetching ---- */

/* The place that a location means; NOWHERE for what is none. */
static CUresult place_of(CUmemLocation location, uint8_t *place) {
    switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        REQUIRE(device_valid(location.id), CUDA_ERROR_INVALID_DEVICE);
        *place = AT_DEVICE(location.id);
        return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST:
        *place = HOST;
        return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        REQUIRE(location.id == 0, CUDA_ERROR_INVALID_VALUE); /* the one node that there is */
        *place = HOST_NODE;
        return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        *place = HOST_NODE;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUmemLocation location_of(CUdevice device) {
    return device == CU_DEVICE_CPU ? (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0}
                                   : (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device};
}

static void prefetch_blocks(uint32_t first, uint32_t count, void *arg) {
    uint8_t place = *(uint8_t *)arg;

    for (uint32_t i = first; i < first + count; i++) {
        blocks[i].prefetched = place;
        if (place < FIRST_DEVICE)
            take_off(&blocks[i]);
    }
    if (place >= FIRST_DEVICE)
        bring(first, count, place - FIRST_DEVICE);
}

static CUresult prefetch_own(CUdeviceptr address, size_t size, uint8_t place) {
    CUdevice device = place >= FIRST_DEVICE ? place - FIRST_DEVICE : CU_DEVICE_CPU;

    REQUIRE(pageable_is_own(address, size) && (device == CU_DEVICE_CPU || pageable_access(device)),
            CUDA_ERROR_INVALID_VALUE);
    pageable_prefetch(address, size, device);
    return CUDA_SUCCESS;
}

/* Like a copy: done at once, after the host functions that are before it in the stream. */
static CUresult prefetch(CUdeviceptr address, size_t size, CUmemLocation location, unsigned flags, CUstream handle,
                         bool per_thread) {
    struct CUstream_st *stream;
    uint8_t place;

    REQUIRE_CONTEXT(context);
    REQUIRE(flags == 0 && size != 0 && ready(), CUDA_ERROR_INVALID_VALUE);
    TRY(place_of(location, &place));
    TRY(stream_find(context, handle, per_thread, &stream));
    stream_wait_calls(stream);
    if (!heap_managed_blocks(address, size, prefetch_blocks, &place))
        return prefetch_own(address, size, place);
    if (place < FIRST_DEVICE)
        handle_each(&contexts, look_anew, NULL);
    return CUDA_SUCCESS;
}

CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream) {
    return prefetch(devPtr, count, location_of(dstDevice), 0, hStream, false);
}

CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream) {
    return prefetch(devPtr, count, location_of(dstDevice), 0, hStream, true);
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags,
                               CUstream hStream) {
    return prefetch(devPtr, count, location, flags, hStream, false);
}

CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags,
                                    CUstream hStream) {
    return prefetch(devPtr, count, location, flags, hStream, true);
}

struct advice {
    CUmem_advise advice;
    uint8_t place;
};

static uint32_t access_bit(uint8_t place) {
    return place >= FIRST_DEVICE ? 1u << (place - FIRST_DEVICE) : CPU_BIT;
}

static void advise_block(struct block *block, const struct advice *advice) {
    switch (advice->advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
        block->read_mostly = advice->advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
        break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
        block->preferred = advice->place;
        if (advice->place < FIRST_DEVICE)
            take_off(block);
        break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        block->preferred = NOWHERE;
        break;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
        block->accessed_by |= access_bit(advice->place);
        break;
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
        block->accessed_by &= ~access_bit(advice->place);
        break;
    }
}

static void advise_blocks(uint32_t first, uint32_t count, void *arg) {
    for (uint32_t i = first; i < first + count; i++)
        advise_block(&blocks[i], arg);
}

CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUmemLocation location) {
    struct advice what = {.advice = advice, .place = NOWHERE};

    REQUIRE_INITIALISED();
    REQUIRE(count != 0 && advice >= CU_MEM_ADVISE_SET_READ_MOSTLY && advice <= CU_MEM_ADVISE_UNSET_ACCESSED_BY &&
                ready(),
            CUDA_ERROR_INVALID_VALUE);
    /* What the place has no part in ignores it. */
    if (advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || advice >= CU_MEM_ADVISE_SET_ACCESSED_BY)
        TRY(place_of(location, &what.place));
    REQUIRE(advice < CU_MEM_ADVISE_SET_ACCESSED_BY || what.place != HOST_NODE, CUDA_ERROR_INVALID_VALUE);
    if (!heap_managed_blocks(devPtr, count, advise_blocks, &what))
        return pageable_is_own(devPtr, count) ? CUDA_ERROR_NOT_SUPPORTED /* not simulated */ : CUDA_ERROR_INVALID_VALUE;
    handle_each(&contexts, look_anew, NULL);
    return CUDA_SUCCESS;
}

CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device) {
    return cuMemAdvise_v2(devPtr, count, advice, location_of(device));
}

/* Says by which streams the memory is used: nothing that shows here. */
static CUresult attach(CUstream handle, CUdeviceptr address, size_t size, unsigned flags, bool per_thread) {
    struct CUstream_st *stream;
    struct allocation allocation;

    REQUIRE_CONTEXT(context);
    REQUIRE(flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST || flags == CU_MEM_ATTACH_SINGLE,
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(heap_find(address, &allocation) && allocation.extent->pack_kind == PACK_MANAGED &&
                address == allocation.base && (size == 0 || size == allocation.size),
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(flags != CU_MEM_ATTACH_SINGLE || (handle != NULL && handle != CU_STREAM_LEGACY), CUDA_ERROR_INVALID_VALUE);
    return stream_find(context, handle, per_thread, &stream);
}

CUresult cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length, unsigned int flags) {
    return attach(hStream, dptr, length, flags, false);
}

CUresult cuStreamAttachMemAsync_ptsz(CUstream hStream, CUdeviceptr dptr, size_t length, unsigned int flags) {
    return attach(hStream, dptr, length, flags, true);
}

/* ---- What can be asked of a range ---- */

/* What all blocks of a range have in common. */
struct common {
    bool any;
    uint8_t preferred, prefetched; /* NOWHERE: not the same for all */
    bool read_mostly;
    uint32_t accessed_by;
};

static void find_common(uint32_t first, uint32_t count, void *arg) {
    struct common *common = arg;

    *common = (struct common){.any = true,
                              .preferred = blocks[first].preferred,
                              .prefetched = blocks[first].prefetched,
                              .read_mostly = true,
                              .accessed_by = UINT32_MAX};
    for (uint32_t i = first; i < first + count; i++) {
        if (blocks[i].preferred != common->preferred)
            common->preferred = NOWHERE;
        if (blocks[i].prefetched != common->prefetched)
            common->prefetched = NOWHERE;
        common->read_mostly &= blocks[i].read_mostly != 0;
        common->accessed_by &= blocks[i].accessed_by;
    }
}

static int32_t device_at(uint8_t place) {
    return place == NOWHERE ? CU_DEVICE_INVALID : place < FIRST_DEVICE ? CU_DEVICE_CPU : place - FIRST_DEVICE;
}

static int32_t type_of(uint8_t place) {
    return place == NOWHERE     ? CU_MEM_LOCATION_TYPE_INVALID
           : place == HOST      ? CU_MEM_LOCATION_TYPE_HOST
           : place == HOST_NODE ? CU_MEM_LOCATION_TYPE_HOST_NUMA
                                : CU_MEM_LOCATION_TYPE_DEVICE;
}

static int32_t id_at(uint8_t place) {
    return place >= FIRST_DEVICE ? place - FIRST_DEVICE : 0;
}

static CUresult list_accessors(int32_t *list, size_t size, uint32_t accessed_by) {
    size_t room = size / sizeof(*list), used = 0;

    REQUIRE(size != 0 && size % sizeof(*list) == 0, CUDA_ERROR_INVALID_VALUE);
    for (int device = 0; device < SIM_MAX_GPUS && used < room; device++) {
        if (accessed_by & 1u << device)
            list[used++] = device;
    }
    if ((accessed_by & CPU_BIT) != 0 && used < room)
        list[used++] = CU_DEVICE_CPU;
    while (used < room)
        list[used++] = CU_DEVICE_INVALID;
    return CUDA_SUCCESS;
}

CUresult cuMemRangeGetAttribute(void *data, size_t dataSize, CUmem_range_attribute attribute, CUdeviceptr devPtr,
                                size_t count) {
    struct common common;
    int32_t *out = data;

    REQUIRE_INITIALISED();
    REQUIRE(data != NULL && count != 0 && ready(), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(heap_managed_blocks(devPtr, count, find_common, &common), CUDA_ERROR_INVALID_VALUE);
    if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY)
        return list_accessors(data, dataSize, common.accessed_by);
    REQUIRE(dataSize == sizeof(*out), CUDA_ERROR_INVALID_VALUE);
    switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
        *out = common.read_mostly;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
        *out = device_at(common.preferred);
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
        *out = device_at(common.prefetched);
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
        *out = type_of(common.preferred);
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
        *out = id_at(common.preferred);
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
        *out = type_of(common.prefetched);
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
        *out = id_at(common.prefetched);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemRangeGetAttributes(void **data, size_t *dataSizes, CUmem_range_attribute *attributes,
                                 size_t numAttributes, CUdeviceptr devPtr, size_t count) {
    REQUIRE_INITIALISED();
    REQUIRE(data != NULL && dataSizes != NULL && attributes != NULL && numAttributes != 0, CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < numAttributes; i++)
        TRY(cuMemRangeGetAttribute(data[i], dataSizes[i], attributes[i], devPtr, count));
    return CUDA_SUCCESS;
}
