/*
 * What the operations of a crowd have in common. In a crowd many processes of several claims are at their limits at once, and
 * threads may use an object while others end it. So nothing is known of what a call ought to answer; what must hold all the
 * same the conductor sees: no claim ever holds more than its limit, no call faults, and every call returns.
 */
#ifndef CAMPAIGN_CROWD_H
#define CAMPAIGN_CROWD_H

#include "families/family.h"

enum { CROWD_OBJECTS = 1500, CROWD_DESCRIPTORS = 150 };

/* Makes a context current that is alive: the primary one if need be. False if there can be none now. */
bool crowd_enter(struct call *call);

/* What became of the operation: all that a driver may answer is right. True if done. */
bool crowd_did(struct call *call, CUresult result);

/* About what is left of the limit, or as large as the bout says. */
uint64_t crowd_size(struct call *call);
/* How often something is done at once: mostly a few times. */
unsigned crowd_burst(struct call *call);

/* An object taken out, or where threads misuse what they share, sometimes left to others as well. False: there is none. */
struct borrowed {
    struct object object;
    bool left;
};
bool crowd_borrow(struct call *call, enum kind kind, struct borrowed *borrowed);
/* Puts back what was taken out. */
void crowd_return(const struct borrowed *borrowed);
/* A new one. False if there are too many: the caller ends it. */
bool crowd_keep(struct call *call, enum kind kind, uint64_t handle, uint64_t other, uint64_t size);

/*
 * Streams, pools and contexts do not end while a thread works in them: what a driver does then nobody knows. What is made of
 * linear and physical memory, and graphs, may be used beside anything.
 */
void crowd_work_begin(void);
void crowd_end_begin(void);
void crowd_work_end(void); /* of both */

/* Whether what takes long should go on: not when all are called to rest. */
bool crowd_goes_on(void);

/* Whether the process has room for one more stream, pool or graph, of which it has `most` at most. */
bool crowd_has_room(enum kind kind, unsigned most);

/* A stream to work in. */
CUstream crowd_stream(struct call *call);

#endif
