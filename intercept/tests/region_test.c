/* Tests the region's protocol: opening, and processes that take pages and give them back. */
#include "region_steps.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const owner_steps[] = {"operate: announced", "operate: before take", "operate: taken",
                                          "operate: committed"};
static const char *const reaper_steps[] = {"reap: before question", "reap: dead",         "reap: settled",
                                           "reap: before announce", "reap: announced",    "reap: before take",
                                           "reap: taken",           "help: before commit"};
static const char *const join_steps[] = {"slot: before lock", "slot: locked", "slot: emptied"};

/* --- processes ---------------------------------------------------------------------------------------------------- */

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
    die_with_parent();
    struct region region;
    if (role.join_armed)
        arm(role.step, role.signal, NULL);
    if (role.slot >= 0)
        join_at(&region, (unsigned)role.slot);
    else
        open_or_die(&region, true);
    if (role.slot >= 0 && region.slot != role.slot)
        _exit(10);
    if (role.holds != 0 && region_reserve(&region, REGION_GPU, role.holds) != REGION_OK)
        _exit(11);
    arm(role.step, role.signal, role.last_step);
    if (role.changes > 0 && region_reserve(&region, REGION_GPU, (uint64_t)role.changes) != REGION_OK)
        _exit(12);
    if (role.changes < 0)
        region_release(&region, REGION_GPU, (uint64_t)-role.changes);
    if (role.reaps)
        region_reap(&region);
    raise(SIGSTOP); /* done */
    _exit(0);
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

static void refused(const char *word) {
    struct region region;
    char why[REGION_WHY] = "";
    bool opened = region_open(&region, directory, FIXTURE_ID, why);
    CHECK(!opened, "opened although %s", word);
    CHECK(strstr(why, word) != NULL, "says \"%s\", which does not say \"%s\"", why, word);
    if (opened)
        region_close(&region);
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s/" FIXTURE_ID "'", directory);
    CHECK(system(command) == 0, "%s", command);
    fresh_claim();
}

static void path_of(char *path, size_t size, const char *file) {
    snprintf(path, size, "%s/" FIXTURE_ID "/%s", directory, file);
}

/* Nor does it wait for anything. */
static void test_open_refuses_other_things(void) {
    static const char *const files[] = {REGION_LIMIT_FILE, REGION_USAGE_FILE};
    for (unsigned i = 0; i < COUNT(files); i++) {
        char path[256], elsewhere[300];
        path_of(path, sizeof path, files[i]);
        snprintf(elsewhere, sizeof elsewhere, "%s.elsewhere", path);
        double began = seconds();
        CHECK(unlink(path) == 0 && mkfifo(path, 0666) == 0, "a pipe");
        refused("is no regular file");
        CHECK(unlink(path) == 0 && mkdir(path, 0777) == 0, "a directory");
        refused("is no regular file");
        CHECK(rename(path, elsewhere) == 0 && symlink(elsewhere, path) == 0, "a link");
        refused("is a symbolic link");
        unlink(elsewhere);
        CHECK(unlink(path) == 0 && symlink("/dev/zero", path) == 0, "a device");
        refused("is a symbolic link");
        CHECK(seconds() - began < 2, "%f s", seconds() - began);
        if (geteuid() != 0)
            continue;
        pid_t pid = fork();
        if (pid == 0) {
            struct region region;
            char why[REGION_WHY] = "";
            if (chmod(path, 0) != 0 || setgid(65534) != 0 || setuid(65534) != 0)
                _exit(1);
            bool opened = region_open(&region, directory, FIXTURE_ID, why);
            _exit(opened || strstr(why, "cannot open") == NULL || strstr(why, files[i]) == NULL);
        }
        CHECK(chmod(directory, 0755) == 0 && wait_for(pid) == 0, "not readable");
        fresh_claim();
    }
}

static void test_open_refuses_what_is_no_region(void) {
    static const char *const files[] = {REGION_LIMIT_FILE, REGION_USAGE_FILE};
    fresh_claim();
    for (unsigned i = 0; i < COUNT(files); i++) {
        char path[256];
        uint32_t number = 1;
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
        refused("version 1");
        number = 0;
        fixture_write(directory, FIXTURE_ID, files[i], 8, &number, sizeof number);
        refused("version 0");
        fixture_write(directory, FIXTURE_ID, files[i], 12, &number, sizeof number);
        refused("declares 0 bytes");
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

    test_open_refuses_other_things();
    struct region region;
    char why[REGION_WHY];
    CHECK(!region_open(&region, directory, "short", why), "a name of 5 characters");
    char far_away[400];
    memset(far_away, 'd', sizeof far_away - 1);
    far_away[sizeof far_away - 1] = '\0';
    CHECK(!region_open(&region, far_away, FIXTURE_ID, why) && strstr(why, "too long"), "%s", why);
}

/* --- one process -------------------------------------------------------------------------------------------------- */

static void test_limit_is_exact(void) {
    struct region region;
    fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, PAGE(LIMIT_PAGES) + 65535, 0);
    open_or_die(&region, true);
    CHECK(region_reserve(&region, REGION_GPU, LIMIT_PAGES + 1) == REGION_FULL, "more than the limit");
    CHECK(region_reserve(&region, REGION_GPU, LIMIT_PAGES - 1) == REGION_OK, "one less than the limit");
    CHECK(region_reserve(&region, REGION_GPU, 2) == REGION_FULL, "two more");
    CHECK(region_reserve(&region, REGION_GPU, 1) == REGION_OK, "one more");
    CHECK(region_reserve(&region, REGION_GPU, 1) == REGION_FULL, "full");
    CHECK_SUM(&region, LIMIT_PAGES);
    CHECK(region_used_bytes(&region, REGION_GPU) == PAGE(LIMIT_PAGES), "used");
    region_release(&region, REGION_GPU, LIMIT_PAGES);
    CHECK_SUM(&region, 0u);
    CHECK(atomic_load(&region.usage->sums[REGION_GPU].peak_pages) == LIMIT_PAGES, "peak");
    CHECK(atomic_load(&region.usage->sums[REGION_GPU].refused) == 0, "what a program is refused is for others to say");
    region_count_refused(&region);
    CHECK(atomic_load(&region.usage->sums[REGION_GPU].refused) == 1, "refused");

    /* Sizes at which words wrap. */
    static const uint64_t huge[] = {UINT64_MAX,        INT64_MAX,         UINT64_C(1) << 40,
                                    UINT64_C(1) << 39, UINT64_C(1) << 28, (UINT64_C(1) << 28) - 1};
    for (unsigned i = 0; i < COUNT(huge); i++)
        CHECK(region_reserve(&region, REGION_GPU, huge[i]) == REGION_FULL, "%llu pages", (unsigned long long)huge[i]);
    CHECK_SUM(&region, 0u);
    region_close(&region);
}

/* What the host found uncounted takes from the limit, and shows as used, also to who only looks. */
static void test_uncounted(void) {
    struct region region, looking;
    fresh_claim();
    open_or_die(&region, true);
    open_or_die(&looking, false);
    fixture_uncounted(directory, FIXTURE_ID, PAGE(10));
    CHECK(region_reserve(&region, REGION_GPU, LIMIT_PAGES - 9) == REGION_FULL, "uncounted memory takes from the limit");
    CHECK(region_reserve(&region, REGION_GPU, LIMIT_PAGES - 10) == REGION_OK, "the rest is there");
    CHECK(region_used_bytes(&region, REGION_GPU) == PAGE(LIMIT_PAGES), "used");
    CHECK(region_used_bytes(&looking, REGION_GPU) == PAGE(LIMIT_PAGES), "seen to be used");
    CHECK(region_limit_bytes(&region, REGION_GPU) == PAGE(LIMIT_PAGES), "the limit is what it was");
    fixture_uncounted(directory, FIXTURE_ID, UINT64_MAX);
    CHECK(region_reserve(&region, REGION_GPU, 1) == REGION_FULL, "more than the limit is uncounted");
    fixture_uncounted(directory, FIXTURE_ID, 0);
    CHECK(region_reserve(&region, REGION_GPU, 10) == REGION_OK, "all is counted again");
    CHECK_SUM(&region, LIMIT_PAGES);
    region_close(&looking);
    region_close(&region);
}

static void test_ledgers_are_apart(void) {
    struct region region;
    fresh_claim();
    fixture_spill(directory, FIXTURE_ID, PAGE(50));
    open_or_die(&region, true);
    CHECK(region_limit_bytes(&region, REGION_SPILL) == PAGE(50), "spill limit");
    CHECK(region_reserve(&region, REGION_SPILL, 51) == REGION_FULL, "more than may be spilled");
    CHECK(region_reserve(&region, REGION_GPU, LIMIT_PAGES) == REGION_OK, "all of the GPU's");
    CHECK(region_reserve(&region, REGION_SPILL, 50) == REGION_OK, "all that may be spilled");
    CHECK(region_reserve(&region, REGION_GPU, 1) == REGION_FULL, "full");
    CHECK_SUM(&region, LIMIT_PAGES);
    CHECK_LEDGER(&region, REGION_SPILL, 50u);
    region_release(&region, REGION_GPU, 3);
    CHECK_LEDGER(&region, REGION_SPILL, 50u);
    CHECK(region_reserve(&region, REGION_SPILL, 1) == REGION_FULL, "what is free on the GPU is not free here");
    region_release(&region, REGION_SPILL, 20);
    CHECK(region_used_bytes(&region, REGION_SPILL) == PAGE(30), "spilled");
    CHECK(region_used_bytes(&region, REGION_GPU) == PAGE(LIMIT_PAGES - 3), "the GPU's");
    region_release(&region, REGION_SPILL, 31); /* nobody gives back more than it has */
    CHECK_LEDGER(&region, REGION_SPILL, 0u);

    /* What the dead held is given back in both. */
    pid_t pid = fork();
    if (pid == 0) {
        struct region own;
        die_with_parent();
        open_or_die(&own, true);
        if (region_reserve(&own, REGION_SPILL, 9) != REGION_OK || region_reserve(&own, REGION_GPU, 2) != REGION_OK)
            _exit(1);
        raise(SIGSTOP);
    }
    CHECK(wait_for(pid) == SIGSTOP, "child");
    CHECK_LEDGER(&region, REGION_SPILL, 9u);
    kill_and_wait(pid);
    CHECK(region_reserve(&region, REGION_SPILL, 50) == REGION_OK, "what the dead had spilled");
    CHECK_SUM(&region, LIMIT_PAGES - 3);
    region_close(&region);
}

/* Whoever asks sees at once what the dead have left, however often it asks. */
static void test_death_shows_at_once(void) {
    struct region region;
    fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, PAGE(LIMIT_PAGES), 0);
    open_or_die(&region, true);
    CHECK(region_reserve(&region, REGION_GPU, 3) == REGION_OK, "own");
    for (int round = 0; round < 4; round++) {
        pid_t pid = start((struct role){.holds = 5, .slot = -1});
        CHECK(wait_for(pid) == SIGSTOP, "child");
        CHECK(region_used_bytes(&region, REGION_GPU) == PAGE(8), "%d: with the living", round);
        kill_and_wait(pid);
        CHECK(region_used_bytes(&region, REGION_GPU) == PAGE(3), "%d: without the dead", round);
    }
    region_close(&region);
}

static void test_limit_changes_while_mapped(void) {
    struct region region;
    fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, PAGE(10), 0);
    open_or_die(&region, true);
    CHECK(region_reserve(&region, REGION_GPU, 10) == REGION_OK, "up to the limit");
    fixture_limit(directory, FIXTURE_ID, PAGE(20));
    CHECK(region_reserve(&region, REGION_GPU, 10) == REGION_OK, "up to the raised limit");
    fixture_limit(directory, FIXTURE_ID, PAGE(5));
    region_release(&region, REGION_GPU, 14);
    CHECK(region_reserve(&region, REGION_GPU, 1) == REGION_FULL, "above the lowered limit");
    region_release(&region, REGION_GPU, 6);
    CHECK(region_reserve(&region, REGION_GPU, 5) == REGION_OK, "up to the lowered limit");
    /* A limit that the words cannot express. */
    fixture_limit(directory, FIXTURE_ID, UINT64_MAX);
    CHECK(region_reserve(&region, REGION_GPU, (1u << 28) - 1 - 5) == REGION_OK, "as much as a word holds");
    CHECK(region_reserve(&region, REGION_GPU, 1) == REGION_FULL, "more than a word holds");
    CHECK_SUM(&region, (1u << 28) - 1);
    region_close(&region);
}

static void test_sequence_numbers_wrap(void) {
    struct region region;
    fresh_claim();
    open_or_die(&region, true);
    CHECK(region_reserve(&region, REGION_GPU, 1) == REGION_OK, "first");
    /* As if it were the last but one operation before the wrap. */
    struct region_slot *slot = &region.usage->slots[region.slot];
    uint64_t seq = (1u << 24) - 2;
    atomic_store(&slot->held[REGION_GPU].committed, seq << 40 | 1);
    region.expected[REGION_GPU] = seq << 40 | 1;
    atomic_store(&region.usage->sums[REGION_GPU].total, seq << 40 | (uint64_t)region.slot << 28 | 1);
    for (unsigned held = 2; held < 8; held++) {
        CHECK(region_reserve(&region, REGION_GPU, 1) == REGION_OK, "%u", held);
        CHECK_SUM(&region, held);
        CHECK(atomic_load(&slot->held[REGION_GPU].committed) >> 40 != 0, "sequence number 0 is no operation");
    }
    region_close(&region);
}

static void test_damage_is_noticed(void) {
    struct region region;
    fresh_claim();
    open_or_die(&region, true);
    CHECK(region_reserve(&region, REGION_GPU, 1) == REGION_OK, "before");
    memset(region.usage->magic, 0xa5, sizeof region.usage->magic);
    CHECK(region_reserve(&region, REGION_GPU, 1) == REGION_BROKEN, "after");
    memcpy(region.usage->magic, REGION_USAGE_MAGIC, sizeof region.usage->magic);
    CHECK(region_reserve(&region, REGION_GPU, 1) == REGION_BROKEN, "what was broken stays so");
    CHECK(region_used_bytes(&region, REGION_GPU) > PAGE(LIMIT_PAGES), "of a broken region nothing is left");
    region_close(&region);
}

static void scribble(unsigned char *bytes, size_t from, size_t to) {
    for (size_t i = from; i < to; i++)
        bytes[i] = (unsigned char)random();
}

/* Whatever the words are: nothing is granted, calls end, and touch nothing outside the file. */
static void test_noise(unsigned seed) {
    static const size_t from[] = {0, 8, 16, 64, 192, 320, REGION_SLOTS_OFFSET};
    const uint64_t tag = 0x6e6f697365;
    srandom(seed);
    for (unsigned round = 0; round < 70; round++) {
        struct region region, other;
        char why[REGION_WHY];
        fresh_claim();
        open_or_die(&region, true);
        CHECK(region_reserve(&region, REGION_GPU, 3) == REGION_OK, "before");
        int share = region_share_new(&region, tag);
        CHECK(share >= 0 && region_share_adopt(&region, share, 1) == REGION_OK, "share");
        scribble((unsigned char *)region.usage, from[round % COUNT(from)], REGION_USAGE_SIZE);
        CHECK(region_reserve(&region, REGION_GPU, (uint64_t)random() % 2000) == REGION_BROKEN, "seed %u: granted",
              seed);
        CHECK(region_reserve(&region, REGION_SPILL, 1) == REGION_BROKEN, "seed %u: granted", seed);
        region_release(&region, REGION_GPU, (uint64_t)random() % 2000);
        CHECK(region_share_reserve(&region, share, 1) == REGION_BROKEN, "seed %u: granted", seed);
        CHECK(region_share_adopt(&region, share, 1) == REGION_BROKEN, "seed %u: moved", seed);
        CHECK(region_share_new(&region, tag) < 0, "seed %u: shared", seed);
        CHECK(region_share_attach(&region, tag) < 0, "seed %u: attached", seed);
        region_share_detach(&region, share);
        region_used_bytes(&region, REGION_GPU);
        region_reap(&region);
        if (region_open(&other, directory, FIXTURE_ID, why)) {
            CHECK(!region_join(&other, why), "seed %u: joined", seed);
            region_close(&other);
        }
        region_close(&region);
    }
}

/* One word of noise, where no process looks at each operation, is found by whoever looks at all. */
static void test_noise_in_one_word(void) {
    for (int which = 0; which < 3; which++) {
        struct region region, other;
        char why[REGION_WHY];
        fresh_claim();
        open_or_die(&region, true);
        open_or_die(&other, true);
        CHECK(region_reserve(&region, REGION_GPU, 300) == REGION_OK, "before");
        CHECK(region_reserve(&other, REGION_GPU, 500) == REGION_OK, "before");
        if (which == 0)
            atomic_fetch_sub(&region.usage->sums[REGION_GPU].total, 100);
        else if (which == 1)
            atomic_fetch_add(&region.usage->sums[REGION_GPU].total, 100);
        else
            atomic_fetch_sub(&region.usage->slots[other.slot].held[REGION_GPU].committed, 100);
        region_reap(&region);
        CHECK(region_reserve(&region, REGION_GPU, 1) == REGION_BROKEN, "%d: granted", which);
        CHECK(region_reserve(&other, REGION_GPU, 1000) == REGION_BROKEN, "%d: granted to the other", which);
        region_close(&other);
        CHECK(region_open(&other, directory, FIXTURE_ID, why), "%s", why);
        CHECK(!region_join(&other, why) && strstr(why, "sums"), "%d: joined: %s", which, why);
        region_close(&region);
    }
}

/* The total says less than what we know that we hold. */
static void test_total_too_small(void) {
    struct region region;
    fresh_claim();
    open_or_die(&region, true);
    CHECK(region_reserve(&region, REGION_GPU, 900) == REGION_OK, "before");
    atomic_fetch_sub(&region.usage->sums[REGION_GPU].total, 899);
    CHECK(region_reserve(&region, REGION_GPU, 101) == REGION_BROKEN, "granted");
    region_close(&region);
}

/* --- many processes ----------------------------------------------------------------------------------------------- */

static void test_slots_run_out(void) {
    static struct region regions[REGION_SLOT_COUNT];
    struct region one_more;
    char why[REGION_WHY] = "";
    fresh_claim();
    for (unsigned i = 0; i < REGION_SLOT_COUNT; i++)
        open_or_die(&regions[i], true);
    CHECK(region_open(&one_more, directory, FIXTURE_ID, why), "%s", why);
    CHECK(!region_join(&one_more, why) && strstr(why, "4096 processes"), "%s", why);
    int free_slot = regions[77].slot;
    region_close(&regions[77]);
    CHECK(region_join(&one_more, why) && one_more.slot == free_slot, "slot %d", one_more.slot);
    region_close(&one_more);
    for (unsigned i = 0; i < REGION_SLOT_COUNT; i++)
        if (i != 77)
            region_close(&regions[i]);
}

/* A lock outlives the descriptor: programs close descriptors that they do not know. */
static void test_slot_survives_closed_descriptors(void) {
    struct region region;
    fresh_claim();
    open_or_die(&region, true);
    int ready[2];
    CHECK(pipe(ready) == 0, "pipe");
    pid_t pid = fork();
    if (pid == 0) {
        die_with_parent();
        struct region own;
        open_or_die(&own, true);
        bool held = region_reserve(&own, REGION_GPU, 9) == REGION_OK;
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

/* --- deaths ------------------------------------------------------------------------------------------------------- */

#define DESCRIPTORS 900

static short lock_at(int fd, int command, short type, off_t byte) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(fd, command, &lock) == 0 ? lock.l_type : F_WRLCK;
}

/* What a driver holds, as far as the kernel knows: a description that it finalises when the process ends. */
static void open_driver(const char *path, int number) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || (number >= 0 && (dup2(fd, number) != number || close(fd) != 0)))
        _exit(10);
    if (lock_at(number >= 0 ? number : fd, F_OFD_SETLK, F_WRLCK, 0) != F_WRLCK)
        _exit(11);
}

/* A process of a claim, with a slot and a share, whose driver has a higher descriptor than the region or a lower one:
 * the program had that open when the region was joined, and many others with it. */
static void live(const char *driver, bool is_lower, int ready) {
    const uint64_t tag = 1;
    int lowest = -1;
    struct region region;
    die_with_parent();
    for (int i = 0; i < DESCRIPTORS; i++) {
        int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        lowest = lowest < 0 ? fd : lowest;
    }
    open_or_die(&region, true);
    int share = region_share_new(&region, tag);
    open_driver(driver, is_lower ? lowest : -1);
    if (share < 0 || write(ready, &share, sizeof share) != sizeof share)
        _exit(12);
    pause();
}

/* The moment at which another process would be given what this one held. */
static void see_death(const char *driver, bool is_lower) {
    struct region region;
    int ready[2], share = -1;
    fresh_claim();
    open_or_die(&region, false);
    CHECK(pipe(ready) == 0, "pipe");
    pid_t pid = fork();
    if (pid == 0)
        live(driver, is_lower, ready[1]);
    close(ready[1]);
    CHECK(read(ready[0], &share, sizeof share) == sizeof share && share > 0, "it joined");
    close(ready[0]);
    int usage = open(region.usage_path, O_RDWR | O_CLOEXEC), locks = open(driver, O_RDWR | O_CLOEXEC);
    off_t slots[] = {REGION_SLOTS_OFFSET, REGION_SLOTS_OFFSET + (off_t)share * REGION_SLOT_SIZE};
    CHECK(lock_at(usage, F_OFD_GETLK, F_WRLCK, slots[0]) != F_UNLCK, "it holds its slot");
    CHECK(lock_at(usage, F_OFD_GETLK, F_WRLCK, slots[1]) != F_UNLCK, "it holds its share");
    kill(pid, SIGKILL);
    while (lock_at(usage, F_OFD_GETLK, F_WRLCK, slots[0]) != F_UNLCK &&
           lock_at(usage, F_OFD_GETLK, F_WRLCK, slots[1]) != F_UNLCK)
        ;
    CHECK(lock_at(locks, F_OFD_GETLK, F_WRLCK, 0) == F_UNLCK, "the driver's %s descriptor outlives the region's",
          is_lower ? "lower" : "higher");
    close(usage);
    close(locks);
    kill_and_wait(pid);
    region_close(&region);
}

static void test_deaths(void) {
    char driver[300];
    snprintf(driver, sizeof driver, "%s/driver", directory);
    for (int i = 0; i < 20; i++)
        see_death(driver, i % 2 == 0);
}

/* Nothing that a process was doing holds up another, and afterwards its operation happened either whole or not at all. */
static void test_owner_at_every_step(const char *step, int signal, int64_t changes) {
    struct region region;
    fresh_claim();
    open_or_die(&region, true);
    CHECK(region_reserve(&region, REGION_GPU, 7) == REGION_OK, "ours");
    pid_t pid = start((struct role){.holds = 30, .step = step, .signal = signal, .changes = changes, .slot = -1});
    int got = wait_for(pid);
    CHECK(got == signal, "%s was not reached: %d", step, got);

    double began = seconds();
    CHECK(region_reserve(&region, REGION_GPU, 1) == REGION_OK, "%s: another process", step);
    region_release(&region, REGION_GPU, 1);
    uint64_t used = region_used_bytes(&region, REGION_GPU) >> REGION_PAGE_SHIFT;
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
    CHECK(region_reserve(&region, REGION_GPU, LIMIT_PAGES - 7) == REGION_OK, "%s: all of the rest", step);
    region_release(&region, REGION_GPU, LIMIT_PAGES - 7);
    CHECK_SUM(&region, 7u);
    region_close(&region);
}

/* A process dies at one step of its operation; a reaper of what it held is stopped or dies at one step of reaping;
 * another process reaps all the same, a third takes the slot, and only then the reaper goes on. */
static void test_reaper_at_every_step(const char *died_at, const char *step, int signal, const char *heir_at) {
    struct region region;
    fresh_claim();
    join_at(&region, 9);
    CHECK(region_reserve(&region, REGION_GPU, 7) == REGION_OK, "ours");
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
    CHECK(region_reserve(&region, REGION_GPU, 1) == REGION_OK, "goes on");
    CHECK_SUM(&region, 28u);
    kill_and_wait(heir);
    region_reap(&region);
    CHECK_SUM(&region, 8u);
    region_close(&region);
}

/* A reaper has seen what a process holds; then that process takes more and dies before it has committed it. */
static void test_owner_dies_under_the_reaper(const char *step) {
    struct region region;
    fresh_claim();
    join_at(&region, 9);
    CHECK(region_reserve(&region, REGION_GPU, 7) == REGION_OK, "ours");
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
    fresh_claim();
    join_at(&region, 9);
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

/* --- at random ---------------------------------------------------------------------------------------------------- */

#define WORKERS 16

static void work(unsigned seed) {
    struct region region;
    uint64_t held = 0;
    die_with_parent();
    srandom(seed);
    open_or_die(&region, true);
    for (;;) {
        uint64_t pages = 1 + (uint64_t)random() % 200;
        if (random() % 2 && held >= pages) {
            region_release(&region, REGION_GPU, pages);
            held -= pages;
        } else if (region_reserve(&region, REGION_GPU, pages) == REGION_OK) {
            held += pages;
        }
        if (random() % 20000 == 0)
            _exit(0);
    }
}

/* Random operations of many processes, which are killed and stopped at random. Now and then all are stopped, and then
 * the sum must be exact. */
static void test_random_campaign(unsigned seed, double duration) {
    struct region region;
    pid_t workers[WORKERS] = {0};
    unsigned long rounds = 0, killed = 0, ended = 0;
    fresh_claim();
    open_or_die(&region, true);
    srandom(seed);
    /* For a time, and until enough has happened, however slow the machine is. */
    for (double end = seconds() + duration; seconds() < end || rounds <= 10 || killed <= 5 || ended == 0; rounds++) {
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
        struct sum sum = sum_of(region.usage, REGION_GPU);
        CHECK(sum.total <= LIMIT_PAGES, "seed %u: %llu pages", seed, (unsigned long long)sum.total);
        CHECK(sum.committed == sum.total, "seed %u: slots hold %llu, total says %llu", seed,
              (unsigned long long)sum.committed, (unsigned long long)sum.total);
        /* While the others are stopped wherever they are, we are served. */
        double began = seconds();
        region_reap(&region);
        if (region_reserve(&region, REGION_GPU, 1) == REGION_OK)
            region_release(&region, REGION_GPU, 1);
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
    test_uncounted();
    test_ledgers_are_apart();
    test_death_shows_at_once();
    test_limit_changes_while_mapped();
    test_sequence_numbers_wrap();
    test_damage_is_noticed();
    test_noise(seed);
    test_noise_in_one_word();
    test_total_too_small();
    test_slots_run_out();
    test_slot_survives_closed_descriptors();
    test_deaths();
    test_every_step();
    test_random_campaign(seed, duration);
    return checks_report();
}
