/* The control daemon: its files, and what it waits for. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "control.h"
#include "log.h"

#define MOST_CONSOLES 16
#define MOST_FDS (4 + MOST_CONSOLES + 256 + 257)

/* "control" is for clients of anybody's, "control_privileged" for the commands of the daemon's user. */
static int clients_fd = -1, commands_fd = -1, signals_fd = -1;
static int consoles[MOST_CONSOLES];
static unsigned console_count;
static bool quitting;
static uint64_t kill_at_ns; /* the server, 0: not */

static bool failed(const char *what, int error) {
    fprintf(stderr, "nvidia-cuda-mps-control (simulated): %s: %s\n", what, strerror(error));
    mps_log("%s: %s", what, strerror(error));
    return false;
}

static bool take_directory(void) {
    char directory[4096];
    int lock;

    snprintf(directory, sizeof(directory), "%s", mps_pipe_path(""));
    directory[strlen(directory) - 1] = '\0';
    if (mkdir(directory, 0755) != 0 && errno != EEXIST)
        return failed(directory, errno);
    lock = open(mps_pipe_path("control_lock"), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock < 0)
        return failed(mps_pipe_path("control_lock"), errno);
    fchmod(lock, 0666);
    if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
        fprintf(stderr, "An instance of this daemon is already running\n");
        return false;
    }
    return true; /* the lock is kept for as long as the process is */
}

static bool write_pid(void) {
    FILE *file = fopen(mps_pipe_path("nvidia-cuda-mps-control.pid"), "we");

    if (file == NULL)
        return failed(mps_pipe_path("nvidia-cuda-mps-control.pid"), errno);
    fchmod(fileno(file), 0666);
    fprintf(file, "%d\n", getpid());
    return fclose(file) == 0;
}

static void open_signals(void) {
    sigset_t wanted;

    sigemptyset(&wanted);
    sigaddset(&wanted, SIGTERM);
    sigaddset(&wanted, SIGINT);
    sigaddset(&wanted, SIGCHLD);
    sigprocmask(SIG_BLOCK, &wanted, NULL);
    signals_fd = signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
    signal(SIGPIPE, SIG_IGN);
}

bool daemon_open(bool for_all_users) {
    multiuser = for_all_users;
    if (multiuser && geteuid() != 0)
        return failed("-multiuser-server", EPERM);
    if (!take_directory())
        return false;
    mps_log_to(mps_log_open("control.log"), "Control");
    mps_log("SIMULATED: the GPUs of this daemon are simulated ones");
    if (!write_pid())
        return false;
    /* The driver's libraries write to this pipe of the daemon's, the simulated ones do not. */
    if ((mkfifo(mps_pipe_path("log"), 0666) != 0 && errno != EEXIST) || chmod(mps_pipe_path("log"), 0666) != 0)
        return failed(mps_pipe_path("log"), errno);
    open_signals();
    commands_fd = mps_listen(mps_pipe_path("control_privileged"), 0755);
    if (commands_fd < 0)
        return failed(mps_pipe_path("control_privileged"), -commands_fd);
    clients_fd = mps_listen(mps_pipe_path("control"), 0666);
    if (clients_fd < 0)
        return failed(mps_pipe_path("control"), -clients_fd);
    mps_log("Startup");
    return true;
}

void daemon_quit(int timeout_s) {
    if (!quitting) {
        quitting = true;
        close(clients_fd); /* NVIDIA's leaves the sockets where they are */
        clients_fd = -1;
        waiting_refuse();
        server_shut_down();
    }
    if (timeout_s >= 0)
        kill_at_ns = sim_now_ns() + (uint64_t)timeout_s * 1000000000u;
}

static void attend_signals(void) {
    struct signalfd_siginfo info;

    while (read(signals_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo != SIGCHLD) {
            mps_log("Signal %u", info.ssi_signo);
            daemon_quit(0);
        }
    }
    server_reap();
}

static void forget_console(unsigned i) {
    command_forget(consoles[i]);
    close(consoles[i]);
    consoles[i] = consoles[--console_count];
}

static void attend_console(unsigned i) {
    char line[1024], out[65536] = "";
    ssize_t length = recv(consoles[i], line, sizeof(line) - 1, MSG_DONTWAIT);

    if (length <= 0) {
        forget_console(i);
        return;
    }
    line[length] = '\0';
    line[strcspn(line, "\n")] = '\0';
    mps_log("User command: %s", line);
    if (command_run(line, consoles[i], out, sizeof(out)) &&
        send(consoles[i], out, strlen(out) + 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        forget_console(i);
}

static void accept_all(int listening, void (*add)(int fd)) {
    int fd;

    while ((fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC)) >= 0)
        add(fd);
}

/* In v3 the main socket leads to the default namespace. */
static void add_client(int fd) {
    waiting_add(fd, protocol_3 ? "default" : "");
}

static void add_console(int fd) {
    if (console_count == MOST_CONSOLES)
        close(fd);
    else
        consoles[console_count++] = fd;
}

/* When to look without anything having happened, in milliseconds; -1: never. */
static int patience(void) {
    uint64_t now = sim_now_ns();

    if (kill_at_ns == 0 || server.pid == 0)
        return -1;
    if (now < kill_at_ns)
        return (int)((kill_at_ns - now) / 1000000) + 1;
    kill_at_ns = 0;
    server_kill();
    return -1;
}

/* The descriptors: four of the daemon's own, then consoles, then clients that wait, then sockets of namespaces. */
static void attend(const struct pollfd *fds, unsigned watched, unsigned waiters, unsigned sockets) {
    /* What a signal changes, the others are looked at anew for. */
    if (fds[0].revents != 0) {
        attend_signals();
        return;
    }
    if (fds[3].revents != 0)
        server_attend();
    /* From the last to the first: in the place of one that goes comes one that was looked at. */
    for (unsigned i = waiters; i > 0; i--) {
        if (fds[3 + watched + i].revents != 0)
            waiting_attend(i - 1);
    }
    if (fds[1].revents != 0)
        accept_all(clients_fd, add_client);
    for (unsigned i = 0; i < sockets; i++) {
        if (fds[4 + watched + waiters + i].revents != 0)
            namespace_accept(i);
    }
    for (unsigned i = watched; i > 0; i--) {
        if (fds[3 + i].revents != 0)
            attend_console(i - 1);
    }
    if (fds[2].revents != 0)
        accept_all(commands_fd, add_console);
}

int daemon_run(void) {
    static struct pollfd fds[MOST_FDS];

    while (!quitting || server.pid != 0) {
        unsigned watched = console_count, waiters = waiting_count(), sockets = namespace_sockets(), count = 4;
        int own[] = {signals_fd, clients_fd, commands_fd, server.fd};

        for (unsigned i = 0; i < 4; i++)
            fds[i] = (struct pollfd){.fd = own[i], .events = POLLIN};
        for (unsigned i = 0; i < watched; i++)
            fds[count++] = (struct pollfd){.fd = consoles[i], .events = POLLIN};
        for (unsigned i = 0; i < waiters; i++)
            fds[count++] = (struct pollfd){.fd = waiting_fd(i), .events = POLLIN};
        for (unsigned i = 0; i < sockets; i++)
            fds[count++] = (struct pollfd){.fd = namespace_socket(i), .events = POLLIN};
        if (poll(fds, count, patience()) > 0)
            attend(fds, watched, waiters, sockets);
        waiting_serve();
    }
    mps_log("Exit");
    unlink(mps_pipe_path("log"));
    unlink(mps_pipe_path("nvidia-cuda-mps-control.pid"));
    return 0;
}
