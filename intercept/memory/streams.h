/*
 * Frees in streams. The driver executes a free when the stream reaches it; until then the memory is in use. An entry is
 * kept for each stream with such a free, or for an event that was recorded after it, and the driver is queried whether
 * it is done.
 *
 * Entries are under streams.lock; the driver is queried under streams.querying.
 *
 * Source: cuMemFreeAsync and "Stream Ordered Memory Allocator" in the CUDA driver API's documentation.
 */
#ifndef TRANCHE_STREAMS_H
#define TRANCHE_STREAMS_H

#include "state/process.h"

/* The context that a stream is of; a default stream is of the current one. NULL if there is none. */
CUcontext streams_context(CUstream stream);

/* Memory of a pool was freed in a stream of a context. */
void streams_freed_in(struct process *process, CUcontext context, CUstream stream);

/*
 * Memory that is no pool's was freed in a stream: `done` is called once the stream has executed the free, at the latest
 * by streams_settle. False if that cannot be queried: then the caller waits for the stream.
 */
typedef void streams_freed(struct process *process, const struct entry *memory, CUresult result);
bool streams_free_later(struct process *process, CUcontext context, CUstream stream, const struct entry *memory,
                        streams_freed *done);
void streams_settle(struct process *process); /* costs one load if there is none */

/* A stream is about to be destroyed; a context was destroyed, with all its streams. */
void streams_ending(struct process *process, CUstream stream);
void streams_context_ended(struct process *process, CUcontext context);

/* Whether all streams have executed the frees so far. A stream that is being captured has not. */
bool streams_are_idle(struct process *process);

/* Waits until they have, at most half a second, since a stream may be waiting for the caller. Later frees are not
 * waited for. */
void streams_wait(struct process *process);

#endif
