#include "chunks.h"

#include "mapped.h"
#include "objects.h"
#include "pools.h"

/* Room for what other threads allocate and free meanwhile, from other pools too. */
#define SPARE 4096

uint32_t chunks_units(uint64_t bytes) {
    uint64_t units = (bytes + (UINT64_C(1) << CHUNKS_UNIT_SHIFT) - 1) >> CHUNKS_UNIT_SHIFT;
    return units > UINT32_MAX ? UINT32_MAX : (uint32_t)units;
}

void chunks_add(struct chunks *chunks, CUdeviceptr address, uint64_t bytes) {
    if (chunks->count == chunks->room) {
        struct chunk *larger = mapped_grow(chunks->each, &chunks->room, sizeof *larger);
        if (larger == NULL)
            return; /* then nothing is known */
        chunks->each = larger;
    }
    chunks->each[chunks->count++] = (struct chunk){address, bytes};
}

/* The living allocations of a pool, by their addresses. */
struct living {
    struct chunk *each;
    size_t count, room;
};

static bool collect(struct living *living, struct process *process, const struct pool *pool) {
    size_t room = atomic_load(&process->objects.counts[KIND_POOL_MEMORY]) + SPARE;
    struct entry *entries = mapped_new(room * sizeof *entries);
    size_t count = entries == NULL ? room : objects_copy(process, KIND_POOL_MEMORY, 0, entries, room);
    living->room = room;
    living->each = count < room ? mapped_new(room * sizeof *living->each) : NULL;
    for (size_t i = 0; living->each != NULL && i < count; i++)
        if ((entries[i].with & ~POOLS_FREEING) == (uintptr_t)pool)
            living->each[living->count++] =
                (struct chunk){entries[i].key, (uint64_t)entries[i].references << CHUNKS_UNIT_SHIFT};
    if (entries != NULL)
        munmap(entries, room * sizeof *entries);
    return living->each != NULL;
}

/* Heapsort: the C library's qsort may call the program's malloc. */
static void sift(struct chunk *each, size_t from, size_t count) {
    for (size_t child; (child = 2 * from + 1) < count; from = child) {
        if (child + 1 < count && each[child + 1].start > each[child].start)
            child++;
        if (each[from].start >= each[child].start)
            return;
        struct chunk other = each[from];
        each[from] = each[child];
        each[child] = other;
    }
}

static void sort(struct chunk *each, size_t count) {
    for (size_t i = count / 2; i-- > 0;)
        sift(each, i, count);
    for (size_t end = count; end-- > 1;) {
        struct chunk last = each[end];
        each[end] = each[0];
        each[0] = last;
        sift(each, 0, end);
    }
}

static size_t first_at_or_after(const struct living *living, CUdeviceptr address) {
    size_t low = 0, high = living->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (living->each[middle].start < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The largest gap in a chunk; UINT64_MAX if nothing lives in it at all. */
static uint64_t largest_gap(const struct living *living, const struct chunk *chunk) {
    CUdeviceptr at = chunk->start, end = chunk->start + chunk->bytes;
    uint64_t largest = 0;
    size_t first = first_at_or_after(living, chunk->start), i = first;
    for (; i < living->count && living->each[i].start < end; i++) {
        uint64_t gap = living->each[i].start - at;
        largest = gap > largest ? gap : largest;
        at = living->each[i].start + living->each[i].bytes;
    }
    if (i == first)
        return UINT64_MAX;
    return at < end && end - at > largest ? end - at : largest;
}

bool chunks_have_room(struct chunks *chunks, struct process *process, const struct pool *pool, uint64_t reserved,
                      uint64_t bytes) {
    struct living living = {0};
    uint64_t sum = 0, largest = 0;
    if (!collect(&living, process, pool))
        return false;
    sort(living.each, living.count);
    size_t kept = 0;
    for (size_t i = 0; i < chunks->count; i++) {
        uint64_t gap = largest_gap(&living, &chunks->each[i]);
        if (gap == UINT64_MAX)
            continue; /* it was given back */
        chunks->each[kept++] = chunks->each[i];
        sum += chunks->each[i].bytes;
        largest = gap > largest ? gap : largest;
    }
    chunks->count = kept;
    munmap(living.each, living.room * sizeof *living.each);
    return sum == reserved && (uint64_t)chunks_units(bytes) << CHUNKS_UNIT_SHIFT <= largest;
}
