/* What the probe's commands share. */
#ifndef GPUCHECK_PROBE_H
#define GPUCHECK_PROBE_H

#include "driver.h"
#include "talk.h"
#include "ways.h"

/* The primary context of the first visible device. Ends the program, with the reason, where there is none. */
void open_context(void);
void close_context(void);

/* Ends the program unless the result is success. */
void must(CUresult result, const char *what);

/* The commands: what follows the command's name, and the exit status. */
int probe_look(int argc, char **argv);
int probe_ways(int argc, char **argv);
int probe_fill(int argc, char **argv);
int probe_limits(int argc, char **argv);
int probe_share(int argc, char **argv);
int probe_obey(int argc, char **argv);
int probe_symbols(int argc, char **argv);
int probe_facts(int argc, char **argv);
int probe_calibrate(int argc, char **argv);
int probe_switch(int argc, char **argv);
int probe_gate(int argc, char **argv);
int probe_work(int argc, char **argv);

#endif
