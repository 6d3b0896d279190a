/*
 * Writes what a driver's library answers without a GPU: answers LIBRARY NAMES. NAMES is a file of functions' names.
 *
 *   version RESULT VERSION               cuDriverGetVersion
 *   NAME old|new VERSION FLAGS SYMBOL FILE   cuGetProcAddress, or cuGetProcAddress_v2, gave the function of this exported name
 *   NAME old|new VERSION FLAGS = RESULT STATUS   it gave none; STATUS is only the new one's
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int get_function(const char *name, void **function, int version, uint64_t flags);
typedef int get_function_v2(const char *name, void **function, int version, uint64_t flags, int *status);
typedef int version_function(int *version);

static const int versions[] = {2000,  3020,  4000,  6050,  7000,  8000,  9000,  10000, 10020, 11000, 11010, 11020,
                               11030, 11040, 11050, 11060, 11070, 11080, 12000, 12010, 12020, 12030, 12040};

static get_function *old_get;    /* every driver has it since CUDA 11.3, */
static get_function_v2 *new_get; /* and this one since 12.0 */

static void tell(const char *name, const char *which, int version, uint64_t flags, void *function, int result,
                 int status) {
    Dl_info found = {0};

    printf("%s %s %d %d ", name, which, version, (int)flags);
    if (function != NULL && dladdr(function, &found) != 0 && found.dli_saddr == function)
        printf("%s %s\n", found.dli_sname, found.dli_fname);
    else
        printf("= %d %d%s\n", result, status, function != NULL ? " unnamed" : "");
}

static void ask(const char *name, int version, uint64_t flags) {
    void *function = NULL;
    int status = -1, result = old_get(name, &function, version, flags);

    tell(name, "old", version, flags, result == 0 ? function : NULL, result, status);
    if (new_get == NULL)
        return;
    function = NULL;
    result = new_get(name, &function, version, flags, &status);
    tell(name, "new", version, flags, function, result, status);
}

int main(int argc, char **argv) {
    char name[200];
    version_function *get_version = NULL;
    void *library = argc == 3 ? dlopen(argv[1], RTLD_NOW) : NULL;
    FILE *names = argc == 3 ? fopen(argv[2], "re") : NULL;

    if (library != NULL) {
        *(void **)&get_version = dlsym(library, "cuDriverGetVersion");
        *(void **)&old_get = dlsym(library, "cuGetProcAddress");
        *(void **)&new_get = dlsym(library, "cuGetProcAddress_v2");
    }
    if (get_version == NULL || old_get == NULL || names == NULL) {
        fprintf(stderr, "answers: %s\n", library == NULL && argc == 3 ? dlerror() : "usage: answers LIBRARY NAMES");
        return 2;
    }
    int version = 0, result = get_version(&version);
    printf("version %d %d\n", result, version);
    while (fgets(name, sizeof name, names) != NULL) {
        name[strcspn(name, "\n")] = '\0';
        for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++)
            for (uint64_t flags = 0; flags <= 3; flags++)
                ask(name, versions[i], flags);
    }
    return 0;
}
