/*
 * Streams in which memory of pools was freed. A free is done when its stream comes to it, and before that the memory is nobody
 * else's: whoever needs to know that it is there again asks the streams.
 *
 * Source: cuMemFreeAsync and the stream-ordered memory allocator in the CUDA driver API's documentation.
 */
#ifndef TRANCHE_STREAMS_H
#define TRANCHE_STREAMS_H

#include "state/process.h"

/* Something was freed in a stream: of the current context, if it is one of the default ones. */
void streams_freed_in(struct process *process, CUstream stream);

/*
 * Memory that is no pool's was freed in a stream: `done` is called when the stream has come to it, which is seen when another is
 * freed so or when these are settled. False if that cannot be seen: then the caller waits for the stream.
 */
typedef void streams_freed(struct process *process, const struct entry *memory, CUresult result);
bool streams_free_later(struct process *process, CUstream stream, const struct entry *memory, streams_freed *done);
void streams_settle(struct process *process); /* costs a load where there is none */

/* A stream that is about to be destroyed, and a context that was, with all of its streams. */
void streams_gone(struct process *process, CUstream stream);
void streams_context_gone(struct process *process, CUcontext context);

/* Whether all of them have come to what was freed in them before this was asked. One that is being recorded has not. */
bool streams_are_idle(struct process *process);

/* Waits until they have, half a second at most: a stream may be waiting for the caller. What is put into the streams meanwhile
 * is not waited for. */
void streams_wait(struct process *process);

#endif
