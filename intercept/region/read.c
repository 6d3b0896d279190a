/* Reading a region without a slot and without changing it. Slots of dead processes are not given back but left out of the
 * sum. */
#include "region/words.h"
#include "system/calls.h"

#include <errno.h>
#include <fcntl.h>

#define READS_MAX 8

/* The operation that the total names, if it is not committed yet. */
struct pending {
    bool any;
    unsigned slot;
    uint64_t op;
};

static struct pending pending_of(const struct region_usage *usage, enum region_ledger ledger, uint64_t total) {
    struct pending pending = {.slot = total_slot(total)};
    const struct region_held *held = &usage->slots[pending.slot].held[ledger];
    uint64_t committed = atomic_load(&held->committed);
    pending.op = atomic_load(&held->op);
    pending.any =
        seq_of(total) != 0 && next_seq(seq_of(committed)) == seq_of(total) && seq_of(pending.op) == seq_of(total);
    return pending;
}

/* The pages of a slot, including a pending operation. */
static uint64_t held_pages(const struct region_held *held, unsigned index, const struct pending *pending) {
    uint64_t committed = atomic_load(&held->committed), pages = committed_pages(committed);
    if (!pending->any)
        return pages;
    if (index == pending->slot)
        return next_seq(seq_of(committed)) == seq_of(pending->op) ? add_pages(pages, op_change(pending->op)) : pages;
    bool receives = op_moves(pending->op) && index == move_receiver(pending->op) &&
                    next_seq(seq_of(committed)) == seq_of(atomic_load(&held->op));
    return receives ? add_pages(pages, (int64_t)move_pages(pending->op)) : pages;
}

typedef void visit_function(int32_t pid, uint64_t pages, int32_t contexts, void *arg);

struct view {
    visit_function *visit; /* called for each process; may be NULL */
    void *arg;
    uint64_t total, pages; /* the total that was read first; of all living processes and shares */
};

/* Reads all slots once. */
static void read_slots(struct region *region, int fd, enum region_ledger ledger, struct view *view) {
    const struct region_usage *usage = region->usage;
    view->total = atomic_load(&usage->sums[ledger].total);
    view->pages = 0;
    struct pending pending = pending_of(usage, ledger, view->total);
    uint64_t end = atomic_load(&usage->high_water);
    struct tag_search search = {.witness = &region->witness};
    for (unsigned i = 0; i < end && i < REGION_SLOT_COUNT; i++) {
        const struct region_slot *slot = &usage->slots[i];
        uint64_t pages = held_pages(&slot->held[ledger], i, &pending);
        bool visits = view->visit != NULL && life_kind(atomic_load(&slot->life)) == REGION_KIND_PROCESS;
        if ((pages == 0 && !visits) || !region_slot_owned(region, fd, i, &search))
            continue;
        view->pages += pages;
        if (visits)
            view->visit(atomic_load(&slot->pid), pages, atomic_load(&slot->contexts), view->arg);
    }
    tag_search_end(&search);
}

/* To query locks. */
static int open_usage(const struct region *region) {
    char why[REGION_WHY]; /* unused */
    return region_mapped_intact(region) ? region_open_usage(region, O_RDONLY, why) : -1;
}

uint64_t region_read_used_bytes(struct region *region, enum region_ledger ledger) {
    uint64_t pages = PAGES_MAX;
    int error = errno, fd = open_usage(region);
    struct view view = {.visit = NULL};
    /* If the total is unchanged, what was read is consistent. */
    for (int i = 0; i < READS_MAX && fd >= 0; i++) {
        read_slots(region, fd, ledger, &view);
        pages = view.pages < PAGES_MAX ? view.pages : PAGES_MAX;
        if (atomic_load(&region->usage->sums[ledger].total) == view.total)
            break;
    }
    if (fd >= 0)
        call_close(fd);
    errno = error;
    return pages << REGION_PAGE_SHIFT;
}

int region_each(struct region *region, visit_function *fn, void *arg) {
    int error = errno, fd = atomic_load(&region->broken) ? -1 : open_usage(region);
    struct view view = {.visit = fn, .arg = arg};
    if (fd >= 0) {
        read_slots(region, fd, REGION_GPU, &view);
        call_close(fd);
    }
    errno = error;
    return fd >= 0 ? 0 : -1;
}
