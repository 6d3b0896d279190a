/*
 * Memory that was exported as a file descriptor lives as long as a copy of the descriptor does, also when nothing else holds it:
 * on its way to another process, or just kept. So what this process has let go of after it exported it stays charged until the
 * last such copy is seen to be closed. (Who imports it meanwhile holds it by itself.)
 */
#ifndef TRANCHE_EXPORTS_H
#define TRANCHE_EXPORTS_H

#include "state/charge.h"

/* The driver has exported something as this descriptor. To be called before the number that it is to carry is asked for. */
void exports_see(struct process *process, int descriptor);

/* What is exported beyond the numbers that there are: nobody can see when its descriptors are closed, so it stays charged until this
 * process ends. Whoever imports it pays for it as well. */
#define EXPORTS_UNTRACKED (TAG_NUMBERS + 1)

/* Makes a charge outlive this process, and gives one that another process has shared one more name; the number that its descriptors
 * are to carry, or EXPORTS_UNTRACKED if all numbers are in use or the claim has no room for that. Never 0. */
uint32_t exports_share(struct process *process, struct charge *charge);

/* Writes a number on a descriptor. */
void exports_mark(struct process *process, int descriptor, uint32_t number);

/* This process has let go of what was exported with the number: ends the charge as soon as that can be,
 * and with it the number's use. */
void exports_end(struct process *process, const struct charge *charge, uint32_t number);

/* Looks which descriptors are closed by now. Costs a load where there is nothing to wait for. True if something ended. */
bool exports_settle(struct process *process);

#endif
