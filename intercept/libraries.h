/* Libraries, which the driver loads into every context: those that are there, and those that come. */
#ifndef TRANCHE_LIBRARIES_H
#define TRANCHE_LIBRARIES_H

#include "contexts.h"

/* Charges a new context with the libraries that were loaded before it. */
CUresult libraries_enter(struct process *process, const struct place *place);

#endif
