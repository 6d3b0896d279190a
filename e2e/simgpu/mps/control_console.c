/* The client of the control daemon: commands from stdin, answers to stdout. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control.h"

static bool is_quit(const char *line) {
    line += strspn(line, " \t");
    return strncmp(line, "quit", 4) == 0 && strchr(" \t\n", line[4]) != NULL;
}

/* Whether to go on: after `quit`, the daemon's end is the answer. */
static bool run(int daemon, const char *line) {
    char answer[65536];
    ssize_t got;

    if (line[strspn(line, " \t\n")] == '\0')
        return true;
    if (send(daemon, line, strlen(line), MSG_NOSIGNAL) < 0)
        return false;
    got = recv(daemon, answer, sizeof(answer) - 1, 0);
    if (got <= 0)
        return false;
    answer[got] = '\0';
    fputs(answer, stdout);
    fflush(stdout);
    return true;
}

int console_run(void) {
    int daemon = mps_connect(mps_pipe_path("control_privileged"));
    char line[1024];

    if (daemon < 0) {
        if (daemon == -EACCES || daemon == -EPERM)
            printf("Cannot access the MPS control daemon: %s\n", strerror(-daemon));
        else
            printf("Cannot find MPS control daemon process\n");
        return 1;
    }
    while (fgets(line, sizeof(line), stdin) != NULL) {
        if (run(daemon, line))
            continue;
        close(daemon);
        if (is_quit(line))
            return 0;
        printf("The MPS control daemon is gone\n");
        return 1;
    }
    close(daemon);
    return 0;
}
