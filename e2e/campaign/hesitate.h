/* Threads that hesitate at mutexes. */
#ifndef CAMPAIGN_HESITATE_H
#define CAMPAIGN_HESITATE_H

#include <stdint.h>

/* From now on the calling thread sleeps for a moment at one of so many mutexes; 0: at none. */
void hesitate(uint64_t seed, uint32_t once_in);

#endif
