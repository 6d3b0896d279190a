/*
 * Tags, by which processes of one claim recognise memory that one of them exports and another imports. Both read the
 * tag off the handle that is passed between them.
 *
 * The tag of a legacy IPC handle is a hash of its 64 bytes. A file descriptor of the driver looks like any other. But
 * an open file description can store a process ID and a signal, for notifications that are never sent without O_ASYNC
 * (fcntl(2), F_SETOWN and F_SETSIG). There the exporting process writes its ID and the export's number. They can be
 * read while that process lives. So a process that passes on memory of another one writes its own ID and a number of
 * its own. A description can also hold a lock (F_OFD_SETLK), far beyond the end of the file, which the kernel drops
 * when the last copy of the description is closed.
 */
#ifndef TRANCHE_TAGS_H
#define TRANCHE_TAGS_H

#include "state/process.h"

#define TAG_SIZE 16

/* The tag of a legacy IPC handle. */
void tag_of_handle(const CUipcMemHandle *handle, uint8_t tag[static TAG_SIZE]);

/* The tag of this process's export with this number, from 1 to TAG_NUMBERS. Its second half is zero. */
void tag_of_number(uint32_t number, uint8_t tag[static TAG_SIZE]);

/* Writes a number on a descriptor, and locks its description, so that its end can be seen. False if it cannot be
 * locked. */
bool tag_write(int descriptor, uint32_t number);

/* Opens the descriptor's file again, to query such locks; -1 if that fails. */
int tag_open_witness(int descriptor);

/* Whether a description with this number of this process still exists, in a process or in flight to one. True if
 * unknown. */
bool tag_is_alive(int witness, uint32_t number);

/* Reads the tag of a descriptor. False if there is none, or if the process that wrote it is dead or in a PID namespace
 * that cannot be seen. */
bool tag_read(int descriptor, uint8_t tag[static TAG_SIZE]);

#endif
