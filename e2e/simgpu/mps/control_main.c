/* nvidia-cuda-mps-control, simulated: the control daemon with -f or -d, and without them its client. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../topology.h"
#include "control.h"
#include "log.h"

/* The first driver whose program speaks MPS v3. */
#define FIRST_WITH_V3 615

static const char usage_text[] =
    "usage: nvidia-cuda-mps-control [-f | -d] [-multiuser-server] | -v     SIMULATED: its GPUs are no real ones\n"
    "  -f                  run the control daemon in the foreground\n"
    "  -d                  run it in the background\n"
    "  -multiuser-server   one server for the clients of all users; needs root\n"
    "  -v                  say which program this is\n"
    "Without any of these, commands are read from stdin and answered; `help` lists them.\n";

static const char usage_text_v3[] = "  -p, --protocol N    2, or 3 for MPS v3\n"
                                    "  -m, --multiuser     as -multiuser-server\n"
                                    "  -q, --quit          end the daemon and its server\n"
                                    "  -h, --help          print this\n"
                                    "To a daemon of MPS v3 commands are given as nvidia-cuda-mps-control MODULE VERB "
                                    "[NAME] [--KEY=VALUE ...], with the modules\n"
                                    "  server, namespace, client\n";

struct options {
    bool foreground, background, for_all_users, version, help, quit;
    int protocol, command; /* where a command begins; 0: none is there */
};

/* Whether this is a program of a driver with MPS v3. */
static bool knows_v3(void) {
    static struct sim_topology topology;
    const char *path = getenv("SIMGPU_TOPOLOGY");
    char error[256];

    return topology_read(path != NULL ? path : "/run/simgpu/topology", &topology, error, sizeof(error)) == 0 &&
           atoi(topology.driver_version) >= FIRST_WITH_V3;
}

static bool is(const char *word, const char *name, const char *other) {
    return strcmp(word, name) == 0 || strcmp(word, other) == 0;
}

/* Options that came with v3. Returns how many words it is; 0: none of those. */
static int parse_v3(struct options *o, char **words) {
    if (is(words[0], "-m", "--multiuser")) {
        o->for_all_users = true;
    } else if (is(words[0], "-q", "--quit")) {
        o->quit = true;
    } else if (is(words[0], "-h", "--help")) {
        o->help = true;
    } else if (is(words[0], "-p", "--protocol") && words[1] != NULL) {
        o->protocol = atoi(words[1]);
        return 2;
    } else {
        return 0;
    }
    return 1;
}

static bool parse(struct options *o, int argc, char **argv, bool with_v3) {
    for (int i = 1; i < argc && o->command == 0;) {
        int words = 1;

        if (strcmp(argv[i], "-f") == 0)
            o->foreground = true;
        else if (strcmp(argv[i], "-d") == 0)
            o->background = true;
        else if (is(argv[i], "-multiuser-server", "--multiuser-server"))
            o->for_all_users = true;
        else if (is(argv[i], "-v", "--version"))
            o->version = true;
        else if (with_v3 && argv[i][0] != '-')
            o->command = i;
        else
            words = with_v3 ? parse_v3(o, argv + i) : 0;
        if (words == 0)
            return false;
        i += words;
    }
    /* The variable counts more than the option. */
    if (with_v3 && getenv("CUDA_MPS_PROTOCOL_VERSION") != NULL)
        o->protocol = atoi(getenv("CUDA_MPS_PROTOCOL_VERSION"));
    return o->protocol == 2 || o->protocol == 3;
}

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
    static char *quit[] = {"quit"};
    struct options o = {.protocol = 2};
    bool with_v3;

    mps_find_node();
    with_v3 = knows_v3();
    if (!parse(&o, argc, argv, with_v3)) {
        fputs(usage_text, stderr);
        return 1;
    }
    if (o.version) {
        printf("nvidia-cuda-mps-control, SIMULATED: there is no real GPU behind it\n");
        return 0;
    }
    if (o.help) {
        printf("%s%s", usage_text, usage_text_v3);
        return 0;
    }
    if (o.quit)
        return console_command(1, quit);
    if (o.command != 0)
        return console_command(argc - o.command, argv + o.command);
    if (!o.foreground && !o.background)
        return console_run();
    protocol_3 = o.protocol == 3;
    read_settings();
    if (o.background)
        return run_in_background(o.for_all_users);
    return daemon_open(o.for_all_users) ? daemon_run() : 1;
}
