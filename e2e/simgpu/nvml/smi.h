/* The simulator's stand-in for nvidia-smi. */
#ifndef SIMGPU_SMI_H
#define SIMGPU_SMI_H

#include <stdio.h>

/* Prints the table of all GPUs and their processes, with SIMULATED in its header. NVML is loaded by its SONAME through
 * the loader, so that whatever stands in front of it (a shadow library) is shown as a program would see it. Returns 0,
 * or the NVML error that kept it from printing, after one line on `out` that says so. */
int simgpu_smi(FILE *out);

/* Prints one line per GPU: index, name and UUID. Returns as simgpu_smi. */
int simgpu_smi_list(FILE *out);

/* Prints the comma-separated fields, one line per GPU ("name,memory.used"), with a header line and units unless these
 * are turned off. Returns as simgpu_smi, or NVML_ERROR_INVALID_ARGUMENT for a field that it does not know. */
int simgpu_smi_query(FILE *out, const char *fields, int header, int units);

/* `nvidia-smi mig …` and `nvidia-smi [-i GPU] -mig 0|1`: argv begins behind "mig", or with the options. Exit status. */
int simgpu_smi_mig(FILE *out, int argc, char **argv);
int simgpu_smi_mig_mode(FILE *out, const char *gpu, const char *mode);

/* `nvidia-smi memory-limits …`: argv begins behind that. Exit status. */
int simgpu_smi_memory_limits(FILE *out, int argc, char **argv);

#endif
