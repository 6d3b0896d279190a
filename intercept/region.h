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

#define REGION_VERSION 1u

#define REGION_LIMIT_FILE "limit"
#define REGION_USAGE_FILE "usage"
#define REGION_LIMIT_MAGIC "TRNCLIM" /* with its NUL: 8 bytes */
#define REGION_USAGE_MAGIC "TRNCUSE"

#define REGION_CLAIM_ID_LENGTH 8 /* hex characters, no NUL */
#define REGION_GPU_UUID_SIZE 80  /* NVML's string, padded with NUL */

#define REGION_PAGE_SHIFT 12 /* the unit of accounting: 4 KiB */
#define REGION_SLOT_COUNT 1024u
#define REGION_SLOT_SIZE 64u
#define REGION_SLOTS_OFFSET 4096u
#define REGION_LIMIT_SIZE 4096u
#define REGION_USAGE_SIZE (REGION_SLOTS_OFFSET + REGION_SLOT_COUNT * REGION_SLOT_SIZE)

/* Widths of the packed words. The sequence number is always in the highest bits. */
#define REGION_SEQ_BITS 24
#define REGION_TOTAL_SLOT_BITS 10
#define REGION_TOTAL_PAGES_BITS 30 /* 4 TiB */
#define REGION_OP_DELTA_BITS 40    /* two's complement */
#define REGION_COMMITTED_PAGES_BITS 40

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
    uint8_t reserved[REGION_LIMIT_SIZE - 136];
};

/* One process's share of the file `usage`; one cache line. */
struct region_slot {
    _Atomic uint64_t op;        /* {seq, delta}: the operation announced */
    _Atomic uint64_t committed; /* {seq, pages}: what the process holds after operation seq */
    _Atomic int32_t pid;        /* the process as it sees itself; information only */
    _Atomic int32_t contexts;   /* living CUDA contexts; information only */
    uint8_t reserved[40];
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
    _Atomic uint64_t total; /* {seq, slot, pages}: the claim's sum and the operation that produced it */
    uint8_t reserved1[56];
    _Atomic uint64_t high_water;   /* 1 + the highest slot ever taken */
    _Atomic uint64_t last_reap_ns; /* CLOCK_MONOTONIC of the last scan for dead processes */
    _Atomic uint64_t next_slot;    /* where the next process starts to look for a free slot; only a hint */
    uint8_t reserved2[40];
    _Atomic uint64_t refused;    /* reservations refused; statistics */
    _Atomic uint64_t peak_pages; /* highest sum ever; statistics */
    uint8_t reserved3[REGION_SLOTS_OFFSET - 208];
    struct region_slot slots[REGION_SLOT_COUNT];
};

_Static_assert(sizeof(struct region_limit) == REGION_LIMIT_SIZE, "limit file");
_Static_assert(offsetof(struct region_limit, gpu_uuid) == 24, "limit file");
_Static_assert(offsetof(struct region_limit, limit_bytes) == 104, "limit file");
_Static_assert(offsetof(struct region_limit, flags) == 128, "limit file");
_Static_assert(sizeof(struct region_slot) == REGION_SLOT_SIZE, "slot");
_Static_assert(sizeof(struct region_usage) == REGION_USAGE_SIZE, "usage file");
_Static_assert(offsetof(struct region_usage, slot_count) == 24, "usage file");
_Static_assert(offsetof(struct region_usage, total) == 64, "usage file");
_Static_assert(offsetof(struct region_usage, high_water) == 128, "usage file");
_Static_assert(offsetof(struct region_usage, refused) == 192, "usage file");
_Static_assert(offsetof(struct region_usage, slots) == REGION_SLOTS_OFFSET, "usage file");
_Static_assert(REGION_SEQ_BITS + REGION_TOTAL_SLOT_BITS + REGION_TOTAL_PAGES_BITS == 64, "total");
_Static_assert(REGION_SEQ_BITS + REGION_OP_DELTA_BITS == 64, "op");
_Static_assert(REGION_SEQ_BITS + REGION_COMMITTED_PAGES_BITS == 64, "committed");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics must be lock-free: they are shared between processes");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a region is little-endian");

/* A region as one process sees it. The protocol is explained in region.c. */
struct region {
    const struct region_limit *limit;
    struct region_usage *usage;
    int descriptor; /* of `usage`; holds the lock on our slot */
    int slot;       /* ours, or -1: this process only looks */
    char gpu_uuid[REGION_GPU_UUID_SIZE];
    char usage_path[320];
};

enum region_result {
    REGION_OK,
    REGION_FULL,   /* the limit allows no more */
    REGION_BROKEN, /* the file is no longer a region */
};

/* Maps the region of claim `id` in `directory`. False, and the reason in `why`, when it is not one that we can use. */
bool region_open(struct region *region, const char *directory, const char *id, char *why, size_t why_size);

/* Takes a slot, without which a process cannot account for memory. */
bool region_join(struct region *region, char *why, size_t why_size);

/* Unmaps the region and gives up the slot. */
void region_close(struct region *region);

/* Account for memory in this process's slot. Calls of one process must not overlap: the caller holds a lock. */
enum region_result region_reserve(struct region *region, uint64_t pages);
void region_release(struct region *region, uint64_t pages);

/* What is taken from the claim; looks for dead processes first if nobody did within 50 ms, so that asking often costs little.
 * Any thread, at any time. */
uint64_t region_used_bytes(struct region *region);

/* What the claim allows at this moment. */
uint64_t region_limit_bytes(const struct region *region);

/* Whether the mapped files still say that they are a region of this version. */
bool region_intact(const struct region *region);

/* Gives back what dead processes held. Any thread, at any time. */
void region_reap(struct region *region);

#endif
