#include "memory/tags.h"
#include "system/calls.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define LOCKS_OFFSET ((off_t)1 << 61)

static long control(int descriptor, int command, uintptr_t argument) {
    int error = errno;
    long result = call_fcntl(descriptor, command, argument);
    errno = error;
    return result;
}

static uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t mixed = (a ^ b) * UINT64_C(0x9e3779b97f4a7c15);
    return mixed ^ mixed >> 29;
}

void tag_of_handle(const CUipcMemHandle *handle, uint8_t tag[static TAG_SIZE]) {
    uint64_t words[CU_IPC_HANDLE_SIZE / 8], halves[2] = {UINT64_C(0x69706368616e646c), 1};
    memcpy(words, handle, sizeof words);
    for (unsigned i = 0; i < CU_IPC_HANDLE_SIZE / 8; i++) {
        halves[0] = mix(halves[0], words[i]);
        halves[1] = mix(halves[1] + halves[0], words[i]);
    }
    memcpy(tag, halves, TAG_SIZE);
}

static void make(uint8_t tag[static TAG_SIZE], long process, long number) {
    uint64_t halves[2] = {UINT64_C(0x646573) << 40 | (uint64_t)(uint32_t)process << 8 | (uint64_t)number, 0};
    memcpy(tag, halves, TAG_SIZE);
}

void tag_of_number(uint32_t number, uint8_t tag[static TAG_SIZE]) {
    make(tag, getpid(), number);
}

static struct flock lock_of(short type, uint32_t number) {
    return (struct flock){.l_type = type,
                          .l_whence = SEEK_SET,
                          .l_start = LOCKS_OFFSET + (off_t)getpid() * (TAG_NUMBERS + 1) + (off_t)number,
                          .l_len = 1};
}

bool tag_write(int descriptor, uint32_t number) {
    struct flock lock = lock_of(F_RDLCK, number); /* several descriptions may have the same number */
    control(descriptor, F_SETOWN, (uintptr_t)getpid());
    control(descriptor, F_SETSIG, number);
    return control(descriptor, F_OFD_SETLK, (uintptr_t)&lock) == 0;
}

int tag_open_witness(int descriptor) {
    char path[64];
    int error = errno;
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    int witness = call_open(path, O_RDWR | O_CLOEXEC);
    errno = error;
    return witness;
}

bool tag_is_alive(int witness, uint32_t number) {
    struct flock lock = lock_of(F_WRLCK, number);
    return control(witness, F_OFD_GETLK, (uintptr_t)&lock) != 0 || lock.l_type != F_UNLCK;
}

bool tag_read(int descriptor, uint8_t tag[static TAG_SIZE]) {
    long process = control(descriptor, F_GETOWN, 0), number = control(descriptor, F_GETSIG, 0);
    if (process <= 0 || number < 1 || number > TAG_NUMBERS)
        return false;
    make(tag, process, number);
    return true;
}
