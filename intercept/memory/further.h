/*
 * Charges on further GPUs, for memory that may move there. They belong to the entry with the first charge, an
 * allocation's or a block's, whose `with` is their number. The address would not do: the driver may return it for
 * another allocation before the charges of the former one are ended. The caller holds the shard's lock.
 */
#ifndef TRANCHE_FURTHER_H
#define TRANCHE_FURTHER_H

#include "memory/allocations.h"

/* Records the grant's further charges by a number. False if there is no memory for that. */
bool further_put(struct shard *shard, struct grant *grant, uint64_t number);

/* Ends them. */
void further_end(struct process *process, struct shard *shard, uint64_t number);

#endif
