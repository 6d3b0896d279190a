/*
 * vandal: a program with a claim that attacks its own region, as root in its container, in one of many ways.
 *
 *   vandal HOW        HOW is one of the attacks below, or "none"
 *
 * It uses the GPU first, so that its region is in use, then attacks, then takes all the GPU memory that it is given. It says
 * in JSON what it got and what the driver's last answer was, and stays, with all that it holds, until SIGTERM.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver.h"

#define MIB (1024ULL * 1024)
#define HEADER 64 /* what says whose region this is */

static char usage[256], limit[256];
static size_t usage_size;

static int open_usage(void) {
    int fd = open(usage, O_RDWR);
    if (fd < 0) {
        perror(usage);
        exit(3);
    }
    return fd;
}

/* --- attacks; each leaves open what it needs to go on ---------------------------------------------------------------- */

static void none(void) {
}

static void noise_from(size_t start) {
    int fd = open_usage();
    for (size_t i = start; i < usage_size; i++) {
        unsigned char byte = (unsigned char)(rand() >> 7);
        if (pwrite(fd, &byte, 1, (off_t)i) != 1) {
            break;
        }
    }
}

static void noise(void) {
    noise_from(0);
}

static void noise_behind_header(void) {
    noise_from(HEADER);
}

static void shorten(void) {
    (void)!ftruncate(open_usage(), 4096);
}

static void empty(void) {
    (void)!ftruncate(open_usage(), 0);
}

static void lengthen(void) {
    (void)!ftruncate(open_usage(), 1LL << 40);
}

static void holes(void) {
    (void)!fallocate(open_usage(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)usage_size);
}

/* As much as the file system takes, in all the ways to take it. */
static void fill_disk(void) {
    int fd = open_usage();
    static char page[4096] = "x";
    (void)!fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)usage_size, 1LL << 30);
    lseek(fd, 0, SEEK_END);
    for (int i = 0; i < 1 << 16 && write(fd, page, sizeof page) > 0; i++) {
    }
}

static void locks(void) {
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    flock(open_usage(), LOCK_EX);
    fcntl(open_usage(), F_SETLK, &all);
    fcntl(open_usage(), F_OFD_SETLK, &all);
    for (off_t i = 0; i < 500; i++) { /* of many owners */
        struct flock one = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = ((off_t)1 << 40) - 2 * i, .l_len = 1};
        fcntl(open_usage(), F_OFD_SETLK, &one);
    }
}

static void leases(void) {
    fcntl(open_usage(), F_SETLEASE, F_WRLCK);
    fcntl(open(limit, O_RDONLY), F_SETLEASE, F_RDLCK);
}

static void modes(void) {
    (void)!chown(usage, 12345, 12345);
    chmod(usage, 0);
    chmod(usage, 04777);
    chmod(usage, 0);
}

/* What is not ours to change: the limit, the names, the directory. */
static void replace(void) {
    char other[300];
    snprintf(other, sizeof other, "%s.mine", usage);
    bool done = unlink(usage) == 0 || rename(usage, other) == 0 || link(usage, "/mine") == 0 ||
                link(limit, "/mine") == 0 || symlink("/etc", other) == 0 ||
                mkdir("/.tranche/claims/ffffffff", 0755) == 0 || open(limit, O_RDWR) >= 0 || truncate(limit, 0) == 0 ||
                rename("/.tranche", "/moved") == 0;
    if (done) {
        puts("{\"event\":\"broke out\"}");
        exit(4);
    }
}

/* Every slot has an owner already. */
static void slots(void) {
    for (int i = 0; i < 64; i++) {
        if (fork() == 0) {
            int count = 0;
            if (load_driver() && cuInit(0) == 0) {
                cuDeviceGetCount(&count);
            }
            pause();
            _exit(0);
        }
    }
    struct flock rest = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 4096 + 64 * 64};
    fcntl(open_usage(), F_OFD_SETLK, &rest);
}

static const struct attack {
    const char *name;
    void (*attack)(void);
} attacks[] = {
    {"none", none},       {"noise", noise},         {"noise-behind-header", noise_behind_header},
    {"shorten", shorten}, {"empty", empty},         {"lengthen", lengthen},
    {"holes", holes},     {"fill-disk", fill_disk}, {"locks", locks},
    {"leases", leases},   {"modes", modes},         {"slots", slots},
    {"replace", replace},
};

/* --- the GPU --------------------------------------------------------------------------------------------------------- */

static CUresult open_gpu(void) {
    CUdevice device;
    CUcontext context;
    if (!load_driver()) {
        return -1;
    }
    CUresult result = cuInit(0);
    if (result == 0) {
        result = cuDeviceGet(&device, 0);
    }
    if (result == 0) {
        result = cuDevicePrimaryCtxRetain(&context, device);
    }
    return result == 0 ? cuCtxSetCurrent(context) : result;
}

static unsigned long long take_all(CUresult *result) {
    unsigned long long taken = 0;
    CUdeviceptr pointer;
    for (unsigned long long piece = 64 * MIB; piece >= 2 * MIB; piece /= 2) {
        while (taken < 1ULL << 40 && (*result = cuMemAlloc_v2(&pointer, piece)) == 0) {
            taken += piece;
        }
    }
    return taken;
}

static bool find_region(void) {
    glob_t found;
    struct stat status;
    if (glob("/.tranche/claims/*", 0, NULL, &found) != 0) {
        return false;
    }
    snprintf(usage, sizeof usage, "%s/usage", found.gl_pathv[0]);
    snprintf(limit, sizeof limit, "%s/limit", found.gl_pathv[0]);
    usage_size = stat(usage, &status) == 0 ? (size_t)status.st_size : 0;
    return usage_size > 0;
}

/* What the kernel answers to the use of a page that the file no longer has. */
static void on_fault(int number) {
    static const char line[] = "{\"event\":\"attacked\",\"taken\":0,\"name\":\"SIGBUS\"}\n";
    (void)number;
    (void)!write(STDOUT_FILENO, line, sizeof line - 1);
    pause();
}

int main(int argc, char **argv) {
    sigset_t stop;
    int signal_number;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigprocmask(SIG_BLOCK, &stop, NULL);
    signal(SIGBUS, on_fault);
    signal(SIGIO, SIG_IGN); /* somebody opens a file with a lease */
    CUdeviceptr pointer;
    CUresult first = open_gpu();
    if (first == 0) {
        first = cuMemAlloc_v2(&pointer, 64 * MIB);
    }
    if (first != 0 || !find_region()) {
        fprintf(stderr, "vandal: no GPU (%s) or no region\n", error_name(first));
        return 1;
    }
    for (size_t i = 0; i < sizeof attacks / sizeof attacks[0]; i++) {
        if (argc == 2 && strcmp(argv[1], attacks[i].name) == 0) {
            attacks[i].attack();
            CUresult last = 0;
            unsigned long long taken = take_all(&last);
            printf("{\"event\":\"attacked\",\"taken\":%llu,\"name\":\"%s\"}\n", taken, error_name(last));
            fflush(stdout);
            sigwait(&stop, &signal_number);
            return 0;
        }
    }
    fprintf(stderr, "vandal: no attack of that name\n");
    return 2;
}
