/*
 * The namespaces of MPS v3, after NVIDIA's page "MPS v3 Namespaces": each has a directory below its server's with a socket,
 * and a client's namespace is the one whose socket it connects to. This daemon has one server at a time.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "control.h"
#include "log.h"

#define MOST_NAMESPACES 256

static struct namespace namespaces[MOST_NAMESPACES];
static unsigned count;
static int server_fd = -1; /* of the server's own socket, which leads to "default" */

/* A file of the server's, or of a namespace's in it; good until the next call. */
static const char *path_of(const char *namespace, const char *file) {
    char below[3 * MPS_NAME];

    snprintf(below, sizeof(below), "%s/%s%s%s", server.name, namespace, *namespace != '\0' ? "/" : "", file);
    return mps_pipe_path(below);
}

static int listen_in(const char *namespace) {
    if (mkdir(path_of(namespace, ""), 0755) != 0 && errno != EEXIST)
        return -errno;
    return mps_listen(path_of(namespace, "control"), 0666);
}

struct namespace *namespace_find(const char *name) {
    for (unsigned i = 0; i < count; i++) {
        if (strcmp(namespaces[i].name, name) == 0)
            return &namespaces[i];
    }
    return NULL;
}

struct namespace *namespace_create(const char *name) {
    struct namespace *made = &namespaces[count];
    int fd = count < MOST_NAMESPACES ? listen_in(name) : -ENOSPC;

    if (fd < 0) {
        mps_log("Namespace %s cannot be made: %s", name, strerror(-fd));
        return NULL;
    }
    *made = (struct namespace){.fd = fd};
    snprintf(made->name, sizeof(made->name), "%s", name);
    count++;
    return made;
}

void namespace_delete(struct namespace *namespace) {
    close(namespace->fd);
    unlink(path_of(namespace->name, "control"));
    rmdir(path_of(namespace->name, ""));
    *namespace = namespaces[--count];
}

unsigned namespace_clients(const char *name) {
    unsigned clients = 0;

    for (unsigned i = 0; server.shared != NULL && i < MPS_MAX_CLIENTS; i++) {
        const struct mps_client_entry *entry = &server.shared->clients[i];

        clients += atomic_load(&entry->pid) != 0 && (name == NULL || strcmp(entry->namespace, name) == 0);
    }
    return clients;
}

struct namespace *namespace_at(unsigned i) {
    return i < count ? &namespaces[i] : NULL;
}

bool namespaces_open(void) {
    server_fd = listen_in("");
    if (server_fd < 0 || namespace_create("default") == NULL)
        return false;
    return mkfifo(path_of("", "log"), 0666) == 0 || errno == EEXIST;
}

void namespaces_close(void) {
    while (count > 0)
        namespace_delete(&namespaces[count - 1]);
    if (server_fd >= 0)
        close(server_fd);
    server_fd = -1;
    unlink(path_of("", "control"));
    unlink(path_of("", "log"));
    rmdir(path_of("", ""));
}

/* ---- Sockets: those of the namespaces, and the server's own as the last ---- */

unsigned namespace_sockets(void) {
    return count + 1;
}

int namespace_socket(unsigned i) {
    return i < count ? namespaces[i].fd : server_fd;
}

void namespace_accept(unsigned i) {
    const char *name = i < count ? namespaces[i].name : "default";
    int fd;

    while ((fd = accept4(namespace_socket(i), NULL, NULL, SOCK_CLOEXEC)) >= 0)
        waiting_add(fd, name);
}
