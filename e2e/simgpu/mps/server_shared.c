/* The server's file in /dev/shm, which its clients must find there. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"
#include "server.h"

struct mps_shared *shared;

static char path[128];

const char *shared_name(void) {
    return strrchr(path, '/') + 1;
}

static void describe_devices(struct mps_shared *s) {
    s->device_count = device_count;
    for (uint32_t i = 0; i < device_count; i++)
        snprintf(s->uuid[i], sizeof(s->uuid[i]), "%s", sim_gpu(devices[i].gpu)->uuid);
}

bool shared_make(void) {
    int fd;

    snprintf(path, sizeof(path), MPS_SHM_DIRECTORY "/cuda.shm.%x.%x.1", getuid(), getpid());
    unlink(path);
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    /* Clients are of another user where a server is for all of them. */
    if (fd < 0 || fchmod(fd, 0644) != 0 || ftruncate(fd, sizeof(*shared)) != 0) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (shared == MAP_FAILED)
        return false;
    memcpy(shared->magic, MPS_MAGIC, sizeof(shared->magic));
    shared->version = MPS_VERSION;
    shared->size = sizeof(*shared);
    shared->server_pid = (uint32_t)getpid();
    shared->uid = getuid();
    describe_devices(shared);
    return true;
}

void shared_remove(void) {
    if (path[0] != '\0')
        unlink(path);
}
