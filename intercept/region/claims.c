#include "region/claims.h"
#include "system/calls.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CONTAINER_ROOT "/.tranche"
#define CONTAINER_CLAIMS CONTAINER_ROOT "/claims"
#define CLAIMS_VARIABLE "TRANCHE_REGIONS"
#define GPU_VARIABLE "TRANCHE_VISIBLE_GPU"

/* The variables are for processes outside containers; in a container they are ignored. */
static bool in_container(void) {
    int error = errno;
    bool container = access(CONTAINER_ROOT, F_OK) == 0 || errno != ENOENT;
    errno = error;
    return container;
}

/* The directory of the regions. */
static const char *claims_directory(void) {
    return in_container() ? CONTAINER_CLAIMS : secure_getenv(CLAIMS_VARIABLE);
}

const char *claims_visible_gpu(void) {
    return in_container() ? NULL : secure_getenv(GPU_VARIABLE);
}

static bool is_claim_id(const char *name) {
    return strlen(name) == REGION_CLAIM_ID_LENGTH && strspn(name, "0123456789abcdef") == REGION_CLAIM_ID_LENGTH;
}

static bool open_one(struct claims *claims, const char *directory, const char *id, claims_opener *open,
                     char why[static REGION_WHY]) {
    struct region *region = &claims->regions[claims->count];
    if (!open(region, directory, id, why))
        return false;
    int gpu = claims_find_gpu(claims, region->gpu_uuid);
    claims->gpu[claims->count] = (uint16_t)(gpu >= 0 ? (unsigned)gpu : claims->count);
    claims->count++;
    return true;
}

/* Adds the claim IDs among a directory's entries to sorted ones; false if there are too many. */
static bool add_ids(char ids[static CLAIMS_MAX][REGION_CLAIM_ID_LENGTH + 1], unsigned *count, const char *entries,
                    long size) {
    for (long at = 0; at < size;) {
        const struct directory_entry *entry = (const void *)(entries + at);
        at += entry->length;
        if (!is_claim_id(entry->name))
            continue;
        if (*count == CLAIMS_MAX)
            return false;
        unsigned place = (*count)++;
        for (; place > 0 && strcmp(ids[place - 1], entry->name) > 0; place--)
            memcpy(ids[place], ids[place - 1], sizeof ids[place]);
        memcpy(ids[place], entry->name, sizeof ids[place]);
    }
    return true;
}

static bool open_all(struct claims *claims, const char *directory, int fd, claims_opener *open,
                     char why[static REGION_WHY]) {
    _Alignas(struct directory_entry) char buffer[4096];
    char ids[CLAIMS_MAX][REGION_CLAIM_ID_LENGTH + 1];
    unsigned count = 0;
    long size;
    while ((size = syscall(SYS_getdents64, fd, buffer, sizeof buffer)) > 0)
        if (!add_ids(ids, &count, buffer, size))
            return region_fail(why, "%s holds more than %d claims", directory, CLAIMS_MAX);
    if (size < 0)
        return region_fail(why, "cannot list %s: errno %d", directory, errno);
    for (unsigned i = 0; i < count; i++)
        if (!open_one(claims, directory, ids[i], open, why))
            return false;
    return count > 0 || region_fail(why, "%s holds no claim", directory);
}

bool claims_find(struct claims *claims, claims_opener *open, char why[static REGION_WHY]) {
    const char *directory = claims_directory();
    memset(claims, 0, sizeof *claims);
    if (directory == NULL)
        return region_fail(why, "neither " CONTAINER_CLAIMS " nor the variable " CLAIMS_VARIABLE " exists");
    int fd = call_open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return region_fail(why, "cannot open %s: errno %d", directory, errno);
    bool opened = open_all(claims, directory, fd, open, why);
    call_close(fd);
    return opened;
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
