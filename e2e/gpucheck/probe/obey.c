/*
 * Does what it is told, a line at a time, and says what came of it:
 *
 *   take BYTES          one piece of linear memory
 *   fill PIECE CAP      pieces until one is refused, then smaller ones
 *   give                frees the last piece
 *   pinned BYTES        host memory, which is not the GPU's
 *   info                what the driver says of the memory
 *   exit                ends with _exit, its memory and its context as they are
 */
#include "probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 65536 };
static CUdeviceptr held[MOST];
static unsigned long long sizes[MOST], taken;
static size_t count;

static CUresult take(unsigned long long bytes) {
    if (count == MOST)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuda.cuMemAlloc_v2(&held[count], bytes);
    if (result == CUDA_SUCCESS) {
        sizes[count++] = bytes;
        taken += bytes;
    }
    return result;
}

static CUresult fill(unsigned long long piece, unsigned long long cap) {
    for (;;) {
        if (taken + piece > cap)
            return CUDA_SUCCESS;
        CUresult result = take(piece);
        if (result == CUDA_ERROR_OUT_OF_MEMORY && piece > 2 * MIB)
            piece = piece / 8 > MIB ? piece / 4 / (2 * MIB) * (2 * MIB) : 2 * MIB;
        else if (result != CUDA_SUCCESS)
            return result;
    }
}

static CUresult give(void) {
    if (count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    taken -= sizes[--count];
    return cuda.cuMemFree_v2(held[count]);
}

static CUresult pinned(unsigned long long bytes) {
    void *memory;
    CUresult result = cuda.cuMemHostAlloc(&memory, bytes, 0);
    if (result == CUDA_SUCCESS)
        memset(memory, 1, bytes);
    return result;
}

static void answer(CUresult result) {
    size_t free = 0, total = 0, device_total = 0;
    cuda.cuMemGetInfo_v2(&free, &total);
    cuda.cuDeviceTotalMem_v2(&device_total, device);
    say("done", "\"result\":%d,\"name\":\"%s\",\"taken\":%llu,\"free\":%zu,\"total\":%zu,\"device_total\":%zu", result,
        error_name(result), taken, free, total, device_total);
}

int probe_obey(int argc, char **argv) {
    (void)argc, (void)argv;
    char line[128];
    unsigned long long first, second;
    open_context();
    answer(CUDA_SUCCESS);
    while (read_line(line, sizeof line)) {
        if (sscanf(line, "take %llu", &first) == 1)
            answer(take(first));
        else if (sscanf(line, "fill %llu %llu", &first, &second) == 2)
            answer(fill(first, second));
        else if (sscanf(line, "pinned %llu", &first) == 1)
            answer(pinned(first));
        else if (strcmp(line, "give") == 0)
            answer(give());
        else if (strcmp(line, "info") == 0)
            answer(CUDA_SUCCESS);
        else if (strcmp(line, "exit") == 0)
            _exit(0);
        else
            return 2;
    }
    return 0;
}
