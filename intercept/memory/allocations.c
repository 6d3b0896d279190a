#include "memory/allocations.h"

#include "driver/cuda_real.h"
#include "memory/blocks.h"
#include "memory/further.h"
#include "memory/pools.h"
#include "memory/reserve.h"
#include "state/gpus.h"

#define PACKED_BELOW_BYTES (UINT64_C(1) << 20)

static struct shard *shard_of(struct process *process, CUdeviceptr address) {
    /* By block, so that an allocation and its block are under one lock. */
    return &process->shards[table_hash(address >> BLOCK_SHIFT, SHARD_BITS)];
}

static uint32_t takes_so_far(const struct grant *grant) {
    return atomic_load_explicit(&grant->process->regions[grant->charge.region].takes, memory_order_relaxed);
}

typedef CUresult take_function(struct process *process, int gpu, uint64_t pages, struct charge *charge);

/* --- the reserve of a GPU ----------------------------------------------------------------------------------------- */

static struct reserve *reserve_of(const struct grant *grant) {
    return &grant->process->reserves[grant->charge.gpu];
}

static void give_reserve(struct process *process, int gpu, uint32_t place) {
    struct charge charge = {.pages = BLOCK_PAGES, .region = (uint8_t)(place - 1), .gpu = (uint8_t)(gpu & 0x7f)};
    charge_give(process, &charge);
}

/* Of the grant's charge, if the allocation has a place in a block and there is no reserve. */
static void keep_as_reserve(struct grant *grant) {
    if (grant->charge.pages != 0 && reserve_add(reserve_of(grant), 0, 1u + grant->charge.region))
        grant->charge.pages = 0;
}

static void return_reserve(struct grant *grant) {
    if (!reserve_returned(reserve_of(grant), grant->reserve))
        give_reserve(grant->process, grant->charge.gpu, grant->reserve);
    grant->reserve = 0;
}

/* --- granting ----------------------------------------------------------------------------------------------------- */

/* A block's charge, and that of the reserve if there is none; or the reserve, which covers the call then: the driver may place
 * the allocation in a block of ours. */
static CUresult take_packed(take_function *take, struct grant *grant, int gpu, bool managed) {
    struct reserve *reserve = &grant->process->reserves[gpu];
    if (!managed && reserve_place(reserve) == 0 &&
        charge_try(grant->process, gpu, 2 * BLOCK_PAGES, &grant->charge) == CUDA_SUCCESS) {
        grant->charge.pages = grant->spare = BLOCK_PAGES;
        return CUDA_SUCCESS;
    }
    CUresult result = charge_try(grant->process, gpu, BLOCK_PAGES, &grant->charge);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && !managed && (grant->reserve = reserve_borrow(reserve)) != 0)
        return CUDA_SUCCESS;
    return result == CUDA_ERROR_OUT_OF_MEMORY ? take(grant->process, gpu, BLOCK_PAGES, &grant->charge) : result;
}

static CUresult grant_by(take_function *take, struct grant *grant, struct work *work, uint64_t bytes, bool packed,
                         bool managed) {
    CUresult result = contexts_place(work);
    if (result != CUDA_SUCCESS)
        return result;
    grant->process = work->process;
    grant->context = work->place.context;
    grant->packed = packed;
    grant->reserve = 0;
    grant->spare = 0;
    grant->further = NULL;
    result = packed ? take_packed(take, grant, work->place.gpu, managed)
                    : take(grant->process, work->place.gpu, pages_of(bytes), &grant->charge);
    grant->takes = takes_so_far(grant);
    return result;
}

CUresult allocations_grant(struct grant *grant, struct work *work, uint64_t bytes) {
    return grant_by(pools_take, grant, work, bytes, bytes < PACKED_BELOW_BYTES, false);
}

CUresult allocations_grant_spilled(struct grant *grant, struct work *work, uint64_t bytes) {
    return grant_by(charge_spill, grant, work, bytes, false, false);
}

/* Gives back what of a grant is left. */
static void give_back(struct grant *grant) {
    if (grant->reserve != 0)
        return_reserve(grant);
    grant->charge.pages += grant->spare;
    charge_give(grant->process, &grant->charge);
    for (unsigned i = 0; grant->further != NULL && i < grant->further->count; i++)
        charge_give(grant->process, &grant->further->charges[i]);
}

CUresult allocations_grant_everywhere(struct grant *grant, struct work *work, struct further_charges *further,
                                      uint64_t bytes) {
    CUresult result = grant_by(pools_take, grant, work, bytes, bytes < PACKED_BELOW_BYTES, true);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t visible = gpus_visible(grant->process);
    further->count = 0;
    grant->further = further;
    for (unsigned gpu = 0; gpu < CLAIMS_MAX && result == CUDA_SUCCESS; gpu++) {
        if (!(visible >> gpu & 1) || gpu == grant->charge.gpu)
            continue;
        result = pools_take(grant->process, (int)gpu, pages_of(bytes), &further->charges[further->count]);
        further->count += result == CUDA_SUCCESS;
    }
    if (result != CUDA_SUCCESS)
        give_back(grant);
    return result;
}

CUresult allocations_resize(struct grant *grant, uint64_t bytes) {
    uint64_t pages = pages_of(bytes);
    grant->packed = bytes < PACKED_BELOW_BYTES;
    if (grant->reserve != 0 && grant->packed)
        return CUDA_SUCCESS;
    if (pages > grant->charge.pages)
        return charge_grow(grant->process, &grant->charge, pages - grant->charge.pages);
    charge_give_part(grant->process, &grant->charge, grant->charge.pages - pages);
    return CUDA_SUCCESS;
}

static bool is_packed(const struct entry *allocation) {
    return allocation->charge.pages == 0;
}

/* Ends the charges of an allocation that the driver has freed and that was removed from the table. Under the shard's
 * lock. */
static void end(struct process *process, struct shard *shard, const struct entry *allocation) {
    struct charge charge = allocation->charge;
    if (is_packed(allocation)) {
        if (charge.share != 0)
            charge_unname(process, charge.region, charge.share);
        uint32_t place = 0;
        charge = blocks_left(process, shard, allocation, &place);
        if (place == 1u + charge.region && charge.pages != 0 && charge.share == 0)
            charge.pages += BLOCK_PAGES;
        else if (place != 0)
            give_reserve(process, allocation->charge.gpu, place);
    } else if (charge.spilled)
        atomic_fetch_sub_explicit(&process->on_host, 1, memory_order_relaxed);
    else
        further_end(process, shard, allocation->with);
    if (charge.pages != 0)
        charge_end(process, &charge);
}

/* Charges an allocation that is in no block. Its `with` is its size if it lies in host memory, else the number of its
 * further charges. */
static bool charge_alone(struct shard *shard, struct grant *grant, struct entry *allocation, uint64_t bytes) {
    if (grant->charge.pages == 0)
        return false;
    if (grant->charge.spilled)
        allocation->with = bytes;
    else if (grant->further != NULL && grant->further->count != 0)
        allocation->with = ++shard->last_number;
    if (!grant->charge.spilled && !further_put(shard, grant, allocation->with))
        return false;
    allocation->charge = grant->charge;
    grant->charge.pages = 0;
    if (allocation->charge.spilled)
        atomic_fetch_add_explicit(&grant->process->on_host, 1, memory_order_relaxed);
    return true;
}

static bool record(struct shard *shard, struct grant *grant, CUdeviceptr address, uint64_t bytes) {
    struct entry allocation = {.key = address,
                               .context = grant->context,
                               .references = takes_so_far(grant),
                               .charge = {.gpu = grant->charge.gpu, .region = grant->charge.region}};
    /* An allocation that spans two blocks was not packed. */
    bool packed = grant->packed && address >> BLOCK_SHIFT == (address + bytes - 1) >> BLOCK_SHIFT;
    struct entry *put = table_put(&shard->allocations, allocation);
    if (put == NULL)
        return false;
    if (packed ? blocks_join(shard, grant, put) : charge_alone(shard, grant, put, bytes))
        return true;
    table_remove(&shard->allocations, put);
    return false;
}

#define WITHOUT_ADDRESS (UINT64_C(1) << 63) /* no address has this bit */

/* Keeps an allocation whose address is in use again until its context ends, by a number instead of the address. */
static bool set_aside(struct shard *shard, struct entry *aside) {
    if (is_packed(aside) && !blocks_set_aside(shard, aside))
        return false;
    aside->key = WITHOUT_ADDRESS | ++shard->last_number;
    return table_put(&shard->allocations, *aside) != NULL;
}

/* Whether the driver certainly made an allocation before the grant's: it was recorded before the grant was taken. The
 * `references` of an allocation are the region's `takes` at that moment. */
static bool is_older(const struct entry *allocation, const struct grant *grant) {
    return allocation->charge.region == grant->charge.region && (int32_t)(allocation->references - grant->takes) < 0;
}

/*
 * The driver returned an address that is recorded already. An older allocation no longer exists: the driver freed it by
 * a call that is not shadowed, or its context, if that is another one, is being destroyed at this moment. If neither is
 * certainly older, another thread has freed this address while it was being allocated, and the recorded allocation may
 * be the one that exists.
 */
static void replace(struct shard *shard, struct entry *former, const struct grant *grant) {
    struct entry aside = *former;
    table_remove(&shard->allocations, former);
    bool may_live = aside.context != grant->context || !is_older(&aside, grant);
    if (may_live && aside.context != 0 && contexts_lives(grant->process, aside.context) && set_aside(shard, &aside))
        return;
    if (is_packed(&aside))
        blocks_leaving(shard, &aside);
    end(grant->process, shard, &aside);
}

static bool record_at(struct grant *grant, CUdeviceptr address, uint64_t bytes) {
    struct shard *shard = shard_of(grant->process, address);
    lock_take(&shard->lock);
    struct entry *former = table_find(&shard->allocations, address);
    if (former != NULL)
        replace(shard, former, grant);
    bool recorded = record(shard, grant, address, bytes);
    lock_give(&shard->lock);
    return recorded;
}

CUresult allocations_allocated(struct grant *grant, CUresult result, CUdeviceptr address, uint64_t bytes) {
    contexts_failed(grant->process, result);
    if (result == CUDA_SUCCESS && address != 0) {
        pools_address_taken(grant->process, address);
        bool recorded = record_at(grant, address, bytes);
        /* The driver took a block: the reserve is for the next call. */
        if (!recorded && grant->reserve != 0 &&
            pools_take(grant->process, grant->charge.gpu, pages_of(bytes), &grant->charge) == CUDA_SUCCESS)
            recorded = record_at(grant, address, bytes);
        if (!recorded)
            result = CUDA_ERROR_OUT_OF_MEMORY;
        else if (grant->packed && grant->further == NULL && grant->reserve == 0)
            keep_as_reserve(grant);
    }
    if (result != CUDA_SUCCESS && address != 0)
        UNDO(REAL(cuMemFree_v2)(address));
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
        if (is_packed(allocation))
            blocks_leaving(shard, allocation);
    }
    lock_give(&shard->lock);
    return known != NULL;
}

/* Restores an allocation that the driver refused to free; but if its context has ended, or its address is in use again,
 * it was freed. Under the shard's lock. */
static void stay(struct process *process, struct shard *shard, const struct entry *allocation) {
    bool freed =
        table_find(&shard->allocations, allocation->key) != NULL || !contexts_lives(process, allocation->context);
    if (freed || table_put(&shard->allocations, *allocation) == NULL)
        end(process, shard, allocation);
    else if (is_packed(allocation))
        blocks_stayed(shard, allocation);
}

void allocations_freed(const struct entry *allocation, CUresult result) {
    struct process *process = process_memory();
    struct shard *shard = shard_of(process, allocation->key);
    if (result == CUDA_SUCCESS && !is_packed(allocation) && allocation->with == 0) {
        charge_end(process, &allocation->charge);
        return;
    }
    lock_take(&shard->lock);
    if (result != CUDA_SUCCESS)
        stay(process, shard, allocation);
    else
        end(process, shard, allocation);
    lock_give(&shard->lock);
}

static void end_in_context(struct process *process, struct shard *shard, uint32_t context) {
    struct table *table = &shard->allocations;
    lock_take(&shard->lock);
    for (size_t i = 0; i < table->capacity;) {
        struct entry allocation = table->entries[i];
        if (allocation.key == 0 || allocation.context != context) {
            i++;
            continue;
        }
        table_remove(table, &table->entries[i]); /* may move another entry to this index: look at it again */
        if (is_packed(&allocation))
            blocks_leaving(shard, &allocation);
        end(process, shard, &allocation);
    }
    lock_give(&shard->lock);
}

void allocations_context_ended(struct process *process, uint32_t context) {
    for (unsigned i = 0; i < SHARDS && context != 0; i++)
        end_in_context(process, &process->shards[i], context);
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

/* What holds the charge of the memory at an address. Under the shard's lock. */
static struct entry *charged(struct shard *shard, CUdeviceptr address) {
    struct entry *entry = table_find(&shard->allocations, address);
    return entry != NULL && is_packed(entry) ? blocks_of(shard, entry) : entry;
}

void allocations_share(CUdeviceptr address, uint64_t tag) {
    struct process *process = process_if_open();
    if (process == NULL)
        return;
    struct shard *shard = shard_of(process, address);
    lock_take(&shard->lock);
    struct entry *allocation = table_find(&shard->allocations, address), *entry = charged(shard, address);
    uint16_t name = entry != NULL ? charge_share(process, &entry->charge, tag) : 0;
    if (name != 0 && is_packed(allocation))
        allocation->charge.share = name; /* of its block's share */
    lock_give(&shard->lock);
}

bool allocations_exporting(struct process *process, CUdeviceptr address, struct charge *held, bool *found) {
    struct shard *shard = shard_of(process, address);
    lock_take(&shard->lock);
    struct entry *entry = charged(shard, address);
    *found = entry != NULL;
    bool done = entry != NULL && charge_exporting(process, &entry->charge, held);
    lock_give(&shard->lock);
    return done;
}
