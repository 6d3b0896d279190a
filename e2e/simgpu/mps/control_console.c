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

static int connect_daemon(void) {
    int daemon = mps_connect(mps_pipe_path("control_privileged"));

    if (daemon == -EACCES || daemon == -EPERM)
        printf("Cannot access the MPS control daemon: %s\n", strerror(-daemon));
    else if (daemon < 0)
        printf("Cannot find MPS control daemon process\n");
    return daemon;
}

int console_command(int count, char **words) {
    char line[1024] = "", answer[65536];
    int daemon = connect_daemon();
    ssize_t got;

    if (daemon < 0)
        return 1;
    for (int i = 0; i < count && strlen(line) + strlen(words[i]) + 2 < sizeof(line); i++)
        strcat(strcat(line, words[i]), " ");
    got = send(daemon, line, strlen(line), MSG_NOSIGNAL) < 0 ? -1 : recv(daemon, answer, sizeof(answer) - 1, 0);
    close(daemon);
    if (got <= 0)
        return is_quit(line) ? 0 : 1;
    answer[got] = '\0';
    fputs(answer, stdout);
    return strncmp(answer, "Error", 5) == 0;
}

int console_run(void) {
    int daemon = connect_daemon();
    char line[1024];

    if (daemon < 0)
        return 1;
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
