/*
 * The order of things. Bytes are reserved in the region before the driver is asked for them, and given back after it has
 * taken them back, so what the region says is never less than what is physically held. An entry is removed from a table
 * before the driver frees what it stands for and put back if the driver refuses, so an address that the driver hands out
 * again in between never meets its former self.
 *
 * Small allocations. The GPU maps memory in blocks of 2 MiB, and the driver packs small allocations into such blocks. Which
 * block an allocation went to is known only from its address. So a whole block is reserved beforehand and given back at
 * once if the block was counted already; the last allocation that leaves a block gives it back.
 */
#include "account.h"

#include "claims.h"
#include "cuda_real.h"
#include "explain.h"
#include "lock.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define DEVICES_MAX 64

#define BLOCK_SHIFT 21 /* 2 MiB */
#define BLOCK_BYTES (UINT64_C(1) << BLOCK_SHIFT)
#define BLOCK_PAGES (BLOCK_BYTES >> REGION_PAGE_SHIFT)
#define PACKED_BELOW_BYTES (UINT64_C(1) << 20)

/* What find_gpu remembers of a device; 0 is unknown. */
#define NO_CLAIM (-1)

/* The GPU of the context that was asked for last, for those who only want to know that and so need no lock. It is written
 * under the lock; `version` is odd meanwhile, and a reader that sees it odd or changed has read nothing. */
struct hint {
    _Atomic uint32_t version;
    _Atomic int gpu;
    _Atomic uintptr_t context;
};

struct account {
    struct lock opening;
    _Atomic bool open;
    struct lock lock; /* of all that follows, and of operations on the regions */
    struct claims claims;
    struct table allocations; /* by address */
    struct table blocks;      /* by address >> BLOCK_SHIFT */
    struct table contexts;    /* by handle */
    struct hint hint;
    uint32_t last_serial;
    _Atomic int gpus[DEVICES_MAX]; /* by device: its GPU + 1, or NO_CLAIM */
    struct lock lifecycles[DEVICES_MAX];
    CUcontext primaries[DEVICES_MAX];
};

/* The account's memory; its contents are wiped in a forked child, this pointer is not. */
static struct account *memory(void) {
    static _Atomic(struct account *) mapped;
    struct account *account = atomic_load_explicit(&mapped, memory_order_acquire);
    if (account != NULL)
        return account;
    int error = errno;
    struct account *fresh = mmap(NULL, sizeof *fresh, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) {
        explain(CAUSE_REGION, "no memory for accounting: errno %d", errno);
    } else if (madvise(fresh, sizeof *fresh, MADV_WIPEONFORK) != 0) {
        explain(CAUSE_REGION,
                "this kernel cannot keep memory from forked processes (MADV_WIPEONFORK, errno %d); "
                "Linux 4.14 or newer is needed",
                errno);
        munmap(fresh, sizeof *fresh);
    } else if (atomic_compare_exchange_strong(&mapped, &account, fresh)) {
        account = fresh;
    } else {
        munmap(fresh, sizeof *fresh); /* another thread was faster */
    }
    errno = error;
    return account;
}

static CUresult get(struct account **result) {
    struct account *account = *result = memory();
    if (account == NULL)
        return CUDA_ERROR_SYSTEM_NOT_READY;
    if (atomic_load_explicit(&account->open, memory_order_acquire))
        return CUDA_SUCCESS;

    int error = errno;
    char why[512];
    lock_take(&account->opening);
    bool open = atomic_load(&account->open) || claims_open(&account->claims, true, why, sizeof why);
    atomic_store_explicit(&account->open, open, memory_order_release);
    lock_give(&account->opening);
    if (!open)
        explain(CAUSE_REGION,
                "no GPU for this process, because its limit cannot be read: %s; start it in a container "
                "that was given GPU slices, or by `tranche run`",
                why);
    errno = error;
    return open ? CUDA_SUCCESS : CUDA_ERROR_SYSTEM_NOT_READY;
}

CUresult account_open(void) {
    struct account *account;
    return get(&account);
}

/* --- devices ------------------------------------------------------------------------------------------------------- */

static CUresult read_uuid(CUdevice device, char uuid[static 41]) {
    CUuuid raw;
    /* The second version tells MIG instances apart. */
    CUresult result = REAL(cuDeviceGetUuid_v2)(&raw, device);
    if (result == CUDA_ERROR_NOT_SUPPORTED)
        result = REAL(cuDeviceGetUuid)(&raw, device);
    if (result != CUDA_SUCCESS)
        return result;
    char *at = uuid + snprintf(uuid, 41, "GPU-");
    for (int i = 0; i < 16; i++)
        at += snprintf(at, 4, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", (unsigned char)raw.bytes[i]);
    return CUDA_SUCCESS;
}

/* Which GPU of ours a device is. `gpu` is NO_CLAIM if none, which is no error here. */
static CUresult find_gpu(struct account *account, CUdevice device, int *gpu) {
    bool remembered = device >= 0 && device < DEVICES_MAX;
    int known = remembered ? atomic_load_explicit(&account->gpus[device], memory_order_relaxed) : 0;
    if (known == 0) {
        char uuid[41];
        CUresult result = read_uuid(device, uuid);
        if (result != CUDA_SUCCESS)
            return result;
        int found = claims_find_gpu(&account->claims, uuid);
        known = found >= 0 ? found + 1 : NO_CLAIM;
        if (remembered)
            atomic_store_explicit(&account->gpus[device], known, memory_order_relaxed);
    }
    *gpu = known == NO_CLAIM ? NO_CLAIM : known - 1;
    return CUDA_SUCCESS;
}

static CUresult find_claimed_gpu(struct account *account, CUdevice device, int *gpu) {
    CUresult result = find_gpu(account, device, gpu);
    if (result != CUDA_SUCCESS || *gpu != NO_CLAIM)
        return result;
    explain(CAUSE_NO_CLAIM,
            "CUDA device %d is visible, but this process has no claim on it; hide it with "
            "CUDA_VISIBLE_DEVICES, or ask for slices of it",
            device);
    return CUDA_ERROR_NOT_PERMITTED;
}

CUresult account_device_limit(CUdevice device, uint64_t *limit_bytes) {
    struct account *account;
    int gpu;
    CUresult result = get(&account);
    if (result == CUDA_SUCCESS)
        result = find_gpu(account, device, &gpu);
    if (result == CUDA_SUCCESS)
        *limit_bytes = gpu == NO_CLAIM ? 0 : claims_limit_bytes(&account->claims, gpu);
    return result;
}

/* --- charges ------------------------------------------------------------------------------------------------------- */

static uint64_t minimum(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Pages that an allocation takes, and whether it shares them. Sizes that would wrap are more than any limit anyway. */
static uint64_t pages_of(uint64_t bytes, bool *packed) {
    *packed = bytes < PACKED_BELOW_BYTES;
    uint64_t blocks = (bytes >> BLOCK_SHIFT) + ((bytes & (BLOCK_BYTES - 1)) != 0);
    return (blocks ? blocks : 1) * BLOCK_PAGES;
}

static void release(struct account *account, uint16_t region, uint64_t pages) {
    region_release(&account->claims.regions[region], pages);
}

static CUresult reserve(struct account *account, struct grant *grant, uint64_t pages) {
    switch (claims_reserve(&account->claims, grant->gpu, pages, &grant->region)) {
    case REGION_OK:
        return CUDA_SUCCESS;
    case REGION_FULL:
        return CUDA_ERROR_OUT_OF_MEMORY;
    case REGION_BROKEN:
        break;
    }
    explain(CAUSE_REGION_BROKEN, "%s was damaged while in use; restart the container",
            account->claims.regions[grant->region].usage_path);
    return CUDA_ERROR_SYSTEM_NOT_READY;
}

static bool promise_allocation(struct account *account) {
    if (!table_promise(&account->allocations))
        return false;
    if (table_promise(&account->blocks))
        return true;
    table_unpromise(&account->allocations);
    return false;
}

static void unpromise_allocation(struct account *account) {
    table_unpromise(&account->allocations);
    table_unpromise(&account->blocks);
}

/* Gives back what an allocation is charged with, whose entry is no longer in the table. */
static void discharge(struct account *account, const struct entry *allocation) {
    if (allocation->pages != 0) {
        release(account, allocation->region, allocation->pages);
        return;
    }
    struct entry *block = table_find(&account->blocks, allocation->key >> BLOCK_SHIFT);
    if (block == NULL || --block->references > 0)
        return;
    uint16_t region = block->region;
    table_remove(&account->blocks, block);
    release(account, region, BLOCK_PAGES);
}

/* Gives back every allocation that lived in a context. */
static void discharge_all_of(struct account *account, uint32_t context) {
    struct table *table = &account->allocations;
    for (size_t i = 0; i < table->capacity;) {
        struct entry allocation = table->entries[i];
        if (allocation.key == 0 || allocation.context != context) {
            i++;
            continue;
        }
        table_remove(table, &table->entries[i]); /* another may move here, so look at this place again */
        discharge(account, &allocation);
    }
}

/* --- allocations --------------------------------------------------------------------------------------------------- */

/* The GPU and the serial number of the current context. On success, and only then, the account is locked. A context that we
 * have not seen being made has serial 0. */
static CUresult lock_current(struct account *account, int *gpu, uint32_t *serial) {
    CUcontext context = NULL;
    CUresult result = REAL(cuCtxGetCurrent)(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;

    lock_take(&account->lock);
    const struct entry *known = table_find(&account->contexts, (uintptr_t)context);
    if (known != NULL) {
        *gpu = known->gpu;
        *serial = known->context;
        return CUDA_SUCCESS;
    }
    lock_give(&account->lock);

    CUdevice device;
    result = REAL(cuCtxGetDevice)(&device);
    if (result == CUDA_SUCCESS)
        result = find_claimed_gpu(account, device, gpu);
    if (result == CUDA_SUCCESS) {
        *serial = 0;
        lock_take(&account->lock);
    }
    return result;
}

static void set_hint(struct account *account, CUcontext context, int gpu) {
    struct hint *hint = &account->hint;
    uint32_t version = atomic_load_explicit(&hint->version, memory_order_relaxed);
    atomic_store(&hint->version, version + 1);
    atomic_store(&hint->context, (uintptr_t)context);
    atomic_store(&hint->gpu, gpu);
    atomic_store(&hint->version, version + 2);
}

static bool read_hint(struct account *account, CUcontext context, int *gpu) {
    struct hint *hint = &account->hint;
    uint32_t version = atomic_load(&hint->version);
    bool found = version % 2 == 0 && atomic_load(&hint->context) == (uintptr_t)context;
    *gpu = atomic_load(&hint->gpu);
    return found && atomic_load(&hint->version) == version;
}

/* The GPU of the current context. */
static CUresult find_current_gpu(struct account *account, int *gpu) {
    CUcontext context = NULL;
    uint32_t serial;
    CUresult result = REAL(cuCtxGetCurrent)(&context);
    if (result != CUDA_SUCCESS || (context != NULL && read_hint(account, context, gpu)))
        return result;
    result = lock_current(account, gpu, &serial);
    if (result == CUDA_SUCCESS) {
        if (serial != 0) /* else we would not see it end */
            set_hint(account, context, *gpu);
        lock_give(&account->lock);
    }
    return result;
}

CUresult account_grant(struct grant *grant, uint64_t bytes) {
    struct account *account = memory();
    if (account == NULL)
        return CUDA_ERROR_SYSTEM_NOT_READY;
    if (!atomic_load_explicit(&account->open, memory_order_acquire)) {
        /* Ask the driver first: if it is not initialised, that is what is wrong. */
        CUcontext context;
        CUresult result = REAL(cuCtxGetCurrent)(&context);
        if (result != CUDA_SUCCESS || (result = get(&account)) != CUDA_SUCCESS)
            return result;
    }

    int gpu = 0;
    grant->pages = pages_of(bytes, &grant->packed);
    CUresult result = lock_current(account, &gpu, &grant->context);
    if (result != CUDA_SUCCESS)
        return result;
    grant->gpu = (uint16_t)gpu;
    result = CUDA_ERROR_OUT_OF_MEMORY;
    if (promise_allocation(account)) {
        result = reserve(account, grant, grant->pages);
        if (result != CUDA_SUCCESS)
            unpromise_allocation(account);
    }
    lock_give(&account->lock);
    return result;
}

CUresult account_resize(struct grant *grant, uint64_t bytes) {
    struct account *account = memory();
    bool packed;
    uint64_t pages = pages_of(bytes, &packed);
    CUresult result = CUDA_SUCCESS;
    lock_take(&account->lock);
    if (pages > grant->pages) {
        /* In the same region: an entry has one. */
        switch (region_reserve(&account->claims.regions[grant->region], pages - grant->pages)) {
        case REGION_OK:
            break;
        case REGION_FULL:
            result = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        case REGION_BROKEN:
            result = CUDA_ERROR_SYSTEM_NOT_READY;
            break;
        }
    } else {
        release(account, grant->region, grant->pages - pages);
    }
    if (result == CUDA_SUCCESS) {
        grant->pages = pages;
        grant->packed = packed;
    }
    lock_give(&account->lock);
    return result;
}

/* Counts a packed allocation's block, or gives the grant back if it is counted already. */
static void count_block(struct account *account, const struct grant *grant, uint64_t key) {
    struct entry *block = table_find(&account->blocks, key);
    if (block != NULL) {
        block->references++;
        table_unpromise(&account->blocks);
        release(account, grant->region, grant->pages);
    } else {
        table_put(&account->blocks,
                  (struct entry){.key = key, .references = 1, .region = grant->region, .gpu = grant->gpu});
    }
}

CUresult account_allocated(struct grant *grant, CUresult result, CUdeviceptr address, uint64_t bytes) {
    struct account *account = memory();
    lock_take(&account->lock);
    if (result != CUDA_SUCCESS || address == 0) {
        unpromise_allocation(account);
        release(account, grant->region, grant->pages);
        lock_give(&account->lock);
        return result;
    }

    struct entry *former = table_find(&account->allocations, address);
    if (former != NULL) {
        /* The driver freed it in a way that we did not see. */
        struct entry gone = *former;
        table_remove(&account->allocations, former);
        discharge(account, &gone);
    }
    struct entry allocation = {.key = address, .context = grant->context, .region = grant->region, .gpu = grant->gpu};
    /* One that spans two blocks was not packed after all, and is charged by itself. */
    if (grant->packed && address >> BLOCK_SHIFT == (address + bytes - 1) >> BLOCK_SHIFT) {
        count_block(account, grant, address >> BLOCK_SHIFT);
    } else {
        table_unpromise(&account->blocks);
        allocation.pages = (uint32_t)grant->pages;
    }
    table_put(&account->allocations, allocation);
    lock_give(&account->lock);
    return result;
}

bool account_freeing(CUdeviceptr address, struct entry *allocation) {
    struct account *account = memory();
    if (account == NULL || !atomic_load_explicit(&account->open, memory_order_acquire))
        return false;
    lock_take(&account->lock);
    struct entry *known = table_find(&account->allocations, address);
    bool found = known != NULL;
    if (found) {
        *allocation = *known;
        table_remove(&account->allocations, known);
        account->allocations.promised++; /* the place that it had, should it have to go back */
    }
    lock_give(&account->lock);
    return found;
}

void account_freed(struct entry allocation, CUresult result) {
    struct account *account = memory();
    lock_take(&account->lock);
    if (result != CUDA_SUCCESS && table_find(&account->allocations, allocation.key) == NULL) {
        table_put(&account->allocations, allocation);
    } else {
        table_unpromise(&account->allocations);
        discharge(account, &allocation);
    }
    lock_give(&account->lock);
}

CUresult account_current_limit(uint64_t *limit_bytes, uint64_t *free_bytes) {
    struct account *account;
    int gpu = 0;
    CUresult result = get(&account);
    if (result == CUDA_SUCCESS)
        result = find_current_gpu(account, &gpu);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t limit = claims_limit_bytes(&account->claims, gpu);
    *limit_bytes = limit;
    *free_bytes = limit - minimum(limit, claims_used_bytes(&account->claims, gpu));
    return CUDA_SUCCESS;
}

/* --- contexts ------------------------------------------------------------------------------------------------------ */

CUresult account_grant_context(struct grant *grant, CUdevice device) {
    struct account *account;
    char uuid[41];
    int gpu;
    CUresult result = read_uuid(device, uuid); /* the driver's word first: not initialised, no such device */
    if (result == CUDA_SUCCESS)
        result = get(&account);
    if (result == CUDA_SUCCESS)
        result = find_claimed_gpu(account, device, &gpu);
    if (result != CUDA_SUCCESS)
        return result;

    uint64_t bytes = claims_context_bytes(&account->claims, gpu);
    uint64_t limit = claims_limit_bytes(&account->claims, gpu);
    if (bytes > limit) {
        explain(CAUSE_CONTEXT_SIZE,
                "a CUDA context takes %llu MiB of GPU memory, but the limit is %llu MiB; ask for more",
                (unsigned long long)(bytes >> 20), (unsigned long long)(limit >> 20));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *grant =
        (struct grant){.gpu = (uint16_t)gpu, .pages = (bytes + (1u << REGION_PAGE_SHIFT) - 1) >> REGION_PAGE_SHIFT};
    lock_take(&account->lock);
    result = CUDA_ERROR_OUT_OF_MEMORY;
    if (table_promise(&account->contexts)) {
        result = reserve(account, grant, grant->pages);
        if (result != CUDA_SUCCESS)
            table_unpromise(&account->contexts);
    }
    lock_give(&account->lock);
    return result;
}

static void count_contexts(struct account *account, uint16_t region, int change) {
    struct region *charged = &account->claims.regions[region];
    atomic_fetch_add_explicit(&charged->usage->slots[charged->slot].contexts, change, memory_order_relaxed);
}

static void drop_context(struct account *account, struct entry *entry) {
    struct entry context = *entry;
    table_remove(&account->contexts, entry);
    set_hint(account, NULL, NO_CLAIM);
    discharge_all_of(account, context.context);
    release(account, context.region, context.pages);
    count_contexts(account, context.region, -1);
}

static uint32_t next_serial(struct account *account) {
    if (++account->last_serial == 0)
        account->last_serial = 1;
    return account->last_serial;
}

CUresult account_created(struct grant *grant, CUresult result, CUcontext context) {
    struct account *account = memory();
    lock_take(&account->lock);
    if (result != CUDA_SUCCESS || context == NULL) {
        table_unpromise(&account->contexts);
        release(account, grant->region, grant->pages);
    } else {
        struct entry *former = table_find(&account->contexts, (uintptr_t)context);
        if (former != NULL) /* destroyed in a way that we did not see */
            drop_context(account, former);
        table_put(&account->contexts, (struct entry){.key = (uintptr_t)context,
                                                     .pages = (uint32_t)grant->pages,
                                                     .context = next_serial(account),
                                                     .region = grant->region,
                                                     .gpu = grant->gpu});
        count_contexts(account, grant->region, 1);
    }
    lock_give(&account->lock);
    return result;
}

uint32_t account_context_serial(CUcontext context) {
    struct account *account = memory();
    if (account == NULL || !atomic_load_explicit(&account->open, memory_order_acquire))
        return 0;
    lock_take(&account->lock);
    const struct entry *known = table_find(&account->contexts, (uintptr_t)context);
    uint32_t serial = known != NULL ? known->context : 0;
    lock_give(&account->lock);
    return serial;
}

void account_destroyed(CUcontext context, uint32_t serial) {
    struct account *account = memory();
    if (serial == 0)
        return;
    lock_take(&account->lock);
    struct entry *known = table_find(&account->contexts, (uintptr_t)context);
    if (known != NULL && known->context == serial)
        drop_context(account, known);
    lock_give(&account->lock);
}

/* --- primary contexts ---------------------------------------------------------------------------------------------- */

CUresult account_primary_enter(CUdevice device) {
    struct account *account = memory();
    if (account == NULL)
        return CUDA_ERROR_SYSTEM_NOT_READY;
    if (device < 0 || device >= DEVICES_MAX)
        return CUDA_ERROR_INVALID_DEVICE;
    lock_take(&account->lifecycles[device]);
    return CUDA_SUCCESS;
}

void account_primary_leave(CUdevice device) {
    lock_give(&memory()->lifecycles[device]);
}

static bool is_active(CUdevice device) {
    unsigned int flags;
    int active = 0;
    return REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS || active;
}

CUresult account_grant_primary(struct grant *grant, CUdevice device) {
    struct account *account = memory();
    CUcontext primary = account->primaries[device];
    *grant = (struct grant){0};
    if (primary == NULL)
        return account_grant_context(grant, device);
    /* It is charged for. Should it have ended in a way that we did not see, its memory ended with it. */
    if (!is_active(device))
        account_primary_reset(device);
    return account->primaries[device] != NULL ? CUDA_SUCCESS : account_grant_context(grant, device);
}

CUresult account_retained(struct grant *grant, CUresult result, CUdevice device, CUcontext context) {
    struct account *account = memory();
    if (account->primaries[device] != NULL)
        return result;
    account_created(grant, result, context);
    if (result == CUDA_SUCCESS)
        account->primaries[device] = context;
    return result;
}

void account_primary_released(CUdevice device) {
    struct account *account = memory();
    CUcontext primary = account->primaries[device];
    if (primary == NULL || is_active(device))
        return;
    account_destroyed(primary, account_context_serial(primary));
    account->primaries[device] = NULL;
}

void account_primary_reset(CUdevice device) {
    struct account *account = memory();
    CUcontext primary = account->primaries[device];
    if (primary == NULL)
        return;
    /* Whether or not the context itself goes on, what was allocated in it is gone. */
    uint32_t serial = account_context_serial(primary);
    lock_take(&account->lock);
    discharge_all_of(account, serial);
    lock_give(&account->lock);
    account_primary_released(device);
}
