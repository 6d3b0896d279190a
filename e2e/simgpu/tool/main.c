/* simgpu: what a test or a person does to the simulated GPUs from outside. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "state.h"
#include "tool.h"

static const char usage_text[] =
    "usage: simgpu COMMAND          SIMULATED GPUs: nothing here is a real one\n"
    "  init                         make a new, empty state (SIMGPU_STATE) for the topology (SIMGPU_TOPOLOGY)\n"
    "  root DIR                     lay out a driver root in DIR for the topology\n"
    "  record [--json]              who holds how many bytes of which GPU, and the peak of each group\n"
    "  reset-peak                   let every group's peak begin anew from what the group holds now\n"
    "  reset GPU                    reset an idle GPU: a pending MIG mode takes effect, its instances are gone, "
    "volatile\n"
    "                               counters begin anew, what waits for a reset is done\n"
    "  reload [--force]             load the driver anew: MIG instances are gone, and the mode but of A100 and A30\n"
    "  smi                          what nvidia-smi would show\n"
    "  fault alloc GPU|any N CODE   let the next N allocations fail with this CUDA result\n"
    "  fault kernel GPU N CODE      let the next N kernels on the GPU end with this exception, a CUDA result\n"
    "  fault xid GPU N [GI [CI]]    post an Xid event, of the GPU or of a MIG instance\n"
    "  fault lost GPU on|off        let the GPU fall off the bus, or come back: NVML goes on counting it\n"
    "  fault removed GPU on|off     take the GPU out, or put it in: a new session does not find it, or does\n"
    "  fault ecc GPU KIND WHERE N   let N errors occur: corrected or uncorrected; dram, l1, l2, registers, sram\n"
    "  fault recovery GPU ACTION    have the driver ask for an action, by NVML's number; 0 for none\n"
    "  fault driver unload|load     take the driver away, or bring it back: old sessions stay broken\n"
    "  fault mismatch on|off        let the driver be of another version than NVML: new sessions are refused\n"
    "  fault hang FUNCTION on|off   let calls of this NVML function (all: of any) hang until it is called off\n"
    "  fault nvml-error GPU|any FUNCTION CODE  let such calls about the GPU fail; CODE 0 calls it off\n"
    "  fault mig CALL N CODE        let the next N of these NVML calls fail with this NVML result: mode, gi-create,\n"
    "                               gi-destroy, ci-create, ci-destroy\n"
    "  fault mig-delay MS           let making and destroying MIG instances take so long\n"
    "  fault nvml-absent on|off     let NVML find no driver, or find it again\n"
    "  fault clear                  call every fault off, and whatever was set\n"
    "  set                          list what can be set\n"
    "  set GPU NAME VALUE           have the GPU tell this of itself: a number, unsupported, or default\n";

int complain(const char *format, ...) {
    va_list args;

    fputs("simgpu: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    return 1;
}

int open_state(void) {
    return sim_open_all() != 0 ? complain("%s", sim_error()) : 0;
}

const char *tool_directory(void) {
    static char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    char *slash;

    path[length < 0 ? 0 : length] = '\0';
    slash = strrchr(path, '/');
    if (slash != NULL)
        *slash = '\0';
    return path;
}

static int command_init(void) {
    return sim_state_create() != 0 ? complain("%s", sim_error()) : 0;
}

static int command_reset_peak(void) {
    if (open_state() != 0)
        return 1;
    sim_reset_peaks();
    return 0;
}

/* nvidia-smi goes through NVML, as a user's would, so it shows what a shadow library in front of NVML lets through. */
static int command_smi(char **argv) {
    char path[4200];

    snprintf(path, sizeof(path), "%s/nvidia-smi", tool_directory());
    execv(path, argv);
    return complain("run %s: %s", path, strerror(errno));
}

int main(int argc, char **argv) {
    const char *command = argc > 1 ? argv[1] : "";

    if (strcmp(command, "record") == 0)
        return command_record(argc - 2, argv + 2);
    if (strcmp(command, "fault") == 0)
        return command_fault(argc - 2, argv + 2);
    if (strcmp(command, "set") == 0)
        return command_set(argc - 2, argv + 2);
    if (strcmp(command, "reset") == 0)
        return command_reset(argc - 2, argv + 2);
    if (strcmp(command, "root") == 0)
        return command_root(argc - 2, argv + 2);
    if (strcmp(command, "init") == 0 && argc == 2)
        return command_init();
    if (strcmp(command, "reset-peak") == 0 && argc == 2)
        return command_reset_peak();
    if (strcmp(command, "reload") == 0)
        return command_reload(argc - 2, argv + 2);
    if (strcmp(command, "smi") == 0)
        return command_smi(argv + 1);
    if (strcmp(command, "help") == 0 || strcmp(command, "--help") == 0)
        return fputs(usage_text, stdout) < 0;
    fputs(usage_text, stderr);
    return 2;
}
