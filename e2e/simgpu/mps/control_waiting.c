/* Clients on their way to a server: those who have not said hello, and those for whom there is none yet. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "control.h"
#include "log.h"

#define MOST_WAITING 256

static struct waiting {
    int fd;
    struct mps_peer peer;
    char namespace[MPS_NAME];
    bool greeted;
    struct mps_message hello;
} waiting[MOST_WAITING];
static unsigned count;

bool multiuser;
bool protocol_3;

static void take_out(unsigned i) {
    memmove(&waiting[i], &waiting[i + 1], (--count - i) * sizeof(*waiting));
}

static void refuse(unsigned i, int result) {
    struct mps_message answer = {.kind = MPS_WELCOME, .result = result};

    mps_send(waiting[i].fd, &answer, -1);
    close(waiting[i].fd);
    take_out(i);
}

void waiting_add(int fd, const char *namespace) {
    if (count == MOST_WAITING) {
        mps_log("Refusing a connection: %d wait already", MOST_WAITING);
        close(fd);
        return;
    }
    mps_log("Accepting connection...");
    waiting[count] = (struct waiting){.fd = fd, .peer = mps_peer(fd)};
    snprintf(waiting[count++].namespace, MPS_NAME, "%s", namespace);
}

unsigned waiting_count(void) {
    return count;
}

int waiting_fd(unsigned i) {
    return waiting[i].fd;
}

/* Who has said hello says nothing more, unless it is gone. */
void waiting_attend(unsigned i) {
    struct mps_message message = {0};

    if (waiting[i].greeted || !mps_receive(waiting[i].fd, &message, NULL) || message.kind != MPS_HELLO) {
        if (!waiting[i].greeted)
            mps_log("Unable to read new connection type information");
        close(waiting[i].fd);
        take_out(i);
        return;
    }
    waiting[i].greeted = true;
    waiting[i].hello = message;
}

static uid_t server_user(uid_t client) {
    return multiuser ? geteuid() : client;
}

/* To the server. */
static bool pass_on(unsigned i) {
    if (!mps_send(server.fd, &waiting[i].hello, waiting[i].fd)) {
        refuse(i, MPS_ERROR_CONNECTION_FAILED);
        return true;
    }
    close(waiting[i].fd);
    take_out(i);
    return true;
}

/* What the client's namespace has. Its percentage counts instead of the client's own, which is what NVIDIA's appendix on
 * environment variables says of v3. */
static void take_namespace(unsigned i, const struct namespace *namespace) {
    struct mps_message *hello = &waiting[i].hello;

    if (namespace->percentage != 0)
        hello->value = namespace->percentage;
    hello->b = namespace->limit_bytes;
    snprintf(hello->text, sizeof(hello->text), "%s", namespace->name);
}

/* In v3. Servers are there by name, and no client has one started: NVIDIA's pages do not say how one would be called. */
static bool serve_in_namespace(unsigned i) {
    const struct namespace *namespace = namespace_find(waiting[i].namespace);

    if (server.pid == 0 || namespace == NULL) {
        refuse(i, MPS_ERROR_CONNECTION_FAILED);
        return true;
    }
    if (!multiuser && server.uid != waiting[i].peer.uid) {
        refuse(i, MPS_ERROR_NOT_PERMITTED);
        return true;
    }
    if (!server.ready || server.closing)
        return false;
    mps_log("NEW CLIENT %d from user %u: namespace %s", waiting[i].peer.pid, waiting[i].peer.uid, namespace->name);
    take_namespace(i, namespace);
    return pass_on(i);
}

/* Whether the one who waits is done with: passed on, or refused. */
static bool serve(unsigned i) {
    uid_t uid = server_user(waiting[i].peer.uid);

    if (protocol_3)
        return serve_in_namespace(i);
    if (server.pid == 0) {
        mps_log("NEW CLIENT %d from user %u: Server is not ready, push client to pending list", waiting[i].peer.pid,
                waiting[i].peer.uid);
        if (server_start(uid, "", ""))
            return false;
        refuse(i, MPS_ERROR_CONNECTION_FAILED);
        return true;
    }
    if (server.uid != uid)
        server_shut_down(); /* one user after the other */
    if (!server.ready || server.closing)
        return false;
    mps_log("NEW CLIENT %d from user %u: Server already exists", waiting[i].peer.pid, waiting[i].peer.uid);
    return pass_on(i);
}

void waiting_serve(void) {
    for (unsigned i = 0; i < count;) {
        if (!waiting[i].greeted || !serve(i))
            i++;
    }
}

void waiting_refuse(void) {
    while (count > 0)
        refuse(0, MPS_ERROR_CONNECTION_FAILED);
}

void waiting_failed(uid_t uid) {
    for (unsigned i = 0; i < count;) {
        if (waiting[i].greeted && server_user(waiting[i].peer.uid) == uid)
            refuse(i, MPS_ERROR_CONNECTION_FAILED);
        else
            i++;
    }
}
