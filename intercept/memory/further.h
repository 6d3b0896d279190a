/*
 * Charges on further GPUs, for memory that may come to lie on any of them. They go with the entry that has the first charge, an
 * allocation's or a block's, whose `with` is a number of theirs. Not its address: the driver may hand that out again before the
 * charges of what was freed there are ended. Everything here is for under the shard's lock.
 */
#ifndef TRANCHE_ELSEWHERE_H
#define TRANCHE_ELSEWHERE_H

#include "memory/allocations.h"

/* Writes the grant's further charges down by a number. False when there is no memory for it. */
bool elsewhere_put(struct shard *shard, struct grant *grant, uint64_t number);

/* Ends them. */
void elsewhere_end(struct process *process, struct shard *shard, uint64_t number);

#endif
