#include "region_steps.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

const char *directory;

static const char *step_armed;
static int step_signal;
static const char *last_step_armed;

void region_test_step(const char *step);

void region_test_step(const char *step) {
    if (step_armed != NULL && strcmp(step, step_armed) == 0) {
        int signal = step_signal;
        arm(last_step_armed, SIGKILL, NULL);
        raise(signal);
    }
}

void arm(const char *step, int signal, const char *last_step) {
    step_armed = step;
    step_signal = signal;
    last_step_armed = last_step;
}

struct sum sum_of(const struct region_usage *usage, enum region_ledger ledger) {
    uint64_t total = atomic_load(&usage->sums[ledger].total);
    uint64_t seq = total >> 40, named = total >> 28 & 4095;
    struct sum sum = {.total = total & ((1u << 28) - 1)};
    for (unsigned i = 0; i < REGION_SLOT_COUNT; i++)
        sum.committed += atomic_load(&usage->slots[i].held[ledger].committed) & ((UINT64_C(1) << 40) - 1);

    const struct region_held *held = &usage->slots[named].held[ledger];
    uint64_t op = atomic_load(&held->op);
    if (seq == 0 || atomic_load(&held->committed) >> 40 == seq)
        return sum;
    if ((op >> 39 & 1) == 0) {
        sum.committed += (uint64_t)((int64_t)(op << 25) >> 25);
        return sum;
    }
    /* A move: what the receiver has already, the sender still has to give. */
    const struct region_held *receiver = &usage->slots[op >> 27 & 4095].held[ledger];
    if (atomic_load(&receiver->op) >> 40 == atomic_load(&receiver->committed) >> 40)
        sum.committed -= op & ((1u << 27) - 1);
    return sum;
}

void fresh_claim(void) {
    fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, PAGE(LIMIT_PAGES), 0);
    fixture_spill(directory, FIXTURE_ID, PAGE(LIMIT_PAGES));
}

void open_or_die(struct region *region, bool join) {
    char why[REGION_WHY];
    if (!region_open(region, directory, FIXTURE_ID, why) ||
        !(join ? region_join(region, why) : region_look(region, why))) {
        fprintf(stderr, "cannot open the region: %s\n", why);
        abort();
    }
}

void join_at(struct region *region, unsigned slot) {
    uint64_t next = slot;
    fixture_write(directory, FIXTURE_ID, REGION_USAGE_FILE, offsetof(struct region_usage, next_slot), &next,
                  sizeof next);
    open_or_die(region, true);
}

void die_with_parent(void) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

int wait_for(pid_t pid) {
    int status;
    while (waitpid(pid, &status, WUNTRACED) < 0)
        if (errno != EINTR)
            abort();
    if (WIFSTOPPED(status))
        return WSTOPSIG(status);
    if (WIFSIGNALED(status))
        return WTERMSIG(status);
    CHECK(WEXITSTATUS(status) == 0, "a child exited with %d", WEXITSTATUS(status));
    return 0;
}

void kill_and_wait(pid_t pid) {
    kill(pid, SIGKILL);
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
}

double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}
