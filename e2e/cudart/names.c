/*
 * Writes which file each of a library's functions and variables comes from: names HOW LIBRARY NAMES. HOW is a way to load the
 * library: dlopen, deepbind, dlmopen, or linked, where this program was linked with it. NAMES is a file of names.
 *
 *   NAME FILE
 *   NAME -         there is none of this name
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void *load(const char *how, const char *library) {
    if (strcmp(how, "linked") == 0)
        return dlopen(NULL, RTLD_NOW);
    if (strcmp(how, "dlmopen") == 0)
        return dlmopen(LM_ID_NEWLM, library, RTLD_NOW);
    return dlopen(library, strcmp(how, "deepbind") == 0 ? RTLD_NOW | RTLD_DEEPBIND : RTLD_NOW);
}

int main(int argc, char **argv) {
    char name[200];
    void *library = argc == 4 ? load(argv[1], argv[2]) : NULL;
    FILE *names = argc == 4 ? fopen(argv[3], "re") : NULL;

    if (library == NULL || names == NULL) {
        fprintf(stderr, "names: %s\n", library == NULL && argc == 4 ? dlerror() : "usage: names HOW LIBRARY NAMES");
        return 2;
    }
    while (fgets(name, sizeof name, names) != NULL) {
        Dl_info found;

        name[strcspn(name, "\n")] = '\0';
        void *symbol = dlsym(library, name);
        printf("%s %s\n", name, symbol == NULL ? "-" : dladdr(symbol, &found) != 0 ? found.dli_fname : "?");
    }
    return 0;
}
