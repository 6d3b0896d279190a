/* Program images for modules and libraries to be made of: PTX, cubins and fat binaries with random contents. */
#ifndef CAMPAIGN_IMAGES_H
#define CAMPAIGN_IMAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct program {
    char *bytes; /* free() it */
    size_t size;
    uint64_t code;                  /* bytes */
    uint64_t data;                  /* of its variables, as they are laid out one after another */
    uint64_t managed;               /* of those that are managed */
    uint64_t counted;               /* the most that its variables can count, in whole blocks */
    uint64_t local;                 /* what each thread of kernel k1 needs */
    bool has_kernels, has_variable; /* kernels k0 and k1; a variable v0 of so many bytes: */
    uint64_t variable_size;
};

/* What is wanted: variables of at most so many bytes in all, and whether they may be managed. */
struct program_wish {
    uint64_t data_most;
    bool managed;
    const char *prefix; /* of names */
};

bool program_ptx(uint64_t *random, const struct program_wish *wish, struct program *program);
bool program_cubin(uint64_t *random, const struct program_wish *wish, struct program *program);
/* Takes the two over, and is as the larger of them when it is loaded. */
bool program_fatbin(struct program *first, struct program *second, struct program *program);
/* A part that nobody can look into, which says that it becomes so large. */
bool program_compressed(uint64_t code, struct program *program);
void program_free(struct program *program);

#endif
