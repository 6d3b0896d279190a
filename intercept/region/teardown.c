/*
 * What is finalised last when a process ends.
 *
 * The slot and the shares of a process that is killed must not look free before the driver has taken its memory back, or another
 * process would be granted bytes that are still occupied. The kernel finalises a dying process's files when it runs the task's
 * work, in the reverse order in which it let go of them: the descriptors' after those that have a lower number. What is in flight
 * in the queue of a socket is let go of only when the socket itself is finalised, and so comes after all descriptors, whatever
 * their numbers are. The socket has a high number: where a process and its child, which has copies of all descriptors, die at the
 * same time, each lets go of it after the driver's. See close_files in fs/file.c, task_work_run in kernel/task_work.c, unix(7).
 */
#include "region/words.h"
#include "system/calls.h"

#include <errno.h>
#include <sys/socket.h>

/* Higher than most programs come, and low enough that the table of descriptors stays small. */
#define HIGH_NUMBER 1000

static int move_high(int fd) {
    int high = (int)call_fcntl(fd, F_DUPFD_CLOEXEC, HIGH_NUMBER); /* the process may not be allowed so many */
    if (high < 0)
        return fd;
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

struct region_queue region_queue_of(int fd) {
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

void region_queue_empty(struct region_queue *queue) {
    struct stat status;
    /* The program may have closed it, and something else have its number. */
    if (queue->socket >= 0 && call_fstat(queue->socket, &status) && status.st_ino == queue->inode &&
        status.st_dev == queue->device)
        call_close(queue->socket);
    *queue = (struct region_queue){.socket = -1};
}
