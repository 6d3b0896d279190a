/*
 * How processes of one claim know memory that one of them has exported and another imports: by a tag that both can read off
 * what is handed over.
 *
 * A legacy IPC handle is 64 bytes that the program copies, so its tag is made of them. A file descriptor looks like any other of
 * the driver's; but a file description has room for a process and a signal, for whoever wants to be told of its readiness
 * (fcntl(2), F_SETOWN and F_SETSIG; without O_ASYNC nobody ever is). There we write who we are and a number; it can be read while
 * we live. So who passes on what another process made gives it a number too, and not that of its maker. And a description can
 * hold a lock, far beyond the end of its file, that goes when the last copy of it is closed.
 */
#ifndef TRANCHE_TAGS_H
#define TRANCHE_TAGS_H

#include "state/process.h"

#define TAG_SIZE 16

/* The tag of a legacy IPC handle. */
void tag_of_handle(const CUipcMemHandle *handle, uint8_t tag[static TAG_SIZE]);

/* The tag of what this process exports as a descriptor with a number, from 1 to TAG_NUMBERS. Its second half is zero. */
void tag_of_number(uint32_t number, uint8_t tag[static TAG_SIZE]);

/* Writes a number of this process's on a descriptor, and a lock by which one sees how long its description lives. False if there
 * can be no lock. */
bool tag_write(int descriptor, uint32_t number);

/* A description of our own on the file that a descriptor is of, to look for such locks through; -1 if there can be none. */
int tag_open_witness(int descriptor);

/* Whether a description with this process's number still exists somewhere, as far as that can be told: in the hands of a
 * process, or on the way to one. */
bool tag_is_alive(int witness, uint32_t number);

/* The tag that is on a descriptor. False if there is none, or who wrote it is gone or not to be seen from here. */
bool tag_read(int descriptor, uint8_t tag[static TAG_SIZE]);

#endif
