/* Memory that pools and graphs give out: what their two families have in common. */
#ifndef CAMPAIGN_FAMILY_POOL_H
#define CAMPAIGN_FAMILY_POOL_H

#include "family.h"

#define PIECE (32 * MIB) /* what a pool may grow by */
#define ANYTHING_LESS (-((int64_t)1 << 50))

/*
 * What pools and graphs hold outlives contexts, and can be freed in a context only. So a process that has any keeps a
 * context to itself that nothing else ends. False: there was none yet, and making it was all that this operation did.
 */
bool need_keeper(struct call *call);
CUresult free_in_keeper(CUdeviceptr address);
/* The GPU of that context; -1: there is none. */
int keeper_on(void);

/* A stream of the current context: one of the process's, or a default stream. Given back by stream_done. */
struct choice {
    struct object object;
    CUstream stream;
    bool taken, per_thread;
};
void stream_choose(struct call *call, struct choice *choice);
void stream_done(const struct choice *choice);

/* Around whatever looks whether a graph's memory lives, and what changes that. */
void async_lock(void);
void async_unlock(void);

/* Where memory is from: a pool's handle, or this. */
#define FROM_GRAPH UINT64_C(1)

/* Notes memory. of_default: it ends with the device's reset. Frees it if there is no room for the note. */
void async_keep(struct call *call, CUdeviceptr address, uint64_t size, uint64_t from, bool of_default);
/* Under the lock. */
bool async_lives(struct call *call, int device, CUdeviceptr address);
bool async_take_of_graph(struct call *call, struct object *object);

/* In the end the device's pool and its graphs' memory are trimmed. */
void async_note_device(const struct call *call);

#endif
