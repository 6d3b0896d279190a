/* The control daemon's server: starting it, hearing it, and its end. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "control.h"
#include "log.h"
#include "server.h"

struct server server = {.fd = -1};
uint32_t default_percentage = MPS_WHOLE;
char default_limits[4096];

/* Puts a descriptor in its place, where exec leaves it. */
static bool place(int fd, int at) {
    return fd == at ? fcntl(fd, F_SETFD, 0) == 0 : dup2(fd, at) == at;
}

/* In the child. Both come from above the two places. */
static void become_server(uid_t uid, int fd, int log) {
    char path[4200], percentage[32];
    sigset_t none;

    snprintf(percentage, sizeof(percentage), "%u.%03u", default_percentage / 1000, default_percentage % 1000);
    setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage, 1);
    setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", default_limits, 1);
    if (server.devices[0] != '\0')
        setenv("CUDA_VISIBLE_DEVICES", server.devices, 1);
    snprintf(path, sizeof(path), "%s/nvidia-cuda-mps-server", mps_program_directory());
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (place(fd, SERVER_DAEMON_FD) && (log < 0 || place(log, SERVER_LOG_FD)) &&
        (uid == geteuid() || (setgid(uid) == 0 && setuid(uid) == 0)))
        execl(path, path, (char *)NULL);
    mps_log("Server cannot be run: %s: %s", path, strerror(errno));
    _exit(127);
}

/* A copy of the descriptor above the places that the server has its own in. */
static int above_places(int fd) {
    int moved = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, SERVER_LOG_FD + 1) : -1;

    if (fd >= 0)
        close(fd);
    return moved;
}

bool server_start(uid_t uid, const char *name, const char *devices) {
    char file[MPS_NAME + 16];
    int ends[2], log;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return false;
    snprintf(file, sizeof(file), "%s%sserver.log", name, *name != '\0' ? "/" : "");
    log = above_places(mps_log_open(file));
    /* The user whose server it is may not write where the daemon's logs are: the log is opened already. */
    ends[1] = above_places(ends[1]);
    server = (struct server){.fd = ends[0], .uid = uid};
    snprintf(server.name, sizeof(server.name), "%s", name);
    snprintf(server.devices, sizeof(server.devices), "%s", devices);
    server.pid = fork();
    if (server.pid == 0)
        become_server(uid, ends[1], log);
    close(ends[1]);
    if (log >= 0)
        close(log);
    if (server.pid < 0) {
        close(server.fd);
        server = (struct server){.fd = -1};
        return false;
    }
    mps_log("Starting new server %d for user %u", server.pid, uid);
    return true;
}

void server_shut_down(void) {
    struct mps_message message = {.kind = MPS_SHUT_DOWN};

    if (server.pid == 0 || server.closing)
        return;
    server.closing = true;
    mps_send(server.fd, &message, -1);
}

void server_kill(void) {
    if (server.pid != 0)
        kill(server.pid, SIGKILL);
    server.closing = true;
}

static void map_shared(const char *name) {
    int fd;

    snprintf(server.shm, sizeof(server.shm), MPS_SHM_DIRECTORY "/%.*s", (int)(sizeof(server.shm) - 16), name);
    fd = open(server.shm, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return;
    server.shared = mmap(NULL, sizeof(*server.shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (server.shared == MAP_FAILED)
        server.shared = NULL;
}

static void became_ready(const struct mps_message *message) {
    if (message->result != 0)
        return; /* it ends, and that is seen to then */
    map_shared(message->text);
    server.ready = server.shared != NULL;
    mps_log(server.ready ? "NEW SERVER %d: Ready" : "NEW SERVER %d: its memory in /dev/shm cannot be found",
            server.pid);
    if (!server.ready)
        server_kill();
}

void server_attend(void) {
    struct mps_message message = {0};

    if (!mps_receive(server.fd, &message, NULL)) {
        /* Its end comes as a signal, too. */
        close(server.fd);
        server.fd = -1;
        return;
    }
    if (message.kind == MPS_READY)
        became_ready(&message);
    if (message.kind == MPS_TERMINATE)
        command_answered(&message);
}

/* With a named server everything goes that was in it: nothing starts it again. */
static void forget_server(void) {
    if (server.name[0] != '\0')
        namespaces_close();
    if (server.shared != NULL)
        munmap(server.shared, sizeof(*server.shared));
    /* One that was killed has left it. */
    if (server.shm[0] != '\0')
        unlink(server.shm);
    if (server.fd >= 0)
        close(server.fd);
    server = (struct server){.fd = -1};
}

void server_reap(void) {
    struct server ended = server;
    int status;

    if (server.pid == 0 || waitpid(server.pid, &status, WNOHANG) != server.pid)
        return;
    if (WIFSIGNALED(status))
        mps_log("Server %d exited abnormally: signal %d", server.pid, WTERMSIG(status));
    else
        mps_log("Server %d exited with status %d", server.pid, WEXITSTATUS(status));
    forget_server();
    command_unanswered();
    if (!ended.ready && !ended.closing)
        waiting_failed(ended.uid);
}
