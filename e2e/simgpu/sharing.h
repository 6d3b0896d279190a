/*
 * How processes share a GPU: whom its compute mode lets on it, which processes are behind MPS (e2e/simgpu/mps), and how much
 * memory a process may have of it.
 */
#ifndef SIMGPU_SHARING_H
#define SIMGPU_SHARING_H

#include <stdbool.h>
#include <stdint.h>

/* Compute modes, by NVML's numbers. */
enum { SIM_COMPUTE_DEFAULT = 0, SIM_COMPUTE_PROHIBITED = 2, SIM_COMPUTE_EXCLUSIVE_PROCESS = 3 };

/* A MIG device's is always the default. */
uint64_t sim_compute_mode(int gpu);

/*
 * This process has a context on the GPU from now on, until as many calls of sim_unuse. 0, -EPERM where the compute mode
 * prohibits contexts, or -EBUSY where it is exclusive and another process has one. The kernel forgets who dies.
 */
int sim_use(int gpu);
void sim_unuse(int gpu);

/* This process is an MPS server, which others name by what sim_mps_serve returns; or it is a client of a server. */
uint64_t sim_mps_serve(void);
void sim_mps_join(uint64_t server);

/* This process has at most so much of the GPU; 0: whatever there is. What it has for others to share counts too. */
void sim_limit(int gpu, uint64_t bytes);
uint64_t sim_limit_of(int gpu);
/* What counts towards the limit. */
uint64_t sim_charged(int gpu);

/* GPU time that another process (sim_shared_process) had in this one's turns. */
void sim_count_busy(uint64_t process, int gpu, uint64_t ns);

#endif
