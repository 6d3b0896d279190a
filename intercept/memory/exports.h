/*
 * Memory that is exported as a descriptor. The driver keeps it as long as any copy of the descriptor is open, in this
 * process, in another one, or in flight to one. Its charge becomes a share whose tag the descriptor carries
 * (region/tags.h), so it is counted as long, whoever has ended.
 *
 * The shares are held from before the driver is called until the descriptor has their tags: another thread may free the
 * memory meanwhile.
 */
#ifndef TRANCHE_EXPORTS_H
#define TRANCHE_EXPORTS_H

#include "state/charge.h"

/* The end of a call that exported memory as a descriptor, with the share that was held (none for memory of another claim),
 * and whether the memory is still the same. Closes the descriptor if the program must not get it. */
CUresult exports_done(struct process *process, const struct charge *held, bool same, int descriptor);

/* A line on stderr about memory that cannot be exported. Returns the error. */
CUresult exports_refused(void);

/* The shares of all memory in a range of addresses. */
struct exports {
    struct charge *each;
    size_t count, room;
    bool known; /* all memory in the range is recorded: what is not, another thread is allocating or freeing */
};

/* Holds them; memory of another claim has none. False if some cannot be counted: then those that were held are to be let go
 * of all the same. */
bool exports_hold(struct process *process, CUdeviceptr address, size_t size, struct exports *exports);
void exports_let_go(struct process *process, struct exports *exports);

/* Writes their tags on a descriptor. False if that fails, or if the range has other memory by now. */
bool exports_mark(struct process *process, CUdeviceptr address, size_t size, const struct exports *exports,
                  int descriptor);

#endif
