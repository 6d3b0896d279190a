/* The simgpu tool's commands, one function each: exit status. */
#ifndef SIMGPU_TOOL_H
#define SIMGPU_TOOL_H

int command_record(int argc, char **argv);
int command_fault(int argc, char **argv);
int command_root(int argc, char **argv);

/* One line on stderr with the tool's name in front; returns 1. */
__attribute__((format(printf, 1, 2))) int complain(const char *format, ...);

/* Opens the state with every GPU of the topology; complains if that fails. */
int open_state(void);

/* Where the tool itself lies, without the last part; "" if that cannot be told. */
const char *tool_directory(void);

#endif
