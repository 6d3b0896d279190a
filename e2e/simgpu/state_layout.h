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
 *
 * Memory of a whole GPU may be charged to a cgroup that has a limit of it (memory_limits.h). `charge` = {sequence number,
 * cgroup, part, part of the source, whether the change moves memory} then announces more of the change: the cgroup's
 * `used` and its peak change as a group's do, and so does the part of the slot that tells how much of its memory is
 * charged to this cgroup; the number in a part is that of the slot's change which it contains last. As `used` changes
 * only with `total`, the check against the limit is good if the swap of `total` succeeds. Whoever lowers a limit swaps
 * `total` for a word with the same sum and no change (sequence number 0), so that a check against the old limit comes
 * to nothing. A change that is not charged leaves `charge` alone if that has another sequence number.
 *
 * Sums are kept by entry: a whole GPU has eight, the first its own, the others those of its GPU instances. Which instances
 * there are is changed under a lock of the file only, and read without: an instance is there as long as its `live` word
 * is not 0, and its other words do not change meanwhile. To destroy a compute instance is to mark it as closing first
 * and to look for memory then; who takes memory of it looks for the mark afterwards, and where it finds one, waits for the
 * lock to know how it went.
 */
#ifndef SIMGPU_STATE_LAYOUT_H
#define SIMGPU_STATE_LAYOUT_H

#include <stdatomic.h>

#include "health.h"
#include "mig/mig.h"
#include "shared_objects.h"
#include "state.h"

#define STATE_MAGIC "SIMGPUS"
#define STATE_VERSION 8

/* Sums count units of 64 KiB. */
#define UNIT_SHIFT 16

/* A word of `total` and of a group's sum: {slot:12, sequence:27, units:25}. 25 bits of units are 2 TiB. */
#define SUM_UNITS(w) ((w)&0x1ffffff)
#define SUM_SEQUENCE(w) ((w) >> 25 & 0x7ffffff)
#define SUM_SLOT(w) ((w) >> 52)
#define SUM(slot, sequence, units) ((uint64_t)(slot) << 52 | (uint64_t)(sequence) << 25 | (uint64_t)(units))

/* `op`: {sequence:27, group:13, delta:24, signed}. 24 bits of units are 512 GiB each way, which is more than a GPU has. */
#define OP_SEQUENCE(o) ((o) >> 37)
#define OP_GROUP(o) ((o) >> 24 & 0x1fff)
#define OP_DELTA(o) ((int64_t)((o) << 40) >> 40)
#define OP(sequence, group, delta)                                                                                     \
    ((uint64_t)(sequence) << 37 | (uint64_t)(group) << 24 | ((uint64_t)(int64_t)(delta)&0xffffff))
_Static_assert(SIM_MAX_GROUPS <= 0x1fff + 1, "an op has no room for so many groups");

/* `committed`: {sequence:27, units:37}. */
#define COMMITTED_SEQUENCE(c) ((c) >> 37)
#define COMMITTED_UNITS(c) ((c)&0x1fffffffff)
#define COMMITTED(sequence, units) ((uint64_t)(sequence) << 37 | (uint64_t)(units))

/* `charge`: {sequence:27, moves:1, part of the source:4, part:4, 1 + place in `limits`, 0: none:12}. */
#define CHARGE(sequence, limit, part) ((uint64_t)(sequence) << 32 | (uint64_t)(part) << 12 | (uint64_t)(limit))
#define CHARGE_MOVES ((uint64_t)1 << 20)
#define CHARGE_FROM(part) ((uint64_t)(part) << 16)
#define CHARGE_SEQUENCE(c) ((c) >> 32)
#define CHARGE_LIMIT(c) ((unsigned)((c)&0xfff))
#define CHARGE_PART(c) ((unsigned)((c) >> 12 & 0xf))
#define CHARGE_SOURCE_PART(c) ((unsigned)((c) >> 16 & 0xf))

/* A part is a word as `total`, with 1 + place in `limits` for the slot. So many cgroups can one process's memory be
 * charged to. */
#define PART_LIMIT(p) ((unsigned)SUM_SLOT(p))
#define PARTS 8

/* Cgroups that have limits. */
#define LIMITS 2047

/* Locks lie far beyond the end of the file, two bytes for each slot. */
#define LOCK_BYTE(slot, which) (((off_t)1 << 40) + 2 * (off_t)(slot) + (which))

/* `from`: {sequence number of the op that it belongs to:27, 1 + slot:13}. */
#define FROM(sequence, slot) ((uint64_t)(sequence) << 13 | ((uint64_t)(slot) + 1))
#define FROM_SLOT(f) ((unsigned)((f)&0x1fff) - 1)

/* `attach`: {generation:32, dying:1, how often it was attached to:31}. */
#define ATTACH(generation) ((uint64_t)(generation) << 32)
#define ATTACH_GENERATION(a) ((a) >> 32)
#define ATTACH_DYING ((uint64_t)1 << 31)

/* The contents of objects lie behind the state, in a hole of the file for each slot. */
#define CONTENT_START ((off_t)1 << 28)
#define CONTENT_OFFSET(slot) (CONTENT_START + (off_t)(slot) * (off_t)SIM_SHARED_CONTENT_BYTES)

/* Locks beside those of slots: around changes of instances, of who manages GPUs, and of who has contexts on a GPU. */
#define MIG_LOCK_BYTE LOCK_BYTE(SIM_MAX_PROCESSES, 0)
#define MANAGER_LOCK_BYTE LOCK_BYTE(SIM_MAX_PROCESSES, 1)
#define LIMITS_LOCK_BYTE LOCK_BYTE(SIM_MAX_PROCESSES + 1 + SIM_MAX_GPUS, 0)
#define USER_LOCK_BYTE(section) LOCK_BYTE(SIM_MAX_PROCESSES + 1 + (section), 0)

/* Entries of a whole GPU, and which of them is whose. */
#define ENTRIES (1 + SIM_MIG_SEATS)
#define WHOLE_ENTRY(section) ((section)*ENTRIES)
#define INSTANCE_ENTRY(section, seat) ((section)*ENTRIES + 1 + (int)(seat))

/* `live`: {generation:63, closing:1}. */
#define LIVE(generation) ((uint64_t)(generation) << 1)
#define LIVE_GENERATION(l) ((l) >> 1)
#define LIVE_CLOSING ((uint64_t)1)

/* `mps` of a process: 0 for none, this of a server, and of a client the name of its server (sim_shared_process). */
#define MPS_ROLE_SERVER ((uint64_t)1)

#define MIG_EVENTS 1024

/* `booked`: {end, rounded up to units of 32 ns:52, slot:12}. */
#define BOOKED_SHIFT 5
#define BOOKED(end_ns, slot) (((end_ns) + (1u << BOOKED_SHIFT) - 1) >> BOOKED_SHIFT << 12 | (uint64_t)(slot))
#define BOOKED_END_NS(b) ((b) >> 12 << BOOKED_SHIFT)
#define BOOKED_SLOT(b) ((unsigned)((b)&0xfff))
_Static_assert(SIM_MAX_PROCESSES <= 0xfff + 1, "a booking has no room for so many slots");

#define BUCKETS 32
#define BUCKET_NS 125000000ull
#define EVENTS 256

typedef _Atomic uint64_t word;

struct state_gpu {
    word total;
    char pad0[56];
    word booked;     /* up to when GPU time is booked, and by whom: BOOKED; 0: never yet */
    word busy_ns;    /* the lengths of all turns booked so far */
    word accounting; /* NVML's accounting mode is on */
    word switches;   /* how often another process than before had its turn */
    char pad1[32];
    word lost;           /* it fell off the bus */
    word failing_allocs; /* {count:32, CUDA result:32} */
    word failing_kernels;
    word buckets[BUCKETS]; /* {number of the 125 ms since boot:32, busy ns in it:32} */
};

/* A GPU instance. `start` and `size` are slots of memory. */
struct state_gi {
    word live;
    word id;
    word profile; /* its place in the model's table */
    word start, size;
    word memory_bytes;
    word section; /* 1 + that of the topology which describes it, 0: made later */
    word created_ns;
};

/* A compute instance, which is a MIG device. `start` and `size` are slices of the GPU instance. */
struct state_ci {
    word live;
    word id;
    word gi; /* seat */
    word gi_generation;
    word start, size;
    word section;
    word created_ns;
};

struct state_mig {
    word mode, pending;
    word binding; /* changes when the GPU is bound to the driver anew */
    word pad[5];
    struct state_gi gi[SIM_MIG_SEATS];
    struct state_ci ci[SIM_MIG_SEATS];
};

struct state_mig_event {
    word serial;
    word what; /* enum sim_mig_what */
    word section;
    word gi, ci; /* IDs */
    word profile;
    word start, size;
    word time_ns;
    word pid, pid_namespace;
    word peak_bytes;
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
        word busy_ns;    /* of the dead too */
        word overlap_ns; /* see struct sim_group_info */
        char pad[24];
    } gpus[SIM_MAX_INDICES];
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
    word opened;   /* bit for each section: whole GPUs that the process has opened */
    word instance; /* generation of the compute instance that the process is bound to, 0: none */
    word mps;      /* what the process is to MPS */
    word graphics; /* enum sim_graphics */
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
        word charge;
    } gpus[SIM_MAX_INDICES];
    word parts[SIM_MAX_GPUS][PARTS]; /* of whole GPUs */
};

/* The limits of a cgroup, whose ID is in `limit_ids`. */
struct state_limit {
    char path[SIM_CGROUP_PATH_SIZE]; /* as it was named */
    struct {
        word present;
        word soft, hard; /* bytes */
        word used;       /* a word as a group's sum */
        word peak;       /* units */
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
    uint32_t pad2;
    word generation;          /* of the newest instance */
    word mig_serial;          /* of the newest event of instances */
    word mig_delay_ms;        /* how long making and destroying take */
    word mig_fault[MIG_ACTS]; /* {count:32, NVML result:32} */
    char uuid[SIM_MAX_GPUS][48];
    struct state_mig mig[SIM_MAX_GPUS];
    struct state_mig_event mig_events[MIG_EVENTS];
    struct state_gpu gpus[SIM_MAX_INDICES];
    struct state_event events[EVENTS];
    struct state_group groups[SIM_MAX_GROUPS];
    struct state_slot slots[SIM_MAX_PROCESSES];
    struct state_health health;
    struct state_health_gpu gpu_health[SIM_MAX_GPUS];
    word limits_active; /* some cgroup has a limit */
    word limits_used;   /* one above the highest place ever taken */
    word limits_bumps;
    word limit_ids[LIMITS];
    struct state_limit limits[LIMITS];
};

#endif
