/*
 * Tests of the region's protocol, between processes that are killed and stopped at every step of it.
 *
 * The judge is not region.c: account_of reads the words of the file by the layout alone.
 */
#include "../region.h"
#include "check.h"
#include "fixture.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE(n) ((uint64_t)(n) << REGION_PAGE_SHIFT)
#define LIMIT_PAGES 1000u

static const char *const owner_steps[] = {"operate: announced", "operate: before take", "operate: taken",
                                          "help: before commit", "operate: committed"};
static const char *const reaper_steps[] = {"reap: before question", "reap: dead",         "reap: settled",
                                           "reap: before announce", "reap: announced",    "reap: before take",
                                           "reap: taken",           "help: before commit"};
static const char *const join_steps[] = {"join: before lock", "join: locked", "join: emptied"};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* --- stopping and killing at a step -------------------------------------------------------------------------------- */

static const char *step_armed;
static int step_signal;
static const char *last_step_armed;

void region_test_step(const char *step) {
    if (step_armed != NULL && strcmp(step, step_armed) == 0) {
        int signal = step_signal;
        step_armed = last_step_armed;
        step_signal = SIGKILL;
        last_step_armed = NULL;
        raise(signal);
    }
}

static void arm(const char *step, int signal) {
    step_armed = step;
    step_signal = signal;
}

/* --- reading the file ---------------------------------------------------------------------------------------------- */

struct sum {
    uint64_t total;     /* what `total` says */
    uint64_t committed; /* what the slots hold, with the operation that `total` names */
};

static struct sum sum_of(const struct region_usage *usage) {
    uint64_t total = atomic_load(&usage->total);
    uint64_t seq = total >> 40, named = total >> 30 & 1023;
    struct sum sum = {.total = total & ((1u << 30) - 1)};
    for (unsigned i = 0; i < REGION_SLOT_COUNT; i++) {
        uint64_t committed = atomic_load(&usage->slots[i].committed), op = atomic_load(&usage->slots[i].op);
        sum.committed += committed & ((UINT64_C(1) << 40) - 1);
        if (seq != 0 && i == named && committed >> 40 != seq)
            sum.committed += (uint64_t)((int64_t)(op << 24) >> 24);
    }
    return sum;
}

#define CHECK_SUM(region, pages)                                                                                       \
    do {                                                                                                               \
        struct sum sum = sum_of((region)->usage);                                                                      \
        CHECK(sum.total == (pages), "total %llu, expected %llu", (unsigned long long)sum.total,                        \
              (unsigned long long)(pages));                                                                            \
        CHECK(sum.committed == sum.total, "slots hold %llu, total says %llu", (unsigned long long)sum.committed,       \
              (unsigned long long)sum.total);                                                                          \
    } while (0)

/* --- processes ----------------------------------------------------------------------------------------------------- */

static const char *directory;

static void open_or_die(struct region *region, bool join) {
    char why[512];
    if (!region_open(region, directory, FIXTURE_ID, why, sizeof why) ||
        (join && !region_join(region, why, sizeof why))) {
        fprintf(stderr, "cannot open the region: %s\n", why);
        abort();
    }
}

/* Joins with a slot that reapers look at after those of the children. */
static void join_last(struct region *region) {
    char why[512];
    open_or_die(region, false);
    atomic_store(&region->usage->next_slot, 9);
    if (!region_join(region, why, sizeof why))
        abort();
}

/* What a child process does: joins, holds `holds` pages, then with `step` armed does its work, then stops. */
struct role {
    uint64_t holds;
    const char *step;
    int signal;
    int64_t changes;       /* pages to take or give back with the step armed */
    bool reaps;            /* whether to reap with the step armed */
    bool join_armed;       /* whether the step is armed while it joins */
    int slot;              /* which slot to take, or -1 */
    const char *last_step; /* armed with SIGKILL after `step` was passed */
};

static pid_t start(struct role role) {
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    struct region region;
    char why[512];
    open_or_die(&region, false);
    if (role.slot >= 0)
        atomic_store(&region.usage->next_slot, (uint64_t)role.slot);
    if (role.join_armed)
        arm(role.step, role.signal);
    if (!region_join(&region, why, sizeof why) || (role.slot >= 0 && region.slot != role.slot))
        _exit(10);
    if (role.holds != 0 && region_reserve(&region, role.holds) != REGION_OK)
        _exit(11);
    arm(role.step, role.signal);
    last_step_armed = role.last_step;
    if (role.changes > 0 && region_reserve(&region, (uint64_t)role.changes) != REGION_OK)
        _exit(12);
    if (role.changes < 0)
        region_release(&region, (uint64_t)-role.changes);
    if (role.reaps)
        region_reap(&region);
    raise(SIGSTOP); /* done */
    _exit(0);
}

/* Waits until a child was stopped or has ended, and says which signal did it; 0 if it ended by itself. */
static int wait_for(pid_t pid) {
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

static void kill_and_wait(pid_t pid) {
    kill(pid, SIGKILL);
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* --- opening ------------------------------------------------------------------------------------------------------- */

static void refused(const char *word) {
    struct region region;
    char why[512] = "";
    bool opened = region_open(&region, directory, FIXTURE_ID, why, sizeof why);
    CHECK(!opened, "opened although %s", word);
    CHECK(strstr(why, word) != NULL, "says \"%s\", which does not say \"%s\"", why, word);
    if (opened)
        region_close(&region);
    fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, PAGE(LIMIT_PAGES), 0);
}

static void test_open_refuses_what_is_no_region(void) {
    static const char *const files[] = {REGION_LIMIT_FILE, REGION_USAGE_FILE};
    fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, PAGE(LIMIT_PAGES), 0);
    for (unsigned i = 0; i < COUNT(files); i++) {
        char path[256];
        uint32_t number = 2;
        snprintf(path, sizeof path, "%s/" FIXTURE_ID "/%s", directory, files[i]);
        unlink(path);
        refused("cannot open");
        fixture_truncate(directory, FIXTURE_ID, files[i], 100);
        refused("has 100 bytes");
        fixture_truncate(directory, FIXTURE_ID, files[i], 0);
        refused("has 0 bytes");
        fixture_truncate(directory, FIXTURE_ID, files[i], 1 << 20);
        refused("bytes instead of");
        fixture_write(directory, FIXTURE_ID, files[i], 0, "NOTAREGI", 8);
        refused("not a file of a claim's region");
        fixture_write(directory, FIXTURE_ID, files[i], 8, &number, sizeof number);
        refused("version 2");
        number = 0;
        fixture_write(directory, FIXTURE_ID, files[i], 8, &number, sizeof number);
        refused("version 0");
        fixture_write(directory, FIXTURE_ID, files[i], 12, &number, sizeof number);
        refused("says that it has 0 bytes");
        fixture_write(directory, FIXTURE_ID, files[i], 16, "fedcba98", 8);
        refused("belongs to claim fedcba98");
    }
    fixture_write(directory, FIXTURE_ID, REGION_LIMIT_FILE, 24, "", 1);
    refused("names no GPU");
    char unterminated[REGION_GPU_UUID_SIZE];
    memset(unterminated, 'x', sizeof unterminated);
    fixture_write(directory, FIXTURE_ID, REGION_LIMIT_FILE, 24, unterminated, sizeof unterminated);
    refused("names no GPU");
    uint32_t slots = 7;
    fixture_write(directory, FIXTURE_ID, REGION_USAGE_FILE, 24, &slots, sizeof slots);
    refused("slots or pages");

    struct region region;
    char why[512];
    CHECK(!region_open(&region, directory, "short", why, sizeof why), "a name of 5 characters");
    char far_away[400];
    memset(far_away, 'd', sizeof far_away - 1);
    far_away[sizeof far_away - 1] = '\0';
    CHECK(!region_open(&region, far_away, FIXTURE_ID, why, sizeof why) && strstr(why, "too long"), "%s", why);
}

/* --- one process --------------------------------------------------------------------------------------------------- */

static void test_limit_is_exact(void) {
    struct region region;
    fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, PAGE(LIMIT_PAGES) + 4095, 0);
    open_or_die(&region, true);
    CHECK(region_reserve(&region, LIMIT_PAGES + 1) == REGION_FULL, "more than the limit");
    CHECK(region_reserve(&region, LIMIT_PAGES - 1) == REGION_OK, "one less than the limit");
    CHECK(region_reserve(&region, 2) == REGION_FULL, "two more");
    CHECK(region_reserve(&region, 1) == REGION_OK, "one more");
    CHECK(region_reserve(&region, 1) == REGION_FULL, "full");
    CHECK_SUM(&region, LIMIT_PAGES);
    CHECK(region_used_bytes(&region) == PAGE(LIMIT_PAGES), "used");
    region_release(&region, LIMIT_PAGES);
    CHECK_SUM(&region, 0u);
    CHECK(atomic_load(&region.usage->peak_pages) == LIMIT_PAGES, "peak");
    CHECK(atomic_load(&region.usage->refused) == 3, "refused");

    /* Sizes at which words wrap. */
    static const uint64_t huge[] = {UINT64_MAX,        INT64_MAX,         UINT64_C(1) << 40,
                                    UINT64_C(1) << 39, UINT64_C(1) << 30, (UINT64_C(1) << 30) - 1};
    for (unsigned i = 0; i < COUNT(huge); i++)
        CHECK(region_reserve(&region, huge[i]) == REGION_FULL, "%llu pages", (unsigned long long)huge[i]);
    CHECK_SUM(&region, 0u);
    region_close(&region);
}

static void test_limit_changes_while_mapped(void) {
    struct region region;
    fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, PAGE(10), 0);
    open_or_die(&region, true);
    CHECK(region_reserve(&region, 10) == REGION_OK, "up to the limit");
    fixture_limit(directory, FIXTURE_ID, PAGE(20));
    CHECK(region_reserve(&region, 10) == REGION_OK, "up to the raised limit");
    fixture_limit(directory, FIXTURE_ID, PAGE(5));
    region_release(&region, 14);
    CHECK(region_reserve(&region, 1) == REGION_FULL, "above the lowered limit");
    region_release(&region, 6);
    CHECK(region_reserve(&region, 5) == REGION_OK, "up to the lowered limit");
    /* A limit that the words cannot express. */
    fixture_limit(directory, FIXTURE_ID, UINT64_MAX);
    CHECK(region_reserve(&region, (1u << 30) - 1 - 5) == REGION_OK, "as much as a word holds");
    CHECK(region_reserve(&region, 1) == REGION_FULL, "more than a word holds");
    CHECK_SUM(&region, (1u << 30) - 1);
    region_close(&region);
}

static void test_sequence_numbers_wrap(void) {
    struct region region;
    fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, PAGE(LIMIT_PAGES), 0);
    open_or_die(&region, true);
    CHECK(region_reserve(&region, 1) == REGION_OK, "first");
    /* As if it were the last but one operation before the wrap. */
    struct region_slot *slot = &region.usage->slots[region.slot];
    uint64_t seq = (1u << 24) - 2;
    atomic_store(&slot->committed, seq << 40 | 1);
    atomic_store(&region.usage->total, seq << 40 | (uint64_t)region.slot << 30 | 1);
    for (unsigned held = 2; held < 8; held++) {
        CHECK(region_reserve(&region, 1) == REGION_OK, "%u", held);
        CHECK_SUM(&region, held);
        CHECK(atomic_load(&slot->committed) >> 40 != 0, "sequence number 0 is no operation");
    }
    region_close(&region);
}

static void test_damage_is_noticed(void) {
    struct region region;
    fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, PAGE(LIMIT_PAGES), 0);
    open_or_die(&region, true);
    CHECK(region_reserve(&region, 1) == REGION_OK, "before");
    memset(region.usage->magic, 0xa5, sizeof region.usage->magic);
    CHECK(region_reserve(&region, 1) == REGION_BROKEN, "after");
    region_close(&region);
}

/* Whatever the words are, calls end, and touch nothing outside the file. */
static void test_noise_does_no_harm(unsigned seed) {
    srandom(seed);
    for (int round = 0; round < 50; round++) {
        struct region region, other;
        char why[512];
        fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, PAGE(LIMIT_PAGES), 0);
        open_or_die(&region, true);
        unsigned char *bytes = (unsigned char *)region.usage;
        for (size_t i = 32; i < REGION_USAGE_SIZE; i++)
            bytes[i] = (unsigned char)random();
        region_reserve(&region, (uint64_t)random() % 2000);
        region_release(&region, (uint64_t)random() % 2000);
        region_used_bytes(&region);
        region_reap(&region);
        if (region_open(&other, directory, FIXTURE_ID, why, sizeof why)) {
            if (region_join(&other, why, sizeof why))
                region_reserve(&other, 1);
            region_close(&other);
        }
        region_close(&region);
    }
    CHECK(true, "survived");
}

/* --- many processes ------------------------------------------------------------------------------------------------ */

static void test_slots_run_out(void) {
    static struct region regions[REGION_SLOT_COUNT];
    struct region one_more;
    char why[512] = "";
    fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, PAGE(LIMIT_PAGES), 0);
    for (unsigned i = 0; i < REGION_SLOT_COUNT; i++)
        open_or_die(&regions[i], true);
    CHECK(region_open(&one_more, directory, FIXTURE_ID, why, sizeof why), "%s", why);
    CHECK(!region_join(&one_more, why, sizeof why) && strstr(why, "1024 processes"), "%s", why);
    region_close(&regions[77]);
    CHECK(region_join(&one_more, why, sizeof why) && one_more.slot == regions[77].slot + 78, "slot %d", one_more.slot);
    region_close(&one_more);
    for (unsigned i = 0; i < REGION_SLOT_COUNT; i++)
        if (i != 77)
            region_close(&regions[i]);
}

/* A lock outlives the descriptor: programs close descriptors that they do not know. */
static void test_slot_survives_closed_descriptors(void) {
    struct region region;
    fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, PAGE(LIMIT_PAGES), 0);
    open_or_die(&region, false);
    int ready[2];
    CHECK(pipe(ready) == 0, "pipe");
    pid_t pid = fork();
    if (pid == 0) {
        struct region own;
        open_or_die(&own, true);
        bool held = region_reserve(&own, 9) == REGION_OK;
        close(own.descriptor);
        if (write(ready[1], held ? "y" : "n", 1) != 1)
            _exit(1);
        pause();
    }
    char held = 0;
    CHECK(read(ready[0], &held, 1) == 1 && held == 'y', "reserved");
    close(ready[0]);
    close(ready[1]);
    region_reap(&region);
    CHECK_SUM(&region, 9u);
    kill_and_wait(pid);
    region_reap(&region);
    CHECK_SUM(&region, 0u);
    region_close(&region);
}

/* Nothing that a process was doing holds up another, and afterwards its operation happened either whole or not at all. */
static void test_owner_at_every_step(const char *step, int signal, int64_t changes) {
    struct region region;
    fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, PAGE(LIMIT_PAGES), 0);
    open_or_die(&region, true);
    CHECK(region_reserve(&region, 7) == REGION_OK, "ours");
    pid_t pid = start((struct role){.holds = 30, .step = step, .signal = signal, .changes = changes, .slot = -1});
    int got = wait_for(pid);
    CHECK(got == signal, "%s was not reached: %d", step, got);

    double began = seconds();
    CHECK(region_reserve(&region, 1) == REGION_OK, "%s: another process", step);
    region_release(&region, 1);
    uint64_t used = region_used_bytes(&region) >> REGION_PAGE_SHIFT;
    CHECK(seconds() - began < 1, "%s: another process waited %f s", step, seconds() - began);
    if (signal == SIGSTOP) {
        CHECK(used == 37 || used == (uint64_t)(37 + changes), "%s: used %llu", step, (unsigned long long)used);
        CHECK_SUM(&region, used);
        kill(pid, SIGCONT);
        CHECK(wait_for(pid) == SIGSTOP, "%s: goes on", step);
        CHECK_SUM(&region, (uint64_t)(37 + changes));
        kill_and_wait(pid);
    }
    /* What the dead held is there for who asks, without asking twice. */
    CHECK(region_reserve(&region, LIMIT_PAGES - 7) == REGION_OK, "%s: all of the rest", step);
    region_release(&region, LIMIT_PAGES - 7);
    CHECK_SUM(&region, 7u);
    region_close(&region);
}

/* A process dies at one step of its operation; a reaper of what it held is stopped or dies at one step of reaping; another
 * process reaps all the same, a third takes the slot, and only then the reaper goes on. */
static void test_reaper_at_every_step(const char *died_at, const char *step, int signal, const char *heir_at) {
    struct region region;
    fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, PAGE(LIMIT_PAGES), 0);
    join_last(&region);
    CHECK(region_reserve(&region, 7) == REGION_OK, "ours");
    const int slot = 0;
    pid_t victim = start((struct role){.holds = 30, .step = died_at, .signal = SIGKILL, .changes = 5, .slot = slot});
    CHECK(wait_for(victim) == SIGKILL, "%s was not reached", died_at);
    pid_t reaper = start((struct role){.holds = 0, .step = step, .signal = signal, .reaps = true, .slot = slot + 1});
    int got = wait_for(reaper);
    /* Which steps there are depends on where the victim died; a reaper that had no such step has stopped at its end. */
    CHECK(got == signal || got == SIGSTOP, "%s: %d", step, got);

    region_reap(&region);
    CHECK_SUM(&region, 7u);
    pid_t heir = start((struct role){.step = heir_at, .signal = SIGSTOP, .changes = 20, .slot = slot});
    CHECK(wait_for(heir) == SIGSTOP, "the slot has a new owner");
    CHECK_SUM(&region, 27u);
    if (signal == SIGSTOP) {
        kill(reaper, SIGCONT);
        got = wait_for(reaper);
        CHECK(got == SIGSTOP || got == 0, "%s: goes on: %d", step, got);
        CHECK_SUM(&region, 27u);
    }
    if (heir_at != NULL) {
        kill(heir, SIGCONT);
        CHECK(wait_for(heir) == SIGSTOP, "the new owner goes on");
        CHECK_SUM(&region, 27u);
    }
    kill_and_wait(reaper);
    CHECK(region_reserve(&region, 1) == REGION_OK, "goes on");
    CHECK_SUM(&region, 28u);
    kill_and_wait(heir);
    region_reap(&region);
    CHECK_SUM(&region, 8u);
    region_close(&region);
}

/* A reaper has seen what a process holds; then that process takes more and dies before it has committed it. */
static void test_owner_dies_under_the_reaper(const char *step) {
    struct region region;
    fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, PAGE(LIMIT_PAGES), 0);
    join_last(&region);
    CHECK(region_reserve(&region, 7) == REGION_OK, "ours");
    pid_t owner = start((struct role){
        .holds = 30, .step = "operate: before take", .signal = SIGSTOP, .last_step = step, .changes = 5, .slot = 0});
    CHECK(wait_for(owner) == SIGSTOP, "owner");
    pid_t reaper = start((struct role){.step = "reap: before question", .signal = SIGSTOP, .reaps = true, .slot = 1});
    CHECK(wait_for(reaper) == SIGSTOP, "reaper");
    kill(owner, SIGCONT);
    CHECK(wait_for(owner) == SIGKILL, "%s was not reached", step);
    kill(reaper, SIGCONT);
    CHECK(wait_for(reaper) == SIGSTOP, "reaper goes on");
    CHECK_SUM(&region, 7u);
    kill_and_wait(reaper);
    region_reap(&region);
    CHECK_SUM(&region, 7u);
    region_close(&region);
}

/* A process is stopped or dies while it takes the slot of a dead one. */
static void test_joiner_at_every_step(const char *step, int signal) {
    struct region region;
    fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, PAGE(LIMIT_PAGES), 0);
    join_last(&region);
    const int slot = 0;
    pid_t victim =
        start((struct role){.holds = 30, .step = "operate: taken", .signal = SIGKILL, .changes = 5, .slot = slot});
    CHECK(wait_for(victim) == SIGKILL, "victim");
    pid_t joiner = start((struct role){.holds = 4, .step = step, .signal = signal, .join_armed = true, .slot = slot});
    CHECK(wait_for(joiner) == signal, "%s was not reached", step);
    region_reap(&region);
    CHECK_SUM(&region, 0u);
    if (signal == SIGSTOP) {
        kill(joiner, SIGCONT);
        CHECK(wait_for(joiner) == SIGSTOP, "%s: goes on", step);
        CHECK_SUM(&region, 4u);
        kill_and_wait(joiner);
    }
    region_reap(&region);
    CHECK_SUM(&region, 0u);
    region_close(&region);
}

static void test_every_step(void) {
    static const int signals[] = {SIGKILL, SIGSTOP};
    for (unsigned s = 0; s < COUNT(signals); s++) {
        for (unsigned i = 0; i < COUNT(owner_steps); i++) {
            test_owner_at_every_step(owner_steps[i], signals[s], 5);
            test_owner_at_every_step(owner_steps[i], signals[s], -5);
        }
        for (unsigned v = 0; v < COUNT(owner_steps); v++)
            for (unsigned i = 0; i < COUNT(reaper_steps); i++)
                for (unsigned h = 0; h < 2; h++)
                    test_reaper_at_every_step(owner_steps[v], reaper_steps[i], signals[s], h ? "operate: taken" : NULL);
        for (unsigned i = 2; s == 0 && i < COUNT(owner_steps); i++)
            test_owner_dies_under_the_reaper(owner_steps[i]);
        for (unsigned i = 0; i < COUNT(join_steps); i++)
            test_joiner_at_every_step(join_steps[i], signals[s]);
    }
}

/* --- at random ----------------------------------------------------------------------------------------------------- */

#define WORKERS 16

static void work(unsigned seed) {
    struct region region;
    uint64_t held = 0;
    srandom(seed);
    open_or_die(&region, true);
    for (;;) {
        uint64_t pages = 1 + (uint64_t)random() % 200;
        if (random() % 2 && held >= pages) {
            region_release(&region, pages);
            held -= pages;
        } else if (region_reserve(&region, pages) == REGION_OK) {
            held += pages;
        }
        if (random() % 2000 == 0)
            _exit(0);
    }
}

/* Random operations of many processes, which are killed and stopped at random. Now and then all are stopped, and then the
 * sum must be exact. */
static void test_random_campaign(unsigned seed, double duration) {
    struct region region;
    pid_t workers[WORKERS] = {0};
    unsigned long rounds = 0, killed = 0, ended = 0;
    fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, PAGE(LIMIT_PAGES), 0);
    open_or_die(&region, true);
    srandom(seed);
    for (double end = seconds() + duration; seconds() < end; rounds++) {
        for (unsigned i = 0; i < WORKERS; i++) {
            unsigned child_seed = (unsigned)random();
            if (workers[i] == 0 && (workers[i] = fork()) == 0)
                work(child_seed);
        }
        struct timespec pause = {.tv_nsec = random() % 3000000};
        nanosleep(&pause, NULL);
        unsigned victim = (unsigned)random() % WORKERS;
        kill(workers[victim], SIGKILL);
        for (unsigned i = 0; i < WORKERS; i++)
            kill(workers[i], SIGSTOP);
        for (unsigned i = 0; i < WORKERS; i++) {
            int status;
            while (waitpid(workers[i], &status, WUNTRACED) < 0 && errno == EINTR)
                ;
            if (WIFSTOPPED(status))
                continue;
            killed += WIFSIGNALED(status);
            ended += WIFEXITED(status);
            workers[i] = 0;
        }
        struct sum sum = sum_of(region.usage);
        CHECK(sum.total <= LIMIT_PAGES, "seed %u: %llu pages", seed, (unsigned long long)sum.total);
        CHECK(sum.committed == sum.total, "seed %u: slots hold %llu, total says %llu", seed,
              (unsigned long long)sum.committed, (unsigned long long)sum.total);
        /* While the others are stopped wherever they are, we are served. */
        double began = seconds();
        region_reap(&region);
        if (region_reserve(&region, 1) == REGION_OK)
            region_release(&region, 1);
        CHECK(seconds() - began < 1, "seed %u: waited %f s", seed, seconds() - began);
        for (unsigned i = 0; i < WORKERS; i++)
            if (workers[i] != 0)
                kill(workers[i], SIGCONT);
    }
    for (unsigned i = 0; i < WORKERS; i++)
        if (workers[i] != 0)
            kill_and_wait(workers[i]);
    region_reap(&region);
    CHECK_SUM(&region, 0u);
    CHECK(rounds > 10 && killed > 5 && ended > 0, "%lu rounds, %lu killed, %lu ended", rounds, killed, ended);
    printf("campaign: seed %u, %lu rounds, %lu processes killed, %lu ended\n", seed, rounds, killed, ended);
    region_close(&region);
}

int main(int argc, char **argv) {
    unsigned seed = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : (unsigned)time(NULL);
    double duration = argc > 2 ? strtod(argv[2], NULL) : 3;
    checks_start();
    directory = fixture_directory();
    alarm((unsigned)duration + 120); /* a test that hangs has failed */
    test_open_refuses_what_is_no_region();
    test_limit_is_exact();
    test_limit_changes_while_mapped();
    test_sequence_numbers_wrap();
    test_damage_is_noticed();
    test_noise_does_no_harm(seed);
    test_slots_run_out();
    test_slot_survives_closed_descriptors();
    test_every_step();
    test_random_campaign(seed, duration);
    return checks_report();
}
