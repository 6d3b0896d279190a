/*
 * This process as a client of MPS (../mps/mps.h): where a control daemon listens, its server has the GPUs, says which there
 * are and how much of them is for this process, and when the process's kernels run.
 */
#ifndef SIMGPU_MPS_CLIENT_H
#define SIMGPU_MPS_CLIENT_H

#include "driver.h"

/* Connects to the control daemon, where there is one; this process has its slot in the state by then. CUDA_SUCCESS without one, too: see mps_client. */
CUresult mps_client_connect(void);
void mps_client_disconnect(void);

/* Whether this process is a client. */
bool mps_client(void);

/* Whether it is in a namespace, of MPS v3. */
bool mps_client_namespace(void);

/* The GPUs, in the server's order. Returns how many. */
int mps_client_gpus(int *gpus);

/* The devices are known: takes on the limits that it has. */
void mps_client_begin(void);

/* What is wrong with the server, or with this process as its client; all calls give it from then on. */
CUresult mps_client_error(void);

/* A context more or less on the device. */
CUresult mps_client_context_new(CUdevice device);
void mps_client_context_gone(CUdevice device);

/* How many multiprocessors this process's kernels have of those of the device: all, where it is no client. */
int mps_client_multiprocessors(CUdevice device);

/* The next turn on the device; false if there is none any more. */
bool mps_client_turn(CUdevice device, uint64_t want_ns, uint64_t not_before_ns, struct sim_turn *turn);

/* A kernel of this process ended with an exception. */
void mps_client_fatal(CUdevice device, CUresult result);

#endif
