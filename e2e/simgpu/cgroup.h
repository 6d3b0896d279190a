/*
 * In which of the cgroups that somebody marked a process is. The real driver asks the kernel, which it is a part of
 * (os_cgroup_for_pid and os_cgroup_parent in kernel-open/nvidia/os-interface.c of NVIDIA's open kernel modules, 615). Here a
 * small program in the kernel (BPF, CGROUP_GETSOCKOPT) stands for it: who marks a cgroup attaches one to it, which answers
 * a query of any process in the cgroup or below. So a process needs no /proc, no /sys/fs/cgroup and no view of the
 * host's hierarchy to find out, and the kernel removes the program with the cgroup. All simulated nodes of a machine share
 * the marks.
 */
#ifndef SIMGPU_CGROUP_H
#define SIMGPU_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

/* More limited cgroups than this above one another, the outermost do not count. */
enum { CGROUP_MARKS = 14, CGROUP_DEPTH = 64 };

/* What the programs answer: the marked cgroups that the caller is in, innermost first, and its own one. */
struct cgroup_marks {
    uint64_t count;
    uint64_t own;
    uint64_t ids[CGROUP_MARKS];
};

/* The ID of a directory of cgroup v2, as the kernel numbers it. 0, -EINVAL for anything else, -EOPNOTSUPP for the root. */
int cgroup_id(int fd, uint64_t *id);

/* The IDs of a cgroup and of its ancestors but the root, as far as the mount shows them. Returns how many. */
int cgroup_path_ids(int fd, uint64_t ids[CGROUP_DEPTH]);

/* Whether the cgroup is still there; fd is of any cgroup. */
bool cgroup_exists(int fd, uint64_t id);

/*
 * Whether the driver finds processes to be in this cgroup. It asks for their cgroup by the controller misc (task_cgroup), and
 * the kernel names the nearest ancestor for which that is enabled. Where the kernel does not offer misc, this behaves as if it
 * were enabled everywhere: the test machine need not have it.
 */
bool cgroup_found(int fd);

/* Marks a cgroup, which may have been before. 0, -EPERM, or -EOPNOTSUPP where the kernel has no such programs. */
int cgroup_mark(int fd, uint64_t id);

/* Asks for the calling process as it is now. 0, or -errno where no descriptor can be had for it. */
int cgroup_marked(struct cgroup_marks *marks);

#endif
