#include "fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];
static pid_t maker;

static void must(bool done, const char *what, const char *path) {
    if (done)
        return;
    fprintf(stderr, "fixture: cannot %s %s: %s\n", what, path, strerror(errno));
    abort();
}

static void remove_root(void) {
    char command[128];
    if (getpid() != maker)
        return;
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    if (system(command) != 0)
        fprintf(stderr, "fixture: %s failed\n", command);
}

const char *fixture_directory(void) {
    if (maker != getpid()) {
        snprintf(root, sizeof root, "/tmp/tranche-test-XXXXXX");
        must(mkdtemp(root) != NULL, "make", root);
        maker = getpid();
        atexit(remove_root);
    }
    return root;
}

static void path_of(char *path, size_t size, const char *directory, const char *id, const char *file) {
    snprintf(path, size, "%s/%s/%s", directory, id, file);
}

static void write_file(const char *path, const void *bytes, size_t start, size_t size) {
    unlink(path);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    must(fd >= 0, "create", path);
    must(write(fd, bytes, start) == (ssize_t)start && ftruncate(fd, (off_t)size) == 0, "write", path);
    close(fd);
}

void fixture_claim(const char *directory, const char *id, const char *gpu_uuid, uint64_t limit_bytes,
                   uint64_t context_bytes) {
    char path[256];
    path_of(path, sizeof path, directory, id, "");
    must(mkdir(path, 0755) == 0 || errno == EEXIST, "make", path);

    struct region_limit limit = {.magic = REGION_LIMIT_MAGIC,
                                 .version = REGION_VERSION,
                                 .size = REGION_LIMIT_SIZE,
                                 .limit_bytes = limit_bytes,
                                 .context_bytes = context_bytes};
    memcpy(limit.claim_id, id, sizeof limit.claim_id);
    snprintf(limit.gpu_uuid, sizeof limit.gpu_uuid, "%s", gpu_uuid);
    path_of(path, sizeof path, directory, id, REGION_LIMIT_FILE);
    write_file(path, &limit, sizeof limit, sizeof limit);

    static struct region_usage usage = {.magic = REGION_USAGE_MAGIC,
                                        .version = REGION_VERSION,
                                        .size = REGION_USAGE_SIZE,
                                        .slot_count = REGION_SLOT_COUNT,
                                        .page_shift = REGION_PAGE_SHIFT};
    memcpy(usage.claim_id, id, sizeof usage.claim_id);
    path_of(path, sizeof path, directory, id, REGION_USAGE_FILE);
    write_file(path, &usage, REGION_SLOTS_OFFSET, sizeof usage);
}

void fixture_write(const char *directory, const char *id, const char *file, long offset, const void *bytes,
                   unsigned long size) {
    char path[256];
    path_of(path, sizeof path, directory, id, file);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    must(fd >= 0, "open", path);
    must(pwrite(fd, bytes, size, offset) == (ssize_t)size, "write", path);
    close(fd);
}

void fixture_uncounted(const char *directory, const char *id, uint64_t uncounted_bytes) {
    fixture_write(directory, id, REGION_LIMIT_FILE, offsetof(struct region_limit, uncounted_bytes), &uncounted_bytes,
                  sizeof uncounted_bytes);
}

void fixture_limit(const char *directory, const char *id, uint64_t limit_bytes) {
    fixture_write(directory, id, REGION_LIMIT_FILE, offsetof(struct region_limit, limit_bytes), &limit_bytes,
                  sizeof limit_bytes);
}

void fixture_spill(const char *directory, const char *id, uint64_t spill_bytes) {
    fixture_write(directory, id, REGION_LIMIT_FILE, offsetof(struct region_limit, spill_bytes), &spill_bytes,
                  sizeof spill_bytes);
}

void fixture_truncate(const char *directory, const char *id, const char *file, long size) {
    char path[256];
    path_of(path, sizeof path, directory, id, file);
    must(truncate(path, size) == 0, "truncate", path);
}
