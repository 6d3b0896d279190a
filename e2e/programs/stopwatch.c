/*
 * stopwatch: tells when its first instruction ran and when its last one did.
 *
 *   stopwatch DIR
 *
 * Both are nanoseconds of CLOCK_MONOTONIC, which is the same in a container as outside. Each is written as a line to the
 * named pipe DIR/times. Between them it waits until something can be read from the named pipe DIR/end.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000000000 + now.tv_nsec;
}

int main(int argc, char **argv) {
    long long first = now_ns();
    if (argc != 2 || chdir(argv[1]) != 0) {
        fputs("usage: stopwatch DIR\n", stderr);
        return 2;
    }
    int times = open("times", O_WRONLY | O_CLOEXEC);
    int end = open("end", O_RDONLY | O_CLOEXEC);
    if (times < 0 || end < 0) {
        perror("stopwatch: open the named pipes times and end");
        return 2;
    }
    if (dprintf(times, "%lld\n", first) < 0) {
        perror("stopwatch: write the first time");
        return 2;
    }
    char byte;
    if (read(end, &byte, 1) < 0) {
        perror("stopwatch: wait for the end");
        return 2;
    }
    /* Nothing that could take time, such as what exit() does, lies between this and the end. */
    _exit(dprintf(times, "%lld\n", now_ns()) > 0 ? 0 : 2);
}
