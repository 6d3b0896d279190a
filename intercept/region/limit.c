/* Reading the file `limit`: which GPU a claim is for. */
#include "region/words.h"
#include "system/calls.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

bool region_fail(char why[static REGION_WHY], const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, REGION_WHY, format, arguments);
    va_end(arguments);
    return false;
}

int region_open_file(const char *path, int access, size_t size, struct stat *status, char why[static REGION_WHY]) {
    int fd = call_open(path, access | REGION_OPEN_FLAGS);
    if (fd < 0 && errno == ELOOP)
        region_fail(why, "%s is a symbolic link", path);
    else if (fd < 0 && errno != EISDIR)
        region_fail(why, "cannot open %s: errno %d", path, errno);
    else if (fd < 0)
        region_fail(why, "%s is no regular file", path);
    else if (!call_fstat(fd, status))
        region_fail(why, "cannot stat %s: errno %d", path, errno);
    else if (!S_ISREG(status->st_mode))
        region_fail(why, "%s is no regular file", path);
    else if (status->st_size != (off_t)size)
        region_fail(why, "%s has %lld bytes instead of %zu", path, (long long)status->st_size, size);
    else
        return fd;
    if (fd >= 0)
        call_close(fd);
    return -1;
}

bool region_check_heading(const void *file, const char *magic, uint32_t size, const char *path, const char *id,
                          char why[static REGION_WHY]) {
    const struct region_heading *heading = file;
    if (memcmp(heading->magic, magic, sizeof heading->magic) != 0)
        return region_fail(why, "%s is not a file of a claim's region", path);
    if (heading->version != REGION_VERSION)
        return region_fail(why, "%s has version %u, this library knows version %u", path, heading->version,
                           REGION_VERSION);
    if (heading->size != size)
        return region_fail(why, "%s declares %u bytes instead of %u", path, heading->size, size);
    if (memcmp(heading->claim_id, id, REGION_CLAIM_ID_LENGTH) != 0)
        return region_fail(why, "%s belongs to claim %.8s, not to claim %.8s", path, (const char *)heading->claim_id,
                           id);
    return true;
}

bool region_read_start(int fd, void *start, size_t size, const char *path, char why[static REGION_WHY]) {
    ssize_t got = call_pread(fd, start, size, 0);
    int error = errno;
    call_close(fd);
    if (got < 0)
        return region_fail(why, "cannot read %s: errno %d", path, error);
    return got == (ssize_t)size || region_fail(why, "%s was truncated", path);
}

static bool read_limit(struct region *region, const char *id, char why[static REGION_WHY]) {
    const char *path = region->limit_path;
    struct region_limit limit;
    struct stat status;
    int fd = region_open_file(path, O_RDONLY, REGION_LIMIT_SIZE, &status, why);
    if (fd < 0 || !region_read_start(fd, &limit, sizeof limit, path, why) ||
        !region_check_heading(&limit, REGION_LIMIT_MAGIC, REGION_LIMIT_SIZE, path, id, why))
        return false;
    memcpy(region->gpu_uuid, limit.gpu_uuid, sizeof region->gpu_uuid);
    region->context_bytes = limit.context_bytes;
    if (region->gpu_uuid[0] == '\0' || memchr(region->gpu_uuid, '\0', sizeof region->gpu_uuid) == NULL)
        return region_fail(why, "%s names no GPU", path);
    return true;
}

bool region_identify(struct region *region, const char *directory, const char *id, char why[static REGION_WHY]) {
    memset(region, 0, sizeof *region);
    region->slot = region->descriptor = region->holder.descriptor = region->witness = -1;
    region->queue.socket = region->holder.queue.socket = -1;
    if (strlen(id) != REGION_CLAIM_ID_LENGTH)
        return region_fail(why, "%s is not a claim ID", id);
    int length = snprintf(region->usage_path, sizeof region->usage_path, "%s/%s/" REGION_USAGE_FILE, directory, id);
    if (length < 0 || (size_t)length >= sizeof region->usage_path)
        return region_fail(why, "the path %s is too long", directory);
    snprintf(region->limit_path, sizeof region->limit_path, "%s/%s/" REGION_LIMIT_FILE, directory, id);
    return read_limit(region, id, why);
}
