#include "region/claims.h"
#include "system/calls.h"
#include "system/explain.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CONTAINER_ROOT "/.tranche"
#define CONTAINER_CLAIMS CONTAINER_ROOT "/claims"
#define CLAIMS_VARIABLE "TRANCHE_REGIONS"

/* The directory of the regions. The variable is for processes outside containers; in a container it is ignored. */
static const char *claims_directory(void) {
    if (access(CONTAINER_ROOT, F_OK) == 0 || errno != ENOENT)
        return CONTAINER_CLAIMS;
    return secure_getenv(CLAIMS_VARIABLE);
}

static bool is_claim_id(const char *name) {
    return strlen(name) == REGION_CLAIM_ID_LENGTH && strspn(name, "0123456789abcdef") == REGION_CLAIM_ID_LENGTH;
}

static bool open_one(struct claims *claims, const char *directory, const char *id, bool join,
                     char why[static REGION_WHY]) {
    if (claims->count == CLAIMS_MAX)
        return region_fail(why, "%s holds more than %d claims", directory, CLAIMS_MAX);
    struct region *region = &claims->regions[claims->count];
    if (!region_open(region, directory, id, why) || !(join ? region_join(region, why) : region_look(region, why)))
        return false;
    int gpu = claims_find_gpu(claims, region->gpu_uuid);
    claims->gpu[claims->count] = (uint16_t)(gpu >= 0 ? (unsigned)gpu : claims->count);
    claims->count++;
    return true;
}

static bool open_all(struct claims *claims, const char *directory, int fd, bool join, char why[static REGION_WHY]) {
    _Alignas(struct directory_entry) char buffer[4096];
    long size;
    while ((size = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0) {
        for (long at = 0; at < size;) {
            const struct directory_entry *entry = (const void *)(buffer + at);
            if (is_claim_id(entry->name) && !open_one(claims, directory, entry->name, join, why))
                return false;
            at += entry->length;
        }
    }
    if (size < 0)
        return region_fail(why, "cannot list %s: errno %d", directory, errno);
    return claims->count > 0 || region_fail(why, "%s holds no claim", directory);
}

static bool open_in(struct claims *claims, const char *directory, bool join, char why[static REGION_WHY]) {
    if (directory == NULL)
        return region_fail(why, "neither " CONTAINER_CLAIMS " nor the variable " CLAIMS_VARIABLE " exists");
    int fd = call_open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return region_fail(why, "cannot open %s: errno %d", directory, errno);
    bool opened = open_all(claims, directory, fd, join, why);
    call_close(fd);
    return opened;
}

bool claims_open(struct claims *claims, bool join) {
    char why[REGION_WHY];
    memset(claims, 0, sizeof *claims);
    if (open_in(claims, claims_directory(), join, why))
        return true;
    claims_close(claims);
    explain(CAUSE_REGION,
            "cannot read the GPU memory limit: %s; start the program in a container with GPU slices, or with "
            "`tranche run`",
            why);
    return false;
}

void claims_close(struct claims *claims) {
    for (unsigned i = 0; i < claims->count; i++)
        region_close(&claims->regions[i]);
    claims->count = 0;
}

int claims_find_gpu(const struct claims *claims, const char *uuid) {
    /* CUDA does not report whether a UUID is a GPU's or a MIG instance's, so the prefixes are not compared. */
    const size_t prefix = sizeof "GPU-" - 1;
    if (strlen(uuid) <= prefix)
        return -1;
    for (unsigned i = 0; i < claims->count; i++) {
        const char *other = claims->regions[i].gpu_uuid;
        if (strlen(other) > prefix && strcmp(other + prefix, uuid + prefix) == 0)
            return claims->gpu[i];
    }
    return -1;
}

uint64_t claims_limit_bytes(const struct claims *claims, int gpu) {
    uint64_t sum = 0;
    for (unsigned i = (unsigned)gpu; i < claims->count; i++)
        if (claims->gpu[i] == gpu)
            sum += region_limit_bytes(&claims->regions[i], REGION_GPU);
    return sum;
}

uint64_t claims_used_bytes(struct claims *claims, int gpu) {
    uint64_t sum = 0;
    for (unsigned i = (unsigned)gpu; i < claims->count; i++)
        if (claims->gpu[i] == gpu)
            sum += region_used_bytes(&claims->regions[i], REGION_GPU);
    return sum;
}
