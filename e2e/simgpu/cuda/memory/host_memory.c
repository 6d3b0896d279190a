#include "host_memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct host_range *ranges; /* by base */
static size_t count, capacity;
static uint64_t next_id = 1;

/* Index of the first range that begins above the address. */
static size_t first_above(uintptr_t address) {
    size_t low = 0, high = count;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (ranges[middle].base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct host_range *find_locked(uintptr_t address) {
    size_t above = first_above(address);

    return above > 0 && address - ranges[above - 1].base < ranges[above - 1].size ? &ranges[above - 1] : NULL;
}

bool host_range_find(uintptr_t address, struct host_range *range) {
    struct host_range *found;

    pthread_mutex_lock(&mutex);
    found = find_locked(address);
    if (found != NULL)
        *range = *found;
    pthread_mutex_unlock(&mutex);
    return found != NULL;
}

static CUresult insert_locked(struct host_range range) {
    size_t at = first_above(range.base);

    if (find_locked(range.base) != NULL || (at < count && ranges[at].base - range.base < range.size))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (count == capacity) {
        size_t more = capacity ? 2 * capacity : 64;
        struct host_range *grown = realloc(ranges, more * sizeof(*ranges));

        if (grown == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        ranges = grown;
        capacity = more;
    }
    memmove(&ranges[at + 1], &ranges[at], (count - at) * sizeof(*ranges));
    range.id = next_id++;
    ranges[at] = range;
    count++;
    return CUDA_SUCCESS;
}

static CUresult insert(struct host_range range) {
    CUresult ret;

    pthread_mutex_lock(&mutex);
    ret = insert_locked(range);
    pthread_mutex_unlock(&mutex);
    return ret;
}

/* Takes out the range that begins at the address and is of this kind. */
static bool take_out(uintptr_t base, bool registered, struct host_range *range) {
    struct host_range *found;
    bool fits;

    pthread_mutex_lock(&mutex);
    found = find_locked(base);
    fits = found != NULL && found->base == base && found->registered == registered;
    if (fits) {
        *range = *found;
        count--;
        memmove(found, found + 1, (count - (size_t)(found - ranges)) * sizeof(*ranges));
    }
    pthread_mutex_unlock(&mutex);
    return fits;
}

CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags) {
    struct host_range range;
    void *memory;
    CUresult ret;

    REQUIRE_CONTEXT(context);
    REQUIRE(pp != NULL && bytesize != 0 && Flags <= 7, CUDA_ERROR_INVALID_VALUE);
    memory = mmap(NULL, bytesize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
    range = (struct host_range){.base = (uintptr_t)memory,
                                .size = bytesize,
                                .flags = Flags | CU_MEMHOSTALLOC_DEVICEMAP,
                                .context = context,
                                .device = context->device};
    ret = insert(range);
    if (ret != CUDA_SUCCESS) {
        munmap(memory, bytesize);
        return ret;
    }
    *pp = memory;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocHost_v2(void **pp, size_t bytesize) {
    return cuMemHostAlloc(pp, bytesize, 0);
}

CUresult cuMemAllocHost(void **pp, unsigned int bytesize) {
    return cuMemHostAlloc(pp, bytesize, 0);
}

CUresult cuMemFreeHost(void *p) {
    struct host_range range;

    REQUIRE_INITIALISED();
    REQUIRE(p != NULL && take_out((uintptr_t)p, false, &range), CUDA_ERROR_INVALID_VALUE);
    munmap(p, range.size);
    return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags) {
    REQUIRE_CONTEXT(context);
    REQUIRE(p != NULL && bytesize != 0 && Flags <= 15, CUDA_ERROR_INVALID_VALUE);
    return insert((struct host_range){.base = (uintptr_t)p,
                                      .size = bytesize,
                                      .flags = Flags | CU_MEMHOSTREGISTER_DEVICEMAP,
                                      .registered = true,
                                      .context = context,
                                      .device = context->device});
}

CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags) {
    return cuMemHostRegister_v2(p, bytesize, Flags);
}

CUresult cuMemHostUnregister(void *p) {
    struct host_range range;

    REQUIRE_INITIALISED();
    REQUIRE(p != NULL, CUDA_ERROR_INVALID_VALUE);
    return take_out((uintptr_t)p, true, &range) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

/* With unified addressing the GPU knows host memory by the host's own address. */
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags) {
    struct host_range range;

    REQUIRE_CONTEXT(context);
    (void)context;
    REQUIRE(pdptr != NULL && Flags == 0 && host_range_find((uintptr_t)p, &range), CUDA_ERROR_INVALID_VALUE);
    *pdptr = (uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr_v1 *pdptr, void *p, unsigned int Flags) {
    CUdeviceptr address;

    REQUIRE_INITIALISED();
    REQUIRE(pdptr != NULL, CUDA_ERROR_INVALID_VALUE);
    TRY(cuMemHostGetDevicePointer_v2(&address, p, Flags));
    REQUIRE(address <= UINT32_MAX, CUDA_ERROR_INVALID_VALUE);
    *pdptr = (CUdeviceptr_v1)address;
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p) {
    struct host_range range;

    REQUIRE(pFlags != NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE_INITIALISED();
    REQUIRE(host_range_find((uintptr_t)p, &range) && !range.registered, CUDA_ERROR_INVALID_VALUE);
    *pFlags = range.flags;
    return CUDA_SUCCESS;
}
