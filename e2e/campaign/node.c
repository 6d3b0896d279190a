#include "node.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "holders.h"
#include "region_view.h"
#include "shared_objects.h"
#include "state.h"
#include "worker.h"

#define MIB ((uint64_t)1 << 20)
#define LABEL "claim"

/* Of the crowd's claims: names of groups in the record, and of directories. */
static const char *const crowd_labels[CROWD_CLAIMS] = {"crowd1", "crowd2", "crowd3"};

struct board *node_board;
static char root[200];

static const char *const uuids[GPUS] = {"GPU-7e570000-0000-4000-8000-000000000000",
                                        "GPU-7e570000-0000-4000-8000-000000000001"};

/* Small contexts, so that many fit under a limit; room enough that only limits are met. */
static const char topology[] = "driver_version = 570.124.06\n"
                               "cuda_version = 12080\n"
                               "device_number = 10:229\n"
                               "kernel_us = 20\n"
                               "quantum_us = 2000\n"
                               "[gpu 0]\n"
                               "name = Simulated GPU C1\n"
                               "uuid = GPU-7e570000-0000-4000-8000-000000000000\n"
                               "pci = 0000:01:00.0\n"
                               "minor = 0\n"
                               "memory_mib = 16384\n"
                               "sm_count = 16\n"
                               "compute_capability = 9.0\n"
                               "context_mib = 24\n"
                               "[gpu 1]\n"
                               "name = Simulated GPU C2\n"
                               "uuid = GPU-7e570000-0000-4000-8000-000000000001\n"
                               "pci = 0000:02:00.0\n"
                               "minor = 1\n"
                               "memory_mib = 16384\n"
                               "sm_count = 32\n"
                               "compute_capability = 8.0\n"
                               "context_mib = 40\n";
static const uint64_t context_bytes[GPUS] = {24 * MIB, 40 * MIB};

const char *node_path(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static bool failed(const char *what, const char *path) {
    fprintf(stderr, "campaign: cannot %s %s: %s\n", what, path, strerror(errno));
    return false;
}

static bool make_file(const char *name, const char *text) {
    FILE *file = fopen(node_path(name), "we");
    if (file == NULL)
        return failed("make", node_path(name));
    bool written = fputs(text, file) >= 0;
    return fclose(file) == 0 && written;
}

static bool copy(const char *from, const char *name) {
    char buffer[65536];
    ssize_t size = -1;
    int in = open(from, O_RDONLY | O_CLOEXEC);
    if (in < 0)
        return failed("open", from);
    int out = open(node_path(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    bool done = out >= 0;
    while (done && (size = read(in, buffer, sizeof buffer)) > 0)
        done = write(out, buffer, (size_t)size) == size;
    close(in);
    if (out >= 0)
        close(out);
    return (done && size == 0) || failed("copy to", node_path(name));
}

static bool make_files(const struct node_options *options) {
    static const char *const directories[] = {"", "dev", "lib", "lib/.tranche", "claims", "crowd1", "crowd2", "crowd3"};
    static const char *const nodes[] = {"dev/nvidiactl", "dev/nvidia0", "dev/nvidia1", "dev/nvidia-uvm"};
    char shadow[512], driver[512];
    for (unsigned i = 0; i < sizeof directories / sizeof directories[0]; i++)
        if (mkdir(node_path(directories[i]), 0755) != 0 && errno != EEXIST)
            return failed("make", node_path(directories[i]));
    for (unsigned i = 0; i < sizeof nodes / sizeof nodes[0]; i++)
        if (!make_file(nodes[i], ""))
            return false;
    snprintf(shadow, sizeof shadow, "%s/lib/libcuda.so.1", options->build);
    snprintf(driver, sizeof driver, "%s/sim/lib/libcuda.so.1", options->build);
    if (!make_file("topology", topology))
        return false;
    if (options->bare)
        return copy(driver, "lib/libcuda.so.1");
    return copy(options->shadow != NULL ? options->shadow : shadow, "lib/libcuda.so.1") &&
           copy(driver, "lib/.tranche/driver-libcuda.so");
}

static bool make_board(const struct node_options *options) {
    int file = open(node_path("board"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct board)) != 0)
        return failed("make", node_path("board"));
    close(file);
    node_board = board_map(node_path("board"));
    if (node_board == NULL)
        return failed("map", node_path("board"));
    node_board->conductor = getpid();
    node_board->gpu_count = GPUS;
    node_board->bare = options->bare;
    for (int gpu = 0; gpu < GPUS; gpu++) {
        memcpy(node_board->gpu_uuid[gpu], sim_gpu(gpu)->uuid_bytes, 16);
        node_board->context_bytes[gpu] = context_bytes[gpu];
        node_board->limit_bytes[gpu] = options->limit_bytes[gpu];
    }
    memcpy(node_board->crowd_limit_bytes, options->crowd_limit_bytes, sizeof node_board->crowd_limit_bytes);
    return true;
}

static bool make_claims(const struct node_options *options) {
    static const char *const ids[GPUS] = {"000000a0", "000000a1"};
    char directory[512];
    snprintf(directory, sizeof directory, "%s", node_path("claims"));
    for (int gpu = 0; gpu < GPUS; gpu++) {
        if (options->limit_bytes[gpu] != 0 &&
            !region_view_make(gpu, directory, ids[gpu], uuids[gpu], options->limit_bytes[gpu], context_bytes[gpu]))
            return false;
    }
    for (unsigned claim = 0; claim < CROWD_CLAIMS; claim++) {
        snprintf(directory, sizeof directory, "%s", node_path(crowd_labels[claim]));
        if (!region_view_make((int)(GPUS + claim), directory, ids[0], uuids[0], options->crowd_limit_bytes[claim],
                              context_bytes[0]))
            return false;
    }
    return true;
}

/* In memory, where real regions lie too: a disk may keep whoever writes to a mapped file waiting for seconds. */
static const char *directory_for_files(void) {
    const char *given = getenv("TMPDIR");
    if (given != NULL)
        return given;
    return access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
}

bool node_make(const struct node_options *options) {
    snprintf(root, sizeof root, "%s/tranche-campaign-XXXXXX", directory_for_files());
    if (mkdtemp(root) == NULL)
        return failed("make", root);
    if (!make_files(options))
        return false;
    setenv("SIMGPU_TOPOLOGY", node_path("topology"), 1);
    setenv("SIMGPU_STATE", node_path("state"), 1);
    setenv("SIMGPU_DEV", node_path("dev"), 1);
    int result = sim_state_create();
    if (result == 0)
        result = sim_open_all();
    if (result != 0) {
        fprintf(stderr, "campaign: no simulated GPU: %s (%s)\n", sim_error(), strerror(-result));
        return false;
    }
    return make_board(options) && (options->bare || make_claims(options));
}

void node_remove(void) {
    char command[300];
    if (root[0] == '\0')
        return;
    region_view_close();
    if (node_board != NULL)
        munmap(node_board, sizeof *node_board);
    node_board = NULL;
    sim_close();
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    if (system(command) != 0)
        fprintf(stderr, "campaign: %s failed\n", command);
    root[0] = '\0';
}

/* NULL: not set. */
static const char *const devices_variants[] = {
    NULL, NULL, "0,1", "1,0", "0", "1", "GPU-7e570000-0000-4000-8000-000000000001,0"};

unsigned node_devices_variants(void) {
    return sizeof devices_variants / sizeof devices_variants[0];
}

void node_enter(unsigned devices_variant, uint32_t claim) {
    int messages = open(node_path("messages"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (messages >= 0)
        dup2(messages, 2);
    setenv("SIMGPU_LABEL", claim == 0 ? LABEL : crowd_labels[claim - 1], 1);
    setenv("TRANCHE_REGIONS", node_path(claim == 0 ? "claims" : crowd_labels[claim - 1]), 1);
    setenv("LD_LIBRARY_PATH", node_path("lib"), 1);
    setenv("CAMPAIGN_BOARD", node_path("board"), 1);
    if (devices_variants[devices_variant] != NULL)
        setenv("CUDA_VISIBLE_DEVICES", devices_variants[devices_variant], 1);
    else
        unsetenv("CUDA_VISIBLE_DEVICES");
}

struct wanted {
    const char *label;
    struct reading *reading;
};

static int read_group(const struct sim_group_info *info, void *argument) {
    const struct wanted *wanted = argument;
    if (strcmp(info->group, wanted->label) != 0)
        return 0;
    for (int gpu = 0; gpu < GPUS; gpu++) {
        wanted->reading->bytes[gpu] = info->gpus[gpu].bytes;
        wanted->reading->peak[gpu] = info->gpus[gpu].peak_bytes;
    }
    return 1;
}

static void read_label(const char *label, struct reading *reading) {
    memset(reading, 0, sizeof *reading);
    struct wanted wanted = {label, reading};
    sim_each_group(read_group, &wanted);
}

void node_read_crowd(unsigned claim, struct reading *reading) {
    read_label(crowd_labels[claim], reading);
    reading->counted[0] = node_board->bare ? reading->bytes[0] : region_view_counted((int)(GPUS + claim));
}

uint64_t node_used_crowd(void) {
    sim_reap();
    return sim_gpu_used(0);
}

void node_read(struct reading *reading) {
    read_label(LABEL, reading);
    for (int gpu = 0; gpu < GPUS; gpu++)
        reading->counted[gpu] = node_board->bare ? reading->bytes[gpu] : region_view_counted(gpu);
}

/* ---- By holder ---- */

struct shared_memory {
    int64_t byte; /* which its holders have locked */
    uint64_t bytes;
    unsigned claims; /* that hold it, by bit */
    unsigned owner;  /* the bit of the one that counts it as long as it holds it; 0: all that hold it do */
};

static struct {
    struct shared_memory objects[SIM_MAX_PROCESSES];
    unsigned count;
    uint64_t *bytes; /* by claim */
} held;

/* A pool is its maker's claim's to count, whoever has imported it: docs/counting.md. */
static unsigned owner_of(const struct sim_shared_info *info) {
    for (unsigned claim = 0; claim < CROWD_CLAIMS && strcmp(info->kind, "pool") == 0; claim++)
        if (strcmp(info->group, crowd_labels[claim]) == 0)
            return 1u << claim;
    return 0;
}

static int add_object(const struct sim_shared_info *info, void *argument) {
    (void)argument;
    if (info->bytes[0] != 0 && held.count < SIM_MAX_PROCESSES)
        held.objects[held.count++] =
            (struct shared_memory){.byte = info->lock_byte, .bytes = info->bytes[0], .owner = owner_of(info)};
    return 0;
}

static bool counts(const struct shared_memory *object, unsigned claim) {
    unsigned counting = object->claims & object->owner ? object->owner : object->claims;
    return counting >> claim & 1;
}

static void add_holder(int64_t first, int64_t last, void *argument) {
    const unsigned *claim = argument;
    for (unsigned i = 0; i < held.count; i++)
        if (first <= held.objects[i].byte && held.objects[i].byte <= last)
            held.objects[i].claims |= 1u << *claim;
}

static int add_process(const struct sim_process_info *info, void *argument) {
    (void)argument;
    for (unsigned claim = 0; claim < CROWD_CLAIMS; claim++) {
        if (strcmp(info->group, crowd_labels[claim]) != 0)
            continue;
        held.bytes[claim] += info->gpus[0].bytes;
        holders_each_lock(node_path("state"), info->nspid, add_holder, &claim);
    }
    return 0;
}

void node_held_crowd(uint64_t bytes[CROWD_CLAIMS]) {
    memset(bytes, 0, CROWD_CLAIMS * sizeof bytes[0]);
    held.count = 0;
    held.bytes = bytes;
    sim_each_shared(add_object, NULL);
    sim_each_process(add_process, NULL);
    for (unsigned i = 0; i < held.count; i++)
        for (unsigned claim = 0; claim < CROWD_CLAIMS; claim++)
            if (counts(&held.objects[i], claim))
                bytes[claim] += held.objects[i].bytes;
}

/* What the record says at one moment, or nearly. */
static struct {
    struct sim_process_info processes[SEATS * 2];
    struct sim_shared_info objects[SEATS * OFFERS];
    unsigned process_count, object_count;
    struct reading reading;
} seen;

static int see_process(const struct sim_process_info *info, void *argument) {
    (void)argument;
    if (seen.process_count < sizeof seen.processes / sizeof seen.processes[0])
        seen.processes[seen.process_count++] = *info;
    return 0;
}

static int see_object(const struct sim_shared_info *info, void *argument) {
    (void)argument;
    if (seen.object_count < sizeof seen.objects / sizeof seen.objects[0])
        seen.objects[seen.object_count++] = *info;
    return 0;
}

static void tell_process(const struct sim_process_info *info, void (*tell)(const char *format, ...)) {
    tell("the record: process %d holds %llu and %llu KiB, contexts %llu and %llu KiB", info->nspid,
         (unsigned long long)info->gpus[0].bytes >> 10, (unsigned long long)info->gpus[1].bytes >> 10,
         (unsigned long long)info->gpus[0].context_bytes >> 10, (unsigned long long)info->gpus[1].context_bytes >> 10);
}

static void tell_object(const struct sim_shared_info *info, void (*tell)(const char *format, ...)) {
    tell("the record: object %#llx, %s made by process %d, has %llu and %llu KiB", (unsigned long long)info->object,
         info->kind, info->nspid, (unsigned long long)info->bytes[0] >> 10, (unsigned long long)info->bytes[1] >> 10);
    if (info->bytes[0] != 0 || info->bytes[1] != 0)
        holders_tell(node_path("state"), info->lock_byte, tell);
}

void node_look(void) {
    seen.process_count = seen.object_count = 0;
    sim_each_shared(see_object, NULL);
    sim_each_process(see_process, NULL);
    for (int view = 0; view < REGION_VIEWS && !node_board->bare; view++)
        region_view_look(view);
    node_read(&seen.reading);
}

void node_tell(void (*tell)(const char *format, ...)) {
    for (unsigned i = 0; i < seen.process_count; i++)
        tell_process(&seen.processes[i], tell);
    for (unsigned i = 0; i < seen.object_count; i++)
        tell_object(&seen.objects[i], tell);
    for (int view = 0; view < REGION_VIEWS && !node_board->bare; view++)
        region_view_tell(view, tell);
    for (int gpu = 0; gpu < GPUS; gpu++)
        tell("GPU %d: record %llu KiB, peak %llu KiB, region %llu KiB, limit %llu KiB", gpu,
             (unsigned long long)seen.reading.bytes[gpu] >> 10, (unsigned long long)seen.reading.peak[gpu] >> 10,
             (unsigned long long)seen.reading.counted[gpu] >> 10,
             (unsigned long long)node_board->limit_bytes[gpu] >> 10);
}

uint64_t node_counted_alive_crowd(unsigned claim) {
    return node_board->bare ? 0 : region_view_counted_alive((int)(GPUS + claim));
}

uint64_t node_counted_alive(int gpu) {
    return node_board->bare ? 0 : region_view_counted_alive(gpu);
}
