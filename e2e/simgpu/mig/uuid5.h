/* UUIDs made of names. */
#ifndef SIMGPU_UUID5_H
#define SIMGPU_UUID5_H

#include <stdint.h>

/* The version-5 UUID of a name of at most 39 bytes in the space of another UUID. */
void uuid5(const uint8_t space[16], const char *name, uint8_t uuid[16]);

#endif
