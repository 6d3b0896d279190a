/*
 * Tags, by which processes of one claim recognise memory that one of them exports and another imports. Both read the
 * tag off what is passed between them.
 *
 * The tag of a legacy IPC handle is a hash of its 64 bytes. A file descriptor of the driver looks like any other. But a
 * lock can be held by its open file description (F_OFD_SETLK, fcntl(2)), on a byte far beyond the end of the file,
 * whose offset is the tag. All copies of the descriptor have it, in all processes, and those in flight to one. The
 * kernel drops it when the last copy is closed. Until then the driver keeps the memory, whoever has ended.
 *
 * /proc/PID/fdinfo lists the locks of a descriptor. Whether any description still has a lock is queried with
 * F_OFD_GETLK through another description of the same file, the witness. A file that cannot be opened again, such as a
 * dma-buf, is looked for in /proc/locks.
 */
#ifndef TRANCHE_TAGS_H
#define TRANCHE_TAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A new random tag. 0 if the kernel gives none. */
uint64_t tag_new(void);

/* The tag of a legacy IPC handle. */
uint64_t tag_of_handle(const void *handle, size_t size);

/* A number that identifies the file of a descriptor; 0 if there is none. */
uint64_t tag_file(int descriptor);

/* Writes a tag on a descriptor. A dma-buf may have several. False if the kernel refuses the lock. */
bool tag_write(int descriptor, uint64_t tag);

/* Reads the tag of a descriptor; 0 if it has none. False if that cannot be found out. */
bool tag_read(int descriptor, uint64_t *tag);

/* A search for many tags. `witness` keeps a descriptor between searches; -1 at first, and shared by all threads. The rest
 * is zero at first. */
struct tag_search {
    _Atomic int *witness;
    unsigned files; /* for which no witness was found */
    bool listed;    /* /proc/locks was read: */
    bool known;     /* completely */
    uint64_t *tags; /* which it has */
    size_t count, room;
};

/* Whether a description of the file still has the tag; true if that cannot be found out. */
bool tag_is_alive(struct tag_search *search, uint64_t file, uint64_t tag);

void tag_search_end(struct tag_search *search);

/* Closes the witness. */
void tag_close_witness(_Atomic int *witness);

#endif
