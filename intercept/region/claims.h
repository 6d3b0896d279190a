/* The claims of this process: their regions, and the GPU of each. */
#ifndef TRANCHE_CLAIMS_H
#define TRANCHE_CLAIMS_H

#include "region/region.h"

#define CLAIMS_MAX 64

/* All zero is none. The claims are in the order of their IDs. A GPU is identified by the index of its first region. If
 * several claims are for one GPU, their limits add up, but each allocation must fit into one of them: the first with room. */
struct claims {
    unsigned count;
    uint16_t gpu[CLAIMS_MAX];
    struct region regions[CLAIMS_MAX];
};

/* How a claim is opened: region_identify, or more. */
typedef bool claims_opener(struct region *region, const char *directory, const char *id, char why[static REGION_WHY]);

/* Finds the process's claims and opens each. False, with the reason in `why`, if there is none or one of them cannot be
 * opened; those that were opened before it are to be closed. */
bool claims_find(struct claims *claims, claims_opener *open, char why[static REGION_WHY]);

/* Opens every claim's region. With `joins`, also takes a slot in each, which accounting needs. False, with a line on
 * stderr, if there is no claim or one of them cannot be used. */
bool claims_open(struct claims *claims, bool joins);

void claims_close(struct claims *claims);

/* The UUID of the only GPU that the program is to see, under `tranche run`; NULL elsewhere. */
const char *claims_visible_gpu(void);

/* The GPU with this UUID ("GPU-..." or "MIG-..."), or -1. */
int claims_find_gpu(const struct claims *claims, const char *uuid);

uint64_t claims_limit_bytes(const struct claims *claims, int gpu);
uint64_t claims_used_bytes(struct claims *claims, int gpu);

#endif
