/* Checks, counted across forked processes. A failed check is printed, and the test continues. */
#ifndef TRANCHE_TESTS_CHECK_H
#define TRANCHE_TESTS_CHECK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

struct checks {
    _Atomic int passed, failed;
};

extern struct checks *checks;

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (condition) {                                                                                               \
            atomic_fetch_add(&checks->passed, 1);                                                                      \
        } else {                                                                                                       \
            atomic_fetch_add(&checks->failed, 1);                                                                      \
            fprintf(stderr, "%s:%d: %s: not so: %s: ", __FILE__, __LINE__, __func__, #condition);                      \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fputc('\n', stderr);                                                                                       \
        }                                                                                                              \
    } while (0)

/* Before the first check. */
void checks_start(void);

/* Runs a test in a process of its own, and counts a failure if that does not end as it should. */
void checks_run(const char *name, void (*test)(void));

/* What main returns, after saying how many checks passed and failed. */
int checks_report(void);

#endif
