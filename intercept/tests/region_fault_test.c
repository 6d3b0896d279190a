/* Tests a program whose region's files are replaced or removed while it uses them, or have no room. */
#include "region_steps.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

static void join(struct region *region) {
    open_or_die(region, true);
    CHECK(region_reserve(region, REGION_GPU, 5) == REGION_OK, "before");
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
    char path[256], aside[300], why[REGION_WHY];
    join(&region);
    open_or_die(&looking, false);
    path_of(path, REGION_USAGE_FILE);
    snprintf(aside, sizeof aside, "%s.aside", path);
    CHECK(rename(path, aside) == 0, "rename");
    fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, PAGE(LIMIT_PAGES), 0);
    CHECK(!region_join(&looking, why) && strstr(why, "replaced"), "%s", why);
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

/* --- a full file system ------------------------------------------------------------------------------------------- */

/* A region's file has memory for the first slots only. Without room for more, no slot is granted, and no signal comes. */
static void test_full_file_system(void) {
    struct region region;
    int made = 0;
    if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0)
        return;
    CHECK(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
              mount("none", directory, "tmpfs", 0, "size=12k") == 0,
          "mount: errno %d", errno);
    fixture_claim(directory, FIXTURE_ID, FIXTURE_UUID, PAGE(LIMIT_PAGES), 0);
    join(&region);
    for (uint64_t name = 1; made < 100; made++, name++)
        if (region_share_new(&region, name) < 0)
            break;
    CHECK(made == 63, "%d shares", made);
    CHECK(region_reserve(&region, REGION_GPU, 1) == REGION_OK, "what has a slot works");
    region_close(&region);
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
    RUN(test_removed);
    RUN(test_replaced);
    RUN(test_changed_root);
    RUN(test_full_file_system);
    return checks_report();
}
