/*
 * Writes what a driver's library answers without a GPU: answers LIBRARY NAMES. NAMES is a file of functions' names.
 *
 *   NAME VERSION FLAGS SYMBOL          cuGetProcAddress_v2 gave the function that the library exports as SYMBOL
 *   NAME VERSION FLAGS = RESULT STATUS it gave none
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int get_function(const char *name, void **function, int version, uint64_t flags, int *status);

static const int versions[] = {2000,  3020,  4000,  6050,  7000,  8000,  9000,  10000, 10020, 11000, 11010, 11020,
                               11030, 11040, 11050, 11060, 11070, 11080, 12000, 12010, 12020, 12030, 12040};

static void ask(get_function *get, const char *name, int version, uint64_t flags) {
    void *function = NULL;
    Dl_info found = {0};
    int status = -1, result = get(name, &function, version, flags, &status);
    if (function != NULL && dladdr(function, &found) != 0 && found.dli_saddr == function)
        printf("%s %d %d %s\n", name, version, (int)flags, found.dli_sname);
    else
        printf("%s %d %d = %d %d%s\n", name, version, (int)flags, result, status, function != NULL ? " unnamed" : "");
}

int main(int argc, char **argv) {
    char name[200];
    get_function *get = NULL;
    void *library = argc == 3 ? dlopen(argv[1], RTLD_NOW) : NULL;
    FILE *names = argc == 3 ? fopen(argv[2], "re") : NULL;
    if (library != NULL)
        *(void **)&get = dlsym(library, "cuGetProcAddress_v2");
    if (get == NULL || names == NULL) {
        fprintf(stderr, "answers: %s\n", library == NULL && argc == 3 ? dlerror() : "usage: answers LIBRARY NAMES");
        return 2;
    }
    while (fgets(name, sizeof name, names) != NULL) {
        name[strcspn(name, "\n")] = '\0';
        for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++)
            for (uint64_t flags = 0; flags <= 3; flags++)
                ask(get, name, versions[i], flags);
    }
    return 0;
}
