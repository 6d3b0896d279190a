#include "state/charge.h"

#include "region/tags.h"
#include "region/words.h"
#include "system/explain.h"

bool process_claims(struct claims *claims) {
    return claims_open(claims, true);
}

static struct region *region_of(struct process *process, const struct charge *charge) {
    return &process->claims.regions[charge->region];
}

static void lock_region(struct process *process, unsigned region) {
    lock_take(&process->regions[region].lock);
}

static void unlock_region(struct process *process, unsigned region) {
    lock_give(&process->regions[region].lock);
}

static CUresult broken(struct process *process, unsigned region) {
    explain(CAUSE_REGION_BROKEN,
            "cannot allocate GPU memory: %s, or `%s` beside it, was damaged while in use; restart the container",
            process->claims.regions[region].usage_path, REGION_LIMIT_FILE);
    return CUDA_ERROR_SYSTEM_NOT_READY;
}

static CUresult result_of(struct process *process, unsigned region, enum region_result result) {
    return result == REGION_OK     ? CUDA_SUCCESS
           : result == REGION_FULL ? CUDA_ERROR_OUT_OF_MEMORY
                                   : broken(process, region);
}

static CUresult take(struct process *process, int gpu, enum region_ledger ledger, uint64_t pages,
                     struct charge *charge) {
    struct claims *claims = &process->claims;
    enum region_result result = REGION_FULL;
    unsigned region = (unsigned)gpu;
    for (unsigned i = region; i < claims->count && result == REGION_FULL; i++) {
        if (claims->gpu[i] != gpu)
            continue;
        region = i;
        lock_region(process, i);
        result = region_reserve(&claims->regions[i], ledger, pages);
        _Atomic uint32_t *takes = &process->regions[i].takes; /* written under the lock alone */
        atomic_store_explicit(takes, atomic_load_explicit(takes, memory_order_relaxed) + 1, memory_order_relaxed);
        unlock_region(process, i);
    }
    *charge = (struct charge){.pages = result == REGION_OK ? (uint32_t)pages : 0,
                              .region = (uint8_t)(region & 0x7f),
                              .spilled = ledger == REGION_SPILL,
                              .gpu = (uint8_t)(gpu & 0x7f)};
    return result_of(process, region, result);
}

CUresult charge_try(struct process *process, int gpu, uint64_t pages, struct charge *charge) {
    return take(process, gpu, REGION_GPU, pages, charge);
}

CUresult charge_refused(struct process *process, unsigned region, CUresult result) {
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        region_count_refused(&process->claims.regions[region]);
    return result;
}

static CUresult take_in(struct process *process, unsigned region, uint64_t pages) {
    lock_region(process, region);
    enum region_result result = region_reserve(&process->claims.regions[region], REGION_GPU, pages);
    unlock_region(process, region);
    return result_of(process, region, result);
}

CUresult charge_try_like(struct process *process, const struct charge *other, uint64_t pages, struct charge *charge) {
    CUresult result = take_in(process, other->region, pages);
    *charge = (struct charge){
        .pages = result == CUDA_SUCCESS ? (uint32_t)pages : 0, .region = other->region, .gpu = other->gpu};
    return result;
}

void charge_move(struct process *process, struct charge *from, struct charge *to, uint64_t pages) {
    if (to->pages == 0 && to->share == 0)
        *to = (struct charge){.region = from->region, .gpu = from->gpu};
    if (to->region != from->region) {
        charge_grow(process, to, pages);
        return;
    }
    if (to->share != 0) {
        lock_region(process, to->region);
        enum region_result result = region_share_adopt(region_of(process, to), to->share - 1, pages);
        unlock_region(process, to->region);
        if (result != REGION_OK)
            return;
    }
    to->pages += (uint32_t)pages;
    from->pages -= (uint32_t)pages;
}

CUresult charge_spill(struct process *process, int gpu, uint64_t pages, struct charge *charge) {
    return take(process, gpu, REGION_SPILL, pages, charge);
}

void charge_give_part(struct process *process, struct charge *charge, uint64_t pages) {
    struct region *region = region_of(process, charge);
    if (pages == 0)
        return;
    lock_region(process, charge->region);
    if (charge->share != 0)
        region_share_release(region, charge->share - 1, pages);
    else
        region_release(region, charge->spilled ? REGION_SPILL : REGION_GPU, pages);
    unlock_region(process, charge->region);
    charge->pages -= (uint32_t)pages;
}

void charge_give(struct process *process, const struct charge *charge) {
    struct charge all = *charge;
    charge_give_part(process, &all, all.pages);
}

CUresult charge_grow(struct process *process, struct charge *charge, uint64_t pages) {
    struct region *region = region_of(process, charge);
    lock_region(process, charge->region);
    enum region_result result = charge->share != 0
                                    ? region_share_reserve(region, charge->share - 1, pages)
                                    : region_reserve(region, charge->spilled ? REGION_SPILL : REGION_GPU, pages);
    unlock_region(process, charge->region);
    if (result == REGION_OK)
        charge->pages += (uint32_t)pages;
    return result_of(process, charge->region, result);
}

/* A region records only that a process holds a share, so the number of holders is counted here. False, and the share is
 * not held, if there is no memory for the count. Both functions are called under the region's lock. */
static bool hold_share(struct process *process, unsigned region, int share) {
    struct table *shares = &process->regions[region].shares;
    struct entry *known = table_find(shares, (uint64_t)share + 1);
    if (known == NULL)
        known = table_put(shares, (struct entry){.key = (uint64_t)share + 1});
    if (known != NULL)
        known->references++;
    else
        region_share_detach(&process->claims.regions[region], share);
    return known != NULL;
}

static void drop_share(struct process *process, unsigned region, int share) {
    struct table *shares = &process->regions[region].shares;
    struct entry *known = table_find(shares, (uint64_t)share + 1);
    if (known == NULL || --known->references > 0)
        return;
    table_remove(shares, known);
    region_share_detach(&process->claims.regions[region], share);
}

/* Under the region's lock. */
static bool make_share(struct process *process, struct charge *charge, uint64_t tag) {
    struct region *region = region_of(process, charge);
    int share = charge->spilled || tag == 0 ? -1 : region_share_new(region, tag);
    if (share < 0 || !hold_share(process, charge->region, share))
        return false;
    if (region_share_adopt(region, share, charge->pages) != REGION_OK) {
        drop_share(process, charge->region, share);
        return false;
    }
    charge->share = (uint16_t)(share + 1);
    return true;
}

uint16_t charge_share(struct process *process, struct charge *charge, uint64_t tag) {
    int name = -1, share = charge->share - 1;
    lock_region(process, charge->region);
    if (share < 0)
        make_share(process, charge, tag);
    else
        name = region_share_name(region_of(process, charge), share, tag);
    unlock_region(process, charge->region);
    return name == share ? 0 : (uint16_t)(name + 1);
}

void charge_unname(struct process *process, unsigned region, uint16_t name) {
    lock_region(process, region);
    region_share_detach(&process->claims.regions[region], name - 1);
    unlock_region(process, region);
}

bool charge_exporting(struct process *process, struct charge *charge, struct charge *held) {
    lock_region(process, charge->region);
    bool done = (charge->share != 0 || make_share(process, charge, tag_new())) &&
                hold_share(process, charge->region, charge->share - 1);
    unlock_region(process, charge->region);
    *held = done ? *charge : (struct charge){0};
    return done;
}

bool charge_export(struct process *process, const struct charge *held, int descriptor) {
    lock_region(process, held->region);
    bool done = region_share_export(region_of(process, held), held->share - 1, descriptor);
    unlock_region(process, held->region);
    return done;
}

static int attach(struct process *process, unsigned region, uint64_t tag) {
    lock_region(process, region);
    int share = region_share_attach(&process->claims.regions[region], tag);
    if (share >= 0 && !hold_share(process, region, share))
        share = REGION_SHARE_UNKNOWN;
    unlock_region(process, region);
    return share;
}

CUresult charge_find(struct process *process, uint64_t tag, struct charge *charge) {
    const struct claims *claims = &process->claims;
    bool unknown = false;
    *charge = (struct charge){0};
    for (unsigned i = 0; i < claims->count && charge->share == 0; i++) {
        int share = attach(process, i, tag);
        unknown = unknown || share == REGION_SHARE_UNKNOWN;
        if (share >= 0)
            *charge = (struct charge){
                .share = (uint16_t)(share + 1), .region = (uint8_t)(i & 0x7f), .gpu = (uint8_t)(claims->gpu[i] & 0x7f)};
    }
    return charge->share == 0 && unknown ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult charge_find_exported(struct process *process, int descriptor, struct charge *charge) {
    uint64_t tag;
    *charge = (struct charge){0};
    if (!tag_read(descriptor, &tag))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return tag != 0 ? charge_find(process, tag, charge) : CUDA_SUCCESS;
}

bool charge_hold(struct process *process, const struct charge *charge, struct charge *another) {
    if (charge->share == 0)
        return false;
    lock_region(process, charge->region);
    bool held = table_find(&process->regions[charge->region].shares, charge->share) != NULL;
    if (held)
        hold_share(process, charge->region, charge->share - 1);
    unlock_region(process, charge->region);
    *another = *charge;
    return held;
}

uint64_t charge_left(struct process *process, const struct charge *charge) {
    struct region *region = region_of(process, charge);
    uint64_t bytes = region_limit_bytes(region, REGION_GPU), used = region_used_bytes(region, REGION_GPU);
    return used < bytes ? (bytes - used) >> REGION_PAGE_SHIFT : 0;
}

bool charge_is_empty(struct process *process, const struct charge *charge) {
    const struct region_usage *usage = region_of(process, charge)->usage;
    return charge->share != 0 &&
           committed_pages(atomic_load(&usage->slots[charge->share - 1].held[REGION_GPU].committed)) == 0;
}

/*
 * The driver frees shared memory when its last holder lets go, and the region gives a share back when its last holder
 * does. So the maker leaves its pages in the share and only detaches.
 */
void charge_end(struct process *process, const struct charge *charge) {
    if (charge->share == 0) {
        charge_give(process, charge);
        return;
    }
    lock_region(process, charge->region);
    drop_share(process, charge->region, charge->share - 1);
    unlock_region(process, charge->region);
}
