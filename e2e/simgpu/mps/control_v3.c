/*
 * The commands of MPS v3, after NVIDIA's page "MPS v3 Interface": those that set up a server and its namespaces, list them and
 * list the clients. What NVIDIA's program prints on success and on errors is not documented; this one prints nothing, and lines
 * that begin with "Error". Lists are for programs only: --format=csv[,noheader].
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "control.h"

/* The value of --KEY=VALUE or KEY=VALUE, and "" of --KEY; NULL where it is not there. */
static const char *option(const struct command *c, const char *key) {
    size_t length = strlen(key);

    for (int i = 2; i < c->argc; i++) {
        const char *word = c->argv[i] + (strncmp(c->argv[i], "--", 2) == 0 ? 2 : 0);

        if (strncmp(word, key, length) == 0 && word[length] == '=')
            return word + length + 1;
        if (strcmp(word, key) == 0 && word != c->argv[i])
            return "";
    }
    return NULL;
}

/* The name behind the verb; NULL, and a line about it, if there is none that is allowed. */
static const char *name_of(struct command *c) {
    const char *name = c->argc > 2 ? c->argv[2] : "";
    size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");

    if (length > 0 && length < MPS_NAME && name[length] == '\0')
        return name;
    print(c, "Error: a name has lowercase letters, digits and underscores, 64 at most\n");
    return NULL;
}

static bool is_server(const char *name) {
    return server.pid != 0 && name != NULL && strcmp(server.name, name) == 0;
}

static bool has_server(struct command *c, const char *name) {
    if (!is_server(name))
        print(c, "Error: server %s not found\n", name != NULL ? name : "");
    return is_server(name);
}

static bool wants_csv(struct command *c, const char *header) {
    const char *format = option(c, "format");

    if (format == NULL || strncmp(format, "csv", 3) != 0) {
        print(c, "Error: SIMULATED: lists are there with --format=csv[,noheader] only\n");
        return false;
    }
    if (strcmp(format, "csv,noheader") != 0)
        print(c, "%s\n", header);
    return true;
}

/* ---- Servers ---- */

/* A GPU that is missing is noticed by the server, later. */
static void server_create(struct command *c) {
    const char *name = name_of(c), *uid = option(c, "uid"), *devices = option(c, "allowed-devices");
    uid_t user = uid != NULL ? (uid_t)atoi(uid) : geteuid();

    if (name == NULL)
        return;
    if (multiuser && user != 0)
        print(c, "Error: the servers of a daemon for all users are root's\n");
    else if (server.pid != 0)
        print(c,
              is_server(name) ? "Error: server %s exists\n"
                              : "Error: SIMULATED: there is one server at a time, and no %s\n",
              name);
    else if (!server_start(user, name, devices != NULL ? devices : ""))
        print(c, "Error: server %s cannot be started\n", name);
    else if (!namespaces_open())
        print(c, "Error: the sockets of server %s cannot be made\n", name);
}

static void server_delete(struct command *c) {
    const char *name = name_of(c);

    if (name == NULL || !has_server(c, name))
        return;
    if (option(c, "force") != NULL)
        server_kill();
    else if (namespace_clients(NULL) > 0)
        print(c, "Error: server %s has clients\n", name);
    else
        server_shut_down();
}

/* Of the states NVIDIA's page shows Ready alone. */
static void server_list(struct command *c) {
    const char *only = c->argc > 2 && c->argv[2][0] != '-' ? c->argv[2] : NULL;

    if (!wants_csv(c, "name,uid,pid,status,pipe-directory,allowed-devices,context-ids") || server.pid == 0 ||
        (only != NULL && !is_server(only)))
        return;
    print(c, "%s,%u,%d,%s,", server.name, server.uid, server.pid, server.ready ? "Ready" : "Initializing");
    print(c, "%s,%s,-\n", mps_pipe_path(server.name), server.devices[0] != '\0' ? server.devices : "all");
}

/* ---- Namespaces ---- */

/* The namespace that is named together with its server; NULL, and a line about it, if there is none such. */
static struct namespace *named(struct command *c) {
    const char *name = name_of(c);
    struct namespace *found = NULL;

    if (name != NULL && has_server(c, option(c, "server"))) {
        found = namespace_find(name);
        if (found == NULL)
            print(c, "Error: namespace %s not found\n", name);
    }
    return found;
}

static void create(struct command *c) {
    const char *name = name_of(c);

    if (name == NULL || !has_server(c, option(c, "server")))
        return;
    if (namespace_find(name) != NULL)
        print(c, "Error: namespace %s exists\n", name);
    else if (namespace_create(name) == NULL)
        print(c, "Error: namespace %s cannot be made\n", name);
}

static void delete (struct command *c) {
    struct namespace *namespace = named(c);

    if (namespace == NULL)
        return;
    if (strcmp(namespace->name, "default") == 0)
        print(c, "Error: the default namespace stays\n");
    else if (namespace_clients(namespace->name) > 0 && option(c, "force") == NULL)
        print(c, "Error: namespace %s has clients\n", namespace->name);
    else
        namespace_delete(namespace);
}

static void set(struct command *c) {
    const char *percentage = option(c, "active-thread-percentage"), *limit = option(c, "pinned-memory-limit");
    struct namespace *namespace = named(c);
    uint32_t parsed = 0;
    uint64_t bytes = 0;

    if (namespace == NULL)
        return;
    if ((percentage == NULL && limit == NULL) || (percentage != NULL && !mps_parse_percentage(percentage, &parsed)) ||
        (limit != NULL && !mps_parse_bytes(limit, &bytes))) {
        print(c, "Error: a percentage from 1 to 100 or a limit with G or M behind it is needed\n");
        return;
    }
    if (percentage != NULL)
    namespace->percentage = parsed;
    if (limit != NULL)
    namespace->limit_bytes = bytes;
}

/* What is not set NVIDIA's pages do not show; it is "-" here, as what a server does not have. */
static void print_namespace(struct command *c, const struct namespace *namespace) {
    char limit[32] = "-", percentage[32] = "-", path[2 * MPS_NAME];

    if (namespace->limit_bytes % (1u << 30) == 0 && namespace->limit_bytes != 0)
        snprintf(limit, sizeof(limit), "%lluG", (unsigned long long)(namespace->limit_bytes >> 30));
    else if (namespace->limit_bytes != 0)
        snprintf(limit, sizeof(limit), "%lluM", (unsigned long long)(namespace->limit_bytes >> 20));
    if (namespace->percentage != 0)
        snprintf(percentage, sizeof(percentage), "%.2f", namespace->percentage / 1000.0);
    snprintf(path, sizeof(path), "%s/%s", server.name, namespace->name);
    print(c, "%s,%s,%s,%s,%s,0,%s\n", namespace->name, server.name, server.ready ? "Ready" : "Initializing", limit,
          percentage, mps_pipe_path(path));
}

static void namespace_list(struct command *c) {
    const char *of = option(c, "server");

    if ((of != NULL && !has_server(c, of)) ||
        !wants_csv(
            c, "name,server,server-status,pinned-memory-limit,active-thread-percentage,client-priority,pipe-directory"))
        return;
    for (unsigned i = 0; namespace_at(i) != NULL; i++)
        print_namespace(c, namespace_at(i));
}

/* ---- Clients ---- */

static void print_client(struct command *c, const struct mps_client_entry *entry) {
    for (uint32_t i = 0; i < server.shared->device_count; i++) {
        if (atomic_load(&entry->contexts[i]) == 0)
            continue;
        print(c, "%u,%s,%u,%s,", entry->pid, server.name, i, entry->namespace);
        print_command_line(c, entry->pid);
    }
}

static void client_list(struct command *c) {
    const char *of = option(c, "server");

    if ((of != NULL && !has_server(c, of)) || !wants_csv(c, "pid,server,device,namespace,cmd") || server.shared == NULL)
        return;
    for (unsigned i = 0; i < MPS_MAX_CLIENTS; i++) {
        if (atomic_load(&server.shared->clients[i].pid) != 0)
            print_client(c, &server.shared->clients[i]);
    }
}

/* ---- The table ---- */

static const struct {
    const char *module, *verb;
    void (*run)(struct command *c);
} commands[] = {
    {"server", "create", server_create},   {"server", "delete", server_delete}, {"server", "list", server_list},
    {"namespace", "create", create},       {"namespace", "delete", delete},     {"namespace", "set", set},
    {"namespace", "list", namespace_list}, {"client", "list", client_list},
};

void command_v3(struct command *c) {
    if (strcmp(c->argv[0], "quit") == 0) { /* what -q sends */
        daemon_quit(0);
        c->later = true;
        return;
    }
    for (size_t i = 0; c->argc > 1 && i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(c->argv[0], commands[i].module) == 0 && strcmp(c->argv[1], commands[i].verb) == 0) {
            commands[i].run(c);
            return;
        }
    }
    print(c, "Error: SIMULATED: there is no command %s %s\n", c->argv[0], c->argc > 1 ? c->argv[1] : "");
}
