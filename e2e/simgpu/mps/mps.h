/*
 * What the simulated MPS's control daemon, server and clients (libcuda) share.
 *
 * A client connects to the daemon's socket and says hello. The daemon starts a server where there is none, and passes the
 * connection on to it: from then on client and server talk over it, the client asking, the server answering at once. What
 * everybody may read without asking, clients' errors above all, lies in a file of the server's in /dev/shm, which a client
 * must find there by name. The end of the connection tells the one that the other is dead.
 */
#ifndef SIMGPU_MPS_H
#define SIMGPU_MPS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "../state.h"

#define MPS_MAGIC "SIMMPS\n"
#define MPS_VERSION 1
#define MPS_SHM_DIRECTORY "/dev/shm"

enum {
    MPS_MAX_CLIENTS = 1024,           /* processes that are connected, with contexts or without */
    MPS_CONTEXTS_PER_DEVICE = 48,     /* since Volta */
    MPS_CONTEXTS_PER_DEVICE_NEW = 60, /* since Blackwell, with drivers from 580 on */
    MPS_WHOLE = 100000,               /* all threads: percentages are counted in thousandths */
    MPS_NAME = 65,                    /* of a server or a namespace, with the end */
};

/* ---- In /dev/shm. Only the server writes, but for what the daemon sets. ---- */

enum mps_status { MPS_INITIALIZING, MPS_ACTIVE, MPS_FAULT };

struct mps_client_entry {
    _Atomic uint32_t pid;   /* as the server knows it; 0: nobody */
    _Atomic uint32_t id;    /* unique among the server's clients, ever */
    _Atomic uint32_t error; /* the CUDA result of every call from now on, 0: none */
    _Atomic uint32_t percentage;
    _Atomic uint64_t pid_namespace;
    _Atomic uint32_t contexts[SIM_MAX_GPUS]; /* [device] */
    char namespace[MPS_NAME];                /* of v3; "" where there are none */
};

struct mps_shared {
    char magic[8];
    uint32_t version, size;
    uint32_t server_pid, uid;
    _Atomic uint32_t status;
    uint32_t device_count;
    char uuid[SIM_MAX_GPUS][48]; /* [device]: as clients number them */
    /* For clients that come later; the daemon sets them. */
    _Atomic uint32_t percentage;
    _Atomic uint64_t limit_bytes[SIM_MAX_GPUS]; /* 0: none */
    struct mps_client_entry clients[MPS_MAX_CLIENTS];
};

/* ---- Messages ---- */

enum mps_kind {
    /* From a client to the daemon, and on to the server with the connection. */
    /* value: percentage of its own; a: the client's name in the state. To the server the daemon adds what the client's
     * namespace has: value: percentage, if any; b: limit in bytes, if any; text: its name. */
    MPS_HELLO = 1,
    /* The answer: result; index: its entry; a: the server's name in the state; b: the namespace's limit; text: the file's name */
    MPS_WELCOME,
    MPS_CONTEXT_NEW, /* index: device. The answer is the same with a result */
    MPS_CONTEXT_GONE,
    MPS_TURN, /* index: device; a: nanoseconds wanted; b: not before. The answer: result, a and b: from when until when */
    MPS_FATAL, /* index: device; value: the CUDA result of the exception. The answer is the same */
    /* Between the daemon and a server. */
    MPS_READY,     /* from the server: result; text: the file's name */
    MPS_TERMINATE, /* value: a client's PID; a: for the answer, which is the same with a result */
    MPS_SHUT_DOWN, /* the server ends with its last client, and has no new ones */
};

struct mps_message {
    uint32_t version, kind;
    int32_t result; /* a CUDA result */
    uint32_t index, value;
    uint64_t a, b;
    char text[72];
};

/* CUDA results that MPS has to do with. */
enum {
    MPS_ERROR_INVALID_VALUE = 1,
    MPS_ERROR_NOT_FOUND = 500,
    MPS_ERROR_NOT_PERMITTED = 800,
    MPS_ERROR_CONNECTION_FAILED = 805,
    MPS_ERROR_RPC_FAILURE = 806,
    MPS_ERROR_SERVER_NOT_READY = 807,
    MPS_ERROR_MAX_CLIENTS_REACHED = 808,
    MPS_ERROR_CLIENT_TERMINATED = 810,
};

/* A message, and a descriptor with it (-1: none). False if the peer is gone or takes nothing. */
bool mps_send(int socket, const struct mps_message *message, int fd);
/* The next message; with fd NULL no descriptor is wanted. False at the connection's end, and for what is none of ours. */
bool mps_receive(int socket, struct mps_message *message, int *fd);

/* A socket that listens at the path, for whoever the mode lets, or that is connected to it. -errno on failure. */
int mps_listen(const char *path, mode_t mode);
int mps_connect(const char *path);

/* Who is at the other end, as this process knows it. */
struct mps_peer {
    pid_t pid;
    uid_t uid;
};
struct mps_peer mps_peer(int socket);

/* ---- Settings ---- */

/* A file of this name in the pipe directory, CUDA_MPS_PIPE_DIRECTORY; good until the next call, for one thread at a time. */
const char *mps_pipe_path(const char *name);

/* "12.5" to thousandths; MPS_WHOLE for what is no percentage above 0. False then. */
bool mps_parse_percentage(const char *text, uint32_t *percentage);
/* "1G", "512M", "512MB" to bytes. */
bool mps_parse_bytes(const char *text, uint64_t *bytes);
/*
 * What a list of limits ("0=1G,GPU-…=512M") says of a device, by its number or the beginning of its UUID: the last entry
 * counts. 0: nothing.
 */
uint64_t mps_limit_in(const char *list, uint32_t device, const char *uuid);
/* Whether each entry of such a list names one of these devices. */
bool mps_limits_name_devices(const char *list, const struct mps_shared *shared);
/* The smaller of two limits, where 0 is none. */
uint64_t mps_smaller_limit(uint64_t a, uint64_t b);

/* How many of so many multiprocessors a percentage is: rounded down to what the hardware can tell apart, two at least. */
uint32_t mps_multiprocessors(uint32_t all, uint32_t percentage);

#endif
