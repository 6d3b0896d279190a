/* Shared by the files of the region's implementation: packed words, and the functions between the files. */
#ifndef TRANCHE_REGION_WORDS_H
#define TRANCHE_REGION_WORDS_H

#include "region/region.h"
#include "region/tags.h"

#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>

/* Tests stop or kill a process at a named step of the protocol. */
#ifdef REGION_TEST
void region_test_step(const char *step);
#define STEP(name) region_test_step(name)
#else
#define STEP(name) ((void)0)
#endif

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

#define BITS(n) ((UINT64_C(1) << (n)) - 1)
#define SEQ_MASK BITS(REGION_SEQ_BITS)
#define PAGES_MAX BITS(REGION_TOTAL_PAGES_BITS)
#define MOVE_PAGES_MAX BITS(REGION_OP_MOVE_PAGES_BITS)

static inline uint64_t seq_of(uint64_t word) {
    return word >> (64 - REGION_SEQ_BITS);
}

/* Sequence number 0 means "no operation", so counting skips it. */
static inline uint64_t next_seq(uint64_t seq) {
    seq = (seq + 1) & SEQ_MASK;
    return seq ? seq : 1;
}

static inline uint64_t op_word(uint64_t seq, int64_t delta) {
    return seq << (64 - REGION_SEQ_BITS) | ((uint64_t)delta & BITS(REGION_OP_DELTA_BITS));
}

static inline int64_t op_delta(uint64_t op) {
    uint64_t delta = op & BITS(REGION_OP_DELTA_BITS);
    uint64_t sign = UINT64_C(1) << (REGION_OP_DELTA_BITS - 1);
    return (int64_t)(delta ^ sign) - (int64_t)sign;
}

#define OP_MOVE (UINT64_C(1) << REGION_OP_DELTA_BITS)

static inline uint64_t move_word(uint64_t seq, unsigned receiver, uint64_t pages) {
    return seq << (64 - REGION_SEQ_BITS) | OP_MOVE | (uint64_t)receiver << REGION_OP_MOVE_PAGES_BITS | pages;
}

static inline bool op_moves(uint64_t op) {
    return (op & OP_MOVE) != 0;
}

static inline unsigned move_receiver(uint64_t op) {
    return (unsigned)(op >> REGION_OP_MOVE_PAGES_BITS & BITS(REGION_OP_MOVE_SLOT_BITS));
}

static inline uint64_t move_pages(uint64_t op) {
    return op & MOVE_PAGES_MAX;
}

static inline uint64_t committed_word(uint64_t seq, uint64_t pages) {
    return seq << REGION_COMMITTED_PAGES_BITS | (pages & BITS(REGION_COMMITTED_PAGES_BITS));
}

static inline uint64_t committed_pages(uint64_t committed) {
    return committed & BITS(REGION_COMMITTED_PAGES_BITS);
}

static inline uint64_t total_word(uint64_t seq, unsigned slot, uint64_t pages) {
    return seq << (64 - REGION_SEQ_BITS) | (uint64_t)slot << REGION_TOTAL_PAGES_BITS | pages;
}

static inline unsigned total_slot(uint64_t total) {
    return (unsigned)(total >> REGION_TOTAL_PAGES_BITS & BITS(REGION_TOTAL_SLOT_BITS));
}

static inline uint64_t total_pages(uint64_t total) {
    return total & PAGES_MAX;
}

/* The change that an operation makes to the slot that announced it. */
static inline int64_t op_change(uint64_t op) {
    return op_moves(op) ? -(int64_t)move_pages(op) : op_delta(op);
}

/* pages + delta, between 0 and PAGES_MAX. Only a damaged region exceeds these bounds. */
static inline uint64_t add_pages(uint64_t pages, int64_t delta) {
    if (delta < 0 && (uint64_t)-delta > pages)
        return 0;
    uint64_t sum = pages + (uint64_t)delta;
    return sum > PAGES_MAX ? PAGES_MAX : sum;
}

static inline enum region_kind life_kind(uint64_t life) {
    return (enum region_kind)(life & BITS(REGION_LIFE_KIND_BITS));
}

/* The `life` word of the next generation, of this kind. */
static inline uint64_t next_life(uint64_t life, enum region_kind kind) {
    return ((life >> REGION_LIFE_KIND_BITS) + 1) << REGION_LIFE_KIND_BITS | (uint64_t)kind;
}

static inline void raise_to(_Atomic uint64_t *maximum, uint64_t value) {
    uint64_t seen = atomic_load_explicit(maximum, memory_order_relaxed);
    while (seen < value && !atomic_compare_exchange_weak(maximum, &seen, value))
        ;
}

/* Whether the mapped files begin as they must. Read from memory each time, since they may change at any moment. */
static inline bool region_mapped_intact(const struct region *region) {
    const uint64_t *usage = (const void *)region->usage, *limit = (const void *)region->limit;
    uint64_t usage_magic, limit_magic;
    memcpy(&usage_magic, REGION_USAGE_MAGIC, sizeof usage_magic);
    memcpy(&limit_magic, REGION_LIMIT_MAGIC, sizeof limit_magic);
    return __atomic_load_n(&usage[0], __ATOMIC_RELAXED) == usage_magic &&
           __atomic_load_n(&usage[1], __ATOMIC_RELAXED) == ((uint64_t)REGION_USAGE_SIZE << 32 | REGION_VERSION) &&
           __atomic_load_n(&limit[0], __ATOMIC_RELAXED) == limit_magic &&
           __atomic_load_n(&limit[1], __ATOMIC_RELAXED) == ((uint64_t)REGION_LIMIT_SIZE << 32 | REGION_VERSION);
}

/* --- region.c ----------------------------------------------------------------------------------------------------- */

/* One operation on a slot that only this process writes. `expected` is the slot's `committed`, before and then after
 * it. */
enum region_result region_operate(struct region *region, enum region_ledger ledger, unsigned slot, uint64_t *expected,
                                  int64_t delta);

/* Takes pages into such a slot; if the limit refuses, again after what dead processes held was given back. */
enum region_result region_take(struct region *region, enum region_ledger ledger, unsigned slot, uint64_t *expected,
                               uint64_t pages);

/* Gives pages of such a slot back: never more than it holds, even if the caller's count is wrong. */
void region_give(struct region *region, enum region_ledger ledger, unsigned slot, uint64_t *expected, uint64_t pages);

/* Moves pages of GPU memory between two such slots. */
enum region_result region_move(struct region *region, unsigned from, uint64_t *from_expected, unsigned to,
                               uint64_t *to_expected, uint64_t pages);

/* Gives back what a dead process left in a slot. False if the slot has an owner, and so is not empty afterwards. */
bool region_reap_slot(struct region *region, int fd, unsigned index, struct tag_search *search);

/* Whether another open file description has a lock on the slot, or it is a share whose exported descriptors are open, or
 * that cannot be told. */
bool region_slot_owned(struct region *region, int fd, unsigned index, struct tag_search *search);

/* Finds a slot below `end` without an owner, locks it for writing through `fd` and empties it. Returns its index, or -1
 * with errno: EAGAIN if there is none, EUCLEAN if its contents are invalid, ENOSPC if the file system is full. */
int region_take_slot(struct region *region, int fd, unsigned end);

/* Whether the sum over all slots is the total. */
bool region_sums_agree(struct region_usage *usage, enum region_ledger ledger);

/* --- limit.c ------------------------------------------------------------------------------------------------------ */

/* Something else in place of the file, such as a symbolic link or a FIFO, must neither lead elsewhere nor block. */
#define REGION_OPEN_FLAGS (O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY)

/* The beginning of both files. */
struct region_heading {
    char magic[8];
    uint32_t version;
    uint32_t size;
    uint8_t claim_id[REGION_CLAIM_ID_LENGTH];
};

/* Opens a regular file of a known size. -1, with the reason in `why`, if it is not one. */
int region_open_file(const char *path, int access, size_t size, struct stat *status, char why[static REGION_WHY]);

/* Reads the beginning of a file and closes it. */
bool region_read_start(int fd, void *start, size_t size, const char *path, char why[static REGION_WHY]);

bool region_check_heading(const void *file, const char *magic, uint32_t size, const char *path, const char *id,
                          char why[static REGION_WHY]);

/* --- file.c ------------------------------------------------------------------------------------------------------- */

/* Opens `usage` again, if it is the same as before. -1, with the reason in `why`, if not. */
int region_open_usage(const struct region *region, int access, char why[static REGION_WHY]);

/* A descriptor of `usage` for querying locks, of another open file description than the one that holds this process's
 * shares. -1 if there is none. `gone`: the mapped file is no longer the claim's. */
int region_open_query(const struct region *region, bool *gone);

/* Closes it; -1 is ignored. */
void region_close_query(const struct region *region, int fd);

/* Whether a descriptor refers to the region's file `usage`. */
bool region_is_usage(const struct region *region, int fd);

/* Locks or unlocks a slot's byte (F_OFD_SETLK, F_UNLCK), or queries whether another open file description has a lock on
 * it (F_OFD_GETLK). */
int region_lock_slot(int fd, int command, unsigned index, short *type);

/* Maps `usage` at a low address, so that the kernel unmaps it late: see teardown.c. */
void *region_map_low(int fd, size_t size, int protection);

/* --- teardown.c --------------------------------------------------------------------------------------------------- */

/* Has the kernel close this descriptor's open file description after all other descriptors when this process ends.
 * Without a free descriptor, `socket` is -1, and the description is closed in the usual order. */
struct region_queue region_queue_new(int fd);
void region_queue_close(struct region_queue *queue);

/* --- read.c: the queries of region.h, without a slot -------------------------------------------------------------- */

uint64_t region_read_used_bytes(struct region *region, enum region_ledger ledger);

/* --- share.c ------------------------------------------------------------------------------------------------------ */

/* The file position by which the open file description that holds this process's shares is recognised. */
static inline off_t region_holder_position(const struct region *region) {
    return (off_t)REGION_USAGE_SIZE + 1 + region->slot;
}

bool region_holder_open(struct region *region);
void region_holder_close(struct region *region);

#endif
