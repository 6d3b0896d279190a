/*
 * Memory that was exported as a file descriptor lives as long as a copy of the descriptor does, also when nothing else holds it:
 * on its way to another process, or just kept. So what this process has let go of after it exported it stays charged until the
 * last such copy is seen to be closed. (Who imports it meanwhile holds it by itself.)
 */
#ifndef TRANCHE_EXPORTS_H
#define TRANCHE_EXPORTS_H

#include "charge.h"

/* A descriptor that carries the number was handed to the program. */
void exports_made(struct process *process, int descriptor, uint32_t number);

/* This process has let go of what was exported with the number: ends the charge as soon as that can be. */
void exports_end(struct process *process, const struct charge *charge, uint32_t number);

/* Looks which descriptors are closed by now. Costs a load where there is nothing to wait for. True if something ended. */
bool exports_settle(struct process *process);

#endif
