/*
 * The nodes of capabilities, and the kernel module's list of them: what appears on a node when an instance is made, and
 * goes with it. The list lies beside the nodes, as in a driver root: <SIMGPU_DEV>/../proc/driver/nvidia-caps.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "mig_local.h"

/* Those below stand for managing MIG, and are no instance's. */
#define FIRST_INSTANCE_CAP 3

int sim_node_make(const char *path, const struct sim_topology *topology, bool *file) {
    dev_t number = makedev(topology->device_major, topology->device_minor);
    struct stat info;
    int fd;

    if (lstat(path, &info) == 0) {
        if (S_ISCHR(info.st_mode) && info.st_rdev == number)
            return chmod(path, 0666) != 0 ? -errno : 0;
        if (unlink(path) != 0)
            return -errno;
    }
    if (mknod(path, S_IFCHR | 0666, number) == 0)
        return chmod(path, 0666) != 0 ? -errno : 0;
    if (errno != EPERM && errno != EACCES)
        return -errno;
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return -errno;
    fchmod(fd, 0666);
    close(fd);
    *file = true;
    return 0;
}

/* Calls fn for the capability of each instance that there is; "gpu0/gi1/access" and "gpu0/gi1/ci0/access". */
static void each_cap(void (*fn)(const char *name, unsigned cap, void *arg), void *arg) {
    char name[64];

    for (int section = 0; section < sim_local->topology.gpu_count; section++) {
        struct state_mig *mig = mig_state(section);
        int minor = sim_local->topology.gpus[section].minor;

        for (unsigned seat = 0; seat < SIM_MIG_SEATS; seat++) {
            if (atomic_load(&mig->gi[seat].live) == 0)
                continue;
            snprintf(name, sizeof(name), "gpu%d/gi%u/access", minor, (unsigned)atomic_load(&mig->gi[seat].id));
            fn(name, mig_gi_cap(section, seat), arg);
        }
        for (unsigned seat = 0; seat < SIM_MIG_SEATS; seat++) {
            if (atomic_load(&mig->ci[seat].live) == 0)
                continue;
            snprintf(name, sizeof(name), "gpu%d/gi%u/ci%u/access", minor,
                     (unsigned)atomic_load(&mig->gi[atomic_load(&mig->ci[seat].gi)].id),
                     (unsigned)atomic_load(&mig->ci[seat].id));
            fn(name, mig_ci_cap(section, seat), arg);
        }
    }
}

static void make_cap(const char *name, unsigned cap, void *arg) {
    char path[sizeof(sim_local->dev) + 64];
    bool file = false;

    (void)name, (void)arg;
    snprintf(path, sizeof(path), "%s/nvidia-caps/nvidia-cap%u", sim_local->dev, cap);
    if (access(path, F_OK) != 0)
        sim_node_make(path, &sim_local->topology, &file);
}

struct wanted {
    unsigned cap;
    bool found;
};

static void look_for(const char *name, unsigned cap, void *arg) {
    struct wanted *wanted = arg;

    (void)name;
    wanted->found |= cap == wanted->cap;
}

/* Whether the node is one of ours: a machine that also has real GPUs must not lose a node of theirs. */
static bool is_simulated(int directory, const char *name) {
    const struct sim_topology *t = &sim_local->topology;
    struct stat info;

    if (fstatat(directory, name, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return false;
    return S_ISREG(info.st_mode) ||
           (S_ISCHR(info.st_mode) && info.st_rdev == makedev(t->device_major, t->device_minor));
}

/* Removes the nodes of instances that are gone. */
static void remove_caps(const char *path) {
    DIR *directory = opendir(path);
    struct dirent *entry;

    if (directory == NULL)
        return;
    while ((entry = readdir(directory)) != NULL) {
        struct wanted wanted = {0};
        char after;

        if (sscanf(entry->d_name, "nvidia-cap%u%c", &wanted.cap, &after) != 1 || wanted.cap < FIRST_INSTANCE_CAP)
            continue;
        each_cap(look_for, &wanted);
        if (!wanted.found && is_simulated(dirfd(directory), entry->d_name))
            unlinkat(dirfd(directory), entry->d_name, 0);
    }
    closedir(directory);
}

static void write_cap(const char *name, unsigned cap, void *file) {
    fprintf(file, "%s %u\n", name, cap);
}

/* By a new file and a rename, so that no reader finds half a list. */
static void write_minors(void) {
    char path[sizeof(sim_local->dev) + 64], temporary[sizeof(path) + 16];
    FILE *file;
    bool good;

    snprintf(path, sizeof(path), "%s/../proc/driver/nvidia-caps/mig-minors", sim_local->dev);
    snprintf(temporary, sizeof(temporary), "%s.%d", path, getpid());
    file = fopen(temporary, "we");
    if (file == NULL)
        return;
    fprintf(file, "config 1\nmonitor 2\n");
    each_cap(write_cap, file);
    good = ferror(file) == 0;
    if (fclose(file) != 0 || !good || rename(temporary, path) != 0)
        unlink(temporary);
}

void mig_nodes(void) {
    char path[sizeof(sim_local->dev) + 32];

    snprintf(path, sizeof(path), "%s/nvidia-caps", sim_local->dev);
    mkdir(path, 0755);
    each_cap(make_cap, NULL);
    remove_caps(path);
    write_minors();
}

void sim_mig_nodes(void) {
    if (sim_local == NULL || sim_local->state == NULL)
        return;
    mig_lock();
    mig_nodes();
    mig_unlock();
}
