/* What the two files about shared objects share: slots and contents. */
#ifndef SIMGPU_SHARED_LOCAL_H
#define SIMGPU_SHARED_LOCAL_H

#include "state_local.h"

static inline unsigned shared_slot(uint64_t object) {
    return (unsigned)(object & 0xfff);
}

/* Makes the contents of a slot zero. The caller has the slot locked for writing. */
void shared_content_clear(unsigned slot);

#endif
