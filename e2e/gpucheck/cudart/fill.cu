/*
 * A program of CUDA's runtime library, which is linked into it, that meets its limit and goes on: fill LIMIT_BYTES.
 *
 * It prints a JSON object a line and waits for a line after each, so that whoever runs it can measure meanwhile. Without a
 * usable GPU it says why, and ends with status 4.
 */
#include <cuda_runtime.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (size_t(1) << 20)
#define PIECE_BYTES (128 * MIB)
#define PIECES_MAX 4096
#define VARIABLE_BYTES (8 * MIB)
#define NO_GPU 4

/* All zeroes; counts with the module that the runtime library loads for it. */
__device__ char variable[VARIABLE_BYTES];

__global__ void put(unsigned *memory, size_t count, unsigned value) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x)
        memory[i] = value + unsigned(variable[i % VARIABLE_BYTES]);
}

static unsigned *pieces[PIECES_MAX];

static void step(const char *name, const char *format, ...) {
    char line[64];
    va_list arguments;

    printf("{\"step\":\"%s\"", name);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    puts("}");
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL)
        exit(3);
}

/* Takes pieces until there is an error; never more than `cap`, should the limit not hold. */
static cudaError_t fill(size_t cap, unsigned *count) {
    cudaError_t error = cudaSuccess;

    for (*count = 0; *count < PIECES_MAX && *count * PIECE_BYTES < cap; ++*count) {
        error = cudaMalloc(reinterpret_cast<void **>(&pieces[*count]), PIECE_BYTES);
        if (error != cudaSuccess)
            break;
        put<<<64, 256>>>(pieces[*count], PIECE_BYTES / sizeof(unsigned), *count);
        error = cudaDeviceSynchronize();
        if (error != cudaSuccess)
            break;
    }
    cudaGetLastError(); /* it is no error of the next call */
    return error;
}

/* What is wrong with the pieces' contents; "" if nothing is. */
static const char *wrong(unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        unsigned last = ~i;
        cudaError_t error = cudaMemcpy(&last, pieces[i] + PIECE_BYTES / sizeof last - 1, sizeof last, cudaMemcpyDefault);

        if (error != cudaSuccess)
            return cudaGetErrorString(error);
        if (last != i)
            return "a piece has lost its contents";
    }
    return "";
}

static void empty(unsigned count) {
    for (unsigned i = 0; i < count; i++)
        cudaFree(pieces[i]);
}

/* PyTorch's name of it, which the report knows. */
static const char *type_of(cudaError_t error) {
    return error == cudaSuccess ? "" : error == cudaErrorMemoryAllocation ? "OutOfMemoryError" : cudaGetErrorName(error);
}

/* Not strtoull or atoll: with newer headers these need glibc 2.38. */
static size_t number(const char *text) {
    size_t value = 0;

    for (; *text >= '0' && *text <= '9'; text++)
        value = value * 10 + size_t(*text - '0');
    return value;
}

int main(int argc, char **argv) {
    size_t limit = argc == 2 ? number(argv[1]) : 0, free_bytes, total;
    cudaDeviceProp properties;
    unsigned count, again;
    int devices = 0;

    if (limit == 0) {
        fprintf(stderr, "usage: fill LIMIT_BYTES\n");
        return 2;
    }
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error == cudaSuccess)
        error = cudaFree(NULL);
    if (error == cudaSuccess)
        error = cudaMemGetInfo(&free_bytes, &total);
    if (error == cudaSuccess)
        error = cudaGetDeviceProperties(&properties, 0);
    if (error != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error));
        return NO_GPU;
    }
    step("begun", ",\"free\":%zu,\"total\":%zu,\"device_total\":%zu", free_bytes, total, properties.totalGlobalMem);
    error = fill(limit + limit / 8, &count);
    step("full", ",\"taken\":%zu,\"type\":\"%s\",\"message\":\"%s\"", count * PIECE_BYTES, type_of(error),
         error != cudaSuccess ? cudaGetErrorString(error) : "");
    step("computed", ",\"message\":\"%s\"", wrong(count));
    empty(count);
    cudaMemGetInfo(&free_bytes, &total);
    step("freed", ",\"free\":%zu,\"total\":%zu", free_bytes, total);
    error = fill(count * PIECE_BYTES, &again);
    step("again", ",\"message\":\"%s\"", error != cudaSuccess ? cudaGetErrorString(error) : wrong(again));
    empty(again);
    step("end", "%s", "");
    return 0;
}
