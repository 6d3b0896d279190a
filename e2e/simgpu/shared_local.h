/* What the two files about shared objects share: slots and contents. */
#ifndef SIMGPU_SHARED_LOCAL_H
#define SIMGPU_SHARED_LOCAL_H

#include "state_local.h"

/* An object's name: {generation:32, slot:12}. */
#define NAME(generation, slot) ((uint64_t)(generation) << 12 | (slot))
#define NAME_GENERATION(n) ((n) >> 12)

static inline unsigned shared_slot(uint64_t object) {
    return (unsigned)(object & 0xfff);
}

/* Makes the contents of a slot zero. The caller has the slot locked for writing. */
void shared_content_clear(unsigned slot);

#endif
