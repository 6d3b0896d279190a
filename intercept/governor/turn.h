/*
 * A GPU's turns, as the agent's thread follows them: draining when a turn is revoked, and finding out that the process is
 * idle in one.
 */
#ifndef TRANCHE_GOVERNOR_TURN_H
#define TRANCHE_GOVERNOR_TURN_H

#include "governor/protocol.h"

/* A message about a GPU was received. */
void turn_received(const struct governor_message *message);

/* Looks at a GPU. Returns after how many ns to look again; UINT64_MAX: when there is a message. */
uint64_t turn_look(int gpu, uint64_t now);

/* A forked child. */
void turns_forked(void);

#endif
