/*
 * How processes of one claim know memory that one of them has exported and another imports: by a tag that both can read off
 * what is handed over.
 *
 * A legacy IPC handle is 64 bytes that the program copies, so its tag is made of them. A file descriptor looks like any other of
 * the driver's; but a file description has room for a process and a signal, for whoever wants to be told of its readiness
 * (fcntl(2), F_SETOWN and F_SETSIG; without O_ASYNC nobody ever is). There we write who we are and a number. And a description
 * can hold a lock, far beyond the end of its file, that goes when the last copy of it is closed.
 */
#ifndef TRANCHE_TAGS_H
#define TRANCHE_TAGS_H

#include "process.h"

#define TAG_SIZE 16

/* The tag of a legacy IPC handle. */
void tag_of_handle(const CUipcMemHandle *handle, uint8_t tag[static TAG_SIZE]);

/* Numbers are 1 to this: the signals that F_SETSIG takes. */
#define TAG_NUMBERS 64

/* The tag of what this process exports as a descriptor with a number. */
void tag_of_number(uint32_t number, uint8_t tag[static TAG_SIZE]);

/*
 * What a descriptor is to carry, in one word, which is never 0: a number of this process's, and above that whose tag it is if
 * another process made what is passed on here. A mark that says only that has the number 0.
 */
#define TAG_NUMBER(mark) ((uint32_t)((mark)&0xff))

uint64_t tag_mark(const uint8_t tag[static TAG_SIZE]);

/* Writes a mark on a descriptor, and a lock by which one sees how long its description lives. If the process whose tag it is
 * has ended, nobody can read it there any more. */
void tag_write(int descriptor, uint64_t mark);

/* A description of our own on the file that a descriptor is of, to look for such locks through; -1 if there can be none. */
int tag_open_witness(int descriptor);

/* Whether a description with this process's number still exists somewhere, as far as that can be told: in the hands of a
 * process, or on the way to one. */
bool tag_is_alive(int witness, uint32_t number);

/* The tag that is on a descriptor. False if there is none, or who wrote it is gone or not to be seen from here. */
bool tag_read(int descriptor, uint8_t tag[static TAG_SIZE]);

#endif
