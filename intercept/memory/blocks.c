#include "memory/blocks.h"

#include "memory/further.h"
#include "memory/reserve.h"

/* A block's `references`: the number of allocations in it, and in the higher bits the number of those that are being
 * freed. */
#define ONE_IN_IT UINT32_C(1)
#define ONE_LEAVING (UINT32_C(1) << 16)

static bool any_in_it(const struct entry *block) {
    return block->references % ONE_LEAVING != 0;
}

/* Moves a block, all of whose allocations are being freed, to the table of leaving blocks. */
static bool set_aside(struct shard *shard, struct entry *block) {
    struct entry aside = *block;
    aside.key = block->with;
    if (table_put(&shard->leaving, aside) == NULL)
        return false;
    table_remove(&shard->blocks, block);
    return true;
}

static bool make(struct shard *shard, struct grant *grant, struct entry *allocation) {
    if (grant->charge.pages == 0)
        return false;
    uint64_t number = ++shard->last_number;
    struct entry *block = table_put(&shard->blocks, (struct entry){.key = allocation->key >> BLOCK_SHIFT,
                                                                   .charge = grant->charge,
                                                                   .context = grant->context,
                                                                   .references = ONE_IN_IT,
                                                                   .with = number});
    if (block == NULL || !further_put(shard, grant, number)) {
        if (block != NULL)
            table_remove(&shard->blocks, block);
        return false;
    }
    uint32_t place = grant->spare != 0 ? 1u + grant->charge.region : 0;
    if (reserve_add(&grant->process->reserves[grant->charge.gpu], RESERVE_ONE_BLOCK, place))
        grant->spare = 0;
    grant->charge.pages = 0;
    allocation->with = number;
    return true;
}

bool blocks_join(struct shard *shard, struct grant *grant, struct entry *allocation) {
    struct entry *block = table_find(&shard->blocks, allocation->key >> BLOCK_SHIFT);
    if (block != NULL && block->context == grant->context && any_in_it(block)) {
        block->references += ONE_IN_IT;
        allocation->with = block->with;
        return true;
    }
    return (block == NULL || set_aside(shard, block)) && make(shard, grant, allocation);
}

static struct table *table_of(struct shard *shard, const struct entry *allocation, struct entry **block) {
    *block = table_find(&shard->blocks, allocation->key >> BLOCK_SHIFT);
    if (*block != NULL && (*block)->with == allocation->with)
        return &shard->blocks;
    *block = table_find(&shard->leaving, allocation->with);
    return &shard->leaving;
}

struct entry *blocks_of(struct shard *shard, const struct entry *allocation) {
    struct entry *block;
    table_of(shard, allocation, &block);
    return block;
}

bool blocks_set_aside(struct shard *shard, const struct entry *allocation) {
    struct entry *block;
    struct table *table = table_of(shard, allocation, &block);
    return table == &shard->leaving || set_aside(shard, block);
}

void blocks_leaving(struct shard *shard, const struct entry *allocation) {
    struct entry *block = blocks_of(shard, allocation);
    if (block != NULL)
        block->references += ONE_LEAVING - ONE_IN_IT;
}

void blocks_stayed(struct shard *shard, const struct entry *allocation) {
    struct entry *block = blocks_of(shard, allocation);
    if (block != NULL)
        block->references -= ONE_LEAVING - ONE_IN_IT;
}

struct charge blocks_left(struct process *process, struct shard *shard, const struct entry *allocation,
                          uint32_t *reserve) {
    struct entry *block;
    struct table *table = table_of(shard, allocation, &block);
    if (block == NULL)
        return (struct charge){0};
    block->references -= ONE_LEAVING;
    if (block->references != 0)
        return (struct charge){0};
    struct charge charge = block->charge;
    further_end(process, shard, block->with);
    table_remove(table, block);
    *reserve = reserve_block_ended(&process->reserves[charge.gpu]);
    return charge;
}
