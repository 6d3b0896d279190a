/*
 * The blocks of 2 MiB into which the driver packs small allocations of one context. A block is charged once, from its first
 * allocation until the driver has freed the last.
 *
 * While the last one is being freed, the driver may hand its addresses out again before it has given the memory back. So an
 * allocation joins a block only if it holds others of the same context that nobody is freeing; else it is in a new block, though
 * it may begin at the same address. Therefore blocks have numbers, by which allocations know theirs: their `with`.
 *
 * Everything here is for under the shard's lock.
 */
#ifndef TRANCHE_BLOCKS_H
#define TRANCHE_BLOCKS_H

#include "memory/allocations.h"

/* Puts an allocation that was written down into its block. If that is new, it takes the grant's charges over. False when there is
 * no memory for it. */
bool blocks_join(struct shard *shard, struct grant *grant, struct entry *allocation);

/* An allocation is about to be freed; it was not after all; or it was: then returns what is to be ended. */
void blocks_leaving(struct shard *shard, const struct entry *allocation);
void blocks_stayed(struct shard *shard, const struct entry *allocation);
struct charge blocks_left(struct process *process, struct shard *shard, const struct entry *allocation);

/* From now on an allocation's block is known by its number alone. False when there is no memory for it. */
bool blocks_set_aside(struct shard *shard, const struct entry *allocation);

/* The block of an allocation. */
struct entry *blocks_of(struct shard *shard, const struct entry *allocation);

#endif
