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

static int parse_switch(const char *text, bool *on) {
    *on = strcmp(text, "on") == 0;
    return *on || strcmp(text, "off") == 0 ? 0 : complain("%s: must be on or off", text);
}

static int fault_alloc(const char *where, const char *count_text, const char *code_text) {
    long long count, code;
    int gpu = -1;

    if (strcmp(where, "any") != 0 && parse_gpu(where, &gpu) != 0)
        return 1;
    if (parse_number(count_text, UINT32_MAX, &count) != 0 || parse_number(code_text, 999, &code) != 0)
        return 1;
    if (sim_fault_alloc(gpu, (uint32_t)count, (int)code) != 0)
        return complain("%s: no CUDA result to fail with", code_text);
    return 0;
}

static int fault_xid(const char *where, const char *number) {
    long long xid;
    int gpu;

    if (parse_gpu(where, &gpu) != 0 || parse_number(number, INT32_MAX, &xid) != 0)
        return 1;
    return sim_fault_xid(gpu, (uint64_t)xid) != 0;
}

static int fault_lost(const char *where, const char *text) {
    bool lost;
    int gpu;

    if (parse_gpu(where, &gpu) != 0 || parse_switch(text, &lost) != 0)
        return 1;
    return sim_fault_lost(gpu, lost) != 0;
}

static int fault_nvml_absent(const char *text) {
    bool absent;

    if (parse_switch(text, &absent) != 0)
        return 1;
    sim_fault_nvml_absent(absent);
    return 0;
}

int command_fault(int argc, char **argv) {
    if (open_state() != 0)
        return 1;
    if (argc == 4 && strcmp(argv[0], "alloc") == 0)
        return fault_alloc(argv[1], argv[2], argv[3]);
    if (argc == 3 && strcmp(argv[0], "xid") == 0)
        return fault_xid(argv[1], argv[2]);
    if (argc == 3 && strcmp(argv[0], "lost") == 0)
        return fault_lost(argv[1], argv[2]);
    if (argc == 2 && strcmp(argv[0], "nvml-absent") == 0)
        return fault_nvml_absent(argv[1]);
    if (argc >= 1 && (strcmp(argv[0], "mig") == 0 || strcmp(argv[0], "mig-delay") == 0))
        return command_fault_mig(argc, argv);
    if (argc == 1 && strcmp(argv[0], "clear") == 0) {
        sim_fault_clear();
        return 0;
    }
    complain("fault: alloc GPU|any N CODE, xid GPU N, lost GPU on|off, nvml-absent on|off, mig CALL N CODE, mig-delay "
             "MS, or clear");
    return 2;
}
