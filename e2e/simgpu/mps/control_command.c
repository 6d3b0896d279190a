/* The commands of nvidia-cuda-mps-control, as the daemon runs them. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "control.h"

void print(struct command *c, const char *format, ...) {
    va_list args;
    int length;

    va_start(args, format);
    length = vsnprintf(c->out + c->length, c->size - c->length, format, args);
    va_end(args);
    c->length += length < 0 ? 0 : (size_t)length;
    if (c->length >= c->size)
        c->length = c->size - 1;
}

/* The server that a word names by its PID; NULL, and a line about it, if there is none such. */
static struct mps_shared *named_server(struct command *c, int word) {
    if (word < c->argc && server.pid != 0 && server.ready && atoi(c->argv[word]) == server.pid)
        return server.shared;
    print(c, "Server %s not found\n", word < c->argc ? c->argv[word] : "");
    return NULL;
}

/* ---- Servers ---- */

static void get_server_list(struct command *c) {
    if (server.pid != 0 && server.ready)
        print(c, "%d\n", server.pid);
}

static void get_server_status(struct command *c) {
    static const char *const names[] = {"INITIALIZING", "ACTIVE", "FAULT"};

    /* One that is about to be there has no memory to say so yet. */
    if (c->argc > 1 && server.pid != 0 && !server.ready && atoi(c->argv[1]) == server.pid)
        print(c, "%s\n", names[MPS_INITIALIZING]);
    else if (c->argc == 1)
        print(c, "A server PID is required\n");
    else if (named_server(c, 1) != NULL)
        print(c, "%s\n", names[atomic_load(&server.shared->status) % 3]);
}

static void start_server(struct command *c) {
    char *end;
    long uid;

    if (c->argc != 3 || strcmp(c->argv[1], "-uid") != 0 || (uid = strtol(c->argv[2], &end, 10)) < 0 || *end != '\0')
        print(c, "usage: start_server -uid UID\n");
    else if (server.pid != 0)
        print(c, "Server %d is there already\n", server.pid);
    else if (!server_start(multiuser ? 0 : (uid_t)uid, "", ""))
        print(c, "Server cannot be started\n");
}

static void shutdown_server(struct command *c) {
    if (named_server(c, 1) == NULL)
        return;
    if (c->argc > 2 && (strcmp(c->argv[2], "-f") == 0 || strcmp(c->argv[2], "--force") == 0))
        server_kill();
    else
        server_shut_down();
}

static void quit(struct command *c) {
    int timeout_s = -1;

    if (c->argc == 3 && (strcmp(c->argv[1], "-t") == 0 || strcmp(c->argv[1], "--timeout") == 0))
        timeout_s = atoi(c->argv[2]);
    daemon_quit(timeout_s);
    c->later = true;
}

/* ---- Clients ---- */

typedef void client_fn(struct command *c, struct mps_client_entry *entry);

static void each_client(struct command *c, client_fn *fn) {
    for (unsigned i = 0; i < MPS_MAX_CLIENTS; i++) {
        if (atomic_load(&server.shared->clients[i].pid) != 0)
            fn(c, &server.shared->clients[i]);
    }
}

static void print_pid(struct command *c, struct mps_client_entry *entry) {
    print(c, "%u\n", entry->pid);
}

static void get_client_list(struct command *c) {
    if (named_server(c, 1) != NULL)
        each_client(c, print_pid);
}

static void get_device_client_list(struct command *c) {
    if ((c->argc > 1 && named_server(c, 1) == NULL) || server.shared == NULL)
        return;
    for (uint32_t i = 0; i < server.shared->device_count; i++) {
        print(c, "%s\n", server.shared->uuid[i]);
        each_client(c, print_pid);
    }
}

void print_command_line(struct command *c, uint32_t pid) {
    char path[64], line[256];
    size_t length = 0;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
    file = fopen(path, "re");
    if (file != NULL) {
        length = fread(line, 1, sizeof(line) - 1, file);
        fclose(file);
    }
    for (size_t i = 0; i + 1 < length; i++) {
        if (line[i] == '\0' || line[i] == '\n')
            line[i] = ' ';
    }
    line[length] = '\0';
    print(c, "%s\n", line);
}

static void print_client(struct command *c, struct mps_client_entry *entry) {
    for (uint32_t i = 0; i < server.shared->device_count; i++) {
        if (atomic_load(&entry->contexts[i]) == 0)
            continue;
        print(c, "%-10u%-6u%-10d%-23.22s%-13llu", entry->pid, entry->id, server.pid, server.shared->uuid[i],
              (unsigned long long)entry->pid_namespace);
        print_command_line(c, entry->pid);
    }
}

static void ps(struct command *c) {
    bool named = c->argc == 3 && strcmp(c->argv[1], "-p") == 0;

    if (named && named_server(c, 2) == NULL) {
        named_server(c, 2); /* NVIDIA's says twice that there is none */
        print(c, "\n");
        return;
    }
    if (!named && (server.pid == 0 || !server.ready)) {
        print(c, "Server not found\n");
        return;
    }
    print(c, "%-10s%-6s%-10s%-23s%-13s%s\n", "PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND");
    if (server.shared != NULL)
        each_client(c, print_client);
}

/* Consoles that wait for the server's answer. */
static struct {
    uint64_t serial; /* of what was asked, 0: nobody */
    int console;
} asked[16];
enum { MOST_ASKED = sizeof(asked) / sizeof(asked[0]) };

/* The server answers, and that is passed on. */
static void terminate_client(struct command *c) {
    static uint64_t serial;
    struct mps_message message = {.kind = MPS_TERMINATE, .a = ++serial};
    int place = 0;

    if (named_server(c, 1) == NULL) {
        print(c, "Server %s not found!\n1\n", c->argc > 1 ? c->argv[1] : "");
        return;
    }
    while (place < MOST_ASKED && asked[place].serial != 0)
        place++;
    message.value = c->argc > 2 ? (uint32_t)atoi(c->argv[2]) : 0;
    c->later = place < MOST_ASKED && mps_send(server.fd, &message, -1);
    if (!c->later) {
        print(c, "%d\n", MPS_ERROR_RPC_FAILURE);
        return;
    }
    asked[place].serial = serial;
    asked[place].console = c->console;
}

void command_forget(int console) {
    for (int i = 0; i < MOST_ASKED; i++) {
        if (asked[i].console == console)
            asked[i].serial = 0;
    }
}

static void tell_result(int place, int result) {
    char text[16];

    snprintf(text, sizeof(text), "%d\n", result);
    asked[place].serial = 0;
    send(asked[place].console, text, strlen(text) + 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void command_answered(const struct mps_message *message) {
    for (int i = 0; i < MOST_ASKED; i++) {
        if (asked[i].serial == message->a)
            tell_result(i, message->result);
    }
}

void command_unanswered(void) {
    for (int i = 0; i < MOST_ASKED; i++) {
        if (asked[i].serial != 0)
            tell_result(i, MPS_ERROR_RPC_FAILURE);
    }
}

/* ---- Settings ---- */

static void print_percentage(struct command *c, uint32_t percentage) {
    print(c, "%.1f\n", percentage / 1000.0);
}

/* Leaves it where the word is no percentage. */
static void parse_percentage(struct command *c, int word, uint32_t *percentage) {
    uint32_t parsed;

    if (word < c->argc && mps_parse_percentage(c->argv[word], &parsed))
        *percentage = parsed;
}

static void get_default_percentage(struct command *c) {
    print_percentage(c, default_percentage);
}

static void set_default_percentage(struct command *c) {
    parse_percentage(c, 1, &default_percentage);
    print_percentage(c, default_percentage);
}

static void get_percentage(struct command *c) {
    if (named_server(c, 1) != NULL)
        print_percentage(c, atomic_load(&server.shared->percentage));
}

static void set_percentage(struct command *c) {
    uint32_t percentage;

    if (named_server(c, 1) == NULL)
        return;
    percentage = atomic_load(&server.shared->percentage);
    parse_percentage(c, 2, &percentage);
    atomic_store(&server.shared->percentage, percentage);
    print_percentage(c, percentage);
}

/* In whole gigabytes from one on, as NVIDIA's prints them, whatever is left over. */
static void print_limit(struct command *c, uint64_t bytes) {
    if (bytes == 0)
        print(c, "\n");
    else if (bytes >= 1 << 30)
        print(c, "%lluG\n", (unsigned long long)(bytes >> 30));
    else
        print(c, "%lluM\n", (unsigned long long)(bytes >> 20));
}

static bool parse_limit(struct command *c, int word, uint64_t *bytes) {
    if (word < c->argc && mps_parse_bytes(c->argv[word], bytes))
        return true;
    print(c, "The limit must be a whole number with G or M behind it\n");
    return false;
}

/* As it was named: a device has its limits by number and by UUID apart, until a server starts. */
static void get_default_limit(struct command *c) {
    const char *device = c->argc > 1 ? c->argv[1] : "";
    char *end;
    long number = strtol(device, &end, 10);
    bool numbered = *device != '\0' && *end == '\0';

    print_limit(c, mps_limit_in(default_limits, numbered ? (uint32_t)number : UINT32_MAX, numbered ? "" : device));
}

static void set_default_limit(struct command *c) {
    size_t length = strlen(default_limits);
    uint64_t bytes;

    if (!parse_limit(c, 2, &bytes))
        return;
    if (length + strlen(c->argv[1]) + strlen(c->argv[2]) + 3 > sizeof(default_limits))
        print(c, "There are too many limits\n");
    else
        snprintf(default_limits + length, sizeof(default_limits) - length, "%s%s=%s", length > 0 ? "," : "", c->argv[1],
                 c->argv[2]);
}

/* The server's device that a word names; false, and a line about it, if there is none. */
static bool named_device(struct command *c, int word, uint32_t *device) {
    const char *name = word < c->argc ? c->argv[word] : "";
    char entry[128];

    snprintf(entry, sizeof(entry), "%s=1M", name);
    for (*device = 0; *device < server.shared->device_count; (*device)++) {
        if (mps_limit_in(entry, *device, server.shared->uuid[*device]) != 0)
            return true;
    }
    print(c, "Device %s not found\n", name);
    return false;
}

static void get_limit(struct command *c) {
    uint32_t device;

    if (named_server(c, 1) != NULL && named_device(c, 2, &device))
        print_limit(c, atomic_load(&server.shared->limit_bytes[device]));
}

static void set_limit(struct command *c) {
    uint32_t device;
    uint64_t bytes;

    if (named_server(c, 1) != NULL && named_device(c, 2, &device) && parse_limit(c, 3, &bytes))
        atomic_store(&server.shared->limit_bytes[device], bytes);
}

/* ---- The table ---- */

static void help(struct command *c);

static const struct {
    const char *name, *arguments;
    void (*run)(struct command *c);
} commands[] = {
    {"get_server_list", "", get_server_list},
    {"get_server_status", "PID", get_server_status},
    {"start_server", "-uid UID", start_server},
    {"shutdown_server", "PID [-f]", shutdown_server},
    {"get_client_list", "PID", get_client_list},
    {"get_device_client_list", "[PID]", get_device_client_list},
    {"ps", "[-p PID]", ps},
    {"terminate_client", "SERVER_PID CLIENT_PID", terminate_client},
    {"get_default_active_thread_percentage", "", get_default_percentage},
    {"set_default_active_thread_percentage", "PERCENTAGE", set_default_percentage},
    {"get_active_thread_percentage", "PID", get_percentage},
    {"set_active_thread_percentage", "PID PERCENTAGE", set_percentage},
    {"get_default_device_pinned_mem_limit", "DEVICE", get_default_limit},
    {"set_default_device_pinned_mem_limit", "DEVICE VALUE", set_default_limit},
    {"get_device_pinned_mem_limit", "PID DEVICE", get_limit},
    {"set_device_pinned_mem_limit", "PID DEVICE VALUE", set_limit},
    {"quit", "[-t SECONDS]", quit},
    {"help", "", help},
};

static void help(struct command *c) {
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        print(c, "%s %s\n", commands[i].name, commands[i].arguments);
}

bool command_run(char *line, int console, char *out, size_t size) {
    struct command c = {.console = console, .out = out, .size = size};
    char *rest = NULL;

    for (char *word = strtok_r(line, " \t\n", &rest); word != NULL && c.argc < MOST_WORDS;
         word = strtok_r(NULL, " \t\n", &rest))
        c.argv[c.argc++] = word;
    if (c.argc == 0)
        return true;
    if (protocol_3) {
        command_v3(&c);
        return !c.later;
    }
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(c.argv[0], commands[i].name) == 0) {
            commands[i].run(&c);
            return !c.later;
        }
    }
    print(&c, "Unknown command \"%s\"\n", c.argv[0]);
    return true;
}
