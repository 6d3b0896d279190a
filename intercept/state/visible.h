/*
 * The GPU that a program under `tranche run` sees: only its own, with number 0, as in a container that has one. The variable
 * CUDA_VISIBLE_DEVICES is the program's own, which may be "0" and so on; the driver gets the GPU's UUID in place of it.
 */
#ifndef TRANCHE_VISIBLE_H
#define TRANCHE_VISIBLE_H

#include "state/process.h"

/* The driver's cuInit. */
CUresult visible_init(struct process *process, unsigned int flags);

#endif
