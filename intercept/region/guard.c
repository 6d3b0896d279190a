/*
 * What keeps a program alive whose region's files are cut off.
 *
 * Touching a page of a mapping whose file has become shorter is a SIGBUS, and to ask before each operation would take a
 * system call, which is many times what the operation itself takes. So where a program leaves that signal to the kernel,
 * which would end it, we handle it: if what was touched is a region's, zeros take the place of the whole mapping, and the
 * operation then finds that they are no region. Anything else goes the way that it would have gone without us. A program
 * that has its own handler keeps it, and is asked by the kernel as ever.
 */
#include "region/words.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GUARDED_MAX 256

/* Lies outside the memory that is wiped on fork, as the mappings themselves are there in a child. But nobody touches
 * them there, so their places can be taken by the child's own. */
static struct guarded {
    _Atomic(pid_t) owner; /* 0: none; -1: being changed */
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
    /* Above 0 are the codes of faults; the others were sent by somebody. */
    bool fault = info->si_code > 0;
    if (!fault || info->si_code == BUS_MCEERR_AR || !replace((uintptr_t)info->si_addr)) {
        struct sigaction original = {.sa_handler = SIG_DFL};
        sigaction(number, &original, NULL);
        /* A fault comes again when we return; what was sent does not. */
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
