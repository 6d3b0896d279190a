/*
 * Memory of a GPU that several processes hold: it outlives its maker.
 *
 * An object has a slot in the state, as a process has, and is a line of its own in the record, in the group of the
 * process that made it. It lives as long as any process holds it or any copy of a descriptor exported of it is open,
 * in flight between processes included; a hold ends with its process at the latest. Whatever is in an object then goes
 * back to the GPU. Importing takes no memory.
 *
 * An object is named by a number that is never used again and never 0, good in every process on the state. Holds are
 * counted within a process: each new, open and import adds one, each drop takes one away. All calls are good on any
 * thread; none is good in a forked child of the process that joined (it holds nothing).
 */
#ifndef SIMGPU_SHARED_OBJECTS_H
#define SIMGPU_SHARED_OBJECTS_H

#include "state.h"

enum sim_shared_kind {
    SIM_SHARED_ANY,
    SIM_SHARED_MEMORY,    /* of cuMemCreate, exported by descriptor */
    SIM_SHARED_IPC,       /* of cuMemAlloc, exported by cuIpcGetMemHandle */
    SIM_SHARED_POOL,      /* a memory pool's */
    SIM_SHARED_MULTICAST, /* holds no memory itself */
    SIM_SHARED_EVENT,     /* likewise */
};

/* Words in the state that belong to whoever made the object; all zero in a new one. */
enum { SIM_SHARED_WORDS = 8 };

/* Contents of an object are common to its holders up to here; beyond, memory is every process's own. */
#define SIM_SHARED_CONTENT_BYTES ((uint64_t)64 << 20)

/* A new, empty object on a GPU, held once. `size` is what it says of itself, no more. 0 or -errno. */
int sim_shared_new(enum sim_shared_kind kind, int gpu, uint64_t size, uint64_t *object);

/* The maker takes memory into the object, or gives back of it: as sim_reserve and sim_release. */
int sim_shared_reserve(uint64_t object, uint64_t bytes);
void sim_shared_release(uint64_t object, uint64_t bytes);

/* Moves bytes that the maker holds itself, and their owner's charges, into the object: no sum changes, whoever dies when.
 * 0 or -errno. */
int sim_shared_adopt(uint64_t object, uint64_t bytes, const void *owner);

/* Another hold on an object by its name. -ENOENT: it is gone, or of another kind. */
int sim_shared_open(uint64_t object, enum sim_shared_kind kind);

/* A descriptor that keeps the object alive until its last copy is closed, or -errno. */
int sim_shared_export(uint64_t object);

/* Has the descriptor keep another object alive as well. 0 or -errno. */
int sim_shared_export_also(int fd, uint64_t object);

/* Another hold on the object that an exported descriptor means. 0, -ENOENT as above, -EBADF: no such descriptor. */
int sim_shared_import(int fd, enum sim_shared_kind kind, uint64_t *object);

/* Gives up one hold; with the last one of all processes, and no descriptor open, the memory is free on return. */
void sim_shared_drop(uint64_t object);

struct sim_shared_about {
    enum sim_shared_kind kind;
    int gpu; /* -1: not visible here */
    uint64_t size;
    _Atomic uint64_t *words; /* [SIM_SHARED_WORDS] */
};

/* Of an object that the caller holds. */
struct sim_shared_about sim_shared_about(uint64_t object);

/*
 * Makes the contents from offset on accessible at the address in the place of whatever is mapped there, all of it in
 * pages. They are zero in a new object. 0 or -errno. munmap or another mmap undoes it.
 */
int sim_shared_map(uint64_t object, uint64_t offset, void *address, uint64_t size);

/* Writes to the contents as they are seen by those who map them. */
int sim_shared_write(uint64_t object, uint64_t offset, const void *bytes, uint64_t size);

/* Which process this is, for others to ask whether it lives. */
uint64_t sim_shared_process(void);
bool sim_shared_process_alive(uint64_t process);

/* ---- In the record ---- */

struct sim_shared_info {
    const char *kind;
    uint64_t object;
    int64_t lock_byte; /* of the state, which every description that keeps it alive has locked */
    int pid;   /* of the maker, dead or alive, as the caller's pid namespace knows it; 0 where that cannot be told */
    int nspid; /* as the maker knew itself */
    uint64_t start_ns;
    char group[SIM_GROUP_KEY_SIZE];
    uint64_t bytes[SIM_MAX_INDICES]; /* [gpu] */
};

/* Calls fn for every living object; stops when fn returns non-zero and returns that. */
int sim_each_shared(int (*fn)(const struct sim_shared_info *, void *), void *arg);

#endif
