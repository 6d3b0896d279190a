#include "vmm_content.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shared_objects.h"

/* All under vmm_mutex. */
static int file = -1;
static uint64_t end; /* of the places given out so far */

CUresult content_new(uint64_t size, uint64_t *content) {
    if (file < 0)
        file = memfd_create("simulated GPU memory", MFD_CLOEXEC);
    REQUIRE(file >= 0 && ftruncate(file, (off_t)(end + size)) == 0, CUDA_ERROR_OUT_OF_MEMORY);
    *content = end;
    end += size;
    return CUDA_SUCCESS;
}

void content_free(uint64_t content, uint64_t size) {
    fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)content, (off_t)size);
}

bool content_map(uint64_t content, void *address, uint64_t size) {
    return mmap(address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, (off_t)content) !=
           MAP_FAILED;
}

void content_to_object(uint64_t content, uint64_t size, uint64_t object) {
    uint64_t from = content, last = content + (size < SIM_SHARED_CONTENT_BYTES ? size : SIM_SHARED_CONTENT_BYTES);
    static char buffer[65536];

    /* Most of it was never written. */
    while (from < last) {
        off_t data = lseek(file, (off_t)from, SEEK_DATA);
        ssize_t got;

        if (data < 0 || (uint64_t)data >= last)
            return;
        from = (uint64_t)data;
        got = pread(file, buffer, last - from < sizeof(buffer) ? last - from : sizeof(buffer), data);
        if (got <= 0 || sim_shared_write(object, from - content, buffer, (uint64_t)got) != 0)
            return;
        from += (uint64_t)got;
    }
}
