/*
 * The blocks of 2 MiB into which the driver packs small allocations of one context. A block is charged once, from its
 * first allocation until the driver has freed the last.
 *
 * While the last allocation is being freed, the driver may reuse the block's addresses before it has released the
 * memory. So an allocation joins a block only if that holds other allocations of the same context that are not being
 * freed. Else it starts a new block, perhaps at the same address. Hence a block is identified by a number, which is the
 * `with` of its allocations.
 *
 * The caller holds the shard's lock.
 */
#ifndef TRANCHE_BLOCKS_H
#define TRANCHE_BLOCKS_H

#include "memory/allocations.h"

/* Puts a recorded allocation into its block. A new block takes over the grant's charges. False if there is no memory
 * for a new one, or if the grant has none. */
bool blocks_join(struct shard *shard, struct grant *grant, struct entry *allocation);

/* An allocation is about to be freed; the driver refused to free it; the driver freed it. The last returns the charge
 * that ends, and where the reserve is if that ends, too (memory/reserve.h). */
void blocks_leaving(struct shard *shard, const struct entry *allocation);
void blocks_stayed(struct shard *shard, const struct entry *allocation);
struct charge blocks_left(struct process *process, struct shard *shard, const struct entry *allocation,
                          uint32_t *reserve);

/* Makes room for a new block at the same address: this block is then found by its number alone. False if there is no
 * memory. */
bool blocks_set_aside(struct shard *shard, const struct entry *allocation);

/* The block of an allocation. */
struct entry *blocks_of(struct shard *shard, const struct entry *allocation);

#endif
