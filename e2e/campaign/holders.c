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
static bool is_locked_by(const char *line, uint64_t inode, int64_t byte) {
    uint64_t of;
    int64_t first;
    char last[32];
    int fields =
        sscanf(line, "lock: %*s %*s %*s %*s %*s %*[^:]:%*[^:]:%" SCNu64 " %" SCNd64 " %31s", &of, &first, last);
    if (fields != 3 || of != inode || byte < first)
        return false;
    return strcmp(last, "EOF") == 0 || byte <= strtoll(last, NULL, 10);
}

static bool has_lock(const char *path, uint64_t inode, int64_t byte) {
    char line[LINE_SIZE];
    bool found = false;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    while (!found && fgets(line, sizeof line, file) != NULL)
        found = is_locked_by(line, inode, byte);
    fclose(file);
    return found;
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
    struct stat file;
    DIR *processes = stat(path, &file) == 0 ? opendir("/proc") : NULL;
    if (processes == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(processes)) != NULL;)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9')
            tell_process(entry->d_name, file.st_ino, byte, tell);
    closedir(processes);
}
