/* Which process of the caller's pid namespace is the one that another namespace knows as such and such. */
#ifndef SIMGPU_PROCESSES_H
#define SIMGPU_PROCESSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct process_map {
    bool read;
    size_t count;
    struct process_entry {
        uint64_t pid_namespace;
        int nspid, pid;
    } * entries;
};

/* Inode of the caller's own pid namespace, 0 without /proc. */
uint64_t processes_namespace(void);

/* When the first process of the caller's pid namespace was started, in clock ticks since boot; 0 without /proc. Inodes
 * of namespaces are used again, this tells one namespace from a later one with the same inode. */
uint64_t processes_namespace_start(void);

/* The caller's name for process nspid of the namespace; 0 if it has none or may not know. Reads /proc at most once. */
int processes_find(struct process_map *map, uint64_t pid_namespace, int nspid);

void processes_free(struct process_map *map);

#endif
