/*
 * A driver root: what a node with these GPUs would have under /, as far as containers need it. Running it again gives
 * the same tree; the state is kept if it is one of the same GPUs.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "json.h"
#include "mig/mig.h"
#include "state.h"
#include "state_local.h"
#include "tool.h"
#include "topology.h"

#define LIBRARIES "usr/lib/x86_64-linux-gnu"

static char root[PATH_MAX];

/* root/<formatted>, in one of a few buffers that are used in turn. */
__attribute__((format(printf, 1, 2))) static const char *under_root(const char *format, ...) {
    static char buffers[4][PATH_MAX * 2];
    static unsigned next;
    char *buffer = buffers[next++ % 4];
    int length = snprintf(buffer, sizeof(buffers[0]), "%s/", root);
    va_list args;

    va_start(args, format);
    vsnprintf(buffer + length, sizeof(buffers[0]) - (size_t)length, format, args);
    va_end(args);
    return buffer;
}

static int make_directories(const char *path) {
    char copy[PATH_MAX];

    snprintf(copy, sizeof(copy), "%s", path);
    for (char *slash = strchr(copy + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash != NULL)
            *slash = '\0';
        if (mkdir(copy, 0755) != 0 && errno != EEXIST)
            return complain("make the directory %s: %s", copy, strerror(errno));
        if (slash == NULL)
            return 0;
        *slash = '/';
    }
}

static int copy_bytes(int in, int out) {
    char buffer[65536];
    ssize_t got;

    while ((got = read(in, buffer, sizeof(buffer))) > 0) {
        if (write(out, buffer, (size_t)got) != got)
            return -1;
    }
    return (int)got;
}

/* By a new file and a rename: a library that runs must not change under its processes. */
static int copy_file(const char *from, const char *to, mode_t mode) {
    char temporary[PATH_MAX * 2 + 32];
    int in = open(from, O_RDONLY | O_CLOEXEC), out, ret = 0;

    if (in < 0)
        return complain("copy %s to %s: %s", from, to, strerror(errno));
    snprintf(temporary, sizeof(temporary), "%s.%d", to, getpid());
    out = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (out < 0 || copy_bytes(in, out) != 0 || fchmod(out, mode) != 0 || rename(temporary, to) != 0) {
        ret = complain("copy %s to %s: %s", from, to, strerror(errno));
        unlink(temporary);
    }
    if (out >= 0)
        close(out);
    close(in);
    return ret;
}

static int make_link(const char *target, const char *path) {
    if (unlink(path) != 0 && errno != ENOENT)
        return complain("replace %s: %s", path, strerror(errno));
    return symlink(target, path) != 0 ? complain("link %s to %s: %s", path, target, strerror(errno)) : 0;
}

static int make_library(const char *name, const char *version) {
    char from[PATH_MAX * 2], versioned[128];

    snprintf(from, sizeof(from), "%s/../lib/%s.so.1", tool_directory(), name);
    if (access(from, R_OK) != 0)
        return complain("%s is not built yet, and not in the driver root", from), 0;
    snprintf(versioned, sizeof(versioned), "%s.so.%s", name, version);
    if (copy_file(from, under_root(LIBRARIES "/%s", versioned), 0755) != 0)
        return 1;
    if (make_link(versioned, under_root(LIBRARIES "/%s.so.1", name)) != 0)
        return 1;
    snprintf(versioned, sizeof(versioned), "%s.so.1", name);
    return make_link(versioned, under_root(LIBRARIES "/%s.so", name));
}

/* A device node; where nodes cannot be made, an ordinary file, which opens just as well outside a container. */
static int make_node(const struct sim_topology *t, const char *name, bool *files) {
    const char *path = under_root("dev/%s", name);
    int ret = sim_node_make(path, t, files);

    return ret != 0 ? complain("make the device node %s: %s", path, strerror(-ret)) : 0;
}

static int make_nodes(const struct sim_topology *t) {
    bool files = false;
    int ret = make_node(t, "nvidiactl", &files) || make_node(t, "nvidia-uvm", &files);

    for (int i = 0; ret == 0 && i < t->gpu_count; i++) {
        char name[32];

        snprintf(name, sizeof(name), "nvidia%d", t->gpus[i].minor);
        ret = make_node(t, name, &files);
    }
    if (files)
        complain("device nodes need root: %s holds ordinary files instead, good for processes outside containers",
                 under_root("dev"));
    return ret;
}

static FILE *make_file(const char *path) {
    char directory[PATH_MAX * 2];
    FILE *file;

    snprintf(directory, sizeof(directory), "%s", path);
    *strrchr(directory, '/') = '\0';
    if (make_directories(directory) != 0)
        return NULL;
    file = fopen(path, "we");
    if (file == NULL)
        complain("write %s: %s", path, strerror(errno));
    return file;
}

/* What the kernel module says of a whole GPU. */
static int make_proc_gpu(const struct sim_gpu *gpu) {
    char path[PATH_MAX * 2];
    FILE *file;

    snprintf(path, sizeof(path), "%s", under_root("proc/driver/nvidia/gpus/%s/information", gpu->pci_bus_id));
    file = make_file(path);
    if (file == NULL)
        return 1;
    fprintf(file, "Model: \t\t %s (simulated)\nGPU UUID: \t %s\nBus Location: \t %s\nDevice Minor: \t %d\n", gpu->name,
            gpu->uuid, gpu->pci_bus_id, gpu->minor);
    return fclose(file) != 0;
}

/*
 * Which node stands for which capability, and these nodes. The kernel module lists all that could be, here are those
 * that are; who makes an instance keeps the list.
 */
static int make_mig_nodes(void) {
    char dev[PATH_MAX * 2];

    if (make_directories(under_root("proc/driver/nvidia-caps")) != 0)
        return 1;
    snprintf(dev, sizeof(dev), "%s", under_root("dev"));
    setenv("SIMGPU_DEV", dev, 1);
    if (open_state() != 0)
        return 1;
    sim_mig_nodes();
    sim_close();
    return 0;
}

/* The kernel module's part of /proc, below which a test can mount it over /proc/driver. */
static int make_proc(const struct sim_topology *t) {
    char path[PATH_MAX * 2];
    FILE *file;
    int ret = 0;

    snprintf(path, sizeof(path), "%s", under_root("proc/driver/nvidia/version"));
    file = make_file(path);
    if (file == NULL)
        return 1;
    fprintf(file, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  %s  (simulated)\n", t->driver_version);
    ret = fclose(file) != 0;
    for (int i = 0; ret == 0 && i < t->gpu_count; i++)
        ret = make_proc_gpu(&t->gpus[i]);
    return ret;
}

static int make_state(const char *topology) {
    struct stat info;
    char resolved_from[PATH_MAX], resolved_to[PATH_MAX];
    const char *copy = under_root("run/simgpu/topology");

    /* The topology in the root may be the very one that we were given. */
    if (realpath(topology, resolved_from) == NULL || realpath(copy, resolved_to) == NULL ||
        strcmp(resolved_from, resolved_to) != 0) {
        if (copy_file(topology, copy, 0644) != 0)
            return 1;
    }
    setenv("SIMGPU_TOPOLOGY", copy, 1);
    setenv("SIMGPU_STATE", under_root("run/simgpu/state"), 1);
    if (stat(under_root("run/simgpu/state"), &info) == 0 && sim_open_all() == 0) {
        sim_close();
        return 0;
    }
    return sim_state_create() != 0 ? complain("%s", sim_error()) : 0;
}

static void mount_json(struct json *json, const char *host, const char *container, const char *access) {
    json_open(json, NULL, '{');
    json_string(json, "hostPath", host);
    json_string(json, "containerPath", container);
    json_open(json, "options", '[');
    json_string(json, NULL, access);
    json_string(json, NULL, "nosuid");
    json_string(json, NULL, "nodev");
    json_string(json, NULL, "bind");
    json_close(json, ']');
    json_close(json, '}');
}

static void node_json(struct json *json, const char *name) {
    char path[96];

    snprintf(path, sizeof(path), "/dev/%s", name);
    json_open(json, NULL, '{');
    json_string(json, "path", path);
    json_string(json, "hostPath", under_root("dev/%s", name));
    json_string(json, "permissions", "rw");
    json_close(json, '}');
}

/* A MIG instance is its GPU's node and those of its two capabilities. */
static void gpu_nodes_json(struct json *json, const struct sim_gpu *gpu) {
    char node[64];

    snprintf(node, sizeof(node), "nvidia%d", gpu->minor);
    node_json(json, node);
    if (!gpu->is_mig)
        return;
    snprintf(node, sizeof(node), "nvidia-caps/nvidia-cap%u", gpu->gi_cap);
    node_json(json, node);
    snprintf(node, sizeof(node), "nvidia-caps/nvidia-cap%u", gpu->ci_cap);
    node_json(json, node);
}

/* One device of the specification: the nodes of GPUs first to last. */
static void device_json(struct json *json, const struct sim_topology *t, const char *name, int first, int last) {
    json_open(json, NULL, '{');
    json_string(json, "name", name);
    json_open(json, "containerEdits", '{');
    json_open(json, "deviceNodes", '[');
    for (int i = first; i <= last; i++)
        gpu_nodes_json(json, &t->gpus[i]);
    json_close(json, ']');
    json_close(json, '}');
    json_close(json, '}');
}

/* The place of an instance among those of its GPU. */
static int mig_index(const struct sim_topology *t, int instance) {
    int before = 0;

    for (int i = 0; i < instance; i++)
        before += t->gpus[i].is_mig && t->gpus[i].mig_of == t->gpus[instance].mig_of;
    return before;
}

static void devices_json(struct json *json, const struct sim_topology *t) {
    json_open(json, "devices", '[');
    for (int i = 0; i < t->section_count; i++) {
        char index[16];

        /* A GPU in MIG mode is no device, its instances are. */
        if (t->gpus[i].mig_at_start)
            continue;
        if (t->gpus[i].is_mig)
            snprintf(index, sizeof(index), "%d:%d", t->gpus[i].mig_of, mig_index(t, i));
        else
            snprintf(index, sizeof(index), "%d", i);
        device_json(json, t, index, i, i);
        device_json(json, t, t->gpus[i].uuid, i, i);
    }
    if (t->section_count > 0)
        device_json(json, t, "all", 0, t->section_count - 1);
    json_close(json, ']');
}

static void common_json(struct json *json, const struct sim_topology *t) {
    static const char *const libraries[] = {"libcuda", "libnvidia-ml"};

    json_open(json, "containerEdits", '{');
    json_open(json, "deviceNodes", '[');
    node_json(json, "nvidiactl");
    node_json(json, "nvidia-uvm");
    json_close(json, ']');
    json_open(json, "mounts", '[');
    for (int i = 0; i < 2; i++) {
        char container[128];

        snprintf(container, sizeof(container), "/" LIBRARIES "/%s.so.1", libraries[i]);
        mount_json(json, under_root(LIBRARIES "/%s.so.%s", libraries[i], t->driver_version), container, "ro");
    }
    mount_json(json, under_root("usr/bin/nvidia-smi"), "/usr/bin/nvidia-smi", "ro");
    mount_json(json, under_root("run/simgpu"), "/run/simgpu", "rw");
    json_close(json, ']');
    json_close(json, '}');
}

static int make_cdi(const struct sim_topology *t) {
    char path[PATH_MAX * 2], temporary[PATH_MAX * 2 + 32];
    struct json json = {0};
    int bad;

    /* A copy: what is written in between uses up the buffers of under_root. */
    snprintf(path, sizeof(path), "%s", under_root("etc/cdi/simulated-gpu.json"));
    snprintf(temporary, sizeof(temporary), "%s.%d", path, getpid());
    json.out = fopen(temporary, "we");
    if (json.out == NULL)
        return complain("write %s: %s", temporary, strerror(errno));
    json_open(&json, NULL, '{');
    json_string(&json, "cdiVersion", "0.5.0");
    json_string(&json, "kind", "nvidia.com/gpu");
    devices_json(&json, t);
    common_json(&json, t);
    json_close(&json, '}');
    fputc('\n', json.out);
    bad = ferror(json.out);
    if (fclose(json.out) != 0 || bad || rename(temporary, path) != 0) {
        unlink(temporary);
        return complain("write %s: %s", path, strerror(errno));
    }
    return 0;
}

static int make_program(const char *name) {
    char from[PATH_MAX * 2];

    snprintf(from, sizeof(from), "%s/%s", tool_directory(), name);
    if (access(from, X_OK) != 0)
        return complain("%s is not built yet, and not in the driver root", from), 0;
    return copy_file(from, under_root("usr/bin/%s", name), 0755);
}

static int make_programs(void) {
    return make_program("nvidia-smi") || make_program("nvidia-cuda-mps-control") ||
           make_program("nvidia-cuda-mps-server");
}

int command_root(int argc, char **argv) {
    static const char *const directories[] = {LIBRARIES, "usr/bin", "dev", "run/simgpu", "etc/cdi"};
    const char *topology = getenv("SIMGPU_TOPOLOGY");
    struct sim_topology t;
    char error[512];

    if (argc != 1)
        return complain("root: the directory must follow");
    if (topology == NULL || *topology == '\0')
        topology = "/run/simgpu/topology";
    if (topology_read(topology, &t, error, sizeof(error)) != 0)
        return complain("%s: name a topology in SIMGPU_TOPOLOGY", error);
    if (make_directories(argv[0]) != 0)
        return 1;
    if (realpath(argv[0], root) == NULL)
        return complain("%s: %s", argv[0], strerror(errno));
    for (size_t i = 0; i < sizeof(directories) / sizeof(directories[0]); i++) {
        if (make_directories(under_root("%s", directories[i])) != 0)
            return 1;
    }
    /* Containers write there under any user ID when the state has to be made anew. */
    chmod(under_root("run/simgpu"), 01777);
    return make_library("libcuda", t.driver_version) || make_library("libnvidia-ml", t.driver_version) ||
           make_nodes(&t) || make_proc(&t) || make_programs() || make_state(topology) || make_mig_nodes() ||
           make_cdi(&t);
}
