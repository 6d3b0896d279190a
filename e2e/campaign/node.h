/* The node of a campaign: simulated GPUs, claims on them, and a driver behind the shadow, in a directory of its own. */
#ifndef CAMPAIGN_NODE_H
#define CAMPAIGN_NODE_H

#include "board.h"

struct node_options {
    const char *build;  /* where the libraries are */
    const char *shadow; /* the shadow library to judge; NULL: the one in build/lib */
    bool bare;
    uint64_t limit_bytes[GPUS];
    uint64_t crowd_limit_bytes[CROWD_CLAIMS];
};

/* What the judge sees at one moment. */
struct reading {
    uint64_t bytes[GPUS];   /* physically held by the claim's processes: the simulator's record */
    uint64_t peak[GPUS];    /* the most that it ever was */
    uint64_t counted[GPUS]; /* what the region says, the dead included whom nobody has noticed yet */
};

/* False, and the reason on stderr. */
bool node_make(const struct node_options *options);
void node_remove(void);

extern struct board *node_board;
const char *node_path(const char *name);

/* The environment of a worker with the given choice of CUDA_VISIBLE_DEVICES, in the claim of its seat; called between fork and
 * exec. */
void node_enter(unsigned devices_variant, uint32_t claim);
unsigned node_devices_variants(void);
enum { CROWD_DEVICES_VARIANT = 4 }; /* only GPU 0 */

void node_read(struct reading *reading);
/* The same of a claim of the crowd, in the place of GPU 0. */
void node_read_crowd(unsigned claim, struct reading *reading);
/* What is taken of the crowd's GPU, by whoever lives. */
uint64_t node_used_crowd(void);
/* What the processes of the crowd's claims hold of GPU 0, by claim: also what another claim has made, which the record shows as that
 * one's. Only while all are at rest. */
void node_held_crowd(uint64_t bytes[CROWD_CLAIMS]);
/* Takes note of everybody who holds memory; and tells of them, in a line each. */
void node_look(void);
void node_tell(void (*tell)(const char *format, ...));

/* What the region says when the dead have been looked for. */
uint64_t node_counted_alive(int gpu);
uint64_t node_counted_alive_crowd(unsigned claim);

#endif
