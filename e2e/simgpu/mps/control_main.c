/* nvidia-cuda-mps-control, simulated: the control daemon with -f or -d, and without them its client. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "control.h"
#include "log.h"

static const char usage_text[] =
    "usage: nvidia-cuda-mps-control [-f | -d] [-multiuser-server] | -v     SIMULATED: its GPUs are no real ones\n"
    "  -f                  run the control daemon in the foreground\n"
    "  -d                  run it in the background\n"
    "  -multiuser-server   one server for the clients of all users; needs root\n"
    "  -v                  say which program this is\n"
    "Without any of these, commands are read from stdin and answered; `help` lists them.\n";

static void read_settings(void) {
    const char *limits = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");

    mps_parse_percentage(getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), &default_percentage);
    if (limits != NULL)
        snprintf(default_limits, sizeof(default_limits), "%s", limits);
}

/* The parent ends when the daemon listens, or could not. */
static int run_in_background(bool for_all_users) {
    int ends[2], null, status = 1;
    char ready = 0;
    pid_t child;

    if (pipe2(ends, O_CLOEXEC) != 0)
        return 1;
    child = fork();
    if (child != 0) {
        close(ends[1]);
        if (child > 0 && read(ends[0], &ready, 1) == 1)
            return 0;
        if (child > 0)
            waitpid(child, &status, 0);
        return 1;
    }
    close(ends[0]);
    setsid();
    if (!daemon_open(for_all_users))
        return 1;
    if (write(ends[1], "r", 1) != 1)
        return 1;
    close(ends[1]);
    null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3; fd++)
        dup2(null, fd);
    return daemon_run();
}

int main(int argc, char **argv) {
    bool foreground = false, background = false, for_all_users = false;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-f") == 0) {
            foreground = true;
        } else if (strcmp(argv[i], "-d") == 0) {
            background = true;
        } else if (strcmp(argv[i], "-multiuser-server") == 0 || strcmp(argv[i], "--multiuser-server") == 0) {
            for_all_users = true;
        } else if (strcmp(argv[i], "-v") == 0 || strcmp(argv[i], "--version") == 0) {
            printf("nvidia-cuda-mps-control, SIMULATED: there is no real GPU behind it\n");
            return 0;
        } else {
            fputs(usage_text, stderr);
            return 1;
        }
    }
    mps_find_node();
    if (!foreground && !background)
        return console_run();
    read_settings();
    if (background)
        return run_in_background(for_all_users);
    return daemon_open(for_all_users) ? daemon_run() : 1;
}
