/*
 * The state that all processes on the simulated GPUs share: who holds how many bytes of which GPU, what was ordered to
 * go wrong, and whose turn it is. Both simulated libraries (CUDA driver, NVML) and the simgpu tool stand on it.
 *
 * Everywhere below, `gpu` is an index into the visible GPUs, as in sim_gpu(): first the whole ones, then seven seats of
 * each for its MIG devices, empty or taken, so that an index stays good while instances come and go. A GPU is visible
 * where its device node can be opened (see SIMGPU_DEV), a MIG device where the nodes of its two capabilities can be, too;
 * CUDA_VISIBLE_DEVICES is the CUDA library's own matter and not applied here.
 *
 * Environment: SIMGPU_TOPOLOGY (default /run/simgpu/topology), SIMGPU_STATE (default /run/simgpu/state), SIMGPU_DEV
 * (default /dev), SIMGPU_LABEL (the group that this process is recorded under; default its pid namespace), SIMGPU_GRAPHICS
 * ("only": NVML lists this process as one that renders, and its memory; "too": as one that renders and computes).
 */
#ifndef SIMGPU_STATE_H
#define SIMGPU_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SIM_MAX_GPUS = 16, /* whole ones, and sections of a topology */
    SIM_MIG_SEATS = 7, /* of each GPU, for GPU instances and for compute instances */
    SIM_MAX_INDICES = SIM_MAX_GPUS * (1 + SIM_MIG_SEATS),
    SIM_MAX_PROCESSES = 4096,
    SIM_MAX_GROUPS = 8192, /* containers that there ever were */
    SIM_GROUP_KEY_SIZE = 64,
    SIM_CGROUP_PATH_SIZE = 512,
};

/* The driver takes memory from the GPU in pieces of this size. */
#define SIM_GRANULARITY ((uint64_t)2 << 20)

/* How a GPU reaches memory of the program's own; as NVML numbers it, but for a driver that does not say. */
enum sim_addressing { SIM_ADDRESSING_UNKNOWN = -1, SIM_ADDRESSING_NONE, SIM_ADDRESSING_HMM, SIM_ADDRESSING_ATS };

/* One GPU as the topology file describes it. */
struct sim_gpu {
    int index; /* number of its section in the topology file */
    char name[96];
    char uuid[48];          /* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", or "MIG-…" */
    uint8_t uuid_bytes[16]; /* the same, binary */
    char pci_bus_id[32];    /* as CUDA writes it, "0000:19:00.0"; NVML writes the domain with 8 digits */
    unsigned pci_domain, pci_bus, pci_device;
    int minor;               /* of its device node, /dev/nvidia<minor> */
    uint64_t memory_bytes;   /* that can be allocated */
    uint64_t reserved_bytes; /* the driver's own, beside it: NVML's total has both */
    int sm_count;
    int cc_major, cc_minor;
    uint64_t context_bytes; /* what one CUDA context costs before its first allocation */
    enum sim_addressing addressing;

    bool mig_at_start; /* a whole GPU that is in MIG mode when the simulated driver is loaded: see mig.h */
    bool is_mig;       /* a MIG instance, whose fields the following are */
    int mig_of;        /* the section of the GPU that it is a part of */
    unsigned gi, ci;   /* IDs of its GPU instance and its compute instance */
    unsigned gi_cap;   /* of the nodes /dev/nvidia-caps/nvidia-cap<N> without which nobody gets at it */
    unsigned ci_cap;
    unsigned mig_slices; /* compute slices of its GPU instance, of the seven that most GPUs have */
    unsigned ci_slices;  /* and of its compute instance */
};

struct sim_topology {
    char driver_version[32];             /* "570.124.06" */
    int cuda_version;                    /* 12080 for 12.8 */
    unsigned device_major, device_minor; /* the device numbers that simulated nodes carry */
    uint32_t kernel_us;  /* how long a kernel takes unless its name or SIMGPU_KERNEL_US says otherwise */
    uint32_t quantum_us; /* longest turn of one process on a GPU */
    uint32_t switch_us;  /* how long a GPU takes to change from one process to another */
    uint32_t launch_us;  /* from a launch to its kernel's beginning, where the GPU has nothing else of this process */
    uint32_t wake_us;    /* from the end of work to the return of who waits for it */

    /* What the driver takes on its own, which no call asks for; NVIDIA does not say how much it is. */
    uint64_t own_launch_bytes; /* with the first launch in a context, until that ends */
    uint64_t own_code_bytes;   /* with a module's code */
    uint64_t own_graph_bytes;  /* with an executable graph, from its first upload or launch on */

    bool memory_limits; /* by cgroup: a driver of 615 and later that was not told otherwise */

    bool private_context_active; /* the private function that returns a primary context also makes it */
    int gpu_count;               /* whole ones */
    int section_count;           /* and the MIG instances that are there at the start, behind them */
    struct sim_gpu gpus[SIM_MAX_GPUS];
};

/*
 * sim_open reads the topology, maps the state (made where missing) and looks for device nodes, once per process: later
 * calls only count. 0 or -errno: -ENODEV where no nvidiactl can be opened ("no driver"), -ENOENT without a topology,
 * -EINVAL for a bad one, -ESTALE for a state of other GPUs, -EPROTO for a state of another layout. sim_gpu_count may be
 * 0 after success. sim_close undoes one sim_open; the last one unmaps, so that the next sim_open looks afresh.
 */
int sim_open(void);
void sim_close(void);

/* Like sim_open for whoever wants to see every GPU of the topology, nodes or not: the simgpu tool. */
int sim_open_all(void);

/* Makes a fresh, empty state in the place of whatever is there; processes that use the old one keep it. 0 or -errno. */
int sim_state_create(void);

/* Why the last sim_open of this process failed, in words; "" if it did not. */
const char *sim_error(void);

int sim_gpu_count(void);                /* whole ones */
int sim_index_count(void);              /* with all seats */
const struct sim_gpu *sim_gpu(int gpu); /* NULL for an empty seat, and outside 0..sim_index_count()-1 */
const struct sim_topology *sim_topology(void);

/*
 * A process that takes memory first joins: it gets a slot in the state, which lives until the last copy of its file
 * description is gone, that is, until the process is dead (forked children that hold a copy count as alive, as with the
 * driver's own descriptors). 0, -ENOSPC if all slots are taken, or -errno. sim_reserve and friends need it.
 */
int sim_join(void);

/* The GPUs that this process has opened, for others to know that they are in use. */
void sim_opens(const int *gpus, int count);

/*
 * Binds this process to a MIG device for good: whatever comes to sit there later, the index means this one. 0, or -ENODEV
 * if it is gone. Once it is destroyed, sim_gpu_lost says so of it, and no memory can be had of it.
 */
int sim_bind(int gpu);

/* Marks this process as one that manages the GPUs (NVML): a GPU of before Hopper changes its MIG mode only without. */
void sim_manages(void);

/*
 * sim_reserve takes physical memory for this process, or says -ENOMEM; sim_release gives back. Bytes are rounded up to
 * 64 KiB. The whole of the accounting (process, group, peak of the group, GPU) changes in one atomic step that survives
 * the death or stop of any process at any instruction.
 *
 * Where the process is in a cgroup with a limit of the GPU, the memory is charged to that (memory_limits.h), and -ENOMEM
 * also says that the limit is reached. What it was charged to is known by its owner, any address, which is named again at
 * the release; where one owner has memory of several cgroups, the latest is released first. NULL: this memory is not
 * charged to a cgroup. sim_pass gives what one owner has to another one.
 */
int sim_reserve(int gpu, uint64_t bytes, const void *owner);
void sim_release(int gpu, uint64_t bytes, const void *owner);
void sim_pass(const void *owner, const void *to);

/* Whether any memory of this process is charged: if not, owners do not matter. */
bool sim_has_charges(void);

/* Statistics of this process, no part of the sums. */
void sim_count_context(int gpu, int64_t bytes); /* bytes of contexts, which are part of what sim_reserve took */
void sim_count_allocation(int gpu, int change); /* live allocations */
void sim_count_launch(int gpu);

/* Bytes taken from the GPU by living processes. Looks for dead ones first, at most once a millisecond. MIG instances are
 * counted for themselves; compute instances of one GPU instance share its memory. */
uint64_t sim_gpu_used(int gpu);

/* Gives back, now, what dead processes held. */
void sim_reap(void);

/* ---- Reading the record ---- */

struct sim_process_gpu {
    uint64_t bytes;         /* physical, contexts included */
    uint64_t peak_bytes;    /* the most it ever held */
    uint64_t context_bytes; /* of these, contexts */
    uint64_t allocations;   /* alive */
    uint64_t launches;
    uint64_t busy_ns; /* GPU time it was given so far, booked turns included */
};

enum sim_graphics { SIM_GRAPHICS_NONE, SIM_GRAPHICS_ONLY, SIM_GRAPHICS_TOO };

struct sim_process_info {
    int pid;                /* as the caller's pid namespace knows it; 0 where that cannot be told */
    int nspid;              /* as the process itself knows it */
    bool alive;             /* false: dead, and its bytes are about to be given back */
    uint64_t pid_namespace; /* inode */
    uint64_t start_ns;      /* CLOCK_MONOTONIC when it joined */
    char group[SIM_GROUP_KEY_SIZE];
    bool mps_server, mps_client;                  /* what it is to MPS */
    int mps_server_pid;                           /* of a client's server, as `pid`; 0 if that is gone */
    enum sim_graphics graphics;                   /* whether it renders, beside or instead of computing */
    struct sim_process_gpu gpus[SIM_MAX_INDICES]; /* [gpu] */
};

/* Calls fn for every process that has joined and still lives; stops when fn returns non-zero and returns that. */
int sim_each_process(int (*fn)(const struct sim_process_info *, void *), void *arg);

struct sim_group_info {
    char group[SIM_GROUP_KEY_SIZE];
    int processes; /* alive */
    struct {
        uint64_t bytes;      /* now */
        uint64_t peak_bytes; /* ever, or since sim_reset_peaks */
        uint64_t launches;   /* of the dead too */
        uint64_t busy_ns;    /* GPU time, booked turns included, of the dead too */
        uint64_t overlap_ns; /* time in which its work was ready and the GPU was another group's */
    } gpus[SIM_MAX_INDICES];
};

int sim_each_group(int (*fn)(const struct sim_group_info *, void *), void *arg);
void sim_reset_peaks(void);

/* NVML's accounting mode of a GPU, for all processes. */
void sim_set_accounting(int gpu, bool on);
bool sim_accounting(int gpu);

/* ---- GPU time: one process at a time, in turns ---- */

uint64_t sim_now_ns(void); /* CLOCK_MONOTONIC */

/* A stretch of time during which the GPU is this process's alone. */
struct sim_turn {
    uint64_t start_ns, end_ns;
};

/*
 * Books GPU time after whatever is booked already, at most one quantum, and says when. A process asks for its next turn
 * when the last one has ended, so processes alternate; a booked turn runs out by itself, so that a process which dies or
 * is stopped holds up others by no more than that. Before the turn of another process than the last comes the time that
 * a switch takes, which is nobody's. not_before_ns lets an idle GPU's time be booked in retrospect (the
 * GPU went on with queued kernels while nobody looked); 0 means now, for work that has yet to get to the GPU.
 */
struct sim_turn sim_turn_book(int gpu, uint64_t want_ns, uint64_t not_before_ns);

/* Lengthens a turn that ends last, if nobody booked after it. Returns the nanoseconds added (0 if somebody did). */
uint64_t sim_turn_extend(int gpu, struct sim_turn *turn, uint64_t want_ns);

/* Share of the last second during which the GPU worked, in per cent, and nanoseconds it worked in all so far. */
unsigned sim_gpu_utilisation(int gpu);
uint64_t sim_gpu_busy_ns(int gpu);

/* How often the GPU changed from one process to another. */
uint64_t sim_gpu_switches(int gpu);

/* ---- Faults that a test orders, for all processes, through the state ---- */

/* The next `count` allocations on the GPU (-1: any GPU) fail with the CUDA result; a count of 0 calls it off. */
int sim_fault_alloc(int gpu, uint32_t count, int cu_result);
/* To be asked before each allocation: 0, or the CUDA result that it fails with (and the order counts down). */
int sim_fault_alloc_take(int gpu);

/* The next `count` kernels on the GPU end with an exception, which the CUDA result says: a fatal fault, as a bad pointer. */
int sim_fault_kernel(int gpu, uint32_t count, int cu_result);
/* To be asked at each launch. */
int sim_fault_kernel_take(int gpu);

/* The GPU falls off the bus, or comes back. */
int sim_fault_lost(int gpu, bool lost);
bool sim_gpu_lost(int gpu);

/* NVML answers as if no driver were loaded, or does so no more. */
void sim_fault_nvml_absent(bool absent);
bool sim_nvml_absent(void);

/* What an event is about, by NVML's numbers. One of no kind is for nobody, and wakes who waits. */
enum sim_event_type {
    SIM_EVENT_NONE = 0,
    SIM_EVENT_SINGLE_BIT_ECC = 1,
    SIM_EVENT_DOUBLE_BIT_ECC = 2,
    SIM_EVENT_XID = 8,
};

/* The whole GPU rather than an instance of it. */
#define SIM_NO_INSTANCE UINT32_MAX

struct sim_event {
    uint64_t serial; /* 1, 2, 3… over all events */
    int gpu;         /* -1: a GPU that is not visible here */
    enum sim_event_type type;
    uint64_t xid;
    uint64_t time_ns;
    uint32_t gi, ci; /* the MIG instance that it is about, or SIM_NO_INSTANCE */
};

/* An Xid event. Falling off the bus also posts one (Xid 79). */
int sim_fault_xid(int gpu, uint64_t xid);

/* An event of this type; of `event` the Xid and the instance count. */
int sim_event_post(int gpu, enum sim_event_type type, struct sim_event event);

/* Serial of the newest event, 0 if none yet: where somebody who wants only later events starts. */
uint64_t sim_event_last(void);

/*
 * Waits for the first event with a serial above `after`, at most timeout_ms (0: do not wait, UINT32_MAX: for ever).
 * 0 and the event, or -ETIMEDOUT. Woken by the event, not by polling.
 */
int sim_event_wait(uint64_t after, uint32_t timeout_ms, struct sim_event *event);

/* Calls every fault off. */
void sim_fault_clear(void);

#endif
