/*
 * System calls that bypass the C library. glibc's open, close and pread are cancellation points: a thread that is
 * cancelled inside the shadow library would leave a lock held for ever. fstat and fcntl have symbol versions that are
 * newer than the oldest glibc that the shadow library supports. These functions set errno as glibc's do.
 */
#ifndef TRANCHE_CALLS_H
#define TRANCHE_CALLS_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static inline int call_close(int descriptor) {
#ifdef __SANITIZE_THREAD__
    return close(descriptor); /* else it takes the next descriptor of this number for this one, and reports a race */
#else
    return (int)syscall(SYS_close, descriptor);
#endif
}

/* Moves a descriptor away from the numbers of the standard streams: a program that has closed these may write to them all
 * the same. -1 if there is no other number. */
static inline int call_off_streams(int descriptor) {
    if (descriptor < 0 || descriptor > STDERR_FILENO)
        return descriptor;
    int moved = (int)syscall(SYS_fcntl, descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
    call_close(descriptor);
    errno = error;
    return moved;
}

static inline int call_open(const char *path, int flags) {
    return call_off_streams((int)syscall(SYS_openat, AT_FDCWD, path, flags, 0));
}

static inline ssize_t call_pread(int descriptor, void *bytes, size_t size, off_t offset) {
    return syscall(SYS_pread64, descriptor, bytes, size, offset);
}

static inline bool call_fstat(int descriptor, struct stat *status) {
    return syscall(SYS_fstat, descriptor, status) == 0;
}

static inline long call_fcntl(int descriptor, int command, uintptr_t argument) {
    return syscall(SYS_fcntl, descriptor, command, argument);
}

/* What getdents64(2) returns; readdir would use the program's malloc. */
struct directory_entry {
    uint64_t inode;
    int64_t offset;
    uint16_t length;
    uint8_t type;
    char name[];
};

#endif
