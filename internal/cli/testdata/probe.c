/* Says which library each name leads to. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        void *library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
        const char *(*which)(void) = NULL;
        if (library != NULL) {
            *(void **)&which = dlsym(library, "tranche_test_which");
        }
        printf("%s %s\n", argv[i], which != NULL ? which() : "none");
    }
    return 0;
}
