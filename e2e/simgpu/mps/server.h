/* What the files of the simulated MPS server share. */
#ifndef SIMGPU_MPS_SERVER_H
#define SIMGPU_MPS_SERVER_H

#include "mps.h"

/* Descriptors that the control daemon leaves to the server: the connection to itself, and the log. */
enum { SERVER_DAEMON_FD = 3, SERVER_LOG_FD = 4 };

extern struct mps_shared *shared;

/* The GPUs that clients see, [device]. */
struct server_device {
    int gpu; /* in state.h */
    uint32_t most_contexts;
};
extern struct server_device devices[SIM_MAX_GPUS];
extern uint32_t device_count;

/* ---- GPUs ---- */

/* Opens the GPUs that CUDA_VISIBLE_DEVICES names and makes a context on each. Returns what is wrong, or NULL. */
const char *devices_open(void);

/* The server's name in the state, for its clients. */
uint64_t server_name(void);

/* ---- The file in /dev/shm ---- */

/* Makes it for the GPUs that are open; false if it can't be. */
bool shared_make(void);
const char *shared_name(void);
void shared_remove(void);

/* ---- Clients ---- */

struct client {
    int fd;
    struct mps_client_entry *entry;
    uint64_t name; /* in the state */
    bool faulted;  /* was on a GPU when that had a fatal fault */
};

/* Those that are connected; the number of them changes with adopting and dropping only. */
extern struct client clients[MPS_MAX_CLIENTS];
extern unsigned client_count;

/* A connection that the daemon passed on becomes a client, or is told why not. */
void client_adopt(int fd, const struct mps_message *hello);

/* Answers the next message of a client. False if it is gone, and dropped. */
bool client_attend(unsigned client);

/* Ends the contexts of the process: a CUDA result. */
int clients_terminate(uint32_t pid);

/* ---- GPU time ---- */

/*
 * When a client with this percentage has the GPU next. Clients run side by side as long as their percentages are no more
 * than the whole; with whoever else is on the GPU, the server takes turns.
 */
struct sim_turn turn_book(uint32_t device, uint32_t percentage, uint64_t want_ns, uint64_t not_before_ns);

#endif
