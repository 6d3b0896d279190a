#include "governor/connection.h"

#include "governor/clock.h"
#include "governor/page.h"
#include "governor/passage.h"
#include "governor/queues.h"
#include "state/gpus.h"
#include "system/calls.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#define RETRY_NS NS_PER_SECOND
#define REFUSED_NS (30 * NS_PER_SECOND)

enum stage { ABSENT, GREETED, JOINED };

/* A descriptor. The program may close it at any time and reuse its number. */
struct own {
    int number; /* 0: none */
    dev_t device;
    ino_t inode;
};

static struct {
    /* A descriptor is not closed while another thread sends. The handler of a signal that this interrupts may end the process, and
     * so send BYE. */
    struct reentrant_lock lock;
    unsigned count;
    struct connection {
        struct own socket;
        int gpu; /* index in the page */
        bool visible;
        _Atomic enum stage stage;
        uint64_t next_try;
        char uuid[GOVERNOR_UUID_SIZE];
        char directory[320];
    } each[CONNECTIONS_MAX];
} connections;

/* --- descriptors -------------------------------------------------------------------------------------------------- */

static struct own keep(int fd) {
    struct stat status;
    fd = call_off_streams(fd);
    if (fd < 0 || !call_fstat(fd, &status))
        return (struct own){0};
    return (struct own){.number = fd, .device = status.st_dev, .inode = status.st_ino};
}

static bool is_own(const struct own *descriptor) {
    struct stat status;
    return descriptor->number > 0 && call_fstat(descriptor->number, &status) && status.st_ino == descriptor->inode &&
           status.st_dev == descriptor->device;
}

static void drop(struct own *descriptor) {
    if (is_own(descriptor))
        call_close(descriptor->number);
    *descriptor = (struct own){0};
}

/* --- the claims --------------------------------------------------------------------------------------------------- */

bool connections_start(struct process *process) {
    uint64_t visible = gpus_visible(process);
    for (unsigned i = 0; i < process->claims.count && connections.count < CONNECTIONS_MAX; i++) {
        struct connection *connection = &connections.each[connections.count];
        const struct region *region = &process->claims.regions[i];
        int gpu = process->claims.gpu[i], index = queues_index(process, gpu);
        const char *slash = strrchr(region->limit_path, '/');
        if (index == NO_GPU || slash == NULL)
            continue;
        *connection = (struct connection){.gpu = index, .visible = visible >> gpu & 1};
        snprintf(connection->uuid, sizeof connection->uuid, "%s", region->gpu_uuid);
        snprintf(connection->directory, sizeof connection->directory, "%.*s", (int)(slash - region->limit_path),
                 region->limit_path);
        connections.count++;
    }
    return connections.count > 0;
}

/* --- ends --------------------------------------------------------------------------------------------------------- */

static bool any_is_joined(void) {
    for (unsigned i = 0; i < connections.count; i++)
        if (connections.each[i].stage == JOINED)
            return true;
    return false;
}

/* Opens the GPU's gate. Waiters of a page that others still use look again within their time-out. */
static void end(struct connection *connection, uint64_t retry) {
    reentrant_take(&connections.lock);
    drop(&connection->socket);
    reentrant_give(&connections.lock);
    if (connection->stage == JOINED)
        atomic_store(&passages[connection->gpu].joined, false);
    connection->stage = ABSENT;
    connection->next_try = retry;
    if (!any_is_joined())
        governor_page_unmap();
}

/* --- joining ------------------------------------------------------------------------------------------------------ */

/* A path that does not fit into an address goes through a descriptor of the directory. */
static bool connect_in(int socket, const char *directory) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(directory) + sizeof "/" GOVERNOR_SOCKET <= sizeof address.sun_path) {
        snprintf(address.sun_path, sizeof address.sun_path, "%s/" GOVERNOR_SOCKET, directory);
        return connect(socket, (const struct sockaddr *)&address, sizeof address) == 0;
    }
    int fd = call_open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return false;
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/" GOVERNOR_SOCKET, fd);
    bool connected = connect(socket, (const struct sockaddr *)&address, sizeof address) == 0;
    close(fd);
    return connected;
}

static bool send_bytes(const struct own *socket, const void *bytes, size_t size) {
    int error = errno;
    bool sent =
        is_own(socket) && syscall(SYS_sendto, socket->number, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0) >= 0;
    errno = error;
    return sent;
}

static bool greet(const struct connection *connection) {
    struct governor_hello hello = {
        .message = {.version = GOVERNOR_VERSION,
                    .kind = GOVERNOR_HELLO,
                    .gpu = connection->visible,
                    .value = {(uint64_t)syscall(SYS_getpid), (uint64_t)connection->gpu}},
    };
    memcpy(hello.uuid[0], connection->uuid, sizeof hello.uuid[0]);
    return send_bytes(&connection->socket, &hello,
                      sizeof hello.message + (connection->visible ? sizeof hello.uuid[0] : 0));
}

/* Of several claims on one GPU, the first whose governor answers has it. */
static bool has_another(const struct connection *connection) {
    for (unsigned i = 0; i < connections.count; i++) {
        const struct connection *other = &connections.each[i];
        if (other != connection && other->gpu == connection->gpu && other->stage != ABSENT)
            return true;
    }
    return false;
}

static void try_one(struct connection *connection) {
    struct own fresh = keep(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fresh.number == 0)
        return;
    if (!connect_in(fresh.number, connection->directory)) {
        drop(&fresh);
        return;
    }
    reentrant_take(&connections.lock);
    connection->socket = fresh;
    connection->stage = greet(connection) ? GREETED : ABSENT;
    if (connection->stage == ABSENT)
        drop(&connection->socket);
    reentrant_give(&connections.lock);
}

void connections_try(uint64_t now) {
    for (unsigned i = 0; i < connections.count; i++) {
        struct connection *connection = &connections.each[i];
        if (connection->stage != ABSENT && !is_own(&connection->socket))
            end(connection, now);
        if (connection->stage != ABSENT || connection->next_try > now || has_another(connection))
            continue;
        connection->next_try = now + RETRY_NS;
        try_one(connection);
    }
}

bool connections_pending(void) {
    for (unsigned i = 0; i < connections.count; i++)
        if (connections.each[i].stage == GREETED)
            return true;
    return false;
}

uint64_t connections_next_try(void) {
    uint64_t next = 0;
    for (unsigned i = 0; i < connections.count; i++) {
        const struct connection *connection = &connections.each[i];
        if (connection->stage == ABSENT && !has_another(connection) && (next == 0 || connection->next_try < next))
            next = connection->next_try;
    }
    return next;
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

struct packet {
    struct governor_message message;
    int descriptor; /* -1: none */
};

/* Whether a packet of the right form was received. */
static bool receive(int socket, struct packet *packet, ssize_t *size) {
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    struct iovec bytes = {.iov_base = &packet->message, .iov_len = sizeof packet->message};
    struct msghdr header = {
        .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    packet->descriptor = -1;
    *size = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (*size <= 0)
        return false;
    const struct cmsghdr *passed = CMSG_FIRSTHDR(&header);
    if (passed != NULL && passed->cmsg_level == SOL_SOCKET && passed->cmsg_type == SCM_RIGHTS)
        memcpy(&packet->descriptor, CMSG_DATA(passed), sizeof packet->descriptor);
    return *size == sizeof packet->message && !(header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) &&
           packet->message.version == GOVERNOR_VERSION;
}

/* Turns are counted from anew by each governor. A process that cannot use the GPU has joined all the same. */
static bool welcome(struct connection *connection, const struct packet *packet) {
    if (connection->stage != GREETED || packet->descriptor < 0 || !governor_page_map(packet->descriptor))
        return false;
    atomic_store(&passages[connection->gpu].wanted, 0);
    connection->stage = JOINED;
    if (connection->visible)
        atomic_store(&passages[connection->gpu].joined, true);
    return true;
}

/* False: the connection has ended. */
static bool read_one(struct connection *connection, void (*received)(const struct governor_message *)) {
    struct packet packet;
    ssize_t size;
    bool good = receive(connection->socket.number, &packet, &size);
    uint64_t retry = clock_now() + RETRY_NS;
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (good && packet.message.kind == GOVERNOR_WELCOME) {
        good = welcome(connection, &packet);
    } else if (good && packet.message.kind == GOVERNOR_REFUSED) {
        good = false;
        retry += REFUSED_NS;
    } else if (good && connection->stage == JOINED && packet.message.gpu == (uint32_t)connection->gpu) {
        received(&packet.message);
    }
    if (packet.descriptor >= 0)
        close(packet.descriptor);
    if (!good)
        end(connection, retry);
    return good;
}

unsigned connections_poll(struct pollfd polled[static CONNECTIONS_MAX]) {
    unsigned count = 0;
    for (unsigned i = 0; i < connections.count; i++)
        if (connections.each[i].socket.number > 0)
            polled[count++] = (struct pollfd){.fd = connections.each[i].socket.number, .events = POLLIN};
    return count;
}

void connections_read(const struct pollfd *polled, unsigned count, void (*received)(const struct governor_message *)) {
    for (unsigned at = 0; at < count; at++) {
        if (polled[at].revents == 0)
            continue;
        for (unsigned i = 0; i < connections.count; i++)
            if (connections.each[i].socket.number == polled[at].fd)
                while (is_own(&connections.each[i].socket) && read_one(&connections.each[i], received)) {
                }
    }
}

bool connection_send(struct governor_message message) {
    bool sent = false;
    message.version = GOVERNOR_VERSION;
    reentrant_take(&connections.lock);
    for (unsigned i = 0; i < connections.count; i++)
        if ((uint32_t)connections.each[i].gpu == message.gpu && connections.each[i].stage == JOINED)
            sent = send_bytes(&connections.each[i].socket, &message, sizeof message);
    reentrant_give(&connections.lock);
    return sent;
}

void connections_bye(void) {
    for (unsigned i = 0; i < connections.count; i++)
        if (connections.each[i].stage == JOINED)
            connection_send((struct governor_message){.kind = GOVERNOR_BYE, .gpu = (uint32_t)connections.each[i].gpu});
}

void connections_forked(void) {
    for (unsigned i = 0; i < connections.count; i++)
        drop(&connections.each[i].socket);
    memset(&connections, 0, sizeof connections);
}
