#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int log_fd = -1;
static const char *log_who = "";

int mps_log_open(const char *file) {
    const char *directory = getenv("CUDA_MPS_LOG_DIRECTORY");
    char path[4096], *slash;
    int fd;

    if (directory == NULL || *directory == '\0')
        directory = "/var/log/nvidia-mps";
    if (mkdir(directory, 0755) != 0 && errno != EEXIST)
        return -1;
    snprintf(path, sizeof(path), "%s/%s", directory, file);
    slash = strrchr(path, '/');
    *slash = '\0';
    if (mkdir(path, 0755) != 0 && errno != EEXIST)
        return -1;
    *slash = '/';
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    return fd;
}

void mps_log_to(int fd, const char *who) {
    log_fd = fd;
    log_who = who;
}

void mps_log(const char *format, ...) {
    char line[1024], stamp[32];
    struct timespec now;
    struct tm local;
    va_list args;
    int length;

    if (log_fd < 0)
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    strftime(stamp, sizeof(stamp), "%Y-%m-%d %H:%M:%S", &local);
    length = snprintf(line, sizeof(line), "[%s.%03ld %s %d] ", stamp, now.tv_nsec / 1000000, log_who, getpid());
    va_start(args, format);
    vsnprintf(line + length, sizeof(line) - (size_t)length - 1, format, args);
    va_end(args);
    strcat(line, "\n");
    /* In one piece, for servers write to the same file. */
    if (write(log_fd, line, strlen(line)) < 0)
        log_fd = -1;
}

const char *mps_program_directory(void) {
    static char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    char *slash;

    path[length < 0 ? 0 : length] = '\0';
    slash = strrchr(path, '/');
    if (slash != NULL)
        *slash = '\0';
    return path;
}

void mps_find_node(void) {
    static const char *const names[][2] = {
        {"SIMGPU_TOPOLOGY", "run/simgpu/topology"}, {"SIMGPU_STATE", "run/simgpu/state"}, {"SIMGPU_DEV", "dev"}};
    char path[4200];

    snprintf(path, sizeof(path), "%s/../../run/simgpu/topology", mps_program_directory());
    if (getenv("SIMGPU_TOPOLOGY") != NULL || access(path, R_OK) != 0)
        return;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/../../%s", mps_program_directory(), names[i][1]);
        setenv(names[i][0], path, 0);
    }
}
