/*
 * The state file, mapped by every process on the simulated GPUs.
 *
 * Three sums must change together whenever a process takes or gives back memory: what the GPU has given out, what the
 * process's group holds (and the most it ever held), and what the process itself holds. No lock does it, since whoever
 * holds one may be killed or stopped. Instead:
 *
 *   1. The process announces the change in its slot: `op` = {sequence number, group, delta}.
 *   2. It swaps the GPU's `total` from the word it read to {its slot, its sequence number, new sum}. This is the moment
 *      at which the change happens: the check against the GPU's size and the change are one compare-and-swap.
 *   3. Anybody who finds a word in `total` first completes what it names: the group's sum, the group's peak and the
 *      slot's `committed`, in this order, each by a compare-and-swap that can succeed once per change. Only then may
 *      the word be replaced. So at any time at most one change per GPU is incomplete, and whoever comes next completes
 *      it.
 *
 * The group's word names the change that it contains last, just as `total` does; that tells whether a change is in it.
 * A slow helper does no harm: before each swap it makes sure that `total` still is the word it started from, and the
 * value that it compares with was read before that.
 *
 * A process owns a slot while it holds locks on two bytes that stand for it, on two file descriptions of its own; the
 * kernel drops them when the process ends. Two, because the kernel lets go of a dying process's files one by one, the
 * highest descriptor first on the kernels of today, which nothing promises: one lies low, the other as high as can be,
 * and whichever goes first tells of the death. So a death shows here no later than in any file whose descriptor lies
 * between. What a dead slot holds is given back by whoever notices, by an announced change like any other.
 *
 * An object that processes share (shared_objects.h) has a slot too. Its locks are read locks, so that any number of
 * processes can hold it: each on the two descriptions that it has anyway, and a descriptor exported of the object on
 * a description of its own. Whoever wants to hold an object by its name takes the locks first and then counts itself in
 * `attach`; whoever wants to reap it reads `attach`, looks for locks, and marks `attach` as dying if it has not changed
 * since. So either the one finds the mark or the other the locks.
 *
 * A change may also move memory from a process's slot to an object's: the object's `from` and `from_sequence` name the
 * process's slot and the sequence number of its `committed`, which is changed in the same way, before the object's own.
 * The GPU's and the group's sums stay as they are.
 */
#ifndef SIMGPU_STATE_LAYOUT_H
#define SIMGPU_STATE_LAYOUT_H

#include <stdatomic.h>

#include "health.h"
#include "shared_objects.h"
#include "state.h"

#define STATE_MAGIC "SIMGPUS"
#define STATE_VERSION 3

/* Sums count units of 64 KiB. */
#define UNIT_SHIFT 16

/* A word of `total` and of a group's sum: {slot:12, sequence:27, units:25}. 25 bits of units are 2 TiB. */
#define SUM_UNITS(w) ((w)&0x1ffffff)
#define SUM_SEQUENCE(w) ((w) >> 25 & 0x7ffffff)
#define SUM_SLOT(w) ((w) >> 52)
#define SUM(slot, sequence, units) ((uint64_t)(slot) << 52 | (uint64_t)(sequence) << 25 | (uint64_t)(units))

/* `op`: {sequence:27, group:10, delta:27, signed}. */
#define OP_SEQUENCE(o) ((o) >> 37)
#define OP_GROUP(o) ((o) >> 27 & 0x3ff)
#define OP_DELTA(o) ((int64_t)((o) << 37) >> 37)
#define OP(sequence, group, delta)                                                                                     \
    ((uint64_t)(sequence) << 37 | (uint64_t)(group) << 27 | ((uint64_t)(int64_t)(delta)&0x7ffffff))

/* `committed`: {sequence:27, units:37}. */
#define COMMITTED_SEQUENCE(c) ((c) >> 37)
#define COMMITTED_UNITS(c) ((c)&0x1fffffffff)
#define COMMITTED(sequence, units) ((uint64_t)(sequence) << 37 | (uint64_t)(units))

/* Locks lie far beyond the end of the file, two bytes for each slot. */
#define LOCK_BYTE(slot, which) (((off_t)1 << 40) + 2 * (off_t)(slot) + (which))

/* `from`: {sequence number of the op that it belongs to:27, 1 + slot:13}. */
#define FROM(sequence, slot) ((uint64_t)(sequence) << 13 | ((uint64_t)(slot) + 1))
#define FROM_SEQUENCE(f) ((f) >> 13)
#define FROM_SLOT(f) ((unsigned)((f)&0x1fff) - 1)

/* `attach`: {generation:32, dying:1, how often it was attached to:31}. */
#define ATTACH(generation) ((uint64_t)(generation) << 32)
#define ATTACH_GENERATION(a) ((a) >> 32)
#define ATTACH_DYING ((uint64_t)1 << 31)

/* The contents of objects lie behind the state, in a hole of the file for each slot. */
#define CONTENT_START ((off_t)1 << 28)
#define CONTENT_OFFSET(slot) (CONTENT_START + (off_t)(slot) * (off_t)SIM_SHARED_CONTENT_BYTES)

#define BUCKETS 32
#define BUCKET_NS 125000000ull
#define EVENTS 256

typedef _Atomic uint64_t word;

struct state_gpu {
    word total;
    char pad0[56];
    word until_ns;   /* GPU time is booked up to here */
    word busy_ns;    /* the lengths of all turns booked so far */
    word accounting; /* NVML's accounting mode is on */
    char pad1[40];
    word lost;             /* it fell off the bus */
    word failing_allocs;   /* {count:32, CUDA result:32} */
    word buckets[BUCKETS]; /* {number of the 125 ms since boot:32, busy ns in it:32} */
    char uuid[48];
};

struct state_event {
    word serial;
    word gpu;
    word xid;
    word time_ns;
    word type;
    word instance; /* {GPU instance:32, compute instance:32} */
};

struct state_group {
    word hash; /* of the key; 0 is free */
    char key[SIM_GROUP_KEY_SIZE];
    char pad[56];
    struct {
        word sum;
        word peak; /* units */
        word launches_of_dead;
        char pad[40];
    } gpus[SIM_MAX_GPUS];
};

struct state_slot {
    word owner; /* {generation:32, pid:32} of the process that has it or made the object, pid 0: nobody */
    word pid_namespace;
    word start_ns;
    word group;
    word kind; /* 0: a process; else an object, enum sim_shared_kind */
    word attach;
    word gpu; /* of an object, in the topology */
    word size;
    word words[SIM_SHARED_WORDS];
    struct {
        word op;
        word committed;
        word context_bytes;
        word allocations;
        word launches;
        word busy_ns;
        word peak; /* units, the most that it ever held */
        word from;
        word from_sequence;
    } gpus[SIM_MAX_GPUS];
};

struct state {
    char magic[8];
    uint32_t version;
    uint32_t size;
    uint32_t gpu_count;
    uint32_t pad0;
    char pad1[40];
    word slots_used; /* one above the highest slot ever taken */
    word groups_used;
    word last_reap_ns;
    word nvml_absent;
    word failing_allocs; /* of any GPU */
    word event_serial;
    _Atomic uint32_t event_futex;
    char pad2[4032 - 64 - 6 * 8 - 4];
    struct state_gpu gpus[SIM_MAX_GPUS];
    struct state_event events[EVENTS];
    struct state_group groups[SIM_MAX_GROUPS];
    struct state_slot slots[SIM_MAX_PROCESSES];
    struct state_health health;
    struct state_health_gpu gpu_health[SIM_MAX_GPUS];
};

#endif
