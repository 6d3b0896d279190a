/* Commands that change how a GPU fares: `set`, `reset`, and the faults of health, of the driver and of single calls. */
#include "../health.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"
#include "tool.h"

/* The Xid by which the driver says that the recovery action has changed. */
#define RECOVERY_ACTION_CHANGED 154

static int print_settings(void) {
    for (int i = 0; i < SIM_SETTINGS; i++)
        printf("%-22s 0 to %llu\n", sim_setting_name((enum sim_setting)i),
               (unsigned long long)sim_setting_max((enum sim_setting)i));
    return 0;
}

static int set(int gpu, const char *name, const char *text) {
    int setting = sim_setting_find(name);
    long long value;

    if (setting < 0)
        return complain("set: there is no setting %s, `simgpu set` lists them", name);
    if (strcmp(text, "default") == 0)
        return sim_set_default(gpu, (enum sim_setting)setting) != 0;
    if (strcmp(text, "unsupported") == 0)
        return sim_set_unsupported(gpu, (enum sim_setting)setting) != 0;
    if (parse_number(text, (long long)sim_setting_max((enum sim_setting)setting), &value) != 0)
        return 1;
    return sim_set(gpu, (enum sim_setting)setting, (uint64_t)value) != 0;
}

int command_set(int argc, char **argv) {
    int gpu;

    if (argc == 0)
        return print_settings();
    if (open_state() != 0)
        return 1;
    if (argc != 3)
        return complain("set: GPU NAME VALUE|unsupported|default must follow"), 2;
    return parse_gpu(argv[0], &gpu) != 0 ? 1 : set(gpu, argv[1], argv[2]);
}

int fault_xid(int argc, char **argv) {
    long long xid, gi = SIM_NO_INSTANCE, ci = SIM_NO_INSTANCE;
    int gpu;

    if (parse_gpu(argv[0], &gpu) != 0 || parse_number(argv[1], INT_MAX, &xid) != 0)
        return 1;
    if (argc > 2 && parse_number(argv[2], INT_MAX, &gi) != 0)
        return 1;
    if (argc > 3 && parse_number(argv[3], INT_MAX, &ci) != 0)
        return 1;
    return sim_event_post(gpu, SIM_EVENT_XID,
                          (struct sim_event){.xid = (uint64_t)xid, .gi = (uint32_t)gi, .ci = (uint32_t)ci}) != 0;
}

/* The place of a word in a list that NULL ends, -1 if it is not there. */
static int place_of(const char *word, const char *const *list) {
    for (int i = 0; list[i] != NULL; i++) {
        if (strcmp(word, list[i]) == 0)
            return i;
    }
    return -1;
}

int fault_ecc(int argc, char **argv) {
    static const char *const errors[] = {"corrected", "uncorrected", NULL};
    static const char *const locations[] = {"dram", "l1", "l2", "registers", "sram", NULL};
    int gpu, error = place_of(argv[1], errors), location = place_of(argv[2], locations);
    long long count;

    (void)argc;
    if (error < 0 || location < 0)
        return complain("ecc: corrected or uncorrected, and dram, l1, l2, registers or sram must follow the GPU");
    if (parse_gpu(argv[0], &gpu) != 0 || parse_number(argv[3], INT_MAX, &count) != 0)
        return 1;
    return sim_ecc_occur(gpu, (enum sim_ecc_error)error, (enum sim_ecc_location)location, (uint64_t)count) != 0;
}

/* The driver tells of another action by an Xid, too. */
int fault_recovery(int argc, char **argv) {
    long long action;
    int gpu;

    (void)argc;
    if (parse_gpu(argv[0], &gpu) != 0 ||
        parse_number(argv[1], (long long)sim_setting_max(SIM_RECOVERY_ACTION), &action) != 0)
        return 1;
    return sim_set(gpu, SIM_RECOVERY_ACTION, (uint64_t)action) != 0 || sim_fault_xid(gpu, RECOVERY_ACTION_CHANGED) != 0;
}

/* The kernel module lists the GPUs that it has. In a driver root that `simgpu root` made, the list is beside the state;
 * elsewhere there is none. */
static int list_in_proc(int gpu, bool listed) {
    const char *topology = getenv("SIMGPU_TOPOLOGY"), *name = sim_gpu(gpu)->pci_bus_id;
    char entry[PATH_MAX], away[PATH_MAX];
    const char *slash = topology != NULL ? strrchr(topology, '/') : NULL;
    int length = slash != NULL ? (int)(slash - topology) : 0;

    if (length == 0 || sim_gpu(gpu)->is_mig)
        return 0;
    snprintf(entry, sizeof(entry), "%.*s/../../proc/driver/nvidia/gpus/%s", length, topology, name);
    snprintf(away, sizeof(away), "%.*s/removed-%s", length, topology, name);
    if (rename(listed ? away : entry, listed ? entry : away) != 0 && errno != ENOENT)
        return complain("%s: %s", entry, strerror(errno));
    return 0;
}

int fault_removed(int argc, char **argv) {
    bool removed;
    int gpu;

    (void)argc;
    if (parse_gpu(argv[0], &gpu) != 0 || parse_switch(argv[1], &removed) != 0)
        return 1;
    return sim_gpu_remove(gpu, removed) != 0 || list_in_proc(gpu, !removed) != 0;
}

int fault_clear(int argc, char **argv) {
    int ret = 0;

    (void)argc;
    (void)argv;
    sim_fault_clear();
    for (int gpu = 0; gpu < sim_gpu_count(); gpu++)
        ret |= list_in_proc(gpu, true);
    return ret;
}

int fault_driver(int argc, char **argv) {
    (void)argc;
    if (strcmp(argv[0], "unload") == 0)
        sim_driver_unload();
    else if (strcmp(argv[0], "load") == 0)
        sim_driver_load();
    else
        return complain("%s: must be unload or load", argv[0]);
    return 0;
}

int fault_mismatch(int argc, char **argv) {
    bool mismatch;

    (void)argc;
    if (parse_switch(argv[0], &mismatch) != 0)
        return 1;
    sim_driver_mismatch(mismatch);
    return 0;
}

/* An order for a function that there is none of would wait for ever. */
static int check_function(const char *function) {
    char path[PATH_MAX * 2];
    void *library;
    bool found;

    if (strcmp(function, "all") == 0)
        return 0;
    snprintf(path, sizeof(path), "%s/../lib/libnvidia-ml.so.1", tool_directory());
    library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (library == NULL)
        return complain("%s: cannot be checked: %s", function, dlerror());
    found = dlsym(library, function) != NULL && strncmp(function, "nvml", 4) == 0;
    dlclose(library);
    return found ? 0 : complain("%s: NVML has no such function", function);
}

static int ordered(int ret) {
    return ret == -ENOSPC ? complain("there are %d orders already", SIM_ORDERS) : ret != 0;
}

int fault_hang(int argc, char **argv) {
    bool on;

    (void)argc;
    if (check_function(argv[0]) != 0 || parse_switch(argv[1], &on) != 0)
        return 1;
    return ordered(sim_order_hang(argv[0], on));
}

int fault_nvml_error(int argc, char **argv) {
    long long result;
    int gpu = -1;

    (void)argc;
    if (strcmp(argv[0], "any") != 0 && parse_gpu(argv[0], &gpu) != 0)
        return 1;
    if (check_function(argv[1]) != 0 || parse_number(argv[2], 999, &result) != 0)
        return 1;
    return ordered(sim_order_error(gpu, argv[1], (int)result));
}
