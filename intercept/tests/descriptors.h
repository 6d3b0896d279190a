/* Descriptors that go from process to process through a socket. */
#ifndef TRANCHE_TEST_DESCRIPTORS_H
#define TRANCHE_TEST_DESCRIPTORS_H

#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

union descriptor_control {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr header; /* aligns it */
};

/* Sends a descriptor and closes it here. */
static inline bool descriptor_send(int to, int descriptor) {
    union descriptor_control control = {
        .header = {.cmsg_len = CMSG_LEN(sizeof descriptor), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    struct iovec byte = {.iov_base = (char[]){0}, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.bytes};
    memcpy(CMSG_DATA(&control.header), &descriptor, sizeof descriptor);
    return sendmsg(to, &message, MSG_NOSIGNAL) == 1 && close(descriptor) == 0;
}

/* Waits for a descriptor; -1 if the other end is closed. */
static inline int descriptor_receive(int from) {
    union descriptor_control control;
    char data;
    struct iovec byte = {.iov_base = &data, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    int descriptor = -1;
    if (recvmsg(from, &message, MSG_CMSG_CLOEXEC) == 1 && message.msg_controllen != 0)
        memcpy(&descriptor, CMSG_DATA(&control.header), sizeof descriptor);
    return descriptor;
}

#endif
