/*
 * How the driver answers for the functions that the shadow library stands in front of: whether its library exports them,
 * and whether cuGetProcAddress answers with the very same addresses.
 *
 *   probe symbols FILE    a symbol a line
 */
#include "probe.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int versions[] = {2000,  3000,  3020,  4000,  4010,  5000,  6000,  6050,  7000,  8000,  9000,
                               9020,  10000, 10010, 10020, 11000, 11010, 11020, 11030, 11040, 11060, 11070,
                               11080, 12000, 12010, 12020, 12030, 12040, 12050, 12060, 12080, 13000};

enum { MOST_ANSWERS = 32 };
struct answers {
    void *functions[MOST_ANSWERS];
    size_t count;
};

static bool among(const struct answers *answers, const void *function) {
    for (size_t i = 0; i < answers->count; i++)
        if (answers->functions[i] == function)
            return true;
    return false;
}

static void collect(struct answers *answers, const char *name) {
    int newest = 0;
    cuda.cuDriverGetVersion(&newest);
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        for (unsigned flags = 0; versions[i] <= newest && flags <= 2; flags++) {
            for (int second = 0; second <= 1; second++) {
                void *function = driver_address(name, versions[i], flags, second);
                if (function != NULL && !among(answers, function) && answers->count < MOST_ANSWERS)
                    answers->functions[answers->count++] = function;
            }
        }
    }
}

/* The name as cuGetProcAddress has it. */
static void strip(char *name) {
    static const char *const endings[] = {"_ptsz", "_ptds", "_v1", "_v2", "_v3", "_v4"};
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        size_t length = strlen(name), ending = strlen(endings[i]);
        if (length > ending && strcmp(name + length - ending, endings[i]) == 0)
            name[length - ending] = '\0';
    }
}

/* How many of the answers are the address of no export of any version of the name. */
static size_t strangers(const struct answers *answers, const char *base) {
    static const char *const endings[] = {"",         "_ptsz",    "_ptds",    "_v1", "_v2",
                                          "_v2_ptsz", "_v2_ptds", "_v3_ptsz", "_v3", "_v4"};
    struct answers exported = {.count = 0};
    size_t count = 0;
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        char symbol[160];
        snprintf(symbol, sizeof symbol, "%s%s", base, endings[i]);
        void *function = dlsym(driver_library(), symbol);
        if (function != NULL)
            exported.functions[exported.count++] = function;
    }
    for (size_t i = 0; i < answers->count; i++)
        count += !among(&exported, answers->functions[i]);
    return count;
}

int probe_symbols(int argc, char **argv) {
    char symbol[128], base[128];
    FILE *file = argc == 1 ? fopen(argv[0], "r") : NULL;
    if (file == NULL)
        return 2;
    must(cuda.cuInit(0), "cuInit");
    while (fscanf(file, "%127s", symbol) == 1) {
        struct answers answers = {.count = 0};
        void *exported = dlsym(driver_library(), symbol);
        snprintf(base, sizeof base, "%s", symbol);
        strip(base);
        collect(&answers, base);
        say("symbol", "\"name\":\"%s\",\"exported\":%s,\"answered\":%zu,\"same\":%s,\"strangers\":%zu", symbol,
            exported != NULL ? "true" : "false", answers.count,
            exported != NULL && among(&answers, exported) ? "true" : "false", strangers(&answers, base));
    }
    fclose(file);
    return 0;
}
