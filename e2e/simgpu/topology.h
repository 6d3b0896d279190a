/* Reading a topology file. */
#ifndef SIMGPU_TOPOLOGY_H
#define SIMGPU_TOPOLOGY_H

#include "state.h"

/* Reads the file at path. 0, or -errno with one line in `error` that names the file, the line and what is wrong. */
int topology_read(const char *path, struct sim_topology *topology, char *error, size_t size);

#endif
