/* Prints the symbols that each shadow library must export, from the table in driver/shadowed.h. */
#include "../driver/shadowed.h"

#include <stdio.h>
#include <string.h>

#define X(symbol, ...) puts(#symbol);

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "libcuda.so.1") == 0) {
        CUDA_SHADOWED(X)
    } else if (argc == 2 && strcmp(argv[1], "libnvidia-ml.so.1") == 0) {
        NVML_SHADOWED(X)
    } else {
        return 2;
    }
    return 0;
}
