/*
 * Keeps a program alive when its region's files are truncated.
 *
 * Access to a page of a mapping beyond the end of its file raises SIGBUS. Checking before each operation would need a
 * system call, which takes many times as long as the operation. So if the program leaves SIGBUS at its default, which
 * ends the program, this file handles it: if the address is in a region, the whole mapping is replaced by zeros, and
 * the operation then finds a broken region. Any other fault has its default effect. A program's own handler for SIGBUS
 * is left in place.
 */
#include "region/words.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GUARDED_MAX 256

/* Not in the memory that is wiped on fork, since a child inherits the mappings. It does not use them, so its own
 * mappings may take their entries. Changed by compare-and-swap of `owner`. */
static struct guarded {
    _Atomic(pid_t) owner; /* a process; 0: free; -1: being changed */
    _Atomic uintptr_t start;
    _Atomic size_t size;
} guarded[GUARDED_MAX];

static struct guarded *find(uintptr_t address) {
    for (unsigned i = 0; i < GUARDED_MAX; i++) {
        uintptr_t start = atomic_load(&guarded[i].start);
        if (address >= start && address - start < atomic_load(&guarded[i].size))
            return &guarded[i];
    }
    return NULL;
}

static bool replace(uintptr_t address) {
    const struct guarded *hit = find(address);
    if (hit == NULL)
        return false;
    void *start = (void *)atomic_load(&hit->start); /* NOLINT(performance-no-int-to-ptr) */
    return mmap(start, atomic_load(&hit->size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                0) != MAP_FAILED;
}

static void on_fault(int number, siginfo_t *info, void *context) {
    (void)context;
    int error = errno;
    /* Codes above 0 are faults; others were sent by a process (sigaction(2)). */
    bool fault = info->si_code > 0;
    if (!fault || info->si_code == BUS_MCEERR_AR || !replace((uintptr_t)info->si_addr)) {
        struct sigaction original = {.sa_handler = SIG_DFL};
        sigaction(number, &original, NULL);
        /* A fault recurs after the return; a sent signal does not. */
        if (!fault || info->si_code == BUS_MCEERR_AO)
            syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number);
    }
    errno = error;
}

static void handle_faults(void) {
    struct sigaction present;
    if (sigaction(SIGBUS, NULL, &present) != 0 || (present.sa_flags & SA_SIGINFO) || present.sa_handler != SIG_DFL)
        return;
    struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigemptyset(&ours.sa_mask);
    sigaction(SIGBUS, &ours, NULL);
}

void region_guard(void *start, size_t size) {
    pid_t self = getpid();
    for (unsigned i = 0; i < GUARDED_MAX; i++) {
        pid_t owner = atomic_load(&guarded[i].owner);
        if (owner == self || owner == -1 || !atomic_compare_exchange_strong(&guarded[i].owner, &owner, -1))
            continue;
        atomic_store(&guarded[i].size, 0);
        atomic_store(&guarded[i].start, (uintptr_t)start);
        atomic_store(&guarded[i].size, size);
        atomic_store(&guarded[i].owner, self);
        break;
    }
    handle_faults();
}

void region_unguard(const void *start) {
    for (unsigned i = 0; i < GUARDED_MAX; i++) {
        pid_t self = getpid();
        if (atomic_load(&guarded[i].start) != (uintptr_t)start ||
            !atomic_compare_exchange_strong(&guarded[i].owner, &self, -1))
            continue;
        atomic_store(&guarded[i].size, 0);
        atomic_store(&guarded[i].start, 0);
        atomic_store(&guarded[i].owner, 0);
        return;
    }
}
