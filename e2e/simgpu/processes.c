#include "processes.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static uint64_t namespace_of(const char *pid) {
    char path[64];
    struct stat info;

    snprintf(path, sizeof(path), "/proc/%.16s/ns/pid", pid);
    return stat(path, &info) == 0 ? (uint64_t)info.st_ino : 0;
}

uint64_t processes_namespace(void) {
    return namespace_of("self");
}

uint64_t processes_namespace_start(void) {
    char line[512];
    unsigned long long start = 0;
    FILE *file = fopen("/proc/1/stat", "re");

    if (file == NULL)
        return 0;
    /* Field 22, counted from behind the name in brackets, which may hold anything (proc_pid_stat(5)). */
    if (fgets(line, sizeof(line), file) != NULL && strrchr(line, ')') != NULL)
        sscanf(strrchr(line, ')'), ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
               &start);
    fclose(file);
    return start;
}

/* The last number of the NSpid line of /proc/<pid>/status: the process as it knows itself. 0 if it cannot be told. */
static int innermost_pid(const char *pid) {
    char path[64], line[512];
    int found = 0;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%.16s/status", pid);
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    while (found == 0 && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, "NSpid:", 6) == 0) {
            char *last = strrchr(line, '\t');
            found = last != NULL ? atoi(last) : 0;
        }
    }
    fclose(file);
    return found;
}

static void add(struct process_map *map, struct process_entry entry) {
    /* Doubles whenever the count is a power of two. */
    if ((map->count & (map->count - 1)) == 0) {
        struct process_entry *more = realloc(map->entries, (map->count ? 2 * map->count : 1) * sizeof(entry));

        if (more == NULL)
            return;
        map->entries = more;
    }
    map->entries[map->count++] = entry;
}

static void read_processes(struct process_map *map) {
    uint64_t own = processes_namespace();
    DIR *directory = opendir("/proc");
    struct dirent *entry;

    map->read = true;
    if (directory == NULL)
        return;
    while ((entry = readdir(directory)) != NULL) {
        uint64_t inode;
        int nspid;

        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        inode = namespace_of(entry->d_name);
        if (inode == 0 || inode == own)
            continue;
        nspid = innermost_pid(entry->d_name);
        if (nspid != 0)
            add(map, (struct process_entry){.pid_namespace = inode, .nspid = nspid, .pid = atoi(entry->d_name)});
    }
    closedir(directory);
}

int processes_find(struct process_map *map, uint64_t pid_namespace, int nspid) {
    if (pid_namespace == 0)
        return 0;
    if (pid_namespace == processes_namespace())
        return nspid;
    if (!map->read)
        read_processes(map);
    for (size_t i = 0; i < map->count; i++) {
        if (map->entries[i].pid_namespace == pid_namespace && map->entries[i].nspid == nspid)
            return map->entries[i].pid;
    }
    return 0;
}

void processes_free(struct process_map *map) {
    free(map->entries);
    *map = (struct process_map){0};
}
