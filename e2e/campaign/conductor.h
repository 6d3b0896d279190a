/* The conductor: starts and ends workers, gives orders, and judges. */
#ifndef CAMPAIGN_CONDUCTOR_H
#define CAMPAIGN_CONDUCTOR_H

#include <sys/types.h>

#include "node.h"
#include "random.h"

/* Whoever is silent for so long hangs. */
enum { ANSWER_SECONDS = 30 };

struct plan {
    uint64_t seed;
    uint64_t steps;
    double seconds;              /* of a storm, or 0 */
    unsigned processes, threads; /* of a crowd: 0: each bout says */
    unsigned bouts;              /* of a crowd */
    uint32_t crowd_weights[OPERATIONS_MAX];
};

/* The conductor's side of a seat. */
struct actor {
    bool alive, stopped, expected; /* expected: it was killed or told to end */
    pid_t pid;
    int pidfd, status;
};

extern struct actor actors[SEATS];
extern uint64_t step_number;

/* A finding ends the round: false from then on. */
bool found(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool any_finding(void);
const char *finding(void);
/* The last steps are kept. */
void trace(const char *format, ...) __attribute__((format(printf, 1, 2)));
void trace_print(void);
void conductor_begin(bool verbose);

/* A free seat, or SEATS. */
unsigned seat_free(void);
unsigned actors_count(void);
/* A random living one that is not stopped, or SEATS. */
unsigned actor_random(uint64_t *random, bool stopped);

bool actor_start(unsigned seat, uint64_t *random);
bool actor_adopt(unsigned seat);
void actor_signal(unsigned seat, int signal_number);
/* Has each thread of the process write its stack to the messages. */
void actor_print_stacks(unsigned seat);
/* Traces what each thread does, as far as its process has said so. */
void actors_tell_operations(void);
/* Where a limit was exceeded: stops everybody, and traces who holds and does what. */
void actors_tell_limit(void);
/* Stops everybody, so that what is told is of one moment. */
void actors_stop(void);
/* Waits until a process that was killed or told to end is dead. */
bool actor_bury(unsigned seat);
/* Before a process ends: keeps copies of what it offers, as a program has them that was sent them, or lets go of one. */
void heirlooms_take(unsigned seat, uint64_t random);
void heirlooms_drop_one(uint64_t *random);
void heirlooms_drop(void);
/* Notices who has died by itself; a finding if nobody expected it. */
bool actors_look(void);

void order_give(unsigned seat, unsigned desk, unsigned operation, uint64_t seed, uint64_t argument,
                const uint64_t room[GPUS]);
bool order_pending(unsigned seat, unsigned desk);
/* Waits for the answer. False: the process has died, or a finding: no answer. */
bool order_await(unsigned seat, unsigned desk);
bool order(unsigned seat, unsigned desk, unsigned operation, uint64_t seed, uint64_t argument);
/* Bytes that the claim has left by the record, less what rules and calls under way may hold besides. */
void rooms(const struct reading *reading, uint64_t room[GPUS]);
int64_t slack_of(int gpu);
/* A process ends or calls exec; what it held goes only when its forked children have ended as well. */
void slack_stays(unsigned seat);
/* A process was killed in the midst of an operation and is buried: what the driver had freed by then may be counted as long as its
 * forked children live, since the library may not have given it back yet (docs/counting.md). */
void freed_by_dead(unsigned seat, const struct reading *before, const struct reading *after);
uint64_t under_way(int gpu);
/* What a thread's call may take of a GPU. */
uint64_t need_of(const struct desk *desk, int gpu);

/* The limit, at this moment and ever. */
bool check_limit(const struct reading *reading);
/* Frees everything everywhere, and sees that nothing but contexts is left; `patient`: others may be about to end. */
bool check_quiet(uint64_t *random, bool patient);
/* Ends everybody. */
bool actors_end(uint64_t *random);
/* The same, and sees that nothing is left. */
bool check_dead(uint64_t *random);

bool lockstep(const struct plan *plan);
bool storm(const struct plan *plan);
bool crowd(const struct plan *plan);

/* Lets everybody do what he likes for a while, and waits until all are at rest again. */
bool rage(uint64_t *random, unsigned processes, double duration);
/* That no claim of the crowd is beyond its limit. */
bool crowd_check_limits(bool at_rest);

#endif
