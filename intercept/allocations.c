#include "allocations.h"

#include "gpus.h"

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
    grant->elsewhere = NULL;
    return charge_take(grant->process, place.gpu, pages_of(bytes), &grant->charge);
}

/* What of a grant was not needed, or not to be had. */
static void give_back(struct grant *grant) {
    charge_give(grant->process, &grant->charge);
    for (unsigned i = 0; grant->elsewhere != NULL && i < grant->elsewhere->count; i++)
        charge_give(grant->process, &grant->elsewhere->charges[i]);
}

CUresult allocations_grant_everywhere(struct grant *grant, struct elsewhere *elsewhere, uint64_t bytes) {
    CUresult result = allocations_grant(grant, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t visible = gpus_visible(grant->process);
    elsewhere->count = 0;
    grant->elsewhere = elsewhere;
    for (unsigned gpu = 0; gpu < CLAIMS_MAX && result == CUDA_SUCCESS; gpu++) {
        if (!(visible >> gpu & 1) || gpu == grant->charge.gpu)
            continue;
        result = charge_take(grant->process, (int)gpu, pages_of(bytes), &elsewhere->charges[elsewhere->count]);
        elsewhere->count += result == CUDA_SUCCESS;
    }
    if (result != CUDA_SUCCESS)
        give_back(grant);
    return result;
}

CUresult allocations_grant_spilled(struct grant *grant, uint64_t bytes) {
    struct place place;
    CUresult result = contexts_current(&grant->process, &place);
    if (result != CUDA_SUCCESS)
        return result;
    grant->context = place.context;
    grant->packed = false;
    grant->elsewhere = NULL;
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

/*
 * Further charges go with the entry that has the first one, an allocation's or a block's, whose `with` is a number of theirs.
 * Not its address: the driver may hand that out again before the charges of what was freed there are ended. The `with` of an
 * allocation on the host is its size instead: such a one has no further charges.
 */
static uint64_t elsewhere_key(uint64_t number, unsigned gpu) {
    return number * CLAIMS_MAX + gpu;
}

static bool is_elsewhere(const struct entry *entry) {
    return entry->with != 0 && !entry->charge.spilled;
}

static void end_elsewhere(struct process *process, struct shard *shard, const struct entry *entry) {
    for (unsigned gpu = 0; is_elsewhere(entry) && gpu < process->claims.count; gpu++) {
        struct entry *known = table_find(&shard->elsewhere, elsewhere_key(entry->with, gpu));
        if (known == NULL)
            continue;
        struct charge charge = known->charge;
        table_remove(&shard->elsewhere, known);
        charge_end(process, &charge);
    }
}

/* Writes the grant's further charges down, unless there are some already. Under the shard's lock; false when there is no memory
 * for it. */
static bool put_elsewhere(struct shard *shard, struct grant *grant, struct entry *entry) {
    if (grant->elsewhere == NULL || grant->elsewhere->count == 0 || entry->with != 0)
        return true;
    entry->with = ++shard->last_number;
    while (grant->elsewhere->count > 0) {
        struct charge charge = grant->elsewhere->charges[grant->elsewhere->count - 1];
        struct entry further = {.key = elsewhere_key(entry->with, charge.gpu), .charge = charge};
        if (table_put(&shard->elsewhere, further) == NULL) {
            end_elsewhere(grant->process, shard, entry);
            entry->with = 0;
            return false;
        }
        grant->elsewhere->count--;
    }
    return true;
}

/* Counts a packed allocation's block by the grant's charges, or leaves them if it is counted already. Under the shard's lock;
 * false when there is no memory for it. */
static bool count_block(struct shard *shard, struct grant *grant, uint64_t key) {
    struct entry *block = table_find(&shard->blocks, key);
    bool new = block == NULL;
    if (new)
        block = table_put(&shard->blocks, (struct entry){.key = key, .charge = grant->charge});
    if (block == NULL)
        return false;
    if (!put_elsewhere(shard, grant, block)) {
        if (new)
            table_remove(&shard->blocks, block);
        return false;
    }
    block->references++;
    if (new)
        grant->charge.pages = 0;
    return true;
}

/* Takes away what an allocation is charged with, whose entry is no longer in the table. Under the shard's lock; the charge is
 * to be ended after it. */
static struct charge take_away(struct process *process, struct shard *shard, const struct entry *allocation) {
    struct entry charged = *allocation;
    if (charged.charge.pages == 0) {
        struct entry *block = table_find(&shard->blocks, allocation->key >> BLOCK_SHIFT);
        if (block == NULL || --block->references > 0)
            return (struct charge){0};
        charged = *block;
        table_remove(&shard->blocks, block);
    }
    end_elsewhere(process, shard, &charged);
    if (charged.charge.spilled)
        atomic_fetch_sub_explicit(&process->on_host, 1, memory_order_relaxed);
    return charged.charge;
}

static bool write_down(struct shard *shard, struct grant *grant, CUdeviceptr address, uint64_t bytes) {
    struct entry allocation = {.key = address, .context = grant->context, .charge = grant->charge};
    /* One that spans two blocks was not packed after all, and is charged by itself. */
    bool packed = grant->packed && address >> BLOCK_SHIFT == (address + bytes - 1) >> BLOCK_SHIFT;
    if (packed)
        allocation.charge.pages = 0;
    if (allocation.charge.spilled)
        allocation.with = bytes;
    struct entry *put = table_put(&shard->allocations, allocation);
    if (put == NULL)
        return false;
    if (!(packed ? count_block(shard, grant, address >> BLOCK_SHIFT) : put_elsewhere(shard, grant, put))) {
        table_remove(&shard->allocations, put);
        return false;
    }
    if (allocation.charge.spilled)
        atomic_fetch_add_explicit(&grant->process->on_host, 1, memory_order_relaxed);
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
            gone = take_away(grant->process, shard, &copy);
        }
        if (!write_down(shard, grant, address, bytes))
            result = CUDA_ERROR_OUT_OF_MEMORY;
        lock_give(&shard->lock);
        if (gone.pages != 0)
            charge_end(grant->process, &gone);
    }
    give_back(grant);
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
    if (result == CUDA_SUCCESS && allocation->charge.pages != 0 && allocation->with == 0) {
        charge_end(process, &allocation->charge);
        return;
    }
    struct charge charge = {0};
    lock_take(&shard->lock);
    if (result == CUDA_SUCCESS || table_find(&shard->allocations, allocation->key) != NULL ||
        table_put(&shard->allocations, *allocation) == NULL)
        charge = take_away(process, shard, allocation);
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
        struct charge charge = take_away(process, shard, &allocation);
        if (charge.pages != 0)
            charge_end(process, &charge);
    }
    lock_give(&shard->lock);
}

void allocations_context_gone(struct process *process, uint32_t context) {
    for (unsigned i = 0; i < SHARDS && context != 0; i++)
        context_gone_from(process, &process->shards[i], context);
}

static bool on_host(struct shard *shard, CUdeviceptr address, CUdeviceptr last) {
    bool found = false;
    lock_take(&shard->lock);
    for (size_t i = 0; i < shard->allocations.capacity && !found; i++) {
        const struct entry *entry = &shard->allocations.entries[i];
        found = entry->key != 0 && entry->charge.spilled && entry->key <= last && entry->key + entry->with > address;
    }
    lock_give(&shard->lock);
    return found;
}

bool allocations_on_host(struct process *process, CUdeviceptr address, uint64_t bytes) {
    bool found = false;
    if (process == NULL || bytes == 0 || atomic_load_explicit(&process->on_host, memory_order_relaxed) == 0)
        return false;
    CUdeviceptr last = bytes - 1 > UINT64_MAX - address ? UINT64_MAX : address + bytes - 1;
    for (unsigned i = 0; i < SHARDS && !found; i++)
        found = on_host(&process->shards[i], address, last);
    return found;
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
