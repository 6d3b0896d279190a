/*
 * The connections to the governor: one for each claim of the process, through the socket in the claim's directory. Those of
 * one process share its page, in which each claim's GPU has an index of its own.
 *
 * All functions but connection_send are the agent's thread's.
 */
#ifndef TRANCHE_GOVERNOR_CONNECTION_H
#define TRANCHE_GOVERNOR_CONNECTION_H

#include "governor/protocol.h"
#include "state/process.h"

#include <poll.h>

#define CONNECTIONS_MAX GOVERNOR_GPUS_MAX

/* Finds the claims. Returns whether there is any that could be governed. To be called before the agent's thread starts. */
bool connections_start(struct process *process);

/* Connects to the sockets that there are, anew where the program has closed a connection's descriptor. */
void connections_try(uint64_t now);

/* Whether a governor has been sent a HELLO and has not answered yet. */
bool connections_pending(void);

/* When to try again, at the latest; 0: all are connected. */
uint64_t connections_next_try(void);

/* The descriptors to wait for; `connections_read` is called with them once poll has returned. `received` is called for every
 * message about a GPU. */
unsigned connections_poll(struct pollfd polled[static CONNECTIONS_MAX]);
void connections_read(const struct pollfd *polled, unsigned count, void (*received)(const struct governor_message *));

/* Sends a message about a GPU. Any thread. False if it was not sent. */
bool connection_send(struct governor_message message);

/* The end of the process, and a forked child. */
void connections_bye(void);
void connections_forked(void);

#endif
