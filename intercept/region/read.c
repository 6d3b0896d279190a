/*
 * Reading a region without a slot and without a mapping: everything is read by system calls, so damage to the files
 * cannot end the program. Nothing is written. Slots of dead processes are not given back but left out of the sum.
 */
#include "region/words.h"
#include "system/calls.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define SLOTS_AT_ONCE 64u
#define READS_MAX 8

/* The words before the slots. */
#define HEAD_SIZE offsetof(struct region_usage, reserved1)

struct head {
    char magic[8];
    uint32_t version;
    uint32_t size;
    uint64_t totals[REGION_LEDGER_COUNT];
    uint64_t end; /* of the slots that were ever used */
};

/* The operation that the total names, if it is not committed yet. */
struct pending {
    bool any;
    unsigned slot;
    uint64_t op;
};

static bool read_at(int fd, void *bytes, size_t size, size_t offset) {
    return call_pread(fd, bytes, size, (off_t)offset) == (ssize_t)size;
}

static bool read_head(int fd, struct head *head) {
    union {
        unsigned char bytes[HEAD_SIZE];
        uint64_t words[HEAD_SIZE / 8];
    } start;
    if (!read_at(fd, start.bytes, sizeof start.bytes, 0))
        return false;
    memcpy(head, start.bytes, offsetof(struct head, totals));
    for (unsigned i = 0; i < REGION_LEDGER_COUNT; i++)
        head->totals[i] = start.words[offsetof(struct region_usage, sums[i].total) / 8];
    head->end = start.words[offsetof(struct region_usage, high_water) / 8];
    if (head->end > REGION_SLOT_COUNT)
        head->end = REGION_SLOT_COUNT;
    return memcmp(head->magic, REGION_USAGE_MAGIC, sizeof head->magic) == 0 && head->version == REGION_VERSION &&
           head->size == REGION_USAGE_SIZE;
}

static size_t slot_offset(unsigned index) {
    return REGION_SLOTS_OFFSET + (size_t)index * REGION_SLOT_SIZE;
}

static bool read_pending(int fd, uint64_t total, enum region_ledger ledger, struct pending *pending) {
    uint64_t held[2];
    *pending = (struct pending){.slot = total_slot(total)};
    if (!read_at(fd, held, sizeof held, slot_offset(pending->slot) + ledger * sizeof(struct region_held)))
        return false;
    pending->op = held[0];
    pending->any = seq_of(total) != 0 && next_seq(seq_of(held[1])) == seq_of(total) && seq_of(held[0]) == seq_of(total);
    return true;
}

/* The pages of a slot, including a pending operation. */
static uint64_t held_pages(const struct region_held *held, unsigned index, const struct pending *pending) {
    uint64_t committed = held->committed, pages = committed_pages(committed);
    if (!pending->any)
        return pages;
    if (index == pending->slot)
        return next_seq(seq_of(committed)) == seq_of(pending->op) ? add_pages(pages, op_change(pending->op)) : pages;
    bool receives =
        op_moves(pending->op) && index == move_receiver(pending->op) && next_seq(seq_of(committed)) == seq_of(held->op);
    return receives ? add_pages(pages, (int64_t)move_pages(pending->op)) : pages;
}

static bool is_owned(int fd, unsigned index) {
    short type = F_WRLCK;
    return region_lock_slot(fd, F_OFD_GETLK, index, &type) == 0 && type != F_UNLCK;
}

typedef void visit_function(int32_t pid, uint64_t pages, int32_t contexts, void *arg);

struct view {
    visit_function *visit; /* called for each process; may be NULL */
    void *arg;
    uint64_t pages; /* of all living processes and shares */
};

/* Reads all slots once. False if that failed. */
static bool read_slots(int fd, enum region_ledger ledger, const struct head *head, struct view *view) {
    struct region_slot slots[SLOTS_AT_ONCE];
    struct pending pending;
    view->pages = 0;
    if (!read_pending(fd, head->totals[ledger], ledger, &pending))
        return false;
    for (unsigned from = 0; from < head->end; from += SLOTS_AT_ONCE) {
        if (!read_at(fd, slots, sizeof slots, slot_offset(from)))
            return false;
        for (unsigned i = 0; i < SLOTS_AT_ONCE && from + i < head->end; i++) {
            const struct region_slot *slot = &slots[i];
            uint64_t pages = held_pages(&slot->held[ledger], from + i, &pending);
            bool process = life_kind(slot->life) == REGION_KIND_PROCESS;
            if ((pages == 0 && (!process || view->visit == NULL)) || !is_owned(fd, from + i))
                continue;
            view->pages += pages;
            if (process && view->visit != NULL)
                view->visit(slot->pid, pages, slot->contexts, view->arg);
        }
    }
    return true;
}

static int open_usage(const struct region *region) {
    char why[64]; /* unused */
    return region_open_usage(region, O_RDONLY, why, sizeof why);
}

uint64_t region_read_used_bytes(const struct region *region, enum region_ledger ledger) {
    uint64_t pages = PAGES_MAX;
    int error = errno;
    int fd = open_usage(region);
    struct head before, after;
    struct view view = {.visit = NULL};
    bool read = fd >= 0 && read_head(fd, &before);
    /* If the total is unchanged, what was read is consistent. */
    for (int i = 0; i < READS_MAX && read; i++) {
        read = read_slots(fd, ledger, &before, &view) && read_head(fd, &after);
        if (read && after.totals[ledger] == before.totals[ledger])
            break;
        before = after;
    }
    if (read && view.pages < PAGES_MAX)
        pages = view.pages;
    if (fd >= 0)
        call_close(fd);
    errno = error;
    return pages << REGION_PAGE_SHIFT;
}

int region_each(struct region *region, visit_function *fn, void *arg) {
    int error = errno;
    int fd = open_usage(region);
    struct head head;
    struct view view = {.visit = fn, .arg = arg};
    bool read =
        !atomic_load(&region->broken) && fd >= 0 && read_head(fd, &head) && read_slots(fd, REGION_GPU, &head, &view);
    if (fd >= 0)
        call_close(fd);
    errno = error;
    return read ? 0 : -1;
}

static bool read_limit(const struct region *region, void *bytes, size_t size, size_t offset) {
    char why[64];
    int error = errno;
    int fd = region_open_limit(region, why, sizeof why);
    bool read = fd >= 0 && read_at(fd, bytes, size, offset);
    if (fd >= 0)
        call_close(fd);
    errno = error;
    return read;
}

static bool limit_intact(const struct region *region) {
    struct {
        char magic[8];
        uint32_t version, size;
    } start;
    return read_limit(region, &start, sizeof start, 0) &&
           memcmp(start.magic, REGION_LIMIT_MAGIC, sizeof start.magic) == 0 && start.version == REGION_VERSION &&
           start.size == REGION_LIMIT_SIZE;
}

uint64_t region_read_limit_word(const struct region *region, size_t offset) {
    uint64_t word;
    return limit_intact(region) && read_limit(region, &word, sizeof word, offset) ? word : 0;
}

bool region_read_intact(const struct region *region) {
    struct head head;
    int error = errno;
    int fd = open_usage(region);
    bool intact = fd >= 0 && read_head(fd, &head) && limit_intact(region);
    if (fd >= 0)
        call_close(fd);
    errno = error;
    return intact;
}
