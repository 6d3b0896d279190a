#include "holders.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>

enum { PATH_SIZE = 300, LINE_SIZE = 200 };

/* A line of a lock: its number and nature, then the file as device and inode, and the first and last byte. */
static bool read_lock(const char *line, uint64_t inode, int64_t *first, int64_t *last) {
    uint64_t of;
    char end[32];
    int fields = sscanf(line, "lock: %*s %*s %*s %*s %*s %*[^:]:%*[^:]:%" SCNu64 " %" SCNd64 " %31s", &of, first, end);
    if (fields != 3 || of != inode)
        return false;
    *last = strcmp(end, "EOF") == 0 ? INT64_MAX : strtoll(end, NULL, 10);
    return true;
}

typedef void (*each_lock)(int64_t first, int64_t last, void *argument);

static void each_lock_of_descriptor(const char *path, uint64_t inode, each_lock each, void *argument) {
    char line[LINE_SIZE];
    int64_t first, last;
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (read_lock(line, inode, &first, &last))
            each(first, last, argument);
    if (file != NULL)
        fclose(file);
}

static uint64_t inode_of(const char *path) {
    struct stat file;
    return stat(path, &file) == 0 ? file.st_ino : 0;
}

void holders_each_lock(const char *path, pid_t pid, each_lock each, void *argument) {
    char name[PATH_SIZE];
    uint64_t inode = inode_of(path);
    snprintf(name, sizeof name, "/proc/%d/fdinfo", pid);
    DIR *directory = inode != 0 ? opendir(name) : NULL;
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        snprintf(name, sizeof name, "/proc/%d/fdinfo/%.200s", pid, entry->d_name);
        if (entry->d_name[0] != '.')
            each_lock_of_descriptor(name, inode, each, argument);
    }
    if (directory != NULL)
        closedir(directory);
}

struct wanted {
    int64_t byte;
    bool locked;
};

static void look_for_byte(int64_t first, int64_t last, void *argument) {
    struct wanted *wanted = argument;
    wanted->locked |= first <= wanted->byte && wanted->byte <= last;
}

static bool has_lock(const char *path, uint64_t inode, int64_t byte) {
    struct wanted wanted = {.byte = byte};
    each_lock_of_descriptor(path, inode, look_for_byte, &wanted);
    return wanted.locked;
}

static void tell_process(const char *pid, uint64_t inode, int64_t byte, void (*tell)(const char *, ...)) {
    char path[PATH_SIZE + 300];
    snprintf(path, sizeof path, "/proc/%.20s/fdinfo", pid);
    DIR *directory = opendir(path);
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%.20s/fdinfo/%s", pid, entry->d_name);
        if (entry->d_name[0] != '.' && has_lock(path, inode, byte))
            tell("  held by process %s, descriptor %s", pid, entry->d_name);
    }
    if (directory != NULL)
        closedir(directory);
}

void holders_tell(const char *path, int64_t byte, void (*tell)(const char *format, ...)) {
    uint64_t inode = inode_of(path);
    DIR *processes = inode != 0 ? opendir("/proc") : NULL;
    if (processes == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(processes)) != NULL;)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9')
            tell_process(entry->d_name, inode, byte, tell);
    closedir(processes);
}
