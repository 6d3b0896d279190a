#include "region/tags.h"

#include "region/words.h"
#include "system/calls.h"
#include "system/mapped.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAG_BITS 61
#define LOCKS_OFFSET ((uint64_t)1 << 62)
#define WITNESS_SIGNAL 61 /* is never sent: without O_ASYNC it only marks the witness (F_SETSIG, fcntl(2)) */
#define OWN_FILES "/proc/thread-self/fd" /* a thread may have its own table of descriptors */
#define LOCKS_SIZE ((size_t)1 << 16)     /* more than the kernel returns of /proc/locks at once */
#define LOCKS_ATTEMPTS 8
#define FILES_MAX 4 /* for which a witness is looked for in one search */

/* --- numbers ------------------------------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t mixed = (a ^ b) * UINT64_C(0x9e3779b97f4a7c15);
    return mixed ^ mixed >> 29;
}

static uint64_t tag_from(uint64_t bits) {
    uint64_t tag = bits >> (64 - TAG_BITS);
    return tag != 0 ? tag : 1;
}

uint64_t tag_new(void) {
    uint64_t bits;
    int error = errno;
    bool done = syscall(SYS_getrandom, &bits, sizeof bits, 0) == sizeof bits;
    errno = error;
    return done ? tag_from(bits) : 0;
}

uint64_t tag_of_handle(const void *handle, size_t size) {
    uint64_t word, hash = UINT64_C(0x69706368616e646c);
    for (size_t i = 0; i + sizeof word <= size; i += sizeof word) {
        memcpy(&word, (const char *)handle + i, sizeof word);
        hash = mix(hash, word);
    }
    return tag_from(mix(hash, size));
}

uint64_t tag_file(int descriptor) {
    struct stat file;
    int error = errno;
    uint64_t number = 0;
    if (call_fstat(descriptor, &file))
        number = tag_from(mix(mix((uint64_t)file.st_dev, 1), (uint64_t)file.st_ino));
    errno = error;
    return number;
}

/* --- locks -------------------------------------------------------------------------------------------------------- */

static bool lock(int descriptor, int command, short *type, uint64_t tag) {
    struct flock lock = {.l_type = *type, .l_whence = SEEK_SET, .l_start = (off_t)(LOCKS_OFFSET | tag), .l_len = 1};
    bool done = call_fcntl(descriptor, command, (uintptr_t)&lock) == 0;
    *type = lock.l_type;
    return done;
}

bool tag_write(int descriptor, uint64_t tag) {
    short type = F_RDLCK; /* several descriptions may have the same tag */
    int error = errno;
    bool done = lock(descriptor, F_OFD_SETLK, &type, tag);
    errno = error;
    return done;
}

/* Opens a file of /proc and reads its beginning. The length; -1 if it was not read to its end. */
static ssize_t read_all(const char *path, char *text, size_t size) {
    int fd = call_open(path, O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    ssize_t got = fd >= 0 ? 1 : -1;
    while (got > 0 && length < size && (got = call_pread(fd, text + length, size - length, (off_t)length)) > 0)
        length += (size_t)got;
    if (fd >= 0)
        call_close(fd);
    return got == 0 ? (ssize_t)length : -1;
}

/* The offset of a lock of one byte, from a line that ends with its first and last byte; 0 if it is another. */
static uint64_t offset_of(const char *line, const char *end) {
    const char *at = end;
    for (int spaces = 0; at > line && spaces < 2; at--)
        spaces += at[-1] == ' ';
    char *rest;
    uint64_t first = strtoull(at, &rest, 10), last = strtoull(rest, &rest, 10);
    return rest == end && first == last ? first : 0;
}

bool tag_read(int descriptor, uint64_t *tag) {
    char path[64], text[4096];
    int error = errno;
    ssize_t length = 0;
    snprintf(path, sizeof path, "/proc/thread-self/fdinfo/%d", descriptor);
    if (call_fcntl(descriptor, F_GETFD, 0) >= 0)
        length = read_all(path, text, sizeof text - 1);
    errno = error;
    *tag = 0;
    if (length < 0)
        return false;
    text[length] = '\0';
    for (const char *at = text, *end; *tag == 0 && (at = strstr(at, "OFDLCK")) != NULL; at = end) {
        if ((end = strchr(at, '\n')) == NULL)
            return false;
        uint64_t offset = offset_of(at, end);
        *tag = (offset & LOCKS_OFFSET) != 0 ? offset & ~LOCKS_OFFSET : 0;
    }
    return true;
}

/* --- the witness -------------------------------------------------------------------------------------------------- */

/* The program may have closed it and reused its number: even for another descriptor of the same file, whose own locks a
 * query through it would not report. */
static bool is_ours(int descriptor) {
    return descriptor >= 0 && call_fcntl(descriptor, F_GETSIG, 0) == WITNESS_SIGNAL;
}

static bool is_witness(int descriptor, uint64_t file) {
    return is_ours(descriptor) && tag_file(descriptor) == file;
}

/* A new description of the file of this process's descriptor; -1 if it is another file, or cannot be opened. */
static int open_again(const char *number, uint64_t file) {
    char path[sizeof OWN_FILES + 32];
    if (tag_file(atoi(number)) != file)
        return -1;
    snprintf(path, sizeof path, OWN_FILES "/%s", number);
    int witness = call_open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (witness < 0)
        return -1;
    call_fcntl(witness, F_SETSIG, WITNESS_SIGNAL);
    if (is_witness(witness, file))
        return witness;
    call_close(witness);
    return -1;
}

/* Opens the file through any descriptor that this process has of it. The driver has its own open. -1 if there is none. */
static int find_witness(uint64_t file) {
    _Alignas(struct directory_entry) char buffer[4096];
    int directory = call_open(OWN_FILES, O_RDONLY | O_DIRECTORY | O_CLOEXEC), witness = -1;
    long size;
    while (directory >= 0 && witness < 0 && (size = syscall(SYS_getdents64, directory, buffer, sizeof buffer)) > 0) {
        for (long at = 0; at < size && witness < 0;) {
            const struct directory_entry *entry = (const void *)(buffer + at);
            witness = entry->name[0] != '.' ? open_again(entry->name, file) : -1;
            at += entry->length;
        }
    }
    if (directory >= 0)
        call_close(directory);
    return witness;
}

/* Keeps another witness. One that another thread queries at this moment may be closed: it notices that afterwards. */
static void keep(_Atomic int *kept, int witness) {
    int former = atomic_exchange(kept, witness);
    if (is_ours(former))
        call_close(former);
}

void tag_close_witness(_Atomic int *witness) {
    keep(witness, -1);
}

/* Queries a lock through the witness. False if there is none. A damaged region may name thousands of files. */
static bool query(struct tag_search *search, uint64_t file, uint64_t tag, bool *alive) {
    int witness = atomic_load(search->witness);
    if (!is_witness(witness, file)) {
        witness = search->files < FILES_MAX ? find_witness(file) : -1;
        if (witness < 0) {
            search->files++;
            return false;
        }
        keep(search->witness, witness);
    }
    short type = F_WRLCK;
    if (!lock(witness, F_OFD_GETLK, &type, tag) || !is_witness(witness, file))
        return false;
    *alive = type != F_UNLCK;
    return true;
}

/* --- /proc/locks -------------------------------------------------------------------------------------------------- */

static bool add_tags(struct tag_search *search, const char *text, const char *text_end) {
    for (const char *line = text, *end; line < text_end; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text_end - line));
        uint64_t offset = memmem(line, (size_t)(end - line), "OFDLCK", 6) != NULL ? offset_of(line, end) : 0;
        if ((offset & LOCKS_OFFSET) == 0)
            continue;
        if (search->count == search->room) {
            uint64_t *larger = mapped_grow(search->tags, &search->room, sizeof *larger);
            if (larger == NULL)
                return false;
            search->tags = larger;
        }
        search->tags[search->count++] = offset & ~LOCKS_OFFSET;
    }
    return true;
}

/* Reads all locks once. The kernel returns some at a time, and goes on by their number: a lock that ends in between makes
 * it skip another. `hash` is that of all that was read. False if it was not read to its end. */
static bool read_locks(struct tag_search *search, char *text, uint64_t *hash) {
    int fd = call_open("/proc/locks", O_RDONLY | O_CLOEXEC);
    ssize_t length = -1;
    off_t from = 0;
    *hash = search->count = 0;
    while (fd >= 0 && (length = call_pread(fd, text, LOCKS_SIZE, from)) > 0 && text[length - 1] == '\n' &&
           add_tags(search, text, text + length)) {
        from += length;
        for (ssize_t i = 0; i < length; i++)
            *hash = (*hash ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    }
    if (fd >= 0)
        call_close(fd);
    return length == 0;
}

/* They are known if they were read twice with the same result. */
static void list(struct tag_search *search) {
    char *text = mapped_new(LOCKS_SIZE);
    uint64_t hash, before = 0;
    bool read = text != NULL;
    search->listed = true;
    for (int i = 0; i < LOCKS_ATTEMPTS && read && !search->known; i++) {
        read = read_locks(search, text, &hash);
        search->known = read && i > 0 && hash == before;
        before = hash;
    }
    mapped_free(text, LOCKS_SIZE);
}

static bool is_listed(struct tag_search *search, uint64_t tag) {
    if (!search->listed)
        list(search);
    for (size_t i = 0; search->known && i < search->count; i++)
        if (search->tags[i] == tag)
            return true;
    return !search->known;
}

bool tag_is_alive(struct tag_search *search, uint64_t file, uint64_t tag) {
    bool alive;
    int error = errno;
    if (!query(search, file, tag, &alive))
        alive = is_listed(search, tag);
    errno = error;
    return alive;
}

void tag_search_end(struct tag_search *search) {
    mapped_free(search->tags, search->room * sizeof *search->tags);
}
