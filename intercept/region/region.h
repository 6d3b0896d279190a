/*
 * The region of a claim: the one statement of its layout, and the protocol by which processes account for GPU memory.
 *
 * A region is two files in one directory, named after the claim:
 *
 *   limit   written by the host only, mapped read-only by us: what the claim allows, on which GPU;
 *   usage   written by every process of the claim: what is taken.
 *
 * Both are little-endian. The Go package claim/region mirrors this layout; tests/layout.c prints it so that a test can
 * compare the two. Whoever changes an offset, a size or a width changes REGION_VERSION.
 */
#ifndef TRANCHE_REGION_H
#define TRANCHE_REGION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REGION_VERSION 2u

#define REGION_LIMIT_FILE "limit"
#define REGION_USAGE_FILE "usage"
#define REGION_LIMIT_MAGIC "TRNCLIM" /* with its NUL: 8 bytes */
#define REGION_USAGE_MAGIC "TRNCUSE"

#define REGION_CLAIM_ID_LENGTH 8 /* hex characters, no NUL */
#define REGION_GPU_UUID_SIZE 80  /* NVML's string, padded with NUL */
#define REGION_TAG_SIZE 16

#define REGION_PAGE_SHIFT 16 /* the unit of accounting: 64 KiB */
#define REGION_LEDGER_COUNT 2u
#define REGION_SLOT_COUNT 4096u
#define REGION_SLOT_SIZE 64u
#define REGION_SLOTS_OFFSET 4096u
#define REGION_LIMIT_SIZE 4096u
#define REGION_USAGE_SIZE (REGION_SLOTS_OFFSET + REGION_SLOT_COUNT * REGION_SLOT_SIZE)

/* Widths of the packed words. The sequence number is always in the highest bits. Below it, `op` has a bit that says which
 * of two kinds it is: a change (two's complement), or a move {receiving slot, pages}. */
#define REGION_SEQ_BITS 24
#define REGION_TOTAL_SLOT_BITS 12
#define REGION_TOTAL_PAGES_BITS 28 /* 16 TiB */
#define REGION_OP_DELTA_BITS 39
#define REGION_OP_MOVE_SLOT_BITS 12
#define REGION_OP_MOVE_PAGES_BITS 27
#define REGION_COMMITTED_PAGES_BITS 40
#define REGION_LIFE_KIND_BITS 2

/* What is accounted for. */
enum region_ledger {
    REGION_GPU,   /* memory of the GPU */
    REGION_SPILL, /* managed memory beyond the limit, which lives on the host */
};

/* What a slot is. */
enum region_kind {
    REGION_KIND_NONE,
    REGION_KIND_PROCESS,
    REGION_KIND_SHARE, /* memory that outlives its maker */
    REGION_KIND_ENDED, /* a share that nobody holds any more, and that nobody can get hold of again */
};

/* The file `limit`. */
struct region_limit {
    char magic[8];
    uint32_t version;
    uint32_t size; /* of this file: REGION_LIMIT_SIZE */
    uint8_t claim_id[REGION_CLAIM_ID_LENGTH];
    char gpu_uuid[REGION_GPU_UUID_SIZE];
    _Atomic uint64_t limit_bytes; /* GPU memory, hard; may change while containers run */
    uint64_t context_bytes;       /* what one CUDA context costs on this GPU before its first allocation */
    uint64_t compute_share_permille;
    uint64_t flags;
    _Atomic uint64_t spill_bytes; /* what may be allocated beyond the limit as managed memory that lives on the host */
    uint8_t reserved[REGION_LIMIT_SIZE - 144];
};

/* What a slot holds of one kind of memory. */
struct region_held {
    _Atomic uint64_t op;        /* {seq, delta} or {seq, receiver, pages}: the operation announced */
    _Atomic uint64_t committed; /* {seq, pages}: what the slot holds after operation seq */
};

/* A process or a share in the file `usage`; one cache line. */
struct region_slot {
    struct region_held held[REGION_LEDGER_COUNT];
    _Atomic int32_t pid;                       /* the process as it sees itself, 0 for a share; information only */
    _Atomic int32_t contexts;                  /* living CUDA contexts; information only */
    _Atomic uint64_t tag[REGION_TAG_SIZE / 8]; /* a share's name */
    _Atomic uint64_t life;                     /* {generation, kind} */
};

/* The sum of one kind of memory. */
struct region_sum {
    _Atomic uint64_t total; /* {seq, slot, pages}: the claim's sum and the operation that produced it */
    uint8_t reserved0[56];
    _Atomic uint64_t refused;    /* reservations refused; statistics */
    _Atomic uint64_t peak_pages; /* highest sum ever; statistics */
    uint8_t reserved1[48];
};

/* The file `usage`. Words that different processes write often lie in cache lines of their own. */
struct region_usage {
    char magic[8];
    uint32_t version;
    uint32_t size; /* of this file: REGION_USAGE_SIZE */
    uint8_t claim_id[REGION_CLAIM_ID_LENGTH];
    uint32_t slot_count;
    uint32_t page_shift;
    uint8_t reserved0[32];
    struct region_sum sums[REGION_LEDGER_COUNT];
    _Atomic uint64_t high_water;   /* 1 + the highest slot ever taken */
    _Atomic uint64_t last_reap_ns; /* CLOCK_MONOTONIC of the last scan for dead processes */
    _Atomic uint64_t next_slot;    /* where the next one starts to look for a free slot; only a hint */
    uint8_t reserved1[REGION_SLOTS_OFFSET - 344];
    struct region_slot slots[REGION_SLOT_COUNT];
};

_Static_assert(sizeof(struct region_limit) == REGION_LIMIT_SIZE, "limit file");
_Static_assert(offsetof(struct region_limit, gpu_uuid) == 24, "limit file");
_Static_assert(offsetof(struct region_limit, limit_bytes) == 104, "limit file");
_Static_assert(offsetof(struct region_limit, spill_bytes) == 136, "limit file");
_Static_assert(sizeof(struct region_slot) == REGION_SLOT_SIZE, "slot");
_Static_assert(sizeof(struct region_usage) == REGION_USAGE_SIZE, "usage file");
_Static_assert(offsetof(struct region_usage, slot_count) == 24, "usage file");
_Static_assert(offsetof(struct region_usage, sums) == 64, "usage file");
_Static_assert(sizeof(struct region_sum) == 128, "usage file");
_Static_assert(offsetof(struct region_usage, high_water) == 320, "usage file");
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
    uint64_t said; /* what its slot must say, if we made it */
    bool held;
    bool made; /* by us */
};

/* A socket in whose queue a description is in flight, see region_last.c. -1: there is none. */
struct region_queue {
    int socket;
    uint64_t device, inode; /* of the socket */
};

/* The description of `usage` through which this process holds its shares. */
struct region_holder {
    int descriptor;
    void *mapping; /* keeps the description when the program closes the descriptor */
    struct region_queue queue;
};

/*
 * A region as one process sees it. The protocol is explained in region.c.
 *
 * Who only looks has no slot and maps nothing: it reads the files anew whenever it asks.
 */
struct region {
    const struct region_limit *limit; /* NULL for who only looks, as is `usage` */
    struct region_usage *usage;
    int descriptor;                     /* of `usage`; holds the lock on our slot */
    struct region_queue queue;          /* of that */
    int slot;                           /* ours, or -1: this process only looks */
    uint64_t said[REGION_LEDGER_COUNT]; /* what our slot must say: `committed` */
    _Atomic bool broken;
    struct region_holder holder;
    struct region_hold *holds; /* by slot; NULL before the first share */
    uint64_t device, inode;    /* of `usage` */
    uint64_t context_bytes;    /* what one CUDA context costs on this GPU */
    char gpu_uuid[REGION_GPU_UUID_SIZE];
    char limit_path[320];
    char usage_path[320];
};

enum region_result {
    REGION_OK,
    REGION_FULL,   /* the limit allows no more */
    REGION_BROKEN, /* the files are no longer a region; nothing is granted ever again */
};

/* How many pages hold so many bytes. */
static inline uint64_t region_pages(uint64_t bytes) {
    return (bytes >> REGION_PAGE_SHIFT) + ((bytes & ((UINT64_C(1) << REGION_PAGE_SHIFT) - 1)) != 0);
}

/* Reads the region of claim `id` in `directory`. False, and the reason in `why`, when it is not one that we can use. */
bool region_open(struct region *region, const char *directory, const char *id, char *why, size_t why_size);

/* Maps the region and takes a slot in it, without which a process cannot account for memory. */
bool region_join(struct region *region, char *why, size_t why_size);

/* Gives up the slot and all shares, and unmaps the region. */
void region_close(struct region *region);

/* Account for memory in this process's slot. Calls of one process must not overlap: the caller holds a lock. This is so for
 * all functions below that do not say "any thread". */
enum region_result region_reserve(struct region *region, enum region_ledger ledger, uint64_t pages);
void region_release(struct region *region, enum region_ledger ledger, uint64_t pages);

/* Counts a CUDA context that was made (1) or destroyed (-1), for those who look. */
void region_count_contexts(struct region *region, int change);

/* What is taken from the claim; looks for dead processes first if nobody did within 50 ms, so that asking often costs little.
 * Of a region that is broken, more than any claim allows. Any thread, at any time. */
uint64_t region_used_bytes(struct region *region, enum region_ledger ledger);

/* What the claim allows at this moment. Any thread. */
uint64_t region_limit_bytes(const struct region *region, enum region_ledger ledger);

/* Whether the files still say that they are a region of this version. Any thread. */
bool region_intact(const struct region *region);

/* Gives back what dead processes held. Any thread, at any time. */
void region_reap(struct region *region);

/* Calls `fn` for every living process that has a slot, with what it holds of the GPU's memory; shares are nobody's. Returns
 * 0, or -1 if the region is broken. Any thread, at any time. */
int region_each(struct region *region, void (*fn)(int32_t pid, uint64_t pages, int32_t contexts, void *arg), void *arg);

/*
 * Shares: memory of the GPU that outlives the process that made it, because others have it too. A share is counted as long
 * as any process of the claim holds it. Only its maker changes how much it is, and only as long as it holds it. A process
 * holds a share or not: who holds it already and attaches it is told its slot once more.
 */

/* Makes a share, empty and held by this process. Its slot, or -1 if there is none or the region is broken. */
int region_share_new(struct region *region, const uint8_t tag[REGION_TAG_SIZE]);

enum region_result region_share_reserve(struct region *region, int share, uint64_t pages);
void region_share_release(struct region *region, int share, uint64_t pages);

/* Moves pages from this process's slot into its share, both or neither, so that nobody sees another sum. REGION_FULL if the
 * slot does not hold as many. */
enum region_result region_share_adopt(struct region *region, int share, uint64_t pages);

/* Gives a share that this process holds one more tag, by which it is found as long as this process does not detach what it is
 * returned. The second half of both tags is zero. -1 if there is no room for that. */
int region_share_name(struct region *region, int share, const uint8_t tag[REGION_TAG_SIZE]);

/* Takes hold of the share with this tag. Its slot, -1 if there is none, or REGION_SHARE_UNKNOWN if it cannot be looked for: the
 * process has no descriptor or memory left for that, or the region is broken. */
#define REGION_SHARE_UNKNOWN (-2)
int region_share_attach(struct region *region, const uint8_t tag[REGION_TAG_SIZE]);

/* Lets go of a share. When nobody else holds it, what it was is given back at once. */
void region_share_detach(struct region *region, int share);

#endif
