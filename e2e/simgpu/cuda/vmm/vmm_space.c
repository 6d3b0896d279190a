#include "vmm_space.h"

#include <search.h>
#include <stdlib.h>
#include <sys/mman.h>

#define FLAGS (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

struct space {
    CUdeviceptr base;
    uint64_t size;
};

static void *tree;
static _Atomic uint64_t count;

static int compare(const void *a, const void *b) {
    const struct space *x = a, *y = b;

    return x->base + x->size <= y->base ? -1 : y->base + y->size <= x->base ? 1 : 0;
}

static struct space *find(CUdeviceptr address) {
    struct space key = {address, 1};
    struct space **found = tfind(&key, &tree, compare);

    return found != NULL ? *found : NULL;
}

static CUdeviceptr map_at(uint64_t size, CUdeviceptr wanted) {
    void *got = mmap((void *)(uintptr_t)wanted, size, PROT_NONE, FLAGS | MAP_FIXED_NOREPLACE, -1, 0);

    if (got == MAP_FAILED)
        return 0;
    /* Kernels that do not know the flag take the address for a hint. */
    if ((CUdeviceptr)(uintptr_t)got != wanted) {
        munmap(got, size);
        return 0;
    }
    return wanted;
}

static CUdeviceptr map_anywhere(uint64_t size, uint64_t alignment) {
    char *got = mmap(NULL, size + alignment, PROT_NONE, FLAGS, -1, 0);
    uint64_t before;

    if (got == MAP_FAILED)
        return 0;
    before = -(uintptr_t)got % alignment;
    if (before != 0)
        munmap(got, before);
    munmap(got + before + size, alignment - before);
    return (CUdeviceptr)(uintptr_t)(got + before);
}

CUdeviceptr space_reserve(uint64_t size, uint64_t alignment, CUdeviceptr wanted) {
    struct space *space = malloc(sizeof(*space));

    if (space == NULL || size + alignment < size) {
        free(space);
        return 0;
    }
    space->size = size;
    space->base = wanted != 0 && wanted % alignment == 0 ? map_at(size, wanted) : 0;
    if (space->base == 0)
        space->base = map_anywhere(size, alignment);
    if (space->base != 0 && tsearch(space, &tree, compare) != NULL) {
        atomic_fetch_add(&count, 1);
        return space->base;
    }
    if (space->base != 0)
        munmap((void *)(uintptr_t)space->base, size);
    free(space);
    return 0;
}

void space_free(CUdeviceptr base, uint64_t size) {
    struct space *space = find(base);

    munmap((void *)(uintptr_t)base, size);
    tdelete(space, &tree, compare);
    atomic_fetch_sub(&count, 1);
    free(space);
}

bool space_is(CUdeviceptr base, uint64_t size) {
    const struct space *space = find(base);

    return space != NULL && space->base == base && space->size == size;
}

bool space_contains(CUdeviceptr base, uint64_t size) {
    const struct space *space = find(base);

    return space != NULL && size <= space->size - (base - space->base);
}

bool space_reserved(CUdeviceptr address) {
    return find(address) != NULL;
}

bool space_any(void) {
    return atomic_load(&count) != 0;
}

bool space_hide(CUdeviceptr base, uint64_t size) {
    return mmap((void *)(uintptr_t)base, size, PROT_NONE, FLAGS | MAP_FIXED, -1, 0) != MAP_FAILED;
}
