#include "region_view.h"

#include <stdio.h>
#include <string.h>

#include "../../intercept/region/words.h"
#include "../../intercept/tests/fixture.h"
#include "board.h"
#include "holders.h"

static struct region regions[REGION_VIEWS];

bool region_view_make(int view, const char *directory, const char *id, const char *uuid, uint64_t limit_bytes,
                      uint64_t context_bytes) {
    char why[REGION_WHY] = "";
    fixture_claim(directory, id, uuid, limit_bytes, context_bytes);
    if (!region_open(&regions[view], directory, id, why) || !region_look(&regions[view], why)) {
        fprintf(stderr, "campaign: no region in %s: %s\n", directory, why);
        return false;
    }
    return true;
}

void region_view_close(void) {
    for (int view = 0; view < REGION_VIEWS; view++) {
        if (regions[view].usage != NULL)
            region_close(&regions[view]);
    }
}

/* Read from the file itself: whoever asks the region makes it look for the dead, which is the workers' to do. */
uint64_t region_view_counted(int view) {
    if (regions[view].usage == NULL)
        return 0;
    uint64_t total = atomic_load(&regions[view].usage->sums[REGION_GPU].total);
    return (total & ((UINT64_C(1) << REGION_TOTAL_PAGES_BITS) - 1)) << REGION_PAGE_SHIFT;
}

uint64_t region_view_counted_alive(int view) {
    if (regions[view].usage == NULL)
        return 0;
    return region_used_bytes(&regions[view], REGION_GPU);
}

/* Telling takes a while, in which others may reap. */
static struct region_slot seen[REGION_VIEWS][REGION_SLOT_COUNT];

void region_view_look(int view) {
    if (regions[view].usage != NULL)
        memcpy(seen[view], regions[view].usage->slots, sizeof seen[view]);
}

static void tell_slot(int view, unsigned index, void (*tell)(const char *format, ...)) {
    const struct region_slot *slot = &seen[view][index];
    uint64_t pages = committed_pages(atomic_load(&slot->held[REGION_GPU].committed));
    unsigned long long kib = (unsigned long long)(pages << REGION_PAGE_SHIFT) >> 10;
    bool is_share = life_kind(atomic_load(&slot->life)) == REGION_KIND_SHARE;
    if (pages != 0 && !is_share)
        tell("region %d: slot %u, process %d holds %llu KiB, contexts: %d", view, index, atomic_load(&slot->pid), kib,
             atomic_load(&slot->contexts));
    if (pages == 0 || !is_share)
        return;
    tell("region %d: slot %u, shared memory called %#llx, exported as file %#llx, has %llu KiB", view, index,
         (unsigned long long)atomic_load(&slot->tag), (unsigned long long)atomic_load(&slot->target), kib);
    holders_tell(regions[view].usage_path, REGION_SLOTS_OFFSET + (int64_t)index * REGION_SLOT_SIZE, tell);
}

void region_view_tell(int view, void (*tell)(const char *format, ...)) {
    for (unsigned i = 0; regions[view].usage != NULL && i < REGION_SLOT_COUNT; i++)
        tell_slot(view, i, tell);
}
