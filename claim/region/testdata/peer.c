/*
 * The C side of a region, for a test of the Go side: prints what the host wrote, writes what a process would, and holds
 * its slots until its standard input ends.
 */
#define _GNU_SOURCE
#include "region/region.h"

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

/* A share is held by locks for reading. */
static void hold_share(int fd, unsigned slot) {
    struct flock lock = {
        .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = REGION_SLOTS_OFFSET + slot * REGION_SLOT_SIZE, .l_len = 1};
    if (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
        perror("lock");
        exit(1);
    }
}

static uint64_t word(uint64_t seq, int64_t low) {
    return seq << 40 | ((uint64_t)low & ((UINT64_C(1) << 39) - 1));
}

static void print(const struct region_limit *limit, const struct region_usage *usage) {
    printf("%.7s %u %u %.8s %s %llu %llu %llu %llu %llu\n", limit->magic, limit->version, limit->size,
           (const char *)limit->claim_id, limit->gpu_uuid, (unsigned long long)limit->limit_bytes,
           (unsigned long long)limit->context_bytes, (unsigned long long)limit->compute_share_permille,
           (unsigned long long)limit->flags, (unsigned long long)limit->spill_bytes);
    printf("%.7s %u %u %.8s %u %u %llu %llu\n", usage->magic, usage->version, usage->size,
           (const char *)usage->claim_id, usage->slot_count, usage->page_shift,
           (unsigned long long)usage->sums[0].total, (unsigned long long)usage->sums[1].total);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        return 2;
    }
    int limit_fd, usage_fd;
    const struct region_limit *limit = map(argv[1], REGION_LIMIT_FILE, REGION_LIMIT_SIZE, 0, &limit_fd);
    struct region_usage *usage = map(argv[1], REGION_USAGE_FILE, REGION_USAGE_SIZE, 1, &usage_fd);
    print(limit, usage);

    hold(usage_fd,
         0); /* its last operation, a move of 20 pages to its share, is in the total and has reached nothing */
    struct region_slot *slot = &usage->slots[0];
    slot->held[REGION_GPU] = (struct region_held){(UINT64_C(5) << 40) | 1ull << 39 | 9ull << 27 | 20, word(4, 1000)};
    slot->pid = 11;
    slot->contexts = 1;
    slot->life = 7 << REGION_LIFE_KIND_BITS | REGION_KIND_PROCESS;
    hold(usage_fd, 4095); /* its last operation, a release of what it spilled, has not reached the slot */
    slot = &usage->slots[4095];
    slot->held[REGION_GPU] = (struct region_held){word(8, -200), word(8, 300)};
    slot->held[REGION_SPILL] = (struct region_held){word(6, -4), word(5, 17)};
    slot->pid = 12;
    slot->contexts = 2;
    slot->life = REGION_KIND_PROCESS;
    usage->slots[5].held[REGION_GPU].committed = word(2, 70); /* dead */
    usage->slots[5].life = REGION_KIND_PROCESS;
    hold_share(usage_fd, 9);
    usage->slots[9].held[REGION_GPU] = (struct region_held){word(3, 20), word(2, 40)};
    usage->slots[9].life = REGION_KIND_SHARE;
    usage->slots[10].held[REGION_GPU].committed = word(2, 5); /* a share that nobody holds */
    usage->slots[10].life = REGION_KIND_SHARE;

    usage->sums[REGION_GPU].total = UINT64_C(5) << 40 | UINT64_C(0) << 28 | 1415;
    usage->sums[REGION_GPU].refused = 9;
    usage->sums[REGION_GPU].peak_pages = 1570;
    usage->sums[REGION_SPILL].total = UINT64_C(6) << 40 | UINT64_C(4095) << 28 | 13;
    usage->sums[REGION_SPILL].refused = 2;
    usage->sums[REGION_SPILL].peak_pages = 17;
    usage->high_water = 4096;
    puts("ready");
    fflush(stdout);

    getchar();
    printf("%llu %llu\n", (unsigned long long)limit->limit_bytes, (unsigned long long)limit->spill_bytes);
    return 0;
}
