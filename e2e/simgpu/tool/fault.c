#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"
#include "tool.h"

int parse_number(const char *text, long long max, long long *out) {
    char *end;

    *out = strtoll(text, &end, 10);
    if (*text == '\0' || *end != '\0' || *out < 0 || *out > max)
        return complain("%s: must be a whole number from 0 to %lld", text, max);
    return 0;
}

static int parse_mig(const char *text, int *gpu) {
    for (int i = 0; i < sim_index_count(); i++) {
        if (sim_gpu(i) != NULL && strcmp(sim_gpu(i)->uuid, text) == 0) {
            *gpu = i;
            return 0;
        }
    }
    return complain("%s: there is no such MIG device", text);
}

int parse_gpu(const char *text, int *gpu) {
    long long n;

    if (strncmp(text, "MIG-", 4) == 0)
        return parse_mig(text, gpu);
    if (parse_number(text, sim_gpu_count() - 1, &n) != 0)
        return 1;
    *gpu = (int)n;
    return 0;
}

int parse_switch(const char *text, bool *on) {
    *on = strcmp(text, "on") == 0;
    return *on || strcmp(text, "off") == 0 ? 0 : complain("%s: must be on or off", text);
}

static int fault_alloc(int argc, char **argv) {
    const char *where = argv[0], *count_text = argv[1], *code_text = argv[2];
    long long count, code;
    int gpu = -1;

    (void)argc;
    if (strcmp(where, "any") != 0 && parse_gpu(where, &gpu) != 0)
        return 1;
    if (parse_number(count_text, UINT32_MAX, &count) != 0 || parse_number(code_text, 999, &code) != 0)
        return 1;
    if (sim_fault_alloc(gpu, (uint32_t)count, (int)code) != 0)
        return complain("%s: no CUDA result to fail with", code_text);
    return 0;
}

static int fault_kernel(int argc, char **argv) {
    long long count, code;
    int gpu;

    (void)argc;
    if (parse_gpu(argv[0], &gpu) != 0 || parse_number(argv[1], UINT32_MAX, &count) != 0 ||
        parse_number(argv[2], 999, &code) != 0)
        return 1;
    if (sim_fault_kernel(gpu, (uint32_t)count, (int)code) != 0)
        return complain("%s: no CUDA result to fail with", argv[2]);
    return 0;
}

static int fault_lost(int argc, char **argv) {
    bool lost;
    int gpu;

    (void)argc;
    if (parse_gpu(argv[0], &gpu) != 0 || parse_switch(argv[1], &lost) != 0)
        return 1;
    return sim_fault_lost(gpu, lost) != 0;
}

static int fault_nvml_absent(int argc, char **argv) {
    bool absent;

    (void)argc;
    if (parse_switch(argv[0], &absent) != 0)
        return 1;
    sim_fault_nvml_absent(absent);
    return 0;
}

/* Its own words tell which it is. */
static int fault_mig(int argc, char **argv) {
    return command_fault_mig(argc + 1, argv - 1);
}

static const struct {
    const char *name, *arguments;
    int least, most; /* words behind the name */
    int (*run)(int argc, char **argv);
} faults[] = {
    {"alloc", "GPU|any N CODE", 3, 3, fault_alloc},
    {"kernel", "GPU N CODE", 3, 3, fault_kernel},
    {"xid", "GPU N [GI [CI]]", 2, 4, fault_xid},
    {"lost", "GPU on|off", 2, 2, fault_lost},
    {"removed", "GPU on|off", 2, 2, fault_removed},
    {"ecc", "GPU corrected|uncorrected dram|l1|l2|registers|sram N", 4, 4, fault_ecc},
    {"recovery", "GPU ACTION", 2, 2, fault_recovery},
    {"driver", "unload|load", 1, 1, fault_driver},
    {"mismatch", "on|off", 1, 1, fault_mismatch},
    {"hang", "FUNCTION|all on|off", 2, 2, fault_hang},
    {"nvml-error", "GPU|any FUNCTION|all CODE", 3, 3, fault_nvml_error},
    {"mig", "CALL N CODE", 3, 3, fault_mig},
    {"mig-delay", "MS", 1, 1, fault_mig},
    {"nvml-absent", "on|off", 1, 1, fault_nvml_absent},
    {"clear", "", 0, 0, fault_clear},
};

int command_fault(int argc, char **argv) {
    if (open_state() != 0)
        return 1;
    for (size_t i = 0; argc > 0 && i < sizeof(faults) / sizeof(faults[0]); i++) {
        if (strcmp(argv[0], faults[i].name) == 0 && argc - 1 >= faults[i].least && argc - 1 <= faults[i].most)
            return faults[i].run(argc - 1, argv + 1);
    }
    complain("fault: one of these must follow:");
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        fprintf(stderr, "  %s %s\n", faults[i].name, faults[i].arguments);
    return 2;
}
