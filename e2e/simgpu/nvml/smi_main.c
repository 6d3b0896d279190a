/* The binary that a simulated driver root holds as usr/bin/nvidia-smi. */
#include <stdio.h>
#include <string.h>

#include "smi.h"

#define QUERY "--query-gpu="
#define FORMAT "--format="

static int usage(void) {
    fputs("usage: nvidia-smi [-L | " QUERY "FIELD,... [" FORMAT "csv[,noheader][,nounits]]]   (SIMULATED)\n", stderr);
    return 2;
}

int main(int argc, char **argv) {
    const char *fields = NULL, *format = "csv";

    if (argc == 1)
        return simgpu_smi(stdout);
    if (argc == 2 && (strcmp(argv[1], "-L") == 0 || strcmp(argv[1], "--list-gpus") == 0))
        return simgpu_smi_list(stdout);
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], QUERY, strlen(QUERY)) == 0)
            fields = argv[i] + strlen(QUERY);
        else if (strncmp(argv[i], FORMAT, strlen(FORMAT)) == 0)
            format = argv[i] + strlen(FORMAT);
        else
            return usage();
    }
    if (fields == NULL || strncmp(format, "csv", 3) != 0)
        return usage();
    return simgpu_smi_query(stdout, fields, strstr(format, "noheader") == NULL, strstr(format, "nounits") == NULL);
}
