/* Memory from mmap. The program may have replaced malloc, and malloc's locks may be held at a fork. errno is preserved. */
#ifndef TRANCHE_MAPPED_H
#define TRANCHE_MAPPED_H

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

/* Zeroed memory; NULL if there is none. */
static inline void *mapped_new(size_t bytes) {
    int error = errno;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = error;
    return memory != MAP_FAILED ? memory : NULL;
}

/* Releases it; NULL is ignored. */
static inline void mapped_free(void *memory, size_t bytes) {
    if (memory != NULL)
        munmap(memory, bytes);
}

/* Doubles an array of `*room` elements of `size` bytes, or allocates one of a page if `*room` is 0; updates `*room`.
 * NULL if there is no memory: then the array is unchanged. */
static inline void *mapped_grow(void *each, size_t *room, size_t size) {
    size_t larger = *room != 0 ? 2 * *room : 4096 / size;
    void *memory = mapped_new(larger * size);
    if (memory == NULL)
        return NULL;
    if (*room != 0)
        memcpy(memory, each, *room * size);
    mapped_free(each, *room * size);
    *room = larger;
    return memory;
}

#endif
