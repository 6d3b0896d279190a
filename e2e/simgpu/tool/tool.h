/* The simgpu tool's commands, one function each: exit status. */
#ifndef SIMGPU_TOOL_H
#define SIMGPU_TOOL_H

int command_record(int argc, char **argv);
int command_fault(int argc, char **argv);
int command_fault_mig(int argc, char **argv);
int command_reload(int argc, char **argv);
int command_reset(int argc, char **argv);
int command_root(int argc, char **argv);

/* One line on stderr with the tool's name in front; returns 1. */
__attribute__((format(printf, 1, 2))) int complain(const char *format, ...);

/* Opens the state with every GPU of the topology; complains if that fails. */
int open_state(void);

/* The whole GPU that the text numbers, or the MIG device that it is the UUID of; complains if there is none. */
int parse_gpu(const char *text, int *gpu);
int parse_number(const char *text, long long max, long long *out);

/* Where the tool itself lies, without the last part; "" if that cannot be told. */
const char *tool_directory(void);

#endif
