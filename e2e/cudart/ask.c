/* Calls NVIDIA's runtime library for the first time, by which it asks the driver for all that it knows: ask LIBRARY. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    int (*release)(void *);
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (library == NULL) {
        fprintf(stderr, "ask: %s\n", argc == 2 ? dlerror() : "which library?");
        return 2;
    }
    *(void **)&release = dlsym(library, "cudaFree");
    return release != NULL && release(NULL) == 0 ? 0 : 1;
}
