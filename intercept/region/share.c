/*
 * The shares that a process holds, and the open file description of `usage` whose read locks hold them.
 *
 * The program may close a descriptor at any time and reuse its number. So a mapping keeps the description open as well,
 * and its file position, which no other description of the file has, identifies it. If the descriptor is gone, a new
 * description takes the same locks.
 */
#include "region/tags.h"
#include "region/words.h"
#include "system/calls.h"
#include "system/mapped.h"

#include <fcntl.h>
#include <unistd.h>

#define HOLDER_SIZE 4096u
#define HOLDS_SIZE (REGION_SLOT_COUNT * sizeof(struct region_hold))

/* --- the description ---------------------------------------------------------------------------------------------- */

static bool lock_held(const struct region *region, int fd) {
    for (unsigned i = 0; region->holds != NULL && i < REGION_SLOT_COUNT; i++) {
        short type = F_RDLCK;
        if (region->holds[i].held && region_lock_slot(fd, F_OFD_SETLK, i, &type) != 0)
            return false;
    }
    return true;
}

bool region_holder_open(struct region *region) {
    char why[REGION_WHY]; /* errno suffices */
    int fd = region_open_usage(region, O_RDWR, why);
    if (fd < 0)
        return false;
    void *mapping = region_map_low(fd, HOLDER_SIZE, PROT_NONE);
    if (mapping == MAP_FAILED || lseek(fd, region_holder_position(region), SEEK_SET) < 0 || !lock_held(region, fd)) {
        if (mapping != MAP_FAILED)
            munmap(mapping, HOLDER_SIZE);
        call_close(fd);
        return false;
    }
    mapped_free(region->holder.mapping, HOLDER_SIZE);
    region_queue_close(&region->holder.queue);
    region->holder = (struct region_holder){.descriptor = fd, .mapping = mapping, .queue = region_queue_new(fd)};
    return true;
}

static bool is_holder(const struct region *region, int fd) {
    return fd >= 0 && region_is_usage(region, fd) && lseek(fd, 0, SEEK_CUR) == region_holder_position(region);
}

/* The holder's descriptor, reopened if need be; -1 if that failed. */
static int holder(struct region *region) {
    if (!is_holder(region, region->holder.descriptor) && !region_holder_open(region))
        return -1;
    return region->holder.descriptor;
}

void region_holder_close(struct region *region) {
    if (is_holder(region, region->holder.descriptor))
        call_close(region->holder.descriptor);
    mapped_free(region->holder.mapping, HOLDER_SIZE);
    mapped_free(region->holds, HOLDS_SIZE);
    region_queue_close(&region->holder.queue);
    region->holder = (struct region_holder){.descriptor = -1, .queue = {.socket = -1}};
    region->holds = NULL;
}

static bool lock_share(int fd, int index, short type) {
    return region_lock_slot(fd, F_OFD_SETLK, (unsigned)index, &type) == 0;
}

/* --- shares held -------------------------------------------------------------------------------------------------- */

/* Only its pages that are written to take memory. */
static bool make_holds(struct region *region) {
    if (region->holds == NULL)
        region->holds = mapped_new(HOLDS_SIZE);
    return region->holds != NULL;
}

static bool usable(const struct region *region) {
    return region->slot >= 0 && !atomic_load_explicit(&region->broken, memory_order_relaxed) &&
           region_mapped_intact(region);
}

static struct region_hold *held(const struct region *region, int share) {
    if (region->usage == NULL || region->holds == NULL || share < 0 || share >= (int)REGION_SLOT_COUNT)
        return NULL;
    struct region_hold *hold = &region->holds[share];
    return hold->held ? hold : NULL;
}

static struct region_hold *made(const struct region *region, int share) {
    struct region_hold *hold = usable(region) ? held(region, share) : NULL;
    return hold != NULL && hold->made ? hold : NULL;
}

/* --- making and changing ------------------------------------------------------------------------------------------ */

static int make_slot(struct region *region, enum region_kind kind, uint64_t tag, uint64_t target) {
    int fd = holder(region);
    int index = fd >= 0 && make_holds(region) ? region_take_slot(region, fd, REGION_SHARES_MAX) : -1;
    if (index < 0)
        return -1;
    struct region_slot *slot = &region->usage->slots[index];
    atomic_store(&slot->pid, 0);
    atomic_store(&slot->contexts, 0);
    atomic_store(&slot->tag, tag);
    atomic_store(&slot->target, target);
    STEP("share: named");
    atomic_store(&slot->life, next_life(atomic_load(&slot->life), kind));
    region->holds[index] =
        (struct region_hold){.held = true, .made = true, .expected = atomic_load(&slot->held[REGION_GPU].committed)};
    STEP("share: alive");
    if (!lock_share(fd, index, F_RDLCK) || !region_mapped_intact(region)) {
        region_share_detach(region, index);
        return -1;
    }
    STEP("share: open to all");
    return index;
}

int region_share_new(struct region *region, uint64_t tag) {
    int error = errno;
    int index = usable(region) ? make_slot(region, REGION_KIND_SHARE, tag, 0) : -1;
    errno = error;
    return index;
}

enum region_result region_share_reserve(struct region *region, int share, uint64_t pages) {
    struct region_hold *hold = made(region, share);
    return hold != NULL ? region_take(region, REGION_GPU, (unsigned)share, &hold->expected, pages) : REGION_BROKEN;
}

void region_share_release(struct region *region, int share, uint64_t pages) {
    struct region_hold *hold = made(region, share);
    if (hold == NULL || pages == 0)
        return;
    region_give(region, REGION_GPU, (unsigned)share, &hold->expected, pages);
}

enum region_result region_share_adopt(struct region *region, int share, uint64_t pages) {
    struct region_hold *hold = made(region, share);
    if (hold == NULL)
        return REGION_BROKEN;
    return region_move(region, (unsigned)region->slot, &region->expected[REGION_GPU], (unsigned)share, &hold->expected,
                       pages);
}

/* --- holding ------------------------------------------------------------------------------------------------------ */

static bool has_tag(const struct region_slot *slot, enum region_kind kind, uint64_t tag) {
    return life_kind(atomic_load(&slot->life)) == kind && atomic_load(&slot->tag) == tag;
}

/* Takes hold of a share that was found to have this tag. False if it ended meanwhile. */
static bool attach(struct region *region, int fd, unsigned index, uint64_t tag) {
    struct region_slot *slot = &region->usage->slots[index];
    STEP("attach: before lock");
    if (!lock_share(fd, (int)index, F_RDLCK)) /* another process is taking the slot */
        return false;
    STEP("attach: locked");
    /* No process can take the slot now. But one may have done so before, or the share may have ended. */
    uint64_t life = atomic_load(&slot->life);
    while (has_tag(slot, REGION_KIND_SHARE, tag)) {
        if (atomic_compare_exchange_strong(&slot->life, &life, next_life(life, REGION_KIND_SHARE))) {
            STEP("attach: alive");
            region->holds[index] = (struct region_hold){.held = true};
            return true;
        }
    }
    lock_share(fd, (int)index, F_UNLCK);
    return false;
}

static int find_tag(struct region *region, int fd, uint64_t tag) {
    const struct region_usage *usage = region->usage;
    uint64_t end = atomic_load(&usage->high_water);
    for (unsigned i = 0; i < end && i < REGION_SLOT_COUNT; i++)
        if (has_tag(&usage->slots[i], REGION_KIND_SHARE, tag) && (region->holds[i].held || attach(region, fd, i, tag)))
            return (int)i;
    return -1;
}

/* Whether a process holds the slot: one that is being made is locked for writing. */
static bool is_held(const struct region *region, int fd, unsigned index) {
    short type = F_WRLCK;
    return region->holds[index].held || (region_lock_slot(fd, F_OFD_GETLK, index, &type) == 0 && type == F_RDLCK);
}

/* The process that gave a name holds the named share too, so a name that is held refers to no other share. One that
 * nobody holds refers to nothing. */
static int find_named(struct region *region, int fd, uint64_t name) {
    const struct region_usage *usage = region->usage;
    uint64_t end = atomic_load(&usage->high_water);
    int index = -1;
    for (unsigned i = 0; i < end && i < REGION_SLOT_COUNT && index < 0; i++) {
        uint64_t tag = atomic_load(&usage->slots[i].target);
        if (has_tag(&usage->slots[i], REGION_KIND_NAME, name) && is_held(region, fd, i))
            index = find_tag(region, fd, tag);
    }
    return index;
}

static int find_share(struct region *region, uint64_t tag) {
    int fd = holder(region);
    if (fd < 0 || !make_holds(region))
        return REGION_SHARE_UNKNOWN;
    int index = find_tag(region, fd, tag);
    return index >= 0 ? index : find_named(region, fd, tag);
}

/* A name that this process has given to the share with a tag. */
static bool is_our_name(const struct region *region, unsigned index, uint64_t tag) {
    const struct region_slot *slot = &region->usage->slots[index];
    return region->holds[index].held && life_kind(atomic_load(&slot->life)) == REGION_KIND_NAME &&
           atomic_load(&slot->target) == tag;
}

static int find_our_name(const struct region *region, uint64_t tag, uint64_t name) {
    for (unsigned i = 0; region->names != 0 && i < REGION_SLOT_COUNT; i++)
        if (is_our_name(region, i, tag) && atomic_load(&region->usage->slots[i].tag) == name)
            return (int)i;
    return -1;
}

int region_share_name(struct region *region, int share, uint64_t name) {
    if (!usable(region) || held(region, share) == NULL)
        return -1;
    uint64_t tag = atomic_load(&region->usage->slots[share].tag);
    int index = tag == name ? share : find_our_name(region, tag, name);
    if (index >= 0)
        return index;
    int error = errno;
    index = make_slot(region, REGION_KIND_NAME, name, tag);
    errno = error;
    region->names += index >= 0;
    return index;
}

static void detach_names(struct region *region, uint64_t tag) {
    for (unsigned i = 0; region->names != 0 && i < REGION_SLOT_COUNT; i++)
        if (is_our_name(region, i, tag))
            region_share_detach(region, (int)i);
}

/* No file: then the descriptions are looked for in all files. */
#define SEVERAL_FILES 1

bool region_share_export(struct region *region, int share, int descriptor) {
    uint64_t file = tag_file(descriptor), known = 0;
    if (!usable(region) || held(region, share) == NULL || file == 0)
        return false;
    struct region_slot *slot = &region->usage->slots[share];
    if (!atomic_compare_exchange_strong(&slot->target, &known, file) && known != file)
        atomic_store(&slot->target, SEVERAL_FILES);
    STEP("export: announced");
    return tag_write(descriptor, atomic_load(&slot->tag)) && region_mapped_intact(region);
}

int region_share_attach(struct region *region, uint64_t tag) {
    int error = errno;
    int index = usable(region) ? find_share(region, tag) : REGION_SHARE_UNKNOWN;
    if (index >= 0 && !region_mapped_intact(region)) {
        region_share_detach(region, index);
        index = REGION_SHARE_UNKNOWN;
    }
    errno = error;
    return index;
}

/* A share without pages or a name, which reaping does not end. As in reaping, whoever attaches to it meanwhile changes
 * `life`. */
static void end_if_unheld(struct region *region, int query, unsigned index, struct tag_search *search) {
    struct region_slot *slot = &region->usage->slots[index];
    uint64_t life = atomic_load(&slot->life);
    if ((life_kind(life) == REGION_KIND_SHARE || life_kind(life) == REGION_KIND_NAME) &&
        !region_slot_owned(region, query, index, search))
        atomic_compare_exchange_strong(&slot->life, &life, next_life(life, REGION_KIND_ENDED));
}

void region_share_detach(struct region *region, int share) {
    struct region_hold *hold = held(region, share);
    if (hold == NULL)
        return;
    int error = errno;
    const struct region_slot *slot = &region->usage->slots[share];
    enum region_kind kind = life_kind(atomic_load(&slot->life));
    if (kind == REGION_KIND_SHARE)
        detach_names(region, atomic_load(&slot->tag));
    region->names -= kind == REGION_KIND_NAME && region->names != 0;
    int fd = holder(region);
    *hold = (struct region_hold){.held = false};
    if (fd >= 0) /* else the next description does not take this lock */
        lock_share(fd, share, F_UNLCK);
    STEP("detach: unlocked");
    bool gone;
    int query = region_open_query(region, &gone);
    struct tag_search search = {.witness = &region->witness};
    if (query >= 0 && !gone && region_reap_slot(region, query, (unsigned)share, &search))
        end_if_unheld(region, query, (unsigned)share, &search);
    tag_search_end(&search);
    region_close_query(region, query);
    errno = error;
}
