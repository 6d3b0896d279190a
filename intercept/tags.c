#include "tags.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NUMBERS 64 /* signals that F_SETSIG takes: 1 to 64 */

/* glibc's fcntl has a newer symbol version than the oldest glibc that we serve. */
static long control(int descriptor, int command, long argument) {
    int error = errno;
    long result = syscall(SYS_fcntl, descriptor, command, argument);
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
    uint64_t halves[2] = {UINT64_C(0x64657363) << 32 | (uint32_t)process, (uint64_t)number};
    memcpy(tag, halves, TAG_SIZE);
}

void tag_new(struct process *process, uint8_t tag[static TAG_SIZE], uint32_t *number) {
    *number = 1 + atomic_fetch_add(&process->exports, 1) % NUMBERS;
    make(tag, getpid(), *number);
}

void tag_write(int descriptor, uint32_t number) {
    control(descriptor, F_SETOWN, getpid());
    control(descriptor, F_SETSIG, number);
}

bool tag_read(int descriptor, uint8_t tag[static TAG_SIZE]) {
    long process = control(descriptor, F_GETOWN, 0), number = control(descriptor, F_GETSIG, 0);
    if (process <= 0 || number < 1 || number > NUMBERS)
        return false;
    make(tag, process, number);
    return true;
}
