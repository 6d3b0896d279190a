/*
 * How a probe speaks with the program that runs it: one JSON object a line on stdout. After a step it waits for a line on
 * stdin, so that the other can measure meanwhile; when stdin ends, the other is gone and so is the probe.
 */
#ifndef GPUCHECK_TALK_H
#define GPUCHECK_TALK_H

#include <stdbool.h>
#include <stddef.h>

/* Says {"step": NAME, FORMAT...} and waits. The format gives the further members, `"taken":%llu` say, or is empty. */
void step(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Says it and goes on. */
void say(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Reads a line. False at the end of stdin. */
bool read_line(char *line, size_t size);

#endif
