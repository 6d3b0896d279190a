/* The judge's record, for people or as JSON. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "json.h"
#include "memory_limits.h"
#include "record_mig.h"
#include "shared_objects.h"
#include "state.h"
#include "tool.h"

#define MIB (1024.0 * 1024.0)

/* Whether a process or group has to do with the GPU at all. */
static bool touches(const struct sim_process_gpu *gpu) {
    return gpu->bytes != 0 || gpu->launches != 0 || gpu->allocations != 0;
}

/* Of processes that have to do with MPS. */
static void mps_json(struct json *json, const struct sim_process_info *info) {
    if (info->mps_server)
        json_bool(json, "mps_server", true);
    if (info->mps_client) {
        json_bool(json, "mps_client", true);
        json_number(json, "mps_server_pid", (uint64_t)info->mps_server_pid);
    }
}

static int process_json(const struct sim_process_info *info, void *arg) {
    struct json *json = arg;

    json_open(json, NULL, '{');
    json_number(json, "pid", (uint64_t)info->pid);
    json_number(json, "nspid", (uint64_t)info->nspid);
    json_string(json, "group", info->group);
    json_bool(json, "alive", info->alive);
    json_open(json, "gpus", '[');
    for (int i = 0; i < sim_index_count(); i++) {
        const struct sim_process_gpu *gpu = &info->gpus[i];

        if (sim_gpu(i) == NULL || !touches(gpu))
            continue;
        json_open(json, NULL, '{');
        json_string(json, "uuid", sim_gpu(i)->uuid);
        json_number(json, "bytes", gpu->bytes);
        json_number(json, "context_bytes", gpu->context_bytes);
        json_number(json, "allocations", gpu->allocations);
        json_number(json, "launches", gpu->launches);
        json_number(json, "busy_ns", gpu->busy_ns);
        json_close(json, '}');
    }
    json_close(json, ']');
    mps_json(json, info);
    json_close(json, '}');
    return 0;
}

/* Memory that several processes hold: in the sums of its maker's group, in no process's. */
static int shared_json(const struct sim_shared_info *info, void *arg) {
    struct json *json = arg;

    for (int i = 0; i < sim_index_count(); i++) {
        if (sim_gpu(i) == NULL || info->bytes[i] == 0)
            continue;
        json_open(json, NULL, '{');
        json_string(json, "kind", info->kind);
        json_bool(json, "shared", true);
        json_number(json, "maker_pid", (uint64_t)info->pid);
        json_number(json, "maker_nspid", (uint64_t)info->nspid);
        json_string(json, "group", info->group);
        json_string(json, "gpu_uuid", sim_gpu(i)->uuid);
        json_number(json, "bytes", info->bytes[i]);
        json_close(json, '}');
    }
    return 0;
}

static int group_json(const struct sim_group_info *info, void *arg) {
    struct json *json = arg;

    for (int i = 0; i < sim_index_count(); i++) {
        if (sim_gpu(i) == NULL ||
            (info->gpus[i].peak_bytes == 0 && info->gpus[i].bytes == 0 && info->gpus[i].launches == 0))
            continue;
        json_open(json, NULL, '{');
        json_string(json, "group", info->group);
        json_string(json, "gpu_uuid", sim_gpu(i)->uuid);
        json_number(json, "bytes", info->gpus[i].bytes);
        json_number(json, "peak_bytes", info->gpus[i].peak_bytes);
        json_number(json, "processes", (uint64_t)info->processes);
        json_number(json, "launches", info->gpus[i].launches);
        json_number(json, "busy_ns", info->gpus[i].busy_ns);
        json_number(json, "overlap_ns", info->gpus[i].overlap_ns);
        json_close(json, '}');
    }
    return 0;
}

/* A whole GPU or a MIG device. */
static void gpu_json(struct json *json, int i) {
    const struct sim_gpu *gpu = sim_gpu(i);

    if (gpu == NULL)
        return;
    json_open(json, NULL, '{');
    json_string(json, "uuid", gpu->uuid);
    json_string(json, "name", gpu->name);
    json_number(json, "memory_bytes", gpu->memory_bytes);
    json_number(json, "used_bytes", sim_gpu_used(i));
    json_number(json, "busy_ns", sim_gpu_busy_ns(i));
    json_number(json, "switches", sim_gpu_switches(i));
    json_bool(json, "lost", sim_gpu_lost(i));
    json_close(json, '}');
}

static int limit_json(const struct sim_memory_limit_info *info, void *arg) {
    struct json *json = arg;

    json_open(json, NULL, '{');
    json_string(json, "cgroup", info->path);
    json_number(json, "cgroup_id", info->cgroup);
    json_bool(json, "removed", info->removed);
    json_string(json, "gpu_uuid", sim_gpu(info->gpu)->uuid);
    json_number(json, "soft_bytes", info->soft);
    json_number(json, "hard_bytes", info->hard);
    json_number(json, "bytes", info->used);
    json_number(json, "peak_bytes", info->peak);
    json_close(json, '}');
    return 0;
}

static int print_json(void) {
    struct json json = {.out = stdout};

    json_open(&json, NULL, '{');
    json_bool(&json, "simulated", true);
    json_open(&json, "gpus", '[');
    for (int i = 0; i < sim_index_count(); i++)
        gpu_json(&json, i);
    json_close(&json, ']');
    json_open(&json, "processes", '[');
    sim_each_process(process_json, &json);
    json_close(&json, ']');
    json_open(&json, "shared", '[');
    sim_each_shared(shared_json, &json);
    json_close(&json, ']');
    json_open(&json, "groups", '[');
    sim_each_group(group_json, &json);
    json_close(&json, ']');
    json_open(&json, "memory_limits", '[');
    sim_each_memory_limit(limit_json, &json);
    json_close(&json, ']');
    mig_json(&json);
    json_close(&json, '}');
    putchar('\n');
    return fflush(stdout) != 0 ? complain("write the record") : 0;
}

static int process_text(const struct sim_process_info *info, void *arg) {
    (void)arg;
    for (int i = 0; i < sim_index_count(); i++) {
        const struct sim_process_gpu *gpu = &info->gpus[i];

        if (sim_gpu(i) != NULL && touches(gpu))
            printf("%8d %-24s %3d %12.2f %12.2f %12" PRIu64 " %12" PRIu64 "%s\n", info->pid ? info->pid : info->nspid,
                   info->group, i, (double)gpu->bytes / MIB, (double)gpu->context_bytes / MIB, gpu->allocations,
                   gpu->launches,
                   info->mps_server   ? "  MPS server"
                   : info->mps_client ? "  MPS client"
                                      : "");
    }
    return 0;
}

static int shared_text(const struct sim_shared_info *info, void *arg) {
    (void)arg;
    for (int i = 0; i < sim_index_count(); i++) {
        if (info->bytes[i] != 0)
            printf("%8s %-24s %3d %12.2f  made by %d\n", info->kind, info->group, i, (double)info->bytes[i] / MIB,
                   info->pid ? info->pid : info->nspid);
    }
    return 0;
}

static int group_text(const struct sim_group_info *info, void *arg) {
    (void)arg;
    for (int i = 0; i < sim_index_count(); i++) {
        if (info->gpus[i].peak_bytes != 0)
            printf("%-33s %3d %12.2f %12.2f %12d %12" PRIu64 " %12.3f\n", info->group, i,
                   (double)info->gpus[i].bytes / MIB, (double)info->gpus[i].peak_bytes / MIB, info->processes,
                   info->gpus[i].launches, (double)info->gpus[i].busy_ns / 1e6);
    }
    return 0;
}

static int limit_text(const struct sim_memory_limit_info *info, void *arg) {
    bool *headed = arg;

    if (!*headed)
        printf("\n%-40s %3s %12s %12s %12s\n", "memory limit of cgroup", "GPU", "MiB", "peak MiB", "limit MiB");
    *headed = true;
    printf("%-40s %3d %12.2f %12.2f ", info->path, info->gpu, (double)info->used / MIB, (double)info->peak / MIB);
    if (info->hard == SIM_MEMORY_LIMIT_MAX)
        printf("%12s", "none");
    else
        printf("%12.2f", (double)info->hard / MIB);
    printf("%s\n", info->removed ? "  removed" : "");
    return 0;
}

static int print_text(void) {
    bool headed = false;

    printf("SIMULATED GPUs\n");
    for (int i = 0; i < sim_index_count(); i++) {
        if (sim_gpu(i) == NULL)
            continue;
        printf("%3d %-24s %s  %.2f of %.2f MiB used%s\n", i, sim_gpu(i)->name, sim_gpu(i)->uuid,
               (double)sim_gpu_used(i) / MIB, (double)sim_gpu(i)->memory_bytes / MIB,
               sim_gpu_lost(i) ? ", fallen off the bus" : "");
    }
    printf("\n%8s %-24s %3s %12s %12s %12s %12s\n", "PID", "group", "GPU", "MiB", "contexts", "allocations",
           "launches");
    sim_each_process(process_text, NULL);
    printf("\n%8s %-24s %3s %12s\n", "shared", "group", "GPU", "MiB");
    sim_each_shared(shared_text, NULL);
    printf("\n%-33s %3s %12s %12s %12s %12s %12s\n", "group", "GPU", "MiB", "peak MiB", "processes", "launches",
           "busy ms");
    sim_each_group(group_text, NULL);
    sim_each_memory_limit(limit_text, &headed);
    mig_text();
    return 0;
}

int command_record(int argc, char **argv) {
    bool json = argc == 1 && strcmp(argv[0], "--json") == 0;

    if (argc > 0 && !json)
        return complain("record: only --json may follow");
    if (open_state() != 0)
        return 1;
    sim_reap();
    return json ? print_json() : print_text();
}
