/*
 * Memory that was exported as a file descriptor. The driver keeps it as long as any copy of the descriptor is open,
 * even if nothing else uses it: for example in flight to another process. So when this process has released exported
 * memory, its charge stays until the last copy is closed. A process that imports the memory holds its share itself.
 *
 * An export has a number, which is written on its descriptors (tags.h). exported.lock protects the numbers and the
 * witness, a descriptor through which the kernel is queried about them.
 */
#ifndef TRANCHE_EXPORTS_H
#define TRANCHE_EXPORTS_H

#include "state/charge.h"

/* The driver has exported memory as this descriptor. Called before exports_share. */
void exports_see(struct process *process, int descriptor);

/* The number of exports without one of the TAG_NUMBERS numbers. It cannot be seen when their descriptors are closed, so
 * they stay charged until this process ends. A process that imports such memory is charged too. */
#define EXPORTS_UNTRACKED (TAG_NUMBERS + 1)

/* Makes a charge a share, or gives another process's share one more name. Returns the number for its descriptors;
 * EXPORTS_UNTRACKED if all numbers are in use or the region has no room. Never 0. */
uint32_t exports_share(struct process *process, struct charge *charge);

/* Writes a number on a descriptor. */
void exports_mark(struct process *process, int descriptor, uint32_t number);

/* This process has released what was exported with this number: ends the charge, and frees the number, now or in
 * exports_settle. */
void exports_end(struct process *process, const struct charge *charge, uint32_t number);

/* Ends the charges of exports whose descriptors are closed by now. Costs one load if there are none. True if one ended. */
bool exports_settle(struct process *process);

#endif
