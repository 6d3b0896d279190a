/* Threads that hesitate at mutexes. */
#ifndef CAMPAIGN_HESITATE_H
#define CAMPAIGN_HESITATE_H

#include <stdatomic.h>
#include <stdint.h>

/* From now on the calling thread sleeps for a moment at one of *once_in mutexes, which is read each time; NULL or 0: at none. */
void hesitate(uint64_t seed, const _Atomic uint32_t *once_in);

#endif
