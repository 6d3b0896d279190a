/* Opening, mapping and closing a region, and the locks on its slots. Errors are texts, for the one line that explain()
 * writes. */
#include "region/tags.h"
#include "region/words.h"
#include "system/calls.h"
#include "system/mapped.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* --- files -------------------------------------------------------------------------------------------------------- */

int region_lock_slot(int fd, int command, unsigned index, short *type) {
    struct flock lock = {
        .l_type = *type,
        .l_whence = SEEK_SET,
        .l_start = REGION_SLOTS_OFFSET + (off_t)index * REGION_SLOT_SIZE,
        .l_len = 1,
    };
    int rc = (int)call_fcntl(fd, command, (uintptr_t)&lock);
    *type = lock.l_type;
    return rc;
}

static bool is_usage(const struct region *region, const struct stat *status) {
    return status->st_dev == region->device && status->st_ino == region->inode;
}

int region_open_usage(const struct region *region, int access, char why[static REGION_WHY]) {
    struct stat status;
    int fd = region_open_file(region->usage_path, access, REGION_USAGE_SIZE, &status, why);
    if (fd < 0 || is_usage(region, &status))
        return fd;
    region_fail(why, "%s was replaced by another file", region->usage_path);
    call_close(fd);
    return -1;
}

int region_open_query(const struct region *region, bool *gone) {
    struct stat status;
    int fd = call_open(region->usage_path, O_RDWR | REGION_OPEN_FLAGS);
    *gone = fd >= 0;
    /* A program that called chroot does not find the path. */
    if (fd < 0)
        fd = (int)syscall(SYS_fcntl, region->descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    /* A program without a free descriptor cannot open it. The descriptor that holds the own slot's lock reports all
     * other locks. */
    if (fd < 0)
        fd = region->descriptor;
    if (call_fstat(fd, &status) && is_usage(region, &status) &&
        lseek(fd, 0, SEEK_CUR) != region_holder_position(region)) {
        *gone = status.st_size != REGION_USAGE_SIZE || status.st_nlink == 0;
        return fd;
    }
    region_close_query(region, fd);
    return -1;
}

void region_close_query(const struct region *region, int fd) {
    if (fd >= 0 && fd != region->descriptor)
        call_close(fd);
}

bool region_is_usage(const struct region *region, int fd) {
    struct stat status;
    return call_fstat(fd, &status) && is_usage(region, &status);
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

static bool read_usage(struct region *region, const char *id, char why[static REGION_WHY]) {
    const char *path = region->usage_path;
    struct {
        struct region_heading heading;
        uint32_t slot_count;
        uint32_t page_shift;
    } start;
    _Static_assert(sizeof start == offsetof(struct region_usage, reserved0), "usage file");
    struct stat status;
    int fd = region_open_file(path, O_RDWR, REGION_USAGE_SIZE, &status, why);
    if (fd < 0 || !region_read_start(fd, &start, sizeof start, path, why) ||
        !region_check_heading(&start, REGION_USAGE_MAGIC, REGION_USAGE_SIZE, path, id, why))
        return false;
    if (start.slot_count != REGION_SLOT_COUNT || start.page_shift != REGION_PAGE_SHIFT)
        return region_fail(why, "%s has slots or pages of a size that version %u does not have", path, REGION_VERSION);
    region->device = status.st_dev;
    region->inode = status.st_ino;
    return true;
}

bool region_open(struct region *region, const char *directory, const char *id, char why[static REGION_WHY]) {
    return region_identify(region, directory, id, why) && read_usage(region, id, why);
}

/* --- joining ------------------------------------------------------------------------------------------------------ */

/*
 * A mapping keeps the lock's open file description when the program closes its descriptor. When a process ends, the
 * kernel closes the files of its mappings from the highest address to the lowest, and the lock must go after the
 * driver's (see teardown.c). So the mapping is placed as low as possible.
 */
void *region_map_low(int fd, size_t size, int protection) {
    /* Above position-dependent programs, below everything that the kernel places itself. */
    const uintptr_t from = UINT64_C(0x100000000), step = 0x80000;
    for (uintptr_t address = from; address < from + 64 * step; address += step) {
        void *hint = (void *)address; /* NOLINT(performance-no-int-to-ptr) */
        void *map = mmap(hint, size, protection, MAP_SHARED, fd, 0);
        if (map == hint || map == MAP_FAILED)
            return map;
        munmap(map, size);
    }
    return mmap(NULL, size, protection, MAP_SHARED, fd, 0);
}

static bool map_usage(struct region *region, char why[static REGION_WHY]) {
    int fd = region_open_usage(region, O_RDWR, why);
    if (fd < 0)
        return false;
    void *map = region_map_low(fd, REGION_USAGE_SIZE, PROT_READ | PROT_WRITE);
    if (map == MAP_FAILED) {
        region_fail(why, "cannot map %s: errno %d", region->usage_path, errno);
        call_close(fd);
        return false;
    }
    region->usage = map;
    region->descriptor = fd;
    region->queue = region_queue_new(fd);
    return true;
}

/* Maps a file for reading and closes it. -1 is the error that `why` has already. */
static void *map_to_read(int fd, size_t size, const char *path, char why[static REGION_WHY]) {
    if (fd < 0)
        return NULL;
    void *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    int error = errno;
    call_close(fd);
    if (map != MAP_FAILED)
        return map;
    region_fail(why, "cannot map %s: errno %d", path, error);
    return NULL;
}

static bool map_limit(struct region *region, char why[static REGION_WHY]) {
    struct stat status;
    int fd = region_open_file(region->limit_path, O_RDONLY, REGION_LIMIT_SIZE, &status, why);
    region->limit = map_to_read(fd, REGION_LIMIT_SIZE, region->limit_path, why);
    return region->limit != NULL;
}

bool region_look(struct region *region, char why[static REGION_WHY]) {
    int fd = region_open_usage(region, O_RDONLY, why);
    region->usage = map_to_read(fd, REGION_USAGE_SIZE, region->usage_path, why);
    if (region->usage != NULL && map_limit(region, why))
        return true;
    region_close(region);
    return false;
}

static bool take_slot(struct region *region, char why[static REGION_WHY]) {
    struct region_usage *usage = region->usage;
    int index = region_take_slot(region, region->descriptor, REGION_SLOT_COUNT);
    if (index < 0 && errno == EUCLEAN)
        return region_fail(why, "%s is damaged: its slots have invalid contents", region->usage_path);
    if (index < 0 && errno == EAGAIN)
        return region_fail(
            why,
            "%s has no free slot: %u processes and pieces of shared memory use the claim, the most that it supports",
            region->usage_path, REGION_SLOT_COUNT);
    if (index < 0 && errno == ENOSPC)
        return region_fail(why, "%s cannot grow: its file system is full", region->usage_path);
    if (index < 0)
        return region_fail(why, "cannot lock a slot in %s: errno %d", region->usage_path, errno);
    struct region_slot *slot = &usage->slots[index];
    atomic_store(&slot->pid, (int32_t)getpid());
    atomic_store(&slot->contexts, 0);
    atomic_store(&slot->life, next_life(atomic_load(&slot->life), REGION_KIND_PROCESS));
    for (unsigned i = 0; i < REGION_LEDGER_COUNT; i++)
        region->expected[i] = atomic_load(&slot->held[i].committed);
    region->slot = index;
    return true;
}

static bool join(struct region *region, char why[static REGION_WHY]) {
    if (!map_usage(region, why) || !map_limit(region, why) || !take_slot(region, why))
        return false;
    if (!region_holder_open(region))
        return region_fail(why, "cannot open %s again: errno %d", region->usage_path, errno);
    if (!region_sums_agree(region->usage, REGION_GPU) || !region_sums_agree(region->usage, REGION_SPILL))
        return region_fail(why, "%s is damaged: its sums do not match its slots", region->usage_path);
    return region_mapped_intact(region) || region_fail(why, "%s was damaged while it was opened", region->usage_path);
}

bool region_join(struct region *region, char why[static REGION_WHY]) {
    bool joined = join(region, why);
    if (!joined)
        region_close(region);
    return joined;
}

void region_close(struct region *region) {
    region_holder_close(region);
    mapped_free(region->usage, REGION_USAGE_SIZE);
    if (region->descriptor >= 0) {
        call_close(region->descriptor);
        region_queue_close(&region->queue);
    }
    mapped_free((void *)(uintptr_t)region->limit, REGION_LIMIT_SIZE);
    tag_close_witness(&region->witness);
    region->usage = NULL;
    region->limit = NULL;
    region->slot = region->descriptor = -1;
}

uint64_t region_limit_bytes(const struct region *region, enum region_ledger ledger) {
    const struct region_limit *limit = region->limit;
    return atomic_load_explicit(ledger == REGION_SPILL ? &limit->spill_bytes : &limit->limit_bytes,
                                memory_order_relaxed);
}

uint64_t region_uncounted_bytes(const struct region *region, enum region_ledger ledger) {
    return ledger == REGION_GPU ? atomic_load_explicit(&region->limit->uncounted_bytes, memory_order_relaxed) : 0;
}
