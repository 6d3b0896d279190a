#include "state/process.h"

#include "system/explain.h"

#include <errno.h>
#include <sys/mman.h>

struct process *process_memory(void) {
    /* A forked child keeps this pointer, to memory that was wiped. */
    static _Atomic(struct process *) mapped;
    struct process *process = atomic_load_explicit(&mapped, memory_order_acquire);
    if (process != NULL)
        return process;
    int error = errno;
    struct process *fresh = mmap(NULL, sizeof *fresh, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) {
        explain(CAUSE_REGION, "cannot map memory for accounting: errno %d", errno);
    } else if (madvise(fresh, sizeof *fresh, MADV_WIPEONFORK) != 0) {
        explain(CAUSE_REGION,
                "cannot keep memory from forked processes: madvise(MADV_WIPEONFORK): errno %d; "
                "Linux 4.14 or newer is required",
                errno);
        munmap(fresh, sizeof *fresh);
    } else if (atomic_compare_exchange_strong(&mapped, &process, fresh)) {
        process = fresh;
    } else {
        munmap(fresh, sizeof *fresh); /* another thread was faster */
    }
    errno = error;
    return process;
}

struct process *process_if_open(void) {
    struct process *process = process_memory();
    return process != NULL && atomic_load_explicit(&process->open, memory_order_acquire) ? process : NULL;
}

CUresult process_open(struct process **result) {
    struct process *process = *result = process_memory();
    if (process == NULL)
        return CUDA_ERROR_SYSTEM_NOT_READY;
    if (atomic_load_explicit(&process->open, memory_order_acquire))
        return CUDA_SUCCESS;

    int error = errno;
    lock_take(&process->opening);
    bool open = atomic_load(&process->open) || process_claims(&process->claims);
    atomic_store_explicit(&process->open, open, memory_order_release);
    lock_give(&process->opening);
    errno = error;
    return open ? CUDA_SUCCESS : CUDA_ERROR_SYSTEM_NOT_READY;
}
