/* The topology file: `key = value` lines, `#` comments, one `[gpu N]` section for each GPU, in order from 0. */
#include "topology.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mig/mig.h"

#define MIB ((uint64_t)1 << 20)

/* "MPS v3 Memory Partitioning" in NVIDIA's documentation of MPS. */
#define FIRST_WITH_MEMORY_LIMITS 615

struct parser {
    const char *path;
    int line;
    struct sim_topology *topology;
    struct sim_gpu *gpu; /* the section we are in, NULL before the first */
    char *error;
    size_t error_size;
};

__attribute__((format(printf, 2, 3))) static int fail(struct parser *p, const char *format, ...) {
    va_list args;
    int length = snprintf(p->error, p->error_size, "%s:%d: ", p->path, p->line);

    if (length >= 0 && (size_t)length < p->error_size) {
        va_start(args, format);
        vsnprintf(p->error + length, p->error_size - (size_t)length, format, args);
        va_end(args);
    }
    return -EINVAL;
}

static char *trim(char *s) {
    char *end;

    while (isspace((unsigned char)*s))
        s++;
    end = s + strlen(s);
    while (end > s && isspace((unsigned char)end[-1]))
        *--end = '\0';
    return s;
}

static int number(struct parser *p, const char *key, const char *value, uint64_t min, uint64_t max, uint64_t *out) {
    char *end;

    errno = 0;
    *out = strtoull(value, &end, 10);
    if (!isdigit((unsigned char)*value) || *end != '\0' || errno != 0 || *out < min || *out > max)
        return fail(p, "%s = %s: must be a whole number from %llu to %llu", key, value, (unsigned long long)min,
                    (unsigned long long)max);
    return 0;
}

static int string(struct parser *p, const char *key, const char *value, char *out, size_t size) {
    if (*value == '\0' || strlen(value) >= size)
        return fail(p, "%s = %s: must have 1 to %zu characters", key, value, size - 1);
    memcpy(out, value, strlen(value) + 1);
    return 0;
}

static int uuid(struct parser *p, const char *value, struct sim_gpu *gpu) {
    static const char gpu_shape[] = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    char shape[sizeof(gpu_shape)];
    unsigned digits = 0;

    memcpy(shape, gpu_shape, sizeof(shape));
    if (strncmp(value, "MIG", 3) == 0)
        memcpy(shape, "MIG", 3);
    if (strlen(value) != sizeof(shape) - 1)
        return fail(p, "uuid = %s: must look like %s", value, shape);
    for (size_t i = 0; i < sizeof(shape) - 1; i++) {
        if (shape[i] == 'x' ? !isdigit((unsigned char)value[i]) && (value[i] < 'a' || value[i] > 'f')
                            : shape[i] != value[i])
            return fail(p, "uuid = %s: must look like %s, in small letters", value, shape);
        if (shape[i] == 'x') {
            unsigned digit = (unsigned)(isdigit((unsigned char)value[i]) ? value[i] - '0' : value[i] - 'a' + 10);
            gpu->uuid_bytes[digits / 2] = (uint8_t)(gpu->uuid_bytes[digits / 2] << 4 | digit);
            digits++;
        }
    }
    memcpy(gpu->uuid, value, sizeof(shape));
    return 0;
}

static int pair(struct parser *p, const char *key, const char *value, const char *format, unsigned *a, unsigned *b) {
    int end = 0;

    if (sscanf(value, format, a, b, &end) != 2 || value[end] != '\0')
        return fail(p, "%s = %s: must be two numbers", key, value);
    return 0;
}

static int pci(struct parser *p, const char *value, struct sim_gpu *gpu) {
    int end = 0;

    if (sscanf(value, "%4x:%2x:%2x.0%n", &gpu->pci_domain, &gpu->pci_bus, &gpu->pci_device, &end) != 3 || end == 0 ||
        value[end] != '\0')
        return fail(p, "pci = %s: must look like 0000:19:00.0", value);
    snprintf(gpu->pci_bus_id, sizeof(gpu->pci_bus_id), "%04x:%02x:%02x.0", gpu->pci_domain & 0xffff,
             gpu->pci_bus & 0xff, gpu->pci_device & 0xff);
    return 0;
}

/* Whose part a MIG instance is. The GPU must have been described before. */
static int mig_of(struct parser *p, const char *key, const char *value, struct sim_gpu *gpu) {
    uint64_t n = 0;
    int ret = gpu->index == 0 ? fail(p, "mig_of: [gpu 0] can be no MIG instance")
                              : number(p, key, value, 0, (uint64_t)gpu->index - 1, &n);

    if (ret != 0)
        return ret;
    if (p->topology->gpus[n].is_mig)
        return fail(p, "mig_of = %s: that is a MIG instance itself", value);
    gpu->is_mig = true;
    gpu->mig_of = (int)n;
    p->topology->gpus[n].mig_at_start = true;
    return 0;
}

static int one_of_two(struct parser *p, const char *key, const char *value, const char *no, const char *yes,
                      bool *out) {
    *out = strcmp(value, yes) == 0;
    return *out || strcmp(value, no) == 0 ? 0 : fail(p, "%s = %s: must be %s or %s", key, value, yes, no);
}

static int addressing_mode(struct parser *p, const char *key, const char *value, struct sim_gpu *gpu) {
    static const char *const modes[] = {"none", "hmm", "ats"};

    for (int i = 0; i < 3; i++) {
        if (strcmp(value, modes[i]) == 0) {
            gpu->addressing = (enum sim_addressing)i;
            return 0;
        }
    }
    return fail(p, "%s = %s: must be none, hmm or ats", key, value);
}

static int gpu_key(struct parser *p, const char *key, const char *value) {
    struct sim_gpu *gpu = p->gpu;
    uint64_t n = 0;
    unsigned major = 0, minor = 0;
    int ret;

    if (strcmp(key, "name") == 0)
        return string(p, key, value, gpu->name, sizeof(gpu->name));
    if (strcmp(key, "uuid") == 0)
        return uuid(p, value, gpu);
    if (strcmp(key, "pci") == 0)
        return pci(p, value, gpu);
    if (strcmp(key, "mig_of") == 0)
        return mig_of(p, key, value, gpu);
    if (strcmp(key, "mig") == 0)
        return one_of_two(p, key, value, "off", "on", &gpu->mig_at_start);
    if (strcmp(key, "addressing_mode") == 0)
        return addressing_mode(p, key, value, gpu);
    if (strcmp(key, "mig_instances") == 0)
        return pair(p, key, value, "%u/%u%n", &gpu->gi, &gpu->ci);
    if (strcmp(key, "mig_caps") == 0)
        return pair(p, key, value, "%u/%u%n", &gpu->gi_cap, &gpu->ci_cap);
    if (strcmp(key, "mig_slices") == 0) {
        ret = number(p, key, value, 1, 7, &n);
        gpu->mig_slices = (unsigned)n;
    } else if (strcmp(key, "minor") == 0) {
        ret = number(p, key, value, 0, 1 << 20, &n);
        gpu->minor = (int)n;
    } else if (strcmp(key, "memory_mib") == 0) {
        ret = number(p, key, value, 2, 1 << 20, &n);
        gpu->memory_bytes = n * MIB;
    } else if (strcmp(key, "reserved_mib") == 0) {
        ret = number(p, key, value, 0, 1 << 20, &n);
        gpu->reserved_bytes = n * MIB;
    } else if (strcmp(key, "context_mib") == 0) {
        ret = number(p, key, value, 0, 1 << 20, &n);
        gpu->context_bytes = n * MIB;
    } else if (strcmp(key, "sm_count") == 0) {
        ret = number(p, key, value, 1, 100000, &n);
        gpu->sm_count = (int)n;
    } else if (strcmp(key, "compute_capability") == 0) {
        ret = pair(p, key, value, "%u.%u%n", &major, &minor);
        gpu->cc_major = (int)major;
        gpu->cc_minor = (int)minor;
    } else {
        ret = fail(p, "unknown key %s in a [gpu N] section", key);
    }
    return ret;
}

static int mebibytes(struct parser *p, const char *key, const char *value, uint64_t *out) {
    uint64_t n = 0;
    int ret = number(p, key, value, 0, 1 << 20, &n);

    *out = n * MIB;
    return ret;
}

static int global_key(struct parser *p, const char *key, const char *value) {
    struct sim_topology *t = p->topology;
    uint64_t n = 0;
    int ret;

    if (strcmp(key, "driver_version") == 0)
        return string(p, key, value, t->driver_version, sizeof(t->driver_version));
    if (strcmp(key, "device_number") == 0)
        return pair(p, key, value, "%u:%u%n", &t->device_major, &t->device_minor);
    if (strcmp(key, "own_launch_mib") == 0)
        return mebibytes(p, key, value, &t->own_launch_bytes);
    if (strcmp(key, "own_code_mib") == 0)
        return mebibytes(p, key, value, &t->own_code_bytes);
    if (strcmp(key, "own_graph_mib") == 0)
        return mebibytes(p, key, value, &t->own_graph_bytes);
    if (strcmp(key, "private_context") == 0)
        return one_of_two(p, key, value, "handle", "active", &t->private_context_active);
    if (strcmp(key, "memory_limits") == 0)
        return one_of_two(p, key, value, "off", "misc", &t->memory_limits);
    if (strcmp(key, "cuda_version") == 0) {
        ret = number(p, key, value, 11000, 99990, &n);
        t->cuda_version = (int)n;
    } else if (strcmp(key, "kernel_us") == 0) {
        ret = number(p, key, value, 0, 1000000000, &n);
        t->kernel_us = (uint32_t)n;
    } else if (strcmp(key, "quantum_us") == 0) {
        ret = number(p, key, value, 100, 1000000, &n);
        t->quantum_us = (uint32_t)n;
    } else if (strcmp(key, "switch_us") == 0) {
        ret = number(p, key, value, 0, 1000000, &n);
        t->switch_us = (uint32_t)n;
    } else if (strcmp(key, "launch_us") == 0) {
        ret = number(p, key, value, 0, 1000000, &n);
        t->launch_us = (uint32_t)n;
    } else if (strcmp(key, "wake_us") == 0) {
        ret = number(p, key, value, 0, 1000000, &n);
        t->wake_us = (uint32_t)n;
    } else {
        ret = fail(p, "unknown key %s before the first [gpu N] section", key);
    }
    return ret;
}

static int section(struct parser *p, const char *line) {
    struct sim_topology *t = p->topology;
    int index = -1, end = 0;

    if (sscanf(line, "[gpu %d]%n", &index, &end) != 1 || end == 0 || line[end] != '\0')
        return fail(p, "%s: a section must be [gpu N]", line);
    if (index != t->section_count || index >= SIM_MAX_GPUS)
        return fail(p, "%s: sections must be numbered 0, 1, 2… up to %d", line, SIM_MAX_GPUS - 1);
    p->gpu = &t->gpus[t->section_count++];
    p->gpu->index = index;
    p->gpu->minor = index;
    p->gpu->addressing = SIM_ADDRESSING_UNKNOWN;
    return 0;
}

static int parse_line(struct parser *p, char *line) {
    char *comment = strchr(line, '#'), *equals;

    if (comment != NULL)
        *comment = '\0';
    line = trim(line);
    if (*line == '\0')
        return 0;
    if (*line == '[')
        return section(p, line);
    equals = strchr(line, '=');
    if (equals == NULL)
        return fail(p, "%s: neither key = value nor a section", line);
    *equals = '\0';
    return p->gpu != NULL ? gpu_key(p, trim(line), trim(equals + 1)) : global_key(p, trim(line), trim(equals + 1));
}

/* A MIG instance is where its GPU is and computes as it does. */
static void inherit(struct sim_gpu *mig, const struct sim_gpu *parent) {
    memcpy(mig->pci_bus_id, parent->pci_bus_id, sizeof(mig->pci_bus_id));
    mig->pci_domain = parent->pci_domain;
    mig->pci_bus = parent->pci_bus;
    mig->pci_device = parent->pci_device;
    mig->minor = parent->minor;
    mig->cc_major = parent->cc_major;
    mig->cc_minor = parent->cc_minor;
    mig->addressing = parent->addressing;
    mig->ci_slices = mig->mig_slices;
}

static int check_mig(struct parser *p, int i) {
    struct sim_gpu *gpu = &p->topology->gpus[i];

    if (gpu->is_mig != (strncmp(gpu->uuid, "MIG-", 4) == 0))
        return fail(p, "[gpu %d]: a MIG instance has mig_of and a uuid MIG-…, a GPU has neither", i);
    if (!gpu->is_mig && i > 0 && p->topology->gpus[i - 1].is_mig)
        return fail(p, "[gpu %d]: whole GPUs come before all MIG instances", i);
    if (gpu->mig_at_start && mig_model_of(gpu) == NULL)
        return fail(p, "[gpu %d]: %s has no MIG", i, gpu->name);
    if (gpu->is_mig && (gpu->gi_cap == 0 || gpu->ci_cap == 0 || gpu->mig_slices == 0))
        return fail(p, "[gpu %d] has no mig_caps or no mig_slices", i);
    if (gpu->is_mig)
        inherit(gpu, &p->topology->gpus[gpu->mig_of]);
    return 0;
}

/* Whether two are one and the same. The parts of a GPU share its place. */
static bool collide(const struct sim_gpu *a, const struct sim_gpu *b) {
    bool place = strcmp(a->pci_bus_id, b->pci_bus_id) == 0 || a->minor == b->minor;

    if (strcmp(a->uuid, b->uuid) == 0)
        return true;
    if (a->is_mig && b->is_mig)
        return a->gi_cap == b->gi_cap && a->ci_cap == b->ci_cap;
    return place && !a->is_mig && !b->is_mig;
}

/* Whether every GPU has what it must, and nothing is there twice. */
static int check(struct parser *p) {
    struct sim_topology *t = p->topology;

    for (int i = 0; i < t->section_count; i++) {
        struct sim_gpu *gpu = &t->gpus[i];
        int ret = check_mig(p, i);

        if (ret != 0)
            return ret;
        const char *missing = gpu->name[0] == '\0'         ? "name"
                              : gpu->uuid[0] == '\0'       ? "uuid"
                              : gpu->pci_bus_id[0] == '\0' ? "pci"
                              : gpu->memory_bytes == 0     ? "memory_mib"
                              : gpu->sm_count == 0         ? "sm_count"
                              : gpu->cc_major == 0         ? "compute_capability"
                                                           : NULL;
        if (missing != NULL)
            return fail(p, "[gpu %d] has no %s", i, missing);
        for (int j = 0; j < i; j++) {
            if (collide(gpu, &t->gpus[j]))
                return fail(p, "[gpu %d] and [gpu %d] share a uuid, pci or minor", j, i);
        }
        t->gpu_count += !gpu->is_mig;
    }
    return 0;
}

int topology_read(const char *path, struct sim_topology *topology, char *error, size_t size) {
    struct parser p = {.path = path, .topology = topology, .error = error, .error_size = size};
    char line[512];
    FILE *file = fopen(path, "re");
    int ret = 0;

    *topology = (struct sim_topology){.driver_version = "570.124.06",
                                      .cuda_version = 12080,
                                      .device_major = 10,
                                      .device_minor = 229,
                                      .memory_limits = true,
                                      .kernel_us = 20,
                                      .quantum_us = 2000,
                                      .switch_us = 60};
    if (file == NULL) {
        ret = -errno;
        snprintf(error, size, "%s: %s", path, strerror(errno));
        return ret;
    }
    while (ret == 0 && fgets(line, sizeof(line), file) != NULL) {
        p.line++;
        ret = parse_line(&p, line);
    }
    if (ret == 0 && ferror(file)) {
        ret = -EIO;
        snprintf(error, size, "%s: cannot be read", path);
    }
    fclose(file);
    topology->memory_limits &= atoi(topology->driver_version) >= FIRST_WITH_MEMORY_LIMITS;
    return ret != 0 ? ret : check(&p);
}
