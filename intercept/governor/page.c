/* The process's page. It is changed by the agent's thread alone, and by a forked child before it has other threads. */
#include "governor/page.h"

#include "governor/clock.h"
#include "system/calls.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/mman.h>

/* Written by the kernel's mapping alone. */
_Alignas(GOVERNOR_PAGE_ROOM) union governor_page_room governor_page;

/* The governor's file, mapped a second time: waiters are woken through it after the page was replaced. NULL if it is not
 * mapped. */
static struct governor_page *shared;
static dev_t device;
static ino_t inode;

/* Replaces the page. Not by mmap, which thread sanitizers take for a write to it. */
static bool replace(int flags, int descriptor) {
    long mapped =
        syscall(SYS_mmap, &governor_page, (size_t)GOVERNOR_PAGE_ROOM, PROT_READ, flags | MAP_FIXED, descriptor, 0L);
    return mapped == (long)(uintptr_t)&governor_page;
}

bool governor_page_map(int descriptor) {
    struct stat file;
    if (!call_fstat(descriptor, &file) || file.st_size < GOVERNOR_PAGE_SIZE ||
        !(call_fcntl(descriptor, F_GET_SEALS, 0) & F_SEAL_SHRINK))
        return false;
    if (shared != NULL)
        return file.st_dev == device && file.st_ino == inode;
    void *mapped = mmap(NULL, GOVERNOR_PAGE_ROOM, PROT_READ, MAP_SHARED, descriptor, 0);
    if (mapped == MAP_FAILED)
        return false;
    if (!replace(MAP_SHARED, descriptor)) {
        munmap(mapped, GOVERNOR_PAGE_ROOM);
        return false;
    }
    shared = mapped;
    device = file.st_dev;
    inode = file.st_ino;
    return true;
}

static void wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static bool make_private(void) {
    return replace(MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

/* If there is no memory for the private page, the old heartbeat opens the gates. */
void governor_page_unmap(void) {
    if (shared == NULL || !make_private())
        return;
    for (unsigned i = 0; i < GOVERNOR_GPUS_MAX; i++)
        wake(&shared->gpus[i].state);
    munmap(shared, GOVERNOR_PAGE_ROOM);
    shared = NULL;
}

void governor_page_forked(void) {
    if (shared == NULL)
        return;
    make_private();
    munmap(shared, GOVERNOR_PAGE_ROOM);
    shared = NULL;
}

void governor_page_wait(_Atomic uint32_t *word, uint32_t value, uint64_t ns) {
    struct timespec span = clock_span(ns);
    int error = errno;
    syscall(SYS_futex, word, FUTEX_WAIT, value, &span, NULL, 0);
    errno = error;
}

bool governor_page_is_alive(void) {
    uint64_t heartbeat = atomic_load_explicit(&governor_page.page.heartbeat, memory_order_relaxed);
    uint64_t now = clock_now();
    return heartbeat > now || now - heartbeat <= GOVERNOR_STALE_NS;
}
