/*
 * A program that uses the GPU as it is told, for the checks on a real GPU. What stands behind libcuda.so.1, the driver or a
 * shadow library, it neither knows nor cares.
 *
 *   probe [--lookup symbol|address|address_v2|per_thread] COMMAND...
 */
#include "probe.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

CUdevice device;
CUcontext context;

void must(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "probe: %s: %s (%d)\n", what, error_name(result), result);
    exit(1);
}

void open_context(void) {
    must(cuda.cuInit(0), "cuInit");
    must(cuda.cuDeviceGet(&device, 0), "cuDeviceGet");
    must(cuda.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    must(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    must(cuda.cuCtxSynchronize(), "cuCtxSynchronize");
}

void close_context(void) {
    must(cuda.cuCtxSetCurrent(NULL), "cuCtxSetCurrent");
    must(cuda.cuDevicePrimaryCtxRelease_v2(device), "cuDevicePrimaryCtxRelease");
}

const char *because(const char *format, ...) {
    static char sentence[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return sentence;
}

static const struct way *const all_ways[] = {linear_ways, array_ways,  pool_ways,   vmm_ways,
                                             graph_ways,  module_ways, context_ways};

void each_way(void (*call)(const struct way *way)) {
    for (size_t i = 0; i < sizeof all_ways / sizeof all_ways[0]; i++)
        for (const struct way *way = all_ways[i]; way->name != NULL; way++)
            call(way);
}

const struct way *find_way(const char *name) {
    for (size_t i = 0; i < sizeof all_ways / sizeof all_ways[0]; i++)
        for (const struct way *way = all_ways[i]; way->name != NULL; way++)
            if (strcmp(way->name, name) == 0)
                return way;
    return NULL;
}

/* What the GPU is like, without a context on it. */
int probe_look(int argc, char **argv) {
    (void)argc, (void)argv;
    int version = 0, devices = 0;
    char name[128] = "";
    CUuuid uuid = {{0}};
    CUresult result = cuda.cuInit(0);
    if (result == CUDA_SUCCESS)
        result = cuda.cuDeviceGetCount(&devices);
    if (result == CUDA_SUCCESS && devices > 0)
        result = cuda.cuDeviceGet(&device, 0);
    if (result != CUDA_SUCCESS || devices == 0) {
        fprintf(stderr, "probe: %s shows no GPU: %s (%d)\n", driver_file(), error_name(result), result);
        return 1;
    }
    cuda.cuDriverGetVersion(&version);
    cuda.cuDeviceGetName(name, sizeof name - 1, device);
    if (CALL(cuDeviceGetUuid_v2, &uuid, device) != CUDA_SUCCESS)
        must(CALL(cuDeviceGetUuid, &uuid, device), "cuDeviceGetUuid");
    char text[33];
    for (int i = 0; i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", (unsigned char)uuid.bytes[i]);
    say("gpu",
        "\"file\":\"%s\",\"cuda\":%d,\"name\":\"%s\",\"uuid\":\"%s\",\"major\":%d,\"minor\":%d,\"multiprocessors\":%d,"
        "\"threads\":%d",
        driver_file(), version, name, text, attribute(device, ATTRIBUTE_MAJOR), attribute(device, ATTRIBUTE_MINOR),
        attribute(device, ATTRIBUTE_MULTIPROCESSORS), attribute(device, ATTRIBUTE_THREADS_PER_MULTIPROCESSOR));
    return 0;
}

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"look", probe_look},           {"ways", probe_ways},     {"fill", probe_fill},       {"limits", probe_limits},
    {"share", probe_share},         {"obey", probe_obey},     {"symbols", probe_symbols}, {"facts", probe_facts},
    {"calibrate", probe_calibrate}, {"switch", probe_switch}, {"gate", probe_gate},       {"work", probe_work},
};

static enum lookup lookup_named(const char *name) {
    static const char *const names[] = {"symbol", "address", "address_v2", "per_thread"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0)
            return (enum lookup)i;
    return LOOKUP_SYMBOL;
}

int main(int argc, char **argv) {
    enum lookup lookup = LOOKUP_SYMBOL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc > 2 && strcmp(argv[1], "--lookup") == 0) {
        lookup = lookup_named(argv[2]);
        argc -= 2, argv += 2;
    }
    for (size_t i = 0; argc > 1 && i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            driver_load(lookup);
            return commands[i].run(argc - 2, argv + 2);
        }
    }
    fprintf(stderr, "usage: probe [--lookup HOW] COMMAND...\n");
    return 2;
}
