/*
 * campaign: random sequences of CUDA driver calls, from random numbers of processes and threads, against the shadow
 * library in front of the simulated driver; the judge is the simulator's record of physical memory.
 *
 *   campaign [--seed N] [--steps N] [--seconds N] [--mode lockstep|storm|crowd|all|A,B]
 *            [--processes N] [--threads N] [--families a,b] [--without a.b,c.d] [--rounds N] [--shadow FILE] [--bare] [--no-fork] [--no-death]
 *            [--hold] [--verbose] [--list]
 *
 * A round has a seed of its own, from which everything follows: the claims, the steps, the choices of the workers. It is
 * --steps steps of lockstep, then a storm of a few seconds, then a crowd. With --seconds, rounds follow each other for so long. What
 * a finding prints is enough to run its round again; a round in lockstep runs as it did, a storm like it did. With --hold,
 * the processes of a finding stay as they are until the campaign is interrupted, for a debugger to look at.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "calls.h"
#include "conductor.h"
#include "families/family.h"
#include "worker.h"

/* After ENOUGH_STEPS an operation that was never done is one that cannot be done; one of a crowd, whose bouts do not do everything,
 * when it was tried ENOUGH_TRIES times. */
enum { DEFAULT_STEPS = 6000, ENOUGH_STEPS = 24000, ENOUGH_TRIES = 1000, STORM_SECONDS = 3, CROWD_BOUTS = 2 };

static struct options {
    uint64_t seed, steps, rounds;
    double seconds;
    bool do_lockstep, do_storm, do_crowd, no_fork, no_death, bare, hold, verbose, list, limited_families;
    unsigned processes, threads; /* 0: the seed says */
    const char *families, *without, *shadow;
    char build[256];
} options = {.steps = DEFAULT_STEPS, .rounds = 1, .do_lockstep = true, .do_storm = true, .do_crowd = true};

static struct { uint64_t tried, done, refused; } sums[OPERATIONS_MAX];
static bool ever_enabled[OPERATIONS_MAX];
static uint64_t sum_calls, sum_steps, longest_call_ns;
static double began;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* ---- Options ---- */

static int usage(void) {
    fprintf(
        stderr,
        "usage: campaign [--seed N] [--steps N] [--seconds N] [--mode lockstep|storm|crowd|all|A,B]\n                "
        "[--processes N] [--threads N] [--families a,b] [--without a.b,c.d] [--rounds N] [--shadow FILE] "
        "[--bare] [--no-fork]\n                [--no-death] [--hold] [--verbose] [--list]\n");
    return 2;
}

/* One of the modes, several with commas between, or all. */
static bool set_modes(const char *modes) {
    static const struct {
        const char *name;
        bool *set;
    } known[] = {{"lockstep", &options.do_lockstep}, {"storm", &options.do_storm}, {"crowd", &options.do_crowd}};
    options.do_lockstep = options.do_storm = options.do_crowd = strcmp(modes, "all") == 0;
    if (options.do_crowd)
        return true;
    for (size_t length = strcspn(modes, ","); length > 0; length = strcspn(modes, ",")) {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof known[0] && !found; i++)
            if ((found = strlen(known[i].name) == length && strncmp(known[i].name, modes, length) == 0))
                *known[i].set = true;
        if (!found)
            return false;
        modes += length + (modes[length] == ',');
    }
    return options.do_lockstep || options.do_storm || options.do_crowd;
}

static bool set_option(const char *name, const char *value) {
    if (strcmp(name, "--seed") == 0)
        options.seed = strtoull(value, NULL, 0);
    else if (strcmp(name, "--steps") == 0)
        options.steps = strtoull(value, NULL, 0);
    else if (strcmp(name, "--seconds") == 0)
        options.seconds = strtod(value, NULL);
    else if (strcmp(name, "--rounds") == 0)
        options.rounds = strtoull(value, NULL, 0);
    else if (strcmp(name, "--processes") == 0)
        options.processes = (unsigned)strtoul(value, NULL, 0);
    else if (strcmp(name, "--threads") == 0)
        options.threads = (unsigned)strtoul(value, NULL, 0);
    else if (strcmp(name, "--families") == 0)
        options.families = value;
    else if (strcmp(name, "--without") == 0)
        options.without = value;
    else if (strcmp(name, "--shadow") == 0)
        options.shadow = value;
    else if (strcmp(name, "--mode") == 0)
        return set_modes(value);
    else
        return false;
    return true;
}

static bool read_options(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bare") == 0)
            options.bare = true;
        else if (strcmp(argv[i], "--no-fork") == 0)
            options.no_fork = true;
        else if (strcmp(argv[i], "--no-death") == 0)
            options.no_death = true;
        else if (strcmp(argv[i], "--hold") == 0)
            options.hold = true;
        else if (strcmp(argv[i], "--verbose") == 0)
            options.verbose = true;
        else if (strcmp(argv[i], "--list") == 0)
            options.list = true;
        else if (i + 1 >= argc || !set_option(argv[i], argv[i + 1]))
            return false;
        else
            i++;
    }
    return options.processes <= SEATS && options.threads <= DESKS;
}

/* The libraries lie where this program does: build/e2e/campaign, build/lib, build/sim/lib. */
static void find_build(void) {
    ssize_t size = readlink("/proc/self/exe", options.build, sizeof options.build - 1);
    options.build[size > 0 ? size : 0] = '\0';
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(options.build, '/');
        if (slash != NULL)
            *slash = '\0';
    }
}

static bool named(const char *list, const char *name) {
    size_t length = strlen(name);
    for (const char *at = list; at != NULL; at = strchr(at, ',') != NULL ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    return false;
}

/* Contexts are always among what is done: nothing else goes without. */
static bool wanted(unsigned operation) {
    const char *family = family_of(operation)->name;
    if (named(options.without, operation_at(operation)->name))
        return false;
    return options.families == NULL || strcmp(family, "context") == 0 || named(options.families, family);
}

/* ---- A round ---- */

/* One GPU with a claim, or both; a claim is a few contexts and some hundred MiB, not always whole blocks. */
static void choose_limits(uint64_t *random, uint64_t limit_bytes[GPUS]) {
    uint64_t which = random_below(random, 4);
    for (int gpu = 0; gpu < GPUS; gpu++) {
        bool claimed = which < 2 || (which == 2) == (gpu == 0);
        uint64_t mib = 160 + random_below(random, random_once_in(random, 2) ? 200 : 1200);
        uint64_t odd = random_once_in(random, 3) ? random_below(random, 512) << 12 : 0;
        limit_bytes[gpu] = claimed ? (mib << 20) + odd : 0;
    }
}

/* By a number of its own, so that what follows from a seed in the other modes stays. */
static void choose_crowd_limits(uint64_t seed, uint64_t limit_bytes[CROWD_CLAIMS]) {
    uint64_t random = ~seed;
    for (unsigned claim = 0; claim < CROWD_CLAIMS; claim++)
        limit_bytes[claim] = (200 + random_below(&random, random_once_in(&random, 2) ? 300 : 2800)) << 20;
}

/* Which operations the driver has functions for: a process looks that has nothing else to do. */
static bool probe(struct plan *plan) {
    int status = -1;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        node_enter(0, 0);
        execl("/proc/self/exe", "campaign", "probe", (char *)NULL);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        return found("no worker can load the driver");
    for (unsigned i = 0; i < operations_count(); i++) {
        bool on = wanted(i) && atomic_load(&node_board->enabled[i]);
        *(is_of_crowd(i) ? &plan->crowd_weights[i] : &node_board->weights[i]) = on ? operation_at(i)->weight : 0;
        ever_enabled[i] |= on;
    }
    return true;
}

static void add_sums(void) {
    for (unsigned i = 0; i < operations_count(); i++) {
        sums[i].tried += atomic_load(&node_board->totals[i].tried);
        sums[i].done += atomic_load(&node_board->totals[i].done);
        sums[i].refused += atomic_load(&node_board->totals[i].refused);
    }
    sum_calls += atomic_load(&node_board->calls);
    sum_steps += step_number;
    if (atomic_load(&node_board->longest_call_ns) > longest_call_ns)
        longest_call_ns = atomic_load(&node_board->longest_call_ns);
}

static _Atomic bool heart_stops;

/* How long one has to wait for a processor here and now: this thread, which hardly ever wants one, and the workers, of
 * whom the longest wait is slowly forgotten. */
static void *heartbeat(void *unused) {
    uint64_t last = calls_not_running_ns();
    while (!atomic_load(&heart_stops)) {
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        uint64_t now = calls_not_running_ns(), longest = atomic_load(&node_board->unscheduled_ns);
        atomic_compare_exchange_strong(&node_board->unscheduled_ns, &longest, longest - longest / 256);
        calls_note_unscheduled(node_board, now - last);
        last = now;
    }
    return unused;
}

static char found_text[900]; /* for the last line of what is printed: of a long log often only the end is seen */

static void print_finding(uint64_t seed, const char *mode) {
    snprintf(found_text, sizeof found_text, "FOUND, in the %s of seed %llu, step %llu: %s", mode,
             (unsigned long long)seed, (unsigned long long)step_number, finding());
    printf("\n%s\n\nThe last steps:\n", found_text);
    trace_print();
    char messages[600];
    snprintf(messages, sizeof messages, "sort %s 2>/dev/null | uniq -c | tail -20", node_path("messages"));
    printf("\nWhat the workers said on stderr:\n");
    fflush(stdout);
    if (system(messages) != 0)
        printf("  (nothing)\n");
    printf("\nAgain:\n  %s/e2e/campaign --seed %llu --mode %s --steps %llu", options.build, (unsigned long long)seed,
           mode, (unsigned long long)options.steps);
    if (options.processes != 0)
        printf(" --processes %u", options.processes);
    if (options.threads != 0)
        printf(" --threads %u", options.threads);
    if (options.families != NULL)
        printf(" --families %s", options.families);
    if (options.without != NULL)
        printf(" --without %s", options.without);
    if (options.shadow != NULL)
        printf(" --shadow %s", options.shadow);
    printf("%s%s%s\n", options.bare ? " --bare" : "", options.no_fork ? " --no-fork" : "",
           options.no_death ? " --no-death" : "");
}

static void kill_all(void) {
    for (unsigned i = 0; i < SEATS; i++)
        if (actors[i].alive)
            actor_signal(i, SIGKILL);
    for (unsigned i = 0; i < SEATS; i++)
        actor_bury(i);
}

static void hold(void) {
    if (!options.hold)
        return;
    actors_stop();
    printf("\nThe processes stay as they are until %d is interrupted.\n", getpid());
    fflush(stdout);
    for (;;)
        pause();
}

static bool run_round(uint64_t seed) {
    uint64_t random = seed;
    struct plan plan = {.seed = seed, .steps = options.steps};
    struct node_options node = {.build = options.build, .shadow = options.shadow, .bare = options.bare};
    choose_limits(&random, node.limit_bytes);
    choose_crowd_limits(seed, node.crowd_limit_bytes);
    plan.processes = options.processes != 0 ? options.processes : 1 + (unsigned)random_below(&random, 8);
    plan.threads = options.threads != 0 ? options.threads : 1 + (unsigned)random_below(&random, 4);
    plan.seconds = STORM_SECONDS;
    plan.bouts = CROWD_BOUTS;
    conductor_begin(options.verbose);
    if (!node_make(&node)) {
        node_remove();
        printf("FAILED: there is no node to run on\n");
        return false;
    }
    node_board->threads_max = plan.threads;
    node_board->no_fork = options.no_fork;
    node_board->no_death = options.no_death;
    pthread_t heart;
    atomic_store(&heart_stops, false);
    pthread_create(&heart, NULL, heartbeat, NULL);
    const char *mode = "lockstep";
    bool fine = probe(&plan) && (!options.do_lockstep || lockstep(&plan));
    if (fine && options.do_storm) {
        mode = "storm";
        plan.processes = options.processes != 0 ? options.processes : 4 + (unsigned)random_below(&random, 16);
        fine = storm(&plan);
    }
    if (fine && options.do_crowd) {
        mode = "crowd";
        plan.processes = options.processes;
        plan.threads = options.threads;
        fine = crowd(&plan);
    }
    atomic_store(&heart_stops, true);
    pthread_join(heart, NULL);
    add_sums();
    if (!fine) {
        print_finding(seed, mode);
        hold();
        kill_all();
    }
    node_remove();
    return fine;
}

/* ---- The whole ---- */

/* What was never done tests nothing. */
static bool should_have_been_done(unsigned operation) {
    return ever_enabled[operation] && !operation_at(operation)->rare &&
           (!is_of_crowd(operation) || sums[operation].tried >= ENOUGH_TRIES);
}

static bool print_totals(uint64_t rounds) {
    bool complete = true;
    double took = seconds() - began;
    uint64_t tried = 0;
    printf("%-24s %10s %10s %10s\n", "operation", "tried", "done", "refused");
    for (unsigned i = 0; i < operations_count(); i++) {
        const struct operation *operation = operation_at(i);
        if (!wanted(i))
            continue;
        const char *note = !ever_enabled[i] ? "  off: the driver lacks a function" : sums[i].done == 0 ? "  NEVER" : "";
        printf("%-24s %10llu %10llu %10llu%s\n", operation->name, (unsigned long long)sums[i].tried,
               (unsigned long long)sums[i].done, (unsigned long long)sums[i].refused, note);
        tried += sums[i].tried;
        complete = complete && (sums[i].done > 0 || !should_have_been_done(i));
    }
    printf("%llu rounds, %llu operations, %llu calls of the driver, %.0f s, %.0f operations per second; the longest "
           "call took %llu ms\n",
           (unsigned long long)rounds, (unsigned long long)tried, (unsigned long long)sum_calls, took,
           (double)tried / took, (unsigned long long)(longest_call_ns / 1000000));
    bool long_enough = options.do_lockstep && options.steps * rounds >= ENOUGH_STEPS;
    if (long_enough && !complete)
        printf("FAILED: some operations never succeeded\n");
    return complete || !long_enough;
}

/* Workers see that their conductor is gone, but for those that are stopped. */
static void on_signal(int signal_number) {
    for (unsigned i = 0; i < SEATS; i++)
        if (actors[i].alive)
            actor_signal(i, SIGKILL);
    node_remove();
    _exit(128 + signal_number);
}

static int conduct(int argc, char **argv) {
    bool fine = true;
    uint64_t rounds = 0;
    find_build();
    if (!read_options(argc, argv))
        return usage();
    if (options.list) {
        for (unsigned i = 0; i < operations_count(); i++)
            printf("%s\n", operation_at(i)->name);
        return 0;
    }
    if (!options.bare && access("/.tranche", F_OK) == 0) {
        printf("skipped: a /.tranche hides the claims of this test\n");
        return 0;
    }
    if (options.seed == 0 && getrandom(&options.seed, 4, 0) != 4)
        options.seed = (uint64_t)time(NULL);
    printf("campaign: seed %llu\n", (unsigned long long)options.seed);
    began = seconds();
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    while (fine && (options.seconds > 0 ? seconds() - began < options.seconds : rounds < options.rounds)) {
        fine = run_round(options.seed + rounds);
        rounds++;
    }
    bool complete = print_totals(rounds);
    if (!fine)
        printf("%s\n", found_text);
    return complete && fine ? 0 : 1;
}

int main(int argc, char **argv) {
    const char *path = getenv("CAMPAIGN_BOARD");
    if (argc == 3 && strcmp(argv[1], "worker") == 0 && path != NULL && (board = board_map(path)) != NULL)
        return worker_main((unsigned)atoi(argv[2]));
    if (argc == 2 && strcmp(argv[1], "probe") == 0 && path != NULL && (board = board_map(path)) != NULL)
        return probe_main();
    return conduct(argc, argv);
}
