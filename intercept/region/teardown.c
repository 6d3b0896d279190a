/*
 * The order in which the kernel closes a process's files when the process ends.
 *
 * A killed process's slot and shares must not look free before the driver has freed the process's memory, or another
 * process would be granted bytes that are still in use. When a process dies, the kernel drops its references to files
 * in ascending order of their descriptors, and then releases the files as task work, in reverse order. A file that is
 * in flight in a socket's queue (SCM_RIGHTS) is released only when the socket is, and so after all descriptors,
 * whatever their numbers. The socket gets a high number: if a process and its child, which has copies of all
 * descriptors, die at the same time, both drop it after the driver's.
 *
 * Sources: close_files in Linux's fs/file.c, task_work_run in kernel/task_work.c, unix(7).
 */
#include "region/words.h"
#include "system/calls.h"

#include <errno.h>
#include <sys/socket.h>

/* Higher than the descriptors of most programs, and low enough that the descriptor table stays small. */
#define HIGH_NUMBER 1000

static int move_high(int fd) {
    int high = (int)call_fcntl(fd, F_DUPFD_CLOEXEC, HIGH_NUMBER); /* fails if RLIMIT_NOFILE is lower */
    if (high < 0)
        return call_off_streams(fd);
    call_close(fd);
    return high;
}

static bool put_in_flight(int socket, int fd) {
    union {
        char bytes[CMSG_SPACE(sizeof fd)];
        struct cmsghdr header; /* aligns it */
    } control = {.header = {.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    char byte = 0;
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    return syscall(SYS_sendmsg, socket, &message, MSG_NOSIGNAL) == 1;
}

struct region_queue region_queue_new(int fd) {
    struct region_queue queue = {.socket = -1};
    struct stat status;
    int error = errno, ends[2];
    if (syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0) {
        if (put_in_flight(ends[0], fd) && call_fstat(ends[1], &status))
            queue =
                (struct region_queue){.socket = move_high(ends[1]), .inode = status.st_ino, .device = status.st_dev};
        else
            call_close(ends[1]);
        call_close(ends[0]);
    }
    errno = error;
    return queue;
}

void region_queue_close(struct region_queue *queue) {
    struct stat status;
    /* The program may have closed it and reused its number. */
    if (queue->socket >= 0 && call_fstat(queue->socket, &status) && status.st_ino == queue->inode &&
        status.st_dev == queue->device)
        call_close(queue->socket);
    *queue = (struct region_queue){.socket = -1};
}
