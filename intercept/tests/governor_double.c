#include "governor_double.h"

#include "../governor/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define CLIENTS 16
#define MESSAGES 4096
/* A test on a busy machine has no heartbeats that come in time. */
#define AHEAD_NS (3600 * NS_PER_SECOND)
#define PATIENCE_S 120

_Atomic enum answer double_answer;

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
    bool serves;
    int listeners[2], stop[2];
    struct {
        int socket;
        unsigned claim, index; /* number of the listener; index in the page, as HELLO says */
        pid_t process;
        struct governor_page *page;
        int page_fd;
    } clients[CLIENTS];
    unsigned clients_count;
    struct governor_page wanted;
    struct governor_message messages[MESSAGES];
    unsigned count;
} state = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void must(bool done, const char *what) {
    if (done)
        return;
    fprintf(stderr, "governor double: cannot %s: %s\n", what, strerror(errno));
    abort();
}

static int listen_in(const char *directory, const char *id) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/%s/" GOVERNOR_SOCKET, directory, id);
    unlink(address.sun_path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    must(bind(fd, (struct sockaddr *)&address, sizeof address) == 0, "bind");
    must(listen(fd, CLIENTS) == 0 && chmod(address.sun_path, 0666) == 0, "listen");
    return fd;
}

/* --- pages; under the mutex --------------------------------------------------------------------------------------- */

static void wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Writes what a client's page says of its claim. */
static void fill(unsigned client) {
    struct governor_page *page = state.clients[client].page;
    const struct governor_gpu *wanted = &state.wanted.gpus[state.clients[client].claim];
    struct governor_gpu *gpu = &page->gpus[state.clients[client].index];
    uint32_t gate = GATE_OPEN;
    page->heartbeat = clock_now() + AHEAD_NS;
    gpu->meter_ns = wanted->meter_ns;
    gpu->turn = wanted->turn;
    gpu->state = wanted->state;
    for (unsigned i = 0; i < GOVERNOR_GPUS_MAX; i++)
        gate = page->gpus[i].state > gate ? page->gpus[i].state : gate;
    page->gate = gate;
    wake(&gpu->state);
    wake(&page->gate);
}

static void fill_all(void) {
    for (unsigned i = 0; i < state.clients_count; i++)
        if (state.clients[i].page != NULL)
            fill(i);
}

/* The page of the process, which it may have through another connection. */
static void make_page(unsigned client) {
    for (unsigned i = 0; i < state.clients_count; i++) {
        if (state.clients[i].process == state.clients[client].process && state.clients[i].socket >= 0 &&
            state.clients[i].page != NULL) {
            state.clients[client].page = state.clients[i].page;
            state.clients[client].page_fd = state.clients[i].page_fd;
            fill(client);
            return;
        }
    }
    int fd = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    must(fd >= 0 && ftruncate(fd, GOVERNOR_PAGE_SIZE) == 0, "make a page");
    struct governor_page *page = mmap(NULL, GOVERNOR_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(page != MAP_FAILED, "map a page");
    must(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0, "seal a page");
    state.clients[client].page = page;
    state.clients[client].page_fd = fd;
    fill(client);
}

/* --- messages; under the mutex ------------------------------------------------------------------------------------ */

static void put(struct governor_message message) {
    if (state.count == MESSAGES)
        abort();
    state.messages[state.count++] = message;
    pthread_cond_broadcast(&state.changed);
}

static void send_to(unsigned client, const struct governor_message *message, size_t size, int fd) {
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec bytes = {.iov_base = (void *)message, .iov_len = size};
    struct msghdr header = {.msg_iov = &bytes, .msg_iovlen = 1};
    if (fd >= 0) {
        header.msg_control = control;
        header.msg_controllen = sizeof control;
        struct cmsghdr *passed = CMSG_FIRSTHDR(&header);
        passed->cmsg_level = SOL_SOCKET;
        passed->cmsg_type = SCM_RIGHTS;
        passed->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(passed), &fd, sizeof fd);
    }
    sendmsg(state.clients[client].socket, &header, MSG_NOSIGNAL);
}

static void answer(unsigned client) {
    struct governor_message message = {.version = GOVERNOR_VERSION, .kind = GOVERNOR_WELCOME};
    make_page(client);
    if (double_answer == ANSWER_LATE)
        clock_sleep(20 * NS_PER_MS);
    switch (double_answer) {
    case ANSWER_REFUSED:
        message.kind = GOVERNOR_REFUSED;
        send_to(client, &message, sizeof message, -1);
        break;
    case ANSWER_SHORT:
        send_to(client, &message, 8, state.clients[client].page_fd);
        break;
    case ANSWER_WELCOME:
    case ANSWER_LATE:
        send_to(client, &message, sizeof message, state.clients[client].page_fd);
        break;
    default:
        break;
    }
}

static void read_from(unsigned client) {
    struct governor_hello hello;
    ssize_t size = recv(state.clients[client].socket, &hello, sizeof hello, 0);
    if (size <= 0) {
        close(state.clients[client].socket);
        state.clients[client].socket = -1;
        put((struct governor_message){.kind = DOUBLE_EOF});
        return;
    }
    must(size == sizeof hello.message || (hello.message.kind == GOVERNOR_HELLO && hello.message.gpu == 1 &&
                                          size == sizeof hello.message + GOVERNOR_UUID_SIZE),
         "understand a message");
    if (hello.message.kind == GOVERNOR_HELLO) {
        state.clients[client].index = (unsigned)hello.message.value[1];
        answer(client);
    }
    hello.message.gpu = state.clients[client].claim;
    put(hello.message);
}

static void accept_from(unsigned claim) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    int fd = accept4(state.listeners[claim], NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return;
    must(state.clients_count < CLIENTS && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0, "accept");
    state.clients[state.clients_count].process = peer.pid;
    state.clients[state.clients_count].socket = fd;
    state.clients[state.clients_count].claim = claim;
    state.clients[state.clients_count].page = NULL;
    state.clients_count++;
}

static void *serve(void *unused) {
    pthread_mutex_lock(&state.mutex);
    state.serves = true;
    pthread_cond_broadcast(&state.changed);
    pthread_mutex_unlock(&state.mutex);
    for (;;) {
        struct pollfd polled[CLIENTS + 3] = {{.fd = state.stop[0], .events = POLLIN}};
        pthread_mutex_lock(&state.mutex);
        unsigned clients = state.clients_count;
        for (unsigned i = 0; i < 2; i++)
            polled[1 + i] = (struct pollfd){.fd = state.listeners[i], .events = POLLIN};
        for (unsigned i = 0; i < clients; i++)
            polled[3 + i] = (struct pollfd){.fd = state.clients[i].socket, .events = POLLIN};
        pthread_mutex_unlock(&state.mutex);
        poll(polled, 3 + clients, -1);
        if (polled[0].revents != 0)
            return unused;
        pthread_mutex_lock(&state.mutex);
        for (unsigned i = 0; i < clients; i++)
            if (polled[3 + i].revents != 0)
                read_from(i);
        for (unsigned i = 0; i < 2; i++)
            if (polled[1 + i].revents != 0)
                accept_from(i);
        pthread_mutex_unlock(&state.mutex);
    }
}

/* --- what tests call ---------------------------------------------------------------------------------------------- */

void double_listen(const char *directory, const char *first, const char *second) {
    state.clients_count = 0;
    state.listeners[0] = listen_in(directory, first);
    state.listeners[1] = second != NULL ? listen_in(directory, second) : -1;
    must(pipe2(state.stop, O_CLOEXEC) == 0, "make a pipe");
    state.serves = false;
    must(pthread_create(&state.thread, NULL, serve, NULL) == 0, "start a thread");
    /* A child that is forked while a thread starts has the sanitizer's allocator locked for ever. */
    pthread_mutex_lock(&state.mutex);
    while (!state.serves)
        pthread_cond_wait(&state.changed, &state.mutex);
    pthread_mutex_unlock(&state.mutex);
}

void double_end(void) {
    must(write(state.stop[1], "", 1) == 1, "stop");
    pthread_join(state.thread, NULL);
    pthread_mutex_lock(&state.mutex);
    for (unsigned i = 0; i < state.clients_count; i++)
        if (state.clients[i].socket >= 0)
            close(state.clients[i].socket);
    for (unsigned i = 0; i < 2; i++)
        if (state.listeners[i] >= 0)
            close(state.listeners[i]);
    close(state.stop[0]);
    close(state.stop[1]);
    pthread_mutex_unlock(&state.mutex);
}

void double_hang(void) {
    pthread_mutex_lock(&state.mutex);
    for (unsigned i = 0; i < state.clients_count; i++)
        if (state.clients[i].page != NULL)
            state.clients[i].page->heartbeat = clock_now();
    pthread_mutex_unlock(&state.mutex);
}

/* Under the mutex. */
static void send_all(unsigned gpu, struct governor_message message) {
    message.version = GOVERNOR_VERSION;
    for (unsigned i = 0; i < state.clients_count; i++) {
        message.gpu = state.clients[i].index;
        if (state.clients[i].socket >= 0 && state.clients[i].claim == gpu)
            send_to(i, &message, sizeof message, -1);
    }
}

static void change(unsigned gpu, enum gate_state to, uint64_t turn, enum governor_kind kind) {
    pthread_mutex_lock(&state.mutex);
    state.wanted.gpus[gpu].turn = turn;
    state.wanted.gpus[gpu].state = to;
    fill_all();
    if (kind != 0)
        send_all(gpu, (struct governor_message){.kind = (uint16_t)kind, .turn = turn});
    pthread_mutex_unlock(&state.mutex);
}

void double_set(unsigned gpu, enum gate_state to, uint64_t turn) {
    change(gpu, to, turn, 0);
}

void double_grant(unsigned gpu, uint64_t turn) {
    change(gpu, GATE_METERED, turn, GOVERNOR_GRANT);
}

void double_revoke(unsigned gpu, uint64_t turn) {
    change(gpu, GATE_CLOSED, turn, GOVERNOR_REVOKE);
}

void double_ask(unsigned gpu, uint64_t turn) {
    pthread_mutex_lock(&state.mutex);
    send_all(gpu, (struct governor_message){.kind = GOVERNOR_REVOKE, .turn = turn, .flags = GOVERNOR_ASKS});
    pthread_mutex_unlock(&state.mutex);
}

void double_meter(unsigned gpu, uint64_t ns) {
    pthread_mutex_lock(&state.mutex);
    state.wanted.gpus[gpu].meter_ns = ns;
    fill_all();
    pthread_mutex_unlock(&state.mutex);
}

static bool take(unsigned kind, struct governor_message *message) {
    for (unsigned i = 0; i < state.count; i++) {
        if (state.messages[i].kind != kind)
            continue;
        *message = state.messages[i];
        memmove(&state.messages[i], &state.messages[i + 1], (state.count - i - 1) * sizeof *message);
        state.count--;
        return true;
    }
    return false;
}

struct governor_message double_await(unsigned kind) {
    struct governor_message message = {0};
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += PATIENCE_S;
    pthread_mutex_lock(&state.mutex);
    while (!take(kind, &message)) {
        if (pthread_cond_timedwait(&state.changed, &state.mutex, &limit) != ETIMEDOUT)
            continue;
        fprintf(stderr, "governor double: no message of kind %u\n", kind);
        abort();
    }
    pthread_mutex_unlock(&state.mutex);
    return message;
}

unsigned double_count(unsigned kind) {
    unsigned count = 0;
    pthread_mutex_lock(&state.mutex);
    for (unsigned i = 0; i < state.count; i++)
        count += state.messages[i].kind == kind;
    pthread_mutex_unlock(&state.mutex);
    return count;
}

pid_t double_client(void) {
    pthread_mutex_lock(&state.mutex);
    pid_t process = state.clients[state.clients_count - 1].process;
    pthread_mutex_unlock(&state.mutex);
    return process;
}
