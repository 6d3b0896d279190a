/*
 * The region of a claim: the files through which the processes of a claim account for GPU memory. This header defines
 * their layout and declares what a process does with them.
 *
 * A region is two files in a directory that is named after the claim:
 *
 *   limit   the GPU and the limit; written by the host only, mapped read-only
 *   usage   the memory in use; written by every process of the claim
 *
 * Both are little-endian. The Go package claim/region mirrors this layout; tests/layout.c prints it, and a test
 * compares the two. A change of an offset, a size or a width needs another REGION_VERSION.
 */
#ifndef TRANCHE_REGION_H
#define TRANCHE_REGION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REGION_VERSION 3u

#define REGION_LIMIT_FILE "limit"
#define REGION_USAGE_FILE "usage"
#define REGION_LIMIT_MAGIC "TRNCLIM" /* with its NUL: 8 bytes */
#define REGION_USAGE_MAGIC "TRNCUSE"

#define REGION_CLAIM_ID_LENGTH 8 /* hex characters, no NUL */
#define REGION_GPU_UUID_SIZE 80  /* NVML's string, padded with NUL */

#define REGION_PAGE_SHIFT 16 /* the unit of accounting: 64 KiB */
#define REGION_LEDGER_COUNT 2u
#define REGION_SLOT_COUNT 4096u
#define REGION_SLOT_SIZE 64u
#define REGION_SLOTS_OFFSET 4096u
#define REGION_LIMIT_SIZE 4096u
#define REGION_USAGE_SIZE (REGION_SLOTS_OFFSET + REGION_SLOT_COUNT * REGION_SLOT_SIZE)

/* Widths of the packed words, in bits. The sequence number is always in the highest bits. Below it, `op` has one bit
 * for its kind: 0 for a change of pages (two's complement), 1 for a move {receiving slot, pages}. */
#define REGION_SEQ_BITS 24
#define REGION_TOTAL_SLOT_BITS 12
#define REGION_TOTAL_PAGES_BITS 28 /* 16 TiB */
#define REGION_OP_DELTA_BITS 39
#define REGION_OP_MOVE_SLOT_BITS 12
#define REGION_OP_MOVE_PAGES_BITS 27
#define REGION_COMMITTED_PAGES_BITS 40
#define REGION_LIFE_KIND_BITS 3

/* The kinds of memory that are accounted for. */
enum region_ledger {
    REGION_GPU,   /* memory of the GPU */
    REGION_SPILL, /* managed memory beyond the limit, which lies in host memory */
};

/* What a slot is used for. */
enum region_kind {
    REGION_KIND_NONE,
    REGION_KIND_PROCESS,
    REGION_KIND_SHARE, /* memory that may outlive the process that allocated it */
    REGION_KIND_ENDED, /* a former share, which no process holds or can attach */
    REGION_KIND_NAME,  /* a further tag of a share */
};

/* The file `limit`. */
struct region_limit {
    char magic[8];
    uint32_t version;
    uint32_t size; /* of this file: REGION_LIMIT_SIZE */
    uint8_t claim_id[REGION_CLAIM_ID_LENGTH];
    char gpu_uuid[REGION_GPU_UUID_SIZE];
    _Atomic uint64_t limit_bytes; /* the GPU memory limit; may change while containers run */
    uint64_t context_bytes;       /* what one CUDA context costs on this GPU before its first allocation */
    uint64_t compute_share_permille;
    uint64_t flags;
    _Atomic uint64_t spill_bytes;     /* the host memory limit, for what exceeds limit_bytes */
    _Atomic uint64_t uncounted_bytes; /* held by the claim's processes beyond what they count; takes from the limit */
    uint8_t reserved[REGION_LIMIT_SIZE - 152];
};

/* The pages that a slot holds in one ledger. */
struct region_held {
    _Atomic uint64_t op;        /* {seq, delta} or {seq, receiver, pages}: the announced operation */
    _Atomic uint64_t committed; /* {seq, pages}: the pages held after operation seq */
};

/* A process or a share in the file `usage`; one cache line. */
struct region_slot {
    struct region_held held[REGION_LEDGER_COUNT];
    _Atomic int32_t pid;      /* in the process's own namespace; 0 for a share; informational */
    _Atomic int32_t contexts; /* CUDA contexts that exist; informational */
    _Atomic uint64_t tag;     /* by which a share is found, and its exported descriptors are known (tags.h) */
    _Atomic uint64_t target;  /* of a share: the file that it was exported as, 0: none; of a name: the share's tag */
    _Atomic uint64_t life;    /* {generation, kind} */
};

/* The sum of one ledger. */
struct region_sum {
    _Atomic uint64_t total; /* {seq, slot, pages}: the sum of all slots, and the operation that produced it */
    uint8_t reserved0[56];
    _Atomic uint64_t refused;    /* refused reservations; a statistic */
    _Atomic uint64_t peak_pages; /* the highest sum so far; a statistic */
    uint8_t reserved1[48];
};

/* The file `usage`. Words that several processes write often lie in separate cache lines. */
struct region_usage {
    char magic[8];
    uint32_t version;
    uint32_t size; /* of this file: REGION_USAGE_SIZE */
    uint8_t claim_id[REGION_CLAIM_ID_LENGTH];
    uint32_t slot_count;
    uint32_t page_shift;
    uint8_t reserved0[32];
    struct region_sum sums[REGION_LEDGER_COUNT];
    _Atomic uint64_t high_water; /* 1 + the highest slot used so far */
    uint8_t reserved1[8];
    _Atomic uint64_t next_slot; /* where the next search for a free slot starts; a hint */
    uint8_t reserved2[REGION_SLOTS_OFFSET - 344];
    struct region_slot slots[REGION_SLOT_COUNT];
};

_Static_assert(sizeof(struct region_limit) == REGION_LIMIT_SIZE, "limit file");
_Static_assert(sizeof(struct region_slot) == REGION_SLOT_SIZE, "slot");
_Static_assert(sizeof(struct region_usage) == REGION_USAGE_SIZE, "usage file");
_Static_assert(sizeof(struct region_sum) == 128, "usage file");
_Static_assert(offsetof(struct region_usage, slots) == REGION_SLOTS_OFFSET, "usage file");
_Static_assert(REGION_SEQ_BITS + REGION_TOTAL_SLOT_BITS + REGION_TOTAL_PAGES_BITS == 64, "total");
_Static_assert(REGION_SEQ_BITS + 1 + REGION_OP_DELTA_BITS == 64, "op");
_Static_assert(REGION_OP_MOVE_SLOT_BITS + REGION_OP_MOVE_PAGES_BITS == REGION_OP_DELTA_BITS, "op");
_Static_assert(REGION_SEQ_BITS + REGION_COMMITTED_PAGES_BITS == 64, "committed");
_Static_assert(REGION_SLOT_COUNT == 1u << REGION_TOTAL_SLOT_BITS, "total");
_Static_assert(REGION_SLOT_COUNT == 1u << REGION_OP_MOVE_SLOT_BITS, "op");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics must be lock-free: they are shared between processes");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a region is little-endian");

/* A share as this process knows it. */
struct region_hold {
    uint64_t expected; /* its slot's `committed`, if this process made the share */
    bool held;
    bool made; /* by this process */
};

/* A socket in whose queue an open file description is in flight, see teardown.c; -1: there is none. */
struct region_queue {
    int socket;
    uint64_t device, inode; /* of the socket, to recognise it */
};

/* The open file description of `usage` whose locks hold this process's shares. */
struct region_holder {
    int descriptor;
    void *mapping; /* keeps the description open if the program closes the descriptor */
    struct region_queue queue;
};

/*
 * A region in one process. region.c explains the protocol.
 *
 * A process that only reads the region (as for NVML) has no slot and writes nothing.
 */
struct region {
    const struct region_limit *limit; /* NULL before region_join or region_look, as is `usage` */
    struct region_usage *usage;
    int descriptor;                         /* of `usage`; its lock owns the slot */
    struct region_queue queue;              /* keeps `descriptor` locked until the driver has freed */
    int slot;                               /* this process's; -1: it only reads */
    uint64_t expected[REGION_LEDGER_COUNT]; /* the slot's `committed`, by ledger */
    _Atomic bool broken;
    struct region_holder holder;
    struct region_hold *holds; /* by slot; NULL before the first share */
    unsigned names;            /* that this process has given to shares */
    _Atomic int witness;       /* see tags.h */
    uint64_t device, inode;    /* of `usage` */
    uint64_t context_bytes;    /* what one CUDA context costs on this GPU */
    char gpu_uuid[REGION_GPU_UUID_SIZE];
    char limit_path[320];
    char usage_path[320];
};

enum region_result {
    REGION_OK,
    REGION_FULL,   /* the limit allows no more */
    REGION_BROKEN, /* the files are damaged; nothing is granted any more */
};

/* Pages that hold so many bytes. */
static inline uint64_t region_pages(uint64_t bytes) {
    return (bytes >> REGION_PAGE_SHIFT) + ((bytes & ((UINT64_C(1) << REGION_PAGE_SHIFT) - 1)) != 0);
}

#define REGION_WHY 512 /* room for the reason of a failure, in characters */

/* Stores the reason in `why`, and returns false. */
__attribute__((format(printf, 2, 3))) bool region_fail(char why[static REGION_WHY], const char *format, ...);

/* Reads which GPU claim `id` in `directory` is for, from `limit` alone: nothing is to be closed. False, with the reason in
 * `why`, if that fails. */
bool region_identify(struct region *region, const char *directory, const char *id, char why[static REGION_WHY]);

/* Reads the region of claim `id` in `directory`. False, with the reason in `why`, if it cannot be used. */
bool region_open(struct region *region, const char *directory, const char *id, char why[static REGION_WHY]);

/* Maps the region and takes a slot in it, which accounting needs. False, with the reason in `why`, if that fails. */
bool region_join(struct region *region, char why[static REGION_WHY]);

/* Maps the region for reading only. */
bool region_look(struct region *region, char why[static REGION_WHY]);

/* Gives up the slot and all shares, and unmaps the region. */
void region_close(struct region *region);

/* Take pages into this process's slot, and give them back. The caller holds a lock, so that calls of one process do not
 * overlap; so it is for all functions below that do not say "any thread". */
enum region_result region_reserve(struct region *region, enum region_ledger ledger, uint64_t pages);

/* Counts an allocation that the program did not get since the claim is full; one that was tried several times, once. */
void region_count_refused(struct region *region);
void region_release(struct region *region, enum region_ledger ledger, uint64_t pages);

/* Counts a CUDA context that was created (1) or destroyed (-1). */
void region_count_contexts(struct region *region, int change);

/* Bytes in use, after giving back what dead processes held. For a broken region, more than any limit. Any thread, at any
 * time. */
uint64_t region_used_bytes(struct region *region, enum region_ledger ledger);

/* The limit in bytes, which may change at any time. Any thread. */
uint64_t region_limit_bytes(const struct region *region, enum region_ledger ledger);

/* What the host found uncounted, which is part of the bytes in use. Any thread. */
uint64_t region_uncounted_bytes(const struct region *region, enum region_ledger ledger);

/* Gives back what dead processes held. Any thread, at any time. */
void region_reap(struct region *region);

/* Calls `fn` for every living process that has a slot, with the pages of GPU memory in the slot; shares are not
 * included. Returns 0, or -1 if the region is broken. Any thread, at any time. */
int region_each(struct region *region, void (*fn)(int32_t pid, uint64_t pages, int32_t contexts, void *arg), void *arg);

/*
 * Shares: GPU memory that outlives the process that allocated it, because other processes use it too, or a descriptor
 * keeps it. A share is counted as long as any process of the claim holds it, and as long as a descriptor that it was
 * exported as is open anywhere. Only its maker changes its size, and only while the maker holds it. A process holds a
 * share once: attaching it again returns the same slot.
 */

/* Some slots are left to processes. */
#define REGION_SHARES_MAX (REGION_SLOT_COUNT - 256)

/* Makes an empty share that this process holds. Returns its slot; -1 if there is no free slot or the region is broken. */
int region_share_new(struct region *region, uint64_t tag);

enum region_result region_share_reserve(struct region *region, int share, uint64_t pages);
void region_share_release(struct region *region, int share, uint64_t pages);

/* Moves pages from this process's slot into its share in one operation, which leaves the sum unchanged. REGION_FULL if
 * the slot does not hold as many. */
enum region_result region_share_adopt(struct region *region, int share, uint64_t pages);

/* Gives a share that this process holds one more tag, until it detaches the share, or the slot that this returns: the
 * share's own if it is called so. -1 if there is no free slot. */
int region_share_name(struct region *region, int share, uint64_t tag);

/* The driver has exported a share that this process holds as this descriptor, which keeps its memory. False if it cannot
 * be seen when the descriptor is closed. */
bool region_share_export(struct region *region, int share, int descriptor);

/* Takes hold of the share with this tag. Returns its slot; -1 if there is none; REGION_SHARE_UNKNOWN if it could not be
 * searched for: the process has no descriptor or memory left, or the region is broken. */
#define REGION_SHARE_UNKNOWN (-2)
int region_share_attach(struct region *region, uint64_t tag);

/* Lets go of a share. If no other process holds it, its pages are given back at once. */
void region_share_detach(struct region *region, int share);

#endif
