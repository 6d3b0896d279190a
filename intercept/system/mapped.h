/* Memory from the kernel, since the program's malloc may be anything. errno stays what it is. */
#ifndef TRANCHE_MAPPED_H
#define TRANCHE_MAPPED_H

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

/* So many zero bytes, for munmap to give back; NULL if there are none. */
static inline void *mapped_new(size_t bytes) {
    int error = errno;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = error;
    return memory != MAP_FAILED ? memory : NULL;
}

/* An array of `*room` elements made twice as large, or of a page if it had none. NULL if there is no memory for it: then it stays
 * as it was. */
static inline void *mapped_grow(void *each, size_t *room, size_t size) {
    size_t larger = *room != 0 ? 2 * *room : 4096 / size;
    void *memory = mapped_new(larger * size);
    if (memory == NULL)
        return NULL;
    if (*room != 0) {
        memcpy(memory, each, *room * size);
        munmap(each, *room * size);
    }
    *room = larger;
    return memory;
}

#endif
