/*
 * Records what a program asks the driver for by name: preloaded, it writes a line to the file $ASKED for each name that is
 * looked up in the driver's library, each call of cuGetProcAddress and each private table.
 *
 *   symbol NAME                        dlsym
 *   function NAME VERSION FLAGS [no]   cuGetProcAddress; `no`: the driver has none
 *   table UUID [no]                    cuGetExportTable
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int get_function(const char *name, void **function, int version, uint64_t flags);
typedef int get_function_v2(const char *name, void **function, int version, uint64_t flags, int *status);
typedef int get_table(const void **table, const unsigned char uuid[16]);

static get_function *real_get;
static get_function_v2 *real_get_v2;
static get_table *real_table;

static void *ours_or(const char *name, void *real, int version);

static FILE *output(void) {
    static FILE *file;
    if (file == NULL && (file = fopen(getenv("ASKED"), "we")) == NULL)
        abort();
    setvbuf(file, NULL, _IOLBF, 0);
    return file;
}

static void tell(const char *name, int version, uint64_t flags, int result) {
    fprintf(output(), "function %s %d %llu%s\n", name, version, (unsigned long long)flags, result == 0 ? "" : " no");
}

static int get(const char *name, void **function, int version, uint64_t flags) {
    int result = real_get(name, function, version, flags);
    tell(name, version, flags, result);
    if (result == 0)
        *function = ours_or(name, *function, version);
    return result;
}

static int get_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    int result = real_get_v2(name, function, version, flags, status);
    tell(name, version, flags, result == 0 && *function == NULL ? 1 : result);
    if (result == 0 && *function != NULL)
        *function = ours_or(name, *function, version);
    return result;
}

static int table(const void **answer, const unsigned char uuid[16]) {
    int result = real_table(answer, uuid);
    fprintf(output(), "table ");
    for (int i = 0; i < 16; i++)
        fprintf(output(), "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
    fprintf(output(), "%s\n", result == 0 ? "" : " no");
    return result;
}

/* The function of 11.3 has four parameters, that of 12.0 five. */
static void *ours_or(const char *name, void *real, int version) {
    if (strcmp(name, "cuGetExportTable") == 0) {
        *(void **)&real_table = real;
        return (void *)table;
    }
    if (strcmp(name, "cuGetProcAddress_v2") == 0 || (strcmp(name, "cuGetProcAddress") == 0 && version >= 12000)) {
        *(void **)&real_get_v2 = real;
        return (void *)get_v2;
    }
    if (strcmp(name, "cuGetProcAddress") == 0) {
        *(void **)&real_get = real;
        return (void *)get;
    }
    return real;
}

/* Source: dlsym(3); the version is that of x86-64's first C library. */
void *dlsym(void *handle, const char *name) {
    static void *(*real)(void *, const char *);
    if (real == NULL)
        *(void **)&real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    void *found = real(handle, name);
    if (strncmp(name, "cu", 2) != 0 || strncmp(name, "cuda", 4) == 0)
        return found;
    fprintf(output(), "symbol %s%s\n", name, found != NULL ? "" : " no");
    return found == NULL ? NULL : ours_or(name, found, 0);
}
