/* Holds a context and BYTES of memory on GPU 0 of whatever libcuda.so.1 the loader finds, until its input ends. With
 * HOLD_LAUNCHES in its environment it also launches a kernel. */
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

static void launch(void) {
    static const char ptx[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry k() { ret; }\n";
    void *module, *kernel;

    CALL("cuModuleLoadData", (void **, const void *), &module, ptx);
    CALL("cuModuleGetFunction", (void **, void *, const char *), &kernel, module, "k");
    CALL("cuLaunchKernel",
         (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
         kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

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
    if (getenv("HOLD_LAUNCHES") != NULL)
        launch();
    puts("holding");
    fflush(stdout);
    return read(STDIN_FILENO, &byte, 1) == 0 ? 0 : 1;
}
