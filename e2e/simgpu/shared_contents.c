/*
 * The contents of shared objects. They lie in the state file behind the state itself, so that whoever can hold an object
 * can see them; the file is as long as it must be, and takes room only for what was written.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared_local.h"

static off_t file_size(void) {
    struct stat info;

    return fstat(sim_local->low, &info) == 0 ? info.st_size : 0;
}

/* Makes the file reach to the end of the slot's contents. Nobody makes it shorter, so to lose a race does not matter:
 * fallocate, unlike ftruncate, never does either. */
static int reach(unsigned slot) {
    off_t end = CONTENT_OFFSET(slot + 1);

    if (file_size() >= end)
        return 0;
    /* One byte; a hole before it. */
    return fallocate(sim_local->low, 0, end - 1, 1) == 0 || pwrite(sim_local->low, "", 1, end - 1) == 1 ? 0 : -errno;
}

void shared_content_clear(unsigned slot) {
    if (file_size() > CONTENT_OFFSET(slot))
        fallocate(sim_local->low, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, CONTENT_OFFSET(slot),
                  (off_t)SIM_SHARED_CONTENT_BYTES);
}

int sim_shared_map(uint64_t object, uint64_t offset, void *address, uint64_t size) {
    uint64_t common = offset >= SIM_SHARED_CONTENT_BYTES         ? 0
                      : SIM_SHARED_CONTENT_BYTES - offset < size ? SIM_SHARED_CONTENT_BYTES - offset
                                                                 : size;
    unsigned slot = shared_slot(object);
    int ret = common != 0 ? reach(slot) : 0;

    if (ret != 0)
        return ret;
    if (common != 0 && mmap(address, common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, sim_local->low,
                            CONTENT_OFFSET(slot) + (off_t)offset) == MAP_FAILED)
        return -errno;
    if (common < size && mmap((char *)address + common, size - common, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        return -errno;
    return 0;
}

int sim_shared_write(uint64_t object, uint64_t offset, const void *bytes, uint64_t size) {
    unsigned slot = shared_slot(object);
    const char *from = bytes;
    int ret = reach(slot);

    if (ret != 0 || offset >= SIM_SHARED_CONTENT_BYTES)
        return ret;
    if (size > SIM_SHARED_CONTENT_BYTES - offset)
        size = SIM_SHARED_CONTENT_BYTES - offset;
    while (size > 0) {
        ssize_t wrote = pwrite(sim_local->low, from, size, CONTENT_OFFSET(slot) + (off_t)offset);

        if (wrote <= 0)
            return -errno;
        from += wrote;
        offset += (uint64_t)wrote;
        size -= (uint64_t)wrote;
    }
    return 0;
}
