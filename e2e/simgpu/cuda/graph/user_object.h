/*
 * User objects: things of the program with a destructor that runs once nobody refers to them any more, neither the
 * program nor a graph nor a launch that has not ended.
 *
 * All of it is under the mutex of graph.h. Destructors run on the engine's thread.
 */
#ifndef SIMGPU_USER_OBJECT_H
#define SIMGPU_USER_OBJECT_H

#include "cuda/driver.h"

/* The references of one graph: a list. */
struct object_references;

/* False: no memory; then the copy is what was copied so far. */
bool object_references_copy_locked(const struct object_references *references, struct object_references **copy);
void object_references_drop_locked(struct object_references *references);

/* Drops them when the GPU has got to the mark. */
void object_references_hold_locked(struct object_references *references, CUdevice device, uint64_t mark);

#endif
