/*
 * The state of this process: all that it holds. It lies in memory that the kernel wipes on fork: a child starts like a
 * new process, takes slots of its own when it needs them, and cannot change what belongs to its parent.
 *
 * Each part has its own lock. Locks are taken in this order, never in reverse:
 *
 *   1. a device's lifecycle, the gate of creations, a context's gate, the gates of graphs, of unmapping and of making,
 *      borrowing, libraries, extras, captures, a reserve
 *   2. the graphs', a pool's, the streams' two (`querying`, then `lock`)
 *   3. `opened` or `importing`, `exporting`, objects', an allocation shard's, contexts', a region's
 *
 * The driver is called only under those of the first group, a pool's lock and the streams' `querying`. While it ends a
 * context or unloads a library, it may call back into the program: the same thread may take a lifecycle, borrowing and the
 * libraries again, and enter a gate that it has closed. Graphs are launched under no lock.
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
#define GATE_BITS 6
#define SHARD_BITS 4
#define SHARDS (1u << SHARD_BITS)

/* A cache entry of a recently used context, which is read without a lock. Written under the contexts' lock; `version`
 * is odd meanwhile, and a reader that sees it odd or changed discards what it read (a seqlock). */
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
    struct hint hints[1u << HINT_BITS];
    struct gate gates[1u << GATE_BITS]; /* by hash of the handle; see contexts_enter */
    struct gate creating;               /* calls that create explicit contexts are in it; closed to adopt one */
    struct reentrant_lock lifecycles[DEVICES_MAX];
    CUcontext primaries[DEVICES_MAX];
    CUcontext former_primaries[DEVICES_MAX]; /* the last that ended, by device */
    bool assumed[DEVICES_MAX];               /* the primary context's handle is a guess; see context/work.h */
    _Atomic bool lost;                       /* a call failed for want of its context */
};

/* A part of the linear memory, by hash of the address, so that threads that allocate at once rarely wait for each
 * other. */
struct shard {
    _Alignas(64) struct lock lock;
    struct table allocations; /* by address */
    struct table blocks;      /* by address >> BLOCK_SHIFT */
    struct table leaving;     /* blocks that another block has replaced, by number; see memory/blocks.h */
    struct table further;     /* charges on further GPUs, by number; see memory/further.h */
    uint64_t last_number;     /* the last number of a block, or of further charges */
};

/* See memory/reserve.h. */
struct reserve {
    struct lock lock;       /* held by the call that it covers */
    _Atomic uint64_t state; /* how many blocks there are, and above them the place; none while it covers a call */
};

/* Kinds of objects: everything else that has a handle. See memory/objects.h. */
enum kind {
    KIND_ARRAY,              /* arrays, by handle */
    KIND_MIPMAP,             /* mipmapped arrays, by handle */
    KIND_MODULE,             /* modules, by handle; `with`: bytes of code, or the handle of the module's library */
    KIND_LIBRARY,            /* libraries, by handle; `with`: bytes of variables */
    KIND_LIBRARY_IN_CONTEXT, /* the charge of a library in a context */
    KIND_LIBRARY_KERNELS,    /* by library; `with`: local memory that its kernels need, in bytes per thread */
    KIND_UNREAD,             /* modules and libraries, by handle; see context/variables.h, as for the next */
    KIND_VARIABLE,
    KIND_CONTEXT_EXTRA, /* what a context takes beyond its first cost; see context/extra.c */
    KIND_GREEN_CONTEXT, /* green contexts, by handle; `with`: the device */
    KIND_PHYSICAL,      /* see memory/physical.c, as for the next */
    KIND_PHYSICAL_MEMORY,
    KIND_MAPPING,       /* mappings of physical memory, by address */
    KIND_ARRAY_MAPPING, /* physical memory that is mapped into a part of an array */
    KIND_BINDING,       /* physical memory that is bound to a part of a multicast object */
    KIND_POOL,          /* pools, by handle, that are imported or of host memory; memory/pools.c has the others */
    KIND_POOL_MEMORY,   /* allocations from pools, by address; `with`: the pool */
    KIND_GRAPH_EXEC,    /* instances of graphs; see cuda/graph.c */
    KIND_IPC_MEMORY,    /* see cuda/ipc.c */
    KIND_EXTERNAL,      /* see memory/borrowed.c, as for KIND_EXTERNAL_MEMORY and KIND_BORROWED */
    KIND_EXTERNAL_MEMORY,
    KIND_BORROWED,
    KINDS
};

struct objects {
    struct lock lock;
    struct table tables[KINDS];
    size_t looked_at[KINDS];      /* where the last search for one of several stopped */
    _Atomic size_t counts[KINDS]; /* entries, read without the lock; see process_has */
};

struct pool;

struct pools {
    struct lock lock;
    _Atomic(struct pool *) first; /* the list of all pools; never shortened */
};

struct instance;

/* The gate is closed while an instance of a graph is made: no graph ends or is reordered meanwhile; see cuda/graph.c. */
struct graphs {
    struct gate instantiating;
    _Atomic(struct instance *) spare; /* an instance that is free */
    struct lock lock;                 /* the references of instances */
};

/* See memory/streams.h. */
struct streams {
    struct lock lock;
    struct lock querying;  /* held while the driver is queried about streams */
    struct freed_in *each; /* an entry keeps its index, so a loop over all misses none */
    size_t count, room;
    uint64_t frees;
    _Atomic size_t waiting;  /* entries with memory that is not a pool's */
    size_t swept;            /* the index after the last one queried; under `querying`, as is the next */
    bool unsynchronized;     /* a free was found done, and nothing was synchronised since */
    _Atomic bool incomplete; /* an entry could not be recorded for want of memory */
};

struct process {
    struct lock opening;
    _Atomic bool open;
    struct reentrant_lock starting; /* see state/visible.c */
    _Atomic bool started;
    struct claims claims;
    struct {
        _Alignas(64) struct lock lock;
        struct table shares;    /* shares that this process holds, by index + 1, with the number of holders */
        _Atomic uint32_t takes; /* number of times that pages were taken; wraps */
    } regions[CLAIMS_MAX];
    _Atomic int gpus[DEVICES_MAX]; /* by device: GPU + 1, NO_CLAIM, or 0 if unknown */
    struct contexts contexts;
    struct shard shards[SHARDS];
    struct reserve reserves[CLAIMS_MAX]; /* by GPU */
    _Atomic uint32_t on_host;            /* number of allocations that lie in host memory */
    struct objects objects;
    struct pools pools;
    struct graphs graphs;
    struct lock captures; /* no capture of a stream ends under it; see cuda/pool.c */
    struct streams streams;
    struct lock extras;              /* see context/extra.h */
    struct reentrant_lock libraries; /* see context/libraries.h */
    struct lock opened;              /* see cuda/ipc.c */
    struct lock importing;           /* see memory/physical.c, as for the next */
    struct lock exporting;
    struct gate unmapping; /* calls that make, unmap or release physical memory; see cuda/vmm.c */
    struct gate making;    /* calls that make arrays and modules; closed while an array or an unknown module ends */
    struct reentrant_lock borrowing; /* see memory/borrowed.h */
    _Atomic uint64_t externals;      /* the last number, see memory/borrowed.c */
    _Atomic uint64_t physicals;      /* the last number, see memory/physical.c */
};

/* The state, whether or not its regions are open. NULL, with a line on stderr, if the kernel gives no such memory. */
struct process *process_memory(void);

/* The same with the regions open; opens them if need be. CUDA_ERROR_SYSTEM_NOT_READY, with a line on stderr, if they
 * cannot be opened. Called after a driver's call succeeded, so that the driver's errors come first. */
CUresult process_open(struct process **process);

/* Opens the claims as far as the library needs them: in state/charge.c to take memory. False, with a line on stderr, if that
 * fails. */
bool process_claims(struct claims *claims);

/* The state if its regions are open. NULL if not: then this process holds nothing. */
struct process *process_if_open(void);

/* Whether there may be any object of a kind (memory/objects.h has the others). Costs one load. */
static inline bool process_has(const struct process *process, enum kind kind) {
    return process != NULL && atomic_load_explicit(&process->objects.counts[kind], memory_order_relaxed) != 0;
}

#endif
