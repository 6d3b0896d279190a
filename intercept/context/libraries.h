/* Libraries, which the driver loads into every context: those that are there, and those that come. */
#ifndef TRANCHE_LIBRARIES_H
#define TRANCHE_LIBRARIES_H

#include "state/contexts.h"

/* Charges a context that is about to be made with the libraries that were loaded before it, and with the local memory of those
 * of their kernels that somebody has. The caller holds the lock of the libraries. */
CUresult libraries_enter(struct process *process, const struct place *place);

/* Loads into a context that was made what could not be measured for want of one: libraries whose images cannot be read
 * beforehand. What does not fit is unloaded. */
void libraries_entered(struct process *process, const struct place *place);

#endif
