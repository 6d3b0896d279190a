/*
 * Memory that two processes share: made by one, opened by the other, which lives on when the first is killed.
 *
 *   probe share ipc|vmm|pool BYTES
 *
 * The maker is the process that was started; its child opens. Whoever runs this kills the maker at the step "shared", and
 * the child goes on from there.
 */
#include "probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the maker tells the opener, and what it answers. */
struct message {
    CUresult result;
    union {
        CUipcMemHandle ipc;
        CUpoolPointer pointer;
    };
};

static bool send_message(int socket, const struct message *message, int descriptor) {
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec data = {(void *)message, sizeof *message};
    struct msghdr header = {.msg_iov = &data, .msg_iovlen = 1};
    if (descriptor >= 0) {
        header.msg_control = control;
        header.msg_controllen = sizeof control;
        struct cmsghdr *part = CMSG_FIRSTHDR(&header);
        part->cmsg_level = SOL_SOCKET;
        part->cmsg_type = SCM_RIGHTS;
        part->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(part), &descriptor, sizeof(int));
    }
    return sendmsg(socket, &header, MSG_NOSIGNAL) == (ssize_t)sizeof *message;
}

/* False when the other is gone. */
static bool receive_message(int socket, struct message *message, int *descriptor) {
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec data = {message, sizeof *message};
    struct msghdr header = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(socket, &header, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof *message)
        return false;
    struct cmsghdr *part = CMSG_FIRSTHDR(&header);
    if (part != NULL && part->cmsg_type == SCM_RIGHTS)
        memcpy(descriptor, CMSG_DATA(part), sizeof(int));
    return true;
}

/* --- the ways to share: each makes, opens and closes --- */

static CUdeviceptr address;
static CUhandle memory;
static CUmemoryPool pool;

static CUresult make_ipc(uint64_t bytes, struct message *message, int *descriptor) {
    (void)descriptor;
    CUresult result = cuda.cuMemAlloc_v2(&address, bytes);
    return result == CUDA_SUCCESS ? CALL(cuIpcGetMemHandle, &message->ipc, address) : result;
}

static CUresult open_ipc(uint64_t bytes, struct message *message, int descriptor) {
    enum { LAZY_PEER_ACCESS = 1 };
    (void)bytes, (void)descriptor;
    return CALL(cuIpcOpenMemHandle_v2, &address, message->ipc, LAZY_PEER_ACCESS);
}

static CUresult close_ipc(uint64_t bytes) {
    (void)bytes;
    return cuda.cuIpcCloseMemHandle(address);
}

static CUresult make_vmm(uint64_t bytes, struct message *message, int *descriptor) {
    (void)message;
    CUmemAllocationProp properties = device_memory(true);
    CUresult result = CALL(cuMemCreate, &memory, bytes, &properties, 0);
    return result == CUDA_SUCCESS ? cuda.cuMemExportToShareableHandle(descriptor, memory, HANDLE_POSIX_FD, 0) : result;
}

static CUresult open_vmm(uint64_t bytes, struct message *message, int descriptor) {
    (void)message;
    void *exported = (void *)(intptr_t)descriptor;
    CUresult result = CALL(cuMemImportFromShareableHandle, &memory, exported, HANDLE_POSIX_FD);
    close(descriptor);
    return result == CUDA_SUCCESS ? map_memory(memory, bytes, &address) : result;
}

static CUresult close_vmm(uint64_t bytes) {
    unmap_memory(address, bytes);
    return cuda.cuMemRelease(memory);
}

static CUresult make_pool(uint64_t bytes, struct message *message, int *descriptor) {
    CUmemPoolProps properties = device_pool(true);
    CUresult result = CALL(cuMemPoolCreate, &pool, &properties);
    if (result == CUDA_SUCCESS)
        result = cuda.cuMemPoolExportToShareableHandle(descriptor, pool, HANDLE_POSIX_FD, 0);
    if (result == CUDA_SUCCESS)
        result = cuda.cuMemAllocFromPoolAsync(&address, bytes, pool, NULL);
    if (result == CUDA_SUCCESS)
        result = cuda.cuStreamSynchronize(NULL);
    return result == CUDA_SUCCESS ? cuda.cuMemPoolExportPointer(&message->pointer, address) : result;
}

static CUresult open_pool(uint64_t bytes, struct message *message, int descriptor) {
    (void)bytes;
    void *exported = (void *)(intptr_t)descriptor;
    CUmemAccessDesc access = device_access();
    CUresult result = CALL(cuMemPoolImportFromShareableHandle, &pool, exported, HANDLE_POSIX_FD, 0);
    if (result == CUDA_SUCCESS)
        cuda.cuMemPoolSetAccess(pool, &access, 1);
    close(descriptor);
    return result == CUDA_SUCCESS ? cuda.cuMemPoolImportPointer(&address, pool, &message->pointer) : result;
}

static CUresult close_pool(uint64_t bytes) {
    (void)bytes;
    CUresult result = cuda.cuMemFree_v2(address);
    cuda.cuMemPoolDestroy(pool);
    return result;
}

static const struct sharing {
    const char *name;
    const char *const *functions;
    CUresult (*make)(uint64_t bytes, struct message *message, int *descriptor);
    CUresult (*open)(uint64_t bytes, struct message *message, int descriptor);
    CUresult (*close)(uint64_t bytes);
} sharings[] = {
    {"ipc", FUNCTIONS("cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle"), make_ipc, open_ipc,
     close_ipc},
    {"vmm",
     FUNCTIONS("cuMemCreate", "cuMemRelease", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle",
               "cuMemAddressReserve", "cuMemAddressFree", "cuMemMap", "cuMemUnmap", "cuMemSetAccess"),
     make_vmm, open_vmm, close_vmm},
    {"pool",
     FUNCTIONS("cuMemPoolCreate", "cuMemPoolDestroy", "cuMemPoolExportToShareableHandle", "cuMemPoolSetAccess",
               "cuMemPoolImportFromShareableHandle", "cuMemPoolExportPointer", "cuMemPoolImportPointer",
               "cuMemAllocFromPoolAsync", "cuStreamSynchronize"),
     make_pool, open_pool, close_pool},
};

/* --- the two processes --- */

static void be_opener(const struct sharing *sharing, uint64_t bytes, int socket) {
    struct message message = {0};
    int descriptor = -1;
    open_context();
    send_message(socket, &message, -1);
    if (!receive_message(socket, &message, &descriptor))
        exit(1);
    message.result = sharing->open(bytes, &message, descriptor);
    CUresult result = message.result;
    send_message(socket, &message, -1);
    if (result != CUDA_SUCCESS)
        exit(0);
    receive_message(socket, &message, &descriptor); /* returns when the maker is dead */
    step("orphaned", "\"result\":0");
    result = sharing->close(bytes);
    step("closed", "\"result\":%d,\"name\":\"%s\"", result, error_name(result));
    exit(0);
}

static int be_maker(const struct sharing *sharing, uint64_t bytes, int socket, pid_t peer) {
    struct message message = {0};
    int descriptor = -1;
    open_context();
    if (!receive_message(socket, &message, &descriptor))
        return 1;
    step("empty", "\"peer\":%d", (int)peer);
    CUresult result = sharing->make(bytes, &message, &descriptor);
    if (result != CUDA_SUCCESS) {
        say("impossible", "\"why\":\"making it shareable: %s\"", error_name(result));
        return 0;
    }
    step("made", "\"taken\":%llu", (unsigned long long)bytes);
    if (!send_message(socket, &message, descriptor) || !receive_message(socket, &message, &descriptor))
        return 1;
    if (message.result != CUDA_SUCCESS) {
        say("impossible", "\"why\":\"opening it in another process: %s\"", error_name(message.result));
        return 0;
    }
    step("shared", "\"taken\":%llu", (unsigned long long)bytes);
    return 1; /* we were to be killed */
}

int probe_share(int argc, char **argv) {
    int sockets[2];
    if (argc != 2)
        return 2;
    uint64_t bytes = strtoull(argv[1], NULL, 10);
    for (size_t i = 0; i < sizeof sharings / sizeof sharings[0]; i++) {
        if (strcmp(sharings[i].name, argv[0]) != 0)
            continue;
        const char *missing;
        if (!driver_has(sharings[i].functions, &missing)) {
            say("impossible", "\"why\":\"the driver has no %s\"", missing);
            return 0;
        }
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0)
            return 1;
        pid_t peer = fork();
        close(sockets[peer == 0 ? 0 : 1]);
        if (peer == 0)
            be_opener(&sharings[i], bytes, sockets[1]);
        return be_maker(&sharings[i], bytes, sockets[0], peer);
    }
    return 2;
}
