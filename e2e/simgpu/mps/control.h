/* What the files of the simulated MPS control daemon share. */
#ifndef SIMGPU_MPS_CONTROL_H
#define SIMGPU_MPS_CONTROL_H

#include <stddef.h>

#include "mps.h"

/* Whether the daemon speaks MPS v3, with a named server and namespaces (-p 3). Otherwise it is the one of before. */
extern bool protocol_3;

/* ---- The daemon ---- */

/* Takes the pipe directory and listens; says why not on stderr, and returns false then. */
bool daemon_open(bool multiuser);
/* Serves until it is told to quit. The exit status. */
int daemon_run(void);

/* Begins to quit: nobody new, and the end with the server's. After `timeout_s` (-1: never) the server is killed. */
void daemon_quit(int timeout_s);

/* ---- The server: one at a time ---- */

struct server {
    pid_t pid; /* 0: there is none */
    int fd;
    uid_t uid;
    bool ready;
    bool closing; /* has no new clients, and ends with its last */
    struct mps_shared *shared;
    char shm[64];
    char name[MPS_NAME], devices[1024]; /* in v3; the GPUs as they were named */
};
extern struct server server;

/* Starts one for the user; in v3 with a name and for these GPUs, else with "" for both. False if that can't be. */
bool server_start(uid_t uid, const char *name, const char *devices);
/* Has it end with its last client, or at once. */
void server_shut_down(void);
void server_kill(void);
/* What it says. */
void server_attend(void);
/* It may have ended. */
void server_reap(void);

/* What servers that come are told, and the next clients of the one there is. */
extern uint32_t default_percentage;
/* "0=1G,GPU-…=512M"; the last entry of a device counts. */
extern char default_limits[4096];

/* ---- Clients that wait for a server ---- */

/* Somebody connected: a client, once it has said hello. In v3 it came by a namespace's socket. */
void waiting_add(int fd, const char *namespace);
/* For poll: how many there are, and their descriptors while they have not said hello (-1 then). */
unsigned waiting_count(void);
int waiting_fd(unsigned i);
void waiting_attend(unsigned i);
/* Passes on those who can be, and starts a server for who is first where there is none. */
void waiting_serve(void);
/* Nobody gets a server any more. */
void waiting_refuse(void);
/* A server did not start: those who waited for it learn of it. */
void waiting_failed(uid_t uid);

extern bool multiuser;

/* ---- Namespaces, of v3: parts of the server, each with a socket of its own ---- */

struct namespace {
    char name[MPS_NAME];
    int fd;               /* listens at <pipe>/<server>/<name>/control */
    uint32_t percentage;  /* 0: none, and then it has all */
    uint64_t limit_bytes; /* likewise */
};

/* The server is there: makes its directory, and the namespace "default". False if that can't be. */
bool namespaces_open(void);
/* The server is gone, and so are all sockets. */
void namespaces_close(void);
/* NULL if there is none of the name, or no room. */
struct namespace *namespace_find(const char *name);
struct namespace *namespace_create(const char *name);
void namespace_delete(struct namespace *namespace);
/* How many clients are in it; with NULL all of them. */
unsigned namespace_clients(const char *name);
/* The namespaces in order; NULL behind the last one. */
struct namespace *namespace_at(unsigned i);
/* For poll: the sockets, and accepting at one of them. */
unsigned namespace_sockets(void);
int namespace_socket(unsigned i);
void namespace_accept(unsigned i);

/* ---- Commands ---- */

enum { MOST_WORDS = 8 };

struct command {
    int argc;
    char *argv[MOST_WORDS];
    int console;
    char *out;
    size_t size, length;
    bool later;
};

__attribute__((format(printf, 2, 3))) void print(struct command *c, const char *format, ...);
/* A client's command line, with the end of the line. */
void print_command_line(struct command *c, uint32_t pid);

/* The commands of v3, "module verb". What they say of errors begins with "Error". */
void command_v3(struct command *c);

/*
 * Runs one command for whoever is at the socket. The answer is in the buffer; false if it comes later, or never: that the
 * connection ends is the answer to `quit`.
 */
bool command_run(char *line, int console, char *out, size_t size);
/* A server's answer to what a command has asked of it. */
void command_answered(const struct mps_message *message);
/* The server is gone, and answers nothing any more. */
void command_unanswered(void);
/* A console is gone. */
void command_forget(int console);

/* The client: runs the commands on stdin, or one from these words. The exit status. */
int console_run(void);
int console_command(int count, char **words);

#endif
