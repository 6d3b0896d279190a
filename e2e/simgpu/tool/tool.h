/* The simgpu tool's commands, one function each: exit status. */
#ifndef SIMGPU_TOOL_H
#define SIMGPU_TOOL_H

#include <stdbool.h>

int command_record(int argc, char **argv);
int command_fault(int argc, char **argv);
int command_fault_mig(int argc, char **argv);
int command_reload(int argc, char **argv);
int command_reset(int argc, char **argv);
int command_root(int argc, char **argv);
int command_set(int argc, char **argv);

/* The faults of tool/health.c: as many words as `fault` has counted. */
int fault_xid(int argc, char **argv);
int fault_ecc(int argc, char **argv);
int fault_recovery(int argc, char **argv);
int fault_removed(int argc, char **argv);
int fault_clear(int argc, char **argv);
int fault_driver(int argc, char **argv);
int fault_mismatch(int argc, char **argv);
int fault_hang(int argc, char **argv);
int fault_nvml_error(int argc, char **argv);

/* One line on stderr with the tool's name in front; returns 1. */
__attribute__((format(printf, 1, 2))) int complain(const char *format, ...);

/* Opens the state with every GPU of the topology; complains if that fails. */
int open_state(void);

/* The whole GPU that the text numbers, or the MIG device that it is the UUID of; complains if there is none. */
int parse_gpu(const char *text, int *gpu);
int parse_number(const char *text, long long max, long long *out);
int parse_switch(const char *text, bool *on);

/* Where the tool itself lies, without the last part; "" if that cannot be told. */
const char *tool_directory(void);

#endif
