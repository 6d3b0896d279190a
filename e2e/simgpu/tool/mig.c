/* What a test does to MIG from outside: a driver that is loaded anew, a GPU that is reset, calls that fail. */
#include <stdint.h>
#include <string.h>

#include "health.h"
#include "mig/mig.h"
#include "state.h"
#include "tool.h"

int command_reload(int argc, char **argv) {
    bool force = argc == 1 && strcmp(argv[0], "--force") == 0;

    if (argc > 0 && !force)
        return complain("reload: only --force may follow");
    if (open_state() != 0)
        return 1;
    if (sim_mig_reload(force) != 0)
        return complain("reload: a process holds memory of a GPU; --force takes its MIG instance from it");
    return 0;
}

int command_reset(int argc, char **argv) {
    int gpu;

    if (argc != 1)
        return complain("reset: the GPU must follow");
    if (open_state() != 0 || parse_gpu(argv[0], &gpu) != 0)
        return 1;
    if (sim_mig_reset(gpu) != 0)
        return complain("reset: GPU %s is in use", argv[0]);
    return sim_gpu_reset(gpu) != 0;
}

int command_fault_mig(int argc, char **argv) {
    static const char *const acts[MIG_ACTS] = {
        [MIG_ACT_MODE] = "mode",           [MIG_ACT_GI_CREATE] = "gi-create",   [MIG_ACT_GI_DESTROY] = "gi-destroy",
        [MIG_ACT_CI_CREATE] = "ci-create", [MIG_ACT_CI_DESTROY] = "ci-destroy",
    };
    long long count, code;

    if (argc == 2 && strcmp(argv[0], "mig-delay") == 0) {
        if (parse_number(argv[1], 3600000, &count) != 0)
            return 1;
        sim_fault_mig_delay((uint32_t)count);
        return 0;
    }
    if (argc != 4 || strcmp(argv[0], "mig") != 0)
        return complain("fault: mig CALL N CODE, or mig-delay MS"), 2;
    if (parse_number(argv[2], UINT32_MAX, &count) != 0 || parse_number(argv[3], 999, &code) != 0)
        return 1;
    for (int act = 0; act < MIG_ACTS; act++) {
        if (strcmp(argv[1], acts[act]) == 0) {
            sim_fault_mig((enum sim_mig_act)act, (uint32_t)count, (int)code);
            return 0;
        }
    }
    return complain("%s: must be mode, gi-create, gi-destroy, ci-create or ci-destroy", argv[1]);
}
