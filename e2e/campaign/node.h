/* The node of a campaign: simulated GPUs, claims on them, and a driver behind the shadow, in a directory of its own. */
#ifndef CAMPAIGN_NODE_H
#define CAMPAIGN_NODE_H

#include "board.h"

struct node_options {
    const char *build;  /* where the libraries are */
    const char *shadow; /* the shadow library to judge; NULL: the one in build/lib */
    bool bare;
    uint64_t limit_bytes[GPUS];
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

/* The environment of a worker with the given choice of CUDA_VISIBLE_DEVICES; called between fork and exec. */
void node_enter(unsigned devices_variant);
unsigned node_devices_variants(void);

void node_read(struct reading *reading);
/* Takes note of everybody who holds memory; and tells of them, in a line each. */
void node_look(void);
void node_tell(void (*tell)(const char *format, ...));

/* What the region says when the dead have been looked for. */
uint64_t node_counted_alive(int gpu);

#endif
