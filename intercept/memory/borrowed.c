/*
 * KIND_EXTERNAL maps a handle to a number. KIND_EXTERNAL_MEMORY has, by that number, the charge and a reference for the
 * handle and for each address. KIND_BORROWED has the addresses, with the number or with a charge of their own. The
 * number identifies the memory, since the driver may reuse the handle while addresses exist.
 */
#include "memory/borrowed.h"

#include "driver/cuda_real.h"
#include "memory/objects.h"
#include "memory/pools.h"
#include "state/gpus.h"

bool borrowed_imported(struct process *process, CUexternalMemory memory, struct charge charge, uint32_t context) {
    uint64_t number = 1 + atomic_fetch_add(&process->externals, 1);
    return objects_put(process, KIND_EXTERNAL_MEMORY,
                       (struct entry){.key = number, .charge = charge, .references = 1}) &&
           objects_put(process, KIND_EXTERNAL,
                       (struct entry){.key = (uintptr_t)memory, .with = number, .context = context});
}

void borrowed_drop(struct process *process, uint64_t number) {
    struct entry memory;
    if (number != 0 && objects_refer(process, KIND_EXTERNAL_MEMORY, number, -1, &memory) && memory.references == 0)
        charge_end(process, &memory.charge);
}

void borrowed_destroyed(struct process *process, CUexternalMemory memory) {
    struct entry handle;
    if (objects_remove(process, KIND_EXTERNAL, (uintptr_t)memory, &handle))
        borrowed_drop(process, handle.with);
}

bool borrowed_mapping(struct process *process, CUexternalMemory memory, uint32_t context, struct entry *mapped) {
    struct entry handle, held;
    if (process == NULL || !objects_find(process, KIND_EXTERNAL, (uintptr_t)memory, &handle) ||
        !objects_refer(process, KIND_EXTERNAL_MEMORY, handle.with, 1, &held))
        return false;
    *mapped = (struct entry){.with = handle.with, .context = context};
    return true;
}

void borrowed_mapped(struct process *process, struct entry *mapped, CUresult result, uint64_t address) {
    mapped->key = address;
    if (result != CUDA_SUCCESS) {
        borrowed_drop(process, mapped->with);
        return;
    }
    pools_address_taken(process, address);
    objects_put(process, KIND_BORROWED, *mapped);
}

/* Importing takes no memory, so the size is queried before it is charged. */
static CUresult pay(struct process *process, CUdeviceptr address, struct charge *charge) {
    int device = -1, gpu;
    size_t size = 0;
    CUresult result = REAL(cuPointerGetAttribute)(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
    if (result == CUDA_SUCCESS)
        result = REAL(cuMemGetAddressRange_v2)(NULL, &size, address);
    if (result == CUDA_SUCCESS)
        result = gpus_find_claimed(process, device, &gpu);
    return result == CUDA_SUCCESS ? pools_take(process, gpu, pages_of(size), charge) : result;
}

CUresult borrowed_from_pool(struct process *process, CUmemoryPool pool, CUdeviceptr address) {
    struct entry known, mapped = {.key = address};
    CUresult result = CUDA_SUCCESS;
    if (process != NULL)
        pools_address_taken(process, address);
    if (process == NULL || !objects_find(process, KIND_POOL, (uintptr_t)pool, &known))
        return CUDA_SUCCESS;
    if (known.charge.unpaid)
        result = pay(process, address, &mapped.charge);
    else if (!charge_hold(process, &known.charge, &mapped.charge))
        return CUDA_SUCCESS;
    if (result != CUDA_SUCCESS || objects_put(process, KIND_BORROWED, mapped))
        return result;
    charge_end(process, &mapped.charge);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

bool borrowed_await_imports(struct process *process) {
    if (!process_has(process, KIND_POOL))
        return false;
    reentrant_take(&process->borrowing);
    return true;
}

bool borrowed_is_open_at(const struct entry *memory, uint64_t address) {
    return memory->with == address && memory->references % ONE_CLOSING != 0;
}

bool borrowed_find(struct process *process, uint64_t address, struct entry *memory) {
    if (objects_search(process, KIND_IPC_MEMORY, borrowed_is_open_at, address, memory))
        return true;
    return objects_find(process, KIND_BORROWED, address, memory) &&
           (memory->with == 0 || objects_find(process, KIND_EXTERNAL_MEMORY, memory->with, memory));
}

bool borrowed_freeing(struct process *process, uint64_t address, struct entry *mapped) {
    return process != NULL && objects_remove(process, KIND_BORROWED, address, mapped);
}

void borrowed_freed(struct process *process, const struct entry *mapped, CUresult result) {
    if (result != CUDA_SUCCESS)
        objects_put_back(process, KIND_BORROWED, *mapped);
    else if (mapped->with != 0)
        borrowed_drop(process, mapped->with);
    else
        charge_end(process, &mapped->charge);
}
