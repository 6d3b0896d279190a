/* MIG in the record: modes, the instances that there are, and what was made and destroyed. */
#include "record_mig.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "mig/mig.h"
#include "state.h"

struct of_device {
    struct json *json;
    int device;
};

static int process_json(const struct sim_process_info *info, void *arg) {
    const struct of_device *of = arg;

    if (info->gpus[of->device].bytes == 0)
        return 0;
    json_open(of->json, NULL, '{');
    json_number(of->json, "pid", (uint64_t)info->pid);
    json_number(of->json, "nspid", (uint64_t)info->nspid);
    json_number(of->json, "bytes", info->gpus[of->device].bytes);
    json_close(of->json, '}');
    return 0;
}

static void ci_json(struct json *json, int gpu, const struct sim_ci *ci) {
    int device = sim_mig_device(gpu, ci->seat);
    struct of_device of = {json, device};
    const struct sim_gpu *described = sim_gpu(device);

    if (described == NULL)
        return;
    json_open(json, NULL, '{');
    json_number(json, "id", ci->id);
    json_string(json, "uuid", described->uuid);
    json_string(json, "name", described->name);
    json_number(json, "start", ci->start);
    json_number(json, "size", ci->size);
    json_number(json, "sm_count", (uint64_t)described->sm_count);
    json_number(json, "created_ns", ci->created_ns);
    json_open(json, "processes", '[');
    sim_each_process(process_json, &of);
    json_close(json, ']');
    json_close(json, '}');
}

static void gi_json(struct json *json, int gpu, const struct sim_gi *gi) {
    struct sim_ci ci;

    json_open(json, NULL, '{');
    json_number(json, "id", gi->id);
    json_string(json, "profile", gi->profile->name);
    json_number(json, "profile_id", gi->profile->id);
    json_number(json, "start", gi->start);
    json_number(json, "size", gi->size);
    json_number(json, "memory_bytes", gi->memory_bytes);
    json_number(json, "used_bytes", gi->used_bytes);
    json_number(json, "created_ns", gi->created_ns);
    json_open(json, "compute_instances", '[');
    for (unsigned seat = 0; seat < SIM_MIG_SEATS; seat++) {
        if (sim_ci_get(gpu, seat, &ci) == 0 && ci.gi_seat == gi->seat)
            ci_json(json, gpu, &ci);
    }
    json_close(json, ']');
    json_close(json, '}');
}

static void gpu_json(struct json *json, int gpu) {
    bool current, pending;
    struct sim_gi gi;

    sim_mig_mode(gpu, &current, &pending);
    json_open(json, NULL, '{');
    json_string(json, "uuid", sim_gpu(gpu)->uuid);
    json_bool(json, "mode", current);
    json_bool(json, "pending", pending);
    json_open(json, "gpu_instances", '[');
    for (unsigned seat = 0; seat < SIM_MIG_SEATS; seat++) {
        if (sim_gi_get(gpu, seat, &gi) == 0)
            gi_json(json, gpu, &gi);
    }
    json_close(json, ']');
    json_close(json, '}');
}

static const char *const names[] = {
    [MIG_GI_CREATED] = "gi-created",
    [MIG_GI_DESTROYED] = "gi-destroyed",
    [MIG_CI_CREATED] = "ci-created",
    [MIG_CI_DESTROYED] = "ci-destroyed",
    [MIG_MODE] = "mode",
    [MIG_RELOADED] = "reloaded",
};

static bool is_mode(const struct sim_mig_event *event) {
    return event->what == MIG_MODE || event->what == MIG_RELOADED;
}

static int event_json(const struct sim_mig_event *event, void *arg) {
    struct json *json = arg;

    json_open(json, NULL, '{');
    json_number(json, "serial", event->serial);
    json_number(json, "time_ns", event->time_ns);
    json_string(json, "what", names[event->what]);
    json_number(json, "pid", (uint64_t)event->pid);
    if (event->what != MIG_RELOADED && event->gpu >= 0)
        json_string(json, "gpu_uuid", sim_gpu(event->gpu)->uuid);
    if (event->what == MIG_MODE)
        json_bool(json, "mode", event->size != 0);
    if (!is_mode(event)) {
        json_number(json, "gi", event->gi);
        if (event->what == MIG_CI_CREATED || event->what == MIG_CI_DESTROYED)
            json_number(json, "ci", event->ci);
        json_string(json, "profile", event->profile != NULL ? event->profile->name : "");
        json_number(json, "start", event->start);
        json_number(json, "size", event->size);
    }
    if (event->what == MIG_GI_DESTROYED)
        json_number(json, "peak_bytes", event->peak_bytes);
    json_close(json, '}');
    return 0;
}

void mig_json(struct json *json) {
    json_open(json, "mig", '{');
    json_open(json, "gpus", '[');
    for (int gpu = 0; gpu < sim_gpu_count(); gpu++) {
        if (sim_mig_model(gpu) != NULL)
            gpu_json(json, gpu);
    }
    json_close(json, ']');
    json_open(json, "events", '[');
    sim_each_mig_event(event_json, json);
    json_close(json, ']');
    json_close(json, '}');
}

static int event_text(const struct sim_mig_event *event, void *arg) {
    (void)arg;
    printf("%16.6f %-12s", (double)event->time_ns / 1e9, names[event->what]);
    if (event->what == MIG_MODE)
        printf(" GPU %d %s", event->gpu, event->size != 0 ? "on" : "off");
    else if (event->what != MIG_RELOADED)
        printf(" GPU %d instance %u %s at %u:%u", event->gpu, event->gi,
               event->profile != NULL ? event->profile->name : "", event->start, event->size);
    printf(" by %d\n", event->pid);
    return 0;
}

void mig_text(void) {
    struct sim_gi gi;

    for (int gpu = 0; gpu < sim_gpu_count(); gpu++) {
        for (unsigned seat = 0; seat < SIM_MIG_SEATS; seat++) {
            if (sim_gi_get(gpu, seat, &gi) == 0)
                printf("\nGPU %d instance %u: %s at %u:%u, %" PRIu64 " of %" PRIu64 " MiB used\n", gpu, gi.id,
                       gi.profile->name, gi.start, gi.size, gi.used_bytes >> 20, gi.memory_bytes >> 20);
        }
    }
    sim_each_mig_event(event_text, NULL);
}
