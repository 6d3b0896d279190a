#include "allocations.h"

#define PACKED_BELOW_BYTES (UINT64_C(1) << 20)

static struct shard *shard_of(struct process *process, CUdeviceptr address) {
    /* By block, so that an allocation and its block share a lock. */
    return &process->shards[((address >> BLOCK_SHIFT) * UINT64_C(0x9e3779b97f4a7c15)) >> 60];
}

_Static_assert(SHARDS == 16, "the highest four bits name a shard");

CUresult allocations_grant(struct grant *grant, uint64_t bytes) {
    struct place place;
    CUresult result = contexts_current(&grant->process, &place);
    if (result != CUDA_SUCCESS)
        return result;
    grant->context = place.context;
    grant->packed = bytes < PACKED_BELOW_BYTES;
    return charge_take(grant->process, place.gpu, pages_of(bytes), &grant->charge);
}

CUresult allocations_grant_spilled(struct grant *grant, uint64_t bytes) {
    struct place place;
    CUresult result = contexts_current(&grant->process, &place);
    if (result != CUDA_SUCCESS)
        return result;
    grant->context = place.context;
    grant->packed = false;
    return charge_spill(grant->process, place.gpu, pages_of(bytes), &grant->charge);
}

CUresult allocations_resize(struct grant *grant, uint64_t bytes) {
    uint64_t pages = pages_of(bytes);
    grant->packed = bytes < PACKED_BELOW_BYTES;
    if (pages > grant->charge.pages)
        return charge_grow(grant->process, &grant->charge, pages - grant->charge.pages);
    charge_give_part(grant->process, &grant->charge, grant->charge.pages - pages);
    return CUDA_SUCCESS;
}

/* Counts a packed allocation's block by the grant's charge, or leaves that if it is counted already. Under the shard's lock;
 * false when there is no memory for it. */
static bool count_block(struct shard *shard, struct grant *grant, uint64_t key) {
    struct entry *block = table_find(&shard->blocks, key);
    if (block != NULL) {
        block->references++;
        return true;
    }
    if (table_put(&shard->blocks, (struct entry){.key = key, .references = 1, .charge = grant->charge}) == NULL)
        return false;
    grant->charge.pages = 0;
    return true;
}

/* Takes away what an allocation is charged with, whose entry is no longer in the table. Under the shard's lock; the charge is
 * to be ended after it. */
static struct charge take_away(struct shard *shard, const struct entry *allocation) {
    if (allocation->charge.pages != 0)
        return allocation->charge;
    struct entry *block = table_find(&shard->blocks, allocation->key >> BLOCK_SHIFT);
    if (block == NULL || --block->references > 0)
        return (struct charge){0};
    struct charge charge = block->charge;
    table_remove(&shard->blocks, block);
    return charge;
}

static bool write_down(struct shard *shard, struct grant *grant, CUdeviceptr address, uint64_t bytes) {
    struct entry allocation = {.key = address, .context = grant->context, .charge = grant->charge};
    /* One that spans two blocks was not packed after all, and is charged by itself. */
    bool packed = grant->packed && address >> BLOCK_SHIFT == (address + bytes - 1) >> BLOCK_SHIFT;
    if (packed)
        allocation.charge.pages = 0;
    struct entry *put = table_put(&shard->allocations, allocation);
    if (put == NULL)
        return false;
    if (packed && !count_block(shard, grant, address >> BLOCK_SHIFT)) {
        table_remove(&shard->allocations, put);
        return false;
    }
    if (!packed)
        grant->charge.pages = 0;
    return true;
}

CUresult allocations_allocated(struct grant *grant, CUresult result, CUdeviceptr address, uint64_t bytes) {
    if (result == CUDA_SUCCESS && address != 0) {
        struct shard *shard = shard_of(grant->process, address);
        struct charge gone = {0};
        lock_take(&shard->lock);
        struct entry *former = table_find(&shard->allocations, address);
        if (former != NULL) {
            /* The driver freed it in a way that we did not see. */
            struct entry copy = *former;
            table_remove(&shard->allocations, former);
            gone = take_away(shard, &copy);
        }
        if (!write_down(shard, grant, address, bytes))
            result = CUDA_ERROR_OUT_OF_MEMORY;
        lock_give(&shard->lock);
        if (gone.pages != 0)
            charge_end(grant->process, &gone);
    }
    /* What is left of the grant was not needed. */
    charge_give(grant->process, &grant->charge);
    return result;
}

bool allocations_freeing(CUdeviceptr address, struct entry *allocation) {
    struct process *process = process_if_open();
    if (process == NULL)
        return false;
    struct shard *shard = shard_of(process, address);
    lock_take(&shard->lock);
    struct entry *known = table_find(&shard->allocations, address);
    if (known != NULL) {
        *allocation = *known;
        table_remove(&shard->allocations, known);
    }
    lock_give(&shard->lock);
    return known != NULL;
}

void allocations_freed(const struct entry *allocation, CUresult result) {
    struct process *process = process_memory();
    struct shard *shard = shard_of(process, allocation->key);
    if (result == CUDA_SUCCESS && allocation->charge.pages != 0) {
        charge_end(process, &allocation->charge);
        return;
    }
    struct charge charge = {0};
    lock_take(&shard->lock);
    if (result == CUDA_SUCCESS || table_find(&shard->allocations, allocation->key) != NULL ||
        table_put(&shard->allocations, *allocation) == NULL)
        charge = take_away(shard, allocation);
    lock_give(&shard->lock);
    if (charge.pages != 0)
        charge_end(process, &charge);
}

static void context_gone_from(struct process *process, struct shard *shard, uint32_t context) {
    struct table *table = &shard->allocations;
    lock_take(&shard->lock);
    for (size_t i = 0; i < table->capacity;) {
        struct entry allocation = table->entries[i];
        if (allocation.key == 0 || allocation.context != context) {
            i++;
            continue;
        }
        table_remove(table, &table->entries[i]); /* another may move here, so look at this place again */
        struct charge charge = take_away(shard, &allocation);
        if (charge.pages != 0)
            charge_end(process, &charge);
    }
    lock_give(&shard->lock);
}

void allocations_context_gone(struct process *process, uint32_t context) {
    for (unsigned i = 0; i < SHARDS && context != 0; i++)
        context_gone_from(process, &process->shards[i], context);
}

void allocations_share(CUdeviceptr address, const uint8_t tag[16]) {
    struct process *process = process_if_open();
    if (process == NULL)
        return;
    struct shard *shard = shard_of(process, address);
    lock_take(&shard->lock);
    struct entry *entry = table_find(&shard->allocations, address);
    if (entry != NULL && entry->charge.pages == 0)
        entry = table_find(&shard->blocks, address >> BLOCK_SHIFT);
    if (entry != NULL && entry->charge.share == 0)
        charge_share(process, &entry->charge, tag);
    lock_give(&shard->lock);
}
