/*
 * For tests of the region's protocol with processes that are killed and stopped at every step of it. Checks do not use
 * the region's code: sum_of reads the file's words by the layout alone.
 */
#ifndef TRANCHE_TESTS_REGION_STEPS_H
#define TRANCHE_TESTS_REGION_STEPS_H

#include "../region/region.h"
#include "check.h"
#include "fixture.h"

#include <sys/types.h>

#define PAGE(n) ((uint64_t)(n) << REGION_PAGE_SHIFT)
#define LIMIT_PAGES 1000u
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Where the claim is; set before anything else. */
extern const char *directory;

/* The calling process sends itself the signal when it comes to the step, and SIGKILL when it then comes to the other,
 * if there is one. */
void arm(const char *step, int signal, const char *last_step);

struct sum {
    uint64_t total;     /* what `total` says */
    uint64_t committed; /* what the slots hold, with the operation that `total` names */
};

struct sum sum_of(const struct region_usage *usage, enum region_ledger ledger);

#define CHECK_LEDGER(region, ledger, pages)                                                                            \
    do {                                                                                                               \
        struct sum sum = sum_of((region)->usage, ledger);                                                              \
        CHECK(sum.total == (pages), "total %llu, expected %llu", (unsigned long long)sum.total,                        \
              (unsigned long long)(pages));                                                                            \
        CHECK(sum.committed == sum.total, "slots hold %llu, total says %llu", (unsigned long long)sum.committed,       \
              (unsigned long long)sum.total);                                                                          \
    } while (0)
#define CHECK_SUM(region, pages) CHECK_LEDGER(region, REGION_GPU, pages)

/* A new claim with nothing in it. */
void fresh_claim(void);

void open_or_die(struct region *region, bool join);

/* Joins in this slot, or, if it is taken, in another. */
void join_at(struct region *region, unsigned slot);

/* For children that would otherwise be left stopped by a test that ends early. */
void die_with_parent(void);

/* Waits until a child was stopped or has ended, and says which signal did it; 0 if it ended by itself. */
int wait_for(pid_t pid);

void kill_and_wait(pid_t pid);
double seconds(void);

#endif
