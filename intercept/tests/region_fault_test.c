/* Tests a program whose region's files are truncated, replaced or removed while it uses them. */
#include "region_steps.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const uint8_t tag[REGION_TAG_SIZE] = "cut off";

static void ignore_pid(int32_t pid, uint64_t pages, int32_t contexts, void *arg) {
    (void)pid, (void)pages, (void)contexts, (void)arg;
}

/* Joins as a program that leaves SIGBUS to the kernel, which a sanitizer does not. */
static void join(struct region *region) {
    signal(SIGBUS, SIG_DFL);
    open_or_die(region, true);
    CHECK(region_reserve(region, REGION_GPU, 5) == REGION_OK, "before");
}

/* --- cut off ------------------------------------------------------------------------------------------------------ */

struct cut {
    const char *file;
    long size;
};

static struct cut cut;

static void cut_off(void) {
    fixture_truncate(directory, FIXTURE_ID, cut.file, cut.size);
}

/* Each in a process of its own, as the first call after the cut. */
static void (*call_first)(struct region *region, int share);

static void call_reserve(struct region *region, int share) {
    (void)share;
    CHECK(region_reserve(region, REGION_GPU, 1) == REGION_BROKEN, "granted");
}

static void call_spill(struct region *region, int share) {
    (void)share;
    CHECK(region_reserve(region, REGION_SPILL, 1) == REGION_BROKEN, "granted");
}

static void call_huge(struct region *region, int share) {
    (void)share;
    CHECK(region_reserve(region, REGION_GPU, 5000) == REGION_BROKEN, "granted");
}

static void call_release(struct region *region, int share) {
    (void)share;
    region_release(region, REGION_GPU, 1);
}

static void call_used(struct region *region, int share) {
    (void)share;
    region_used_bytes(region, REGION_GPU);
}

static void call_reap(struct region *region, int share) {
    (void)share;
    region_reap(region);
}

static void call_each(struct region *region, int share) {
    (void)share;
    CHECK(region_each(region, ignore_pid, NULL) == -1 || cut.file == NULL || strcmp(cut.file, REGION_LIMIT_FILE) == 0,
          "listed");
}

static void call_new(struct region *region, int share) {
    (void)share;
    CHECK(region_share_new(region, tag) == -1, "made");
}

static void call_attach(struct region *region, int share) {
    (void)share;
    CHECK(region_share_attach(region, tag) < 0, "attached");
}

static void call_adopt(struct region *region, int share) {
    CHECK(region_share_adopt(region, share, 1) == REGION_BROKEN, "moved");
}

static void call_share(struct region *region, int share) {
    CHECK(region_share_reserve(region, share, 1) == REGION_BROKEN, "granted");
}

static void call_detach(struct region *region, int share) {
    region_share_detach(region, share);
}

static void call_contexts(struct region *region, int share) {
    (void)share;
    region_count_contexts(region, 1);
}

static void test_cut_off(void) {
    struct region region, looking;
    join(&region);
    open_or_die(&looking, false);
    int share = region_share_new(&region, tag);
    CHECK(share >= 0 && region_share_adopt(&region, share, 2) == REGION_OK, "share");
    cut_off();
    errno = 77;
    call_first(&region, share);
    CHECK(errno == 77, "errno %d", errno);
    CHECK(!region_intact(&region) || cut.size != 0, "intact");
    CHECK(region_reserve(&region, REGION_GPU, 1) == REGION_BROKEN, "granted");
    CHECK(region_used_bytes(&region, REGION_GPU) > PAGE(LIMIT_PAGES), "something is left");
    /* Who only looks gets an answer that allows nothing, too. */
    CHECK(!region_intact(&looking), "looks intact");
    uint64_t used = region_used_bytes(&looking, REGION_GPU), limit = region_limit_bytes(&looking, REGION_GPU);
    CHECK(used >= limit, "looks as if %llu were left", (unsigned long long)(limit - used));
    region_close(&looking);
    region_close(&region);
}

static void test_cuts(void) {
    static const struct cut cuts[] = {{REGION_USAGE_FILE, 0}, {REGION_USAGE_FILE, 4096}, {REGION_LIMIT_FILE, 0}};
    static void (*const calls[])(struct region *, int) = {
        call_reserve, call_spill,  call_huge,  call_release, call_used,   call_reap,    call_each,
        call_new,     call_attach, call_adopt, call_share,   call_detach, call_contexts};
    for (unsigned c = 0; c < COUNT(cuts); c++) {
        for (unsigned i = 0; i < COUNT(calls); i++) {
            char name[64];
            cut = cuts[c];
            call_first = calls[i];
            fresh_claim();
            snprintf(name, sizeof name, "call %u after %s was cut to %ld", i, cut.file, cut.size);
            checks_run(name, test_cut_off);
        }
    }
}

/* What is there again after a cut is not what was there. */
static void test_cut_and_grown(void) {
    struct region region;
    join(&region);
    fixture_truncate(directory, FIXTURE_ID, REGION_USAGE_FILE, 4096);
    fixture_truncate(directory, FIXTURE_ID, REGION_USAGE_FILE, REGION_USAGE_SIZE);
    CHECK(region_reserve(&region, REGION_GPU, 1) == REGION_BROKEN, "granted");
    region_close(&region);
}

#define THREADS 4
static _Atomic bool stop;

static void *ask(void *region) {
    while (!atomic_load(&stop)) {
        region_used_bytes(region, REGION_GPU);
        region_reap(region);
        region_each(region, ignore_pid, NULL);
    }
    return NULL;
}

static void test_cut_off_among_threads(void) {
    struct region region;
    pthread_t threads[THREADS];
    join(&region);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, ask, &region);
    for (int i = 0; i < 2000; i++) {
        if (i == 1000)
            cut_off();
        enum region_result result = region_reserve(&region, REGION_GPU, 1);
        CHECK(result == (i < 1000 ? REGION_OK : REGION_BROKEN), "%d: %d", i, result);
        region_release(&region, REGION_GPU, 1);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    region_close(&region);
}

/* --- removed and replaced ----------------------------------------------------------------------------------------- */

static void path_of(char *path, const char *file) {
    snprintf(path, 256, "%s/" FIXTURE_ID "/%s", directory, file);
}

static void test_removed(void) {
    struct region region;
    char path[256];
    join(&region);
    path_of(path, REGION_USAGE_FILE);
    CHECK(unlink(path) == 0, "unlink");
    region_reap(&region);
    CHECK(region_reserve(&region, REGION_GPU, 1) == REGION_BROKEN, "granted");
    region_close(&region);
}

static void test_replaced(void) {
    struct region region, looking;
    char path[256], aside[300], why[512];
    join(&region);
    open_or_die(&looking, false);
    path_of(path, REGION_USAGE_FILE);
    snprintf(aside, sizeof aside, "%s.aside", path);
    CHECK(rename(path, aside) == 0, "rename");
    fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, PAGE(LIMIT_PAGES), 0);
    CHECK(!region_intact(&looking), "looks intact");
    CHECK(!region_join(&looking, why, sizeof why) && strstr(why, "replaced"), "%s", why);
    region_reap(&region);
    CHECK(region_reserve(&region, REGION_GPU, 1) == REGION_BROKEN, "granted");
    region_close(&region);
    unlink(aside);
}

/* A program that changes its root sees the files no more, and what it has mapped is as good as before. */
static void test_changed_root(void) {
    struct region region, other;
    if (geteuid() != 0)
        return;
    join(&region);
    open_or_die(&other, true);
    CHECK(region_reserve(&other, REGION_GPU, LIMIT_PAGES - 5) == REGION_OK, "the other");
    CHECK(chroot("/proc/self/fdinfo") == 0, "chroot");
    CHECK(region_reserve(&region, REGION_GPU, 1) == REGION_FULL, "full");
    region_close(&other);
    CHECK(region_reserve(&region, REGION_GPU, LIMIT_PAGES - 5) == REGION_OK, "what the dead had");
    region_close(&region);
    fflush(NULL);
    _exit(0); /* what a sanitizer does at the end needs /proc */
}

/* --- the program's own signals ------------------------------------------------------------------------------------ */

static volatile sig_atomic_t handled;

static void own_handler(int number) {
    (void)number;
    handled++;
    _exit(handled == 1 && errno == 77 ? 0 : 1);
}

static void test_own_handler_is_kept(void) {
    struct region region;
    struct sigaction ours = {.sa_handler = own_handler, .sa_flags = SA_ONSTACK}, found;
    sigaction(SIGBUS, &ours, NULL);
    open_or_die(&region, true);
    sigaction(SIGBUS, NULL, &found);
    CHECK(found.sa_handler == own_handler && found.sa_flags & SA_ONSTACK, "the handler was replaced");
    fixture_truncate(directory, FIXTURE_ID, REGION_USAGE_FILE, 0);
    errno = 77;
    region_reserve(&region, REGION_GPU, 1);
    CHECK(false, "the program's handler was not asked");
}

static void test_ignored_stays_so(void) {
    struct region region;
    struct sigaction found;
    signal(SIGBUS, SIG_IGN);
    open_or_die(&region, true);
    sigaction(SIGBUS, NULL, &found);
    CHECK(found.sa_handler == SIG_IGN, "it is not ignored any more");
    region_close(&region);
}

/* Who only looks installs nothing. */
static void test_looking_handles_nothing(void) {
    struct region region;
    struct sigaction found;
    signal(SIGBUS, SIG_DFL);
    open_or_die(&region, false);
    region_used_bytes(&region, REGION_GPU);
    sigaction(SIGBUS, NULL, &found);
    CHECK(found.sa_handler == SIG_DFL, "something is installed");
    region_close(&region);
}

static void touch_what_is_gone(void) {
    char path[256];
    fixture_write(directory, FIXTURE_ID, "other", 0, "x", 1);
    path_of(path, "other");
    FILE *file = fopen(path, "r+");
    volatile char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    fixture_truncate(directory, FIXTURE_ID, "other", 0);
    map[0] = 1;
}

static void send_to_self(void) {
    raise(SIGBUS);
}

static void send_to_thread(void) {
    pthread_kill(pthread_self(), SIGBUS);
}

/* A SIGBUS that is not ours ends the program as it would have without us. */
static void test_others_faults(void) {
    static void (*const faults[])(void) = {touch_what_is_gone, send_to_self, send_to_thread};
    for (unsigned i = 0; i < COUNT(faults); i++) {
        fresh_claim();
        char path[256];
        path_of(path, "other");
        FILE *other = fopen(path, "w");
        fclose(other);
        pid_t pid = fork();
        if (pid == 0) {
            struct region region;
            die_with_parent();
            join(&region);
            faults[i]();
            _exit(9);
        }
        CHECK(wait_for(pid) == SIGBUS, "%u: not ended by SIGBUS", i);
    }
}

/* A child, too, is kept alive, by its own region; and so is its child, and so on. */
static void test_children(void) {
    struct region region;
    int ends[2];
    char last = 0;
    CHECK(pipe(ends) == 0, "pipe");
    for (int depth = 0; depth < 150; depth++) {
        join(&region);
        if (fork() == 0)
            continue;
        close(ends[1]);
        if (depth > 0)
            _exit(0);
        CHECK(read(ends[0], &last, 1) == 1 && last == 'y', "the last child was not served");
        return;
    }
    open_or_die(&region, true);
    fixture_truncate(directory, FIXTURE_ID, REGION_USAGE_FILE, 0);
    bool broken = region_reserve(&region, REGION_GPU, 1) == REGION_BROKEN;
    _exit(write(ends[1], broken ? "y" : "n", 1) != 1);
}

static void run(const char *name, void (*test)(void)) {
    fresh_claim();
    checks_run(name, test);
}

#define RUN(test) run(#test, test)

int main(void) {
    checks_start();
    directory = fixture_directory();
    alarm(120); /* a test that hangs has failed */
    test_cuts();
    RUN(test_cut_and_grown);
    cut = (struct cut){REGION_USAGE_FILE, 0};
    RUN(test_cut_off_among_threads);
    cut = (struct cut){REGION_LIMIT_FILE, 0};
    RUN(test_cut_off_among_threads);
    RUN(test_removed);
    RUN(test_replaced);
    RUN(test_changed_root);
    RUN(test_own_handler_is_kept);
    RUN(test_ignored_stays_so);
    RUN(test_looking_handles_nothing);
    test_others_faults();
    RUN(test_children);
    return checks_report();
}
