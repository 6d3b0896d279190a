/* nvidia-cuda-mps-server, simulated: what the control daemon starts for the clients of one user, or of all. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"
#include "server.h"

static bool closing; /* ends with the last client */
static bool daemon_gone;

/* What daemon and environment say of those who come from now on. */
static void read_settings(void) {
    const char *limits = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    uint32_t percentage;

    mps_parse_percentage(getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), &percentage);
    atomic_store(&shared->percentage, percentage);
    for (uint32_t i = 0; i < shared->device_count; i++)
        atomic_store(&shared->limit_bytes[i], mps_limit_in(limits, i, shared->uuid[i]));
}

static bool start(void) {
    struct mps_message ready = {.kind = MPS_READY};
    const char *wrong = devices_open();

    if (wrong == NULL && !shared_make())
        wrong = "MPS Server failed to create/open SHM segment";
    if (wrong != NULL) {
        mps_log("MPS server failed to start");
        mps_log("%s", wrong);
        ready.result = MPS_ERROR_CONNECTION_FAILED;
        mps_send(SERVER_DAEMON_FD, &ready, -1);
        return false;
    }
    read_settings();
    for (uint32_t i = 0; i < shared->device_count; i++)
        mps_log("Volta MPS: Creating server context on device %u (%s)", i, shared->uuid[i]);
    atomic_store(&shared->status, MPS_ACTIVE);
    snprintf(ready.text, sizeof(ready.text), "%s", shared_name());
    return mps_send(SERVER_DAEMON_FD, &ready, -1);
}

/* Without its daemon, the server goes on for the clients that it has. */
static void attend_daemon(void) {
    struct mps_message message = {0};
    int fd;

    if (!mps_receive(SERVER_DAEMON_FD, &message, &fd)) {
        mps_log("The control daemon is gone");
        daemon_gone = closing = true;
        return;
    }
    if (message.kind == MPS_HELLO && fd >= 0) {
        client_adopt(fd, &message);
        return;
    }
    if (fd >= 0)
        close(fd);
    if (message.kind == MPS_SHUT_DOWN)
        closing = true;
    if (message.kind == MPS_TERMINATE) {
        message.result = clients_terminate(message.value);
        mps_send(SERVER_DAEMON_FD, &message, -1);
    }
}

/* Signals that end a server come as something to read. */
static int open_signals(void) {
    sigset_t wanted;

    sigemptyset(&wanted);
    sigaddset(&wanted, SIGTERM);
    sigaddset(&wanted, SIGINT);
    sigprocmask(SIG_BLOCK, &wanted, NULL);
    return signalfd(-1, &wanted, SFD_CLOEXEC);
}

static void serve(int signals) {
    static struct pollfd fds[2 + MPS_MAX_CLIENTS];

    while (!closing || client_count > 0) {
        unsigned count = client_count;

        fds[0] = (struct pollfd){.fd = signals, .events = POLLIN};
        fds[1] = (struct pollfd){.fd = daemon_gone ? -1 : SERVER_DAEMON_FD, .events = POLLIN};
        for (unsigned i = 0; i < count; i++)
            fds[2 + i] = (struct pollfd){.fd = clients[i].fd, .events = POLLIN};
        if (poll(fds, 2 + count, -1) < 0)
            continue;
        if (fds[0].revents != 0)
            return;
        /* From the last to the first: in the place of one that is dropped comes one that was looked at. */
        for (unsigned i = count; i > 0; i--) {
            if (fds[1 + i].revents != 0)
                client_attend(i - 1);
        }
        if (fds[1].revents != 0)
            attend_daemon();
    }
}

int main(int argc, char **argv) {
    int type = 0, signals;
    socklen_t size = sizeof(type);

    if (argc == 2 && (strcmp(argv[1], "-v") == 0 || strcmp(argv[1], "--version") == 0)) {
        printf("nvidia-cuda-mps-server, SIMULATED: there is no real GPU behind it\n");
        return 0;
    }
    if (argc != 1 || getsockopt(SERVER_DAEMON_FD, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_SEQPACKET) {
        fprintf(stderr, "nvidia-cuda-mps-server (simulated): nvidia-cuda-mps-control starts this, nobody else\n");
        return 1;
    }
    mps_log_to(SERVER_LOG_FD, "Server");
    mps_log("SIMULATED: this server's GPUs are simulated ones");
    mps_find_node();
    signals = open_signals();
    if (!start()) {
        shared_remove();
        return 1;
    }
    serve(signals);
    mps_log("Shutting down");
    shared_remove();
    return 0;
}
