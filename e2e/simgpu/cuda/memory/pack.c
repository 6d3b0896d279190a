#include "pack.h"

#include <stdlib.h>
#include <string.h>

#define WORDS (PACK_UNITS / 64)

struct pack {
    uint64_t used[WORDS];
    uint16_t length[PACK_UNITS]; /* [first unit of an allocation], else 0 */
    uint16_t tail[PACK_UNITS];   /* bytes of the last unit that nobody asked for */
    uint16_t longest;            /* upper bound of the runs of free units */
    uint16_t free;
    uint16_t count; /* allocations */
};

/* An emptied pack is as good as a new one: whoever allocates and frees in turns gets the same one again. */
static struct pack *spare;

struct pack *pack_new(void) {
    struct pack *pack = spare != NULL ? spare : calloc(1, sizeof(*pack));

    spare = NULL;
    if (pack != NULL)
        pack->longest = pack->free = PACK_UNITS;
    return pack;
}

void pack_delete(struct pack *pack) {
    if (spare == NULL && pack->count == 0)
        spare = pack;
    else
        free(pack);
}

/* Units of one kind (free or used) from `unit` on, without crossing its word's end. */
static unsigned same_units(const struct pack *pack, unsigned unit, bool *used) {
    uint64_t rest = pack->used[unit / 64] >> unit % 64;
    unsigned left = 64 - unit % 64, run;

    *used = rest & 1;
    if (*used)
        rest = ~rest;
    run = rest == 0 ? left : (unsigned)__builtin_ctzll(rest);
    return run < left ? run : left;
}

/* First unit of a run of free units that is long enough; -1, and the length of the longest, if there is none. */
static int find_run(const struct pack *pack, unsigned units, unsigned *longest) {
    unsigned run = 0;

    *longest = 0;
    for (unsigned unit = 0; unit < PACK_UNITS;) {
        bool used;
        unsigned same = same_units(pack, unit, &used);

        unit += same;
        run = used ? 0 : run + same;
        if (run >= units)
            return (int)(unit - run);
        if (run > *longest)
            *longest = run;
    }
    return -1;
}

static void set_units(struct pack *pack, unsigned unit, unsigned units, bool used) {
    while (units > 0) {
        unsigned bit = unit % 64, part = units < 64 - bit ? units : 64 - bit;
        uint64_t mask = (part == 64 ? ~(uint64_t)0 : ((uint64_t)1 << part) - 1) << bit;

        if (used)
            pack->used[unit / 64] |= mask;
        else
            pack->used[unit / 64] &= ~mask;
        unit += part;
        units -= part;
    }
}

int pack_alloc(struct pack *pack, uint64_t size) {
    unsigned units = (unsigned)((size + PACK_UNIT - 1) / PACK_UNIT), longest;
    int unit;

    if (units > pack->longest)
        return -1;
    unit = find_run(pack, units, &longest);
    if (unit < 0) {
        pack->longest = (uint16_t)longest;
        return -1;
    }
    set_units(pack, (unsigned)unit, units, true);
    pack->length[unit] = (uint16_t)units;
    pack->tail[unit] = (uint16_t)(units * PACK_UNIT - size);
    pack->free = (uint16_t)(pack->free - units);
    pack->count++;
    if (pack->longest > pack->free)
        pack->longest = pack->free;
    return unit;
}

static bool unit_used(const struct pack *pack, unsigned unit) {
    return pack->used[unit / 64] >> unit % 64 & 1;
}

void pack_free(struct pack *pack, unsigned unit) {
    unsigned units = pack->length[unit], first = unit, end = unit + units;

    set_units(pack, unit, units, false);
    pack->length[unit] = 0;
    pack->free = (uint16_t)(pack->free + units);
    pack->count--;
    /* The run that it is part of now, whole words at a time where they are free. */
    while (end < PACK_UNITS && !unit_used(pack, end))
        end += end % 64 == 0 && pack->used[end / 64] == 0 ? 64 : 1;
    while (first > 0 && !unit_used(pack, first - 1))
        first -= first % 64 == 0 && pack->used[first / 64 - 1] == 0 ? 64 : 1;
    if (end - first > pack->longest)
        pack->longest = (uint16_t)(end - first);
}

unsigned pack_length(const struct pack *pack, unsigned unit) {
    return pack->length[unit];
}

uint64_t pack_size(const struct pack *pack, unsigned unit) {
    return (uint64_t)pack->length[unit] * PACK_UNIT - pack->tail[unit];
}

bool pack_find(const struct pack *pack, unsigned unit, unsigned *start) {
    if (!unit_used(pack, unit))
        return false;
    while (pack->length[unit] == 0)
        unit--;
    *start = unit;
    return true;
}

unsigned pack_longest(const struct pack *pack) {
    return pack->longest;
}

bool pack_empty(const struct pack *pack) {
    return pack->count == 0;
}

int pack_count(const struct pack *pack) {
    return pack->count;
}
