/*
 * Stands in for the governor in tests: it answers every HELLO through a real socket and gives each process a real page. What
 * the page says is the test's to decide. `gpu` is the number of the claim here: 0 is the first.
 */
#ifndef TRANCHE_TESTS_GOVERNOR_DOUBLE_H
#define TRANCHE_TESTS_GOVERNOR_DOUBLE_H

#include "../governor/page.h"

#include <sys/types.h>

/* Listens in the claims' directories, up to two. The states and the turns that pages begin with are kept. */
void double_listen(const char *directory, const char *first, const char *second);

/* Ends: connections are closed, and pages stay as they are. */
void double_end(void);

/* The heartbeats, which are otherwise an hour ahead, have stopped now. The next change sets them ahead again. */
void double_hang(void);

/* How the next HELLO is answered, if not with WELCOME; ANSWER_LATE: with one after 20 ms. */
enum answer { ANSWER_WELCOME, ANSWER_LATE, ANSWER_REFUSED, ANSWER_SHORT, ANSWER_NONE };
extern _Atomic enum answer double_answer;

/* What every page says from now on, those of processes to come too. */
void double_set(unsigned gpu, enum gate_state state, uint64_t turn);
void double_meter(unsigned gpu, uint64_t ns);

/* The same with the message that goes with it. */
void double_grant(unsigned gpu, uint64_t turn);  /* METERED */
void double_revoke(unsigned gpu, uint64_t turn); /* CLOSED */

/* Asks whether the process runs. */
void double_ask(unsigned gpu, uint64_t turn);

/* Waits for the next message of a kind, or for the end of a connection, which has the kind DOUBLE_EOF; earlier messages of
 * other kinds stay. A test ends if there is none for two minutes. */
#define DOUBLE_EOF 100
struct governor_message double_await(unsigned kind);

/* The messages of a kind that have not been awaited. */
unsigned double_count(unsigned kind);

/* The process that sent the last HELLO. */
pid_t double_client(void);

#endif
