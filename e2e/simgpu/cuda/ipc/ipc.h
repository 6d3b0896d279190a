/* What the handles of legacy IPC are made of. */
#ifndef SIMGPU_IPC_H
#define SIMGPU_IPC_H

#include "cuda/driver.h"
#include "shared_objects.h"

#define IPC_MAGIC "SIMIPC1"

struct ipc_handle {
    char magic[8];
    uint32_t kind; /* enum sim_shared_kind */
    uint32_t pid;  /* of the process that made it */
    uint64_t pid_namespace;
    uint64_t object;
    uint64_t offset, size; /* of the allocation in the object */
};

void ipc_handle_make(struct ipc_handle *handle, enum sim_shared_kind kind, uint64_t object);

/* False: it is no such handle. */
bool ipc_handle_read(struct ipc_handle *handle, const void *bytes, enum sim_shared_kind kind);

/* Whether this process made it. */
bool ipc_handle_own(const struct ipc_handle *handle);

#endif
