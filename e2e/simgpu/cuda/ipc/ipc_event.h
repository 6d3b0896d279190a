/* Events that several processes use: which of their recordings were reached is told in a shared object. */
#ifndef SIMGPU_IPC_EVENT_H
#define SIMGPU_IPC_EVENT_H

#include "cuda/driver.h"

/* Both with a hold on the object, which is the event's. */
CUresult ipc_event_new(CUdevice device, uint64_t *object, CUipcEventHandle *handle);
CUresult ipc_event_handle(uint64_t object, CUipcEventHandle *handle);
CUresult ipc_event_open(const CUipcEventHandle *handle, uint64_t *object);

/* This process recorded the event; the mark is when it is reached. */
CUresult ipc_event_recorded(uint64_t object, CUdevice device, uint64_t mark);

/* Whether the last recording, of whichever process, was reached. Work of a process that died is never done, nor waited for. */
bool ipc_event_done(uint64_t object);
void ipc_event_wait(uint64_t object);

#endif
