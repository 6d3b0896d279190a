/* The messages of the simulated MPS, over sockets of the file system. */
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "mps.h"

bool mps_send(int socket, const struct mps_message *message, int fd) {
    struct mps_message versioned = *message;
    struct iovec bytes = {&versioned, sizeof(versioned)};
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr header;
    } control = {0};
    struct msghdr header = {.msg_iov = &bytes, .msg_iovlen = 1};

    versioned.version = MPS_VERSION;
    if (fd >= 0) {
        header.msg_control = control.space;
        header.msg_controllen = sizeof(control.space);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
    }
    return sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(versioned);
}

bool mps_receive(int socket, struct mps_message *message, int *fd) {
    struct iovec bytes = {message, sizeof(*message)};
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr header;
    } control = {0};
    struct msghdr header = {.msg_iov = &bytes, .msg_iovlen = 1};
    ssize_t got;

    if (fd != NULL) {
        *fd = -1;
        header.msg_control = control.space;
        header.msg_controllen = sizeof(control.space);
    }
    do {
        got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&header); got >= 0 && c != NULL; c = CMSG_NXTHDR(&header, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
            memcpy(fd, CMSG_DATA(c), sizeof(*fd));
    }
    if (got == (ssize_t)sizeof(*message) && message->version == MPS_VERSION) {
        message->text[sizeof(message->text) - 1] = '\0';
        return true;
    }
    if (fd != NULL && *fd >= 0)
        close(*fd);
    return false;
}

static bool address_of(const char *path, struct sockaddr_un *address) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address->sun_path))
        return false;
    strcpy(address->sun_path, path);
    return true;
}

int mps_listen(const char *path, mode_t mode) {
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), ret;
    struct sockaddr_un address;

    if (!address_of(path, &address)) {
        close(fd);
        return -ENAMETOOLONG;
    }
    if (fd >= 0 && (unlink(path) == 0 || errno == ENOENT) &&
        bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 && chmod(path, mode) == 0 && listen(fd, 128) == 0)
        return fd;
    ret = -errno;
    if (fd >= 0)
        close(fd);
    return ret;
}

int mps_connect(const char *path) {
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), ret;
    struct sockaddr_un address;

    if (!address_of(path, &address)) {
        close(fd);
        return -ENAMETOOLONG;
    }
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    ret = -errno;
    if (fd >= 0)
        close(fd);
    return ret;
}

struct mps_peer mps_peer(int socket) {
    struct ucred credentials = {0, (uid_t)-1, (gid_t)-1};
    socklen_t size = sizeof(credentials);

    getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size);
    return (struct mps_peer){credentials.pid, credentials.uid};
}
