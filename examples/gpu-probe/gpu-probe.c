/*
 * gpu-probe: a program that says what GPU it sees and how much memory it can take, and then keeps the GPU busy.
 * It calls the CUDA driver API and NVML, found at run time, as any CUDA program ends up doing, and knows nothing of
 * Tranche. Each line on stdout is one JSON object.
 *
 *   gpu-probe look        what is there, then exit
 *   gpu-probe fill        allocate on each GPU until the driver refuses, then launch kernels until SIGTERM
 *   gpu-probe take MIB    allocate so much on each GPU, a multiple of 2, then the same
 *   gpu-probe work        launch kernels of a millisecond on the last GPU without a pause until SIGTERM
 *   gpu-probe greedy      never stop allocating, by every size, until SIGTERM
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver.h"

#define MIB (1024ULL * 1024)
#define CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT 16

/* A kernel that does nothing, and one that runs for a millisecond, for any GPU that the driver still compiles for. */
static const char kernel_ptx[] = ".version 6.0\n"
                                 ".target sm_50\n"
                                 ".address_size 64\n"
                                 ".visible .entry nothing() { ret; }\n"
                                 ".visible .entry spin_1ms() {\n"
                                 "  .reg .pred more;\n"
                                 "  .reg .b64 start, now;\n"
                                 "  mov.u64 start, %globaltimer;\n"
                                 "again:\n"
                                 "  mov.u64 now, %globaltimer;\n"
                                 "  sub.u64 now, now, start;\n"
                                 "  setp.lt.u64 more, now, 1000000;\n"
                                 "  @more bra again;\n"
                                 "  ret;\n"
                                 "}\n";

static volatile sig_atomic_t stopping;

static void on_stop(int signal_number) {
    (void)signal_number;
    stopping = 1;
}

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

static bool failed(const char *what, CUresult result) {
    if (result == 0) {
        return false;
    }
    say("{\"event\":\"error\",\"call\":\"%s\",\"result\":%d,\"name\":\"%s\"}", what, result, error_name(result));
    return true;
}

/* What NVML says of a GPU, in bytes; zeros where there is no NVML. */
static nvmlMemory_t nvml_memory(unsigned index) {
    nvmlMemory_t memory = {0, 0, 0};
    nvmlDevice_t device;
    if (load_nvml() && nvmlDeviceGetHandleByIndex_v2(index, &device) == 0) {
        nvmlDeviceGetMemoryInfo(device, &memory);
    }
    return memory;
}

/* Says how many GPUs there are, and returns that. */
static int look(void) {
    int count = 0;
    bool library = load_driver();
    CUresult init = library ? cuInit(0) : -1;
    if (init == 0) {
        cuDeviceGetCount(&count);
    }
    say("{\"event\":\"look\",\"libcuda\":%s,\"cuInit\":%d,\"gpus\":%d}", library ? "true" : "false", init, count);
    return count;
}

/* Makes the context of a GPU, current, and says what the GPU is like. */
static bool open_gpu(int index) {
    CUdevice device;
    CUcontext context;
    char name[96] = "";
    size_t total = 0, free_bytes = 0, info_total = 0;
    int multiprocessors = 0;
    if (failed("cuDeviceGet", cuDeviceGet(&device, index)) ||
        failed("cuDeviceGetName", cuDeviceGetName(name, sizeof name, device)) ||
        failed("cuDeviceTotalMem", cuDeviceTotalMem_v2(&total, device)) ||
        failed("cuDeviceGetAttribute",
               cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device)) ||
        failed("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device)) ||
        failed("cuCtxSetCurrent", cuCtxSetCurrent(context)) ||
        failed("cuMemGetInfo", cuMemGetInfo_v2(&free_bytes, &info_total))) {
        return false;
    }
    nvmlMemory_t nvml = nvml_memory((unsigned)index);
    say("{\"event\":\"gpu\",\"name\":\"%s\",\"multiprocessors\":%d,\"cuDeviceTotalMem\":%zu,"
        "\"cuMemGetInfo\":{\"total\":%zu,\"free\":%zu},\"nvml\":{\"total\":%llu,\"used\":%llu,\"free\":%llu}}",
        name, multiprocessors, total, info_total, free_bytes, nvml.total, nvml.used, nvml.free);
    return true;
}

/* Allocates pieces of the size until the driver refuses; returns the bytes taken, the refusal in *result. */
static unsigned long long take(unsigned long long piece, CUresult *result) {
    unsigned long long taken = 0;
    CUdeviceptr pointer;
    while (!stopping && (*result = cuMemAlloc_v2(&pointer, piece)) == 0) {
        taken += piece;
    }
    return taken;
}

/* Takes all that the driver gives of the current context's GPU. */
static void fill(void) {
    static const unsigned pieces_mib[] = {1024, 256, 32, 2};
    unsigned long long taken = 0;
    CUresult result = 0;
    for (size_t i = 0; i < sizeof pieces_mib / sizeof pieces_mib[0]; i++) {
        taken += take(pieces_mib[i] * MIB, &result);
    }
    size_t free_bytes = 0, total = 0;
    cuMemGetInfo_v2(&free_bytes, &total);
    say("{\"event\":\"full\",\"taken\":%llu,\"free\":%zu,\"result\":%d,\"name\":\"%s\"}", taken, free_bytes, result,
        error_name(result));
}

/* Takes so much of the current context's GPU, and no more. */
static bool take_some(unsigned long long bytes) {
    CUdeviceptr pointer;
    if (failed("cuMemAlloc", cuMemAlloc_v2(&pointer, bytes))) {
        return false;
    }
    say("{\"event\":\"took\",\"taken\":%llu}", bytes);
    return true;
}

static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Launches kernels, so many at a time and with a pause between, until told to stop, and counts them aloud twice a second. */
static int compute(CUfunction kernel, int at_once, long pause_ns) {
    unsigned long long launches = 0;
    uint64_t told = now_ms();
    while (!stopping) {
        for (int i = 0; i < at_once; i++) {
            if (failed("cuLaunchKernel", cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL))) {
                return 1;
            }
            launches++;
        }
        if (failed("cuCtxSynchronize", cuCtxSynchronize())) {
            return 1;
        }
        if (now_ms() - told >= 500) {
            say("{\"event\":\"computing\",\"launches\":%llu}", launches);
            told = now_ms();
        }
        nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
    }
    say("{\"event\":\"stopped\",\"launches\":%llu}", launches);
    return 0;
}

/* Asks for more and more, in sizes from 4 KiB to 1 GiB, whatever the driver answers. */
static int greedy(void) {
    unsigned long long taken = 0, refusals = 0, asked = 0;
    uint64_t told = 0;
    for (unsigned shift = 30; !stopping; shift = shift == 12 ? 30 : shift - 1) {
        CUresult result = 0;
        taken += take(1ULL << shift, &result);
        asked++;
        refusals += result != 0;
        if (now_ms() - told >= 500) {
            say("{\"event\":\"greedy\",\"taken\":%llu,\"rounds\":%llu,\"refusals\":%llu,\"name\":\"%s\"}", taken, asked,
                refusals, error_name(result));
            told = now_ms();
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return 0;
}

/* Loads the kernel into the current context, before its memory is full. */
static bool load_kernel(CUfunction *kernel, const char *name) {
    CUmodule module;
    return !failed("cuModuleLoadData", cuModuleLoadData(&module, kernel_ptx)) &&
           !failed("cuModuleGetFunction", cuModuleGetFunction(kernel, module, name));
}

/* Keeps the last GPU busy. */
static int work(void) {
    CUfunction kernel;
    int count = look();
    return count > 0 && open_gpu(count - 1) && load_kernel(&kernel, "spin_1ms") ? compute(kernel, 16, 0) : 1;
}

/* Opens each GPU that there is and takes so much of it, all with 0, then computes on the last. */
static int take_and_compute(unsigned long long bytes) {
    CUfunction kernel = NULL;
    int count = look();
    for (int i = 0; i < count; i++) {
        if (!open_gpu(i) || !load_kernel(&kernel, "nothing")) {
            return 1;
        }
        if (bytes == 0) {
            fill();
        } else if (!take_some(bytes)) {
            return 1;
        }
    }
    return count > 0 ? compute(kernel, 1, 1000000) : 1; /* the pause leaves the processor to others */
}

int main(int argc, char **argv) {
    struct sigaction stop = {.sa_handler = on_stop};
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    const char *what = argc == 2 ? argv[1] : "";
    if (argc == 3 && strcmp(argv[1], "take") == 0 && atoi(argv[2]) > 0) {
        return take_and_compute((unsigned long long)atoi(argv[2]) * MIB);
    }
    if (strcmp(what, "look") == 0) {
        look();
        return 0;
    }
    if (strcmp(what, "fill") == 0) {
        return take_and_compute(0);
    }
    if (strcmp(what, "work") == 0) {
        return work();
    }
    if (strcmp(what, "greedy") == 0) {
        return look() > 0 && open_gpu(0) ? greedy() : 1;
    }
    fprintf(stderr, "usage: gpu-probe look|fill|take MIB|work|greedy\n");
    return 2;
}
