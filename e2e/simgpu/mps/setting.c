/* What the environment and commands say of percentages and limits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mps.h"

const char *mps_pipe_path(const char *name) {
    /* Small: who loads libcuda by dlopen has little room for what is the thread's own. A socket's name is no longer. */
    static __thread char path[256];
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");

    snprintf(path, sizeof(path), "%s/%s", directory != NULL && *directory != '\0' ? directory : "/tmp/nvidia-mps",
             name);
    return path;
}

bool mps_parse_percentage(const char *text, uint32_t *percentage) {
    char *end;
    double value;

    *percentage = MPS_WHOLE;
    if (text == NULL || *text == '\0')
        return false;
    value = strtod(text, &end);
    if (*end != '\0' || !(value > 0 && value <= 100))
        return false;
    *percentage = (uint32_t)(value * (MPS_WHOLE / 100) + 0.5);
    return *percentage > 0;
}

bool mps_parse_bytes(const char *text, uint64_t *bytes) {
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    unsigned shift = *end == 'G' ? 30 : 20;

    if (end == text || *text == '-' || (*end != 'G' && *end != 'M') || value > UINT64_MAX >> shift)
        return false;
    *bytes = (uint64_t)value << shift;
    return end[1] == '\0' || strcmp(end + 1, "B") == 0;
}

static bool names_device(const char *name, size_t length, uint32_t device, const char *uuid) {
    char number[16];

    snprintf(number, sizeof(number), "%u", device);
    if (strlen(number) == length && strncmp(name, number, length) == 0)
        return true;
    return length > 4 && strncmp(uuid, name, length) == 0;
}

uint64_t mps_limit_in(const char *list, uint32_t device, const char *uuid) {
    uint64_t limit = 0;

    for (const char *entry = list; entry != NULL && *entry != '\0';) {
        size_t length = strcspn(entry, ","), name = strcspn(entry, "=");
        char value[32];
        uint64_t bytes;

        if (name < length && length - name - 1 < sizeof(value)) {
            snprintf(value, sizeof(value), "%.*s", (int)(length - name - 1), entry + name + 1);
            if (names_device(entry, name, device, uuid) && mps_parse_bytes(value, &bytes))
                limit = bytes;
        }
        entry += length;
        entry += *entry == ',';
    }
    return limit;
}

static bool entry_names_device(const char *entry, const struct mps_shared *shared) {
    for (uint32_t device = 0; device < shared->device_count; device++) {
        if (names_device(entry, strcspn(entry, "=,"), device, shared->uuid[device]))
            return true;
    }
    return false;
}

bool mps_limits_name_devices(const char *list, const struct mps_shared *shared) {
    for (const char *entry = list; entry != NULL && *entry != '\0';) {
        if (!entry_names_device(entry, shared))
            return false;
        entry += strcspn(entry, ",");
        entry += *entry == ',';
    }
    return true;
}

uint64_t mps_smaller_limit(uint64_t a, uint64_t b) {
    return a == 0 || (b != 0 && b < a) ? b : a;
}

uint32_t mps_multiprocessors(uint32_t all, uint32_t percentage) {
    uint32_t portion = (uint32_t)((uint64_t)all * percentage / MPS_WHOLE);

    if (portion >= all)
        return all;
    portion -= portion % 2;
    return portion >= 2 ? portion : all < 2 ? all : 2;
}
