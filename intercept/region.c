/*
 * How processes account for GPU memory without locks.
 *
 * The sum of a claim is one word, `total` = {seq, slot, pages}: the sum in pages, and which operation of which slot
 * produced it. What each process holds is the word `committed` = {seq, pages} of its slot. An operation (taking or giving
 * back pages) has three steps:
 *
 *   announce   op[s] = {q, delta}             q is the slot's next sequence number: committed[s].seq + 1
 *   take       total: w -> {q, s, w.pages+delta}   one compare-and-swap: the check against the limit and the reservation
 *   commit     committed[s]: {q-1, p} -> {q, p+delta}
 *
 * Nobody may replace a total that names an operation before that operation is committed, so whoever wants to take first
 * commits the operation which `total` names ("helps"). All that is needed for it is in shared memory, so it does not
 * matter whether the process that took is running, stopped or dead. From this follow the invariants:
 *
 *   I1  An operation that was taken and is not committed is the one that `total` names. Hence the sum over all slots of
 *       committed.pages differs from total.pages by at most one operation, whose delta can be read in op.
 *   I2  If w was read from `total`, w does not name (s, q), and committed[s].seq == q-1 is read afterwards, then q was
 *       not taken before w was read. (Had it been, `total` moved on from naming it only after committed[s].seq reached q.)
 *   I3  If in addition the compare-and-swap from that w succeeds, q had not been taken until then: it is taken once.
 *   I4  op[s] = {q, delta} does not change between taking and committing q. The owner announces q+1 only after it has seen
 *       q committed; others announce only in slots of the dead, as described below.
 *
 * An operation that was announced and never taken (it did not fit, or its process died) has had no effect, and the next
 * announcement overwrites it.
 *
 * The slots of the dead. A process owns slot s as long as it holds a lock on the slot's bytes that belongs to an open file
 * description (F_OFD_SETLK). The kernel drops it with the last reference to the description, and everybody else can ask
 * whether it is there. Whoever finds a slot with pages and without a lock may give them back ("reap"), many processes at
 * once, and none of them holds anything up if it stops half-way:
 *
 *   1  help; c = committed[s] = {q-1, p}, p > 0
 *   2  ask for the lock: not there. Whoever wrote c is dead, or will never write again if c is still there in step 3.
 *   3  help; o = op[s]; committed[s] is still c
 *   4  announce by compare-and-swap: op[s]: o -> {q, -p}
 *   5  take as above, but before each attempt committed[s] must still be c
 *
 * Step 3 after step 2: what the dead took is now committed, or c is still there and q was never taken (I2) and never will
 * be by the dead; so the announcement in 4 changes no delta that anybody needs (I4). Step 4 fails if another reaper was
 * faster. Two reapers of the same c announce the same {q, -p}, and I3 makes it count once. A new owner of the slot, whose
 * lock shows that the former owner is dead, does the same before its first own operation, so whatever a reaper finds
 * there later differs from c, or p was 0 and there was nothing to reap. A reaper that was stopped between any two steps
 * and wakes up later fails in 3, 4 or 5.
 *
 * Sequence numbers have 24 bits. A process that stops between reading a word and its compare-and-swap is deceived only if
 * at its return the word is the same to the last bit after a multiple of 2^24 operations.
 */
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

#define REAP_EVERY_NS (50 * 1000 * 1000ull)
#define REAP_ATTEMPTS 64

/* Tests stop or kill a process at a named step. */
#ifdef REGION_TEST
void region_test_step(const char *step);
#define STEP(name) region_test_step(name)
#else
#define STEP(name) ((void)0)
#endif

#define BITS(n) ((UINT64_C(1) << (n)) - 1)
#define SEQ_MASK BITS(REGION_SEQ_BITS)
#define PAGES_MAX BITS(REGION_TOTAL_PAGES_BITS)

/* The three packed words. */
static uint64_t seq_of(uint64_t word) {
    return word >> (64 - REGION_SEQ_BITS);
}

/* Sequence number 0 means "no operation", so counting skips it. */
static uint64_t next_seq(uint64_t seq) {
    seq = (seq + 1) & SEQ_MASK;
    return seq ? seq : 1;
}

static uint64_t op_word(uint64_t seq, int64_t delta) {
    return seq << REGION_OP_DELTA_BITS | ((uint64_t)delta & BITS(REGION_OP_DELTA_BITS));
}

static int64_t op_delta(uint64_t op) {
    uint64_t delta = op & BITS(REGION_OP_DELTA_BITS);
    uint64_t sign = UINT64_C(1) << (REGION_OP_DELTA_BITS - 1);
    return (int64_t)(delta ^ sign) - (int64_t)sign;
}

static uint64_t committed_word(uint64_t seq, uint64_t pages) {
    return seq << REGION_COMMITTED_PAGES_BITS | (pages & BITS(REGION_COMMITTED_PAGES_BITS));
}

static uint64_t committed_pages(uint64_t committed) {
    return committed & BITS(REGION_COMMITTED_PAGES_BITS);
}

static uint64_t total_word(uint64_t seq, unsigned slot, uint64_t pages) {
    return seq << (64 - REGION_SEQ_BITS) | (uint64_t)slot << REGION_TOTAL_PAGES_BITS | pages;
}

static unsigned total_slot(uint64_t total) {
    return (unsigned)(total >> REGION_TOTAL_PAGES_BITS & BITS(REGION_TOTAL_SLOT_BITS));
}

static uint64_t total_pages(uint64_t total) {
    return total & PAGES_MAX;
}

/* Only a region that somebody scribbled over can get out of bounds; then we count the bound rather than wrap. */
static uint64_t add_pages(uint64_t pages, int64_t delta) {
    if (delta < 0 && (uint64_t)-delta > pages)
        return 0;
    uint64_t sum = pages + (uint64_t)delta;
    return sum > PAGES_MAX ? PAGES_MAX : sum;
}

/* Commits the operation that `total` names, if nobody has done it yet. */
static void help(struct region_usage *usage, uint64_t total) {
    uint64_t seq = seq_of(total);
    if (seq == 0)
        return;
    struct region_slot *slot = &usage->slots[total_slot(total)];
    uint64_t committed = atomic_load(&slot->committed);
    if (next_seq(seq_of(committed)) != seq)
        return;
    uint64_t op = atomic_load(&slot->op);
    if (seq_of(op) != seq)
        return;
    STEP("help: before commit");
    uint64_t after = committed_word(seq, add_pages(committed_pages(committed), op_delta(op)));
    atomic_compare_exchange_strong(&slot->committed, &committed, after);
}

/* Reads `total` with everything committed that was taken before. */
static uint64_t settled_total(struct region_usage *usage) {
    uint64_t total = atomic_load(&usage->total);
    help(usage, total);
    return total;
}

static void raise_to(_Atomic uint64_t *maximum, uint64_t value) {
    uint64_t seen = atomic_load_explicit(maximum, memory_order_relaxed);
    while (seen < value && !atomic_compare_exchange_weak(maximum, &seen, value))
        ;
}

static uint64_t limit_pages(const struct region *region) {
    uint64_t pages = region_limit_bytes(region) >> REGION_PAGE_SHIFT;
    return pages > PAGES_MAX ? PAGES_MAX : pages;
}

/* One operation of our own slot. False if it would exceed the limit. */
static bool operate(struct region *region, int64_t delta) {
    struct region_usage *usage = region->usage;
    struct region_slot *slot = &usage->slots[region->slot];
    uint64_t seq = next_seq(seq_of(atomic_load(&slot->committed)));
    atomic_store_explicit(&slot->op, op_word(seq, delta), memory_order_release);
    STEP("operate: announced");
    for (;;) {
        uint64_t before = settled_total(usage);
        uint64_t pages = add_pages(total_pages(before), delta);
        if (delta > 0 && (pages > limit_pages(region) || pages < total_pages(before) + (uint64_t)delta))
            return false;
        uint64_t after = total_word(seq, (unsigned)region->slot, pages);
        STEP("operate: before take");
        if (atomic_compare_exchange_strong(&usage->total, &before, after)) {
            STEP("operate: taken");
            help(usage, after);
            STEP("operate: committed");
            if (delta > 0)
                raise_to(&usage->peak_pages, pages);
            return true;
        }
    }
}

/* Steps 3 to 5 of reaping: gives back what `slot` held when it was `committed`. The slot's owner is known to be dead. */
static void take_back(struct region_usage *usage, unsigned index, uint64_t committed) {
    struct region_slot *slot = &usage->slots[index];
    uint64_t pages = committed_pages(committed);
    uint64_t seq = next_seq(seq_of(committed));
    uint64_t wanted = op_word(seq, -(int64_t)pages);

    settled_total(usage);
    STEP("reap: settled");
    uint64_t op = atomic_load(&slot->op);
    if (atomic_load(&slot->committed) != committed)
        return;
    STEP("reap: before announce");
    if (op != wanted && !atomic_compare_exchange_strong(&slot->op, &op, wanted))
        return;
    STEP("reap: announced");
    for (;;) {
        uint64_t before = settled_total(usage);
        if (atomic_load(&slot->committed) != committed)
            return;
        uint64_t after = total_word(seq, index, add_pages(total_pages(before), -(int64_t)pages));
        STEP("reap: before take");
        if (atomic_compare_exchange_strong(&usage->total, &before, after)) {
            STEP("reap: taken");
            help(usage, after);
            return;
        }
    }
}

/* glibc's fcntl has a newer symbol version than the oldest glibc that we serve. */
static int lock_slot(int fd, int command, unsigned index, short *type) {
    struct flock lock = {
        .l_type = *type,
        .l_whence = SEEK_SET,
        .l_start = REGION_SLOTS_OFFSET + (off_t)index * REGION_SLOT_SIZE,
        .l_len = 1,
    };
    int rc = (int)syscall(SYS_fcntl, fd, command, &lock);
    *type = lock.l_type;
    return rc;
}

static bool owned_by_somebody(int fd, unsigned index) {
    short type = F_WRLCK;
    return lock_slot(fd, F_OFD_GETLK, index, &type) != 0 || type != F_UNLCK;
}

/* Gives back what a dead process left in a slot. False if the slot is not empty afterwards: somebody owns it. */
static bool reap_slot(struct region_usage *usage, int fd, unsigned index) {
    for (int attempt = 0; attempt < REAP_ATTEMPTS; attempt++) {
        settled_total(usage);
        uint64_t committed = atomic_load(&usage->slots[index].committed);
        if (committed_pages(committed) == 0)
            return true;
        STEP("reap: before question");
        if (owned_by_somebody(fd, index))
            return false;
        STEP("reap: dead");
        take_back(usage, index, committed);
    }
    return false;
}

void region_reap(struct region *region) {
    struct region_usage *usage = region->usage;
    int error = errno;
    /* A description of our own for the question, and only while we ask: the program may close descriptors that it does
     * not know, and open others under the same number. */
    int fd = -1;
    uint64_t end = atomic_load(&usage->high_water);
    settled_total(usage);
    for (unsigned i = 0; i < end && i < REGION_SLOT_COUNT; i++) {
        if ((int)i == region->slot || committed_pages(atomic_load(&usage->slots[i].committed)) == 0)
            continue;
        if (fd < 0 && (fd = open(region->usage_path, O_RDWR | O_CLOEXEC)) < 0)
            break;
        reap_slot(usage, fd, i);
    }
    if (fd >= 0)
        close(fd);
    errno = error;
}

enum region_result region_reserve(struct region *region, uint64_t pages) {
    if (!region_intact(region))
        return REGION_BROKEN;
    if (pages <= PAGES_MAX) {
        if (operate(region, (int64_t)pages))
            return REGION_OK;
        region_reap(region);
        if (operate(region, (int64_t)pages))
            return REGION_OK;
    }
    atomic_fetch_add_explicit(&region->usage->refused, 1, memory_order_relaxed);
    return REGION_FULL;
}

void region_release(struct region *region, uint64_t pages) {
    if (pages != 0)
        operate(region, -(int64_t)pages);
}

uint64_t region_used_bytes(struct region *region) {
    struct region_usage *usage = region->usage;
    struct timespec time = {0};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    uint64_t now = (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
    uint64_t last = atomic_load_explicit(&usage->last_reap_ns, memory_order_relaxed);
    /* A time in the future wraps to a huge difference, so it cannot keep us from looking. */
    if (now - last >= REAP_EVERY_NS && atomic_compare_exchange_strong(&usage->last_reap_ns, &last, now))
        region_reap(region);
    return total_pages(atomic_load(&usage->total)) << REGION_PAGE_SHIFT;
}

uint64_t region_limit_bytes(const struct region *region) {
    return atomic_load_explicit(&region->limit->limit_bytes, memory_order_relaxed);
}

bool region_intact(const struct region *region) {
    const struct region_usage *usage = region->usage;
    return memcmp(usage->magic, REGION_USAGE_MAGIC, sizeof usage->magic) == 0 && usage->version == REGION_VERSION &&
           usage->size == REGION_USAGE_SIZE;
}

__attribute__((format(printf, 3, 4))) static bool fail(char *why, size_t why_size, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, why_size, format, arguments);
    va_end(arguments);
    return false;
}

/*
 * Maps `usage` so that the lock on our slot is dropped late.
 *
 * When a process is killed, its slot must not look free before the driver has taken its memory back, or another process
 * would be granted bytes that are still occupied. The kernel finalises a dying process's files in the reverse order in
 * which it let go of them: first the address space's, by ascending address, then the descriptors', by ascending number.
 * So what holds our lock is finalised last if it is both a mapping at a lower address and a descriptor with a lower number
 * than the driver's: hence the hints here, and the descriptor which stays open although nobody uses it any more.
 */
static void *map_low(int fd, size_t size) {
    /* Above position-dependent programs, below everything that the kernel places by itself. */
    const uintptr_t from = UINT64_C(0x100000000), step = 0x20000;
    for (uintptr_t address = from; address < from + 64 * step; address += step) {
        void *hint = (void *)address; /* NOLINT(performance-no-int-to-ptr) */
        void *map = mmap(hint, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map == hint || map == MAP_FAILED)
            return map;
        munmap(map, size);
    }
    return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

/* Maps a whole file of a known size. Its descriptor is closed, or handed out. */
static void *map_file(const char *path, size_t size, bool write, int *descriptor, char *why, size_t why_size) {
    int fd = open(path, (write ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (fd < 0) {
        fail(why, why_size, "cannot open %s: errno %d", path, errno);
        return NULL;
    }
    off_t length = lseek(fd, 0, SEEK_END);
    if (length != (off_t)size) {
        fail(why, why_size, "%s has %lld bytes instead of %zu", path, (long long)length, size);
        close(fd);
        return NULL;
    }
    void *map = write ? map_low(fd, size) : mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        fail(why, why_size, "cannot map %s: errno %d", path, errno);
        close(fd);
        return NULL;
    }
    if (descriptor != NULL)
        *descriptor = fd;
    else
        close(fd);
    return map;
}

/* What both files begin with. */
struct heading {
    char magic[8];
    uint32_t version;
    uint32_t size;
    uint8_t claim_id[REGION_CLAIM_ID_LENGTH];
};

static bool check_heading(const void *file, const char *magic, uint32_t size, const char *path, const char *id,
                          char *why, size_t why_size) {
    const struct heading *heading = file;
    if (memcmp(heading->magic, magic, sizeof heading->magic) != 0)
        return fail(why, why_size, "%s is not a file of a claim's region", path);
    if (heading->version != REGION_VERSION)
        return fail(why, why_size, "%s has version %u, this library knows version %u", path, heading->version,
                    REGION_VERSION);
    if (heading->size != size)
        return fail(why, why_size, "%s says that it has %u bytes instead of %u", path, heading->size, size);
    if (memcmp(heading->claim_id, id, REGION_CLAIM_ID_LENGTH) != 0)
        return fail(why, why_size, "%s belongs to claim %.8s, not to claim %.8s", path, (const char *)heading->claim_id,
                    id);
    return true;
}

bool region_open(struct region *region, const char *directory, const char *id, char *why, size_t why_size) {
    char limit_path[sizeof region->usage_path];
    memset(region, 0, sizeof *region);
    region->slot = -1;
    if (strlen(id) != REGION_CLAIM_ID_LENGTH)
        return fail(why, why_size, "%s is not the name of a claim", id);
    int length = snprintf(region->usage_path, sizeof region->usage_path, "%s/%s/" REGION_USAGE_FILE, directory, id);
    if (length < 0 || (size_t)length >= sizeof region->usage_path)
        return fail(why, why_size, "the path %s is too long", directory);
    snprintf(limit_path, sizeof limit_path, "%s/%s/" REGION_LIMIT_FILE, directory, id);

    const struct region_limit *limit = map_file(limit_path, REGION_LIMIT_SIZE, false, NULL, why, why_size);
    if (limit == NULL)
        return false;
    region->limit = limit;
    if (!check_heading(limit, REGION_LIMIT_MAGIC, REGION_LIMIT_SIZE, limit_path, id, why, why_size))
        goto failed;
    memcpy(region->gpu_uuid, limit->gpu_uuid, sizeof region->gpu_uuid);
    if (region->gpu_uuid[0] == '\0' || memchr(region->gpu_uuid, '\0', sizeof region->gpu_uuid) == NULL) {
        fail(why, why_size, "%s names no GPU", limit_path);
        goto failed;
    }
    int descriptor = -1;
    region->usage = map_file(region->usage_path, REGION_USAGE_SIZE, true, &descriptor, why, why_size);
    if (region->usage == NULL)
        goto failed;
    region->descriptor = descriptor;
    if (!check_heading(region->usage, REGION_USAGE_MAGIC, REGION_USAGE_SIZE, region->usage_path, id, why, why_size))
        goto failed;
    if (region->usage->slot_count != REGION_SLOT_COUNT || region->usage->page_shift != REGION_PAGE_SHIFT) {
        fail(why, why_size, "%s has slots or pages of a size that version %u does not have", region->usage_path,
             REGION_VERSION);
        goto failed;
    }
    return true;
failed:
    region_close(region);
    return false;
}

void region_close(struct region *region) {
    if (region->usage != NULL) {
        munmap(region->usage, REGION_USAGE_SIZE);
        close(region->descriptor);
    }
    if (region->limit != NULL)
        munmap((void *)(uintptr_t)region->limit, REGION_LIMIT_SIZE);
    region->usage = NULL;
    region->limit = NULL;
    region->slot = -1;
}

bool region_join(struct region *region, char *why, size_t why_size) {
    struct region_usage *usage = region->usage;
    /* Everybody starts elsewhere, or hundreds of processes that start at once would all try the same slots in turn. The
     * second round is for those whose slots were all taken while others became free behind them. */
    for (unsigned attempt = 0; attempt < 2 * REGION_SLOT_COUNT; attempt++) {
        unsigned index = (unsigned)(atomic_fetch_add(&usage->next_slot, 1) % REGION_SLOT_COUNT);
        /* Reaped before we lock it: if we were stopped in between, nobody else could reap it. */
        if (!reap_slot(usage, region->descriptor, index))
            continue;
        STEP("join: before lock");
        short type = F_WRLCK;
        if (lock_slot(region->descriptor, F_OFD_SETLK, index, &type) != 0) {
            if (errno == EAGAIN || errno == EACCES)
                continue;
            return fail(why, why_size, "cannot lock a slot in %s: errno %d", region->usage_path, errno);
        }
        STEP("join: locked");
        raise_to(&usage->high_water, index + 1);
        /* Our lock is no obstacle to ourselves, so this asks only whether somebody came and died meanwhile. */
        if (!reap_slot(usage, region->descriptor, index))
            return fail(why, why_size, "the slots in %s are not in order", region->usage_path);
        STEP("join: emptied");
        atomic_store(&usage->slots[index].pid, (int32_t)getpid());
        atomic_store(&usage->slots[index].contexts, 0);
        region->slot = (int)index;
        return true;
    }
    return fail(why, why_size, "%u processes already use the claim of %s, which is the most it can count",
                REGION_SLOT_COUNT, region->usage_path);
}
