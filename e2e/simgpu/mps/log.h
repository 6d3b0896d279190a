/* The logs of the control daemon and of its servers. */
#ifndef SIMGPU_MPS_LOG_H
#define SIMGPU_MPS_LOG_H

#include <stdbool.h>

/* Opens the file in the log directory, CUDA_MPS_LOG_DIRECTORY, which is made where missing; -1 if that can't be. */
int mps_log_open(const char *file);

/* Lines go to the descriptor from now on, each with the time, `who` and the PID in front. */
void mps_log_to(int fd, const char *who);

__attribute__((format(printf, 1, 2))) void mps_log(const char *format, ...);

/* Names the simulated node where the environment does not, and this program lies in a driver root: its own. */
void mps_find_node(void);

/* Where this program lies, without its name. */
const char *mps_program_directory(void);

#endif
