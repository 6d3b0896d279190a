/* Holds a context and BYTES of memory on GPU 0 of whatever libcuda.so.1 the loader finds, until its input ends. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *library;

/* Calls the function; its result ends the program unless it is CUDA_SUCCESS. */
#define CALL(name, parameters, ...)                                                                                    \
    do {                                                                                                               \
        int(*function) parameters;                                                                                     \
        void *symbol = dlsym(library, name);                                                                           \
        memcpy(&function, &symbol, sizeof(symbol));                                                                    \
        int result = symbol == NULL ? -1 : function(__VA_ARGS__);                                                      \
        if (result != 0) {                                                                                             \
            fprintf(stderr, "%s: %d\n", name, result);                                                                 \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

int main(int argc, char **argv) {
    int device;
    void *context;
    unsigned long long pointer;
    char byte;

    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (argc != 2 || library == NULL) {
        fprintf(stderr, "hold: %s\n", argc != 2 ? "usage: hold BYTES" : dlerror());
        return 1;
    }
    CALL("cuInit", (unsigned int), 0);
    CALL("cuDeviceGet", (int *, int), &device, 0);
    CALL("cuDevicePrimaryCtxRetain", (void **, int), &context, device);
    CALL("cuCtxSetCurrent", (void *), context);
    CALL("cuMemAlloc_v2", (unsigned long long *, size_t), &pointer, strtoull(argv[1], NULL, 10));
    puts("holding");
    fflush(stdout);
    return read(STDIN_FILENO, &byte, 1) == 0 ? 0 : 1;
}
