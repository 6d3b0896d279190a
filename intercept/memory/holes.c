#include "memory/holes.h"

#include "system/mapped.h"

#include <string.h>

/* More are not recorded, so that no call takes long. */
#define HOLES_MAX 4096

static bool holds(const struct hole *hole, uint64_t bytes, uint64_t owner) {
    return hole->end - hole->start >= bytes &&
           (hole->owner == HOLES_ANYONES || (hole->owner == owner && owner != HOLES_NOBODYS));
}

bool holes_fit(const struct holes *holes, uint64_t bytes, uint64_t owner, size_t tries) {
    size_t count = holes->count < tries ? holes->count : tries, at = holes->last;
    for (size_t i = 0; i < count; i++, at--) {
        if (at >= holes->count)
            at = holes->count - 1;
        if (holds(&holes->each[at], bytes, owner))
            return true;
    }
    return false;
}

/* The first hole that ends after an address. */
static size_t find(const struct holes *holes, uint64_t address) {
    size_t low = 0, high = holes->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (holes->each[middle].end > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void erase(struct holes *holes, size_t at) {
    if (at != --holes->count)
        memmove(&holes->each[at], &holes->each[at + 1], (holes->count - at) * sizeof *holes->each);
}

static void insert(struct holes *holes, size_t at, struct hole hole) {
    if (holes->count == HOLES_MAX)
        return;
    if (holes->count == holes->room) {
        struct hole *larger = mapped_grow(holes->each, &holes->room, sizeof *larger);
        if (larger == NULL)
            return;
        holes->each = larger;
    }
    if (at != holes->count++)
        memmove(&holes->each[at + 1], &holes->each[at], (holes->count - 1 - at) * sizeof *holes->each);
    holes->each[at] = hole;
    holes->last = at;
    holes->owned = holes->owned || hole.owner != HOLES_ANYONES;
}

/* Whether the driver joins two holes. */
static bool joins(const struct hole *hole, const struct hole *next) {
    return hole->end == next->start && !next->apart && hole->owner == HOLES_ANYONES && next->owner == HOLES_ANYONES;
}

static void join_next(struct holes *holes, size_t at) {
    if (at + 1 >= holes->count || !joins(&holes->each[at], &holes->each[at + 1]))
        return;
    holes->each[at].end = holes->each[at + 1].end;
    erase(holes, at + 1);
}

void holes_add(struct holes *holes, struct hole hole) {
    bool apart;
    size_t at = find(holes, hole.start);
    if (at < holes->count && holes->each[at].start < hole.end) {
        holes_take(holes, hole.start, hole.end, &apart);
        at = find(holes, hole.start);
    }
    insert(holes, at, hole);
    join_next(holes, at);
    if (at != 0)
        join_next(holes, at - 1);
}

/* Whether all of a range is known to be free. The driver may have joined holes whose frees were executed. */
static bool covers(const struct holes *holes, size_t at, uint64_t start, uint64_t end) {
    uint64_t known = start;
    for (; at < holes->count && holes->each[at].start <= known && known < end; at++) {
        if (known != start && holes->each[at].apart)
            return false;
        known = holes->each[at].end;
    }
    return known >= end;
}

bool holes_take(struct holes *holes, uint64_t start, uint64_t end, bool *apart) {
    size_t at = find(holes, start);
    bool known = covers(holes, at, start, end);
    if (known)
        *apart = holes->each[at].start == start && holes->each[at].apart;
    holes->last = at;
    while (at < holes->count && holes->each[at].start < end) {
        struct hole *hole = &holes->each[at], rest = {.start = end, .end = hole->end, .owner = hole->owner};
        bool before = hole->start<start, after = hole->end> end;
        if (before)
            hole->end = start;
        else if (after)
            *hole = rest;
        else
            erase(holes, at);
        if (before && after)
            insert(holes, at + 1, rest);
        if (after)
            break;
        at += before;
    }
    return known;
}

void holes_executed(struct holes *holes) {
    size_t kept = 0;
    if (!holes->owned)
        return;
    for (size_t i = 0; i < holes->count; i++) {
        struct hole hole = holes->each[i];
        hole.owner = HOLES_ANYONES;
        if (kept != 0 && joins(&holes->each[kept - 1], &hole))
            holes->each[kept - 1].end = hole.end;
        else
            holes->each[kept++] = hole;
    }
    holes->count = kept;
    holes->owned = false;
}

void holes_owner_ended(struct holes *holes, uint64_t owner) {
    for (size_t i = 0; holes->owned && i < holes->count; i++)
        if (holes->each[i].owner != HOLES_ANYONES && (owner == HOLES_ANYONES || holes->each[i].owner == owner))
            holes->each[i].owner = HOLES_NOBODYS;
}
