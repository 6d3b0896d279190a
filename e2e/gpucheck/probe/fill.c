/*
 * One way to allocate, from nothing to the limit and back, step by step, so that whoever runs this can measure at each.
 *
 *   probe fill WAY PIECE CAP    pieces of so many bytes, and never more than CAP in all, whatever the driver answers
 */
#include "probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct piece *pieces;
static size_t count, room;
static uint64_t taken;

static CUresult take(const struct way *way, uint64_t bytes) {
    if (count == room) {
        room = room == 0 ? 1024 : 2 * room;
        struct piece *more = realloc(pieces, room * sizeof *pieces);
        if (more == NULL)
            abort();
        pieces = more;
    }
    pieces[count] = (struct piece){.bytes = bytes};
    CUresult result = way->take(bytes, &pieces[count]);
    if (result == CUDA_SUCCESS)
        taken += pieces[count++].bytes;
    return result;
}

/* Gives the first pieces, which are as large as they come, until so much is free, and enough that small ones have left a
 * unit of the GPU's memory empty. */
static CUresult give_first(const struct way *way, uint64_t bytes) {
    uint64_t given = 0, enough = bytes > 4 * MIB || way->smallest == 0 ? bytes : 4 * MIB;
    CUresult result = CUDA_SUCCESS;
    size_t first = 0;
    while (first < count && given < enough && result == CUDA_SUCCESS) {
        given += pieces[first].bytes;
        result = way->give(&pieces[first++]);
    }
    taken -= given;
    count -= first;
    memmove(pieces, pieces + first, count * sizeof *pieces);
    return result;
}

static CUresult give_all(const struct way *way) {
    CUresult result = CUDA_SUCCESS, one;
    while (count > 0)
        if ((one = way->give(&pieces[--count])) != CUDA_SUCCESS)
            result = one;
    taken = 0;
    if (way->settle != NULL)
        way->settle();
    return result;
}

/* Where a piece is refused a smaller one may still fit, down to the smallest there is. */
static CUresult fill(const struct way *way, uint64_t piece, uint64_t cap) {
    uint64_t unit = way->smallest;
    for (;;) {
        if (taken + piece > cap)
            return CUDA_SUCCESS;
        CUresult result = take(way, piece);
        if (result == CUDA_ERROR_OUT_OF_MEMORY && piece > unit && unit > 0)
            piece = piece / 4 / unit * unit > unit ? piece / 4 / unit * unit : unit;
        else if (result != CUDA_SUCCESS)
            return result;
    }
}

static uint64_t free_bytes(void) {
    size_t free = 0, total = 0;
    cuda.cuMemGetInfo_v2(&free, &total);
    return free;
}

static bool possible(const struct way *way) {
    const char *missing = NULL, *why = NULL;
    if (!driver_has(way->functions, &missing))
        why = because("the driver has no %s", missing);
    else if (way->prepare != NULL)
        why = way->prepare();
    if (why != NULL)
        say("impossible", "\"why\":\"%s\"", why);
    return why == NULL;
}

static const struct way *chosen(const char *name) {
    const struct way *way = find_way(name);
    if (way == NULL) {
        fprintf(stderr, "probe: there is no way %s\n", name);
        exit(2);
    }
    return way;
}

int probe_fill(int argc, char **argv) {
    if (argc != 3)
        return 2;
    const struct way *way = chosen(argv[0]);
    uint64_t piece = strtoull(argv[1], NULL, 10), cap = strtoull(argv[2], NULL, 10);
    if (way->smallest > 0)
        piece = piece > way->smallest ? piece / way->smallest * way->smallest : way->smallest;
    open_context();
    if (!possible(way))
        return 0;
    step("empty", "\"free\":%llu", (unsigned long long)free_bytes());
    CUresult result = take(way, piece);
    if (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_PERMITTED) {
        say("impossible", "\"why\":\"the driver says %s\"", error_name(result));
        return 0;
    }
    step("one", "\"taken\":%llu,\"result\":%d,\"name\":\"%s\"", (unsigned long long)taken, result, error_name(result));
    result = result == CUDA_SUCCESS ? fill(way, piece, cap) : result;
    step("full", "\"taken\":%llu,\"pieces\":%zu,\"result\":%d,\"name\":\"%s\",\"free\":%llu,\"smallest\":%llu",
         (unsigned long long)taken, count, result, error_name(result), (unsigned long long)free_bytes(),
         (unsigned long long)way->smallest);
    CUresult gave = give_first(way, piece);
    result = gave == CUDA_SUCCESS ? take(way, pool_most_again(way, piece)) : gave;
    step("again", "\"taken\":%llu,\"result\":%d,\"name\":\"%s\"", (unsigned long long)taken, result,
         error_name(result));
    result = give_all(way);
    step("freed", "\"result\":%d,\"name\":\"%s\",\"free\":%llu", result, error_name(result),
         (unsigned long long)free_bytes());
    close_context();
    step("closed", "\"result\":0");
    return 0;
}

static void name_way(const struct way *way) {
    say("way", "\"name\":\"%s\",\"title\":\"%s\",\"smallest\":%llu", way->name, way->title,
        (unsigned long long)way->smallest);
}

int probe_ways(int argc, char **argv) {
    (void)argc, (void)argv;
    each_way(name_way);
    return 0;
}
