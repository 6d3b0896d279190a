#include "pageable.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "heap.h"
#include "host_memory.h"

/* A page that is on a GPU. */
struct page {
    uint64_t number; /* address / SIM_GRANULARITY */
    CUdevice device;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct page *pages; /* under the mutex, in no order */
static size_t used, room;

bool pageable_access(CUdevice device) {
    return device_gpu(device)->addressing > SIM_ADDRESSING_NONE;
}

static bool is_mapped(CUdeviceptr address, uint64_t size) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = address / page * page;

    /* ENOMEM for a range with a hole. */
    return address + size > address && msync((void *)(uintptr_t)first, address + size - first, MS_ASYNC) == 0;
}

static bool is_the_drivers(CUdeviceptr address) {
    struct allocation allocation;
    struct host_range range;

    return heap_find(address, &allocation) || host_range_find((uintptr_t)address, &range);
}

/* The page, made where it is missing; NULL without memory. */
static struct page *page_of(uint64_t number) {
    for (size_t i = 0; i < used; i++) {
        if (pages[i].number == number)
            return &pages[i];
    }
    if (used == room) {
        size_t more = room != 0 ? 2 * room : 64;
        struct page *grown = realloc(pages, more * sizeof(*pages));

        if (grown == NULL)
            return NULL;
        pages = grown;
        room = more;
    }
    pages[used] = (struct page){.number = number, .device = CU_DEVICE_CPU};
    return &pages[used++];
}

/* It has no owner: no limit of a cgroup counts memory of the program's own. */
static void move(struct page *page, CUdevice device) {
    if (page->device == device)
        return;
    if (device != CU_DEVICE_CPU && sim_reserve(driver->gpus[device], SIM_GRANULARITY, NULL) != 0)
        return;
    if (page->device != CU_DEVICE_CPU)
        sim_release(driver->gpus[page->device], SIM_GRANULARITY, NULL);
    page->device = device;
}

bool pageable_is_own(CUdeviceptr address, uint64_t size) {
    return pageable_access(0) && !is_the_drivers(address) && !is_the_drivers(address + size - 1) &&
           is_mapped(address, size);
}

void pageable_prefetch(CUdeviceptr address, uint64_t size, CUdevice device) {
    pthread_mutex_lock(&mutex);
    for (uint64_t n = address / SIM_GRANULARITY; n <= (address + size - 1) / SIM_GRANULARITY; n++) {
        struct page *page = page_of(n);

        if (page != NULL)
            move(page, device);
        if (page != NULL && page->device == CU_DEVICE_CPU)
            *page = pages[--used];
    }
    pthread_mutex_unlock(&mutex);
}
