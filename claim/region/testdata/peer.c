/*
 * The C side of a region, for a test of the Go side: prints what the host wrote, writes what a process would, and holds
 * its slots until its standard input ends.
 */
#define _GNU_SOURCE
#include "region.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void *map(const char *dir, const char *name, size_t size, int writable, int *fd) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    *fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    void *at = mmap(NULL, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, *fd, 0);
    if (*fd < 0 || at == MAP_FAILED) {
        perror(path);
        exit(1);
    }
    return at;
}

static void hold(int fd, unsigned slot) {
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = REGION_SLOTS_OFFSET + slot * REGION_SLOT_SIZE, .l_len = 1};
    if (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
        perror("lock");
        exit(1);
    }
}

static uint64_t word(uint64_t seq, int64_t low) {
    return seq << 40 | ((uint64_t)low & ((UINT64_C(1) << 40) - 1));
}

int main(int argc, char **argv) {
    if (argc != 2) {
        return 2;
    }
    int limit_fd, usage_fd;
    const struct region_limit *limit = map(argv[1], REGION_LIMIT_FILE, REGION_LIMIT_SIZE, 0, &limit_fd);
    struct region_usage *usage = map(argv[1], REGION_USAGE_FILE, REGION_USAGE_SIZE, 1, &usage_fd);
    printf("%.7s %u %u %.8s %s %llu %llu %llu %llu\n", limit->magic, limit->version, limit->size,
           (const char *)limit->claim_id, limit->gpu_uuid, (unsigned long long)limit->limit_bytes,
           (unsigned long long)limit->context_bytes, (unsigned long long)limit->compute_share_permille,
           (unsigned long long)limit->flags);
    printf("%.7s %u %u %.8s %u %u %llu\n", usage->magic, usage->version, usage->size, (const char *)usage->claim_id,
           usage->slot_count, usage->page_shift, (unsigned long long)usage->total);

    hold(usage_fd, 0); /* at rest */
    usage->slots[0].op = word(4, 100);
    usage->slots[0].committed = word(4, 1000);
    usage->slots[0].pid = 11;
    usage->slots[0].contexts = 1;
    hold(usage_fd, 1023); /* its last operation, a release, is in the total and has not reached the slot */
    usage->slots[1023].op = word(8, -200);
    usage->slots[1023].committed = word(7, 500);
    usage->slots[1023].pid = 12;
    usage->slots[1023].contexts = 2;
    usage->slots[5].committed = word(2, 70); /* dead */
    usage->total = UINT64_C(8) << 40 | UINT64_C(1023) << 30 | 1370;
    usage->high_water = 1024;
    usage->refused = 9;
    usage->peak_pages = 1570;
    puts("ready");
    fflush(stdout);

    getchar();
    printf("%llu\n", (unsigned long long)limit->limit_bytes);
    return 0;
}
