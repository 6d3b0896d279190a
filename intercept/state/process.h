/*
 * What this process holds, all of it in memory that the kernel wipes when the process forks: a child starts like a fresh
 * process, with slots of its own once it needs them, and cannot touch what belongs to its parent.
 *
 * Each part has a lock of its own. They are taken in this order, and never the other way round: a pool's, the streams' two,
 * objects', an allocation shard's, contexts', a region's. None is held while the driver is called, but a pool's, a device's and
 * that for asking the streams, and before all of these, in this order: a device's lifecycle, a context's gate, those of graphs,
 * libraries, extras. What is opened or imported comes before objects.
 */
#ifndef TRANCHE_PROCESS_H
#define TRANCHE_PROCESS_H

#include "driver/cuda_api.h"
#include "region/claims.h"
#include "state/table.h"
#include "system/gate.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define DEVICES_MAX 64
#define HINT_BITS 3
#define HINTS (1u << HINT_BITS)
#define GATE_BITS 6
#define GATES (1u << GATE_BITS)
#define SHARD_BITS 4
#define SHARDS (1u << SHARD_BITS)

/* The contexts that were asked for lately, for those who only want to know their GPU and so need no lock. Written under the
 * contexts' lock; `version` is odd meanwhile, and a reader that sees it odd or changed has read nothing. */
struct hint {
    _Atomic uint32_t version;
    _Atomic int gpu;
    _Atomic uint32_t serial;
    _Atomic uintptr_t context;
};

struct contexts {
    struct lock lock;
    struct table table; /* by handle */
    uint32_t last_serial;
    struct hint hints[HINTS];
    struct gate gates[GATES]; /* by handle; see contexts_work */
    struct lock lifecycles[DEVICES_MAX];
    CUcontext primaries[DEVICES_MAX];
    CUcontext former_primaries[DEVICES_MAX]; /* those that ended */
};

/* Linear memory. Threads that allocate at once seldom meet in one shard. */
struct shard {
    _Alignas(64) struct lock lock;
    struct table allocations; /* by address */
    struct table blocks;      /* by address >> BLOCK_SHIFT */
    struct table leaving;     /* blocks whose place another one has taken, by number; see blocks.h */
    struct table elsewhere;   /* what memory is charged with on further GPUs; see elsewhere.h */
    uint64_t last_number;     /* of blocks and of further charges */
};

/* Everything else that has a handle, by kind; see objects.h. */
enum kind {
    KIND_ARRAY,
    KIND_MIPMAP,
    KIND_MODULE,
    KIND_LIBRARY,
    KIND_LIBRARY_IN_CONTEXT,
    KIND_LIBRARY_KERNELS,
    KIND_HIDDEN,
    KIND_HIDDEN_LIBRARY,
    KIND_CONTEXT_LIMIT,
    KIND_GREEN_CONTEXT,
    KIND_PHYSICAL,
    KIND_PHYSICAL_MEMORY,
    KIND_PHYSICAL_EXPORT,
    KIND_MAPPING,
    KIND_ARRAY_MAPPING,
    KIND_BINDING,
    KIND_POOL,
    KIND_POOL_MEMORY,
    KIND_GRAPH_EXEC,
    KIND_IPC,
    KIND_IPC_BESIDE,
    KIND_IPC_MEMORY,
    KIND_EXTERNAL,
    KIND_EXPORTED,
    KIND_EXTERNAL_MEMORY,
    KIND_BORROWED,
    KINDS
};

struct objects {
    struct lock lock;
    struct table tables[KINDS];
    size_t looked_at[KINDS];      /* see objects_remove_one_of */
    _Atomic size_t counts[KINDS]; /* for those who only want to know whether there is any */
};

struct pool;

struct pools {
    struct lock lock;
    _Atomic(struct pool *) first; /* all of them; never taken out again */
};

/* Their instances are destroyed while nobody is in the first, and made in the second; see cuda_graph.c. */
struct graphs {
    struct gate launches, instantiations;
};

/* See streams.h. */
struct streams {
    struct lock lock;
    struct lock asking;    /* held while the driver is asked for them */
    struct freed_in *each; /* in places that stay theirs: whoever goes through them misses none */
    size_t count, room;
    uint64_t frees;
    _Atomic size_t waiting; /* places with memory that is no pool's */
    size_t swept;           /* the place after the one that was looked at last; under `asking`, as the next */
    bool unsynchronized;    /* something was found to be done, and nothing was synchronised since */
    bool incomplete;        /* there was no memory for one */
};

/* Numbers of what is exported are 1 to this: the signals that F_SETSIG takes. */
#define TAG_NUMBERS 64

/* See exports.h. */
struct exported {
    struct lock lock;
    struct witness {
        int descriptor;
        struct {
            uint64_t device, inode; /* of the file that it must be of; 0 if there is none yet */
        } file;
    } witness;
    bool unseen;                      /* something was exported that the witness cannot see */
    uint64_t numbers;                 /* those in use, by bit */
    struct charge names[TAG_NUMBERS]; /* by number - 1, of what another process has shared: its name here */
    struct lock sharing;
};

struct process {
    struct lock opening;
    _Atomic bool open;
    struct claims claims;
    struct {
        _Alignas(64) struct lock lock;
        struct table shares;    /* that this process holds, by their index + 1: how many times */
        _Atomic uint32_t takes; /* from the claim so far; it wraps */
    } regions[CLAIMS_MAX];
    _Atomic int gpus[DEVICES_MAX]; /* by device: its GPU + 1, or NO_CLAIM; 0 is unknown */
    struct contexts contexts;
    struct shard shards[SHARDS];
    _Atomic uint32_t on_host; /* allocations that are charged to the host's memory */
    struct objects objects;
    struct pools pools;
    struct graphs graphs;
    struct streams streams;
    struct lock extras;    /* see context_extra.c */
    struct lock libraries; /* one is loaded or unloaded at a time, while no context comes or goes; see cuda_module.c */
    struct exported exported;
    struct lock opened;         /* see cuda_ipc.c */
    struct lock importing;      /* see physical.c */
    _Atomic uint64_t externals; /* imported so far, see borrowed.c */
    _Atomic uint64_t physicals; /* made or imported so far, see physical.c */
};

/* This process's memory; NULL, and a line on stderr, if there cannot be any. Regions need not be open. */
struct process *process_memory(void);

/* The same with the regions open, for whoever has asked the driver something that succeeded. Says on stderr what is wrong
 * when they cannot be opened. */
CUresult process_open(struct process **process);

/* Whether this process has opened its regions; if not, it holds nothing. NULL then. */
struct process *process_if_open(void);

/* Whether there may be any object of a kind (memory/objects.h has the others). Costs one load. */
static inline bool process_has(const struct process *process, enum kind kind) {
    return process != NULL && atomic_load_explicit(&process->objects.counts[kind], memory_order_relaxed) != 0;
}

#endif
